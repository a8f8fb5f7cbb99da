/* plain.h: encodes and decodes uncompressed f32 numbers, for codecs none, warmup and powersgd. For a tensor with NaN
 * or Inf it sends only NaNs or, if collectives never sum the payloads, only a header. */
#ifndef ESP_PLAIN_H
#define ESP_PLAIN_H
#include "codecs/common/dense.h"

ESP_INLINE uint64_t plain_add_body(float *out, const dense_f32 *in, float scale, int set, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float x = scale * in[i];
        out[i] = set ? x : out[i] + x;
    }
    return 0;
}
ESP_KERNEL(plain_add, (float *out, const dense_f32 *in, float scale, int set, uint64_t n), (out, in, scale, set, n))

static inline void plain_encode(void *user, const float *phi, float *residual, uint64_t at, uint64_t n) {
    memcpy((unsigned char *)user + at * sizeof(float), phi, n * sizeof(float));
    if (residual) memset(residual, 0, n * sizeof(float));
}

static inline void plain_decode(const void *self, const dense_block *b) {
    const unsigned char *in = b->body + b->at * sizeof(float);
    if (b->set && b->scale == 1)
        memcpy(b->out, in, b->n * sizeof(float));
    else
        plain_add_for(((const dense_self *)self)->level)(b->out, (const dense_f32 *)in, b->scale, b->set, b->n);
}

static inline esp_status plain_compress(const dense_self *s, const dense_format *f, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h =
        esp_payload_header_of(esp_name_hash(f->name), (uint16_t)f->wire_version, 0, n, n * sizeof(float), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    if (dense_encode(s, a, esp_payload_body(a->payload), plain_encode)) return ESP_OK;
    return dense_send_nan(a->payload, &h, f->nan_body ? h.body_bytes : 0);
}
#endif
