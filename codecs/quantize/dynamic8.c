/* dynamic8.c: codec "dynamic8", which sends each element in 8 bits: a sign, and the nearest of 128 magnitudes that are
 * multiples of the block's largest one, with error feedback. The magnitudes are 0 and, for each i from 0 to 6, the
 * middles of 2^i equal parts of the range from 10^(i-7) to 10^(i-6), so that small elements keep their order of
 * magnitude. After Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (dynamic tree). */
#include "codecs/common/blocks.h"

enum { DYNAMIC8_FIRST = 103, DYNAMIC8_CELLS = (127 - DYNAMIC8_FIRST) * 64 + 1 };
/* where dynamic8_self.table has what */
enum {
    DYNAMIC8_EDGE = BLOCKS_TABLE,
    DYNAMIC8_CROSS = DYNAMIC8_EDGE + BLOCKS_TABLE,
    DYNAMIC8_CLASS = DYNAMIC8_CROSS + 32,
    DYNAMIC8_SLOPE = DYNAMIC8_CLASS + 32,
    DYNAMIC8_START = DYNAMIC8_SLOPE + 16,
    DYNAMIC8_LAST = DYNAMIC8_START + 16,
    DYNAMIC8_CELL = DYNAMIC8_LAST + 16,
    DYNAMIC8_ALL = DYNAMIC8_CELL + DYNAMIC8_CELLS
};
#define DYNAMIC8_WITHIN 0x1FFFFu /* the mantissa bits that tell magnitudes of a cell apart */

/* What a code is, and how it is found: the magnitudes 0 to 1 are divided into cells by the exponent and the six highest
 * bits of the mantissa of an f32. A cell has at most one boundary between two codes. */
typedef struct dynamic8_self {
    blocks_self blocks;
    /* [0]: ascending magnitudes, one per code; [DYNAMIC8_CELL]: for each cell a word with the code of its least
     * magnitude and, from bit 7 on, the mantissa bits from which on the next code is nearer; [DYNAMIC8_EDGE]: for each
     * code the magnitude from which on the next one is nearer. A code of class c has c bits. For each exponent, CLASS
     * has the class of its least magnitude, and CROSS the magnitude from which on the class is one more; for each
     * class, a magnitude y has about the code START + SLOPE y, never above its code, at most one below, and not above
     * LAST. */
    float table[DYNAMIC8_ALL];
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
    const uint32_t word = float_bits(h.table[DYNAMIC8_CELL + (least < DYNAMIC8_CELLS ? least : DYNAMIC8_CELLS - 1)]);
    const uint32_t code = (word & 0x7Fu) + (uint32_t)((int32_t)(y & DYNAMIC8_WITHIN) >= (int32_t)(word >> 7));
    (void)noise;
    return dynamic8_signed(code, x);
}
ESP_ELEMENT float dynamic8_negated(float y, uint32_t code) { return bits_float(float_bits(y) | (code & 0x80u) << 24); }
ESP_ELEMENT float dynamic8_value(uint32_t code, blocks_scale h) {
    return dynamic8_negated(h.a * h.table[code & 0x7Fu], code);
}
BLOCKS_ROUND(dynamic8)
BLOCKS_KERNELS(dynamic8, BLOCKS_NO_NOISE)

#ifdef ESP_SIMD_X86
/* Returns entries `at` of a table with 128. */
ESP_TARGET_AVX512 static inline __m512 dynamic8_look(const float *table, __m512i at) {
    __m512 of[4];
    for (int j = 0; j < 4; j++)
        of[j] = _mm512_permutex2var_ps(_mm512_loadu_ps(table + 32 * j), at, _mm512_loadu_ps(table + 32 * j + 16));
    const __mmask16 odd = _mm512_test_epi32_mask(at, _mm512_set1_epi32(32));
    return _mm512_mask_blend_ps(_mm512_test_epi32_mask(at, _mm512_set1_epi32(64)),
                                _mm512_mask_blend_ps(odd, of[0], of[1]), _mm512_mask_blend_ps(odd, of[2], of[3]));
}
/* Loads of a table of cells are slow, so this estimates the code, and looks up small tables in registers. */
ESP_TARGET_AVX512 static uint64_t dynamic8_encode_near(uint8_t *restrict codes, float *restrict e,
                                                       const float *restrict phi, const blocks_u16 *restrict noise,
                                                       blocks_scale h, uint64_t n) {
    const float *t = h.table;
    const __m512i sign = _mm512_set1_epi32(INT32_MIN), first = _mm512_set1_epi32(DYNAMIC8_FIRST);
    const __m512i one = _mm512_set1_epi32(1), zero = _mm512_setzero_si512();
    const __m512 inverse = _mm512_set1_ps(h.b), unit = _mm512_set1_ps(h.a);
    const __m512 cross[2] = {_mm512_loadu_ps(t + DYNAMIC8_CROSS), _mm512_loadu_ps(t + DYNAMIC8_CROSS + 16)};
    const __m512i kind_of[2] = {_mm512_loadu_si512(t + DYNAMIC8_CLASS), _mm512_loadu_si512(t + DYNAMIC8_CLASS + 16)};
    const __m512 slope = _mm512_loadu_ps(t + DYNAMIC8_SLOPE), start = _mm512_loadu_ps(t + DYNAMIC8_START);
    const __m512i last = _mm512_loadu_si512(t + DYNAMIC8_LAST);
    uint64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 x[2], y[2];
        __m512i code[2], minus[2];
        for (int j = 0; j < 2; j++) {
            x[j] = _mm512_loadu_ps(phi + i + 16 * j);
            y[j] = _mm512_mul_ps(_mm512_abs_ps(x[j]), inverse);
            const __m512i from = _mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(y[j]), 23), first);
            const __m512i at = _mm512_max_epi32(from, zero),
                          base = _mm512_permutex2var_epi32(kind_of[0], at, kind_of[1]);
            const __m512 crossing = _mm512_permutex2var_ps(cross[0], at, cross[1]);
            const __m512i kind = _mm512_mask_add_epi32(base, _mm512_cmp_ps_mask(y[j], crossing, _CMP_GE_OQ), base, one);
            const __m512 part = _mm512_mul_ps(y[j], _mm512_permutexvar_ps(kind, slope));
            const __m512i about = _mm512_cvttps_epi32(_mm512_add_ps(part, _mm512_permutexvar_ps(kind, start)));
            code[j] = _mm512_min_epi32(about, _mm512_permutexvar_epi32(kind, last));
        }
        for (int j = 0; j < 2; j++) {
            const __m512 edge = dynamic8_look(t + DYNAMIC8_EDGE, code[j]);
            code[j] = _mm512_mask_add_epi32(code[j], _mm512_cmp_ps_mask(y[j], edge, _CMP_GE_OQ), code[j], one);
            const __mmask16 some = _mm512_test_epi32_mask(code[j], code[j]);
            minus[j] = _mm512_maskz_and_epi32(some, _mm512_castps_si512(x[j]), sign);
            _mm_storeu_si128((__m128i *)(void *)(codes + i + 16 * j),
                             _mm512_cvtepi32_epi8(_mm512_or_si512(code[j], _mm512_srli_epi32(minus[j], 24))));
        }
        for (int j = 0; e && j < 2; j++) {
            const __m512i size = _mm512_castps_si512(_mm512_mul_ps(unit, dynamic8_look(t, code[j])));
            _mm512_storeu_ps(e + i + 16 * j, _mm512_sub_ps(x[j], _mm512_castsi512_ps(_mm512_or_si512(size, minus[j]))));
        }
    }
    return dynamic8_encode_avx512(codes + i, e ? e + i : NULL, phi + i, noise, h, n - i);
}
ESP_TARGET_AVX512 static uint64_t dynamic8_decode_look(float *restrict out, const uint8_t *restrict codes,
                                                       blocks_scale h, float scale, int set, uint64_t n) {
    const __m512 unit = _mm512_set1_ps(h.a), by = _mm512_set1_ps(scale);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(codes + i)));
        const __m512i minus = _mm512_and_si512(_mm512_slli_epi32(code, 24), _mm512_set1_epi32(INT32_MIN));
        const __m512 size = _mm512_mul_ps(unit, dynamic8_look(h.table, code));
        const __m512 x = _mm512_mul_ps(by, _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(size), minus)));
        _mm512_storeu_ps(out + i, set ? x : _mm512_add_ps(_mm512_loadu_ps(out + i), x));
    }
    return dynamic8_decode_avx512(out + i, codes + i, h, scale, set, n - i);
}
static dynamic8_encode_fn dynamic8_kernel(int level) {
    return level == ESP_SIMD_AVX512 ? dynamic8_encode_near : dynamic8_encode_for(level);
}
static dynamic8_decode_fn dynamic8_decoder(int level) {
    return level == ESP_SIMD_AVX512 ? dynamic8_decode_look : dynamic8_decode_for(level);
}
#else
#define dynamic8_kernel dynamic8_encode_for
#define dynamic8_decoder dynamic8_decode_for
#endif

static blocks_scale dynamic8_scale_of(const blocks_self *s, const float *head) {
    const quant_range r = quant_range_of(float_bits(head[0]) & 0x7FFFFFFFu, 1);
    return (blocks_scale){r.unit, r.inverse, 0, 0, ((const dynamic8_self *)s)->table};
}
static const blocks_format dynamic8_format = {
    "dynamic8", 1, false, blocks_tops, dynamic8_scale_of, dynamic8_kernel, dynamic8_decoder, {3.9, 1.5}, false};

/* Fills the tables of classes. A class i + 1 divides the range above 10^(i-7) into 2^i parts. */
static void dynamic8_classes(float *table) {
    const float *edge = table + DYNAMIC8_EDGE;
    for (uint32_t exponent = 0, c = 0; exponent < 32; exponent++) {
        const float low = bits_float((exponent + DYNAMIC8_FIRST) << 23);
        while (c < 7 && low >= edge[(1u << c) - 1]) c++;
        table[DYNAMIC8_CROSS + exponent] = c < 7 ? edge[(1u << c) - 1] : edge[BLOCKS_TABLE - 1];
        table[DYNAMIC8_CLASS + exponent] = bits_float(c);
    }
    double decade = 1e-7;
    for (uint32_t i = 0; i < 7; i++, decade *= 10) {
        const double parts = (double)(1u << i);
        table[DYNAMIC8_SLOPE + i + 1] = (float)(parts / (9 * decade));
        table[DYNAMIC8_START + i + 1] = (float)(parts * 8 / 9 - 1e-3);
        table[DYNAMIC8_LAST + i + 1] = bits_float((2u << i) - 1);
    }
}

static const char dynamic8_params[] = "block=1024";

static esp_status dynamic8_open(const esp_host *h, const char *params, void **self) {
    double block = 1024;
    esp_param p[] = {BLOCKS_PARAM(&block)};
    const esp_status st = blocks_open(&dynamic8_format, h, params, p, 1, dynamic8_params, sizeof(dynamic8_self), self);
    if (st != ESP_OK) return st;
    dynamic8_self *s = (dynamic8_self *)*self;
    s->blocks.block = (uint64_t)block;
    s->blocks.bits = 8;
    float *value = s->table, *boundary = value + DYNAMIC8_EDGE;
    for (uint32_t at = 0; at < BLOCKS_TABLE; at++) value[at] = dynamic8_number(at);
    for (uint32_t at = 0; at < BLOCKS_TABLE; at++)
        boundary[at] = at + 1 < BLOCKS_TABLE ? (value[at] + value[at + 1]) * 0.5f : 2.0f;
    for (uint32_t cell = 0, at = 0; cell < DYNAMIC8_CELLS; cell++) {
        const uint32_t first = (cell + DYNAMIC8_FIRST * 64) << 17;
        while (bits_float(first) >= boundary[at]) at++;
        const bool inside = float_bits(boundary[at]) - first <= DYNAMIC8_WITHIN;
        const uint32_t next = inside ? float_bits(boundary[at]) - first : DYNAMIC8_WITHIN + 1;
        value[DYNAMIC8_CELL + cell] = bits_float(next << 7 | at);
    }
    dynamic8_classes(value);
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
