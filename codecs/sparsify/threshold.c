/* threshold.c: codec "threshold", which sends the elements of magnitude above a constant v, and keeps the others in the
 * residual (error feedback). Payloads are those of topk (sparse.h), but their size varies from step to step, and is at
 * most that of all elements. After Dutta et al., "On the discrepancy between the theoretical analysis and practical
 * implementations of compressed communication for distributed deep learning", AAAI 2020. */
#include "espresso.h"
#include "codecs/common/bits.h"
#include "codecs/common/parts.h"
#include "codecs/common/sparse.h"

typedef struct threshold_self {
    dense_self dense;
    float value;
} threshold_self;

static const char threshold_name[] = "threshold", threshold_params[] = "value=0.01";

static esp_status threshold_open(const esp_host *h, const char *params, void **self) {
    double value = 0.01;
    esp_param p[] = {{"value", &value, 1e-30, 1e30, 0, 0, "a number > 0 (1e-30 to 1e30)"}};
    const esp_status st = dense_open(h, threshold_name, params, p, 1, threshold_params, sizeof(threshold_self), self);
    if (st == ESP_OK) ((threshold_self *)*self)->value = (float)value;
    return st;
}

static esp_status threshold_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                  esp_bound *out) {
    const uint64_t n = like->count;
    (void)self, (void)round, (void)n_reduced;
    return esp_bound_fill(out, sparse_body_bytes(n, n), sparse_spans(n) * sizeof(uint64_t), 0);
}

/* ---- compress: a pass counts the elements to send, and a second one writes them ---------------------------------- */
/* Counts elements of phi with |phi| above the value, which is given as its bits. Bit 63 is set on NaN or Inf. */
ESP_INLINE uint64_t threshold_count_phi(const float *x, int32_t value, uint64_t n) {
    uint32_t any = 0, sent = 0;
    for (uint64_t i = 0; i < n; i++) {
        any |= dense_nonfinite(x[i]);
        sent += (uint32_t)((int32_t)select_bits(x[i]) > value);
    }
    return sent | (uint64_t)(any >> 31) << 63;
}
ESP_INLINE uint64_t threshold_count_body(const float *g, const float *e, float beta, float gamma, int32_t value,
                                         uint64_t n) {
    const bool plain = beta == 1 && gamma == 1;
    uint32_t any = 0, sent = 0;
    if (!e) return threshold_count_phi(g, value, n);
    for (uint64_t i = 0; i < n; i++) {
        const float x = dense_sum_of(g[i], e[i], beta, gamma, plain);
        any |= dense_nonfinite(x);
        sent += (uint32_t)((int32_t)select_bits(x) > value);
    }
    return sent | (uint64_t)(any >> 31) << 63;
}
ESP_KERNEL(threshold_count, (const float *g, const float *e, float beta, float gamma, int32_t value, uint64_t n),
           (g, e, beta, gamma, value, n))

/* Sets rest to value - |phi|, which is negative for sent elements, and e, unless it is NULL, to the residual. */
ESP_INLINE uint64_t threshold_split_body(float *restrict rest, float *restrict e, const float *restrict phi,
                                         float value, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) rest[i] = value - bits_float(select_bits(phi[i]));
    if (e) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++)
            e[i] = bits_float(float_bits(phi[i]) & ~(uint32_t)((int32_t)float_bits(rest[i]) >> 31));
    }
    return 0;
}
ESP_KERNEL(threshold_split,
           (float *restrict rest, float *restrict e, const float *restrict phi, float value, uint64_t n),
           (rest, e, phi, value, n))

typedef struct threshold_job {
    const sparse_input *in;
    uint64_t *sent; /* number of elements sent of each span; later of all spans before it */
    float value;
    uint32_t bad;
    uint8_t *val, *place;
    bool map;
} threshold_job;
static void threshold_count_piece(void *arg, uint64_t begin, uint64_t end) {
    threshold_job *j = (threshold_job *)arg;
    const sparse_input *in = j->in;
    for (uint64_t at = begin; at < end; at += SELECT_SPAN) {
        const uint64_t n = end - at < SELECT_SPAN ? end - at : SELECT_SPAN;
        const uint64_t r = threshold_count_for(in->level)(in->g + at, in->e ? in->e + at : NULL, in->beta, in->gamma,
                                                          (int32_t)float_bits(j->value), n);
        j->sent[at / SELECT_SPAN] = (uint32_t)r;
        if (r >> 63) esp_codec_raise(&j->bad, 1);
    }
}
static void threshold_write_piece(void *arg, uint64_t begin, uint64_t end) {
    const threshold_job *j = (const threshold_job *)arg;
    const sparse_input *in = j->in;
    const select_keep_fn keep = select_keep_for(in->level);
    const threshold_split_fn split = threshold_split_for(in->level);
    float buf[DENSE_BLOCK], rest[DENSE_BLOCK], val[DENSE_BLOCK + 16];
    uint16_t idx[DENSE_BLOCK + 16];
    uint64_t to = j->sent[begin / SELECT_SPAN];
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        const float *phi = sparse_load(in, at, n, buf);
        const uint32_t k = (uint32_t)keep(phi, n, float_bits(j->value) + 1, (uint32_t)(at % SELECT_SPAN), val, idx);
        memcpy(j->val + 4 * to, val, 4 * (uint64_t)k);
        if (!j->map) memcpy(j->place + 2 * to, idx, 2 * (uint64_t)k);
        if (in->e || j->map) split(rest, in->e ? in->e + at : NULL, phi, j->value, n);
        if (j->map) bits_negative_for(in->level)(j->place + at / 8, rest, n);
        to += k;
    }
}

static esp_status threshold_compress_one(const void *self, const esp_host *h, const esp_codec_args *a) {
    const threshold_self *t = (const threshold_self *)self;
    const uint64_t n = a->tensor[0]->count, spans = sparse_spans(n);
    const sparse_input in = sparse_input_of(a, t->dense.level);
    if (n && (!a->scratch || a->scratch->bytes < spans * sizeof(uint64_t)))
        return esp_codec_fail(h, threshold_name, ESP_E_ARG, "scratch memory is less than bound() requires");
    threshold_job j = {.in = &in, .sent = n ? (uint64_t *)a->scratch->ptr : NULL, .value = t->value};
    esp_codec_parallel(h, n, SELECT_SPAN, threshold_count_piece, &j);
    uint64_t k = 0;
    for (uint64_t s = 0; s < spans; s++) k += j.sent[s];
    esp_payload_header header =
        esp_payload_header_of(esp_name_hash(threshold_name), 1, j.bad ? ESP_PAYLOAD_NONFINITE : 0, n,
                              j.bad ? 0 : sparse_body_bytes(n, k), j.bad ? 0 : k);
    const esp_status st = esp_payload_begin(a->payload, &header);
    if (st != ESP_OK || j.bad || !n) return st;
    j.val = (uint8_t *)esp_payload_body(a->payload);
    j.place = j.val + 4 * k + 4 * spans;
    j.map = sparse_is_map(n, k);
    for (uint64_t s = 0, before = 0; s < spans; s++) {
        const uint32_t held = (uint32_t)j.sent[s];
        memcpy(j.val + 4 * k + 4 * s, &held, sizeof held);
        j.sent[s] = before;
        before += held;
    }
    esp_codec_parallel(h, n, SELECT_SPAN, threshold_write_piece, &j);
    return ESP_OK;
}

static esp_status threshold_decompress_one(const void *self, const esp_host *h, const esp_codec_args *a) {
    return sparse_decompress(h, ((const dense_self *)self)->level, a, threshold_name, 1, 0, a->tensor[0]->count);
}

/* Tensors of at least this size are compressed one at a time, each by all worker threads. */
enum { THRESHOLD_LARGE = 2 * SELECT_SPAN };
static esp_status threshold_compress(void *self, const esp_codec_args *a) {
    return parts_run(self, ((const dense_self *)self)->host, a, THRESHOLD_LARGE, threshold_compress_one);
}
static esp_status threshold_decompress(void *self, const esp_codec_args *a) {
    return parts_run(self, ((const dense_self *)self)->host, a, THRESHOLD_LARGE, threshold_decompress_one);
}

/* Size and time are for elements with a standard normal distribution. The error depends so much on how large elements
 * are that it counts as unknown. */
static esp_status threshold_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                  esp_codec_model *out) {
    const double ratio = erfc((double)((const threshold_self *)self)->value / sqrt(2.0));
    esp_facts f = sparse_facts(ratio, 20);
    (void)like, (void)n_reduced;
    f.error = -1;
    f.ns[0] = esp_model_stream(20) + 10 * ratio; /* it does not search for its threshold */
    f.launches[0] = 2, f.small[0].elements = 0;
    f.bytes[0] = 20.1 + fmin(6 * ratio, 4 * ratio + 0.125);
    return esp_model_fill(out, &f, d);
}

static esp_status threshold_values(void *self, const esp_tensor *like, const esp_payload_header *h, esp_values *out) {
    (void)self;
    return sparse_values(like, h, like->count, out);
}

static const esp_codec threshold_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_LISTS),
    .name = threshold_name,
    .summary = "the elements of magnitude above a constant; sizes vary",
    .params = threshold_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(threshold_open, esp_codec_self_free, NULL, threshold),
    .values = threshold_values,
    .family = "sparsify",
    .paper = "Dutta et al., AAAI 2020",
};

ESP_PLUGIN_CODEC(threshold, &threshold_codec)
