/* test_threads.c checks that codecs give the same bytes on two threads as on one, and that a gradient with NaN, Inf or
 * a sum that overflows leaves all residuals alone. It is for the thread sanitizer, which cannot follow the processes of
 * `espresso plugins --check`. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "conformance.h"

static uint64_t two_steps(const char *spec, const esp_host *host) {
    enum { N = 150007 };
    cf_codec c;
    uint64_t hash;
    assert_true(cf_open(spec, host, &c));
    cf_part p = cf_part_make(&c, N, 1);
    cf_seed = 5;
    for (p.step = 0; p.step < 2; p.step++) {
        cf_fill(p.g, N, CF_RANDOM);
        assert_int_equal(cf_compress(&p), ESP_OK);
    }
    assert_int_equal(cf_decompress(&p), ESP_OK);
    hash = cf_hash(p.payload.data, p.used) ^ cf_hash(p.e, N * 4) ^ cf_hash(p.o, N * 4);
    cf_part_free(&p);
    cf_close(&c);
    return hash;
}

TEST(two_threads) {
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++)
        if (two_steps(cf_specs[s], &cf_threads) != two_steps(cf_specs[s], &cf_plain))
            fail_msg("%s: other bytes on two threads", cf_specs[s]);
}

static void keeps_residual(const char *spec, const esp_host *host, float bad) {
    enum { N = 70001 };
    cf_codec c;
    assert_true(cf_open(spec, host, &c));
    cf_part p = cf_part_make(&c, N, 1);
    float *before = malloc(N * 4);
    cf_seed = 5;
    cf_fill(p.g, N, CF_RANDOM);
    cf_fill(p.e, N, CF_RANDOM);
    p.e[N - 2] = 3e38f;
    p.g[N - 2] = bad;
    memcpy(before, p.e, N * 4);
    assert_int_equal(cf_compress(&p), ESP_OK);
    if (!(cf_header(&p).flags & ESP_PAYLOAD_NONFINITE)) fail_msg("%s: %g is not reported", spec, (double)bad);
    if (memcmp(before, p.e, N * 4)) fail_msg("%s: %g changes the residual", spec, (double)bad);
    free(before);
    cf_part_free(&p);
    cf_close(&c);
}

TEST(bad_gradients) {
    const float bad[] = {NAN, -INFINITY, 3e38f};
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++)
        for (size_t i = 0; i < CF_COUNT(bad); i++) {
            keeps_residual(cf_specs[s], &cf_plain, bad[i]);
            keeps_residual(cf_specs[s], &cf_threads, bad[i]);
        }
}
