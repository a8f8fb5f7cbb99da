/* test_variable.c checks codecs whose payloads vary in size or have no codes of fixed width: their bodies, byte by
 * byte, against golden.py, which computes them in another way, and payloads with impossible contents. */
#include "tests/lib/test.h"
#include "conformance.h"

enum { GOLDEN_N = 300, GOLDEN_BODY = 2048 };
typedef struct golden {
    const char *spec;
    uint64_t aux, bytes;
    unsigned char body[GOLDEN_BODY];
} golden;
#include "golden/golden_bodies.inc"

TEST(golden_bodies_match) {
    for (size_t k = 0; k < CF_COUNT(golden_bodies); k++) {
        const golden *want = &golden_bodies[k];
        cf_codec c;
        assert_true(cf_open(want->spec, &cf_plain, &c));
        cf_part p = cf_part_make(&c, GOLDEN_N, 0);
        memcpy(p.g, golden_input, sizeof golden_input);
        assert_int_equal(cf_compress(&p), ESP_OK);
        const unsigned char *body = p.payload.data + ESP_PAYLOAD_HEADER;
        if (cf_header(&p).aux != want->aux || cf_header(&p).body_bytes != want->bytes)
            fail_msg("%s: aux %llu, %llu bytes", want->spec, (unsigned long long)cf_header(&p).aux,
                     (unsigned long long)cf_header(&p).body_bytes);
        for (uint64_t i = 0; i < want->bytes; i++)
            if (body[i] != want->body[i])
                fail_msg("%s: byte %u is %u, not %u", want->spec, (unsigned)i, body[i], want->body[i]);
        cf_part_free(&p);
        cf_close(&c);
    }
}

/* A tensor without elements above the threshold sends none, whatever their signs. */
TEST(threshold_of_small_negatives) {
    cf_codec c;
    assert_true(cf_open("threshold:value=0.25", &cf_plain, &c));
    cf_part p = cf_part_make(&c, 70000, 1);
    for (uint64_t i = 0; i < p.count; i++) p.g[i] = i == 69999 ? -0.5f : -0.25f, p.e[i] = 0;
    assert_int_equal(cf_compress(&p), ESP_OK);
    assert_int_equal(cf_header(&p).aux, 1);
    assert_true(p.e[0] == -0.25f && p.e[69999] == 0);
    cf_part_free(&p);
    cf_close(&c);
}

/* Levels 0 and -3 in Elias codes, first bit lowest: "1", then "001" "00" and a sign "1". Others are impossible. */
TEST(elias_codes) {
    static const struct {
        unsigned char body[6];
        uint64_t bytes;
        esp_status want;
    } cases[] = {
        {{0, 0, 0x80, 0x3F, 0x49}, 5, ESP_OK},
        {{0, 0, 0x80, 0x3F, 0xC9}, 5, ESP_E_CORRUPT},    /* padding that is not 0 */
        {{0, 0, 0x80, 0x3F, 0x59}, 5, ESP_E_CORRUPT},    /* level 4, but the highest is 3 */
        {{0, 0, 0x80, 0x3F, 0x49, 0}, 6, ESP_E_CORRUPT}, /* a byte too many */
        {{0, 0, 0x80, 0x3F, 0x00}, 5, ESP_E_CORRUPT},    /* a code that does not end */
        {{0, 0, 0x80, 0x3F}, 4, ESP_E_CORRUPT},
        {{0, 0, 0x80, 0x7F, 0x49}, 5, ESP_E_CORRUPT}, /* the unit is Inf */
    };
    cf_codec c;
    assert_true(cf_open("qsgd:bits=3,elias=1", &cf_plain, &c));
    for (size_t k = 0; k < CF_COUNT(cases); k++) {
        cf_part p = cf_part_make(&c, 2, 0);
        p.used = ESP_PAYLOAD_HEADER + cases[k].bytes;
        esp_payload_header h = esp_payload_header_of(esp_name_hash("qsgd"), 1, 0, 2, cases[k].bytes, 0);
        unsigned char data[ESP_PAYLOAD_HEADER + 6];
        memcpy(data, &h, sizeof h);
        memcpy(data + ESP_PAYLOAD_HEADER, cases[k].body, 6);
        esp_payload in = {{data, p.used, {0, 0}}, NULL};
        p.o[0] = p.o[1] = 9;
        assert_int_equal(cf_decompress_all(&p, &in, 1, ESP_OUT_SET, 0), cases[k].want);
        assert_true(cases[k].want ? p.o[0] == 9 && p.o[1] == 9 : p.o[0] == 0 && p.o[1] == -3);
        cf_part_free(&p);
    }
    cf_close(&c);
}
