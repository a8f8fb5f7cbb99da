/* dgc.c: codec "dgc" (deep gradient compression), after Lin, Han, Mao, Wang and Dally, ICLR 2018. It applies
 * momentum m to a rank's own gradient g, accumulates u in v, and sends the k elements of largest |v|:
 *     u = m u + g, v = v + u          with nesterov=1: u = m (u + g), v = v + u + g
 * Sent elements of v become 0 and, with masking=1, those of u too. A sum of gradients already contains the momentum,
 * so the codec compresses it by top-k with error feedback. The training program must use SGD without momentum,
 * and clip gradients before esp_push. */
#include "espresso.h"
#include "codecs/common/rng.h"
#include "codecs/common/sparse.h"

enum { DGC_WIRE = 1 };
#define DGC_WARM_START 0.25

typedef struct dgc_self {
    dense_self dense;
    double ratio, momentum, masking, warmup, sample, nesterov;
} dgc_self;

static const char dgc_name[] = "dgc",
                  dgc_params[] = "ratio=0.01,momentum=0.9,masking=1,warmup=0,sample=0.01,nesterov=0";

static void dgc_log_momentum(const esp_host *h, double momentum) {
    char text[200];
    const esp_log_event ev = {(uint32_t)sizeof ev, ESP_LOG_INFO, ESP_OK, 0, dgc_name, text, NULL};
    if (!(momentum > 0) || !ESP_HAS(esp_host, h, log)) return;
    (void)snprintf(
        text, sizeof text,
        "dgc applies a momentum of %g itself: turn the trainer's momentum off (plain SGD), or set momentum=0 here",
        momentum);
    h->log(h->user, &ev);
}

static esp_status dgc_open(const esp_host *h, const char *params, void **self) {
    dgc_self v = {{h, 0}, 0.01, 0.9, 1, 0, 0.01, 0};
    esp_param p[] = {{"ratio", &v.ratio, 0.0, 1.0, 1, 0, "above 0 and at most 1"},
                     {"momentum", &v.momentum, 0.0, 1.0, 0, 0, "0 to 1"},
                     {"masking", &v.masking, 0.0, 1.0, 0, 1, "0 or 1"},
                     {"warmup", &v.warmup, 0.0, 1e15, 0, 1, "a number of steps, 0 or more"},
                     {"sample", &v.sample, 0.0, 1.0, 1, 0, "above 0 and at most 1"},
                     {"nesterov", &v.nesterov, 0.0, 1.0, 0, 1, "0 or 1"}};
    const esp_status st = dense_open(h, dgc_name, params, p, sizeof p / sizeof *p, dgc_params, sizeof v, self);
    if (st != ESP_OK) return st;
    v.dense = *(const dense_self *)*self;
    *(dgc_self *)*self = v;
    dgc_log_momentum(h, v.momentum);
    return ESP_OK;
}

/* Returns the fraction of elements to send in this step, which falls from 0.25 to `ratio` during the warm-up. */
static double dgc_ratio(const dgc_self *t, uint64_t step) {
    if ((double)step >= t->warmup || t->ratio >= DGC_WARM_START) return t->ratio;
    return DGC_WARM_START * pow(t->ratio / DGC_WARM_START, (double)step / t->warmup);
}

static esp_status dgc_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round, (void)n_reduced;
    const uint64_t d = like->count, k = sparse_k(dgc_ratio((const dgc_self *)self, 0), d);
    return esp_bound_fill(out, sparse_body_bytes(d, k), select_scratch_bytes(d, k), d * sizeof(float));
}

/* ---- momentum ---------------------------------------------------------------------------------------------------- */
typedef struct dgc_sum {
    float u, v;
} dgc_sum;

ESP_ELEMENT dgc_sum dgc_step(float g, float u, float v, float m, int nesterov) {
    dgc_sum s;
    s.u = nesterov ? m * (u + g) : m * u + g;
    s.v = nesterov ? v + (s.u + g) : v + s.u;
    return s;
}

ESP_INLINE uint64_t dgc_phi_body(const float *restrict g, const float *restrict u, const float *restrict v, float m,
                                 int nesterov, float *restrict out, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) out[i] = dgc_step(g[i], u[i], v[i], m, nesterov).v;
    return 0;
}
ESP_KERNEL(dgc_phi, (const float *g, const float *u, const float *v, float m, int nesterov, float *out, uint64_t n),
           (g, u, v, m, nesterov, out, n))

ESP_INLINE uint64_t dgc_keep_body(const float *restrict g, float *restrict u, float *restrict v, float m, int nesterov,
                                  uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const dgc_sum s = dgc_step(g[i], u[i], v[i], m, nesterov);
        u[i] = s.u;
        v[i] = s.v;
    }
    return 0;
}
ESP_KERNEL(dgc_keep, (const float *g, float *u, float *v, float m, int nesterov, uint64_t n), (g, u, v, m, nesterov, n))

typedef struct dgc_memory {
    const float *g;
    float *u, *v, m;
    int nesterov, masking, level;
    const select_job *sel;
} dgc_memory;

static const float *dgc_load(const void *arg, uint64_t at, uint64_t n, float *buf) {
    const dgc_memory *d = (const dgc_memory *)arg;
    dgc_phi_for(d->level)(d->g + at, d->u + at, d->v + at, d->m, d->nesterov, buf, n);
    return buf;
}

static void dgc_update(void *arg, uint64_t begin, uint64_t end) {
    const dgc_memory *d = (const dgc_memory *)arg;
    for (; begin < end; begin += SELECT_BLOCK) {
        uint64_t n = end - begin < SELECT_BLOCK ? end - begin : SELECT_BLOCK;
        dgc_keep_for(d->level)(d->g + begin, d->u + begin, d->v + begin, d->m, d->nesterov, n);
        sparse_clear(d->sel, begin / SELECT_BLOCK, d->v);
        if (d->masking) sparse_clear(d->sel, begin / SELECT_BLOCK, d->u);
    }
}

/* ---- codec ------------------------------------------------------------------------------------------------------- */
static select_job dgc_select(const dgc_self *t, const esp_codec_args *a) {
    const uint64_t count = a->tensor[0]->count, k = sparse_k(dgc_ratio(t, a->step), count);
    const double n = t->sample * (double)count;
    select_job s = {.host = t->dense.host, .simd = t->dense.level, .count = count, .k = k};
    s.n_sample = n < 1024 ? 1024 : (uint64_t)n;
    s.sample_from = esp_rng_key(a->seed, a->step, a->tensor[0]->key, a->comp_index, a->source);
    return s;
}

static esp_status dgc_compress(void *self, const esp_codec_args *a) {
    const dgc_self *t = (const dgc_self *)self;
    select_job s = dgc_select(t, a);
    esp_status st;
    bool sent;
    if (!(a->flags & ESP_ARG_OWN_MEMORY) || !esp_residual_of(a, 0) || !a->state)
        return sparse_compress_phi(&s, a, dgc_name, DGC_WIRE);
    if (a->state->bytes < s.count * sizeof(float))
        return esp_codec_fail(t->dense.host, dgc_name, ESP_E_ARG, "state memory is less than bound() requires");
    dgc_memory d = {dense_in(a),     (float *)a->state->ptr, esp_residual_of(a, 0), (float)t->momentum,
                    t->nesterov > 0, t->masking > 0,         t->dense.level,        &s};
    s.load = dgc_load;
    s.arg = &d;
    st = sparse_compress(&s, a, dgc_name, DGC_WIRE, &sent);
    if (st == ESP_OK && sent) esp_codec_parallel(t->dense.host, s.count, SELECT_SPAN, dgc_update, &d);
    return st;
}

static esp_status dgc_decompress(void *self, const esp_codec_args *a) {
    const dgc_self *t = (const dgc_self *)self;
    const uint64_t d = a->tensor[0]->count;
    return sparse_decompress(t->dense.host, t->dense.level, a, dgc_name, DGC_WIRE, sparse_k(t->ratio, d),
                             sparse_k(dgc_ratio(t, 0), d));
}

static esp_status dgc_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                            esp_codec_model *out) {
    const dgc_self *t = (const dgc_self *)self;
    esp_facts f = sparse_facts(t->ratio, 32);
    f.momentum = t->momentum;
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static esp_status dgc_values(void *self, const esp_tensor *like, const esp_payload_header *h, esp_values *out) {
    return sparse_values(like, h, sparse_k(dgc_ratio((const dgc_self *)self, 0), like->count), out);
}

static const esp_codec dgc_codec = {
    ESP_CODEC_HEAD(DGC_WIRE,
                   ESP_CODEC_HAS_STATE | ESP_CODEC_OWN_FEEDBACK | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = dgc_name,
    .summary = "deep gradient compression: top-k, momentum correction, factor masking, warm-up",
    .params = dgc_params,
    .default_option = "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.allgather > decomp@cpu > "
                      "intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(dgc_open, esp_codec_self_free, NULL, dgc),
    .values = dgc_values,
    .family = "sparsify",
    .paper = "Lin et al., ICLR 2018",
};

ESP_PLUGIN_CODEC(dgc, &dgc_codec)
