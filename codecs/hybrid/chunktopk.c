/* chunktopk.c: codec "chunktopk", which sends the k elements of largest magnitude in each chunk of a tensor: the
 * index, the sign, and which of two magnitudes each has. "High" is the mean of those sent magnitudes that are at
 * least their overall mean, "low" the mean of the others; both are sent with the chunk. After Sarfi, Therien, Lidin,
 * Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025 (arXiv 2508.15706). As in the paper,
 * the residual is multiplied by `decay` before a rank's gradient is added to it. */
#include "codecs/common/dense.h"
#include "codecs/common/half.h"
#include "codecs/common/select.h"

enum { CHUNKTOPK_WIRE = 1, CHUNKTOPK_MOST = 4096, CHUNKTOPK_HEAD = 4 };

/* ---- kernels ----------------------------------------------------------------------------------------------------- */
/* Sets the residual e to phi = beta e + gamma g, where g is the gradient (phi = g if e is NULL). Sets bit i of `map`
 * if the bits of |phi[i]|, read as an integer, are at least t. */
ESP_TARGET_SCALAR static uint64_t chunktopk_scan_scalar(float *restrict e, const float *restrict g, float beta,
                                                        float gamma, uint32_t t, uint32_t *restrict map, uint64_t n) {
    for (uint64_t at = 0; at < n; at += 32) {
        const uint64_t m = n - at < 32 ? n - at : 32;
        uint32_t word = 0;
        for (uint64_t i = 0; i < m; i++) {
            const float x = e ? beta * e[at + i] + gamma * g[at + i] : g[at + i];
            if (e) e[at + i] = x;
            word |= (uint32_t)(select_bits(x) >= t) << i;
        }
        map[at / 32] = word;
    }
    return 0;
}
#ifdef ESP_SIMD_X86
ESP_TARGET_AVX2 static uint64_t chunktopk_scan_avx2(float *restrict e, const float *restrict g, float beta, float gamma,
                                                    uint32_t t, uint32_t *restrict map, uint64_t n) {
    const __m256 b = _mm256_set1_ps(beta), c = _mm256_set1_ps(gamma);
    const __m256i mask = _mm256_set1_epi32((int)SELECT_ABS), low = _mm256_set1_epi32((int)t - 1);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t word = 0;
        for (uint64_t k = 0; k < 4; k++) {
            const uint64_t at = i + 8 * k;
            __m256 x = _mm256_loadu_ps(g + at);
            if (e) {
                x = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(e + at), b), _mm256_mul_ps(x, c));
                _mm256_storeu_ps(e + at, x);
            }
            const __m256i ge = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(x), mask), low);
            word |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(ge)) << 8 * k;
        }
        map[i / 32] = word;
    }
    ESP_LEAVE_WIDE();
    return chunktopk_scan_scalar(e ? e + i : NULL, g + i, beta, gamma, t, map + i / 32, n - i);
}
ESP_TARGET_AVX512 static uint64_t chunktopk_scan_avx512(float *restrict e, const float *restrict g, float beta,
                                                        float gamma, uint32_t t, uint32_t *restrict map, uint64_t n) {
    const __m512 b = _mm512_set1_ps(beta), c = _mm512_set1_ps(gamma);
    const __m512i mask = _mm512_set1_epi32((int)SELECT_ABS), low = _mm512_set1_epi32((int)t);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __mmask16 ge[2];
        for (uint64_t k = 0; k < 2; k++) {
            const uint64_t at = i + 16 * k;
            __m512 x = _mm512_loadu_ps(g + at);
            if (e) {
                x = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(e + at), b), _mm512_mul_ps(x, c));
                _mm512_storeu_ps(e + at, x);
            }
            ge[k] = _mm512_cmpge_epu32_mask(_mm512_and_si512(_mm512_castps_si512(x), mask), low);
        }
        map[i / 32] = (uint32_t)ge[0] | (uint32_t)ge[1] << 16;
    }
    ESP_LEAVE_WIDE();
    return chunktopk_scan_scalar(e ? e + i : NULL, g + i, beta, gamma, t, map + i / 32, n - i);
}
#endif
ESP_KERNEL_PICK(chunktopk_scan)

/* Writes the indices of the map's set bits to idx, which needs room for 4 extra indices: the loop always writes
 * four at a time, to avoid a branch that the processor would mispredict. */
ESP_INLINE uint64_t chunktopk_places_body(uint16_t *restrict idx, const uint32_t *restrict map, uint64_t words) {
    uint64_t n = 0;
    for (uint64_t w = 0; w < words; w += 2) {
        uint64_t bits = map[w] | (w + 1 < words ? (uint64_t)map[w + 1] << 32 : 0);
        const uint64_t end = n + (uint64_t)__builtin_popcountll(bits), last = 1ull << 63;
        uint64_t four = 32 * w * 0x0001000100010001u;
        four += (uint64_t)__builtin_ctzll(bits | last);
        bits &= bits - 1;
        four += (uint64_t)__builtin_ctzll(bits | last) << 16;
        bits &= bits - 1;
        four += (uint64_t)__builtin_ctzll(bits | last) << 32;
        bits &= bits - 1;
        four += (uint64_t)__builtin_ctzll(bits | last) << 48;
        bits &= bits - 1;
        memcpy(idx + n, &four, sizeof four);
        for (n += 4; n < end; n++, bits &= bits - 1) idx[n] = (uint16_t)(32 * w + (uint64_t)__builtin_ctzll(bits));
        n = end;
    }
    return n;
}
/* Counts the magnitudes whose bits are at least t, compared as signed integers, since AVX2 cannot compare unsigned
 * ones. */
ESP_INLINE uint64_t chunktopk_count(const float *x, uint64_t n, uint32_t t) {
    int32_t count = 0;
    const int32_t least = (int32_t)t;
    for (uint64_t i = 0; i < n; i++) count += (int32_t)select_bits(x[i]) >= least;
    return (uint64_t)count;
}
/* Returns the largest t in [lo, hi] for which at least k of n magnitudes are >= t. Returns earlier with a t that at
 * least k and at most `enough` magnitudes reach. All magnitudes are within [lo, hi]. Each pass over x tests four
 * thresholds, which costs little more than testing one. */
ESP_INLINE uint64_t chunktopk_threshold_body(const float *x, uint64_t n, uint64_t k, uint64_t enough, uint32_t lo,
                                             uint32_t hi) {
    if (lo == 0 && chunktopk_count(x, n, 1) < k) return 0;
    for (uint64_t reached = n; lo < hi && reached > enough;) {
        const int32_t step = (int32_t)((hi - lo) / 5 + 1), a = (int32_t)lo + step;
        const int32_t b = a + step, c = b + step, d = c + step;
        int32_t at_a = 0, at_b = 0, at_c = 0, at_d = 0;
        for (uint64_t i = 0; i < n; i++) {
            const int32_t bits = (int32_t)select_bits(x[i]);
            at_a += bits >= a;
            at_b += bits >= b;
            at_c += bits >= c;
            at_d += bits >= d;
        }
        const int32_t want = (int32_t)k, above = (at_a >= want) + (at_b >= want) + (at_c >= want) + (at_d >= want);
        const int32_t at[5] = {(int32_t)reached, at_a, at_b, at_c, at_d};
        const uint32_t next = lo + (uint32_t)(above + 1) * (uint32_t)step - 1;
        lo += (uint32_t)(above * step);
        hi = above < 4 && next < hi ? next : hi;
        reached = (uint64_t)at[above];
    }
    return lo;
}
ESP_INLINE uint64_t chunktopk_reach_body(const float *x, uint64_t n, uint32_t t) { return chunktopk_count(x, n, t); }
ESP_KERNEL(chunktopk_reach, (const float *x, uint64_t n, uint32_t t), (x, n, t))
ESP_KERNEL(chunktopk_places, (uint16_t *restrict idx, const uint32_t *restrict map, uint64_t words), (idx, map, words))
ESP_KERNEL(chunktopk_threshold, (const float *x, uint64_t n, uint64_t k, uint64_t enough, uint32_t lo, uint32_t hi),
           (x, n, k, enough, lo, hi))

/* These functions sum and count the magnitudes whose bits are at least `from`. Partial sum j of 8 adds elements j, j +
 * 8, ... in f64, so that every instruction set adds in the same order. n is a multiple of 8. */
ESP_ELEMENT int32_t chunktopk_is(float x, uint32_t from) { return (int32_t)select_bits(x) >= (int32_t)from; }
ESP_ELEMENT double chunktopk_term(float x, uint32_t from) {
    return (double)bits_float(select_bits(x) & (0u - (uint32_t)chunktopk_is(x, from)));
}
ESP_INLINE uint64_t chunktopk_sum_body(const float *val, uint64_t n, uint32_t from, double result[2]) {
    double sum[8] = {0};
    int32_t many[8] = {0};
    for (uint64_t i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            many[j] += chunktopk_is(val[i + (uint64_t)j], from);
            sum[j] += chunktopk_term(val[i + (uint64_t)j], from);
        }
    for (int w = 4; w; w /= 2)
        for (int j = 0; j < w; j++) sum[j] += sum[j + w], many[j] += many[j + w];
    result[0] = sum[0];
    result[1] = (double)many[0];
    return 0;
}
/* Encodes the element x with index `at` as index, sign and low or high. Returns x minus the value that is sent for
 * it. */
ESP_ELEMENT float chunktopk_code_of(float x, uint32_t at, float split, float low, float high, uint64_t width,
                                    uint16_t *code) {
    const uint32_t sign = x < 0, big = bits_float(select_bits(x)) >= split;
    const float sent = big ? high : low;
    *code = (uint16_t)(at | sign << (width - 2) | big << (width - 1));
    return x - (x < 0 ? -sent : sent);
}
/* Encodes n elements (n is a multiple of 8), and writes each minus its sent value to `rest`. magnitude[] is {low,
 * high}. */
ESP_INLINE uint64_t chunktopk_code_body(uint16_t *restrict code, float *restrict rest, const float *restrict val,
                                        const uint16_t *restrict idx, float split, const float magnitude[2],
                                        uint64_t width, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        rest[i] = chunktopk_code_of(val[i], idx[i], split, magnitude[0], magnitude[1], width, &code[i]);
    return 0;
}
ESP_KERNEL(chunktopk_sum, (const float *val, uint64_t n, uint32_t from, double result[2]), (val, n, from, result))
ESP_KERNEL(chunktopk_code,
           (uint16_t *restrict code, float *restrict rest, const float *restrict val, const uint16_t *restrict idx,
            float split, const float magnitude[2], uint64_t width, uint64_t n),
           (code, rest, val, idx, split, magnitude, width, n))

/* ---- parameters -------------------------------------------------------------------------------------------------- */
/* The parameters on which the payload's format depends. CUDA kernels take them too. One sent element takes `width`
 * bits. */
typedef struct chunktopk_shape {
    uint32_t codec, chunk, k, width;
} chunktopk_shape;
typedef struct chunktopk_self {
    dense_self dense; /* must be the first member */
    chunktopk_shape shape;
    float decay;
} chunktopk_self;

ESP_ELEMENT uint64_t chunktopk_codes(const chunktopk_shape *f, uint64_t n) {
    return (f->k * n + f->chunk - 1) / f->chunk;
}
/* Returns the bytes that a chunk of n elements takes in the payload. */
ESP_ELEMENT uint64_t chunktopk_record(const chunktopk_shape *f, uint64_t n) {
    return n ? CHUNKTOPK_HEAD + (chunktopk_codes(f, n) * f->width + 7) / 8 : 0;
}
ESP_ELEMENT uint64_t chunktopk_body(const chunktopk_shape *f, uint64_t count) {
    return count / f->chunk * chunktopk_record(f, f->chunk) + chunktopk_record(f, count % f->chunk);
}

static const char chunktopk_params[] = "chunk=4096,k=64,bits=2,decay=0.95";

static esp_status chunktopk_open(const esp_host *h, const char *params, void **self) {
    double chunk = CHUNKTOPK_MOST, k = 64, bits = 2, decay = 0.95;
    char text[192];
    esp_param p[] = {{"chunk", &chunk, 16, CHUNKTOPK_MOST, 0, ESP_PARAM_POWER_OF_TWO, "a power of two from 16 to 4096"},
                     {"k", &k, 1, CHUNKTOPK_MOST, 0, 1, "a whole number from 1 to the chunk's size"},
                     {"bits", &bits, 2, 2, 0, 1, "2: sign and magnitude"},
                     {"decay", &decay, 0, 1, 0, 0, "from 0 to 1"}};
    esp_status st = dense_open(h, "chunktopk", params, p, 4, chunktopk_params, sizeof(chunktopk_self), self);
    if (st != ESP_OK) return st;
    chunktopk_self *s = (chunktopk_self *)*self;
    if (k > chunk) {
        esp_codec_self_free(s);
        (void)snprintf(text, sizeof text,
                       "chunktopk: k=%.0f is not allowed: a chunk has fewer elements; k is at most "
                       "chunk (parameters: %s)",
                       k, chunktopk_params);
        return esp_codec_fail(h, "chunktopk", ESP_E_ARG, text);
    }
    s->shape = (chunktopk_shape){esp_name_hash("chunktopk"), (uint32_t)chunk, (uint32_t)k, 0};
    s->shape.width = 2 + (uint32_t)__builtin_ctz(s->shape.chunk);
    s->decay = (float)decay;
    return ESP_OK;
}

static esp_status chunktopk_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                  esp_bound *out) {
    (void)round, (void)n_reduced;
    return esp_bound_fill(out, chunktopk_body(&((const chunktopk_self *)self)->shape, like->count), 0, 0);
}

/* ---- one chunk: selection ---------------------------------------------------------------------------------------- */
enum { CHUNKTOPK_ROOM = CHUNKTOPK_MOST + 16 };
typedef struct chunktopk_chosen {
    float val[CHUNKTOPK_ROOM];
    uint16_t idx[CHUNKTOPK_ROOM];
    float usual; /* running mean of earlier chunks' thresholds, or 0 */
    float margin;
} chunktopk_chosen;

/* Copies the elements marked in `map` to *c, and returns their number. *top receives the largest magnitude's bits. */
static uint64_t chunktopk_list(const chunktopk_self *s, const float *x, const uint32_t *map, uint64_t n,
                               chunktopk_chosen *c, uint32_t *top) {
    const uint64_t kept = chunktopk_places_for(s->dense.level)(c->idx, map, (n + 31) / 32);
    *top = 0;
    for (uint64_t i = 0; i < kept; i++) {
        c->val[i] = x[c->idx[i]];
        const uint32_t a = select_bits(c->val[i]);
        *top = a > *top ? a : *top;
    }
    return kept;
}

/* Finds the k elements of largest magnitude of a chunk. If there is a residual e, first sets e to beta * e + gamma *
 * g, and searches there. To save time, it lists the elements above a threshold guessed from earlier chunks, and
 * searches the list. Returns false if an element is NaN or Inf. */
static bool chunktopk_choose(const chunktopk_self *s, const esp_codec_args *a, float *e, const float *g, uint64_t n,
                             uint64_t k, chunktopk_chosen *c) {
    uint32_t map[CHUNKTOPK_MOST / 32], top, lo = c->usual > 0 ? float_bits(c->margin * c->usual) : SELECT_INF;
    const float *x = e ? e : g;
    const int level = s->dense.level;
    chunktopk_scan_for(level)(e, g, a->beta, a->gamma, lo, map, n);
    uint64_t kept = chunktopk_list(s, x, map, n, c, &top);
    if (kept < k && top < SELECT_INF) {
        lo = (uint32_t)chunktopk_threshold_for(level)(x, n, k, 2 * k, 0, SELECT_INF - 1);
        chunktopk_scan_for(level)(NULL, x, 1, 1, lo, map, n);
        kept = chunktopk_list(s, x, map, n, c, &top);
        c->usual = 0;
        c->margin = 1 - 1.5f * (1 - c->margin);
        c->margin = c->margin < 0.5f ? 0.5f : c->margin;
    } else if (kept > 2 * k) {
        c->margin = 1 - 0.95f * (1 - c->margin);
    }
    if (top >= SELECT_INF) return false;
    if (kept > k) {
        const uint64_t room = (kept + 15) / 16 * 16;
        memset(c->val + kept, 0, (room - kept) * sizeof *c->val);
        lo = (uint32_t)chunktopk_threshold_for(level)(c->val, room, k, k, lo, top);
        uint64_t ties = k - chunktopk_reach_for(level)(c->val, room, lo + 1);
        (void)select_trim_for(level)(c->val, c->idx, kept, lo, &ties);
    }
    c->usual = c->usual > 0 ? 0.5f * (c->usual + bits_float(lo)) : bits_float(lo);
    return true;
}

/* ---- one chunk: values ------------------------------------------------------------------------------------------- */
ESP_ELEMENT uint32_t chunktopk_bf16(double x) {
    const uint32_t v = half_to_bf16((float)x);
    return v == 0x7F80u ? 0x7F7Fu : v;
}
/* Returns the mean magnitudes low and high as two bf16, low in the lower half. `all` is the sum of the k magnitudes,
 * `high` that of the `many` that count as high. If all are 0, padding counts as high too, so `many` may exceed k. */
ESP_ELEMENT uint32_t chunktopk_head(double all, double high, double many, uint64_t k) {
    const double n_low = (double)k - many;
    const uint32_t h = many > 0 ? chunktopk_bf16(high / many) : 0;
    const uint32_t l = n_low > 0 ? chunktopk_bf16((all - high) / n_low) : h;
    return h << 16 | l;
}
/* Computes the mean magnitudes low and high. Sets *split to the mean of all k magnitudes: those of at least *split
 * are sent as high. val[] is padded with zeros from k to `room`. */
static uint32_t chunktopk_magnitudes(const chunktopk_self *s, const float *val, uint64_t k, uint64_t room,
                                     float *split) {
    const chunktopk_sum_fn sum = chunktopk_sum_for(s->dense.level);
    double all[2], high[2];
    sum(val, room, 0, all);
    *split = (float)(all[0] / (double)k);
    sum(val, room, float_bits(*split), high);
    return chunktopk_head(all[0], high[0], high[1], k);
}

/* Writes a chunk to the payload at `out`. If there is a residual e, subtracts the sent values from it. */
static void chunktopk_write(const chunktopk_self *s, chunktopk_chosen *c, uint64_t k, float *e, unsigned char *out) {
    enum { AT_ONCE = 256 };
    const uint64_t room = (k + 7) / 8 * 8, bytes = (k * s->shape.width + 7) / 8;
    float split, rest[AT_ONCE];
    uint16_t code[AT_ONCE];
    /* Stores to `packed` write 8 bytes at a time, so the last one may run past the end by up to 7 bytes. */
    unsigned char packed[CHUNKTOPK_MOST * 14 / 8 + 8], *to = packed;
    uint64_t bits = 0, filled = 0;
    memset(c->val + k, 0, (room - k) * sizeof *c->val);
    memset(c->idx + k, 0, (room - k) * sizeof *c->idx);
    const uint32_t head = chunktopk_magnitudes(s, c->val, k, room, &split);
    const float magnitude[2] = {bits_float(head << 16), bits_float(head & 0xFFFF0000u)};
    for (uint64_t at = 0; at < k; at += AT_ONCE) {
        const uint64_t n = k - at < AT_ONCE ? k - at : AT_ONCE;
        chunktopk_code_for(s->dense.level)(code, rest, c->val + at, c->idx + at, split, magnitude, s->shape.width,
                                           (n + 7) / 8 * 8);
        for (uint64_t i = 0; i < n && e; i++) e[c->idx[at + i]] = rest[i];
        for (uint64_t i = 0; i < n; i += 4) {
            for (uint64_t q = 0; q < 4 && i + q < n; q++, filled += s->shape.width)
                bits |= (uint64_t)code[i + q] << filled;
            memcpy(to, &bits, sizeof bits);
            to += filled / 8;
            bits >>= filled / 8 * 8;
            filled %= 8;
        }
    }
    memcpy(out, &head, sizeof head);
    memcpy(out + CHUNKTOPK_HEAD, packed, bytes);
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */
typedef struct chunktopk_reader {
    const unsigned char *in;
    uint64_t bits, filled, width;
} chunktopk_reader;
ESP_ELEMENT float chunktopk_value(uint32_t code, uint64_t width, const float magnitude[2]) {
    const uint32_t sign = code >> (width - 2) & 1u;
    return bits_float(float_bits(code >> (width - 1) ? magnitude[1] : magnitude[0]) ^ sign << 31);
}
ESP_INLINE uint32_t chunktopk_next(chunktopk_reader *r) {
    for (; r->filled < r->width; r->filled += 8) r->bits |= (uint64_t)*r->in++ << r->filled;
    const uint32_t code = (uint32_t)(r->bits & ((1u << r->width) - 1));
    r->bits >>= r->width;
    r->filled -= r->width;
    return code;
}

static bool chunktopk_valid_record(const chunktopk_self *s, const unsigned char *record, uint64_t n) {
    const uint32_t mask = s->shape.chunk - 1;
    chunktopk_reader r = {record + CHUNKTOPK_HEAD, 0, 0, s->shape.width};
    uint32_t head;
    int64_t last = -1;
    bool bad = false;
    memcpy(&head, record, sizeof head);
    for (uint64_t i = 0; i < chunktopk_codes(&s->shape, n); i++) {
        const int64_t at = chunktopk_next(&r) & mask;
        bad |= at <= last;
        last = at;
    }
    return !bad && last < (int64_t)n && !r.bits && (head & 0xFFFFu) <= 0x7F7Fu && head >> 16 <= 0x7F7Fu;
}
static bool chunktopk_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    const chunktopk_self *s = (const chunktopk_self *)self;
    if (h->aux != 0) return 0;
    for (uint64_t at = 0; at < h->count; at += s->shape.chunk, body += chunktopk_record(&s->shape, s->shape.chunk))
        if (!chunktopk_valid_record(s, body, h->count - at < s->shape.chunk ? h->count - at : s->shape.chunk)) return 0;
    return 1;
}

static void chunktopk_add(const void *self, const dense_block *b) {
    const chunktopk_self *s = (const chunktopk_self *)self;
    const unsigned char *record = b->body + b->at / s->shape.chunk * chunktopk_record(&s->shape, s->shape.chunk);
    const uint64_t k = chunktopk_codes(&s->shape, b->n);
    float *out = b->out;
    const uint32_t mask = s->shape.chunk - 1;
    chunktopk_reader r = {record + CHUNKTOPK_HEAD, 0, 0, s->shape.width};
    uint32_t head;
    memcpy(&head, record, sizeof head);
    const float magnitude[2] = {bits_float(head << 16) * b->scale, bits_float(head & 0xFFFF0000u) * b->scale};
    if (b->set) memset(out, 0, b->n * sizeof *out);
    for (uint64_t i = 0; i < k; i++) {
        const uint32_t code = chunktopk_next(&r);
        out[code & mask] += chunktopk_value(code, s->shape.width, magnitude);
    }
}
static const dense_format chunktopk_format = {"chunktopk", CHUNKTOPK_WIRE, 0, chunktopk_valid, chunktopk_add};

/* ---- compress ---------------------------------------------------------------------------------------------------- */
typedef struct chunktopk_job {
    const chunktopk_self *self;
    const esp_codec_args *args;
    unsigned char *body;
    uint32_t bad;
} chunktopk_job;

static void chunktopk_piece(void *arg, uint64_t begin, uint64_t end) {
    chunktopk_job *j = (chunktopk_job *)arg;
    const chunktopk_self *s = j->self;
    chunktopk_chosen chosen;
    chosen.usual = 0;
    chosen.margin = 0.93f;
    for (uint64_t at = begin; at < end; at += s->shape.chunk) {
        const uint64_t n = end - at < s->shape.chunk ? end - at : s->shape.chunk, k = chunktopk_codes(&s->shape, n);
        const float *g = dense_in(j->args) + at;
        float *e = esp_residual_of(j->args, 0);
        if (e) e += at;
        /* chunktopk_choose() fails if an element is NaN or Inf. With error feedback, dense_sound() has excluded
         * that, unless the residual had one before. */
        if (!chunktopk_choose(s, j->args, e, g, n, k, &chosen)) {
            esp_codec_raise(&j->bad, 1);
            return;
        }
        chunktopk_write(s, &chosen, k, e, j->body + at / s->shape.chunk * chunktopk_record(&s->shape, s->shape.chunk));
    }
}

static esp_status chunktopk_compress(void *self, const esp_codec_args *a) {
    const chunktopk_self *s = (const chunktopk_self *)self;
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h =
        esp_payload_header_of(esp_name_hash("chunktopk"), CHUNKTOPK_WIRE, 0, n, chunktopk_body(&s->shape, n), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    esp_codec_args own = esp_codec_args_of(a);
    if (a->flags & ESP_ARG_OWN_MEMORY) own.beta = s->decay, own.gamma = 1;
    chunktopk_job j = {s, &own, (unsigned char *)esp_payload_body(a->payload), 0};
    /* If an element is NaN or Inf, the residual must not change, so this is checked first. */
    j.bad = a->residual && !dense_sound(&s->dense, &own);
    if (!j.bad) dense_run(&s->dense, n, chunktopk_piece, &j);
    return j.bad ? dense_send_nan(a->payload, &h, 0) : ESP_OK;
}
static esp_status chunktopk_decompress(void *self, const esp_codec_args *a) {
    const chunktopk_self *s = (const chunktopk_self *)self;
    return dense_decompress(&s->dense, &chunktopk_format, a, chunktopk_body(&s->shape, a->tensor[0]->count),
                            s->shape.chunk);
}

/* ---- model ------------------------------------------------------------------------------------------------------- */
/* Returns the expected error, for the planner: the share of E x^2, for normally distributed x of variance 1, that is
 * lost if every sent magnitude becomes the mean of its group (low or high) and all other elements become 0. */
static double chunktopk_error(double ratio) {
    const double root = sqrt(2 * ESP_MODEL_PI), t = esp_model_quantile(ratio);
    const double all = 2 * exp(-t * t / 2) / root, m = all / ratio;
    const double p = erfc(m / sqrt(2.0)), above = 2 * exp(-m * m / 2) / root, below = all - above;
    return 1 - above * above / p - (ratio > p ? below * below / (ratio - p) : 0);
}

static esp_status chunktopk_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                  esp_codec_model *out) {
    const chunktopk_self *s = (const chunktopk_self *)self;
    const double ratio = (double)s->shape.k / (double)s->shape.chunk;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 0, (double)chunktopk_record(&s->shape, s->shape.chunk) / (double)s->shape.chunk, 0, 0},
        .error = chunktopk_error(ratio),
        .ns = {esp_model_stream(20) + 3 * ratio, esp_model_stream(4) + 3 * ratio},
        .launches = {2, 2},
        .bytes = {20.1, 4.1 + 64 * ratio},
    };
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec chunktopk_codec = {
    ESP_CODEC_HEAD(CHUNKTOPK_WIRE, ESP_CODEC_OWN_FEEDBACK | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "chunktopk",
    .summary = "the largest elements of each chunk, with 2 bits for a value, and feedback that decays (SparseLoCo)",
    .params = chunktopk_params,
    /* Compressing before any communication lets each rank keep its own residual, which decays. Payloads are so small
     * that an allgather is fastest. */
    .default_option = "comp@cpu > flat.allgather > decomp@cpu",
    .n_rounds = 1,
    ESP_CODEC_CALLS(chunktopk_open, esp_codec_self_free, NULL, chunktopk),
    .family = "hybrid",
    .paper = "Sarfi et al. (SparseLoCo), 2025",
};

ESP_PLUGIN_CODEC(chunktopk, &chunktopk_codec)
