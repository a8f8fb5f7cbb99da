/* test_blocks.c checks the codecs of 1 to 8 bits an element: bytes against golden.py, which computes them in another
 * way; random numbers and packing at every instruction set; and that random codecs are right on average. */
/* runs: slow tsan-long */
#include "tests/lib/test.h"
#include "conformance.h"
#include "codecs/common/blocks.h"

enum { GOLDEN_N = 300, GOLDEN_HEADS = 16 };
typedef struct golden {
    const char *spec;
    uint32_t bits, n_heads;
    double heads[GOLDEN_HEADS];
    unsigned char codes[GOLDEN_N];
} golden;
#include "golden/golden.inc"

/* Reads codes of `bits` bits, the first in the lowest bits. All blocks in golden.inc end at whole bytes. */
static unsigned char code_at(const unsigned char *in, uint32_t bits, uint64_t i) {
    uint32_t code = 0;
    for (uint32_t b = 0; b < bits; b++) {
        const uint64_t at = i * bits + b;
        code |= (uint32_t)(in[at / 8] >> at % 8 & 1) << b;
    }
    return (unsigned char)code;
}

TEST(golden_bytes) {
    for (size_t k = 0; k < CF_COUNT(golden_cases); k++) {
        const golden *want = &golden_cases[k];
        cf_codec c;
        assert_true(cf_open(want->spec, &cf_plain, &c));
        cf_part p = cf_part_make(&c, GOLDEN_N, 0);
        memcpy(p.g, golden_input, sizeof golden_input);
        assert_int_equal(cf_compress(&p), ESP_OK);
        const unsigned char *body = p.payload.data + ESP_PAYLOAD_HEADER, *codes = body + 4 * want->n_heads;
        for (uint32_t i = 0; i < want->n_heads; i++) {
            float head;
            memcpy(&head, body + 4 * i, 4);
            /* fp8 and dynamic8 send the largest magnitude itself, which has few bits */
            if (fabs((double)head - want->heads[i]) > 1e-6 * fabs(want->heads[i]))
                fail_msg("%s: head %u is %.9g, not %.9g", want->spec, i, (double)head, want->heads[i]);
        }
        for (uint64_t i = 0; i < GOLDEN_N; i++)
            if (code_at(codes, want->bits, i) != want->codes[i])
                fail_msg("%s: code of element %u (%g) is %u, not %u", want->spec, (unsigned)i, (double)golden_input[i],
                         code_at(codes, want->bits, i), want->codes[i]);
        cf_part_free(&p);
        cf_close(&c);
    }
}

TEST(noise) {
    enum { GROUPS = 100 };
    const uint64_t firsts[] = {0, 5, 0xFFFFFFFFull - 20, 0xFFFFFFFFull, 1ull << 40};
    uint32_t words[3][(GROUPS + BLOCKS_GROUPS) * 4];
    for (size_t f = 0; f < CF_COUNT(firsts); f++)
        for (int level = 0; level <= esp_simd_best(); level++) {
            blocks_noise_for(level)(words[level], 99, firsts[f], GROUPS);
            for (uint64_t i = 0; i < 8ull * GROUPS; i++)
                assert_int_equal(words[level][i / 2] >> i % 2 * 16 & 0xFFFFu, esp_rng_u16(99, 8 * firsts[f] + i));
        }
}

TEST(packing) {
    unsigned char codes[1024], back[1024], bytes[1025];
    for (uint32_t bits = 1; bits < 8; bits++)
        for (uint64_t n = 1; n <= 1024; n = n < 70 ? n + 1 : n * 2 + 1) {
            for (uint64_t i = 0; i < n; i++) codes[i] = (unsigned char)(cf_random() & ((1u << bits) - 1));
            for (int level = 0; level <= esp_simd_best(); level++) {
                const uint64_t used = (n * bits + 7) / 8;
                memset(bytes, 0xAA, sizeof bytes);
                blocks_pack_for(level)(bytes, codes, bits, n);
                assert_int_equal(bytes[used], 0xAA);
                for (uint64_t i = 0; i < n; i++) assert_int_equal(code_at(bytes, bits, i), codes[i]);
                if (n * bits % 8) assert_int_equal(bytes[used - 1] >> n * bits % 8, 0);
                blocks_unpack_for(level)(back, bytes, bits, n);
                assert_memory_equal(back, codes, n);
            }
        }
}

/* The mean of decoded values over many steps must be the input, within 6 standard deviations of that mean. */
static void unbiased(const char *spec) {
    enum { M = 200, DRAWS = 10000 };
    double sum[M] = {0}, square[M] = {0};
    cf_codec c;
    assert_true(cf_open(spec, &cf_plain, &c));
    cf_part p = cf_part_make(&c, M, 0);
    cf_seed = 17;
    cf_fill(p.g, M, CF_RANDOM);
    for (p.step = 0; p.step < DRAWS; p.step++) {
        assert_int_equal(cf_compress(&p), ESP_OK);
        assert_int_equal(cf_decompress(&p), ESP_OK);
        for (int i = 0; i < M; i++) sum[i] += (double)p.o[i], square[i] += (double)p.o[i] * (double)p.o[i];
    }
    for (int i = 0; i < M; i++) {
        if (fabsf(p.g[i]) < 0.02f) continue; /* rounded up too rarely to estimate the variance */
        const double g = (double)p.g[i], mean = sum[i] / DRAWS, variance = square[i] / DRAWS - mean * mean;
        /* 2e-5: a rounding decided by 16 random bits is exact to 2^-17 of a level */
        if (fabs(mean - g) > 6 * sqrt(fmax(variance, 0) / DRAWS) + 2e-5)
            fail_msg("%s: element %d: mean %.9g, not %.9g", spec, i, mean, g);
    }
    cf_part_free(&p);
    cf_close(&c);
}
TEST(right_on_average) {
    static const char *const specs[] = {"qsgd",    "qsgd:bits=3,norm=0",    "qsgd:bits=2", "terngrad:clip=0",
                                        "natural", "maxmin:bits=2,random=1"};
    for (size_t i = 0; i < CF_COUNT(specs); i++) unbiased(specs[i]);
}

/* A head that is NaN or Inf, bits behind the last code, and a number in aux make a payload invalid. */
TEST(invalid_payloads) {
    static const char *const specs[] = {"fp8", "qsgd:bits=5", "terngrad", "maxmin", "onebit", "signsgd", "mxnet1bit"};
    for (size_t i = 0; i < CF_COUNT(specs); i++) {
        cf_codec c;
        assert_true(cf_open(specs[i], &cf_plain, &c));
        cf_part p = cf_part_make(&c, 203, 0);
        cf_fill(p.g, p.count, CF_RANDOM);
        assert_int_equal(cf_compress(&p), ESP_OK);
        unsigned char *body = p.payload.data + ESP_PAYLOAD_HEADER, *last = p.payload.data + p.used - 1;
        assert_int_equal(cf_decompress(&p), ESP_OK);
        if (strcmp(specs[i], "fp8") != 0) {
            const unsigned char was = *last, bit = strcmp(specs[i], "mxnet1bit") ? 0x80 : 0x01;
            *last |= bit;
            assert_int_equal(cf_decompress(&p), ESP_E_CORRUPT);
            *last = was;
        }
        if (i < 5) {
            const float bad = i % 2 ? NAN : -INFINITY;
            float head;
            memcpy(&head, body, 4);
            memcpy(body, &bad, 4);
            assert_int_equal(cf_decompress(&p), ESP_E_CORRUPT);
            memcpy(body, &head, 4);
        }
        p.payload.data[24] = 1; /* aux */
        assert_int_equal(cf_decompress(&p), ESP_E_CORRUPT);
        cf_part_free(&p);
        cf_close(&c);
    }
}

/* What is decoded and the new residual make up gradient and old residual, in tensors of so many blocks that the next
 * ones are fetched meanwhile. */
TEST(many_blocks) {
    static const char *const specs[] = {
        "fp8",    "dynamic8", "maxmin", "maxmin:random=1", "onebit",   "natural", "terngrad", "qsgd", "mxnet1bit",
        "twobit", "int8",     "int4",   "efsignsgd",       "sketchml", "threelc", "fp16"};
    static const char *const levels[] = {"scalar", "avx2", "avx512"};
    enum { MANY = 40 * DENSE_BLOCK + 77 };
    float *g = calloc(4 * MANY, sizeof *g), *before = g + MANY, *decoded = before + MANY;
    for (size_t k = 0; k < CF_COUNT(specs); k++)
        for (size_t l = 0; l < CF_COUNT(levels); l++) {
            esp_ctx *ctx;
            esp_codec_handle *h;
            uint64_t used, draw = k + 1;
            setenv("ESPRESSO_SIMD", levels[l], 1);
            assert_int_equal(esp_open(&(esp_config){.size = 1}, &ctx), ESP_OK);
            assert_int_equal(esp_codec_open(ctx, specs[k], MANY, "residual", &h), ESP_OK);
            uint8_t *out = malloc(esp_compress_bound(h));
            memset(before, 0, MANY * sizeof *before);
            for (int step = 0; step < 3; step++) {
                for (uint64_t i = 0; i < MANY; i++) g[i] = (float)(int32_t)(test_random64(&draw) >> 32) * 0x1p-31f;
                assert_int_equal(esp_compress(h, g, MANY, out, esp_compress_bound(h), &used), ESP_OK);
                assert_int_equal(esp_decompress(h, out, used, decoded, MANY, ESP_OUT_SET), ESP_OK);
                const float *left = esp_codec_residual(h);
                uint64_t wrong = 0;
                for (uint64_t i = 0; i < MANY; i++) {
                    const double sum = (double)g[i] + (double)before[i], got = (double)decoded[i] + (double)left[i];
                    wrong += !(fabs(sum - got) <= 1e-5 * (1 + fabs(sum)));
                }
                if (wrong) print_message("%s, %s: %llu elements\n", specs[k], levels[l], (unsigned long long)wrong);
                assert_int_equal(wrong, 0);
                memcpy(before, left, MANY * sizeof *before);
            }
            free(out);
            esp_codec_close(h);
            esp_close(ctx);
        }
    unsetenv("ESPRESSO_SIMD");
    free(g);
}
