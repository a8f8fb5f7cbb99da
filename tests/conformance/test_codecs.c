/* test_codecs.c: properties that every codec must have, over all sizes and difficult inputs. */
#include "conformance.h"

/* phi of every element, before the residual changes */
static double *phi_of(const cf_part *p) {
    double *phi = malloc((p->count + 1) * sizeof *phi);
    assert_non_null(phi);
    for (uint64_t i = 0; i < p->count; i++) {
        const float g = p->gamma * p->g[i], e = p->beta * p->e[i]; /* one rounding each, as in the codec */
        phi[i] = p->feedback ? (double)(e + g) : (double)p->g[i];
    }
    return phi;
}

static void check_nonfinite(cf_part *p, const float *before) {
    const esp_payload_header h = cf_header(p);
    assert_int_equal(h.flags, ESP_PAYLOAD_NONFINITE);
    assert_memory_equal(p->e, before, p->count * 4);
    if (!cf_has(p->codec, ESP_CODEC_REDUCIBLE)) assert_int_equal(h.body_bytes, 0);
    for (uint64_t i = 0; i < p->bound.state_bytes; i++) assert_int_equal(p->state.data[i], 0);
    assert_int_equal(cf_decompress(p), ESP_OK);
    for (uint64_t i = 0; i < p->count; i++)
        if (!isnan(p->o[i])) fail_msg("%s: element %llu is not NaN", p->codec->spec, (unsigned long long)i);
    if (!cf_has(p->codec, ESP_CODEC_REDUCIBLE)) return;
    /* a backend that sums bodies does not look at flags: the body itself must be all NaN */
    esp_payload_header plain = h;
    plain.flags = 0;
    memcpy(p->payload.data, &plain, sizeof plain);
    assert_int_equal(cf_decompress(p), ESP_OK);
    uint64_t nans = 0;
    for (uint64_t i = 0; i < p->count; i++) nans += isnan(p->o[i]) != 0;
    assert_int_equal(nans * 4 >= h.body_bytes || nans == p->count, 1);
}

static void check_step(cf_part *p, int kind) {
    const int nonfinite = p->count && (kind == CF_NAN || kind == CF_INF);
    double *phi = phi_of(p);
    float *before = malloc(p->count * 4 + 4);
    memcpy(before, p->e, p->count * 4);
    memset(p->payload.data, 0xA5, p->bound.payload_bytes);
    memset(p->o, 0xFF, p->count * 4); /* NaN: SET must write everything */
    assert_int_equal(cf_compress(p), ESP_OK);
    const esp_payload_header h = cf_header(p);
    assert_int_equal(h.codec, esp_name_hash(p->codec->table->name));
    assert_int_equal(h.count, p->count);
    assert_int_equal(p->used, ESP_PAYLOAD_HEADER + h.body_bytes);
    assert_true(p->used <= p->bound.payload_bytes);
    assert_int_equal(p->bound.payload_bytes % 32, 0);
    if (p->count == 0) assert_int_equal(h.body_bytes, 0);
    if (nonfinite) {
        check_nonfinite(p, before);
    } else {
        assert_int_equal(h.flags, 0);
        assert_int_equal(cf_decompress(p), ESP_OK);
        for (uint64_t i = 0; p->feedback && i < p->count; i++) {
            const double back = (double)p->o[i] + (double)p->e[i];
            if (!(fabs(back - phi[i]) <= fabs((double)p->e[i]) * 0x1p-23))
                fail_msg("%s, %llu elements, %s: decode + residual is %g, not %g", p->codec->spec,
                         (unsigned long long)p->count, cf_kind_name[kind], back, phi[i]);
        }
        for (uint64_t i = 0; !p->feedback && i < p->count; i++)
            if (isnan(p->o[i])) fail_msg("%s, %s: NaN", p->codec->spec, cf_kind_name[kind]);
    }
    free(phi);
    free(before);
}

static void sizes_and_inputs(void **unused) {
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_pieces, &c)) continue;
        for (size_t z = 0; z < CF_COUNT(cf_sizes); z++)
            for (int kind = 0; kind < CF_KINDS; kind++)
                for (int feedback = 0; feedback < 3; feedback++) {
                    const int big = cf_sizes[z] > 100000;
                    if (big && kind != CF_RANDOM && kind != CF_ZERO && kind != CF_NAN) continue;
                    cf_part p = cf_part_make(&c, cf_sizes[z], feedback > 0);
                    if (feedback == 2) {
                        cf_fill(p.e, p.count, CF_RANDOM);
                        p.beta = 0.9f;
                        p.gamma = 0.7f;
                    }
                    cf_fill(p.g, p.count, kind);
                    check_step(&p, kind);
                    cf_part_free(&p);
                }
        cf_close(&c);
    }
    assert_int_equal(cf_live, 0);
}

/* What went in is what came out plus what is kept, over 20 steps, one of which is lost to a NaN. */
static void conservation(void **unused) {
    (void)unused;
    enum { N = 9001 };
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_plain, &c)) continue;
        cf_part p = cf_part_make(&c, N, 1);
        double *in = calloc(N, sizeof *in), *out = calloc(N, sizeof *out), *most = calloc(N, sizeof *most);
        for (p.step = 0; p.step < 20; p.step++) {
            cf_fill(p.g, N, p.step == 11 ? CF_NAN : CF_RANDOM);
            assert_int_equal(cf_compress(&p), ESP_OK);
            if (p.step == 11) continue;
            assert_int_equal(cf_decompress(&p), ESP_OK);
            for (int i = 0; i < N; i++) {
                in[i] += (double)p.g[i];
                out[i] += (double)p.o[i];
                most[i] += fabs((double)p.g[i]) + fabs((double)p.o[i]) + fabs((double)p.e[i]);
            }
        }
        for (int i = 0; i < N; i++)
            if (!(fabs(in[i] - out[i] - (double)p.e[i]) <= most[i] * 0x1p-23))
                fail_msg("%s: element %d loses %g", c.spec, i, in[i] - out[i] - (double)p.e[i]);
        free(in);
        free(out);
        free(most);
        cf_part_free(&p);
        cf_close(&c);
    }
}

static void bound_is_monotone(void **unused) {
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_plain, &c)) continue;
        esp_bound last = {sizeof last, 0, 0, 0, 0};
        for (uint64_t n = 0; n < 1u << 22; n += 1 + n / 300) {
            esp_tensor like = {sizeof like, ESP_F32, 7, n, {NULL, 0, {0, 0}}, 0, 0};
            esp_bound b = {sizeof b, 0, 0, 0, 0};
            assert_int_equal(c.table->bound(c.self, &like, 0, 1, &b), ESP_OK);
            assert_true(b.payload_bytes >= last.payload_bytes && b.payload_bytes >= ESP_PAYLOAD_HEADER);
            last = b;
        }
        /* a caller whose struct ends before state_bytes */
        struct {
            esp_bound b;
        } old = {{offsetof(esp_bound, state_bytes), 0, 0, 0, 0x1234}};
        esp_tensor like = {sizeof like, ESP_F32, 7, 1000, {NULL, 0, {0, 0}}, 0, 0};
        assert_int_equal(c.table->bound(c.self, &like, 0, 1, &old.b), ESP_OK);
        assert_int_equal(old.b.state_bytes, 0x1234);
        cf_close(&c);
    }
}

static void too_small(void **unused) {
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_plain, &c)) continue;
        for (size_t z = 0; z < CF_COUNT(cf_sizes) - 1; z++) {
            cf_part p = cf_part_make(&c, cf_sizes[z], 1);
            cf_fill(p.g, p.count, CF_RANDOM);
            cf_fill(p.e, p.count, CF_RANDOM);
            float *before = malloc(p.count * 4 + 4);
            memcpy(before, p.e, p.count * 4);
            assert_int_equal(cf_compress(&p), ESP_OK);
            const uint64_t need = p.used;
            memcpy(p.e, before, p.count * 4);
            const uint64_t tries[] = {0, 1, ESP_PAYLOAD_HEADER - 1, need - 1};
            for (size_t t = 0; t < CF_COUNT(tries); t++) {
                cf_fenced small = cf_fenced_make(tries[t], 1);
                memset(small.data, 0x5A, tries[t]);
                p.used = 99;
                assert_int_equal(cf_compress_into(&p, small.data, tries[t]), ESP_E_TOO_SMALL);
                for (uint64_t i = 0; i < tries[t]; i++) assert_int_equal(small.data[i], 0x5A);
                assert_int_equal(p.used, 99);
                assert_memory_equal(p.e, before, p.count * 4);
                for (uint64_t i = 0; i < p.bound.state_bytes; i++) assert_int_equal(p.state.data[i], 0);
                cf_fenced_free(&small);
            }
            free(before);
            cf_part_free(&p);
        }
        cf_close(&c);
    }
}

/* Four payloads and an empty one at once, against one after the other; SET and SUM; a scale. */
static void check_many(cf_codec *c, uint64_t n) {
    enum { M = 5 };
    cf_part p = cf_part_make(c, n, 0);
    esp_payload pay[M];
    cf_fenced mem[M];
    for (int m = 0; m < M; m++) {
        mem[m] = cf_fenced_make(p.bound.payload_bytes, 1);
        cf_fill(p.g, n, CF_RANDOM);
        assert_int_equal(cf_compress_into(&p, mem[m].data, p.bound.payload_bytes), ESP_OK);
        pay[m] = (esp_payload){{mem[m].data, p.used, {0, 0}}, NULL};
    }
    esp_payload_header h;
    memcpy(&h, mem[2].data, sizeof h);
    h.flags = ESP_PAYLOAD_EMPTY;
    h.body_bytes = 0;
    memcpy(mem[2].data, &h, sizeof h);
    float *expect = malloc(n * 4 + 4), *start = malloc(n * 4 + 4);
    cf_fill(start, n, CF_RANDOM);
    for (uint32_t mode = ESP_OUT_SET; mode <= ESP_OUT_SUM; mode++)
        for (int scaled = 0; scaled < 2; scaled++) {
            const float scale = scaled ? 0.25f : 0;
            memcpy(p.o, start, n * 4);
            for (uint32_t m = 0; m < M; m++)
                assert_int_equal(cf_decompress_all(&p, pay + m, 1, m || mode ? ESP_OUT_SUM : ESP_OUT_SET, scale),
                                 ESP_OK);
            memcpy(expect, p.o, n * 4);
            memcpy(p.o, start, n * 4);
            assert_int_equal(cf_decompress_all(&p, pay, M, mode, scale), ESP_OK);
            for (uint64_t i = 0; i < n; i++)
                if (!(p.o[i] == expect[i]))
                    fail_msg("%s: %g, one by one %g", c->spec, (double)p.o[i], (double)expect[i]);
        }
    assert_int_equal(cf_decompress_all(&p, pay + 2, 1, ESP_OUT_SET, 0), ESP_OK); /* the empty one alone: zeros */
    for (uint64_t i = 0; i < n; i++) assert_true(p.o[i] == 0);
    cf_fill(p.g, n, CF_NAN);
    assert_int_equal(cf_compress_into(&p, mem[3].data, p.bound.payload_bytes), ESP_OK);
    pay[3].data.bytes = p.used;
    assert_int_equal(cf_decompress_all(&p, pay, M, ESP_OUT_SUM, 0), ESP_OK);
    for (uint64_t i = 0; i < n; i++) assert_true(isnan(p.o[i]));
    for (int m = 0; m < M; m++) cf_fenced_free(&mem[m]);
    free(expect);
    free(start);
    cf_part_free(&p);
}
static void many_payloads(void **unused) {
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_pieces, &c)) continue;
        check_many(&c, 1);
        check_many(&c, 9001);
        check_many(&c, 70001);
        cf_close(&c);
    }
}

/* Same input, same bytes, whether the work is done at once, in pieces in another order, or by two threads. */
static void pieces_do_not_matter(void **unused) {
    (void)unused;
    enum { N = 300007 };
    const esp_host *hosts[] = {&cf_plain, &cf_pieces, &cf_threads};
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        uint64_t hash[3][3];
        for (int w = 0; w < 3; w++) {
            cf_codec c;
            if (!cf_open(cf_specs[s], hosts[w], &c)) break;
            cf_part p = cf_part_make(&c, N, 1);
            cf_seed = 5;
            for (p.step = 0; p.step < 2; p.step++) {
                cf_fill(p.g, N, CF_RANDOM);
                assert_int_equal(cf_compress(&p), ESP_OK);
            }
            assert_int_equal(cf_decompress(&p), ESP_OK);
            hash[w][0] = cf_hash(p.payload.data, p.used);
            hash[w][1] = cf_hash(p.e, N * 4);
            hash[w][2] = cf_hash(p.o, N * 4);
            cf_part_free(&p);
            cf_close(&c);
            assert_memory_equal(hash[0], hash[w], sizeof hash[0]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_and_inputs), cmocka_unit_test(conservation),  cmocka_unit_test(bound_is_monotone),
        cmocka_unit_test(too_small),        cmocka_unit_test(many_payloads), cmocka_unit_test(pieces_do_not_matter),
    };
#ifdef __SANITIZE_THREAD__ /* the others have one thread */
    const struct CMUnitTest threads[] = {cmocka_unit_test(pieces_do_not_matter)};
    if (!getenv("TEST_ALL")) return cmocka_run_group_tests(threads, NULL, NULL);
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
