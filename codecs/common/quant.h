/* quant.h: for codecs int8 and int4, represents f32 numbers as integer multiples (levels) of a unit, rounded to
 * nearest. The unit is top / most, where top is the largest |x| and most the highest level. A top below 2^-100
 * counts as zero (unit 0, all levels 0), so that 1 / unit is finite. The residual phi - unit * level has no
 * rounding error: either the level is 0, or both terms are within a factor of two of each other. */
#ifndef ESP_QUANT_H
#define ESP_QUANT_H
#include "codecs/common/dense.h"

/* Numbers in a payload may have any alignment, so they are read and written through these types. */
typedef int16_t quant_i16 __attribute__((aligned(1), may_alias));
typedef int32_t quant_i32 __attribute__((aligned(1), may_alias));
#define QUANT_LEAST 0x0D800000u /* bits of 2^-100 */
#define QUANT_INF 0x7F800000u   /* the bits of NaN and Inf without sign are at least these */

typedef struct quant_range {
    float unit, inverse;
} quant_range;

/* Returns the unit and its inverse. `top` has the bits of the largest |x|, which is finite; `most` is the top level. */
ESP_ELEMENT quant_range quant_range_of(uint32_t top, float most) {
    quant_range r = {0, 0};
    if (top < QUANT_LEAST) return r;
    r.unit = bits_float(top) / most;
    if (dense_bad(r.unit * most)) r.unit = bits_float(float_bits(r.unit) - 1);
    r.inverse = 1 / r.unit;
    return r;
}

/* Returns the bits of the largest |phi| with phi = beta e + gamma g, or phi = g if e is NULL. They are at least
 * QUANT_INF if one is NaN or Inf. It compares signed integers, since not all instruction sets compare unsigned ones. */
ESP_INLINE uint64_t quant_top_body(const float *g, const float *e, float beta, float gamma, uint64_t n) {
    int32_t top = 0;
    ESP_SIMD_REDUCE(max, top)
    for (uint64_t i = 0; i < n; i++) {
        const int32_t a = (int32_t)(float_bits(e ? beta * e[i] + gamma * g[i] : g[i]) & 0x7FFFFFFFu);
        top = a > top ? a : top;
    }
    return (uint32_t)top;
}

ESP_KERNEL(quant_top, (const float *g, const float *e, float beta, float gamma, uint64_t n), (g, e, beta, gamma, n))

/* ---- rounding to levels: phi = beta e + gamma g, or g if e is NULL; e receives the residual ---------------------- */
/* Adding 1.5 * 2^23 to a float rounds it to an integer, which is then in the lowest bits of the sum. The 8-bit level
 * is the lowest byte after QUANT_ROUND_BITS is subtracted; the subtraction is unsigned, since it may wrap for large
 * inputs. */
#define QUANT_ROUND 12582912.0f
#define QUANT_ROUND_BITS 0x4B400000u
ESP_ELEMENT float quant_sum(float phi, quant_range r) { return phi * r.inverse + QUANT_ROUND; }
ESP_ELEMENT int8_t quant_level(float sum) { return (int8_t)(float_bits(sum) - QUANT_ROUND_BITS); }
ESP_ELEMENT float quant_left(float phi, float sum, quant_range r) { return phi - r.unit * (sum - QUANT_ROUND); }
ESP_TARGET_SCALAR static uint64_t quant_encode_scalar(int8_t *restrict out, float *restrict e, const float *restrict g,
                                                      float beta, float gamma, quant_range r, uint64_t n) {
    if (!e) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) out[i] = quant_level(quant_sum(g[i], r));
        return 0;
    }
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float phi = beta * e[i] + gamma * g[i], sum = quant_sum(phi, r);
        out[i] = quant_level(sum);
        e[i] = quant_left(phi, sum, r);
    }
    return 0;
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static inline __m256i quant_eight(float *e, const float *g, __m256 beta, __m256 gamma, __m256 unit,
                                                  __m256 inverse) {
    __m256 phi = _mm256_loadu_ps(g);
    if (e) phi = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(e), beta), _mm256_mul_ps(phi, gamma));
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(phi, inverse));
    if (e) _mm256_storeu_ps(e, _mm256_sub_ps(phi, _mm256_mul_ps(_mm256_cvtepi32_ps(q), unit)));
    return q;
}
ESP_TARGET_AVX2 static uint64_t quant_encode_avx2(int8_t *restrict out, float *restrict e, const float *restrict g,
                                                  float beta, float gamma, quant_range r, uint64_t n) {
    const __m256 b = _mm256_set1_ps(beta), c = _mm256_set1_ps(gamma);
    const __m256 u = _mm256_set1_ps(r.unit), v = _mm256_set1_ps(r.inverse);
    /* The packing instructions treat each 128-bit half separately; this permutation restores the order of elements. */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i q[4];
        for (uint64_t k = 0; k < 4; k++) q[k] = quant_eight(e ? e + i + 8 * k : NULL, g + i + 8 * k, b, c, u, v);
        const __m256i lo = _mm256_packs_epi32(q[0], q[1]), hi = _mm256_packs_epi32(q[2], q[3]);
        const __m256i all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), order);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), all);
    }
    ESP_LEAVE_WIDE();
    return quant_encode_scalar(out + i, e ? e + i : NULL, g + i, beta, gamma, r, n - i);
}
ESP_TARGET_AVX512 static uint64_t quant_encode_avx512(int8_t *restrict out, float *restrict e, const float *restrict g,
                                                      float beta, float gamma, quant_range r, uint64_t n) {
    const __m512 b = _mm512_set1_ps(beta), c = _mm512_set1_ps(gamma);
    const __m512 u = _mm512_set1_ps(r.unit), v = _mm512_set1_ps(r.inverse);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 phi = _mm512_loadu_ps(g + i);
        if (e) phi = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(e + i), b), _mm512_mul_ps(phi, c));
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(phi, v));
        if (e) _mm512_storeu_ps(e + i, _mm512_sub_ps(phi, _mm512_mul_ps(_mm512_cvtepi32_ps(q), u)));
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm512_cvtepi32_epi8(q));
    }
    ESP_LEAVE_WIDE();
    return quant_encode_scalar(out + i, e ? e + i : NULL, g + i, beta, gamma, r, n - i);
}
#endif
ESP_KERNEL_PICK(quant_encode)

/* Defines kernels that add unit * level to out, or overwrite out if `set`, for levels of 1, 2 or 4 bytes. */
#define QUANT_ADD(name, type)                                                                                          \
    ESP_INLINE uint64_t name##_body(float *restrict out, const type *restrict in, float unit, int set, uint64_t n) {   \
        if (set) {                                                                                                     \
            ESP_SIMD                                                                                                   \
            for (uint64_t i = 0; i < n; i++) out[i] = unit * (float)in[i];                                             \
        } else {                                                                                                       \
            ESP_SIMD                                                                                                   \
            for (uint64_t i = 0; i < n; i++) out[i] += unit * (float)in[i];                                            \
        }                                                                                                              \
        return 0;                                                                                                      \
    }                                                                                                                  \
    ESP_KERNEL(name, (float *restrict out, const type *restrict in, float unit, int set, uint64_t n),                  \
               (out, in, unit, set, n))
QUANT_ADD(quant_add8, int8_t)
QUANT_ADD(quant_add16, quant_i16)
QUANT_ADD(quant_add32, quant_i32)

/* Stores levels in `width` bytes each, so that a sum of many ranks' levels cannot overflow. */
ESP_INLINE uint64_t quant_widen_body(unsigned char *restrict out, const int8_t *restrict in, uint64_t width,
                                     uint64_t n) {
    if (width == 2) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) ((quant_i16 *)(void *)out)[i] = in[i];
    } else {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) ((quant_i32 *)(void *)out)[i] = in[i];
    }
    return 0;
}
ESP_KERNEL(quant_widen, (unsigned char *restrict out, const int8_t *restrict in, uint64_t width, uint64_t n),
           (out, in, width, n))

/* ---- codecs with a unit for each block: the payload has all units, then all levels ------------------------------- */
enum { QUANT_BLOCK_MIN = 32 }; /* a block has at most DENSE_BLOCK elements */
ESP_ELEMENT uint64_t quant_units(uint64_t count, uint64_t block) { return (count + block - 1) / block; }
/* Are these the bits of a finite number >= 0? */
ESP_ELEMENT bool quant_unit_ok(uint32_t unit) { return unit <= 0x7F7FFFFFu; }
static inline bool quant_units_ok(const unsigned char *units, uint64_t n) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, units + 4 * i, sizeof u);
        bad |= (uint32_t)!quant_unit_ok(u);
    }
    return !bad;
}

/* Returns the expected error (esp_codec_model) of n numbers that share a unit: E unit^2 / 12 for all but the
 * largest number, which is exact. E top^2 is integrated from 2 x P(top > x). */
static inline double quant_error(double n, double most) {
    double square = 0;
    const double step = 1.0 / 64;
    for (double x = step / 2; x < 12; x += step) square += 2 * x * step * -expm1(n * log1p(-erfc(x / sqrt(2.0))));
    return square / (most * most) / 12 * (1 - 1 / n);
}
#endif
