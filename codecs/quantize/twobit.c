/* twobit.c: codec "twobit", which sends -t, 0 or +t for each element in two bits, with error feedback, in the
 * format of MXNet's "2bit" compression (src/kvstore/gradient_compression.cc). The idea is from Strom, Interspeech
 * 2015. An element of phi (gradient plus residual) is sent as +t if phi >= t, as -t if phi <= -t, otherwise as 0.
 * The threshold t is a parameter; with relative=c it is c times the mean of |phi|, which fits gradients of any
 * size. For normally distributed elements c = 1.13 has the smallest error, for Laplace 1.41. */
#include "codecs/common/dense.h"
#include "codecs/common/norm.h"

#define TWOBIT_LEAST 1e-30

ESP_ELEMENT uint64_t twobit_body(uint64_t count) { return (count + 15) / 16 * 4; }
/* Returns the bit position of element i's two-bit code in its little-endian 32-bit word, which holds 16 codes. */
ESP_ELEMENT uint32_t twobit_shift(uint32_t i) { return i / 4 * 8 + 6 - i % 4 * 2; }

/* ---- packing and the residual ------------------------------------------------------------------------------ */
ESP_ELEMENT uint32_t twobit_code(float phi, float t) { return (uint32_t)(phi >= t) * 3u | (uint32_t)(phi <= -t) << 1; }
/* Returns the value that a code stands for: t, -t or 0. Both `t` and the result are the bits of a float. */
ESP_ELEMENT uint32_t twobit_value(uint32_t code, uint32_t t) { return (0u - (code >> 1)) & (t | (~code & 1u) << 31); }
/* Returns `relative` times the mean of `count` magnitudes, whose sum is `norm`. If `norm` is NaN, so is the result. */
ESP_ELEMENT float twobit_relative(double norm, double relative, uint64_t count) {
    const double t = norm * (count ? relative / (double)count : 0);
    return (float)(t < TWOBIT_LEAST ? TWOBIT_LEAST : t);
}
ESP_ELEMENT bool twobit_header_ok(uint64_t aux) { return aux != 0 && aux <= 0x7F7FFFFFu; }
/* Returns nonzero if one of the 16 two-bit codes in w is 01, which stands for no value. */
ESP_ELEMENT uint32_t twobit_word_bad(uint32_t w) { return ~(w >> 1) & w & 0x55555555u; }
ESP_ELEMENT bool twobit_padding_ok(uint32_t w, uint32_t n) {
    for (uint32_t i = n; i && i < 16; i++)
        if (w >> twobit_shift(i) & 3u) return false;
    return true;
}
static uint64_t twobit_pack_scalar(unsigned char *out, const float *phi, float *residual, float t, uint64_t n) {
    for (uint64_t at = 0; at < n; at += 16) {
        uint32_t w = 0;
        const uint32_t m = n - at < 16 ? (uint32_t)(n - at) : 16;
        for (uint32_t i = 0; i < m; i++) {
            const uint32_t code = twobit_code(phi[at + i], t);
            w |= code << twobit_shift(i);
            if (residual) residual[at + i] = phi[at + i] - bits_float(twobit_value(code, float_bits(t)));
        }
        memcpy(out + at / 4, &w, sizeof w);
    }
    return 0;
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static uint64_t twobit_pack_avx2(unsigned char *out, const float *phi, float *residual, float t,
                                                 uint64_t n) {
    const __m256 hi = _mm256_set1_ps(t), lo = _mm256_set1_ps(-t);
    /* codes 3 and 2 at their places in a byte: that of the first of four elements is highest, as in MXNet */
    const __m256i three = _mm256_setr_epi32(192, 48, 12, 3, 192, 48, 12, 3);
    const __m256i two = _mm256_setr_epi32(128, 32, 8, 2, 128, 32, 8, 2), ends = _mm256_set1_epi32(0x0C080400);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i code[4];
        for (int q = 0; q < 4; q++) {
            const __m256 p = _mm256_loadu_ps(phi + i + 8 * q);
            const __m256 a = _mm256_cmp_ps(p, hi, _CMP_GE_OQ), b = _mm256_cmp_ps(p, lo, _CMP_LE_OQ);
            code[q] = _mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(a), three),
                                      _mm256_and_si256(_mm256_castps_si256(b), two));
            if (!residual) continue;
            const __m256 sent = _mm256_or_ps(_mm256_and_ps(a, hi), _mm256_and_ps(b, lo));
            _mm256_storeu_ps(residual + i + 8 * q, _mm256_sub_ps(p, sent));
        }
        /* adds up each four codes, which leaves the bytes 0, 2, 4, 6 in the lower half, 1, 3, 5, 7 in the upper one */
        const __m256i all =
            _mm256_packus_epi16(_mm256_packus_epi32(code[0], code[1]), _mm256_packus_epi32(code[2], code[3]));
        const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(all, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
        const __m256i halves = _mm256_shuffle_epi8(sums, ends);
        _mm_storel_epi64((__m128i *)(void *)(out + i / 4),
                         _mm_unpacklo_epi8(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
    }
    ESP_LEAVE_WIDE();
    return twobit_pack_scalar(out + i / 4, phi + i, residual ? residual + i : NULL, t, n - i);
}
/* Packs the codes of 32 elements from two masks of one bit each: `up` marks those sent as +t, `down` those as -t.
 * In both masks every group of four bits is reversed. */
ESP_TARGET_AVX2 static inline void twobit_word(unsigned char *out, uint32_t up, uint32_t down) {
    const uint64_t w = _pdep_u64(up | down, 0xAAAAAAAAAAAAAAAAu) | _pdep_u64(up, 0x5555555555555555u);
    memcpy(out, &w, sizeof w);
}
ESP_TARGET_AVX512 static uint64_t twobit_pack_avx512(unsigned char *out, const float *phi, float *residual, float t,
                                                     uint64_t n) {
    const __m512 hi = _mm512_set1_ps(t), lo = _mm512_set1_ps(-t);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t up = 0, down = 0;
        for (int q = 0; q < 2; q++) {
            const __m512 p = _mm512_permute_ps(_mm512_loadu_ps(phi + i + 16 * q), 0x1B);
            const __mmask16 a = _mm512_cmp_ps_mask(p, hi, _CMP_GE_OQ), b = _mm512_cmp_ps_mask(p, lo, _CMP_LE_OQ);
            up |= (uint32_t)a << 16 * q;
            down |= (uint32_t)b << 16 * q;
            if (!residual) continue;
            const __m512 kept = _mm512_mask_sub_ps(_mm512_mask_sub_ps(p, a, p, hi), b, p, lo);
            _mm512_storeu_ps(residual + i + 16 * q, _mm512_permute_ps(kept, 0x1B));
        }
        twobit_word(out + i / 4, up, down);
    }
    ESP_LEAVE_WIDE();
    return twobit_pack_scalar(out + i / 4, phi + i, residual ? residual + i : NULL, t, n - i);
}
#endif
ESP_KERNEL_PICK(twobit_pack)

/* ---- unpacking --------------------------------------------------------------------------------------------- */
/* Adds the n elements of the word w to `out`, or overwrites `out` if `set` is 1. `t` has the bits of the threshold. */
ESP_INLINE void twobit_add_word(float *out, uint32_t w, uint32_t t, int set, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t code = w >> twobit_shift(i) & 3u;
        const uint32_t bits = twobit_value(code, t);
        out[i] = set ? bits_float(bits) : out[i] + bits_float(bits);
    }
}
static uint64_t twobit_add_scalar(float *out, const unsigned char *in, float t, int set, uint64_t n) {
    uint32_t w;
    for (uint64_t at = 0; at < n; at += 16) {
        memcpy(&w, in + at / 4, sizeof w);
        twobit_add_word(out + at, w, float_bits(t), set, n - at < 16 ? (uint32_t)(n - at) : 16);
    }
    return 0;
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static uint64_t twobit_add_avx2(float *out, const unsigned char *in, float t, int set, uint64_t n) {
    const __m256i shift = _mm256_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8), high = _mm256_set1_epi32(16);
    const __m256 value = _mm256_setr_ps(0, 0, -t, t, 0, 0, -t, t);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint32_t w;
        memcpy(&w, in + i / 4, sizeof w);
        const __m256i a = _mm256_srlv_epi32(_mm256_set1_epi32((int32_t)w), shift);
        const __m256 x = _mm256_permutevar_ps(value, a), y = _mm256_permutevar_ps(value, _mm256_srlv_epi32(a, high));
        dense_put16(out + i, x, y, set);
    }
    ESP_LEAVE_WIDE();
    return twobit_add_scalar(out + i, in + i / 4, t, set, n - i);
}
ESP_TARGET_AVX512 static uint64_t twobit_add_avx512(float *out, const unsigned char *in, float t, int set, uint64_t n) {
    const __m512i shift = _mm512_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8, 22, 20, 18, 16, 30, 28, 26, 24);
    const __m512 value = _mm512_setr_ps(0, 0, -t, t, 0, 0, -t, t, 0, 0, -t, t, 0, 0, -t, t);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint32_t w;
        memcpy(&w, in + i / 4, sizeof w);
        const __m512 x = _mm512_permutevar_ps(value, _mm512_srlv_epi32(_mm512_set1_epi32((int32_t)w), shift));
        _mm512_storeu_ps(out + i, set ? x : _mm512_add_ps(_mm512_loadu_ps(out + i), x));
    }
    ESP_LEAVE_WIDE();
    return twobit_add_scalar(out + i, in + i / 4, t, set, n - i);
}
#endif
ESP_KERNEL_PICK(twobit_add)

ESP_INLINE uint64_t twobit_bad_body(const unsigned char *in, uint64_t bytes) {
    uint32_t bad = 0, w;
    for (uint64_t i = 0; i < bytes; i += sizeof w) {
        memcpy(&w, in + i, sizeof w);
        bad |= twobit_word_bad(w);
    }
    return bad;
}
ESP_KERNEL(twobit_bad, (const unsigned char *in, uint64_t bytes), (in, bytes))

/* ---- the codec --------------------------------------------------------------------------------------------- */
typedef struct twobit_self {
    dense_self dense;
    float threshold;
    double relative; /* 0 if parameter threshold= is used */
} twobit_self;

typedef struct twobit_job {
    int level;
    unsigned char *body;
    float threshold;
} twobit_job;

static void twobit_encode(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const twobit_job *j = (const twobit_job *)user;
    twobit_pack_for(j->level)(j->body + at / 4, phi, residual, j->threshold, n);
}

/* Returns the threshold. If it depends on the tensor (relative=), it is NaN or Inf if an element is. */
static float twobit_threshold(const twobit_self *s, const esp_codec_args *a) {
    if (s->relative <= 0) return s->threshold;
    norm_pass pass = {&s->dense, a, (float *)(a->scratch ? a->scratch->ptr : NULL), NULL, NULL, false};
    return twobit_relative(norm_of_phi(&pass), s->relative, a->tensor[0]->count);
}

static bool twobit_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    uint32_t last;
    if (!twobit_header_ok(h->aux) || twobit_bad_for(((const dense_self *)self)->level)(body, h->body_bytes)) return 0;
    memcpy(&last, body + h->body_bytes - sizeof last, sizeof last);
    return twobit_padding_ok(last, (uint32_t)(h->count % 16));
}
static void twobit_add(const void *self, const dense_block *b) {
    const float t = bits_float((uint32_t)b->header->aux) * b->scale;
    twobit_add_for(((const dense_self *)self)->level)(b->out, b->body + b->at / 4, t, b->set, b->n);
}
static const dense_format twobit_format = {"twobit", 1, 0, twobit_valid, twobit_add};

static const char twobit_params[] = "threshold=0.5,relative=0";

static esp_status twobit_open(const esp_host *h, const char *params, void **self) {
    double threshold = 0.5, relative = 0;
    esp_param p[] = {{"threshold", &threshold, TWOBIT_LEAST, 1e30, 0, 0, "a number > 0 (1e-30 to 1e30)"},
                     {"relative", &relative, 0, 1000, 0, 0, "0 (threshold counts) to 1000 (times the mean magnitude)"}};
    const esp_status st = dense_open(h, "twobit", params, p, 2, twobit_params, sizeof(twobit_self), self);
    if (st != ESP_OK) return st;
    twobit_self *s = (twobit_self *)*self;
    s->threshold = (float)threshold;
    s->relative = relative;
    return ESP_OK;
}

static esp_status twobit_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    const bool relative = ((const twobit_self *)self)->relative > 0;
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, twobit_body(like->count), relative ? norm_blocks(like->count) * sizeof(float) : 0, 0);
}

static esp_status twobit_compress(void *self, const esp_codec_args *a) {
    const twobit_self *s = (const twobit_self *)self;
    const uint64_t n = a->tensor[0]->count;
    twobit_job j = {s->dense.level, (unsigned char *)esp_payload_body(a->payload), twobit_threshold(s, a)};
    const bool bad = dense_bad(j.threshold);
    esp_payload_header h =
        esp_payload_header_of(esp_name_hash("twobit"), 1, 0, n, twobit_body(n), bad ? 0 : float_bits(j.threshold));
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || (!bad && dense_encode(&s->dense, a, &j, twobit_encode))) return st;
    return dense_send_nan(a->payload, &h, 0);
}

static esp_status twobit_decompress(void *self, const esp_codec_args *a) {
    return dense_decompress((const dense_self *)self, &twobit_format, a, twobit_body(a->tensor[0]->count), DENSE_BLOCK);
}

/* Returns the compression error for normally distributed elements of variance 1 and threshold t. */
static double twobit_error(double t) {
    const double density = exp(-t * t / 2) / sqrt(2 * ESP_MODEL_PI);
    return fmin(1.0, 1 - 4 * t * density + t * t * erfc(t / sqrt(2.0)));
}

static esp_status twobit_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                               esp_codec_model *out) {
    const twobit_self *t = (const twobit_self *)self;
    const bool relative = t->relative > 0;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 4, 0.25, 0, 0},
        .error = relative ? twobit_error(t->relative * sqrt(2 / ESP_MODEL_PI)) : -1, /* of no known size of gradients */
        .ns = {esp_model_stream(relative ? 24.3 : 16.3), esp_model_stream(8.3)},
        .launches = {2, 2},
        .bytes = {20.3, 8.5},
        .small = {{relative ? 0.0 : 4096.0, 1}},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec twobit_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "twobit",
    .summary = "-t, 0 or +t, with error feedback (MXNet's 2bit): 2 bits an element",
    .params = twobit_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(twobit_open, esp_codec_self_free, NULL, twobit),
    .family = "quantize",
    .paper = "MXNet, gradient compression 2bit; Strom, Interspeech 2015",
};

ESP_PLUGIN_CODEC(twobit, &twobit_codec)
