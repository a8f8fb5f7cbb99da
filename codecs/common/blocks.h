/* blocks.h: shared by codecs that send each element as a code of 1 to 8 bits. A tensor is divided into blocks, and a
 * codec may send up to two f32 numbers (heads) for each block, such as its largest magnitude. The payload's body has
 * the heads of all blocks, then the codes, the first in the lowest bits, each block padded to whole bytes.
 * A codec gives three functions: heads_of blocks, the code of an element, and the value of a code. */
#ifndef ESP_BLOCKS_H
#define ESP_BLOCKS_H
#include "codecs/common/quant.h"
#include "codecs/common/rng.h"

enum {
    BLOCKS_HEADS = 2,
    BLOCKS_LANES = 16,
    BLOCKS_SETS = 4,
    BLOCKS_GROUPS = 8 * BLOCKS_SETS, /* groups of eight elements that a step of a noise kernel draws numbers for */
    BLOCKS_TABLE = 128,
    BLOCKS_DRAWS = 64,
    BLOCKS_PIECE = 128, /* elements encoded between two calls of blocks_fetch() */
    BLOCKS_MOST = (int)DENSE_BLOCK / (int)QUANT_BLOCK_MIN
};
/* words of random bits for a block that begins anywhere in a group of eight elements, rounded up to whole steps */
enum { BLOCKS_NOISE_WORDS = (DENSE_BLOCK / 8 + BLOCKS_GROUPS) * 4 };
typedef uint16_t blocks_u16 __attribute__((may_alias));

/* What codes of a block depend on: numbers that the codec computes from the block's heads and its parameters. */
typedef struct blocks_scale {
    float a, b, c;
    uint32_t levels;
    const float *table; /* for codecs that look values up; else NULL */
} blocks_scale;

typedef struct blocks_self blocks_self;
typedef struct blocks_format {
    const char *name;
    uint32_t heads; /* numbers for each block, at most BLOCKS_HEADS */
    bool noise;     /* codes depend on random numbers */
    /* Computes the heads of all blocks of n finite numbers, at most DENSE_BLOCK. NULL without heads. */
    void (*heads_of)(const blocks_self *s, float *heads, const float *phi, uint64_t n);
    blocks_scale (*scale_of)(const blocks_self *s, const float *head);
    /* Returns the kernels for an instruction set: see BLOCKS_KERNELS. */
    uint64_t (*(*encode)(int level))(uint8_t *restrict codes, float *restrict e, const float *restrict phi,
                                     const blocks_u16 *restrict noise, blocks_scale h, uint64_t n);
    uint64_t (*(*decode)(int level))(float *restrict out, const uint8_t *restrict codes, blocks_scale h, float scale,
                                     int set, uint64_t n);
    double ns[2];  /* on one core, per element: to compress, to decompress */
    bool unbiased; /* no error feedback unless it is asked for */
} blocks_format;

/* Every codec's own struct `self` must begin with this. */
struct blocks_self {
    dense_self dense;
    const blocks_format *format;
    uint64_t block; /* elements in a block: a power of two from 32 to DENSE_BLOCK */
    uint32_t bits;  /* of a code */
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */
/* Defines NAME_encode_for and NAME_decode_for from two functions, which must be ESP_ELEMENT:
 *     float NAME_round(float x, uint32_t noise, blocks_scale h, uint32_t *code);   stores x's code, returns its value
 *     float NAME_value(uint32_t code, blocks_scale h);
 * Encoding writes a byte per code, and x minus the code's value to `e` if that is not NULL. NOISE(i) is element i's
 * random number: BLOCKS_NOISE(i) of 16 bits, or BLOCKS_NO_NOISE(i). Decoding adds values times `scale` to `out`, or
 * overwrites it if `set`. BLOCKS_ROUND defines NAME_round by NAME_code(x, noise, h) and NAME_value. */
#define BLOCKS_ROUND(name)                                                                                             \
    ESP_ELEMENT float name##_round(float x, uint32_t noise, blocks_scale h, uint32_t *code) {                          \
        *code = name##_code(x, noise, h);                                                                              \
        return name##_value(*code, h);                                                                                 \
    }
#define BLOCKS_NOISE(i) noise[i]
#define BLOCKS_NO_NOISE(i) 0
#define BLOCKS_KERNELS(name, NOISE)                                                                                    \
    ESP_INLINE uint64_t name##_encode_body(uint8_t *restrict codes, float *restrict e, const float *restrict phi,      \
                                           const blocks_u16 *restrict noise, blocks_scale h, uint64_t n) {             \
        (void)noise;                                                                                                   \
        if (e) {                                                                                                       \
            ESP_SIMD                                                                                                   \
            for (uint64_t i = 0; i < n; i++) {                                                                         \
                uint32_t code;                                                                                         \
                e[i] = phi[i] - name##_round(phi[i], NOISE(i), h, &code);                                              \
                codes[i] = (uint8_t)code;                                                                              \
            }                                                                                                          \
        } else {                                                                                                       \
            ESP_SIMD                                                                                                   \
            for (uint64_t i = 0; i < n; i++) {                                                                         \
                uint32_t code;                                                                                         \
                (void)name##_round(phi[i], NOISE(i), h, &code);                                                        \
                codes[i] = (uint8_t)code;                                                                              \
            }                                                                                                          \
        }                                                                                                              \
        return 0;                                                                                                      \
    }                                                                                                                  \
    ESP_INLINE uint64_t name##_decode_body(float *restrict out, const uint8_t *restrict codes, blocks_scale h,         \
                                           float scale, int set, uint64_t n) {                                         \
        if (set) {                                                                                                     \
            ESP_SIMD                                                                                                   \
            for (uint64_t i = 0; i < n; i++) out[i] = scale * name##_value(codes[i], h);                               \
        } else {                                                                                                       \
            ESP_SIMD                                                                                                   \
            for (uint64_t i = 0; i < n; i++) out[i] += scale * name##_value(codes[i], h);                              \
        }                                                                                                              \
        return 0;                                                                                                      \
    }                                                                                                                  \
    ESP_KERNEL(name##_encode,                                                                                          \
               (uint8_t *restrict codes, float *restrict e, const float *restrict phi,                                 \
                const blocks_u16 *restrict noise, blocks_scale h, uint64_t n),                                         \
               (codes, e, phi, noise, h, n))                                                                           \
    ESP_KERNEL(name##_decode,                                                                                          \
               (float *restrict out, const uint8_t *restrict codes, blocks_scale h, float scale, int set, uint64_t n), \
               (out, codes, h, scale, set, n))

/* Packs n codes of one byte each to `bits` bits each. Bits after the last code, up to a whole byte, are 0. */
static uint64_t blocks_pack_scalar(unsigned char *out, const uint8_t *codes, uint32_t bits, uint64_t n) {
    uint32_t word = 0, filled = 0;
    for (uint64_t i = 0; i < n; i++) {
        word |= (uint32_t)codes[i] << filled;
        for (filled += bits; filled >= 8; filled -= 8, word >>= 8) *out++ = (unsigned char)word;
    }
    if (filled) *out = (unsigned char)word;
    return 0;
}
static uint64_t blocks_unpack_scalar(uint8_t *codes, const unsigned char *in, uint32_t bits, uint64_t n) {
    uint32_t word = 0, filled = 0;
    for (uint64_t i = 0; i < n; i++) {
        for (; filled < bits; filled += 8) word |= (uint32_t)*in++ << filled;
        codes[i] = (uint8_t)(word & ((1u << bits) - 1));
        word >>= bits;
        filled -= bits;
    }
    return 0;
}
#ifdef ESP_SIMD_X86
/* Packs 32 codes at a time if they have 1, 2 or 4 bits. Returns how many of the n codes. */
ESP_TARGET_AVX2 static uint64_t blocks_pack_even(unsigned char *out, const uint8_t *codes, uint32_t bits, uint64_t n) {
    const __m256i two = _mm256_set1_epi16((short)(1 | 256 << bits)), four = _mm256_set1_epi32(1 | 16 << 16);
    const __m256i bytes = _mm256_set1_epi32(0x0C080400), ends = _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0);
    uint64_t i = 0;
    for (; i + 32 <= n && (bits == 1 || bits == 2 || bits == 4); i += 32) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(codes + i));
        void *to = out + i * bits / 8;
        if (bits == 1) {
            memcpy(to, &(uint32_t){(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(v, 7))}, sizeof(uint32_t));
        } else if (bits == 2) {
            const __m256i w = _mm256_madd_epi16(_mm256_maddubs_epi16(v, two), four);
            const __m256i all = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(w, bytes), ends);
            _mm_storel_epi64((__m128i *)to, _mm256_castsi256_si128(all));
        } else {
            const __m256i w = _mm256_maddubs_epi16(v, two);
            const __m256i all = _mm256_permute4x64_epi64(_mm256_packus_epi16(w, w), 0x08);
            _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(all));
        }
    }
    return i;
}
/* The reverse: moves the upper half of a code's neighbours away by shifts, then the upper half of each half. */
ESP_TARGET_AVX2 static uint64_t blocks_unpack_even(uint8_t *codes, const unsigned char *in, uint32_t bits, uint64_t n) {
    uint64_t i = 0;
    for (; i + 32 <= n && (bits == 1 || bits == 2 || bits == 4); i += 32) {
        const __m128i *from = (const __m128i *)(const void *)(in + i * bits / 8);
        __m256i x;
        if (bits == 1) {
            int32_t four; /* gcc before 11 has no _mm_loadu_si32, and that of 11.1 is wrong */
            memcpy(&four, from, sizeof four);
            x = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
            x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi64(x, 28)), _mm256_set1_epi32(0xF));
            x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 14)), _mm256_set1_epi16(3));
            x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi16(x, 7)), _mm256_set1_epi8(1));
        } else if (bits == 2) {
            x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from));
            x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 12)), _mm256_set1_epi16(0xF));
            x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi16(x, 6)), _mm256_set1_epi8(3));
        } else {
            x = _mm256_cvtepu8_epi16(_mm_loadu_si128(from));
            x = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi16(x, 4)), _mm256_set1_epi8(0xF));
        }
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), x);
    }
    return i;
}
/* Otherwise eight codes become `bits` bytes. A store writes eight bytes, of which the next one overwrites those behind
 * the codes, so the last groups of a block, behind which there may be another thread's block, are left to the scalar
 * loop. Processors before AMD's Zen 3 take some 100 ns for such an instruction. */
ESP_TARGET_AVX2 static uint64_t blocks_pack_avx2(unsigned char *out, const uint8_t *codes, uint32_t bits, uint64_t n) {
    const uint64_t mask = ((1u << bits) - 1) * 0x0101010101010101u, bytes = (n * bits + 7) / 8;
    uint64_t i = blocks_pack_even(out, codes, bits, n), at = i * bits / 8;
    for (; i + 8 <= n && at + 8 <= bytes; i += 8, at += bits) {
        uint64_t w;
        memcpy(&w, codes + i, sizeof w);
        w = _pext_u64(w, mask);
        memcpy(out + at, &w, sizeof w);
    }
    ESP_LEAVE_WIDE();
    return blocks_pack_scalar(out + at, codes + i, bits, n - i);
}
ESP_TARGET_AVX2 static uint64_t blocks_unpack_avx2(uint8_t *codes, const unsigned char *in, uint32_t bits, uint64_t n) {
    const uint64_t mask = ((1u << bits) - 1) * 0x0101010101010101u, bytes = (n * bits + 7) / 8;
    uint64_t i = blocks_unpack_even(codes, in, bits, n), at = i * bits / 8;
    for (; i + 8 <= n && at + 8 <= bytes; i += 8, at += bits) {
        uint64_t w;
        memcpy(&w, in + at, sizeof w);
        w = _pdep_u64(w, mask);
        memcpy(codes + i, &w, sizeof w);
    }
    ESP_LEAVE_WIDE();
    return blocks_unpack_scalar(codes + i, in + at, bits, n - i);
}
ESP_TARGET_AVX512 static uint64_t blocks_pack_avx512(unsigned char *out, const uint8_t *codes, uint32_t bits,
                                                     uint64_t n) {
    const __m512i two = _mm512_set1_epi16((short)(1 | 256 << bits)), four = _mm512_set1_epi32(1 | 16 << 16);
    uint64_t i = 0;
    for (; i + 64 <= n && (bits == 1 || bits == 2 || bits == 4); i += 64) {
        const __m512i v = _mm512_loadu_si512(codes + i), pairs = _mm512_maddubs_epi16(v, two);
        void *to = out + i * bits / 8;
        if (bits == 1)
            memcpy(to, &(uint64_t){_mm512_test_epi8_mask(v, v)}, sizeof(uint64_t));
        else if (bits == 2)
            _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_madd_epi16(pairs, four)));
        else
            _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi16_epi8(pairs));
    }
    ESP_LEAVE_WIDE();
    return blocks_pack_avx2(out + i * bits / 8, codes + i, bits, n - i);
}
#define blocks_unpack_avx512 blocks_unpack_avx2
#endif
ESP_KERNEL_PICK(blocks_pack)
ESP_KERNEL_PICK(blocks_unpack)

/* Writes the four words of esp_philox() for each of n groups of eight elements: 16 random bits per element. `first` is
 * the index of the first element in the whole tensor, divided by eight. May write BLOCKS_GROUPS - 1 groups too many. */
ESP_TARGET_SCALAR static uint64_t blocks_noise_scalar(uint32_t *out, uint64_t key, uint64_t first, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        const esp_philox_t r = esp_philox(key, first + i, 0);
        memcpy(out + 4 * i, r.w, sizeof r.w);
    }
    return 0;
}
#ifdef ESP_SIMD_X86
/* Each vector has one of the four words of 4 or 8 counters, in the lower halves of 64 bits; the upper halves are
 * arbitrary, as multiplication ignores them. Counters are in an order in which a transposition within each 128 bits
 * puts their words beside each other. The processor overlaps the rounds of BLOCKS_SETS sets of counters. */
#define BLOCKS_PHILOX(P, S, XOR3, SET1, a, b, c, d, key)                                                               \
    do {                                                                                                               \
        const P m0 = SET1((int)0xD2511F53u), m1 = SET1((int)0xCD9E8D57u);                                              \
        uint32_t k0 = (uint32_t)(key), k1 = (uint32_t)((key) >> 32);                                                   \
        for (int j = 0; j < BLOCKS_SETS; j++) { /* the first round, in which c and d are 0 */                          \
            d[j] = S(mul_epu32)(a[j], m0);                                                                             \
            c[j] = XOR3(S(srli_epi64)(d[j], 32), SET1((int)k1), SET1(0));                                              \
            a[j] = XOR3(b[j], SET1((int)k0), SET1(0));                                                                 \
            b[j] = SET1(0);                                                                                            \
        }                                                                                                              \
        for (int round = 1; round < 10; round++) {                                                                     \
            k0 += 0x9E3779B9u;                                                                                         \
            k1 += 0xBB67AE85u;                                                                                         \
            for (int j = 0; j < BLOCKS_SETS; j++) {                                                                    \
                const P p = S(mul_epu32)(a[j], m0), q = S(mul_epu32)(c[j], m1);                                        \
                a[j] = XOR3(S(srli_epi64)(q, 32), b[j], SET1((int)k0));                                                \
                c[j] = XOR3(S(srli_epi64)(p, 32), d[j], SET1((int)k1));                                                \
                b[j] = q;                                                                                              \
                d[j] = p;                                                                                              \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)
#define BLOCKS_XOR256(x, y, z) _mm256_xor_si256(x, _mm256_xor_si256(y, z))
#define BLOCKS_XOR512(x, y, z) _mm512_ternarylogic_epi32(x, y, z, 0x96)
#define BLOCKS_S256(name) _mm256_##name
#define BLOCKS_S512(name) _mm512_##name
ESP_TARGET_AVX2 static uint64_t blocks_noise_avx2(uint32_t *out, uint64_t key, uint64_t first, uint64_t n) {
    const __m256i step = _mm256_setr_epi64x(0, 2, 1, 3);
    __m256i a[BLOCKS_SETS], b[BLOCKS_SETS], c[BLOCKS_SETS], d[BLOCKS_SETS];
    for (uint64_t i = 0; i < n; i += 4 * BLOCKS_SETS) {
        for (uint32_t j = 0; j < BLOCKS_SETS; j++) {
            a[j] = _mm256_add_epi64(_mm256_set1_epi64x((long long)(first + i + 4 * j)), step);
            b[j] = _mm256_srli_epi64(a[j], 32);
        }
        BLOCKS_PHILOX(__m256i, BLOCKS_S256, BLOCKS_XOR256, _mm256_set1_epi32, a, b, c, d, key);
        for (uint32_t j = 0; j < BLOCKS_SETS; j++) {
            const __m256i ab = _mm256_blend_epi32(a[j], _mm256_slli_epi64(b[j], 32), 0xAA);
            const __m256i cd = _mm256_blend_epi32(c[j], _mm256_slli_epi64(d[j], 32), 0xAA);
            __m256i *to = (__m256i *)(void *)(out + 4 * i + 16 * j);
            _mm256_storeu_si256(to, _mm256_unpacklo_epi64(ab, cd));
            _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi64(ab, cd));
        }
    }
    return 0;
}
ESP_TARGET_AVX512 static uint64_t blocks_noise_avx512(uint32_t *out, uint64_t key, uint64_t first, uint64_t n) {
    const __m512i step = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    __m512i a[BLOCKS_SETS], b[BLOCKS_SETS], c[BLOCKS_SETS], d[BLOCKS_SETS];
    for (uint64_t i = 0; i < n; i += 8 * BLOCKS_SETS) {
        for (uint32_t j = 0; j < BLOCKS_SETS; j++) {
            a[j] = _mm512_add_epi64(_mm512_set1_epi64((long long)(first + i + 8 * j)), step);
            b[j] = _mm512_srli_epi64(a[j], 32);
        }
        BLOCKS_PHILOX(__m512i, BLOCKS_S512, BLOCKS_XOR512, _mm512_set1_epi32, a, b, c, d, key);
        for (uint32_t j = 0; j < BLOCKS_SETS; j++) {
            const __m512i ab = _mm512_mask_blend_epi32(0xAAAA, a[j], _mm512_slli_epi64(b[j], 32));
            const __m512i cd = _mm512_mask_blend_epi32(0xAAAA, c[j], _mm512_slli_epi64(d[j], 32));
            _mm512_storeu_si512(out + 4 * i + 32 * j, _mm512_unpacklo_epi64(ab, cd));
            _mm512_storeu_si512(out + 4 * i + 32 * j + 16, _mm512_unpackhi_epi64(ab, cd));
        }
    }
    return 0;
}
#endif
ESP_KERNEL_PICK(blocks_noise)

ESP_INLINE float blocks_tree(float part[BLOCKS_LANES]) {
    for (int width = BLOCKS_LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) part[j] += part[j + width];
    return part[0];
}
/* Returns the sum of (x * inverse)^2. Partial sum j of 16 adds elements j, j + 16, ..., so that all instruction sets
 * give the same bits. */
ESP_INLINE float blocks_square(const float *x, float inverse, uint64_t n) {
    float acc[BLOCKS_LANES] = {0};
    const uint64_t whole = n / BLOCKS_LANES * BLOCKS_LANES;
    for (uint64_t i = 0; i < whole; i += BLOCKS_LANES)
        for (int j = 0; j < BLOCKS_LANES; j++) {
            const float y = x[i + (uint64_t)j] * inverse;
            acc[j] += y * y;
        }
    for (uint64_t i = whole; i < n; i++) acc[i - whole] += x[i] * inverse * (x[i] * inverse);
    return blocks_tree(acc);
}

/* ---- what heads_of() may use ------------------------------------------------------------------------------------- */
/* Returns the largest magnitude, or 0 if it is below 2^-100, so that its inverse is finite. */
ESP_ELEMENT float blocks_top_of(uint32_t top) { return top < QUANT_LEAST ? 0 : bits_float(top); }
/* Sets top[k] to block k's largest magnitude. */
ESP_INLINE uint64_t blocks_tops_body(float *top, const float *x, uint64_t block, uint64_t n) {
    for (uint64_t i = 0; i < n; i += block)
        top[i / block] = blocks_top_of((uint32_t)quant_top_body(x + i, NULL, 1, 1, n - i < block ? n - i : block));
    return 0;
}
ESP_KERNEL(blocks_tops, (float *top, const float *x, uint64_t block, uint64_t n), (top, x, block, n))
/* Sets sum[k] to the sum of the squares of block k's elements / top[k], or 0. */
ESP_INLINE uint64_t blocks_squares_body(float *sum, const float *top, const float *x, uint64_t block, uint64_t n) {
    for (uint64_t i = 0, k = 0; i < n; i += block, k++)
        sum[k] = blocks_square(x + i, top[k] > 0 ? 1 / top[k] : 0, n - i < block ? n - i : block);
    return 0;
}
ESP_KERNEL(blocks_squares, (float *sum, const float *top, const float *x, uint64_t block, uint64_t n),
           (sum, top, x, block, n))
static inline void blocks_tops(const blocks_self *s, float *top, const float *phi, uint64_t n) {
    blocks_tops_for(s->dense.level)(top, phi, s->block, n);
}
/* Returns the root of the mean of n squares, at most 1. */
ESP_ELEMENT float blocks_rms(float squares, uint64_t n) {
    const float mean = squares / (float)n;
    return mean < 1 ? sqrtf(mean) : 1;
}

/* ---- payloads ---------------------------------------------------------------------------------------------------- */
static inline uint64_t blocks_heads_bytes(const blocks_self *s, uint64_t count) {
    return s->format->heads * quant_units(count, s->block) * sizeof(float);
}
static inline uint64_t blocks_body(const blocks_self *s, uint64_t count) {
    return blocks_heads_bytes(s, count) + (count * s->bits + 7) / 8;
}
static inline esp_status blocks_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                      esp_bound *out) {
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, blocks_body((const blocks_self *)self, like->count), 0, 0);
}

typedef struct blocks_job {
    const blocks_self *self;
    unsigned char *heads, *codes;
    uint64_t key, offset;
    const float *g; /* the gradient, if the next elements shall be fetched from memory, of `count` ones */
    uint64_t count;
} blocks_job;

/* Fetches n elements from number i on of `next`, which is NULL or what the next call will read. */
ESP_INLINE void blocks_fetch(const float *next, uint64_t i, uint64_t n) {
    if (next) dense_fetch(next + i, n);
}

static inline void blocks_encode(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const blocks_job *j = (const blocks_job *)user;
    const blocks_self *s = j->self;
    const blocks_format *f = s->format;
    const uint64_t first = j->offset + at;
    uint32_t words[BLOCKS_NOISE_WORDS];
    const blocks_u16 *noise = (const blocks_u16 *)(const void *)words + first % 8;
    uint8_t tmp[DENSE_BLOCK];
    float heads[BLOCKS_MOST * BLOCKS_HEADS];
    blocks_scale scales[BLOCKS_MOST];
    const bool fetch = j->g && j->count - at >= 2 * DENSE_BLOCK;
    const float *next_e = fetch && residual ? residual + DENSE_BLOCK : NULL;
    const float *next_g = fetch && !dense_early(&s->dense, residual) ? j->g + at + DENSE_BLOCK : NULL;
    /* heads and scales first: the processor then overlaps the divisions and roots of several blocks */
    if (f->heads) {
        f->heads_of(s, heads, phi, n);
        memcpy(j->heads + at / s->block * f->heads * sizeof *heads, heads, blocks_heads_bytes(s, n));
    }
    for (uint64_t i = 0, k = 0; i < n; i += s->block, k++) scales[k] = f->scale_of(s, heads + k * f->heads);
    const __typeof__(f->encode(0)) encode = f->encode(s->dense.level);
    const uint64_t groups = f->noise ? (first % 8 + n + 7) / 8 : 0, some = fetch ? BLOCKS_GROUPS : groups;
    for (uint64_t i = 0; i < groups; i += some) {
        blocks_fetch(next_g ? next_g : next_e, 8 * i, 8 * BLOCKS_GROUPS);
        blocks_noise_for(s->dense.level)(words + 4 * i, j->key, first / 8 + i, groups - i < some ? groups - i : some);
    }
    for (uint64_t i = 0; i < n; i += s->block) {
        const uint64_t m = n - i < s->block ? n - i : s->block;
        unsigned char *to = j->codes + (at + i) * s->bits / 8;
        uint8_t *codes = s->bits == 8 ? to : tmp;
        const uint64_t most = fetch && m > BLOCKS_PIECE ? BLOCKS_PIECE : m;
        for (uint64_t k = i; k < i + m; k += most) {
            const uint64_t piece = i + m - k < most ? i + m - k : most;
            if (!f->noise) blocks_fetch(next_g, k, piece);
            if (!f->noise || next_g) blocks_fetch(next_e, k, piece);
            encode(codes + k - i, residual ? residual + k : NULL, phi + k, noise + k, scales[i / s->block], piece);
        }
        if (s->bits < 8) blocks_pack_for(s->dense.level)(to, tmp, s->bits, m);
    }
}

static inline esp_status blocks_compress(void *self, const esp_codec_args *a) {
    const blocks_self *s = (const blocks_self *)self;
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash(s->format->name), 1, 0, n, blocks_body(s, n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || !n) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    blocks_job j = {s, body, body + blocks_heads_bytes(s, n), 0, a->offset[0], dense_in(a), n};
    if (s->format->noise) j.key = esp_rng_key(a->seed, a->step, a->tensor[0]->key, a->comp_index, a->source);
    const bool sent = dense_safe(&s->dense, a) && dense_blocks(&s->dense, a, &j, DENSE_BLOCK, blocks_encode);
    return sent ? ESP_OK : dense_send_nan(a->payload, &h, 0);
}

/* Are all numbers in `bytes` bytes of heads finite? */
static inline bool blocks_heads_ok(const unsigned char *heads, uint64_t bytes) {
    uint32_t bad = 0;
    for (uint64_t i = 0; i < bytes; i += sizeof(float)) {
        float x;
        memcpy(&x, heads + i, sizeof x);
        bad |= dense_nonfinite(x);
    }
    return !(bad >> 31);
}
/* Heads must be finite, and the bits behind the last code 0. */
static inline bool blocks_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    const blocks_self *s = (const blocks_self *)self;
    const uint64_t heads = blocks_heads_bytes(s, h->count);
    const uint32_t used = (uint32_t)(h->count * s->bits % 8);
    return h->aux == 0 && blocks_heads_ok(body, heads) && (!used || !(body[h->body_bytes - 1] >> used));
}
static inline void blocks_add(const void *self, const dense_block *b) {
    const blocks_self *s = (const blocks_self *)self;
    const blocks_format *f = s->format;
    const unsigned char *codes = b->body + blocks_heads_bytes(s, b->header->count) + b->at * s->bits / 8;
    uint8_t tmp[DENSE_BLOCK];
    for (uint64_t i = 0; i < b->n; i += s->block) {
        const uint64_t m = b->n - i < s->block ? b->n - i : s->block;
        const unsigned char *from = codes + i * s->bits / 8;
        float head[BLOCKS_HEADS] = {0};
        memcpy(head, b->body + (b->at + i) / s->block * f->heads * sizeof *head, f->heads * sizeof *head);
        if (s->bits < 8) blocks_unpack_for(s->dense.level)(tmp, from, s->bits, m);
        f->decode(s->dense.level)(b->out + i, s->bits < 8 ? tmp : from, f->scale_of(s, head), b->scale, b->set, m);
    }
}
static inline esp_status blocks_decompress(void *self, const esp_codec_args *a) {
    const blocks_self *s = (const blocks_self *)self;
    const dense_format format = {s->format->name, 1, 0, blocks_valid, blocks_add};
    return dense_decompress(&s->dense, &format, a, blocks_body(s, a->tensor[0]->count), DENSE_BLOCK);
}

/* ---- model ------------------------------------------------------------------------------------------------------- */
/* Sets x to a block of random numbers with a normal distribution, by the method of Box and Muller. */
static inline void blocks_normal(float x[DENSE_BLOCK], uint64_t draw) {
    for (uint32_t i = 0; i < DENSE_BLOCK; i += 2) {
        const esp_philox_t r = esp_philox(2, draw, i);
        const double radius = sqrt(-2 * log(((double)r.w[0] + 0.5) / 4294967296.0));
        const double angle = 2 * ESP_MODEL_PI * (double)r.w[1] / 4294967296.0;
        x[i] = (float)(radius * cos(angle));
        x[i + 1] = (float)(radius * sin(angle));
    }
}
/* Returns |decoded - x|^2 / |x|^2 for such x. Takes about a millisecond. */
static inline double blocks_error(const blocks_self *s) {
    float x[DENSE_BLOCK], left[DENSE_BLOCK];
    unsigned char heads[BLOCKS_MOST * BLOCKS_HEADS * sizeof(float)], codes[DENSE_BLOCK];
    blocks_job j = {s, heads, codes, 1, 0, NULL, 0};
    double error = 0, all = 0;
    for (uint64_t draw = 0; draw < BLOCKS_DRAWS; draw++) {
        blocks_normal(x, draw);
        j.offset = draw * DENSE_BLOCK;
        blocks_encode(&j, x, left, 0, DENSE_BLOCK);
        for (int i = 0; i < DENSE_BLOCK; i++) {
            error += (double)left[i] * (double)left[i];
            all += (double)x[i] * (double)x[i];
        }
    }
    return error / all;
}
static inline esp_status blocks_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                      esp_codec_model *out) {
    const blocks_self *s = (const blocks_self *)self;
    const double sent = s->bits / 8.0 + 4.0 * s->format->heads / (double)s->block;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 0, sent, 0, 0},
        .error = blocks_error(s),
        .ns = {s->format->ns[0], s->format->ns[1]},
        .launches = {s->format->unbiased ? 1.0 : 2.0, 2},
        .bytes = {(s->format->unbiased ? 4 : 20) + sent, 4 + sent},
        .small = {{8192, 1}},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

/* ---- the codec's table ------------------------------------------------------------------------------------------- */
#define BLOCKS_TAKES "a power of two from 32 to 1024"
#define BLOCKS_PARAM(value)                                                                                            \
    { "block", (value), QUANT_BLOCK_MIN, DENSE_BLOCK, 0, ESP_PARAM_POWER_OF_TWO, BLOCKS_TAKES }

/* Allocates a struct of `bytes` bytes that begins with blocks_self. `block` and `bits` must be set afterwards. */
static inline esp_status blocks_open(const blocks_format *f, const esp_host *h, const char *params, esp_param *p, int n,
                                     const char *all, size_t bytes, void **self) {
    const esp_status st = dense_open(h, f->name, params, p, n, all, bytes, self);
    if (st == ESP_OK) ((blocks_self *)*self)->format = f;
    return st;
}
#define BLOCKS_OPTION "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather"
#define BLOCKS_CODEC(open_) .n_rounds = 1, ESP_CODEC_CALLS(open_, esp_codec_self_free, NULL, blocks)
#endif
