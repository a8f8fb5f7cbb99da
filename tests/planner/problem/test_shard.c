/* test_shard.c checks plans for sharded tensors, whose mean gradient stays split over the ranks: the options that the
 * search keeps, the options that the model demands, and that the executor runs the plans. */
/* runs: no-tsan: test_shard in tests/context runs the same code */
#include "tests/lib/test.h"

enum { TENSORS = 4 };
static const char *const names[TENSORS] = {"a", "b", "c", "d"};

typedef struct inputs {
    esp_plan_tensor tensors[TENSORS];
    esp_plan_model model;
    esp_cost_point compress[2], decompress[2];
    esp_plan_codec codec;
    esp_plan_system system;
    esp_plan_config config;
} inputs;

static void make_inputs(inputs *in, uint32_t n, uint64_t elements, const char *shard) {
    memset(in, 0, sizeof *in);
    for (uint32_t i = 0; i < n; i++) {
        in->tensors[i].name = names[i];
        in->tensors[i].elements = elements * (1 + i % 3);
        in->tensors[i].compute_ns = 200000;
        in->tensors[i].shard = shard;
    }
    in->model.n_tensors = n, in->model.tensors = in->tensors, in->model.name = "small";
    in->compress[0] = (esp_cost_point){1000, 3000}, in->compress[1] = (esp_cost_point){1000000, 900000};
    in->decompress[0] = (esp_cost_point){1000, 1000}, in->decompress[1] = (esp_cost_point){1000000, 200000};
    in->codec.spec = "topk:ratio=0.01", in->codec.header_bytes = 64, in->codec.unit_bytes = 8, in->codec.units = 0.01;
    in->codec.compress[ESP_ON_CPU] = (esp_cost_curve){in->compress, 2, 0};
    in->codec.decompress[ESP_ON_CPU] = (esp_cost_curve){in->decompress, 2, 0};
    in->system.machines = 2, in->system.ranks_per_machine = 2, in->system.devices = 1u << ESP_ON_CPU;
    in->system.name = "slow";
    in->system.intra.alpha_ns = 3000, in->system.intra.bytes_per_us = 10000;
    in->system.inter.alpha_ns = 20000, in->system.inter.bytes_per_us = 125;
    in->config.flags = ESP_PLAN_NO_BOUND;
}

typedef struct each_option {
    esp__problem p;
    esp__extent unit;
    uint64_t least;
    uint32_t n;
    const char *cuts;
    const esp__candidates *kept;
} each_option;

/* Checks that some option that the search keeps takes no longer and loads no link or core more than this one. */
static int one_option(void *user, const esp__option *o) {
    each_option *e = user;
    uint8_t scopes[ESP__LEVELS];
    char cuts[ESP__CUTS_TEXT], text[ESP__TEXT_MAX];
    uint32_t k = 0;
    esp__scopes_print(scopes, esp__option_cuts(o, scopes), cuts, sizeof cuts);
    if (strcmp(e->cuts, "any") && strcmp(e->cuts, cuts)) return 0;
    const esp__path *x = esp__path_of(&e->p, &e->unit, o, esp__option_compresses(o) ? 0 : ESP__NO_CODEC);
    assert_non_null(x);
    e->n++;
    if (x->total < e->least) e->least = x->total;
    for (; k < e->kept->n; k++) {
        const esp__path *a = &e->kept->paths[k];
        int less = a->total <= x->total;
        for (uint32_t l = 0; l < e->p.n_lanes; l++) less &= a->load[l] <= x->load[l];
        if (less) return 0;
    }
    esp__option_print(o, text, sizeof text);
    fail_msg("nothing dominates %s", text);
    return 0;
}

static void candidates_of(uint64_t elements, const char *cuts, uint32_t n) {
    inputs in;
    esp__arena arena = {0};
    jmp_buf out_of_memory;
    each_option e;
    memset(&e, 0, sizeof e);
    e.cuts = cuts;
    make_inputs(&in, 1, elements, cuts);
    arena.on_failure = &out_of_memory;
    if (setjmp(out_of_memory)) fail_msg("out of memory");
    if (esp__problem_open(&e.p, &arena, &in.model, &in.codec, 1, &in.system, &in.config, 0))
        fail_msg("%s", esp_last_error(NULL));
    e.unit = (esp__extent){0, 1, 0, elements};
    e.kept = esp__candidates_get(&e.p, &e.unit);
    e.least = UINT64_MAX;
    for (uint32_t i = 0; i < e.kept->n; i++) assert_true(esp__option_narrow(e.kept->paths[i].option));
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL | ESP__TREE_NARROW, 1, 0, one_option, &e);
    assert_int_equal(e.n, n);
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < e.kept->n; i++)
        if (e.kept->paths[i].total < best) best = e.kept->paths[i].total;
    assert_int_equal(best, e.least);
    esp__arena_free(&arena);
}

TEST(candidates_dominate_every_option) {
    static const uint64_t sizes[] = {1000, 300000, 20000000};
    static const char *const cuts[] = {"any", "flat", "intra,inter"};
    static const uint32_t n[] = {7, 2, 5};
    for (int k = 0; k < 9; k++) candidates_of(sizes[k % 3], cuts[k / 3], n[k / 3]);
}

/* The expected time is computed by hand: 1 MB is halved inside a machine and halved again between machines, over a link
 * that two ranks share. */
TEST(raw_costs_by_hand) {
    inputs in;
    esp_plan *plan;
    esp_plan_report r = ESP_ZERO;
    make_inputs(&in, 1, 250000, "intra,inter");
    in.config.strategy = "fp32";
    if (esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan)) fail_msg("%s", esp_last_error(NULL));
    r.struct_size = sizeof r;
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    assert_non_null(strstr(esp_plan_text(plan), "none intra.reduce_scatter > inter.reduce_scatter\n"));
    const double intra = 3000 + 0.5e6 / 10000 * 1000, inter = 20000 + 2 * 0.25e6 / 125 * 1000;
    const double want = 200000 + intra + inter;
    if (r.iteration_ns < want - 2 || r.iteration_ns > want + 2) fail_msg("%g ns, not %g", r.iteration_ns, want);
    esp_plan_free(plan);
}

/* ---- plans ---- */
typedef struct running {
    const char *text;
    uint32_t flags;
    atomic_int failures;
} running;

static void plan_body(esp_ctx *ctx, void *user) {
    running *run = user;
    static float grads[4][TENSORS][3000];
    esp_stream here = ESP_ZERO;
    int bad = 0;
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t], .count = 1000 * (1 + t % 3), .flags = t == 1 ? 0 : ESP_SHARD};
        bad |= esp_tensor_add(ctx, &d, NULL) != ESP_OK;
        for (int i = 0; i < 3000; i++) grads[ctx->job.rank][t][i] = (float)((i + ctx->job.rank) % 5);
    }
    bad |= esp_start(ctx) != ESP_OK || esp_strategy_set(ctx, run->text) != ESP_OK;
    for (int step = 0; step < 3 && !bad; step++) {
        for (uint32_t t = 0; t < TENSORS; t++) bad |= esp_push(ctx, t, grads[ctx->job.rank][t], here) != ESP_OK;
        bad |= esp_wait_all(ctx) != ESP_OK;
        for (uint32_t t = 0; t < TENSORS && !bad; t++)
            bad |= esp_gather(ctx, t, grads[ctx->job.rank][t], here) != ESP_OK;
    }
    for (uint32_t t = 0; t < TENSORS && !bad; t++) {
        float root[3000];
        memcpy(root, grads[ctx->job.rank][t], sizeof root);
        bad |= esp_broadcast(ctx, root, sizeof root / 3 * (1 + t % 3), 0) != ESP_OK;
        bad |= memcmp(root, grads[ctx->job.rank][t], sizeof root / 3 * (1 + t % 3)) != 0;
    }
    if (bad) atomic_fetch_add(&run->failures, 1), fprintf(stderr, "rank %d: %s\n", ctx->job.rank, esp_last_error(ctx));
}

/* No strategy merges or splits a sharded tensor. */
TEST(plans_run) {
    static const char *const strategies[] = {NULL,      "fp32",      "ddp",       "layerwise", "byteps-compress",
                                             "hipress", "mergecomp", "hitopkcomm"};
    inputs in;
    for (size_t k = 0; k < sizeof strategies / sizeof *strategies; k++) {
        running run = {0};
        esp_plan *plan;
        make_inputs(&in, TENSORS, 1000, "intra,inter");
        in.tensors[1].shard = NULL;
        in.config.strategy = strategies[k];
        if (esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan))
            fail_msg("%s: %s", strategies[k], esp_last_error(NULL));
        run.text = esp_plan_text(plan);
        RUN_RANKS(.size = 4, .per_machine = 2, .body = plan_body, .user = &run);
        if (atomic_load(&run.failures)) fail_msg("%s:\n%s", strategies[k] ? strategies[k] : "espresso", run.text);
        esp_plan_free(plan);
    }
}

/* If they were not sharded, one tensor would be large enough to be split and the others small enough to be merged. */
TEST(units_stay_whole) {
    inputs in;
    for (int k = 0; k < 2; k++) {
        esp_plan *plan;
        make_inputs(&in, TENSORS, k ? 50000000 : 100, "any");
        for (uint32_t i = 0; !k && i < TENSORS; i++) in.tensors[i].compute_ns = 10;
        if (esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan)) fail_msg("%s", esp_last_error(NULL));
        assert_null(strstr(esp_plan_text(plan), "chunk "));
        assert_null(strstr(esp_plan_text(plan), "group "));
        assert_null(strstr(esp_plan_text(plan), " split "));
        esp_plan_free(plan);
        for (uint32_t i = 0; i < TENSORS; i++) in.tensors[i].shard = NULL;
        if (esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan)) fail_msg("%s", esp_last_error(NULL));
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
        make_inputs(&in, 1, 1000, bad[k][0]);
        in.tensors[0].keep = bad[k][1];
        assert_int_equal(esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), bad[k][2])) fail_msg("%d: %s", k, esp_last_error(NULL));
    }
}
