/* sum.h: sums of two arrays, with the scale in the same pass. Halves are widened, added in f32 and rounded once (to
 * nearest, ties to even). Written with the compiler's vectors, compiled for several instruction sets: same bytes
 * from all. */
#ifndef ENGINE_SUM_H
#define ENGINE_SUM_H
#include "codecs/common/simd.h"
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { ENGINE_LANES = 16 };
typedef float engine_f __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t engine_u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t engine_h __attribute__((vector_size(32), aligned(2), may_alias));

/* a where all bits of mask are 1, b where all are 0 */
#define ENGINE_SELECT(mask, a, b) (((a) & (engine_u)(mask)) | ((b) & ~(engine_u)(mask)))

ESP_INLINE void engine_from_f16(const engine_u *h, engine_f *out) {
    engine_u o = (*h & 0x7fffu) << 13, e = o & 0x0f800000u;
    o += 112u << 23;
    o += (engine_u)(e == 0x0f800000u) & (112u << 23); /* Inf and NaN keep the largest exponent */
    engine_u two = o + (1u << 23), bias = *h - *h + (113u << 23);
    engine_f sub = (engine_f)two - (engine_f)bias; /* exact: makes a denormal half a normal float */
    o = ENGINE_SELECT(e == 0u, (engine_u)sub, o);
    o |= (*h & 0x8000u) << 16;
    *out = (engine_f)o;
}
ESP_INLINE void engine_to_f16(const engine_f *f, engine_u *out) {
    engine_u u = (engine_u)*f, sign = u & 0x80000000u;
    u ^= sign;
    engine_u big = ENGINE_SELECT(u > 0x7f800000u, u - u + 0x7e00u, u - u + 0x7c00u);
    engine_u magic = u - u + (126u << 23);
    engine_u small =
        (engine_u)((engine_f)u + (engine_f)magic) - magic; /* the adder rounds at the denormal's last bit */
    engine_u mid = (u + (0xc8000fffu + ((u >> 13) & 1u))) >> 13;
    engine_u o = ENGINE_SELECT(u < (113u << 23), small, mid);
    o = ENGINE_SELECT(u >= 0x47800000u, big, o);
    *out = o | (sign >> 16);
}
ESP_INLINE void engine_to_bf16(const engine_f *f, engine_u *out) {
    engine_u u = (engine_u)*f;
    engine_u nan = (u >> 16) | 0x40u, round = (u + (0x7fffu + ((u >> 16) & 1u))) >> 16;
    *out = ENGINE_SELECT((u & 0x7fffffffu) > 0x7f800000u, nan, round);
}

ESP_INLINE void engine_load(uint32_t type, const uint8_t *p, uint64_t i, engine_f *out) {
    if (type == ESP_F32) {
        *out = *(const engine_f *)(const void *)(p + 4 * i);
        return;
    }
    engine_u u = __builtin_convertvector(*(const engine_h *)(const void *)(p + 2 * i), engine_u);
    if (type == ESP_F16)
        engine_from_f16(&u, out);
    else
        *out = (engine_f)(u << 16);
}
ESP_INLINE void engine_save(uint32_t type, uint8_t *p, uint64_t i, const engine_f *in) {
    if (type == ESP_F32) {
        *(engine_f *)(void *)(p + 4 * i) = *in;
        return;
    }
    engine_u u;
    if (type == ESP_F16)
        engine_to_f16(in, &u);
    else
        engine_to_bf16(in, &u);
    *(engine_h *)(void *)(p + 2 * i) = __builtin_convertvector(u, engine_h);
}
ESP_INLINE uint32_t engine_type_bytes(uint32_t type) { return type == ESP_F32 ? 4 : 2; }

/* 16 elements of out = (a + b) scale; b NULL: out = a scale */
ESP_INLINE void engine_sum_lanes(uint32_t to, uint32_t ta, uint32_t tb, uint8_t *o, const uint8_t *a, const uint8_t *b,
                                 uint64_t i, float scale) {
    engine_f x, y;
    engine_load(ta, a, i, &x);
    if (b) {
        engine_load(tb, b, i, &y);
        x = x + y;
    }
    x = x * scale;
    engine_save(to, o, i, &x);
}
ESP_INLINE uint64_t engine_sum_any(uint32_t to, uint32_t ta, uint32_t tb, void *out, const void *a, const void *b,
                                   uint64_t n, float scale) {
    uint64_t i = 0, left = n % ENGINE_LANES, so = engine_type_bytes(to), sa = engine_type_bytes(ta),
             sb = engine_type_bytes(tb);
    for (; i + ENGINE_LANES <= n; i += ENGINE_LANES)
        engine_sum_lanes(to, ta, tb, (uint8_t *)out, (const uint8_t *)a, (const uint8_t *)b, i, scale);
    if (left) {
        uint8_t xo[64] = {0}, xa[64] = {0}, xb[64] = {0};
        memcpy(xa, (const uint8_t *)a + i * sa, left * sa);
        if (b) memcpy(xb, (const uint8_t *)b + i * sb, left * sb);
        engine_sum_lanes(to, ta, tb, xo, xa, b ? xb : NULL, 0, scale);
        memcpy((uint8_t *)out + i * so, xo, left * so);
    }
    return n;
}

#define ENGINE_SUM(name, to, ta, tb)                                                                                   \
    ESP_INLINE uint64_t name##_body(void *out, const void *a, const void *b, uint64_t n, float scale) {                \
        return engine_sum_any(to, ta, tb, out, a, b, n, scale);                                                        \
    }                                                                                                                  \
    ESP_KERNEL(name, (void *out, const void *a, const void *b, uint64_t n, float scale), (out, a, b, n, scale))
ENGINE_SUM(engine_sum_f32, ESP_F32, ESP_F32, ESP_F32)
ENGINE_SUM(engine_sum_f16, ESP_F16, ESP_F16, ESP_F16)
ENGINE_SUM(engine_sum_f16_first, ESP_F32, ESP_F16, ESP_F16)
ENGINE_SUM(engine_sum_f16_next, ESP_F32, ESP_F32, ESP_F16)
ENGINE_SUM(engine_sum_f16_last, ESP_F16, ESP_F32, ESP_F16)
ENGINE_SUM(engine_sum_bf16, ESP_BF16, ESP_BF16, ESP_BF16)
ENGINE_SUM(engine_sum_bf16_first, ESP_F32, ESP_BF16, ESP_BF16)
ENGINE_SUM(engine_sum_bf16_next, ESP_F32, ESP_F32, ESP_BF16)
ENGINE_SUM(engine_sum_bf16_last, ESP_BF16, ESP_F32, ESP_BF16)

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

typedef uint64_t (*engine_sum_fn)(void *out, const void *a, const void *b, uint64_t n, float scale);
/* The kernels of a sum. Two ranks: `two` adds both inputs. More: `first`, `next`..., `last` add through an f32
 * accumulator. */
typedef struct engine_sums {
    engine_sum_fn two, first, next, last;
} engine_sums;
ENGINE_FN engine_sums engine_sums_for(esp_dtype type, int level) {
    engine_sums s;
    if (type == ESP_F16) {
        s.two = engine_sum_f16_for(level), s.first = engine_sum_f16_first_for(level);
        s.next = engine_sum_f16_next_for(level), s.last = engine_sum_f16_last_for(level);
    } else if (type == ESP_BF16) {
        s.two = engine_sum_bf16_for(level), s.first = engine_sum_bf16_first_for(level);
        s.next = engine_sum_bf16_next_for(level), s.last = engine_sum_bf16_last_for(level);
    } else {
        s.two = s.first = s.next = s.last = engine_sum_f32_for(level);
    }
    return s;
}
#endif
