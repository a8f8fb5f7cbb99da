/* test_clocked.c: in clocked execution every op begins and ends at the plan's times, to the nanosecond, for all
 * units, options and orders, also where ops give up cores and links before they end, and results keep the same bits. The times are sums of the plan's times, not wall time,
 * so a loaded machine changes nothing. Runs under the thread sanitizer too. */
#include "tests/common/library.h"
#include "tests/common/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/planner/problems.h"

enum { RANKS_MAX = 8, STEPS = 2, ELEMENTS_MAX = 3000, STEP_US = 1500 };
static const esp_stream here;

typedef struct runner {
    const problem_input *in;
    const esp_plan *plan, *other; /* other: the same plan with an op that begins later */
    double scale;
    int holds;                /* 0: the usual executor, to compare with */
    float *result[RANKS_MAX]; /* of a rank: all tensors, one behind the other */
    uint64_t elements;
    pthread_barrier_t together;
    uint64_t at_ns;
    atomic_int failures;
} runner;

static int check(runner *r, int ok, const char *what) {
    if (!ok && atomic_fetch_add(&r->failures, 1) < 5)
        fprintf(stderr, "%s: %s\n%s\n", what, esp_last_error(NULL), esp_plan_text(r->plan));
    return ok;
}

/* Small whole numbers. */
static float gradient(int32_t rank, uint64_t i, int step) {
    return (float)((int)((i * 7 + (uint64_t)rank * 3 + (uint64_t)step) % 17) - 8);
}

static esp__span planned(const runner *r, const esp_plan_event *e) {
    esp__span s = {(uint64_t)((double)e->start_ns * r->scale + 0.5), (uint64_t)((double)e->end_ns * r->scale + 0.5)};
    return s;
}

static int same(esp__span a, esp__span b) { return a.start_ns == b.start_ns && a.end_ns == b.end_ns; }

/* When the event ran by the clock of deadlines; {0, 0} for ESP__CLOCKED_NONE. */
static esp__span event_time(const runner *r, const esp_ctx *ctx, uint32_t event) {
    esp__span s = {0, 0};
    if (event >= ctx->clocked->n) return s;
    s.start_ns = (uint64_t)((double)ctx->clocked->event[event].due.start_ns * r->scale + 0.5);
    s.end_ns = (uint64_t)((double)ctx->clocked->event[event].due.end_ns * r->scale + 0.5);
    return s;
}

/* Every event at the plan's time by the clock of deadlines, and really not before that. */
static void check_times(runner *r, const esp_ctx *ctx) {
    static const char *const kinds[] = {"backward", "collective", "comp", "decomp", "copy", "pack"};
    uint32_t n;
    const esp_plan_event *e = esp_plan_events(r->plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        esp__span want = planned(r, &e[i]), is = event_time(r, ctx, i), real = esp__clocked_event_real(ctx, i);
        char what[200];
        snprintf(what, sizeof what, "rank %d: %s of unit %u, step %u: %llu to %llu, but planned %llu to %llu",
                 esp_rank(ctx), kinds[e[i].kind], e[i].unit, e[i].step, (unsigned long long)is.start_ns,
                 (unsigned long long)is.end_ns, (unsigned long long)want.start_ns, (unsigned long long)want.end_ns);
        if (!check(r, same(is, want), what)) break;
        check(r, real.start_ns >= is.start_ns && real.end_ns >= is.end_ns, "an op ran before its time");
        if (e[i].kind == ESP_PLAN_BACKWARD)
            check(r, ctx->clocked->event_of_tensor[e[i].unit] == i, "another event of a tensor");
    }
}

/* Ops are matched to events of their own unit, step, kind and lane; no two to the same one. */
static void check_match(runner *r, const esp_ctx *ctx) {
    static const uint8_t kinds[] = {0, ESP_PLAN_COMP, ESP_PLAN_DECOMP, ESP_PLAN_COLLECTIVE, ESP_PLAN_PACK};
    uint32_t n, event[4096];
    const esp_plan_event *e = esp_plan_events(r->plan, &n);
    uint8_t *taken = calloc(n, 1);
    check(r, ctx->in_force.program.n_ops <= 4096 && esp__clocked_match(ctx, r->plan, event) == ESP_OK,
          "esp__clocked_match");
    for (uint32_t i = 0; i < ctx->in_force.program.n_ops; i++) {
        const esp__op *op = &ctx->in_force.program.ops[i];
        esp__span none = {0, 0};
        if (event[i] == UINT32_MAX) {
            check(r, op->kind == ESP__OP_COPY && same(event_time(r, ctx, ctx->clocked->event_of_op[i]), none),
                  "an op without an event");
            continue;
        }
        const esp_plan_event *x = &e[event[i]];
        check(r, !taken[event[i]]++, "two ops of one event");
        check(r, x->unit == op->unit && x->kind == kinds[op->kind], "another event");
        check(r, op->kind == ESP__OP_COPY || (x->step == op->step && x->lanes >> op->lane & 1u),
              "another step or lane");
        check(r, same(event_time(r, ctx, ctx->clocked->event_of_op[i]), planned(r, x)), "an op's time");
    }
    free(taken);
}

static void step_run(runner *r, esp_ctx *ctx, const uint32_t *id, int step) {
    float *data = r->result[esp_rank(ctx)];
    for (uint64_t i = 0; i < r->elements; i++) data[i] = gradient(esp_rank(ctx), i, step);
    if (r->holds) {
        pthread_barrier_wait(&r->together);
        if (esp_rank(ctx) == 0) r->at_ns = esp__now_ns() + 200000;
        pthread_barrier_wait(&r->together);
        esp__clocked_begin(ctx, r->at_ns);
    }
    for (uint32_t t = 0; t < r->in->model.n_tensors; t++) {
        if (r->holds) check(r, esp__clocked_backward(ctx, id[t]) == ESP_OK, "esp__clocked_backward");
        check(r, esp_push(ctx, id[t], data, here) == ESP_OK, "esp_push");
        data += r->in->tensors[t].elements;
    }
    check(r, esp_wait_all(ctx) == ESP_OK, "esp_wait_all");
}

static void add_tensors(runner *r, esp_ctx *ctx, uint32_t *id) {
    for (uint32_t t = 0; t < r->in->model.n_tensors; t++) {
        esp_tensor_desc d = ESP_ZERO;
        d.name = r->in->names[t];
        d.count = r->in->tensors[t].elements;
        check(r, esp_tensor_add(ctx, &d, &id[t]) == ESP_OK, "esp_tensor_add");
    }
    check(r, esp_start(ctx) == ESP_OK, "esp_start");
    check(r, esp_strategy_set(ctx, esp_plan_text(r->plan)) == ESP_OK, "esp_strategy_set");
}

static void body(esp_ctx *ctx, void *user) {
    runner *r = user;
    uint32_t id[PROBLEM_TENSORS];
    add_tensors(r, ctx, id);
    if (r->holds && !check(r, esp__clocked_set(ctx, r->plan, r->scale) == ESP_OK, "esp__clocked_set")) return;
    for (int step = 0; step < STEPS && !atomic_load(&r->failures); step++) {
        step_run(r, ctx, id, step);
        if (r->holds) check_times(r, ctx);
    }
    if (r->holds) check_match(r, ctx);
}

static void run_ranks(runner *r, const esp_plan_system *s, void (*run)(esp_ctx *, void *)) {
    test_job j;
    uint32_t ranks = s->machines * s->ranks_per_machine;
    memset(&j, 0, sizeof j);
    for (uint32_t k = 0; k < ranks; k++) r->result[k] = calloc(r->elements, sizeof *r->result[k]);
    j.size = (int32_t)ranks, j.per_machine = (int32_t)s->ranks_per_machine;
    j.body = run, j.user = r;
    j.config.log_level = ESP_LOG_ERROR;
    pthread_barrier_init(&r->together, NULL, ranks);
    test_run(&j);
    pthread_barrier_destroy(&r->together);
    assert_int_equal(atomic_load(&r->failures), 0);
}

static void open_runner(runner *r, const problem_input *in, const esp_plan *plan) {
    uint32_t n;
    const esp_plan_event *e = esp_plan_events(plan, &n);
    uint64_t end = 1;
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < n; i++)
        if (e[i].end_ns > end) end = e[i].end_ns;
    r->in = in, r->plan = plan;
    r->scale = STEP_US * 1000.0 / (double)end;
    for (uint32_t t = 0; t < in->model.n_tensors; t++) r->elements += in->tensors[t].elements;
}

/* `compare`: with what the usual executor makes of it, too. */
static void run_plan(const problem_input *in, const esp_plan *plan, int compare) {
    static runner usual, held;
    uint32_t ranks = in->system.machines * in->system.ranks_per_machine;
    open_runner(&held, in, plan);
    held.holds = 1;
    run_ranks(&held, &in->system, body);
    for (uint32_t k = 1; k < ranks; k++)
        assert_memory_equal(held.result[0], held.result[k], held.elements * sizeof(float));
    if (compare) {
        open_runner(&usual, in, plan);
        run_ranks(&usual, &in->system, body);
        assert_memory_equal(held.result[0], usual.result[0], held.elements * sizeof(float));
        for (uint32_t k = 0; k < ranks; k++) free(usual.result[k]);
    }
    for (uint32_t k = 0; k < ranks; k++) free(held.result[k]);
}

/* A random problem on one to four machines, of 2 to 6 ranks. */
static void small_problem(uint64_t seed, uint32_t tensors, problem_input *in) {
    rng r = {seed};
    problem_plain = 1;
    problem_random(seed, tensors, seed % 2 ? 1u << ESP_PLAN_CPU : 0, in);
    in->system.machines = 1 + rng_below(&r, 3);
    in->system.ranks_per_machine = 1 + rng_below(&r, 2);
    if (seed % 3 == 0) in->system.machines = in->system.ranks_per_machine = 2;
    if (in->system.machines * in->system.ranks_per_machine == 1) in->system.machines = 4;
    for (uint32_t k = 0; k < ESP__LANES && seed % 4 == 1; k++) in->system.dispatch_ns[k] = rng_below(&r, 20000);
    for (uint32_t t = 0; t < in->model.n_tensors; t++)
        in->tensors[t].elements = 1 + in->tensors[t].elements % ELEMENTS_MAX;
}

static esp_plan *make(const problem_input *in, const esp_plan_config *config) {
    esp_plan *plan = NULL;
    if (esp_plan_make(&in->model, in->codecs, in->n_codecs, &in->system, config, &plan))
        fail_msg("%s", esp_last_error(NULL));
    return plan;
}

/* Counts plans whose ops give up, before they end, a core (by cores_per_rank), or a link ([0]). */
static void count_early(const problem_input *in, const esp_plan *plan, int n[4]) {
    uint32_t n_events;
    const esp_plan_event *e = esp_plan_events(plan, &n_events);
    int core = 0, link = 0;
    for (uint32_t i = 0; i < n_events; i++) {
        core |= e[i].lanes & ESP__CORE_LANES && e[i].core_ns < e[i].end_ns - e[i].start_ns;
        link |= e[i].lanes & ESP__LINK_LANES && e[i].link_ns < e[i].end_ns - e[i].start_ns;
    }
    if (core) n[in->system.cores_per_rank]++;
    n[0] += link;
}

/* What the planner chooses, and every comparison strategy. */
static void test_plans(void **state) {
    static problem_input in;
    const esp__scheme *const *s = esp__schemes();
    int early[4] = {0};
    (void)state;
    for (uint64_t seed = 0; seed < 32; seed++) {
        esp_plan_config config = {.flags = ESP_PLAN_NO_BOUND};
        if (seed % 2 && *s) config.strategy = (*s++)->name;
        small_problem(seed, 12, &in);
        esp_plan *plan = make(&in, &config);
        count_early(&in, plan, early);
        run_plan(&in, plan, seed % 4 == 0);
        esp_plan_free(plan);
    }
    for (int k = 0; k < 4; k++) assert_true(early[k] > 0);
}

/* Any order that no op contradicts: the next is a random unit's next op, or backward. */
static void random_sequence(rng *r, esp__problem *p, esp__schedule *d) {
    uint32_t at[4 * PROBLEM_TENSORS] = {0}, tensor = 0, reached = 0, n = 0;
    esp__generate(p, d); /* takes the room */
    while (n < d->n_sequence) {
        uint32_t u = reached ? rng_below(r, reached) : 0;
        if (tensor < p->n_tensors && (!reached || rng_chance(r, 0.3))) {
            for (; reached < d->n_units && d->units[reached].first + d->units[reached].n - 1 == tensor; reached++) {
            }
            tensor++;
            d->sequence[n++] = ESP__NEXT_BACKWARD;
        } else if (reached && at[u] < d->paths[u]->n) {
            at[u]++;
            d->sequence[n++] = u;
        } else if (tensor == p->n_tensors) {
            for (u = 0; at[u] == d->paths[u]->n; u++) {
            }
            at[u]++;
            d->sequence[n++] = u;
        }
    }
    d->makespan = esp__replay(p, d);
}

/* Units of every kind, each with a random option of the tree, in any order. */
static esp_plan *random_plan(rng *r, const problem_input *in) {
    esp__unit units[4 * PROBLEM_TENSORS];
    esp_plan *plan = NULL;
    jmp_buf jump;
    esp__arena arena = {.on_failure = &jump};
    esp__problem p;
    esp__schedule d = {0};
    uint32_t n = problem_units(r, in->tensors, in->model.n_tensors, units);
    assert_int_equal(esp__problem_open(&p, &arena, &in->model, in->codecs, in->n_codecs, &in->system, NULL, 0), ESP_OK);
    esp__schedule_set_units(&p, &d, units, n);
    for (uint32_t u = 0; u < n; u++) {
        const esp__candidates *candidates = esp__candidates_get(&p, &units[u]);
        d.paths[u] = &candidates->paths[rng_below(r, candidates->n)];
    }
    random_sequence(r, &p, &d);
    char *text = esp__schedule_text(&p, &d, "");
    esp__arena_free(&arena);
    if (esp_plan_simulate(&in->model, in->codecs, in->n_codecs, &in->system, NULL, text, &plan))
        fail_msg("%s of:\n%s", esp_last_error(NULL), text);
    free(text);
    return plan;
}

static void test_any_order(void **state) {
    static problem_input in;
    int early[4] = {0};
    (void)state;
    for (uint64_t seed = 100; seed < 140; seed++) {
        rng r = {seed};
        small_problem(seed, 8, &in);
        if (seed % 2) in.system.host_bytes_per_us = 500;
        esp_plan *plan = random_plan(&r, &in);
        count_early(&in, plan, early);
        run_plan(&in, plan, seed % 4 == 0);
        esp_plan_free(plan);
    }
    for (int k = 0; k < 4; k++) assert_true(early[k] > 0);
}

/* ---- lanes are free when the plan says, before the op ends --------------------------------------------------------------- */
/* Two machines of a rank each, four tensors, and a link whose collectives give up core and link early. */
static void early_problem(uint32_t cores, problem_input *in) {
    rng r = {cores};
    small_problem(1, 1, in);
    in->system.machines = 2, in->system.ranks_per_machine = 1;
    in->system.devices = 1u << ESP_PLAN_CPU, in->system.cores_per_rank = cores;
    problem_tables(&r, in);
    in->model.n_tensors = 4;
    for (uint32_t t = 0; t < 4; t++) {
        snprintf(in->names[t], sizeof in->names[t], "t%u", t);
        in->tensors[t] = (esp_plan_tensor){.name = in->names[t], .elements = 100, .compute_ns = 1e6};
    }
    for (int l = 0; l < 3; l++)
        for (uint32_t c = ESP_COLL_ALLREDUCE; c <= ESP_COLL_REDUCE; c++) {
            esp_plan_link *const links[] = {&in->system.intra, &in->system.inter, &in->system.flat};
            links[l]->gap[c] = (esp_cost_curve){in->tables[l][c][2], 3, 0};
            for (int k = 0; k < 3; k++) {
                in->tables[l][c][0][k].ns = 4e6;
                in->tables[l][c][1][k].ns = 1e6, in->tables[l][c][2][k].ns = 2e6;
            }
        }
}

/* The first collective's result is there in an hour: all other tensors must become ready meanwhile. */
static void early_body(esp_ctx *ctx, void *user) {
    static const uint64_t hour = 3600000000000u;
    runner *r = user;
    uint32_t id[PROBLEM_TENSORS], n;
    float data[4][100];
    add_tensors(r, ctx, id);
    if (!check(r, esp__clocked_set(ctx, r->plan, 1.0) == ESP_OK, "esp__clocked_set")) return;
    const esp_plan_event *e = esp_plan_events(r->plan, &n);
    esp__clocked_event *first = NULL;
    for (uint32_t i = 0; i < n && !first; i++)
        if (e[i].kind == ESP_PLAN_COLLECTIVE && e[i].unit == 0) first = &ctx->clocked->event[i];
    if (!check(r, first && first->core_ns < first->ns && first->link_ns < first->ns, "it gives up both early")) return;
    first->ns = hour;
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t i = 0; i < 100; i++) data[t][i] = gradient(esp_rank(ctx), i, (int)t);
    esp__clocked_begin(ctx, esp__now_ns());
    for (uint32_t t = 0; t < 4; t++) {
        check(r, esp__clocked_backward(ctx, id[t]) == ESP_OK, "esp__clocked_backward");
        check(r, esp_push(ctx, id[t], data[t], here) == ESP_OK, "esp_push");
    }
    for (uint32_t t = 3; t > 0; t--) check(r, esp_wait(ctx, id[t]) == ESP_OK, "esp_wait");
    pthread_mutex_lock(&ctx->lanes.lock);
    check(r, first->state != ESP__CLOCKED_OVER && !first->held, "it has not ended, and keeps no lane");
    first->due.end_ns = first->due.start_ns;
    esp__link_wake(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    check(r, esp_wait_all(ctx) == ESP_OK, "esp_wait_all");
    check(r, first->state == ESP__CLOCKED_OVER, "it has ended");
}

static void test_lanes_are_free_early(void **state) {
    static problem_input in;
    static runner r;
    (void)state;
    alarm(100); /* where a lane is kept until the op ends, this test would wait for an hour */
    for (uint32_t cores = 1; cores <= 3; cores++) {
        early_problem(cores, &in);
        esp_plan_config config = {.strategy = "fp32"};
        esp_plan *plan = make(&in, &config);
        open_runner(&r, &in, plan);
        run_ranks(&r, &in.system, early_body);
        for (uint32_t k = 0; k < RANKS_MAX; k++) free(r.result[k]);
        esp_plan_free(plan);
    }
    alarm(0);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------- */
static int says(runner *r, esp_status s, esp_status want, const char *word) {
    int yes = s == want && strstr(esp_last_error(NULL), word) != NULL;
    if (!yes) fprintf(stderr, "status %d, expected %d and '%s'\n", s, want, word);
    return check(r, yes, word);
}

static void refusals(esp_ctx *ctx, void *user) {
    runner *r = user;
    uint32_t id[PROBLEM_TENSORS], event[4096];
    float data[ELEMENTS_MAX] = {0};
    add_tensors(r, ctx, id);
    says(r, esp__clocked_backward(ctx, id[0]), ESP_E_STATE, "esp__clocked_set");
    says(r, esp__clocked_set(ctx, r->plan, 0.0), ESP_E_ARG, "time scale");
    says(r, esp__clocked_set(ctx, r->plan, -1.0), ESP_E_ARG, "time scale");
    says(r, esp__clocked_match(ctx, NULL, event), ESP_E_ARG, "NULL");
    check(r, esp__clocked_set(ctx, r->plan, r->scale) == ESP_OK, "esp__clocked_set");
    /* a step that was not begun as clocked, and a change of strategy */
    step_run(r, ctx, id, 0);
    check(r, esp_strategy_set(ctx, "fp32") == ESP_OK && !ctx->clocked, "a change of strategy ends it");
    step_run(r, ctx, id, 0);
    says(r, esp__clocked_set(ctx, r->plan, 1.0), ESP_E_ARG, "plan's");
    says(r, esp__clocked_match(ctx, r->plan, event), ESP_E_ARG, "plan's text");
    check(r, esp_strategy_set(ctx, esp_plan_text(r->plan)) == ESP_OK, "esp_strategy_set");
    check(r, esp__clocked_set(ctx, r->plan, r->scale) == ESP_OK, "esp__clocked_set again");
    check(r, esp__clocked_set(ctx, NULL, r->scale) == ESP_OK && !ctx->clocked, "NULL ends it");
    check(r, esp__clocked_set(ctx, r->plan, r->scale) == ESP_OK, "esp__clocked_set");
    says(r, esp__clocked_set(ctx, r->other, r->scale), ESP_E_ARG, "order of ops lets it begin");
    check(r, ctx->clocked != NULL, "a plan that is refused changes nothing");
    /* out of order; and a push without its backward ends the context, on all ranks, instead of waiting for ever */
    esp__clocked_begin(ctx, esp__now_ns());
    says(r, esp__clocked_backward(ctx, id[1]), ESP_E_ARG, "next in order is 0");
    check(r, esp_push(ctx, id[0], data, here) == ESP_OK, "esp_push");
    says(r, esp__clocked_backward(ctx, id[0]), ESP_E_STATE, "before its esp__clocked_backward");
    says(r, esp_wait_all(ctx), ESP_E_STATE, "before its esp__clocked_backward");
}

static void test_refusals(void **state) {
    static problem_input in;
    static runner r;
    (void)state;
    small_problem(2, 1, &in);
    for (uint32_t t = 0; t < 4; t++) {
        in.tensors[t] = in.tensors[0];
        snprintf(in.names[t], sizeof in.names[t], "t%u", t);
        in.tensors[t].name = in.names[t];
        in.tensors[t].elements = 100;
    }
    in.model.n_tensors = 4;
    esp_plan_config config = {.strategy = "mergecomp"};
    esp_plan *plan = make(&in, &config), *other = make(&in, &config);
    uint32_t n;
    esp_plan_event *last = (esp_plan_event *)(uintptr_t)esp_plan_events(other, &n);
    last[n - 1].start_ns++, last[n - 1].end_ns++;
    open_runner(&r, &in, plan);
    r.other = other;
    run_ranks(&r, &in.system, refusals);
    for (uint32_t k = 0; k < RANKS_MAX; k++) free(r.result[k]);
    esp_plan_free(plan);
    esp_plan_free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans), cmocka_unit_test(test_any_order),
                                       cmocka_unit_test(test_lanes_are_free_early), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
