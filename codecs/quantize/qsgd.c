/* qsgd.c: codecs "qsgd" and "terngrad", which round each element at random to one of the two nearest levels, so that
 * the decoded value is right on average. There is no error feedback unless feedback=residual asks for it.
 * "qsgd": Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
 * encoding", NeurIPS 2017, with a code of fixed width. In each block, levels are multiples of its Euclidean norm / s,
 * with s = 2^(bits-1) - 1. With norm=0 they are multiples of its largest magnitude / s.
 * "terngrad": Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning", NeurIPS
 * 2017: levels -1, 0, 1. Elements beyond clip times the root mean square are clipped first, which makes the levels
 * finer, but the values of those elements too small. */
#include "codecs/common/blocks.h"

typedef struct qsgd_self {
    blocks_self blocks;
    bool norm;
    float clip; /* 0: no clipping */
} qsgd_self;

/* Levels are signed integers of `bits` bits. h.a: unit; h.b: 1 / unit; h.c: the largest level. */
ESP_ELEMENT uint32_t qsgd_code(float x, uint32_t noise, blocks_scale h) {
    const float y = __builtin_fabsf(x) * h.b + ((float)(int32_t)noise + 0.5f) * (1.0f / 65536.0f);
    const int32_t up = (int32_t)(y < h.c ? y : h.c), level = x < 0 ? -up : up;
    return (uint32_t)level & h.levels;
}
ESP_ELEMENT float qsgd_value(uint32_t code, blocks_scale h) {
    const int32_t sign = (int32_t)(h.levels >> 1) + 1;
    return h.a * (float)(((int32_t)code ^ sign) - sign);
}
BLOCKS_KERNELS(qsgd, BLOCKS_NOISE)

static void qsgd_heads_of(const blocks_self *s, float *head, const float *phi, uint64_t n) {
    const qsgd_self *q = (const qsgd_self *)s;
    const float most = (float)((1u << (s->bits - 1)) - 1);
    head[0] = blocks_top(s, phi, n);
    if (!(head[0] > 0)) return;
    if (q->norm) {
        const float norm = head[0] * (blocks_rms(s, phi, head[0], n) * sqrtf((float)n) / most);
        head[0] = dense_bad(norm) || norm < bits_float(QUANT_LEAST) ? head[0] : norm;
    } else {
        const float limit = q->clip > 0 ? q->clip * blocks_rms(s, phi, head[0], n) : 1;
        head[0] = head[0] * (limit < 1 ? limit : 1) / most;
    }
}
static blocks_scale qsgd_scale_of(const blocks_self *s, const float *head) {
    const float unit = bits_float(float_bits(head[0]) & 0x7FFFFFFFu), inverse = unit > 0 ? 1 / unit : 0;
    const uint32_t mask = (1u << s->bits) - 1;
    return (blocks_scale){unit, dense_bad(inverse) ? 0 : inverse, (float)(mask >> 1), mask, NULL};
}
static const blocks_format qsgd_format = {"qsgd",          1,       true, qsgd_heads_of, qsgd_scale_of, qsgd_encode_for,
                                          qsgd_decode_for, {6, 1.4}};
static const blocks_format terngrad_format = {
    "terngrad", 1, true, qsgd_heads_of, qsgd_scale_of, qsgd_encode_for, qsgd_decode_for, {6, 1.4}};

static const char qsgd_params[] = "bits=8,block=128,norm=1", terngrad_params[] = "block=1024,clip=2.5";

static esp_status qsgd_open(const esp_host *h, const char *params, void **self) {
    double bits = 8, block = 128, norm = 1;
    esp_param p[] = {BLOCKS_PARAM(&block),
                     {"bits", &bits, 2, 8, 0, ESP_PARAM_WHOLE, "a whole number from 2 to 8"},
                     {"norm", &norm, 0, 1, 0, ESP_PARAM_WHOLE, "1 (Euclidean norm) or 0 (largest magnitude)"}};
    const esp_status st = blocks_open(&qsgd_format, h, params, p, 3, qsgd_params, sizeof(qsgd_self), self);
    if (st != ESP_OK) return st;
    qsgd_self *s = (qsgd_self *)*self;
    s->blocks.block = (uint64_t)block;
    s->blocks.bits = (uint32_t)bits;
    s->norm = norm > 0;
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
    BLOCKS_CODEC(qsgd_open),
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
