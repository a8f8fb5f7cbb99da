/* test_plan_runs.c loads plans' texts in the executor, on ranks that are threads. All ranks must end with the same
 * bits, and tensors without compression must have the exact mean. */
/* runs: asan-long no-tsan: test_units in tests/executor runs the same code */
#include "tests/lib/test.h"
#include "plans.h"

enum { RANKS_MAX = 8, STEPS = 2, ELEMENTS_MAX = 6000 };
typedef struct runner {
    const problem_input *in;
    const char *text;
    const esp_plan_unit *units;
    uint32_t n_units;
    float *result[RANKS_MAX];
    uint64_t elements;
    atomic_int failures;
} runner;

static void check(runner *r, int ok, const char *what) {
    if (!ok && atomic_fetch_add(&r->failures, 1) < 5)
        fprintf(stderr, "%s: %s\n%s\n", what, esp_last_error(NULL), r->text);
}

/* Returns small whole numbers, whose float sums are exact in every order. */
static float gradient(int32_t rank, uint64_t i, int step) {
    return (float)((int)((i * 7 + (uint64_t)rank * 3 + (uint64_t)step) % 17) - 8);
}

static void body(esp_ctx *ctx, void *user) {
    static const esp_stream here;
    runner *r = user;
    int32_t rank = esp_rank(ctx);
    uint32_t n = r->in->model.n_tensors, id[PROBLEM_TENSORS];
    float *data = r->result[rank];
    for (uint32_t t = 0; t < n; t++) {
        esp_tensor_desc d = {.name = r->in->names[t],
                             .count = r->in->tensors[t].elements,
                             .rows = r->in->tensors[t].rows,
                             .cols = r->in->tensors[t].cols};
        check(r, esp_tensor_add(ctx, &d, &id[t]) == ESP_OK, "esp_tensor_add");
    }
    check(r, esp_start(ctx) == ESP_OK, "esp_start");
    check(r, esp_strategy_set(ctx, r->text) == ESP_OK, "esp_strategy_set");
    for (int step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < r->elements; i++) data[i] = gradient(rank, i, step);
        uint64_t at = 0;
        for (uint32_t t = 0; t < n; t++) {
            check(r, esp_push(ctx, id[t], data + at, here) == ESP_OK, "esp_push");
            at += r->in->tensors[t].elements;
        }
        check(r, esp_wait_all(ctx) == ESP_OK, "esp_wait_all");
    }
}

static void check_exact(const runner *r, uint32_t ranks) {
    uint64_t start[PROBLEM_TENSORS + 1] = {0};
    for (uint32_t t = 0; t < r->in->model.n_tensors; t++) start[t + 1] = start[t] + r->in->tensors[t].elements;
    for (uint32_t u = 0; u < r->n_units; u++) {
        const esp_plan_unit *x = &r->units[u];
        if (strcmp(x->codec, "none") != 0) continue;
        for (uint64_t i = start[x->first] + x->begin, end = i + x->elements; i < end; i++) {
            float sum = 0;
            for (uint32_t rank = 0; rank < ranks; rank++) sum += gradient((int32_t)rank, i, STEPS - 1);
            if (fabsf(r->result[0][i] - sum / (float)ranks) > 1e-6f)
                fail_msg("element %llu is %g, not %g in:\n%s", (unsigned long long)i, (double)r->result[0][i],
                         (double)(sum / (float)ranks), r->text);
        }
    }
}

static void run_plan(const problem_input *in, const esp_plan *plan) {
    static runner r;
    uint32_t ranks = in->system.machines * in->system.ranks_per_machine;
    memset(&r, 0, sizeof r);
    r.in = in;
    r.text = esp_plan_text(plan);
    r.units = esp_plan_units(plan, &r.n_units);
    for (uint32_t t = 0; t < in->model.n_tensors; t++) r.elements += in->tensors[t].elements;
    for (uint32_t k = 0; k < ranks; k++) r.result[k] = calloc(r.elements, sizeof *r.result[k]);
    RUN_RANKS(.size = (int32_t)ranks, .per_machine = (int32_t)in->system.ranks_per_machine, .body = body, .user = &r);
    assert_int_equal(atomic_load(&r.failures), 0);
    for (uint32_t k = 1; k < ranks; k++) assert_memory_equal(r.result[0], r.result[k], r.elements * sizeof(float));
    check_exact(&r, ranks);
    for (uint32_t k = 0; k < ranks; k++) free(r.result[k]);
}

static void small_problem(uint64_t seed, problem_input *in) {
    rng r = {seed};
    problem_plain = 1;
    problem_random(seed, 6, 0, in);
    in->system.machines = 1 + rng_below(&r, 3);
    in->system.ranks_per_machine = 1 + rng_below(&r, 2);
    if (in->system.machines * in->system.ranks_per_machine == 1) in->system.machines = 2;
    for (uint32_t t = 0; t < in->model.n_tensors; t++)
        in->tensors[t].elements = 1 + in->tensors[t].elements % ELEMENTS_MAX;
}

TEST(test_runs) {
    static problem_input in;
    for (uint64_t seed = 0; seed < test_repeats(25); seed++) {
        small_problem(seed, &in);
        esp_plan *plan = make(&in, NULL);
        run_plan(&in, plan);
        esp_plan_free(plan);
    }
}

/* Tests options that the planner would hardly choose: each chunk and group has a random option. */
TEST(test_units_run) {
    static problem_input in;
    static char text[65536];
    for (uint64_t seed = 50; seed < 50 + test_repeats(25); seed++) {
        rng r = {seed};
        esp__extent units[4 * PROBLEM_TENSORS];
        esp_plan *plan;
        jmp_buf jump;
        esp__arena arena = {.on_failure = &jump};
        esp__problem p;
        esp__schedule d = {0};
        small_problem(seed, &in);
        uint32_t n = problem_units(&r, in.tensors, in.model.n_tensors, units);
        assert_int_equal(esp__problem_open(&p, &arena, &in.model, in.codecs, in.n_codecs, &in.system, NULL, 0), ESP_OK);
        esp__schedule_set_units(&p, &d, units, n);
        for (uint32_t u = 0; u < n; u++) {
            const esp__candidates *candidates = esp__candidates_get(&p, &units[u]);
            d.paths[u] = &candidates->paths[rng_below(&r, candidates->n)];
        }
        esp__generate(&p, &d);
        char *whole = esp__schedule_text(&p, &d, "");
        snprintf(text, sizeof text, "%s", whole);
        free(whole);
        esp__arena_free(&arena);
        plan = simulate(&in, text);
        run_plan(&in, plan);
        esp_plan_free(plan);
    }
}

static void rounds_problem(uint64_t seed, esp_ctx *ctx, esp__costs *costs, problem_input *in) {
    static const char *const specs[] = {"powersgd:rank=2", "int8:shared=1"};
    rng r = {seed};
    small_problem(seed, in);
    in->system.machines = in->system.ranks_per_machine = 2;
    in->system.devices = 1;
    in->system.intra.bytes_per_us = 1000, in->system.inter.bytes_per_us = 0.5;
    in->system.intra.alpha_ns = in->system.inter.alpha_ns = 1000;
    in->n_codecs = 1;
    if (esp__builtin_costs(ctx, specs[seed % 2], &in->system, NULL, costs)) fail_msg("%s", esp_last_error(ctx));
    in->codecs[0] = costs->codec;
    for (uint32_t t = 0; t < in->model.n_tensors; t++) {
        esp_plan_tensor *x = &in->tensors[t];
        x->rows = 1 + rng_below(&r, 60), x->cols = 1 + rng_below(&r, 60);
        x->elements = x->rows * x->cols;
        if (rng_chance(&r, 0.3)) x->rows = x->cols = 0;
    }
}

TEST(test_rounds_run) {
    static problem_input in;
    uint32_t compressed = 0;
    esp_ctx *ctx;
    assert_int_equal(esp__open_alone(&ctx), ESP_OK);
    for (uint64_t seed = 0; seed < test_repeats(12); seed++) {
        esp__costs costs;
        rounds_problem(seed, ctx, &costs, &in);
        esp_plan *plan = make(&in, NULL);
        uint32_t n;
        const esp_plan_unit *u = esp_plan_units(plan, &n);
        for (uint32_t i = 0; i < n; i++) compressed += strcmp(u[i].codec, "none") != 0;
        run_plan(&in, plan);
        esp_plan *again = simulate(&in, esp_plan_text(plan));
        assert_true(report_of(plan).iteration_ns == report_of(again).iteration_ns);
        esp_plan_free(again);
        esp_plan_free(plan);
        const esp__scheme *s = esp__schemes();
        for (uint64_t k = seed % 5; k-- && s[1].name;) s++;
        esp_plan_config config = {.strategy = s->name, .flags = ESP_PLAN_NO_BOUND};
        plan = make(&in, &config);
        run_plan(&in, plan);
        esp_plan_free(plan);
    }
    assert_true(compressed > (test_repeats(12) < 12 ? 0 : 10));
    esp_close(ctx);
}

TEST(test_schemes_run) {
    static problem_input in;
    uint64_t seed = 80;
    for (const esp__scheme *s = esp__schemes(); s->name; s++, seed++) {
        esp_plan_config config = {.strategy = s->name, .flags = ESP_PLAN_NO_BOUND};
        small_problem(seed, &in);
        esp_plan *plan = make(&in, &config);
        run_plan(&in, plan);
        esp_plan_free(plan);
    }
}
