/* test_weight.c checks esp_weight: weighted means, equal weights, ranks without data, residuals, and its errors. */
/* runs: tsan */
#include "tests/lib/test.h"

enum { N = 5000, SIZE = 3 };
static const esp_stream cpu;

typedef struct task {
    const char *codec;
    esp_dtype dtype;
} task;

static void step(esp_ctx *ctx, void *g) { CHECK(esp_push(ctx, 0, g, cpu) == ESP_OK && esp_wait_all(ctx) == ESP_OK); }

static void start(esp_ctx *ctx, const task *k, uint32_t flags) {
    const esp_tensor_desc d = {.name = "w", .count = N, .codec = k->codec, .dtype = k->dtype, .flags = flags};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK);
}

/* Weights 3, 1, 0 of gradients 4 i, 8 i and NaN: the mean is 5 i, without rounding. */
static void exact(esp_ctx *ctx, void *user) {
    static const float weights[SIZE] = {3, 1, 0};
    const task *k = user;
    float g[N];
    start(ctx, k, 0);
    CHECK(esp_weight(ctx, weights[esp_rank(ctx)]) == ESP_OK);
    for (int s = 0; s < 2; s++) {
        for (uint64_t i = 0; i < N; i++)
            test_value_set(k->dtype, g, i, esp_rank(ctx) == 2 ? NAN : (float)((esp_rank(ctx) + 1) * 4 * (int)(i % 9)));
        step(ctx, g);
        uint64_t bad = 0;
        for (uint64_t i = 0; i < N; i++) bad += test_value(k->dtype, g, i) != (float)(5 * (i % 9));
        CHECK(!bad);
    }
}
TEST(test_exact) {
    static const char *const codecs[] = {NULL, "topk:ratio=1", "fp16"};
    for (int c = 0; c < 3; c++)
        for (esp_dtype d = ESP_F32; d <= ESP_BF16; d++)
            RUN_RANKS(.size = SIZE, .body = exact, .user = &(task){codecs[c], d});
}

/* Equal weights must give the same bits as no weights. With different weights, all ranks must have the same bits. */
static void bits(esp_ctx *ctx, void *user) {
    const task *k = user;
    float g[2][N];
    start(ctx, k, 0);
    for (int w = 0; w < 2; w++) {
        if (w) CHECK(esp_weight(ctx, 0.1f) == ESP_OK);
        CHECK(!esp_feedback_clear(ctx));
        for (int i = 0; i < N; i++) g[w][i] = sinf((float)(i * 3 + esp_rank(ctx) * 17));
        step(ctx, g[w]);
    }
    CHECK(!memcmp(g[0], g[1], sizeof g[0]));
    CHECK(esp_weight(ctx, 0.3f + (float)esp_rank(ctx)) == ESP_OK);
    step(ctx, g[0]);
    check_same_bits(ctx, g[0], sizeof g[0]);
}
TEST(test_bits) {
    static const char *const codecs[] = {NULL, "topk:ratio=0.01", "fp16", "efsignsgd"};
    for (int c = 0; c < 4; c++) RUN_RANKS(.size = SIZE, .body = bits, .user = &(task){codecs[c], ESP_F32});
}

/* What topk does not send, it adds to the next step. So sums over many steps approach the exact ones, although a rank
 * has no data in every second step. */
static void residuals(esp_ctx *ctx, void *user) {
    enum { STEPS = 400 };
    static float sums[SIZE][N];
    float g[N], *sum = sums[esp_rank(ctx)], want = 0;
    memset(sum, 0, N * sizeof *sum);
    start(ctx, user, 0);
    for (int s = 0; s < STEPS; s++) {
        const float mine = esp_rank(ctx) == 1 && s % 2 ? 0.0f : (float)(esp_rank(ctx) + 1);
        CHECK(esp_weight(ctx, mine) == ESP_OK);
        for (int i = 0; i < N; i++) g[i] = mine != 0 ? (float)(esp_rank(ctx) + 1) : 77.0f;
        step(ctx, g);
        want += s % 2 ? (1.0f + 9.0f) / 4 : (1.0f + 4.0f + 9.0f) / 6;
        for (int i = 0; i < N; i++) sum[i] += g[i];
    }
    for (int i = 0; i < N; i++) CHECK(fabsf(sum[i] / want - 1.0f) < 0.1f);
}
TEST(test_residuals) { RUN_RANKS(.size = SIZE, .body = residuals, .user = &(task){"topk:ratio=0.1", ESP_F32}); }

static void join(esp_ctx *ctx, void *user) {
    float g[N];
    int steps = 0, batches = 2 + 3 * esp_rank(ctx);
    start(ctx, user, 0);
    while (esp_weight(ctx, steps < batches ? 1.0f : 0.0f) == ESP_OK) {
        int with_data = 0;
        for (int r = 0; r < SIZE; r++) with_data += steps < 2 + 3 * r;
        for (int i = 0; i < N; i++) g[i] = 6.0f;
        step(ctx, g);
        CHECK(with_data > 0 && g[0] == 6.0f && g[N - 1] == 6.0f);
        steps++;
    }
    CHECK(steps == 2 + 3 * (SIZE - 1) && error_has(ctx, "all ranks passed 0"));
}
TEST(test_join) { RUN_RANKS(.size = SIZE, .body = join, .user = &(task){NULL, ESP_F32}); }

static void sums_and_errors(esp_ctx *ctx, void *user) {
    float g[N];
    start(ctx, user, ESP_SUM);
    CHECK(esp_weight(ctx, (float)esp_rank(ctx)) == ESP_OK);
    for (int i = 0; i < N; i++) g[i] = 2.0f;
    step(ctx, g);
    CHECK(g[0] == 2.0f * SIZE);
    CHECK(esp_weight(ctx, esp_rank(ctx) == 1 ? -1.0f : 1.0f) == ESP_E_ARG && error_has(ctx, "rank 1 passed -1"));
    CHECK(esp_weight(ctx, esp_rank(ctx) == 2 ? NAN : 1.0f) == ESP_E_ARG && error_has(ctx, "rank 2"));
    CHECK(esp_push(ctx, 0, g, cpu) == ESP_OK && esp_weight(ctx, 1.0f) == ESP_E_STATE);
    CHECK(esp_wait_all(ctx) == ESP_OK);
}
TEST(test_sums_and_errors) { RUN_RANKS(.size = SIZE, .body = sums_and_errors, .user = &(task){NULL, ESP_F32}); }
