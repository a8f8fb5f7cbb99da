/* region.h: a region is the elements of a tensor or group that a rank holds between two stages of its option. */
#ifndef ESP__REGION_H
#define ESP__REGION_H
#include "espresso_impl/strategy/option.h"

/* A whole tensor, a chunk (a range of one tensor), or a group (several whole tensors that follow each other). */
typedef struct esp__extent {
    uint32_t first, n; /* its tensors: index of the first, and their number */
    uint64_t begin;    /* a chunk's first element in its tensor, else 0 */
    uint64_t elements;
} esp__extent;

/* For each scope, such as inside a machine: the rank's index in its group, and the number of ranks in it. `unit` is the
 * index of a tensor or group; it chooses the roots of collectives. */
typedef struct esp__coordinates {
    int32_t index[ESP__SCOPES], size[ESP__SCOPES];
    uint32_t unit;
    uint64_t width; /* parts begin at multiples of this number of elements; 0 means 1 */
} esp__coordinates;

/* Collectives such as reduce_scatter divide the elements among ranks. Each division is a cut: closed if the rank has
 * only its own part, open if it has payloads of all parts. A compressed region is an array of payloads in row-major
 * order, with one dimension for each open cut (PART: index of the part) and for each scope that is not summed yet
 * (SOURCE: index of the rank that compressed). */
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

ESP__FN void esp__region_start(esp__region *r);
/* Writes the range of part `p` if `count` elements are divided into `n` parts. */
ESP__FN void esp__part(uint64_t count, uint64_t n, uint64_t p, uint64_t *begin, uint64_t *length);
/* Writes the range of elements in an uncompressed region. In a compressed region, writes that of the payload at the
 * index index[d] in each dimension d. */
ESP__FN void esp__region_range(const esp__region *r, const esp__coordinates *at, uint64_t count, const uint32_t *index,
                               uint64_t *begin, uint64_t *length);
ESP__FN uint64_t esp__region_slots(const esp__region *r, const esp__coordinates *at);
/* Returns false if this rank has no data, because a reduce or gather left it on the root. */
ESP__FN bool esp__region_active(const esp__region *r);
ESP__FN bool esp__region_takes_part(const esp__region *r, const esp__step *s);
ESP__FN int32_t esp__region_root(const esp__coordinates *at, const esp__step *s); /* -1 if `s` has no root */
/* Changes `r` to what the rank holds after stage `i`. If *swap is not 0, the array of payloads must be reordered before
 * that stage, so that dimension *swap becomes the outermost. */
ESP__FN void esp__region_step(esp__region *r, const esp__coordinates *at, const esp__option *o, uint32_t i,
                              uint32_t *swap);
#endif
