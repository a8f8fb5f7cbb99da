/* fp8.c: codec "fp8", which sends each element as an 8-bit float times a unit that a block of elements shares, with
 * error feedback. The formats are those of Micikevicius et al., "FP8 formats for deep learning", 2022: E4M3 (four bits
 * of exponent, three of mantissa, largest number 448), or E5M2 with mantissa=2 (largest number 57344). A block's unit
 * maps its largest magnitude to the largest number. Elements are rounded to nearest, ties to even. */
#include "codecs/common/blocks.h"

typedef struct fp8_self {
    blocks_self blocks;
    uint32_t mantissa;
} fp8_self;

/* h.levels is the number of mantissa bits. Numbers of one exponent, and those below the least normal one, are multiples
 * of a step; adding 2^23 steps rounds to one. */
ESP_ELEMENT float fp8_round(float x, uint32_t noise, blocks_scale h, uint32_t *code) {
    const uint32_t y = float_bits(x * h.b), size = y & 0x7FFFFFFFu, shift = 23 - h.levels;
    const int32_t least = (h.levels == 3 ? 121 : 113) << 23, own = (int32_t)(size & 0x7F800000u);
    const int32_t exponent = own > least ? own : least;
    const float all = bits_float((uint32_t)exponent + (shift << 23)), sum = bits_float(size) + all;
    (void)noise;
    *code = (float_bits(sum) - float_bits(all) + ((uint32_t)(exponent - least) >> shift)) | (y >> 31 << 7);
    return h.a * bits_float(float_bits(sum - all) | (y & 0x80000000u));
}
ESP_ELEMENT float fp8_value(uint32_t code, blocks_scale h) {
    const uint32_t size = code & 0x7Fu, bias = h.levels == 3 ? 7 : 15;
    const float normal = bits_float((size << (23 - h.levels)) + ((127 - bias) << 23));
    const float small = (float)(int32_t)size * (h.c * (1.0f / 8388608.0f));
    const uint32_t is_small = 0u - (uint32_t)(size >> h.levels == 0);
    const uint32_t y = (float_bits(small) & is_small) | (float_bits(normal) & ~is_small);
    return h.a * bits_float(y | (code & 0x80u) << 24);
}
BLOCKS_KERNELS(fp8, BLOCKS_NO_NOISE)

ESP_ELEMENT blocks_scale fp8_scale(float top, uint32_t mantissa) {
    const quant_range r = quant_range_of(float_bits(top) & 0x7FFFFFFFu, mantissa == 3 ? 448 : 57344);
    const blocks_scale h = {r.unit, r.inverse, mantissa == 3 ? 16384.0f : 128.0f, mantissa, NULL};
    return h;
}
static blocks_scale fp8_scale_of(const blocks_self *s, const float *head) {
    return fp8_scale(head[0], ((const fp8_self *)s)->mantissa);
}
static const blocks_format fp8_format = {"fp8",          1,          false, blocks_tops, fp8_scale_of, fp8_encode_for,
                                         fp8_decode_for, {2.3, 1.1}, false};

static const char fp8_params[] = "block=128,mantissa=3";

static esp_status fp8_open(const esp_host *h, const char *params, void **self) {
    double block = 128, mantissa = 3;
    esp_param p[] = {BLOCKS_PARAM(&block), {"mantissa", &mantissa, 2, 3, 0, ESP_PARAM_WHOLE, "3 (E4M3) or 2 (E5M2)"}};
    const esp_status st = blocks_open(&fp8_format, h, params, p, 2, fp8_params, sizeof(fp8_self), self);
    if (st != ESP_OK) return st;
    fp8_self *s = (fp8_self *)*self;
    s->blocks.block = (uint64_t)block;
    s->blocks.bits = 8;
    s->mantissa = (uint32_t)mantissa;
    return ESP_OK;
}

static const esp_codec fp8_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "fp8",
    .summary = "8-bit floats (E4M3 or E5M2) with a unit for each block",
    .params = fp8_params,
    .default_option = BLOCKS_OPTION,
    BLOCKS_CODEC(fp8_open),
    .family = "quantize",
    .paper = "Micikevicius et al., 2022",
};

ESP_PLUGIN_CODEC(fp8, &fp8_codec)
