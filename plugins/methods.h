/* methods.h: functions that many compression methods share, for codecs of your own: packing, quantizing, sparsifying,
 * error feedback. They are GRACE's helpers (Xu et al., "GRACE: a compressed communication framework for distributed
 * machine learning", ICDCS 2021, section V). For C99 and C++11 on; any thread may call them, and none allocates. The
 * built-in codecs use faster forms (codecs/common). */
#ifndef ESP_METHODS_H
#define ESP_METHODS_H
#include "espresso.h"
#include <math.h>
#include <string.h>

/* ---- error feedback ---------------------------------------------------------------------------------------------- */
/** Sets phi[n] to beta e + gamma g, where e is the residual, or NULL. phi may be g or e. Returns whether all elements
 *  are finite: if not, send ESP_PAYLOAD_NONFINITE, and change neither residual nor state. */
static inline int esp_feedback_add(float *phi, const float *g, const float *e, float beta, float gamma, uint64_t n) {
    int finite = 1;
    for (uint64_t i = 0; i < n; i++) {
        phi[i] = e ? beta * e[i] + gamma * g[i] : g[i];
        finite &= isfinite(phi[i]) != 0;
    }
    return finite;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */
/** Returns the bytes of n codes of `bits` bits each, 1 to 8. */
static inline uint64_t esp_packed_bytes(uint64_t n, uint32_t bits) { return n / 8 * bits + (n % 8 * bits + 7) / 8; }

/** Packs code[n], each below 2^bits, into `out`, which has esp_packed_bytes bytes. The first code is in the lowest bits
 *  of the first byte. */
static inline void esp_pack(unsigned char *out, const unsigned char *code, uint64_t n, uint32_t bits) {
    uint32_t hold = 0, held = 0;
    for (uint64_t i = 0; i < n; i++) {
        hold |= (uint32_t)code[i] << held;
        for (held += bits; held >= 8; held -= 8, hold >>= 8) *out++ = (unsigned char)(hold & 0xFF);
    }
    if (held) *out = (unsigned char)hold;
}

/** Reads what esp_pack wrote. */
static inline void esp_unpack(unsigned char *code, const unsigned char *in, uint64_t n, uint32_t bits) {
    uint32_t hold = 0, held = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (held < bits) hold |= (uint32_t)*in++ << held, held += 8;
        code[i] = (unsigned char)(hold & ((1u << bits) - 1));
        hold >>= bits, held -= bits;
    }
}

/* ---- quantizing -------------------------------------------------------------------------------------------------- */
/** Returns the largest |x[i]|. */
static inline float esp_largest(const float *x, uint64_t n) {
    float most = 0;
    for (uint64_t i = 0; i < n; i++)
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    return most;
}

/** Sets code[i] to `most` plus x[i] / unit, rounded to a whole number and kept from -most to most (at most 127). With
 *  noise[n], numbers from 0 to below 1, it rounds up with the probability that makes the code right on average;
 *  without (NULL) to the nearest. unit 0 makes all codes `most`, which stands for 0. */
static inline void esp_quantize(unsigned char *code, const float *x, uint64_t n, float unit, int most,
                                const float *noise) {
    for (uint64_t i = 0; i < n; i++) {
        const float r = unit > 0 ? x[i] / unit : 0, level = floorf(r + (noise ? noise[i] : 0.5f));
        const float kept = level > (float)most ? (float)most : level < (float)-most ? (float)-most : level;
        code[i] = (unsigned char)((int)kept + most);
    }
}

/** Adds the values of the codes times `scale` to out[n]; overwrites `out` if `set`. */
static inline void esp_dequantize(float *out, const unsigned char *code, uint64_t n, float unit, int most, float scale,
                                  int set) {
    for (uint64_t i = 0; i < n; i++) {
        const float v = (float)((int)code[i] - most) * unit * scale;
        out[i] = set ? v : out[i] + v;
    }
}

/* ---- sparsifying ------------------------------------------------------------------------------------------------- */
static inline uint32_t esp_magnitude_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFFu; /* in the order of magnitudes */
}

/** Finds the k elements of x[n] that are largest in magnitude, 0 < k <= n; of equal ones those of lower index. Writes
 *  their indices, ascending, and their values. x must be finite. Reads x 33 times. */
static inline void esp_sparsify(uint32_t *index, float *value, uint64_t k, const float *x, uint64_t n) {
    uint32_t least = 0; /* the k-th largest magnitude, found bit by bit */
    uint64_t larger = 0, equal = 0, at = 0;
    for (uint32_t bit = 1u << 30; bit; bit >>= 1) {
        uint64_t count = 0;
        for (uint64_t i = 0; i < n; i++) count += esp_magnitude_bits(x[i]) >= (least | bit);
        if (count >= k) least |= bit;
    }
    for (uint64_t i = 0; i < n; i++) larger += esp_magnitude_bits(x[i]) > least;
    for (uint64_t i = 0; i < n && at < k; i++) {
        const uint32_t size = esp_magnitude_bits(x[i]);
        if (size < least || (size == least && equal++ >= k - larger)) continue;
        index[at] = (uint32_t)i, value[at++] = x[i];
    }
}

/** Returns whether the indices rise and are below n, as those of a payload must. */
static inline int esp_sparse_valid(const uint32_t *index, uint64_t k, uint64_t n) {
    for (uint64_t i = 0; i < k; i++)
        if (index[i] >= n || (i && index[i] <= index[i - 1])) return 0;
    return 1;
}

/** Adds value[i] * scale to out[index[i]] for k valid indices; if `set`, all other elements of out[n] become 0. */
static inline void esp_desparsify(float *out, uint64_t n, const uint32_t *index, const float *value, uint64_t k,
                                  float scale, int set) {
    if (set && n) memset(out, 0, n * sizeof *out);
    for (uint64_t i = 0; i < k; i++) out[index[i]] += value[i] * scale;
}
#endif
