/* test_int4.c checks codec int4 against a plain reference: rounding, two codes per byte, the ends of the range, NaN,
 * and corrupt payloads. */
#include "tests/lib/test.h"
#include <float.h>
#include "tests/codecs/one_codec.h"

static const char *const levels[] = {"scalar", "avx2", "avx512"};

static float ref_unit(const float *x, uint64_t n) {
    float top = 0;
    for (uint64_t i = 0; i < n; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top < 0x1p-100f ? 0 : (float)((double)top / 7);
}
static int ref_level(const unsigned char *halves, uint64_t i) {
    const int half = i % 2 ? halves[i / 2] / 16 : halves[i / 2] % 16;
    return half > 7 ? half - 16 : half;
}

static void one_case(uint64_t n, uint64_t block, int feedback, const char *simd, int threads) {
    char params[32];
    snprintf(params, sizeof params, "block=%d", (int)block);
    opened_codec r = codec_open(codec_named("int4"), params, n, simd, threads);
    const uint64_t blocks = (n + block - 1) / block;
    float *g = malloc(n * 4 + 4), *phi = malloc(n * 4 + 4), *out = malloc(n * 4 + 4);
    r.args.beta = 0.9f, r.args.gamma = 0.7f, r.args.scale = 0.5f;
    for (int step = 0; step < 2; step++) {
        for (uint64_t i = 0; i < n; i++) {
            g[i] = codec_uniform() * (i / 77 % 3 ? 1.0f : 1e-6f);
            const float e = 0.9f * r.residual[i], x = 0.7f * g[i];
            phi[i] = feedback ? e + x : g[i];
            out[i] = (float)i;
        }
        assert_int_equal(codec_compress(&r, g, feedback), ESP_OK);
        const esp_payload_header h = codec_header(&r);
        assert_true(h.count == n && h.flags == 0 && h.body_bytes == 4 * blocks + (n + 1) / 2 && h.aux == 0);
        const unsigned char *body = (const unsigned char *)esp_payload_body(&r.payload);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SUM), ESP_OK);
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t at = i / block * block;
            float unit;
            memcpy(&unit, body + 4 * (i / block), 4);
            assert_true(unit == ref_unit(phi + at, n - at < block ? n - at : block));
            const int level = ref_level(body + 4 * blocks, i);
            const float decoded = unit * (float)level;
            assert_in_range(level + 7, 0, 14);
            assert_true(fabs((double)phi[i] / (double)unit - level) <= 0.5 + 4e-5);
            if (feedback) assert_true((double)decoded + (double)r.residual[i] == (double)phi[i]);
            assert_true(out[i] == (float)i + 0.5f * decoded);
        }
    }
    free(g), free(phi), free(out);
    codec_close(&r);
}
TEST(against_reference) {
    static const uint64_t sizes[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 1001, 70001},
                          blocks[] = {32, 128, 1024};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (int b = 0; b < 3; b++)
            for (int k = 0; k < 12; k++) one_case(sizes[z], blocks[b], k & 1, levels[k / 4], k >> 1 & 1);
}

/* The element with the largest magnitude is exact, two codes share a byte, and the last half byte of an odd count is
 * 0. */
TEST(known_bytes) {
    const float in[9] = {7, -7, 0.5f, 1.5f, -1.5f, 3, -1, -0.0f, -6.4f};
    const unsigned char want[9] = {0, 0, 0x80, 0x3F /* 1.0f */, 0x97, 0x20, 0x3E, 0x0F, 0x0A};
    const float keeps[9] = {0, 0, 0.5f, -0.5f, 0.5f, 0, 0, 0, -6.4f + 6};
    for (int l = 0; l < 3; l++) {
        opened_codec r = codec_open(codec_named("int4"), "", 9, levels[l], 0);
        float out[9];
        assert_int_equal(codec_compress(&r, in, 1), ESP_OK);
        assert_int_equal(r.used, ESP_PAYLOAD_HEADER + 9);
        assert_memory_equal(esp_payload_body(&r.payload), want, 9);
        for (int i = 0; i < 9; i++) assert_true(r.residual[i] == keeps[i]);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
        assert_true(out[0] == 7 && out[1] == -7);
        codec_close(&r);
    }
}

TEST(ends_of_f32) {
    static const float tops[] = {FLT_MAX,   0x1.fffffcp127f,  0x1p127f,     0x1p-99f,
                                 0x1p-100f, 0x1.fffffep-101f, 0x1p-149f * 5};
    for (size_t t = 0; t < sizeof tops / sizeof *tops; t++) {
        opened_codec r = codec_open(codec_named("int4"), "", 300, NULL, 0);
        float g[300], out[300];
        for (int i = 0; i < 300; i++) g[i] = tops[t] * (i % 128 == 7 ? -1.0f : codec_uniform());
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        assert_int_equal(codec_header(&r).flags, 0);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
        for (int i = 0; i < 300; i++) {
            assert_true(isfinite(out[i]) && isfinite(r.residual[i]));
            assert_true((double)out[i] + (double)r.residual[i] == (double)g[i]);
            if (tops[t] >= 0x1p-99f) assert_true(fabsf(r.residual[i]) <= tops[t] / 13.99f);
        }
        codec_close(&r);
    }
}

TEST(not_finite) {
    for (int k = 0; k < 4; k++) {
        opened_codec r = codec_open(codec_named("int4"), "", 70000, NULL, k >> 1);
        float *g = calloc(70000, 4), *out = calloc(70000, 4);
        r.residual[3] = 2.5f, g[69999] = k ? NAN : -INFINITY;
        assert_int_equal(codec_compress(&r, g, k & 1), ESP_OK);
        assert_true(codec_header(&r).flags == ESP_PAYLOAD_NONFINITE && r.used == ESP_PAYLOAD_HEADER);
        assert_true(r.residual[3] == 2.5f && r.residual[4] == 0);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SUM), ESP_OK);
        for (int i = 0; i < 70000; i++) assert_true(isnan(out[i]));
        free(g), free(out);
        codec_close(&r);
    }
}

TEST(corrupt) {
    static const uint32_t units[] = {0x7F800000u, 0x7FC00000u, 0x80000000u, 0xBF800000u};
    float g[301] = {1}, out[301];
    for (int i = 0; i < 301; i++) out[i] = 77;
    opened_codec r = codec_open(codec_named("int4"), "", 301, NULL, 0);
    unsigned char *body = (unsigned char *)esp_payload_body(&r.payload);
    for (int u = 0; u < 4; u++) {
        assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
        memcpy(body + 8, &units[u], 4);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_E_CORRUPT);
    }
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    body[12 + 150] |= 0x10; /* the unused half byte at the end must be 0 */
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_E_CORRUPT);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    ((unsigned char *)r.payload.data.ptr)[offsetof(esp_payload_header, aux)] = 1;
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_E_CORRUPT);
    for (int i = 0; i < 301; i++) assert_true(out[i] == 77);
    codec_close(&r);
}

TEST(parameters) {
    static const char *const bad[] = {"block=31", "block=48", "block=2048", "block=0", "block=1.5", "levels=7"};
    const esp_codec *c = codec_named("int4");
    void *self;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(c->open(&codec_host, bad[i], &self), ESP_E_ARG);
        if (!strstr(codec_message, i < 5 ? "a power of two from 32 to 1024" : "unknown parameter 'levels'"))
            fail_msg("%s: %s", bad[i], codec_message);
    }
}
