/* randomk.h: the random permutation P of [0, count) by which codec randomk chooses elements: a Feistel network on
 * pairs (left < a, right < b), applied again while its result is at least count (cycle walking). */
#ifndef ESP_RANDOMK_H
#define ESP_RANDOMK_H
#include "codecs/common/rng.h"
#include "codecs/common/simd.h"

enum { RANDOMK_ROUNDS = 6, RANDOMK_BATCH = 256 };

typedef struct randomk_perm {
    uint64_t count;
    uint32_t a, b;
    uint32_t key[RANDOMK_ROUNDS];
} randomk_perm;

/* Chooses the domain of the Feistel network, pairs (left < a, right < b), with a b >= count. Both are at least 32,
 * since a smaller domain has too few permutations. */
static void randomk_domain(uint64_t count, uint32_t *a, uint32_t *b) {
    uint64_t root = 32;
    for (uint64_t step = 1ull << 31; step; step >>= 1)
        if ((root + step) <= 0xffffffffu && (root + step - 1) * (root + step - 1) < count) root += step;
    const uint64_t side = (count + root - 1) / root;
    *a = (uint32_t)root;
    *b = side < 32 ? 32u : (uint32_t)side;
}
ESP_ELEMENT randomk_perm randomk_perm_with(uint64_t draw, uint64_t count, uint32_t a, uint32_t b) {
    randomk_perm p;
    p.count = count;
    p.a = a;
    p.b = b;
    for (int r = 0; r < RANDOMK_ROUNDS; r += 4) {
        const esp_philox_t w = esp_philox(draw, (uint64_t)r, 0);
        for (int i = 0; i < 4 && r + i < RANDOMK_ROUNDS; i++) p.key[r + i] = w.w[i];
    }
    return p;
}
static randomk_perm randomk_perm_of(uint64_t draw, uint64_t count) {
    uint32_t a, b;
    randomk_domain(count, &a, &b);
    return randomk_perm_with(draw, count, a, b);
}

/* The network's round function: mixes x and key to 32 bits, and scales them to a number below n. */
ESP_ELEMENT uint32_t randomk_mix(uint32_t x, uint32_t key, uint32_t n) {
    x = (x + key) * 0x9E3779B1u;
    x = (x ^ x >> 15) * 0x85EBCA77u;
    x ^= x >> 13;
    x *= 0xC2B2AE3Du;
    return (uint32_t)((uint64_t)x * n >> 32);
}
ESP_ELEMENT void randomk_two(uint32_t a, uint32_t b, uint32_t k0, uint32_t k1, uint32_t *left, uint32_t *right) {
    uint64_t l = (uint64_t)*left + randomk_mix(*right, k0, a);
    l -= l >= a ? a : 0;
    const uint64_t t = (uint64_t)*right + randomk_mix((uint32_t)l, k1, b);
    *left = (uint32_t)l;
    *right = (uint32_t)(t - (t >= b ? b : 0));
}

/* Applies all rounds of the Feistel network to n pairs (left[i], right[i]). */
ESP_INLINE uint64_t randomk_apply_body(const randomk_perm *p, uint32_t *restrict left, uint32_t *restrict right,
                                       uint64_t n) {
    for (int r = 0; r < RANDOMK_ROUNDS; r += 2) {
        const uint32_t a = p->a, b = p->b, k0 = p->key[r], k1 = p->key[r + 1];
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) randomk_two(a, b, k0, k1, &left[i], &right[i]);
    }
    return 0;
}
ESP_KERNEL(randomk_apply, (const randomk_perm *p, uint32_t *left, uint32_t *right, uint64_t n), (p, left, right, n))

/* Sets out[i] = P(first + i) for i < n, where n is at most RANDOMK_BATCH. */
static void randomk_draw(const randomk_perm *p, randomk_apply_fn apply, uint64_t first, uint64_t n, uint64_t *out) {
    uint32_t left[RANDOMK_BATCH], right[RANDOMK_BATCH], l = (uint32_t)(first / p->b), r = (uint32_t)(first % p->b);
    for (uint64_t i = 0; i < n; i++) {
        left[i] = l;
        right[i] = r;
        if (++r == p->b) r = 0, l++;
    }
    apply(p, left, right, n);
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) out[i] = (uint64_t)left[i] * p->b + right[i];
    for (uint64_t i = 0; i < n; i++)
        while (out[i] >= p->count) {
            apply(p, &left[i], &right[i], 1);
            out[i] = (uint64_t)left[i] * p->b + right[i];
        }
}
#endif
