/* test_same_program.c checks that the planner times the ops that the executor runs. For every option (way to compress
 * and send a tensor), both must derive the same ops, with the same links, elements and payload sizes. The planner must
 * be able to time exactly the options that the executor accepts. */
/* runs: asan-long no-tsan: it only compiles strategies and runs none */
#include "tests/lib/test.h"
#include "planner/problem/problem.h"

enum { OPTIONS_MAX = 5000, ROWS = 59, COLS = 17, ELEMENTS = ROWS * COLS };

typedef struct tree {
    char (*text)[ESP__TEXT_MAX];
    uint32_t n;
    const char *codec;
    int matrix;
    char (*kept)[ESP__TEXT_MAX];
    uint32_t n_kept;
    int32_t machines, local;
    atomic_int compared, wrong;
} tree;

static int add_option(void *user, const esp__option *o) {
    tree *t = user;
    esp__option_print(o, t->text[t->n++], ESP__TEXT_MAX);
    return t->n == OPTIONS_MAX;
}

typedef struct side {
    esp__arena arena;
    jmp_buf no_memory;
    esp__problem problem;
    const esp__codec *codec;
} side;

static void side_open(side *s, const tree *t, esp_ctx *ctx) {
    static esp_cost_point one = {1.0, 1.0};
    static esp_plan_tensor tensor;
    static esp_plan_model model;
    static esp_plan_codec codec;
    esp_plan_system system;
    esp__codec *opened;
    memset(s, 0, sizeof *s);
    memset(&system, 0, sizeof system);
    memset(&codec, 0, sizeof codec);
    tensor.name = "t", tensor.elements = ELEMENTS, tensor.compute_ns = 1.0;
    tensor.rows = t->matrix ? ROWS : 0, tensor.cols = t->matrix ? COLS : 0;
    model.name = "m", model.n_tensors = 1, model.tensors = &tensor;
    codec.spec = t->codec, codec.unit_bytes = 1, codec.units = 1;
    assert_int_equal(esp__codec_get(ctx, t->codec, &opened), ESP_OK);
    codec.caps = opened->traits.caps & ESP_CODEC_REDUCIBLE;
    esp__plan_codec_rounds(&codec, opened->table, &opened->traits, opened->self);
    s->codec = opened;
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

static esp_bound bound_of(const esp__problem *p, const esp__op_template *r, const esp__shape *shape, uint32_t round) {
    const esp_plan_codec *c = &p->codecs[0];
    uint64_t n = shape->size[r->cut];
    uint32_t n_reduced = 1;
    esp_tensor like =
        esp__codec_like(n, shape->cols && c->caps & ESP_CODEC_NEEDS_MATRIX ? n / shape->cols : 0, shape->cols);
    esp_bound b = {.struct_size = sizeof b};
    for (uint32_t scope = 0; scope < 3; scope++)
        if (r->reduced >> scope & 1u) n_reduced *= p->size[scope];
    assert_int_equal(c->bound(c->self, &like, round, n_reduced, &b), ESP_OK);
    return b;
}

static int same_sum(const side *s, const esp__op *op, const esp__op_template *r, const esp__shape *shape) {
    const esp__problem *p = &s->problem;
    const esp_bound b = bound_of(p, r, shape, op->round);
    const esp_round round = esp__codec_round(s->codec, op->round);
    return op->collective.coll.reduce == round.op && op->collective.coll.dtype == (b.dtype ? b.dtype : round.dtype) &&
           (double)(op->collective.coll.count * esp_dtype_bytes(op->collective.coll.dtype)) ==
               esp__op_bytes_before(p, r, shape, &p->codecs[0]);
}

/* Returns 1 if the executor's op equals the planner's. Only the size of the largest part is compared, because the last
 * part may be smaller. */
static int same(const side *s, const esp__program *program, const esp__op *op, const esp__plan_op *x,
                const esp__shape *shape) {
    const esp__problem *p = &s->problem;
    const esp__op_template *r = &p->op_templates[x->op_template];
    const uint64_t *size = shape->size;
    uint64_t elements = 0, largest = 0;
    uint32_t mask = 1u << op->lane;
    if (op->kind == ESP__OP_COLLECTIVE) mask |= (uint32_t)op->collective.links << ESP__LANE_INTRA;
    if (p->system.ranks_per_machine == 1) mask &= ~(1u << ESP__LANE_INTRA);
    if (op->step != x->step || op->round != x->round || mask != r->lanes) return 0;
    for (uint32_t k = 0; esp__op_is_codec(op) && k < op->codec.n_ranges; k++) {
        const esp__range *y = &program->ranges[op->codec.first_range + k];
        elements += y->length;
        if (y->length > largest) largest = y->length;
    }
    switch (op->kind) {
    case ESP__OP_COMPRESS:
        return r->kind == ESP_PLAN_COMPRESS && elements == size[r->cut] && largest == size[r->parts] &&
               op->codec.n_ranges == power(p, r->slots_after) &&
               (!r->n_rounds ||
                (double)op->codec.slot_bytes == esp__template_payload(p, r, shape, &p->codecs[0], r->parts));
    case ESP__OP_DECOMPRESS:
        return r->kind == ESP_PLAN_DECOMPRESS && largest == size[r->cut] &&
               op->codec.n_ranges * op->codec.n_sources == power(p, r->slots);
    default: break;
    }
    if (r->kind != ESP_PLAN_COLLECTIVE || op->collective.scope != r->level || op->collective.coll.op != r->coll)
        return 0;
    if (r->summed) return same_sum(s, op, r, shape);
    if (r->n_rounds &&
        (double)op->collective.coll.slot_bytes != esp__template_payload(p, r, shape, &p->codecs[0], r->cut))
        return 0;
    uint64_t n = p->size[r->level], have = r->compressed ? power(p, r->slots) : size[r->cut], want = have;
    if (r->coll == ESP_COLL_BROADCAST && r->compressed) want = power(p, r->slots_after);
    if (r->coll == ESP_COLL_ALLGATHER || (r->coll == ESP_COLL_GATHER && r->compressed)) want = have * n;
    if (r->coll == ESP_COLL_ALLGATHER && !r->compressed) want = size[r->parts];
    return op->collective.coll.count * (op->collective.coll.width > 1 ? op->collective.coll.width : 1) == want;
}

/* Returns the ops by which the planner times an option, or NULL if the codec cannot run it. */
static const esp__path *path_of(side *s, const char *text) {
    const esp__extent whole = {0, 1, 0, ELEMENTS};
    esp__option option;
    assert_int_equal(esp__option_parse(NULL, text, &option), ESP_OK);
    return esp__path_of(&s->problem, &whole, &option, 0);
}

static void compare(tree *t, const esp_ctx *ctx, uint32_t unit, const char *text, side *s) {
    const esp__program *program = &ctx->active.program;
    const esp__path *path = path_of(s, text);
    const esp_plan_codec *codec = path && path->codec != ESP__NO_CODEC ? &s->problem.codecs[0] : NULL;
    esp__shape shape;
    uint32_t at = 0;
    int good = path != NULL;
    esp__shape_make(&s->problem, ELEMENTS, t->matrix ? COLS : 0, codec, &shape);
    for (uint32_t i = 0; i < program->n_ops && good; i++) {
        const esp__op *op = &program->ops[i];
        if (op->unit != unit || op->kind == ESP__OP_COPY) continue;
        esp__plan_op x = at < path->n ? path->ops[at] : (esp__plan_op){0};
        if (!codec) x.round = op->round;
        good &= at < path->n && same(s, program, op, &x, &shape);
        at++;
    }
    good &= path && at == path->n;
    atomic_fetch_add(&t->compared, 1);
    if (!good && atomic_fetch_add(&t->wrong, 1) < 5) fprintf(stderr, "%s: the program and the path differ\n", text);
}

static void body(esp_ctx *ctx, void *user) {
    tree *t = user;
    uint32_t turn = (uint32_t)(t->machines * t->local), id;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < t->n * turn && !s; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%u", i);
        esp_tensor_desc d = {.name = name,
                             .count = i % turn ? 1 : ELEMENTS,
                             .rows = i % turn || !t->matrix ? 0 : ROWS,
                             .cols = i % turn || !t->matrix ? 0 : COLS,
                             .codec = i % turn ? "none" : codec_for(t->text[i / turn], t->codec),
                             .option = i % turn ? "flat.allreduce" : t->text[i / turn]};
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
    side_open(&planner, t, ctx);
    uint32_t first = 0;
    esp__program part = ctx->active.program;
    esp_ctx view = *ctx;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t unit = i * turn;
        while (first < ctx->active.program.n_ops && ctx->active.program.ops[first].unit < unit) first++;
        part.ops = ctx->active.program.ops + first;
        for (part.n_ops = 0; first + part.n_ops < ctx->active.program.n_ops && part.ops[part.n_ops].unit == unit;)
            part.n_ops++;
        view.active.program = part;
        compare(t, &view, unit, t->text[i], &planner);
    }
    esp__arena_free(&planner.arena);
}

static void run_job(tree *t, void (*ranks)(esp_ctx *ctx, void *user)) {
    RUN_RANKS(.size = t->machines * t->local, .per_machine = t->local, .body = ranks, .user = t);
    assert_int_equal(t->compared, t->n);
    assert_int_equal(t->wrong, 0);
    free(t->text);
}

static void run(uint32_t parts, uint32_t devices, int32_t machines, int32_t local, uint32_t want) {
    static tree t;
    memset(&t, 0, sizeof t);
    t.text = calloc(OPTIONS_MAX, sizeof *t.text);
    t.codec = "topk:ratio=0.1";
    t.machines = machines, t.local = local;
    esp__option_each(parts, devices, 0, add_option, &t);
    assert_int_equal(t.n, want);
    run_job(&t, body);
}

TEST(test_all_4341) { run(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 2, 2, 4341); }

TEST(test_unequal_fanouts) {
    run(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 1, 3, 2, 174);
    run(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 2, 2, 3, 174);
}

TEST(test_one_level) {
    run(ESP__TREE_FLAT, 3, 1, 4, 63);
    run(ESP__TREE_FLAT, 3, 4, 1, 63);
}

/* ---- codecs that compress several times in a step ---- */
static void body_refused(esp_ctx *ctx, void *user) {
    tree *t = user;
    char text[2 * ESP__TEXT_MAX];
    uint32_t id, kept = 0;
    side planner;
    esp_tensor_desc d = {.name = "t", .count = ELEMENTS, .rows = t->matrix ? ROWS : 0, .cols = t->matrix ? COLS : 0};
    if (esp_tensor_add(ctx, &d, &id) || esp_start(ctx)) {
        fprintf(stderr, "%s\n", esp_last_error(ctx));
        atomic_fetch_add(&t->wrong, 1);
        return;
    }
    if (!esp_rank(ctx)) side_open(&planner, t, ctx);
    for (uint32_t i = 0; i < t->n; i++) {
        snprintf(text, sizeof text, "espresso-strategy 1\ntensor t %d %s %s\n", (int)ELEMENTS, t->codec, t->text[i]);
        const int taken = esp_strategy_set(ctx, text) == ESP_OK;
        if (esp_rank(ctx)) continue;
        const int planned = path_of(&planner, t->text[i]) != NULL;
        atomic_fetch_add(&t->compared, 1);
        if (planned != taken && atomic_fetch_add(&t->wrong, 1) < 5)
            fprintf(stderr, "%s with %s: planned: %d, executed: %d (%s)\n", t->text[i], t->codec, planned, taken,
                    esp_last_error(ctx));
        if (planned && taken) memmove(t->kept[kept++], t->text[i], sizeof *t->kept);
    }
    if (esp_rank(ctx)) return;
    t->n_kept = kept;
    esp__arena_free(&planner.arena);
}

static void run_rounds(const char *codec, int matrix, int32_t machines, int32_t local, uint32_t wanted) {
    static tree t;
    memset(&t, 0, sizeof t);
    t.text = calloc(OPTIONS_MAX, sizeof *t.text);
    t.kept = calloc(OPTIONS_MAX, sizeof *t.kept);
    t.codec = codec, t.matrix = matrix, t.machines = machines, t.local = local;
    esp__option_each(machines > 1 && local > 1 ? ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL : ESP__TREE_FLAT, 1, true,
                     add_option, &t);
    run_job(&t, body_refused);
    if (wanted)
        assert_int_equal(t.n_kept, wanted);
    else
        assert_int_equal(t.n_kept, t.n);
    t.text = t.kept, t.n = t.n_kept;
    t.compared = t.wrong = 0;
    run_job(&t, body);
}

TEST(test_powersgd) {
    run_rounds("powersgd:rank=4", 1, 2, 2, 12);
    run_rounds("powersgd:rank=4", 1, 3, 2, 12);
    run_rounds("powersgd:rank=4,start=cold", 0, 2, 2, 12);
    run_rounds("powersgd:rank=17", 1, 1, 4, 4);
}

TEST(test_int8_shared) {
    run_rounds("int8:shared=1", 0, 2, 2, 0);
    run_rounds("int8:shared=1", 1, 2, 3, 0);
    run_rounds("int8:shared=1", 0, 4, 1, 0);
}
