/* fewest_ops.c: of plans that are about equally fast, chooses one with few ops. Starting an op (dispatch_ns, measured) also takes
 * time of cores that no lane represents: a plan of a thousand small ops hidden behind backward is as fast as one of ten only
 * while these cores are idle. The less time a plan spends on starting ops, the slower it may be. Built-in systems have no
 * dispatch time, so this file does not change their plans. */
#include "planner/plan.h"

static const double esp__as_fast = 0.005;    /* share of the step: no plan may be slower by more */
static const double esp__start_share = 0.02; /* share of the saved dispatch time by which a plan may be slower */

static int esp__costs_dispatch(const esp__problem *p) {
    double sum = 0.0;
    for (uint32_t k = 0; k < ESP__LANES; k++) sum += p->system.dispatch_ns[k];
    return sum > 0.0;
}

/* Does the configuration allow its units? */
static int esp__units_allowed(const esp__problem *p, const esp__schedule *d) {
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__unit *x = &d->units[u];
        if (x->n > 1 && p->config.flags & ESP_PLAN_NO_MERGE) return 0;
        if (x->n == 1 && x->elements != p->model->tensors[x->first].elements && p->config.flags & ESP_PLAN_NO_SPLIT)
            return 0;
    }
    return 1;
}

/* The dispatch time of all its ops. */
static double esp__starting_ns(const esp__problem *p, const esp__schedule *d) {
    double ns = 0.0;
    for (uint32_t u = 0; u < d->n_units; u++)
        for (uint32_t k = 0; k < d->paths[u]->n; k++) ns += esp__dispatch_ns(p, d->paths[u]->ops[k].lanes);
    return ns;
}

/* Copies `d` to `best` if its score is lower than `score` and its makespan is at most `limit`. */
static void esp__fewer(esp__problem *p, esp__schedule *best, const esp__schedule *d, uint64_t limit, double *score) {
    if (!d->n_units || d->makespan > limit) return;
    double own = (double)d->makespan + esp__start_share * esp__starting_ns(p, d);
    if (own >= *score || !esp__units_allowed(p, d) || !esp__schedule_allowed(p, d)) return;
    esp__schedule_copy(p, best, d);
    *score = own;
}

/* Chooses from `best`, the search's finalists and, without constraints, the comparison strategies. */
ESP__FN void esp__fewest_ops(esp__problem *p, esp__schedule *best) {
    double step = p->model->forward_ns + p->model->update_ns + (double)best->makespan;
    uint64_t limit = best->makespan + (uint64_t)(esp__as_fast * step);
    double score = (double)best->makespan + esp__start_share * esp__starting_ns(p, best);
    for (uint32_t i = 0; i < p->n_finalists; i++) esp__fewer(p, best, &p->finalists[i], limit, &score);
    if (!esp__unconstrained(p)) return;
    p->work_end = 0;
    for (const esp__scheme *const *s = esp__schemes(); *s; s++) {
        esp__schedule d = {0};
        if (esp__scheme_brings_codec(p, *s)) continue;
        (*s)->make(p, &d);
        esp__fewer(p, best, &d, limit, &score);
    }
}
