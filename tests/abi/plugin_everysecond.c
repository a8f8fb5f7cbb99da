/* plugin_everysecond.c is a plugin of codecs that the library does not know. "everysecond" sends every second number
 * and says that it is lossy. "upperhalf" sends the upper half of each number and says that it only rounds. */
#include "espresso.h"

typedef struct second_self {
    const char *name;
    uint64_t every, width;
} second_self;
static second_self everysecond = {"everysecond", 2, 4}, upperhalf = {"upperhalf", 1, 2};

static esp_status second_open_as(second_self *s, const char *params, void **self) {
    *self = s;
    return params[0] ? ESP_E_ARG : ESP_OK;
}
static esp_status everysecond_open(const esp_host *h, const char *params, void **self) {
    (void)h;
    return second_open_as(&everysecond, params, self);
}
static esp_status upperhalf_open(const esp_host *h, const char *params, void **self) {
    (void)h;
    return second_open_as(&upperhalf, params, self);
}
static void second_close(void *self) { (void)self; }

static uint64_t second_body(const second_self *s, uint64_t count) {
    return (count + s->every - 1) / s->every * s->width;
}

static esp_status second_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    (void)round, (void)n_reduced;
    out->payload_bytes = esp_payload_capacity(second_body((const second_self *)self, like->count));
    out->scratch_bytes = out->state_bytes = 0;
    return ESP_OK;
}

static esp_status second_compress(void *self, const esp_codec_args *a) {
    const second_self *s = (const second_self *)self;
    const uint64_t n = a->tensor[0]->count;
    const float *x = (const float *)a->tensor[0]->data.ptr;
    const esp_payload_header h = esp_payload_header_of(esp_name_hash(s->name), 1, 0, n, second_body(s, n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    char *to = st == ESP_OK ? (char *)esp_payload_body(a->payload) : NULL;
    for (uint64_t i = 0; to && i < n; i += s->every, to += s->width)
        memcpy(to, (const char *)&x[i] + 4 - s->width, s->width);
    return st;
}

static esp_status second_decompress(void *self, const esp_codec_args *a) {
    const second_self *s = (const second_self *)self;
    const uint64_t n = a->tensor[0]->count;
    float *out = (float *)a->tensor[0]->data.ptr;
    const float scale = a->scale == 0 ? 1 : a->scale;
    esp_payload_header h;
    for (uint32_t p = 0; p < a->n_payloads; p++)
        if (esp_payload_read(&a->payload[p], esp_name_hash(s->name), 1, n, &h) != ESP_OK ||
            h.body_bytes != second_body(s, n))
            return ESP_E_CORRUPT;
    if (a->mode == ESP_OUT_SET) memset(out, 0, n * sizeof *out);
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        const char *from = (const char *)esp_payload_body(&a->payload[p]);
        for (uint64_t i = 0; i < n; i += s->every, from += s->width) {
            float x = 0;
            memcpy((char *)&x + 4 - s->width, from, s->width);
            out[i] += scale * x;
        }
    }
    return ESP_OK;
}

static esp_status second_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                               esp_codec_model *out) {
    const second_self *s = (const second_self *)self;
    (void)like, (void)n_reduced;
    out->flags = s->every > 1 ? ESP_MODEL_LOSSY : 0;
    out->sent.fixed = ESP_PAYLOAD_HEADER;
    out->sent.quantum = (double)s->width;
    out->sent.per_element = (double)s->width / (double)s->every;
    out->error = s->every > 1 ? 0.5 : 1e-5;
    if (d.kind > ESP_CPU) return ESP_OK;
    out->n_times = 2;
    out->times[0].elements = 1e3, out->times[0].compress_ns = out->times[0].decompress_ns = 2e3;
    out->times[1].elements = 1e9, out->times[1].compress_ns = out->times[1].decompress_ns = 1e9;
    return ESP_OK;
}

#define SECOND(codec, extra)                                                                                           \
    static const esp_codec codec##_table = {sizeof(esp_codec),                                                         \
                                            1,                                                                         \
                                            ESP_CODEC_DETERMINISTIC | (extra),                                         \
                                            ESP_BIT(ESP_F32),                                                          \
                                            ESP_BIT(ESP_CPU),                                                          \
                                            #codec,                                                                    \
                                            "a test's",                                                                \
                                            NULL,                                                                      \
                                            NULL,                                                                      \
                                            1,                                                                         \
                                            0,                                                                         \
                                            NULL,                                                                      \
                                            codec##_open,                                                              \
                                            second_close,                                                              \
                                            second_bound,                                                              \
                                            second_compress,                                                           \
                                            second_decompress,                                                         \
                                            NULL,                                                                      \
                                            second_model,                                                              \
                                            NULL,                                                                      \
                                            NULL,                                                                      \
                                            NULL,                                                                      \
                                            NULL}
SECOND(everysecond, 0);
SECOND(upperhalf, ESP_CODEC_NO_FEEDBACK);
ESP_PLUGIN_CODEC(everysecond, &everysecond_table, &upperhalf_table)
