/* test_trials.c checks a fast way to compute the step time of a changed schedule (incremental.c) against a full
 * simulation. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "planner/simulate/schedule.h"
#include "tests/planner/reference.h"
#include "tests/planner/problems.h"

enum { PROGRAMS = 3000, TRIALS = 6, SPARE = 8 };

typedef struct spares {
    esp__path paths[SPARE];
    esp__plan_op ops[SPARE][PROGRAM_OPS];
} spares;

static void spares_random(rng *r, const esp__problem *p, spares *s) {
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < SPARE; i++) {
        esp__path *path = &s->paths[i];
        path->ops = s->ops[i];
        path->codec = ESP__NO_CODEC;
        path->n = rng_below(r, PROGRAM_OPS + 1);
        for (uint32_t k = 0; k < path->n; k++) {
            esp__plan_op *op = &s->ops[i][k];
            op->lanes = program_lanes(r, p, 0);
            op->time = program_time(r, p, op->lanes, program_ns(r, p->core_ops ? 0.0 : 0.1));
            op->kind = ESP_PLAN_COMPRESS;
            program_add(path, op);
        }
    }
}

/* ---- times of a changed schedule in the order of ops that it had before (incremental.c) ---- */
/* Returns the least time from the start of op i to the start of op j if both belong to one tensor or use the same link
 * or core, and -1 otherwise. */
static int64_t waits(const ref_program *ref, const esp__schedule *d, int i, int j) {
    const ref_op *a = &ref->ops[i], *b = &ref->ops[j];
    int64_t longest = -1;
    for (uint32_t l = 0; l < ESP__LANES; l++)
        if ((a->lanes & b->lanes) >> l & 1u && (int64_t)ref_kept(a, l) > longest) longest = (int64_t)ref_kept(a, l);
    if (!a->backward && !b->backward && a->unit == b->unit) return (int64_t)a->ns;
    if (a->backward && !b->backward && d->units[b->unit].first + d->units[b->unit].n - 1 == a->unit)
        return (int64_t)a->ns;
    return longest;
}

/* Checks the end of each op, and its tail: the least time from its start to the step's end. */
static void check_laid(const problem_program *g, const esp__incremental *k) {
    enum { ROOM = PROGRAM_TENSORS + 2 * PROGRAM_UNITS * PROGRAM_OPS };
    ref_program *ref = ref_open(&g->problem, k->d);
    uint64_t tail[ROOM];
    int number[ROOM];
    uint32_t op[2 * PROGRAM_UNITS] = {0}, n = k->d->n_sequence;
    int backward = 0;
    assert_int_equal(k->d->makespan, ref_sequence(ref, k->d->sequence, n));
    assert_int_equal(k->n, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = k->d->sequence[i];
        number[i] = u == ESP__NEXT_BACKWARD ? backward++ : ref->first[u] + (int)op[u]++;
        assert_int_equal(k->end[i], ref->ops[number[i]].end);
    }
    for (uint32_t i = n; i-- > 0;) {
        tail[i] = ref->ops[number[i]].ns;
        for (uint32_t j = i + 1; j < n; j++) {
            const int64_t wait = waits(ref, k->d, number[i], number[j]);
            if (wait >= 0 && (uint64_t)wait + tail[j] > tail[i]) tail[i] = (uint64_t)wait + tail[j];
        }
        assert_int_equal(k->tail[i], tail[i]);
        for (uint32_t lane = 0; lane < ESP__LANES; lane++) {
            uint32_t j = i;
            while (j < n && !(ref->ops[number[j]].lanes >> lane & 1u)) j++;
            assert_int_equal(k->next[i].lane[lane], j < n ? tail[j] : 0);
        }
    }
    ref_close(ref);
}

/* Makes up a change: a tensor, chunk or group gets other ops, is split in two, or is merged with the next one. Sets
 * *gone to the first tensor, chunk or group that is replaced, and returns the number of them. */
static uint32_t swap_random(rng *r, const problem_program *g, const esp__incremental *k, const spares *s, esp__swap *w,
                            uint32_t *gone) {
    const esp__schedule *d = k->d;
    uint32_t kind = rng_below(r, 3), u = rng_below(r, d->n_units), n_gone = 1;
    const esp__extent *x = &d->units[u];
    uint64_t whole = g->tensors[x->first].elements;
    memset(w, 0, sizeof *w);
    w->n = 1;
    w->chains[0].unit = *x;
    if (kind == 1 && x->elements > 1 && x->n == 1) {
        w->n = 2;
        w->chains[1].unit = *x;
        w->chains[0].unit.elements = x->elements / 2;
        w->chains[1].unit.begin += x->elements / 2;
        w->chains[1].unit.elements -= x->elements / 2;
    } else if (kind == 2 && u + 1 < d->n_units && (x->n > 1 || x->elements == whole) &&
               (x[1].n > 1 || x[1].elements == g->tensors[x[1].first].elements)) {
        n_gone = 2;
        w->chains[0].unit.n += x[1].n;
        w->chains[0].unit.elements += x[1].elements;
    }
    for (uint32_t c = 0; c < w->n; c++) {
        esp__chain *chain = &w->chains[c];
        chain->path = &s->paths[rng_below(r, SPARE)];
        chain->after = k->backward[chain->unit.first + chain->unit.n - 1];
    }
    *gone = u;
    return n_gone;
}

/* A trial changes nothing, and never predicts more than the real step time. After a real change, times equal the
 * reference simulation's. */
TEST(test_incremental) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) {
        static esp__swap w;
        problem_program g;
        spares s;
        rng r = {seed + 77};
        program_random(seed, (double)(seed % 3) * 0.2, &g);
        spares_random(&r, &g.problem, &s);
        esp__generate(&g.problem, &g.schedule);
        esp__incremental *k = esp__incremental_open(&g.problem, &g.schedule);
        check_laid(&g, k);
        for (int trial = 0; trial < TRIALS; trial++) {
            uint32_t gone, n_gone = swap_random(&r, &g, k, &s, &w, &gone);
            esp__incremental_remove(k, &w, gone, n_gone);
            uint64_t without = esp__incremental_without(k, &w, UINT64_MAX);
            esp__incremental_restore(k, &w);
            check_laid(&g, k);
            esp__incremental_remove(k, &w, gone, n_gone);
            uint64_t said = esp__incremental_try(k, &w, UINT64_MAX);
            assert_int_equal(esp__incremental_try(k, &w, said), UINT64_MAX);
            assert_int_equal(esp__incremental_try(k, &w, said + 1), said);
            esp__incremental_restore(k, &w);
            check_laid(&g, k);
            uint64_t before = k->d->makespan;
            esp__incremental_set(k, &w);
            check_laid(&g, k);
            assert_true(said <= k->d->makespan);
            assert_true(k->d->makespan <= (said > before ? said : before));
            assert_true(without <= k->d->makespan);
        }
        program_close(&g);
    }
}

TEST(test_incremental_take) {
    for (uint64_t seed = 0; seed < test_repeats(PROGRAMS); seed++) {
        static esp__swap w;
        problem_program g;
        spares s;
        rng r = {seed + 78};
        program_random(seed, 0.1, &g);
        spares_random(&r, &g.problem, &s);
        esp__generate(&g.problem, &g.schedule);
        esp__incremental *k = esp__incremental_open(&g.problem, &g.schedule);
        for (int trial = 0; trial < TRIALS; trial++) {
            uint64_t before = k->d->makespan, limit = before + rng_below(&r, 4) - 1;
            uint32_t units = k->d->n_units, gone, n_gone = swap_random(&r, &g, k, &s, &w, &gone);
            esp__incremental_remove(k, &w, gone, n_gone);
            uint64_t said = esp__incremental_try(k, &w, limit);
            esp__incremental_restore(k, &w);
            if (said == UINT64_MAX) continue;
            int made = esp__incremental_take(k, &w, limit);
            check_laid(&g, k);
            assert_int_equal(k->d->n_units, made ? units - n_gone + w.n : units);
            if (made)
                assert_true(k->d->makespan < limit);
            else
                assert_int_equal(k->d->makespan, before);
        }
        program_close(&g);
    }
}
