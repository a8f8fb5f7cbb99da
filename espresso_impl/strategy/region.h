/* region.h: a region is the elements of a tensor or group that a rank holds between two steps of an option. */
#ifndef ESP__REGION_H
#define ESP__REGION_H
#include "espresso_impl/strategy/option.h"

/* A whole tensor, a chunk (a range of one tensor), or a group (several whole tensors that follow each other). */
typedef struct esp__extent {
    uint32_t first, n; /* its tensors: index of the first, and their number */
    uint64_t begin;    /* a chunk's first element in its tensor, else 0 */
    uint64_t elements;
} esp__extent;

/* The rank's index in its group of each scope (such as inside machines), and the group's size. `unit` chooses roots. */
typedef struct esp__coordinates {
    int32_t index[ESP__SCOPES], size[ESP__SCOPES];
    uint32_t unit;
    uint64_t width; /* ranks' parts begin at multiples of it; 0 counts as 1 */
} esp__coordinates;

/* Collectives such as reduce_scatter divide the elements among ranks: one cut for each scope, in the order of the
 * steps. After a closed cut the rank has only its own part, in an open cut it has payloads of all parts. A compressed
 * region is an array of payloads in row-major order. Its dimensions are the open cuts (PART: the index says which part)
 * and the scopes that are not summed yet (SOURCE: the index says which rank compressed it). */
typedef struct esp__cut {
    uint8_t level, open;
} esp__cut;
enum { ESP__DIM_PART = 1, ESP__DIM_SOURCE = 2, ESP__DIMS = 2 * ESP__LEVELS };
typedef struct esp__dim {
    uint8_t what, level;
} esp__dim;

typedef struct esp__region {
    esp__cut cuts[ESP__LEVELS];
    uint32_t n_cuts;
    uint8_t compressed;
    uint8_t idle[ESP__SCOPES];       /* 1 if this rank holds nothing because the root does */
    uint8_t summed[ESP__SCOPES];     /* 1 if the values of all ranks of the scope are summed */
    uint8_t replicated[ESP__SCOPES]; /* 1 if all ranks of the scope have the same data */
    esp__dim dims[ESP__DIMS];
    uint32_t n_dims;
} esp__region;

ESP__FN void esp__region_start(esp__region *r); /* sets `r` to all elements, uncompressed */
/* Writes the range of part `p` if `count` elements are divided into `n` parts. */
ESP__FN void esp__part(uint64_t count, uint64_t n, uint64_t p, uint64_t *begin, uint64_t *length);
/* Writes the range of an uncompressed region or, of a compressed one, of the payload at index[d] in each dimension
 * d. */
ESP__FN void esp__region_range(const esp__region *r, const esp__coordinates *at, uint64_t count, const uint32_t *index,
                               uint64_t *begin, uint64_t *length);
ESP__FN uint64_t esp__region_slots(const esp__region *r, const esp__coordinates *at);
/* Returns false if this rank has no data, because a reduce or gather left it on the root. */
ESP__FN bool esp__region_active(const esp__region *r);
ESP__FN bool esp__region_takes_part(const esp__region *r, const esp__step *s);
ESP__FN int32_t esp__region_root(const esp__coordinates *at, const esp__step *s); /* -1 if `s` has no root */
/* Changes `r` to the region after step `i` of `o`. If *swap is not 0, the step needs dimension *swap of the payloads
 * first. */
ESP__FN void esp__region_step(esp__region *r, const esp__coordinates *at, const esp__option *o, uint32_t i,
                              uint32_t *swap);
#endif
