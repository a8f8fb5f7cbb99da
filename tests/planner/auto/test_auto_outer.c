/* test_auto_outer.c runs strategy "auto" in outer contexts, where a round is a step, with made-up times of inner steps
 * and exchanges. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "autopilot_world.h"

enum { SIZE = 3, INNER = 600 };
static const esp_stream here;
typedef float model[TENSORS][1000];

/* Exchanges without compression, with topk and with fp16 take so many ms, and inner steps take alone_ms. */
typedef struct setting {
    const char *outer, *strategy, *wins;
    double ms[3], alone_ms, busy;
    uint32_t every, fragments, delay; /* afterwards */
} setting;
static const setting settings[] = {
    {"average:every=4", "auto", "topk", {40, 5, 20}, 1, 0, 4, 1, 0},
    {"average:every=4", "auto", "fp16", {40, 30, 5}, 1, 0, 4, 1, 0},
    {"diloco:every=4", "auto", "fp32", {10, 11, 12}, 1, 0, 4, 1, 0},
    /* of 4 ms in 410, no codec saves the 2% that it must, and of 4 in 5 it does */
    {"diloco:every=4", "auto", "fp32", {4, 1, 2}, 101.5, 0, 4, 1, 0},
    {"diloco:max_every=60", "auto", "topk", {4, 1, 2}, 1, 0, 19, 1, 0},
    /* a delay hides what is no work of the processor */
    {"average:every=10,delay=4", "auto", "fp32", {4, 1, 2}, 1, 0, 10, 1, 4},
    {"average:every=10,delay=4", "auto", "topk", {4, 1, 2}, 1, 1, 10, 1, 4},
    {"average:every=12,fragments=3,delay=2", "auto", "topk", {40, 5, 20}, 1, 0, 12, 3, 2},
    {"average:max_every=60,max_fragments=3,max_delay=2", "auto:min_gain=0.1", "fp16", {40, 19, 20}, 1, 0, 60, 3, 2},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static void times(void *user, const esp_ctx *ctx, esp__outer_times *out) {
    const setting *k = user;
    const char *text = ctx->active.strategy.text;
    out->alone_ns = k->alone_ms * 1e6;
    out->exchange_ns = 1e6 * k->ms[strstr(text, "topk") ? 1 : strstr(text, "fp16") ? 2 : 0];
    out->busy_ns = out->exchange_ns * k->busy;
}
static esp_status costs(void *user, esp_ctx *ctx, esp_plan_system *s, esp_plan_codec *codecs, uint32_t *n) {
    world *w = world_new();
    (void)user;
    const esp_status st = world_costs(w, ctx, s, codecs, n);
    free(w);
    return st;
}

static void begin(esp_ctx *ctx, const setting *k, model w) {
    const esp_outer_desc o = {.method = k->outer};
    char name[16];
    CHECK(esp_outer_open(ctx, &o) == ESP_OK);
    for (uint32_t t = 0; t < TENSORS; t++) {
        snprintf(name, sizeof name, "t%u", t);
        const esp_tensor_desc d = {.name = name, .count = counts[t]};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    esp__autopilot_of(ctx)->source.costs = costs;
    ctx->outer->timer.times = times;
    ctx->outer->timer.user = (void *)(uintptr_t)k;
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++) w[t][i] = (float)((i * 7 + t) % 13) - 5.5f;
        CHECK(esp_outer_add(ctx, t, w[t]) == ESP_OK);
    }
}
static void steps(esp_ctx *ctx, model w, int from, int to) {
    for (int s = from; s < to; s++) {
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint64_t i = 0; i < counts[t]; i++)
                w[t][i] -= 0.001f * (float)((i * 3 + (uint64_t)(s * 5 + ctx->job.rank * 11)) % 17);
        CHECK(esp_outer_step(ctx, here) == ESP_OK);
    }
}
static bool settled(const esp_ctx *ctx) { return !ctx->outer->timer.on && !strcmp(ctx->steps.phase, "done"); }
static void ends_with(esp_ctx *ctx, const setting *k, model w) {
    const esp__outer *o = ctx->outer;
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    for (uint32_t t = 0; t < TENSORS; t++) check_same_bits(ctx, w[t], counts[t] * sizeof(float));
    CHECK(settled(ctx));
    CHECK(o->every == k->every && o->fragments == k->fragments && o->delay == k->delay);
    const char *text = esp_strategy_text(ctx);
    const bool topk = strstr(text, "topk") != NULL, fp16 = strstr(text, "fp16") != NULL;
    CHECK(topk == !strcmp(k->wins, "topk") && fp16 == !strcmp(k->wins, "fp16"));
    if (topk != !strcmp(k->wins, "topk") || o->every != k->every || o->fragments != k->fragments)
        fprintf(stderr, "%s: %u, %u, %u\n%s\n", k->outer, o->every, o->fragments, o->delay, text);
}

static void body_chooses(esp_ctx *ctx, void *user) {
    const setting *k = user;
    model w;
    int n = 0;
    begin(ctx, k, w);
    while (!settled(ctx) && n < INNER) {
        CHECK(ctx->outer->delay == 0);
        steps(ctx, w, n, n + 1), n++;
    }
    steps(ctx, w, n, n + 30);
    ends_with(ctx, k, w);
}
TEST(test_the_fastest_exchange_wins) {
    for (int i = 0; i < SETTINGS; i++)
        for (int32_t machine = 1; machine <= SIZE; machine += 2)
            RUN_RANKS(.size = SIZE, .per_machine = machine, .body = body_chooses,
                      .user = (void *)(uintptr_t)&settings[i], .config.strategy = settings[i].strategy,
                      .config.codec = "topk:ratio=0.25", .config.min_compress_elements = 1);
}

/* Times that are not made up: an inner step takes 3 ms, also where a sync ends the first round early. */
static void body_alone(esp_ctx *ctx, void *user) {
    const bool syncs = user != NULL;
    model w;
    begin(ctx, &(setting){.outer = syncs ? "average:every=6" : "average:every=1"}, w);
    ctx->outer->timer.times = NULL;
    for (int n = 0; n < INNER && !settled(ctx); n++) {
        usleep(3000);
        steps(ctx, w, n, n + 1);
        if (syncs && !n) CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    }
    CHECK(settled(ctx) && ctx->outer->timer.alone_ns >= 2.9e6);
}
TEST(test_time_of_inner_steps) {
    for (int syncs = 0; syncs < 2; syncs++)
        RUN_RANKS(.size = 2, .per_machine = 1, .body = body_alone, .user = syncs ? "" : NULL, .config.strategy = "auto",
                  .config.min_compress_elements = 1);
}

/* ---- saved state ------------------------------------------------------------------------------------------------- */
static char saved[64];
static model after[SIZE], then[SIZE][24];
static bool had_chosen;
static void body_save(esp_ctx *ctx, void *user) {
    const int at = *(const int *)user;
    model w;
    begin(ctx, &settings[7], w);
    steps(ctx, w, 0, at);
    CHECK(esp_state_save(ctx, saved) == ESP_OK);
    if (!ctx->job.rank) had_chosen = settled(ctx);
    memcpy(after[ctx->job.rank], w, sizeof w);
    for (int k = 0; k < 24; k++) {
        steps(ctx, w, at + k, at + k + 1);
        memcpy(then[ctx->job.rank][k], w, sizeof w);
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
static void body_resume(esp_ctx *ctx, void *user) {
    const int at = *(const int *)user;
    model w;
    begin(ctx, &settings[7], w);
    steps(ctx, w, 0, 5);
    memcpy(w, after[ctx->job.rank], sizeof w);
    CHECK(esp_state_load(ctx, saved) == ESP_OK);
    if (!had_chosen) {
        for (int n = 0; !settled(ctx) && n < INNER; n++) steps(ctx, w, n, n + 1);
        return ends_with(ctx, &settings[7], w);
    }
    CHECK(settled(ctx));
    for (int k = 0; k < 24; k++) {
        steps(ctx, w, at + k, at + k + 1);
        for (uint32_t t = 0; t < TENSORS; t++)
            CHECK(!memcmp(w[t], then[ctx->job.rank][k][t], counts[t] * sizeof(float)));
    }
    ends_with(ctx, &settings[7], w);
}
TEST(test_state, folder_make, folder_remove) {
    int states[2] = {0, 0};
    snprintf(saved, sizeof saved, "%s", in_folder("state"));
    for (int at = 1; at < 260; at += 17) {
        test_job j = {.size = SIZE, .per_machine = 1, .body = body_save, .user = &at};
        j.config.strategy = "auto", j.config.codec = "topk:ratio=0.25", j.config.min_compress_elements = 1;
        test_run_well(&j);
        states[had_chosen]++;
        j.body = body_resume;
        test_run_well(&j);
    }
    assert_true(states[0] > 2 && states[1] > 2);
}

/* ---- lost ranks -------------------------------------------------------------------------------------------------- */
/* Rank 1 leaves, while strategies are tried or later. The others try again. */
static void body_lost(esp_ctx *ctx, void *user) {
    const int leaves = *(const int *)user;
    const bool stays = ctx->job.rank != 1;
    model w;
    esp_status s = ESP_OK;
    begin(ctx, &settings[7], w);
    for (int n = 0; n < INNER && !s && !(ctx->job.size == 2 && settled(ctx)); n++) {
        if (n == leaves && !stays) return;
        for (uint32_t t = 0; t < TENSORS; t++)
            for (uint64_t i = 0; i < counts[t]; i++) w[t][i] -= 0.001f * (float)((i * 3 + (uint64_t)n) % 17);
        s = esp_outer_step(ctx, here);
        while (s == ESP_E_PEER) s = esp_shrink(ctx);
    }
    CHECK(s == ESP_OK && ctx->job.size == 2);
    ends_with(ctx, &settings[7], w);
}
TEST(test_lost_rank) {
    for (int leaves = 3; leaves < 300; leaves += 66)
        RUN_RANKS(.size = SIZE, .per_machine = 1, .body = body_lost, .user = &leaves, .config.strategy = "auto",
                  .config.codec = "topk:ratio=0.25", .config.min_compress_elements = 1, .config.timeout_ms = 20000,
                  .config.progress = "threads");
}

/* ---- wrong inputs ------------------------------------------------------------------------------------------------ */
static void body_refused(esp_ctx *ctx, void *user) {
    const esp_outer_desc o = {.method = "average:every=4,window=5"}, plain = {.method = "average:every=4"};
    const esp_tensor_desc d = {.name = "w", .count = 8};
    const bool window = !strcmp(user, "window");
    CHECK(esp_outer_open(ctx, window ? &o : &plain) == ESP_OK && esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) != ESP_OK && error_has(ctx, user));
}
TEST(test_refused) {
    RUN_RANKS(.size = 2, .body = body_refused, .user = "window", .config.strategy = "auto");
    RUN_RANKS(.size = 2, .body = body_refused, .user = "warmup", .config.strategy = "auto:warmup=5");
}
