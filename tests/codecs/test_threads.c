/* test_threads.c checks that codecs give the same bytes on two threads as on one. It is for the thread sanitizer, which
 * cannot follow the processes of `espresso plugins --check`. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "conformance.h"

static uint64_t two_steps(const char *spec, const esp_host *host) {
    enum { N = 300007 };
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
