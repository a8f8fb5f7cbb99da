/* test_autopilot.c runs strategy "auto" from start to end with made-up step times and link costs. All ranks must
 * make every decision at the same step, and no strategy may lose a part of a gradient. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "autopilot_world.h"

static const char options[] = "auto:steps=6,window=8", topk[] = "topk:ratio=0.25";

static int switches(const world *w) {
    int n = 0;
    for (int s = 1; s < w->steps; s++) n += w->hash[0][s] != w->hash[0][s - 1];
    return n;
}

/* Returns the step after which the strategy did not change any more. */
static int settled(const world *w) {
    int s = w->steps - 1;
    while (s && w->hash[0][s] == w->hash[0][s - 1]) s--;
    return s;
}

static world *world_heard(void) {
    world *w = world_new();
    w->hears = 1;
    return w;
}

/* ---- the phases in their usual order: measure steps, try candidates, watch the chosen one ---------------------- */
TEST(test_switch) {
    static const int32_t sizes[][2] = {{4, 2}, {3, 3}, {2, 1}, {4, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        world *w = world_heard();
        run(w, options, topk, sizes[i][0], sizes[i][1]);
        if (sizes[i][1] < sizes[i][0]) { /* with a slow link, topk wins */
            assert_non_null(strstr(w->last[0], "topk"));
            assert_non_null(strstr(w->heard, ": chose "));
            assert_non_null(strstr(w->heard, ", in ms a step: "));
            assert_non_null(strstr(w->heard, "fp32 20.0"));
        }
        assert_int_equal(first_in(w, "measuring", 0), 0);
        assert_int_equal(first_in(w, "trying", 0), 4); /* five steps waited as long as five steps compute */
        assert_true(settled(w) < 60);
        assert_true(first_in(w, "watching", 0) > 0 && first_in(w, "watching", 0) < 60);
        for (int32_t r = 0; r < sizes[i][0]; r++) assert_int_equal(w->allocated[r], 0);
        free(w);
    }
}

TEST(test_least_gain) {
    static const struct {
        double ms;
        int wins;
    } cases[] = {{6.5, 0}, {6.0, 0}, {5.95, 0}, {5.7, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world *w = world_new();
        w->slow_to = 0;
        w->compressed_ms[0] = cases[i].ms;
        run(w, options, topk, 4, 2);
        assert_int_equal(w->hash[0][0] != w->hash[0][w->steps - 1], cases[i].wins);
        assert_int_equal(first_in(w, "stays with fp32", 0) > 0, !cases[i].wins);
        free(w);
    }
}

TEST(test_one_rank) {
    world *w = world_new();
    run(w, "auto", NULL, 1, 1);
    assert_int_equal(switches(w), 0);
    free(w);
}

/* Without a list of codecs, the autopilot uses only codecs that round numbers, such as fp16. The list "none" allows no
 * codec. */
TEST(test_opt_in) {
    static const char *const codecs[] = {NULL, "none"};
    for (int i = 0; i < 2; i++) {
        world *w = world_new();
        run(w, options, codecs[i], 4, 2);
        assert_int_equal(w->ran[0], 0);
        assert_int_equal(w->ran[1] > 0, !i);
        free(w);
    }
}

/* ---- measured times decide, not predicted ones ------------------------------------------------------------------- */
/* fp16 is not tried at first, because topk was predicted to be far faster. topk turns out slower, so fp16 is tried, and
 * wins. */
TEST(test_wrong_prediction) {
    world *w = world_heard();
    w->compressed_ms[1] = 21.0;
    w->gentle_ms = -9.0;
    run(w, options, topk, 4, 2);
    assert_non_null(strstr(w->last[0], " fp16 "));
    assert_null(strstr(w->last[0], "topk"));
    free(w);
}

TEST(test_excluded) {
    world *w = world_heard();
    w->slow_rate = 0.1;
    w->fp32_ms[1] = 60.0;
    run(w, options, topk, 4, 2);
    assert_non_null(strstr(w->heard, "; not tried, because predicted over 1.5 times as slow: "));
    assert_true(w->ran[0] > 0 && w->ran[1] == 0);
    free(w);
}

TEST(test_tie) {
    world *w = world_heard();
    w->slow_rate = 1.0;
    w->gentle_ms = 0.0;
    run(w, options, topk, 4, 2);
    assert_true(w->ran[0] > 0);
    assert_null(strstr(w->last[0], "topk"));
    assert_non_null(strstr(w->last[0], " fp16 "));
    free(w);
}

TEST(test_layerwise) {
    for (int wins = 0; wins < 2; wins++) {
        world *w = world_new();
        w->compressed_ms[1] = 8.0;
        w->gentle_ms = 4.0;
        w->layerwise_ms = wins ? 6.0 : 9.0;
        run(w, options, topk, 4, 2);
        assert_int_equal(layerwise(w->last[0]), wins);
        free(w);
    }
}

/* Other programs make step times vary. A strategy that is 1.6 times as fast must win nevertheless. */
TEST(test_busy) {
    for (uint32_t seed = 0; seed < test_repeats(12); seed++) {
        world *w = world_new();
        w->steps = 440;
        w->noise = 0.16;
        w->seed = seed;
        w->compressed_ms[1] = 12.5;
        w->gentle_ms = 5.0;
        run(w, options, topk, 4, 2);
        assert_non_null(strstr(w->last[0], "topk"));
        assert_true(settled(w) <= 420);
        free(w);
    }
}

/* Strategies that turn out slower than predicted cost at most the time of 30 steps with fp32, even if all are
 * slower. */
TEST(test_cost) {
    for (int i = 0; i < 3; i++) {
        static const double slower[] = {21.0, 25.0, 40.0};
        world *w = world_new();
        double lost = 0.0;
        w->compressed_ms[1] = slower[i];
        run(w, options, topk, 4, 2);
        assert_int_equal(w->hash[0][w->steps - 1] == w->hash[0][0], 1);
        for (int s = 0; s < w->steps; s++) lost += w->ms[s] - 20.0;
        if (lost > 30.0 * 20.0) fail_msg("%g ms a step: lost %g steps", slower[i], lost / 20.0);
        free(w);
    }
}

/* Candidates that are about as fast run for more steps if step times vary, as the ranks tell each other. */
TEST(test_noise) {
    int settles[2];
    for (int noisy = 0; noisy < 2; noisy++) {
        world *w = world_new();
        w->compressed_ms[1] = w->fp32_ms[1] = 9.0;
        w->noise = noisy ? 0.4 : 0.001;
        w->steps = 440;
        run(w, options, topk, 2, 1);
        settles[noisy] = first_in(w, "watching", 0);
        free(w);
    }
    if (settles[1] < settles[0] + 12) fail_msg("%d and %d steps", settles[0], settles[1]);
}

/* Another program ends during the tournament. Strategies that run afterwards must not win because of that. */
TEST(test_machine_freed) {
    world *w = world_new();
    w->fp32_ms[1] = 9.0;
    w->compressed_ms[1] = 9.5;
    w->busy_to = 10;
    run(w, options, topk, 4, 2);
    assert_true(first_in(w, "trying", 0) < 10);
    assert_null(strstr(w->last[0], "topk"));
    assert_int_equal(w->hash[0][w->steps - 1] == w->hash[0][0], 1);
    free(w);
}

/* If ranks wait for communication for only 1% of a step, no strategy can gain enough to be worth a change. So none is
 * tried. */
TEST(test_hidden) {
    static const double waiting[] = {0.01, 0.2};
    for (int i = 0; i < 2; i++) {
        world *w = world_heard();
        w->waits_less = 2;
        w->waiting = waiting[i];
        w->busy_from = 60;
        w->busy_to = 1 << 30;
        if (!i) w->steps = 300;
        run(w, "auto:steps=6,window=8,cooldown=20", topk, 4, 2);
        assert_int_equal(first_in(w, "trying", 0) > 0, i);
        assert_int_equal(switches(w) > 0, i);
        if (!i) assert_int_equal(first_in(w, "measuring", 20), -1);
        if (!i) assert_non_null(strstr(w->heard, "fp32 stays, nothing was tried"));
        free(w);
    }
}

/* If all ranks wait for communication for most of the step, measuring costs much, so only the first step is
 * measured. */
TEST(test_measures_little) {
    world *w = world_new();
    w->waits_less = -2;
    w->waiting = 0.9;
    run(w, "auto:steps=20,window=8", topk, 4, 2);
    assert_int_equal(first_in(w, "trying", 0), 0);
    free(w);
}

/* ---- drift ------------------------------------------------------------------------------------------------------- */
TEST(test_drift) {
    world *w = world_heard();
    w->steps = 300;
    w->slow_from = 120; /* the link slows, so compression pays now */
    run(w, "auto:steps=6,window=8,cooldown=20", topk, 4, 2);
    assert_int_equal(w->hash[0][0] == w->hash[0][119], 1);
    int again = first_in(w, "measuring", 20);
    assert_true(again >= 124 && again < 150);
    assert_non_null(strstr(w->last[0], "topk"));
    assert_non_null(strstr(w->heard, "instead of 6.00"));
    free(w);

    w = world_new();
    w->steps = 300;
    w->slow_to = 120; /* the link is fast again, so compression does not pay */
    w->compressed_ms[0] = 5.0;
    w->fp32_ms[0] = 4.5;
    run(w, "auto:steps=6,window=8,cooldown=20", topk, 4, 2);
    assert_int_equal(w->hash[0][w->steps - 1] == w->hash[0][0], 1);
    free(w);
}

TEST(test_cooldown) {
    world *w = world_new();
    w->steps = 560;
    w->hears = 1;
    w->compressed_ms[0] = w->compressed_ms[1] = 30.0;
    w->swings = 1;
    run(w, "auto:steps=6,window=4,cooldown=30", topk, 4, 2);
    int starts[16], n = 0;
    for (int s = 10; s < w->steps && n < 16; s++)
        if (!strcmp(w->phase[0][s], "measuring") && strcmp(w->phase[0][s - 1], "measuring") != 0) starts[n++] = s;
    assert_true(n >= 3 && n <= 5);
    for (int i = 1; i < n; i++) assert_true(starts[i] - starts[i - 1] >= 30 << i);
    free(w);
}

/* ---- limits that the user sets ----------------------------------------------------------------------------------- */
TEST(test_warmup) {
    world *w = world_new();
    w->steps = 260;
    w->gentle_ms = 2.0;
    run(w, "auto:steps=6,window=8,warmup=100", topk, 4, 2);
    assert_non_null(strstr(w->last[0], "topk"));
    assert_true(settled(w) >= 100);
    free(w);
}

TEST(test_rounding) {
    world *w = world_new();
    run(w, "auto:steps=6,window=8,warmup=1000", topk, 4, 2);
    assert_null(strstr(w->last[0], "topk"));
    assert_non_null(strstr(w->last[0], " fp16 "));
    free(w);
}

TEST(test_max_error) {
    world *w = world_new();
    run(w, "auto:steps=6,window=8,max_error=0.1", topk, 4, 2);
    assert_null(strstr(w->last[0], "topk"));
    free(w);
}

/* If the codec's error is too large for one tensor on one rank, no rank uses this codec for the tensor any more. Other
 * tensors keep the codec. */
TEST(test_max_error_of_one_rank) {
    world *w = world_new();
    w->steps = 200;
    w->excess = 2;
    run(w, options, topk, 4, 2);
    assert_true(settled(w) > first_in(w, "watching", 0));
    const char *line = strstr(w->last[0], "tensor t2 ");
    assert_non_null(line);
    assert_non_null(strstr(w->last[0], "topk"));
    char one[512];
    snprintf(one, sizeof one, "%.*s", (int)strcspn(line, "\n"), line);
    assert_null(strstr(one, "topk"));
    free(w);
}

/* Makes a test with two measured codecs from a plugin. */
static world *world_outside(void) {
    static char path[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    world *w = world_new();
    snprintf(path, sizeof path, "%s/tests/abi/libespresso-everysecond.so", build ? build : "./build");
    w->plugin = path;
    w->specs[0] = "everysecond", w->specs[1] = "upperhalf";
    return w;
}

TEST(test_outside_codec) {
    world *w = world_outside();
    run(w, options, "everysecond", 4, 2);
    assert_non_null(strstr(w->last[0], " everysecond "));
    free(w);
    w = world_outside();
    run(w, options, NULL, 4, 2);
    assert_null(strstr(w->last[0], " everysecond "));
    assert_non_null(strstr(w->last[0], " upperhalf "));
    free(w);
    w = world_outside(); /* a lossy codec waits for the end of the warmup */
    run(w, "auto:steps=6,window=8,warmup=1000", "everysecond", 4, 2);
    assert_null(strstr(w->last[0], " everysecond "));
    assert_non_null(strstr(w->last[0], " upperhalf "));
    free(w);
}

TEST(test_outside_codec_falls_back) {
    world *w = world_outside();
    char one[512];
    w->steps = 200;
    w->excess = 2;
    run(w, options, "everysecond", 4, 2);
    const char *line = strstr(w->last[0], "tensor t2 ");
    assert_non_null(line);
    assert_non_null(strstr(w->last[0], " everysecond "));
    snprintf(one, sizeof one, "%.*s", (int)strcspn(line, "\n"), line);
    assert_non_null(strstr(one, " upperhalf "));
    free(w);
}

TEST(test_program_takes_over) {
    world *w = world_new();
    w->sets_own_at = 60;
    run(w, options, topk, 4, 2);
    assert_string_equal(w->phase[0][w->steps - 1], "off");
    assert_true(w->hash[0][w->steps - 1] == w->hash[0][0]);
    free(w);
}

/* A job that ends before auto has chosen a strategy is told so. */
TEST(test_ends_early) {
    for (int chosen = 0; chosen < 2; chosen++) {
        world *w = world_heard();
        w->steps = chosen ? 120 : 2;
        w->waits_less = -2, w->waiting = chosen ? 0.0 : 0.5; /* without waiting, fp32 stays */
        run(w, options, topk, 4, 2);
        assert_int_equal(strstr(w->heard, "before auto has chosen") != NULL, !chosen);
        if (!chosen) assert_non_null(strstr(w->heard, "the job ends after step 3, "));
        free(w);
    }
}

/* ---- wrong input ------------------------------------------------------------------------------------------------- */
static const char *refused_with;
static void refused(esp_ctx *ctx, void *user) {
    esp_tensor_desc d = {.name = "t", .count = 8};
    CHECK(!esp_tensor_add(ctx, &d, NULL));
    CHECK(esp_start(ctx) < 0);
    if (!strstr(esp_last_error(ctx), refused_with)) {
        fprintf(stderr, "'%s' is not in: %s\n", refused_with, esp_last_error(ctx));
        atomic_fetch_add(&failures, 1);
    }
}

TEST(test_bad_input) {
    static const char *const cases[][3] = {
        {"auto:stepps=20", NULL, "position 6: there is no key 'stepps'; keys: steps=20"},
        {"auto:steps", NULL, "position 6: expected key=value"},
        {"auto:window=50,steps=three", NULL, "position 16: 'steps=three': expected a whole number"},
        {"auto:steps=3", NULL, "expected a whole number from 4"},
        {"auto:min_gain=-1", NULL, "expected a number from 0"},
        {"auto:plan=espresso+", NULL, "there is no key 'plan'"},
        {"auto", "nosuch", "nosuch"},
        {"auto", "topk:ratio=0.1;;topk:rato=2", "rato"},
        {"auto", "none;topk", "'none' allows no codec"},
        {"auto", "top k", "without blanks"},
        {"auto",
         "topk:ratio=0.1;topk:ratio=0.2;topk:ratio=0.3;topk:ratio=0.4;topk:ratio=0.5;topk:ratio=0.6;dgc;topk;"
         "randomk",
         "at most 8 codecs"},
        {"auto", "warmup:of=(topk;dgc)", "of=(topk;dgc): \"topk;dgc\", position 5: expected a name"},
        {"auto", "dgc;warmup:of=(topk:ratio=7)", "of=(topk:ratio=7): topk: parameter ratio=7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused_with = cases[i][2];
        RUN_RANKS(.size = 2, .body = refused, .config.strategy = cases[i][0], .config.codec = cases[i][1]);
    }
}

/* A tensor whose description names a codec or an option keeps it under every candidate, and its codec is used for no
 * other tensor. The autopilot plans the others as usual. */
TEST(test_described) {
    static const struct {
        const char *codec, *option, *list;
        int compressed; /* whether auto compresses other tensors */
        int real;
    } cases[] = {
        {"topk:ratio=0.25", NULL, NULL, 1},    {"topk:ratio=0.25", "comp@cpu > flat.allgather > decomp@cpu", NULL, 1},
        {"topk:ratio=0.25", NULL, "none", 0},  {NULL, "flat.allreduce", NULL, 1},
        {"fp16", NULL, "topk:ratio=0.25", 1},  {"topk:ratio=0.1", NULL, NULL, 1, 1},
        {"powersgd:rank=1", NULL, NULL, 1, 1}, {NULL, "comp@cpu > flat.allgather > decomp@cpu", NULL, 1, 1}};
    static const int32_t sizes[][2] = {{4, 2}, {2, 1}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        world *w = world_heard();
        char line[256], word[64];
        w->described = cases[i / 2].codec, w->option = cases[i / 2].option;
        w->real = w->matrices = cases[i / 2].real;
        w->excess = w->described ? DESCRIBED : -1; /* a too large error changes nothing here */
        if (w->real) w->steps = 500, w->specs[0] = w->described ? w->described : "";
        run(w, options, cases[i / 2].list, sizes[i % 2][0], sizes[i % 2][1]);
        assert_null(strstr(w->heard, "planning failed"));
        assert_null(strstr(w->heard, "falls back"));
        assert_true(first_in(w, "watching", 0) > 0);
        const char *at = strstr(w->last[0], "tensor t2 1000 ");
        assert_non_null(at);
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        snprintf(word, sizeof word, " %s ", w->described ? w->described : "none");
        assert_non_null(strstr(line, word));
        if (w->option) assert_non_null(strstr(line, w->option));
        if (w->described && !cases[i / 2].list) assert_int_equal(count_of(w->last[0], word), 1);
        if (!w->real)
            assert_int_equal(count_of(w->last[0], " fp16 ") + count_of(w->last[0], " topk") > 1,
                             cases[i / 2].compressed);
        free(w);
    }
}

static atomic_int complaints;
static void hear_complaint(void *user, const esp_log_event *ev) {
    complaints += strstr(ev->message, "warmup") || !strncmp(ev->component, "ESP_E_", 6);
}
static void start_only(esp_ctx *ctx, void *user) {
    tensor_add(ctx, "w", 100);
    CHECK(!esp_start(ctx));
    CHECK(!*esp_last_error(ctx));
}

/* The autopilot opens all codecs with their defaults. That some, such as warmup, have none is neither logged nor the
 * last error. */
TEST(test_quiet_start) {
    const esp_host host = {.struct_size = sizeof host,
                           .abi_major = ESP_ABI_MAJOR,
                           .log = hear_complaint,
                           .alloc = test_host_alloc,
                           .free_ = test_host_free};
    RUN_RANKS(.size = 2, .body = start_only, .config.strategy = "auto", .config.host = &host,
              .config.log_level = ESP_LOG_INFO);
    assert_int_equal(complaints, 0);
}

/* Some codecs compress a gradient several times, with a reduction in between. They are chosen if they win. A tensor
 * for which the error of such a codec is too large gets another codec or none. */
TEST(test_rounds) {
    static const char *const specs[] = {"powersgd:rank=1", "int8:shared=1"};
    char word[64], one[512];
    for (int i = 0; i < 4; i++) {
        world *w = world_new();
        w->specs[0] = specs[i % 2];
        w->matrices = 1;
        w->tolerance = 0.05;
        if (i > 1) w->steps = 200, w->excess = 2;
        run(w, options, specs[i % 2], 4, 2);
        snprintf(word, sizeof word, " %s ", specs[i % 2]);
        assert_true(switches(w) >= 1 + (i > 1));
        const char *line = strstr(w->last[0], "tensor t2 ");
        assert_non_null(line);
        snprintf(one, sizeof one, "%.*s", (int)strcspn(line, "\n"), line);
        assert_true(!strstr(one, word) == (i > 1)); /* tensor t2 lost too much in cases 2 and 3 */
        free(w);
    }
}

TEST(test_rounds_real) {
    world *w = world_new();
    w->real = w->matrices = 1;
    w->steps = 150;
    run(w, "auto:steps=40,window=4,cooldown=0", "powersgd:rank=1;int8:shared=1", 4, 2);
    assert_true(first_in(w, "trying", 0) >= 0);
    free(w);
}

TEST(test_real) {
    static const int32_t sizes[][2] = {{4, 2}, {3, 3}, {3, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        world *w = world_new();
        w->real = 1;
        w->steps = 150;
        run(w, "auto:steps=40,window=4,cooldown=0", topk, sizes[i][0], sizes[i][1]);
        assert_true(first_in(w, "trying", 0) >= 0);
        free(w);
    }
}

/* If communication without compression is predicted to take over ten times as long, the first step is compressed, and
 * no step at all runs without. fp16 only halves it. On a busy machine, predictions may be wrong. */
typedef struct beginning {
    bool compressed, trying, fp32_ran;
} beginning;
static void begins(esp_ctx *ctx, void *user) {
    enum { N = 200000, STEPS_MADE = 8 };
    float *grads = calloc(N, sizeof *grads);
    beginning b = {0};
    tensor_add(ctx, "w", N);
    CHECK(!esp_start(ctx));
    b.compressed = compresses(ctx);
    for (int step = 0; step < STEPS_MADE; step++) {
        CHECK(!esp_push(ctx, 0, grads, (esp_stream)ESP_ZERO) && !esp_wait_all(ctx));
        if (step == 0) b.trying = !strcmp(ctx->steps.phase, "trying");
    }
    const esp__tournament *t = &esp__autopilot_of(ctx)->tournament;
    for (uint32_t i = 0; i < t->n; i++) b.fp32_ran |= !strcmp(t->at[i].name, "fp32") && t->at[i].ns > 0.0;
    if (!esp_rank(ctx)) *(beginning *)user = b;
    free(grads);
}

TEST(test_first_step) {
    beginning b = {0};
    RUN_RANKS(.size = 2, .per_machine = 1, .body = begins, .user = &b, .config.strategy = "auto",
              .config.codec = "fp16", .config.backend = "loop:inter=200mbit,latency=50us");
    assert_false(b.compressed);
    for (int tries = 0; tries < 10 && (!b.compressed || !b.trying || b.fp32_ran); tries++)
        RUN_RANKS(.size = 2, .per_machine = 1, .body = begins, .user = &b, .config.strategy = "auto",
                  .config.codec = "topk:ratio=0.01", .config.backend = "loop:inter=5mbit,latency=50us");
    assert_true(b.compressed && b.trying && !b.fp32_ran);
}

/* If planning fails, training goes on. */
TEST(test_planning_fails) {
    world *w = world_new();
    w->costs_fail = 1;
    run(w, options, topk, 4, 2);
    assert_int_equal(switches(w), 0);
    assert_true(first_in(w, "stays with fp32", 0) > 0);
    free(w);
}

/* The context may be closed at every step without a deadlock or a leak. */
TEST(test_close_anywhere) {
    for (int steps = 1; steps < 30; steps += 3) {
        world *w = world_new();
        w->steps = steps;
        run(w, options, topk, 2, 1);
        free(w);
    }
}
