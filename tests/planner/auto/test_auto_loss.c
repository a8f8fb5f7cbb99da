/* test_auto_loss.c checks how strategy "auto" protects the loss: it prefers codecs that are safe with the trainer's
 * optimizer, and returns to fp32 on all ranks if the reported losses rise after a change. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "autopilot_world.h"
#include "espresso_impl/base/quantile.h"

static const char few[] = "topk:ratio=0.01", options[] = "auto:steps=6,window=8";

static int says(const world *w, const char *what) {
    if (strstr(w->heard, what)) return 1;
    fprintf(stderr, "not said: %s\nin:\n%s", what, w->heard);
    return 0;
}

/* ---- the optimizer ----------------------------------------------------------------------------------------------- */
static world *trained_with(uint32_t optimizer, float momentum) {
    world *w = world_new();
    w->specs[0] = few;
    w->optimizer = optimizer;
    w->momentum = momentum;
    w->hears = 1;
    return w;
}

/* With some optimizers, training with topk needs more steps to the same loss. Then fp16 must be chosen, which only
 * rounds numbers. */
TEST(test_safe_first) {
    static const struct {
        uint32_t optimizer;
        float momentum;
        const char *chosen, *says[2];
    } cases[] = {
        {ESP_OPTIMIZER_UNKNOWN,
         0,
         " topk:ratio=0.01 ",
         {"what topk:ratio=0.01 costs in loss depends on the optimizer"}},
        {ESP_OPTIMIZER_SGD, 0, " topk:ratio=0.01 ", {"expected with optimizer sgd: a loss within 4% of fp32's"}},
        {ESP_OPTIMIZER_MOMENTUM, 0.5f, " topk:ratio=0.01 ", {"with optimizer momentum:0.5: a loss within 4%"}},
        {ESP_OPTIMIZER_ADAM, -1, " fp16 ", {"optimizer adam:0: a loss within 3% of fp32's", " x 1.5 steps"}},
        {ESP_OPTIMIZER_MOMENTUM, 0, " fp16 ", {"not tried, because predicted over 1.5 times as slow: ", " x 4 steps"}},
        {ESP_OPTIMIZER_ADAM, 0, " fp16 ", {"optimizer adam:0.9: a loss within 1% of fp32's", " x 3 steps"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world *w = trained_with(cases[i].optimizer, cases[i].momentum);
        run(w, options, few, 4, 2);
        if (!strstr(w->last[0], cases[i].chosen)) fail_msg("case %zu: %s", i, w->last[0]);
        for (int k = 0; k < 2 && cases[i].says[k]; k++) assert_true(says(w, cases[i].says[k]));
        free(w);
    }
}

/* Although training with topk needs more steps, topk is chosen where it takes less time to the same loss than fp16. */
TEST(test_unsafe_where_it_wins) {
    for (int i = 0; i < 2; i++) {
        world *w = trained_with(ESP_OPTIMIZER_ADAM, 0);
        w->slow_rate = i ? 0.05 : 0.3;
        w->fp32_ms[1] = i ? 115.0 : 20.0;
        w->gentle_ms = i ? 60.0 : 3.0;
        run(w, options, few, 4, 2);
        assert_int_equal(strstr(w->last[0], few) != NULL, i);
        if (i) assert_true(says(w, "with optimizer adam:0.9 and topk:ratio=0.01: at first 3 times as many steps"));
        free(w);
    }
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */
static double noise(int32_t rank, int step) { /* from -0.5 to 0.5, the same in every run */
    const uint32_t h = (uint32_t)(step * 7919 + rank * 104729 + 12345) * 2654435761u;
    return (double)(h >> 8) / (double)(1u << 24) - 0.5;
}
static double learns(const world *w, const esp_ctx *ctx, int step) {
    return 0.5 + 2.0 * exp(-step / 60.0) + 0.4 * noise(ctx->job.rank, step);
}
static int lossy(const esp_ctx *ctx) { return strstr(ctx->active.strategy.text, "topk") != NULL; }
/* A loss that jumps by 3 at step 80 if topk is active. */
static double jumps(const world *w, const esp_ctx *ctx, int step) {
    return learns(w, ctx, step) + (step > 80 && lossy(ctx) ? 3.0 : 0.0);
}
static double creeps(const world *w, const esp_ctx *ctx, int step) {
    return learns(w, ctx, step) + (step > 120 && lossy(ctx) ? 0.01 * (step - 120) : 0.0);
}
static double peaks(const world *w, const esp_ctx *ctx, int step) {
    return learns(w, ctx, step) + (step > 80 && step % 16 < 2 ? 30.0 : 0.0);
}
static double one_rank(const world *w, const esp_ctx *ctx, int step) {
    return ctx->job.rank == 2 ? jumps(w, ctx, step) : NO_LOSS;
}
static double once_nan(const world *w, const esp_ctx *ctx, int step) {
    return ctx->job.rank == 1 && step == 90 ? (double)NAN : learns(w, ctx, step);
}
static double inf_in_the_try(const world *w, const esp_ctx *ctx, int step) {
    return ctx->job.rank == 3 && step == 12 ? (double)INFINITY : learns(w, ctx, step);
}
static double always_nan(const world *w, const esp_ctx *ctx, int step) { return (double)NAN; }

static world *reports(double (*loss)(const world *, const esp_ctx *, int), int steps) {
    world *w = world_new();
    w->loss = loss;
    w->steps = steps;
    w->hears = 1;
    return w;
}

/* The strategy stays if the loss falls and is noisy, has single peaks, or was not finite before the change either. */
TEST(test_stays) {
    static double (*const cases[])(const world *, const esp_ctx *, int) = {learns, peaks, always_nan};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world *w = reports(cases[i], 300);
        run(w, options, "topk:ratio=0.25", 4, 2);
        assert_non_null(strstr(w->last[0], "topk"));
        assert_null(strstr(w->heard, "returned to fp32"));
        free(w);
    }
}

TEST(test_returns) {
    static const struct {
        double (*loss)(const world *, const esp_ctx *, int);
        int after, before;
        const char *says;
    } cases[] = {
        {jumps, 80, 100, "the loss rose to "},
        {one_rank, 80, 120, "the loss rose to "},
        {creeps, 120, 240, "the loss rose to "},
        {once_nan, 90, 96, "rank 1 reported a loss that is not finite"},
        {inf_in_the_try, 11, 20, "rank 3 reported a loss that is not finite"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world *w = reports(cases[i].loss, 300);
        run(w, options, "topk:ratio=0.25", 4, 2);
        if (!says(w, cases[i].says)) fail_msg("case %zu", i);
        assert_true(
            says(w, "returned to fp32; codecs with a compression error of over 5% are off for the rest of this job"));
        const int again = first_in(w, "measuring", 10);
        assert_true(again >= cases[i].after && again <= cases[i].before);
        assert_null(strstr(w->last[0], "topk"));
        assert_non_null(strstr(w->last[0], " fp16 "));
        free(w);
    }
}

/* The loss rises at step 80 under every strategy; a strategy whose codecs only round must stay active. */
static double jumps_anyway(const world *w, const esp_ctx *ctx, int step) {
    return learns(w, ctx, step) + (step > 80 ? 3.0 : 0.0);
}
TEST(test_not_its_fault) {
    world *w = reports(jumps_anyway, 200);
    run(w, options, NULL, 4, 2);
    assert_non_null(strstr(w->last[0], " fp16 "));
    assert_null(strstr(w->heard, "returned to fp32"));
    free(w);
}

/* int4 has a small compression error but is lossy. After the loss rises with it, only codecs that round numbers may be
 * used. */
static double jumps_twice(const world *w, const esp_ctx *ctx, int step) {
    return learns(w, ctx, step) + (step > 80 && strstr(ctx->active.strategy.text, " int4 ") ? 3.0 : 0.0);
}
TEST(test_returns_from_rounding) {
    world *w = reports(jumps_twice, 200);
    w->specs[0] = "int4";
    w->tolerance = 0.05;
    run(w, options, "int4", 4, 2);
    assert_true(says(w, "returned to fp32; lossy codecs are off for the rest of this job"));
    assert_null(strstr(w->last[0], "int4"));
    assert_non_null(strstr(w->last[0], " fp16 "));
    free(w);
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */
enum { LOOKS = 20000, REPORTS = 16 };
static double uniform(uint64_t *at) { /* between 0 and 1 */
    return ((double)(test_random64(at) >> 11) + 0.5) / 9007199254740992.0;
}
static double drawn(uint64_t *at, int kind) { /* random numbers with mean 0 and variance 1 */
    const double u = uniform(at), v = uniform(at);
    const double normal = sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
    return kind == 0   ? normal
           : kind == 1 ? -log(u) - 1.0
           : kind == 2 ? (2.0 * u - 1.0) * sqrt(3.0)
                       : (exp(normal) - 1.6487) / 2.1612;
}

static esp__losses look(uint64_t *at, int kind, double level) {
    double v[REPORTS];
    for (int i = 0; i < REPORTS; i++) v[i] = level + 0.3 * drawn(at, kind);
    esp__losses x = {REPORTS, -1, esp__median(v, REPORTS), 0.0};
    x.spread = esp__quartile_distance(v, REPORTS);
    return x;
}

static int fires(int kind, uint64_t seed, int from, double rise) {
    esp__losses before = {0, -1, 0.0, 0.0};
    int in_a_row = 0, n = 0;
    for (int i = 0; i < LOOKS; i++) {
        const esp__losses now = look(&seed, kind, i < from ? 1.0 : 1.0 + rise);
        in_a_row = esp__losses_risen(&before, &now) ? in_a_row + 1 : 0;
        n += in_a_row >= 2;
    }
    return n;
}

/* Losses that vary around a constant must never count as risen, whatever their distribution. After a large rise, they
 * must in every check. */
TEST(test_rule) {
    for (int kind = 0; kind < 4; kind++) {
        assert_int_equal(fires(kind, 1, LOOKS, 0.0), 0);
        assert_true(fires(kind, 1, LOOKS / 2, 3.0) >= LOOKS / 2 - 2);
    }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */
static void calls(esp_ctx *ctx, void *user) {
    esp_tensor_desc d = {.name = "t", .count = 8};
    CHECK(esp_report_loss(ctx, 1.0) == ESP_E_STATE && strstr(esp_last_error(ctx), "esp_start first"));
    CHECK(!esp_tensor_add(ctx, &d, NULL) && !esp_start(ctx));
    CHECK(esp_report_loss(ctx, 1.0) == ESP_OK && esp_report_loss(ctx, (double)NAN) == ESP_OK);
}
TEST(test_call) {
    static const char *const strategies[] = {"fp32", "auto"};
    for (int i = 0; i < 2; i++) RUN_RANKS(.size = 2, .body = calls, .config.strategy = strategies[i]);
    assert_int_equal(esp_report_loss(NULL, 1.0), ESP_E_ARG);
}

static void disagrees(esp_ctx *ctx, void *user) {
    esp_tensor_desc d = {.name = "t", .count = 8};
    if (esp_rank(ctx) == 1) ctx->config.momentum = 0.5;
    CHECK(!esp_tensor_add(ctx, &d, NULL));
    CHECK(esp_start(ctx) == ESP_E_MISMATCH);
    CHECK(strstr(esp_last_error(ctx), "'optimizer adam:0.9'") && strstr(esp_last_error(ctx), "'optimizer adam:0.5'"));
}
TEST(test_ranks_agree) {
    RUN_RANKS(.size = 2, .body = disagrees, .config.strategy = "auto", .config.optimizer = ESP_OPTIMIZER_ADAM);
}
