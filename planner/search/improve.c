/* improve.c: local search over options and orders. It tries every other option for one tensor or group after the other,
 * while all other ops keep their order. Then it exchanges ops that run one after the other on a link or core. */
#include "planner/simulate/schedule.h"
#include "planner/search/search.h"

ESP__FN void esp__swap_path(const esp__incremental *k, esp__swap *w, uint32_t u, const esp__path *path) {
    w->n = 1;
    w->chains[0].unit = k->d->units[u];
    w->chains[0].path = path;
    w->chains[0].after = w->from - 1;
}

/* Tries all candidate options for one tensor or group, and takes the best if it makes the step shorter. */
static int esp__improve_unit(esp__incremental *k, uint32_t u) {
    esp__schedule *d = k->d;
    const esp__candidates *candidates = esp__candidates_get(k->p, &d->units[u]);
    esp__swap *w = &k->swaps[0], *best_swap = &k->swaps[1];
    uint64_t before = d->makespan, best = before, without;
    if (!esp__incremental_critical(k, u, 1)) return 0;
    esp__incremental_remove(k, w, u, 1);
    without = esp__incremental_without(k, w, before);
    for (uint32_t i = 0; i < candidates->n && without < before; i++) {
        if (!esp__path_open(k->p, &candidates->paths[i])) continue;
        esp__swap_path(k, w, u, &candidates->paths[i]);
        if (!esp__incremental_allows(k, w)) continue;
        uint64_t t = esp__incremental_try(k, w, best);
        if (t < without) t = without;
        if (t >= best) continue;
        best = t;
        *best_swap = *w;
    }
    esp__incremental_restore(k, w);
    return best < before && esp__incremental_take(k, best_swap);
}

static int esp__ranked_before(const void *a, const void *b) {
    const esp__ranked *x = a, *y = b;
    if (x->elements != y->elements) return x->elements > y->elements ? -1 : 1;
    return x->unit > y->unit ? -1 : 1;
}

/* Returns the tensors and groups in the order of Algorithm 1 of the Espresso paper: the largest first; among equals,
 * the one that backward finishes last. The result is valid until the next call. */
ESP__FN esp__ranked *esp__ranking(esp__problem *p, const esp__schedule *d) {
    if (d->n_units > p->room_ranked) {
        p->room_ranked = d->n_units + d->n_units / 2;
        p->ranked = esp__arena_get(p->arena, p->room_ranked * sizeof *p->ranked);
    }
    esp__ranked *r = p->ranked;
    for (uint32_t u = 0; u < d->n_units; u++) {
        r[u].elements = d->units[u].elements;
        r[u].unit = u;
    }
    qsort(r, d->n_units, sizeof *r, esp__ranked_before);
    return r;
}

/* Makes passes over all tensors and groups until a pass improves none. */
ESP__FN void esp__improve_passes(esp__incremental *k, const esp__ranked *ranking) {
    for (int better = 1; better && !esp__out_of_time(k->p);) {
        better = 0;
        for (uint32_t i = 0; i < k->d->n_units && !esp__out_of_time(k->p); i++)
            better |= esp__improve_unit(k, ranking[i].unit);
    }
}

/* ---- orders ------------------------------------------------------------------------------------------------------ */
static void esp__order_move(uint32_t *sequence, uint32_t from, uint32_t to) {
    const uint32_t op = sequence[from];
    if (from < to)
        memmove(&sequence[from], &sequence[from + 1], (to - from) * sizeof *sequence);
    else
        memmove(&sequence[to + 1], &sequence[to], (from - to) * sizeof *sequence);
    sequence[to] = op;
}

/* Returns the place of the first op that waits for the result of the op at place `i`. */
static uint32_t esp__op_next(const esp__incremental *k, uint32_t i) {
    const esp__timed *s = &k->timed_ops[i];
    uint32_t next = s->after;
    if (s->unit == ESP__NEXT_BACKWARD)
        for (uint32_t u = k->attached[s->tensor]; u < k->attached[s->tensor + 1]; u++)
            if (k->first[u] < next) next = k->first[u];
    return next;
}

/* Exchanges the ops at places a and b, which run one after the other on a link or core, if the step is then shorter. */
static bool esp__order_exchange(esp__incremental *k, uint32_t a, uint32_t b) {
    esp__schedule *d = k->d;
    const uint32_t before = k->timed_ops[b].before;
    const bool first = before == ESP__NOWHERE || before < a;
    if (!first && esp__op_next(k, a) <= b) return false;
    esp__order_move(d->sequence, first ? b : a, first ? a : b);
    k->p->work += k->n;
    if (esp__replay(k->p, d) < d->makespan) {
        esp__incremental_prepare(k);
        return true;
    }
    esp__order_move(d->sequence, first ? a : b, first ? b : a);
    return false;
}

static bool esp__improve_order(esp__incremental *k) {
    uint32_t last[ESP__LANES];
    memset(last, 0xff, sizeof last);
    for (uint32_t b = 0; b < k->n && !esp__out_of_time(k->p); b++) {
        const esp__timed *s = &k->timed_ops[b];
        if (k->end[b] - s->time.ns + k->tail[b] != k->d->makespan) continue; /* not on a longest path */
        for (uint32_t l = 0; l < k->p->n_lanes; l++) {
            const uint32_t a = last[l];
            if (!(s->lanes >> l & 1u)) continue;
            last[l] = b;
            if (a != ESP__NOWHERE && k->timed_ops[a].unit != s->unit && esp__order_exchange(k, a, b)) return true;
        }
    }
    return false;
}

/* Exchanges ops of a longest path as long as this makes the step shorter (Nowicki, Smutnicki 1996, for job shops). */
ESP__FN void esp__improve_orders(esp__incremental *k) {
    while (esp__improve_order(k)) {
    }
}
