/* rng.h: random numbers that depend on a key and a counter only, not on thread, rank or time: Philox4x32-10 of Salmon
 * et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Usage:
 *     uint64_t key = esp_rng_key(seed, step, tensor_key, comp_index, source);
 *     esp_philox_t r = esp_philox(key, i, 0);      // 128 random bits, r.w[0..3], for the counter i
 * For noise on each element, the counter is the element's index in the whole tensor divided by 8 (esp_rng_u16), so
 * that every thread, vector width and device draws the same bits. */
#ifndef ESP_RNG_H
#define ESP_RNG_H
#include <stdint.h>
#include "codecs/common/element.h"

typedef struct esp_philox_t {
    uint32_t w[4];
} esp_philox_t;

/* Returns 128 random bits for a 128-bit counter (lo, hi) and a 64-bit key. */
ESP_ELEMENT esp_philox_t esp_philox(uint64_t key, uint64_t lo, uint64_t hi) {
    uint32_t a = (uint32_t)lo, b = (uint32_t)(lo >> 32), c = (uint32_t)hi, d = (uint32_t)(hi >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p = (uint64_t)0xD2511F53u * a, q = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(q >> 32) ^ b ^ k0;
        b = (uint32_t)q;
        c = (uint32_t)(p >> 32) ^ d ^ k1;
        d = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (esp_philox_t){{a, b, c, d}};
}

/* Returns the key for one compression's random numbers. `source` is the rank, or 0 if all ranks must draw the same. */
ESP_ELEMENT uint64_t esp_rng_key(uint64_t seed, uint64_t step, uint64_t tensor_key, uint32_t comp_index,
                                 uint32_t source) {
    esp_philox_t r = esp_philox(seed, step, tensor_key);
    r = esp_philox((uint64_t)r.w[1] << 32 | r.w[0], (uint64_t)source << 32 | comp_index,
                   (uint64_t)r.w[3] << 32 | r.w[2]);
    return (uint64_t)r.w[1] << 32 | r.w[0];
}

/* Returns 16 random bits for element `index` of the whole tensor. One esp_philox call serves eight elements, so
 * loops over many elements should call that instead. */
ESP_ELEMENT uint32_t esp_rng_u16(uint64_t key, uint64_t index) {
    const esp_philox_t r = esp_philox(key, index / 8, 0);
    return r.w[index % 8 / 2] >> (index % 2 * 16) & 0xFFFFu;
}
#endif
