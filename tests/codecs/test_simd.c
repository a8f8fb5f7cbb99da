/* test_simd.c checks that every instruction set gives the same bytes, for every codec and odd sizes, and that the
 * conversions and sums of half.h, norm.h and bits.h agree with plain references. */
/* runs: slow asan-long */
#define CONFORMANCE_OWN_CODECS
#include "tests/lib/test.h"
#include "conformance.h"
#include "codecs/common/bits.h"
#include "codecs/common/norm.h"
#include "codecs/common/simd.h"

static const char *const levels[] = {"scalar", "avx2", "avx512"};

/* Hashes payload, residual and decoded values of two steps. beta and gamma are such that a fused multiply-add would
 * change the bits. */
static uint64_t run(const char *spec, uint64_t n, int kind, int feedback) {
    cf_codec c;
    if (!cf_open(spec, &cf_plain, &c)) return 0;
    cf_part p = cf_part_make(&c, n, feedback);
    uint64_t hash = 0;
    p.beta = 0.9f;
    p.gamma = 0.7f;
    cf_seed = 11;
    for (p.step = 0; p.step < 2; p.step++) {
        cf_fill(p.g, n, kind);
        assert_int_equal(cf_compress(&p), ESP_OK);
        assert_int_equal(cf_decompress(&p), ESP_OK);
        hash = hash * 31 + cf_hash(p.payload.data, p.used);
        hash = hash * 31 + cf_hash(p.o, n * 4);
        hash = hash * 31 + cf_hash(p.e, n * 4);
        esp_payload twice[2] = {{{p.payload.data, p.used, {0, 0}}, NULL}, {{p.payload.data, p.used, {0, 0}}, NULL}};
        assert_int_equal(cf_decompress_all(&p, twice, 2, ESP_OUT_SUM, 0.5f), ESP_OK);
        hash = hash * 31 + cf_hash(p.o, n * 4);
    }
    cf_part_free(&p);
    cf_close(&c);
    return hash;
}

TEST(same_bytes) {
    const uint64_t sizes[] = {1, 15, 16, 17, 31, 33, 63, 64, 4095, 4097, 100003};
    if (esp_simd_best() == ESP_SIMD_SCALAR) print_message("this machine has neither AVX2 nor AVX-512\n");
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++)
        for (size_t z = 0; z < CF_COUNT(sizes); z++)
            for (int kind = 0; kind < (sizes[z] < 10000 || getenv("TEST_ALL") ? CF_NAN : CF_ZERO); kind++)
                for (int feedback = 0; feedback < 2; feedback++) {
                    uint64_t hash[CF_COUNT(levels)];
                    for (size_t l = 0; l < CF_COUNT(levels); l++) {
                        assert_int_equal(setenv("ESPRESSO_SIMD", levels[l], 1), 0);
                        hash[l] = run(cf_specs[s], sizes[z], kind, feedback);
                        if (hash[l] != hash[0])
                            fail_msg("%s, %llu elements, %s: %s differs from scalar", cf_specs[s],
                                     (unsigned long long)sizes[z], cf_kind_name[kind], levels[l]);
                    }
                }
    unsetenv("ESPRESSO_SIMD");
}

TEST(level_by_environment) {
    const int best = esp_simd_best();
    for (int l = 0; l < 3; l++) {
        assert_int_equal(setenv("ESPRESSO_SIMD", levels[l], 1), 0);
        assert_int_equal(esp_simd_level(), l < best ? l : best);
    }
    unsetenv("ESPRESSO_SIMD");
    assert_int_equal(esp_simd_level(), best);
}

/* ---- half.h ---------------------------------------------------------------------------------------------------- */
static double f16_value(uint32_t h) {
    const int e = (int)(h >> 10 & 31u);
    const double m = (double)(h & 1023u), v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000u ? -v : v;
}

/* Every f16 decodes to its value. Every f16, the midpoint to the next one, and their neighbours encode to the nearest
 * f16, ties to even. */
TEST(every_f16) {
    enum { PER = 5, N = 0x7C00 * PER };
    static float in[N], out[N];
    static half_u16 expect[N], got[N];
    uint64_t n = 0;
    for (uint32_t h = 0; h < 0x7C00u; h++) {
        const float v = (float)f16_value(h), mid = (float)((f16_value(h) + f16_value(h + 1)) / 2);
        const float x[PER] = {v, nextafterf(v, INFINITY), nextafterf(mid, 0), mid, nextafterf(mid, INFINITY)};
        const uint32_t want[PER] = {h, h, h, h % 2 ? h + 1 : h, h + 1};
        for (int i = 0; i < PER; i++, n++) {
            in[n] = h % 3 ? x[i] : -x[i];
            expect[n] = (uint16_t)(want[i] | (h % 3 ? 0 : 0x8000u));
        }
    }
    for (int l = 0; l <= esp_simd_best(); l++) {
        memset(got, 0, sizeof got);
        half_f16_encode_for(l)(got, in, NULL, 1, HALF_F16_MAX, n);
        assert_memory_equal(got, expect, n * sizeof *got);
        half_f16_add_for(l)(out, got, 1, 1, n);
        for (uint64_t i = 0; i < n; i++)
            if ((got[i] & 0x7FFFu) < 0x7C00u) assert_true((double)out[i] == f16_value(got[i]));
    }
    /* All instruction sets must decode every bit pattern alike, also those of Inf and NaN. */
    static half_u16 all[65536];
    static float a[65536], b[65536];
    for (uint32_t h = 0; h < 65536; h++) all[h] = (uint16_t)h;
    half_f16_add_for(ESP_SIMD_SCALAR)(a, all, 1, 1, 65536);
    assert_true(isinf(a[0x7C00]) && a[0xFC00] < 0 && isnan(a[0x7C01]) && isnan(a[0x7E00]));
    for (int l = 1; l <= esp_simd_best(); l++) {
        half_f16_add_for(l)(b, all, 1, 1, 65536);
        assert_memory_equal(a, b, sizeof a);
    }
}

/* Every NaN becomes the same NaN, also the product of Inf and a scale of 0, both in vectors and in the elements left
 * over. */
TEST(nan_to_half) {
    static const uint32_t nans[] = {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFC12345u, 0xFFFFFFFFu};
    float in[41];
    half_u16 f16[41], bf16[41];
    for (int l = 0; l <= esp_simd_best(); l++)
        for (uint64_t n = 1; n <= CF_COUNT(in); n++)
            for (size_t k = 0; k <= CF_COUNT(nans); k++) {
                const float scale = k < CF_COUNT(nans) ? 1.0f : 0.0f;
                for (uint64_t i = 0; i < n; i++) in[i] = i % 2 ? 1.0f : scale == 0 ? INFINITY : bits_float(nans[k]);
                half_f16_encode_for(l)(f16, in, NULL, scale, HALF_F16_MAX, n);
                half_bf16_encode_for(l)(bf16, in, NULL, 1, 1, n);
                for (uint64_t i = 0; i < n; i++) {
                    assert_int_equal(f16[i], i % 2 ? (scale == 0 ? 0 : 0x3C00) : 0x7E00);
                    if (scale != 0) assert_int_equal(bf16[i], i % 2 ? 0x3F80 : 0x7FC0);
                }
            }
}

TEST(bf16_rounding) {
    const uint32_t in[] = {0x3F800000u, 0x3F808000u, 0x3F818000u, 0x3F808001u, 0xBF807FFFu,
                           0x00000001u, 0x00008001u, 0x80000000u, 0x7F7FFFFFu, 0x7F7F7FFFu};
    const uint32_t want[] = {0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xBF80, 0x0000, 0x0001, 0x8000, 0x7F80, 0x7F7F};
    for (size_t i = 0; i < CF_COUNT(in); i++) assert_int_equal(half_to_bf16(bits_float(in[i])), want[i]);
}

/* ---- norm.h: sums must be added in a fixed order ---- */
TEST(norm_reference) {
    static float x[NORM_BLOCK];
    for (uint64_t n = 0; n <= NORM_BLOCK; n += n < 70 ? 1 : 997) {
        /* `volatile` forces the compiler to round the sum to a float after each addition. */
        volatile float part[16] = {0};
        cf_fill(x, n, CF_WIDE);
        for (uint64_t i = 0; i < n; i++) part[i % 16] = part[i % 16] + fabsf(x[i]);
        for (int width = 8; width; width /= 2)
            for (int j = 0; j < width; j++) part[j] = part[j] + part[j + width];
        const float want = part[0];
        for (int l = 0; l <= esp_simd_best(); l++) {
            float sum[NORM_LANES] = {0};
            const uint64_t half = n / 32 * 16;
            norm_l1_for(l)(sum, x, half);
            norm_l1_for(l)(sum, x + half, n - half);
            assert_int_equal(float_bits(norm_tree(sum)), float_bits(want));
        }
    }
}

/* ---- bits.h packs signs into bits. -0 and NaN must not count as negative. --------------------------------------- */
TEST(sign_bits) {
    float x[70];
    unsigned char out[12];
    for (int i = 0; i < 70; i++) x[i] = i % 5 == 0 ? -1.0f : i % 5 == 1 ? -0.0f : i % 5 == 2 ? -1e-44f : 0.5f;
    x[3] = -NAN;
    for (int l = 0; l <= esp_simd_best(); l++) {
        memset(out, 0xFF, sizeof out);
        bits_negative_for(l)(out, x, 70);
        for (int i = 0; i < 96; i++) assert_int_equal(out[i / 8] >> (i % 8) & 1, i < 70 && (i % 5 == 0 || i % 5 == 2));
    }
}
