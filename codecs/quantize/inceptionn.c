/* inceptionn.c: codec "inceptionn", whose error is at most 2^-bound for each element: rounded to a multiple of
 * 2^(1-bound), an element takes 0, 8 or 16 bits, as few as hold the multiple, or 32 bits as it is; two bits say which.
 * After Li et al., "A network-centric hardware/algorithm co-design to accelerate distributed training of deep neural
 * networks", MICRO 2018, which truncates magnitudes below 1, and sends others as they are. */
#include "codecs/common/serial.h"

enum { INCEPTIONN_BLOCK = 1024 };

typedef struct inceptionn_self {
    serial_self serial;
    float unit, inverse;
} inceptionn_self;

static uint64_t inceptionn_largest(const serial_self *s, uint64_t n) {
    (void)s;
    return (n + 3) / 4 + 4 * n;
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */
/* For each element, writes its width (0 to 3 for 0, 8, 16 and 32 bits), its multiple with the sign in bit 15, and its
 * residual to `e` if that is not NULL. */
ESP_INLINE uint64_t inceptionn_round_body(uint16_t *restrict width, uint16_t *restrict code, float *restrict e,
                                          const float *restrict phi, float unit, float inverse, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float r = bits_float(float_bits(phi[i]) & 0x7FFFFFFFu) * inverse;
        const bool whole = r >= 32767.5f;
        const int32_t down = (int32_t)(whole ? 0.0f : r), q = down + (r - (float)down >= 0.5f);
        width[i] = (uint16_t)(whole ? 3 : (q > 0) + (q > 127));
        code[i] = (uint16_t)((uint32_t)q | (float_bits(phi[i]) >> 31) << 15);
    }
    if (!e) return 0;
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) {
        const float v = (float)(code[i] & 0x7FFF) * unit;
        e[i] = width[i] == 3 ? 0.0f : phi[i] - (code[i] >> 15 ? -v : v);
    }
    return 0;
}
ESP_KERNEL(inceptionn_round,
           (uint16_t *restrict width, uint16_t *restrict code, float *restrict e, const float *restrict phi, float unit,
            float inverse, uint64_t n),
           (width, code, e, phi, unit, inverse, n))

static unsigned char *inceptionn_encode(const serial_self *self, serial_state *st, unsigned char *to, float *e,
                                        const float *phi, uint64_t n) {
    const inceptionn_self *s = (const inceptionn_self *)self;
    uint16_t width[INCEPTIONN_BLOCK + 4], code[INCEPTIONN_BLOCK];
    (void)st;
    inceptionn_round_for(self->dense.level)(width, code, e, phi, s->unit, s->inverse, n);
    memset(width + n, 0, 4 * sizeof *width);
    for (uint64_t i = 0; i < n; i += 4)
        *to++ = (unsigned char)(width[i] | width[i + 1] << 2 | width[i + 2] << 4 | width[i + 3] << 6);
    for (uint64_t i = 0; i < n; i++)
        if (width[i] == 1) *to++ = (unsigned char)((code[i] & 0x7F) | code[i] >> 15 << 7);
    for (uint64_t i = 0; i < n; i++)
        if (width[i] == 2) memcpy(to, &code[i], 2), to += 2;
    for (uint64_t i = 0; i < n; i++)
        if (width[i] == 3) memcpy(to, &phi[i], 4), to += 4;
    return to;
}

/* Counts the elements of each width in a block of n elements. */
static void inceptionn_count(const unsigned char *widths, uint64_t n, uint64_t count[4]) {
    memset(count, 0, 4 * sizeof *count);
    for (uint64_t i = 0; i < n; i++) count[widths[i / 4] >> 2 * (i % 4) & 3]++;
}

static bool inceptionn_valid(const serial_self *s, const unsigned char *body, uint64_t bytes, uint64_t n) {
    uint64_t at = 0, count[4];
    (void)s;
    for (uint64_t i = 0; i < n; i += INCEPTIONN_BLOCK) {
        const uint64_t len = n - i < INCEPTIONN_BLOCK ? n - i : INCEPTIONN_BLOCK, widths = (len + 3) / 4;
        if (bytes - at < widths) return false;
        inceptionn_count(body + at, len, count);
        const uint64_t whole = at + widths + count[1] + 2 * count[2], end = whole + 4 * count[3];
        if (end > bytes) return false;
        for (uint64_t k = whole; k < end; k += 4) {
            float x;
            memcpy(&x, body + k, 4);
            if (dense_bad(x)) return false;
        }
        at = end;
    }
    return at == bytes;
}

static void inceptionn_decode(const serial_self *self, const unsigned char *body, uint64_t bytes, float *out,
                              float scale, bool set, uint64_t n) {
    const float unit = ((const inceptionn_self *)self)->unit;
    uint64_t count[4];
    (void)bytes;
    for (uint64_t i = 0; i < n; i += INCEPTIONN_BLOCK) {
        const uint64_t len = n - i < INCEPTIONN_BLOCK ? n - i : INCEPTIONN_BLOCK;
        inceptionn_count(body, len, count);
        const unsigned char *one = body + (len + 3) / 4, *two = one + count[1], *four = two + 2 * count[2];
        for (uint64_t k = 0; k < len; k++) {
            const uint32_t width = body[k / 4] >> 2 * (k % 4) & 3;
            uint16_t code = 0;
            float v;
            if (width == 1) code = (uint16_t)((*one & 0x7F) | *one >> 7 << 15), one++;
            if (width == 2) memcpy(&code, two, 2), two += 2;
            v = (float)(code & 0x7FFF) * unit;
            v = code >> 15 ? -v : v;
            if (width == 3) memcpy(&v, four, 4), four += 4;
            out[i + k] = set ? v * scale : out[i + k] + v * scale;
        }
        body = four;
    }
}

static const serial_format inceptionn_format = {
    .name = "inceptionn",
    .block = INCEPTIONN_BLOCK,
    .largest = inceptionn_largest,
    .encode = inceptionn_encode,
    .valid = inceptionn_valid,
    .decode = inceptionn_decode,
};

/* ---- the codec --------------------------------------------------------------------------------------------------- */
static const char inceptionn_params[] = "bound=10";

static esp_status inceptionn_open(const esp_host *h, const char *params, void **self) {
    double bound = 10;
    esp_param p[] = {{"bound", &bound, 0, 100, 0, ESP_PARAM_WHOLE, "a whole number from 0 to 100"}};
    const esp_status st = dense_open(h, "inceptionn", params, p, 1, inceptionn_params, sizeof(inceptionn_self), self);
    if (st != ESP_OK) return st;
    inceptionn_self *s = (inceptionn_self *)*self;
    s->serial.format = &inceptionn_format;
    s->unit = ldexpf(2, -(int)bound);
    s->inverse = ldexpf(0.5f, (int)bound);
    return ESP_OK;
}

/* Size and error are for elements with a standard normal distribution. */
static esp_status inceptionn_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                   esp_codec_model *out) {
    const double unit = (double)((const inceptionn_self *)self)->unit, root = sqrt(2.0);
    const double some = erfc(0.5 * unit / root), two = erfc(127.5 * unit / root), four = erfc(32767.5 * unit / root);
    const double error = unit * unit / 12;
    const esp_facts f = {.flags = ESP_MODEL_LOSSY,
                         .size = {0, 0, 0.25 + some + two + 2 * four, 0, 0},
                         .error = error < 1 ? error : 1,
                         .ns = {3, 2}};
    (void)like, (void)n_reduced;
    return esp_model_fill(out, &f, d);
}

static const esp_codec inceptionn_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "inceptionn",
    .summary = "0, 8, 16 or 32 bits an element, such that no error exceeds 2^-bound; sizes vary (INCEPTIONN)",
    .params = inceptionn_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
    .n_rounds = 1,
    .open = inceptionn_open,
    .close = esp_codec_self_free,
    .bound = serial_bound,
    .compress = serial_compress,
    .decompress = serial_decompress,
    .model = inceptionn_model,
    .family = "quantize",
    .paper = "Li et al., MICRO 2018",
};

ESP_PLUGIN_CODEC(inceptionn, &inceptionn_codec)
