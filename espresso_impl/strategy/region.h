/* region.h: which elements of a unit a rank has between two steps of an option. Pure values: no memory, no time, no codec. */
#ifndef ESP__REGION_H
#define ESP__REGION_H
#include "espresso_impl/strategy/option.h"

/* The elements of a sync unit: of a whole tensor, of a chunk (a range of one tensor), or of a group (several whole neighbours). */
typedef struct esp__extent {
    uint32_t first, n; /* the unit's tensors, in backward order */
    uint64_t begin;    /* first element in the tensor; 0 for a group */
    uint64_t elements;
} esp__extent;

/* A rank's coordinates and a unit: all that the regions of an option depend on. */
typedef struct esp__coordinates {
    int32_t index[ESP__SCOPES], size[ESP__SCOPES]; /* this rank in its group of each scope, and the group's size */
    uint32_t unit;                                 /* index: different units have different roots                */
    uint64_t width; /* cuts lie at multiples of it: a matrix's columns where it is cut between rows; 0 means 1 */
} esp__coordinates;

/* A region results from nested cuts of the unit into parts, at most one a level, the outermost first. In a *narrow* cut the rank has only its
 * own part; in an *open* cut it has payloads of all parts. Payload slots form a row-major array. It has a dimension for each open
 * cut, and one for each scope whose contributions are side by side instead of summed. `level` is a scope everywhere here. */
typedef struct esp__cut {
    uint8_t level, open;
} esp__cut;
enum { ESP__DIM_PART = 1, ESP__DIM_SOURCE = 2, ESP__DIMS = 2 * ESP__LEVELS };
typedef struct esp__dim {
    uint8_t what,
        level; /* PART: the part of the cut at `level`; SOURCE: the rank of that group whose contribution it is */
} esp__dim;

typedef struct esp__region {
    esp__cut cuts[ESP__LEVELS];
    uint32_t n_cuts;
    uint8_t compressed;
    uint8_t idle[ESP__SCOPES];       /* a rooted step in this scope left this rank without data                */
    uint8_t summed[ESP__SCOPES];     /* has the contributions of all ranks of the scope, summed or side by side */
    uint8_t replicated[ESP__SCOPES]; /* all ranks of the scope have the same                                  */
    esp__dim dims[ESP__DIMS];        /* compressed: outermost first                                            */
    uint32_t n_dims;
} esp__region;

ESP__FN void esp__region_start(esp__region *r); /* the whole unit, as numbers */
/* Part `p` of `count` elements cut into `n` parts: [*begin, *begin + *length). */
ESP__FN void esp__part(uint64_t count, uint64_t n, uint64_t p, uint64_t *begin, uint64_t *length);
/* The elements of an uncompressed region, whose cuts are all narrow, or of the payload slot at index[d] along each dims[d]. */
ESP__FN void esp__region_range(const esp__region *r, const esp__coordinates *at, uint64_t count, const uint32_t *index,
                               uint64_t *begin, uint64_t *length);
/* The number of payload slots in the region. */
ESP__FN uint64_t esp__region_slots(const esp__region *r, const esp__coordinates *at);
/* 1: this rank has data, and is not one of those that a rooted step left without. */
ESP__FN int esp__region_active(const esp__region *r);
/* Does this rank take part in step `s`, given the region before it? And the step's root; -1: it has no root. */
ESP__FN int esp__region_takes_part(const esp__region *r, const esp__step *s);
ESP__FN int32_t esp__region_root(const esp__coordinates *at, const esp__step *s);
/* Changes `r` into the region after step `i` of `o`. An alltoall, or a reduce_scatter that sums bodies, needs its cut as the
 * outermost dimension: *swap is the dimension to move to the front before the step, 0: none. */
ESP__FN void esp__region_step(esp__region *r, const esp__coordinates *at, const esp__option *o, uint32_t i,
                              uint32_t *swap);
#endif
