/* onebit.c: codec "onebit", which sends one bit per element, whether it is negative, and for each block the means of
 * the negative and of the other elements, with error feedback. After Seide, Fu, Droppo, Li, Yu, "1-bit stochastic
 * gradient descent and its application to data-parallel distributed training of speech DNNs", Interspeech 2014, which
 * has a pair of means per column of a matrix instead of one per block. */
#include "codecs/common/blocks.h"

ESP_ELEMENT uint32_t onebit_code(float x, uint32_t noise, blocks_scale h) {
    (void)noise, (void)h;
    return (uint32_t)(x < 0);
}
ESP_ELEMENT float onebit_value(uint32_t code, blocks_scale h) { return code ? h.a : h.b; }
BLOCKS_ROUND(onebit)
BLOCKS_KERNELS(onebit, BLOCKS_NO_NOISE)

/* Returns x / 1024, or 0 if x has no sign bit; with `other` = all ones, 0 if it has one. */
ESP_ELEMENT float onebit_part(float x, uint32_t other) {
    const uint32_t sign = (uint32_t)((int32_t)float_bits(x) >> 31);
    return bits_float(float_bits(x * (1.0f / (float)DENSE_BLOCK)) & (sign ^ other));
}
/* Sums x / 1024, which cannot overflow, of the negative elements to sum[0], and of the others to sum[1]. Returns the
 * number of negative ones. */
ESP_INLINE uint64_t onebit_sums_body(float sum[2], const float *x, uint64_t n) {
    float less[BLOCKS_LANES] = {0}, more[BLOCKS_LANES] = {0};
    uint32_t count[BLOCKS_LANES] = {0}, negative = 0;
    const uint64_t whole = n / BLOCKS_LANES * BLOCKS_LANES;
    for (uint64_t i = 0; i < whole; i += BLOCKS_LANES)
        for (uint32_t j = 0; j < BLOCKS_LANES; j++) {
            less[j] += onebit_part(x[i + j], 0);
            more[j] += onebit_part(x[i + j], 0xFFFFFFFFu);
            count[j] += (uint32_t)(x[i + j] < 0);
        }
    for (uint64_t i = whole; i < n; i++) {
        less[i - whole] += onebit_part(x[i], 0);
        more[i - whole] += onebit_part(x[i], 0xFFFFFFFFu);
        negative += (uint32_t)(x[i] < 0);
    }
    for (int j = 0; j < BLOCKS_LANES; j++) negative += count[j];
    sum[0] = blocks_tree(less);
    sum[1] = blocks_tree(more);
    return negative;
}
ESP_KERNEL(onebit_sums, (float sum[2], const float *x, uint64_t n), (sum, x, n))

/* A block without negative elements, or without others, has 0 as their mean. */
ESP_ELEMENT float onebit_mean(float sum, uint64_t n) { return n ? sum * ((float)DENSE_BLOCK / (float)n) : 0.0f; }
static void onebit_heads_of(const blocks_self *s, float *heads, const float *phi, uint64_t n) {
    for (uint64_t i = 0; i < n; i += s->block, heads += 2) {
        const uint64_t m = n - i < s->block ? n - i : s->block;
        const uint64_t negative = onebit_sums_for(s->dense.level)(heads, phi + i, m);
        heads[0] = onebit_mean(heads[0], negative);
        heads[1] = onebit_mean(heads[1], m - negative);
    }
}
ESP_ELEMENT blocks_scale onebit_scale(const float *head) {
    const blocks_scale h = {head[0], head[1], 0, 0, NULL};
    return h;
}
static blocks_scale onebit_scale_of(const blocks_self *s, const float *head) { return (void)s, onebit_scale(head); }
static const blocks_format onebit_format = {
    "onebit", 2, false, onebit_heads_of, onebit_scale_of, onebit_encode_for, onebit_decode_for, {2.3, 0.9}, false};

static const char onebit_params[] = "block=1024";

static esp_status onebit_open(const esp_host *h, const char *params, void **self) {
    double block = 1024;
    esp_param p[] = {BLOCKS_PARAM(&block)};
    const esp_status st = blocks_open(&onebit_format, h, params, p, 1, onebit_params, sizeof(blocks_self), self);
    if (st != ESP_OK) return st;
    ((blocks_self *)*self)->block = (uint64_t)block;
    ((blocks_self *)*self)->bits = 1;
    return ESP_OK;
}

static const esp_codec onebit_codec = {
    ESP_CODEC_HEAD(1, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "onebit",
    .summary = "signs and the means of both sides of each block (1-bit SGD): 1 bit an element",
    .params = onebit_params,
    .default_option = BLOCKS_OPTION,
    BLOCKS_CODEC(onebit_open),
    .family = "quantize",
    .paper = "Seide et al., Interspeech 2014",
};

ESP_PLUGIN_CODEC(onebit, &onebit_codec)
