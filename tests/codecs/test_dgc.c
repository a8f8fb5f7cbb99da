/* test_dgc.c checks codec dgc (deep gradient compression) against plain loops: momentum, its masking, the warm-up,
 * and that every gradient is sent in the end. */
#include "tests/lib/test.h"
#include "one_codec.h"

enum { STEPS = 20 };

/* The algorithm of the DGC paper in plain loops. Which elements it sends is taken from the codec: those that are
 * nonzero in the decoded payload `sent`. */
typedef struct reference {
    float *u, *v;
    float m;
    int nesterov, masking;
} reference;
static void reference_step(reference *r, const float *g, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        volatile float t = r->nesterov ? r->m * (r->u[i] + g[i]) : r->m * r->u[i];
        r->u[i] = r->nesterov ? t : t + g[i];
        t = r->nesterov ? r->u[i] + g[i] : r->u[i];
        r->v[i] += t;
    }
}

TEST(as_the_paper_has_it) {
    const uint64_t sizes[] = {1, 33, 4097, 150001};
    for (int z = 0; z < 4; z++)
        for (int mode = 0; mode < 4; mode++) {
            uint64_t n = sizes[z], k = (n + 99) / 100;
            char params[80];
            snprintf(params, sizeof params, "momentum=0.75,nesterov=%d,masking=%d", mode & 1, mode >> 1);
            opened_codec r = codec_open(codec_named("dgc"), params, n, NULL, z & 1);
            reference ref = {calloc(n, 4), calloc(n, 4), 0.75f, mode & 1, mode >> 1};
            float *g = malloc(n * 4), *out = malloc(n * 4);
            r.args.flags = ESP_ARG_OWN_MEMORY;
            for (int step = 0; step < STEPS; step++) {
                for (uint64_t i = 0; i < n; i++) g[i] = codec_uniform();
                r.args.step = (uint64_t)step;
                assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
                assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
                reference_step(&ref, g, n);
                uint64_t sent = 0;
                float least = INFINITY, most = 0;
                for (uint64_t i = 0; i < n; i++) {
                    if (out[i] != 0.0f) {
                        assert_true(out[i] == ref.v[i]);
                        least = fminf(least, fabsf(ref.v[i]));
                        ref.v[i] = 0;
                        if (ref.masking) ref.u[i] = 0;
                        sent++;
                    } else {
                        most = fmaxf(most, fabsf(ref.v[i]));
                    }
                }
                assert_int_equal(sent, k);
                assert_true(least >= most);
                for (uint64_t i = 0; i < n; i++) {
                    assert_true(r.residual[i] == ref.v[i]);
                    assert_true(((float *)r.state.ptr)[i] == ref.u[i]);
                }
            }
            free(ref.u), free(ref.v), free(g), free(out), codec_close(&r);
        }
}

TEST(later_comps_are_plain) {
    enum { N = 5000 };
    opened_codec r = codec_open(codec_named("dgc"), "", N, NULL, 0);
    float *g = malloc(N * 4), *out = calloc(N, 4), *in = calloc(N, 4);
    assert_int_equal(r.state.bytes, N * 4);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) g[i] = (float)(int)(codec_random() % 201) - 100.0f, in[i] += g[i];
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SUM), ESP_OK);
    }
    for (int i = 0; i < N; i++) {
        assert_true(out[i] + r.residual[i] == in[i]);
        assert_true(((float *)r.state.ptr)[i] == 0.0f);
    }
    memcpy(in, r.residual, N * 4);
    r.args.flags = ESP_ARG_OWN_MEMORY;
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SET), ESP_OK);
    for (int i = 0; i < N; i++) assert_true(out[i] == 0.0f || out[i] == g[i]);
    assert_memory_equal(in, r.residual, N * 4);
    free(g), free(out), free(in), codec_close(&r);
}

TEST(conserves) {
    enum { N = 3000 };
    opened_codec r = codec_open(codec_named("dgc"), "ratio=0.05,momentum=0.5", N, NULL, 0);
    float *g = malloc(N * 4), *out = calloc(N, 4);
    double *entered = calloc(N, 8);
    r.args.flags = ESP_ARG_OWN_MEMORY;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) {
            g[i] = codec_uniform();
            entered[i] += (double)(0.5f * ((float *)r.state.ptr)[i] + g[i]);
        }
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        assert_int_equal(codec_decompress(&r, NULL, 1, out, ESP_OUT_SUM), ESP_OK);
    }
    for (int i = 0; i < N; i++) assert_true(fabs((double)out[i] + r.residual[i] - entered[i]) < 1e-4);
    free(g), free(out), free(entered), codec_close(&r);
}

TEST(warm_up) {
    enum { N = 100000 };
    const double expect[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625, 0.0009765625};
    opened_codec r = codec_open(codec_named("dgc"), "ratio=0.0009765625,warmup=40", N, NULL, 1);
    float *g = malloc(N * 4);
    uint64_t before = ~0ull;
    for (int i = 0; i < N; i++) g[i] = codec_uniform();
    for (uint64_t step = 0; step <= 50; step++) {
        r.args.step = step;
        assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
        assert_true(r.used <= r.payload.data.bytes);
        assert_true(codec_header(&r).aux <= before);
        before = codec_header(&r).aux;
        if (step % 10 == 0) assert_true(fabs((double)before - expect[step / 10] * N) <= 1.0);
        assert_int_equal(codec_decompress(&r, NULL, 1, g, ESP_OUT_SUM), ESP_OK);
    }
    r.args.step = 0;
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    assert_int_equal((r.used + 31) / 32 * 32, r.payload.data.bytes);
    codec_close(&r);
    r = codec_open(codec_named("dgc"), "ratio=0.3,warmup=40", N, NULL, 1);
    assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
    assert_int_equal(codec_header(&r).aux, 30000);
    free(g), codec_close(&r);
}

/* The codec guesses the k-th largest element from a random sample. The sample changes the speed, but no result. */
TEST(sample_changes_nothing) {
    enum { N = 300000 };
    const char *const params[] = {"sample=0.01", "sample=1", "sample=0.0001", "sample=0.2"};
    float *g = malloc(N * 4);
    opened_codec first = {0};
    for (int i = 0; i < N; i++) g[i] = codec_uniform() * (i % 1000 < 10 ? 9.0f : 1.0f);
    for (int v = 0; v < 4; v++) {
        opened_codec r = codec_open(codec_named("dgc"), params[v], N, NULL, 1);
        r.args.seed = (uint64_t)v;
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        if (v) {
            assert_memory_equal(r.payload.data.ptr, first.payload.data.ptr, r.used);
            codec_close(&r);
        } else {
            first = r;
        }
    }
    free(g), codec_close(&first);
}

TEST(bad_parameters) {
    const char *const bad[] = {"momentum=-0.1", "momentum=2", "masking=0.5", "warmup=-1",
                               "warmup=1.5",    "sample=0",   "nesterov=yes"};
    void *self;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        codec_message[0] = 0;
        assert_int_equal(codec_named("dgc")->open(&codec_host, bad[i], &self), ESP_E_ARG);
        assert_non_null(strstr(codec_message, "momentum=0.9"));
    }
}
