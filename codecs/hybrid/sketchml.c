/* sketchml.c: codec "sketchml", which divides the numbers of a tensor into 2^bits buckets of about equally many
 * elements, and sends each element's bucket and the buckets' means, with error feedback. Limits of the buckets are the
 * quantiles of a sample at regular distances. After Jiang, Fu, Yang, Cui, "SketchML: accelerating distributed machine
 * learning with data sketches", SIGMOD 2018, without its hashing for sparse gradients. One thread adds up the means, so
 * that the order of additions is fixed. */
#include "codecs/common/blocks.h"

enum { SKETCHML_SAMPLE = 4096, SKETCHML_MOST = 256 };

typedef struct sketchml_self {
    dense_self dense;
    uint32_t bits;
} sketchml_self;

static uint64_t sketchml_heads(const sketchml_self *s) { return sizeof(float) << s->bits; }
static uint64_t sketchml_body(const sketchml_self *s, uint64_t n) {
    return n ? sketchml_heads(s) + (n * s->bits + 7) / 8 : 0;
}

/* Writes how many of the ascending limit[1], ... each number reaches. */
ESP_INLINE uint64_t sketchml_codes_body(uint8_t *restrict codes, const float *restrict x, const float *restrict limit,
                                        uint32_t bits, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        uint32_t code = 0;
        for (uint32_t step = 1u << (bits - 1); step; step >>= 1) code += x[i] >= limit[code + step] ? step : 0;
        codes[i] = (uint8_t)code;
    }
    return 0;
}
ESP_KERNEL(sketchml_codes,
           (uint8_t *restrict codes, const float *restrict x, const float *restrict limit, uint32_t bits, uint64_t n),
           (codes, x, limit, bits, n))
/* A bucket may be wider than the largest float. */
ESP_INLINE uint64_t sketchml_keep_body(float *restrict e, const float *restrict x, const uint8_t *restrict codes,
                                       const float *restrict mean, uint64_t n) {
    const float most = bits_float(QUANT_INF - 1);
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float left = x[i] - mean[codes[i]];
        e[i] = left > most ? most : left < -most ? -most : left;
    }
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
    const unsigned char *codes;
    float mean[SKETCHML_MOST];
} sketchml_job;

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
    if (!dense_finite(&s->dense, a)) return dense_send_nan(a->payload, &h, 0);
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload), *to = body + sketchml_heads(s);
    sketchml_job j = {s, to, {0}};
    float limit[SKETCHML_MOST], tmp[DENSE_BLOCK];
    double sum[SKETCHML_MOST] = {0};
    uint64_t held[SKETCHML_MOST] = {0};
    uint8_t codes[DENSE_BLOCK];
    sketchml_limits(s, a, limit);
    for (uint64_t at = 0; at < n; at += DENSE_BLOCK) {
        const uint64_t len = n - at < DENSE_BLOCK ? n - at : DENSE_BLOCK;
        const float *phi = dense_block_phi(&s->dense, a, at, len, tmp);
        sketchml_codes_for(s->dense.level)(codes, phi, limit, s->bits, len);
        for (uint64_t i = 0; i < len; i++) sum[codes[i]] += (double)phi[i], held[codes[i]]++;
        blocks_pack_for(s->dense.level)(to + at * s->bits / 8, codes, s->bits, len);
    }
    for (uint32_t b = 0; b < 1u << s->bits; b++) j.mean[b] = held[b] ? (float)(sum[b] / (double)held[b]) : 0.0f;
    memcpy(body, j.mean, sketchml_heads(s));
    if (a->residual) (void)dense_blocks(&s->dense, a, &j, sketchml_residual);
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
    const double n = (double)(1u << s->bits), k = SKETCHML_SAMPLE / n;
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
        .ns = {10, 1},
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
