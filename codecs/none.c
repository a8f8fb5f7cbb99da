/* none.c: codec "none", which sends f32 numbers unchanged, so that collectives can sum the payloads of several ranks.
 * If a tensor contains a NaN or Inf, all its numbers are sent as NaN, so that every number of the sum is NaN too. */
#include "codecs/common/plain.h"

static const dense_format none_format = {"none", 1, 1, NULL, plain_decode};

static esp_status none_open(const esp_host *h, const char *params, void **self) {
    return dense_open(h, "none", params, NULL, 0, "", sizeof(dense_self), self);
}

static esp_status none_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)self, (void)round, (void)n_reduced;
    return esp_bound_fill(out, like->count * sizeof(float), 0, 0);
}

static esp_status none_compress(void *self, const esp_codec_args *a) {
    return plain_compress((const dense_self *)self, &none_format, a);
}

static esp_status none_decompress(void *self, const esp_codec_args *a) {
    return dense_decompress((const dense_self *)self, &none_format, a, a->tensor[0]->count * sizeof(float),
                            DENSE_BLOCK);
}

static esp_status none_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    const esp_facts f = {
        .reducible = 1,
        .size = {0, 0, 4, 0, 0},
        .ns = {esp_model_stream(8), esp_model_stream(12)},
        .launches = {1, 1},
        .bytes = {8, 12},
    };
    (void)self, (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static esp_status none_values(void *self, const esp_tensor *like, const esp_payload_header *h, esp_values *out) {
    (void)self, (void)h;
    *out = (esp_values){0, like->count, 0};
    return ESP_OK;
}

static const esp_round none_rounds[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static const esp_codec none_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_REDUCIBLE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK),
    .name = "none",
    .summary = "no compression",
    .default_option = "intra.reduce_scatter > inter.allreduce > intra.allgather",
    .n_rounds = 1,
    .rounds = none_rounds,
    ESP_CODEC_CALLS(none_open, esp_codec_self_free, NULL, none),
    .values = none_values,
};

ESP_PLUGIN_CODEC(none, &none_codec)
