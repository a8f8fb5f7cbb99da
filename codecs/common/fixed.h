/* fixed.h: adds floats as 64-bit integers, multiples of a power of two, so that a sum is the same in any order, on any
 * number of threads and on a GPU. What is below 2^-38 of the largest number, times how many there are, is cut off. */
#ifndef ESP_FIXED_H
#define ESP_FIXED_H
#include "codecs/common/element.h"

/* Returns the exponent of the unit in which n numbers can be added, n below 2^39, whose magnitude has at most the bits
 * `top`. */
ESP_ELEMENT int32_t fixed_unit(uint32_t top, uint64_t n) {
    int32_t bits = 0;
    while (n >> bits) bits++;
    return (int32_t)(top >> 23 ? top >> 23 : 1) + bits - 189;
}
ESP_ELEMENT int64_t fixed_of(float x, int32_t unit) {
    const int32_t exponent = (int32_t)(float_bits(x) >> 23 & 0xFF), left = (exponent ? exponent : 1) - 150 - unit;
    const int64_t m = (int64_t)((float_bits(x) & 0x7FFFFF) | (exponent ? 0x800000u : 0));
    const int64_t q = left >= 0 ? m << left : left > -24 ? m >> -left : 0;
    return float_bits(x) >> 31 ? -q : q;
}
ESP_ELEMENT float fixed_mean(int64_t sum, uint64_t n, int32_t unit) {
    const uint64_t u = (uint64_t)(unit + 1023) << 52;
    double power;
    memcpy(&power, &u, sizeof power);
    return n ? (float)((double)sum * power / (double)n) : 0.0f;
}
#endif
