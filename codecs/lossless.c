/* lossless.c: codec "lossless", which changes no bit. The exponents of a gradient's elements take few values, so a
 * Huffman code sends each in about 3 bits instead of 8. Sign and mantissa are sent as they are, without low bits that
 * are 0 in a whole chunk of elements: of numbers that were bfloat16, 8 bits of sign and mantissa are left, of those
 * that were half precision 11, of others 24. After Hershcovitch et al., "ZipNN: lossless compression for AI models",
 * 2024, which codes exponents apart from mantissas, too.
 * The body has the size of each chunk, then the chunks. A chunk that would not get smaller is sent as it is. A coded
 * one has the number of bits kept of sign and mantissa, the length of each exponent's code word, the sizes of four
 * streams, the highest eight bits of all signs and mantissas, their lower bits, and the streams, each with the code
 * words of a quarter of the elements. */
#include "codecs/common/dense.h"

enum { LOSSLESS_CHUNK = 16 * DENSE_BLOCK, LOSSLESS_LONGEST = 11, LOSSLESS_MASK = (1 << LOSSLESS_LONGEST) - 1 };
enum { LOSSLESS_STREAMS = 4, LOSSLESS_SIZES = 1 + 128, LOSSLESS_HEAD = LOSSLESS_SIZES + 4 * LOSSLESS_STREAMS };
enum { LOSSLESS_RAW = 0, LOSSLESS_BF16 = 8, LOSSLESS_F16 = 11, LOSSLESS_F32 = 24 }; /* a chunk's first byte */

ESP_ELEMENT uint64_t lossless_chunks(uint64_t n) { return (n + LOSSLESS_CHUNK - 1) / LOSSLESS_CHUNK; }
static uint64_t lossless_largest(uint64_t n) { return 5 * lossless_chunks(n) + 4 * n; }
ESP_ELEMENT uint64_t lossless_lower_bytes(uint32_t kept, uint64_t n) {
    return kept == LOSSLESS_F32 ? 2 * n : kept == LOSSLESS_F16 ? (3 * n + 7) / 8 : 0;
}
ESP_ELEMENT uint64_t lossless_begin(uint64_t n, uint32_t stream) {
    const uint64_t begin = (n + LOSSLESS_STREAMS - 1) / LOSSLESS_STREAMS * stream;
    return begin < n ? begin : n;
}

/* ---- the Huffman code -------------------------------------------------------------------------------------------- */
/* A node is a leaf or joins two. The leaves come first, by weight, then the joins, in their order. */
typedef struct lossless_nodes {
    uint16_t weight[511], parent[511]; /* at the end, a node's depth is in weight[] */
} lossless_nodes;

/* A leaf's weight, if `count` times 2^-shift, rounded up, is its frequency, and below that its symbol */
ESP_ELEMENT uint32_t lossless_key(uint32_t count, uint32_t shift, uint32_t symbol) {
    return count ? (((count - 1) >> shift) + 1) << 8 | symbol : UINT32_MAX;
}
/* Adds the leaf of key `own`, one of n. Returns its place. */
ESP_ELEMENT uint32_t lossless_leaf(lossless_nodes *t, const uint32_t *key, uint32_t n, uint32_t own) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) at += key[i] < own;
    t->weight[at] = (uint16_t)(own >> 8);
    return at;
}
/* Joins the two lightest of n leaves and of joins without parent, of equal ones the first, until one is left. A join is
 * never lighter than those before it, so the next leaf or join is the lightest. Returns the largest depth, which is the
 * first leaf's. */
ESP_ELEMENT uint32_t lossless_depths(lossless_nodes *t, uint32_t n) {
    uint32_t leaf = 0, join = n;
    for (uint32_t top = n; top < 2 * n - 1; top++) {
        uint32_t sum = 0;
        for (int k = 0; k < 2; k++) {
            const bool is_leaf = leaf < n && (join == top || t->weight[leaf] <= t->weight[join]);
            const uint32_t at = is_leaf ? leaf++ : join++;
            sum += t->weight[at], t->parent[at] = (uint16_t)top;
        }
        t->weight[top] = (uint16_t)sum;
    }
    t->weight[2 * n - 2] = n == 1; /* a single exponent needs a code word, too */
    for (uint32_t i = 2 * n - 2; i-- > 0;) t->weight[i] = (uint16_t)(t->weight[t->parent[i]] + 1);
    return t->weight[0];
}
/* Returns the longest code word's length. */
static uint32_t lossless_tree(const uint32_t count[256], uint32_t shift, uint8_t length[256]) {
    lossless_nodes t;
    uint32_t key[256], place[256], n = 0;
    for (uint32_t i = 0; i < 256; i++)
        if (count[i]) key[n++] = lossless_key(count[i], shift, i);
    for (uint32_t i = 0; i < n; i++) place[i] = lossless_leaf(&t, key, n, key[i]);
    const uint32_t longest = lossless_depths(&t, n);
    memset(length, 0, 256);
    for (uint32_t i = 0; i < n; i++) length[key[i] & 255] = (uint8_t)t.weight[place[i]];
    return longest;
}

/* Returns how many codes of LOSSLESS_LONGEST bits begin with a code word of `length` bits. */
ESP_ELEMENT uint32_t lossless_share(uint32_t length) {
    return length && length <= LOSSLESS_LONGEST ? 1u << (LOSSLESS_LONGEST - length) : 0;
}
/* Are `known` code words complete that begin `share` codes? A single one has one bit. */
ESP_ELEMENT bool lossless_complete(uint32_t share, uint32_t known) {
    return share == LOSSLESS_MASK + 1 || (known == 1 && share == (LOSSLESS_MASK + 1) / 2);
}
/* The code word of `length` bits, the first one lowest, if words before it, in canonical order, begin `before` codes */
ESP_ELEMENT uint32_t lossless_code(uint32_t before, uint32_t length) {
    uint32_t code = 0;
    for (uint32_t k = 0; k < length; k++) code |= (before >> (LOSSLESS_LONGEST - 1 - k) & 1) << k;
    return code;
}
/* Calls put(to, symbol, length, code) for all code words, in the order of symbols. */
static void lossless_words(const uint8_t length[256], void *to,
                           void (*put)(void *to, uint32_t symbol, uint32_t length, uint32_t code)) {
    uint32_t before[LOSSLESS_LONGEST + 2] = {0};
    for (uint32_t i = 0; i < 256; i++) before[length[i] + 1] += lossless_share(length[i]);
    for (uint32_t bits = 2; bits <= LOSSLESS_LONGEST; bits++) before[bits] += before[bits - 1];
    for (uint32_t i = 0; i < 256; i++) {
        if (length[i]) put(to, i, length[i], lossless_code(before[length[i]], length[i]));
        before[length[i]] += lossless_share(length[i]);
    }
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
/* Writes the exponents. Returns the bits that are set in any element. */
ESP_INLINE uint64_t lossless_split_body(uint8_t *restrict exponent, const float *restrict x, uint64_t n) {
    uint32_t any = 0;
    ESP_SIMD_REDUCE(|, any)
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t bits = float_bits(x[i]);
        exponent[i] = (uint8_t)(bits >> 23);
        any |= bits;
    }
    return any;
}
/* Writes the highest eight bits of sign and mantissa, and if `lower` is not NULL, the lower 16. */
ESP_INLINE uint64_t lossless_rest_body(uint8_t *restrict high, dense_u16 *restrict lower, const float *restrict x,
                                       uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t bits = float_bits(x[i]);
        high[i] = (uint8_t)((bits >> 16 & 0x7F) | (bits >> 31 << 7));
    }
    if (!lower) return 0;
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) lower[i] = (uint16_t)float_bits(x[i]);
    return 0;
}
ESP_KERNEL(lossless_split, (uint8_t *restrict exponent, const float *restrict x, uint64_t n), (exponent, x, n))
ESP_KERNEL(lossless_rest, (uint8_t *restrict high, dense_u16 *restrict lower, const float *restrict x, uint64_t n),
           (high, lower, x, n))

typedef struct lossless_word {
    uint16_t code, bits;
} lossless_word;

static void lossless_put_word(void *to, uint32_t symbol, uint32_t length, uint32_t code) {
    ((lossless_word *)to)[symbol] = (lossless_word){(uint16_t)code, (uint16_t)length};
}

/* Writes the code words of n exponents, and up to seven bytes more. Returns the end. */
static unsigned char *lossless_stream(unsigned char *to, const lossless_word *words, const uint8_t *x, uint64_t n) {
    uint64_t hold = 0;
    uint32_t bits = 0;
    for (uint64_t i = 0; i < n; i++) {
        hold |= (uint64_t)words[x[i]].code << bits;
        bits += words[x[i]].bits;
        if (i % 4 != 3 && i + 1 < n) continue;
        for (int k = 0; k < 8; k++) to[k] = (unsigned char)(hold >> 8 * k); /* one store */
        to += bits / 8, hold >>= bits / 8 * 8, bits %= 8;
    }
    *to = (unsigned char)hold;
    return to + (bits > 0);
}

static void lossless_lower3(unsigned char *to, const float *x, uint64_t n) {
    memset(to, 0, (3 * n + 7) / 8);
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t v = (float_bits(x[i]) >> 13 & 7) << 3 * i % 8;
        to[3 * i / 8] = (unsigned char)(to[3 * i / 8] | v);
        if (v >> 8) to[3 * i / 8 + 1] = (unsigned char)(v >> 8);
    }
}

typedef struct lossless_job {
    const dense_self *self;
    const esp_codec_args *args;
    unsigned char *body, *chunks;
    uint32_t bad;
} lossless_job;

/* What is known of a chunk before it is written. */
typedef struct lossless_plan {
    uint32_t kept, count[256];
    uint8_t exponent[LOSSLESS_CHUNK], length[256];
} lossless_plan;

/* Writes elements [at, at + n) as the plan says. Returns the end. */
static unsigned char *lossless_write(const lossless_job *j, const lossless_plan *p, unsigned char *to, uint64_t at,
                                     uint64_t n) {
    const dense_self *s = j->self;
    unsigned char *sizes = to + LOSSLESS_SIZES, *high = to + LOSSLESS_HEAD, *lower = high + n;
    float tmp[DENSE_BLOCK];
    lossless_word words[256];
    *to++ = (unsigned char)p->kept;
    if (p->kept == LOSSLESS_RAW) {
        for (uint64_t i = 0; i < n; i += DENSE_BLOCK, to += 4 * DENSE_BLOCK) {
            const uint64_t len = n - i < DENSE_BLOCK ? n - i : DENSE_BLOCK;
            memcpy(to, dense_block_phi(s, j->args, at + i, len, tmp), 4 * len);
        }
        return sizes - LOSSLESS_SIZES + 1 + 4 * n;
    }
    for (uint32_t i = 0; i < 256; i += 2) *to++ = (unsigned char)(p->length[i] | p->length[i + 1] << 4);
    for (uint64_t i = 0; i < n; i += DENSE_BLOCK) {
        const uint64_t len = n - i < DENSE_BLOCK ? n - i : DENSE_BLOCK;
        const float *phi = dense_block_phi(s, j->args, at + i, len, tmp);
        dense_u16 *all = p->kept == LOSSLESS_F32 ? (dense_u16 *)(void *)lower + i : NULL;
        lossless_rest_for(s->level)(high + i, all, phi, len);
        if (p->kept == LOSSLESS_F16) lossless_lower3(lower + 3 * i / 8, phi, len);
    }
    lossless_words(p->length, words, lossless_put_word);
    to = lower + lossless_lower_bytes(p->kept, n);
    for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++) {
        const uint64_t begin = lossless_begin(n, k);
        unsigned char *end = lossless_stream(to, words, p->exponent + begin, lossless_begin(n, k + 1) - begin);
        ((dense_u32 *)(void *)sizes)[k] = (uint32_t)(end - to);
        to = end;
    }
    return to;
}

/* Returns the form of a chunk with code words of `bits` bits. `any` has the bits that are set in any element. */
ESP_ELEMENT uint32_t lossless_kept(uint32_t any, uint64_t bits, uint64_t n) {
    const uint32_t kept = any & 0x1FFF ? LOSSLESS_F32 : any & 0xFFFF ? LOSSLESS_F16 : LOSSLESS_BF16;
    /* a stream may end with a part of a byte, and its last store may write eight bytes */
    const uint64_t most = LOSSLESS_HEAD + n + lossless_lower_bytes(kept, n) + bits / 8 + LOSSLESS_STREAMS + 8;
    return most > 4 * n ? LOSSLESS_RAW : kept;
}
/* Chooses the form of a chunk whose exponents are known. */
static void lossless_choose(lossless_plan *p, uint32_t any, uint64_t n) {
    uint64_t bits = 0;
    uint32_t count[4][256] = {{0}}; /* neighbours are often equal, and an addition must wait for the one before */
    for (uint64_t i = 0; i < n; i++) count[i % 4][p->exponent[i]]++;
    for (uint32_t i = 0; i < 256; i++) p->count[i] = count[0][i] + count[1][i] + count[2][i] + count[3][i];
    for (uint32_t shift = 0; lossless_tree(p->count, shift, p->length) > LOSSLESS_LONGEST;) shift++;
    for (uint32_t i = 0; i < 256; i++) bits += (uint64_t)p->count[i] * p->length[i];
    p->kept = lossless_kept(any, bits, n);
}

static void lossless_compress_piece(void *arg, uint64_t begin, uint64_t end) {
    lossless_job *j = (lossless_job *)arg;
    lossless_plan p;
    float tmp[DENSE_BLOCK];
    for (uint64_t at = begin; at < end; at += LOSSLESS_CHUNK) {
        const uint64_t n = end - at < LOSSLESS_CHUNK ? end - at : LOSSLESS_CHUNK, chunk = at / LOSSLESS_CHUNK;
        uint32_t any = 0;
        for (uint64_t i = 0; i < n; i += DENSE_BLOCK) {
            const uint64_t len = n - i < DENSE_BLOCK ? n - i : DENSE_BLOCK;
            const float *phi = dense_block_phi(j->self, j->args, at + i, len, tmp);
            any |= (uint32_t)lossless_split_for(j->self->level)(p.exponent + i, phi, len);
        }
        lossless_choose(&p, any, n);
        if (p.count[255]) { /* NaN or Inf */
            esp_codec_raise(&j->bad, 1);
            return;
        }
        unsigned char *to = j->chunks + chunk + 4 * at;
        ((dense_u32 *)(void *)j->body)[chunk] = (uint32_t)(lossless_write(j, &p, to, at, n) - to);
    }
}

static esp_status lossless_compress(void *self, const esp_codec_args *args) {
    const esp_codec_args a = esp_codec_args_of(args);
    const dense_self *s = (const dense_self *)self;
    const uint64_t n = a.tensor[0]->count, chunks = lossless_chunks(n);
    esp_payload_header h = esp_payload_header_of(esp_name_hash("lossless"), 1, 0, n, lossless_largest(n), 0);
    const esp_status st = esp_payload_begin(a.payload, &h);
    if (st != ESP_OK || !n) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a.payload);
    lossless_job j = {s, &a, body, body + 4 * chunks, 0};
    if (a.residual && !dense_finite(s, &a)) return dense_send_nan(a.payload, &h, 0);
    esp_codec_parallel(s->host, n, 2 * LOSSLESS_CHUNK, lossless_compress_piece, &j);
    if (j.bad) return dense_send_nan(a.payload, &h, 0);
    if (a.residual) memset(esp_residual_of(&a, 0), 0, 4 * n);
    unsigned char *to = j.chunks;
    for (uint64_t c = 0; c < chunks; c++) {
        const uint32_t size = ((const dense_u32 *)(const void *)body)[c];
        memmove(to, j.chunks + c * (1 + 4 * LOSSLESS_CHUNK), size);
        to += size;
    }
    h.body_bytes = (uint64_t)(to - body);
    return esp_payload_begin(a.payload, &h);
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
ESP_INLINE uint64_t lossless_join_body(float *restrict out, const uint8_t *restrict exponent,
                                       const uint8_t *restrict high, const uint16_t *restrict lower, float scale,
                                       bool set, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(high[i] >> 7) << 31, mantissa = (uint32_t)(high[i] & 0x7F) << 16 | lower[i];
        const float x = bits_float(sign | (uint32_t)exponent[i] << 23 | mantissa) * scale;
        out[i] = set ? x : out[i] + x;
    }
    return 0;
}
ESP_KERNEL(lossless_join,
           (float *restrict out, const uint8_t *restrict exponent, const uint8_t *restrict high,
            const uint16_t *restrict lower, float scale, bool set, uint64_t n),
           (out, exponent, high, lower, scale, set, n))

/* For each code of LOSSLESS_LONGEST bits, the exponent, and its code word's length times 256. */
typedef uint16_t lossless_table[LOSSLESS_MASK + 1];

static void lossless_put_entries(void *to, uint32_t symbol, uint32_t length, uint32_t code) {
    for (; code <= LOSSLESS_MASK; code += 1u << length) ((uint16_t *)to)[code] = (uint16_t)(length << 8 | symbol);
}

typedef struct lossless_reader {
    const unsigned char *at, *end;
    uint64_t hold;
    uint32_t bits;
} lossless_reader;

/* Afterwards `hold` has at least 56 bits: zeros follow the end. */
static inline void lossless_fill(lossless_reader *r) {
    if (r->end - r->at >= 8) {
        uint64_t next = 0;
        for (int k = 0; k < 8; k++) next |= (uint64_t)r->at[k] << 8 * k; /* one load */
        r->hold |= next << r->bits;
        r->at += (63 - r->bits) >> 3;
        r->bits |= 56;
        return;
    }
    for (; r->bits < 56; r->bits += 8)
        if (r->at < r->end) r->hold |= (uint64_t)*r->at++ << r->bits;
}
static inline uint8_t lossless_next(lossless_reader *r, const lossless_table table) {
    const uint32_t entry = table[r->hold & LOSSLESS_MASK];
    r->hold >>= entry >> 8;
    r->bits -= entry >> 8;
    return (uint8_t)entry;
}

/* Reads the exponents of n elements from all four streams at once. */
static void lossless_read(uint8_t *exponent, const unsigned char *sizes, const unsigned char *streams,
                          const lossless_table table, uint64_t n) {
    enum { EACH = 5 }; /* code words in 56 bits */
    lossless_reader r[LOSSLESS_STREAMS];
    const uint64_t shortest = n - lossless_begin(n, LOSSLESS_STREAMS - 1), quarter = lossless_begin(n, 1);
    uint64_t done = 0;
    for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++) {
        const unsigned char *end = streams + ((const dense_u32 *)(const void *)sizes)[k];
        r[k] = (lossless_reader){streams, end, 0, 0};
        streams = end;
    }
    for (; done + EACH <= shortest; done += EACH)
        for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++) {
            lossless_fill(&r[k]);
            for (uint32_t i = 0; i < EACH; i++) exponent[k * quarter + done + i] = lossless_next(&r[k], table);
        }
    for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++)
        for (uint64_t i = lossless_begin(n, k) + done; i < lossless_begin(n, k + 1); i++) {
            lossless_fill(&r[k]);
            exponent[i] = lossless_next(&r[k], table);
        }
}

ESP_ELEMENT bool lossless_kept_known(uint32_t kept) {
    return kept == LOSSLESS_BF16 || kept == LOSSLESS_F16 || kept == LOSSLESS_F32;
}
static void lossless_lengths(uint8_t length[256], const unsigned char *chunk) {
    for (uint32_t i = 0; i < 256; i++) length[i] = chunk[1 + i / 2] >> 4 * (i % 2) & 15;
}

/* Any content of the streams stands for finite numbers, if the code words are complete. */
static bool lossless_chunk_valid(const unsigned char *chunk, uint64_t size, uint64_t n) {
    const uint32_t kept = size ? chunk[0] : 1;
    uint8_t length[256];
    uint32_t known = 0, share = 0;
    float x;
    if (kept == LOSSLESS_RAW) {
        if (size != 1 + 4 * n) return false;
        for (uint64_t i = 0; i < n; i++) {
            memcpy(&x, chunk + 1 + 4 * i, 4);
            if (dense_bad(x)) return false;
        }
        return true;
    }
    if (!lossless_kept_known(kept) || size < LOSSLESS_HEAD) return false;
    lossless_lengths(length, chunk);
    for (uint32_t i = 0; i < 256; i++) {
        if (length[i] > LOSSLESS_LONGEST) return false;
        known += length[i] > 0, share += lossless_share(length[i]);
    }
    if (length[255] || !lossless_complete(share, known)) return false;
    uint64_t bytes = LOSSLESS_HEAD + n + lossless_lower_bytes(kept, n);
    for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++)
        bytes += ((const dense_u32 *)(const void *)(chunk + LOSSLESS_SIZES))[k];
    return bytes == size;
}

static bool lossless_valid(const unsigned char *body, uint64_t bytes, uint64_t n) {
    const uint64_t chunks = lossless_chunks(n);
    if (bytes < 4 * chunks) return false;
    uint64_t at = 4 * chunks;
    for (uint64_t c = 0; c < chunks; c++) {
        const uint64_t size = ((const dense_u32 *)(const void *)body)[c], begin = c * LOSSLESS_CHUNK;
        if (size > bytes - at) return false;
        if (!lossless_chunk_valid(body + at, size, n - begin < LOSSLESS_CHUNK ? n - begin : LOSSLESS_CHUNK))
            return false;
        at += size;
    }
    return at == bytes;
}

static void lossless_decode(const dense_self *s, const unsigned char *chunk, float *out, float scale, bool set,
                            uint64_t n) {
    const uint32_t kept = chunk[0];
    const unsigned char *high = chunk + LOSSLESS_HEAD, *lower = high + n;
    uint8_t exponent[LOSSLESS_CHUNK], length[256];
    lossless_table table;
    uint16_t words[DENSE_BLOCK] = {0};
    if (kept == LOSSLESS_RAW) {
        for (uint64_t i = 0; i < n; i++) {
            const float x = ((const dense_f32 *)(const void *)(chunk + 1))[i] * scale;
            out[i] = set ? x : out[i] + x;
        }
        return;
    }
    lossless_lengths(length, chunk);
    for (uint32_t i = 0; i < 256; i++) /* a single exponent's word leaves other codes */
        if (length[i] == 1) lossless_put_entries(table, i, 0, 0);
    lossless_words(length, table, lossless_put_entries);
    lossless_read(exponent, chunk + LOSSLESS_SIZES, lower + lossless_lower_bytes(kept, n), table, n);
    for (uint64_t at = 0; at < n; at += DENSE_BLOCK) {
        const uint64_t len = n - at < DENSE_BLOCK ? n - at : DENSE_BLOCK;
        if (kept == LOSSLESS_F32) memcpy(words, lower + 2 * at, 2 * len);
        for (uint64_t i = at; i < at + len && kept == LOSSLESS_F16; i++) {
            const uint32_t more = 3 * i % 8 > 5 ? lower[3 * i / 8 + 1] : 0;
            words[i - at] = (uint16_t)(((lower[3 * i / 8] | more << 8) >> 3 * i % 8 & 7) << 13);
        }
        lossless_join_for(s->level)(out + at, exponent + at, high + at, words, scale, set, len);
    }
}

typedef struct lossless_sum {
    const dense_self *self;
    const esp_codec_args *args;
    const unsigned char *body;
    bool set;
} lossless_sum;

static void lossless_decompress_piece(void *arg, uint64_t begin, uint64_t end) {
    const lossless_sum *d = (const lossless_sum *)arg;
    const uint64_t n = d->args->tensor[0]->count, first = begin / LOSSLESS_CHUNK;
    const dense_u32 *size = (const dense_u32 *)(const void *)d->body;
    const unsigned char *chunk = d->body + 4 * lossless_chunks(n);
    for (uint64_t c = 0; c < first; c++) chunk += size[c];
    for (uint64_t at = begin; at < end; at += LOSSLESS_CHUNK) {
        lossless_decode(d->self, chunk, dense_out(d->args) + at, d->args->scale == 0 ? 1 : d->args->scale, d->set,
                        end - at < LOSSLESS_CHUNK ? end - at : LOSSLESS_CHUNK);
        chunk += size[at / LOSSLESS_CHUNK];
    }
}

static esp_status lossless_decompress(void *self, const esp_codec_args *args) {
    const esp_codec_args a = esp_codec_args_of(args);
    const uint64_t n = a.tensor[0]->count;
    lossless_sum d = {(const dense_self *)self, &a, NULL, a.mode == ESP_OUT_SET};
    esp_payload_header h;
    bool nan = false;
    for (uint32_t p = 0; p < a.n_payloads; p++) {
        const unsigned char *body = (const unsigned char *)esp_payload_body(&a.payload[p]);
        if (esp_payload_read(&a.payload[p], esp_name_hash("lossless"), 1, n, &h) != ESP_OK || h.aux ||
            (h.flags || !n ? h.body_bytes != 0 : !lossless_valid(body, h.body_bytes, n)))
            return ESP_E_CORRUPT;
        nan |= (h.flags & ESP_PAYLOAD_NONFINITE) != 0;
    }
    if (nan) {
        dense_fill_nan(dense_out(&a), n);
        return ESP_OK;
    }
    for (uint32_t p = 0; p < a.n_payloads; p++) {
        memcpy(&h, a.payload[p].data.ptr, sizeof h);
        if (!h.body_bytes) continue;
        d.body = (const unsigned char *)esp_payload_body(&a.payload[p]);
        esp_codec_parallel(d.self->host, n, 2 * LOSSLESS_CHUNK, lossless_decompress_piece, &d);
        d.set = false;
    }
    if (d.set) memset(dense_out(&a), 0, 4 * n);
    return ESP_OK;
}

/* ---- the codec --------------------------------------------------------------------------------------------------- */
static esp_status lossless_open(const esp_host *h, const char *params, void **self) {
    return dense_open(h, "lossless", params, NULL, 0, "", sizeof(dense_self), self);
}

static esp_status lossless_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                 esp_bound *out) {
    (void)self, (void)round, (void)n_reduced;
    return esp_bound_fill(out, like->count ? lossless_largest(like->count) : 0, 0, 0);
}

/* The size is for normally distributed f32, whose exponents take 2.7 bits each. */
static esp_status lossless_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                 esp_codec_model *out) {
    const esp_facts f = {.size = {4 + LOSSLESS_HEAD, 0, ((int)LOSSLESS_F32 + 2.8) / 8, 0, 0},
                         .error = 0,
                         .ns = {12, 6.5},
                         .launches = {2, 2},
                         .bytes = {11.4, 8.5}};
    (void)self, (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec lossless_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK),
    .name = "lossless",
    .summary = "changes no bit: a Huffman code for exponents; about 27 bits of an f32, 14 of an f16, 11 of a bf16",
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    ESP_CODEC_CALLS(lossless_open, esp_codec_self_free, NULL, lossless),
    .family = "lossless",
    .paper = "Hershcovitch et al. (ZipNN), 2024",
};

ESP_PLUGIN_CODEC(lossless, &lossless_codec)
