/* small_inputs.h has a model of at most four tensors with one codec, checks the options that the planner's search keeps
 * for a tensor of it, and runs plans for it on ranks that are threads. */
#ifndef TESTS_PLANNER_SMALL_INPUTS_H
#define TESTS_PLANNER_SMALL_INPUTS_H
#include "tests/lib/test.h"

enum { TENSORS = 4, LARGEST = 3000 };
static const char *const names[TENSORS] = {"a", "b", "c", "d"};

typedef struct inputs {
    esp_plan_tensor tensors[TENSORS];
    esp_plan_model model;
    esp_cost_point compress[2], decompress[2];
    esp_plan_codec codec;
    esp_plan_system system;
    esp_plan_config config;
} inputs;

/* Makes a model of n tensors of once, twice or three times `elements`, and a system of two machines of two ranks. The
 * caller sets the speed of the link between machines. */
static void make_inputs(inputs *in, uint32_t n, uint64_t elements) {
    memset(in, 0, sizeof *in);
    for (uint32_t i = 0; i < n; i++) {
        in->tensors[i].name = names[i];
        in->tensors[i].elements = elements * (1 + i % 3);
        in->tensors[i].compute_ns = 200000;
    }
    in->model.n_tensors = n, in->model.tensors = in->tensors, in->model.name = "small";
    in->compress[0] = (esp_cost_point){1000, 3000}, in->compress[1] = (esp_cost_point){1000000, 900000};
    in->decompress[0] = (esp_cost_point){1000, 1000}, in->decompress[1] = (esp_cost_point){1000000, 200000};
    in->codec.spec = "topk:ratio=0.01", in->codec.header_bytes = 64, in->codec.unit_bytes = 8, in->codec.units = 0.01;
    in->codec.compress[ESP_ON_CPU] = (esp_cost_curve){in->compress, 2, 0};
    in->codec.decompress[ESP_ON_CPU] = (esp_cost_curve){in->decompress, 2, 0};
    in->system.machines = 2, in->system.ranks_per_machine = 2, in->system.devices = 1u << ESP_ON_CPU;
    in->system.name = "small";
    in->system.intra.alpha_ns = 3000, in->system.intra.bytes_per_us = 10000;
    in->system.inter.alpha_ns = 20000;
}

static esp_plan *plan_of(const inputs *in) {
    esp_plan *plan = NULL;
    if (esp_plan_make(&in->model, &in->codec, 1, &in->system, &in->config, &plan)) fail_msg("%s", esp_last_error(NULL));
    return plan;
}

static esp_plan_report report_of(const esp_plan *plan) {
    esp_plan_report r = {.struct_size = sizeof r};
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    return r;
}

typedef struct each_option {
    esp__problem p;
    esp__extent unit;
    uint64_t least;
    uint32_t n, n_kept;
    const char *cuts; /* levels by which options must divide the mean, or NULL */
    const esp__candidates *kept;
} each_option;

/* Checks that some option that the search keeps takes no longer and loads no link or core more than this one. */
static int one_option(void *user, const esp__option *o) {
    each_option *e = user;
    uint8_t scopes[ESP__LEVELS];
    char cuts[ESP__CUTS_TEXT], text[ESP__TEXT_MAX];
    esp__scopes_print(scopes, esp__option_cuts(o, scopes), cuts, sizeof cuts);
    if (e->cuts && strcmp(e->cuts, cuts)) return 0;
    const esp__path *x = esp__path_of(&e->p, &e->unit, o, esp__option_compresses(o) ? 0 : ESP__NO_CODEC);
    assert_non_null(x);
    e->n++;
    if (x->total < e->least) e->least = x->total;
    for (uint32_t k = 0; k < e->kept->n; k++) {
        const esp__path *a = &e->kept->paths[k];
        int less = a->total <= x->total;
        for (uint32_t l = 0; l < e->p.n_lanes; l++) less &= a->load[l] <= x->load[l];
        if (less) return 0;
    }
    esp__option_print(o, text, sizeof text);
    fail_msg("nothing dominates %s", text);
    return 0;
}

/* Checks all options of the first tensor, in the parts `tree` of the option tree, and that the fastest one is kept.
 * e->n becomes their number, and e->n_kept the number of those that the search keeps. */
static void check_kept(const inputs *in, uint32_t tree, each_option *e) {
    esp__arena arena = {0};
    jmp_buf out_of_memory;
    arena.on_failure = &out_of_memory;
    if (setjmp(out_of_memory)) fail_msg("out of memory");
    if (esp__problem_open(&e->p, &arena, &in->model, &in->codec, 1, &in->system, &in->config, 0))
        fail_msg("%s", esp_last_error(NULL));
    e->unit = (esp__extent){0, 1, 0, in->tensors[0].elements};
    e->kept = esp__candidates_get(&e->p, &e->unit);
    e->n_kept = e->kept->n;
    e->least = UINT64_MAX;
    uint64_t best = UINT64_MAX;
    esp__option_each(tree, 1, 0, one_option, e);
    for (uint32_t i = 0; i < e->n_kept; i++) {
        if (tree & ESP__TREE_NARROW) assert_true(esp__option_narrow(e->kept->paths[i].option));
        if (e->kept->paths[i].total < best) best = e->kept->paths[i].total;
    }
    assert_int_equal(best, e->least);
    esp__arena_free(&arena);
}

typedef struct running {
    const char *text;
    int sharded; /* all tensors but the second are sharded */
} running;

/* Runs the plan `text` for the model with 1000 elements. All ranks must end with the same bits. */
static void plan_body(esp_ctx *ctx, void *user) {
    const running *run = user;
    float grads[TENSORS][LARGEST];
    const esp_stream here = ESP_ZERO;
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t], .count = 1000 * (1 + t % 3)};
        if (run->sharded && t != 1) d.flags = ESP_SHARD;
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        for (int i = 0; i < LARGEST; i++) grads[t][i] = (float)((i + ctx->job.rank) % 5);
    }
    CHECK(esp_start(ctx) == ESP_OK && esp_strategy_set(ctx, run->text) == ESP_OK);
    for (int step = 0; step < 3; step++) {
        for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_push(ctx, t, grads[t], here) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        for (uint32_t t = 0; t < TENSORS && run->sharded; t++) CHECK(esp_gather(ctx, t, grads[t], here) == ESP_OK);
    }
    for (uint32_t t = 0; t < TENSORS; t++) check_same_bits(ctx, grads[t], sizeof *grads / 3 * (1 + t % 3));
}
#endif
