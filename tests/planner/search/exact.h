/* exact.h finds the optimum of a small problem by trying every option of every tensor or group, in every order of ops
 * or only in the order in which they become ready. It must not use the planner's bounds or search, which it checks. */
#ifndef TESTS_PLANNER_EXACT_H
#define TESTS_PLANNER_EXACT_H
#include <stdint.h>
#include <string.h>

enum { EXACT_UNITS = 12, EXACT_JOBS = EXACT_UNITS + 1 };
/* A job is the list of ops of a tensor or group. Job 0 is the backward pass. */
typedef struct exact_job {
    const esp__path *path;
    uint32_t n, next, after;
    uint64_t ready, left;
} exact_job;
typedef struct exact {
    const esp__problem *p;
    const esp__extent *units;
    const esp__candidates *candidate_sets[EXACT_UNITS];
    const esp__path *paths[EXACT_UNITS], *best_paths[EXACT_UNITS];
    uint32_t n;
    uint64_t best;
    uint64_t nodes, node_limit;
    exact_job jobs[EXACT_JOBS];
    uint64_t free_at[ESP__LANES], left[ESP__LANES];
    uint64_t end;
    int gave_up;
    int ready_order; /* try only the order in which ops become ready */
    esp__schedule *schedule;
} exact;

static inline uint64_t exact_max(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline uint32_t exact_lanes(const exact_job *j) {
    return j->path ? j->path->ops[j->next].lanes : 1u << ESP__LANE_COMPUTE;
}
static inline uint64_t exact_ns(const exact *e, const exact_job *j) {
    return j->path ? j->path->ops[j->next].time.ns : e->p->compute[j->next];
}
static inline uint64_t exact_kept(const exact *e, const exact_job *j, uint32_t lane) {
    return j->path ? esp__kept(&j->path->ops[j->next].time, lane) : e->p->compute[j->next];
}
static inline int exact_start(const exact *e, const exact_job *j, uint64_t *start) {
    if (j->next == j->n || e->jobs[0].next < j->after) return 0;
    *start = j->ready;
    for (uint32_t l = 0; l < ESP__LANES; l++)
        if (exact_lanes(j) >> l & 1u) *start = exact_max(*start, e->free_at[l]);
    return 1;
}

/* Returns 1 if some link, core or job has too much work left to beat the best known time. */
static inline int exact_hopeless(const exact *e) {
    uint64_t start;
    if (e->end >= e->best) return 1;
    for (uint32_t l = 0; l < ESP__LANES; l++)
        if (e->left[l] && e->free_at[l] + e->left[l] >= e->best) return 1;
    for (uint32_t i = 0; i <= e->n; i++) {
        const exact_job *j = &e->jobs[i];
        if (exact_start(e, j, &start) ? start + j->left >= e->best : j->ready + j->left >= e->best) return 1;
    }
    return 0;
}

/* Tries all orders by placing ops by increasing start time. An op that would start after another could have ended need
 * not be tried, because the other would fit in front of it. */
static inline void exact_orders(exact *e) {
    uint64_t start[EXACT_JOBS], soonest = UINT64_MAX;
    int can[EXACT_JOBS], any = 0;
    if (e->gave_up || exact_hopeless(e)) return;
    if (e->node_limit && ++e->nodes > e->node_limit) {
        e->gave_up = 1;
        return;
    }
    for (uint32_t i = 0; i <= e->n; i++) {
        can[i] = exact_start(e, &e->jobs[i], &start[i]);
        if (!can[i]) continue;
        any = 1;
        uint64_t end = start[i] + exact_ns(e, &e->jobs[i]);
        if (end < soonest) soonest = end;
    }
    if (!any) {
        e->best = e->end;
        memcpy((void *)e->best_paths, (const void *)e->paths, sizeof e->paths);
        return;
    }
    for (uint32_t i = 0; i <= e->n; i++) {
        if (!can[i] || start[i] > soonest) continue;
        exact was = *e;
        exact_job *j = &e->jobs[i];
        uint64_t ns = exact_ns(e, j);
        for (uint32_t l = 0; l < ESP__LANES; l++)
            if (exact_lanes(j) >> l & 1u) {
                e->free_at[l] = start[i] + exact_kept(e, j, l);
                e->left[l] -= exact_kept(e, j, l);
            }
        j->ready = start[i] + ns;
        j->left -= ns;
        j->next++;
        e->end = exact_max(e->end, j->ready);
        if (i == 0)
            for (uint32_t u = 1; u <= e->n; u++)
                if (e->jobs[u].after == j->next) e->jobs[u].ready = j->ready;
        exact_orders(e);
        was.best = e->best, was.nodes = e->nodes, was.gave_up = e->gave_up;
        memcpy((void *)was.best_paths, (const void *)e->best_paths, sizeof e->best_paths);
        *e = was;
    }
}

static inline void exact_paths_done(exact *e) {
    if (e->ready_order) {
        memcpy((void *)e->schedule->paths, (const void *)e->paths, e->n * sizeof *e->paths);
        uint64_t t = esp__generate((esp__problem *)(uintptr_t)e->p, e->schedule);
        if (t >= e->best) return;
        e->best = t;
        memcpy((void *)e->best_paths, (const void *)e->paths, sizeof e->paths);
        return;
    }
    memset(e->jobs, 0, sizeof e->jobs);
    memset(e->free_at, 0, sizeof e->free_at);
    memset(e->left, 0, sizeof e->left);
    e->end = 0;
    e->jobs[0].n = (uint32_t)e->p->n_tensors;
    for (uint32_t i = 0; i < e->p->n_tensors; i++) e->jobs[0].left += e->p->compute[i];
    e->left[ESP__LANE_COMPUTE] = e->jobs[0].left;
    for (uint32_t u = 0; u < e->n; u++) {
        exact_job *j = &e->jobs[u + 1];
        j->path = e->paths[u];
        j->n = j->path->n;
        j->after = e->units[u].first + e->units[u].n;
        j->left = j->path->total;
        j->ready = e->p->ready[j->after - 1];
        for (uint32_t l = 0; l < ESP__LANES; l++) e->left[l] += j->path->load[l];
    }
    exact_orders(e);
}

/* Tries every option for u and later tensors or groups. `load` is how long the earlier ones occupy each link and
 * core. */
static inline void exact_choose(exact *e, uint32_t u, const uint64_t load[ESP__LANES]) {
    if (e->gave_up) return;
    if (u == e->n) {
        exact_paths_done(e);
        return;
    }
    for (uint32_t x = 0; x < e->candidate_sets[u]->n; x++) {
        const esp__path *path = &e->candidate_sets[u]->paths[x];
        uint64_t with[ESP__LANES];
        int hopeless = e->p->ready[e->units[u].first + e->units[u].n - 1] + path->total >= e->best;
        for (uint32_t l = 0; l < ESP__LANES; l++) {
            with[l] = load[l] + path->load[l];
            hopeless |= with[l] >= e->best;
        }
        if (hopeless) continue;
        e->paths[u] = path;
        exact_choose(e, u + 1, with);
    }
}

/* Sets *out to the least time of any plan, or to `known` if no plan takes less (UINT64_MAX if nothing is known).
 * Returns 0 if it stops at node_limit (0 means no limit); then *out is the best time so far. */
static inline int exact_solve(esp__problem *p, const esp__extent *units, uint32_t n, uint64_t known, int ready_order,
                              uint64_t node_limit, uint64_t *out) {
    exact e;
    esp__schedule d;
    uint64_t load[ESP__LANES] = {0};
    memset(&e, 0, sizeof e);
    memset(&d, 0, sizeof d);
    esp__schedule_set_units(p, &d, units, n);
    e.p = p, e.units = units, e.n = n, e.best = known, e.ready_order = ready_order, e.node_limit = node_limit;
    e.schedule = &d;
    for (uint32_t i = 0; i < p->n_tensors; i++) load[ESP__LANE_COMPUTE] += p->compute[i];
    for (uint32_t u = 0; u < n; u++) e.candidate_sets[u] = esp__candidates_get(p, &units[u]);
    exact_choose(&e, 0, load);
    *out = e.best;
    return !e.gave_up;
}
#endif
