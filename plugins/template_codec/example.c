/* example.c: a codec to copy as the start of your own. It sends each element's sign in one bit, and one common
 * magnitude s = gain * (mean of |x_i|), so that an element decodes to s or -s (Seide 2014, Karimireddy 2019).
 * The body is s as f32, then ceil(d / 8) bytes: bit i % 8 of byte i / 8 is set if element i is negative. The host
 * computes the residual and adds it to the next step's gradient, since this codec does not set
 * ESP_CODEC_FUSED_RESIDUAL. */
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Increase this version whenever the body's format changes: ranks with different versions do not start. */
enum { EXAMPLE_WIRE = 1 };
static const char example_name[] = "example";

typedef struct example {
    const esp_host *host;
    float gain;
} example;

/* Logs an error, from which the host makes the failing call's message. Returns the status. */
static esp_status example_fail(const esp_host *h, esp_status status, const char *message) {
    const esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, status, 0, example_name, message, __FILE__};
    h->log(h->user, &ev);
    return status;
}

static esp_status example_open(const esp_host *h, const char *params, void **self) {
    const esp_device cpu = {ESP_CPU, 0};
    example c = {h, 1.0f}, *out;
    char key[32], val[32], text[128];
    double gain;
    int more;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        if (strcmp(key, "gain")) {
            snprintf(text, sizeof text, "unknown parameter \"%s\": there is only gain=1", key);
            return example_fail(h, ESP_E_ARG, text);
        }
        if (!esp_params_number(val, NULL, &gain) || !(gain > 0 && gain <= 1e6))
            return example_fail(h, ESP_E_ARG, "gain must be a number above 0, at most 1e6");
        c.gain = (float)gain;
    }
    if (more < 0) return example_fail(h, ESP_E_ARG, "expected key=value");
    out = h->alloc(h->user, cpu, sizeof *out, 64);
    if (!out) return example_fail(h, ESP_E_NOMEM, "out of memory");
    *out = c;
    *self = out;
    return ESP_OK;
}

static void example_close(void *self) {
    const esp_device cpu = {ESP_CPU, 0};
    example *c = self;
    c->host->free_(c->host->user, cpu, c, sizeof *c);
}

static uint64_t example_body_bytes(uint64_t count) { return count ? 4 + (count + 7) / 8 : 0; }

static esp_status example_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                esp_bound *out) {
    (void)self;
    (void)round, (void)n_reduced; /* one round, and payloads are never summed */
    const esp_bound b = {out->struct_size, 0, esp_payload_capacity(example_body_bytes(like->count)), 0,
                         0}; /* no scratch memory, no state */
    memcpy(out, &b,
           out->struct_size < sizeof b ? out->struct_size : sizeof b); /* an older caller has a shorter struct */
    return ESP_OK;
}

static esp_status example_compress(void *self, const esp_codec_args *a) {
    const example *c = self;
    const float *x = a->tensor[0]->data.ptr;
    const uint64_t count = a->tensor[0]->count;
    esp_payload_header h =
        esp_payload_header_of(esp_name_hash(example_name), EXAMPLE_WIRE, 0, count, example_body_bytes(count), 0);
    unsigned char *body;
    double sum = 0;
    float s;
    if (a->payload->data.bytes < ESP_PAYLOAD_HEADER + h.body_bytes) return ESP_E_TOO_SMALL;
    for (uint64_t i = 0; i < count; i++) sum += fabsf(x[i]); /* one fixed order, so all machines get the same bytes */
    s = count ? (float)(sum / (double)count) * c->gain : 0;
    if (!isfinite(s)) { /* an element is NaN or Inf: send the flag but no body */
        h.flags = ESP_PAYLOAD_NONFINITE;
        h.body_bytes = 0;
        return esp_payload_begin(a->payload, &h);
    }
    esp_payload_begin(a->payload, &h);
    if (!count) return ESP_OK;
    body = esp_payload_body(a->payload);
    memcpy(body, &s, 4);
    memset(body + 4, 0, h.body_bytes - 4);
    for (uint64_t i = 0; i < count; i++) body[4 + i / 8] = (unsigned char)(body[4 + i / 8] | (x[i] < 0) << (i % 8));
    return ESP_OK;
}

/* Reads s and the sign bits of a payload. Without sign bits, *signs is NULL, and the caller adds s to all elements. */
static esp_status example_read(const esp_payload *p, uint64_t count, float *s, const unsigned char **signs) {
    esp_payload_header h;
    *s = 0;
    *signs = NULL;
    if (esp_payload_read(p, esp_name_hash(example_name), EXAMPLE_WIRE, count, &h) != ESP_OK) return ESP_E_CORRUPT;
    if (h.flags & ESP_PAYLOAD_NONFINITE) *s = NAN;
    if (h.flags || !count) return ESP_OK;
    if (h.body_bytes != example_body_bytes(count)) return ESP_E_CORRUPT;
    memcpy(s, esp_payload_body(p), 4);
    *signs = (const unsigned char *)esp_payload_body(p) + 4;
    return isfinite(*s) ? ESP_OK : ESP_E_CORRUPT;
}

static esp_status example_decompress(void *self, const esp_codec_args *a) {
    float *out = a->tensor[0]->data.ptr, s;
    const uint64_t count = a->tensor[0]->count;
    const float scale = a->scale == 0 ? 1.0f : a->scale;
    const unsigned char *signs;
    (void)self;
    for (uint32_t p = 0; p < a->n_payloads; p++) /* check all payloads before writing */
        if (example_read(&a->payload[p], count, &s, &signs) != ESP_OK) return ESP_E_CORRUPT;
    if (a->mode == ESP_OUT_SET && count) memset(out, 0, count * sizeof *out);
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        example_read(&a->payload[p], count, &s, &signs);
        s *= scale;
        for (uint64_t i = 0; i < count; i++) out[i] += signs && (signs[i / 8] >> (i % 8) & 1) ? -s : s;
    }
    return ESP_OK;
}

static const esp_codec example_codec = {
    .struct_size = sizeof example_codec,
    .wire_version = EXAMPLE_WIRE,
    .caps = ESP_CODEC_DETERMINISTIC,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = example_name,
    .summary = "sign of each element and one magnitude: 1 bit an element",
    .params = "gain=1",
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .open = example_open,
    .close = example_close,
    .bound = example_bound,
    .compress = example_compress,
    .decompress = example_decompress,
    .family = "quantize",
};
ESP_PLUGIN_CODEC(example, &example_codec)
