/* test_candidates.c checks the candidates, the options (ways to compress and send a tensor) among which the planner's
 * search chooses. For every other option, some candidate must be at least as good. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "planner/problem/problem.h"
#include "tests/planner/search/paper.h"
#include "tests/planner/problems.h"

enum { CPU = 1u << ESP_ON_CPU, GPU = 1u << ESP_ON_GPU };
enum { BOTH_PARTS = ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL };

typedef struct opened_problem {
    jmp_buf on_failure;
    esp__arena arena;
    esp__problem problem;
} opened_problem;

static esp_status open_problem(opened_problem *g, const esp_plan_model *m, const esp_plan_codec *codecs, uint32_t n,
                               const esp_plan_system *s, const esp_plan_config *config, int free_compression) {
    memset(&g->arena, 0, sizeof g->arena);
    g->arena.on_failure = &g->on_failure;
    return esp__problem_open(&g->problem, &g->arena, m, codecs, n, s, config, free_compression);
}

static void close_problem(opened_problem *g) { esp__arena_free(&g->arena); }

static esp_status open_paper(opened_problem *g, uint32_t devices, uint32_t machines, const esp_plan_config *config) {
    static paper_input paper; /* static, because the problem keeps pointers into it */
    static const esp_plan_tensor tensors[] = {{"embed.weight", 100000, 1000, .keep = NULL},
                                              {"head.weight", 5000, 1000, .keep = NULL}};
    static const esp_plan_model model = {.n_tensors = 2, .name = "two", .tensors = tensors};
    paper_open(&paper, 0, machines);
    paper.system.devices = devices;
    return open_problem(g, &model, paper.codecs, 1, &paper.system, config, 0);
}

static uint32_t paper_count(uint32_t devices, uint32_t machines, const esp_plan_config *config) {
    opened_problem g;
    if (open_paper(&g, devices, machines, config)) fail_msg("%s", esp_last_error(NULL));
    uint32_t n = g.problem.trees[0]->n_options;
    close_problem(&g);
    return n;
}

/* ---- how many candidates there are, and which ones the user's constraints leave ---- */
TEST(test_counts) {
    assert_int_equal(paper_count(GPU, 8, NULL), 174);
    assert_int_equal(paper_count(CPU, 8, NULL), 174);
    assert_int_equal(paper_count(CPU | GPU, 8, NULL), 4341);
    assert_int_equal(paper_count(GPU, 1, NULL), 12);
    assert_int_equal(paper_count(CPU | GPU, 1, NULL), 63);
    esp_plan_config raw = {.flags = ESP_PLAN_NO_COMP};
    assert_int_equal(paper_count(CPU | GPU, 8, &raw), 9);
    assert_int_equal(paper_count(CPU | GPU, 1, &raw), 3);
}

typedef struct tally {
    uint32_t n, max_comp;
    const char *with, *without;
} tally;
static int tally_option(void *user, const esp__option *o) {
    tally *t = user;
    char text[ESP__TEXT_MAX];
    uint32_t comps = 0;
    esp__option_print(o, text, sizeof text);
    for (uint32_t i = 0; i < o->n; i++) comps += o->steps[i].kind == ESP__STAGE_COMP;
    t->n += comps <= t->max_comp && (!t->with || strstr(text, t->with)) && (!t->without || !strstr(text, t->without));
    return 0;
}
static uint32_t tree_count(uint32_t devices, bool extended, uint32_t max_comp, const char *with, const char *without) {
    tally t = {0, max_comp, with, without};
    esp__option_each(BOTH_PARTS, devices, extended, tally_option, &t);
    return t.n;
}

TEST(test_constraints) {
    const char *no_cpu[] = {"@cpu"}, *no_comp_cpu[] = {"comp@cpu"}, *gather[] = {"inter.gather"},
               *all[] = {"flat.*gather"};
    const char *two[] = {"flat.allreduce", "intra.reduce > inter.allreduce"};
    esp_plan_config c;
    memset(&c, 0, sizeof c);
    c.forbid = no_cpu, c.n_forbid = 1;
    assert_int_equal(paper_count(CPU | GPU, 8, &c), 174);
    /* "comp@cpu" also forbids decompression on the CPU, because "decomp@cpu" contains this text. */
    c.forbid = no_comp_cpu;
    assert_int_equal(paper_count(CPU | GPU, 8, &c), tree_count(3, 0, 9, NULL, "comp@cpu"));
    c.n_forbid = 0, c.only = gather, c.n_only = 1;
    assert_int_equal(paper_count(CPU | GPU, 8, &c), tree_count(3, 0, 9, "inter.gather", NULL));
    c.only = two, c.n_only = 2;
    assert_int_equal(paper_count(GPU, 8, &c), 3);
    c.only = all, c.n_only = 1;
    assert_true(paper_count(GPU, 8, &c) > 3);
    c.n_only = 0;
    for (uint32_t max = 1; max <= 4; max++) {
        c.max_comp = max;
        assert_int_equal(paper_count(CPU | GPU, 8, &c), tree_count(3, 0, max, NULL, NULL));
    }
    c.max_comp = 0, c.devices = GPU;
    assert_int_equal(paper_count(CPU | GPU, 8, &c), 174);
}

TEST(test_reducible) {
    opened_problem g;
    paper_input in;
    esp_plan_tensor t = {"t", 1000, 0, .keep = NULL};
    esp_plan_model model = {.n_tensors = 1, .tensors = &t};
    paper_open(&in, 0, 8);
    in.codecs[0].caps = ESP_CODEC_REDUCIBLE;
    assert_int_equal(open_problem(&g, &model, in.codecs, 1, &in.system, NULL, 0), ESP_OK);
    assert_int_equal(g.problem.trees[0]->n_options, tree_count(3, 1, 9, NULL, NULL));
    assert_true(g.problem.trees[0]->n_options > 4341);
    close_problem(&g);
}

static uint32_t keep_count(const char *pattern, uint32_t tensor) {
    opened_problem g;
    esp_plan_config c;
    memset(&c, 0, sizeof c);
    c.keep = &pattern, c.n_keep = 1;
    if (open_paper(&g, CPU | GPU, 8, &c)) fail_msg("%s", esp_last_error(NULL));
    uint32_t n = g.problem.trees[g.problem.keep[tensor]]->n_options;
    close_problem(&g);
    return n;
}

TEST(test_keep) {
    assert_int_equal(keep_count("embed.*=fp32", 0), 9);
    assert_int_equal(keep_count("embed.*=fp32", 1), 4341);
    assert_int_equal(keep_count("*=comp@gpu > flat.allgather > decomp@gpu", 0), 1);
    assert_int_equal(keep_count("*=flat.allreduce", 1), 1);
    opened_problem g;
    paper_input in;
    esp_plan_tensor t[] = {{"a", 1 << 20, 0, .keep = NULL}, {"b", 1 << 20, 0, .keep = "randomk:ratio=0.01"}};
    esp_plan_model model = {.n_tensors = 2, .tensors = t};
    paper_open(&in, 0, 8);
    assert_int_equal(open_problem(&g, &model, in.codecs, 2, &in.system, NULL, 0), ESP_OK);
    esp__extent u = {1, 1, 0, 1 << 20};
    const esp__candidates *candidates = esp__candidates_get(&g.problem, &u);
    for (uint32_t i = 0; i < candidates->n; i++)
        assert_true(candidates->paths[i].codec == 1 || candidates->paths[i].codec == ESP__NO_CODEC);
    close_problem(&g);
}

static void refused(const esp_plan_config *c, uint32_t devices, uint32_t machines, const char *word) {
    opened_problem g;
    assert_int_equal(open_paper(&g, devices, machines, c), ESP_E_ARG);
    if (!strstr(esp_last_error(NULL), word)) fail_msg("no '%s' in: %s", word, esp_last_error(NULL));
    close_problem(&g);
}

TEST(test_nothing_left) {
    const char *everything[] = {"*"}, *wrong[] = {"comp@tpu"}, *hierarchical[] = {"inter."};
    const char *keep_other[] = {"*=topk"}, *keep_bad[] = {"embed"}, *keep_text[] = {"embed*=intra.allreduce > x"};
    const char *keep_inter[] = {"*=intra.reduce_scatter > inter.allreduce > intra.allgather"};
    esp_plan_config c;
    memset(&c, 0, sizeof c);
    c.forbid = everything, c.n_forbid = 1;
    refused(&c, GPU, 8, "forbid");
    c.n_forbid = 0, c.only = wrong, c.n_only = 1;
    refused(&c, GPU, 8, "only");
    c.only = hierarchical;
    refused(&c, GPU, 1, "only flat options");
    c.n_only = 0, c.devices = CPU;
    refused(&c, GPU, 8, "devices");
    c.devices = 0, c.keep = keep_other, c.n_keep = 1;
    refused(&c, GPU, 8, "topk");
    c.keep = keep_bad;
    refused(&c, GPU, 8, "GLOB=fp32");
    c.keep = keep_text;
    refused(&c, GPU, 8, "embed.weight");
    c.keep = keep_inter;
    refused(&c, GPU, 1, "only flat options");
}

/* ---- brute force ---- */
static int no_more_load(const esp__path *a, const esp__path *b) {
    int less = a->total <= b->total;
    for (uint32_t l = 0; l < ESP__LANES; l++) less &= a->load[l] <= b->load[l];
    return less;
}

typedef struct sweep {
    esp__problem *p;
    const esp__extent *u;
    const esp__candidates *candidates;
    uint32_t codec, n, left_out;
} sweep;

/* Counts the option in s->left_out if every candidate takes more time or loads some link or core more. */
static int sweep_option(void *user, const esp__option *o) {
    sweep *s = user;
    uint32_t codec = esp__option_compresses(o) ? s->codec : (uint32_t)ESP__NO_CODEC, by = 0;
    esp__checkpoint mark = esp__arena_checkpoint(s->p->arena);
    const esp__path *path = esp__path_of(s->p, s->u, o, codec);
    if (!path) return 0;
    s->n++;
    while (by < s->candidates->n && !no_more_load(&s->candidates->paths[by], path)) by++;
    if (by == s->candidates->n) s->left_out++;
    esp__arena_rewind(s->p->arena, mark);
    return 0;
}

static void check_candidates(esp__problem *p, const esp__extent *u, uint32_t devices, const char *what, uint64_t seed) {
    const esp__candidates *candidates = esp__candidates_get(p, u);
    assert_true(candidates->n > 0);
    for (uint32_t i = 0; i < candidates->n; i++) {
        const esp__path *a = &candidates->paths[i];
        if (i) assert_true(a[-1].total <= a->total);
        for (uint32_t k = 0; k < candidates->n; k++)
            if (k != i && no_more_load(&candidates->paths[k], a))
                fail_msg("%s %llu: path %u makes path %u of %u candidates needless", what, (unsigned long long)seed, k,
                         i, candidates->n);
    }
    sweep s = {p, u, candidates, 0, 0, 0};
    bool extended = false;
    for (uint32_t c = 0; c < p->n_codecs; c++) extended |= (p->codecs[c].caps & ESP_CODEC_REDUCIBLE) != 0;
    for (s.codec = 0; s.codec < p->n_codecs; s.codec++)
        esp__option_each(p->hierarchical ? BOTH_PARTS : ESP__TREE_FLAT, devices, extended, sweep_option, &s);
    if (s.left_out)
        fail_msg("%s %llu: %u of %u options are left out of %u candidates without one that is as good", what,
                 (unsigned long long)seed, s.left_out, s.n, candidates->n);
}

TEST(test_paper_candidates) {
    enum { SIZES = 6 };
    static const esp_plan_tensor t[SIZES] = {{"a", 1, 0, .keep = NULL},       {"b", 64, 0, .keep = NULL},
                                             {"c", 4096, 0, .keep = NULL},    {"d", 262144, 0, .keep = NULL},
                                             {"e", 1000003, 0, .keep = NULL}, {"f", 38597376, 0, .keep = NULL}};
    static const esp_plan_model model = {.n_tensors = SIZES, .tensors = t};
    static paper_input in;
    for (uint32_t c = 0; c < PAPER_CODECS; c++)
        for (uint32_t devices = GPU; devices <= (CPU | GPU); devices++) {
            opened_problem g;
            paper_open(&in, c & 1, 8);
            in.system.devices = devices;
            if (open_problem(&g, &model, &in.codecs[c], 1, &in.system, NULL, 0)) fail_msg("%s", esp_last_error(NULL));
            for (uint32_t i = 0; i < SIZES; i++) {
                esp__extent u = {i, 1, 0, t[i].elements};
                if (devices != (CPU | GPU) || i % 3 == 2)
                    check_candidates(&g.problem, &u, devices, "size", t[i].elements);
            }
            close_problem(&g);
        }
}

TEST(test_random_candidates) {
    static problem_input in;
    for (uint64_t seed = 0; seed < test_repeats(150); seed++) {
        opened_problem g;
        problem_random(seed, 2, seed % 8 ? 1u << seed % 2 : 3, &in);
        if (open_problem(&g, &in.model, in.codecs, in.n_codecs, &in.system, &in.config, 0))
            fail_msg("%s", esp_last_error(NULL));
        esp__extent u = {0, 1, 0, in.tensors[0].elements};
        check_candidates(&g.problem, &u, in.system.devices, "seed", seed);
        close_problem(&g);
    }
}

/* ---- ops of an option ---- */
/* An option that is read back from its text takes the same time, for whole tensors, chunks and groups. */
TEST(test_paths) {
    static problem_input in;
    for (uint64_t seed = 0; seed < test_repeats(100); seed++) {
        opened_problem g;
        problem_random(seed, 2, 0, &in);
        if (open_problem(&g, &in.model, in.codecs, in.n_codecs, &in.system, &in.config, 0))
            fail_msg("%s", esp_last_error(NULL));
        esp__extent u = {0, 1, 0, in.tensors[0].elements};
        if (seed % 3 == 1) u.elements = (u.elements + 1) / 2;
        if (seed % 3 == 2 && in.model.n_tensors == 2) u.n = 2, u.elements += in.tensors[1].elements;
        const esp__candidates *candidates = esp__candidates_get(&g.problem, &u);
        assert_true(candidates->n > 0);
        for (uint32_t i = 0; i < candidates->n; i++) {
            const esp__path *a = &candidates->paths[i];
            char text[ESP__TEXT_MAX];
            uint64_t load[ESP__LANES] = {0}, total = 0;
            uint32_t steps = 0, n_rounds = a->codec == ESP__NO_CODEC ? 1 : esp__rounds_of(&g.problem.codecs[a->codec]);
            esp__chain_step chain[ESP__CHAIN_MAX];
            const uint32_t n = esp__option_chain(a->option, n_rounds - a->rounds, n_rounds, chain);
            esp__option_print(a->option, text, sizeof text);
            const esp__path *b = esp__path_make(&g.problem, &u, text, a->codec);
            assert_non_null(b);
            assert_int_equal(a->n, b->n);
            assert_int_equal(a->volume, b->volume);
            assert_int_equal(a->memory, b->memory);
            for (uint32_t k = 0; k < a->n; k++) {
                const esp__plan_op *op = &a->ops[k];
                assert_int_equal(op->time.ns, b->ops[k].time.ns);
                assert_int_equal(op->lanes, b->ops[k].lanes);
                total += op->time.ns;
                for (uint32_t l = 0; l < ESP__LANES; l++) load[l] += op->lanes >> l & 1u ? esp__kept(&op->time, l) : 0;
                if (op->kind == ESP_PLAN_COPY) {
                    const esp__step *s = &a->option->steps[op->step];
                    assert_true(s->kind == (op->reverse ? ESP__STAGE_DECOMP : ESP__STAGE_COMP) &&
                                s->device == ESP_ON_CPU);
                } else if (op->kind != ESP_PLAN_PACK) {
                    assert_true(steps < n && op->step == chain[steps].step && op->round == chain[steps].round);
                    steps++;
                } else {
                    assert_int_equal(u.n, 2);
                }
            }
            assert_int_equal(steps, n);
            assert_int_equal(total, a->total);
            for (uint32_t l = 0; l < ESP__LANES; l++) assert_int_equal(load[l], a->load[l]);
        }
        close_problem(&g);
    }
}

/* Memory given back is used again, and is zero. */
TEST(test_arena) {
    enum { BYTES = 3 << 20 };
    esp__arena arena = {0};
    jmp_buf on_failure;
    arena.on_failure = &on_failure;
    if (setjmp(on_failure)) abort();
    esp__arena_get(&arena, 100);
    const esp__checkpoint mark = esp__arena_checkpoint(&arena);
    void *before = NULL;
    for (int round = 0; round < 3; round++) {
        uint8_t *p = esp__arena_get(&arena, BYTES);
        for (uint32_t i = 0; i < BYTES; i++)
            if (p[i]) fail_msg("byte %u is %u", i, p[i]);
        memset(p, 0xff, BYTES);
        assert_true(!before || p == before);
        before = p;
        esp__arena_rewind(&arena, mark);
    }
    esp__arena_free(&arena);
}

TEST(test_free_compression) {
    static problem_input in;
    for (uint64_t seed = 0; seed < test_repeats(50); seed++) {
        static const char *const nothing[] = {"no such option"};
        opened_problem g, free_of_cost, every;
        problem_random(seed, 1, 0, &in);
        if (open_problem(&g, &in.model, in.codecs, in.n_codecs, &in.system, &in.config, 0))
            fail_msg("%s", esp_last_error(NULL));
        if (open_problem(&free_of_cost, &in.model, in.codecs, in.n_codecs, &in.system, &in.config, 1))
            fail_msg("%s", esp_last_error(NULL));
        esp__extent u = {0, 1, 0, in.tensors[0].elements};
        const esp__candidates *paid = esp__candidates_get(&g.problem, &u),
                              *gratis = esp__candidates_get(&free_of_cost.problem, &u);
        for (uint32_t i = 0; i < gratis->n; i++)
            for (uint32_t k = 0; k < gratis->paths[i].n; k++)
                assert_int_equal(gratis->paths[i].ops[k].kind, ESP_PLAN_COLLECTIVE);
        for (uint32_t i = 0; i < paid->n; i++) {
            uint32_t by = 0;
            while (by < gratis->n && !no_more_load(&gratis->paths[by], &paid->paths[i])) by++;
            assert_true(by < gratis->n);
        }
        if (!in.config.n_forbid) { /* with patterns, options that differ in devices only are all looked at */
            in.config.forbid = nothing, in.config.n_forbid = 1;
            if (open_problem(&every, &in.model, in.codecs, in.n_codecs, &in.system, &in.config, 1))
                fail_msg("%s", esp_last_error(NULL));
            const esp__candidates *all = esp__candidates_get(&every.problem, &u);
            assert_int_equal(gratis->n, all->n);
            for (uint32_t i = 0; i < all->n; i++) assert_int_equal(gratis->paths[i].total, all->paths[i].total);
            close_problem(&every);
        }
        close_problem(&g);
        close_problem(&free_of_cost);
    }
}
