/* test_randomk.c checks that randomk draws elements fairly, without replacement, and the same ones on all ranks, and
 * that sums of payloads are decoded correctly. */
#include "tests/lib/test.h"
#include "codecs/sparsify/randomk.h"
#include "one_codec.h"

static void draw_all(uint64_t key, uint64_t count, uint64_t k, int level, uint64_t *out) {
    randomk_perm p = randomk_perm_of(key, count);
    for (uint64_t at = 0; at < k; at += RANDOMK_BATCH)
        randomk_draw(&p, randomk_apply_for(level), at, k - at < RANDOMK_BATCH ? k - at : RANDOMK_BATCH, out + at);
}

/* A draw of all elements has every index once, on every instruction set. */
TEST(a_permutation) {
    for (uint64_t n = 1; n < 300000; n += n < 40 ? 1 : n < 1100 ? 7 : n / 3) {
        uint64_t *at = malloc(n * 8), *same = malloc(n * 8);
        uint8_t *seen = calloc(1, n);
        draw_all(n * 77 + 1, n, n, esp_simd_best(), at);
        for (uint64_t i = 0; i < n; i++) {
            assert_true(at[i] < n);
            assert_false(seen[at[i]]++);
        }
        for (int level = 0; level < esp_simd_best(); level++) {
            draw_all(n * 77 + 1, n, n, level, same);
            assert_memory_equal(at, same, n * 8);
        }
        free(at), free(same), free(seen);
    }
}

/* Draws from more elements than 32 bits can count stay below the count. */
TEST(huge_counts) {
    for (int bits = 31; bits < 50; bits++)
        for (uint64_t d = 0; d <= 2; d++) {
            uint64_t n = ((uint64_t)1 << bits) - 1 + d, at[RANDOMK_BATCH];
            randomk_perm p = randomk_perm_of(5, n);
            assert_true((uint64_t)p.a * p.b >= n && (uint64_t)p.a * p.b - n < (uint64_t)p.a + p.b);
            randomk_draw(&p, randomk_apply_for(esp_simd_best()), n - RANDOMK_BATCH, RANDOMK_BATCH, at);
            for (int i = 0; i < RANDOMK_BATCH; i++) assert_true(at[i] < n);
        }
}

/* Each element, and each pair of neighbours, is drawn as often as expected, within 6 standard deviations. */
TEST(fair) {
    const uint64_t counts[] = {2, 3, 5, 10, 33, 100, 1000, 1025, 5000};
    for (size_t z = 0; z < sizeof counts / sizeof *counts; z++)
        for (int half = 0; half < 2; half++) {
            uint64_t n = counts[z], k = half ? n / 2 : 1 + n / 100, draws = n > 100 ? 2000 : 5000, at[5000];
            uint32_t *hits = calloc(n, 4), *pairs = calloc(n, 4);
            uint8_t *in = malloc(n);
            for (uint64_t s = 0; s < draws; s++) {
                draw_all(esp_rng_key(1, s, 2, 0, 0), n, k, esp_simd_best(), at);
                memset(in, 0, n);
                for (uint64_t i = 0; i < k; i++) in[at[i]] = 1;
                for (uint64_t i = 0; i < n; i++) hits[i] += in[i], pairs[i] += in[i] & in[(i + 1) % n];
            }
            double p = (double)k / (double)n, q = p * (double)(k - 1) / (double)(n - 1), m = (double)draws;
            for (uint64_t i = 0; i < n; i++) {
                assert_true(fabs(hits[i] - m * p) <= 6 * sqrt(m * p * (1 - p)) + 1);
                if (m * q > 40) assert_true(fabs(pairs[i] - m * q) <= 6 * sqrt(m * q * (1 - q)) + 1);
            }
            free(hits), free(pairs), free(in);
        }
}

TEST(fair_in_order) {
    enum { N = 50, DRAWS = 20000 };
    static uint32_t hits[4][N];
    for (uint64_t s = 0; s < DRAWS; s++) {
        uint64_t at[4];
        draw_all(esp_rng_key(9, s, 2, 0, 0), N, 4, esp_simd_best(), at);
        for (int j = 0; j < 4; j++) hits[j][at[j]]++;
    }
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < N; i++) assert_true(fabs(hits[j][i] - DRAWS / (double)N) < 6 * sqrt(DRAWS / (double)N));
}

/* The codec arranges the elements in a grid of 32 rows and 32 columns and shuffles it. The distance between two
 * elements of a column must be random, too. */
TEST(no_trace_of_the_grid) {
    enum { N = 32 * 32, DRAWS = 40000 };
    static uint32_t apart[N];
    const double expect = DRAWS / (double)(N - 1);
    for (uint64_t s = 0; s < DRAWS; s++) {
        uint64_t at[33];
        draw_all(esp_rng_key(9, s, 3, 0, 0), N, 33, esp_simd_best(), at);
        apart[(at[32] + N - at[0]) % N]++;
    }
    for (int i = 1; i < N; i++) assert_true(fabs(apart[i] - expect) < 6 * sqrt(expect));
}

static float *random_array(uint64_t n) {
    float *x = malloc((n + 1) * 4);
    for (uint64_t i = 0; i < n; i++) x[i] = codec_uniform();
    return x;
}

/* All ranks draw the same elements, so a draw depends on the seed, step, tensor and offset, but not on the rank. */
TEST(draw_key) {
    float *g = random_array(10000);
    opened_codec r = codec_open(codec_named("randomk"), "", 10000, NULL, 0);
    esp_codec_args plain = r.args;
    uint64_t keys[7];
    for (int i = 0; i < 7; i++) {
        r.args = plain;
        r.tensor.key = 4711 + (i == 1);
        r.args.seed = i == 2, r.args.step = i == 3, r.args.comp_index = i == 4, r.offset = i == 5;
        r.args.source = i == 6;
        assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
        keys[i] = codec_header(&r).aux;
        for (int j = 0; j < i; j++) assert_int_equal(keys[i] == keys[j], i == 6 && j == 0);
    }
    free(g), codec_close(&r);
}

TEST(sent_and_kept) {
    const uint64_t sizes[] = {0, 1, 7, 31, 33, 4096, 4097, 65537, 200003};
    const char *const ratios[] = {"ratio=0.01", "ratio=0.3", "ratio=1"}, *const levels[] = {"scalar", "avx2", "avx512"};
    for (int z = 0; z < 9; z++)
        for (int q = 0; q < 3; q++) {
            uint64_t n = sizes[z], sent = 0;
            float *g = random_array(n), *phi = malloc(n * 4 + 4), *out = malloc(n * 4 + 4);
            opened_codec first = {0};
            for (int v = 0; v < 6; v++) {
                opened_codec r = codec_open(codec_named("randomk"), ratios[q], n, levels[v % 3], v / 3);
                for (uint64_t i = 0; i < n; i++) r.residual[i] = (float)i, phi[i] = (float)i + g[i];
                assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
                if (v) {
                    assert_memory_equal(first.payload.data.ptr, r.payload.data.ptr, first.used);
                    assert_memory_equal(first.residual, r.residual, n * 4);
                    codec_close(&r);
                } else {
                    first = r;
                }
            }
            assert_int_equal(codec_decompress(&first, NULL, 1, out, ESP_OUT_SET), ESP_OK);
            for (uint64_t i = 0; i < n; i++) {
                assert_true(out[i] + first.residual[i] == phi[i]);
                assert_true(out[i] == 0.0f || first.residual[i] == 0.0f);
                sent += out[i] != 0.0f;
            }
            assert_int_equal(sent, n ? (uint64_t)fmax(1, ceil(atof(ratios[q] + 6) * (double)n)) : 0);
            free(g), free(phi), free(out), codec_close(&first);
        }
}

/* The sum of payloads decodes to the sum of the decoded payloads. If one rank has NaN, all ranks decode NaN. */
TEST(summed_bodies) {
    enum { N = 9000, RANKS = 5 };
    opened_codec r[RANKS];
    float *sum = calloc(N, 4), *out = malloc(N * 4), *body0 = NULL;
    for (int i = 0; i < RANKS; i++) {
        float *g = malloc(N * 4);
        for (int j = 0; j < N; j++) g[j] = (float)((j * 7 + i * 13) % 101);
        r[i] = codec_open(codec_named("randomk"), "ratio=0.1", N, NULL, 0);
        r[i].args.source = (uint32_t)i;
        assert_int_equal(codec_compress(&r[i], g, 0), ESP_OK);
        assert_int_equal(codec_decompress(&r[i], NULL, 1, sum, ESP_OUT_SUM), ESP_OK);
        free(g);
    }
    body0 = esp_payload_body(&r[0].payload);
    for (int i = 1; i < RANKS; i++)
        for (uint64_t j = 0; j < codec_header(&r[0]).body_bytes / 4; j++)
            body0[j] += ((float *)esp_payload_body(&r[i].payload))[j];
    assert_int_equal(codec_decompress(&r[0], NULL, 1, out, ESP_OUT_SET), ESP_OK);
    assert_memory_equal(out, sum, N * 4);
    float *bad = calloc(N, 4);
    bad[N - 1] = -INFINITY;
    memcpy(out, r[1].residual, N * 4);
    assert_int_equal(codec_compress(&r[1], bad, 1), ESP_OK);
    assert_memory_equal(out, r[1].residual, N * 4);
    assert_int_equal(codec_header(&r[1]).flags, ESP_PAYLOAD_NONFINITE);
    assert_int_equal(r[1].used, r[0].used);
    for (uint64_t j = 0; j < codec_header(&r[0]).body_bytes / 4; j++)
        body0[j] += ((float *)esp_payload_body(&r[1].payload))[j];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(codec_decompress(&r[i], NULL, 1, out, ESP_OUT_SET), ESP_OK);
        for (int j = 0; j < N; j++) assert_int_equal(codec_bits(out[j]), 0x7fc00000u);
    }
    for (int i = 0; i < RANKS; i++) codec_close(&r[i]);
    free(sum), free(out), free(bad);
}

/* With unbiased=1 the mean over many draws is the input, and the residual is 0. */
TEST(unbiased) {
    enum { N = 200, DRAWS = 8000 };
    opened_codec r = codec_open(codec_named("randomk"), "ratio=0.1,unbiased=1", N, NULL, 0);
    float *g = random_array(N), *sum = calloc(N, 4);
    for (int s = 0; s < DRAWS; s++) {
        r.args.step = (uint64_t)s;
        assert_int_equal(codec_compress(&r, g, 1), ESP_OK);
        assert_int_equal(codec_decompress(&r, NULL, 1, sum, ESP_OUT_SUM), ESP_OK);
    }
    for (int i = 0; i < N; i++) {
        assert_true(r.residual[i] == 0.0f);
        assert_true(fabs(sum[i] / DRAWS - g[i]) <=
                    6 * fabs(g[i]) * sqrt(9.0 / DRAWS) + 1e-6); /* the variance is 9 g^2 */
    }
    free(g), free(sum), codec_close(&r);
}

TEST(many_payloads_and_corruption) {
    enum { N = 5000, MANY = 6 };
    opened_codec r = codec_open(codec_named("randomk"), "ratio=0.05", N, NULL, 1);
    esp_payload p[MANY];
    float *one = calloc(N, 4), *all = malloc(N * 4);
    for (int i = 0; i < MANY; i++) {
        float *g = random_array(N);
        r.args.step = (uint64_t)i / 2;
        assert_int_equal(codec_compress(&r, g, 0), ESP_OK);
        p[i].data = (esp_buf){malloc(r.used), r.used, {ESP_CPU, 0}};
        memcpy(p[i].data.ptr, r.payload.data.ptr, r.used);
        free(g);
    }
    r.args.scale = 0.5f;
    for (int i = 0; i < MANY; i++) assert_int_equal(codec_decompress(&r, &p[i], 1, one, ESP_OUT_SUM), ESP_OK);
    assert_int_equal(codec_decompress(&r, p, MANY, all, ESP_OUT_SET), ESP_OK);
    assert_memory_equal(one, all, N * 4);
    for (uint64_t bit = 0; bit < 8 * 24; bit++) {
        ((uint8_t *)p[3].data.ptr)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        esp_status st = codec_decompress(&r, p, MANY, all, ESP_OUT_SUM);
        /* If the flag for NaN or for an empty payload flips, the payload is still valid. */
        assert_int_equal(st, bit == 48 || bit == 49 ? ESP_OK : ESP_E_CORRUPT);
        if (st != ESP_OK) assert_memory_equal(one, all, N * 4);
        memcpy(all, one, N * 4);
        ((uint8_t *)p[3].data.ptr)[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    r.payload.data.bytes = r.used - 1;
    assert_int_equal(codec_compress(&r, one, 0), ESP_E_TOO_SMALL);
    for (int i = 0; i < MANY; i++) free(p[i].data.ptr);
    free(one), free(all), codec_close(&r);
}
