/* dense.h: shared by codecs: opening, work on several threads, adding gradient and residual (phi = beta * residual +
 * gamma * gradient), and decoding for codecs that send every element. If a gradient has NaN or Inf, the residual must
 * not change, so with error feedback the whole gradient is checked before any residual is written. */
#ifndef ESP_DENSE_H
#define ESP_DENSE_H
#include "espresso.h"
#include "codecs/common/simd.h"
#include "codecs/common/model.h"
#include "codecs/common/params.h"

/* Elements in a block, which fit the first-level cache, and least elements for each worker thread (a multiple of
 * NORM_BLOCK). */
enum { DENSE_BLOCK = 1024, DENSE_GRAIN = 32 * DENSE_BLOCK };
/* Of tensors with many elements, so few are encoded before the next ones are fetched. */
enum { DENSE_PIECE = 256, DENSE_LARGE = 16 * DENSE_BLOCK };
/* Numbers in a payload may have any alignment, so they are read and written through these types. */
typedef float dense_f32 __attribute__((aligned(1), may_alias));
typedef uint16_t dense_u16 __attribute__((aligned(1), may_alias));
typedef uint32_t dense_u32 __attribute__((aligned(1), may_alias));

/* Returns a word whose bit 31 is set if x is NaN or Inf: the addition makes an exponent of all ones overflow. The
 * other bits are arbitrary, so a loop can OR many results and test bit 31 once. */
ESP_ELEMENT uint32_t dense_nonfinite(float x) { return (float_bits(x) & 0x7FFFFFFFu) + 0x00800000u; }
ESP_ELEMENT bool dense_bad(float x) { return dense_nonfinite(x) >> 31 != 0; }

/* Returns a word whose bit 31 is set if |x| is at least 2^103, or x is NaN. 2^103 is half of the last place of the
 * largest float, so a smaller x added to any finite number gives a finite one. */
ESP_ELEMENT uint32_t dense_large(float x) { return (float_bits(x) & 0x7FFFFFFFu) + 0x0D000000u; }

ESP_INLINE uint64_t dense_check_body(const float *g, uint64_t n) {
    uint32_t any = 0;
    ESP_SIMD_REDUCE(|, any)
    for (uint64_t i = 0; i < n; i++) any |= dense_nonfinite(g[i]);
    return any >> 31;
}
ESP_INLINE uint64_t dense_check_large_body(const float *g, float gamma, uint64_t n) {
    uint32_t any = 0;
    ESP_SIMD_REDUCE(|, any)
    for (uint64_t i = 0; i < n; i++) any |= dense_large(gamma * g[i]);
    return any >> 31;
}
ESP_INLINE float dense_sum_of(float g, float e, float beta, float gamma, bool plain) {
    return plain ? e + g : beta * e + gamma * g;
}
ESP_INLINE uint64_t dense_check_phi_body(const float *g, const float *e, float beta, float gamma, uint64_t n) {
    const bool plain = beta == 1 && gamma == 1;
    uint32_t any = 0;
    ESP_SIMD_REDUCE(|, any)
    for (uint64_t i = 0; i < n; i++) any |= dense_nonfinite(dense_sum_of(g[i], e[i], beta, gamma, plain));
    return any >> 31;
}
/* Sets phi to beta * e + gamma * g. phi may be the same array as g or e. Returns 1 if an element is NaN or Inf. */
ESP_INLINE uint64_t dense_phi_body(float *phi, const float *g, const float *e, float beta, float gamma, uint64_t n) {
    const bool plain = beta == 1 && gamma == 1;
    uint32_t any = 0;
    ESP_SIMD_REDUCE(|, any)
    for (uint64_t i = 0; i < n; i++) {
        const float x = dense_sum_of(g[i], e[i], beta, gamma, plain);
        any |= dense_nonfinite(x);
        phi[i] = x;
    }
    return any >> 31;
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static inline void dense_put16(float *out, __m256 x, __m256 y, int set) {
    _mm256_storeu_ps(out, set ? x : _mm256_add_ps(_mm256_loadu_ps(out), x));
    _mm256_storeu_ps(out + 8, set ? y : _mm256_add_ps(_mm256_loadu_ps(out + 8), y));
}
#endif
ESP_KERNEL(dense_check, (const float *g, uint64_t n), (g, n))
ESP_KERNEL(dense_check_large, (const float *g, float gamma, uint64_t n), (g, gamma, n))
ESP_KERNEL(dense_check_phi, (const float *g, const float *e, float beta, float gamma, uint64_t n),
           (g, e, beta, gamma, n))
ESP_KERNEL(dense_phi, (float *phi, const float *g, const float *e, float beta, float gamma, uint64_t n),
           (phi, g, e, beta, gamma, n))

/* A codec's own struct `self` must begin with this one, so that the functions of this file can use it. */
typedef struct dense_self {
    const esp_host *host;
    int level;
} dense_self;

/* The first part of a codec's open(): parses the parameters, and allocates a zeroed struct of `bytes` bytes for
 * *self. */
static inline esp_status dense_open(const esp_host *h, const char *codec, const char *params, esp_param *p, int n,
                                    const char *all, size_t bytes, void **self) {
    const esp_status st = esp_params_parse(h, codec, params, p, n, all);
    if (st != ESP_OK) return st;
    dense_self *s = (dense_self *)esp_codec_self(h, bytes);
    if (!s) return ESP_E_NOMEM;
    s->host = h;
    s->level = esp_simd_level();
    *self = s;
    return ESP_OK;
}

/* Calls body for pieces of [0, n), on all worker threads if n is large. Pieces begin at multiples of DENSE_BLOCK. */
static inline void dense_run(const dense_self *s, uint64_t n, void (*body)(void *arg, uint64_t begin, uint64_t end),
                             void *arg) {
    esp_codec_parallel(s->host, n, DENSE_GRAIN, body, arg);
}

static inline const float *dense_in(const esp_codec_args *a) { return (const float *)a->tensor[0]->data.ptr; }
static inline float *dense_out(const esp_codec_args *a) { return (float *)a->tensor[0]->data.ptr; }

static inline const float *dense_block_phi(const dense_self *s, const esp_codec_args *a, uint64_t at, uint64_t n,
                                           float *tmp) {
    const float *e = esp_residual_of(a, 0);
    if (!e) return dense_in(a) + at;
    dense_phi_for(s->level)(tmp, dense_in(a) + at, e + at, a->beta, a->gamma, n);
    return tmp;
}

/* ---- compress ------------------------------------------------------------------------------------------ */
typedef struct dense_job {
    const dense_self *self;
    const esp_codec_args *args;
    void *user;
    /* Writes elements [at, at + n), given in phi, to the payload. If `residual` is not NULL, writes their residual
     * there. */
    void (*encode)(void *user, const float *phi, float *residual, uint64_t at, uint64_t n);
    uint32_t bad;
    uint64_t piece; /* elements for which encode() may be called at a time: DENSE_PIECE, or all of a block */
} dense_job;

/* Returns where a block in `room`, which has two, must begin: aligned as `b` is. Processors take a load and an earlier
 * store for the same address if the last 12 bits are equal, and then wait. So the block is about half a page away from
 * `a` and `b`, of which blocks are loaded, and stored, at the same time. */
static inline float *dense_apart(float *room, const float *a, const float *b) {
    enum { PAGE = DENSE_BLOCK * 4 };
    uintptr_t at = (uintptr_t)b + PAGE / 2;
    if (((uintptr_t)a - at + PAGE / 8) % PAGE < PAGE / 4) at -= PAGE / 4;
    return (float *)(void *)((char *)room + (at - (uintptr_t)room) % PAGE);
}

/* Whether the next gradient is fetched while phi is computed: if encode() does not come in pieces, and is so fast that
 * it has time to fetch residuals only. */
static inline bool dense_early(const dense_self *s, const float *residual) {
    return residual && s->level == ESP_SIMD_AVX512;
}

/* Fetches n numbers to the cache, while the processor computes. */
ESP_INLINE void dense_fetch(const float *next, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 16) __builtin_prefetch(next + i, 0, 3);
}

static inline void dense_check_piece(void *arg, uint64_t begin, uint64_t end) {
    dense_job *j = (dense_job *)arg;
    const esp_codec_args *a = j->args;
    const float *g = dense_in(a) + begin, *e = esp_residual_of(a, 0);
    if (e ? dense_check_phi_for(j->self->level)(g, e + begin, a->beta, a->gamma, end - begin)
          : dense_check_for(j->self->level)(g, end - begin))
        esp_codec_raise(&j->bad, 1);
}

static inline void dense_large_piece(void *arg, uint64_t begin, uint64_t end) {
    dense_job *j = (dense_job *)arg;
    if (dense_check_large_for(j->self->level)(dense_in(j->args) + begin, j->args->gamma, end - begin))
        esp_codec_raise(&j->bad, 1);
}

static inline void dense_encode_piece(void *arg, uint64_t begin, uint64_t end) {
    dense_job *j = (dense_job *)arg;
    const esp_codec_args *a = j->args;
    const dense_check_fn check = dense_check_for(j->self->level);
    const dense_phi_fn sum = dense_phi_for(j->self->level);
    const float *g = dense_in(a);
    float room[2 * DENSE_BLOCK], *e = esp_residual_of(a, 0), *tmp = dense_apart(room, g, e ? e : g);
    const uint64_t piece = end - begin >= DENSE_LARGE ? j->piece : DENSE_BLOCK;
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        const bool large = end - begin >= DENSE_LARGE && end - at >= 2 * DENSE_BLOCK;
        const bool fetch = large && piece < DENSE_BLOCK, early = large && !fetch && dense_early(j->self, e);
        uint64_t bad = e ? 0 : check(g + at, n);
        for (uint64_t i = 0, m = early ? DENSE_PIECE : n; i < n && e; i += m) {
            if (early) dense_fetch(g + at + DENSE_BLOCK + i, m);
            bad |= sum(tmp + i, g + at + i, e + at + i, a->beta, a->gamma, m);
        }
        if (bad) {
            esp_codec_raise(&j->bad, 1);
            continue;
        }
        for (uint64_t i = 0; i < n; i += piece) {
            const uint64_t m = n - i < piece ? n - i : piece;
            if (fetch) dense_fetch(g + at + DENSE_BLOCK + i, m);
            if (fetch && e) dense_fetch(e + at + DENSE_BLOCK + i, m);
            j->encode(j->user, (e ? tmp : g + at) + i, e ? e + at + i : NULL, at + i, m);
        }
    }
}

static inline bool dense_finite(const dense_self *s, const esp_codec_args *a) {
    dense_job j = {s, a, NULL, NULL, 0, 0};
    dense_run(s, a->tensor[0]->count, dense_check_piece, &j);
    return !j.bad;
}

/* Returns whether no element of phi is NaN or Inf, unless the residual has NaN or Inf itself. Mostly reads the
 * gradient alone. */
static inline bool dense_sound(const dense_self *s, const esp_codec_args *a) {
    dense_job j = {s, a, NULL, NULL, 0, 0};
    if (!(__builtin_fabsf(a->beta) <= 1)) return dense_finite(s, a);
    dense_run(s, a->tensor[0]->count, dense_large_piece, &j);
    return !j.bad || dense_finite(s, a);
}

/* Returns whether blocks can be encoded one by one with error feedback. Reads nothing of a single block. */
static inline bool dense_safe(const dense_self *s, const esp_codec_args *a) {
    return !a->residual || a->tensor[0]->count <= DENSE_BLOCK || dense_sound(s, a);
}

/* Encodes all blocks without NaN and Inf, and leaves the residuals of others alone. Returns false if there are some;
 * with error feedback dense_safe() must have been true. */
static inline bool dense_blocks(const dense_self *s, const esp_codec_args *a, void *user, uint64_t piece,
                                void (*encode)(void *, const float *, float *, uint64_t, uint64_t)) {
    dense_job j = {s, a, user, encode, 0, piece};
    dense_run(s, a->tensor[0]->count, dense_encode_piece, &j);
    return !j.bad;
}

/* Encodes all blocks. Returns false on NaN or Inf; the payload is then invalid, and the residual unchanged, or, if it
 * had a NaN or Inf itself, worthless as before. */
static inline bool dense_encode(const dense_self *s, const esp_codec_args *a, void *user,
                                void (*encode)(void *, const float *, float *, uint64_t, uint64_t)) {
    return dense_safe(s, a) && dense_blocks(s, a, user, DENSE_PIECE, encode);
}

static inline void dense_fill_nan(void *out, uint64_t n) {
    dense_f32 *x = (dense_f32 *)out;
    for (uint64_t i = 0; i < n; i++) x[i] = bits_float(0x7FC00000u);
}

static inline esp_status dense_send_nan(esp_payload *p, esp_payload_header *h, uint64_t body) {
    dense_fill_nan(esp_payload_body(p), body / sizeof(float));
    h->flags = ESP_PAYLOAD_NONFINITE;
    h->body_bytes = body;
    return esp_payload_begin(p, h);
}

/* ---- decompress ---------------------------------------------------------------------------------------- */
/* A block to decode: elements [at, at + n) of the payload. */
typedef struct dense_block {
    const esp_payload_header *header;
    const unsigned char *body;
    float *out; /* result of element `at` */
    uint64_t at, n;
    float scale;
    bool set; /* overwrite `out` instead of adding */
} dense_block;

/* What dense_decompress() has to know of a codec's format. */
typedef struct dense_format {
    const char *name;
    uint32_t wire_version;
    /* true if a payload with NaN or Inf must be as long as others, because collectives sum payloads */
    bool nan_body;
    /* Returns whether a payload is valid. NULL if every payload of the right size is. */
    bool (*valid)(const void *self, const esp_payload_header *h, const unsigned char *body);
    /* Decodes a block, and adds it times `scale` to `out`, or overwrites `out` if `set`. */
    void (*add)(const void *self, const dense_block *b);
} dense_format;

typedef struct dense_sum {
    const dense_format *format;
    const dense_self *self;
    const esp_codec_args *args;
    bool nan;
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
        b.set = false;
    }
    if (b.set) memset(out, 0, n * sizeof *out);
}

static inline void dense_sum_piece(void *arg, uint64_t begin, uint64_t end) {
    const dense_sum *d = (const dense_sum *)arg;
    float *out = dense_out(d->args);
    const float scale = d->args->scale == 0 ? 1 : d->args->scale;
    if (d->nan) {
        dense_fill_nan(out + begin, end - begin);
        return;
    }
    for (uint64_t at = begin; at < end; at += d->block)
        dense_sum_block(d, out + at, at, end - at < d->block ? end - at : d->block, scale);
}

static inline esp_status dense_check_payload(const dense_self *s, const dense_format *f, const esp_payload *p,
                                             uint64_t count, uint64_t body, esp_payload_header *h) {
    memset(h, 0, sizeof *h);
    const esp_status st = esp_payload_read(p, esp_name_hash(f->name), f->wire_version, count, h);
    const bool nan = h->flags & ESP_PAYLOAD_NONFINITE, empty = h->flags & ESP_PAYLOAD_EMPTY;
    if (st != ESP_OK || (nan && empty)) return ESP_E_CORRUPT;
    if (h->body_bytes != (empty || (nan && !f->nan_body) ? 0 : body)) return ESP_E_CORRUPT;
    const bool full = !nan && !empty && body;
    if (full && f->valid && !f->valid(s, h, (const unsigned char *)esp_payload_body(p))) return ESP_E_CORRUPT;
    return ESP_OK;
}

/* Implements decompress() of a codec that sends every element, in `body` bytes plus header. Checks all payloads before
 * it writes. Decodes blocks of `block` elements, a power of two up to DENSE_GRAIN. */
static inline esp_status dense_decompress(const dense_self *s, const dense_format *f, const esp_codec_args *a,
                                          uint64_t body, uint64_t block) {
    dense_sum d = {f, s, a, false, block};
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_header h;
        const esp_status st = dense_check_payload(s, f, &a->payload[p], a->tensor[0]->count, body, &h);
        if (st != ESP_OK) return st;
        d.nan |= (h.flags & ESP_PAYLOAD_NONFINITE) != 0;
    }
    dense_run(s, a->tensor[0]->count, dense_sum_piece, &d);
    return ESP_OK;
}
#endif
