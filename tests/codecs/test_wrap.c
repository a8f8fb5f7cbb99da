/* test_wrap.c checks codecs that wrap another codec: their bytes, computed by hand and against the wrapped codec's;
 * sums of payloads; and codecs that cannot be wrapped. */
#include "tests/lib/test.h"
#include "conformance.h"
#include <float.h>

static cf_codec opened(const char *spec) {
    cf_codec c;
    assert_true(cf_open(spec, &cf_plain, &c));
    return c;
}

/* topk keeps 3 of 5 numbers. Their positions are sent as a bitmap, because three indices would be longer. */
TEST(halved_topk) {
    cf_codec c = opened("fp16:of=(topk:ratio=0.6)");
    cf_part p = cf_part_make(&c, 5, 1);
    const float in[] = {1.0f, 0.25f, -70000.0f, 0.1f, -0.125f}, rest[] = {0, 0, -70000.0f + 65504.0f, 0.1f, -0.125f};
    const unsigned char body[] = {0x00, 0x3C, 0x00, 0x34, 0xFF, 0xFB,        /* f16: 1, 0.25, -65504 */
                                  3,    0,    0,    0,    0x07, 0,    0, 0}; /* bitmap of the positions 0, 1, 2 */
    memcpy(p.g, in, sizeof in);
    assert_int_equal(cf_compress(&p), ESP_OK);
    const esp_payload_header h = cf_header(&p);
    assert_int_equal(h.codec, esp_name_hash("fp16"));
    assert_int_equal(h.wire_version, 0x11);
    assert_int_equal(h.aux, 3);
    assert_int_equal(p.used, ESP_PAYLOAD_HEADER + sizeof body);
    assert_memory_equal(p.payload.data + ESP_PAYLOAD_HEADER, body, sizeof body);
    assert_memory_equal(p.e, rest, sizeof rest);
    cf_part_free(&p);
    cf_close(&c);
}

static void same_payload(cf_part *a, cf_part *b, uint64_t step) {
    a->step = b->step = step;
    cf_fill(a->g, a->count, CF_RANDOM);
    memcpy(b->g, a->g, a->count * 4);
    assert_int_equal(cf_compress(a), ESP_OK);
    assert_int_equal(cf_compress(b), ESP_OK);
    assert_int_equal(a->used, b->used);
    assert_memory_equal(a->payload.data, b->payload.data, a->used);
    assert_memory_equal(a->e, b->e, a->count * 4);
}

/* During the warmup the payload is the gradient, without a residual. Afterwards it is the wrapped codec's, byte by
 * byte. */
TEST(warm_up) {
    static const char *const inner[] = {"topk:ratio=0.1", "efsignsgd", "fp16:of=(randomk:ratio=0.1)", "dgc:ratio=0.05"};
    for (size_t i = 0; i < CF_COUNT(inner); i++) {
        char spec[128];
        (void)snprintf(spec, sizeof spec, "warmup:steps=3,of=(%s)", inner[i]);
        cf_codec c = opened(spec), x = opened(inner[i]);
        cf_part p = cf_part_make(&c, 5000, 1), q = cf_part_make(&x, 5000, 1);
        assert_false(cf_has(&c, ESP_CODEC_REDUCIBLE));
        for (p.step = 0; p.step < 3; p.step++) {
            cf_fill(p.g, p.count, CF_RANDOM);
            assert_int_equal(cf_compress(&p), ESP_OK);
            const esp_payload_header h = cf_header(&p);
            assert_int_equal(h.codec, esp_name_hash("warmup"));
            assert_int_equal(h.wire_version, c.traits.wire_version);
            assert_int_equal(h.body_bytes, p.count * 4);
            assert_memory_equal(p.payload.data + ESP_PAYLOAD_HEADER, p.g, p.count * 4);
            for (uint64_t k = 0; k < p.count; k++) assert_true(p.e[k] == 0);
            assert_int_equal(cf_decompress(&p), ESP_OK);
            assert_memory_equal(p.o, p.g, p.count * 4);
        }
        for (uint64_t step = 3; step < 6; step++) same_payload(&p, &q, step);
        cf_part_free(&p);
        cf_part_free(&q);
        cf_close(&c);
        cf_close(&x);
    }
}

/* Payloads of the warmup and of later steps arrive in one step, as if a rank had counted its steps wrongly. */
TEST(mixed_kinds) {
    cf_codec c = opened("warmup:steps=1,of=(topk:ratio=0.1)");
    cf_part p = cf_part_make(&c, 1000, 0), q = cf_part_make(&c, 1000, 0);
    q.step = 1;
    cf_fill(p.g, p.count, CF_RANDOM);
    cf_fill(q.g, q.count, CF_RANDOM);
    assert_int_equal(cf_compress(&p), ESP_OK);
    assert_int_equal(cf_compress(&q), ESP_OK);
    const esp_payload a = {{p.payload.data, p.used, {0, 0}}, NULL}, b = {{q.payload.data, q.used, {0, 0}}, NULL};
    esp_payload both[] = {a, b}, other[] = {b, a};
    assert_int_equal(cf_decompress_all(&p, both, 2, ESP_OUT_SET, 0), ESP_E_CORRUPT);
    assert_int_equal(cf_decompress_all(&p, other, 2, ESP_OUT_SET, 0), ESP_E_CORRUPT);
    cf_part_free(&p);
    cf_part_free(&q);
    cf_close(&c);
}

static esp_codec_args args_of(cf_part *p, esp_tensor *const *t, esp_payload *pay, const uint64_t *offset,
                              const esp_buf *scratch, uint32_t n) {
    esp_codec_args a = {.struct_size = sizeof a, .seed = 42, .n_payloads = 1, .n_tensors = 1, .beta = 1, .gamma = 1};
    a.n_reduced = n;
    a.tensor = t;
    a.payload = pay;
    a.offset = offset;
    a.scratch = scratch;
    return a;
}

/* The f16 sum of the payloads of n ranks does not overflow for any n, and decodes to the sum of the ranks' numbers. */
TEST(summed_bodies) {
    static const uint32_t ranks[] = {2, 3, 8};
    enum { N = 100 };
    cf_codec c = opened("fp16:of=(randomk:ratio=1)");
    assert_true(cf_has(&c, ESP_CODEC_REDUCIBLE));
    assert_int_equal(c.traits.rounds[0].dtype, ESP_F16);
    for (size_t i = 0; i < CF_COUNT(ranks); i++) {
        cf_part p = cf_part_make(&c, N, 0);
        const uint64_t offset = 0;
        const esp_buf scratch = {p.scratch.data, p.bound.scratch_bytes, {0, 0}};
        float one[N], sum[N] = {0};
        double want[N] = {0};
        esp_tensor t = {sizeof t, ESP_F32, 7, N, {p.g, N * 4, {0, 0}}, 0, 0}, *list = &t;
        esp_payload pay = {{p.payload.data, p.bound.payload_bytes, {0, 0}}, &p.used};
        esp_codec_args a = args_of(&p, &list, &pay, &offset, &scratch, ranks[i]);
        for (uint32_t r = 0; r < ranks[i]; r++) { /* like a collective's sum: in f32, rounded at the end */
            for (int k = 0; k < N; k++) p.g[k] = k ? (float)(k * 4 + (int)r) : 65504.0f, want[k] += (double)p.g[k];
            assert_int_equal(c.table->compress(c.self, &a), ESP_OK);
            assert_int_equal(p.used, ESP_PAYLOAD_HEADER + 2 * N);
            half_f16_add_scalar(sum, (const half_u16 *)(const void *)(p.payload.data + ESP_PAYLOAD_HEADER), 1, 0, N);
        }
        half_f16_encode_scalar((half_u16 *)(void *)(p.payload.data + ESP_PAYLOAD_HEADER), sum, NULL, 1, HALF_F16_MAX,
                               N);
        pay.data.bytes = p.used;
        t.data.ptr = one;
        assert_int_equal(c.table->decompress(c.self, &a), ESP_OK);
        for (int k = 0; k < N; k++)
            if (!(fabs((double)one[k] - want[k]) <= want[k] * 0x1p-10))
                fail_msg("%u ranks, number %d: %g, not %g", ranks[i], k, (double)one[k], want[k]);
        cf_part_free(&p);
    }
    cf_close(&c);
}

static esp_status no_values(void *self, const esp_tensor *like, const esp_payload_header *h, esp_values *out) {
    *out = (esp_values){0, like->count, 4}; /* claims 4 bytes more than the payload has */
    return ESP_OK;
}
static esp_codec liar;
static esp_status open_liar(void *user, const char *spec, const esp_codec **table, void **self) {
    const esp_status s = cf_inner_open(user, spec, table, self);
    liar = **table;
    liar.values = no_values;
    *table = &liar;
    return s;
}

/* Wrappers refuse unsuitable codecs and wrong parameters with an error that names them, and detect a values() function
 * that gives a wrong size. */
TEST(refused) {
    static const char *const cases[][3] = {
        {"fp16", "of=(efsignsgd)", "of=(efsignsgd): its payloads contain no plain numbers"},
        {"bf16", "of=(warmup:of=(topk))", "no plain numbers"},
        {"warmup", "steps=4", "of= is missing"},
        {"warmup", "steps=x,of=(topk)", "steps=x"},
        {"loco", "beta=0.5", "of= is missing"},
        {"loco", "of=(dgc)", "of=(dgc): it has a memory of its own"},
        {"fp16", "of=(topk),more=1", "unknown parameter 'more'"},
    };
    for (size_t i = 0; i < CF_COUNT(cases); i++) {
        void *self = NULL;
        assert_int_not_equal(cf_find(cases[i][0])->open(&cf_plain, cases[i][1], &self), ESP_OK);
        if (!strstr(cf_message, cases[i][2])) fail_msg("'%s' is not in: %s", cases[i][2], cf_message);
        assert_int_equal(cf_live, 0);
    }
    esp_host lonely = cf_plain, wrong = cf_plain;
    void *self = NULL;
    lonely.codec_open = NULL;
    assert_int_equal(cf_find("fp16")->open(&lonely, "of=(topk)", &self), ESP_E_UNSUPPORTED);
    wrong.codec_open = open_liar;
    cf_codec c = {.table = cf_find("fp16")};
    assert_int_equal(c.table->open(&wrong, "of=(none)", &c.self), ESP_OK);
    const esp_tensor like = {sizeof like, ESP_F32, 7, 96, {NULL, 0, {0, 0}}, 0, 0};
    esp_bound b = {sizeof b, 0, 0, 0, 0};
    assert_int_equal(c.table->bound(c.self, &like, 0, 1, &b), ESP_E_ABI);
    cf_close(&c);
    assert_int_equal(cf_live, 0);
}
