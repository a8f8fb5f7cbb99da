/* test_golden.c checks the bytes of payloads: small vectors computed by hand from each codec's rule, hashes for larger
 * ones. A change here is a change of the wire format and needs another wire_version. */
#include "tests/lib/test.h"
#include "conformance.h"
#include "codecs/common/rng.h"
#include <float.h>

static void body_is(const char *spec, const float *in, uint64_t n, const unsigned char *want, uint64_t bytes,
                    const float *keeps, uint64_t aux) {
    cf_codec c;
    assert_true(cf_open(spec, &cf_plain, &c));
    cf_part p = cf_part_make(&c, n, keeps != NULL);
    memcpy(p.g, in, n * 4);
    assert_int_equal(cf_compress(&p), ESP_OK);
    assert_int_equal(p.used, ESP_PAYLOAD_HEADER + bytes);
    assert_memory_equal(p.payload.data + ESP_PAYLOAD_HEADER, want, bytes);
    assert_int_equal(cf_header(&p).aux, aux);
    if (keeps) assert_memory_equal(p.e, keeps, n * 4);
    cf_part_free(&p);
    cf_close(&c);
}

TEST(header_bytes) {
    cf_codec c;
    assert_true(cf_open("none", &cf_plain, &c));
    cf_part p = cf_part_make(&c, 1, 0);
    p.g[0] = 1.0f;
    assert_int_equal(cf_compress(&p), ESP_OK);
    const unsigned char want[] = {
        0xDB, 0xAF, 0xA7, 0xAD, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, /* FNV-1a("none"), version, flags, count */
        4,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* bytes after the header, number for the codec */
        0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0,
        0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3F};
    assert_int_equal(p.used, sizeof want);
    assert_memory_equal(p.payload.data, want, sizeof want);
    cf_part_free(&p);
    cf_close(&c);
}

TEST(halves) {
    const float in[] = {1.0f, -2.0f, 0.1f, 65504.0f, 1e-7f, -0.0f};
    const unsigned char f16[] = {0x00, 0x3C, 0x00, 0xC0, 0x66, 0x2E, 0xFF, 0x7B, 0x02, 0x00, 0x00, 0x80};
    const unsigned char bf16[] = {0x80, 0x3F, 0x00, 0xC0, 0xCD, 0x3D, 0x80, 0x47, 0xD7, 0x33, 0x00, 0x80};
    body_is("fp16", in, 6, f16, sizeof f16, NULL, 0);
    body_is("bf16", in, 6, bf16, sizeof bf16, NULL, 0);
    /* Numbers beyond f16's range become Inf. With error feedback they become 65504, and the rest is the residual. */
    const float big[] = {70000.0f, -1e6f};
    const float rest[] = {70000.0f - 65504.0f, -1e6f + 65504.0f};
    const unsigned char inf[] = {0x00, 0x7C, 0x00, 0xFC}, max[] = {0xFF, 0x7B, 0xFF, 0xFB};
    body_is("fp16", big, 2, inf, sizeof inf, NULL, 0);
    body_is("fp16", big, 2, max, sizeof max, rest, 0);
    const float huge[] = {FLT_MAX, -FLT_MAX};
    const float left[] = {FLT_MAX - bits_float(0x7F7F0000u), bits_float(0x7F7F0000u) - FLT_MAX};
    const unsigned char binf[] = {0x80, 0x7F, 0x80, 0xFF}, bmax[] = {0x7F, 0x7F, 0x7F, 0xFF};
    body_is("bf16", huge, 2, binf, sizeof binf, NULL, 0);
    body_is("bf16", huge, 2, bmax, sizeof bmax, left, 0);
}

/* If n payloads will be summed, values are sent times 2^-ceil(log2 n), so that the largest sums cannot overflow. */
TEST(fp16_reduced) {
    const struct {
        uint32_t n, aux;
    } cases[] = {{0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}, {1000, 10}};
    for (size_t i = 0; i < CF_COUNT(cases); i++) {
        cf_codec c;
        assert_true(cf_open("fp16", &cf_plain, &c));
        cf_part p = cf_part_make(&c, 2, 1);
        p.g[0] = 1e9f;
        p.g[1] = 0.75f;
        esp_payload out = {{p.payload.data, p.bound.payload_bytes, {0, 0}}, &p.used};
        esp_tensor t = {sizeof t, ESP_F32, 7, 2, {p.g, 8, {0, 0}}, 0, 0}, *one = &t;
        const esp_buf residual = {p.e, 8, {0, 0}};
        esp_codec_args a = {.struct_size = sizeof a, .n_payloads = 1, .n_reduced = cases[i].n, .beta = 1, .gamma = 1};
        a.n_tensors = 1;
        a.residual = &residual;
        a.tensor = &one;
        a.payload = &out;
        assert_int_equal(c.table->compress(c.self, &a), ESP_OK);
        assert_int_equal(cf_header(&p).aux, cases[i].aux);
        half_u16 body[2];
        float sum[2];
        memcpy(body, p.payload.data + ESP_PAYLOAD_HEADER, sizeof body);
        half_f16_add_for(ESP_SIMD_SCALAR)(sum, body, (float)(cases[i].n ? cases[i].n : 1), 1, 2);
        assert_true(sum[0] <= HALF_F16_MAX);
        assert_int_equal(cf_decompress(&p), ESP_OK);
        assert_true(p.o[0] == HALF_F16_MAX && p.o[1] == 0.75f && p.e[1] == 0 && p.e[0] == 1e9f - HALF_F16_MAX);
        cf_part_free(&p);
        cf_close(&c);
    }
}

TEST(efsignsgd_vectors) {
    /* The mean magnitude is 1.5. Only the second number is negative; -0 counts as positive. */
    const float in[] = {1.0f, -2.0f, -0.0f, 3.0f}, keeps[] = {-0.5f, -0.5f, -1.5f, 1.5f};
    const unsigned char want[] = {0x00, 0x00, 0xC0, 0x3F, 0x02, 0, 0, 0};
    body_is("efsignsgd", in, 4, want, sizeof want, keeps, 0);
    const float zeros[9] = {0}, none[9] = {0};
    const unsigned char empty[] = {0, 0, 0, 0, 0, 0, 0, 0};
    body_is("efsignsgd", zeros, 9, empty, sizeof empty, none, 0);
}

/* MXNet's rule with threshold 0.5: numbers >= 0.5 get code 11, numbers <= -0.5 code 10, others 00. Element 0 is in byte
 * 0's two highest bits. */
TEST(twobit_vectors) {
    const float in[] = {1.0f, -1.0f, 0.25f, 0.5f, -0.5f, -0.0f, 0.4999f, -0.4999f, 2.0f,
                        0,    0,     0,     0,    0,     0,     -3.0f,   0.75f};
    const float keeps[] = {0.5f, -0.5f, 0.25f, 0.0f, 0.0f, 0.0f, 0.4999f, -0.4999f, 1.5f,
                           0,    0,     0,     0,    0,    0,    -2.5f,   0.25f};
    const unsigned char want[] = {0xE3 /* codes 11 10 00 11 in the first byte */, 0x80, 0xC0, 0x02, 0xC0, 0, 0, 0};
    float with_minus_zero[17];
    memcpy(with_minus_zero, keeps, sizeof keeps);
    body_is("twobit:threshold=0.5", in, 17, want, sizeof want, with_minus_zero, 0x3F000000u);
    body_is("twobit", in, 17, want, sizeof want, NULL, 0x3F000000u);
    /* With 0.2 per step, the residual reaches the threshold 0.5 in the third step. */
    cf_codec c;
    assert_true(cf_open("twobit:threshold=0.5", &cf_plain, &c));
    cf_part p = cf_part_make(&c, 1, 1);
    const unsigned char sent[] = {0x00, 0x00, 0xC0, 0x00, 0xC0};
    for (p.step = 0; p.step < CF_COUNT(sent); p.step++) {
        p.g[0] = 0.2f;
        assert_int_equal(cf_compress(&p), ESP_OK);
        assert_int_equal(p.payload.data[ESP_PAYLOAD_HEADER], sent[p.step]);
    }
    cf_part_free(&p);
    cf_close(&c);
}

/* With relative=2 the threshold is twice the mean magnitude, whatever the scale of the gradient. */
TEST(twobit_of_mean) {
    const float in[] = {1.0f, -3.0f, 0.0f, 0.0f, 8.0f, 0.0f, -4.0f, 0.0f};
    const float keeps[] = {1.0f, -3.0f, 0.0f, 0.0f, 4.0f, 0.0f, 0.0f, 0.0f};
    const unsigned char want[] = {0x00, 0xC8 /* codes 11 00 10 00 in the second byte */, 0, 0}, nothing[4] = {0};
    const float zeros[8] = {0};
    body_is("twobit:relative=2", in, 8, want, sizeof want, keeps, 0x40800000u);
    float small[8], kept[8];
    for (int i = 0; i < 8; i++) small[i] = in[i] / 1048576.0f, kept[i] = keeps[i] / 1048576.0f;
    body_is("twobit:relative=2", small, 8, want, sizeof want, kept, 0x40800000u - (20u << 23));
    body_is("twobit:relative=2", zeros, 8, nothing, sizeof nothing, zeros, 0x0DA24260u);
}

TEST(hashes) {
    const struct {
        const char *spec;
        uint64_t payload, residual;
    } want[] = {
        {"none", 0xa08b165a64635272ull, 0xc09d0e53248146d5ull},
        {"fp16", 0xe0daf163d9d9051eull, 0x794ae23b4a7e6b77ull},
        {"bf16", 0x27e76d57bdeb7d6eull, 0xf7b60ab5d4a4d0f3ull},
        {"efsignsgd", 0x85665ac7774624cdull, 0x5a86d055ad0d9d0bull},
        {"twobit:threshold=0.5", 0xe624d1801c0b9cfcull, 0xf8bf9816f18dabe4ull},
        {"int8", 0xab3a35764ee5ee05ull, 0x3a8fab986cab1802ull},
        {"chunktopk", 0x0a94bc27c0689ce5ull, 0xe6dfaf6b672f9507ull},
        {"int4", 0x623a6133a6df4d94ull, 0x4751a7f334ddccecull},
    };
    enum { N = 10007 };
    for (size_t i = 0; i < CF_COUNT(want); i++) {
        cf_codec c;
        assert_true(cf_open(want[i].spec, &cf_plain, &c));
        cf_part p = cf_part_make(&c, N, 1);
        cf_seed = 3;
        for (p.step = 0; p.step < 3; p.step++) {
            cf_fill(p.g, N, CF_RANDOM);
            assert_int_equal(cf_compress(&p), ESP_OK);
        }
        memmove(p.payload.data + 32, p.payload.data, 32);
        const uint64_t payload = cf_hash(p.payload.data + 32, p.used - 32), residual = cf_hash(p.e, N * 4);
        if (payload != want[i].payload || residual != want[i].residual)
            fail_msg("%s: {\"%s\", 0x%016llxull, 0x%016llxull},", want[i].spec, want[i].spec,
                     (unsigned long long)payload, (unsigned long long)residual);
        cf_part_free(&p);
        cf_close(&c);
    }
}

TEST(philox) {
    const esp_philox_t a = esp_philox(0, 0, 0), b = esp_philox(~0ull, ~0ull, ~0ull);
    const esp_philox_t c = esp_philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull);
    const uint32_t wa[] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
    const uint32_t wb[] = {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu};
    const uint32_t wc[] = {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u};
    assert_memory_equal(a.w, wa, sizeof wa);
    assert_memory_equal(b.w, wb, sizeof wb);
    assert_memory_equal(c.w, wc, sizeof wc);
    const uint64_t key[] = {esp_rng_key(1, 2, 3, 4, 5), esp_rng_key(2, 2, 3, 4, 5), esp_rng_key(1, 3, 3, 4, 5),
                            esp_rng_key(1, 2, 4, 4, 5), esp_rng_key(1, 2, 3, 5, 5), esp_rng_key(1, 2, 3, 4, 6)};
    for (size_t i = 0; i < CF_COUNT(key); i++)
        for (size_t j = 0; j < i; j++) assert_true(key[i] != key[j]);
    for (uint64_t i = 16; i < 24; i++)
        assert_int_equal(esp_rng_u16(9, i), esp_philox(9, 2, 0).w[(i - 16) / 2] >> (i % 2 ? 16 : 0) & 0xFFFFu);
}

/* With unbiased=1 the mean of randomk's decoded values over many steps is the input, within 6 standard deviations. */
TEST(unbiased) {
    enum { N = 500, DRAWS = 2000 };
    cf_codec c;
    if (!cf_open("randomk:ratio=0.1,unbiased=1", &cf_plain, &c)) return;
    cf_part p = cf_part_make(&c, N, 0);
    double sum[N] = {0};
    cf_fill(p.g, N, CF_RANDOM);
    for (p.step = 0; p.step < DRAWS; p.step++) {
        assert_int_equal(cf_compress(&p), ESP_OK);
        assert_int_equal(cf_decompress(&p), ESP_OK);
        for (int i = 0; i < N; i++) sum[i] += (double)p.o[i];
    }
    for (int i = 0; i < N; i++) {
        /* A draw gives 10 g with probability 0.1, otherwise 0, so its variance is 9 g^2. */
        const double g = (double)p.g[i], sigma = 3 * fabs(g) / sqrt((double)DRAWS);
        if (!(fabs(sum[i] / DRAWS - g) <= 6 * sigma)) fail_msg("element %d: mean %g, not %g", i, sum[i] / DRAWS, g);
    }
    cf_part_free(&p);
    cf_close(&c);
}

TEST(bodies_of_nan) {
    static const char *const specs[] = {"none", "fp16", "bf16", "randomk:ratio=0.3", "fp16:of=(none)"};
    for (size_t s = 0; s < CF_COUNT(specs); s++)
        for (int kind = CF_NAN; kind <= CF_INF; kind++) {
            cf_codec c;
            uint64_t nans = 0;
            assert_true(cf_open(specs[s], &cf_plain, &c));
            cf_part p = cf_part_make(&c, 1000, 0);
            cf_fill(p.g, p.count, kind);
            assert_int_equal(cf_compress(&p), ESP_OK);
            esp_payload_header h = cf_header(&p);
            assert_int_equal(h.flags, ESP_PAYLOAD_NONFINITE);
            h.flags = 0;
            memcpy(p.payload.data, &h, sizeof h);
            assert_int_equal(cf_decompress(&p), ESP_OK);
            for (uint64_t i = 0; i < p.count; i++) nans += isnan(p.o[i]) != 0;
            assert_true(nans * 4 >= h.body_bytes || nans == p.count);
            cf_part_free(&p);
            cf_close(&c);
        }
}
