/* truncate.c: a codec of your own, as a plugin: it sends the upper 16 of a number's 32 bits. The library adds what the
 * lower bits held to the next step's gradient (error feedback); the codec need not do anything for it. The body is one
 * 16-bit word for each element. plugins/README.md explains each function, and how a codec gets parameters. */
#include "espresso.h"
#include <math.h>
#include <stdio.h>

enum { WIRE = 1 }; /* increase it when the format changes: ranks with different versions do not start */
static const char name[] = "truncate";

static esp_status open_codec(const esp_host *h, const char *params, void **self) {
    static int nothing;
    char text[128];
    *self = &nothing;
    if (!params || !*params) return ESP_OK;
    snprintf(text, sizeof text, "it has no parameters, but got \"%.60s\"", params);
    const esp_log_event event = {sizeof event, ESP_LOG_ERROR, ESP_E_ARG, 0, name, text, __FILE__};
    h->log(h->user, &event);
    return ESP_E_ARG;
}

static void close_codec(void *self) { (void)self; }

static esp_status bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    const esp_bound b = {out->struct_size, 0, esp_payload_capacity(2 * like->count), 0, 0};
    (void)self, (void)round, (void)n_reduced;
    memcpy(out, &b, out->struct_size < sizeof b ? out->struct_size : sizeof b);
    return ESP_OK;
}

static esp_status compress(void *self, const esp_codec_args *a) {
    const float *x = a->tensor[0]->data.ptr;
    const uint64_t count = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash(name), WIRE, 0, count, 2 * count, 0);
    int finite = 1;
    (void)self;
    if (a->payload->data.bytes < ESP_PAYLOAD_HEADER + h.body_bytes) return ESP_E_TOO_SMALL;
    for (uint64_t i = 0; i < count; i++) finite &= isfinite(x[i]) != 0;
    if (!finite) h.flags = ESP_PAYLOAD_NONFINITE, h.body_bytes = 0; /* the mean becomes NaN on every rank */
    esp_payload_begin(a->payload, &h);
    uint16_t *body = esp_payload_body(a->payload);
    for (uint64_t i = 0; finite && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], 4);
        body[i] = (uint16_t)(bits >> 16);
    }
    return ESP_OK;
}

static esp_status decompress(void *self, const esp_codec_args *a) {
    float *out = a->tensor[0]->data.ptr;
    const uint64_t count = a->tensor[0]->count;
    const float scale = a->scale == 0 ? 1.0f : a->scale;
    esp_payload_header h;
    (void)self;
    for (uint32_t p = 0; p < a->n_payloads; p++) { /* all are checked before the first is added */
        if (esp_payload_read(&a->payload[p], esp_name_hash(name), WIRE, count, &h)) return ESP_E_CORRUPT;
        if (!h.flags && h.body_bytes != 2 * count) return ESP_E_CORRUPT;
    }
    if (a->mode == ESP_OUT_SET && count) memset(out, 0, count * sizeof *out);
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_read(&a->payload[p], esp_name_hash(name), WIRE, count, &h);
        const uint16_t *body = esp_payload_body(&a->payload[p]);
        for (uint64_t i = 0; i < count; i++) {
            const uint32_t bits = h.flags ? 0 : (uint32_t)body[i] << 16;
            float value;
            memcpy(&value, &bits, 4);
            out[i] += h.flags & ESP_PAYLOAD_NONFINITE ? NAN : value * scale;
        }
    }
    return ESP_OK;
}

static const esp_codec codec = {
    .struct_size = sizeof codec,
    .wire_version = WIRE,
    .caps = ESP_CODEC_DETERMINISTIC,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = name,
    .summary = "the upper 16 bits of each number",
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .open = open_codec,
    .close = close_codec,
    .bound = bound,
    .compress = compress,
    .decompress = decompress,
    .family = "quantize",
};
ESP_PLUGIN_CODEC(truncate, &codec)
