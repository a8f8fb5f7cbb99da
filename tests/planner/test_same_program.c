/* test_same_program.c: the planner times what the executor runs: for every option of the tree, an op template has
 * the ops of the compiled program of a rank that is root in every rooted collective: kinds, lanes, steps, elements
 * and payloads. */
#include "tests/common/library.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* the test uses some of: */
#include "planner/problem/tree.c"
#include "planner/problem/cost.c"
#include "planner/problem/templates.c"
#include "planner/problem/candidates.c"
#pragma GCC diagnostic pop
#include "tests/common/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { OPTIONS_MAX = 5000, ELEMENTS = 1003 };

typedef struct tree {
    char (*text)[ESP__TEXT_MAX];
    uint32_t n;
    int32_t machines, local; /* any option's unit turns the roots by this many: rank 0 is the root again */
    atomic_int compared, wrong;
} tree;

static int add_option(void *user, const esp__option *o) {
    tree *t = user;
    esp__option_print(o, t->text[t->n++], ESP__TEXT_MAX);
    return t->n == OPTIONS_MAX;
}

/* The planner's side: a problem with nothing to plan, for its op templates. */
typedef struct side {
    esp__arena arena;
    jmp_buf no_memory;
    esp__problem problem;
} side;

static void side_open(side *s, const tree *t) {
    static esp_cost_point one = {1.0, 1.0};
    static esp_plan_tensor tensor = {"t", ELEMENTS, 1.0, NULL};
    static esp_plan_model model;
    static esp_plan_codec codec;
    esp_plan_system system;
    memset(s, 0, sizeof *s);
    memset(&system, 0, sizeof system);
    model.name = "m", model.n_tensors = 1, model.tensors = &tensor;
    codec.spec = "topk:ratio=0.1", codec.unit_bytes = 1, codec.units = 1;
    for (int d = 0; d < 2; d++) {
        codec.compress[d].points = codec.decompress[d].points = &one;
        codec.compress[d].n = codec.decompress[d].n = 1;
    }
    system.name = "s", system.machines = (uint32_t)t->machines, system.ranks_per_machine = (uint32_t)t->local;
    system.devices = 3, system.intra.bytes_per_us = system.inter.bytes_per_us = 1.0;
    s->arena.on_failure = &s->no_memory;
    assert_int_equal(esp__problem_open(&s->problem, &s->arena, &model, &codec, 1, &system, NULL, 0), ESP_OK);
}

static uint64_t power(const esp__problem *p, const uint8_t slots[3]) {
    uint64_t n = 1;
    for (uint32_t level = 0; level < 3; level++)
        for (uint32_t k = 0; k < slots[level]; k++) n *= p->size[level];
    return n;
}

/* Is this op of the program that op of the op template? The largest part stands for all (the last may be smaller). */
static int same(const esp__problem *p, const esp__program *program, const esp__op *op, const esp__op_template *r,
                uint8_t step) {
    uint64_t size[ESP__CUTS], elements = 0, largest = 0;
    esp__sizes(p, ELEMENTS, size);
    uint32_t mask = 1u << op->lane | (uint32_t)op->links << ESP__LANE_INTRA;
    if (p->system.ranks_per_machine == 1) mask &= ~(1u << ESP__LANE_INTRA); /* a link that nobody uses */
    if (op->step != step || mask != r->lanes) return 0;
    for (uint32_t k = 0; op->kind != ESP__OP_COLLECTIVE && k < op->n_ranges; k++) {
        const esp__range *x = &program->ranges[op->first_range + k];
        elements += x->length;
        if (x->length > largest) largest = x->length;
    }
    switch (op->kind) {
    case ESP__OP_COMPRESS:
        return r->kind == ESP_PLAN_COMP && elements == size[r->cut] && largest == size[r->parts] &&
               op->n_ranges == power(p, r->slots_after);
    case ESP__OP_DECOMPRESS:
        return r->kind == ESP_PLAN_DECOMP && largest == size[r->cut] &&
               op->n_ranges * op->n_sources == power(p, r->slots);
    default: break;
    }
    if (r->kind != ESP_PLAN_COLLECTIVE || op->level != r->level || op->coll.op != r->coll) return 0;
    uint64_t n = p->size[r->level], have = r->compressed ? power(p, r->slots) : size[r->cut], want = have;
    if (r->coll == ESP_COLL_BROADCAST && r->compressed) want = power(p, r->slots_after);
    if (r->coll == ESP_COLL_ALLGATHER || (r->coll == ESP_COLL_GATHER && r->compressed)) want = have * n;
    if (r->coll == ESP_COLL_ALLGATHER && !r->compressed)
        want = size[r->parts]; /* not n times a part that was rounded up */
    return op->coll.count == want;
}

static void compare(tree *t, const esp_ctx *ctx, uint32_t unit, const char *text, const side *s) {
    const esp__program *program = &ctx->in_force.program;
    esp__op_template op_template[ESP__MAX_OPS];
    esp__option option;
    uint32_t at = 0, n;
    uint8_t step = 0;
    int good = esp__option_parse(NULL, text, &option) == ESP_OK;
    n = esp__op_templates(&s->problem, &option, op_template);
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const esp__op *op = &program->ops[i];
        if (op->unit != unit || op->kind == ESP__OP_COPY) continue;
        good &= at < n && same(&s->problem, program, op, &op_template[at], step);
        at++, step++;
    }
    good &= at == n;
    atomic_fetch_add(&t->compared, 1);
    if (!good && atomic_fetch_add(&t->wrong, 1) < 5) fprintf(stderr, "%s: the program and the recipe differ\n", text);
}

static void body(esp_ctx *ctx, void *user) {
    tree *t = user;
    uint32_t turn = (uint32_t)(t->machines * t->local), id;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < t->n * turn && !s; i++) { /* between any two of them some that turn the roots */
        esp_tensor_desc d = ESP_ZERO;
        char name[32];
        snprintf(name, sizeof name, "t%u", i);
        d.name = name;
        d.count = i % turn ? 1 : ELEMENTS;
        d.codec = i % turn ? "none" : "topk:ratio=0.1";
        d.option = i % turn ? "flat.allreduce" : t->text[i / turn];
        s = esp_tensor_add(ctx, &d, &id);
    }
    if (!s) s = esp_start(ctx);
    if (s) {
        fprintf(stderr, "%s\n", esp_last_error(ctx));
        atomic_fetch_add(&t->wrong, 1);
        return;
    }
    if (esp_rank(ctx)) return;
    side planner;
    side_open(&planner, t);
    uint32_t first = 0; /* ops of a unit are neighbours: look only there */
    esp__program part = ctx->in_force.program;
    esp_ctx view = *ctx;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t unit = i * turn;
        while (first < ctx->in_force.program.n_ops && ctx->in_force.program.ops[first].unit < unit) first++;
        part.ops = ctx->in_force.program.ops + first;
        for (part.n_ops = 0; first + part.n_ops < ctx->in_force.program.n_ops && part.ops[part.n_ops].unit == unit;)
            part.n_ops++;
        view.in_force.program = part;
        compare(t, &view, unit, t->text[i], &planner);
    }
    esp__arena_free(&planner.arena);
}

static void run(uint32_t parts, uint32_t devices, int32_t machines, int32_t local, uint32_t want) {
    static tree t;
    static test_job job;
    memset(&t, 0, sizeof t);
    t.text = calloc(OPTIONS_MAX, sizeof *t.text);
    t.machines = machines, t.local = local;
    esp__option_each(parts, devices, 0, add_option, &t);
    assert_int_equal(t.n, want);
    memset(&job, 0, sizeof job);
    job.size = machines * local;
    job.per_machine = local;
    job.body = body;
    job.user = &t;
    test_run(&job);
    assert_int_equal(t.compared, want);
    assert_int_equal(t.wrong, 0);
    free(t.text);
}

static void test_all_4341(void **state) {
    (void)state;
    run(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 2, 2, 4341);
}

static void test_unequal_fanouts(void **state) {
    (void)state;
    run(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 1, 3, 2, 174);
    run(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 2, 2, 3, 174);
}

static void test_one_level(void **state) {
    (void)state;
    run(ESP__TREE_FLAT, 3, 1, 4, 63);
    run(ESP__TREE_FLAT, 3, 4, 1, 63);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_4341), cmocka_unit_test(test_unequal_fanouts),
                                       cmocka_unit_test(test_one_level)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
