/* fp16.c: IEEE half precision, rounded to nearest, ties to even.
 *
 *     decode(code(x)) = x (1 + d), |d| <= 2^-11, between 2^-14 and 65504; below, steps of 2^-24. 16 bits an element.
 *
 * Body: count x f16. REDUCIBLE in f16. Where a collective will sum n bodies, values are sent times 2^-a with
 * a = ceil(log2 n), so that the sum of values within f16's range cannot overflow. header.aux is a; decoding multiplies
 * by 2^a.
 * A value beyond the range becomes Inf without feedback; with feedback 65504 is sent and the rest stays in the
 * residual. A part with a NaN or Inf sends a body of NaN.
 * of=(SPEC), for example of=(topk:ratio=0.01): another codec compresses, and the f32 values in its body travel as f16 (recode.h). */
#include "codecs/common/dense.h"
#include "codecs/common/half.h"
#include "codecs/common/recode.h"

enum { FP16_AUX_MAX = 31 };
#define FP16_ERROR 4.33e-8 /* measured: about 2^-22 / 5.5 */

typedef struct fp16_self {
    dense_self dense;
    recode wrap; /* with of= */
    half_f16_encode_fn encode;
    half_f16_add_fn add;
} fp16_self;

typedef struct fp16_job {
    const fp16_self *self;
    unsigned char *body;
    float down, up;
} fp16_job;

static uint64_t fp16_exponent(uint32_t n_reduced) {
    uint64_t a = 0;
    while (a < FP16_AUX_MAX && (uint64_t)1 << a < n_reduced) a++;
    return a;
}

static void fp16_encode(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    const fp16_job *j = (const fp16_job *)user;
    j->self->encode((half_u16 *)(j->body + 2 * at), phi, residual, j->down, j->up, n);
}

static int fp16_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    (void)self, (void)body;
    return h->aux <= FP16_AUX_MAX;
}
static void fp16_add(const void *self, const esp_payload_header *h, const unsigned char *body, float *out, uint64_t at,
                     uint64_t n, float scale, int set) {
    const float up = (float)((uint64_t)1 << h->aux) * scale;
    ((const fp16_self *)self)->add(out, (const half_u16 *)(body + 2 * at), up, set, n);
}
static const dense_format fp16_format = {"fp16", 1, 1, fp16_valid, fp16_add};

static void fp16_shorten(int simd, half_u16 *out, const float *in, float down, float up, uint64_t n) {
    half_f16_encode_for(simd)(out, in, NULL, down, up, n);
}
static void fp16_restore(int simd, float *out, const half_u16 *in, float up, uint64_t n) {
    half_f16_add_for(simd)(out, in, up, 1, n);
}
static const esp_round fp16_rounds[] = {{ESP_REDUCE_SUM, ESP_F16, 0, 0}};
static const recode_format fp16_recode = {
    "fp16", 1, HALF_F16_MAX, HALF_F16_NAN, FP16_ERROR, fp16_exponent, fp16_shorten, fp16_restore, fp16_rounds};
static const char fp16_params[] = "of=(SPEC)";

static esp_status fp16_open(const esp_host *h, const char *params, void **self) {
    char own[WRAP_SPEC], of[WRAP_SPEC];
    esp_status st = wrap_params(h, "fp16", params, own, of);
    if (st == ESP_OK) st = esp_params_parse(h, "fp16", own, NULL, 0, fp16_params);
    if (st != ESP_OK) return st;
    fp16_self *s = (fp16_self *)esp_codec_self(h, sizeof *s);
    if (!s) return ESP_E_NOMEM;
    dense_open(&s->dense, h);
    s->encode = half_f16_encode_for(s->dense.level);
    s->add = half_f16_add_for(s->dense.level);
    if (*of) st = recode_open(&s->wrap, &fp16_recode, h, of);
    if (st != ESP_OK)
        esp_codec_self_free(h, s, sizeof *s);
    else
        *self = s;
    return st;
}
static const recode *fp16_wrap(const void *self) {
    const recode *r = &((const fp16_self *)self)->wrap;
    return r->inner.table ? r : NULL;
}
static void fp16_close(void *self) {
    fp16_self *s = (fp16_self *)self;
    wrap_close(&s->wrap.inner);
    esp_codec_self_free(s->dense.host, s, sizeof *s);
}

static esp_status fp16_traits(void *self, esp_traits *out) {
    if (fp16_wrap(self)) return recode_traits(fp16_wrap(self), out);
    out->caps &= ~(uint64_t)RECODE_CAPS;
    return ESP_OK;
}

static esp_status fp16_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round;
    if (fp16_wrap(self)) return recode_bound(fp16_wrap(self), like, n_reduced, out);
    return esp_bound_fill(out, 2 * like->count, 0, 0);
}

static esp_status fp16_compress(void *self, const esp_codec_args *a) {
    const fp16_self *s = (const fp16_self *)self;
    if (fp16_wrap(self)) return recode_compress(fp16_wrap(self), a);
    const uint64_t n = a->tensor[0]->count, exponent = fp16_exponent(a->n_reduced);
    esp_payload_header h = esp_payload_header_of(esp_name_hash("fp16"), 1, 0, n, 2 * n, exponent);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    const float up = (float)((uint64_t)1 << exponent);
    fp16_job j = {s, (unsigned char *)esp_payload_body(a->payload), 1 / up, up};
    if (dense_encode(&s->dense, a, &j, fp16_encode)) return ESP_OK;
    half_fill(j.body, HALF_F16_NAN, n);
    h.flags = ESP_PAYLOAD_NONFINITE;
    return esp_payload_begin(a->payload, &h);
}

static esp_status fp16_decompress(void *self, const esp_codec_args *a) {
    if (fp16_wrap(self)) return recode_decompress(fp16_wrap(self), a);
    return dense_decompress((const dense_self *)self, &fp16_format, a, 2 * a->tensor[0]->count);
}

static esp_status fp16_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    if (fp16_wrap(self)) return recode_model(fp16_wrap(self), like, n_reduced, d, out);
    const esp_facts f = {
        .reducible = 1,
        .size = {0, 0, 2, 0, 0},
        .error = FP16_ERROR,
        .begin_ns = {1000, 1000},
        .ns = {esp_model_stream(6), esp_model_stream(10)},
        .launches = {1, 1},
        .bytes = {6, 10},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec fp16_codec = {
    .struct_size = sizeof(esp_codec),
    .wire_version = 1,
    .caps =
        ESP_CODEC_REDUCIBLE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK | RECODE_CAPS,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = "fp16",
    .summary = "half precision, rounded to nearest: 16 bits an element, or 16 bits a value of another codec",
    .params = fp16_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .rounds = fp16_rounds,
    .open = fp16_open,
    .close = fp16_close,
    .bound = fp16_bound,
    .compress = fp16_compress,
    .decompress = fp16_decompress,
    .traits = fp16_traits,
    .model = fp16_model,
};

ESP_PLUGIN_CODEC(fp16, &fp16_codec)
