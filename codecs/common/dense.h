/* dense.h: shared by the codecs that send every element: work in blocks over all workers, the compensated gradient phi,
 * the check for NaN and Inf, and decoding of many payloads. Knows no codec's format.
 *
 * phi = beta * residual + gamma * gradient is what a codec encodes. A part with a NaN or Inf must leave the residual
 * unchanged, so with feedback a first pass checks phi of the whole part before a second pass writes. */
#ifndef ESP_DENSE_H
#define ESP_DENSE_H
#include "espresso.h"
#include "codecs/common/simd.h"
#include "codecs/common/model.h"
#include "codecs/common/params.h"

/* A block and its results fit the first-level cache. A worker gets whole norm blocks (norm.h). */
enum { DENSE_BLOCK = 1024, DENSE_GRAIN = 32 * DENSE_BLOCK };
/* a payload's body may have any alignment */
typedef float dense_f32 __attribute__((aligned(1), may_alias));
typedef uint16_t dense_u16 __attribute__((aligned(1), may_alias));

ESP_ELEMENT uint32_t dense_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
ESP_ELEMENT float dense_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
/* Bit 31 of the result is set for NaN and Inf, because their exponent of all ones carries into it. The other bits mean
 * nothing. Bit 31 of the OR of many results tells whether one of the numbers is not finite. */
ESP_ELEMENT uint32_t dense_nonfinite(float x) { return (dense_bits(x) & 0x7FFFFFFFu) + 0x00800000u; }
ESP_ELEMENT int dense_bad(float x) { return dense_nonfinite(x) >> 31 != 0; }

ESP_INLINE uint64_t dense_check_body(const float *g, uint64_t n) {
    uint32_t any = 0;
    ESP_SIMD_REDUCE(|, any)
    for (uint64_t i = 0; i < n; i++) any |= dense_nonfinite(g[i]);
    return any >> 31;
}
/* beta and gamma are nearly always 1; then the products are left out, with the same result */
ESP_INLINE uint64_t dense_check_phi_body(const float *g, const float *e, float beta, float gamma, uint64_t n) {
    uint32_t any = 0;
    if (beta == 1 && gamma == 1) {
        ESP_SIMD_REDUCE(|, any)
        for (uint64_t i = 0; i < n; i++) any |= dense_nonfinite(e[i] + g[i]);
    } else {
        ESP_SIMD_REDUCE(|, any)
        for (uint64_t i = 0; i < n; i++) any |= dense_nonfinite(beta * e[i] + gamma * g[i]);
    }
    return any >> 31;
}
ESP_INLINE uint64_t dense_phi_body(float *restrict phi, const float *g, const float *e, float beta, float gamma,
                                   uint64_t n) {
    if (beta == 1 && gamma == 1) {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) phi[i] = e[i] + g[i];
    } else {
        ESP_SIMD
        for (uint64_t i = 0; i < n; i++) phi[i] = beta * e[i] + gamma * g[i];
    }
    return 0;
}
ESP_INLINE uint64_t dense_fill_body(float *out, float x, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) out[i] = x;
    return 0;
}
ESP_KERNEL(dense_check, (const float *g, uint64_t n), (g, n))
ESP_KERNEL(dense_check_phi, (const float *g, const float *e, float beta, float gamma, uint64_t n),
           (g, e, beta, gamma, n))
ESP_KERNEL(dense_phi, (float *restrict phi, const float *g, const float *e, float beta, float gamma, uint64_t n),
           (phi, g, e, beta, gamma, n))
ESP_KERNEL(dense_fill, (float *out, float x, uint64_t n), (out, x, n))

/* The first member of a dense codec's self. */
typedef struct dense_self {
    const esp_host *host;
    int level;
    dense_check_fn check;
    dense_check_phi_fn check_phi;
    dense_phi_fn phi;
    dense_fill_fn fill;
} dense_self;

static inline void dense_open(dense_self *s, const esp_host *h) {
    s->host = h;
    s->level = esp_simd_level();
    s->check = dense_check_for(s->level);
    s->check_phi = dense_check_phi_for(s->level);
    s->phi = dense_phi_for(s->level);
    s->fill = dense_fill_for(s->level);
}

/* Runs body over [0, n), on all workers where n is large. Pieces begin at multiples of DENSE_BLOCK. */
static inline void dense_run(const dense_self *s, uint64_t n, void (*body)(void *arg, uint64_t begin, uint64_t end),
                             void *arg) {
    esp_codec_parallel(s->host, n, DENSE_GRAIN, body, arg);
}

static inline const float *dense_in(const esp_codec_args *a) { return (const float *)a->tensor[0]->data.ptr; }
static inline float *dense_out(const esp_codec_args *a) { return (float *)a->tensor[0]->data.ptr; }

/* phi of one block: without feedback the gradient itself, else computed in `tmp`. */
static inline const float *dense_block_phi(const dense_self *s, const esp_codec_args *a, uint64_t at, uint64_t n,
                                           float *tmp) {
    const float *e = esp_residual_of(a, 0);
    if (!e) return dense_in(a) + at;
    s->phi(tmp, dense_in(a) + at, e + at, a->beta, a->gamma, n);
    return tmp;
}

/* ---- compress ------------------------------------------------------------------------------------------ */
typedef struct dense_job {
    const dense_self *self;
    const esp_codec_args *args;
    void *user;
    /* Writes one block of the body and, with feedback, of the residual. */
    void (*encode)(void *user, const float *phi, float *residual, uint64_t at, uint64_t n);
    uint32_t bad;
} dense_job;

static inline void dense_check_piece(void *arg, uint64_t begin, uint64_t end) {
    dense_job *j = (dense_job *)arg;
    const esp_codec_args *a = j->args;
    if (j->self->check_phi(dense_in(a) + begin, esp_residual_of(a, 0) + begin, a->beta, a->gamma, end - begin))
        __atomic_store_n(&j->bad, 1, __ATOMIC_RELAXED);
}

static inline void dense_encode_piece(void *arg, uint64_t begin, uint64_t end) {
    dense_job *j = (dense_job *)arg;
    const esp_codec_args *a = j->args;
    float tmp[DENSE_BLOCK], *e = esp_residual_of(a, 0);
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        const float *phi = dense_block_phi(j->self, a, at, n, tmp);
        if (!e && j->self->check(phi, n)) {
            __atomic_store_n(&j->bad, 1, __ATOMIC_RELAXED);
            return;
        }
        j->encode(j->user, phi, e ? e + at : NULL, at, n);
    }
}

/* 1 if all of phi is finite. Without feedback always 1: the pass that encodes looks. */
static inline int dense_finite(const dense_self *s, const esp_codec_args *a) {
    dense_job j = {s, a, NULL, NULL, 0};
    if (a->residual) dense_run(s, a->tensor[0]->count, dense_check_piece, &j);
    return !j.bad;
}

/* Encodes all blocks. Returns 0 if an element is NaN or Inf: the residual is then unchanged, the body not valid. */
static inline int dense_encode(const dense_self *s, const esp_codec_args *a, void *user,
                               void (*encode)(void *, const float *, float *, uint64_t, uint64_t)) {
    dense_job j = {s, a, user, encode, 0};
    if (!dense_finite(s, a)) return 0;
    dense_run(s, a->tensor[0]->count, dense_encode_piece, &j);
    return !j.bad;
}

/* Ends a compress of a part with NaN or Inf: sets the flag, and sends a body of `body` bytes of NaN. */
static inline esp_status dense_send_nan(esp_payload *p, esp_payload_header *h, uint64_t body) {
    const float nan = dense_float(0x7FC00000u);
    for (uint64_t i = 0; i < body; i += sizeof nan) memcpy((unsigned char *)esp_payload_body(p) + i, &nan, sizeof nan);
    h->flags = ESP_PAYLOAD_NONFINITE;
    h->body_bytes = body;
    return esp_payload_begin(p, h);
}

/* ---- decompress ---------------------------------------------------------------------------------------- */
/* What of a payload is added to a block of the result: elements [at, at + n) of the part. */
typedef struct dense_block {
    const esp_payload_header *header;
    const unsigned char *body;
    float *out; /* of element `at` */
    uint64_t at, n;
    float scale;
    int set; /* 1: out is overwritten */
} dense_block;

/* A codec's format, as decoding needs it. */
typedef struct dense_format {
    const char *name;
    uint32_t wire_version;
    int nan_body; /* 1: a payload with the flag NONFINITE has a body too (REDUCIBLE codecs) */
    /* 1 if header and body are valid; NULL: every body of the right size is. */
    int (*valid)(const void *self, const esp_payload_header *h, const unsigned char *body);
    /* out := (set ? 0 : out) + scale * decoded */
    void (*add)(const void *self, const dense_block *b);
} dense_format;

typedef struct dense_sum {
    const dense_format *format;
    const dense_self *self;
    const esp_codec_args *args;
    int nan;
    uint64_t block;
} dense_sum;

static inline void dense_sum_block(const dense_sum *d, float *out, uint64_t at, uint64_t n, float scale) {
    esp_payload_header h;
    dense_block b = {&h, NULL, out, at, n, scale, d->args->mode == ESP_OUT_SET};
    for (uint32_t p = 0; p < d->args->n_payloads; p++) {
        const unsigned char *data = (const unsigned char *)d->args->payload[p].data.ptr;
        memcpy(&h, data, sizeof h);
        if (h.flags & ESP_PAYLOAD_EMPTY) continue;
        b.body = data + ESP_PAYLOAD_HEADER;
        d->format->add(d->self, &b);
        b.set = 0;
    }
    if (b.set) memset(out, 0, n * sizeof *out);
}

static inline void dense_sum_piece(void *arg, uint64_t begin, uint64_t end) {
    const dense_sum *d = (const dense_sum *)arg;
    float *out = dense_out(d->args);
    const float scale = d->args->scale == 0 ? 1 : d->args->scale;
    if (d->nan) {
        d->self->fill(out + begin, dense_float(0x7FC00000u), end - begin);
        return;
    }
    for (uint64_t at = begin; at < end; at += d->block)
        dense_sum_block(d, out + at, at, end - at < d->block ? end - at : d->block, scale);
}

/* Reads the header of a payload whose full body has `body` bytes, and checks the whole payload. */
static inline esp_status dense_look(const dense_self *s, const dense_format *f, const esp_payload *p, uint64_t count,
                                    uint64_t body, esp_payload_header *h) {
    memset(h, 0, sizeof *h);
    const esp_status st = esp_payload_read(p, esp_name_hash(f->name), f->wire_version, count, h);
    const int nan = h->flags & ESP_PAYLOAD_NONFINITE, empty = h->flags & ESP_PAYLOAD_EMPTY;
    if (st != ESP_OK || (nan && empty)) return ESP_E_CORRUPT;
    if (h->body_bytes != (empty || (nan && !f->nan_body) ? 0 : body)) return ESP_E_CORRUPT;
    const int full = !nan && !empty && body;
    if (full && f->valid && !f->valid(s, h, (const unsigned char *)esp_payload_body(p))) return ESP_E_CORRUPT;
    return ESP_OK;
}

/* decompress() of a dense codec; `body` is the size of a full body. Checks all payloads before it writes. The format's add() gets
 * blocks of `block` elements, a power of two up to DENSE_GRAIN. */
static inline esp_status dense_decompress_by(const dense_self *s, const dense_format *f, const esp_codec_args *a,
                                             uint64_t body, uint64_t block) {
    dense_sum d = {f, s, a, 0, block};
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_header h;
        const esp_status st = dense_look(s, f, &a->payload[p], a->tensor[0]->count, body, &h);
        if (st != ESP_OK) return st;
        d.nan |= (h.flags & ESP_PAYLOAD_NONFINITE) != 0;
    }
    dense_run(s, a->tensor[0]->count, dense_sum_piece, &d);
    return ESP_OK;
}
static inline esp_status dense_decompress(const dense_self *s, const dense_format *f, const esp_codec_args *a,
                                          uint64_t body) {
    return dense_decompress_by(s, f, a, body, DENSE_BLOCK);
}

#endif
