/* resimulate.c: the makespan in ready order with some paths changed. Until the first changed unit is ready nothing differs, so
 * the simulation starts from a state saved before that. It stops as soon as a lane's remaining work alone reaches the time to
 * beat. Must agree with esp__generate. */
#include "espresso_impl/base/heap.h"
#include "planner/search/search.h"

enum { ESP__SAVES = 24 };

/* The simulation's state just before the backward of a tensor. Each unit that is ready but not finished has exactly one op in
 * the queue: its next one. */
typedef struct esp__save {
    uint64_t free_at[ESP__LANES], left[ESP__LANES], backward_ready, makespan; /* left: work that remains on a lane */
    uint32_t tensor, unit;
    esp__heap waiting;
} esp__save;

struct esp__rerun {
    esp__problem *p;
    esp__schedule *d;
    esp__save *saves, now;
    const esp__path **old; /* [n_units] while some are changed */
    uint32_t n_saves;
};

static void esp__save_copy(esp__save *to, const esp__save *from) {
    esp__waiting *at = to->waiting.at;
    *to = *from;
    to->waiting.at = at;
    memcpy(at, from->waiting.at, from->waiting.n * sizeof *at);
}

/* Runs an op; returns its end. */
static uint64_t esp__rerun_op(esp__save *s, uint32_t lanes, uint64_t ready, const esp__op_time *time) {
    uint64_t start = esp__lanes_free(s->free_at, lanes, ready), end = start + time->ns;
    esp__lanes_take(s->free_at, lanes, start, time);
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (lanes >> k & 1u) s->left[k] -= esp__kept(time, k);
    if (end > s->makespan) s->makespan = end;
    return end;
}

static int esp__rerun_hopeless(const esp__save *s, uint64_t limit) {
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (s->free_at[k] + s->left[k] >= limit) return 1;
    return 0;
}

static void esp__rerun_push(esp__save *s, const esp__path *path, uint32_t u, uint32_t op, uint64_t ready) {
    if (op < path->n) esp__heap_push(&s->waiting, ready, (uint64_t)u << 8 | (op + 1u));
}

static void esp__rerun_backward(esp__rerun *r, esp__save *s) {
    const esp__op_time time = esp__backward_time(r->p->compute[s->tensor]);
    uint64_t end = esp__rerun_op(s, 1u << ESP__LANE_COMPUTE, s->backward_ready, &time);
    s->backward_ready = end;
    for (; s->unit < r->d->n_units; s->unit++) {
        const esp__extent *u = &r->d->units[s->unit];
        if (u->first + u->n - 1 != s->tensor) break;
        esp__rerun_push(s, r->d->paths[s->unit], s->unit, 0, end);
    }
    if (++s->tensor < r->p->n_tensors) esp__heap_push(&s->waiting, end, (uint64_t)s->unit << 8);
}

/* The last state saved before the backward of this tensor ends. */
static uint32_t esp__save_of(const esp__rerun *r, uint32_t tensor) {
    return (uint32_t)((uint64_t)tensor * r->n_saves / r->p->n_tensors);
}

static void esp__rerun_save(esp__rerun *r) {
    uint32_t t = r->now.tensor;
    if (r->now.waiting.at[0].key & 255u) return; /* a unit's op is next, not a backward */
    if (!t || esp__save_of(r, t) != esp__save_of(r, t - 1)) esp__save_copy(&r->saves[esp__save_of(r, t)], &r->now);
}

/* Simulates from `now` to the end; returns the makespan, or UINT64_MAX once it cannot be below `limit`. */
static uint64_t esp__rerun_go(esp__rerun *r, uint64_t limit, int save) {
    esp__save *s = &r->now;
    while (s->waiting.n) {
        if (save) esp__rerun_save(r);
        esp__waiting w = esp__heap_pop(&s->waiting);
        uint32_t u = (uint32_t)(w.key >> 8), k = (uint32_t)(w.key & 255u);
        if (k) {
            const esp__plan_op *op = &r->d->paths[u]->ops[k - 1];
            esp__rerun_push(s, r->d->paths[u], u, k, esp__rerun_op(s, op->lanes, w.ready, &op->time));
        } else {
            esp__rerun_backward(r, s);
        }
        if (!save && esp__rerun_hopeless(s, limit)) return UINT64_MAX;
    }
    return s->makespan;
}

ESP__FN esp__rerun *esp__rerun_open(esp__problem *p, esp__schedule *d) {
    esp__rerun *r = esp__arena_get(p->arena, sizeof *r);
    uint32_t n = (uint32_t)p->n_tensors;
    r->p = p;
    r->d = d;
    r->n_saves = n < ESP__SAVES ? n : (uint32_t)ESP__SAVES;
    r->saves = esp__arena_get(p->arena, r->n_saves * sizeof *r->saves);
    for (uint32_t i = 0; i < r->n_saves; i++)
        r->saves[i].waiting.at = esp__arena_get(p->arena, (d->n_units + 1u) * sizeof(esp__waiting));
    r->now.waiting.at = esp__arena_get(p->arena, (d->n_units + 1u) * sizeof(esp__waiting));
    r->old = esp__arena_get(p->arena, d->n_units * sizeof *r->old);
    r->now.left[ESP__LANE_COMPUTE] = p->ready[n - 1];
    for (uint32_t u = 0; u < d->n_units; u++)
        for (uint32_t k = 0; k < ESP__LANES; k++) r->now.left[k] += d->paths[u]->load[k];
    r->now.waiting.n = 1; /* the first backward, at time 0 */
    if (!p->core_ops) esp__rerun_go(r, UINT64_MAX, 1);
    return r;
}

ESP__FN uint64_t esp__rerun_try(esp__rerun *r, const esp__change *changes, uint32_t n, uint64_t limit) {
    const esp__extent *first = &r->d->units[changes[0].unit];
    uint64_t time = UINT64_MAX;
    esp__save_copy(&r->now, &r->saves[esp__save_of(r, first->first + first->n - 1)]);
    for (uint32_t i = 0; i < n; i++) {
        const esp__path **at = &r->d->paths[changes[i].unit];
        for (uint32_t k = 0; k < ESP__LANES; k++) r->now.left[k] += changes[i].path->load[k] - (*at)->load[k];
        r->old[i] = *at;
        *at = changes[i].path;
    }
    if (r->p->core_ops) /* their queues are not saved */
        time = esp__by_ready(r->p, r->d, NULL);
    else if (!esp__rerun_hopeless(&r->now, limit))
        time = esp__rerun_go(r, limit, 0);
    for (uint32_t i = 0; i < n; i++) r->d->paths[changes[i].unit] = r->old[i];
    return time < limit ? time : UINT64_MAX;
}
