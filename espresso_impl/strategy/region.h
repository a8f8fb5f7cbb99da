/* region.h: what a rank holds of one unit between two steps of an option. Pure values: no memory, no time, no codec. */
#ifndef ESP__REGION_H
#define ESP__REGION_H
#include "espresso_impl/strategy/option.h"

/* Where a rank sits: enough to walk any option for any unit. */
typedef struct esp__coordinates {
    int32_t index[3], size[3]; /* this rank in the group of each level, and the group's size */
    uint32_t unit;             /* index: turns the roots                                     */
} esp__coordinates;

/* A region is a nest of cuts of the unit, outermost first. A cut is *narrow* where the rank holds its own part of it
 * only, and *open* where it holds (as payloads) all of them. Payload slots are an array with one dimension per open cut
 * and per unsummed set of contributions, row-major. */
typedef struct esp__cut {
    uint8_t level, open;
} esp__cut;
enum { ESP__DIM_PART = 1, ESP__DIM_SOURCE = 2 };
typedef struct esp__dim {
    uint8_t what, level; /* a part of the cut at `level`, or the rank of that group that it came from */
} esp__dim;

typedef struct esp__region {
    esp__cut cuts[2];
    uint32_t n_cuts;
    uint8_t compressed;
    uint8_t idle[3];       /* a rooted step at this level left this rank without data                */
    uint8_t summed[3];     /* contributions of all ranks of this level are in (as a sum or side by side) */
    uint8_t replicated[3]; /* all ranks of this level hold the same                                  */
    esp__dim dims[4];      /* compressed: outermost first                                            */
    uint32_t n_dims;
} esp__region;

ESP__FN void esp__region_start(esp__region *r);
/* Part `p` of `count` elements over `n`: [*begin, *begin + *length). */
ESP__FN void esp__part(uint64_t count, uint64_t n, uint64_t p, uint64_t *begin, uint64_t *length);
/* The element range of a raw region (all cuts narrow), or of one payload slot: index[d] along dims[d]. */
ESP__FN void esp__region_range(const esp__region *r, const esp__coordinates *at, uint64_t count, const uint32_t *index,
                               uint64_t *begin, uint64_t *length);
/* How many slots the region holds, and how many of one part (unsummed contributions). */
ESP__FN uint64_t esp__region_slots(const esp__region *r, const esp__coordinates *at);
/* Does this rank take part in step `s` of option `o`, given the region before it? And who is its root (or -1)? */
ESP__FN int esp__region_takes_part(const esp__region *r, const esp__step *s);
ESP__FN int32_t esp__region_root(const esp__coordinates *at, const esp__step *s);
/* The region after step `i` of `o`. Where an alltoall or a summing reduce_scatter needs its cut as the outermost
 * dimension and it is not, *swap gets the number of that dimension (move it to the front first); else 0. */
ESP__FN void esp__region_step(esp__region *r, const esp__coordinates *at, const esp__option *o, uint32_t i,
                              uint32_t *swap);
#endif
