/* test_corrupt.c: damaged payloads. Decoding says ESP_E_CORRUPT and writes nothing, or it decodes; it never reads or
 * writes out of bounds (every buffer ends at a page that faults; run it under the address sanitizer too). */
#include "conformance.h"

enum { N = 1000, ROUNDS = 3000 };

/* Decodes `bytes` of `data`, from memory that ends right there. Returns the status. */
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

/* Every header field, one by one, and every length. */
static void damaged_header(cf_part *p, const unsigned char *good, uint64_t used) {
    unsigned char *bad = malloc(used + 64);
    esp_payload_header h, x;
    memcpy(&h, good, sizeof h);
#define CF_DAMAGE(text, change)                                                                                        \
    do {                                                                                                               \
        memcpy(bad, good, used);                                                                                       \
        x = h;                                                                                                         \
        change;                                                                                                        \
        memcpy(bad, &x, sizeof x);                                                                                     \
        must_fail(p, bad, used, text);                                                                                 \
    } while (0)
    CF_DAMAGE("another codec", x.codec ^= 1);
    CF_DAMAGE("another wire version", x.wire_version++);
    CF_DAMAGE("a flag that does not exist", x.flags |= 4);
    CF_DAMAGE("empty and non-finite at once", x.flags = 3);
    CF_DAMAGE("one element more", x.count++);
    CF_DAMAGE("one element less", x.count--);
    CF_DAMAGE("a body longer than the buffer", x.body_bytes++);
    CF_DAMAGE("a huge body", x.body_bytes = ~(uint64_t)0);
    CF_DAMAGE("a body too short", x.body_bytes--);
    CF_DAMAGE("no body", x.body_bytes = 0);
#undef CF_DAMAGE
    for (uint64_t n = 0; n < used; n++) must_fail(p, good, n, "a truncated payload");
    free(bad);
}

static void check_values(cf_part *p) {
    /* codecs whose body is no numbers but codes decode to something bounded, whatever the codes */
    const char *name = p->codec->table->name;
    if (strcmp(name, "efsignsgd") != 0 && strcmp(name, "twobit") != 0) return;
    for (uint64_t i = 0; i < p->count; i++) assert_true(isfinite(p->o[i]) || isnan(p->o[0]));
}

static void damage_each_codec(void **unused) {
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_plain, &c)) continue;
        cf_part p = cf_part_make(&c, N, 0);
        cf_fill(p.g, N, CF_RANDOM);
        assert_int_equal(cf_compress(&p), ESP_OK);
        unsigned char *good = malloc(p.used), *bad = malloc(p.used);
        memcpy(good, p.payload.data, p.used);
        damaged_header(&p, good, p.used);
        for (int r = 0; r < ROUNDS; r++) { /* a few bits */
            memcpy(bad, good, p.used);
            for (uint32_t k = cf_random() % 4 + 1; k; k--) {
                /* every other time in the header, where it hurts most */
                const uint64_t at = r % 2 ? cf_random() % ESP_PAYLOAD_HEADER : cf_random() % p.used;
                bad[at] ^= (unsigned char)(1u << cf_random() % 8);
            }
            if (try_decode(&p, bad, p.used) == ESP_OK) check_values(&p);
        }
        for (int r = 0; r < ROUNDS; r++) { /* a random body behind a good header */
            memcpy(bad, good, p.used);
            const uint64_t from = ESP_PAYLOAD_HEADER + (r % 2 ? 0 : cf_random() % (p.used - ESP_PAYLOAD_HEADER));
            for (uint64_t i = from; i < p.used; i++) bad[i] = (unsigned char)cf_random();
            if (try_decode(&p, bad, p.used) == ESP_OK) check_values(&p);
        }
        for (int r = 0; r < 200; r++) { /* nothing but noise */
            for (uint64_t i = 0; i < p.used; i++) bad[i] = (unsigned char)cf_random();
            must_fail(&p, bad, p.used, "noise");
        }
        free(good);
        free(bad);
        cf_part_free(&p);
        cf_close(&c);
    }
}

/* One bad payload among good ones: nothing is written at all. */
static void one_bad_of_many(void **unused) {
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_plain, &c)) continue;
        cf_part p = cf_part_make(&c, N, 0);
        cf_fill(p.g, N, CF_RANDOM);
        assert_int_equal(cf_compress(&p), ESP_OK);
        const esp_payload good = {{p.payload.data, p.used, {0, 0}}, NULL};
        esp_payload all[3] = {good, good, good};
        all[2].data.bytes--;
        for (int i = 0; i < N; i++) p.o[i] = 77.0f;
        assert_int_equal(cf_decompress_all(&p, all, 3, ESP_OUT_SUM, 0), ESP_E_CORRUPT);
        for (int i = 0; i < N; i++) assert_true(p.o[i] == 77.0f);
        cf_part_free(&p);
        cf_close(&c);
    }
}

/* Fields of the dense codecs that a flipped bit may make senseless. */
static void bad_fields(void **unused) {
    (void)unused;
    cf_codec c;
    assert_true(cf_open("twobit", &cf_plain, &c));
    cf_part p = cf_part_make(&c, 17, 0);
    assert_int_equal(cf_compress(&p), ESP_OK);
    unsigned char *d = p.payload.data;
    assert_int_equal(p.used, ESP_PAYLOAD_HEADER + 8);
    d[ESP_PAYLOAD_HEADER] = 0x40; /* code 01 */
    must_fail(&p, d, p.used, "code 01");
    d[ESP_PAYLOAD_HEADER] = 0xC0;
    assert_int_equal(try_decode(&p, d, p.used), ESP_OK);
    d[ESP_PAYLOAD_HEADER + 4] = 0x30; /* element 17 of 17 */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_each_codec),
        cmocka_unit_test(one_bad_of_many),
        cmocka_unit_test(bad_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
