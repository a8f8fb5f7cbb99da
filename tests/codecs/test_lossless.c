/* test_lossless.c checks that codec lossless changes no bit of numbers of any kind, and its payloads' sizes. */
/* runs: slow */
#include "one_codec.h"
#include <inttypes.h>

enum { N = 1 << 20 };

/* A number with roughly the distribution of a gradient: normal, with a scale that changes from row to row. */
static float gradient(uint32_t row) {
    float sum = 0.0f;
    for (int i = 0; i < 6; i++) sum += codec_uniform();
    return sum * 1e-3f * (float)(1 + row % 7);
}
static float any_finite(void) {
    const uint32_t bits = codec_random();
    return bits_float((bits >> 23 & 0xFF) == 0xFF ? bits & 0xBFFFFFFFu : bits);
}
static float f16(float x) { return bits_float(codec_bits(x) & 0xFFFFE000u); }
static float bf16(float x) { return bits_float(codec_bits(x) & 0xFFFF0000u); }

enum { NORMAL, F16, BF16, ANY, CONSTANT, ZEROS, ONE_F32, WIDE, KINDS };
static float number(int kind, uint64_t i) {
    static const float few[] = {0.0f, -0.0f, 1e-45f, -1e-38f, 3.4e38f, 1.0f};
    switch (kind) {
    case NORMAL: return gradient((uint32_t)(i >> 10));
    case F16: return f16(gradient((uint32_t)(i >> 10)));
    case BF16: return bf16(gradient((uint32_t)(i >> 10)));
    case ANY: return any_finite();
    case CONSTANT: return -0.75f;
    case ZEROS: return few[codec_random() % 2];
    case ONE_F32: return i % 5000 == 17 ? 0.1f : bf16(gradient(0));            /* one element decides for a chunk */
    default: return ldexpf(few[4], -__builtin_ctz(codec_random() | 1u << 31)); /* the code's words get long */
    }
}

/* Returns the payload's bits per element. */
static double check(int kind, uint64_t n, const char *simd, int threads) {
    opened_codec r = codec_open(codec_named("lossless"), "", n, simd, threads);
    float *x = malloc(4 * n), *out = malloc(4 * n);
    for (uint64_t i = 0; i < n; i++) x[i] = number(kind, i);
    assert_int_equal(codec_compress(&r, x, 0), ESP_OK);
    memset(out, 0xFF, 4 * n);
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
    for (uint64_t i = 0; i < n; i++)
        if (codec_bits(x[i]) != codec_bits(out[i]))
            fail_msg("kind %d, %" PRIu64 " elements: element %" PRIu64 " is %08x, not %08x", kind, n, i,
                     codec_bits(out[i]), codec_bits(x[i]));
    const double bits = 8.0 * (double)r.used / (double)n;
    free(x), free(out);
    codec_close(&r);
    return bits;
}

TEST(sizes_of_all_kinds) {
    static const uint64_t counts[] = {1, 2, 3, 5, 8, 19, 20, 21, 1000, 1024, 16383, 16384, 16385, 16400, 40001};
    static const char *const simd[] = {"scalar", NULL};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) check(kind, counts[k], simd[k % 2], k / 2 % 2);
}

TEST(bits_of_an_element) {
    const double normal = check(NORMAL, N, NULL, 0), half = check(F16, N, NULL, 0), brain = check(BF16, N, NULL, 0);
    assert_in_range((int)(100 * normal), 2600, 2800);
    assert_in_range((int)(100 * half), 1300, 1450);
    assert_in_range((int)(100 * brain), 1000, 1150);
    assert_in_range((int)(1000 * check(ANY, N, NULL, 0)), 31900, 32010);
    assert_in_range((int)(100 * check(CONSTANT, N, NULL, 0)), 900, 920);
}

/* The only exponent's code word must have one bit: other bits would stand for nothing. */
TEST(single_word_of_two_bits) {
    opened_codec r = codec_open(codec_named("lossless"), "", 1000, NULL, 0);
    float x[1000], out[1000];
    for (int i = 0; i < 1000; i++) x[i] = -0.75f;
    assert_int_equal(codec_compress(&r, x, 0), ESP_OK);
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
    unsigned char *word =
        (unsigned char *)r.payload.data.ptr + ESP_PAYLOAD_HEADER + 4 + 1 + (codec_bits(-0.75f) >> 23 & 255) / 2;
    assert_int_equal(*word, 1);
    *word = 2;
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_E_CORRUPT);
    codec_close(&r);
}

/* 10^9 elements with TEST_ALL */
TEST(many_elements) {
    const int rounds = getenv("TEST_ALL") ? 120 : 1;
    for (int i = 0; i < rounds * KINDS; i++) check(i % KINDS, N, NULL, 1);
}
