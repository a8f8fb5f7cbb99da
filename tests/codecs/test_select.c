/* test_select.c checks the selection of the k largest elements (codecs/common/select.h) against sorting, for inputs
 * with many equal numbers and extremes, on every instruction set. */
#include "tests/lib/test.h"
#include "codecs/common/select.h"
#include "tests/codecs/one_codec.h"

enum { KINDS = 12 };
static uint64_t test_rng = 1;
static uint32_t test_random(void) { return test_random32(&test_rng) >> 1; }
static float test_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static float test_number(int kind, uint64_t i) {
    uint32_t r = test_random();
    switch (kind) {
    case 0: return (float)((double)r / 1e9 - 1.0);
    case 1: return 0.5f;                      /* all equal */
    case 2: return r & 1 ? 0.25f : -0.25f;    /* equal magnitudes */
    case 3: return (float)(r % 5) - 2.0f;     /* few values */
    case 4: return test_float(r % 1000);      /* denormals */
    case 5: return r & 1 ? 0.0f : -0.0f;      /* zeros */
    case 6: return i == 77 ? -3.0f : 0.0f;    /* one spike */
    case 7: return r % 200 ? 0.0f : (float)r; /* mostly zeros */
    case 8: return -(float)(1 + r % 1000000); /* all negative */
    case 9: return (float)i;
    case 10: return i % 5000 < 40 ? 100.0f + (float)(r % 7) : 1e-3f * (float)(r % 11); /* in clumps */
    default: return test_float((r & 0x80000000u) | r % 0x7f800000u);                   /* every exponent */
    }
}

typedef struct test_pair {
    uint32_t mag;
    uint64_t i;
} test_pair;
static int test_order(const void *a, const void *b) {
    const test_pair *p = a, *q = b;
    if (p->mag != q->mag) return p->mag < q->mag ? 1 : -1;
    return p->i < q->i ? -1 : 1;
}
static int test_by_index(const void *a, const void *b) {
    const test_pair *p = a, *q = b;
    return p->i < q->i ? -1 : 1;
}

static const float *test_load(const void *arg, uint64_t at, uint64_t n, float *buf) { return (const float *)arg + at; }

static void test_one(const float *x, test_pair *sorted, uint64_t n, uint64_t k, int level, int threads,
                     uint64_t sample) {
    esp_host host = {0};
    host.struct_size = sizeof host;
    host.parallel_for = threads ? codec_parallel : NULL;
    select_job s = {0};
    s.host = &host;
    s.simd = level;
    s.load = test_load;
    s.arg = x;
    s.count = n;
    s.k = k;
    s.n_sample = sample;
    s.sample_from = sample * 7;
    void *scratch = malloc(select_scratch_bytes(n, k));
    assert_true(select_run(&s, scratch));
    uint64_t at = 0;
    for (uint64_t b = 0; b < select_blocks(n); b++)
        for (uint64_t j = 0; j < s.block[b].n; j++, at++) {
            uint64_t i = b * SELECT_BLOCK / SELECT_SPAN * SELECT_SPAN + s.idx[s.block[b].at + j];
            assert_true(at < k);
            assert_int_equal(i, sorted[at].i);
            assert_memory_equal(&s.val[s.block[b].at + j], &x[i], 4);
        }
    assert_int_equal(at, k);
    free(scratch);
}

TEST(against_sorting) {
    const uint64_t sizes[] = {1, 2, 3, 15, 16, 17, 31, 33, 100, 4095, 4096, 4097, 20000, 65536, 65537, 200001};
    const double ratios[] = {1e-9, 0.001, 0.01, 0.3, 0.9, 1.0};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++) {
            uint64_t n = sizes[z];
            float *x = malloc(n * sizeof *x);
            test_pair *all = malloc(n * sizeof *all), *top = malloc(n * sizeof *all);
            for (uint64_t i = 0; i < n; i++) x[i] = test_number(kind, i), all[i].mag = select_bits(x[i]), all[i].i = i;
            qsort(all, n, sizeof *all, test_order);
            for (size_t r = 0; r < sizeof ratios / sizeof *ratios; r++) {
                uint64_t k = (uint64_t)(ratios[r] * (double)n);
                k = k < 1 ? 1 : k;
                memcpy(top, all, n * sizeof *all);
                qsort(top, k, sizeof *top, test_by_index);
                for (int level = 0; level <= esp_simd_best(); level++)
                    test_one(x, top, n, k, level, level & 1, select_sample(n));
                test_one(x, top, n, k, esp_simd_best(), 1, 0);
            }
            free(x), free(all), free(top);
        }
}

TEST(kth_of_few_and_many) {
    for (uint64_t n = 1; n < 20000; n = n * 3 + 1) {
        float *x = malloc(n * sizeof *x);
        test_pair *all = malloc(n * sizeof *all);
        for (uint64_t i = 0; i < n; i++)
            x[i] = test_number(n % 2 ? 0 : 3, i), all[i].mag = select_bits(x[i]), all[i].i = i;
        qsort(all, n, sizeof *all, test_order);
        for (uint64_t k = 1; k <= n; k += 1 + n / 17) {
            uint64_t above, larger = 0;
            assert_int_equal(select_kth(x, n, k, 0, SELECT_INF - 1, &above), all[k - 1].mag);
            while (larger < n && all[larger].mag > all[k - 1].mag) larger++;
            assert_int_equal(above, larger);
        }
        free(x), free(all);
    }
}

/* NaN or Inf is found wherever it is, and reported rather than selected. */
TEST(not_finite) {
    const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00001u, 0x7f800001u};
    const uint64_t sizes[] = {1, 17, 4096, 4100, 200001};
    for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++)
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++)
            for (int level = 0; level <= esp_simd_best(); level++)
                for (int where = 0; where < 3; where++) {
                    uint64_t n = sizes[z];
                    float *x = calloc(n, sizeof *x);
                    x[where == 0 ? 0 : where == 1 ? n / 2 : n - 1] = test_float(bad[j]);
                    select_job s = {0};
                    s.simd = level;
                    s.load = test_load;
                    s.arg = x;
                    s.count = n;
                    s.k = 1;
                    s.n_sample = select_sample(n);
                    void *scratch = malloc(select_scratch_bytes(n, 1));
                    assert_false(select_run(&s, scratch));
                    free(scratch), free(x);
                }
}
