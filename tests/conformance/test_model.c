/* test_model.c: what codecs say of themselves is what they do: sizes of payloads, compression error, rounding, and times that can be
 * drawn as a curve. */
#include "conformance.h"

static esp_codec_model model_of(const cf_codec *c, uint64_t count, uint32_t n_reduced, esp_devkind kind) {
    const esp_tensor like = {sizeof like, ESP_F32, 7, count, {NULL, 0, {0, 0}}, 0, 0};
    esp_codec_model m;
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m;
    assert_non_null(c->table->model);
    assert_int_equal(c->table->model(c->self, &like, n_reduced, (esp_device){kind, 0}, &m), ESP_OK);
    return m;
}

static double bytes_of(const esp_payload_size *s, uint64_t count) {
    const double quantum = s->quantum > 0 ? s->quantum : 1;
    return s->fixed + quantum * ceil(s->per_element * (double)count / quantum);
}

static void near(const cf_codec *c, const char *what, double got, double want, double relative) {
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%s: %s: the model says %.9g, and it is %.9g", c->spec, what, got, want);
}

/* The bytes of a payload are those of the model, within 2%, long after any warm-up; and of bound(), where all have one size. */
static void payload_sizes(void **unused) {
    static const uint64_t sizes[] = {100000, 300000, (1u << 20) + 1};
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        assert_true(cf_open(cf_specs[s], &cf_plain, &c));
        const esp_codec_model m = model_of(&c, 1u << 20, 1, ESP_CPU), two = model_of(&c, 1u << 20, 2, ESP_CPU);
        for (size_t z = 0; z < CF_COUNT(sizes); z++) {
            cf_part p = cf_part_make(&c, sizes[z], 0);
            const esp_tensor like = {sizeof like, ESP_F32, 7, sizes[z], {NULL, 0, {0, 0}}, 0, 0};
            esp_bound b = {sizeof b, 0, 0, 0, 0};
            p.step = 1000;
            cf_fill(p.g, p.count, CF_RANDOM);
            assert_int_equal(cf_compress(&p), ESP_OK);
            near(&c, "the payload's size", bytes_of(&m.sent, p.count), (double)p.used, 0.02);
            if (cf_has(&c, ESP_CODEC_FIXED_SIZE))
                near(&c, "bound()", bytes_of(&m.sent, p.count), (double)p.bound.payload_bytes, 0.02);
            if (cf_has(&c, ESP_CODEC_REDUCIBLE)) {
                assert_int_equal(c.table->bound(c.self, &like, 0, 2, &b), ESP_OK);
                near(&c, "bound(), reduced", bytes_of(&two.reduced[0], p.count), (double)b.payload_bytes, 0.02);
            } else {
                assert_true(two.reduced[0].per_element == 0 && two.reduced[0].fixed == 0);
            }
            cf_part_free(&p);
        }
        cf_close(&c);
    }
    assert_int_equal(cf_live, 0);
}

static double uniform(void) { return ((double)cf_random() + 1) / 4294967296.0; } /* 0 < x <= 1 */
static float gauss(void) {
    const double r = sqrt(-2 * log(uniform()));
    return (float)(r * cos(2 * 3.14159265358979323846 * uniform()));
}

/* The error is that of numbers from a normal distribution of variance 1, without feedback. */
static void errors(void **unused) {
    static const char *const specs[] = {"none",
                                        "fp16",
                                        "bf16",
                                        "efsignsgd",
                                        "twobit",
                                        "twobit:threshold=2",
                                        "int8",
                                        "int8:block=32",
                                        "int8:block=1024",
                                        "int4",
                                        "int4:block=32",
                                        "int4:block=1024",
                                        "topk:ratio=0.01",
                                        "topk:ratio=0.3",
                                        "randomk:ratio=0.01",
                                        "randomk:ratio=0.4",
                                        "dgc:ratio=0.1",
                                        "randomk:ratio=0.9,unbiased=1",
                                        "fp16:of=(topk:ratio=0.3)",
                                        "fp16:of=(none)",
                                        "bf16:of=(none)",
                                        "warmup:of=(topk:ratio=0.3)"};
    enum { N = 400000 };
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(specs); s++) {
        cf_codec c;
        double lost = 0, whole = 0;
        assert_true(cf_open(specs[s], &cf_plain, &c));
        cf_part p = cf_part_make(&c, N, 0);
        p.step = 1000;
        for (uint64_t i = 0; i < N; i++) p.g[i] = gauss();
        assert_int_equal(cf_compress(&p), ESP_OK);
        assert_int_equal(cf_decompress(&p), ESP_OK);
        for (uint64_t i = 0; i < N; i++) {
            const double x = (double)p.g[i], d = (double)p.o[i] - x;
            lost += d * d, whole += x * x;
        }
        near(&c, "the error", model_of(&c, N, 1, ESP_CPU).error, lost / whole,
             strstr(specs[s], "unbiased") ? 0.05 : 0.02);
        cf_part_free(&p);
        cf_close(&c);
    }
}

/* Lossy is what does not bring back every number as near as half precision has it. */
static void lossy(void **unused) {
    (void)unused;
    for (size_t i = 0; i < CF_COUNT(cf_specs); i++) {
        cf_codec c;
        assert_true(cf_open(cf_specs[i], &cf_plain, &c));
        cf_part p = cf_part_make(&c, 4096, 0);
        int rounds = 1;
        p.step = 1000;
        for (uint64_t k = 0; k < p.count; k++) p.g[k] = cf_normal();
        assert_int_equal(cf_compress(&p), ESP_OK);
        assert_int_equal(cf_decompress(&p), ESP_OK);
        for (uint64_t k = 0; k < p.count; k++)
            rounds &= fabs((double)p.o[k] - (double)p.g[k]) <= fabs((double)p.g[k]) * 0x1p-8 + 0x1p-24;
        const int says = !(model_of(&c, 4096, 1, ESP_CPU).flags & ESP_MODEL_LOSSY);
        if (says != rounds)
            fail_msg("%s %s every number, but its model says otherwise", cf_specs[i],
                     rounds ? "rounds" : "does not round");
        cf_part_free(&p);
        cf_close(&c);
    }
}

/* Times rise with the elements; a caller whose struct ends earlier gets only its members. */
static void times(void **unused) {
    static const esp_devkind kinds[] = {ESP_CPU, ESP_CUDA};
    (void)unused;
    for (size_t i = 0; i < CF_COUNT(cf_specs); i++) {
        cf_codec c;
        assert_true(cf_open(cf_specs[i], &cf_plain, &c));
        for (size_t k = 0; k < CF_COUNT(kinds); k++) {
            const esp_codec_model m = model_of(&c, 1u << 20, 1, kinds[k]);
            assert_true(m.n_times <= ESP_MODEL_TIMES && (m.n_times || kinds[k] != ESP_CPU));
            for (uint32_t t = 1; t < m.n_times; t++)
                assert_true(m.times[t].elements > m.times[t - 1].elements &&
                            m.times[t].compress_ns > m.times[t - 1].compress_ns &&
                            m.times[t].decompress_ns > m.times[t - 1].decompress_ns);
        }
        const esp_tensor like = {sizeof like, ESP_F32, 7, 1u << 20, {NULL, 0, {0, 0}}, 0, 0};
        esp_codec_model old;
        memset(&old, 0x5A, sizeof old);
        old.struct_size = offsetof(esp_codec_model, n_times);
        assert_int_equal(c.table->model(c.self, &like, 1, (esp_device){ESP_CPU, 0}, &old), ESP_OK);
        assert_int_equal(old.n_times, 0x5A5A5A5A);
        cf_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payload_sizes),
        cmocka_unit_test(errors),
        cmocka_unit_test(lossy),
        cmocka_unit_test(times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
