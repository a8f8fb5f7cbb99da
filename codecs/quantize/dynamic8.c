/* dynamic8.c: codec "dynamic8", which sends each element in 8 bits: a sign, and the nearest of 128 magnitudes that are
 * multiples of the block's largest one, with error feedback. The magnitudes are 0 and, for each i from 0 to 6, the
 * middles of 2^i equal parts of the range from 10^(i-7) to 10^(i-6), so that small elements keep their order of
 * magnitude. After Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (dynamic tree). */
#include "codecs/common/blocks.h"

enum { DYNAMIC8_FIRST = 103, DYNAMIC8_CELLS = (127 - DYNAMIC8_FIRST) * 64 + 1 };
#define DYNAMIC8_WITHIN 0x1FFFFu /* the mantissa bits that tell magnitudes of a cell apart */

/* What a code is, and how it is found: the magnitudes 0 to 1 are divided into cells by the exponent and the six highest
 * bits of the mantissa of an f32. A cell has at most one boundary between two codes. */
typedef struct dynamic8_self {
    blocks_self blocks;
    /* [0]: ascending magnitudes, one per code; [BLOCKS_TABLE]: for each cell a word with the code of its least
     * magnitude and, from bit 7 on, the mantissa bits from which on the next code is nearer */
    float table[(int)BLOCKS_TABLE + (int)DYNAMIC8_CELLS];
} dynamic8_self;

/* Returns the magnitude of code `at`, which is 2^i and more for the i of the comment above, or 0 for 0. */
ESP_ELEMENT float dynamic8_number(uint32_t at) {
    uint32_t i = 0;
    double decade = 1e-7;
    while (at >> i > 1) i++, decade *= 10;
    return at ? (float)(decade * (1 + 9 * ((double)(at - (1u << i)) + 0.5) / (double)(1u << i))) : 0;
}
ESP_ELEMENT uint32_t dynamic8_signed(uint32_t code, float x) {
    return code | ((float_bits(x) >> 24 & 0x80u) & (0u - (uint32_t)((int32_t)code > 0)));
}
ESP_ELEMENT uint32_t dynamic8_code(float x, uint32_t noise, blocks_scale h) {
    const uint32_t y = float_bits(bits_float(float_bits(x) & 0x7FFFFFFFu) * h.b);
    const int32_t cell = (int32_t)(y >> 17) - DYNAMIC8_FIRST * 64, least = cell < 0 ? 0 : cell;
    const uint32_t word = float_bits(h.table[BLOCKS_TABLE + (least < DYNAMIC8_CELLS ? least : DYNAMIC8_CELLS - 1)]);
    const uint32_t code = (word & 0x7Fu) + (uint32_t)((int32_t)(y & DYNAMIC8_WITHIN) >= (int32_t)(word >> 7));
    (void)noise;
    return dynamic8_signed(code, x);
}
ESP_ELEMENT float dynamic8_negated(float y, uint32_t code) { return bits_float(float_bits(y) | (code & 0x80u) << 24); }
ESP_ELEMENT float dynamic8_value(uint32_t code, blocks_scale h) {
    return dynamic8_negated(h.a * h.table[code & 0x7Fu], code);
}
BLOCKS_KERNELS(dynamic8, BLOCKS_NO_NOISE)

static void dynamic8_heads_of(const blocks_self *s, float *head, const float *phi, uint64_t n) {
    head[0] = blocks_top(s, phi, n);
}
static blocks_scale dynamic8_scale_of(const blocks_self *s, const float *head) {
    const quant_range r = quant_range_of(float_bits(head[0]) & 0x7FFFFFFFu, 1);
    return (blocks_scale){r.unit, r.inverse, 0, 0, ((const dynamic8_self *)s)->table};
}
static const blocks_format dynamic8_format = {
    "dynamic8",          1,        false, dynamic8_heads_of, dynamic8_scale_of, dynamic8_encode_for,
    dynamic8_decode_for, {9, 2.5}, false};

static const char dynamic8_params[] = "block=1024";

static esp_status dynamic8_open(const esp_host *h, const char *params, void **self) {
    double block = 1024;
    esp_param p[] = {BLOCKS_PARAM(&block)};
    const esp_status st = blocks_open(&dynamic8_format, h, params, p, 1, dynamic8_params, sizeof(dynamic8_self), self);
    if (st != ESP_OK) return st;
    dynamic8_self *s = (dynamic8_self *)*self;
    s->blocks.block = (uint64_t)block;
    s->blocks.bits = 8;
    float *value = s->table, boundary[BLOCKS_TABLE];
    for (uint32_t at = 0; at < BLOCKS_TABLE; at++) value[at] = dynamic8_number(at);
    for (uint32_t at = 0; at < BLOCKS_TABLE; at++)
        boundary[at] = at + 1 < BLOCKS_TABLE ? (value[at] + value[at + 1]) * 0.5f : 2.0f;
    for (uint32_t cell = 0, at = 0; cell < DYNAMIC8_CELLS; cell++) {
        const uint32_t first = (cell + DYNAMIC8_FIRST * 64) << 17;
        while (bits_float(first) >= boundary[at]) at++;
        const bool inside = float_bits(boundary[at]) - first <= DYNAMIC8_WITHIN;
        const uint32_t next = inside ? float_bits(boundary[at]) - first : DYNAMIC8_WITHIN + 1;
        value[BLOCKS_TABLE + cell] = bits_float(next << 7 | at);
    }
    return ESP_OK;
}

static const esp_codec dynamic8_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "dynamic8",
    .summary = "the nearest of 255 numbers, dense near 0, times a scale for each block: 8 bits an element",
    .params = dynamic8_params,
    .default_option = BLOCKS_OPTION,
    BLOCKS_CODEC(dynamic8_open),
    .family = "quantize",
    .paper = "Dettmers, ICLR 2016",
};

ESP_PLUGIN_CODEC(dynamic8, &dynamic8_codec)
