/* test_bound.c: the certificate never claims too much: on small problems it is held against the optimum over all paths and
 * all orders, and on larger ones against plans. And it claims enough to be of use. */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "espresso.h"
#include "problems.h"
#include "exact.h"

/* ---- made-up menus ---------------------------------------------------------------------------------------------------- */
enum { SMALL_UNITS = 4, SMALL_PATHS = 5, SMALL_OPS = 5 };
/* A few units with a few paths each, of any ops; points into itself. */
typedef struct small {
    jmp_buf on_failure;
    esp__pool pool;
    esp_plan_model model;
    uint64_t compute[SMALL_UNITS], ready[SMALL_UNITS];
    uint32_t keep[SMALL_UNITS];
    esp__problem problem;
    uint32_t n_units;
    esp__unit units[SMALL_UNITS];
    esp__menu menus[SMALL_UNITS], *slot;
    esp__path paths[SMALL_UNITS][SMALL_PATHS];
    esp__plan_op ops[SMALL_UNITS][SMALL_PATHS][SMALL_OPS];
} small;

static int by_total(const void *a, const void *b) {
    const esp__path *x = a, *y = b;
    return x->total < y->total ? -1 : x->total > y->total;
}

static void small_path(rng *r, uint32_t unit_time, esp__plan_op *ops, esp__path *path) {
    static const uint8_t lanes[] = {1, 2, 4, 8, 4, 8, 12, 3};
    path->ops = ops;
    path->n = rng_chance(r, 0.05) ? 0 : 1 + rng_below(r, SMALL_OPS);
    for (uint32_t k = 0; k < path->n; k++) {
        ops[k].lanes = lanes[rng_below(r, 8)];
        ops[k].ns = rng_chance(r, 0.1) ? 0 : 1 + rng_below(r, unit_time);
        path->total += ops[k].ns;
        for (uint32_t l = 0; l < ESP__LANES; l++) path->load[l] += ops[k].lanes >> l & 1u ? ops[k].ns : 0;
    }
}

static void small_random(uint64_t seed, small *s) {
    rng r = {seed * 2654435761u + 3};
    uint32_t n = 1 + rng_below(&r, SMALL_UNITS), scale = 1 + rng_below(&r, 30);
    memset(s, 0, sizeof *s);
    s->pool.on_failure = &s->on_failure;
    esp__problem *p = &s->problem;
    s->n_units = n;
    for (uint32_t u = 0; u < n; u++) { /* some share a tensor, as chunks do; some are groups of two */
        uint32_t t = (uint32_t)p->n_tensors, chunk = u && s->units[u - 1].n == 1 && rng_chance(&r, 0.2);
        esp__unit unit = {chunk ? t - 1 : t, 1, 0, u + 1};
        if (!chunk && t + n - u < SMALL_UNITS && rng_chance(&r, 0.2)) unit.n = 2;
        p->n_tensors = unit.first + unit.n;
        s->units[u] = unit;
        esp__menu *m = &s->menus[u];
        m->elements = unit.elements;
        m->n_pieces = unit.n;
        m->n = 1 + rng_below(&r, SMALL_PATHS);
        m->paths = s->paths[u];
        for (uint32_t x = 0; x < m->n; x++) small_path(&r, scale, s->ops[u][x], &s->paths[u][x]);
        qsort(s->paths[u], m->n, sizeof *s->paths[u], by_total);
        m->next = s->slot;
        s->slot = m;
    }
    uint32_t most = 1 + rng_below(&r, 3 * scale);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        s->compute[t] = rng_chance(&r, 0.1) ? 0 : rng_below(&r, most);
        s->ready[t] = s->compute[t] + (t ? s->ready[t - 1] : 0);
    }
    s->model.n_tensors = (uint32_t)p->n_tensors;
    p->pool = &s->pool, p->model = &s->model, p->compute = s->compute, p->ready = s->ready, p->keep = s->keep;
    p->menus = &s->slot, p->n_menu_slots = 1;
}

static void test_small(void **state) {
    static small s;
    double gap = 0.0;
    uint32_t n = 0, tight = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        esp__bound b;
        uint64_t ready, best;
        small_random(seed, &s);
        esp__bound_units(&s.problem, s.units, s.n_units, &b);
        exact_solve(&s.problem, s.units, s.n_units, UINT64_MAX, 1, 0, &ready);
        assert_true(exact_solve(&s.problem, s.units, s.n_units, ready, 0, 0, &best));
        if (b.ns > best)
            fail_msg("problem %llu: bound %llu, but the optimum is %llu", (unsigned long long)seed,
                     (unsigned long long)b.ns, (unsigned long long)best);
        assert_true(best <= ready);
        if (best) gap += (double)(best - b.ns) / (double)best, n++, tight += b.ns * 100 >= best * 99;
        esp__pool_free(&s.pool);
    }
    print_message("%u small problems: mean gap %.2f%%, within 1%% in %u\n", n, 100.0 * gap / n, tight);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
