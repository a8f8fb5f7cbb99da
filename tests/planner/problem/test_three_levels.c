/* test_three_levels.c checks plans for machines in racks: predicted times of collectives, candidates and lower bounds,
 * and that the library runs the plans. */
/* runs: slow asan-long no-tsan: runs plans by what strategy/test_levels runs */
#include "tests/lib/test.h"
#include "tests/planner/problem/small_inputs.h"

/* 2 racks of 2 machines with 2 ranks: 10 GB/s within a machine, 1.25 GB/s per machine, 125 MB/s per rack. */
static void make_racks(inputs *in, uint32_t n, uint64_t elements) {
    esp_plan_system *s = &in->system;
    make_inputs(in, n, elements);
    s->inter.bytes_per_us = 1250;
    s->n_outer = 1, s->outer[0].size = 2, s->outer[0].link.alpha_ns = 50000, s->outer[0].link.bytes_per_us = 125;
}

static void near(double is, double want) {
    if (fabs(is - want) > 1e-6 * want + 0.5) fail_msg("%g ns, not %g", is, want);
}

TEST(collectives_take_the_slowest_link) {
    inputs in;
    make_racks(&in, 1, 1);
    esp_plan_system s = in.system;
    const double mb = 1e6;
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLREDUCE, mb, mb / 2, 1), 3000 + mb / 10000 * 1000);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLREDUCE, mb, mb / 2, 2), 20000 + 2 * mb / 1250 * 1000);
    near(esp__collective_ns(&s, ESP__OUTER, ESP_COLL_ALLREDUCE, mb, mb / 2, 4), 50000 + 4 * mb / 125 * 1000);
    /* In an allreduce over a ring of eight ranks, 7/4 of the bytes enter and leave every rack by its slow link. */
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLREDUCE, mb, mb / 8, 1), 50000 + 1.75 * mb / 125 * 1000);
    /* The first ranks of the four machines form one ring, and their second ranks another one. */
    uint8_t scope = esp__scope_of(2, 3, 3);
    near(esp__collective_ns(&s, scope, ESP_COLL_ALLREDUCE, mb, mb / 4, 2), 50000 + 2 * 1.5 * mb / 125 * 1000);
    /* In an alltoall of eight ranks, each of a rack's four ranks sends four of its eight parts to the other rack. */
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLTOALL, mb, mb / 8, 1), 50000 + 16 * mb / 8 / 125 * 1000);
    s.outer[0].link.bytes_per_us = 1e9, s.intra.bytes_per_us = 1;
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLREDUCE, mb, mb / 8, 1), 50000 + 1.75 * mb * 1000);
}

static esp_status four_rounds(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    out->payload_bytes = 64 + like->count * n_reduced;
    return ESP_OK;
}

TEST(templates_of_rounds_fit) {
    inputs in;
    esp__problem p;
    jmp_buf out_of_memory;
    esp__arena arena = {.on_failure = &out_of_memory};
    if (test_repeats(2) < 2) return; /* the test takes minutes under a sanitizer */
    make_racks(&in, 1, 1000);
    in.codec.bound = four_rounds, in.codec.n_rounds = ESP_ROUNDS_MAX, in.codec.caps = ESP_CODEC_REDUCIBLE;
    in.codec.compress[ESP_ON_GPU] = in.codec.compress[ESP_ON_CPU];
    in.codec.decompress[ESP_ON_GPU] = in.codec.decompress[ESP_ON_CPU];
    in.system.devices = 3, in.system.host_bytes_per_us = 1000;
    if (setjmp(out_of_memory)) fail_msg("out of memory");
    if (esp__problem_open(&p, &arena, &in.model, &in.codec, 1, &in.system, &in.config, 0))
        fail_msg("%s", esp_last_error(NULL));
    assert_true(p.n_op_templates > 100 && p.n_op_templates < 12000);
    esp__arena_free(&arena);
}

TEST(candidates_dominate_every_option) {
    static const uint64_t sizes[] = {300000, 1000, 20000000};
    for (size_t k = 0; k < test_repeats(sizeof sizes / sizeof *sizes); k++) {
        inputs in;
        each_option e = {.n = 0};
        make_racks(&in, 1, sizes[k]);
        check_kept(&in, ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL | ESP__TREE_OF(3), &e);
        assert_int_equal(e.p.n_levels, 3);
        assert_int_equal(e.n, 2556);
        printf("%u candidate options of %u elements\n", e.n_kept, (unsigned)sizes[k]);
        assert_true(e.n_kept < e.n / 2);
    }
}

/* ---- plans ---- */
TEST(plans_are_near_their_bound) {
    inputs in;
    make_racks(&in, TENSORS, 200000);
    esp_plan *plan = plan_of(&in);
    const esp_plan_report r = report_of(plan);
    printf("three levels: fp32 %.1f ms, plan %.2f ms, bound %.2f ms\n", r.fp32_ns / 1e6, r.iteration_ns / 1e6,
           r.bound_ns / 1e6);
    assert_true(r.bound_ns > 0 && r.bound_ns <= r.iteration_ns + 1);
    assert_true(r.iteration_ns < r.fp32_ns);
    assert_true(r.lane_ns[ESP__LANE_OUTER] > 0 && r.level_bytes[2] > 0);
    assert_true(r.compressed > 0);
    static const char *const by_hand[] = {
        "flat.allreduce",
        "intra.reduce_scatter > inter.reduce_scatter > outer.allreduce > inter.allgather > intra.allgather",
        "intra-inter.reduce_scatter > comp@cpu > outer.allgather > decomp@cpu > intra-inter.allgather"};
    for (size_t k = 0; k < sizeof by_hand / sizeof *by_hand; k++) {
        const char *only[1] = {by_hand[k]};
        in.config.flags = ESP_PLAN_NO_BOUND;
        in.config.only = only, in.config.n_only = 1;
        esp_plan *other = plan_of(&in);
        assert_true(report_of(other).iteration_ns >= r.iteration_ns * 0.999);
        esp_plan_free(other);
    }
    esp_plan_free(plan);
}

TEST(plans_run) {
    static const char *const places[] = {"a/0", "a/0", "a/1", "a/1", "b/0", "b/0", "b/1", "b/1"};
    inputs in;
    make_racks(&in, TENSORS, 1000);
    in.config.flags = ESP_PLAN_NO_BOUND;
    for (int round = 0; round < 3; round++) {
        const char *only[1] = {round == 2 ? "intra.*comp*inter.*comp*outer" : "*"};
        in.config.strategy = round == 1 ? "hitopkcomm" : NULL;
        in.system.devices = round == 1 ? 3 : 1;
        in.codec.compress[ESP_ON_GPU] = in.codec.compress[ESP_ON_CPU];
        in.codec.decompress[ESP_ON_GPU] = in.codec.decompress[ESP_ON_CPU];
        in.config.only = only, in.config.n_only = round == 2;
        if (round == 1) in.system.outer[0].size = 2;
        esp_plan *plan = plan_of(&in);
        RUN_RANKS(.size = 8, .places = places, .body = plan_body, .user = &(running){esp_plan_text(plan), 0});
        esp_plan_free(plan);
    }
}

TEST(wrong_levels_are_named) {
    static const char *const bad[] = {"level 'outer' has size 0", "n_outer is 2: at most 1 level"};
    for (int k = 0; k < 2; k++) {
        inputs in;
        esp_plan *plan = NULL;
        make_racks(&in, 1, 1000);
        if (k)
            in.system.n_outer = 2;
        else
            in.system.outer[0].size = 0;
        assert_int_equal(esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), bad[k])) fail_msg("%s", esp_last_error(NULL));
    }
}
