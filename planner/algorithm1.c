/* algorithm1.c: Espresso's Algorithm 1: which tensors to compress and how, on one kind of device (section 4.3). Tensors are taken by
 * size, the largest first, and among equals the one closest to the output, that is, latest in backward order; a tensor in front of a
 * bubble is passed over; each other gets the option that gives the shortest step with all else as it is. */
#include "algorithms.h"

enum { ESP__SWEEPS = 4 };

/* ---- which paths a unit may have -------------------------------------------------------------------------------------- */
ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path, uint32_t devices) {
    for (uint32_t i = 0; i < path->n; i++) {
        const esp__plan_op *op = &path->ops[i];
        int codec = op->kind == ESP_PLAN_COMP || op->kind == ESP_PLAN_DECOMP;
        if (codec && !(devices >> p->recipe_ops[op->recipe].device & 1u)) return 0;
    }
    return 1;
}

static int esp__path_one_device(const esp__problem *p, const esp__path *path) {
    uint32_t gpu = p->system.devices & 1u << ESP_PLAN_GPU;
    return esp__path_on(p, path, gpu ? gpu : p->system.devices);
}

static void esp__choices_fill(esp__problem *p, const esp__menu *menu, esp__path_test wanted, esp__choices *out) {
    out->paths = esp__pool_get(p->pool, menu->n * sizeof *out->paths);
    for (uint32_t i = 0; i < menu->n; i++)
        if (!wanted || wanted(p, &menu->paths[i])) out->paths[out->n++] = &menu->paths[i];
    if (out->n) return; /* a `keep`, or a codec that runs elsewhere only: then all that there is */
    for (uint32_t i = 0; i < menu->n; i++) out->paths[out->n++] = &menu->paths[i];
}

ESP__FN esp__choices *esp__choices_of(esp__problem *p, const esp__draft *d, esp__path_test wanted) {
    esp__choices *all = esp__pool_get(p->pool, d->n_units * sizeof *all);
    uint32_t slots = 16;
    while (slots < 2 * d->n_units) slots *= 2;
    const esp__menu **menus = esp__pool_get(p->pool, slots * sizeof *menus);
    uint32_t *first = esp__pool_get(p->pool, slots * sizeof *first);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__menu *m = esp__menu_get(p, &d->units[u]);
        uint32_t at = (uint32_t)((uint64_t)(uintptr_t)m * 0x9E3779B97F4A7C15ull >> 40) & (slots - 1);
        while (menus[at] && menus[at] != m) at = (at + 1) & (slots - 1);
        if (menus[at]) {
            all[u] = all[first[at]];
            continue;
        }
        menus[at] = m;
        first[at] = u;
        esp__choices_fill(p, m, wanted, &all[u]);
    }
    return all;
}

/* ---- the order in which they are taken ------------------------------------------------------------------------------------ */
typedef struct esp__rank_by {
    uint64_t elements;
    uint32_t unit;
} esp__rank_by;

static int esp__larger(const void *a, const void *b) {
    const esp__rank_by *x = a, *y = b;
    if (x->elements != y->elements) return x->elements > y->elements ? -1 : 1;
    return x->unit > y->unit ? -1 : x->unit < y->unit;
}

static uint32_t *esp__by_size(esp__problem *p, const esp__draft *d) {
    uint32_t *order = esp__pool_get(p->pool, d->n_units * sizeof *order);
    esp__rank_by *rank = esp__pool_get(p->pool, d->n_units * sizeof *rank);
    for (uint32_t u = 0; u < d->n_units; u++) {
        rank[u].elements = d->units[u].elements;
        rank[u].unit = u;
    }
    qsort(rank, d->n_units, sizeof *rank, esp__larger);
    for (uint32_t i = 0; i < d->n_units; i++) order[i] = rank[i].unit;
    return order;
}

/* ---- the start ---------------------------------------------------------------------------------------------------------------- */
/* Without compression, where the choices have that: each unit's shortest by itself. */
static void esp__start_raw(esp__problem *p, esp__draft *d, const esp__choices *choices) {
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__path *raw = NULL;
        for (uint32_t i = 0; i < choices[u].n; i++)
            if (choices[u].paths[i]->codec == ESP__NO_CODEC && (!raw || choices[u].paths[i]->total < raw->total))
                raw = choices[u].paths[i];
        d->paths[u] = raw ? raw : choices[u].paths[0];
    }
    esp__generate(p, d);
}

/* ---- GetBestOption --------------------------------------------------------------------------------------------------------------- */
typedef struct esp__candidate {
    uint64_t bound;
    uint32_t choice;
} esp__candidate;

static int esp__sooner(const void *a, const void *b) {
    const esp__candidate *x = a, *y = b;
    return x->bound != y->bound ? (x->bound < y->bound ? -1 : 1) : x->choice < y->choice ? -1 : x->choice > y->choice;
}

/* The best path for one unit, by trying those that may be better, the most promising first. 1 if it is another than now. */
static int esp__best_option(esp__rerun *r, esp__draft *d, uint32_t u, const esp__choices *c, esp__candidate *room) {
    uint64_t best = d->makespan;
    const esp__path *path = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint64_t bound = c->paths[i] == d->paths[u] ? UINT64_MAX : esp__rerun_bound(r, u, c->paths[i]);
        if (bound >= best) continue;
        room[n].bound = bound;
        room[n++].choice = i;
    }
    qsort(room, n, sizeof *room, esp__sooner);
    for (uint32_t i = 0; i < n && room[i].bound < best; i++) {
        esp__change change = {u, c->paths[room[i].choice]};
        uint64_t t = esp__rerun_try(r, &change, 1, best);
        if (t < best) best = t, path = change.path;
    }
    if (!path) return 0;
    esp__change change = {u, path};
    esp__rerun_set(r, &change, 1);
    return 1;
}

ESP__FN void esp__algorithm1_over(esp__problem *p, esp__draft *d, const esp__choices *choices) {
    uint32_t *order = esp__by_size(p, d), changed = 1, most = 1;
    for (uint32_t u = 0; u < d->n_units; u++)
        if (choices[u].n > most) most = choices[u].n;
    esp__candidate *room = esp__pool_get(p->pool, most * sizeof *room);
    esp__start_raw(p, d, choices);
    esp__rerun *r = esp__rerun_open(p, d);
    for (uint32_t sweep = 0; sweep < ESP__SWEEPS && changed; sweep++) {
        changed = 0;
        for (uint32_t i = 0; i < d->n_units && !esp__out_of_time(p); i++)
            if (esp__rerun_matters(r, order[i]))
                changed |= (uint32_t)esp__best_option(r, d, order[i], &choices[order[i]], room);
    }
    esp__generate(p, d);
}

ESP__FN void esp__algorithm1(esp__problem *p, esp__draft *d) {
    esp__algorithm1_over(p, d, esp__choices_of(p, d, esp__path_one_device));
}
