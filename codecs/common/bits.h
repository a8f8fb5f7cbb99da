/* bits.h: packs the signs of floats into a stream of bits, one per element, and unpacks them, for codec efsignsgd. The
 * least significant bit of a byte comes first. Bits after the last element, up to a whole 32-bit word, are 0. */
#ifndef ESP_BITS_H
#define ESP_BITS_H
#include "codecs/common/simd.h"

ESP_ELEMENT uint64_t bits_bytes(uint64_t count) { return (count + 31) / 32 * 4; }

/* Returns a word whose bit j is 1 if x[j] < 0. For -0 and NaN the bit is 0. */
ESP_INLINE uint32_t bits_negative_word(const float *x, uint64_t n) {
    uint32_t w = 0;
    for (uint64_t j = 0; j < n; j++) w |= (uint32_t)(x[j] < 0) << j;
    return w;
}
/* Writes bits_bytes(n) bytes. A caller that splits a stream must split it at a multiple of 32 elements. */
ESP_TARGET_SCALAR static uint64_t bits_negative_scalar(unsigned char *out, const float *x, uint64_t n) {
    for (uint64_t at = 0; at < n; at += 32) {
        const uint32_t w = bits_negative_word(x + at, n - at < 32 ? n - at : 32);
        memcpy(out + at / 8, &w, sizeof w);
    }
    return 0;
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static uint64_t bits_negative_avx2(unsigned char *out, const float *x, uint64_t n) {
    const __m256 zero = _mm256_setzero_ps();
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t w = 0;
        for (int q = 0; q < 4; q++) {
            const __m256 v = _mm256_cmp_ps(_mm256_loadu_ps(x + i + 8 * q), zero, _CMP_LT_OQ);
            w |= (uint32_t)_mm256_movemask_ps(v) << (8 * q);
        }
        memcpy(out + i / 8, &w, sizeof w);
    }
    ESP_LEAVE_WIDE();
    return bits_negative_scalar(out + i / 8, x + i, n - i);
}
ESP_TARGET_AVX512 static uint64_t bits_negative_avx512(unsigned char *out, const float *x, uint64_t n) {
    const __m512 zero = _mm512_setzero_ps();
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const uint32_t lo = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), zero, _CMP_LT_OQ);
        const uint32_t hi = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + i + 16), zero, _CMP_LT_OQ);
        const uint32_t w = lo | hi << 16;
        memcpy(out + i / 8, &w, sizeof w);
    }
    ESP_LEAVE_WIDE();
    return bits_negative_scalar(out + i / 8, x + i, n - i);
}
#endif
ESP_KERNEL_PICK(bits_negative)

/* Returns the number with bits s (>= 0), negated if bit j of w is set. */
ESP_ELEMENT float bits_sign(uint32_t w, uint32_t j, uint32_t s) { return bits_float(s | (w >> j & 1u) << 31); }
/* Adds s, or -s where a bit of w is set, to n numbers; overwrites them if `set`. s is given as the bits of a float. */
ESP_INLINE void bits_signs_word(float *out, uint32_t w, uint32_t s, int set, uint64_t n) {
    for (uint32_t j = 0; j < n; j++) {
        const float v = bits_sign(w, j, s);
        out[j] = set ? v : out[j] + v;
    }
}
ESP_INLINE uint64_t bits_signs_body(float *out, const unsigned char *in, float s, int set, uint64_t n) {
    uint32_t w;
    const uint32_t magnitude = float_bits(s);
    for (uint64_t i = 0; i < n; i += 32) {
        memcpy(&w, in + i / 8, sizeof w);
        if (n - i < 32)
            bits_signs_word(out + i, w, magnitude, set, n - i);
        else if (set)
            bits_signs_word(out + i, w, magnitude, 1, 32);
        else
            bits_signs_word(out + i, w, magnitude, 0, 32);
    }
    return 0;
}
ESP_KERNEL(bits_signs, (float *out, const unsigned char *in, float s, int set, uint64_t n), (out, in, s, set, n))

ESP_ELEMENT bool bits_padding_ok(const unsigned char *in, uint64_t count) {
    uint32_t w;
    if (count % 32 == 0) return true;
    memcpy(&w, in + count / 32 * 4, sizeof w);
    return w >> count % 32 == 0;
}
#endif
