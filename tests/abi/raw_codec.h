/* raw_codec.h is a codec that copies numbers without compressing them, for test plugins. The including file defines
 * RAW_NAME, the codec's name. */
#include "espresso.h"

static const esp_host *raw_host;

__attribute__((unused)) static esp_status raw_open(const esp_host *h, const char *params, void **self) {
    static char one;
    raw_host = h;
    *self = &one;
    if (params[0]) {
        esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, ESP_E_ARG, __LINE__, RAW_NAME, "raw takes no parameters",
                            __FILE__};
        h->log(h->user, &ev);
        return ESP_E_ARG;
    }
    return ESP_OK;
}
static void raw_close(void *self) { (void)self; }
__attribute__((unused)) static esp_status raw_bound(void *self, const esp_tensor *like, uint32_t round,
                                                    uint32_t n_reduced, esp_bound *out) {
    (void)self;
    (void)round, (void)n_reduced;
    out->payload_bytes = esp_payload_capacity(like->count * 4);
    out->scratch_bytes = out->state_bytes = 0;
    return ESP_OK;
}
__attribute__((unused)) static esp_status raw_compress(void *self, const esp_codec_args *a) {
    const uint64_t count = a->tensor[0]->count;
    const esp_payload_header h = esp_payload_header_of(esp_name_hash(RAW_NAME), 1, 0, count, count * 4, 0);
    (void)self;
    if (esp_payload_begin(a->payload, &h) != ESP_OK) return ESP_E_TOO_SMALL;
    if (count) memcpy(esp_payload_body(a->payload), a->tensor[0]->data.ptr, count * 4);
    return ESP_OK;
}
__attribute__((unused)) static esp_status raw_decompress(void *self, const esp_codec_args *a) {
    float *out = (float *)a->tensor[0]->data.ptr;
    const float scale = a->scale == 0 ? 1 : a->scale;
    esp_payload_header h;
    (void)self;
    for (uint32_t p = 0; p < a->n_payloads; p++)
        if (esp_payload_read(&a->payload[p], esp_name_hash(RAW_NAME), 1, a->tensor[0]->count, &h) != ESP_OK ||
            h.body_bytes != (h.flags & ESP_PAYLOAD_EMPTY ? 0 : h.count * 4))
            return ESP_E_CORRUPT;
    for (uint64_t i = 0; i < a->tensor[0]->count; i++) {
        float sum = a->mode == ESP_OUT_SUM ? out[i] : 0;
        for (uint32_t p = 0; p < a->n_payloads; p++) {
            float x = 0;
            esp_payload_read(&a->payload[p], esp_name_hash(RAW_NAME), 1, a->tensor[0]->count, &h);
            if (h.flags & ESP_PAYLOAD_EMPTY) continue;
            memcpy(&x, (const char *)esp_payload_body(&a->payload[p]) + i * 4, 4);
            sum += scale * x;
        }
        out[i] = sum;
    }
    return ESP_OK;
}

#define RAW_TABLE(size)                                                                                                \
    {                                                                                                                  \
        size, 1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_NO_FEEDBACK, ESP_BIT(ESP_F32), ESP_BIT(ESP_CPU), RAW_NAME,        \
            "copies", NULL, NULL, 1, 0, NULL, raw_open, raw_close, raw_bound, raw_compress, raw_decompress, NULL,      \
            NULL, NULL, NULL, NULL, NULL                                                                               \
    }
