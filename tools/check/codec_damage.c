/* codec_damage.c: checks that a codec refuses damaged payloads, or decodes them without access outside its buffers. */
#include "tools/check/check.h"

static void check_mark(check_part *p) {
    for (uint64_t i = 0; i < p->count; i++) p->o[i] = 77.0f;
}
static void check_marked(const check_part *p, const char *what) {
    for (uint64_t i = 0; i < p->count; i++)
        if (!(p->o[i] == 77.0f))
            check_fail("%s: refused, but element %llu was written before: check all payloads first", what, (check_u)i);
}

/* Decodes a damaged payload. The codec must refuse it and write nothing. If `any` is true, it may also accept it. */
static void check_damaged(check_part *p, const uint8_t *data, uint64_t bytes, const char *what, bool any) {
    check_fenced f = check_fence(bytes, 1);
    memcpy(f.data, data, (size_t)bytes);
    check_mark(p);
    check_doing("decoding %s", what);
    const esp_status s = check_decode(p, f.data, bytes);
    if (s != ESP_E_CORRUPT && !(any && s == ESP_OK))
        check_fail("%s: status %d, expected ESP_E_CORRUPT: call esp_payload_read and check the body's size", what,
                   (int)s);
    if (s) check_marked(p, what);
    check_unfence(&f);
}

/* Changes each field of the header, and cuts the payload off at each length. The codec must refuse them all. */
static void check_headers(check_part *p) {
    const uint64_t used = check_used(p);
    uint8_t *bad = malloc((size_t)used);
    const esp_payload_header h = check_header(p);
    const struct {
        const char *what;
        esp_payload_header h;
    } headers[] = {
#define CHECK_HEADER(codec, wire, flags, count, body)                                                                  \
    esp_payload_header_of(codec, (uint16_t)(wire), flags, count, body, h.aux)
        {"a payload of another codec", CHECK_HEADER(h.codec ^ 1, h.wire_version, 0, h.count, h.body_bytes)},
        {"a payload of another wire version", CHECK_HEADER(h.codec, h.wire_version + 1, 0, h.count, h.body_bytes)},
        {"a payload of one element more", CHECK_HEADER(h.codec, h.wire_version, 0, h.count + 1, h.body_bytes)},
        {"a payload of one element less", CHECK_HEADER(h.codec, h.wire_version, 0, h.count - 1, h.body_bytes)},
        {"a payload with a body longer than its buffer",
         CHECK_HEADER(h.codec, h.wire_version, 0, h.count, h.body_bytes + 1)},
        {"a payload with a body of 2^64 - 1 bytes", CHECK_HEADER(h.codec, h.wire_version, 0, h.count, UINT64_MAX)},
        {"a payload with a body shorter than its count needs",
         CHECK_HEADER(h.codec, h.wire_version, 0, h.count, h.body_bytes - 1)},
        {"a payload without a body", CHECK_HEADER(h.codec, h.wire_version, 0, h.count, 0)},
        {"a payload with a flag that does not exist",
         CHECK_HEADER(h.codec, h.wire_version, 0x4000, h.count, h.body_bytes)},
#undef CHECK_HEADER
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        memcpy(bad, check_payload(p), (size_t)used);
        memcpy(bad, &headers[i].h, sizeof h);
        check_damaged(p, bad, used, headers[i].what, false);
    }
    for (uint64_t n = 0; n < used; n++) check_damaged(p, check_payload(p), n, "a payload that was cut off", false);
    for (int k = 0; k < 200; k++) {
        for (uint64_t i = 0; i < used; i++) bad[i] = (uint8_t)check_random();
        check_damaged(p, bad, used, "noise", false);
    }
    free(bad);
}

ESP__FN void check_corrupt_run(void *target) {
    enum { N = 1000, TIMES = 3000 };
    const esp__codec *c = target;
    check_part p = check_part_make(c, N, check_rows(c, N, 1), 1);
    p.feedback = 0;
    check_fill(p.g, N, IN_NORMAL);
    if (check_compress(&p) != ESP_OK) check_fail("compress failed");
    check_headers(&p);
    const uint64_t used = check_used(&p);
    uint8_t *bad = malloc((size_t)used);
    for (int k = 0; k < TIMES; k++) {
        char what[64];
        memcpy(bad, check_payload(&p), (size_t)used);
        for (uint32_t n = check_random() % 4 + 1; n; n--) {
            const uint64_t at = check_random() % (k % 2 ? ESP_PAYLOAD_HEADER : used);
            const uint32_t bit = check_random() % 8;
            bad[at] ^= (uint8_t)(1u << bit);
            snprintf(what, sizeof what, "a payload with bit %u of byte %llu flipped", bit, (check_u)at);
        }
        check_damaged(&p, bad, used, what, true);
    }
    for (int k = 0; k < TIMES && used > ESP_PAYLOAD_HEADER; k++) {
        memcpy(bad, check_payload(&p), (size_t)used);
        for (uint64_t i = ESP_PAYLOAD_HEADER + (k % 2 ? 0 : check_random() % (used - ESP_PAYLOAD_HEADER)); i < used;
             i++)
            bad[i] = (uint8_t)check_random();
        check_damaged(&p, bad, used, "a payload with random numbers for a body", true);
    }
    free(bad);
}

/* If one of several payloads is damaged, the codec must not write anything. */
ESP__FN void check_among_run(void *target) {
    enum { N = 1000 };
    const esp__codec *c = target;
    if (c->traits.n_rounds > 1 || esp__codec_round(c, 0).flags & ESP_ROUND_ALLREDUCE)
        check_skip("payloads of a codec of several rounds are reduced, not collected");
    if (c->traits.caps & ESP_CODEC_WRAPPER) check_skip("a wrapper may have added the payloads before the damaged one");
    check_part p = check_part_make(c, N, 0, 1);
    p.feedback = 0;
    check_fill(p.g, N, IN_NORMAL);
    if (check_compress(&p) != ESP_OK) check_fail("compress failed");
    esp_payload all[3];
    memset(all, 0, sizeof all);
    for (int m = 0; m < 3; m++) all[m].data.ptr = p.payload[0].data, all[m].data.bytes = p.used[0] - (m == 2);
    check_mark(&p);
    if (check_decompress(&p, all, 3, ESP_OUT_SUM, 0) != ESP_E_CORRUPT)
        check_fail("the last of three payloads was cut off, but the call does not return ESP_E_CORRUPT");
    check_marked(&p, "the last of three payloads was cut off");
}
