/* norm.h: sums of |x| whose bits depend on the input alone.
 *
 * Canonical order: blocks of 4096 elements from the part's start; within a block 16 partial sums in f32, partial j adds
 * elements j, j + 16, j + 32, ...; they are added as a tree (j with j + 8, then j + 4, j + 2, j + 1); the blocks' sums
 * are added in f64 in order. One rounding per add: no vector width, thread count or device changes a bit. */
#ifndef ESP_NORM_H
#define ESP_NORM_H
#include "codecs/common/simd.h"

enum { NORM_BLOCK = 4096, NORM_LANES = 16 };

/* Adds n elements to a block's partial sums; n is a multiple of 16 except at the end of the part. Inf or NaN in the
 * input, or a sum that overflows, makes the result Inf or NaN. */
ESP_INLINE uint64_t norm_l1_body(float part[NORM_LANES], const float *x, uint64_t n) {
    float acc[NORM_LANES];
    const uint64_t whole = n / NORM_LANES * NORM_LANES;
    memcpy(acc, part, sizeof acc);
    for (uint64_t i = 0; i < whole; i += NORM_LANES)
        for (int j = 0; j < NORM_LANES; j++) acc[j] += __builtin_fabsf(x[i + (uint64_t)j]);
    for (uint64_t i = whole; i < n; i++) acc[i - whole] += __builtin_fabsf(x[i]);
    memcpy(part, acc, sizeof acc);
    return 0;
}
ESP_KERNEL(norm_l1, (float part[NORM_LANES], const float *x, uint64_t n), (part, x, n))

/* The sum of a block's partial sums. */
static inline float norm_tree(const float part[NORM_LANES]) {
    float t[NORM_LANES];
    memcpy(t, part, sizeof t);
    for (int width = NORM_LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) t[j] += t[j + width];
    return t[0];
}
#endif
