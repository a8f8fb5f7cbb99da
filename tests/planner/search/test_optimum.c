/* test_optimum.c checks that the search finds the optimum of small problems without chunks and groups, which exact.h
 * finds by trying everything. If that takes too long, the search must be as good as the best plan found by then. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "planner/problem/problem.h"
#include "planner/bound/bound.h"
#include "tests/planner/open_problem.h"
#include "exact.h"

enum { CASES = 1000, NODES = 300000 };

/* Opens a problem with 3 or 4 tensors on one device. Returns 0 if the random problem has fewer. */
static int small_open(uint64_t seed, opened_problem *g, esp__schedule *tensors) {
    memset(g, 0, sizeof *g);
    problem_random(seed, 4, 1u << ESP_ON_GPU, &g->in);
    g->in.config.flags = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
    if (g->in.model.n_tensors < 3) return 0;
    assert_int_equal(open_problem(g, 0), ESP_OK);
    memset(tensors, 0, sizeof *tensors);
    esp__schedule_tensors(&g->p, tensors);
    return 1;
}

/* Makes a poor plan: each tensor gets its first option. */
static void plain(esp__problem *p, esp__schedule *d) {
    memset(d, 0, sizeof *d);
    esp__schedule_tensors(p, d);
    for (uint32_t u = 0; u < d->n_units; u++) d->paths[u] = &esp__candidates_get(p, &d->units[u])->paths[0];
    esp__generate(p, d);
}

TEST(test_random) {
    static opened_problem g;
    uint32_t n = 0, equal = 0, unknown = 0;
    double worst = 0.0;
    for (uint64_t seed = 0; n < test_repeats(CASES); seed++) {
        esp__schedule tensors, d;
        uint64_t best;
        if (!small_open(seed, &g, &tensors)) continue;
        memset(&d, 0, sizeof d);
        esp__search_all(&g.p, &d);
        check_schedule(&g, &d);
        int sure = exact_solve(&g.p, tensors.units, tensors.n_units, d.makespan, 0, NODES, &best);
        double above = best ? 100.0 * ((double)d.makespan / (double)best - 1.0) : 0.0;
        const uint64_t bound = esp__bound(&g.p);
        if (bound > best)
            fail_msg("seed %llu: bound %llu, but a plan takes %llu", (unsigned long long)seed,
                     (unsigned long long)bound, (unsigned long long)best);
        if (above > 0.0) print_message("seed %llu: %.3f%% above the optimum\n", (unsigned long long)seed, above);
        if (above > worst) worst = above;
        n++;
        equal += best == d.makespan;
        unknown += !sure;
        close_problem(&g);
    }
    print_message("%u of %u are the optimum (%u of them as far as could be seen), the worst is %.3f%% above\n", equal,
                  n, unknown, worst);
    assert_true(equal * 1000 >= 999 * n);
    assert_true(worst <= 0.2);
    assert_true(unknown * 4 < n);
}

TEST(test_branch_and_bound) {
    static opened_problem g;
    for (uint64_t seed = 5000; seed < 5000 + test_repeats(60); seed++) {
        esp__schedule tensors, a, b;
        uint64_t best;
        if (!small_open(seed, &g, &tensors)) continue;
        memset(&a, 0, sizeof a);
        esp__search_all(&g.p, &a);
        plain(&g.p, &b);
        if (exact_solve(&g.p, tensors.units, tensors.n_units, UINT64_MAX, 0, NODES, &best)) {
            esp__small_exact(&g.p, &b, 10000000);
            check_schedule(&g, &b);
            assert_int_equal(b.makespan, best);
        }
        memset(&b, 0, sizeof b);
        esp__search_all(&g.p, &b);
        expect_same_schedule(&a, &b);
        close_problem(&g);
    }
}

/* Here, backward ops wait for compression on the GPU in some orders and not in others. */
TEST(test_delayed_backward) {
    static const uint64_t seeds[] = {648, 988, 1814};
    static opened_problem g;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        esp__schedule tensors, d;
        uint64_t best;
        assert_true(small_open(seeds[i], &g, &tensors));
        plain(&g.p, &d);
        (void)exact_solve(&g.p, tensors.units, tensors.n_units, UINT64_MAX, 0, NODES, &best);
        esp__small_exact(&g.p, &d, 10000000);
        assert_true(d.makespan <= best);
        close_problem(&g);
    }
}

/* If branch and bound is stopped early, its plan is no longer than the one with which it began. */
TEST(test_few_nodes) {
    static opened_problem g;
    for (uint64_t seed = 6000; seed < 6000 + test_repeats(40); seed++) {
        esp__schedule tensors, d;
        uint64_t last = UINT64_MAX;
        if (!small_open(seed, &g, &tensors)) continue;
        plain(&g.p, &d);
        const uint64_t bound = esp__bound(&g.p);
        for (uint64_t nodes = 0; nodes < 5000; nodes = 4 * nodes + 1) {
            esp__small_exact(&g.p, &d, nodes);
            check_schedule(&g, &d);
            assert_true(d.makespan <= last && d.makespan >= bound);
            last = d.makespan;
        }
        close_problem(&g);
    }
}
