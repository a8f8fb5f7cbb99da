/* test_fewest.c: where starting an op takes time, the planner chooses, of equally fast plans, the one with the
 * fewest ops, and keeps the user's limits. */
#include "tests/common/library.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

enum { TENSORS = 40 };

static esp_plan_tensor tensors[TENSORS];
static char names[TENSORS][8];
static const esp_cost_point quick[] = {{1, 20000}, {1000000, 400000}};

/* Backward is long enough to hide everything but the last tensors, with or without compression. */
static esp_plan *plan_of(double dispatch_ns, uint32_t flags, const char *strategy) {
    esp_plan_model model = {.n_tensors = TENSORS, .name = "long", .tensors = tensors, .forward_ns = 1e6};
    esp_plan_codec codec = {.spec = "topk:ratio=0.01", .header_bytes = 32, .unit_bytes = 8, .units = 0.01};
    esp_plan_system system = {.machines = 2, .ranks_per_machine = 2, .devices = 1, .name = "measured"};
    esp_plan_config config = {.flags = flags, .strategy = strategy};
    esp_plan *plan = NULL;
    for (int t = 0; t < TENSORS; t++) {
        snprintf(names[t], sizeof names[t], "t%d", t);
        tensors[t] = (esp_plan_tensor){.name = names[t], .elements = 2000, .compute_ns = 2e6};
    }
    codec.struct_size = sizeof codec;
    system.struct_size = sizeof system;
    codec.compress[ESP_PLAN_CPU].points = codec.decompress[ESP_PLAN_CPU].points = quick;
    codec.compress[ESP_PLAN_CPU].n = codec.decompress[ESP_PLAN_CPU].n = 2;
    system.intra = (esp_plan_link){.alpha_ns = 5000, .bytes_per_us = 5000};
    system.inter = (esp_plan_link){.alpha_ns = 50000, .bytes_per_us = 12};
    for (int k = 0; k < 4; k++) system.dispatch_ns[k] = dispatch_ns;
    assert_int_equal(esp_plan_make(&model, &codec, 1, &system, &config, &plan), ESP_OK);
    return plan;
}

static double step_of(const esp_plan *p) {
    esp_plan_report r = {.struct_size = sizeof r};
    assert_int_equal(esp_plan_report_read(p, &r), ESP_OK);
    return r.iteration_ns;
}
static uint32_t ops_of(const esp_plan *p) {
    uint32_t n;
    esp_plan_events(p, &n);
    return n - TENSORS;
}

/* A step, and 2% of the time in which ops are started. */
static double score_of(const esp_plan *p, double dispatch_ns) { return step_of(p) + 0.02 * dispatch_ns * ops_of(p); }

/* Whatever starting costs: no comparison strategy within 0.5% does better in step and starting together. */
static void test_fewest(void **state) {
    static const double costs[] = {10, 1000, 20000, 100000};
    static const char *const others[] = {"mergecomp", "ddp", "fp32", "layerwise", "hipress"};
    (void)state;
    for (size_t c = 0; c < sizeof costs / sizeof *costs; c++) {
        esp_plan *plan = plan_of(costs[c], 0, NULL);
        double least = step_of(plan) / 1.005;
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            esp_plan *other = plan_of(costs[c], 0, others[i]);
            if (step_of(other) <= least * 1.005)
                assert_true(score_of(plan, costs[c]) <= score_of(other, costs[c]) + 100.0);
            assert_true(step_of(plan) <= step_of(other) * 1.005);
            esp_plan_free(other);
        }
        esp_plan_free(plan);
    }
}

/* The more starting costs, the fewer ops; where it costs next to nothing, the fastest step counts. */
static void test_trade(void **state) {
    (void)state;
    esp_plan *cheap = plan_of(10, 0, NULL), *dear = plan_of(100000, 0, NULL), *free_ = plan_of(0, 0, NULL);
    esp_plan *fp32 = plan_of(100000, 0, "fp32");
    assert_true(ops_of(dear) < ops_of(fp32) / 4);
    assert_true(ops_of(dear) <= ops_of(cheap));
    assert_true(step_of(cheap) <= step_of(free_) + 10.0 * ops_of(free_) + 0.02 * 10.0 * ops_of(free_));
    esp_plan_free(cheap);
    esp_plan_free(dear);
    esp_plan_free(free_);
    esp_plan_free(fp32);
}

/* Tensors that must not be merged are not. */
static void test_limits(void **state) {
    uint32_t n;
    (void)state;
    esp_plan *plan = plan_of(20000, ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT, NULL);
    const esp_plan_unit *u = esp_plan_units(plan, &n);
    assert_int_equal(n, TENSORS);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(u[i].n_tensors, 1);
    esp_plan_free(plan);
    plan = plan_of(20000, ESP_PLAN_NO_COMP, NULL);
    u = esp_plan_units(plan, &n);
    for (uint32_t i = 0; i < n; i++) assert_null(strstr(u[i].option, "comp@"));
    esp_plan_free(plan);
}

static void test_bad_dispatch(void **state) {
    static const double bad[] = {-1.0, NAN, INFINITY};
    esp_plan_tensor one = {.name = "t", .elements = 10};
    esp_plan_model model = {.n_tensors = 1, .name = "one", .tensors = &one};
    esp_plan_system system = {.machines = 2, .ranks_per_machine = 1, .devices = 1, .inter = {.bytes_per_us = 1}};
    esp_plan *plan = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        system.dispatch_ns[ESP__LANE_INTER] = bad[i];
        assert_int_equal(esp_plan_make(&model, NULL, 0, &system, NULL, &plan), ESP_E_ARG);
        assert_non_null(strstr(esp_last_error(NULL), "dispatch_ns[3]"));
        assert_null(plan);
    }
    system.dispatch_ns[ESP__LANE_INTER] = 1000.0;
    assert_int_equal(esp_plan_make(&model, NULL, 0, &system, NULL, &plan), ESP_OK);
    esp_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fewest), cmocka_unit_test(test_trade),
                                       cmocka_unit_test(test_limits), cmocka_unit_test(test_bad_dispatch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
