/* algorithm1.c: Algorithm 1 of the Espresso paper (section 4.3), which decides for one kind of device which tensors to
 * compress and how. From the largest tensor to the smallest, it gives each the option with the shortest step while the
 * others keep theirs. It skips tensors after which the links and processors are idle, because a faster option cannot
 * help there. */
#include "planner/simulate/schedule.h"
#include "planner/search/search.h"

enum { ESP__SWEEPS = 8 };

/* ---- which options a tensor or group may have ---- */
ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path, uint32_t devices) {
    for (uint32_t i = 0; i < path->n; i++) {
        const esp__plan_op *op = &path->ops[i];
        int codec = op->kind == ESP_PLAN_COMPRESS || op->kind == ESP_PLAN_DECOMPRESS;
        if (codec && !(devices >> p->op_templates[op->op_template].device & 1u)) return 0;
    }
    return 1;
}

ESP__FN int esp__path_one_device(const esp__problem *p, const esp__path *path) {
    uint32_t gpu = p->system.devices & 1u << ESP_ON_GPU;
    return esp__path_on(p, path, gpu ? gpu : p->system.devices);
}

static void esp__choices_fill(esp__problem *p, const esp__candidates *candidates, esp__path_test wanted,
                              esp__choices *out) {
    out->paths = esp__arena_get(p->arena, candidates->n * sizeof *out->paths);
    for (uint32_t i = 0; i < candidates->n; i++)
        if (!wanted || wanted(p, &candidates->paths[i])) out->paths[out->n++] = &candidates->paths[i];
    /* If no option passes, for example because the codec runs only on another device, all are allowed. */
    if (out->n) return;
    for (uint32_t i = 0; i < candidates->n; i++) out->paths[out->n++] = &candidates->paths[i];
}

ESP__FN uint64_t esp__paper_work(const esp__schedule *d) {
    enum { LEAST = 40000000, EACH = 5000 };
    return LEAST + (uint64_t)d->n_units * EACH;
}

ESP__FN esp__choices *esp__choices_of(esp__problem *p, const esp__schedule *d, esp__path_test wanted) {
    esp__choices *all = esp__arena_get(p->arena, d->n_units * sizeof *all);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__candidates *m = esp__candidates_get(p, &d->units[u]);
        uint32_t first = 0;
        while (first < u && all[first].of != m) first++;
        if (first < u) {
            all[u] = all[first];
            continue;
        }
        all[u].of = m, all[u].like = u;
        esp__choices_fill(p, m, wanted, &all[u]);
    }
    return all;
}

/* ---- initial solutions ---- */
/* Returns the hierarchical or flat allreduce without compression, or NULL if constraints may exclude it. It is not
 * always a candidate, because another option may be no slower on every processor and link. */
static const esp__path *esp__path_usual(esp__problem *p, const esp__extent *u) {
    static const char *const tree = "intra.reduce_scatter > inter.allreduce > intra.allgather", *const flat =
                                                                                                    "flat.allreduce";
    if (esp__keep_of(p, u->first, u->n) || p->config.n_forbid || p->config.n_only) return NULL;
    return esp__path_make(p, u, p->hierarchical ? tree : flat, ESP__NO_CODEC);
}

/* Makes the shorter of two schedules without compression, as far as `choices` allow that: with the fastest option
 * for each tensor, or with the plain allreduce (esp__path_usual) for all. */
static void esp__start_raw(esp__problem *p, esp__schedule *d, const esp__choices *choices) {
    esp__schedule usual;
    memset(&usual, 0, sizeof usual);
    esp__schedule_set_units(p, &usual, d->units, d->n_units);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__path *raw = NULL;
        uint32_t like = choices[u].like;
        for (uint32_t i = 0; i < choices[u].n && like == u; i++)
            if (choices[u].paths[i]->codec == ESP__NO_CODEC && (!raw || choices[u].paths[i]->total < raw->total))
                raw = choices[u].paths[i];
        d->paths[u] = like < u ? d->paths[like] : raw ? raw : choices[u].paths[0];
        usual.paths[u] = like < u ? usual.paths[like] : raw ? esp__path_usual(p, &d->units[u]) : NULL;
        if (!usual.paths[u]) usual.paths[u] = d->paths[u];
    }
    esp__generate(p, d);
    esp__generate(p, &usual);
    esp__keep_better_allowed(p, d, &usual);
}

ESP__FN void esp__start_least(esp__problem *p, esp__schedule *d, const esp__choices *choices) {
    int by_memory = p->config.max_memory_bytes > 0;
    for (uint32_t u = 0; u < d->n_units; u++)
        for (uint32_t i = 0; i < choices[u].n; i++) {
            const esp__path *path = choices[u].paths[i], *least = d->paths[u];
            if (by_memory ? path->memory < least->memory : path->volume < least->volume) d->paths[u] = path;
        }
    esp__generate(p, d);
}

/* ---- the Espresso paper's Remove and GetBestOption ---- */
/* Takes the option for tensor or group u that makes the step shortest, while all others keep their options and order.
 * Tries none if the step would not be shorter even without u. */
static int esp__best_option(esp__incremental *k, uint32_t u, const esp__choices *c) {
    esp__swap *w = &k->swaps[0], *best_swap = &k->swaps[1];
    uint64_t before = k->d->makespan, best = before, without, ready;
    esp__incremental_remove(k, w, u, 1);
    ready = k->end[w->from - 1];
    without = esp__incremental_without(k, w, before);
    for (uint32_t i = 0; i < c->n && without < best; i++) {
        if (ready + c->paths[i]->total >= best) continue;
        esp__swap_path(k, w, u, c->paths[i]);
        if (!esp__incremental_allows(k, w)) continue;
        uint64_t t = esp__incremental_try(k, w, best);
        if (t >= best) continue;
        best = t;
        *best_swap = *w;
    }
    esp__incremental_restore(k, w);
    return best < before && esp__incremental_take(k, best_swap);
}

static int esp__ready_order(esp__incremental *k, esp__schedule *ready) {
    esp__schedule_copy(k->p, ready, k->d);
    if (esp__generate(k->p, ready) >= k->d->makespan) return 0;
    esp__schedule_copy(k->p, k->d, ready);
    esp__incremental_prepare(k);
    return 1;
}

static void esp__sweeps(esp__problem *p, esp__schedule *d, const esp__choices *choices, const esp__ranked *order) {
    esp__incremental *k = esp__incremental_open(p, d);
    esp__schedule ready;
    uint32_t unchanged = 0, n = d->n_units;
    const uint64_t enough = p->work + esp__paper_work(d);
    memset(&ready, 0, sizeof ready);
    for (uint32_t visit = 0; visit < ESP__SWEEPS * n && unchanged < n && p->work < enough && !esp__out_of_time(p);
         visit++) {
        uint32_t u = order[visit % n].unit;
        unchanged = esp__best_option(k, u, &choices[u]) ? 0 : unchanged + 1;
        if ((visit % n == n - 1 || unchanged == n) && esp__ready_order(k, &ready)) unchanged = 0;
    }
}

ESP__FN void esp__algorithm1_over(esp__problem *p, esp__schedule *d, const esp__choices *choices) {
    const esp__ranked *order = esp__ranking(p, d);
    esp__start_raw(p, d, choices);
    if (!esp__schedule_allowed(p, d)) esp__start_least(p, d, choices);
    esp__sweeps(p, d, choices, order);
}

ESP__FN void esp__algorithm1(esp__problem *p, esp__schedule *d) {
    esp__algorithm1_over(p, d, esp__choices_of(p, d, esp__path_one_device));
}
