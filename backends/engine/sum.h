/* sum.h: sums of two arrays, with the scale in the same pass. Halves are widened, added in f32 and rounded once (to nearest,
 * ties to even) by the kernels of half.h, block by block, so that the f32 numbers stay in the nearest cache. Same bytes from
 * all instruction sets. */
#ifndef ENGINE_SUM_H
#define ENGINE_SUM_H
#include "codecs/common/half.h"
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* For a loop whose result may be its first input: no number depends on an earlier one. */
#if defined(__clang__)
#define ENGINE_APART _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ENGINE_APART _Pragma("GCC ivdep")
#else
#define ENGINE_APART
#endif

enum { ENGINE_BLOCK = 1024 };
typedef float engine_f32 __attribute__((may_alias));

/* out = (a + b) scale; b NULL: out = a scale */
ESP_INLINE uint64_t engine_sum_f32_body(void *out, const void *a, const void *b, uint64_t n, float scale) {
    engine_f32 *o = (engine_f32 *)out;
    const engine_f32 *x = (const engine_f32 *)a, *y = (const engine_f32 *)b;
    if (y) {
        ENGINE_APART
        for (uint64_t i = 0; i < n; i++) o[i] = (x[i] + y[i]) * scale;
    } else {
        ENGINE_APART
        for (uint64_t i = 0; i < n; i++) o[i] = x[i] * scale;
    }
    return n;
}
/* out = x scale, rounded */
ESP_INLINE uint64_t engine_round_bf16_body(half_u16 *out, const float *x, uint64_t n, float scale) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) out[i] = (uint16_t)half_any_bf16(x[i] * scale);
    return n;
}
ESP_KERNEL(engine_sum_f32, (void *out, const void *a, const void *b, uint64_t n, float scale), (out, a, b, n, scale))
ESP_KERNEL(engine_round_bf16, (half_u16 * out, const float *x, uint64_t n, float scale), (out, x, n, scale))

/* How numbers are reduced. */
typedef struct engine_sums {
    uint32_t type, op; /* op: an esp_reduce */
    int level;         /* of simd.h */
} engine_sums;

/* acc = x, or acc + x */
ENGINE_FN void engine_widen(const engine_sums *s, float *acc, const uint8_t *x, uint64_t n, int set) {
    const half_u16 *h = (const half_u16 *)(const void *)x;
    half_add_for(s->type == ESP_F16, s->level)(acc, h, 1.0f, set, n);
}
/* out = x scale, rounded. A NaN becomes the one quiet NaN of half.h, as in reduce.h. */
ENGINE_FN void engine_round(const engine_sums *s, uint8_t *out, const float *x, uint64_t n, float scale) {
    half_u16 *h = (half_u16 *)(void *)out;
    if (s->type == ESP_BF16)
        engine_round_bf16_for(s->level)(h, x, n, scale);
    else
        half_f16_encode_for(s->level)(h, x, NULL, scale, 1.0f, n);
}
/* acc = a + b, or acc + b where a is NULL; then out, if it is not NULL, is acc scale. */
ENGINE_FN void engine_sum_halves(const engine_sums *s, uint8_t *out, float *acc, const uint8_t *a, const uint8_t *b,
                                 uint64_t n, float scale) {
    for (uint64_t at = 0; at < n; at += ENGINE_BLOCK) {
        const uint64_t some = n - at < ENGINE_BLOCK ? n - at : ENGINE_BLOCK;
        if (a) engine_widen(s, acc + at, a + 2 * at, some, 1);
        if (b) engine_widen(s, acc + at, b + 2 * at, some, 0);
        if (out) engine_round(s, out + 2 * at, acc + at, some, scale);
    }
}
/* memcpy with stores that bypass the caches. For results too large to stay in a cache, it saves reading the memory
 * that is overwritten. The stores are visible before any later one. */
static inline void engine_copy_past_caches(uint8_t *to, const uint8_t *from, uint64_t bytes) {
#if defined(__x86_64__)
    uint64_t head = (64 - ((uintptr_t)to & 63)) & 63, i;
    if (bytes < 4096) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(to, from, head);
    for (i = head; i + 64 <= bytes; i += 64)
        for (int k = 0; k < 4; k++)
            _mm_stream_si128((__m128i *)(void *)(to + i) + k,
                             _mm_loadu_si128((const __m128i *)(const void *)(from + i) + k));
    memcpy(to + i, from + i, bytes - i);
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}
#endif
