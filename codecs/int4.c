/* int4.c: whole levels from -7 to 7 of a unit for each block of elements, two in a byte. Rounded to nearest; no random numbers.
 *
 *     unit = max |phi| of the block / 7;   level = phi / unit, rounded;   decoded: unit * level;   e = phi - unit * level, exactly
 *     (quant.h)
 *
 * Symmetric, so that 0 is exact and the largest element of either sign too. ZeRO++ (qgZ) takes 16 levels from -8 to 7 with unit =
 * max |phi| / 8, and so cuts +max |phi| to 7/8 of it; CGX has 16 levels from the smallest to the largest element, and 0 is none of them.
 * block=N: others take 32 (QuickReduce, with half units: 4.5 bits an element), 128 (QSGD's buckets at 4 bits: 4.25), 1024 (CGX: 4.06).
 * Smaller blocks have smaller units: of normal numbers 0.8% of |x|^2 is lost with 32, 1.2% with 128, 1.7% with 1024. 128 is the default,
 * since halving it costs a quarter bit and gains little.
 *
 * Wire: f32 unit[ceil(d / N)]; then ceil(d / 2) bytes, element 2 j in the low half of byte j and 2 j + 1 in the high half, as two's
 * complement; the half behind the last element is 0. aux 0. A part without elements: header alone. Input with NaN or Inf: header flag,
 * no body; the residual stays. */
#include "codecs/common/quant.h"

enum { INT4_WIRE = 1, INT4_BLOCK = 128 };
#define INT4_MOST 7.0f

/* ---- two in a byte ---------------------------------------------------------------------------------------------------- */
ESP_INLINE uint64_t int4_pack_body(unsigned char *restrict out, const int8_t *restrict in, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n / 2; i++) {
        uint16_t pair; /* the second in its high byte */
        memcpy(&pair, in + 2 * i, sizeof pair);
        out[i] = (unsigned char)((pair & 0x0Fu) | (pair >> 4 & 0xF0u));
    }
    if (n % 2) out[n / 2] = (unsigned char)((uint32_t)in[n - 1] & 0x0Fu);
    return 0;
}
ESP_KERNEL(int4_pack, (unsigned char *restrict out, const int8_t *restrict in, uint64_t n), (out, in, n))

/* The level in the low half of a byte, and in the high one where `high` is 1. */
ESP_ELEMENT int32_t int4_level(uint32_t byte, uint32_t high) {
    const int32_t half = (int32_t)(byte >> (high * 4) & 0x0Fu);
    return (half ^ 8) - 8;
}
/* out := (set ? 0 : out) + unit * level */
ESP_INLINE uint64_t int4_add_body(float *restrict out, const unsigned char *restrict in, float unit, int set,
                                  uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        const float x = unit * (float)int4_level(in[i / 2], (uint32_t)(i % 2));
        out[i] = set ? x : out[i] + x;
    }
    return 0;
}
ESP_KERNEL_OPT static uint64_t int4_add_scalar(float *restrict out, const unsigned char *restrict in, float unit,
                                               int set, uint64_t n) {
    return int4_add_body(out, in, unit, set, n);
}
#ifdef ESP_SIMD_X86
/* The 16 levels of 8 bytes, one in a byte, from 0 to 15. */
ESP_TARGET_AVX2 static inline __m128i int4_sixteen(const unsigned char *in) {
    const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)in), low = _mm_set1_epi8(0x0F);
    return _mm_unpacklo_epi8(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 4), low));
}
ESP_TARGET_AVX2 static uint64_t int4_add_avx2(float *restrict out, const unsigned char *restrict in, float unit,
                                              int set, uint64_t n) {
    const __m128i value = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m256 u = _mm256_set1_ps(unit);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i level = _mm_shuffle_epi8(value, int4_sixteen(in + i / 2));
        __m256 x = _mm256_mul_ps(u, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(level)));
        __m256 y = _mm256_mul_ps(u, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(level, 8))));
        if (!set) {
            x = _mm256_add_ps(_mm256_loadu_ps(out + i), x);
            y = _mm256_add_ps(_mm256_loadu_ps(out + i + 8), y);
        }
        _mm256_storeu_ps(out + i, x);
        _mm256_storeu_ps(out + i + 8, y);
    }
    return int4_add_scalar(out + i, in + i / 2, unit, set, n - i);
}
ESP_TARGET_AVX512 static uint64_t int4_add_avx512(float *restrict out, const unsigned char *restrict in, float unit,
                                                  int set, uint64_t n) {
    const __m512 value =
        _mm512_mul_ps(_mm512_set1_ps(unit), _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 x = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(int4_sixteen(in + i / 2)), value);
        _mm512_storeu_ps(out + i, set ? x : _mm512_add_ps(_mm512_loadu_ps(out + i), x));
    }
    return int4_add_scalar(out + i, in + i / 2, unit, set, n - i);
}
#endif
ESP_KERNEL_PICK(int4_add, (float *restrict out, const unsigned char *restrict in, float unit, int set, uint64_t n))

/* ---- the codec ---------------------------------------------------------------------------------------------------------- */
typedef struct int4_self {
    dense_self dense; /* first */
    uint64_t block;
    quant_top_fn top;
    quant_encode_fn encode;
    int4_pack_fn pack;
    int4_add_fn add;
} int4_self;

static esp_status int4_open(const esp_host *h, const char *params, void **self) {
    double block = INT4_BLOCK;
    esp_param p = {"block", &block, 1, 1e9, 0, 1, "a power of two from 32 to 1024"};
    esp_status st = esp_params_parse(h, "int4", params, &p, 1, "block=128");
    if (st == ESP_OK) st = quant_block_check(h, "int4", (uint64_t)block);
    if (st != ESP_OK) return st;
    int4_self *s = (int4_self *)esp_codec_self(h, sizeof *s);
    if (!s) return ESP_E_NOMEM;
    dense_open(&s->dense, h);
    s->block = (uint64_t)block;
    s->top = quant_top_for(s->dense.level);
    s->encode = quant_encode_for(s->dense.level);
    s->pack = int4_pack_for(s->dense.level);
    s->add = int4_add_for(s->dense.level);
    *self = s;
    return ESP_OK;
}
static void int4_close(void *self) { esp_codec_self_free(((int4_self *)self)->dense.host, self, sizeof(int4_self)); }

static uint64_t int4_body(const int4_self *s, uint64_t count) {
    return quant_units(count, s->block) * sizeof(float) + (count + 1) / 2;
}

static esp_status int4_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, int4_body((const int4_self *)self, like->count), 0, 0);
}

static int int4_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    const uint64_t units = quant_units(h->count, ((const int4_self *)self)->block);
    if (h->aux != 0 || !quant_units_ok(body, units)) return 0;
    return h->count % 2 == 0 || body[units * sizeof(float) + h->count / 2] <= 0x0F;
}
static void int4_add_blocks(const void *self, const esp_payload_header *h, const unsigned char *body, float *out,
                            uint64_t at, uint64_t n, float scale, int set) {
    const int4_self *s = (const int4_self *)self;
    const dense_f32 *units = (const dense_f32 *)(const void *)body + at / s->block;
    const unsigned char *halves = body + quant_units(h->count, s->block) * sizeof(float) + at / 2;
    for (uint64_t i = 0; i < n; i += s->block)
        s->add(out + i, halves + i / 2, units[i / s->block] * scale, set, n - i < s->block ? n - i : s->block);
}
static const dense_format int4_format = {"int4", INT4_WIRE, 0, int4_valid, int4_add_blocks};

static esp_status int4_compress(void *self, const esp_codec_args *a) {
    const int4_self *s = (const int4_self *)self;
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash("int4"), INT4_WIRE, 0, n, int4_body(s, n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    quant_job j = {.self = &s->dense,
                   .args = a,
                   .top = s->top,
                   .encode = s->encode,
                   .block = s->block,
                   .most = INT4_MOST,
                   .units = (dense_f32 *)(void *)body,
                   .halves = body + quant_units(n, s->block) * sizeof(float),
                   .pack = s->pack};
    if (quant_blocks(&j)) return ESP_OK;
    h.flags = ESP_PAYLOAD_NONFINITE;
    h.body_bytes = 0;
    return esp_payload_begin(a->payload, &h);
}

static esp_status int4_decompress(void *self, const esp_codec_args *a) {
    const int4_self *s = (const int4_self *)self;
    return dense_decompress(&s->dense, &int4_format, a, int4_body(s, a->tensor[0]->count));
}

static esp_status int4_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    const double block = (double)((const int4_self *)self)->block;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 0, 0.5 + 4 / block, 0, 0},
        .error = quant_error(block, (double)INT4_MOST),
        .begin_ns = {1000, 1000},
        .ns = {esp_model_stream(20.5 + 0.5), esp_model_stream(8.5)},
        .launches = {2, 2},
        .bytes = {20.5, 8.5},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec int4_codec = {
    .struct_size = sizeof(esp_codec),
    .wire_version = INT4_WIRE,
    .caps = ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = "int4",
    .summary = "levels from -7 to 7 with a unit for each block, two in a byte",
    .params = "block=128",
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .open = int4_open,
    .close = int4_close,
    .bound = int4_bound,
    .compress = int4_compress,
    .decompress = int4_decompress,
    .model = int4_model,
};

ESP_PLUGIN_CODEC(int4, &int4_codec)
