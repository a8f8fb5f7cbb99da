/* serial.h: shared by codecs whose payload is a stream of bytes without fixed places, so that one thread writes it and
 * one reads it. If the body begins with the ends of its segments, GPUs process these in parallel. */
#ifndef ESP_SERIAL_H
#define ESP_SERIAL_H
#include "codecs/common/quant.h"

enum { SERIAL_BLOCK = 1280, SERIAL_SEGMENT = 16 /* blocks in a segment */ };

typedef struct serial_self serial_self;
/* What encoding a tensor remembers from block to block. */
typedef struct serial_state {
    float max; /* largest magnitude of the tensor; 0 if that is subnormal */
    const esp_codec_args *args;
    unsigned char *body;
    uint64_t at; /* the block's first element */
} serial_state;

typedef struct serial_format {
    const char *name;
    uint64_t block; /* elements in a block, at most SERIAL_BLOCK */
    bool segments;  /* the body begins with a u64 for each segment: where in the body its last block ends */
    /* Returns the size of the largest body of n > 0 elements. */
    uint64_t (*largest)(const serial_self *s, uint64_t n);
    /* Writes what comes before the first block, after the ends of segments. NULL if there is nothing. */
    unsigned char *(*begin)(const serial_self *s, serial_state *st, unsigned char *to);
    /* Writes a block of n finite elements, and their residual to `e` if that is not NULL. Returns the end. */
    unsigned char *(*encode)(const serial_self *s, serial_state *st, unsigned char *to, float *e, const float *phi,
                             uint64_t n);
    bool (*valid)(const serial_self *s, const unsigned char *body, uint64_t bytes, uint64_t n);
    /* Adds the values of a valid body times `scale` to `out`, or overwrites `out` if `set`. */
    void (*decode)(const serial_self *s, const unsigned char *body, uint64_t bytes, float *out, float scale, bool set,
                   uint64_t n);
} serial_format;

/* Every codec's own struct `self` must begin with this. */
struct serial_self {
    dense_self dense;
    const serial_format *format;
};

ESP_ELEMENT uint64_t serial_blocks(uint64_t block, uint64_t n) { return (n + block - 1) / block; }
ESP_ELEMENT uint64_t serial_segments(uint64_t block, uint64_t n) { return serial_blocks(SERIAL_SEGMENT * block, n); }
/* Checks that segments end in order, the last one where the body ends. The first one begins at byte `first`. */
static inline bool serial_ends_ok(const unsigned char *body, uint64_t bytes, uint64_t first, uint64_t segments) {
    uint64_t end;
    if (bytes < first) return false;
    for (uint64_t i = 0; i < segments; i++, first = end) {
        memcpy(&end, body + 8 * i, sizeof end);
        if (end < first || end > bytes) return false;
    }
    return first == bytes;
}

typedef struct serial_job {
    const serial_self *self;
    const esp_codec_args *args;
    uint32_t top;
} serial_job;

static inline void serial_top(void *arg, uint64_t begin, uint64_t end) {
    serial_job *j = (serial_job *)arg;
    const float *e = esp_residual_of(j->args, 0);
    esp_codec_raise(&j->top,
                    (uint32_t)quant_top_for(j->self->dense.level)(dense_in(j->args) + begin, e ? e + begin : NULL,
                                                                  j->args->beta, j->args->gamma, end - begin));
}

static inline esp_status serial_compress(void *self, const esp_codec_args *a) {
    const serial_self *s = (const serial_self *)self;
    const serial_format *f = s->format;
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash(f->name), 1, 0, n, n ? f->largest(s, n) : 0, 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || !n) return st;
    serial_job j = {s, a, 0};
    dense_run(&s->dense, n, serial_top, &j);
    if (j.top >= QUANT_INF) return dense_send_nan(a->payload, &h, 0);
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload), *to = body;
    serial_state state = {j.top < QUANT_LEAST ? 0 : bits_float(j.top), a, body, 0};
    if (f->segments) to += 8 * serial_segments(f->block, n);
    if (f->begin) to = f->begin(s, &state, to);
    float tmp[SERIAL_BLOCK], *e = esp_residual_of(a, 0);
    for (uint64_t at = 0; at < n; at += f->block) {
        const uint64_t len = n - at < f->block ? n - at : f->block;
        state.at = at;
        to = f->encode(s, &state, to, e ? e + at : NULL, dense_block_phi(&s->dense, a, at, len, tmp), len);
        const uint64_t end = (uint64_t)(to - body);
        if (f->segments) memcpy(body + 8 * (at / f->block / SERIAL_SEGMENT), &end, sizeof end);
    }
    h.body_bytes = (uint64_t)(to - body);
    return esp_payload_begin(a->payload, &h);
}

static inline esp_status serial_decompress(void *self, const esp_codec_args *a) {
    const serial_self *s = (const serial_self *)self;
    const serial_format *f = s->format;
    const uint64_t n = a->tensor[0]->count;
    bool nan = false, set = a->mode == ESP_OUT_SET;
    esp_payload_header h;
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        if (esp_payload_read(&a->payload[p], esp_name_hash(f->name), 1, n, &h) != ESP_OK || h.aux ||
            (h.flags || !n ? h.body_bytes != 0
                           : !f->valid(s, (const unsigned char *)esp_payload_body(&a->payload[p]), h.body_bytes, n)))
            return ESP_E_CORRUPT;
        nan |= (h.flags & ESP_PAYLOAD_NONFINITE) != 0;
    }
    if (nan) {
        dense_fill_nan(dense_out(a), n);
        return ESP_OK;
    }
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        memcpy(&h, a->payload[p].data.ptr, sizeof h);
        if (!h.body_bytes) continue;
        f->decode(s, (const unsigned char *)esp_payload_body(&a->payload[p]), h.body_bytes, dense_out(a),
                  a->scale != 0 ? a->scale : 1, set, n);
        set = false;
    }
    if (set) memset(dense_out(a), 0, 4 * n);
    return ESP_OK;
}

static inline esp_status serial_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                      esp_bound *out) {
    const serial_self *s = (const serial_self *)self;
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, like->count ? s->format->largest(s, like->count) : 0, 0, 0);
}
#endif
