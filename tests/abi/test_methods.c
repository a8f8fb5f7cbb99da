/* test_methods.c checks plugins/methods.h, the functions for plugin authors, against slow forms. */
#include "tests/lib/test.h"
#include "plugins/methods.h"

enum { N = 1003 };
static uint64_t seed = 7;
static float uniform(void) { return (float)(test_random32(&seed) >> 8) / 8388608.0f - 1.0f; }

TEST(packing) {
    unsigned char code[N], packed[N + 1], back[N];
    for (uint32_t bits = 1; bits <= 8; bits++)
        for (uint64_t n = 0; n <= N; n = n < 20 ? n + 1 : n + 983) {
            const uint64_t bytes = esp_packed_bytes(n, bits);
            assert_int_equal(bytes, (n * bits + 7) / 8);
            for (uint64_t i = 0; i < n; i++) code[i] = (unsigned char)(test_random32(&seed) & ((1u << bits) - 1));
            memset(packed, 0xAA, sizeof packed);
            esp_pack(packed, code, n, bits);
            assert_int_equal(packed[bytes], 0xAA); /* nothing beyond */
            for (uint64_t i = 0; i < n * bits; i++)
                assert_int_equal(packed[i / 8] >> i % 8 & 1, code[i / bits] >> i % bits & 1);
            esp_unpack(back, packed, n, bits);
            assert_memory_equal(back, code, n);
        }
}

TEST(quantizing) {
    float x[N], out[N], noise[N];
    unsigned char code[N];
    for (int i = 0; i < N; i++) x[i] = uniform(), out[i] = 1.0f;
    const float most = esp_largest(x, N), unit = most / 7;
    for (int i = 0; i < N; i++) assert_true(fabsf(x[i]) <= most);
    esp_quantize(code, x, N, unit, 7, NULL);
    esp_dequantize(out, code, N, unit, 7, 2.0f, 0);
    for (int i = 0; i < N; i++) assert_true(fabsf(out[i] - 1.0f - 2 * x[i]) <= unit * 1.001f && code[i] <= 14);
    esp_quantize(code, x, N, 0.0f, 7, NULL);
    esp_dequantize(out, code, N, 0.0f, 7, 1.0f, 1);
    for (int i = 0; i < N; i++) assert_true(out[i] == 0.0f && code[i] == 7);
    double sum = 0, wanted = 0; /* with noise it is right on average */
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < N; i++) noise[i] = 0.5f * uniform() + 0.5f, wanted += (double)x[i];
        esp_quantize(code, x, N, unit, 7, noise);
        for (int i = 0; i < N; i++) sum += (double)((float)((int)code[i] - 7) * unit);
    }
    assert_true(fabs(sum - wanted) < 6 * (double)unit * 0.5 * sqrt(300.0 * N));
}

TEST(sparsifying) {
    float x[N], value[N], out[N];
    uint32_t index[N];
    for (int i = 0; i < N; i++) x[i] = i % 3 ? uniform() : (float)(i % 7) - 3.0f; /* many equal ones */
    static const uint64_t counts[] = {1, 2, 10, 143, 500, N - 1, N};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const uint64_t k = counts[c];
        esp_sparsify(index, value, k, x, N);
        assert_true(esp_sparse_valid(index, k, N));
        bool chosen[N] = {false};
        for (uint64_t i = 0; i < k; i++) chosen[index[i]] = true;
        for (int i = 0; i < N; i++) {
            uint64_t before = 0; /* number of elements that are preferred to this one */
            for (int j = 0; j < N; j++) before += fabsf(x[j]) > fabsf(x[i]) || (fabsf(x[j]) == fabsf(x[i]) && j < i);
            assert_int_equal(chosen[i], before < k);
        }
        esp_desparsify(out, N, index, value, k, 0.5f, 1);
        for (int i = 0; i < N; i++) assert_true(out[i] == (chosen[i] ? 0.5f * x[i] : 0.0f));
    }
    index[1] = index[0];
    assert_false(esp_sparse_valid(index, 2, N));
    index[0] = N;
    assert_false(esp_sparse_valid(index, 1, N));
}

TEST(feedback) {
    float g[N], e[N], phi[N];
    for (int i = 0; i < N; i++) g[i] = uniform(), e[i] = uniform();
    assert_true(esp_feedback_add(phi, g, e, 0.5f, 2.0f, N));
    for (int i = 0; i < N; i++) assert_true(phi[i] == 0.5f * e[i] + 2.0f * g[i]);
    assert_true(esp_feedback_add(phi, g, NULL, 0.5f, 2.0f, N));
    assert_memory_equal(phi, g, sizeof g);
    g[17] = INFINITY;
    assert_false(esp_feedback_add(phi, g, e, 1.0f, 1.0f, N));
}
