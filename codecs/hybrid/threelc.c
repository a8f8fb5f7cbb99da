/* threelc.c: codec "threelc", which sends -M, 0 or M for each element, with error feedback. M is s times the largest
 * magnitude; an element of at least M/2 in magnitude is not sent as 0. Five elements make a byte, and runs of bytes
 * that stand for zeros, in a block, make one byte. After Lim, Andersen, Kaminsky, "3LC: lightweight and effective
 * traffic compression for distributed machine learning", SysML 2019. Bytes are made of blocks of 1280 elements, so that
 * five vectors of 256 make 256 bytes. */
#include "codecs/common/serial.h"

enum {
    THREELC_BLOCK = 1280,
    THREELC_BYTES = THREELC_BLOCK / 5,
    THREELC_ZEROS = 121, /* a byte of five zeros */
    THREELC_RUN = 243,   /* a run of two; 255 is one of 14 */
    THREELC_MOST = 14,
    THREELC_HEAD = 4
};

typedef struct threelc_self {
    serial_self serial;
    float factor;
} threelc_self;

ESP_ELEMENT uint64_t threelc_len(uint64_t n) { return (n + 4) / 5; }
/* Returns the number of bytes of n elements before runs of zeros are shortened. */
ESP_ELEMENT uint64_t threelc_all(uint64_t n) {
    return n / THREELC_BLOCK * THREELC_BYTES + threelc_len(n % THREELC_BLOCK);
}
/* Returns where the first segment begins. */
ESP_ELEMENT uint64_t threelc_first(uint64_t n) { return 8 * serial_segments(THREELC_BLOCK, n) + THREELC_HEAD; }
static uint64_t threelc_largest(const serial_self *s, uint64_t n) {
    (void)s;
    return threelc_first(n) + threelc_all(n);
}
ESP_ELEMENT float threelc_m(float top, float factor) {
    const float m = top * factor;
    return dense_bad(m) ? bits_float(QUANT_INF - 1) : m;
}
ESP_ELEMENT float threelc_half(float m) { return m > 0 ? 0.5f * m : bits_float(QUANT_INF); }
/* What the elements of a byte of a stream take without runs: 1, or 2 to 14 */
ESP_ELEMENT uint32_t threelc_run(uint8_t byte) { return byte < THREELC_RUN ? 1u : byte - THREELC_RUN + 2u; }
/* The byte that `zeros` bytes of zeros become */
ESP_ELEMENT uint8_t threelc_short(uint32_t zeros) {
    return (uint8_t)(zeros == 1 ? (uint32_t)THREELC_ZEROS : THREELC_RUN + zeros - 2);
}
ESP_ELEMENT uint8_t threelc_digit(float phi, float half) { return (uint8_t)(1 + (phi >= half) - (phi <= -half)); }
ESP_ELEMENT float threelc_left(float phi, float m, float half) {
    return phi - (phi >= half ? m : phi <= -half ? -m : 0.0f);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */
/* Writes 0, 1 or 2 for each element, and its residual to `e` if that is not NULL. */
ESP_INLINE uint64_t threelc_trits_body(uint8_t *restrict trit, float *restrict e, const float *restrict phi, float m,
                                       float half, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) trit[i] = threelc_digit(phi[i], half);
    if (!e) return 0;
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) e[i] = threelc_left(phi[i], m, half);
    return 0;
}
ESP_KERNEL(threelc_trits,
           (uint8_t *restrict trit, float *restrict e, const float *restrict phi, float m, float half, uint64_t n),
           (trit, e, phi, m, half, n))
/* Element i of each fifth of a block, which has `len` elements, is a digit of byte i. */
ESP_INLINE uint64_t threelc_pack_body(uint8_t *restrict out, const uint8_t *restrict trit, uint64_t len) {
    ESP_SIMD
    for (uint64_t i = 0; i < len; i++)
        out[i] = (uint8_t)(trit[i] * 81 + trit[len + i] * 27 + trit[2 * len + i] * 9 + trit[3 * len + i] * 3 +
                           trit[4 * len + i]);
    return 0;
}
ESP_KERNEL(threelc_pack, (uint8_t *restrict out, const uint8_t *restrict trit, uint64_t len), (out, trit, len))
/* Adds the values of n elements whose digit is the one of weight `weight`, or overwrites `out` if `set`. */
ESP_INLINE uint64_t threelc_add_body(float *restrict out, const uint8_t *restrict in, uint32_t weight, float m, int set,
                                     uint64_t n) {
    const uint32_t inverse = 65536 / weight + 1; /* exact for bytes */
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t q = in[i] * inverse >> 16, digit = q - q * 21846u / 65536u * 3;
        const float v = (float)((int32_t)digit - 1) * m;
        out[i] = set ? v : out[i] + v;
    }
    return 0;
}
ESP_KERNEL(threelc_add,
           (float *restrict out, const uint8_t *restrict in, uint32_t weight, float m, int set, uint64_t n),
           (out, in, weight, m, set, n))

/* ---- compress ---------------------------------------------------------------------------------------------------- */
static unsigned char *threelc_runs(unsigned char *to, const uint8_t *in, uint64_t n) {
    uint32_t zeros = 0;
    for (uint64_t i = 0; i < n; i++) {
        const bool zero = in[i] == THREELC_ZEROS;
        if (zeros && (!zero || zeros == THREELC_MOST)) *to++ = threelc_short(zeros), zeros = 0;
        if (zero)
            zeros++;
        else
            *to++ = in[i];
    }
    if (zeros) *to++ = threelc_short(zeros);
    return to;
}

static unsigned char *threelc_begin(const serial_self *self, serial_state *st, unsigned char *to) {
    st->max = threelc_m(st->max, ((const threelc_self *)self)->factor);
    memcpy(to, &st->max, sizeof st->max);
    return to + THREELC_HEAD;
}

static unsigned char *threelc_encode(const serial_self *s, serial_state *st, unsigned char *to, float *e,
                                     const float *phi, uint64_t n) {
    const float half = threelc_half(st->max);
    const uint64_t len = threelc_len(n);
    uint8_t trit[THREELC_BLOCK + 8], bytes[THREELC_BYTES];
    memset(trit + n, 1, 5 * len - n);
    threelc_trits_for(s->dense.level)(trit, e, phi, st->max, half, n);
    threelc_pack_for(s->dense.level)(bytes, trit, len);
    return threelc_runs(to, bytes, len);
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
static bool threelc_valid(const serial_self *s, const unsigned char *body, uint64_t bytes, uint64_t n) {
    const uint64_t segment = (uint64_t)SERIAL_SEGMENT * THREELC_BLOCK;
    uint64_t at = threelc_first(n), end;
    uint32_t m;
    (void)s;
    if (!serial_ends_ok(body, bytes, at, serial_segments(THREELC_BLOCK, n))) return false;
    memcpy(&m, body + at - THREELC_HEAD, sizeof m);
    for (uint64_t i = 0; i < n; i += segment) {
        uint64_t sum = 0;
        memcpy(&end, body + 8 * (i / segment), sizeof end);
        for (; at < end; at++) sum += threelc_run(body[at]);
        if (sum != threelc_all(n - i < segment ? n - i : segment)) return false;
    }
    return m < QUANT_INF;
}

/* The next block's bytes are read from `at`, after `zeros` bytes of zeros. */
static const unsigned char *threelc_read(const unsigned char *at, uint8_t *bytes, uint64_t len, uint32_t *zeros) {
    for (uint64_t i = 0; i < len; i++) {
        if (!*zeros && *at >= THREELC_RUN) *zeros = threelc_run(*at++);
        bytes[i] = *zeros ? THREELC_ZEROS : *at++;
        *zeros -= *zeros > 0;
    }
    return at;
}

static void threelc_decode(const serial_self *s, const unsigned char *body, uint64_t size, float *out, float scale,
                           bool set, uint64_t n) {
    const unsigned char *at = body + threelc_first(n);
    uint8_t bytes[THREELC_BYTES];
    uint32_t zeros = 0;
    float m;
    (void)size;
    memcpy(&m, at - THREELC_HEAD, sizeof m);
    for (uint64_t i = 0; i < n; i += THREELC_BLOCK) {
        const uint64_t len = n - i < THREELC_BLOCK ? n - i : THREELC_BLOCK, fifth = threelc_len(len);
        uint32_t weight = 81;
        at = threelc_read(at, bytes, fifth, &zeros);
        for (uint64_t from = 0; from < len; from += fifth, weight /= 3)
            threelc_add_for(s->dense.level)(out + i + from, bytes, weight, m * scale, set,
                                            len - from < fifth ? len - from : fifth);
    }
}

static const serial_format threelc_format = {
    .name = "threelc",
    .block = THREELC_BLOCK,
    .segments = true,
    .largest = threelc_largest,
    .begin = threelc_begin,
    .encode = threelc_encode,
    .valid = threelc_valid,
    .decode = threelc_decode,
};

/* ---- the codec --------------------------------------------------------------------------------------------------- */
static const char threelc_params[] = "s=1";

static esp_status threelc_open(const esp_host *h, const char *params, void **self) {
    double factor = 1;
    esp_param p[] = {{"s", &factor, 1, 1.99, 0, 0, "from 1 to 1.99"}};
    const esp_status st = dense_open(h, "threelc", params, p, 1, threelc_params, sizeof(threelc_self), self);
    if (st == ESP_OK) {
        ((threelc_self *)*self)->factor = (float)factor;
        ((threelc_self *)*self)->serial.format = &threelc_format;
    }
    return st;
}
/* The size depends on the input: the one stated is without runs of zeros. So does the error, which counts as unknown.
 */
static esp_status threelc_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                esp_codec_model *out) {
    const esp_facts f = {.flags = ESP_MODEL_LOSSY,
                         .size = {THREELC_HEAD + 8, 0, 0.2, 0, 0},
                         .error = -1,
                         .ns = {5.4, 1.1},
                         .launches = {3, 2},
                         .bytes = {20.6, 4.4}};
    (void)self, (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec threelc_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "threelc",
    .summary = "-M, 0 or M, five in a byte, runs of zeros shortened (3LC): at most 1.6 bits an element",
    .params = threelc_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .open = threelc_open,
    .close = esp_codec_self_free,
    .bound = serial_bound,
    .compress = serial_compress,
    .decompress = serial_decompress,
    .model = threelc_model,
    .family = "hybrid",
    .paper = "Lim et al., SysML 2019",
};

ESP_PLUGIN_CODEC(threelc, &threelc_codec)
