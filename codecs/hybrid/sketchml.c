/* sketchml.c: codec "sketchml", which divides the numbers of a tensor into 2^bits buckets of about equally many
 * elements, and sends each element's bucket and the buckets' means, with error feedback. Limits of the buckets are the
 * quantiles of a sample at regular distances. After Jiang, Fu, Yang, Cui, "SketchML: accelerating distributed machine
 * learning with data sketches", SIGMOD 2018, without its hashing for sparse gradients. */
#include "codecs/common/blocks.h"
#include "codecs/common/fixed.h"

enum { SKETCHML_SAMPLE = 4096, SKETCHML_MOST = 256 };

typedef struct sketchml_self {
    dense_self dense;
    uint32_t bits;
} sketchml_self;

static uint64_t sketchml_heads(const sketchml_self *s) { return sizeof(float) << s->bits; }
static uint64_t sketchml_body(const sketchml_self *s, uint64_t n) {
    return n ? sketchml_heads(s) + (n * s->bits + 7) / 8 : 0;
}

/* Returns how many of the ascending limit[1], ... x reaches. */
ESP_ELEMENT uint32_t sketchml_code(float x, const float *limit, uint32_t bits) {
    uint32_t code = 0;
    for (uint32_t step = 1u << (bits - 1); step; step >>= 1) code += x >= limit[code + step] ? step : 0;
    return code;
}
/* A bucket may be wider than the largest float. */
ESP_ELEMENT float sketchml_left(float x, float mean) {
    const float most = bits_float(QUANT_INF - 1), left = x - mean;
    return left > most ? most : left < -most ? -most : left;
}
/* Returns the unit of the sum of bucket b's numbers. `top` has the bits of the largest magnitude of all n numbers. */
ESP_ELEMENT int32_t sketchml_unit(const float *limit, uint32_t bits, uint32_t b, uint32_t top, uint64_t n) {
    if (b > 0 && b + 1 < 1u << bits) {
        const uint32_t low = float_bits(limit[b]) & 0x7FFFFFFFu, high = float_bits(limit[b + 1]) & 0x7FFFFFFFu;
        top = low > high ? low : high;
    }
    return fixed_unit(top, n);
}
ESP_INLINE uint64_t sketchml_codes_body(uint8_t *restrict codes, const float *restrict x, const float *restrict limit,
                                        uint32_t bits, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) codes[i] = (uint8_t)sketchml_code(x[i], limit, bits);
    return 0;
}
ESP_KERNEL(sketchml_codes,
           (uint8_t *restrict codes, const float *restrict x, const float *restrict limit, uint32_t bits, uint64_t n),
           (codes, x, limit, bits, n))
ESP_INLINE uint64_t sketchml_keep_body(float *restrict e, const float *restrict x, const uint8_t *restrict codes,
                                       const float *restrict mean, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) e[i] = sketchml_left(x[i], mean[codes[i]]);
    return 0;
}
ESP_KERNEL(sketchml_keep,
           (float *restrict e, const float *restrict x, const uint8_t *restrict codes, const float *restrict mean,
            uint64_t n),
           (e, x, codes, mean, n))
ESP_INLINE uint64_t sketchml_decode_body(float *restrict out, const uint8_t *restrict codes, const float *restrict mean,
                                         float scale, int set, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float v = scale * mean[codes[i]];
        out[i] = set ? v : out[i] + v;
    }
    return 0;
}
ESP_KERNEL(sketchml_decode,
           (float *restrict out, const uint8_t *restrict codes, const float *restrict mean, float scale, int set,
            uint64_t n),
           (out, codes, mean, scale, set, n))

static int sketchml_order(const void *a, const void *b) {
    float x, y;
    memcpy(&x, a, sizeof x), memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}
static void sketchml_limits(const sketchml_self *s, const esp_codec_args *a, float *limit) {
    const uint64_t n = a->tensor[0]->count, size = n < SKETCHML_SAMPLE ? n : SKETCHML_SAMPLE;
    const float *g = dense_in(a), *e = esp_residual_of(a, 0);
    const bool plain = a->beta == 1 && a->gamma == 1;
    float sample[SKETCHML_SAMPLE];
    for (uint64_t i = 0; i < size; i++) {
        const uint64_t at = i * (n / size);
        sample[i] = e ? dense_sum_of(g[at], e[at], a->beta, a->gamma, plain) : g[at];
    }
    qsort(sample, size, sizeof *sample, sketchml_order);
    for (uint64_t j = 0; j < 1u << s->bits; j++) limit[j] = sample[j * size >> s->bits];
}

typedef struct sketchml_job {
    const sketchml_self *self;
    const esp_codec_args *args;
    unsigned char *codes;
    uint32_t top;
    float limit[SKETCHML_MOST], mean[SKETCHML_MOST];
    int32_t unit[SKETCHML_MOST];
    int64_t sum[SKETCHML_MOST];
    uint64_t held[SKETCHML_MOST];
} sketchml_job;

static void sketchml_top(void *arg, uint64_t begin, uint64_t end) {
    sketchml_job *j = (sketchml_job *)arg;
    const esp_codec_args *a = j->args;
    const float *e = esp_residual_of(a, 0);
    esp_codec_raise(&j->top, (uint32_t)quant_top_for(j->self->dense.level)(dense_in(a) + begin, e ? e + begin : NULL,
                                                                           a->beta, a->gamma, end - begin));
}
static void sketchml_piece(void *arg, uint64_t begin, uint64_t end) {
    sketchml_job *j = (sketchml_job *)arg;
    const sketchml_self *s = j->self;
    float tmp[DENSE_BLOCK];
    uint8_t codes[DENSE_BLOCK];
    int64_t sum[SKETCHML_MOST] = {0};
    uint64_t held[SKETCHML_MOST] = {0};
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t len = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        const float *phi = dense_block_phi(&s->dense, j->args, at, len, tmp);
        sketchml_codes_for(s->dense.level)(codes, phi, j->limit, s->bits, len);
        for (uint64_t i = 0; i < len; i++) sum[codes[i]] += fixed_of(phi[i], j->unit[codes[i]]), held[codes[i]]++;
        blocks_pack_for(s->dense.level)(j->codes + at * s->bits / 8, codes, s->bits, len);
    }
    for (uint32_t b = 0; b < 1u << s->bits; b++) {
        __atomic_fetch_add(&j->sum[b], sum[b], __ATOMIC_RELAXED);
        __atomic_fetch_add(&j->held[b], held[b], __ATOMIC_RELAXED);
    }
}

static void sketchml_residual(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const sketchml_job *j = (const sketchml_job *)user;
    uint8_t codes[DENSE_BLOCK];
    blocks_unpack_for(j->self->dense.level)(codes, j->codes + at * j->self->bits / 8, j->self->bits, n);
    sketchml_keep_for(j->self->dense.level)(residual, phi, codes, j->mean, n);
}

static esp_status sketchml_compress(void *self, const esp_codec_args *a) {
    const sketchml_self *s = (const sketchml_self *)self;
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash("sketchml"), 1, 0, n, sketchml_body(s, n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || !n) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    sketchml_job j = {.self = s, .args = a, .codes = body + sketchml_heads(s)};
    dense_run(&s->dense, n, sketchml_top, &j);
    if (j.top >= QUANT_INF) return dense_send_nan(a->payload, &h, 0);
    sketchml_limits(s, a, j.limit);
    for (uint32_t b = 0; b < 1u << s->bits; b++) j.unit[b] = sketchml_unit(j.limit, s->bits, b, j.top, n);
    dense_run(&s->dense, n, sketchml_piece, &j);
    for (uint32_t b = 0; b < 1u << s->bits; b++) j.mean[b] = fixed_mean(j.sum[b], j.held[b], j.unit[b]);
    memcpy(body, j.mean, sketchml_heads(s));
    if (a->residual) (void)dense_blocks(&s->dense, a, &j, DENSE_PIECE, sketchml_residual);
    return ESP_OK;
}

static bool sketchml_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    const sketchml_self *s = (const sketchml_self *)self;
    const uint32_t used = (uint32_t)(h->count * s->bits % 8);
    float mean[SKETCHML_MOST];
    memcpy(mean, body, sketchml_heads(s));
    return !h->aux && !dense_check_for(s->dense.level)(mean, 1u << s->bits) &&
           (!used || !(body[h->body_bytes - 1] >> used));
}
static void sketchml_add(const void *self, const dense_block *b) {
    const sketchml_self *s = (const sketchml_self *)self;
    float mean[SKETCHML_MOST];
    uint8_t codes[DENSE_BLOCK];
    memcpy(mean, b->body, sketchml_heads(s));
    blocks_unpack_for(s->dense.level)(codes, b->body + sketchml_heads(s) + b->at * s->bits / 8, s->bits, b->n);
    sketchml_decode_for(s->dense.level)(b->out, codes, mean, b->scale, b->set, b->n);
}
static const dense_format sketchml_format = {"sketchml", 1, 0, sketchml_valid, sketchml_add};

static esp_status sketchml_decompress(void *self, const esp_codec_args *a) {
    const sketchml_self *s = (const sketchml_self *)self;
    return dense_decompress(&s->dense, &sketchml_format, a, sketchml_body(s, a->tensor[0]->count), DENSE_BLOCK);
}

static const char sketchml_params[] = "bits=6";
static esp_status sketchml_open(const esp_host *h, const char *params, void **self) {
    double bits = 6;
    esp_param p[] = {{"bits", &bits, 1, 8, 0, ESP_PARAM_WHOLE, "a whole number from 1 to 8"}};
    const esp_status st = dense_open(h, "sketchml", params, p, 1, sketchml_params, sizeof(sketchml_self), self);
    if (st == ESP_OK) ((sketchml_self *)*self)->bits = (uint32_t)bits;
    return st;
}
static esp_status sketchml_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                 esp_bound *out) {
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, sketchml_body((const sketchml_self *)self, like->count), 0, 0);
}
/* Each of n buckets has 1/n of the elements. If these are normally distributed, the bucket's mean is n times the
 * difference of the densities at its limits. Limits vary, since there are only k numbers of the sample in a bucket;
 * with gamma-distributed widths w the error, which grows as w^3, is larger by (k + 1)(k + 2)/k^2. With more than 64
 * buckets that is too inexact, and the error counts as unknown. */
static esp_status sketchml_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                 esp_codec_model *out) {
    const sketchml_self *s = (const sketchml_self *)self;
    const double n = (double)(1u << s->bits), k = (double)SKETCHML_SAMPLE / n;
    double sent = 0, before = 0;
    for (uint32_t i = 1; i <= 1u << (s->bits - 1); i++) {
        const double t = esp_model_quantile(2 * i / n), density = exp(-t * t / 2) / sqrt(2 * ESP_MODEL_PI);
        sent += 2 * n * (density - before) * (density - before);
        before = density;
    }
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {(double)sketchml_heads(s), 0, s->bits / 8.0, 0, 0},
        .error = s->bits > 6 ? -1 : (1 - sent) * (k + 1) * (k + 2) / (k * k),
        .setup_ns = 4e5,
        .ns = {22, 1.1},
        .launches = {3, 2},
        .bytes = {28 + s->bits / 8.0, 4 + s->bits / 8.0},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec sketchml_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "sketchml",
    .summary = "buckets of equally many elements, and their means (SketchML): 1 to 8 bits an element",
    .params = sketchml_params,
    .default_option = BLOCKS_OPTION,
    .n_rounds = 1,
    ESP_CODEC_CALLS(sketchml_open, esp_codec_self_free, NULL, sketchml),
    .family = "hybrid",
    .paper = "Jiang et al., SIGMOD 2018",
};

ESP_PLUGIN_CODEC(sketchml, &sketchml_codec)
