/* sparse.h: shared by codecs that send k of d elements. It computes k and phi = beta e + gamma g (e is the residual, g
 * the gradient), and writes and reads payloads of topk, dgc and threshold: values by ascending index, the number of
 * values in each span of 65536 elements, and then the smaller of a list of 16-bit indices within the span and a bitmap
 * of all elements. select.h chooses the elements. */
#ifndef ESP_SPARSE_H
#define ESP_SPARSE_H
#include "espresso.h"
#include "codecs/common/dense.h"
#include "codecs/common/select.h"

/* ---- sizes ------------------------------------------------------------------------------------------------------- */
/* Returns k = max(1, ceil(ratio d)), or 0 for d = 0. */
ESP_ELEMENT uint64_t sparse_k(double ratio, uint64_t count) {
    double x = ratio * (double)count;
    uint64_t k = (uint64_t)x;
    k += (double)k < x;
    if (k < 1) k = 1;
    return k < count ? k : count;
}

ESP_ELEMENT uint64_t sparse_spans(uint64_t count) { return (count + SELECT_SPAN - 1) / SELECT_SPAN; }
ESP_ELEMENT uint64_t sparse_map_bytes(uint64_t count) { return (count + 31) / 32 * 4; }
ESP_ELEMENT bool sparse_is_map(uint64_t count, uint64_t k) { return sparse_map_bytes(count) < 2 * k; }

ESP_ELEMENT uint64_t sparse_body_bytes(uint64_t count, uint64_t k) {
    return 4 * k + 4 * sparse_spans(count) + (sparse_is_map(count, k) ? sparse_map_bytes(count) : 2 * k);
}

/* Returns a codec's size and cost for the planner. Its compress moves `moved` bytes per element on the CPU, and takes
 * 18 ns for each sent one, as measured for ratios of 1% and 10%. A sent element takes 4 bytes for the value, and 2 for
 * the index or, if that is shorter, all indices take one bit per element of the tensor. On a GPU, two passes read
 * gradient and residual and write the residual. In addition, each sent value moves 40 bytes in compress, and 76 in
 * decompress, which reads and writes memory in sectors of 32 bytes. */
static inline esp_facts sparse_facts(double ratio, double moved) {
    const esp_payload_size places = {0, 6, 6 * ratio, 0, 0}, map = {0, 0, 4 * ratio + 0.125, 0, 0};
    const bool listed = ratio < 0.25; /* select.h: elements above a guessed threshold fit a list of 4 k + 16384 */
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = ratio > 0.0625 ? map : places,
        .error = esp_model_error_largest(ratio),
        .setup_ns = 1000,
        .ns = {esp_model_stream(moved) - 0.15 + 18 * ratio, esp_model_stream(4) + 2 * ratio},
        .launches = {listed ? 7.0 : 5.0, 2},
        .bytes = {moved + 40 * ratio, 4 + 76 * ratio},
        .small = {{4096, 1}, {listed ? 16384 / (1 - 4 * ratio) : 0.0, 5}},
    };
    return f;
}

/* These functions read a number of a payload, which may have any alignment. */
static inline uint32_t sparse_u32(const uint8_t *p) { return *(const dense_u32 *)(const void *)p; }
static inline uint32_t sparse_u16(const uint8_t *p) { return *(const dense_u16 *)(const void *)p; }
static inline float sparse_f32(const uint8_t *p) { return *(const dense_f32 *)(const void *)p; }

/* ---- phi --------------------------------------------------------------------------------------------------------- */
ESP_INLINE uint64_t sparse_keep_body(const float *restrict g, float *restrict e, float beta, float gamma, uint64_t n) {
    return dense_phi_body(e, g, e, beta, gamma, n);
}
ESP_KERNEL(sparse_keep, (const float *g, float *e, float beta, float gamma, uint64_t n), (g, e, beta, gamma, n))

typedef struct sparse_input {
    const float *g;
    float *e; /* the residual, or NULL */
    float beta, gamma;
    int level;
    const select_job *sel;
} sparse_input;

static inline sparse_input sparse_input_of(const esp_codec_args *a, int level) {
    return (sparse_input){dense_in(a), esp_residual_of(a, 0), a->beta, a->gamma, level, NULL};
}

static inline const float *sparse_load(const void *arg, uint64_t at, uint64_t n, float *buf) {
    const sparse_input *in = (const sparse_input *)arg;
    if (!in->e) return in->g + at;
    dense_phi_for(in->level)(buf, in->g + at, in->e + at, in->beta, in->gamma, n);
    return buf;
}

static inline void sparse_clear(const select_job *s, uint64_t b, float *x) {
    const uint16_t *idx = s->idx + s->block[b].at;
    float *span = x + b * SELECT_BLOCK / SELECT_SPAN * SELECT_SPAN;
    for (uint64_t i = 0; i < s->block[b].n; i++) span[idx[i]] = 0.0f;
}

static inline void sparse_residual_body(void *arg, uint64_t begin, uint64_t end) {
    const sparse_input *in = (const sparse_input *)arg;
    for (; begin < end; begin += SELECT_BLOCK) {
        uint64_t n = end - begin < SELECT_BLOCK ? end - begin : SELECT_BLOCK;
        sparse_keep_for(in->level)(in->g + begin, in->e + begin, in->beta, in->gamma, n);
        sparse_clear(in->sel, begin / SELECT_BLOCK, in->e);
    }
}

/* Sets the residual to gradient plus residual, and at the sent elements to 0. */
static inline void sparse_residual(sparse_input *in, const select_job *s) {
    in->sel = s;
    if (in->e) esp_codec_parallel(s->host, s->count, SELECT_SPAN, sparse_residual_body, in);
}

/* ---- writing a payload ------------------------------------------------------------------------------------------- */
/* Sets the bits of the given ascending indices in zeroed words. Composes a word in a register, and writes it each time,
 * without an unpredictable branch. */
static inline void sparse_write_map(uint8_t *map, const uint16_t *idx, uint64_t n) {
    uint32_t word = 0, bits = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t at = idx[i] / 32u;
        bits = (bits & (0u - (uint32_t)(at == word))) | 1u << idx[i] % 32u;
        word = at;
        memcpy(map + 4 * at, &bits, 4);
    }
}

/* Writes the selected values (unless `val` is NULL), the number of them in each span, and their places (unless `place`
 * is NULL). */
static inline void sparse_write_to(const select_job *s, uint8_t *val, uint8_t *held, uint8_t *place) {
    const int map = sparse_is_map(s->count, s->k);
    uint64_t at = 0;
    if (place && map) memset(place, 0, sparse_map_bytes(s->count));
    for (uint64_t b = 0; b * SELECT_BLOCK < s->count; b++) {
        const uint64_t span = b * SELECT_BLOCK / SELECT_SPAN, n = s->block[b].n, from = s->block[b].at;
        uint32_t have = b * SELECT_BLOCK % SELECT_SPAN ? sparse_u32(held + 4 * span) : 0;
        have += (uint32_t)n;
        memcpy(held + 4 * span, &have, 4);
        if (val) memcpy(val + 4 * at, s->val + from, 4 * n);
        if (place && map)
            sparse_write_map(place + span * (SELECT_SPAN / 8), s->idx + from, n);
        else if (place)
            memcpy(place + 2 * at, s->idx + from, 2 * n);
        at += n;
    }
}
static inline void sparse_write(const select_job *s, uint8_t *body) {
    uint8_t *held = body + 4 * s->k;
    sparse_write_to(s, body, held, held + 4 * sparse_spans(s->count));
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
/* Selects s->k of s->count elements, and writes the payload. *sent is false if no values were sent, because the tensor
 * is empty or an element is not finite. The caller must not change the residual then. */
static inline esp_status sparse_compress(select_job *s, const esp_codec_args *a, const char *codec, uint16_t wire,
                                         bool *sent) {
    esp_payload_header h =
        esp_payload_header_of(esp_name_hash(codec), wire, 0, s->count, sparse_body_bytes(s->count, s->k), s->k);
    const esp_status st = esp_payload_begin(a->payload, &h);
    *sent = false;
    if (st != ESP_OK || !s->count) return st;
    if (!a->scratch || a->scratch->bytes < select_scratch_bytes(s->count, s->k))
        return esp_codec_fail(s->host, codec, ESP_E_ARG, "scratch memory is less than bound() requires");
    if (!select_run(s, a->scratch->ptr)) {
        h.flags = ESP_PAYLOAD_NONFINITE;
        h.body_bytes = h.aux = 0;
        return esp_payload_begin(a->payload, &h);
    }
    *sent = true;
    sparse_write(s, (uint8_t *)esp_payload_body(a->payload));
    return ESP_OK;
}

static inline esp_status sparse_compress_phi(select_job *s, const esp_codec_args *a, const char *codec, uint16_t wire) {
    sparse_input in = sparse_input_of(a, s->simd);
    bool sent;
    s->load = sparse_load;
    s->arg = &in;
    const esp_status st = sparse_compress(s, a, codec, wire, &sent);
    if (st == ESP_OK && sent) sparse_residual(&in, s);
    return st;
}

/* ---- reading a payload ------------------------------------------------------------------------------------------- */
ESP_ELEMENT uint64_t sparse_span_len(uint64_t count, uint64_t span) {
    uint64_t left = count - span * SELECT_SPAN;
    return left < SELECT_SPAN ? left : SELECT_SPAN;
}

/* Do the indices ascend, and are all below len? */
static inline bool sparse_places_ok(const uint8_t *place, uint64_t n, uint64_t len) {
    uint32_t bad = n && sparse_u16(place + 2 * (n - 1)) >= len;
    for (uint64_t i = 1; i < n; i++) bad |= sparse_u16(place + 2 * i) <= sparse_u16(place + 2 * i - 2);
    return !bad;
}

/* Returns how many bits of `words` words of a bitmap are set. */
ESP_INLINE uint64_t sparse_bits_body(const uint8_t *map, uint64_t words) {
    uint64_t set = 0;
    for (uint64_t i = 0; i < words; i++) set += (uint64_t)__builtin_popcount(sparse_u32(map + 4 * i));
    return set;
}
ESP_KERNEL(sparse_bits, (const uint8_t *map, uint64_t words), (map, words))
/* Are exactly n bits of the span's bitmap set, all below len? */
static inline bool sparse_map_ok(int level, const uint8_t *map, uint64_t n, uint64_t len) {
    const uint64_t words = (len + 31) / 32;
    return sparse_bits_for(level)(map, words) == n &&
           (len % 32 == 0 || !(sparse_u32(map + 4 * (words - 1)) >> len % 32));
}

/* Returns 0 if one of k values is NaN or Inf, which no encoder sends. */
ESP_INLINE uint64_t sparse_finite_body(const uint8_t *val, uint64_t k) {
    uint32_t any = 0;
    ESP_SIMD_REDUCE(|, any)
    for (uint64_t i = 0; i < k; i++) any |= dense_nonfinite(((const dense_f32 *)(const void *)val)[i]);
    return !(any >> 31);
}
ESP_KERNEL(sparse_finite, (const uint8_t *val, uint64_t k), (val, k))

static inline bool sparse_body_ok(int level, const uint8_t *body, uint64_t count, uint64_t k) {
    const uint8_t *held = body + 4 * k, *place = held + 4 * sparse_spans(count);
    uint64_t at = 0;
    for (uint64_t s = 0; s < sparse_spans(count); s++) {
        uint64_t n = sparse_u32(held + 4 * s), len = sparse_span_len(count, s);
        if (n > len || n > k - at) return false;
        if (sparse_is_map(count, k) ? !sparse_map_ok(level, place + s * (SELECT_SPAN / 8), n, len)
                                    : !sparse_places_ok(place + 2 * at, n, len))
            return false;
        at += n;
    }
    return at == k && sparse_finite_for(level)(body, k);
}

/* Pointers to the next span of 65536 elements in a payload: its values, their number, their indices or bitmap. If
 * the payload has no values, `held` is NULL. */
typedef struct sparse_reader {
    const uint8_t *val, *held, *place;
    bool map;
} sparse_reader;

static inline sparse_reader sparse_reader_at(const esp_payload *p, uint64_t span) {
    sparse_reader r = {0};
    esp_payload_header h;
    memcpy(&h, p->data.ptr, sizeof h);
    if (!h.body_bytes) return r;
    r.val = (const uint8_t *)esp_payload_body(p);
    r.held = r.val + 4 * h.aux;
    r.place = r.held + 4 * sparse_spans(h.count);
    r.map = sparse_is_map(h.count, h.aux);
    uint64_t before = 0;
    for (uint64_t s = 0; s < span; s++) before += sparse_u32(r.held + 4 * s);
    r.val += 4 * before;
    r.place += r.map ? span * (SELECT_SPAN / 8) : 2 * before;
    r.held += 4 * span;
    return r;
}

/* Adds values times `scale` to the elements of `out` that a bitmap of `words` words has. */
ESP_INLINE uint64_t sparse_add_map_body(float *out, const uint8_t *map, const uint8_t *val, float scale,
                                        uint64_t words) {
    for (uint64_t w = 0; w < words; w++)
        for (uint32_t m = sparse_u32(map + 4 * w); m; m &= m - 1, val += 4)
            out[32 * w + (uint64_t)__builtin_ctz(m)] += scale * sparse_f32(val);
    return 0;
}
ESP_TARGET_SCALAR static uint64_t sparse_add_map_scalar(float *out, const uint8_t *map, const uint8_t *val, float scale,
                                                        uint64_t words) {
    return sparse_add_map_body(out, map, val, scale, words);
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static uint64_t sparse_add_map_avx2(float *out, const uint8_t *map, const uint8_t *val, float scale,
                                                    uint64_t words) {
    return sparse_add_map_body(out, map, val, scale, words);
}
/* Leaves the last word, which may have less than 32 elements, to plain C. */
ESP_TARGET_AVX512 static uint64_t sparse_add_map_avx512(float *out, const uint8_t *map, const uint8_t *val, float scale,
                                                        uint64_t words) {
    uint64_t h = 0;
    for (; h / 2 + 1 < words; h++) {
        const __mmask16 m = (__mmask16)sparse_u16(map + 2 * h);
        const __m512 x = _mm512_loadu_ps(out + 16 * h), v = _mm512_maskz_expandloadu_ps(m, val);
        _mm512_storeu_ps(out + 16 * h, _mm512_mask_add_ps(x, m, x, _mm512_mul_ps(v, _mm512_set1_ps(scale))));
        val += 4 * __builtin_popcount(m);
    }
    ESP_LEAVE_WIDE();
    return sparse_add_map_body(out + 16 * h, map + 2 * h, val, scale, words - h / 2);
}
#endif
ESP_KERNEL_PICK(sparse_add_map)

/* Adds the values of the reader's span of 65536 elements to `out`, and moves the reader to the next span. */
static inline void sparse_add_span(int level, sparse_reader *r, float *out, uint64_t len, float scale) {
    if (!r->held) return;
    uint64_t n = sparse_u32(r->held);
    if (r->map)
        sparse_add_map_for(level)(out, r->place, r->val, scale, (len + 31) / 32);
    else
        for (uint64_t i = 0; i < n; i++) out[sparse_u16(r->place + 2 * i)] += scale * sparse_f32(r->val + 4 * i);
    r->val += 4 * n;
    r->place += r->map ? SELECT_SPAN / 8 : 2 * n;
    r->held += 4;
}

typedef struct sparse_sum {
    const esp_codec_args *args;
    int level;
} sparse_sum;
static inline void sparse_decode_body(void *arg, uint64_t begin, uint64_t end) {
    enum { AT_ONCE = 32 };
    const sparse_sum *sum = (const sparse_sum *)arg;
    const esp_codec_args *a = sum->args;
    float *out = dense_out(a);
    const float scale = a->scale != 0.0f ? a->scale : 1.0f;
    sparse_reader r[AT_ONCE];
    uint32_t first = 0;
    /* Add a span from all payloads before the next span, since its elements of `out` are then in the cache. */
    do {
        uint32_t n = a->n_payloads - first < AT_ONCE ? a->n_payloads - first : AT_ONCE;
        for (uint32_t p = 0; p < n; p++) r[p] = sparse_reader_at(&a->payload[first + p], begin / SELECT_SPAN);
        for (uint64_t at = begin; at < end; at += SELECT_SPAN) {
            uint64_t len = end - at < SELECT_SPAN ? end - at : SELECT_SPAN;
            if (a->mode == ESP_OUT_SET && first == 0) memset(out + at, 0, 4 * len);
            for (uint32_t p = 0; p < n; p++) sparse_add_span(sum->level, &r[p], out + at, len, scale);
        }
        first += n;
    } while (first < a->n_payloads);
}

static inline esp_status sparse_decompress(const esp_host *host, int level, const esp_codec_args *a, const char *codec,
                                           uint16_t wire, uint64_t k_min, uint64_t k_max) {
    sparse_sum sum = {a, level};
    const uint64_t count = a->tensor[0]->count;
    const uint32_t id = esp_name_hash(codec);
    int nan = 0;
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_header h;
        if (esp_payload_read(&a->payload[p], id, wire, count, &h) != ESP_OK)
            return esp_codec_fail(host, codec, ESP_E_CORRUPT,
                                  "the payload's header is corrupt, or from another codec or size");
        if (h.flags ? h.body_bytes != 0
                    : h.aux < k_min || h.aux > k_max || h.body_bytes != sparse_body_bytes(count, h.aux) ||
                          !sparse_body_ok(level, (const uint8_t *)esp_payload_body(&a->payload[p]), count, h.aux))
            return esp_codec_fail(host, codec, ESP_E_CORRUPT, "the payload's values or indices are corrupt");
        nan |= h.flags & ESP_PAYLOAD_NONFINITE;
    }
    if (nan)
        dense_fill_nan(a->tensor[0]->data.ptr, count);
    else
        esp_codec_parallel(host, count, SELECT_SPAN, sparse_decode_body, &sum);
    return ESP_OK;
}

static inline esp_status sparse_values(const esp_tensor *like, const esp_payload_header *h, uint64_t most,
                                       esp_values *out) {
    const uint64_t k = h ? h->aux : most;
    *out = (esp_values){0, k, sparse_body_bytes(like->count, k) - 4 * k};
    return ESP_OK;
}
#endif
