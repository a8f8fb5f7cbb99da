/* test_outer.c checks outer contexts: rounds against a simulation of all ranks, plain averaging bit by bit, codecs,
 * saved states and changes of strategy in mid-round, NaN, f16 and bf16, and wrong inputs. Ranks are threads. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/context/outer.h"
#include <poll.h>

enum { TENSORS = 5, MOST = 900, SIZE = 3, STEPS = 40 };
static const uint64_t counts[TENSORS] = {700, 40, 900, 300, 77};
static const esp_stream here;

typedef float model[TENSORS][MOST];

static void begin(model w, int32_t rank) {
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < counts[t]; i++) w[t][i] = (float)((i * 7 + (uint64_t)t) % 13) - 5.5f + (float)rank;
}
/* An inner step: what an optimizer might do, different on each rank. */
static void inner(float *w, int t, int32_t rank, int step) {
    for (uint64_t i = 0; i < counts[t]; i++)
        w[i] -= 0.01f * w[i] + 0.001f * (float)((i * 3 + (uint64_t)(step * 5 + rank * 11)) % 17);
}

static uint32_t tensor_flags;
static void tensors(esp_ctx *ctx, esp_dtype dtype) {
    char name[16];
    for (int t = 0; t < TENSORS; t++) {
        snprintf(name, sizeof name, "w%d", t);
        const esp_tensor_desc d = {.name = name, .count = counts[t], .dtype = dtype, .flags = tensor_flags};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
}
static void params(esp_ctx *ctx, model w) {
    begin(w, 0);
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_outer_add(ctx, t, w[t]) == ESP_OK);
}
static void start(esp_ctx *ctx, const esp_outer_desc *o, model w) {
    CHECK(esp_outer_open(ctx, o) == ESP_OK);
    tensors(ctx, ESP_F32);
    CHECK(esp_start(ctx) == ESP_OK);
    params(ctx, w);
}
static void steps(esp_ctx *ctx, model w, int from, int to) {
    for (int k = from; k < to; k++) {
        for (int t = 0; t < TENSORS; t++) inner(w[t], t, esp_rank(ctx), k);
        CHECK(esp_outer_step(ctx, here) == ESP_OK);
    }
}

/* ---- ESPRESSO_OUTER in a program without outer loops ----------------------------------------------------------------
 */
static void hear(void *user, const esp_log_event *ev) {
    const size_t n = strlen(user);
    if (ev->component && !strcmp(ev->component, "outer")) snprintf((char *)user + n, 4096 - n, "%s\n", ev->message);
}
static void two_contexts(bool opens) {
    char heard[4096] = "";
    const esp_host host = {.struct_size = sizeof host, .log = hear, .user = heard};
    const esp_config config = {.size = 1, .host = &host};
    esp_ctx *ctx, *other;
    float x[4] = {0};
    CHECK(esp_open(&config, &ctx) == ESP_OK && esp_open(&config, &other) == ESP_OK);
    if (opens) CHECK(esp_outer_open(other, &(esp_outer_desc){.method = "average"}) == ESP_OK);
    CHECK(tensor_add(ctx, "w", 4) == 0 && esp_start(ctx) == ESP_OK);
    for (int k = 0; k < 4; k++) {
        CHECK(esp_push(ctx, 0, x, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
        CHECK(count_of(heard, "calls no esp_outer_open") == (!opens && k > 0));
    }
    esp_close(other);
    esp_close(ctx);
}
TEST(test_outer_that_no_context_opens) {
    setenv("ESPRESSO_OUTER", "diloco:every=30", 1);
    for (int opens = 0; opens < 2; opens++) {
        const pid_t child = child_fork(60); /* the warning comes once in a process */
        if (!child) {
            two_contexts(opens);
            _exit(atomic_load(&failures) != 0);
        }
        assert_int_equal(child_wait(child), 0);
    }
    unsetenv("ESPRESSO_OUTER");
}

/* ---- against a simulation ---------------------------------------------------------------------------------------- */
/* All ranks, by the papers' formulas. */
static void simulate(const esp_outer_desc *o, const uint32_t first[], model w[SIZE], int n) {
    static model anchor, momentum, difference;
    const uint32_t fragments = o->fragments ? o->fragments : 1;
    uint32_t under_way = UINT32_MAX, due = 0;
    begin(anchor, 0);
    memset(momentum, 0, sizeof momentum);
    for (int r = 0; r < SIZE; r++) begin(w[r], 0);
    for (uint32_t k = 1; k <= (uint32_t)n; k++) {
        for (int r = 0; r < SIZE; r++)
            for (int t = 0; t < TENSORS; t++) inner(w[r][t], t, r, (int)k - 1);
        for (int pass = 0; pass < 2; pass++) { /* applies, pushes, applies what has no delay */
            for (uint32_t t = 0; under_way != UINT32_MAX && k >= due && t < TENSORS; t++) {
                if (t < first[under_way] || t >= first[under_way + 1]) continue;
                for (uint64_t i = 0; i < counts[t]; i++) {
                    const float g = difference[t][i];
                    momentum[t][i] = o->momentum * momentum[t][i] + g;
                    anchor[t][i] -= o->lr * (o->nesterov ? g + o->momentum * momentum[t][i] : momentum[t][i]);
                    for (int r = 0; r < SIZE; r++)
                        w[r][t][i] = o->alpha * w[r][t][i] + (1.0f - o->alpha) * anchor[t][i];
                }
            }
            if (under_way != UINT32_MAX && k >= due) under_way = UINT32_MAX;
            const uint32_t at = (k - 1) % o->every + 1;
            for (uint32_t f = 0; f < fragments && !pass; f++) {
                if (at != (f + 1) * o->every / fragments) continue;
                under_way = f, due = k + o->delay;
                for (uint32_t t = first[f]; t < first[f + 1]; t++)
                    for (uint64_t i = 0; i < counts[t]; i++) {
                        difference[t][i] = 0;
                        for (int r = 0; r < SIZE; r++) difference[t][i] += (anchor[t][i] - w[r][t][i]) / SIZE;
                    }
            }
        }
    }
}

typedef struct task {
    esp_outer_desc o;
    uint32_t first[TENSORS + 1]; /* expected fragments */
    model *expected;
} task;

static void body_simulated(esp_ctx *ctx, void *user) {
    const task *k = user;
    model w;
    start(ctx, &k->o, w);
    steps(ctx, w, 0, STEPS);
    double worst = 0;
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < counts[t]; i++)
            worst = fmax(worst, fabs((double)w[t][i] - (double)k->expected[esp_rank(ctx)][t][i]));
    CHECK(worst < 2e-5);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) check_same_bits(ctx, w[t], counts[t] * sizeof(float));
    esp_stats stats = {.struct_size = sizeof stats};
    CHECK(esp_stats_read(ctx, &stats) == ESP_OK);
    CHECK(stats.outer_rounds == (STEPS + k->o.every - 1) / k->o.every);
    CHECK(stats.outer_bytes > 4 * 2017);
}

static void simulated(void) {
    static task tasks[] = {
        {.o = {.every = 1, .lr = 1}, .first = {0, 5}},
        {.o = {.every = 7, .lr = 0.7f, .momentum = 0.9f, .nesterov = 1}, .first = {0, 5}},
        {.o = {.every = 7, .lr = 0.7f, .momentum = 0.5f, .delay = 7}, .first = {0, 5}},
        {.o = {.every = 10, .lr = 0.4f, .momentum = 0.9f, .nesterov = 1, .fragments = 3, .delay = 2, .alpha = 0.5f},
         .first = {0, 1, 3, 5}},
        {.o = {.every = 10, .lr = 0.8f, .fragments = 3, .delay = 3, .alpha = 0.25f}, .first = {0, 1, 3, 5}},
        {.o = {.every = 5, .lr = 1, .fragments = 5, .delay = 1}, .first = {0, 1, 2, 3, 4, 5}}};
    static model expected[SIZE];
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        simulate(&tasks[i].o, tasks[i].first, expected, STEPS);
        tasks[i].expected = expected;
        for (int per = 0; per < 2; per++) /* all on one machine, or each on its own */
            RUN_RANKS(.size = SIZE, .per_machine = per, .body = body_simulated, .user = &tasks[i]);
    }
}
TEST(test_rounds_equal_a_simulation) { simulated(); }

/* ---- plain averaging --------------------------------------------------------------------------------------------- */
static model plain[SIZE];
static void body_plain(esp_ctx *ctx, void *user) {
    model w;
    (void)user;
    tensors(ctx, ESP_F32);
    CHECK(esp_start(ctx) == ESP_OK);
    begin(w, 0);
    for (int k = 0; k < STEPS; k++) {
        for (int t = 0; t < TENSORS; t++) inner(w[t], t, esp_rank(ctx), k);
        for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_push(ctx, t, w[t], here) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
    }
    memcpy(plain[esp_rank(ctx)], w, sizeof w);
}
static void body_average(esp_ctx *ctx, void *user) {
    const esp_outer_desc o = {.every = 1};
    model w;
    (void)user;
    memset(w, 0, sizeof w);
    start(ctx, &o, w);
    steps(ctx, w, 0, STEPS);
    for (int t = 0; t < TENSORS; t++) CHECK(!memcmp(w[t], plain[esp_rank(ctx)][t], counts[t] * sizeof(float)));
}
static void body_average_of_one(esp_ctx *ctx, void *user) {
    model w, alone;
    start(ctx, &(esp_outer_desc){.method = "diloco:every=4"}, w);
    steps(ctx, w, 0, 9);
    begin(alone, 0);
    CHECK(memcmp(w[0], alone[0], sizeof(float)) && esp_outer_sync(ctx, here) == ESP_OK);
    (void)user;
}
TEST(test_averaging_in_every_step_is_plain_averaging) {
    RUN_RANKS(.size = SIZE, .body = body_plain);
    RUN_RANKS(.size = SIZE, .body = body_average);
}

/* ---- codecs, saved states, strategies ---------------------------------------------------------------------------- */
static const esp_outer_desc streaming = {.method = "streaming:every=10,fragments=3,delay=2", .alpha = -1};
static char saved[64];
static model resumed[SIZE][STEPS + 1];

/* With alpha 0, all ranks have the same bits right after a fragment was applied. */
static void body_codec(esp_ctx *ctx, void *user) {
    static const int applied[] = {5, 8, 12}; /* inner steps that apply fragments 1 to 3 */
    static const int first[] = {0, 1, 3, 5};
    model w;
    (void)user;
    start(ctx, &streaming, w);
    for (int k = 0; k < 32; k++) {
        steps(ctx, w, k, k + 1);
        for (int f = 0; f < 3; f++)
            if (k + 1 >= applied[f] && (k + 1 - applied[f]) % 10 == 0)
                for (int t = first[f]; t < first[f + 1]; t++) check_same_bits(ctx, w[t], counts[t] * sizeof(float));
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
static const char *const codecs[] = {NULL, "topk:ratio=0.1", "int4", "chunktopk:chunk=64,k=8", "powersgd"};
TEST(test_codecs) {
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int per = 1; per < 3; per++)
            RUN_RANKS(.size = 4, .per_machine = per, .body = body_codec, .config.codec = codecs[c],
                      .config.min_compress_elements = 1);
}

/* Saves at inner step *user, with collectives in mid-round, then goes on. */
static void body_save(esp_ctx *ctx, void *user) {
    const int at = *(const int *)user;
    model w;
    float one = 1;
    start(ctx, &streaming, w);
    steps(ctx, w, 0, at);
    CHECK(esp_allreduce(ctx, &one, 1) == ESP_OK && one == SIZE);
    CHECK(esp_state_save(ctx, saved) == ESP_OK);
    memcpy(resumed[esp_rank(ctx)][0], w, sizeof w);
    for (int k = at; k < at + 14; k++) {
        steps(ctx, w, k, k + 1);
        memcpy(resumed[esp_rank(ctx)][k - at + 1], w, sizeof w);
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
static void body_resume(esp_ctx *ctx, void *user) {
    const int at = *(const int *)user;
    model w;
    start(ctx, &streaming, w);
    steps(ctx, w, 0, 6); /* what was done before a load does not matter */
    memcpy(w, resumed[esp_rank(ctx)][0], sizeof w);
    CHECK(esp_state_load(ctx, saved) == ESP_OK);
    for (int k = at; k < at + 14; k++) {
        steps(ctx, w, k, k + 1);
        for (int t = 0; t < TENSORS; t++)
            CHECK(!memcmp(w[t], resumed[esp_rank(ctx)][k - at + 1][t], counts[t] * sizeof(float)));
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
TEST(test_resume_in_mid_round_is_bit_identical, folder_make, folder_remove) {
    snprintf(saved, sizeof saved, "%s", in_folder("state"));
    for (size_t c = 0; c < 3; c++)
        for (int at = 8; at < 20; at += c ? 2 : 1) {
            RUN_RANKS(.size = SIZE, .body = body_save, .user = &at, .config.codec = codecs[c],
                      .config.min_compress_elements = 1);
            RUN_RANKS(.size = SIZE, .body = body_resume, .user = &at, .config.codec = codecs[c],
                      .config.min_compress_elements = 1);
        }
}

/* Other ranks, another schedule, another model. */
static void body_load_elsewhere(esp_ctx *ctx, void *user) {
    const esp_outer_desc *o = user;
    model w;
    if (!o) {
        tensors(ctx, ESP_F32);
        CHECK(esp_start(ctx) == ESP_OK);
        CHECK(esp_state_load(ctx, saved) == ESP_E_MISMATCH && error_has(ctx, "esp_outer_open"));
        return;
    }
    start(ctx, o, w);
    const esp_status s = esp_state_load(ctx, saved);
    if (o == &streaming)
        CHECK(s == ESP_OK);
    else
        CHECK(s == ESP_E_MISMATCH && error_has(ctx, o->every ? "mid-round" : "momentum"));
    steps(ctx, w, 0, 20);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
TEST(test_load_elsewhere, folder_make, folder_remove) {
    static esp_outer_desc other = {.every = 20, .fragments = 3, .momentum = 0.5f},
                          no_momentum = {.method = "average:every=10"};
    int at = 8;
    snprintf(saved, sizeof saved, "%s", in_folder("state"));
    RUN_RANKS(.size = SIZE, .body = body_save, .user = &at, .config.codec = "topk:ratio=0.1");
    RUN_RANKS(.size = SIZE, .body = body_load_elsewhere, .config.codec = "topk:ratio=0.1");
    RUN_RANKS(.size = SIZE, .body = body_load_elsewhere, .user = &other, .config.codec = "topk:ratio=0.1");
    RUN_RANKS(.size = SIZE, .body = body_load_elsewhere, .user = &no_momentum, .config.codec = "topk:ratio=0.1");
    RUN_RANKS(.size = 2, .body = body_load_elsewhere, .user = (void *)(uintptr_t)&streaming,
              .config.codec = "topk:ratio=0.1");
    RUN_RANKS(.size = 5, .body = body_load_elsewhere, .user = (void *)(uintptr_t)&streaming,
              .config.codec = "topk:ratio=0.1");
}

/* A change of strategy in mid-round. Then the fragment of both tensors of a group must be the same. */
static void body_strategy(esp_ctx *ctx, void *user) {
    model w, v;
    (void)user;
    start(ctx, &streaming, w);
    for (int k = 0; k < 30; k++) {
        steps(ctx, w, k, k + 1);
        if (k % 3 == 0) CHECK(esp_strategy_set(ctx, k % 2 ? "fp32" : "layerwise") == ESP_OK);
        if (k % 5 == 0) CHECK(esp_feedback_scale(ctx, 0.9f) == ESP_OK && esp_weight(ctx, 1) == ESP_OK);
    }
    memcpy(v, w, sizeof v);
    CHECK(esp_strategy_set(ctx, "espresso-strategy 1\ntensor w0 700 group\ntensor w1 40 group\n"
                                "group 740 none flat.allreduce\ntensor w2 900 none flat.allreduce\n"
                                "tensor w3 300 none flat.allreduce\ntensor w4 77 none flat.allreduce\n") == ESP_E_ARG);
    CHECK(error_has(ctx, "fragments 1 and 2"));
    steps(ctx, w, 30, 45);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
TEST(test_change_of_strategy) {
    RUN_RANKS(.size = SIZE, .body = body_strategy, .config.codec = "topk:ratio=0.1", .config.min_compress_elements = 1);
}

/* ---- numbers that the library chooses ---------------------------------------------------------------------------- */
/* An inner step takes alone_ms, on rank 1 slow_ms. An exchange takes each_ms for each fragment and all_ms for all of
 * them, more on ranks that wait for others, and busy is the part of it that is no wait. */
typedef struct network {
    esp_outer_desc o;
    double alone_ms, slow_ms, each_ms, all_ms, busy;
    uint32_t every, fragments, delay; /* expected */
} network;
static void network_times(void *user, const esp_ctx *ctx, esp__outer_times *out) {
    const network *k = user;
    out->alone_ns = (ctx->job.rank == 1 ? k->slow_ms : k->alone_ms) * 1e6;
    out->exchange_ns = (k->each_ms * ctx->outer->fragments + k->all_ms) * 1e6;
    out->busy_ns = out->exchange_ns * k->busy;
    if (ctx->job.rank != 1 && ctx->job.size > 1) out->exchange_ns += 3e6;
    if (ctx->outer->timer.n % 3 == 1) out->exchange_ns *= 50; /* a disturbed round */
}
static void start_chosen(esp_ctx *ctx, const network *k, model w) {
    start(ctx, &k->o, w);
    ctx->outer->timer.times = network_times;
    ctx->outer->timer.user = (void *)(uintptr_t)k;
}
static bool chosen(const esp_ctx *ctx, const network *k) {
    const esp__outer *o = ctx->outer;
    if (o->timer.on) CHECK(o->every <= o->high[0] && o->fragments <= o->high[1] && o->delay == 0);
    if (!o->timer.on && (o->every != k->every || o->fragments != k->fragments || o->delay != k->delay))
        fprintf(stderr, "%s: chose %u, %u, %u\n", k->o.method, o->every, o->fragments, o->delay);
    if (!o->timer.on) CHECK(o->every == k->every && o->fragments == k->fragments && o->delay == k->delay);
    return !o->timer.on;
}
/* Takes inner steps until the library has chosen. Returns their number. */
static int choose(esp_ctx *ctx, const network *k, model w) {
    int n = 0;
    while (!chosen(ctx, k) && n < 100) steps(ctx, w, n, n + 1), n++;
    CHECK(chosen(ctx, k));
    return n;
}
static const network networks[] = {
    /* 19 of 20 ms; the limit is shorter than what would be enough; the slowest rank decides */
    {.o.method = "diloco:max_every=100", .alone_ms = 1, .slow_ms = 1, .all_ms = 1, .every = 19, .fragments = 1},
    {.o.method = "diloco:max_every=100", .alone_ms = 1, .slow_ms = 1, .all_ms = 40, .every = 100, .fragments = 1},
    {.o.method = "average:max_every=100", .alone_ms = 1, .slow_ms = 4, .all_ms = 4, .every = 19, .fragments = 1},
    {.o.method = "average:max_every=100", .alone_ms = 9, .slow_ms = 9, .every = 1, .fragments = 1},
    /* a delay hides the wait, but not what is busy */
    {.o.method = "average:max_every=100,max_delay=50",
     .alone_ms = 1,
     .slow_ms = 1,
     .all_ms = 10,
     .every = 10,
     .fragments = 1,
     .delay = 10},
    {.o.method = "average:max_every=100,max_delay=50",
     .alone_ms = 1,
     .slow_ms = 1,
     .all_ms = 1,
     .busy = 1,
     .every = 19,
     .fragments = 1},
    /* four fragments wait 3.93 ms in all, and five as long; with a constant time each, they wait longer than a single
       one */
    {.o.method = "average:max_every=100,max_fragments=9,max_delay=2",
     .alone_ms = 1,
     .slow_ms = 1,
     .all_ms = 10,
     .every = 75,
     .fragments = 4,
     .delay = 2},
    {.o.method = "average:max_every=200,max_fragments=5,max_delay=2",
     .alone_ms = 1,
     .slow_ms = 1,
     .each_ms = 9,
     .all_ms = 1,
     .every = 152,
     .fragments = 1,
     .delay = 2},
    /* some numbers are the user's */
    {.o.method = "streaming:max_every=40,fragments=3,delay=2,alpha=0",
     .alone_ms = 1,
     .slow_ms = 1,
     .all_ms = 6,
     .every = 17,
     .fragments = 3,
     .delay = 2},
    {.o.method = "diloco:every=12,max_delay=9",
     .alone_ms = 2,
     .slow_ms = 2,
     .all_ms = 7,
     .every = 12,
     .fragments = 1,
     .delay = 4}};
enum { NETWORKS = sizeof networks / sizeof *networks, FRAGMENTS = 6 };

static void body_chosen(esp_ctx *ctx, void *user) {
    const network *k = user;
    model w;
    start_chosen(ctx, k, w);
    const int n = choose(ctx, k, w);
    steps(ctx, w, n, n + 30);
    CHECK(chosen(ctx, k) && esp_outer_sync(ctx, here) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) check_same_bits(ctx, w[t], counts[t] * sizeof(float));
}
TEST(test_the_library_chooses_rounds_by_measured_times) {
    char heard[4096] = "";
    const esp_host host = {.struct_size = sizeof host, .log = hear, .user = heard};
    for (int i = 0; i < NETWORKS; i++)
        RUN_RANKS(.size = SIZE, .body = body_chosen, .user = (void *)(uintptr_t)&networks[i], .config.codec = "int4",
                  .config.min_compress_elements = 1);
    RUN_RANKS(.size = 1, .body = body_chosen, .user = (void *)(uintptr_t)&networks[0], .config.host = &host,
              .config.log_level = ESP_LOG_WARN);
    assert_int_equal(count_of(heard, "chose every=19,fragments=1,delay=0: an inner step takes 1.000 ms"), 1);
}

/* Saves at the end of the round in which the library has chosen, or later. A job that was opened with these numbers,
 * and one in which the library chooses, then go on with the same bits. A sync while rounds are timed does not matter.
 */
static void body_chosen_save(esp_ctx *ctx, void *user) {
    const network *k = &networks[FRAGMENTS];
    model w;
    start_chosen(ctx, k, w);
    steps(ctx, w, 0, 13);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    choose(ctx, k, w);
    steps(ctx, w, 0, *(const int *)user);
    CHECK(esp_state_save(ctx, saved) == ESP_OK);
    for (int i = 0; i <= STEPS; i++) {
        memcpy(resumed[esp_rank(ctx)][i], w, sizeof w);
        if (i < STEPS) steps(ctx, w, i, i + 1);
    }
}
static void body_chosen_resume(esp_ctx *ctx, void *user) {
    const network *k = user, by_hand = {.o.method = "average:every=75,fragments=4,delay=2"};
    model w;
    start_chosen(ctx, k ? k : &by_hand, w);
    CHECK(ctx->outer->timer.on == (k != NULL));
    steps(ctx, w, 0, k ? 24 : 0);
    memcpy(w, resumed[esp_rank(ctx)][0], sizeof w);
    CHECK(esp_state_load(ctx, saved) == ESP_OK && !ctx->outer->timer.on);
    for (int i = 0; i < STEPS; i++) {
        steps(ctx, w, i, i + 1);
        for (int t = 0; t < TENSORS; t++)
            CHECK(!memcmp(w[t], resumed[esp_rank(ctx)][i + 1][t], counts[t] * sizeof(float)));
    }
}
/* In a job whose limits are narrower, nothing is loaded. */
static void body_chosen_refused(esp_ctx *ctx, void *user) {
    const network k = {.o.method = user};
    model w;
    start_chosen(ctx, &k, w);
    CHECK(esp_state_load(ctx, saved) == ESP_E_MISMATCH && error_has(ctx, "limits"));
    steps(ctx, w, 0, 5);
}
TEST(test_chosen_numbers_are_saved, folder_make, folder_remove) {
    static char every[] = "average:max_every=74,max_fragments=5,max_delay=2",
                delay[] = "average:max_every=90,max_fragments=5";
    int after[] = {0, 19, 25};
    snprintf(saved, sizeof saved, "%s", in_folder("state"));
    for (int i = 0; i < 3; i++) {
        RUN_RANKS(.size = SIZE, .body = body_chosen_save, .user = &after[i], .config.codec = "topk:ratio=0.1",
                  .config.min_compress_elements = 1);
        for (int by_hand = 0; by_hand < 2; by_hand++)
            RUN_RANKS(.size = SIZE, .body = body_chosen_resume,
                      .user = by_hand ? NULL : (void *)(uintptr_t)&networks[FRAGMENTS],
                      .config.codec = "topk:ratio=0.1", .config.min_compress_elements = 1);
    }
    RUN_RANKS(.size = SIZE, .body = body_chosen_refused, .user = every);
    RUN_RANKS(.size = SIZE, .body = body_chosen_refused, .user = delay);
}

/* A state from a timed round: the saved round goes on bit by bit, and then the library times rounds again. */
static void body_timed_save(esp_ctx *ctx, void *user) {
    model w;
    (void)user;
    start_chosen(ctx, &networks[FRAGMENTS], w);
    steps(ctx, w, 0, 47); /* in a round of five fragments */
    CHECK(ctx->outer->fragments == 5 && esp_state_save(ctx, saved) == ESP_OK);
    for (int i = 0; i <= 3; i++) {
        memcpy(resumed[esp_rank(ctx)][i], w, sizeof w);
        steps(ctx, w, i, i + 1);
    }
}
static void body_timed_resume(esp_ctx *ctx, void *user) {
    model w;
    (void)user;
    start_chosen(ctx, &networks[FRAGMENTS], w);
    steps(ctx, w, 0, 5);
    memcpy(w, resumed[esp_rank(ctx)][0], sizeof w);
    CHECK(esp_state_load(ctx, saved) == ESP_OK && ctx->outer->fragments == 5);
    for (int i = 0; i < 3; i++) {
        steps(ctx, w, i, i + 1);
        for (int t = 0; t < TENSORS; t++)
            CHECK(!memcmp(w[t], resumed[esp_rank(ctx)][i + 1][t], counts[t] * sizeof(float)));
    }
    CHECK(ctx->outer->fragments == 1);
    choose(ctx, &networks[FRAGMENTS], w);
}
TEST(test_a_timed_round_is_saved, folder_make, folder_remove) {
    snprintf(saved, sizeof saved, "%s", in_folder("state"));
    RUN_RANKS(.size = SIZE, .body = body_timed_save, .config.codec = "int4", .config.min_compress_elements = 1);
    RUN_RANKS(.size = SIZE, .body = body_timed_resume, .config.codec = "int4", .config.min_compress_elements = 1);
}

/* With groups, only divisions that leave them whole are allowed. */
static void body_chosen_groups(esp_ctx *ctx, void *user) {
    network k = networks[FRAGMENTS];
    model w;
    (void)user;
    k.every = 79, k.fragments = 3; /* {w0}, {w1, w2}, {w3, w4} */
    start_chosen(ctx, &k, w);
    choose(ctx, &k, w);
    steps(ctx, w, 0, 30);
}
TEST(test_chosen_fragments_leave_groups_whole) {
    RUN_RANKS(.size = SIZE, .body = body_chosen_groups,
              .config.strategy = "espresso-strategy 1\ntensor w0 700 none flat.allreduce\ntensor w1 40 group\n"
                                 "tensor w2 900 group\ngroup 940 none flat.allreduce\n"
                                 "tensor w3 300 none flat.allreduce\ntensor w4 77 none flat.allreduce\n");
}

/* ---- lost ranks -------------------------------------------------------------------------------------------------- */
/* A rank leaves, here while a fragment is under way, and another one later. Anchors stay the same on all that are left;
 * rank 0, whose anchors they take, may be among those that leave. */
static void body_shrink(esp_ctx *ctx, void *user) {
    const int32_t origin = esp_rank(ctx), *leaves = user;
    const esp_outer_desc limits = {.method = "streaming:max_every=4,max_fragments=3,max_delay=1"};
    model w;
    esp_status s = ESP_OK;
    start(ctx, leaves[4] ? &limits : &streaming, w);
    for (int k = 0; k < 60 && !s; k++) {
        if (k == leaves[origin]) return;
        for (int t = 0; t < TENSORS; t++) inner(w[t], t, origin, k);
        s = esp_outer_step(ctx, here);
        while (s == ESP_E_PEER) s = esp_shrink(ctx);
    }
    while (!s && (s = esp_outer_sync(ctx, here)) == ESP_E_PEER) s = esp_shrink(ctx);
    CHECK(s == ESP_OK && esp_size(ctx) == 2);
    for (int t = 0; t < TENSORS; t++) check_same_bits(ctx, w[t], counts[t] * sizeof(float));
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < counts[t]; i++) CHECK(fabsf(w[t][i]) < 10.0f);
}
TEST(test_shrink) {
    /* with limits, while rounds are timed, and after the choice */
    static int32_t leaves[][5] = {{99, 14, 99, 33, 0}, {14, 99, 24, 99, 0}, {9, 99, 99, 46, 1}};
    for (int i = 0; i < 3; i++)
        RUN_RANKS(.size = 4, .body = body_shrink, .user = leaves[i], .config.codec = i ? "topk:ratio=0.1" : NULL,
                  .config.min_compress_elements = 1, .config.timeout_ms = 20000, .config.progress = "threads");
}

/* Ranks close while a fragment is under way, one much earlier than the other. */
static void body_close(esp_ctx *ctx, void *user) {
    model w;
    (void)user;
    start(ctx, &streaming, w);
    if (esp_rank(ctx)) poll(NULL, 0, 100);
    steps(ctx, w, 0, 10);
}
TEST(test_close_while_a_fragment_is_under_way) {
    for (int i = 0; i < 4; i++) RUN_RANKS(.size = SIZE, .body = body_close, .config.codec = "topk:ratio=0.1");
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
static void body_nan(esp_ctx *ctx, void *user) {
    const esp_outer_desc o = {.every = 2, .lr = 0.5f, .momentum = 0.9f};
    model w, before;
    (void)user;
    start(ctx, &o, w);
    steps(ctx, w, 0, 2);
    memcpy(before, w, sizeof before);
    steps(ctx, w, 2, 3);
    if (esp_rank(ctx) == 1) w[2][899] = NAN;
    steps(ctx, w, 3, 4);
    for (int t = 0; t < TENSORS; t++) CHECK(!memcmp(w[t], before[t], counts[t] * sizeof(float)));
    steps(ctx, w, 4, 6);
    CHECK(w[2][899] == w[2][899] && memcmp(w, before, sizeof w));
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
TEST(test_nan_returns_to_the_anchor) {
    RUN_RANKS(.size = SIZE, .body = body_nan);
    RUN_RANKS(.size = SIZE, .body = body_nan, .config.codec = "topk:ratio=0.1", .config.min_compress_elements = 1);
}

/* Without a change of parameters nothing moves, whatever the anchor has that the dtype cannot represent. A change that
 * all ranks make alike arrives whole. */
static void body_half(esp_ctx *ctx, void *user) {
    const esp_dtype dtype = *(const esp_dtype *)user;
    const esp_outer_desc o = {.every = 1, .lr = 0.5f};
    static const char *const names[] = {"w"};
    uint16_t w[64], was[64];
    const esp_tensor_desc d = {.name = names[0], .count = 64, .dtype = dtype, .flags = tensor_flags};
    CHECK(esp_outer_open(ctx, &o) == ESP_OK && esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK);
    for (uint64_t i = 0; i < 64; i++) test_value_set(dtype, w, i, 1.0f + (float)i / 64);
    CHECK(esp_outer_add(ctx, 0, w) == ESP_OK);
    for (uint64_t i = 0; i < 64; i++) test_value_set(dtype, w, i, test_value(dtype, w, i) * 1.5f);
    CHECK(esp_outer_step(ctx, here) == ESP_OK); /* half of the way */
    for (uint64_t i = 0; i < 64; i++)
        CHECK(fabsf(test_value(dtype, w, i) / (1.25f * (1.0f + (float)i / 64)) - 1) < 0.01f);
    memcpy(was, w, sizeof was);
    for (int k = 0; k < 20; k++) CHECK(esp_outer_step(ctx, here) == ESP_OK);
    CHECK(!memcmp(w, was, sizeof w));
}
TEST(test_half) {
    esp_dtype dtypes[] = {ESP_F16, ESP_BF16};
    for (int i = 0; i < 2; i++) RUN_RANKS(.size = SIZE, .body = body_half, .user = &dtypes[i]);
}

/* Ranks whose difference is far too long, or not finite, are left out of the mean, and get it like all others. With f16
 * and a codec, too. */
static void body_check(esp_ctx *ctx, void *user) {
    const esp_outer_desc o = {.method = "diloco:every=1,lr=1,momentum=0.5,nesterov=0,check=5"};
    const esp_dtype dtype = user ? *(const esp_dtype *)user : ESP_F32;
    const int32_t me = esp_rank(ctx), n = esp_size(ctx);
    static const uint32_t bits[] = {0x7fc00000u, 0x7e00u};
    const esp_tensor_desc d = {.name = "w", .count = 64, .dtype = dtype, .flags = tensor_flags};
    uint32_t w[64]; /* room for either type */
    CHECK(esp_outer_open(ctx, &o) == ESP_OK && esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK);
    for (uint64_t i = 0; i < 64; i++) test_value_set(dtype, w, i, 0.0f);
    CHECK(esp_outer_add(ctx, 0, w) == ESP_OK);
    float anchor = 0, momentum = 0;
    for (int k = 0; k < 6; k++) {
        /* in step 1 rank 1 moves far, in step 3 rank 3 has NaN, in step 4 both happens */
        float sum = 0;
        int left = 0;
        for (int32_t r = 0; r < n; r++) {
            const bool out = (r == 1 && (k == 1 || k == 4)) || (r == 3 && (k == 3 || k == 4));
            if (!out) sum += (float)(r + 1) / 8, left++;
        }
        const float mine = anchor + (me == 1 && (k == 1 || k == 4) ? 100.0f : (float)(me + 1) / 8);
        for (uint64_t i = 0; i < 64; i++) test_value_set(dtype, w, i, mine);
        if (me == 3 && (k == 3 || k == 4)) memcpy(w, dtype == ESP_F32 ? &bits[0] : &bits[1], esp_dtype_bytes(dtype));
        CHECK(esp_outer_step(ctx, here) == ESP_OK);
        momentum = 0.5f * momentum + sum / (float)left;
        anchor += momentum;
        for (uint64_t i = 0; i < 64; i++) CHECK(fabsf(test_value(dtype, w, i) / anchor - 1) < (user ? 0.01f : 1e-5f));
        check_same_bits(ctx, w, 64 * esp_dtype_bytes(dtype));
        anchor = test_value(dtype, w, 5);
    }
    for (uint64_t i = 0; i < 64; i++) test_value_set(dtype, w, i, NAN); /* of all ranks */
    CHECK(esp_outer_step(ctx, here) == ESP_OK && fabsf(test_value(dtype, w, 63) / anchor - 1) < 0.01f);
}
TEST(test_check) {
    esp_dtype half = ESP_F16;
    RUN_RANKS(.size = 4, .body = body_check);
    RUN_RANKS(.size = 4, .body = body_check, .user = &half);
    RUN_RANKS(.size = 4, .body = body_check, .config.codec = "int8", .config.min_compress_elements = 1);
}

/* ---- sharded tensors --------------------------------------------------------------------------------------------- */
static int shard(void **state) {
    (void)state;
    tensor_flags = ESP_SHARD;
    return 0;
}
static int whole(void **state) {
    (void)state;
    tensor_flags = 0;
    return 0;
}
TEST(test_shards_equal_a_simulation, shard, whole) { simulated(); }

/* Each rank keeps the momentum of its part only. */
static void body_memory(esp_ctx *ctx, void *user) {
    esp_stats stats = {.struct_size = sizeof stats};
    uint64_t pushed = 0, all = 0, mine = 0, begin, n;
    model w;
    start(ctx, &(esp_outer_desc){.method = "diloco:every=4"}, w);
    for (uint32_t t = 0; t < TENSORS; t++) {
        CHECK(esp_part(ctx, t, esp_rank(ctx), &begin, &n) == ESP_OK);
        all += counts[t], mine += n;
        pushed += (counts[t] * 4 + 255) / 256 * 256;
    }
    CHECK(esp_stats_read(ctx, &stats) == ESP_OK && mine < all);
    CHECK(stats.outer_bytes == pushed + 4 * (all + mine));
    (void)user;
}
TEST(test_shards_have_the_same_bits, shard, whole) {
    esp_dtype half[] = {ESP_F16, ESP_BF16};
    tensor_flags = 0;
    RUN_RANKS(.size = SIZE, .body = body_plain);
    tensor_flags = ESP_SHARD;
    RUN_RANKS(.size = SIZE, .body = body_average);
    RUN_RANKS(.size = SIZE, .body = body_memory);
    for (size_t c = 0; c < 4; c++)
        for (int per = 1; per < 3; per++)
            RUN_RANKS(.size = 4, .per_machine = per, .body = body_codec, .config.codec = codecs[c],
                      .config.min_compress_elements = 1);
    RUN_RANKS(.size = SIZE, .body = body_nan);
    RUN_RANKS(.size = SIZE, .body = body_nan, .config.codec = "topk:ratio=0.1", .config.min_compress_elements = 1);
    for (int i = 0; i < 2; i++) RUN_RANKS(.size = SIZE, .body = body_half, .user = &half[i]);
    RUN_RANKS(.size = 4, .body = body_check, .config.codec = "int8", .config.min_compress_elements = 1);
    RUN_RANKS(.size = 1, .body = body_average_of_one);
}

/* Of tensors with fewer elements than ranks, some ranks have no part. */
static void body_tiny(esp_ctx *ctx, void *user) {
    const bool saves = user != NULL;
    float w[2][2] = {{1, 2}, {3}};
    CHECK(esp_outer_open(ctx, &(esp_outer_desc){.method = "diloco:every=2"}) == ESP_OK);
    for (uint64_t n = 2; n; n--) {
        const esp_tensor_desc d = {.name = n > 1 ? "two" : "one", .count = n, .flags = ESP_SHARD};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (uint32_t t = 0; t < 2; t++) CHECK(esp_outer_add(ctx, t, w[t]) == ESP_OK);
    for (int k = 0; k < 9; k++) {
        w[0][0] += 0.5f, w[0][1] -= 0.5f, w[1][0] += 1;
        CHECK(esp_outer_step(ctx, here) == ESP_OK);
    }
    CHECK((saves ? esp_state_save(ctx, saved) : esp_state_load(ctx, saved)) == ESP_OK);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    CHECK(w[0][0] > 1 && w[0][1] < 2 && w[1][0] > 3);
    check_same_bits(ctx, w, 3 * sizeof(float));
}

static void body_parts_elsewhere(esp_ctx *ctx, void *user) {
    model w;
    start(ctx, &streaming, w);
    CHECK(esp_state_load(ctx, saved) == (tensor_flags ? ESP_E_MISMATCH : ESP_E_CORRUPT) && error_has(ctx, user));
    steps(ctx, w, 0, 20);
}
static int shard_in_folder(void **state) { return shard(state) + folder_make(state); }
static int whole_again(void **state) { return whole(state) + folder_remove(state); }
TEST(test_state_of_shards, shard_in_folder, whole_again) {
    snprintf(saved, sizeof saved, "%s", in_folder("state"));
    for (int at = 8; at < 20; at++)
        for (int c = 0; c < 2; c++) {
            RUN_RANKS(.size = SIZE, .body = body_save, .user = &at, .config.codec = codecs[c],
                      .config.min_compress_elements = 1);
            RUN_RANKS(.size = SIZE, .body = body_resume, .user = &at, .config.codec = codecs[c],
                      .config.min_compress_elements = 1);
        }
    RUN_RANKS(.size = 2, .body = body_parts_elsewhere, .user = "this rank's part");
    tensor_flags = 0;
    RUN_RANKS(.size = SIZE, .body = body_parts_elsewhere, .user = "ESP_SHARD for the same tensors");
    RUN_RANKS(.size = 4, .body = body_tiny, .user = saved);
    RUN_RANKS(.size = 4, .body = body_tiny);
}

/* ---- wrong inputs ------------------------------------------------------------------------------------------------ */
typedef struct wrong {
    esp_outer_desc o;
    const char *word;
} wrong;
static void body_wrong(esp_ctx *ctx, void *user) {
    static const wrong all[] = {{{.every = 0}, "every is not set"},
                                {{.every = 10, .fragments = 11}, "fragments is 11"},
                                {{.every = 10, .fragments = 3, .delay = 4}, "delay is 4"},
                                {{.every = 10, .alpha = 1.0f}, "alpha is 1"},
                                {{.every = 10, .alpha = NAN}, "alpha is"},
                                {{.every = 10, .lr = -1.0f}, "lr is -1"},
                                {{.every = 10, .momentum = 1.0f}, "momentum is 1"},
                                {{.every = 10, .nesterov = 2, .momentum = 0.5f}, "nesterov is 2"},
                                {{.every = 10, .nesterov = 1}, "without momentum"},
                                {{.every = 10, .flags = 2}, "flags is 2"},
                                {{.method = "dilco"}, "'dilco' is no method"},
                                {{.method = "diloco:evry=3"}, "'evry' is no parameter"},
                                {{.method = "diloco:every=3.5"}, "every is 3.5"},
                                {{.method = "diloco:every=x"}, "no number"},
                                {{.method = "diloco:every"}, "position"},
                                {{.method = "diloco:max_every=0"}, "max_every is 0"},
                                {{.method = "streaming:max_every=7"}, "fragments is 8"},
                                {{.method = "diloco:max_every=99,fragments=65"}, "at most 64"}};
    const esp_outer_desc fine = {.every = 4}, many = {.every = 9, .fragments = 6};
    model w;
    float x[4] = {0};
    (void)user;
    CHECK(esp_outer_step(ctx, here) == ESP_E_STATE && error_has(ctx, "esp_outer_open"));
    CHECK(esp_outer_open(ctx, NULL) == ESP_E_ARG);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(esp_outer_open(ctx, &all[i].o) == ESP_E_ARG && error_has(ctx, all[i].word));
    CHECK(esp_outer_open(ctx, esp_rank(ctx) ? &fine : &many) == ESP_OK);
    CHECK(esp_outer_open(ctx, &fine) == ESP_E_STATE);
    CHECK(esp_outer_add(ctx, 0, x) == ESP_E_STATE && error_has(ctx, "esp_start"));
    tensors(ctx, ESP_F32);
    CHECK(esp_start(ctx) != ESP_OK); /* rank 0 has more fragments than tensors */
    (void)w;
}
static void body_wrong_calls(esp_ctx *ctx, void *user) {
    const esp_outer_desc fine = {.every = 4, .delay = 2};
    model w;
    (void)user;
    CHECK(esp_outer_open(ctx, &fine) == ESP_OK);
    tensors(ctx, ESP_F32);
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_outer_add(ctx, TENSORS, w[0]) == ESP_E_ARG && esp_outer_add(ctx, 0, NULL) == ESP_E_ARG);
    CHECK(esp_outer_step(ctx, here) == ESP_E_STATE && error_has(ctx, "esp_outer_add"));
    begin(w, esp_rank(ctx)); /* ranks differ */
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_outer_add(ctx, t, w[t]) == ESP_OK);
    CHECK(esp_outer_step(ctx, here) == ESP_E_MISMATCH && error_has(ctx, "esp_broadcast"));
    CHECK(esp_push(ctx, 0, w[0], here) == ESP_E_STATE && error_has(ctx, "outer context"));
    CHECK(esp_push_zero(ctx, 0, w[0], here) == ESP_E_STATE && esp_wait_all(ctx) == ESP_E_STATE);
    CHECK(esp_step_end(ctx) == ESP_E_STATE && esp_discard_step(ctx) == ESP_E_STATE);
}
static void body_differ(esp_ctx *ctx, void *user) {
    const esp_outer_desc o = {.every = 4 + (uint32_t)esp_rank(ctx)};
    (void)user;
    CHECK(esp_outer_open(ctx, &o) == ESP_OK);
    tensors(ctx, ESP_F32);
    CHECK(esp_start(ctx) == ESP_E_MISMATCH && error_has(ctx, "every=5"));
}
static void body_flags(esp_ctx *ctx, void *user) {
    static const struct {
        esp_outer_desc o;
        esp_tensor_desc d;
        const char *says;
    } all[] = {{{.every = 4}, {.flags = ESP_SUM}, "ESP_SUM"},
               {{.method = "diloco:every=4,window=5"}, {.flags = ESP_SHARD}, "leave window out"},
               {{.every = 4}, {.flags = ESP_SHARD, .gather = "bf16"}, "leave `gather` out"}};
    esp_tensor_desc d = all[*(const int *)user].d;
    d.name = "w", d.count = 8;
    CHECK(esp_outer_open(ctx, &all[*(const int *)user].o) == ESP_OK && esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_E_UNSUPPORTED && error_has(ctx, all[*(const int *)user].says));
}
TEST(test_wrong_inputs) {
    RUN_RANKS(.size = 2, .body = body_wrong);
    RUN_RANKS(.size = 2, .body = body_wrong_calls);
    RUN_RANKS(.size = 2, .body = body_differ);
    for (int i = 0; i < 3; i++) RUN_RANKS(.size = 2, .body = body_flags, .user = &i);
}

/* esp_start fails for lack of memory at each place in turn, and succeeds when called again. */
static int until_refused;
static void *take(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    return bytes >= 4 * 77 && until_refused && !--until_refused ? NULL : test_host_alloc(user, d, bytes, align);
}
TEST(test_started_again) {
    const esp_host scarce = {.struct_size = sizeof scarce, .alloc = take, .free_ = test_host_free};
    const esp_outer_desc o = {.method = "diloco:every=2,window=30000"};
    int refused = 0;
    for (int k = 1; k < 20; k++) {
        esp_ctx *ctx;
        model w;
        assert_int_equal(esp_open(&(esp_config){.size = 1, .host = &scarce}, &ctx), ESP_OK);
        assert_int_equal(esp_outer_open(ctx, &o), ESP_OK);
        tensors(ctx, ESP_F32);
        until_refused = k;
        const esp_status s = esp_start(ctx);
        until_refused = 0;
        if (s) {
            assert_int_equal(s, ESP_E_NOMEM);
            assert_int_equal(esp_start(ctx), ESP_OK);
            refused++;
        }
        params(ctx, w);
        steps(ctx, w, 0, 4);
        assert_int_equal(esp_outer_sync(ctx, here), ESP_OK);
        esp_close(ctx);
    }
    assert_true(refused > 15); /* anchors, momenta, moves of five tensors, and what is pushed */
}

static void body_environment(esp_ctx *ctx, void *user) {
    const esp_outer_desc o = {.method = "diloco", .every = 7};
    model w;
    (void)user;
    start(ctx, &o, w);
    steps(ctx, w, 0, 6);
    esp_stats stats = {.struct_size = sizeof stats};
    CHECK(esp_stats_read(ctx, &stats) == ESP_OK && stats.outer_rounds == 3);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
}
TEST(test_environment) {
    setenv("ESPRESSO_OUTER", "sparseloco:every=2", 1);
    RUN_RANKS(.size = 2, .body = body_environment);
    unsetenv("ESPRESSO_OUTER");
}
