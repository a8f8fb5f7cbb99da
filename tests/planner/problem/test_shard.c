/* test_shard.c checks plans for sharded tensors, whose mean gradient stays split over the ranks: the options that the
 * search keeps, the options that the model demands, and that the executor runs the plans. */
/* runs: asan-long no-tsan: test_shard in tests/context runs the same code */
#include "tests/lib/test.h"
#include "tests/planner/problem/small_inputs.h"

/* Two machines of two ranks, with a slow link between them. `shard` says by which levels tensors are divided. */
static void make_sharded(inputs *in, uint32_t n, uint64_t elements, const char *shard) {
    make_inputs(in, n, elements);
    for (uint32_t i = 0; i < n; i++) in->tensors[i].shard = shard;
    in->system.inter.bytes_per_us = 125;
    in->config.flags = ESP_PLAN_NO_BOUND;
}

TEST(candidates_dominate_every_option) {
    static const uint64_t sizes[] = {1000, 300000, 20000000};
    static const char *const cuts[] = {"any", "flat", "intra,inter"};
    static const uint32_t n[] = {7, 2, 5};
    for (int k = 0; k < 9; k++) {
        inputs in;
        each_option e = {.cuts = k / 3 ? cuts[k / 3] : NULL};
        make_sharded(&in, 1, sizes[k % 3], cuts[k / 3]);
        check_kept(&in, ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL | ESP__TREE_NARROW, &e);
        assert_int_equal(e.n, n[k / 3]);
    }
}

/* The expected time is computed by hand: 1 MB is halved inside a machine and halved again between machines, over a link
 * that two ranks share. */
TEST(raw_costs_by_hand) {
    inputs in;
    make_sharded(&in, 1, 250000, "intra,inter");
    in.config.strategy = "fp32";
    esp_plan *plan = plan_of(&in);
    const esp_plan_report r = report_of(plan);
    assert_non_null(strstr(esp_plan_text(plan), "none intra.reduce_scatter > inter.reduce_scatter\n"));
    const double intra = 3000 + 0.5e6 / 10000 * 1000, inter = 20000 + 2 * 0.25e6 / 125 * 1000;
    const double want = 200000 + intra + inter;
    if (r.iteration_ns < want - 2 || r.iteration_ns > want + 2) fail_msg("%g ns, not %g", r.iteration_ns, want);
    esp_plan_free(plan);
}

/* No strategy merges or splits a sharded tensor. */
TEST(plans_run) {
    static const char *const strategies[] = {NULL,      "fp32",      "ddp",       "layerwise", "byteps-compress",
                                             "hipress", "mergecomp", "hitopkcomm"};
    inputs in;
    for (size_t k = 0; k < sizeof strategies / sizeof *strategies; k++) {
        make_sharded(&in, TENSORS, 1000, "intra,inter");
        in.tensors[1].shard = NULL;
        in.config.strategy = strategies[k];
        esp_plan *plan = plan_of(&in);
        RUN_RANKS(.size = 4, .per_machine = 2, .body = plan_body, .user = &(running){esp_plan_text(plan), 1});
        esp_plan_free(plan);
    }
}

/* The planner splits such large tensors, and merges such small ones, but only if they are not sharded. */
TEST(units_stay_whole) {
    inputs in;
    for (int k = 0; k < 2; k++) {
        make_sharded(&in, TENSORS, k ? 50000000 : 100, "any");
        for (uint32_t i = 0; !k && i < TENSORS; i++) in.tensors[i].compute_ns = 10;
        esp_plan *plan = plan_of(&in);
        assert_null(strstr(esp_plan_text(plan), "chunk "));
        assert_null(strstr(esp_plan_text(plan), "group "));
        assert_null(strstr(esp_plan_text(plan), " split "));
        esp_plan_free(plan);
        for (uint32_t i = 0; i < TENSORS; i++) in.tensors[i].shard = NULL;
        plan = plan_of(&in);
        assert_true(strstr(esp_plan_text(plan), "chunk ") || strstr(esp_plan_text(plan), "group "));
        esp_plan_free(plan);
    }
}

TEST(wrong_cuts_are_named) {
    static const char *const bad[][3] = {{"inter,intra", NULL, "tensor 'a': shard 'inter,intra' leaves no option"},
                                         {"any", "flat.allreduce", "of a sharded tensor leaves no option"},
                                         {NULL, "flat.reduce_scatter", "leaves no option"},
                                         {"flat", "intra.reduce_scatter > inter.reduce_scatter", "leaves no option"}};
    for (int k = 0; k < 4; k++) {
        inputs in;
        esp_plan *plan = NULL;
        make_sharded(&in, 1, 1000, bad[k][0]);
        in.tensors[0].keep = bad[k][1];
        assert_int_equal(esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), bad[k][2])) fail_msg("%d: %s", k, esp_last_error(NULL));
    }
}
