/* maxmin.c: codec "maxmin", which divides the range from the least to the largest element of each block into equal
 * steps, and sends for each element the number of the nearest one, with error feedback. This is the quantizer of
 * Markov, Ramezanikebrya, Alistarh, "CGX: adaptive system support for communication-efficient deep learning",
 * Middleware 2022. With random=1 elements are rounded at random, so that decoded values are right on average. */
#include "codecs/common/blocks.h"

/* h.a: least element; h.b: a step; h.c: 1 / step; h.levels: the largest code. `up` is added before rounding down. */
ESP_ELEMENT uint32_t maxmin_step(float x, float up, blocks_scale h) {
    const float most = (float)(int32_t)h.levels, y = (x * h.c - h.a * h.c) + up;
    const float above = y > 0 ? y : 0;
    return (uint32_t)(int32_t)(above < most ? above : most);
}
ESP_ELEMENT uint32_t maxmin_code(float x, uint32_t noise, blocks_scale h) {
    (void)noise;
    return maxmin_step(x, 0.5f, h);
}
ESP_ELEMENT uint32_t maxmin_random_code(float x, uint32_t noise, blocks_scale h) {
    return maxmin_step(x, ((float)(int32_t)noise + 0.5f) * (1.0f / 65536.0f), h);
}
ESP_ELEMENT float maxmin_value(uint32_t code, blocks_scale h) { return h.a + h.b * (float)(int32_t)code; }
ESP_ELEMENT float maxmin_random_value(uint32_t code, blocks_scale h) { return maxmin_value(code, h); }
BLOCKS_ROUND(maxmin)
BLOCKS_ROUND(maxmin_random)
BLOCKS_KERNELS(maxmin, BLOCKS_NO_NOISE)
BLOCKS_KERNELS(maxmin_random, BLOCKS_NOISE)

/* Maps the bits of floats to integers in the same order. */
ESP_ELEMENT int32_t maxmin_at(float x) {
    const int32_t b = (int32_t)float_bits(x);
    return b < 0 ? b ^ 0x7FFFFFFF : b;
}
/* Finds the least and the largest of n floats. */
ESP_INLINE uint64_t maxmin_range_body(const float *x, int32_t range[2], uint64_t n) {
    int32_t low = INT32_MAX, high = INT32_MIN;
    for (uint64_t i = 0; i < n; i++) {
        const int32_t at = maxmin_at(x[i]);
        low = at < low ? at : low;
        high = at > high ? at : high;
    }
    range[0] = low, range[1] = high;
    return 0;
}
ESP_KERNEL(maxmin_range, (const float *x, int32_t range[2], uint64_t n), (x, range, n))
ESP_ELEMENT float maxmin_float(int32_t at) { return bits_float((uint32_t)(at < 0 ? at ^ 0x7FFFFFFF : at)); }

/* Sets the heads of a block whose elements are from `low` to `high`, for codes from 0 to `most`. */
ESP_ELEMENT void maxmin_heads(float head[2], float low, float high, uint32_t levels) {
    const float most = (float)(int32_t)levels;
    float step = high / most - low / most;
    if (step < bits_float(QUANT_LEAST)) step = 0;
    if (dense_bad(low + step * most)) step = bits_float(float_bits(step) - 1);
    head[0] = low, head[1] = step;
}
ESP_ELEMENT blocks_scale maxmin_scale(const float head[2], uint32_t levels) {
    const float inverse = head[1] > 0 ? 1 / head[1] : 0;
    const blocks_scale h = {head[0], head[1], dense_bad(inverse) ? 0 : inverse, levels, NULL};
    return h;
}
static uint32_t maxmin_levels(const blocks_self *s) { return (1u << s->bits) - 1; }
static void maxmin_heads_of(const blocks_self *s, float *heads, const float *phi, uint64_t n) {
    for (uint64_t i = 0; i < n; i += s->block, heads += 2) {
        int32_t range[2] = {0, 0};
        maxmin_range_for(s->dense.level)(phi + i, range, n - i < s->block ? n - i : s->block);
        maxmin_heads(heads, maxmin_float(range[0]), maxmin_float(range[1]), maxmin_levels(s));
    }
}
static blocks_scale maxmin_scale_of(const blocks_self *s, const float *head) {
    return maxmin_scale(head, maxmin_levels(s));
}
static const blocks_format maxmin_nearest = {
    "maxmin", 2, false, maxmin_heads_of, maxmin_scale_of, maxmin_encode_for, maxmin_decode_for, {2.4, 0.8}, false};
static const blocks_format maxmin_at_random = {
    "maxmin",   2,    true, maxmin_heads_of, maxmin_scale_of, maxmin_random_encode_for, maxmin_random_decode_for,
    {3.3, 0.8}, false};

static const char maxmin_params[] = "bits=4,block=1024,random=0";

static esp_status maxmin_open(const esp_host *h, const char *params, void **self) {
    double bits = 4, block = 1024, random = 0;
    esp_param p[] = {BLOCKS_PARAM(&block),
                     {"bits", &bits, 1, 8, 0, ESP_PARAM_WHOLE, "a whole number from 1 to 8"},
                     {"random", &random, 0, 1, 0, ESP_PARAM_WHOLE, "0 or 1"}};
    const esp_status st = blocks_open(&maxmin_nearest, h, params, p, 3, maxmin_params, sizeof(blocks_self), self);
    if (st != ESP_OK) return st;
    blocks_self *s = (blocks_self *)*self;
    s->block = (uint64_t)block;
    s->bits = (uint32_t)bits;
    if (random > 0) s->format = &maxmin_at_random;
    return ESP_OK;
}

static const esp_codec maxmin_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_FUSED_RESIDUAL),
    .name = "maxmin",
    .summary = "equal steps between the least and the largest element of each block: 1 to 8 bits an element",
    .params = maxmin_params,
    .default_option = BLOCKS_OPTION,
    BLOCKS_CODEC(maxmin_open),
    .family = "quantize",
    .paper = "Markov et al. (CGX), Middleware 2022",
};

ESP_PLUGIN_CODEC(maxmin, &maxmin_codec)
