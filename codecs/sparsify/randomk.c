/* randomk.c: codec "randomk", which sends k = ceil(ratio d) randomly chosen elements out of d, the same on all ranks,
 * so that collectives can sum the payloads. After Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS
 * 2018. The elements are P(0), ..., P(k - 1) of a random permutation P (randomk.h), whose key depends on seed, step and
 * tensor, not on the rank. Error feedback keeps what is not sent. With unbiased=1 values are sent times d/k, so that
 * they are right on average, and there is no residual (Konecny et al., 2016). */
#include "espresso.h"
#include "codecs/common/sparse.h"
#include "codecs/sparsify/randomk.h"

enum { RANDOMK_WIRE = 1, RANDOMK_GRAIN = 16384 };

/* ---- codec ------------------------------------------------------------------------------------------------------- */
typedef struct randomk_self {
    dense_self dense;
    double ratio, unbiased;
} randomk_self;

static const char randomk_name[] = "randomk", randomk_params[] = "ratio=0.01,unbiased=0";

static esp_status randomk_open(const esp_host *h, const char *params, void **self) {
    double ratio = 0.01, unbiased = 0;
    esp_param p[] = {{"ratio", &ratio, 0.0, 1.0, 1, 0, "above 0 and at most 1"},
                     {"unbiased", &unbiased, 0.0, 1.0, 0, 1, "0 or 1"}};
    const esp_status st = dense_open(h, randomk_name, params, p, 2, randomk_params, sizeof(randomk_self), self);
    if (st != ESP_OK) return st;
    randomk_self *t = (randomk_self *)*self;
    t->ratio = ratio;
    t->unbiased = unbiased;
    return ESP_OK;
}

static esp_status randomk_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                esp_bound *out) {
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, 4 * sparse_k(((randomk_self *)self)->ratio, like->count), 0, 0);
}

typedef struct randomk_job {
    sparse_input in;
    randomk_perm perm;
    randomk_apply_fn apply;
    uint8_t *body;
    float factor;
} randomk_job;

/* Writes factor * phi[P(j)] to the payload for begin <= j < end. P is the random permutation, and phi is gradient plus
 * residual. */
static void randomk_gather(void *arg, uint64_t begin, uint64_t end) {
    const randomk_job *r = (const randomk_job *)arg;
    const sparse_input *in = &r->in;
    uint64_t at[RANDOMK_BATCH];
    float g[RANDOMK_BATCH], e[RANDOMK_BATCH], v[RANDOMK_BATCH];
    const dense_phi_fn phi = dense_phi_for(in->level);
    for (; begin < end; begin += RANDOMK_BATCH) {
        uint64_t n = end - begin < RANDOMK_BATCH ? end - begin : RANDOMK_BATCH;
        randomk_draw(&r->perm, r->apply, begin, n, at);
        for (uint64_t i = 0; i < n; i++) g[i] = v[i] = in->g[at[i]];
        if (in->e) {
            for (uint64_t i = 0; i < n; i++) e[i] = in->e[at[i]];
            phi(v, g, e, in->beta, in->gamma, n);
        }
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) v[i] *= r->factor;
        memcpy(r->body + 4 * begin, v, 4 * n);
    }
}

static void randomk_keep(void *arg, uint64_t begin, uint64_t end) {
    const sparse_input *in = &((const randomk_job *)arg)->in;
    sparse_keep_for(in->level)(in->g + begin, in->e + begin, in->beta, in->gamma, end - begin);
}

static void randomk_clear(void *arg, uint64_t begin, uint64_t end) {
    const randomk_job *r = (const randomk_job *)arg;
    uint64_t at[RANDOMK_BATCH];
    for (; begin < end; begin += RANDOMK_BATCH) {
        uint64_t n = end - begin < RANDOMK_BATCH ? end - begin : RANDOMK_BATCH;
        randomk_draw(&r->perm, r->apply, begin, n, at);
        for (uint64_t i = 0; i < n; i++) r->in.e[at[i]] = 0.0f;
    }
}

static uint64_t randomk_key(const esp_codec_args *a, uint64_t tensor, uint64_t first) {
    const uint64_t key = esp_rng_key(a->seed, a->step, tensor, a->comp_index, 0);
    const esp_philox_t w = esp_philox(key, first, 0x6b6d6f646e6172ull /* "randomk" */);
    return (uint64_t)w.w[1] << 32 | w.w[0];
}
static float randomk_factor(const randomk_self *t, uint64_t count, uint64_t k) {
    return t->unbiased > 0 && k ? (float)((double)count / (double)k) : 1.0f;
}

static esp_status randomk_compress(void *self, const esp_codec_args *a) {
    const randomk_self *t = (const randomk_self *)self;
    const uint64_t count = a->tensor[0]->count, k = sparse_k(t->ratio, count);
    const uint64_t draw = count ? randomk_key(a, a->tensor[0]->key, a->offset[0]) : 0;
    esp_payload_header h = esp_payload_header_of(esp_name_hash(randomk_name), RANDOMK_WIRE, 0, count, 4 * k, draw);
    randomk_job r = {
        sparse_input_of(a, t->dense.level), {0}, randomk_apply_for(t->dense.level), NULL, randomk_factor(t, count, k)};
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    r.body = (uint8_t *)esp_payload_body(a->payload);
    if (!dense_finite(&t->dense, a)) {
        h.flags = ESP_PAYLOAD_NONFINITE;
        dense_fill_nan(r.body, k);
        return esp_payload_begin(a->payload, &h);
    }
    r.perm = randomk_perm_of(h.aux, count);
    esp_codec_parallel(t->dense.host, k, RANDOMK_GRAIN, randomk_gather, &r);
    if (r.in.e && t->unbiased > 0) {
        memset(r.in.e, 0, 4 * count);
    } else if (r.in.e) {
        esp_codec_parallel(t->dense.host, count, SELECT_SPAN, randomk_keep, &r);
        esp_codec_parallel(t->dense.host, k, RANDOMK_GRAIN, randomk_clear, &r);
    }
    return ESP_OK;
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
/* Adds payloads of n ranks that contain the same elements, since their permutations are equal. */
typedef struct randomk_adder {
    const esp_payload *payload;
    uint32_t n;
    randomk_perm perm;
    randomk_apply_fn apply;
    float *out, scale;
} randomk_adder;

static void randomk_add(void *arg, uint64_t begin, uint64_t end) {
    const randomk_adder *r = (const randomk_adder *)arg;
    uint64_t at[RANDOMK_BATCH];
    for (; begin < end; begin += RANDOMK_BATCH) {
        uint64_t n = end - begin < RANDOMK_BATCH ? end - begin : RANDOMK_BATCH;
        randomk_draw(&r->perm, r->apply, begin, n, at);
        for (uint32_t p = 0; p < r->n; p++) {
            const uint8_t *v = (const uint8_t *)esp_payload_body(&r->payload[p]) + 4 * begin;
            for (uint64_t i = 0; i < n; i++) r->out[at[i]] += r->scale * sparse_f32(v + 4 * i);
        }
    }
}

static void randomk_zero(void *arg, uint64_t begin, uint64_t end) {
    memset((float *)arg + begin, 0, (end - begin) * sizeof(float));
}

/* Is the payload valid? Sets *nan if one of its values is not finite. */
static bool randomk_check(int level, const esp_payload *p, uint64_t count, uint64_t k, esp_payload_header *h,
                          bool *nan) {
    if (esp_payload_read(p, esp_name_hash(randomk_name), RANDOMK_WIRE, count, h) != ESP_OK) return false;
    if (h->flags & ESP_PAYLOAD_EMPTY) return h->flags == ESP_PAYLOAD_EMPTY;
    if (h->body_bytes != 4 * k) return false;
    *nan |= h->flags & ESP_PAYLOAD_NONFINITE || !sparse_finite_for(level)((const uint8_t *)esp_payload_body(p), k);
    return true;
}

static esp_status randomk_decompress(void *self, const esp_codec_args *a) {
    const randomk_self *t = (const randomk_self *)self;
    const uint64_t count = a->tensor[0]->count, k = sparse_k(t->ratio, count);
    randomk_adder r = {NULL, 0, {0}, randomk_apply_for(t->dense.level), dense_out(a), a->scale};
    esp_payload_header h, next;
    bool nan = false;
    for (uint32_t p = 0; p < a->n_payloads; p++)
        if (!randomk_check(t->dense.level, &a->payload[p], count, k, &h, &nan))
            return esp_codec_fail(t->dense.host, randomk_name, ESP_E_CORRUPT,
                                  "the payload is corrupt, or from another codec, size or ratio");
    if (nan) {
        dense_fill_nan(a->tensor[0]->data.ptr, count);
        return ESP_OK;
    }
    if (r.scale == 0.0f) r.scale = 1.0f;
    if (a->mode == ESP_OUT_SET) esp_codec_parallel(t->dense.host, count, SELECT_SPAN, randomk_zero, r.out);
    for (uint32_t p = 0; p < a->n_payloads; p += r.n) {
        memcpy(&h, a->payload[p].data.ptr, sizeof h);
        r.payload = &a->payload[p];
        for (r.n = 1; p + r.n < a->n_payloads; r.n++) {
            memcpy(&next, a->payload[p + r.n].data.ptr, sizeof next);
            if (next.aux != h.aux || next.flags != h.flags) break;
        }
        if (h.flags & ESP_PAYLOAD_EMPTY) continue;
        r.perm = randomk_perm_of(h.aux, count);
        esp_codec_parallel(t->dense.host, k, RANDOMK_GRAIN, randomk_add, &r);
    }
    return ESP_OK;
}

static esp_status randomk_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                esp_codec_model *out) {
    const randomk_self *t = (const randomk_self *)self;
    const double r = t->ratio;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .reducible = 1,
        .size = {0, 4, 4 * r, 0, 0},
        .error = t->unbiased > 0 ? fmin(1.0, 1 / r - 1) : 1 - r,
        .setup_ns = 1000,
        .ns = {esp_model_stream(20) + 3 * r, esp_model_stream(4) + 2 * r},
        .launches = {3, 3},
        .bytes = {20 + 100 * r, 4 + 72 * r}, /* a GPU moves 32 bytes per scattered access */
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static esp_status randomk_values(void *self, const esp_tensor *like, const esp_payload_header *h, esp_values *out) {
    (void)h;
    *out = (esp_values){0, sparse_k(((const randomk_self *)self)->ratio, like->count), 0};
    return ESP_OK;
}

static const esp_round randomk_rounds[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static const esp_codec randomk_codec = {
    ESP_CODEC_HEAD(RANDOMK_WIRE, ESP_CODEC_REDUCIBLE | ESP_CODEC_FUSED_RESIDUAL),
    .name = randomk_name,
    .summary = "k elements at random, the same on every rank; payloads can be summed",
    .params = randomk_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .rounds = randomk_rounds,
    ESP_CODEC_CALLS(randomk_open, esp_codec_self_free, NULL, randomk),
    .values = randomk_values,
    .family = "sparsify",
    .paper = "Stich et al., NeurIPS 2018",
};

ESP_PLUGIN_CODEC(randomk, &randomk_codec)
