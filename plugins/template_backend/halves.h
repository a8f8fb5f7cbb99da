/* halves.h: converts f16 and bf16 to f32 and back, rounding to nearest, ties to even. */
#include <stdint.h>
#include <string.h>

static inline float bits_to_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t float_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float bf16_to_f32(uint16_t h) { return bits_to_float((uint32_t)h << 16); }
static inline uint16_t f32_to_bf16(float x) {
    const uint32_t b = float_to_bits(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(b >> 16 | 0x40u); /* NaN stays NaN */
    return (uint16_t)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return bits_to_float(sign | (exponent + 112u) << 23 | fraction << 13);
    return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f; /* zero or subnormal */
}
static inline uint16_t f32_to_f16(float x) {
    const uint32_t b = float_to_bits(x), sign = b >> 16 & 0x8000u, magnitude = b & 0x7fffffffu;
    uint32_t r;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  /* NaN */
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* too large: Inf */
    if (magnitude < 0x38800000u)                                     /* subnormal result, which the addition rounds */
        return (uint16_t)(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u));
    r = magnitude - (112u << 23);
    return (uint16_t)(sign | (r + 0xfffu + (r >> 13 & 1u)) >> 13);
}
