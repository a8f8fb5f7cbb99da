/* improve.c: local search over options and orders. It tries every other option for one tensor or group after the other,
 * while all other ops keep their order. Then it exchanges ops that run one after the other on a link or core. */
#include "planner/simulate/schedule.h"
#include "planner/search/search.h"

/* Begins a trial that replaces n tensors or groups from u on. Returns NULL if no replacement makes the step shorter. */
ESP__FN esp__swap *esp__swap_open(esp__incremental *k, uint32_t u, uint32_t n) {
    esp__swap *w = &k->swaps[0];
    if (!esp__incremental_critical(k, u, n)) return NULL;
    esp__incremental_remove(k, w, u, n);
    w->n = 0;
    return w;
}

ESP__FN void esp__swap_add(const esp__incremental *k, esp__swap *w, const esp__extent *u, const esp__path *path) {
    w->chains[w->n++] = (esp__chain){.unit = *u, .path = path, .after = k->backward[u->first + u->n - 1]};
}

static const esp__path *esp__path_like(const esp__candidates *candidates, const esp__path *path) {
    for (uint32_t i = 0; i < candidates->n; i++) {
        const esp__path *x = &candidates->paths[i];
        uint32_t a = 0, b = 0;
        if (x->codec != path->codec) continue;
        for (;;) { /* compares the steps; packing a group is no step */
            while (a < x->n && x->ops[a].kind == ESP_PLAN_PACK) a++;
            while (b < path->n && path->ops[b].kind == ESP_PLAN_PACK) b++;
            if (a == x->n || b == path->n || x->ops[a].op_template != path->ops[b].op_template) break;
            a++, b++;
        }
        if (a == x->n && b == path->n) return x;
    }
    return NULL;
}

/* Tries each candidate for the first new tensor or group, and the most similar one for the others. Takes the best if
 * the step then takes less than `limit`, and returns 1. */
ESP__FN int esp__swap_take(esp__incremental *k, esp__swap *w, uint64_t limit) {
    const esp__candidates *candidates = esp__candidates_get(k->p, &w->chains[0].unit);
    const uint64_t without = esp__incremental_without(k, w, limit);
    uint64_t best = limit;
    for (uint32_t i = 0; i < candidates->n && without < best; i++) {
        if (!esp__path_open(k->p, &candidates->paths[i])) continue;
        for (uint32_t c = 0; c < w->n; c++) {
            const esp__candidates *own = c ? esp__candidates_get(k->p, &w->chains[c].unit) : candidates;
            w->chains[c].path = own == candidates ? &own->paths[i] : esp__path_like(own, &candidates->paths[i]);
            if (!w->chains[c].path) w->chains[c].path = &own->paths[0];
        }
        if (!esp__incremental_allows(k, w)) continue;
        uint64_t t = esp__incremental_try(k, w, best);
        if (t < without) t = without;
        if (t >= best) continue;
        best = t;
        k->swaps[1] = *w;
    }
    esp__incremental_restore(k, w);
    return best < limit && esp__incremental_take(k, &k->swaps[1], limit);
}

static int esp__improve_unit(esp__incremental *k, uint32_t u) {
    esp__swap *w = esp__swap_open(k, u, 1);
    if (!w) return 0;
    esp__swap_add(k, w, &k->d->units[u], NULL);
    return esp__swap_take(k, w, k->d->makespan);
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
        p->n_ranked = 0;
    }
    esp__ranked *r = p->ranked;
    uint32_t same = 0;
    while (p->n_ranked == d->n_units && same < d->n_units && r[same].elements == d->units[r[same].unit].elements)
        same++;
    if (same == d->n_units) return r;
    p->n_ranked = d->n_units;
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
