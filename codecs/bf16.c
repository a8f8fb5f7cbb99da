/* bf16.c: the upper half of each f32, rounded to nearest, ties to even.
 *
 *     decode(code(x)) = x (1 + d), |d| <= 2^-8, over f32's whole range. 16 bits an element.
 *
 * Body: count x bf16. REDUCIBLE in bf16. Without feedback, a value that would round up to Inf does so. With
 * feedback, it is sent as the largest finite value and the rest stays in the residual. A part with a NaN or Inf
 * sends a body of NaN. of=(SPEC): another codec compresses, and the f32 values in its body travel as bf16 (recode.h). */
#include "codecs/common/dense.h"
#include "codecs/common/half.h"
#include "codecs/common/recode.h"

#define BF16_ERROR 2.77e-6 /* 64 times that of f16: three bits less */

typedef struct bf16_self {
    dense_self dense;
    recode wrap; /* with of= */
    half_bf16_encode_fn encode;
    half_bf16_add_fn add;
} bf16_self;

typedef struct bf16_job {
    const bf16_self *self;
    unsigned char *body;
} bf16_job;

static void bf16_encode(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const bf16_job *j = (const bf16_job *)user;
    j->self->encode((half_u16 *)(j->body + 2 * at), phi, residual, n);
}

static void bf16_add(const void *self, const esp_payload_header *h, const unsigned char *body, float *out, uint64_t at,
                     uint64_t n, float scale, int set) {
    (void)h;
    ((const bf16_self *)self)->add(out, (const half_u16 *)(body + 2 * at), scale, set, n);
}
static const dense_format bf16_format = {"bf16", 1, 1, NULL, bf16_add};

static uint64_t bf16_exponent(uint32_t n_reduced) {
    (void)n_reduced;
    return 0; /* the range is that of f32 */
}
static void bf16_shorten(int simd, half_u16 *out, const float *in, float down, float up, uint64_t n) {
    (void)down, (void)up;
    half_bf16_encode_for(simd)(out, in, NULL, n);
}
static void bf16_restore(int simd, float *out, const half_u16 *in, float up, uint64_t n) {
    half_bf16_add_for(simd)(out, in, up, 1, n);
}
static const esp_round bf16_rounds[] = {{ESP_REDUCE_SUM, ESP_BF16, 0, 0}};
static const recode_format bf16_recode = {
    "bf16", 1, HALF_BF16_MAX, HALF_BF16_NAN, BF16_ERROR, bf16_exponent, bf16_shorten, bf16_restore, bf16_rounds};
static const char bf16_params[] = "of=(SPEC)";

static esp_status bf16_open(const esp_host *h, const char *params, void **self) {
    char own[WRAP_SPEC], of[WRAP_SPEC];
    esp_status st = wrap_params(h, "bf16", params, own, of);
    if (st == ESP_OK) st = esp_params_parse(h, "bf16", own, NULL, 0, bf16_params);
    if (st != ESP_OK) return st;
    bf16_self *s = (bf16_self *)esp_codec_self(h, sizeof *s);
    if (!s) return ESP_E_NOMEM;
    dense_open(&s->dense, h);
    s->encode = half_bf16_encode_for(s->dense.level);
    s->add = half_bf16_add_for(s->dense.level);
    if (*of) st = recode_open(&s->wrap, &bf16_recode, h, of);
    if (st != ESP_OK)
        esp_codec_self_free(h, s, sizeof *s);
    else
        *self = s;
    return st;
}
static const recode *bf16_wrap(const void *self) {
    const recode *r = &((const bf16_self *)self)->wrap;
    return r->inner.table ? r : NULL;
}
static void bf16_close(void *self) {
    bf16_self *s = (bf16_self *)self;
    wrap_close(&s->wrap.inner);
    esp_codec_self_free(s->dense.host, s, sizeof *s);
}

static esp_status bf16_traits(void *self, esp_traits *out) {
    if (bf16_wrap(self)) return recode_traits(bf16_wrap(self), out);
    out->caps &= ~(uint64_t)RECODE_CAPS;
    return ESP_OK;
}

static esp_status bf16_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round;
    if (bf16_wrap(self)) return recode_bound(bf16_wrap(self), like, n_reduced, out);
    return esp_bound_fill(out, 2 * like->count, 0, 0);
}

static esp_status bf16_compress(void *self, const esp_codec_args *a) {
    const bf16_self *s = (const bf16_self *)self;
    if (bf16_wrap(self)) return recode_compress(bf16_wrap(self), a);
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash("bf16"), 1, 0, n, 2 * n, 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    bf16_job j = {s, (unsigned char *)esp_payload_body(a->payload)};
    if (dense_encode(&s->dense, a, &j, bf16_encode)) return ESP_OK;
    half_fill(j.body, HALF_BF16_NAN, n);
    h.flags = ESP_PAYLOAD_NONFINITE;
    return esp_payload_begin(a->payload, &h);
}

static esp_status bf16_decompress(void *self, const esp_codec_args *a) {
    if (bf16_wrap(self)) return recode_decompress(bf16_wrap(self), a);
    return dense_decompress((const dense_self *)self, &bf16_format, a, 2 * a->tensor[0]->count);
}

static esp_status bf16_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    if (bf16_wrap(self)) return recode_model(bf16_wrap(self), like, n_reduced, d, out);
    const esp_facts f = {
        .reducible = 1,
        .size = {0, 0, 2, 0, 0},
        .error = BF16_ERROR,
        .begin_ns = {1000, 1000},
        .ns = {esp_model_stream(6), esp_model_stream(10)},
        .launches = {1, 1},
        .bytes = {6, 10},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec bf16_codec = {
    .struct_size = sizeof(esp_codec),
    .wire_version = 1,
    .caps =
        ESP_CODEC_REDUCIBLE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK | RECODE_CAPS,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = "bf16",
    .summary = "bfloat16, rounded to nearest: 16 bits an element, or 16 bits a value of another codec",
    .params = bf16_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .rounds = bf16_rounds,
    .open = bf16_open,
    .close = bf16_close,
    .bound = bf16_bound,
    .compress = bf16_compress,
    .decompress = bf16_decompress,
    .traits = bf16_traits,
    .model = bf16_model,
};

ESP_PLUGIN_CODEC(bf16, &bf16_codec)
