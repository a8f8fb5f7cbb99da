/* test_allreduce.c checks esp_allreduce_as: sums, maxima and minima of all its types, with the same bits on all ranks;
 * and that no rank succeeds if ranks call it or esp_broadcast with different arguments. */
/* runs: tsan */
#include "tests/lib/test.h"

enum { N = 100003, SIZE = 3 };

#define CHECK_TYPE(type, dtype, value)                                                                                 \
    do {                                                                                                               \
        type *x = malloc(N * sizeof *x);                                                                               \
        for (uint32_t op = ESP_REDUCE_SUM; op <= ESP_REDUCE_MIN; op++) {                                               \
            uint64_t bad = 0;                                                                                          \
            for (int i = 0, r = rank; i < N; i++) x[i] = value;                                                        \
            CHECK(esp_allreduce_as(ctx, x, N, dtype, op) == ESP_OK);                                                   \
            for (int i = 0, r = 0; i < N; i++) {                                                                       \
                type want = value;                                                                                     \
                for (r = 1; r < SIZE; r++) {                                                                           \
                    const type v = value;                                                                              \
                    if (op == ESP_REDUCE_SUM)                                                                          \
                        want += v;                                                                                     \
                    else if (op == ESP_REDUCE_MAX ? v > want : v < want)                                               \
                        want = v;                                                                                      \
                }                                                                                                      \
                r = 0;                                                                                                 \
                bad += memcmp(&x[i], &want, sizeof want) != 0;                                                         \
            }                                                                                                          \
            CHECK(!bad);                                                                                               \
        }                                                                                                              \
        free(x);                                                                                                       \
    } while (0)

static void body(esp_ctx *ctx, void *user) {
    const int rank = esp_rank(ctx);
    double nan[2] = {1, rank == 1 ? NAN : 2};
    int64_t wraps = INT64_MAX;
    (void)user;
    CHECK_TYPE(float, ESP_F32, sinf((float)(i * 3 + r)));
    CHECK_TYPE(double, ESP_F64, sin(i * 3 + r) * 1e200);
    CHECK_TYPE(int32_t, ESP_I32, (i % 1000 - 500) * (r + 1));
    CHECK_TYPE(int64_t, ESP_I64, (int64_t)(i - 500) * (r + 1) * 1000000007);
    CHECK(!esp_allreduce_as(ctx, nan, 2, ESP_F64, ESP_REDUCE_MAX) && nan[0] == 1 && isnan(nan[1]));
    CHECK(!esp_allreduce_as(ctx, &wraps, 1, ESP_I64, ESP_REDUCE_SUM) && wraps == INT64_MAX - 2);
    CHECK(esp_allreduce_as(ctx, nan, 0, ESP_F64, ESP_REDUCE_SUM) == ESP_OK);
    CHECK(esp_allreduce_as(ctx, nan, 1, ESP_F16, ESP_REDUCE_SUM) == ESP_E_ARG && error_has(ctx, "dtype 2"));
    CHECK(esp_allreduce_as(ctx, nan, 1, ESP_F64, 4) == ESP_E_ARG && error_has(ctx, "op 4"));
    CHECK(esp_allreduce_as(ctx, nan, 1, ESP_F64, 0) == ESP_E_ARG && error_has(ctx, "op 0"));
    CHECK(esp_allreduce_as(ctx, NULL, 1, ESP_F64, ESP_REDUCE_SUM) == ESP_E_ARG);
}
TEST(test_types) {
    RUN_RANKS(.size = SIZE, .body = body);
    RUN_RANKS(.size = SIZE, .per_machine = 1, .body = body, .config.backend = "shm");
}

static void differ(esp_ctx *ctx, void *user) {
    const int rank = esp_rank(ctx);
    float x[100] = {0};
    (void)user;
    CHECK(esp_broadcast(ctx, x, rank ? 396 : 400, 0) == ESP_E_MISMATCH && error_has(ctx, "396"));
    CHECK(esp_broadcast(ctx, x, rank ? 400 : 0, 0) == ESP_E_MISMATCH && error_has(ctx, "bytes"));
    CHECK(esp_broadcast(ctx, x, rank ? 401 : 402, 0) == ESP_E_MISMATCH && error_has(ctx, "402"));
    CHECK(esp_broadcast(ctx, x, 400, rank % 2) == ESP_E_MISMATCH && error_has(ctx, "gives root"));
    CHECK(esp_allreduce_as(ctx, x, rank ? 100 : 99, ESP_F32, ESP_REDUCE_SUM) == ESP_E_MISMATCH && error_has(ctx, "99"));
    CHECK(esp_allreduce_as(ctx, x, 100, rank ? ESP_F32 : ESP_I32, ESP_REDUCE_SUM) == ESP_E_MISMATCH &&
          error_has(ctx, "gives dtype"));
    CHECK(esp_allreduce_as(ctx, x, 100, ESP_F32, rank ? ESP_REDUCE_SUM : ESP_REDUCE_MAX) == ESP_E_MISMATCH &&
          error_has(ctx, "gives op"));
    x[7] = (float)rank;
    CHECK(esp_broadcast(ctx, x, sizeof x, 1) == ESP_OK && x[7] == 1.0f); /* the context is still usable */
}
TEST(test_differ) {
    RUN_RANKS(.size = SIZE, .body = differ);
    RUN_RANKS(.size = SIZE, .per_machine = 1, .body = differ, .config.backend = "shm");
}
