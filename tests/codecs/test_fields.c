/* test_fields.c changes fields of payloads, codec by codec, so that decoding must fail. `espresso plugins --check`
 * checks what every codec must refuse. */
#include "tests/lib/test.h"
#include "conformance.h"

enum { N = 1000, ROUNDS = 3000 };

/* Decodes `bytes` of `data` from memory that ends at an inaccessible page, and returns the status. */
static esp_status try_decode(cf_part *p, const unsigned char *data, uint64_t bytes) {
    cf_fenced g = cf_fenced_make(bytes, 1);
    memcpy(g.data, data, bytes);
    for (uint64_t i = 0; i < p->count; i++) p->o[i] = 77.0f;
    esp_payload in = {{g.data, bytes, {0, 0}}, NULL};
    const esp_status st = cf_decompress_all(p, &in, 1, ESP_OUT_SET, 0);
    cf_fenced_free(&g);
    if (st == ESP_OK) return st;
    if (st != ESP_E_CORRUPT) fail_msg("%s: status %d for a damaged payload", p->codec->spec, (int)st);
    for (uint64_t i = 0; i < p->count; i++)
        if (p->o[i] != 77.0f)
            fail_msg("%s: wrote element %llu of a corrupt payload", p->codec->spec, (unsigned long long)i);
    return st;
}

static void must_fail(cf_part *p, const unsigned char *data, uint64_t bytes, const char *what) {
    if (try_decode(p, data, bytes) != ESP_E_CORRUPT) fail_msg("%s: %s was accepted", p->codec->spec, what);
}

TEST(bad_fields) {
    cf_codec c;
    assert_true(cf_open("twobit", &cf_plain, &c));
    cf_part p = cf_part_make(&c, 17, 0);
    assert_int_equal(cf_compress(&p), ESP_OK);
    unsigned char *d = p.payload.data;
    assert_int_equal(p.used, ESP_PAYLOAD_HEADER + 8);
    d[ESP_PAYLOAD_HEADER] = 0x40;
    must_fail(&p, d, p.used, "code 01");
    d[ESP_PAYLOAD_HEADER] = 0xC0;
    assert_int_equal(try_decode(&p, d, p.used), ESP_OK);
    d[ESP_PAYLOAD_HEADER + 4] = 0x30;
    must_fail(&p, d, p.used, "a code behind the last element");
    d[ESP_PAYLOAD_HEADER + 4] = 0;
    const uint64_t thresholds[] = {0, 0x80000000u, 0xBF000000u, 0x7F800000u, 0x7FC00000u, 0x100000000ull};
    for (size_t i = 0; i < CF_COUNT(thresholds); i++) {
        memcpy(d + offsetof(esp_payload_header, aux), &thresholds[i], 8);
        must_fail(&p, d, p.used, "a threshold that is not finite and > 0");
    }
    cf_part_free(&p);
    cf_close(&c);

    assert_true(cf_open("efsignsgd", &cf_plain, &c));
    p = cf_part_make(&c, 33, 0);
    assert_int_equal(cf_compress(&p), ESP_OK);
    d = p.payload.data;
    assert_int_equal(p.used, ESP_PAYLOAD_HEADER + 4 + 8);
    const uint32_t scales[] = {0x7F800000u, 0x7FC00000u, 0xBF000000u, 0x80000000u};
    for (size_t i = 0; i < CF_COUNT(scales); i++) {
        memcpy(d + ESP_PAYLOAD_HEADER, &scales[i], 4);
        must_fail(&p, d, p.used, "a scale that is not finite and >= 0");
    }
    memset(d + ESP_PAYLOAD_HEADER, 0, 4);
    d[ESP_PAYLOAD_HEADER + 4 + 4] = 2;
    must_fail(&p, d, p.used, "a sign behind the last element");
    cf_part_free(&p);
    cf_close(&c);

    assert_true(cf_open("fp16", &cf_plain, &c));
    p = cf_part_make(&c, 3, 0);
    assert_int_equal(cf_compress(&p), ESP_OK);
    p.payload.data[offsetof(esp_payload_header, aux)] = 32;
    must_fail(&p, p.payload.data, p.used, "an exponent beyond 31");
    cf_part_free(&p);
    cf_close(&c);
}

/* Decoding fails if a payload is marked both as empty and as having NaN, since either excludes the other. */
TEST(both_flags) {
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        assert_true(cf_open(cf_specs[s], &cf_plain, &c));
        cf_part p = cf_part_make(&c, N, 0);
        cf_fill(p.g, N, CF_RANDOM);
        assert_int_equal(cf_compress(&p), ESP_OK);
        esp_payload_header h = cf_header(&p);
        h.flags = ESP_PAYLOAD_NONFINITE | ESP_PAYLOAD_EMPTY;
        memcpy(p.payload.data, &h, sizeof h);
        must_fail(&p, p.payload.data, p.used, "empty and non-finite at once");
        cf_part_free(&p);
        cf_close(&c);
    }
}

/* These codecs send one or two bits for each element. Random bits decode to finite numbers. */
TEST(any_codes) {
    static const char *const specs[] = {"efsignsgd", "twobit:threshold=0.5"};
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        cf_codec c;
        assert_true(cf_open(specs[s], &cf_plain, &c));
        cf_part p = cf_part_make(&c, N, 0);
        cf_fill(p.g, N, CF_RANDOM);
        assert_int_equal(cf_compress(&p), ESP_OK);
        for (int r = 0; r < ROUNDS; r++) {
            for (uint64_t i = ESP_PAYLOAD_HEADER + (r % 2 ? 4 : 0); i < p.used; i++)
                p.payload.data[i] = (unsigned char)cf_random();
            if (try_decode(&p, p.payload.data, p.used) != ESP_OK) continue;
            for (uint64_t i = 0; i < N; i++) assert_true(isfinite(p.o[i]));
        }
        cf_part_free(&p);
        cf_close(&c);
    }
}
