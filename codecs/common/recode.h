/* recode.h: implements of=(SPEC) of codecs fp16 and bf16: the codec SPEC compresses, and the f32 numbers in its payload
 * are shortened to 16 bits. If payloads will be added, or are sums over ranks themselves, numbers are multiplied by
 * 2^-a (recode_exponent), so that no sum overflows. Numbers beyond the range are limited to it, and error feedback
 * keeps the difference. */
#ifndef ESP_RECODE_H
#define ESP_RECODE_H
#include "codecs/common/dense.h"
#include "codecs/common/half.h"
#include "codecs/common/wrap.h"

enum { RECODE_TRIAL = 1 << 20, RECODE_GRAIN = 32768 };

/* Capabilities that fp16 and bf16 have only with of=(SPEC), but declare always. */
#define RECODE_CAPS (ESP_CODEC_WRAPPER | ESP_CODEC_HAS_STATE | ESP_CODEC_NEEDS_MATRIX)

typedef struct recode_format {
    const char *name;
    uint32_t wire_version;
    bool is_f16; /* false means bf16 */
    float largest;
    uint16_t nan;
    uint64_t most_exponent;  /* payloads are multiplied by 2^-a, with a up to this */
    double error;            /* mean squared error of rounding */
    const esp_round *rounds; /* describes the codec's single exchange */
} recode_format;

/* Returns the exponent a: the sum of n_payloads payloads, multiplied by 2^-a, stays in range. A payload may itself be a
 * sum over ranks (esp_summed_of). */
static inline uint64_t recode_exponent(const recode_format *f, const esp_codec_args *args, uint32_t n_payloads) {
    const uint64_t n = (uint64_t)n_payloads * esp_summed_of(args);
    uint64_t a = 0;
    while (a < f->most_exponent && (uint64_t)1 << a < n) a++;
    return a;
}
/* Returns the largest magnitude of a number before it is multiplied by 2^-a: the format's largest one or, for a sum
 * over n ranks in f16, n times as much. */
static inline float recode_most(const recode_format *f, const esp_codec_args *a) {
    return f->is_f16 ? f->largest * (float)esp_summed_of(a) : f->largest;
}

typedef struct recode {
    const recode_format *format;
    wrap_inner inner;
    int simd;
    bool reducible; /* collectives can sum payloads */
} recode;

/* Asks the inner codec where its payload, of at most `most` bytes after the header, has f32 numbers. Returns false if
 * the codec fails or its answer does not fit. */
static inline bool recode_values(const recode *r, const esp_tensor *like, const esp_payload_header *h, uint64_t most,
                                 esp_values *v) {
    memset(v, 0, sizeof *v);
    return r->inner.table->values(r->inner.self, like, h, v) == ESP_OK && v->offset % 4 == 0 && v->offset <= most &&
           v->count <= (most - v->offset) / 4 && v->rest <= most - v->offset - 4 * v->count;
}

static inline esp_status recode_open(recode *r, const recode_format *f, const esp_host *h, const char *of) {
    r->format = f;
    r->simd = esp_simd_level();
    esp_status s = wrap_open(h, f->name, of, &r->inner);
    if (s != ESP_OK) return s;
    const esp_tensor like = {.struct_size = sizeof like, .dtype = ESP_F32, .count = RECODE_TRIAL};
    esp_bound b;
    esp_values v;
    const esp_traits *t = &r->inner.traits;
    if (!ESP_HAS(esp_codec, r->inner.table, values)) {
        s = wrap_fail(h, f->name, of, ESP_E_UNSUPPORTED,
                      "its payloads contain no plain numbers that could be shortened");
    } else if (t->caps & ESP_CODEC_REDUCIBLE && t->rounds && t->rounds[0].op == ESP_REDUCE_SUM &&
               t->rounds[0].dtype == ESP_F32 && wrap_bound(&r->inner, &like, 0, 2, &b) == ESP_OK) {
        r->reducible = recode_values(r, &like, NULL, b.payload_bytes - ESP_PAYLOAD_HEADER, &v) && !v.offset && !v.rest;
    }
    if (s != ESP_OK) wrap_close(&r->inner);
    return s;
}

static inline esp_status recode_traits(const recode *r, esp_traits *out) {
    const esp_traits *t = &r->inner.traits;
    const uint64_t kept =
        ESP_CODEC_HAS_STATE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_NEEDS_MATRIX | ESP_CODEC_NO_FEEDBACK;
    out->wire_version = wrap_wire_version(r->format->wire_version, &r->inner);
    out->caps = ESP_CODEC_WRAPPER | (t->caps & kept) | (r->reducible ? (uint64_t)ESP_CODEC_REDUCIBLE : 0);
    out->rounds = r->reducible ? r->format->rounds : NULL;
    out->default_option = t->caps & ESP_CODEC_REDUCIBLE && !r->reducible ? NULL : t->default_option;
    return ESP_OK;
}

/* The payload is at most as long as the inner codec's longest one with 2 instead of 4 bytes per value. */
static inline esp_status recode_bound(const recode *r, const esp_tensor *like, uint32_t n_reduced, esp_bound *out) {
    esp_bound b;
    esp_values v;
    const esp_status s = wrap_bound(&r->inner, like, 0, n_reduced, &b);
    if (s != ESP_OK) return s;
    if (b.payload_bytes < ESP_PAYLOAD_HEADER || !recode_values(r, like, NULL, b.payload_bytes - ESP_PAYLOAD_HEADER, &v))
        return ESP_E_ABI;
    return esp_bound_fill(out, v.offset + 2 * v.count + v.rest, wrap_round(b.payload_bytes) + b.scratch_bytes,
                          b.state_bytes);
}

/* ---- the values of one payload ----------------------------------------------------------------------------------- */
typedef struct recode_job {
    const recode *r;
    float *values;
    half_u16 *halves;
    float down, up, most;
} recode_job;

static inline void recode_to_halves(void *arg, uint64_t begin, uint64_t end) {
    const recode_job *j = (const recode_job *)arg;
    float *v = j->values;
    for (uint64_t i = begin; i < end; i++) v[i] = half_clamp(v[i], j->most);
    half_encode_for(j->r->format->is_f16, j->r->simd)(j->halves + begin, v + begin, NULL, j->down, j->most,
                                                      end - begin);
}
static inline void recode_from_halves(void *arg, uint64_t begin, uint64_t end) {
    const recode_job *j = (const recode_job *)arg;
    half_add_for(j->r->format->is_f16, j->r->simd)(j->values + begin, j->halves + begin, j->up, 1, end - begin);
}
static inline recode_job recode_job_of(const recode *r, const esp_codec_args *a, void *values, void *halves) {
    const float up = (float)((uint64_t)1 << recode_exponent(r->format, a, r->reducible ? a->n_reduced : 1));
    return (recode_job){r, (float *)values, (half_u16 *)halves, 1 / up, up, recode_most(r->format, a)};
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
static inline esp_status recode_scratch(const recode *r, const esp_codec_args *a, esp_payload *inner, esp_buf *left,
                                        uint64_t *body) {
    esp_bound b;
    const esp_status s = wrap_bound(&r->inner, a->tensor[0], 0, a->n_reduced, &b);
    if (s != ESP_OK) return s;
    memset(inner, 0, sizeof *inner);
    memset(left, 0, sizeof *left);
    if (a->scratch) *left = *a->scratch;
    inner->data.bytes = b.payload_bytes;
    inner->data.ptr = wrap_take(left, b.payload_bytes);
    *body = b.payload_bytes - ESP_PAYLOAD_HEADER;
    if (!inner->data.ptr || left->bytes < b.scratch_bytes)
        return esp_codec_fail(r->inner.host, r->format->name, ESP_E_ARG,
                              "scratch memory is less than bound() requires");
    return ESP_OK;
}

static inline esp_status recode_compress(const recode *r, const esp_codec_args *a) {
    esp_codec_args in = esp_codec_args_of(a);
    esp_payload inner;
    esp_payload_header h;
    esp_buf left;
    esp_values v = {0, 0, 0};
    uint64_t used = 0, most;
    esp_status s = recode_scratch(r, a, &inner, &left, &most);
    if (s != ESP_OK) return s;
    inner.used = &used;
    in.payload = &inner;
    in.scratch = left.bytes ? &left : NULL;
    in.residual = NULL; /* the host computes it */
    in.flags &= ~(uint32_t)ESP_ARG_OWN_MEMORY;
    s = r->inner.table->compress(r->inner.self, &in);
    if (s != ESP_OK) return s;
    memcpy(&h, inner.data.ptr, sizeof h);
    if (h.body_bytes && (h.body_bytes > most || !recode_values(r, a->tensor[0], &h, h.body_bytes, &v) ||
                         h.body_bytes != v.offset + 4 * v.count + v.rest))
        return esp_codec_fail(r->inner.host, r->format->name, ESP_E_ABI,
                              "the inner codec's values() does not describe its body");
    h.codec = esp_name_hash(r->format->name);
    h.wire_version = (uint16_t)wrap_wire_version(r->format->wire_version, &r->inner);
    h.body_bytes = v.offset + 2 * v.count + v.rest;
    s = esp_payload_begin(a->payload, &h);
    if (s != ESP_OK) return s;
    unsigned char *from = (unsigned char *)esp_payload_body(&inner);
    unsigned char *out = (unsigned char *)esp_payload_body(a->payload);
    recode_job j = recode_job_of(r, a, from + v.offset, out + v.offset);
    memcpy(out, from, v.offset);
    if (h.flags & ESP_PAYLOAD_NONFINITE)
        half_fill(out + v.offset, r->format->nan, v.count);
    else
        esp_codec_parallel(r->inner.host, v.count, RECODE_GRAIN, recode_to_halves, &j);
    memcpy(out + v.offset + 2 * v.count, from + v.offset + 4 * v.count, v.rest);
    return ESP_OK;
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
/* Checks a payload's header and size. The inner payload has at most `most` bytes after its header. */
static inline esp_status recode_check(const recode *r, const esp_codec_args *a, const esp_payload *p, uint64_t most,
                                      esp_payload_header *h, esp_values *v) {
    const uint32_t wire = wrap_wire_version(r->format->wire_version, &r->inner);
    memset(v, 0, sizeof *v);
    const esp_status s = esp_payload_read(p, esp_name_hash(r->format->name), wire, a->tensor[0]->count, h);
    if (s != ESP_OK || !h->body_bytes) return s;
    return recode_values(r, a->tensor[0], h, most, v) && h->body_bytes == v->offset + 2 * v->count + v->rest
               ? ESP_OK
               : ESP_E_CORRUPT;
}

/* Writes the inner payload, with f32 values, from the payload `p`, with 16-bit values. */
static inline void recode_expand(const recode *r, const esp_codec_args *a, const esp_payload *p,
                                 const esp_payload_header *outer, const esp_values *v, esp_payload *inner) {
    unsigned char *from = (unsigned char *)esp_payload_body(p); /* is not written to */
    unsigned char *to = (unsigned char *)esp_payload_body(inner);
    const uint16_t flags = outer->flags & (ESP_PAYLOAD_NONFINITE | ESP_PAYLOAD_EMPTY);
    const esp_payload_header h =
        esp_payload_header_of(esp_name_hash(r->inner.table->name), (uint16_t)r->inner.traits.wire_version, flags,
                              outer->count, outer->body_bytes + 2 * v->count, outer->aux);
    recode_job j = recode_job_of(r, a, to + v->offset, from + v->offset);
    memcpy(to, from, v->offset);
    esp_codec_parallel(r->inner.host, v->count, RECODE_GRAIN, recode_from_halves, &j);
    memcpy(to + v->offset + 4 * v->count, from + v->offset + 2 * v->count, v->rest);
    memcpy(inner->data.ptr, &h, sizeof h);
    inner->data.bytes = ESP_PAYLOAD_HEADER + h.body_bytes;
}

/* Decodes payloads one by one, since scratch memory has room for one inner payload. All headers are checked first, but
 * other corrupt data are found only after earlier payloads have been added to the result. */
static inline esp_status recode_decompress(const recode *r, const esp_codec_args *a) {
    esp_codec_args in = esp_codec_args_of(a);
    esp_payload inner;
    esp_payload_header h;
    esp_buf left;
    esp_values v;
    uint64_t most = 0;
    esp_status s = recode_scratch(r, a, &inner, &left, &most);
    in.scratch = left.bytes ? &left : NULL;
    in.payload = &inner;
    in.n_payloads = 1;
    for (uint32_t p = 0; p < a->n_payloads && s == ESP_OK; p++) s = recode_check(r, a, &a->payload[p], most, &h, &v);
    for (uint32_t p = 0; p < a->n_payloads && s == ESP_OK; p++) {
        s = recode_check(r, a, &a->payload[p], most, &h, &v);
        if (s != ESP_OK) break;
        recode_expand(r, a, &a->payload[p], &h, &v, &inner);
        s = r->inner.table->decompress(r->inner.self, &in);
        in.mode = ESP_OUT_SUM;
    }
    return s;
}

/* ---- model ------------------------------------------------------------------------------------------------------- */
static inline esp_status recode_model(const recode *r, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                      esp_codec_model *out) {
    esp_codec_model m;
    esp_bound b;
    esp_values v;
    esp_status s = wrap_model(&r->inner, like, n_reduced, d, &m);
    if (s == ESP_OK) s = wrap_bound(&r->inner, like, 0, n_reduced, &b);
    if (s != ESP_OK) return s;
    if (!recode_values(r, like, NULL, b.payload_bytes - ESP_PAYLOAD_HEADER, &v) || !like->count) return ESP_E_ABI;
    const double values = (double)v.count / (double)like->count, moved = 6 * values; /* bytes per element */
    m.sent.per_element -= 2 * values;
    m.sent.quantum = 0;
    memset(m.reduced, 0, sizeof m.reduced);
    if (r->reducible) m.reduced[0] = m.sent;
    if (m.error >= 0) m.error += (1 - fmin(1.0, m.error)) * r->format->error;
    for (uint32_t i = 0; i < m.n_times; i++) {
        const double e = m.times[i].elements;
        const double ns =
            d.kind == ESP_CUDA ? 1e4 + moved / (double)ESP_MODEL_CUDA_RATE * e : esp_model_stream(moved) * e;
        m.times[i].compress_ns += ns;
        m.times[i].decompress_ns += ns;
    }
    return esp_model_answer(out, &m);
}
#endif
