/* none.c: no compression. decode(code(x)) == x, bit for bit.
 *
 * Body: count x f32. 32 bits an element. REDUCIBLE in f32: bodies can be summed as they are.
 * A part with a NaN or Inf sends a body of NaN, so that a sum of bodies is NaN too. */
#include "codecs/common/dense.h"

ESP_INLINE uint64_t none_add_body(float *out, const dense_f32 *in, float scale, int set, uint64_t n) {
    if (set) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) out[i] = scale * in[i];
    } else {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) out[i] += scale * in[i];
    }
    return 0;
}
ESP_KERNEL(none_add, (float *out, const dense_f32 *in, float scale, int set, uint64_t n), (out, in, scale, set, n))

static void none_encode(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    memcpy((unsigned char *)user + at * sizeof(float), phi, n * sizeof(float));
    if (residual) memset(residual, 0, n * sizeof(float));
}

static void none_decode(const void *self, const esp_payload_header *h, const unsigned char *body, float *out,
                        uint64_t at, uint64_t n, float scale, int set) {
    (void)h;
    if (set && scale == 1)
        memcpy(out, body + at * sizeof(float), n * sizeof(float));
    else
        none_add_for(((const dense_self *)self)->level)(out, (const dense_f32 *)(body + at * sizeof(float)), scale, set,
                                                        n);
}

static const dense_format none_format = {"none", 1, 1, NULL, none_decode};

static esp_status none_open(const esp_host *h, const char *params, void **self) {
    const esp_status st = esp_params_parse(h, "none", params, NULL, 0, "");
    if (st != ESP_OK) return st;
    dense_self *s = (dense_self *)esp_codec_self(h, sizeof *s);
    if (!s) return ESP_E_NOMEM;
    dense_open(s, h);
    *self = s;
    return ESP_OK;
}
static void none_close(void *self) { esp_codec_self_free(((dense_self *)self)->host, self, sizeof(dense_self)); }

static esp_status none_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)self, (void)round, (void)n_reduced;
    return esp_bound_fill(out, like->count * sizeof(float), 0, 0);
}

static esp_status none_compress(void *self, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash("none"), 1, 0, n, n * sizeof(float), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    if (dense_encode((const dense_self *)self, a, body, none_encode)) return ESP_OK;
    const float nan = dense_float(0x7FC00000u);
    for (uint64_t i = 0; i < n; i++) memcpy(body + i * sizeof nan, &nan, sizeof nan);
    h.flags = ESP_PAYLOAD_NONFINITE;
    return esp_payload_begin(a->payload, &h);
}

static esp_status none_decompress(void *self, const esp_codec_args *a) {
    return dense_decompress((const dense_self *)self, &none_format, a, a->tensor[0]->count * sizeof(float));
}

static esp_status none_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    (void)self;
    const esp_facts f = {
        .reducible = 1,
        .size = {0, 0, 4, 0, 0},
        .begin_ns = {1000, 1000},
        .ns = {esp_model_stream(8), esp_model_stream(12)},
        .launches = {1, 1},
        .bytes = {8, 12},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_round none_rounds[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static const esp_codec none_codec = {
    .struct_size = sizeof(esp_codec),
    .wire_version = 1,
    .caps = ESP_CODEC_FIXED_SIZE | ESP_CODEC_REDUCIBLE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL |
            ESP_CODEC_NO_FEEDBACK,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = "none",
    .summary = "no compression",
    .default_option = "intra.reduce_scatter > inter.allreduce > intra.allgather",
    .n_rounds = 1,
    .rounds = none_rounds,
    .open = none_open,
    .close = none_close,
    .bound = none_bound,
    .compress = none_compress,
    .decompress = none_decompress,
    .model = none_model,
};
static const esp_codec *const none_list[] = {&none_codec};
static const esp_plugin none_plugin = {sizeof(esp_plugin), 1,     0,         0,    "none",
                                       ESPRESSO_VERSION,   "MIT", none_list, NULL, NULL};

ESPRESSO_PLUGIN_ENTRY(none) {
    (void)h;
    return &none_plugin;
}
