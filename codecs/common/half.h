/* half.h: converts f32 to f16 and bf16 and back, rounding to nearest, ties to even. Encoders that also write the
 * rounding error (the residual) require finite numbers; others turn every NaN into HALF_F16_NAN or HALF_BF16_NAN, so
 * that all machines write the same bytes. Decoders accept every bit pattern. */
#ifndef ESP_HALF_H
#define ESP_HALF_H
#include "codecs/common/simd.h"

typedef uint16_t half_u16 __attribute__((aligned(1), may_alias));
#define HALF_F16_NAN 0x7E00u
#define HALF_BF16_NAN 0x7FC0u
#define HALF_F16_MAX 65504.0f
#define HALF_BF16_MAX 0x1.FEp127f

static inline void half_fill(unsigned char *body, uint32_t value, uint64_t n) {
    const uint16_t v = (uint16_t)value;
    for (uint64_t i = 0; i < n; i++) memcpy(body + 2 * i, &v, sizeof v);
}

/* ---- bf16 ------------------------------------------------------------------------------------------------- */
ESP_ELEMENT uint32_t half_to_bf16(float x) {
    const uint32_t u = float_bits(x);
    return (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
}
ESP_ELEMENT int half_nan(float x) { return (int32_t)(float_bits(x) & 0x7FFFFFFFu) > 0x7F800000; }
ESP_ELEMENT uint32_t half_any_bf16(float x) { return half_nan(x) ? HALF_BF16_NAN : half_to_bf16(x); }
/* Returns the largest finite number where rounding would give Inf, so that the rounding error stays finite. */
ESP_ELEMENT uint32_t half_bf16_sent(float phi) {
    const uint32_t v = half_to_bf16(phi);
    return v - ((v & 0x7FFFu) == 0x7F80u);
}
ESP_ELEMENT float half_from_bf16(uint32_t v) { return bits_float(v << 16); }
/* ---- f16 -------------------------------------------------------------------------------------------------- */
/* For normal numbers, integer arithmetic rounds to nearest. For subnormal ones the addition of 0.5f rounds, since the
 * lowest bit of 0.5f is worth 2^-24, the step of subnormal f16. */
ESP_ELEMENT uint32_t half_to_f16(float x) {
    const uint32_t u = float_bits(x);
    const int32_t a = (int32_t)(u & 0x7FFFFFFFu);
    const int32_t small = (int32_t)float_bits(bits_float((uint32_t)a) + 0.5f) - 0x3F000000;
    int32_t large = (a - 0x38000000 + 0xFFF + (a >> 13 & 1)) >> 13;
    large = large > 0x7C00 ? 0x7C00 : large;
    return (u >> 16 & 0x8000u) | (uint32_t)(a < 0x38800000 ? small : large);
}
ESP_ELEMENT uint32_t half_any_f16(float x) { return half_nan(x) ? HALF_F16_NAN : half_to_f16(x); }
ESP_ELEMENT float half_from_f16(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16;
    const int32_t a = (int32_t)(h & 0x7FFFu);
    const uint32_t normal = ((uint32_t)a << 13) + 0x38000000u;
    const uint32_t special = ((uint32_t)a << 13) | 0x7F800000u | (uint32_t)(a > 0x7C00) << 22;
    const uint32_t small = float_bits((float)a * 0x1p-24f);
    return bits_float(sign | (a < 0x400 ? small : a < 0x7C00 ? normal : special));
}

ESP_ELEMENT float half_clamp(float x, float most) {
    const float c = x > most ? most : x;
    return c < -most ? -most : c;
}

/* ---- either format ------------------------------------------------------------------------------------------ */
/* Writes down * phi as f16 or bf16, where `down` is a power of two (1 for bf16). If `residual` is NULL, a number beyond
 * the range becomes Inf. Otherwise f16 first limits phi to -most ... most, and `residual` is phi minus the written
 * number divided by `down`. bf16 has the range of f32, so it ignores `most`. */
ESP_INLINE uint64_t half_encode_as(half_u16 *out, const float *phi, float *residual, float down, float most, uint64_t n,
                                   const bool is_f16) {
    const float up = 1 / down;
    if (!residual) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++)
            out[i] = (uint16_t)(is_f16 ? half_any_f16(down * phi[i]) : half_any_bf16(phi[i]));
        return 0;
    }
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t v = is_f16 ? half_to_f16(down * half_clamp(phi[i], most)) : half_bf16_sent(phi[i]);
        out[i] = (uint16_t)v;
        residual[i] = phi[i] - (is_f16 ? up * half_from_f16(v) : half_from_bf16(v));
    }
    return 0;
}
ESP_INLINE uint64_t half_add_as(float *out, const half_u16 *in, float scale, int set, uint64_t n, const bool is_f16) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float x = scale * (is_f16 ? half_from_f16(in[i]) : half_from_bf16(in[i]));
        out[i] = set ? x : out[i] + x;
    }
    return 0;
}
ESP_INLINE uint64_t half_bf16_encode_body(half_u16 *out, const float *phi, float *residual, float down, float most,
                                          uint64_t n) {
    return half_encode_as(out, phi, residual, down, most, n, false);
}
ESP_INLINE uint64_t half_bf16_add_body(float *out, const half_u16 *in, float scale, int set, uint64_t n) {
    return half_add_as(out, in, scale, set, n, false);
}
ESP_KERNEL(half_bf16_encode, (half_u16 * out, const float *phi, float *residual, float down, float most, uint64_t n),
           (out, phi, residual, down, most, n))
ESP_KERNEL(half_bf16_add, (float *out, const half_u16 *in, float scale, int set, uint64_t n), (out, in, scale, set, n))
ESP_TARGET_SCALAR static uint64_t half_f16_encode_scalar(half_u16 *out, const float *phi, float *residual, float down,
                                                         float most, uint64_t n) {
    return half_encode_as(out, phi, residual, down, most, n, true);
}
ESP_TARGET_SCALAR static uint64_t half_f16_add_scalar(float *out, const half_u16 *in, float scale, int set,
                                                      uint64_t n) {
    return half_add_as(out, in, scale, set, n, true);
}
#ifdef ESP_SIMD_X86 /* the processor's conversion gives the same bits */
ESP_TARGET_AVX2 static uint64_t half_f16_encode_avx2(half_u16 *out, const float *phi, float *residual, float down,
                                                     float most, uint64_t n) {
    const __m256 lim = _mm256_set1_ps(most), neg = _mm256_set1_ps(-most);
    const __m256 d = _mm256_set1_ps(down), u = _mm256_set1_ps(1 / down), nan = _mm256_set1_ps(bits_float(0x7FC00000u));
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 p = _mm256_loadu_ps(phi + i);
        __m256 c = _mm256_mul_ps(residual ? _mm256_max_ps(_mm256_min_ps(p, lim), neg) : p, d);
        if (!residual) c = _mm256_blendv_ps(c, nan, _mm256_cmp_ps(c, c, _CMP_UNORD_Q));
        const __m128i v = _mm256_cvtps_ph(c, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(out + i), v);
        if (residual) _mm256_storeu_ps(residual + i, _mm256_sub_ps(p, _mm256_mul_ps(_mm256_cvtph_ps(v), u)));
    }
    ESP_LEAVE_WIDE();
    return half_f16_encode_scalar(out + i, phi + i, residual ? residual + i : NULL, down, most, n - i);
}
ESP_TARGET_AVX512 static uint64_t half_f16_encode_avx512(half_u16 *out, const float *phi, float *residual, float down,
                                                         float most, uint64_t n) {
    const __m512 lim = _mm512_set1_ps(most), neg = _mm512_set1_ps(-most);
    const __m512 d = _mm512_set1_ps(down), u = _mm512_set1_ps(1 / down), nan = _mm512_set1_ps(bits_float(0x7FC00000u));
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 p = _mm512_loadu_ps(phi + i);
        __m512 c = _mm512_mul_ps(residual ? _mm512_max_ps(_mm512_min_ps(p, lim), neg) : p, d);
        if (!residual) c = _mm512_mask_mov_ps(c, _mm512_cmp_ps_mask(c, c, _CMP_UNORD_Q), nan);
        const __m256i v = _mm512_maskz_cvtps_ph(0xFFFF, c, _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), v);
        if (residual) _mm512_storeu_ps(residual + i, _mm512_sub_ps(p, _mm512_mul_ps(_mm512_cvtph_ps(v), u)));
    }
    ESP_LEAVE_WIDE();
    return half_f16_encode_scalar(out + i, phi + i, residual ? residual + i : NULL, down, most, n - i);
}
ESP_TARGET_AVX2 static uint64_t half_f16_add_avx2(float *out, const half_u16 *in, float scale, int set, uint64_t n) {
    const __m256 s = _mm256_set1_ps(scale);
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(in + i))), s);
        _mm256_storeu_ps(out + i, set ? v : _mm256_add_ps(_mm256_loadu_ps(out + i), v));
    }
    ESP_LEAVE_WIDE();
    return half_f16_add_scalar(out + i, in + i, scale, set, n - i);
}
ESP_TARGET_AVX512 static uint64_t half_f16_add_avx512(float *out, const half_u16 *in, float scale, int set,
                                                      uint64_t n) {
    const __m512 s = _mm512_set1_ps(scale);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 v = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(in + i))), s);
        _mm512_storeu_ps(out + i, set ? v : _mm512_add_ps(_mm512_loadu_ps(out + i), v));
    }
    ESP_LEAVE_WIDE();
    return half_f16_add_scalar(out + i, in + i, scale, set, n - i);
}
#endif
ESP_KERNEL_PICK(half_f16_encode)
ESP_KERNEL_PICK(half_f16_add)

typedef half_f16_encode_fn half_encode_fn;
typedef half_f16_add_fn half_add_fn;
static inline half_encode_fn half_encode_for(int is_f16, int level) {
    return is_f16 ? half_f16_encode_for(level) : half_bf16_encode_for(level);
}
static inline half_add_fn half_add_for(int is_f16, int level) {
    return is_f16 ? half_f16_add_for(level) : half_bf16_add_for(level);
}
#endif
