/* region.h: which elements of a unit a rank has between two steps of an option. */
#ifndef ESP__REGION_H
#define ESP__REGION_H
#include "espresso_impl/strategy/option.h"

/* The elements of a sync unit: of a whole tensor, of a chunk (a range of one tensor), or of a group (several whole
 * neighbours). */
typedef struct esp__extent {
    uint32_t first, n; /* the unit's tensors, in backward order */
    uint64_t begin;    /* first element in the tensor; 0 for a group */
    uint64_t elements;
} esp__extent;

/* The inputs from which a region follows: the rank's index in its group of each scope, their sizes, and the unit. */
typedef struct esp__coordinates {
    int32_t index[ESP__SCOPES], size[ESP__SCOPES];
    uint32_t unit;  /* its index: different units have different roots */
    uint64_t width; /* cuts lie at its multiples, as between rows; 0 is 1 */
} esp__coordinates;

/* Nested cuts divide the unit into parts, at most one cut a scope, the outermost first. In a narrow cut, the rank has
 * only its own part. In an open cut it has payloads of all parts. A compressed region consists of payload slots, which
 * form a row-major array with a dimension for each open cut (PART: the index of the part) and for each scope whose
 * contributions are not summed yet (SOURCE: the rank that contributed it). `level` is a scope everywhere here. */
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
    uint8_t idle[ESP__SCOPES];       /* not the root, so without data */
    uint8_t summed[ESP__SCOPES];     /* has all ranks' contributions */
    uint8_t replicated[ESP__SCOPES]; /* all ranks have the same data */
    esp__dim dims[ESP__DIMS];        /* outermost first */
    uint32_t n_dims;
} esp__region;

ESP__FN void esp__region_start(esp__region *r); /* the whole unit, uncompressed */
/* Part `p` of `count` elements cut into `n` parts: [*begin, *begin + *length). */
ESP__FN void esp__part(uint64_t count, uint64_t n, uint64_t p, uint64_t *begin, uint64_t *length);
/* The elements of an uncompressed region, or those of the payload slot with index[d] in each dimension d. */
ESP__FN void esp__region_range(const esp__region *r, const esp__coordinates *at, uint64_t count, const uint32_t *index,
                               uint64_t *begin, uint64_t *length);
/* The number of payload slots in the region. */
ESP__FN uint64_t esp__region_slots(const esp__region *r, const esp__coordinates *at);
/* Does this rank have data? Ranks that are not the root of a rooted step have none after it. */
ESP__FN bool esp__region_active(const esp__region *r);
/* Does this rank take part in step `s`, given the region before it? */
ESP__FN bool esp__region_takes_part(const esp__region *r, const esp__step *s);
ESP__FN int32_t esp__region_root(const esp__coordinates *at, const esp__step *s); /* or -1 */
/* Changes `r` into the region after step `i` of `o`. Before an alltoall or a reduce_scatter of payloads, the executor
 * must move dimension *swap of the slots to the front (0: it is there already). */
ESP__FN void esp__region_step(esp__region *r, const esp__coordinates *at, const esp__option *o, uint32_t i,
                              uint32_t *swap);
#endif
