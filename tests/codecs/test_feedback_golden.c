/* test_feedback_golden.c compares error feedback over several steps with golden.py: the moving average of codec loco on
 * one rank, and 1-bit Adam's all-reduce on four ranks, where those that sum compress again and keep an error, too. */
/* runs: tsan-long */
#include "tests/lib/library.h"
#include "tests/lib/test.h"
#include "golden/golden_feedback.inc"

static float gradient(uint64_t i, int step, int rank) {
    return (float)((int)((3 * i * i + 17 * (uint64_t)step + 29 * (uint64_t)rank + i) % 61) - 30) / 16.0f;
}

typedef struct task {
    const char *codec, *option;
    float result[FEEDBACK_STEPS][FEEDBACK_N], residual[FEEDBACK_STEPS][FEEDBACK_N]; /* of rank 0 */
} task;

static void body(esp_ctx *ctx, void *user) {
    task *k = user;
    float g[FEEDBACK_N];
    esp_tensor_desc d = {.name = "w", .count = FEEDBACK_N, .codec = k->codec, .option = k->option};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < FEEDBACK_STEPS; step++) {
        for (uint64_t i = 0; i < FEEDBACK_N; i++) g[i] = gradient(i, step, esp_rank(ctx));
        CHECK(esp_push(ctx, 0, g, (esp_stream)ESP_ZERO) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (esp_rank(ctx)) continue;
        memcpy(k->result[step], g, sizeof g);
        CHECK(ctx->active.n_feedback > 0 && ctx->active.feedback[0].raw);
        memcpy(k->residual[step], ctx->active.feedback[0].residual, sizeof g);
    }
}

static void same(const char *what, const float (*x)[FEEDBACK_N], const double (*want)[FEEDBACK_N]) {
    for (int step = 0; step < FEEDBACK_STEPS; step++)
        for (int i = 0; i < FEEDBACK_N; i++)
            if (!(fabs((double)x[step][i] - want[step][i]) <= 1e-6))
                fail_msg("%s, step %d, element %d: %.9g, not %.9g", what, step, i, (double)x[step][i], want[step][i]);
}

#define TWO_WAY "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu"

TEST(moving_average) {
    static task k = {.codec = "loco:beta=0.75,reset=4,of=(onebit:block=32)",
                     .option = "comp@cpu > flat.allgather > decomp@cpu"};
    RUN_RANKS(.size = 1, .body = body, .user = &k);
    same("residual", k.residual, golden_loco);
    for (int step = 1; step < FEEDBACK_STEPS; step++) /* what was sent, from the residual before and after */
        for (int i = 0; i < FEEDBACK_N; i++) {
            const float phi = k.residual[step - 1][i] + gradient((uint64_t)i, step, 0), left = phi - k.result[step][i];
            const float want = step == 3 ? 0 : 0.75f * k.residual[step - 1][i] + 0.25f * left;
            assert_true(fabsf(k.residual[step][i] - want) <= 1e-6f);
        }
}

TEST(two_way) {
    static task k = {.codec = "efsignsgd:norm=2", .option = TWO_WAY};
    RUN_RANKS(.size = FEEDBACK_RANKS, .body = body, .user = &k);
    same("result", k.result, golden_two_way);
}

/* With beta=0 and no reset, the average is the last error, and where ranks compress again, the residual is used like
 * any other: the results are those of the inner codec alone, but for rounding. */
TEST(no_average) {
    static task k = {.codec = "loco:beta=0,reset=0,of=(efsignsgd)", .option = TWO_WAY};
    static task plain = {.codec = "efsignsgd", .option = TWO_WAY};
    RUN_RANKS(.size = FEEDBACK_RANKS, .body = body, .user = &k);
    RUN_RANKS(.size = FEEDBACK_RANKS, .body = body, .user = &plain);
    for (int step = 0; step < FEEDBACK_STEPS; step++)
        for (int i = 0; i < FEEDBACK_N; i++) assert_true(fabsf(k.result[step][i] - plain.result[step][i]) <= 1e-6f);
}
