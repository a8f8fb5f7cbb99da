/* test_algorithms.c checks the Espresso paper's Algorithms 1 and 2: against exhaustive search on small problems and
 * against published strategies on all. It also checks the order of tensors and the paper's Lemma 1. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "planner/simulate/schedule.h"
#include "planner/search/search.h"
#include "planner/baselines/baselines.h"
#include "tests/planner/open_problem.h"

static void open_random(opened_problem *g, uint64_t seed, uint32_t tensors, uint32_t devices) {
    memset(g, 0, sizeof *g);
    problem_random(seed, tensors, devices, &g->in);
    assert_int_equal(open_problem(g, 0), ESP_OK);
}

TEST(order_by_size) {
    static opened_problem g;
    static const uint32_t want[] = {3, 1, 4, 2, 0};
    simple_problem(&g, 2, 2);
    add_tensor(&g, 10, 1), add_tensor(&g, 500, 1), add_tensor(&g, 20, 1), add_tensor(&g, 500, 1), add_tensor(&g, 20, 1);
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    esp__schedule d;
    memset(&d, 0, sizeof d);
    esp__schedule_tensors(&g.p, &d);
    const esp__ranked *ranking = esp__ranking(&g.p, &d);
    for (int i = 0; i < 5; i++) assert_int_equal(ranking[i].unit, want[i]);
    d.units[2].elements = 1000; /* the order follows the sizes, although the number of units stays */
    ranking = esp__ranking(&g.p, &d);
    assert_int_equal(ranking[0].unit, 2);
    assert_int_equal(ranking[1].unit, 3);
    close_problem(&g);
}

/* Choices at one set of prices, or with fewer options allowed, do not affect a later search. */
TEST(prices_start_anew) {
    for (uint64_t seed = 0; seed < test_repeats(30); seed++) {
        static opened_problem g[2];
        esp__schedule d[2] = {{0}};
        for (int k = 0; k < 2; k++) {
            open_random(&g[k], seed, 12, 0);
            esp__schedule_tensors(&g[k].p, &d[k]);
        }
        g[1].p.allow = ESP__ALLOW_RAW;
        esp__start_balanced(&g[1].p, &d[1]);
        g[1].p.allow = ESP__ALLOW_ALL;
        for (int k = 0; k < 2; k++) esp__start_balanced(&g[k].p, &d[k]);
        assert_int_equal(d[0].makespan, d[1].makespan);
        for (uint32_t u = 0; u < d[0].n_units; u++) {
            const esp__path *chosen = d[0].paths[u], *first = esp__candidates_get(&g[0].p, &d[0].units[u])->paths;
            const esp__path *other = esp__candidates_get(&g[1].p, &d[1].units[u])->paths;
            assert_int_equal(chosen - first, d[1].paths[u] - other);
        }
        for (int k = 0; k < 2; k++) close_problem(&g[k]);
    }
}

/* The result is never slower than without compression, and hardly ever slower than strategies that compress by a fixed
 * rule with the same codec. */
TEST(never_worse) {
    static const char *const schemes[] = {"fp32", "layerwise", "hitopkcomm", "byteps-compress"};
    uint32_t better = 0, by_scheme = 0, cases = 0;
    for (uint64_t seed = 0; seed < test_repeats(150); seed++, cases++) {
        static opened_problem g;
        open_random(&g, seed, 24, 0);
        esp__schedule one, two, both, fp32 = make_schedule(&g, "fp32");
        memset(&one, 0, sizeof one);
        memset(&two, 0, sizeof two);
        memset(&both, 0, sizeof both);
        esp__schedule_tensors(&g.p, &one);
        esp__algorithm1(&g.p, &one);
        check_schedule(&g, &one);
        esp__schedule_copy(&g.p, &two, &one);
        esp__algorithm2(&g.p, &two);
        check_schedule(&g, &two);
        esp__paper(&g.p, &both);
        check_schedule(&g, &both);
        assert_true(one.makespan <= fp32.makespan);
        assert_true(two.makespan <= one.makespan);
        assert_true(both.makespan <= two.makespan);
        better += one.makespan < fp32.makespan;
        for (int i = 0; i < 4; i++) {
            esp__schedule d = make_schedule(&g, schemes[i]);
            by_scheme += d.makespan < both.makespan;
        }
        close_problem(&g);
    }
    assert_true(better > cases / 4);
    assert_true(by_scheme <= cases / 100);
}

/* Returns the least time over all combinations of options, with ops in the order in which they become ready. */
static uint64_t optimum(opened_problem *g, esp__schedule *d, uint32_t u) {
    uint64_t best = UINT64_MAX;
    if (u == d->n_units) return esp__generate(&g->p, d);
    const esp__candidates *m = esp__candidates_get(&g->p, &d->units[u]);
    for (uint32_t i = 0; i < m->n; i++) {
        d->paths[u] = &m->paths[i];
        uint64_t t = optimum(g, d, u + 1);
        if (t < best) best = t;
    }
    return best;
}

TEST(near_optimum) {
    uint32_t cases = 0, exact = 0;
    double worst = 0.0;
    for (uint64_t seed = 0; cases < test_repeats(120); seed++) {
        static opened_problem g;
        double combinations = 1.0;
        open_random(&g, seed, 3, 2);
        esp__schedule d, all;
        memset(&d, 0, sizeof d);
        memset(&all, 0, sizeof all);
        esp__schedule_tensors(&g.p, &d);
        esp__schedule_tensors(&g.p, &all);
        for (uint32_t u = 0; u < d.n_units; u++) combinations *= esp__candidates_get(&g.p, &d.units[u])->n;
        if (combinations <= 40000 && d.n_units > 1) {
            esp__algorithm1(&g.p, &d);
            double off = (double)d.makespan / (double)optimum(&g, &all, 0) - 1.0;
            cases++;
            exact += off <= 0.0;
            if (off > worst) worst = off;
        }
        close_problem(&g);
    }
    print_message("  optimum in %u of %u cases, at most %.1f%% above it\n", exact, cases, 100.0 * worst);
    assert_true(exact >= cases * 9 / 10);
    assert_true(worst < 0.15);
}

static const esp__path *candidate_with(opened_problem *g, const esp__extent *u, const char *option) {
    const esp__candidates *m = esp__candidates_get(&g->p, u);
    char text[ESP__TEXT_MAX];
    for (uint32_t i = 0; i < m->n; i++) {
        esp__option_print(m->paths[i].option, text, sizeof text);
        if (!strcmp(text, option)) return &m->paths[i];
    }
    fail_msg("no candidate has option '%s'", option);
    return NULL;
}

/* By Lemma 1 of the Espresso paper, the first ones of equal tensors should be compressed on the CPU. Here the CPU takes
 * three times as long, but the GPU delays backward. No other combination may be faster. */
TEST(lemma1) {
    static opened_problem g;
    uint32_t moved = 0, stayed = 0;
    simple_problem(&g, 4, 1);
    for (int i = 0; i < 8; i++) add_tensor(&g, 100000, 250);
    for (int k = 0; k < 2; k++) {
        static const esp_cost_point gpu[] = {{1099511627776.0, 200e3}}, cpu[] = {{1099511627776.0, 600e3}};
        esp_cost_curve curve = {k ? gpu : cpu, 1, 0};
        g.in.codecs[0].compress[k] = g.in.codecs[0].decompress[k] = curve;
    }
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    esp__schedule d, start, trial;
    memset(&d, 0, sizeof d);
    memset(&start, 0, sizeof start);
    memset(&trial, 0, sizeof trial);
    esp__schedule_tensors(&g.p, &start);
    const esp__path *on_gpu = candidate_with(&g, &start.units[0], "comp@gpu > flat.allgather > decomp@gpu");
    const esp__path *on_cpu = candidate_with(&g, &start.units[0], "comp@cpu > flat.allgather > decomp@cpu");
    const esp__path *two[] = {on_gpu, on_cpu};
    for (uint32_t u = 0; u < 8; u++) start.paths[u] = on_gpu;
    esp__generate(&g.p, &start);
    esp__schedule_copy(&g.p, &d, &start);
    esp__algorithm2(&g.p, &d);
    check_schedule(&g, &d);
    assert_true(d.makespan < start.makespan);
    for (uint32_t u = 0; u < 8; u++) {
        if (d.paths[u] == on_cpu) assert_int_equal(stayed, 0), moved++;
        if (d.paths[u] == on_gpu) stayed++;
    }
    assert_true(moved && stayed);
    esp__schedule_copy(&g.p, &trial, &start);
    for (uint32_t set = 0; set < 256; set++) {
        for (uint32_t u = 0; u < 8; u++) trial.paths[u] = two[set >> u & 1u];
        assert_true(esp__generate(&g.p, &trial) >= d.makespan);
    }
    close_problem(&g);
}

/* Models of thousands of different tensors take linear work. */
TEST(many_tensors) {
    enum { MANY = 4000 };
    static opened_problem g;
    simple_problem(&g, 4, 2);
    esp_plan_tensor *tensors = calloc(MANY, sizeof *tensors);
    static char names[MANY][8];
    for (uint64_t i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "t%d", (int)i);
        tensors[i] = (esp_plan_tensor){.name = names[i], .elements = 1000 + i * 7919 % 200000, .compute_ns = 1000};
    }
    g.in.model.tensors = tensors, g.in.model.n_tensors = MANY;
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    esp__schedule d = {0};
    esp__algorithm1(&g.p, &d);
    assert_true(g.p.work < 100000000);
    /* Algorithm 2 gets a schedule in which every tensor is compressed */
    for (uint32_t u = 0; u < d.n_units; u++) {
        const esp__candidates *m = esp__candidates_get(&g.p, &d.units[u]);
        for (uint32_t i = 0; i < m->n; i++)
            if (!esp__path_on(&g.p, &m->paths[i], 1u << ESP_ON_CPU)) d.paths[u] = &m->paths[i];
    }
    const uint64_t before = esp__generate(&g.p, &d);
    g.p.work = 0;
    esp__algorithm2(&g.p, &d);
    check_schedule(&g, &d);
    assert_true(d.makespan < before && g.p.work < 100000000);
    close_problem(&g);
    free(tensors);
}

static int any_cpu(const opened_problem *g, const esp__schedule *d) {
    for (uint32_t u = 0; u < d->n_units; u++)
        if (!esp__path_on(&g->p, d->paths[u], 1u << ESP_ON_GPU)) return 1;
    return 0;
}

/* The result keeps limits and respects forbidden options and devices, and neither merges nor splits tensors. */
TEST(constraints) {
    static const char *const cpu[] = {"comp@cpu"}, *const alltoall[] = {"*alltoall*"};
    uint32_t on_cpu = 0, whole = 1, limited = 0;
    for (uint64_t seed = 0; seed < 40; seed++)
        for (int what = 0; what < 7; what++) {
            static opened_problem g;
            memset(&g, 0, sizeof g);
            problem_random(seed, 12, 3, &g.in);
            if (what == 1) g.in.config.forbid = cpu, g.in.config.n_forbid = 1;
            if (what == 2) g.in.config.forbid = alltoall, g.in.config.n_forbid = 1;
            if (what == 3) g.in.config.flags = ESP_PLAN_NO_SPLIT | ESP_PLAN_NO_MERGE;
            if (what == 4) g.in.config.max_error = 0.05;
            if (what == 5) g.in.config.max_volume = 0.6;
            if (what == 6) g.in.config.max_memory_bytes = 1u << 20;
            assert_int_equal(open_problem(&g, 0), ESP_OK);
            esp__schedule d;
            memset(&d, 0, sizeof d);
            esp__paper(&g.p, &d);
            check_schedule(&g, &d);
            on_cpu += what == 0 && any_cpu(&g, &d);
            for (uint32_t u = 0; u < d.n_units && what == 0; u++)
                whole &= d.units[u].n == 1 && d.units[u].elements == g.in.tensors[u].elements;
            for (uint32_t u = 0; u < d.n_units && what == 1; u++) assert_null(strstr(option_text(&d, u), "comp@cpu >"));
            for (uint32_t u = 0; u < d.n_units && what == 2; u++) assert_null(strstr(option_text(&d, u), "alltoall"));
            if (what == 3) assert_int_equal(d.n_units, g.in.model.n_tensors);
            const int within = esp__schedule_allowed(&g.p, &d);
            if (what >= 4) limited += (uint32_t)within, assert_true(within || !esp__fit(&g.p, &d));
            close_problem(&g);
        }
    print_message("  %u plans with compression on the CPU\n", on_cpu);
    assert_true(on_cpu && whole && limited > 40);
}

TEST(deterministic) {
    for (uint64_t seed = 500; seed < 500 + test_repeats(30); seed++) {
        static opened_problem g, h;
        esp__schedule d[2];
        open_random(&g, seed, 40, 0);
        open_random(&h, seed, 40, 0);
        memset(d, 0, sizeof d);
        esp__paper(&g.p, &d[0]);
        esp__paper(&h.p, &d[1]);
        expect_same_schedule(&d[0], &d[1]);
        close_problem(&g);
        close_problem(&h);
    }
}

/* Compression that takes no time must not make a step longer. There must be a plan without a codec, with one tensor,
 * and after the time budget is over. */
TEST(edges) {
    for (uint64_t seed = 0; seed < test_repeats(60); seed++) {
        static opened_problem g, h;
        esp__schedule d, free_of_cost;
        memset(&d, 0, sizeof d);
        memset(&free_of_cost, 0, sizeof free_of_cost);
        memset(&g, 0, sizeof g);
        memset(&h, 0, sizeof h);
        problem_random(seed, 1 + (uint32_t)seed % 12, 0, &g.in);
        problem_random(seed, 1 + (uint32_t)seed % 12, 0, &h.in);
        if (seed % 4 == 1) g.in.n_codecs = h.in.n_codecs = 0;
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        assert_int_equal(open_problem(&h, 1), ESP_OK);
        if (seed % 4 == 2) g.p.deadline_ns = 1;
        esp__paper(&g.p, &d);
        check_schedule(&g, &d);
        esp__paper(&h.p, &free_of_cost);
        check_schedule(&h, &free_of_cost);
        assert_true(free_of_cost.makespan <= d.makespan + d.makespan / 50);
        close_problem(&g);
        close_problem(&h);
    }
}
