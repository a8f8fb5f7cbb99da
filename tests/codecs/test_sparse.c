/* test_sparse.c checks topk and the payload format that it shares with dgc: which elements are sent, the residual, and
 * corrupt bytes. */
#include "tests/lib/test.h"
#define ESPRESSO_STATIC_PLUGINS
#include "codecs/common/sparse.h"
#include "one_codec.h"

static const uint64_t sizes[] = {1, 7, 31, 32, 33, 4095, 4096, 4097, 65535, 65536, 65537, 200003};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const char *const ratios[] = {"ratio=0.001", "ratio=0.01", "ratio=0.0625", "ratio=0.3", "ratio=1"};
enum { RATIOS = sizeof ratios / sizeof *ratios };

static float *random_array(uint64_t n) {
    float *x = malloc((n + 1) * 4);
    for (uint64_t i = 0; i < n; i++) x[i] = codec_uniform() * codec_uniform() * codec_uniform();
    return x;
}
/* Returns a copy of exactly this size, so that a sanitizer detects reads beyond it. */
static esp_payload exact(const void *data, uint64_t bytes) {
    esp_payload p = {{malloc(bytes), bytes, {ESP_CPU, 0}}, NULL};
    memcpy(p.data.ptr, data, bytes);
    return p;
}

/* Decoded elements plus the residual equal the input to the bit, and sent elements are at least as large as others. */
TEST(sent_and_kept) {
    for (int z = 0; z < SIZES; z++)
        for (int q = 0; q < RATIOS; q++)
            for (int unit = 0; unit < 2; unit++) {
                uint64_t n = sizes[z], sent = 0;
                opened_codec r = codec_open(codec_named("topk"), ratios[q], n, NULL, q & 1);
                float *g = random_array(n), *phi = malloc(n * 4), *out = malloc(n * 4), least = INFINITY, most = 0;
                r.args.beta = unit ? 1.0f : 0.75f;
                r.args.gamma = unit ? 1.0f : 0.5f;
                for (uint64_t i = 0; i < n; i++) {
                    r.residual[i] = codec_uniform();
                    volatile float a = r.args.beta * r.residual[i], b = r.args.gamma * g[i];
                    phi[i] = a + b;
                }
                assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
                assert_int_equal(r.used, ESP_PAYLOAD_HEADER + codec_header(&r).body_bytes);
                assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
                for (uint64_t i = 0; i < n; i++) {
                    assert_true(out[i] + r.residual[i] == phi[i]);
                    assert_true(out[i] == 0.0f || r.residual[i] == 0.0f);
                    sent += out[i] != 0.0f;
                    if (out[i] != 0.0f && fabsf(out[i]) < least) least = fabsf(out[i]);
                    if (fabsf(r.residual[i]) > most) most = fabsf(r.residual[i]);
                }
                assert_int_equal(sent, (uint64_t)fmax(1, ceil(atof(ratios[q] + 6) * (double)n)));
                assert_true(least >= most);
                free(g), free(phi), free(out), codec_close(&r);
            }
}

TEST(same_bytes_everywhere) {
    const char *const levels[] = {"scalar", "avx2", "avx512"};
    const esp_codec *const codecs[] = {codec_named("topk"), codec_named("dgc")};
    for (int c = 0; c < 2; c++)
        for (int z = 0; z < SIZES; z++)
            for (int q = 0; q < RATIOS; q++) {
                uint64_t n = sizes[z];
                float *g = random_array(n);
                opened_codec first = {0};
                for (int v = 0; v < 6; v++) {
                    opened_codec r = codec_open(codecs[c], ratios[q], n, levels[v % 3], v / 3);
                    r.args.flags = ESP_ARG_OWN_MEMORY;
                    for (int step = 0; step < 3; step++) assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
                    if (v) {
                        assert_int_equal(r.used, first.used);
                        assert_memory_equal(r.payload.data.ptr, first.payload.data.ptr, r.used);
                        assert_memory_equal(r.residual, first.residual, n * 4);
                        assert_memory_equal(r.state.ptr, first.state.ptr, r.state.bytes);
                        codec_close(&r);
                    } else {
                        first = r;
                    }
                }
                codec_close(&first);
                free(g);
            }
}

TEST(forms_and_sizes) {
    uint64_t before = 0;
    assert_false(sparse_is_map(1600, 100));
    assert_true(sparse_is_map(1600, 101));
    assert_int_equal(sparse_body_bytes(0, 0), 0);
    assert_int_equal(sparse_body_bytes(100, 1), 4 + 4 + 2);
    assert_int_equal(sparse_body_bytes(65537, 656), 4 * 656 + 8 + 2 * 656);
    assert_int_equal(sparse_body_bytes(65536, 32768), 4 * 32768 + 4 + 8192);
    for (int q = 0; q < RATIOS; q++, before = 0)
        for (uint64_t n = 0; n < 70000; n += 1 + n / 50) {
            uint64_t b = sparse_body_bytes(n, sparse_k(atof(ratios[q] + 6), n));
            assert_true(b >= before);
            before = b;
        }
    opened_codec r = codec_open(codec_named("topk"), "", 0, NULL, 0);
    float none[1];
    assert_int_equal(codec_compress(&r, none, 1), ESP_OK);
    assert_int_equal(r.used, ESP_PAYLOAD_HEADER);
    assert_int_equal(codec_decompress(&r, NULL, 1, none, ESP_OUT_SET), ESP_OK);
    codec_close(&r);
}

TEST(golden) {
    const float g[20] = {0, -3, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
    const uint8_t places[] = {0, 0, 0x40, 0xc0, 1, 0, 0, 0, 1, 0};
    const uint8_t map[] = {0, 0, 0x40, 0xc0, 0, 0, 0, 0x40, 0, 0, 0, 0x40, 3, 0, 0, 0, 0x12, 0, 0x08, 0};
    opened_codec r = codec_open(codec_named("topk"), "ratio=0.05", 20, NULL, 0);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    assert_int_equal(codec_header(&r).codec, esp_name_hash("topk"));
    assert_int_equal(codec_header(&r).aux, 1);
    assert_int_equal(r.used, ESP_PAYLOAD_HEADER + sizeof places);
    assert_memory_equal((char *)r.payload.data.ptr + ESP_PAYLOAD_HEADER, places, sizeof places);
    codec_close(&r);
    r = codec_open(codec_named("topk"), "ratio=0.15", 20, NULL, 0);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    assert_int_equal(r.used, ESP_PAYLOAD_HEADER + sizeof map);
    assert_memory_equal((char *)r.payload.data.ptr + ESP_PAYLOAD_HEADER, map, sizeof map);
    codec_close(&r);
}

/* 40 payloads in one call, some of them empty, give the same result as one call for each. All are multiplied by the
 * scale, and a NaN in one makes all elements NaN. */
TEST(many_payloads) {
    enum { MANY = 40 };
    for (int q = 1; q < 4; q += 2)
        for (uint64_t n = 65000; n < 200000; n += 66000) {
            esp_payload p[MANY];
            float *one = random_array(n), *all = malloc(n * 4);
            memcpy(all, one, n * 4);
            opened_codec r = codec_open(codec_named("topk"), ratios[q], n, NULL, 1);
            for (int i = 0; i < MANY; i++) {
                float *g = random_array(n);
                assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
                p[i] = exact(r.payload.data.ptr, r.used);
                if (i % 9 == 4) {
                    esp_payload_header h = codec_header(&r);
                    h.flags = ESP_PAYLOAD_EMPTY;
                    h.body_bytes = h.aux = 0;
                    memcpy(p[i].data.ptr, &h, sizeof h);
                    p[i].data.bytes = sizeof h;
                }
                free(g);
            }
            r.args.scale = 0.25f;
            for (int i = 0; i < MANY; i++) assert_int_equal(codec_decompress(&r, &p[i], 1, one, ESP_OUT_SUM), ESP_OK);
            assert_int_equal(codec_decompress(&r, p, MANY, all, ESP_OUT_SUM), ESP_OK);
            assert_memory_equal(one, all, n * 4);
            memset(one, 0, n * 4);
            for (int i = 0; i < MANY; i++) assert_int_equal(codec_decompress(&r, &p[i], 1, one, ESP_OUT_SUM), ESP_OK);
            assert_int_equal(codec_decompress(&r, p, MANY, all, ESP_OUT_SET), ESP_OK);
            assert_memory_equal(one, all, n * 4);
            ((uint8_t *)p[4].data.ptr)[6] = ESP_PAYLOAD_NONFINITE;
            assert_int_equal(codec_decompress(&r, p, MANY, all, ESP_OUT_SUM), ESP_OK);
            for (uint64_t i = 0; i < n; i++) assert_true(isnan(all[i]));
            for (int i = 0; i < MANY; i++) free(p[i].data.ptr);
            free(one), free(all), codec_close(&r);
        }
}

/* A gradient with NaN or Inf is sent as a flag, and the residual does not change. */
TEST(not_finite) {
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f};
    const esp_codec *const codecs[] = {codec_named("topk"), codec_named("dgc")};
    for (int c = 0; c < 2; c++)
        for (int j = 0; j < 5; j++)
            for (int z = 0; z < SIZES; z++) {
                uint64_t n = sizes[z];
                opened_codec r = codec_open(codecs[c], "ratio=0.01", n, NULL, 1);
                float *g = random_array(n), *e = malloc(n * 4), *u = malloc(n * 4);
                r.args.flags = ESP_ARG_OWN_MEMORY;
                g[n / 2] = 1e38f;
                assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
                r.residual[n / 2] = 3e38f; /* the sum is Inf */
                memcpy(e, r.residual, n * 4), memcpy(u, r.state.ptr, r.state.bytes);
                g[n / 2] = bad[j];
                assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
                assert_int_equal(codec_header(&r).flags, ESP_PAYLOAD_NONFINITE);
                assert_int_equal(r.used, ESP_PAYLOAD_HEADER);
                assert_memory_equal(e, r.residual, n * 4), assert_memory_equal(u, r.state.ptr, r.state.bytes);
                assert_int_equal(codec_decompress(&r, NULL, 1, g, ESP_OUT_SET), ESP_OK);
                for (uint64_t i = 0; i < n; i++) assert_true(isnan(g[i]));
                free(g), free(e), free(u), codec_close(&r);
            }
}

/* Checks that an invalid payload is refused, and that nothing is written. */
static void expect_corrupt(opened_codec *r, uint64_t at, const void *with, uint64_t bytes) {
    esp_payload p = exact(r->payload.data.ptr, r->used);
    float *out = malloc(r->count * 4), *was = malloc(r->count * 4);
    memcpy((uint8_t *)p.data.ptr + at, with, bytes);
    memset(out, 0x5a, r->count * 4), memset(was, 0x5a, r->count * 4);
    codec_message[0] = 0;
    assert_int_equal(codec_decompress(r, &p, 1, out, ESP_OUT_SET), ESP_E_CORRUPT);
    assert_non_null(strstr(codec_message, "corrupt"));
    assert_memory_equal(out, was, r->count * 4);
    free(out), free(was), free(p.data.ptr);
}
TEST(corrupt_fields) {
    const uint64_t n = 70001, huge = ~0ull;
    float *g = random_array(n);
    opened_codec r = codec_open(codec_named("topk"), "ratio=0.01", n, NULL, 1);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    esp_payload_header h = codec_header(&r);
    const uint64_t k = h.aux, held = ESP_PAYLOAD_HEADER + 4 * k, place = held + 8;
    uint32_t inf = 0x7f800000u, zero32 = 0, two[2];
    uint16_t zero = 0, high = 65535;
    memcpy(two, (uint8_t *)r.payload.data.ptr + held, 8);
    for (uint64_t at = 0; at < offsetof(esp_payload_header, reserved); at += 8) expect_corrupt(&r, at, &huge, 8);
    for (uint64_t d = 0; d < 3; d++)
        for (uint64_t *f = (uint64_t[]){h.aux - 1 + d, h.body_bytes - 1 + d, h.count - 1 + d}, i = 0; i < 3 && d != 1;
             i++)
            expect_corrupt(&r, i == 0 ? 24 : i == 1 ? 16 : 8, &f[i], 8);
    expect_corrupt(&r, ESP_PAYLOAD_HEADER + 4 * (k - 1), &inf, 4);
    expect_corrupt(&r, place + 2, (uint8_t *)r.payload.data.ptr + place, 2); /* the same index twice */
    expect_corrupt(&r, place + 2 * 5, &zero, 2);                             /* indices do not ascend */
    expect_corrupt(&r, place + 2 * (k - 1), &high, 2);                       /* an index beyond the last element */
    expect_corrupt(&r, held, &zero32, 4);                                    /* fewer indices than values */
    uint32_t fewer = two[1] - 1, more = (uint32_t)k + 1;
    expect_corrupt(&r, held + 4, &fewer, 4);
    expect_corrupt(&r, held, &more, 4);
    two[0]++, two[1]--;
    expect_corrupt(&r, held + 4, &inf, 4);
    expect_corrupt(&r, held, two, 8);
    codec_close(&r);
    r = codec_open(codec_named("topk"), "ratio=0.3", n, NULL, 1);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    uint64_t map = ESP_PAYLOAD_HEADER + 4 * codec_header(&r).aux + 8;
    uint8_t full = 0xff, none = 0;
    uint32_t word = 0x80000000u;
    expect_corrupt(&r, map + 100, &full, 1);
    expect_corrupt(&r, map + 100, &none, 1);
    memcpy(&word, (uint8_t *)r.payload.data.ptr + r.used - 4, 4);
    word = (word & (word - 1)) | 0x80000000u; /* as many marked elements, but one beyond the last */
    expect_corrupt(&r, r.used - 4, &word, 4);
    codec_close(&r);
    free(g);
}
TEST(corrupt_bytes) {
    for (int q = 1; q < 4; q++)
        for (int z = 0; z < 9; z++) {
            uint64_t n = sizes[z];
            float *g = random_array(n), *out = malloc(n * 4);
            opened_codec r = codec_open(codec_named("topk"), ratios[q], n, NULL, 1);
            assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
            for (int t = 0; t < 200; t++) {
                esp_payload p = exact(r.payload.data.ptr, r.used);
                uint8_t *b = p.data.ptr;
                for (uint32_t i = codec_random() % 4; i < 4; i++)
                    b[codec_random() % r.used] ^= (uint8_t)(1u << codec_random() % 8);
                if (t % 3 == 0)
                    for (uint64_t i = ESP_PAYLOAD_HEADER; i < r.used; i++) b[i] = (uint8_t)codec_random();
                if (t % 5 == 0) p.data.bytes = codec_random() % r.used;
                esp_status st = codec_decompress(&r, &p, 1, out, ESP_OUT_SET);
                assert_true(st == ESP_OK || st == ESP_E_CORRUPT);
                assert_true(st == ESP_E_CORRUPT || p.data.bytes == r.used || n == 0);
                free(b);
            }
            free(g), free(out), codec_close(&r);
        }
}

TEST(short_capacity) {
    const esp_codec *const codecs[] = {codec_named("topk"), codec_named("dgc")};
    for (int c = 0; c < 2; c++) {
        float *g = random_array(5000);
        opened_codec r = codec_open(codecs[c], "", 5000, NULL, 0);
        assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
        assert_true(r.used <= r.payload.data.bytes);
        r.payload.data.bytes = r.used - 1;
        memset(r.payload.data.ptr, 0x77, r.used);
        memset(r.residual, 0x11, 5000 * 4);
        assert_int_equal(codec_compress(&r, g, 1), ESP_E_TOO_SMALL);
        for (uint64_t i = 0; i < r.used; i++) assert_int_equal(((uint8_t *)r.payload.data.ptr)[i], 0x77);
        for (uint64_t i = 0; i < 5000 * 4; i++) assert_int_equal(((uint8_t *)r.residual)[i], 0x11);
        free(g), codec_close(&r);
    }
}

TEST(bad_parameters) {
    const char *const bad[] = {"ratio=0", "ratio=1.5", "ratio=-1", "ratio=x", "ratio=nan", "rate=0.1", "ratio"};
    void *self;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        codec_message[0] = 0;
        assert_int_equal(codec_named("topk")->open(&codec_host, bad[i], &self), ESP_E_ARG);
        assert_non_null(strstr(codec_message, "ratio=0.01"));
        assert_int_equal(codec_named("dgc")->open(&codec_host, bad[i], &self), ESP_E_ARG);
    }
}
