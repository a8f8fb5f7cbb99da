/* example.c: a codec for matrices to copy as the start of your own. It sends the mean of each row, to which all
 * elements of the row decode.
 * The body is the means as f32, or if a tensor is no matrix its numbers. Collectives can sum bodies without decoding,
 * since the sum of means is the mean of sums. Because of ESP_CODEC_NEEDS_MATRIX the host splits matrices between rows,
 * so that rows * cols == count. The host computes the residual, since this codec does not set
 * ESP_CODEC_FUSED_RESIDUAL. */
#include "espresso.h"
#include <math.h>

/* Increase this version when the payload's format changes: ranks with different versions do not start. */
enum { EXAMPLE_WIRE = 1 };
static const char example_name[] = "example";
static char example_self; /* a codec without parameters needs no memory */

static esp_status example_open(const esp_host *h, const char *params, void **self) {
    const esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, ESP_E_ARG, 0, example_name, params, __FILE__};
    *self = &example_self;
    if (!*params) return ESP_OK;
    h->log(h->user, &ev); /* logs the unexpected parameter */
    return ESP_E_ARG;
}
static void example_close(void *self) { (void)self; }

/* Returns how many numbers a payload has. */
static uint64_t example_numbers(const esp_tensor *t) { return t->rows ? t->rows : t->count; }

static esp_status example_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                esp_bound *out) {
    (void)self;
    (void)round, (void)n_reduced; /* for codecs with several rounds, or whose payloads grow when they are summed */
    const esp_bound b = {out->struct_size, 0, esp_payload_capacity(example_numbers(like) * 4), 0,
                         0}; /* no scratch memory, no state */
    memcpy(out, &b,
           out->struct_size < sizeof b ? out->struct_size : sizeof b); /* an older caller has a shorter struct */
    return ESP_OK;
}

static esp_status example_compress(void *self, const esp_codec_args *a) {
    const esp_tensor *t = a->tensor[0];
    const float *x = t->data.ptr;
    const uint64_t n = example_numbers(t), cols = t->rows ? t->cols : 1;
    esp_payload_header h = esp_payload_header_of(esp_name_hash(example_name), EXAMPLE_WIRE, 0, t->count, n * 4, 0);
    (void)self;
    if (a->payload->data.bytes < ESP_PAYLOAD_HEADER + h.body_bytes) return ESP_E_TOO_SMALL;
    for (uint64_t i = 0; i < t->count; i++)
        if (!isfinite(x[i])) h.flags = ESP_PAYLOAD_NONFINITE; /* sent with all numbers, since collectives sum them */
    esp_payload_begin(a->payload, &h);
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint64_t j = 0; j < cols; j++) sum += x[i * cols + j]; /* in one fixed order */
        const float mean = (float)(sum / (double)cols);
        memcpy((unsigned char *)esp_payload_body(a->payload) + i * 4, &mean, 4);
    }
    return ESP_OK;
}

static esp_status example_read(const esp_payload *p, const esp_tensor *t, esp_payload_header *h) {
    if (esp_payload_read(p, esp_name_hash(example_name), EXAMPLE_WIRE, t->count, h) != ESP_OK) return ESP_E_CORRUPT;
    return h->body_bytes == (h->flags & ESP_PAYLOAD_EMPTY ? 0 : example_numbers(t) * 4) ? ESP_OK : ESP_E_CORRUPT;
}

static esp_status example_decompress(void *self, const esp_codec_args *a) {
    const esp_tensor *t = a->tensor[0];
    float *out = t->data.ptr;
    const float scale = a->scale == 0 ? 1.0f : a->scale;
    const uint64_t cols = t->rows ? t->cols : 1;
    esp_payload_header h;
    (void)self;
    for (uint32_t p = 0; p < a->n_payloads; p++) /* check all payloads before writing */
        if (example_read(&a->payload[p], t, &h) != ESP_OK) return ESP_E_CORRUPT;
    if (a->mode == ESP_OUT_SET && t->count) memset(out, 0, t->count * sizeof *out);
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        example_read(&a->payload[p], t, &h);
        if (h.flags & ESP_PAYLOAD_EMPTY) continue;
        for (uint64_t i = 0; i < t->count; i++) {
            float mean;
            memcpy(&mean, (const unsigned char *)esp_payload_body(&a->payload[p]) + i / cols * 4, 4);
            out[i] += h.flags & ESP_PAYLOAD_NONFINITE ? NAN : scale * mean;
        }
    }
    return ESP_OK;
}

static const esp_round example_rounds[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static const esp_codec example_codec = {
    .struct_size = sizeof example_codec,
    .wire_version = EXAMPLE_WIRE,
    .caps = ESP_CODEC_DETERMINISTIC | ESP_CODEC_REDUCIBLE | ESP_CODEC_NEEDS_MATRIX,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = example_name,
    .summary = "the mean of each row of a matrix",
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .rounds = example_rounds,
    .open = example_open,
    .close = example_close,
    .bound = example_bound,
    .compress = example_compress,
    .decompress = example_decompress,
    .family = "low rank",
};
ESP_PLUGIN_CODEC(example, &example_codec)
