/* paper.c: Algorithms 1 and 2 of the Espresso paper, which decide for each tensor whether and how to compress it.
 * Algorithm 1 (section 4.3) uses one kind of device. From the largest tensor to the smallest, it gives each the option
 * with the shortest step while the others keep theirs. Algorithm 2 (section 4.4) then moves compression from the GPU to
 * the CPU. Tensors of one size with the same option are a group. In a group, the tensors whose gradients are ready
 * first are moved first, because they leave most time to hide the slower CPU (the paper's Lemma 1). So the search only
 * needs to find one number for each group. */
#include "planner/baselines/baselines.h"
#include "planner/search/search.h"

enum { ESP__COUNT_TRIALS = 8 };

ESP__FN int esp__path_on(const esp__problem *p, const esp__path *path, uint32_t devices) {
    for (uint32_t i = 0; i < path->n; i++) {
        const esp__plan_op *op = &path->ops[i];
        int codec = op->kind == ESP_PLAN_COMPRESS || op->kind == ESP_PLAN_DECOMPRESS;
        if (codec && !(devices >> p->op_templates[op->op_template].device & 1u)) return 0;
    }
    return 1;
}

/* Limits the work of the next part of an algorithm, whose time is quadratic in the number of tensors. Models of up to
 * about 1000 tensors do not reach the limit. */
static void esp__paper_stage(esp__problem *p) { p->work_end = p->work + 40000000 + p->n_tensors * 5000; }

/* ---- Algorithm 1 ------------------------------------------------------------------------------------------------- */
/* Starts without compression where that is possible: with the fastest option for each tensor, or with strategy fp32 if
 * that is faster. */
static void esp__start_raw(esp__problem *p, esp__schedule *d) {
    esp__schedule_tensors(p, d);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__candidates *c = esp__candidates_get(p, &d->units[u]);
        uint32_t i = 0;
        while (i < c->n && c->paths[i].codec != ESP__NO_CODEC) i++;
        d->paths[u] = &c->paths[i < c->n ? i : 0];
    }
    esp__generate(p, d);
    if (p->config.n_forbid || p->config.n_only) return;
    esp__schedule fp32 = {0};
    esp__fp32_make(p, &fp32);
    esp__keep_better_allowed(p, d, &fp32);
}

static void esp__algorithm1_with(esp__problem *p, esp__schedule *d, uint32_t allow) {
    p->allow = allow;
    esp__start_raw(p, d);
    if (esp__fit(p, d)) {
        esp__paper_stage(p);
        esp__improve_passes(esp__incremental_open(p, d), esp__ranking(p, d));
    }
    p->allow = ESP__ALLOW_ALL, p->work_end = 0;
}

ESP__FN void esp__algorithm1(esp__problem *p, esp__schedule *d) {
    esp__algorithm1_with(p, d, esp__devices(p) >> ESP_ON_GPU & 1u ? ESP__ALLOW_GPU : ESP__ALLOW_ALL);
}

ESP__FN void esp__cpu_only_make(esp__problem *p, esp__schedule *d) { esp__algorithm1_with(p, d, ESP__ALLOW_CPU); }

/* ---- Algorithm 2 ------------------------------------------------------------------------------------------------- */
/* Returns 1 if the options differ in devices only: the codec and the sequence of steps are the same. */
static int esp__same_steps(const esp__path *a, const esp__path *b) {
    if (a->codec != b->codec || !a->option || !b->option || a->option->n != b->option->n) return 0;
    for (uint32_t i = 0; i < a->option->n; i++) {
        const esp__step *x = &a->option->steps[i], *y = &b->option->steps[i];
        if (x->kind != y->kind || x->level != y->level || x->coll != y->coll || x->summed != y->summed) return 0;
    }
    return 1;
}

static void esp__offload(esp__schedule *d, const uint32_t *group, uint32_t n, uint32_t count, const esp__path *from,
                         const esp__path *to) {
    for (uint32_t i = 0; i < n; i++) d->paths[group[i]] = i < count ? to : from;
}

/* Finds how many tensors of one group should compress on the CPU, while the other groups stay. Tries numbers over the
 * whole range, then between the neighbours of the best one, and so on. */
static bool esp__offload_group(esp__problem *p, esp__schedule *d, const uint32_t *group, uint32_t n,
                               const esp__path *from) {
    const esp__candidates *c = esp__candidates_get(p, &d->units[group[0]]);
    const esp__path *best = d->paths[group[0]];
    const uint64_t before = d->makespan;
    uint32_t moved = 0;
    while (moved < n && d->paths[group[moved]] != from) moved++;
    for (const esp__path *to = c->paths; to < c->paths + c->n; to++) {
        if (esp__path_on(p, to, 1u << ESP_ON_GPU) || !esp__same_steps(to, from)) continue;
        uint32_t low = 1, high = n, step, middle = 0;
        do {
            step = (high - low + ESP__COUNT_TRIALS) / ESP__COUNT_TRIALS;
            for (uint32_t count = low; count <= high && !esp__out_of_time(p); count += step) {
                esp__offload(d, group, n, count, from, to);
                const uint64_t time = esp__by_ready(p, d, NULL);
                if (time < d->makespan) d->makespan = time, best = to, moved = middle = count;
            }
            low = middle > step ? middle - step + 1 : 1;
            high = middle + step - 1 < n ? middle + step - 1 : n;
        } while (step > 1);
    }
    esp__offload(d, group, n, moved, from, best);
    return d->makespan < before;
}

/* Moves tensors to the CPU group by group, until no group makes the step shorter. */
ESP__FN void esp__algorithm2(esp__problem *p, esp__schedule *d) {
    const esp__path **from = esp__arena_get(p->arena, d->n_units * sizeof *from);
    uint32_t *group = esp__arena_get(p->arena, d->n_units * sizeof *group);
    uint8_t *seen = esp__arena_get(p->arena, d->n_units);
    memcpy((void *)from, (const void *)d->paths, d->n_units * sizeof *from);
    esp__paper_stage(p);
    const uint64_t before = d->makespan;
    for (bool better = esp__devices(p) == 3u; better && !esp__out_of_time(p);) {
        better = false;
        memset(seen, 0, d->n_units);
        for (uint32_t u = 0; u < d->n_units; u++) {
            uint32_t n = 0;
            if (seen[u] || esp__path_on(p, from[u], 1u << ESP_ON_CPU)) continue;
            for (uint32_t v = u; v < d->n_units; v++)
                if (from[v] == from[u]) group[n++] = v, seen[v] = 1;
            better |= esp__offload_group(p, d, group, n, from[u]);
        }
    }
    p->work_end = 0;
    if (d->makespan < before) esp__generate(p, d);
}

ESP__FN void esp__paper(esp__problem *p, esp__schedule *d) {
    esp__algorithm1(p, d);
    esp__algorithm2(p, d);
}
