/* numbers.h has inputs and expected results of a collective, number by number, for every data type, reduction and
 * width. It is plain C that shares nothing with the code under test. */
#ifndef NUMBERS_H
#define NUMBERS_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "espresso.h"

typedef struct number_case {
    uint32_t op;
    esp_dtype type;
    esp_reduce reduce;
    uint64_t count, width;
    int32_t root;
    int in_place;
    float scale;
} number_case;

static uint32_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(x >> 32);
}
static int is_float(esp_dtype t) { return t == ESP_F32 || t == ESP_F16 || t == ESP_BF16; }
static int reduces(uint32_t op) {
    return op == ESP_COLL_ALLREDUCE || op == ESP_COLL_REDUCE_SCATTER || op == ESP_COLL_REDUCE;
}
static uint64_t part_size(uint64_t count, int32_t n) { return (count + (uint64_t)n - 1) / (uint64_t)n; }
static uint64_t part_begin(uint64_t count, int32_t n, int32_t p) {
    uint64_t b = (uint64_t)p * part_size(count, n);
    return b < count ? b : count;
}

/* ---- bits of a number ---- */
static uint32_t low_bits(esp_dtype t, uint32_t x) {
    uint64_t bytes = esp_dtype_bytes(t);
    return bytes == 4 ? x : x & (bytes == 2 ? 0xffffu : 0xffu);
}
static uint32_t bits_of_int(esp_dtype t, int v) {
    float f = (float)v;
    uint32_t u;
    if (!is_float(t)) return low_bits(t, (uint32_t)v);
    memcpy(&u, &f, 4);
    if (t == ESP_F32) return u;
    if (t == ESP_BF16) return u >> 16;
    return v ? ((u >> 16) & 0x8000u) | ((((u >> 23) & 255u) - 112u) << 10) | ((u >> 13) & 0x3ffu) : 0;
}
static double value_of(esp_dtype t, uint32_t bits) {
    uint32_t wide = t == ESP_BF16 ? bits << 16 : bits, e = (bits >> 10) & 31u;
    float f;
    memcpy(&f, &wide, 4);
    if (t == ESP_F32 || t == ESP_BF16) return (double)f;
    if (t != ESP_F16) {
        int shift = 32 - 8 * (int)esp_dtype_bytes(t);
        return (double)((int32_t)(bits << shift) >> shift);
    }
    double m = (double)(bits & 0x3ffu), v = e == 31  ? (m > 0 ? NAN : INFINITY)
                                            : e == 0 ? ldexp(m, -24)
                                                     : ldexp(m + 1024, (int)e - 25);
    return bits & 0x8000u ? -v : v;
}

/* Returns number `i` of `rank`'s input. Floats that are summed or copied are small integers, whose sums are exact.
 * Integers have all values, so that sums overflow. Floats of maxima and minima include NaNs, zeros of both signs,
 * infinities and denormal numbers. */
static uint32_t number(const number_case *c, int32_t rank, uint64_t i) {
    uint32_t r = mix(i * 131 + (uint64_t)rank * 7 + c->op + c->reduce * 1000), e = c->type == ESP_F16 ? 10 : 7;
    uint32_t sign = r & 0x8000u, inf = c->type == ESP_F16 ? 0x7c00u : 0x7f80u, half = 0;
    if (!is_float(c->type)) return low_bits(c->type, r);
    if (!reduces(c->op) || c->reduce <= ESP_REDUCE_SUM) return bits_of_int(c->type, (int)(r % 15) - 7);
    switch (r % 19) {
    case 0: half = inf | (1u + r / 19 % ((1u << e) - 1u)); break;
    case 1:
    case 2:
    case 3:
    case 4: break;
    case 5: half = inf; break;
    case 6: half = 1u + r / 19 % ((1u << e) - 1u); break;
    case 7: half = inf - 1; break;
    default: half = r / 19 % inf; break;
    }
    if (c->type != ESP_F32) return sign | half;
    return (sign | half) << 16 | (half && half != inf ? r >> 16 : 0);
}

static uint32_t the_larger(esp_dtype t, uint32_t a, uint32_t b, int least) {
    double x = value_of(t, a), y = value_of(t, b);
    if (isnan(x) || isnan(y)) return t == ESP_F32 ? 0x7fc00000u : t == ESP_F16 ? 0x7e00u : 0x7fc0u;
    if (x > y || x < y) return (x > y) != least ? a : b;
    return (signbit(x) != 0) == least ? a : b;
}
static uint32_t reduced(const number_case *c, int32_t n, uint64_t i) {
    uint32_t all = number(c, 0, i);
    double sum = value_of(c->type, all);
    for (int32_t q = 1; q < n; q++) {
        uint32_t next = number(c, q, i);
        sum += value_of(c->type, next);
        all = c->reduce > ESP_REDUCE_SUM ? the_larger(c->type, all, next, c->reduce == ESP_REDUCE_MIN)
                                         : low_bits(c->type, all + next);
    }
    if (!is_float(c->type) || c->reduce > ESP_REDUCE_SUM) return all;
    return bits_of_int(c->type, (int)(sum * (c->scale > 0 ? (double)c->scale : 1)));
}
/* Returns what number `i` of the whole buffer must be after the collective. */
static uint32_t expected(const number_case *c, int32_t rank, int32_t n, uint64_t i) {
    uint64_t per = part_size(c->count, n) * c->width;
    if (c->op == ESP_COLL_BROADCAST) return number(c, c->root, i);
    if (c->op == ESP_COLL_ALLTOALL) return number(c, (int32_t)(i / per), (uint64_t)rank * per + i % per);
    return reduces(c->op) ? reduced(c, n, i) : number(c, (int32_t)(i / per), i);
}
#endif
