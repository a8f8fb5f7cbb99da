/* test_robust.c: step times of a plan when its inputs are wrong by random errors: without errors they equal the
 * plan's own, longer times never give a shorter step, and the plan chosen as the most robust one is. */
#include <math.h>
#include "tests/common/repeats.h"
#include "tests/common/library.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* the test uses some of: */
#include "planner/problem/tree.c"
#include "planner/problem/cost.c"
#include "planner/problem/templates.c"
#include "planner/problem/op_time.c"
#include "planner/problem/candidates.c"
#include "planner/schedule/simulate.c"
#include "planner/schedule/schedule.c"
#include "planner/schedule/urgency.c"
#include "planner/schedule/robust.c"
#pragma GCC diagnostic pop
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "espresso.h"
#include "rig.h"

/* A problem, and a schedule of any units, paths and order. */
static esp__schedule open_random(uint64_t seed, rig *g) {
    esp__unit units[4 * PROBLEM_TENSORS];
    esp__schedule d;
    rng r = {seed + 5};
    memset(g, 0, sizeof *g);
    memset(&d, 0, sizeof d);
    problem_random(seed, 24, 0, &g->in);
    assert_int_equal(rig_open(g, 0), ESP_OK);
    esp__schedule_set_units(&g->p, &d, units, problem_units(&r, g->in.tensors, (uint32_t)g->p.n_tensors, units));
    for (uint32_t u = 0; u < d.n_units; u++) {
        const esp__candidates *candidates = esp__candidates_get(&g->p, &d.units[u]);
        d.paths[u] = &candidates->paths[rng_below(&r, candidates->n)];
    }
    esp__generate_by(&g->p, &d, rng_below(&r, ESP__RULES));
    return d;
}

static double step_now(const rig *g, const esp__schedule *d) {
    return g->p.model->forward_ns + (double)d->makespan + g->p.model->update_ns;
}

/* All factors 1: the plan's own step. */
static void test_no_error(void **state) {
    static rig g;
    (void)state;
    for (uint64_t seed = 0; seed < test_repeats(300); seed++) {
        esp__schedule d = open_random(seed, &g);
        esp__robust_run r;
        memset(&r, 0, sizeof r);
        esp__robust_open(&r, &g.p, &d);
        for (uint32_t i = 0; i < r.n_inputs; i++) r.factor[i] = 1.0;
        assert_true(esp__robust_step(&r) == step_now(&g, &d));
        rig_close(&g);
    }
}

/* Any input's times longer: the step is no shorter; all twice as long: twice. */
static void test_monotone(void **state) {
    static rig g;
    uint32_t counts = 0;
    (void)state;
    for (uint64_t seed = 0; seed < test_repeats(200); seed++) {
        esp__schedule d = open_random(seed, &g);
        esp__robust_run r;
        uint64_t dice = seed;
        memset(&r, 0, sizeof r);
        esp__robust_open(&r, &g.p, &d);
        esp__robust_roll(&r, &dice);
        double step = esp__robust_step(&r);
        for (uint32_t i = 0; i < r.n_inputs; i++) {
            double was = r.factor[i];
            assert_true(was > 0.79 && was < 1.26); /* a speed's is 1 / 0.8 at most */
            r.factor[i] = was * 1.5;
            assert_true(esp__robust_step(&r) >= step);
            counts += esp__robust_step(&r) > step;
            r.factor[i] = was;
        }
        for (uint32_t i = 0; i < r.n_inputs; i++) r.factor[i] = 2.0;
        double twice = esp__robust_step(&r) / 2.0, off = twice - step_now(&g, &d);
        assert_true(fabs(off) <= d.n_sequence + 1.0); /* times are whole */
        rig_close(&g);
    }
    assert_true(counts > 200);
}

/* An input that everything hangs on: its time, times its factor. */
static void test_by_hand(void **state) {
    static rig g;
    double p50, p90;
    (void)state;
    rig_simple(&g, 2, 1); /* one rank a machine: flat options over inter */
    rig_tensor(&g, 1000000, 0.0);
    assert_int_equal(rig_open(&g, 0), ESP_OK);
    esp__schedule d = rig_make(&g, "fp32");
    assert_int_equal(d.makespan, 100000 + 4000000); /* allreduce of two: alpha, and 4 MB at 1000 bytes/us */
    esp__robust_run r;
    memset(&r, 0, sizeof r);
    esp__robust_open(&r, &g.p, &d);
    for (uint32_t i = 0; i < r.n_inputs; i++) r.factor[i] = 1.0;
    r.factor[ESP__IN_INTER_ALPHA] = 1.1;
    assert_true(esp__robust_step(&r) == 110000 + 4000000);
    r.factor[ESP__IN_INTER_SPEED] = 1.0 / 0.8;
    assert_true(esp__robust_step(&r) == 110000 + 5000000);
    r.factor[ESP__IN_INTRA_SPEED] = 9.0; /* there is nobody inside */
    assert_true(esp__robust_step(&r) == 110000 + 5000000);
    esp__robust(&g.p, &d, 1, &p50, &p90); /* speeds from 0.8 to 1.2: the middle is 1, one in ten is under 0.84 */
    assert_true(p50 > 0.95 * 4.1e6 && p50 < 1.05 * 4.1e6);
    assert_true(p90 > 1.12 * 4.1e6 && p90 < 1.22 * 4.1e6);
    rig_close(&g);
}

/* A flat collective takes as long as its slower part, and which that is may change. */
static void test_flat(void **state) {
    static rig g;
    (void)state;
    rig_simple(&g, 2, 2);
    g.in.system.intra.bytes_per_us = 1200; /* a little faster than what is between machines */
    rig_tensor(&g, 1000000, 0.0);
    assert_int_equal(rig_open(&g, 0), ESP_OK);
    esp__schedule d = rig_make(&g, "fp32");
    esp__path *path = esp__arena_get(&g.arena, sizeof *path);
    const esp__path *flat = esp__path_make(&g.p, &d.units[0], "flat.allreduce", ESP__NO_CODEC);
    assert_non_null(flat);
    *path = *flat;
    d.paths[0] = path;
    assert_int_equal(esp__generate(&g.p, &d), 100000 + 6000000);
    esp__robust_run r;
    memset(&r, 0, sizeof r);
    esp__robust_open(&r, &g.p, &d);
    for (uint32_t i = 0; i < r.n_inputs; i++) r.factor[i] = 1.0;
    r.factor[ESP__IN_INTRA_SPEED] = 1.1;
    assert_true(esp__robust_step(&r) == 100000 + 6000000);
    r.factor[ESP__IN_INTRA_SPEED] = 2.0;
    assert_true(esp__robust_step(&r) == 100000 + 10000000);
    rig_close(&g);
}

static void test_percentiles(void **state) {
    static rig g;
    (void)state;
    for (uint64_t seed = 0; seed < test_repeats(60); seed++) {
        esp__schedule d = open_random(seed, &g);
        double a50, a90, b50, b90, step = step_now(&g, &d);
        esp__robust(&g.p, &d, seed, &a50, &a90);
        esp__robust(&g.p, &d, seed, &b50, &b90);
        assert_true(a50 == b50 && a90 == b90);
        assert_true(a50 <= a90 && a50 >= 0.75 * step && a90 <= 1.25 * step + 1000.0);
        esp__robust(&g.p, &d, seed + 1, &b50, &b90);
        assert_true(step < 1000.0 || a50 != b50 || a90 != b90);
        rig_close(&g);
    }
}

/* Of several schedules the one that holds best; within the limits. */
static void test_pick(void **state) {
    static rig g;
    (void)state;
    for (uint64_t seed = 0; seed < test_repeats(60); seed++) {
        esp__schedule d[4];
        double p50, p90[4];
        rng r = {seed};
        d[0] = open_random(seed, &g);
        for (int i = 1; i < 4; i++) {
            memset(&d[i], 0, sizeof d[i]);
            esp__schedule_copy(&g.p, &d[i], &d[0]);
            for (uint32_t u = 0; u < d[i].n_units; u++) {
                const esp__candidates *candidates = esp__candidates_get(&g.p, &d[i].units[u]);
                d[i].paths[u] = &candidates->paths[rng_below(&r, candidates->n)];
            }
            esp__generate(&g.p, &d[i]);
        }
        for (int i = 0; i < 4; i++) esp__robust(&g.p, &d[i], 3, &p50, &p90[i]);
        uint32_t best = esp__robust_pick(&g.p, d, 4, 3);
        for (uint32_t i = 0; i < 4; i++) assert_true(p90[best] <= p90[i]);
        rig_close(&g);
    }
}

/* As users ask: the report has both; the plan that should hold is at its 90th percentile no longer than the usual
 * plan. */
static void test_plan(void **state) {
    static problem_input in;
    uint32_t better = 0;
    (void)state;
    for (uint64_t seed = 0; seed < test_repeats(40); seed++) {
        esp_plan *usual, *robust, *again;
        esp_plan_report a = {.struct_size = sizeof a}, b = {.struct_size = sizeof b}, c = {.struct_size = sizeof c};
        problem_random(seed, 16, 0, &in);
        esp_plan_config config = {.flags = ESP_PLAN_NO_BOUND, .seed = seed};
        assert_int_equal(esp_plan_make(&in.model, in.codecs, in.n_codecs, &in.system, &config, &usual), ESP_OK);
        assert_int_equal(esp_plan_report_read(usual, &a), ESP_OK);
        assert_true(a.robust_p50_ns == 0.0 && a.robust_p90_ns == 0.0);
        config.flags |= ESP_PLAN_ROBUST;
        assert_int_equal(esp_plan_make(&in.model, in.codecs, in.n_codecs, &in.system, &config, &robust), ESP_OK);
        assert_int_equal(esp_plan_report_read(robust, &b), ESP_OK);
        assert_int_equal(
            esp_plan_simulate(&in.model, in.codecs, in.n_codecs, &in.system, &config, esp_plan_text(usual), &again),
            ESP_OK);
        assert_int_equal(esp_plan_report_read(again, &c), ESP_OK);
        assert_true(b.robust_p50_ns > 0.0 && b.robust_p50_ns <= b.robust_p90_ns);
        assert_true(c.iteration_ns == a.iteration_ns);
        if (b.robust_p90_ns > c.robust_p90_ns)
            fail_msg("seed %llu: %.0f ns at the 90th percentile, the usual plan %.0f", (unsigned long long)seed,
                     b.robust_p90_ns, c.robust_p90_ns);
        assert_true(b.iteration_ns >= a.iteration_ns); /* or the usual search missed it */
        better += b.robust_p90_ns < c.robust_p90_ns;
        esp_plan_free(again);
        esp_plan_free(robust);
        esp_plan_free(usual);
    }
    print_message("%u of 40 plans hold better than the usual ones\n", better);
    assert_true(better > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_error),    cmocka_unit_test(test_monotone),
                                       cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_flat),
                                       cmocka_unit_test(test_percentiles), cmocka_unit_test(test_pick),
                                       cmocka_unit_test(test_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
