/* test_hops.c: the planner with options that compress at every hop: their times by hand, candidates against every option one by one,
 * what is planned only where it is asked for, and plans that a strategy file carries. */
#include "tests/common/library.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* 8 machines of 2 ranks: 10 GB/s inside, 125 MB/s a machine. */
static esp_plan_system machines(void) {
    esp_plan_system s = ESP_ZERO;
    s.machines = 8, s.ranks_per_machine = 2, s.devices = 1u << ESP_PLAN_CPU, s.name = "machines";
    s.intra.alpha_ns = 3000, s.intra.bytes_per_us = 10000;
    s.inter.alpha_ns = 20000, s.inter.bytes_per_us = 125;
    return s;
}

static void near(double is, double want) {
    if (fabs(is - want) > 1e-6 * want + 0.5) fail_msg("%g ns, not %g", is, want);
}

static void wires(void **state) {
    esp_plan_system s = machines();
    const double kb = 1000;
    (void)state;
    /* 8 ranks, two on each link: each sends 7 payloads to the parts' owners, and 7 with the results */
    near(esp__hops_ns(&s, ESP__INTER, ESP_HOPS_RING, kb, 2), 20000 + 2 * 14 * kb * 8);
    near(esp__hops_ns(&s, ESP__INTER, ESP_HOPS_HALVING, kb, 2), 20000 + 2 * 14 * kb * 8);
    /* 16 ranks: a ring enters each machine once; halving sends 14 payloads out of it, and each of its ranks reads 14 results */
    near(esp__hops_ns(&s, ESP__FLAT, ESP_HOPS_RING, kb, 1), 20000 + 30 * kb * 8);
    near(esp__hops_ns(&s, ESP__FLAT, ESP_HOPS_HALVING, kb, 1), 20000 + (14 + 28) * kb * 8);
    s.inter.alpha_is = ESP_ALPHA_HOP;
    near(esp__hops_ns(&s, ESP__INTER, ESP_HOPS_RING, 0, 2), 20000.0 * 14);
    near(esp__hops_ns(&s, ESP__INTER, ESP_HOPS_HALVING, 0, 2), 20000.0 * 4);
    /* a table of allreduces: as one of all payloads */
    esp_cost_point points[2] = {{1000, 5000}, {100000, 90000}};
    s.inter.table[ESP_COLL_ALLREDUCE] = (esp_cost_curve){points, 2, 0};
    near(esp__hops_ns(&s, ESP__INTER, ESP_HOPS_RING, 12500, 2), 90000);
    near(esp__hops_error(ESP_HOPS_RING, 8), 4.5);
    near(esp__hops_error(ESP_HOPS_HALVING, 8), 2.5);
}

enum { TENSORS = 4 };
typedef struct inputs {
    esp_plan_tensor tensors[TENSORS];
    esp_plan_model model;
    esp_cost_point compress[2], decompress[2];
    esp_plan_codec codec;
    esp_plan_system system;
    esp_plan_config config;
} inputs;

static void make_inputs(inputs *in, uint32_t n, uint64_t elements, uint32_t flags) {
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};
    memset(in, 0, sizeof *in);
    for (uint32_t i = 0; i < n; i++) {
        in->tensors[i].name = names[i];
        in->tensors[i].elements = elements * (1 + i % 3);
        in->tensors[i].compute_ns = 200000;
    }
    in->model.n_tensors = n, in->model.tensors = in->tensors, in->model.name = "small";
    in->compress[0] = (esp_cost_point){1000, 100}, in->compress[1] = (esp_cost_point){1000000, 100000};
    in->decompress[0] = (esp_cost_point){1000, 100}, in->decompress[1] = (esp_cost_point){1000000, 100000};
    in->codec.spec = "fp16", in->codec.header_bytes = 64, in->codec.unit_bytes = 2, in->codec.units = 1;
    in->codec.compress[ESP_PLAN_CPU] = (esp_cost_curve){in->compress, 2, 0};
    in->codec.decompress[ESP_PLAN_CPU] = (esp_cost_curve){in->decompress, 2, 0};
    in->codec.error = 0.01;
    in->system = machines();
    in->config.struct_size = sizeof in->config;
    in->config.flags = flags;
}

/* One op by hand: 8 ranks, 4 payloads of a part of 262144 elements. */
static void one_op(void **state) {
    inputs in;
    esp__arena arena = {0};
    jmp_buf out_of_memory;
    esp__problem p;
    (void)state;
    make_inputs(&in, 1, 8 * 2 * 262144, 0);
    in.config.max_error = 1;
    arena.on_failure = &out_of_memory;
    if (setjmp(out_of_memory)) fail_msg("out of memory");
    assert_int_equal(esp__problem_open(&p, &arena, &in.model, &in.codec, 1, &in.system, &in.config, 0), ESP_OK);
    const esp__unit unit = {0, 1, 0, in.tensors[0].elements};
    const esp__path *x = esp__path_make(&p, &unit, "intra.reduce_scatter > inter.ring_hops > intra.allgather", 0);
    assert_non_null(x);
    assert_int_equal(x->n, 3);
    assert_int_equal(x->codec, 0);
    const double payloads = 4 * (64 + 2.0 * 65536), codec = 4 * (8 + 15) * 6553.6;
    near((double)x->ops[1].time.ns,
         20000 + 2 * 14 * payloads * 8 + 2 * codec); /* both ranks of a machine share link and CPU */
    near(x->error, 4.5 * 0.01 * (double)unit.elements);
    assert_int_equal(x->volume, 64 + 2 * unit.elements);
    esp_plan_codec stateful = in.codec;
    stateful.caps = ESP_CODEC_HAS_STATE;
    p.codecs = &stateful;
    assert_null(esp__path_make(&p, &unit, "intra.reduce_scatter > inter.ring_hops > intra.allgather", 0));
    assert_null(esp__path_make(&p, &unit, "flat.ring_hops", ESP__NO_CODEC));
    p.codecs = &in.codec;
    assert_non_null(esp__path_make(&p, &unit, "flat.halving_hops", 0));
    p.size[ESP__FLAT] = 12;
    assert_null(esp__path_make(&p, &unit, "flat.halving_hops", 0));
    esp__arena_free(&arena);
}

typedef struct each_option {
    esp__problem p;
    esp__unit unit;
    uint64_t least;
    uint32_t n, hops;
    const esp__candidates *kept;
} each_option;

/* Every option that is not among the candidates is dominated by one that is. */
static int one_option(void *user, const esp__option *o) {
    each_option *e = user;
    const esp__path *x = esp__path_of(&e->p, &e->unit, o, esp__option_compresses(o) ? 0 : ESP__NO_CODEC);
    uint32_t k = 0;
    assert_non_null(x);
    e->n++;
    e->hops += esp__option_hops(o) != 0;
    if (x->total < e->least) e->least = x->total;
    for (; k < e->kept->n; k++) {
        const esp__path *a = &e->kept->paths[k];
        int less = a->total <= x->total;
        for (uint32_t l = 0; l < e->p.n_lanes; l++) less &= a->load[l] <= x->load[l];
        if (less) break;
    }
    if (k == e->kept->n) {
        char text[ESP__TEXT_MAX];
        esp__option_print(o, text, sizeof text);
        fail_msg("nothing dominates %s", text);
    }
    return 0;
}

static uint32_t kept_hops(const esp__candidates *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++) n += esp__option_hops(m->paths[i].option) != 0;
    return n;
}

static void candidates(void **state) {
    static const uint64_t sizes[] = {1000, 300000, 20000000};
    (void)state;
    for (volatile size_t at = 0; at < 2 * sizeof sizes / sizeof *sizes; at++) {
        const size_t k = at;
        inputs in;
        esp__arena arena = {0};
        jmp_buf out_of_memory;
        each_option e;
        memset(&e, 0, sizeof e);
        make_inputs(&in, 1, sizes[k / 2], k % 2 ? ESP_PLAN_HOPS : 0);
        arena.on_failure = &out_of_memory;
        if (setjmp(out_of_memory)) fail_msg("out of memory");
        assert_int_equal(esp__problem_open(&e.p, &arena, &in.model, &in.codec, 1, &in.system, &in.config, 0), ESP_OK);
        e.unit = (esp__unit){0, 1, 0, sizes[k / 2]};
        e.kept = esp__candidates_get(&e.p, &e.unit);
        e.least = UINT64_MAX;
        esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 1, k % 2 ? ESP__WITH_HOPS : 0, one_option, &e);
        assert_int_equal(e.n, k % 2 ? 174 + 18 : 174);
        assert_int_equal(e.hops, k % 2 ? 18 : 0);
        assert_int_equal(e.kept->paths[0].total, e.least);
        if (!(k % 2)) assert_int_equal(kept_hops(e.kept), 0);
        if (k == 5) assert_true(kept_hops(e.kept) > 0);
        esp__arena_free(&arena);
    }
}

/* 16 machines of one rank, where each hop takes long: an alltoall takes 15 of them, recursive halving 5. */
static void make_far(inputs *in, uint32_t flags) {
    make_inputs(in, TENSORS, 40000, flags);
    in->system.machines = 16, in->system.ranks_per_machine = 1;
    in->system.inter.alpha_ns = 50000, in->system.inter.alpha_is = ESP_ALPHA_HOP;
}

/* Hops are planned where they are asked for, and not elsewhere; the plan's text gives the same times again. */
static void plans(void **state) {
    inputs in;
    esp_plan *plan, *again;
    esp_plan_report with = ESP_ZERO, without = ESP_ZERO, same = ESP_ZERO;
    with.struct_size = without.struct_size = same.struct_size = sizeof with;
    (void)state;
    make_far(&in, 0);
    assert_int_equal(esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan), ESP_OK);
    assert_null(strstr(esp_plan_text(plan), "_hops"));
    assert_int_equal(esp_plan_report_read(plan, &without), ESP_OK);
    esp_plan_free(plan);
    make_far(&in, ESP_PLAN_HOPS);
    assert_int_equal(esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan), ESP_OK);
    assert_int_equal(esp_plan_report_read(plan, &with), ESP_OK);
    printf("%.1f ms with hops, %.1f ms without; bounds %.1f and %.1f\n", with.iteration_ns / 1e6,
           without.iteration_ns / 1e6, with.bound_ns / 1e6, with.bound_any_ns / 1e6);
    assert_non_null(strstr(esp_plan_text(plan), "flat.halving_hops"));
    assert_true(with.iteration_ns < without.iteration_ns);
    assert_true(with.bound_any_ns <= with.iteration_ns && with.bound_any_ns > 0);
    assert_int_equal(esp_plan_simulate(&in.model, &in.codec, 1, &in.system, NULL, esp_plan_text(plan), &again), ESP_OK);
    assert_int_equal(esp_plan_report_read(again, &same), ESP_OK);
    assert_true(fabs(same.iteration_ns - with.iteration_ns) < 2);
    assert_true(same.compressed == with.compressed);
    esp_plan_free(again);
    esp_plan_free(plan);
    /* only such options */
    static const char *const only[] = {"_hops"};
    in.config.only = only, in.config.n_only = 1;
    assert_int_equal(esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan), ESP_OK);
    assert_non_null(strstr(esp_plan_text(plan), "_hops"));
    assert_int_equal(esp_plan_report_read(plan, &with), ESP_OK);
    assert_int_equal(with.compressed, TENSORS);
    esp_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(wires), cmocka_unit_test(one_op), cmocka_unit_test(candidates),
                                       cmocka_unit_test(plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
