/* test_autopilot.c runs strategy "auto" from start to end with made-up step times and link costs. All ranks must
 * make every decision at the same step, and no strategy may lose a part of a gradient. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "autopilot_world.h"

/* ---- the usual life: measure, switch, check, watch --------------------------------------------------------------- */
TEST(test_switch) {
    static const int32_t sizes[][2] = {{4, 2}, {3, 3}, {2, 1}, {4, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        world *w = world_new();
        run(w, "auto:steps=6,window=8", "topk:ratio=0.25", sizes[i][0], sizes[i][1]);
        if (sizes[i][1] < sizes[i][0]) { /* with a slow link, topk wins */
            assert_int_equal(switches(w), 1);
            assert_non_null(strstr(w->last[0], "topk"));
        }
        assert_int_equal(first_in(w, "measuring", 0), 1);
        assert_int_equal(first_in(w, "planning", 0), 7);
        assert_true(first_in(w, "watching", 0) > 0);
        free(w);
    }
}

TEST(test_no_gain) {
    world *w = world_new();
    w->slow_to = 0;
    run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 4, 2);
    assert_int_equal(switches(w), 0);
    assert_true(first_in(w, "stays with fp32", 0) > 0);
    free(w);
}

TEST(test_one_rank) {
    world *w = world_new();
    run(w, "auto", NULL, 1, 1);
    assert_int_equal(switches(w), 0);
    free(w);
}

/* The autopilot uses lossy codecs only if the user names them, and codecs that round unless the user asks for
 * "none". */
TEST(test_opt_in) {
    world *w = world_new();
    run(w, "auto:steps=6,window=8", NULL, 4, 2);
    assert_null(strstr(w->last[0], "topk"));
    free(w);
    w = world_new();
    run(w, "auto:steps=6,window=8", "none", 4, 2);
    assert_null(strstr(w->last[0], "comp@"));
    free(w);
}

/* ---- what was promised does not come ----------------------------------------------------------------------------- */
TEST(test_return) {
    world *w = world_new();
    w->compressed_ms[1] = 21.0; /* 5% slower than fp32 */
    run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 4, 2);
    assert_int_equal(switches(w), 2);
    assert_true(w->hash[0][0] == w->hash[0][w->steps - 1]);
    assert_true(first_in(w, "stays with fp32", 0) > 0);
    free(w);
}

/* If the gain is unclear, the two strategies alternate, and the new one stays only if it wins by the least gain. */
TEST(test_turns) {
    static const struct {
        double ms;
        int switches, stays;
    } cases[] = {{19.5, 2, 0}, {19.04, 3, 1}, {18.0, 3, 1}, {16.9, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world *w = world_new();
        w->compressed_ms[1] = cases[i].ms;
        run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 4, 2);
        assert_int_equal(switches(w), cases[i].switches);
        assert_int_equal(strstr(w->last[0], "topk") != NULL, cases[i].stays);
        free(w);
    }
}

/* ---- what trying may cost ---------------------------------------------------------------------------------------- */
static int steps_tried(const world *w) { /* counts steps under another strategy than the first */
    int n = 0;
    for (int s = 0; s < w->steps; s++) n += w->hash[0][s] != w->hash[0][0];
    return n;
}

/* A plan that is far slower than predicted costs two steps, not the whole comparison. The next trial waits until
 * these steps are earned back, however often steps get slower. */
TEST(test_lost_try) {
    world *w = world_new();
    w->steps = 560;
    w->compressed_ms[1] = 40.0;
    w->busy_from = 60;
    w->busy_to = 1 << 30;
    run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
    assert_int_equal(steps_tried(w), 2);
    assert_int_equal(switches(w), 2);
    int again = first_in(w, "measuring", 20);
    assert_true(again >= 200 && again < 240);
    free(w);

    w = world_new(); /* a cheap trial ends normally, and a new one follows soon */
    w->steps = 160;
    w->compressed_ms[1] = 20.2;
    w->busy_from = 60;
    w->busy_to = 1 << 30;
    run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
    assert_int_equal(steps_tried(w), 13);
    again = first_in(w, "measuring", 20);
    assert_true(again >= 64 && again < 80);
    free(w);
}

/* After a wrong prediction, the autopilot trusts the next one less. */
TEST(test_lost_twice) {
    world *w = world_new();
    w->steps = 560;
    w->compressed_ms[1] = 60.0;
    w->busy_from = 20;
    w->busy_to = 1 << 30;
    w->busy = 2.0; /* the same plan still promises the least gain */
    run(w, "auto:steps=6,window=4,cooldown=0", "topk:ratio=0.25", 4, 2);
    assert_true(first_in(w, "measuring", 200) > 0); /* the lost steps are earned back by then */
    assert_int_equal(switches(w), 2);
    free(w);
}

/* Another job ends during the trial of a plan with a small predicted gain: the plan is not credited with the faster
 * steps. */
TEST(test_machine_freed) {
    world *w = world_new();
    w->steps = 260;
    w->compressed_ms[1] = 9.0; /* fp16 and, after the warmup, topk are equally fast */
    w->slow_rate = 0.45;       /* topk's predicted gain is small */
    w->busy_from = 60;
    w->busy_to = 104;
    run(w, "auto:steps=6,window=8,warmup=100,min_gain=0", "topk:ratio=0.25", 4, 2);
    int end = first_in(w, "planning", 90);
    assert_true(end > 90 && end <= 104);
    assert_true(first_in(w, "checking", end) > 0);
    assert_null(strstr(w->last[0], "topk"));
    free(w);
}

/* If no plan is predicted to win but much communication is exposed, layerwise gets one trial. */
TEST(test_tries_layerwise) {
    for (int wins = 0; wins < 2; wins++) {
        world *w = world_new();
        w->slow_to = 0; /* by the costs, compression does not pay */
        w->exposed = 0.4;
        w->compressed_ms[0] = wins ? 4.0 : 7.0;
        run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
        assert_int_equal(switches(w), wins ? 3 : 2); /* an unpredicted gain is measured twice */
        assert_int_equal(strstr(w->last[0], "topk") != NULL, wins);
        free(w);
    }
    world *w = world_new(); /* with little exposed communication, no trial follows */
    w->slow_to = 0;
    w->exposed = 0.3;
    run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
    assert_int_equal(switches(w), 0);
    free(w);
    for (int much = 0; much < 2; much++) { /* a small predicted gain also allows the trial */
        w = world_new();
        w->slow_rate = 1.5;
        w->exposed = much ? 0.2 : 0.05;
        w->compressed_ms[0] = 4.0;
        run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
        assert_int_equal(switches(w) > 0, much);
        free(w);
    }
}

/* If a plan is not clearly faster than layerwise is predicted to be, layerwise gets a trial too and the faster one
 * stays. The plan compresses only some tensors; predicted are 5.5 ms for it and 5.9 ms for layerwise. */
TEST(test_tries_second) {
    static const struct {
        double plan_ms, layerwise_ms;
        int stays;
    } runs[] = {{8.0, 6.0, 1}, {8.0, 9.0, 0}, {5.7, 4.5, 1}, {3.0, 2.5, 0}};
    for (int i = 0; i < 4; i++) {
        world *w = world_new();
        w->tries_second = 1;
        w->compressed_ms[1] = runs[i].plan_ms;
        w->layerwise_ms = runs[i].layerwise_ms;
        run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 4, 2);
        assert_int_equal(layerwise(w->last[0]), runs[i].stays);
        assert_int_equal(switches(w) > 1, runs[i].plan_ms > 5.0); /* more than one switch means a trial of layerwise */
        free(w);
    }
}

/* If one rank computes for nearly all of the step, no plan can bring the least gain, so the autopilot makes none. */
TEST(test_hidden) {
    static const double waiting[] = {0.04, 0.2};
    for (int i = 0; i < 2; i++) {
        world *w = world_new();
        w->waits_less = 2;
        w->waiting = waiting[i];
        w->busy_from = 60;
        w->busy_to = 1 << 30;
        if (!i) w->steps = 300;
        run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
        assert_int_equal(first_in(w, "planning", 0), i ? 7 : -1);
        assert_int_equal(switches(w), i);
        if (!i) assert_int_equal(first_in(w, "measuring", 20), -1);
        free(w);
    }
}

/* ---- drift ------------------------------------------------------------------------------------------------------- */
TEST(test_drift) {
    world *w = world_new();
    w->steps = 300;
    w->slow_from = 120; /* the link slows, so compression pays now */
    run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
    assert_int_equal(switches(w), 1);
    int again = first_in(w, "measuring", 20);
    assert_true(again >= 124 && again < 150); /* after two checks, half a window apart */
    assert_non_null(strstr(w->last[0], "topk"));
    free(w);

    w = world_new();
    w->steps = 300;
    w->slow_to = 120; /* the link is fast again, so compression does not pay */
    w->compressed_ms[0] = 5.0;
    w->fp32_ms[0] = 4.5;
    run(w, "auto:steps=6,window=8,cooldown=20", "topk:ratio=0.25", 4, 2);
    assert_true(first_in(w, "measuring", 120) > 0);
    free(w);
}

TEST(test_cooldown) {
    world *w = world_new();
    w->steps = 300;
    w->slow_from = 40;
    run(w, "auto:steps=6,window=8,cooldown=150", "topk:ratio=0.25", 4, 2);
    int again = first_in(w, "measuring", 20);
    int settled = first_in(w, "watching", 0);
    assert_true(again >= settled + 149 && again < settled + 160);
    free(w);
}

/* ---- limits the user sets ---------------------------------------------------------------------------------------- */
TEST(test_warmup) {
    world *w = world_new();
    w->steps = 260;
    w->gentle_ms = 2.0;
    run(w, "auto:steps=6,window=8,warmup=100,min_gain=0", "topk:ratio=0.25", 4, 2);
    assert_non_null(strstr(w->last[0], "topk"));
    for (int s = 1; s < 99; s++) CHECK(w->phase[0][s] != NULL);
    int last_switch = 0;
    for (int s = 1; s < w->steps; s++)
        if (w->hash[0][s] != w->hash[0][s - 1]) last_switch = s;
    assert_true(last_switch >= 100);
    free(w);
}

/* A codec that only rounds is not lossy, so it may be active before the warmup ends. */
TEST(test_rounding) {
    world *w = world_new();
    run(w, "auto:steps=6,window=8,warmup=1000", "topk:ratio=0.25", 4, 2);
    assert_null(strstr(w->last[0], "topk"));
    assert_non_null(strstr(w->last[0], " fp16 "));
    free(w);
}

TEST(test_max_error) {
    world *w = world_new();
    run(w, "auto:steps=6,window=8,max_error=0.1", "topk:ratio=0.25", 4, 2);
    assert_null(strstr(w->last[0], "topk"));
    free(w);
}

/* If a tensor's error is too large on one rank, it falls back on all ranks; other tensors keep their codec. */
TEST(test_max_error_of_one_rank) {
    world *w = world_new();
    w->steps = 200;
    w->excess = 2;
    run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 4, 2);
    assert_true(switches(w) >= 2);
    assert_true(first_in(w, "flushing", 0) > 0); /* residuals of reduce_scatter fit no other strategy */
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

/* A plugin's lossy codec is chosen if it wins and is named, one that only rounds if it wins. */
TEST(test_outside_codec) {
    world *w = world_outside();
    run(w, "auto:steps=6,window=8", "everysecond", 4, 2);
    assert_int_equal(switches(w), 1);
    assert_non_null(strstr(w->last[0], " everysecond "));
    free(w);
    w = world_outside();
    run(w, "auto:steps=6,window=8", NULL, 4, 2);
    assert_null(strstr(w->last[0], " everysecond "));
    assert_non_null(strstr(w->last[0], " upperhalf "));
    free(w);
    w = world_outside(); /* a lossy codec waits for the end of the warmup */
    run(w, "auto:steps=6,window=8,warmup=1000", "everysecond", 4, 2);
    assert_null(strstr(w->last[0], " everysecond "));
    assert_non_null(strstr(w->last[0], " upperhalf "));
    free(w);
}

/* A tensor that loses too much with one of a plugin's codecs falls back to the plugin's other, gentler codec. */
TEST(test_outside_codec_falls_back) {
    world *w = world_outside();
    char one[512];
    w->steps = 200;
    w->excess = 2;
    run(w, "auto:steps=6,window=8", "everysecond", 4, 2);
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
    run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 4, 2);
    assert_string_equal(w->phase[0][w->steps - 1], "off");
    assert_true(w->hash[0][w->steps - 1] == w->hash[0][0]);
    free(w);
}

/* ---- what is asked for wrongly ----------------------------------------------------------------------------------- */
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
        {"auto:plan=quick", NULL, "expected espresso+"},
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

/* Codecs of several rounds, with and without matrices, are planned, chosen if they win, and replaced if they lose
 * too much. */
TEST(test_rounds) {
    static const char *const specs[] = {"powersgd:rank=1", "int8:shared=1"};
    char word[64], one[512];
    for (int i = 0; i < 4; i++) {
        world *w = world_new();
        w->specs[0] = specs[i % 2];
        w->matrices = 1;
        w->tolerance = 0.05; /* error feedback rounds in every step */
        if (i > 1) w->steps = 200, w->excess = 2;
        run(w, "auto:steps=6,window=8", specs[i % 2], 4, 2);
        snprintf(word, sizeof word, " %s ", specs[i % 2]);
        assert_true(switches(w) >= 1 + (i > 1));
        const char *line = strstr(w->last[0], "tensor t2 ");
        assert_non_null(line);
        snprintf(one, sizeof one, "%.*s", (int)strcspn(line, "\n"), line);
        assert_true(!strstr(one, word) == (i > 1)); /* a tensor with too large an error falls back */
        free(w);
    }
}

/* The same with real measurements of the codec between steps. */
TEST(test_rounds_real) {
    world *w = world_new();
    w->real = w->matrices = 1;
    w->steps = 150;
    w->tolerance = 0.05;
    run(w, "auto:steps=40,window=4,cooldown=0", "powersgd:rank=1;int8:shared=1", 4, 2);
    assert_int_equal(first_in(w, "planning", 0), 41);
    free(w);
}

/* Real measurements and the planner: the decision is open, but all ranks make the same one and lose no gradient. */
TEST(test_real) {
    static const int32_t sizes[][2] = {{4, 2}, {3, 3}, {3, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        world *w = world_new();
        w->real = 1;
        w->steps = 150;
        run(w, "auto:steps=40,window=4,cooldown=0", "topk:ratio=0.25", sizes[i][0], sizes[i][1]);
        assert_int_equal(first_in(w, "planning", 0), 41);
        free(w);
    }
}

/* If planning fails, training goes on. */
TEST(test_planning_fails) {
    world *w = world_new();
    w->costs_fail = 1;
    run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 4, 2);
    assert_int_equal(switches(w), 0);
    assert_true(first_in(w, "stays with fp32", 0) > 0);
    free(w);
}

/* The context may be closed at every step without a deadlock or a leak. */
TEST(test_close_anywhere) {
    for (int steps = 1; steps < 30; steps += 3) {
        world *w = world_new();
        w->steps = steps;
        run(w, "auto:steps=6,window=8", "topk:ratio=0.25", 2, 1);
        free(w);
    }
}
