/* norm.h: sums |x|, or |phi| (phi is gradient plus residual), so that the bits of the result depend on the input alone.
 * The order of additions is fixed: in each block of 4096 elements, f32 partial sum j of 16 adds elements j, j + 16, j +
 * 32, ...; the 16 are then added as a tree; the blocks' sums are added in f64, in order. Squares are summed in a fixed
 * order, too, in f64. */
#ifndef ESP_NORM_H
#define ESP_NORM_H
#include "codecs/common/dense.h"

enum { NORM_BLOCK = 4096, NORM_LANES = 16 };

/* Adds n elements to a block's 16 partial sums. n must be a multiple of 16, except for the last elements. A NaN or Inf
 * in the input, or an overflow, makes the result NaN or Inf. */
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

static inline float norm_tree(const float part[NORM_LANES]) {
    float t[NORM_LANES];
    memcpy(t, part, sizeof t);
    for (int width = NORM_LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) t[j] += t[j + width];
    return t[0];
}

/* Adds the squares of n elements to *sum. */
ESP_INLINE uint64_t norm_squares_body(double *sum, const float *x, uint64_t n) {
    double acc[NORM_LANES] = {0};
    const uint64_t whole = n / NORM_LANES * NORM_LANES;
    for (uint64_t i = 0; i < whole; i += NORM_LANES)
        for (int j = 0; j < NORM_LANES; j++) acc[j] += (double)x[i + (uint64_t)j] * (double)x[i + (uint64_t)j];
    for (uint64_t i = whole; i < n; i++) acc[i - whole] += (double)x[i] * (double)x[i];
    for (int j = 0; j < NORM_LANES; j++) *sum += acc[j];
    return 0;
}
ESP_KERNEL(norm_squares, (double *sum, const float *x, uint64_t n), (sum, x, n))

static inline uint64_t norm_blocks(uint64_t count) { return (count + NORM_BLOCK - 1) / NORM_BLOCK; }

/* Arguments of norm_of_phi(), which sums |phi|, or phi^2 if `squares`, where phi is gradient plus residual. `also`, if
 * not NULL, is called for each block of at most DENSE_BLOCK elements. */
typedef struct norm_pass {
    const dense_self *self;
    const esp_codec_args *args;
    float *sums; /* norm_blocks() numbers of scratch memory */
    void (*also)(void *user, const float *phi, uint64_t at, uint64_t n);
    void *user;
    bool squares;
} norm_pass;

static inline void norm_piece(void *arg, uint64_t begin, uint64_t end) {
    const norm_pass *p = (const norm_pass *)arg;
    const norm_l1_fn norm = norm_l1_for(p->self->level);
    float tmp[DENSE_BLOCK], part[NORM_LANES] = {0};
    double squares = 0;
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        const float *phi = dense_block_phi(p->self, p->args, at, n, tmp);
        if (p->also) p->also(p->user, phi, at, n);
        if (p->squares)
            norm_squares_for(p->self->level)(&squares, phi, n);
        else
            norm(part, phi, n);
        if ((at + n) % NORM_BLOCK && at + n < end) continue;
        /* a root of the sum of up to 4096 squares may be beyond f32's range, this one is not */
        p->sums[at / NORM_BLOCK] = p->squares ? (float)sqrt(squares / (double)NORM_BLOCK) : norm_tree(part);
        memset(part, 0, sizeof part);
        squares = 0;
    }
}

static inline double norm_of_phi(norm_pass *p) {
    const uint64_t n = p->args->tensor[0]->count;
    double sum = 0;
    dense_run(p->self, n, norm_piece, p);
    for (uint64_t b = 0; b < norm_blocks(n); b++)
        sum += (double)p->sums[b] * (p->squares ? (double)p->sums[b] * (double)NORM_BLOCK : 1);
    return sum;
}
#endif
