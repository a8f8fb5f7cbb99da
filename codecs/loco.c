/* loco.c: codec "loco", whose error feedback is a moving average of another codec's errors, which vary less than the
 * last error alone: loco:of=(int4). After Xie, Lin, Toh, Zhou, "LoCo: low-bit communication adaptor for large-scale
 * model training", TPAMI 2025.
 *     phi = e + g;   e = beta e + (1 - beta) (phi - decoded phi)                    (g gradient, e residual)
 * Steps reset - 1, 2 reset - 1, ... set e to 0, so that errors of long ago are forgotten. Defaults are those of
 * DeepSpeed. Only a rank's own gradient is treated so; a later compression uses its residual like any other codec.
 * Payloads are those of the inner codec. */
#include "codecs/common/dense.h"
#include "codecs/common/wrap.h"

enum { LOCO_WIRE = 1 };

typedef struct loco_self {
    dense_self dense;
    wrap_inner inner;
    float beta;
    uint64_t reset;
} loco_self;

static const char loco_name[] = "loco", loco_params[] = "beta=0.8,reset=1024,of=(SPEC)";

ESP_INLINE uint64_t loco_mix_body(float *restrict e, const float *restrict left, float mix, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) e[i] += mix * (left[i] - e[i]);
    return 0;
}
ESP_KERNEL(loco_mix, (float *restrict e, const float *restrict left, float mix, uint64_t n), (e, left, mix, n))

static esp_status loco_open(const esp_host *h, const char *params, void **self) {
    char own[ESP_PARAMS_MAX], of[ESP_PARAMS_MAX];
    double beta = 0.8, reset = 1024;
    esp_param p[] = {{"beta", &beta, 0, 1, 0, 0, "from 0 to 1"},
                     {"reset", &reset, 0, 1e15, 0, ESP_PARAM_WHOLE, "a number of steps, or 0 (never)"}};
    esp_status st = esp_params_take(h, loco_name, params, "of", own, of);
    if (st == ESP_OK) st = dense_open(h, loco_name, own, p, 2, loco_params, sizeof(loco_self), self);
    if (st != ESP_OK) return st;
    loco_self *s = (loco_self *)*self;
    s->beta = (float)beta;
    s->reset = (uint64_t)reset;
    st = *of ? wrap_open(h, loco_name, of, &s->inner)
             : esp_codec_fail(h, loco_name, ESP_E_ARG,
                              "loco: of= is missing: name the codec that sends, as in of=(int4)");
    const uint64_t caps = s->inner.traits.caps;
    if (st == ESP_OK && (caps & ESP_CODEC_OWN_FEEDBACK || !(caps & ESP_CODEC_FUSED_RESIDUAL))) {
        st = wrap_fail(h, loco_name, of, ESP_E_UNSUPPORTED, "it has a memory of its own, or computes no residual");
        wrap_close(&s->inner);
    }
    if (st != ESP_OK) esp_codec_self_free(s);
    return st;
}
static void loco_close(void *self) {
    wrap_close(&((loco_self *)self)->inner);
    esp_codec_self_free(self);
}

static esp_status loco_traits(void *self, esp_traits *out) {
    const wrap_inner *w = &((const loco_self *)self)->inner;
    const uint64_t dropped = ESP_CODEC_REDUCIBLE | ESP_CODEC_LISTS | ESP_CODEC_NO_FEEDBACK;
    out->wire_version = wrap_wire_version(LOCO_WIRE, w);
    out->caps = ESP_CODEC_WRAPPER | ESP_CODEC_OWN_FEEDBACK | (w->traits.caps & ~dropped);
    return ESP_OK;
}

static esp_status loco_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    esp_bound b;
    const esp_status s = wrap_bound(&((const loco_self *)self)->inner, like, round, n_reduced, &b);
    if (s != ESP_OK) return s;
    if (b.payload_bytes < ESP_PAYLOAD_HEADER) return ESP_E_ABI;
    return esp_bound_fill(out, b.payload_bytes - ESP_PAYLOAD_HEADER,
                          wrap_round(like->count * sizeof(float)) + b.scratch_bytes, b.state_bytes);
}

typedef struct loco_job {
    const loco_self *self;
    float *e, *left; /* `left`: a copy of e, then the inner codec's residual */
} loco_job;
static void loco_copy(void *arg, uint64_t begin, uint64_t end) {
    const loco_job *j = (const loco_job *)arg;
    memcpy(j->left + begin, j->e + begin, (end - begin) * sizeof *j->e);
}
static void loco_mix(void *arg, uint64_t begin, uint64_t end) {
    const loco_job *j = (const loco_job *)arg;
    loco_mix_for(j->self->dense.level)(j->e + begin, j->left + begin, 1 - j->self->beta, end - begin);
}

static esp_status loco_compress(void *self, const esp_codec_args *a) {
    const loco_self *s = (const loco_self *)self;
    const uint64_t n = a->tensor[0]->count;
    esp_codec_args inner = esp_codec_args_of(a);
    inner.flags = 0;
    float *e = a->flags & ESP_ARG_OWN_MEMORY && n ? esp_residual_of(a, 0) : NULL;
    if (!e) return s->inner.table->compress(s->inner.self, &inner);
    esp_buf left = *a->scratch, residual = a->residual[0];
    loco_job j = {s, e, (float *)wrap_take(&left, n * sizeof *e)};
    if (!j.left)
        return esp_codec_fail(s->dense.host, loco_name, ESP_E_ARG, "scratch memory is less than bound() requires");
    residual.ptr = j.left;
    inner.residual = &residual;
    inner.scratch = left.bytes ? &left : NULL;
    dense_run(&s->dense, n, loco_copy, &j);
    const esp_status st = s->inner.table->compress(s->inner.self, &inner);
    if (st != ESP_OK) return st;
    if (s->reset && (a->step + 1) % s->reset == 0)
        memset(e, 0, n * sizeof *e);
    else
        dense_run(&s->dense, n, loco_mix, &j);
    return ESP_OK;
}
static esp_status loco_decompress(void *self, const esp_codec_args *a) {
    const loco_self *s = (const loco_self *)self;
    return s->inner.table->decompress(s->inner.self, a);
}

/* Copying the residual and averaging it moves 20 bytes per element. */
static esp_status loco_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    esp_codec_model m;
    const esp_status s = wrap_model(&((const loco_self *)self)->inner, like, n_reduced, d, &m);
    memset(m.reduced, 0, sizeof m.reduced);
    for (uint32_t i = 0; i < m.n_times; i++) m.times[i].compress_ns += esp_model_stream(20) * m.times[i].elements;
    return s == ESP_OK ? esp_model_answer(out, &m) : s;
}

static const esp_codec loco_codec = {
    ESP_CODEC_HEAD(LOCO_WIRE, ESP_CODEC_WRAPPER | ESP_CODEC_HAS_STATE | ESP_CODEC_OWN_FEEDBACK |
                                  ESP_CODEC_DETERMINISTIC | ESP_CODEC_NEEDS_MATRIX | ESP_CODEC_FUSED_RESIDUAL),
    .name = loco_name,
    .summary = "another codec, with a moving average of its errors as feedback (LoCo)",
    .params = loco_params,
    .default_option = "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu",
    .n_rounds = 1,
    ESP_CODEC_CALLS(loco_open, loco_close, loco_traits, loco),
    .paper = "Xie et al. (LoCo), TPAMI 2025",
};

ESP_PLUGIN_CODEC(loco, &loco_codec)
