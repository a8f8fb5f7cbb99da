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
    return esp_bound_fill(out, sparse_body_bytes(n, n), select_list_bytes(n, n), 0);
}

/* ---- the pass that writes the residual and the bitmap ------------------------------------------------------------ */
/* Sets rest to value - |phi|, which is negative for sent elements, and e, unless it is NULL, to the residual. */
ESP_INLINE uint64_t threshold_split_body(float *restrict rest, float *restrict e, const float *restrict g, float beta,
                                         float gamma, float value, uint64_t n) {
    const bool plain = beta == 1 && gamma == 1;
    if (!e) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) rest[i] = value - bits_float(select_bits(g[i]));
        return 0;
    }
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float x = dense_sum_of(g[i], e[i], beta, gamma, plain), left = value - bits_float(select_bits(x));
        rest[i] = left;
        e[i] = left < 0 ? 0.0f : x;
    }
    return 0;
}
ESP_KERNEL(threshold_split,
           (float *restrict rest, float *restrict e, const float *restrict g, float beta, float gamma, float value,
            uint64_t n),
           (rest, e, g, beta, gamma, value, n))

typedef struct threshold_job {
    const sparse_input *in;
    uint8_t *map; /* or NULL */
    float value;
} threshold_job;
static void threshold_split_piece(void *arg, uint64_t begin, uint64_t end) {
    const threshold_job *j = (const threshold_job *)arg;
    const sparse_input *in = j->in;
    float rest[DENSE_BLOCK];
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        threshold_split_for(in->level)(rest, in->e ? in->e + at : NULL, in->g + at, in->beta, in->gamma, j->value, n);
        if (j->map) bits_negative_for(in->level)(j->map + at / 8, rest, n);
    }
}

static esp_status threshold_compress_one(const void *self, const esp_host *h, const esp_codec_args *a) {
    const threshold_self *t = (const threshold_self *)self;
    const uint64_t n = a->tensor[0]->count;
    sparse_input in = sparse_input_of(a, t->dense.level);
    select_job s = {.host = h, .simd = t->dense.level, .load = sparse_load, .arg = &in, .count = n};
    if (n && (!a->scratch || a->scratch->bytes < select_list_bytes(n, n)))
        return esp_codec_fail(h, threshold_name, ESP_E_ARG, "scratch memory is less than bound() requires");
    if (n) {
        select_list(&s, a->scratch->ptr, n);
        s.k = select_keep_all(&s, float_bits(t->value) + 1);
    }
    const bool bad = s.top >= SELECT_INF;
    esp_payload_header header = esp_payload_header_of(esp_name_hash(threshold_name), 1, bad ? ESP_PAYLOAD_NONFINITE : 0,
                                                      n, bad ? 0 : sparse_body_bytes(n, s.k), bad ? 0 : s.k);
    const esp_status st = esp_payload_begin(a->payload, &header);
    if (st != ESP_OK || bad || !n) return st;
    uint8_t *held = (uint8_t *)esp_payload_body(a->payload) + 4 * s.k, *place = held + 4 * sparse_spans(n);
    const bool map = sparse_is_map(n, s.k);
    threshold_job j = {&in, map ? place : NULL, t->value};
    sparse_write_to(&s, held - 4 * s.k, held, map ? NULL : place);
    if (map || in.e) esp_codec_parallel(h, n, SELECT_SPAN, threshold_split_piece, &j);
    return ESP_OK;
}

static esp_status threshold_decompress_one(const void *self, const esp_host *h, const esp_codec_args *a) {
    (void)self;
    return sparse_decompress(h, a, threshold_name, 1, 0, a->tensor[0]->count);
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
    f.launches[0] = 2;
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
