/* qsgd.c: codecs "qsgd" and "terngrad", which round each element at random to one of the two nearest levels, so that
 * the decoded value is right on average. There is no error feedback unless feedback=residual asks for it.
 * "qsgd": Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
 * encoding", NeurIPS 2017, with a code of fixed width. In each block, levels are multiples of its Euclidean norm / s,
 * with s = 2^(bits-1) - 1. With norm=0 they are multiples of its largest magnitude / s. With elias=1 a level takes as
 * many bits as its Elias gamma code, so that payloads vary in size.
 * "terngrad": Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning", NeurIPS
 * 2017: levels -1, 0, 1. Elements beyond clip times the root mean square are clipped first, which makes the levels
 * finer, but the values of those elements too small. */
#include <stddef.h>
#include "codecs/common/blocks.h"
#include "codecs/common/serial.h"

typedef struct qsgd_self {
    blocks_self blocks;
    bool norm;
    float clip; /* 0: no clipping */
    /* for elias=1 */
    serial_self serial;
    uint32_t word[256]; /* of each code: its Elias code, and from bit 16 on how many bits that has */
} qsgd_self;

/* Levels are signed integers of `bits` bits. h.a: unit; h.b: 1 / unit; h.c: the largest level. */
ESP_ELEMENT float qsgd_round(float x, uint32_t noise, blocks_scale h, uint32_t *code) {
    const float size = bits_float(float_bits(x) & 0x7FFFFFFFu);
    const float y = size * h.b + ((float)(int32_t)noise + 0.5f) * (1.0f / 65536.0f);
    const int32_t up = (int32_t)(y < h.c ? y : h.c), level = x < 0 ? -up : up;
    *code = (uint32_t)level & h.levels;
    return h.a * (float)level;
}
ESP_ELEMENT float qsgd_value(uint32_t code, blocks_scale h) {
    const int32_t sign = (int32_t)(h.levels >> 1) + 1;
    return h.a * (float)(((int32_t)code ^ sign) - sign);
}
BLOCKS_KERNELS(qsgd, BLOCKS_NOISE)

/* Returns the unit of a block of n elements, of which `top` is the largest magnitude. `squares` is used only with a
 * norm or clipping. */
ESP_ELEMENT float qsgd_unit(float top, float squares, uint64_t n, bool norm, float clip, uint32_t mask) {
    const float most = (float)(int32_t)(mask >> 1);
    if (norm) {
        const float unit = top * (blocks_rms(squares, n) * sqrtf((float)n) / most);
        return dense_bad(unit) || unit < bits_float(QUANT_LEAST) ? top : unit;
    }
    const float limit = clip > 0 ? clip * blocks_rms(squares, n) : 1;
    return top * (limit < 1 ? limit : 1) / most;
}
static uint32_t qsgd_mask(const blocks_self *s) { return (1u << s->bits) - 1; }
static void qsgd_heads_of(const blocks_self *s, float *heads, const float *phi, uint64_t n) {
    const qsgd_self *q = (const qsgd_self *)s;
    const bool measure = q->norm || q->clip > 0;
    float top[BLOCKS_MOST], squares[BLOCKS_MOST];
    blocks_tops(s, top, phi, n);
    if (measure) blocks_squares_for(s->dense.level)(squares, top, phi, s->block, n);
    for (uint64_t i = 0, k = 0; i < n; i += s->block, k++) {
        const uint64_t m = n - i < s->block ? n - i : s->block;
        heads[k] = top[k] > 0 ? qsgd_unit(top[k], measure ? squares[k] : 0, m, q->norm, q->clip, qsgd_mask(s)) : 0;
    }
}
ESP_ELEMENT blocks_scale qsgd_scale(float head, uint32_t mask) {
    const float unit = bits_float(float_bits(head) & 0x7FFFFFFFu), inverse = unit > 0 ? 1 / unit : 0;
    const blocks_scale h = {unit, dense_bad(inverse) ? 0 : inverse, (float)(int32_t)(mask >> 1), mask, NULL};
    return h;
}
static blocks_scale qsgd_scale_of(const blocks_self *s, const float *head) { return qsgd_scale(head[0], qsgd_mask(s)); }
static const blocks_format qsgd_format = {
    "qsgd", 1, true, qsgd_heads_of, qsgd_scale_of, qsgd_encode_for, qsgd_decode_for, {2.2, 1}, true};
static const blocks_format terngrad_format = {
    "terngrad", 1, true, qsgd_heads_of, qsgd_scale_of, qsgd_encode_for, qsgd_decode_for, {1.8, 0.8}, true};

/* ---- elias=1 ----------------------------------------------------------------------------------------------------- */
/* A body has a record for each 1024 elements: the heads of their blocks, then their levels, padded to whole bytes. Of a
 * level l, z zeros and a 1 say how many bits |l| + 1 has, z + 1; its lower z bits follow, then a sign unless l is 0. */
static const qsgd_self *qsgd_of(const serial_self *s) {
    return (const qsgd_self *)(const void *)((const char *)s - offsetof(qsgd_self, serial));
}
static void qsgd_words(qsgd_self *s) {
    const uint32_t mask = (1u << s->blocks.bits) - 1, sign = (mask >> 1) + 1;
    for (uint32_t code = 0; code <= mask; code++) {
        const uint32_t size = code & sign ? mask + 1 - code : code, zeros = 31 - (uint32_t)__builtin_clz(size + 1);
        const uint32_t low = (size + 1) ^ 1u << zeros, negative = code >= sign;
        const uint32_t length = 2 * zeros + 1 + (size > 0);
        s->word[code] = 1u << zeros | low << (zeros + 1) | negative << (2 * zeros + 1) | length << 16;
    }
}
static uint64_t qsgd_largest(const serial_self *self, uint64_t n) {
    const blocks_self *s = &qsgd_of(self)->blocks;
    return blocks_heads_bytes(s, n) + (2 * s->bits * n + 7) / 8 + n / DENSE_BLOCK;
}
static unsigned char *qsgd_pack(const qsgd_self *s, unsigned char *to, const uint8_t *codes, uint64_t n) {
    uint64_t bits = 0;
    uint32_t filled = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t word = s->word[codes[i]];
        bits |= (uint64_t)(word & 0xFFFFu) << filled;
        filled += word >> 16;
        if (filled < 32) continue;
        memcpy(to, &bits, 4);
        to += 4, bits >>= 32, filled -= 32;
    }
    for (uint32_t i = 0; i < filled; i += 8) *to++ = (unsigned char)(bits >> i);
    return to;
}
static unsigned char *qsgd_record(const qsgd_self *s, blocks_job *j, unsigned char *to, float *e, const float *phi,
                                  uint64_t n) {
    uint8_t packed[DENSE_BLOCK], codes[DENSE_BLOCK];
    j->heads = to, j->codes = packed;
    blocks_encode(j, phi, e, 0, n);
    if (s->blocks.bits < 8) blocks_unpack_for(s->blocks.dense.level)(codes, packed, s->blocks.bits, n);
    return qsgd_pack(s, to + blocks_heads_bytes(&s->blocks, n), s->blocks.bits < 8 ? codes : packed, n);
}
static unsigned char *qsgd_put(const serial_self *self, serial_state *st, unsigned char *to, float *e, const float *phi,
                               uint64_t n) {
    const qsgd_self *s = qsgd_of(self);
    const esp_codec_args *a = st->args;
    const uint64_t key = esp_rng_key(a->seed, a->step, a->tensor[0]->key, a->comp_index, a->source);
    blocks_job j = {&s->blocks, NULL, NULL, key, a->offset[0] + st->at, NULL, 0};
    return qsgd_record(s, &j, to, e, phi, n);
}
/* Reads the levels of n elements. Returns the end, or NULL if they are corrupt. */
static const unsigned char *qsgd_take(const qsgd_self *s, uint8_t *codes, const unsigned char *in,
                                      const unsigned char *end, uint64_t n) {
    const uint32_t mask = (1u << s->blocks.bits) - 1;
    uint64_t bits = 0;
    uint32_t have = 0;
    for (uint64_t i = 0; i < n; i++) {
        for (; have < 16 && in < end; have += 8) bits |= (uint64_t)*in++ << have;
        const uint32_t zeros = (uint32_t)__builtin_ctzll(bits | 1u << 8);
        const uint32_t size = (1u << zeros | ((uint32_t)(bits >> (zeros + 1)) & ((1u << zeros) - 1))) - 1;
        const uint32_t length = 2 * zeros + 1, all = length + (size > 0);
        if (size > mask >> 1 || all > have) return NULL;
        codes[i] = (uint8_t)((size > 0 && bits >> length & 1 ? 0 - size : size) & mask);
        bits >>= all, have -= all;
    }
    return bits & ((1u << have % 8) - 1) ? NULL : in - have / 8;
}
static bool qsgd_valid(const serial_self *self, const unsigned char *body, uint64_t bytes, uint64_t n) {
    const qsgd_self *s = qsgd_of(self);
    const unsigned char *at = body, *end = body + bytes;
    uint8_t codes[DENSE_BLOCK];
    for (uint64_t i = 0; i < n && at; i += DENSE_BLOCK) {
        const uint64_t len = n - i < DENSE_BLOCK ? n - i : DENSE_BLOCK, heads = blocks_heads_bytes(&s->blocks, len);
        if ((uint64_t)(end - at) < heads || !blocks_heads_ok(at, heads)) return false;
        at = qsgd_take(s, codes, at + heads, end, len);
    }
    return at == end;
}
static void qsgd_decode_all(const serial_self *self, const unsigned char *body, uint64_t bytes, float *out, float scale,
                            bool set, uint64_t n) {
    const qsgd_self *s = qsgd_of(self);
    const unsigned char *at = body;
    uint8_t codes[DENSE_BLOCK];
    for (uint64_t i = 0; i < n; i += DENSE_BLOCK) {
        const uint64_t len = n - i < DENSE_BLOCK ? n - i : DENSE_BLOCK;
        const unsigned char *head = at;
        at = qsgd_take(s, codes, at + blocks_heads_bytes(&s->blocks, len), body + bytes, len);
        for (uint64_t k = 0; k < len; k += s->blocks.block, head += sizeof(float)) {
            float unit;
            memcpy(&unit, head, sizeof unit);
            qsgd_decode_for(s->blocks.dense.level)(out + i + k, codes + k, qsgd_scale_of(&s->blocks, &unit), scale, set,
                                                   len - k < s->blocks.block ? len - k : s->blocks.block);
        }
    }
}
static const serial_format qsgd_elias = {
    .name = "qsgd",
    .block = DENSE_BLOCK,
    .largest = qsgd_largest,
    .encode = qsgd_put,
    .valid = qsgd_valid,
    .decode = qsgd_decode_all,
};

static const serial_self *qsgd_serial(const void *self) {
    const qsgd_self *s = (const qsgd_self *)self;
    return s->serial.format ? &s->serial : NULL;
}
static esp_status qsgd_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    return qsgd_serial(self) ? serial_bound(&((qsgd_self *)self)->serial, like, round, n_reduced, out)
                             : blocks_bound(self, like, round, n_reduced, out);
}
static esp_status qsgd_compress(void *self, const esp_codec_args *a) {
    return qsgd_serial(self) ? serial_compress(&((qsgd_self *)self)->serial, a) : blocks_compress(self, a);
}
static esp_status qsgd_decompress(void *self, const esp_codec_args *a) {
    return qsgd_serial(self) ? serial_decompress(&((qsgd_self *)self)->serial, a) : blocks_decompress(self, a);
}
static esp_status qsgd_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    const qsgd_self *s = (const qsgd_self *)self;
    unsigned char body[3 * DENSE_BLOCK];
    float x[DENSE_BLOCK];
    double bytes = 0;
    if (!qsgd_serial(self)) return blocks_model(self, like, n_reduced, d, out);
    for (uint64_t draw = 0; draw < BLOCKS_DRAWS; draw++) {
        blocks_job j = {&s->blocks, NULL, NULL, 1, draw * DENSE_BLOCK, NULL, 0};
        blocks_normal(x, draw);
        bytes += (double)(qsgd_record(s, &j, body, NULL, x, DENSE_BLOCK) - body);
    }
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 0, bytes / ((int)BLOCKS_DRAWS * (int)DENSE_BLOCK), 0, 0},
        .error = blocks_error(&s->blocks),
        .ns = {9, 30},
    };
    return esp_model_fill(out, &f, d);
}

/* ---- the codecs' tables ------------------------------------------------------------------------------------------ */
static const char qsgd_params[] = "bits=8,block=128,norm=1,elias=0", terngrad_params[] = "block=1024,clip=2.5";

static esp_status qsgd_open(const esp_host *h, const char *params, void **self) {
    double bits = 8, block = 128, norm = 1, elias = 0;
    esp_param p[] = {BLOCKS_PARAM(&block),
                     {"bits", &bits, 2, 8, 0, ESP_PARAM_WHOLE, "a whole number from 2 to 8"},
                     {"norm", &norm, 0, 1, 0, ESP_PARAM_WHOLE, "1 (Euclidean norm) or 0 (largest magnitude)"},
                     {"elias", &elias, 0, 1, 0, ESP_PARAM_WHOLE, "0 (codes of fixed width) or 1 (Elias gamma codes)"}};
    const esp_status st = blocks_open(&qsgd_format, h, params, p, 4, qsgd_params, sizeof(qsgd_self), self);
    if (st != ESP_OK) return st;
    qsgd_self *s = (qsgd_self *)*self;
    s->blocks.block = (uint64_t)block;
    s->blocks.bits = (uint32_t)bits;
    s->norm = norm > 0;
    if (elias > 0) {
        s->serial = (serial_self){s->blocks.dense, &qsgd_elias};
        qsgd_words(s);
    }
    return ESP_OK;
}
static esp_status terngrad_open(const esp_host *h, const char *params, void **self) {
    double block = 1024, clip = 2.5;
    esp_param p[] = {BLOCKS_PARAM(&block), {"clip", &clip, 0, 1000, 0, 0, "0 (no clipping) to 1000"}};
    const esp_status st = blocks_open(&terngrad_format, h, params, p, 2, terngrad_params, sizeof(qsgd_self), self);
    if (st != ESP_OK) return st;
    qsgd_self *s = (qsgd_self *)*self;
    s->blocks.block = (uint64_t)block;
    s->blocks.bits = 2;
    s->clip = (float)clip;
    return ESP_OK;
}

static const esp_codec qsgd_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK),
    .name = "qsgd",
    .summary = "random rounding to levels of each block's norm, right on average: 2 to 8 bits an element",
    .params = qsgd_params,
    .default_option = BLOCKS_OPTION,
    .n_rounds = 1,
    ESP_CODEC_CALLS(qsgd_open, esp_codec_self_free, NULL, qsgd),
    .family = "quantize",
    .paper = "Alistarh et al., NeurIPS 2017",
};
static const esp_codec terngrad_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK),
    .name = "terngrad",
    .summary = "random rounding to -s, 0 or s, with an s for each block: 2 bits an element",
    .params = terngrad_params,
    .default_option = BLOCKS_OPTION,
    BLOCKS_CODEC(terngrad_open),
    .family = "quantize",
    .paper = "Wen et al., NeurIPS 2017",
};

ESP_PLUGIN_CODEC(qsgd, &qsgd_codec, &terngrad_codec)
