/* test_forward.c: one hop of every codec that has forward(): the bytes of decompress and compress, one after the other. */
#include "conformance.h"

static esp_status forward_call(cf_part *p, esp_payload *in, void *to, uint64_t capacity) {
    esp_tensor t = {sizeof t, ESP_F32, 7, p->count, {p->g, p->count * 4, {0, 0}}, 0, 0}, *one = &t;
    esp_payload out = {{to, capacity, {0, 0}}, &p->used};
    const esp_buf residual = {p->e, p->count * 4, {0, 0}};
    const uint64_t offset = 0;
    esp_codec_args a = {.struct_size = sizeof a, .step = p->step, .seed = 42, .n_payloads = 1, .n_reduced = 1};
    a.beta = p->beta, a.gamma = p->gamma;
    a.n_tensors = 1;
    a.tensor = &one, a.offset = &offset, a.payload = &out, a.reduced = in;
    a.residual = p->feedback ? &residual : NULL;
    return p->codec->table->forward(p->codec->self, &a);
}

/* forward() writes what compress would of decode(in) + phi, and leaves what that does not carry. */
static void check_forward(cf_codec *c, uint64_t n, int feedback, int empty) {
    cf_part p = cf_part_make(c, n, 0);
    cf_fenced came = cf_fenced_make(p.bound.payload_bytes, 1), gone = cf_fenced_make(p.bound.payload_bytes, 1);
    float *phi = malloc(n * 4 + 4), *before = malloc(n * 4 + 4);
    p.step = 1000; /* behind any warm-up */
    cf_fill(p.g, n, CF_RANDOM);
    assert_int_equal(cf_compress_into(&p, came.data, p.bound.payload_bytes), ESP_OK);
    esp_payload in = {{came.data, p.used, {0, 0}}, NULL};
    if (empty) {
        esp_payload_header h;
        memcpy(&h, came.data, sizeof h);
        h.flags = ESP_PAYLOAD_EMPTY, h.body_bytes = 0;
        memcpy(came.data, &h, sizeof h);
    }
    cf_fill(p.g, n, CF_RANDOM);
    cf_fill(p.e, n, CF_RANDOM);
    p.feedback = feedback, p.beta = 0.9f, p.gamma = 0.7f;
    for (uint64_t i = 0; i < n; i++) {
        const float a = p.beta * p.e[i], b = p.gamma * p.g[i];
        p.o[i] = feedback ? a + b : p.g[i];
    }
    assert_int_equal(cf_decompress_all(&p, &in, 1, ESP_OUT_SUM, 0), ESP_OK);
    memcpy(phi, p.o, n * 4);
    assert_int_equal(forward_call(&p, &in, gone.data, p.bound.payload_bytes), ESP_OK);
    esp_payload out = {{gone.data, p.used, {0, 0}}, NULL};
    assert_int_equal(cf_decompress_all(&p, &out, 1, ESP_OUT_SET, 0), ESP_OK);
    for (uint64_t i = 0; feedback && i < n; i++)
        if (!(fabs((double)p.o[i] + (double)p.e[i] - (double)phi[i]) <= fabs((double)p.e[i]) * 0x1p-23))
            fail_msg("%s: element %llu: %g, and %g is left, of %g", c->spec, (unsigned long long)i, (double)p.o[i],
                     (double)p.e[i], (double)phi[i]);
    memcpy(p.g, phi, n * 4);
    p.feedback = 0;
    assert_int_equal(cf_compress(&p), ESP_OK);
    assert_true(p.used == out.data.bytes && !memcmp(p.payload.data, gone.data, p.used));
    /* a NaN that came, a NaN of its own, and a damaged payload leave the residual */
    memcpy(before, p.e, n * 4);
    p.feedback = feedback;
    for (int bad = 0; bad < 3 && n; bad++) {
        cf_fill(p.g, n, bad ? CF_RANDOM : CF_NAN);
        if (bad < 2) {
            cf_part q = cf_part_make(c, n, 0);
            q.step = 1000;
            cf_fill(q.g, n, bad ? CF_NAN : CF_RANDOM);
            assert_int_equal(cf_compress_into(&q, came.data, p.bound.payload_bytes), ESP_OK);
            in.data.bytes = q.used;
            cf_part_free(&q);
        } else {
            came.data[0] ^= 1;
        }
        const esp_status s = forward_call(&p, &in, gone.data, p.bound.payload_bytes);
        assert_int_equal(s, bad < 2 ? ESP_OK : ESP_E_CORRUPT);
        esp_payload_header h;
        memcpy(&h, gone.data, sizeof h);
        if (bad < 2) assert_int_equal(h.flags, ESP_PAYLOAD_NONFINITE);
        assert_memory_equal(p.e, before, n * 4);
    }
    free(phi), free(before);
    cf_fenced_free(&came);
    cf_fenced_free(&gone);
    cf_part_free(&p);
}
static void one_hop(void **unused) {
    static const uint64_t sizes[] = {0, 1, 33, 4095, 4097, 70001};
    int some = 0;
    (void)unused;
    for (size_t s = 0; s < CF_COUNT(cf_specs); s++) {
        cf_codec c;
        if (!cf_open(cf_specs[s], &cf_plain, &c)) continue;
        for (size_t z = 0; z < CF_COUNT(sizes) && cf_has(&c, ESP_CODEC_FORWARD); z++, some++)
            for (int k = 0; k < 4; k++) check_forward(&c, sizes[z], k & 1, k >> 1);
        cf_close(&c);
    }
    assert_true(some > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_hop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
