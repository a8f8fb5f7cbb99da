/* test_three_levels.c checks plans for machines in racks: predicted times of collectives, candidates and lower bounds,
 * and that the library runs the plans. */
/* runs: slow asan-long no-tsan: runs plans by what strategy/test_levels runs */
#include "tests/lib/test.h"

enum { TENSORS = 4 };
static const char *const names[TENSORS] = {"a", "b", "c", "d"};

/* Returns 2 racks of 2 machines with 2 ranks: 10 GB/s within a machine, 1.25 GB/s per machine, 125 MB/s per rack. */
static esp_plan_system racks(void) {
    esp_plan_system s = ESP_ZERO;
    s.machines = 2, s.ranks_per_machine = 2, s.devices = 1u << ESP_ON_CPU, s.name = "racks";
    s.intra.alpha_ns = 3000, s.intra.bytes_per_us = 10000;
    s.inter.alpha_ns = 20000, s.inter.bytes_per_us = 1250;
    s.n_outer = 1, s.outer[0].size = 2, s.outer[0].link.alpha_ns = 50000, s.outer[0].link.bytes_per_us = 125;
    return s;
}

static void near(double is, double want) {
    if (fabs(is - want) > 1e-6 * want + 0.5) fail_msg("%g ns, not %g", is, want);
}

TEST(collectives_take_the_slowest_link) {
    esp_plan_system s = racks();
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

typedef struct inputs {
    esp_plan_tensor tensors[TENSORS];
    esp_plan_model model;
    esp_cost_point compress[2], decompress[2];
    esp_plan_codec codec;
    esp_plan_system system;
    esp_plan_config config;
} inputs;

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
    in->system = racks();
}

/* ---- candidates ---- */
typedef struct each_option {
    esp__problem p;
    esp__extent unit;
    uint64_t least;
    uint32_t n, cannot, blocks[4];
    const esp__candidates *kept;
} each_option;

/* Checks that some option that the search keeps takes no longer and loads no link or core more than this one. */
static int one_option(void *user, const esp__option *o) {
    each_option *e = user;
    const esp__path *x = esp__path_of(&e->p, &e->unit, o, esp__option_compresses(o) ? 0 : ESP__NO_CODEC);
    uint32_t k = 0;
    e->n++;
    if (!x) return e->cannot++, 0;
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
    make_inputs(&in, 1, 1000);
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
    for (volatile size_t k = 0; k < test_repeats(sizeof sizes / sizeof *sizes); k++) {
        inputs in;
        esp__arena arena = {0};
        jmp_buf out_of_memory;
        each_option e;
        memset(&e, 0, sizeof e);
        make_inputs(&in, 1, sizes[k]);
        arena.on_failure = &out_of_memory;
        if (setjmp(out_of_memory)) fail_msg("out of memory");
        if (esp__problem_open(&e.p, &arena, &in.model, &in.codec, 1, &in.system, &in.config, 0))
            fail_msg("%s", esp_last_error(NULL));
        assert_int_equal(e.p.n_levels, 3);
        e.unit = (esp__extent){0, 1, 0, sizes[k]};
        e.kept = esp__candidates_get(&e.p, &e.unit);
        e.least = UINT64_MAX;
        esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL | ESP__TREE_OF(3), 1, 0, one_option, &e);
        assert_int_equal(e.n, 2556);
        assert_int_equal(e.cannot, 0);
        printf("%u candidate options of %u elements\n", e.kept->n, (unsigned)sizes[k]);
        assert_true(e.kept->n < e.n / 2);
        uint64_t best = UINT64_MAX;
        for (uint32_t i = 0; i < e.kept->n; i++)
            if (e.kept->paths[i].total < best) best = e.kept->paths[i].total;
        assert_int_equal(best, e.least);
        esp__arena_free(&arena);
    }
}

/* ---- plans ---- */
TEST(plans_are_near_their_bound) {
    inputs in;
    esp_plan *plan;
    esp_plan_report r = ESP_ZERO;
    make_inputs(&in, TENSORS, 200000);
    if (esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan)) fail_msg("%s", esp_last_error(NULL));
    r.struct_size = sizeof r;
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
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
        esp_plan *other;
        esp_plan_report o = ESP_ZERO;
        in.config.only = only, in.config.n_only = 1;
        if (esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &other))
            fail_msg("%s", esp_last_error(NULL));
        o.struct_size = sizeof o;
        assert_int_equal(esp_plan_report_read(other, &o), ESP_OK);
        assert_true(o.iteration_ns >= r.iteration_ns * 0.999);
        esp_plan_free(other);
    }
    esp_plan_free(plan);
}

typedef struct running {
    const char *text;
    atomic_int failures;
} running;
static void plan_body(esp_ctx *ctx, void *user) {
    running *run = user;
    static float grads[8][TENSORS][3000];
    esp_stream here = ESP_ZERO;
    int bad = 0;
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t], .count = 1000 * (1 + t % 3)};
        bad |= esp_tensor_add(ctx, &d, NULL) != ESP_OK;
        for (int i = 0; i < 3000; i++) grads[ctx->job.rank][t][i] = (float)((i + ctx->job.rank) % 5);
    }
    bad |= esp_start(ctx) != ESP_OK || esp_strategy_set(ctx, run->text) != ESP_OK;
    for (int step = 0; step < 3 && !bad; step++) {
        for (uint32_t t = 0; t < TENSORS; t++) bad |= esp_push(ctx, t, grads[ctx->job.rank][t], here) != ESP_OK;
        bad |= esp_wait_all(ctx) != ESP_OK;
    }
    for (uint32_t t = 0; t < TENSORS && !bad; t++) {
        float root[3000];
        memcpy(root, grads[ctx->job.rank][t], sizeof root);
        bad |= esp_broadcast(ctx, root, sizeof root / 3 * (1 + t % 3), 0) != ESP_OK;
        bad |= memcmp(root, grads[ctx->job.rank][t], sizeof root / 3 * (1 + t % 3)) != 0;
    }
    if (bad) atomic_fetch_add(&run->failures, 1), fprintf(stderr, "rank %d: %s\n", ctx->job.rank, esp_last_error(ctx));
}

TEST(plans_run) {
    static const char *const places[] = {"a/0", "a/0", "a/1", "a/1", "b/0", "b/0", "b/1", "b/1"};
    inputs in;
    esp_plan *plan;
    running run;
    make_inputs(&in, TENSORS, 1000);
    in.config.flags = ESP_PLAN_NO_BOUND;
    for (int round = 0; round < 3; round++) {
        const char *only[1] = {round == 2 ? "intra.*comp*inter.*comp*outer" : "*"};
        in.config.strategy = round == 1 ? "hitopkcomm" : NULL;
        in.system.devices = round == 1 ? 3 : 1;
        in.codec.compress[ESP_ON_GPU] = in.codec.compress[ESP_ON_CPU];
        in.codec.decompress[ESP_ON_GPU] = in.codec.decompress[ESP_ON_CPU];
        in.config.only = only, in.config.n_only = round == 2;
        if (round == 1) in.system.outer[0].size = 2;
        if (esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan)) fail_msg("%s", esp_last_error(NULL));
        run.text = esp_plan_text(plan);
        atomic_init(&run.failures, 0);
        RUN_RANKS(.size = 8, .places = places, .body = plan_body, .user = &run);
        assert_int_equal(atomic_load(&run.failures), 0);
        esp_plan_free(plan);
    }
}

TEST(wrong_levels_are_named) {
    static const char *const bad[] = {"level 'outer' has size 0", "n_outer is 2: at most 1 level"};
    for (int k = 0; k < 2; k++) {
        inputs in;
        esp_plan *plan = NULL;
        make_inputs(&in, 1, 1000);
        if (k)
            in.system.n_outer = 2;
        else
            in.system.outer[0].size = 0;
        assert_int_equal(esp_plan_make(&in.model, &in.codec, 1, &in.system, &in.config, &plan), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), bad[k])) fail_msg("%s", esp_last_error(NULL));
    }
}
