/* half.c: codecs "fp16" and "bf16", which round each number to 16 bits, so that collectives can add payloads. If m
 * payloads will be added, each a sum over k ranks, fp16 sends numbers times 2^-a with a = ceil(log2(m k)), so that
 * nothing overflows whose mean fits. Without error feedback, a number beyond the range becomes Inf; with it, the
 * largest finite number is sent and the residual keeps the difference. With of=(SPEC), another codec compresses, and
 * the f32 numbers in its payload are rounded (recode.h). docs/design/wire.md describes the payload. */
#include "codecs/common/dense.h"
#include "codecs/common/half.h"
#include "codecs/common/recode.h"

typedef struct half_self {
    dense_self dense; /* must be the first member */
    const recode_format *format;
    recode wrap; /* the codec that of=(SPEC) names */
} half_self;

static const esp_round fp16_rounds[] = {{ESP_REDUCE_SUM, ESP_F16, 0, 0}};
static const esp_round bf16_rounds[] = {{ESP_REDUCE_SUM, ESP_BF16, 0, 0}};
/* 4.33e-8 and 2.77e-6: mean of (rounding error / x)^2, as measured. bf16 has 3 bits less, so its value is 64 times
 * fp16's. */
static const recode_format fp16_format = {"fp16", 1, 1, HALF_F16_MAX, HALF_F16_NAN, 31, 4.33e-8, fp16_rounds};
static const recode_format bf16_format = {"bf16", 1, 0, HALF_BF16_MAX, HALF_BF16_NAN, 0, 2.77e-6, bf16_rounds};
static const char half_params[] = "of=(SPEC)";

/* ---- open -------------------------------------------------------------------------------------------------------- */
static esp_status half_open(const recode_format *f, const esp_host *h, const char *params, void **self) {
    char own[ESP_PARAMS_MAX], of[ESP_PARAMS_MAX];
    esp_status st = esp_params_take(h, f->name, params, "of", own, of);
    if (st == ESP_OK) st = dense_open(h, f->name, own, NULL, 0, half_params, sizeof(half_self), self);
    if (st != ESP_OK) return st;
    half_self *s = (half_self *)*self;
    s->format = f;
    if (*of) st = recode_open(&s->wrap, f, h, of);
    if (st != ESP_OK) esp_codec_self_free(s);
    return st;
}
static esp_status fp16_open(const esp_host *h, const char *params, void **self) {
    return half_open(&fp16_format, h, params, self);
}
static esp_status bf16_open(const esp_host *h, const char *params, void **self) {
    return half_open(&bf16_format, h, params, self);
}
static const recode *half_wrap(const void *self) {
    const recode *r = &((const half_self *)self)->wrap;
    return r->inner.table ? r : NULL;
}
static void half_close(void *self) {
    wrap_close(&((half_self *)self)->wrap.inner);
    esp_codec_self_free(self);
}

static esp_status half_traits(void *self, esp_traits *out) {
    if (half_wrap(self)) return recode_traits(half_wrap(self), out);
    out->caps &= ~(uint64_t)RECODE_CAPS;
    return ESP_OK;
}

static esp_status half_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round;
    if (half_wrap(self)) return recode_bound(half_wrap(self), like, n_reduced, out);
    return esp_bound_fill(out, 2 * like->count, 0, 0);
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
typedef struct half_job {
    const half_self *self;
    unsigned char *body;
    float down, most;
} half_job;

static void half_encode_block(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const half_job *j = (const half_job *)user;
    half_encode_for(j->self->format->is_f16, j->self->dense.level)((half_u16 *)(j->body + 2 * at), phi, residual,
                                                                   j->down, j->most, n);
}

static esp_status half_compress(void *self, const esp_codec_args *a) {
    const half_self *s = (const half_self *)self;
    if (half_wrap(self)) return recode_compress(half_wrap(self), a);
    const uint64_t n = a->tensor[0]->count, exponent = recode_exponent(s->format, a, a->n_reduced);
    esp_payload_header h = esp_payload_header_of(esp_name_hash(s->format->name), 1, 0, n, 2 * n, exponent);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    half_job j = {s, (unsigned char *)esp_payload_body(a->payload), 1 / (float)((uint64_t)1 << exponent),
                  recode_most(s->format, a)};
    if (dense_encode(&s->dense, a, &j, half_encode_block)) return ESP_OK;
    half_fill(j.body, s->format->nan, n);
    h.flags = ESP_PAYLOAD_NONFINITE;
    return esp_payload_begin(a->payload, &h);
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
static bool half_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    (void)body;
    return h->aux <= ((const half_self *)self)->format->most_exponent;
}
static void half_add(const void *self, const dense_block *b) {
    const half_self *s = (const half_self *)self;
    const float up = (float)((uint64_t)1 << b->header->aux) * b->scale;
    half_add_for(s->format->is_f16, s->dense.level)(b->out, (const half_u16 *)(b->body + 2 * b->at), up, b->set, b->n);
}

static esp_status half_decompress(void *self, const esp_codec_args *a) {
    const half_self *s = (const half_self *)self;
    if (half_wrap(self)) return recode_decompress(half_wrap(self), a);
    const dense_format f = {s->format->name, 1, 1, half_valid, half_add};
    return dense_decompress(&s->dense, &f, a, 2 * a->tensor[0]->count, DENSE_BLOCK);
}

static esp_status half_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    if (half_wrap(self)) return recode_model(half_wrap(self), like, n_reduced, d, out);
    const esp_facts f = {
        .reducible = 1,
        .size = {0, 0, 2, 0, 0},
        .error = ((const half_self *)self)->format->error,
        .ns = {esp_model_stream(6), esp_model_stream(10)},
        .launches = {1, 1},
        .bytes = {6, 10},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

#define HALF_CODEC(id, text)                                                                                           \
    static const esp_codec id##_codec = {                                                                              \
        ESP_CODEC_HEAD(1, ESP_CODEC_REDUCIBLE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL |                   \
                              ESP_CODEC_NO_FEEDBACK | RECODE_CAPS),                                                    \
        .name = #id,                                                                                                   \
        .summary = text ": 16 bits an element, or 16 bits a value of another codec",                                   \
        .params = half_params,                                                                                         \
        .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",          \
        .n_rounds = 1,                                                                                                 \
        .rounds = id##_rounds,                                                                                         \
        ESP_CODEC_CALLS(id##_open, half_close, half_traits, half),                                                     \
        .family = "quantize",                                                                                          \
    }
HALF_CODEC(fp16, "half precision, rounded to nearest");
HALF_CODEC(bf16, "bfloat16, rounded to nearest");

ESP_PLUGIN_CODEC(half, &fp16_codec, &bf16_codec)
