/* natural.c: codec "natural", which rounds the magnitude of each element at random to one of the two nearest powers of
 * two, so that the decoded value is right on average, and sends sign and exponent in 8 bits. After Horvath, Ho,
 * Horvath, Sahu, Canini, Richtarik, "Natural compression for distributed deep learning", 2019. Magnitudes below 2^-108
 * become 0, those above 2^18 become 2^18. There is no error feedback unless feedback=residual asks for it. */
#include "codecs/common/blocks.h"

enum { NATURAL_BIAS = 18 }; /* exponent field of an f32 minus this is the code */

/* The mantissa is the probability of rounding up: a random number of 23 bits is added, and its carry is kept. */
ESP_ELEMENT float natural_round(float x, uint32_t noise, blocks_scale h, uint32_t *code) {
    const int32_t least = NATURAL_BIAS << 23, most = (NATURAL_BIAS + 127) << 23 | 0x7FFFFF;
    const int32_t size = (int32_t)((float_bits(x) & 0x7FFFFFFFu) + (noise << 7 | 0x40u));
    const int32_t above = size > least ? size : least, own = above < most ? above : most;
    const uint32_t some = 0u - (uint32_t)(size >= least + (1 << 23)), sign = float_bits(x) & 0x80000000u & some;
    (void)h;
    *code = ((uint32_t)(own - least) << 1 | sign) >> 24;
    return bits_float(((uint32_t)own & 0x7F800000u & some) | sign);
}
ESP_ELEMENT float natural_value(uint32_t code, blocks_scale h) {
    const uint32_t exponent = code & 0x7Fu;
    (void)h;
    return bits_float((exponent + (NATURAL_BIAS & (0u - (uint32_t)(exponent > 0)))) << 23 | (code & 0x80u) << 24);
}
BLOCKS_KERNELS(natural, BLOCKS_NOISE)

static blocks_scale natural_scale_of(const blocks_self *s, const float *head) {
    (void)s, (void)head;
    return (blocks_scale){0};
}
static const blocks_format natural_format = {
    "natural", 0, true, NULL, natural_scale_of, natural_encode_for, natural_decode_for, {1.4, 1}, true};

static esp_status natural_open(const esp_host *h, const char *params, void **self) {
    const esp_status st = blocks_open(&natural_format, h, params, NULL, 0, "", sizeof(blocks_self), self);
    if (st != ESP_OK) return st;
    ((blocks_self *)*self)->block = DENSE_BLOCK;
    ((blocks_self *)*self)->bits = 8;
    return ESP_OK;
}

static const esp_codec natural_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK),
    .name = "natural",
    .summary = "random rounding to powers of two, right on average: 8 bits an element",
    .default_option = BLOCKS_OPTION,
    BLOCKS_CODEC(natural_open),
    .family = "quantize",
    .paper = "Horvath et al., 2019",
};

ESP_PLUGIN_CODEC(natural, &natural_codec)
