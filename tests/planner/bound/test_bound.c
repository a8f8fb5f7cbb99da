/* test_bound.c checks that the planner's lower bound of the step time is never above the optimum of a small problem or
 * above a plan of a larger one, and that it is high enough to be useful. */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "planner/bound/bound.h"
#include "planner/problem/problem.h"
#include "tests/planner/problems.h"
#include "tests/planner/search/exact.h"

/* ---- made-up options ---- */
enum { SMALL_UNITS = 4, SMALL_PATHS = 5, SMALL_OPS = 5 };
/* A few tensors with a few random options. Do not copy it, because it has pointers into itself. */
typedef struct small {
    jmp_buf on_failure;
    esp__arena arena;
    esp_plan_model model;
    esp_plan_tensor tensors[SMALL_UNITS];
    uint64_t compute[SMALL_UNITS], ready[SMALL_UNITS];
    uint32_t keep[SMALL_UNITS];
    esp__problem problem;
    uint32_t n_units;
    esp__extent units[SMALL_UNITS];
    esp__candidates candidate_sets[SMALL_UNITS], *slot;
    esp__path paths[SMALL_UNITS][SMALL_PATHS];
    esp__plan_op ops[SMALL_UNITS][SMALL_PATHS][SMALL_OPS];
} small;

static int by_total(const void *a, const void *b) {
    const esp__path *x = a, *y = b;
    return x->total < y->total ? -1 : x->total > y->total;
}

static void small_path(rng *r, uint32_t unit_time, esp__plan_op *ops, esp__path *path) {
    static const uint8_t lanes[] = {
        1, 2, 4, 8, 5, 10, 12, 3, 1u << ESP__LANE_PROGRESS | 4, 1u << ESP__LANE_PROGRESS | 12};
    static const esp__problem plain;
    path->ops = ops;
    path->n = rng_chance(r, 0.05) ? 0 : 1 + rng_below(r, SMALL_OPS);
    for (uint32_t k = 0; k < path->n; k++) {
        ops[k].lanes = lanes[rng_below(r, 10)];
        ops[k].time = program_time(r, &plain, ops[k].lanes, rng_chance(r, 0.1) ? 0 : 1 + rng_below(r, unit_time));
        program_add(path, &ops[k]);
    }
}

static void small_random(uint64_t seed, small *s) {
    rng r = {seed * 2654435761u + 3};
    uint32_t n = 1 + rng_below(&r, SMALL_UNITS), scale = 1 + rng_below(&r, 30);
    memset(s, 0, sizeof *s);
    s->arena.on_failure = &s->on_failure;
    esp__problem *p = &s->problem;
    p->model = &s->model;
    p->n_levels = 2, p->n_lanes = ESP__LANES, p->core_ops = 1;
    s->model.tensors = s->tensors;
    s->n_units = n;
    for (uint32_t u = 0; u < n; u++) {
        uint32_t t = (uint32_t)p->n_tensors, chunk = u && s->units[u - 1].n == 1 && rng_chance(&r, 0.2);
        esp__extent unit = {chunk ? t - 1 : t, 1, 0, u + 1};
        if (!chunk && t + n - u < SMALL_UNITS && rng_chance(&r, 0.2)) unit.n = 2;
        p->n_tensors = unit.first + unit.n;
        s->units[u] = unit;
        esp__candidates *m = &s->candidate_sets[u];
        m->elements = unit.elements;
        m->n_pieces = unit.n;
        s->tensors[unit.first].elements = unit.n == 1 ? unit.elements : 0;
        m->n = 1 + rng_below(&r, SMALL_PATHS);
        m->paths = s->paths[u];
        for (uint32_t x = 0; x < m->n; x++) small_path(&r, scale, s->ops[u][x], &s->paths[u][x]);
        qsort(s->paths[u], m->n, sizeof *s->paths[u], by_total);
        m->next = s->slot;
        s->slot = m;
    }
    for (uint32_t u = 0; u < n; u++) s->candidate_sets[u].retimed = !esp__unit_whole(p, &s->units[u]);
    uint32_t most = 1 + rng_below(&r, 3 * scale);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        s->compute[t] = rng_chance(&r, 0.1) ? 0 : rng_below(&r, most);
        s->ready[t] = s->compute[t] + (t ? s->ready[t - 1] : 0);
    }
    s->model.n_tensors = (uint32_t)p->n_tensors;
    p->arena = &s->arena, p->compute = s->compute, p->ready = s->ready, p->keep = s->keep;
    p->candidate_sets = &s->slot, p->n_candidate_slots = 1;
}

static esp__loads *loads_of(esp__problem *p, const esp__candidates *candidates) {
    esp__loads *m = esp__loads_new(p, candidates->n);
    m->least = (double)candidates->paths[0].total;
    for (uint32_t x = 0; x < candidates->n; x++) {
        m->least = esp__min2(m->least, (double)candidates->paths[x].total);
        for (uint32_t l = 0; l < ESP__LANES; l++) m->lane[l][x] = (double)candidates->paths[x].load[l];
    }
    return m;
}

/* Computes the bound for tensors, groups and chunks that are neither merged nor split further. */
static esp__bounding *bounding_of(esp__problem *p, const esp__extent *units, uint32_t n) {
    esp__bounding *b = esp__bounding_open(p, n);
    for (uint32_t u = 0; u < n; u++) {
        b->ready[u] = (double)p->ready[units[u].first + units[u].n - 1];
        b->size[u] = 1.0;
        b->loads[u] = loads_of(p, esp__candidates_get(p, &units[u]));
    }
    esp__bounding_run(b);
    return b;
}

TEST(test_small) {
    static small s;
    double gap = 0.0;
    uint32_t n = 0, tight = 0;
    for (uint64_t seed = 0; seed < test_repeats(3000); seed++) {
        uint64_t ready, best;
        small_random(seed, &s);
        const uint64_t bound = esp__bounding_ns(bounding_of(&s.problem, s.units, s.n_units));
        exact_solve(&s.problem, s.units, s.n_units, UINT64_MAX, 1, 0, &ready);
        assert_true(exact_solve(&s.problem, s.units, s.n_units, ready, 0, 0, &best));
        if (bound > best)
            fail_msg("problem %llu: bound %llu, but the optimum is %llu", (unsigned long long)seed,
                     (unsigned long long)bound, (unsigned long long)best);
        assert_true(best <= ready);
        if (best) gap += (double)(best - bound) / (double)best, n++, tight += bound * 100 >= best * 99;
        esp__arena_free(&s.arena);
    }
    assert_true(tight >= n / 2);
    print_message("%u small problems: mean gap %.2f%%, within 1%% in %u\n", n, 100.0 * gap / n, tight);
}

/* ---- random problems of the kind that users give to the planner ---- */
typedef struct opened {
    jmp_buf on_failure;
    esp__arena arena;
    esp__problem problem;
    problem_input in;
} opened;

static int open_random(uint64_t seed, uint32_t max_tensors, int free_compression, opened *o) {
    memset(o, 0, sizeof *o);
    o->arena.on_failure = &o->on_failure;
    problem_random(seed, max_tensors, 0, &o->in);
    if (seed % 3 == 0) o->in.config.flags = ESP_PLAN_NO_COMP;
    return !esp__problem_open(&o->problem, &o->arena, &o->in.model, o->in.codecs, o->in.n_codecs, &o->in.system,
                              &o->in.config, free_compression);
}

typedef struct option_list {
    esp__option options[16384];
    uint32_t n;
} option_list;

static int list_add(void *user, const esp__option *o) {
    option_list *l = user;
    assert_true(l->n < sizeof l->options / sizeof *l->options);
    l->options[l->n++] = *o;
    return 0;
}

static const option_list *list_options(const esp__problem *p) {
    static option_list l;
    l.n = 0;
    esp__option_each(p->hierarchical ? ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL : ESP__TREE_FLAT, p->system.devices, 0,
                     list_add, &l);
    return &l;
}

static const esp__path *random_path(rng *r, esp__problem *p, const esp__extent *u, const option_list *l) {
    const esp__candidates *m = esp__candidates_get(p, u);
    for (int i = 0; i < 20 && !esp__keep_of(p, u->first, u->n) && p->n_codecs && !p->free_compression; i++) {
        const esp__option *o = &l->options[rng_below(r, l->n)];
        const uint32_t codec = esp__option_compresses(o) ? rng_below(r, p->n_codecs) : (uint32_t)ESP__NO_CODEC;
        const esp__path *path = esp__option_permitted(p, o) ? esp__path_of(p, u, o, codec) : NULL;
        if (path) return path;
    }
    return &m->paths[rng_below(r, m->n)];
}

static uint64_t some_plan(rng *r, esp__problem *p, esp__schedule *d) {
    const option_list *l = list_options(p);
    for (uint32_t u = 0; u < d->n_units; u++) d->paths[u] = random_path(r, p, &d->units[u], l);
    uint64_t best = esp__generate(p, d);
    for (uint32_t k = 0; k < 6 * d->n_units; k++) {
        uint32_t u = rng_below(r, d->n_units);
        const esp__candidates *m = esp__candidates_get(p, &d->units[u]);
        const esp__path *was = d->paths[u];
        d->paths[u] = rng_chance(r, 0.5) ? random_path(r, p, &d->units[u], l) : &m->paths[rng_below(r, m->n)];
        uint64_t t = esp__generate(p, d);
        if (t <= best)
            best = t;
        else
            d->paths[u] = was;
    }
    return best;
}

/* No plan takes less time than the lower bound, whatever its chunks, groups and options. Some problems have
 * compression that takes no time. */
TEST(test_plans) {
    static opened o;
    double gap = 0.0;
    uint32_t n = 0;
    for (uint64_t seed = 0; seed < test_repeats(160); seed++) {
        rng r = {seed + 99};
        assert_true(open_random(seed, 12, seed % 4 == 3, &o));
        esp__problem *p = &o.problem;
        uint64_t bound = esp__bound(p);
        for (int k = 0; k < 6; k++) {
            esp__extent units[4 * 12];
            esp__schedule d = {0};
            if (k)
                esp__schedule_set_units(p, &d, units, problem_units(&r, o.in.tensors, (uint32_t)p->n_tensors, units));
            else
                esp__schedule_tensors(p, &d);
            uint64_t t = some_plan(&r, p, &d);
            if (bound > t)
                fail_msg("problem %llu, units %d: bound %llu, but a plan takes %llu", (unsigned long long)seed, k,
                         (unsigned long long)bound, (unsigned long long)t);
            gap += t ? (double)(t - bound) / (double)t : 0.0, n++;
        }
        esp__arena_free(&o.arena);
    }
    print_message("%u plans: on average %.1f%% above the bound\n", n, 100.0 * gap / n);
}

/* With two or three tensors, no combination of options in any order takes less time than the lower bound. */
TEST(test_optimum) {
    static opened o;
    double gap = 0.0;
    uint32_t n = 0, tight = 0;
    for (uint64_t seed = 5000; seed < 5000 + test_repeats(250); seed++) {
        rng r = {seed};
        double combinations = 1.0;
        esp__schedule d = {0};
        uint64_t known, best;
        assert_true(open_random(seed, 3, seed % 4 == 3, &o));
        esp__problem *p = &o.problem;
        esp__schedule_tensors(p, &d);
        const uint64_t bound = esp__bounding_ns(bounding_of(p, d.units, d.n_units));
        for (uint32_t u = 0; u < d.n_units; u++) combinations *= esp__candidates_get(p, &d.units[u])->n;
        known = some_plan(&r, p, &d);
        if (combinations < 20000.0 && exact_solve(p, d.units, d.n_units, known, 0, 300000, &best)) {
            if (bound > best)
                fail_msg("problem %llu: bound %llu, but the optimum is %llu", (unsigned long long)seed,
                         (unsigned long long)bound, (unsigned long long)best);
            if (best) gap += (double)(best - bound) / (double)best, n++, tight += (double)bound >= 0.99 * (double)best;
        }
        esp__arena_free(&o.arena);
    }
    print_message("%u problems: mean gap to the optimum %.2f%%, within 1%% in %u\n", n, 100.0 * gap / n, tight);
    assert_true(n >= test_repeats(120) && tight >= n / 2);
}

TEST(test_rates) {
    static opened o;
    uint32_t n = 0;
    for (uint64_t seed = 1000; seed < 1000 + test_repeats(120); seed++) {
        rng r = {seed};
        assert_true(open_random(seed, 8, 0, &o));
        esp__problem *p = &o.problem;
        const option_list *l = list_options(p);
        esp__rating *w = esp__rating_new(p);
        const uint64_t all = (uint64_t)w->elements, cols = o.in.tensors[0].cols;
        esp__rating_options(w, 0);
        for (int k = 0; k < 12; k++) {
            uint64_t e = k < 3 ? (uint64_t)k + 1 : 1 + (rng_next(&r) >> rng_below(&r, 60)) % all;
            esp__extent unit = {0, 1, 0, k == 3 ? all : e < all ? e : all};
            if (cols && k % 2 && unit.elements >= cols) unit.elements -= unit.elements % cols;
            for (uint32_t x = rng_below(&r, 7); x < l->n; x += 1 + rng_below(&r, 7)) {
                const esp__option *option = &l->options[x];
                const uint32_t codec = esp__option_compresses(option) && p->n_codecs ? rng_below(&r, p->n_codecs)
                                                                                     : (uint32_t)ESP__NO_CODEC;
                const esp__path *path = NULL;
                uint32_t i = 0;
                if (esp__option_permitted(p, option)) path = esp__path_of(p, &unit, option, codec);
                if (!path) continue;
                n++;
                assert_true(w->least <= (double)path->total + 1e-6);
                for (; i < w->n; i++) {
                    int above = 1;
                    for (uint32_t lane = 0; lane < ESP__LANES; lane++)
                        above &= w->paths[i].each[lane] * (double)unit.elements <= (double)path->load[lane] + 1e-6;
                    if (above) break;
                }
                if (i == w->n)
                    fail_msg("problem %llu: option %u of %llu elements is faster than every rate",
                             (unsigned long long)seed, x, (unsigned long long)unit.elements);
            }
        }
        esp__arena_free(&o.arena);
    }
    assert_true(n > 1000);
}
