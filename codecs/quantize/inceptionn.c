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

/* Returns where the widths begin, and where the first segment does. */
ESP_ELEMENT uint64_t inceptionn_widths(uint64_t n) { return 8 * serial_segments(INCEPTIONN_BLOCK, n); }
ESP_ELEMENT uint64_t inceptionn_first(uint64_t n) { return inceptionn_widths(n) + (n + 3) / 4; }
static uint64_t inceptionn_largest(const serial_self *s, uint64_t n) {
    (void)s;
    return inceptionn_first(n) + 4 * n;
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */
/* For each element, writes its width (0 to 3 for 0, 8, 16 and 32 bits), its multiple with the sign in bit 15, and its
 * residual to `e` if that is not NULL. Returns whether a width is 3. */
ESP_ELEMENT uint32_t inceptionn_one(uint16_t *width, uint16_t *code, float *e, float x, float unit, float inverse) {
    const uint32_t sign = float_bits(x) & 0x80000000u;
    const float all = bits_float(float_bits(x) & 0x7FFFFFFFu) * inverse;
    const uint32_t whole = 0u - (uint32_t)(all >= 32767.5f);
    const float r = bits_float(float_bits(all) & ~whole);
    const int32_t down = (int32_t)r, q = down + (int32_t)(r - (float)down >= 0.5f);
    *width = (uint16_t)((uint32_t)((q > 0) + (q > 127)) | (whole & 3));
    *code = (uint16_t)((uint32_t)q | sign >> 16);
    if (e) *e = bits_float(float_bits(x - bits_float(float_bits((float)q * unit) | sign)) & ~whole);
    return whole;
}
ESP_INLINE uint64_t inceptionn_round_body(uint16_t *restrict width, uint16_t *restrict code, float *restrict e,
                                          const float *restrict phi, float unit, float inverse, uint64_t n) {
    uint32_t any = 0;
    if (e) {
        ESP_SIMD_REDUCE(|, any)
        for (uint64_t i = 0; i < n; i++) any |= inceptionn_one(width + i, code + i, e + i, phi[i], unit, inverse);
    } else {
        ESP_SIMD_REDUCE(|, any)
        for (uint64_t i = 0; i < n; i++) any |= inceptionn_one(width + i, code + i, NULL, phi[i], unit, inverse);
    }
    return any;
}
ESP_KERNEL(inceptionn_round,
           (uint16_t *restrict width, uint16_t *restrict code, float *restrict e, const float *restrict phi, float unit,
            float inverse, uint64_t n),
           (width, code, e, phi, unit, inverse, n))

/* An element of 8 bits has its sign in bit 7. */
ESP_ELEMENT unsigned char inceptionn_byte(uint32_t code) { return (unsigned char)((code & 0x7F) | code >> 15 << 7); }
ESP_ELEMENT uint32_t inceptionn_code(uint32_t byte) { return (byte & 0x7F) | byte >> 7 << 15; }

/* Writes the widths of n elements, 8 bits for those of width 1 to `one`, and 16 for those of width 2 to `two`, which
 * have room for n + 16 elements each. Returns how many of either, the latter in the upper half. */
static uint64_t inceptionn_pack_scalar(unsigned char *widths, unsigned char *one, unsigned char *two,
                                       const uint16_t *width, const uint16_t *code, uint64_t n) {
    const unsigned char *first = one, *begin = two;
    for (uint64_t i = 0; i < n; i += 4) {
        uint32_t four = 0;
        for (uint64_t k = i; k < n && k < i + 4; k++) four |= (uint32_t)width[k] << 2 * (k % 4);
        *widths++ = (unsigned char)four;
    }
    /* writes each element, and keeps it only if it has the width: without unpredictable branches */
    for (uint64_t i = 0; i < n; i++) *one = inceptionn_byte(code[i]), one += width[i] == 1;
    for (uint64_t i = 0; i < n; i++) memcpy(two, &code[i], 2), two += 2 * (width[i] == 2);
    return (uint64_t)(one - first) | (uint64_t)(two - begin) / 2 << 32;
}
/* The reverse: sets the codes of the elements of widths 1 and 2, and 0 for others. May read 16 elements too many. */
static uint64_t inceptionn_unpack_scalar(uint16_t *code, const unsigned char *widths, const unsigned char *one,
                                         const unsigned char *two, uint64_t n) {
    for (uint64_t k = 0; k < n; k++) {
        const uint32_t width = widths[k / 4] >> 2 * (k % 4) & 3, is_one = width == 1, is_two = width == 2;
        uint16_t word;
        memcpy(&word, two, 2);
        code[k] = (uint16_t)((inceptionn_code(*one) & (0u - is_one)) | (word & (0u - is_two)));
        one += is_one;
        two += 2 * is_two;
    }
    return 0;
}
#ifdef ESP_SIMD_X86
#define inceptionn_pack_avx2 inceptionn_pack_scalar /* AVX2 has no instruction that compresses */
#define inceptionn_unpack_avx2 inceptionn_unpack_scalar
#define INCEPTIONN_LOW 0x55555555u /* the lower bits of 16 widths */
ESP_TARGET_AVX512 static uint64_t inceptionn_pack_avx512(unsigned char *widths, unsigned char *one, unsigned char *two,
                                                         const uint16_t *width, const uint16_t *code, uint64_t n) {
    const __m512i low = _mm512_set1_epi32(0x7F), sign = _mm512_set1_epi32(0x80);
    uint64_t i = 0, ones = 0, twos = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i c = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(code + i)));
        const __m512i byte = _mm512_or_si512(_mm512_and_si512(c, low), _mm512_and_si512(_mm512_srli_epi32(c, 8), sign));
        const __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)(width + i));
        const uint32_t b = _mm256_test_epi16_mask(w, _mm256_set1_epi16(1));
        const uint32_t c2 = _mm256_test_epi16_mask(w, _mm256_set1_epi16(2)), all = _pdep_u32(b, INCEPTIONN_LOW);
        const uint32_t four = all | _pdep_u32(c2, ~INCEPTIONN_LOW), is_one = b & ~c2, is_two = c2 & ~b;
        memcpy(widths + i / 4, &four, sizeof four);
        _mm_storeu_si128((__m128i *)(void *)(one + ones),
                         _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32((__mmask16)is_one, byte)));
        _mm256_storeu_si256((__m256i *)(void *)(two + 2 * twos),
                            _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32((__mmask16)is_two, c)));
        ones += (uint64_t)__builtin_popcount(is_one);
        twos += (uint64_t)__builtin_popcount(is_two);
    }
    ESP_LEAVE_WIDE();
    return inceptionn_pack_scalar(widths + i / 4, one + ones, two + 2 * twos, width + i, code + i, n - i) + ones +
           (twos << 32);
}
ESP_TARGET_AVX512 static uint64_t inceptionn_unpack_avx512(uint16_t *code, const unsigned char *widths,
                                                           const unsigned char *one, const unsigned char *two,
                                                           uint64_t n) {
    const __m512i low = _mm512_set1_epi32(0x7F), sign = _mm512_set1_epi32(0x8000);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint32_t four;
        memcpy(&four, widths + i / 4, sizeof four);
        const uint32_t b = _pext_u32(four, INCEPTIONN_LOW), c = _pext_u32(four, ~INCEPTIONN_LOW);
        const uint32_t is_one = b & ~c, is_two = c & ~b;
        const __m512i byte = _mm512_maskz_expand_epi32(
            (__mmask16)is_one, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)one)));
        const __m512i word = _mm512_maskz_expand_epi32(
            (__mmask16)is_two, _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)two)));
        const __m512i wide =
            _mm512_or_si512(_mm512_and_si512(byte, low), _mm512_and_si512(_mm512_slli_epi32(byte, 8), sign));
        _mm256_storeu_si256((__m256i *)(void *)(code + i), _mm512_cvtepi32_epi16(_mm512_or_si512(wide, word)));
        one += __builtin_popcount(is_one);
        two += 2 * __builtin_popcount(is_two);
    }
    ESP_LEAVE_WIDE();
    return inceptionn_unpack_scalar(code + i, widths + i / 4, one, two, n - i);
}
#endif
ESP_KERNEL_PICK(inceptionn_pack)
ESP_KERNEL_PICK(inceptionn_unpack)

static unsigned char *inceptionn_begin(const serial_self *s, serial_state *st, unsigned char *to) {
    (void)s;
    return to + (st->args->tensor[0]->count + 3) / 4;
}
static unsigned char *inceptionn_encode(const serial_self *self, serial_state *st, unsigned char *to, float *e,
                                        const float *phi, uint64_t n) {
    const inceptionn_self *s = (const inceptionn_self *)self;
    uint16_t width[INCEPTIONN_BLOCK], code[INCEPTIONN_BLOCK];
    unsigned char one[INCEPTIONN_BLOCK + 16], two[2 * INCEPTIONN_BLOCK + 32];
    unsigned char *widths = st->body + inceptionn_widths(st->args->tensor[0]->count) + st->at / 4;
    const uint64_t any = inceptionn_round_for(self->dense.level)(width, code, e, phi, s->unit, s->inverse, n);
    const uint64_t counts = inceptionn_pack_for(self->dense.level)(widths, one, two, width, code, n);
    memcpy(to, one, (uint32_t)counts), to += (uint32_t)counts;
    memcpy(to, two, 2 * (counts >> 32)), to += 2 * (counts >> 32);
    for (uint64_t i = 0; any && i < n; i++)
        if (width[i] == 3) memcpy(to, &phi[i], 4), to += 4;
    return to;
}

/* Counts the elements of each width but 0 in a block of n elements. */
ESP_INLINE uint64_t inceptionn_count_body(const unsigned char *widths, uint64_t n, uint64_t count[4]) {
    const uint64_t low = 0x5555555555555555u;
    memset(count, 0, 4 * sizeof *count);
    for (uint64_t i = 0; i < n; i += 32) {
        uint64_t w = 0;
        memcpy(&w, widths + i / 4, n - i < 32 ? (n - i + 3) / 4 : 8);
        if (n - i < 32) w &= ((uint64_t)1 << 2 * (n - i)) - 1;
        const uint64_t one = w & low, two = w >> 1 & low;
        count[1] += (uint64_t)__builtin_popcountll(one & ~two);
        count[2] += (uint64_t)__builtin_popcountll(two & ~one);
        count[3] += (uint64_t)__builtin_popcountll(one & two);
    }
    return 0;
}
ESP_KERNEL(inceptionn_count, (const unsigned char *widths, uint64_t n, uint64_t count[4]), (widths, n, count))

static bool inceptionn_valid(const serial_self *s, const unsigned char *body, uint64_t bytes, uint64_t n) {
    const unsigned char *widths = body + inceptionn_widths(n);
    uint64_t at = inceptionn_first(n), count[4], last;
    if (!serial_ends_ok(body, bytes, at, serial_segments(INCEPTIONN_BLOCK, n))) return false;
    for (uint64_t i = 0; i < n; i += INCEPTIONN_BLOCK) {
        const uint64_t len = n - i < INCEPTIONN_BLOCK ? n - i : INCEPTIONN_BLOCK;
        inceptionn_count_for(s->dense.level)(widths + i / 4, len, count);
        const uint64_t whole = at + count[1] + 2 * count[2], end = whole + 4 * count[3];
        memcpy(&last, body + 8 * (i / INCEPTIONN_BLOCK / SERIAL_SEGMENT), sizeof last);
        const bool ends = i / INCEPTIONN_BLOCK % SERIAL_SEGMENT == SERIAL_SEGMENT - 1 || len == n - i;
        if (ends ? end != last : end > last) return false;
        for (uint64_t k = whole; k < end; k += 4) {
            float x;
            memcpy(&x, body + k, 4);
            if (dense_bad(x)) return false;
        }
        at = end;
    }
    return true;
}

ESP_ELEMENT float inceptionn_value(uint32_t code, float unit) {
    return bits_float(float_bits((float)(int32_t)(code & 0x7FFF) * unit) | code >> 15 << 31);
}
/* Sets v to the multiples `code` of unit. */
ESP_INLINE uint64_t inceptionn_values_body(float *restrict v, const uint16_t *restrict code, float unit, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) v[i] = inceptionn_value(code[i], unit);
    return 0;
}
ESP_KERNEL(inceptionn_values, (float *restrict v, const uint16_t *restrict code, float unit, uint64_t n),
           (v, code, unit, n))
ESP_INLINE uint64_t inceptionn_add_body(float *restrict out, const float *restrict v, float scale, int set,
                                        uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n; i++) out[i] = set ? v[i] * scale : out[i] + v[i] * scale;
    return 0;
}
ESP_KERNEL(inceptionn_add, (float *restrict out, const float *restrict v, float scale, int set, uint64_t n),
           (out, v, scale, set, n))

static void inceptionn_decode(const serial_self *self, const unsigned char *body, uint64_t bytes, float *out,
                              float scale, bool set, uint64_t n) {
    const float unit = ((const inceptionn_self *)self)->unit;
    const unsigned char *widths = body + inceptionn_widths(n);
    unsigned char copy[4 * INCEPTIONN_BLOCK + 32]; /* for what inceptionn_unpack() reads too far */
    uint16_t code[INCEPTIONN_BLOCK];
    float v[INCEPTIONN_BLOCK];
    uint64_t count[4];
    (void)bytes;
    body += inceptionn_first(n);
    for (uint64_t i = 0; i < n; i += INCEPTIONN_BLOCK, widths += INCEPTIONN_BLOCK / 4) {
        const uint64_t len = n - i < INCEPTIONN_BLOCK ? n - i : INCEPTIONN_BLOCK;
        inceptionn_count_for(self->dense.level)(widths, len, count);
        const uint64_t all = count[1] + 2 * count[2] + 4 * count[3];
        memcpy(copy, body, all);
        const unsigned char *one = copy, *two = one + count[1], *four = two + 2 * count[2];
        inceptionn_unpack_for(self->dense.level)(code, widths, one, two, len);
        inceptionn_values_for(self->dense.level)(v, code, unit, len);
        for (uint64_t k = 0; count[3] && k < len; k++)
            if ((widths[k / 4] >> 2 * (k % 4) & 3) == 3) memcpy(&v[k], four, 4), four += 4;
        inceptionn_add_for(self->dense.level)(out + i, v, scale, set, len);
        body += all;
    }
}

static const serial_format inceptionn_format = {
    .name = "inceptionn",
    .block = INCEPTIONN_BLOCK,
    .segments = true,
    .largest = inceptionn_largest,
    .begin = inceptionn_begin,
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
    const double error = unit * unit / 12, sent = 0.25 + some + two + 2 * four;
    const esp_facts f = {.flags = ESP_MODEL_LOSSY,
                         .size = {8, 0, sent, 0, 0},
                         .error = error < 1 ? error : 1,
                         .ns = {5.3, 2.8},
                         .launches = {2, 2},
                         .bytes = {20 + sent, 4 + 2 * sent}};
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
