/* topk.c: codec "topk", which sends the k = ceil(ratio d) elements of largest magnitude out of d, and keeps the others
 * in the residual (error feedback). select.h finds these elements, sparse.h writes the payload (docs/design/wire.md).
 * After Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017, and Stich, Cordonnier
 * and Jaggi, "Sparsified SGD with memory", NeurIPS 2018. Gradient plus residual is computed twice: the first pass finds
 * out whether all elements are finite, and only if they are, the second pass may change the residual. */
#include "espresso.h"
#include "codecs/common/parts.h"
#include "codecs/common/sparse.h"

enum { TOPK_WIRE = 1 };

typedef struct topk_self {
    dense_self dense;
    double ratio;
} topk_self;

static const char topk_name[] = "topk", topk_params[] = "ratio=0.01";

static esp_status topk_open(const esp_host *h, const char *params, void **self) {
    double ratio = 0.01;
    esp_param p[] = {{"ratio", &ratio, 0.0, 1.0, 1, 0, "above 0 and at most 1"}};
    const esp_status st = dense_open(h, topk_name, params, p, 1, topk_params, sizeof(topk_self), self);
    if (st == ESP_OK) ((topk_self *)*self)->ratio = ratio;
    return st;
}

static esp_status topk_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round, (void)n_reduced;
    uint64_t k = sparse_k(((topk_self *)self)->ratio, like->count);
    return esp_bound_fill(out, sparse_body_bytes(like->count, k), select_scratch_bytes(like->count, k), 0);
}

static esp_status topk_compress_one(const void *self, const esp_host *h, const esp_codec_args *a) {
    const topk_self *t = (const topk_self *)self;
    const uint64_t n = a->tensor[0]->count;
    select_job s = {.host = h, .simd = t->dense.level, .count = n, .k = sparse_k(t->ratio, n)};
    s.n_sample = select_sample(n);
    return sparse_compress_phi(&s, a, topk_name, TOPK_WIRE);
}

static esp_status topk_decompress_one(const void *self, const esp_host *h, const esp_codec_args *a) {
    const uint64_t k = sparse_k(((const topk_self *)self)->ratio, a->tensor[0]->count);
    return sparse_decompress(h, ((const dense_self *)self)->level, a, topk_name, TOPK_WIRE, k, k);
}

/* Tensors of at least this size are compressed one at a time, each by all worker threads. */
enum { TOPK_LARGE = 2 * SELECT_SPAN };
static esp_status topk_compress(void *self, const esp_codec_args *a) {
    return parts_run(self, ((const dense_self *)self)->host, a, TOPK_LARGE, topk_compress_one);
}
static esp_status topk_decompress(void *self, const esp_codec_args *a) {
    return parts_run(self, ((const dense_self *)self)->host, a, TOPK_LARGE, topk_decompress_one);
}

static esp_status topk_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    const esp_facts f = sparse_facts(((const topk_self *)self)->ratio, 20);
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static esp_status topk_values(void *self, const esp_tensor *like, const esp_payload_header *h, esp_values *out) {
    return sparse_values(like, h, sparse_k(((const topk_self *)self)->ratio, like->count), out);
}

static const esp_codec topk_codec = {
    ESP_CODEC_HEAD(TOPK_WIRE, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_LISTS),
    .name = topk_name,
    .summary = "the k elements of largest magnitude",
    .params = topk_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(topk_open, esp_codec_self_free, NULL, topk),
    .values = topk_values,
    .family = "sparsify",
    .paper = "Aji and Heafield, EMNLP 2017",
};

ESP_PLUGIN_CODEC(topk, &topk_codec)
