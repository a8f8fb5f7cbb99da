/* threelc.c: codec "threelc", which sends -M, 0 or M for each element, with error feedback. M is s times the largest
 * magnitude; an element of at least M/2 in magnitude is not sent as 0. Five elements make a byte, and runs of bytes
 * that stand for zeros make one byte. After Lim, Andersen, Kaminsky, "3LC: lightweight and effective traffic
 * compression for distributed machine learning", SysML 2019. Bytes are made of blocks of 1280 elements, so that five
 * vectors of 256 make 256 bytes. */
#include "codecs/common/serial.h"

enum {
    THREELC_BLOCK = 1280,
    THREELC_BYTES = THREELC_BLOCK / 5,
    THREELC_ZEROS = 121, /* a byte of five zeros */
    THREELC_RUN = 243,   /* a run of two; 255 is one of 14 */
    THREELC_HEAD = 4
};

typedef struct threelc_self {
    serial_self serial;
    float factor;
} threelc_self;

static uint64_t threelc_len(uint64_t n) { return (n + 4) / 5; }
/* Returns the number of bytes of n elements before runs of zeros are shortened. */
static uint64_t threelc_all(uint64_t n) { return n / THREELC_BLOCK * THREELC_BYTES + threelc_len(n % THREELC_BLOCK); }
static uint64_t threelc_largest(const serial_self *s, uint64_t n) {
    (void)s;
    return THREELC_HEAD + threelc_all(n);
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */
/* Writes 0, 1 or 2 for each element, and its residual to `e` if that is not NULL. */
ESP_INLINE uint64_t threelc_trits_body(uint8_t *restrict trit, float *restrict e, const float *restrict phi, float m,
                                       float half, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) trit[i] = (uint8_t)(1 + (phi[i] >= half) - (phi[i] <= -half));
    if (!e) return 0;
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) e[i] = phi[i] - (phi[i] >= half ? m : phi[i] <= -half ? -m : 0.0f);
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
/* Writes n bytes, of which the last `*zeros` that came before are not written yet. Returns the end. */
static unsigned char *threelc_runs(unsigned char *to, const uint8_t *in, uint64_t n, uint32_t *zeros) {
    for (uint64_t i = 0; i <= n; i++) {
        const bool end = i == n;
        if (!end && in[i] == THREELC_ZEROS && *zeros < 14) {
            ++*zeros;
            continue;
        }
        if (end && n) break;
        if (*zeros) *to++ = (unsigned char)(*zeros == 1 ? THREELC_ZEROS : THREELC_RUN + *zeros - 2);
        *zeros = !end && in[i] == THREELC_ZEROS;
        if (!end && !*zeros) *to++ = in[i];
    }
    return to;
}

static unsigned char *threelc_begin(const serial_self *self, serial_state *st, unsigned char *to) {
    const float m = st->max * ((const threelc_self *)self)->factor;
    st->max = dense_bad(m) ? bits_float(QUANT_INF - 1) : m;
    memcpy(to, &st->max, sizeof st->max);
    return to + THREELC_HEAD;
}

static unsigned char *threelc_encode(const serial_self *s, serial_state *st, unsigned char *to, float *e,
                                     const float *phi, uint64_t n) {
    const float half = st->max > 0 ? 0.5f * st->max : bits_float(QUANT_INF);
    const uint64_t len = threelc_len(n);
    uint8_t trit[THREELC_BLOCK + 8], bytes[THREELC_BYTES];
    memset(trit + n, 1, 5 * len - n);
    threelc_trits_for(s->dense.level)(trit, e, phi, st->max, half, n);
    threelc_pack_for(s->dense.level)(bytes, trit, len);
    return threelc_runs(to, bytes, len, &st->zeros);
}
static unsigned char *threelc_end(serial_state *st, unsigned char *to) { return threelc_runs(to, NULL, 0, &st->zeros); }

/* ---- decompress -------------------------------------------------------------------------------------------------- */
static bool threelc_valid(const serial_self *s, const unsigned char *body, uint64_t bytes, uint64_t n) {
    uint64_t sum = 0;
    uint32_t m;
    (void)s;
    if (bytes <= THREELC_HEAD) return false;
    memcpy(&m, body, sizeof m);
    for (uint64_t i = THREELC_HEAD; i < bytes; i++) sum += body[i] < THREELC_RUN ? 1u : body[i] - THREELC_RUN + 2u;
    return m < QUANT_INF && sum == threelc_all(n);
}

/* The next block's bytes are read from `at`, after `zeros` bytes of zeros. */
static const unsigned char *threelc_read(const unsigned char *at, uint8_t *bytes, uint64_t len, uint32_t *zeros) {
    for (uint64_t i = 0; i < len; i++) {
        if (!*zeros && *at >= THREELC_RUN) *zeros = *at++ - THREELC_RUN + 2u;
        bytes[i] = *zeros ? THREELC_ZEROS : *at++;
        *zeros -= *zeros > 0;
    }
    return at;
}

static void threelc_decode(const serial_self *s, const unsigned char *body, uint64_t size, float *out, float scale,
                           bool set, uint64_t n) {
    const unsigned char *at = body + THREELC_HEAD;
    uint8_t bytes[THREELC_BYTES];
    uint32_t zeros = 0;
    float m;
    (void)size;
    memcpy(&m, body, sizeof m);
    for (uint64_t i = 0; i < n; i += THREELC_BLOCK) {
        const uint64_t len = n - i < THREELC_BLOCK ? n - i : THREELC_BLOCK, fifth = threelc_len(len);
        uint32_t weight = 81;
        at = threelc_read(at, bytes, fifth, &zeros);
        for (uint64_t from = 0; from < len; from += fifth, weight /= 3)
            threelc_add_for(s->dense.level)(out + i + from, bytes, weight, m * scale, set,
                                            len - from < fifth ? len - from : fifth);
    }
}

static const serial_format threelc_format = {"threelc",   THREELC_BLOCK,  threelc_largest, threelc_begin,
                                             threelc_end, threelc_encode, threelc_valid,   threelc_decode};

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
    const esp_facts f = {.flags = ESP_MODEL_LOSSY, .size = {THREELC_HEAD, 0, 0.2, 0, 0}, .error = -1, .ns = {2.5, 1}};
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
