/* test_limits.c checks that plans respect max_memory_bytes, max_volume and max_error, and are close to the fastest
 * that do. If no plan can, the error names the limit. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "tests/planner/open_problem.h"
#include "exact.h"

enum { NODES = 200000 };

static double elements_of(const problem_input *in) {
    double sum = 0.0;
    for (uint32_t t = 0; t < in->model.n_tensors; t++) sum += (double)in->tensors[t].elements;
    return sum;
}

static void limit(uint64_t seed, problem_input *in) {
    rng r = {seed + 77};
    uint32_t what = 1 + rng_below(&r, 7);
    if (what & 1u) in->config.max_memory_bytes = 1 + (uint64_t)(rng_unit(&r) * elements_of(in) * 6.0);
    if (what & 2u) in->config.max_volume = 0.01 + rng_unit(&r) * 0.9;
    if (what & 4u) in->config.max_error = rng_unit(&r) * rng_unit(&r) * 0.4;
}

/* ---- a search for the best plan within limits that tries all plans ---- */
typedef double uses_of[3];
typedef struct within {
    exact e;
    uses_of may, least[EXACT_UNITS + 1];
} within;

static void uses_path(const esp__path *path, uses_of uses) {
    uses[0] = (double)path->memory;
    uses[1] = (double)path->volume;
    uses[2] = path->error;
}

static void within_choose(within *w, uint32_t u, const uint64_t load[ESP__LANES], const uses_of used) {
    exact *e = &w->e;
    if (e->gave_up) return;
    if (u == e->n) {
        exact_paths_done(e);
        return;
    }
    for (uint32_t x = 0; x < e->candidate_sets[u]->n; x++) {
        const esp__path *path = &e->candidate_sets[u]->paths[x];
        uint64_t with[ESP__LANES];
        uses_of uses;
        int out = e->p->ready[e->units[u].first] + path->total >= e->best;
        uses_path(path, uses);
        for (int k = 0; k < 3; k++) {
            uses[k] += used[k];
            out |= uses[k] + w->least[u + 1][k] > w->may[k] * (1.0 + 1e-12);
        }
        for (uint32_t l = 0; l < ESP__LANES; l++) {
            with[l] = load[l] + path->load[l];
            out |= with[l] >= e->best;
        }
        if (out) continue;
        e->paths[u] = path;
        within_choose(w, u + 1, with, uses);
    }
}

static int within_solve(const opened_problem *g, const esp__schedule *tensors, uint64_t known, uint64_t *out) {
    static within w;
    const esp_plan_config *c = &g->p.config;
    double elements = elements_of(&g->in);
    uint64_t load[ESP__LANES] = {0};
    uses_of none = {0.0, 0.0, 0.0};
    exact *e = &w.e;
    memset(&w, 0, sizeof w);
    e->p = &g->p, e->units = tensors->units, e->n = tensors->n_units, e->best = known, e->node_limit = NODES;
    w.may[0] = c->max_memory_bytes ? (double)c->max_memory_bytes : 1e300;
    w.may[1] = c->max_volume > 0.0 ? c->max_volume * 4.0 * elements : 1e300;
    w.may[2] = c->max_error > 0.0 ? c->max_error * elements : 1e300;
    for (uint32_t u = e->n; u-- > 0;) {
        e->candidate_sets[u] = esp__candidates_get((esp__problem *)(uintptr_t)&g->p, &tensors->units[u]);
        for (int k = 0; k < 3; k++) {
            double least = 1e300;
            for (uint32_t x = 0; x < e->candidate_sets[u]->n; x++) {
                uses_of uses;
                uses_path(&e->candidate_sets[u]->paths[x], uses);
                if (uses[k] < least) least = uses[k];
            }
            w.least[u][k] = w.least[u + 1][k] + least;
        }
    }
    for (uint32_t t = 0; t < g->p.n_tensors; t++) load[ESP__LANE_COMPUTE] += g->p.compute[t];
    within_choose(&w, 0, load, none);
    *out = e->best;
    return !e->gave_up;
}

/* With few tensors, the planner finds the best plan within the limits if there is one. */
TEST(test_optimum) {
    static opened_problem g;
    uint32_t n = 0, equal = 0, none = 0;
    double worst = 0.0;
    for (uint64_t seed = 0; seed < test_repeats(500); seed++) {
        esp__schedule tensors, d;
        uint64_t best;
        memset(&g, 0, sizeof g);
        memset(&tensors, 0, sizeof tensors);
        memset(&d, 0, sizeof d);
        problem_random(seed, 4, 1u << ESP_ON_GPU, &g.in);
        g.in.config.flags = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
        limit(seed, &g.in);
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        esp__schedule_tensors(&g.p, &tensors);
        esp__search_all(&g.p, &d);
        if (!d.n_units || !esp__schedule_allowed(&g.p, &d)) {
            none++;
            within_solve(&g, &tensors, UINT64_MAX, &best);
            if (best != UINT64_MAX)
                fail_msg("seed %llu: no plan found, but one within the limits takes %llu", (unsigned long long)seed,
                         (unsigned long long)best);
        } else {
            check_schedule(&g, &d);
            within_solve(&g, &tensors, d.makespan, &best);
            double above = best ? 100.0 * ((double)d.makespan / (double)best - 1.0) : 0.0;
            if (above > worst) worst = above;
            n++;
            equal += best == d.makespan;
        }
        close_problem(&g);
    }
    print_message("%u of %u are the optimum, the worst is %.3f%% above; %u have none\n", equal, n, worst, none);
    assert_true(worst <= 1.0);
    assert_true(none > test_repeats(50) && n > test_repeats(200));
}

/* ---- plans of esp_plan_make ---- */
static esp_status make(const problem_input *in, esp_plan **out) {
    return esp_plan_make(&in->model, in->codecs, in->n_codecs, &in->system, &in->config, out);
}

/* Computes a plan's memory, volume and error again from its text. */
static void check_within(const problem_input *in, const esp_plan *plan) {
    const esp_plan_config *c = &in->config;
    esp_plan_report r = {.struct_size = sizeof r};
    double elements = elements_of(in), volume = 0.0, error = 0.0;
    uint32_t n;
    esp__problem p;
    memset(&p, 0, sizeof p);
    p.model = &in->model, p.most_rounds = 1, p.size[ESP__FLAT] = in->system.machines * in->system.ranks_per_machine;
    const esp_plan_unit *units = esp_plan_units(plan, &n);
    for (uint32_t u = 0; u < n; u++) {
        const esp_plan_codec *codec = NULL;
        for (uint32_t k = 0; k < in->n_codecs; k++)
            if (!strcmp(units[u].codec, in->codecs[k].spec)) codec = &in->codecs[k];
        const esp__extent unit = {units[u].first, units[u].n_tensors, units[u].begin, units[u].elements};
        const uint64_t cols = esp__unit_cols(&p, &unit);
        volume += codec ? floor(esp__unit_volume(&p, codec, unit.elements, cols)) : 4.0 * (double)unit.elements;
        error += codec ? esp__codec_error(codec, cols) * (double)unit.elements : 0.0;
    }
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    if (c->max_memory_bytes) assert_true(r.memory_bytes <= c->max_memory_bytes);
    if (c->max_volume > 0.0) assert_true(volume <= c->max_volume * 4.0 * elements * (1.0 + 1e-9));
    if (c->max_error > 0.0) assert_true(error <= c->max_error * elements * (1.0 + 1e-9));
}

static void least_of(problem_input *in, uses_of least) {
    static opened_problem g;
    memset(&g, 0, sizeof g);
    g.in = *in;
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    for (int k = 0; k < 3; k++) least[k] = 0.0;
    for (uint32_t t = 0; t < in->model.n_tensors; t++) {
        esp__extent u = {t, 1, 0, in->tensors[t].elements};
        const esp__candidates *candidates = esp__candidates_get(&g.p, &u);
        uses_of own = {1e300, 1e300, 1e300}, uses;
        for (uint32_t i = 0; i < candidates->n; i++) {
            uses_path(&candidates->paths[i], uses);
            for (int k = 0; k < 3; k++) own[k] = uses[k] < own[k] ? uses[k] : own[k];
        }
        for (int k = 0; k < 3; k++) least[k] += own[k];
    }
    close_problem(&g);
}

TEST(test_any) {
    static problem_input in;
    double sum = 0.0;
    uint32_t n = 0;
    for (uint64_t seed = 0; seed < test_repeats(60); seed++) {
        uses_of least;
        esp_plan *free_plan, *plan;
        problem_random(seed, 24, 0, &in);
        double elements = elements_of(&in);
        in.config.flags = ESP_PLAN_NO_BOUND;
        in.config.max_volume = 1e9;
        least_of(&in, least);
        in.config.max_volume = 0.0;
        assert_int_equal(make(&in, &free_plan), ESP_OK);
        esp_plan_report r = {.struct_size = sizeof r};
        esp_plan_report_read(free_plan, &r);
        in.config.max_memory_bytes = r.memory_bytes; /* a limit that the plan keeps does not change it */
        assert_int_equal(make(&in, &plan), ESP_OK);
        assert_string_equal(esp_plan_text(plan), esp_plan_text(free_plan));
        esp_plan_free(plan);
        for (int what = 0; what < 3; what++) {
            esp_plan_report limited = {.struct_size = sizeof limited};
            in.config.max_memory_bytes = 0;
            in.config.max_volume = in.config.max_error = 0.0;
            if (what == 0) in.config.max_memory_bytes = ((uint64_t)least[0] + r.memory_bytes) / 2 + 1;
            if (what == 1) in.config.max_volume = least[1] / (4.0 * elements) * 1.2 + 1e-6;
            if (what == 2) in.config.max_error = 0.02;
            if (make(&in, &plan))
                fail_msg("seed %llu, limit %d: %s", (unsigned long long)seed, what, esp_last_error(NULL));
            check_within(&in, plan);
            esp_plan_report_read(plan, &limited);
            sum += limited.iteration_ns / r.iteration_ns;
            n++;
            esp_plan_free(plan);
        }
        esp_plan_free(free_plan);
    }
    print_message("%u plans within limits: on average %.3f of the time without\n", n, sum / n);
}

/* A limit just below the least possible value gives an error that names it; one just above gives a plan. */
TEST(test_impossible) {
    static problem_input in;
    for (uint64_t seed = 100; seed < 100 + test_repeats(20); seed++) {
        uses_of least;
        esp_plan *plan;
        problem_random(seed, 8, 0, &in);
        in.config.flags = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
        in.config.max_volume = 1e9;
        least_of(&in, least);
        double volume = least[1] / (4.0 * elements_of(&in));
        in.config.max_volume = volume * 0.999;
        assert_int_not_equal(make(&in, &plan), ESP_OK);
        assert_null(plan);
        const char *said = strstr(esp_last_error(NULL), "the least is ");
        assert_non_null(strstr(esp_last_error(NULL), "max_volume is "));
        assert_non_null(said);
        double value = strtod(said + strlen("the least is "), NULL);
        assert_true(value > volume * 0.999 && value < volume * 1.001);
        in.config.max_volume = volume * (1.0 + 1e-9);
        assert_int_equal(make(&in, &plan), ESP_OK);
        check_within(&in, plan);
        esp_plan_free(plan);
    }
}

/* With chunks and groups permitted, either a plan within the limit is found, or an error names the limit. */
TEST(test_impossible_merged) {
    static problem_input in;
    uint32_t impossible = 0;
    for (uint64_t seed = 1002; seed < 1002 + 5 * test_repeats(20); seed += 5) {
        esp_plan *plan;
        uint32_t n = 0;
        problem_random(seed, 24, 0, &in);
        in.config.flags = ESP_PLAN_NO_BOUND;
        in.config.max_volume = 0.2;
        if (make(&in, &plan)) {
            assert_non_null(strstr(esp_last_error(NULL), "max_volume is "));
            impossible++;
            continue;
        }
        esp_plan_units(plan, &n);
        assert_true(n > 0);
        check_within(&in, plan);
        esp_plan_free(plan);
    }
    assert_true(impossible > 0);
}

/* Codec dgc has smaller payloads and a larger error than fp16. The limit on the error lets only three of the eight
 * tensors use dgc. */
TEST(test_codec_per_tensor) {
    static problem_input in;
    static const esp_cost_point quick[] = {{1099511627776.0, 1e3}};
    const esp_cost_curve curve = {quick, 1, 0};
    uint32_t coarse = 0, fine = 0, n;
    esp_plan *plan;
    problem_random(1, 1, 1u << ESP_ON_GPU, &in);
    memset(&in.config, 0, sizeof in.config);
    in.system.machines = 4, in.system.ranks_per_machine = 1;
    in.system.inter.bytes_per_us = 1000;
    in.system.host_bytes_per_us = 0;
    in.n_codecs = 2;
    for (uint32_t k = 0; k < 2; k++) {
        esp_plan_codec c = {.spec = k ? "fp16" : "dgc:ratio=0.01",
                            .unit_bytes = k ? 2 : 8,
                            .units = k ? 1 : 0.01,
                            .error = k ? 1e-6 : 0.5};
        c.compress[ESP_ON_GPU] = c.decompress[ESP_ON_GPU] = curve;
        in.codecs[k] = c;
    }
    in.model.n_tensors = 8;
    for (uint32_t t = 0; t < 8; t++) {
        snprintf(in.names[t], sizeof in.names[t], "t%u", t);
        esp_plan_tensor tensor = {in.names[t], 1000000, 100e3, .keep = NULL};
        in.tensors[t] = tensor;
    }
    in.config.flags = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
    in.config.max_error = 0.5 * 3.5 / 8.0;
    assert_int_equal(make(&in, &plan), ESP_OK);
    check_within(&in, plan);
    const esp_plan_unit *units = esp_plan_units(plan, &n);
    for (uint32_t u = 0; u < n; u++) {
        coarse += !strcmp(units[u].codec, "dgc:ratio=0.01");
        fine += !strcmp(units[u].codec, "fp16");
    }
    assert_int_equal(coarse, 3);
    assert_int_equal(fine, 5);
    esp_plan_free(plan);
}

/* Returns 1 if a candidate for a tensor on 4096 machines gathers the payloads of all ranks. Sets *held to the most
 * memory in bytes that a candidate needs. */
static int has_gathered(uint64_t elements, uint64_t limit, uint64_t *held) {
    static const esp_cost_point fast[] = {{1e15, 1e3}};
    static opened_problem g;
    int has = 0;
    simple_problem(&g, 4096, 1);
    add_tensor(&g, elements, 1000);
    g.in.system.flat.table[ESP_COLL_ALLGATHER] = (esp_cost_curve){fast, 1, 0};
    g.in.config.max_memory_bytes = limit;
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    const esp__extent u = {0, 1, 0, elements};
    const esp__candidates *candidates = esp__candidates_get(&g.p, &u);
    const esp__path *gathered = esp__path_make(&g.p, &u, "comp@gpu > flat.allgather > decomp@gpu", 0);
    assert_non_null(gathered);
    assert_true(gathered->memory >= 4096 * (elements / 100 * 8));
    *held = 0;
    for (uint32_t i = 0; i < candidates->n; i++) {
        if (candidates->paths[i].memory > *held) *held = candidates->paths[i].memory;
        has |= candidates->paths[i].total == gathered->total && candidates->paths[i].memory == gathered->memory;
    }
    assert_true(candidates->n > 0);
    close_problem(&g);
    return has;
}

/* The planner drops options with an op that needs more than max_memory_bytes. It also drops those with an op that
 * needs more than 256 MiB and more than 16 times the tensor's size. */
TEST(test_wasteful) {
    uint64_t held;
    assert_false(has_gathered(16u << 20, 0, &held));
    assert_true(has_gathered(100000, 0, &held));
    assert_true(held > 30000000);
    assert_false(has_gathered(100000, 20000000, &held));
    assert_true(held <= 20000000);
    assert_true(has_gathered(100000, 40000000, &held));
}
