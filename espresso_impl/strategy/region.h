/* region.h: which elements of a unit a rank has between two steps of an option (its region). */
#ifndef ESP__REGION_H
#define ESP__REGION_H
#include "espresso_impl/strategy/option.h"

/* The elements of a unit: a whole tensor, a chunk (a range of one tensor), or a group (several whole neighbours). */
typedef struct esp__extent {
    uint32_t first, n; /* the unit's tensors, in backward order */
    uint64_t begin;    /* first element in the tensor; 0 if no chunk */
    uint64_t elements;
} esp__extent;

/* What a region depends on: the rank's index in its group of each scope, the groups' sizes, and the unit. */
typedef struct esp__coordinates {
    int32_t index[ESP__SCOPES], size[ESP__SCOPES];
    uint32_t unit;  /* number of the unit; roots differ between units */
    uint64_t width; /* parts begin at its multiples (rows); 0 counts as 1 */
} esp__coordinates;

/* Steps cut the unit into parts, one cut inside the other, the outermost first and at most one for each scope. After
 * a narrow cut, the rank has only its own part. In an open cut, it has payloads of all parts. A compressed region is
 * an array of payload slots, in row-major order. It has a dimension for each open cut (PART: which part) and for
 * each scope whose contributions are not summed yet (SOURCE: which rank contributed it). `level` is a scope in
 * this file. */
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
    uint8_t idle[ESP__SCOPES];       /* 1 if this rank is not the root, and has no data */
    uint8_t summed[ESP__SCOPES];     /* 1 if all contributions in the scope are summed */
    uint8_t replicated[ESP__SCOPES]; /* 1 if all ranks of the scope have the same data */
    esp__dim dims[ESP__DIMS];        /* the outermost first */
    uint32_t n_dims;
} esp__region;

ESP__FN void esp__region_start(esp__region *r); /* the whole unit, not compressed */
/* Writes where part `p` of `n` parts lies, if `count` elements are cut: [*begin, *begin + *length). */
ESP__FN void esp__part(uint64_t count, uint64_t n, uint64_t p, uint64_t *begin, uint64_t *length);
/* Writes which elements an uncompressed region has, or the payload slot with index[d] in each dimension d. */
ESP__FN void esp__region_range(const esp__region *r, const esp__coordinates *at, uint64_t count, const uint32_t *index,
                               uint64_t *begin, uint64_t *length);
/* Returns the number of payload slots in the region. */
ESP__FN uint64_t esp__region_slots(const esp__region *r, const esp__coordinates *at);
/* Does this rank have data? After a reduce or gather to a root, the other ranks have none. */
ESP__FN bool esp__region_active(const esp__region *r);
/* Does this rank take part in step `s`? `r` is the region before the step. */
ESP__FN bool esp__region_takes_part(const esp__region *r, const esp__step *s);
ESP__FN int32_t esp__region_root(const esp__coordinates *at, const esp__step *s); /* a rank, or -1 if `s` has no root */
/* Changes `r` to the region after step `i` of `o`. If *swap is not 0, the executor must first move dimension *swap of
 * the slots to the front, for an alltoall or reduce_scatter of payloads. */
ESP__FN void esp__region_step(esp__region *r, const esp__coordinates *at, const esp__option *o, uint32_t i,
                              uint32_t *swap);
#endif
