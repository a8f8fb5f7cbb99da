/* rerun.c: what a step takes with a few paths changed. Up to the moment when the first changed unit is ready nothing differs,
 * so the clock is set back to a state saved before it; and where a lane's remaining work already reaches the time to beat,
 * the rest is not looked at. Must give what esp__generate gives. */
#include "algorithms.h"

enum { ESP__SAVES = 24 };
static const uint32_t esp__by_chain = 0x7fffffffu, esp__by_backward = 0x80000000u; /* the flag of a backward's id */

/* Where the clock stands just before the backward of a tensor. A unit on its way has one op in the queue, which says all. */
typedef struct esp__save {
    uint64_t free_at[ESP__LANES], left[ESP__LANES], backward_ready, makespan;
    uint32_t last[ESP__LANES], end; /* ids of each lane's last op, of the op that ended last */
    uint32_t tensor, unit;
    esp__queue waiting;
} esp__save;

struct esp__rerun {
    esp__problem *p;
    esp__draft *d;
    esp__save *saves, now;
    uint32_t n_saves, walk;
    uint32_t *by,
        *by_backward;   /* [n_units][MAX_OPS], [n_tensors]: what each op waited for: a lane's op, or its chain */
    uint32_t *critical; /* [n_units] number of the last walk that came by */
};

static uint32_t esp__rerun_id(uint32_t unit, uint32_t op) { return unit << 5 | op; }

static void esp__save_copy(esp__save *to, const esp__save *from) {
    esp__waiting *at = to->waiting.at;
    *to = *from;
    to->waiting.at = at;
    memcpy(at, from->waiting.at, from->waiting.n * sizeof *at);
}

/* Runs an op; returns what it waited for: the lane's last op, or its chain. */
static uint32_t esp__rerun_op(esp__save *s, uint32_t lanes, uint64_t ready, uint64_t ns, uint32_t id, uint64_t *end) {
    uint64_t start = ready;
    uint32_t by = esp__by_chain;
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (lanes >> k & 1u && s->free_at[k] > start) start = s->free_at[k], by = s->last[k];
    *end = start + ns;
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (lanes >> k & 1u) s->free_at[k] = *end, s->left[k] -= ns, s->last[k] = id;
    if (*end >= s->makespan) s->makespan = *end, s->end = id;
    return by;
}

static int esp__rerun_hopeless(const esp__save *s, uint64_t limit) {
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (s->free_at[k] + s->left[k] >= limit) return 1;
    return 0;
}

static void esp__rerun_push(esp__save *s, const esp__path *path, uint32_t u, uint32_t op, uint64_t ready) {
    if (op < path->n) esp__queue_push(&s->waiting, ready, (uint64_t)u << 8 | (op + 1u));
}

static void esp__rerun_backward(esp__rerun *r, esp__save *s, int record) {
    uint64_t end;
    uint32_t by = esp__rerun_op(s, 1u << ESP__LANE_COMPUTE, s->backward_ready, r->p->compute[s->tensor],
                                esp__by_backward | s->tensor, &end);
    if (record) r->by_backward[s->tensor] = by;
    s->backward_ready = end;
    for (; s->unit < r->d->n_units; s->unit++) {
        const esp__unit *u = &r->d->units[s->unit];
        if (u->first + u->n - 1 != s->tensor) break;
        esp__rerun_push(s, r->d->paths[s->unit], s->unit, 0, end);
    }
    if (++s->tensor < r->p->n_tensors) esp__queue_push(&s->waiting, end, (uint64_t)s->unit << 8);
}

/* The last state saved before the backward of this tensor ends. */
static uint32_t esp__save_of(const esp__rerun *r, uint32_t tensor) {
    return (uint32_t)((uint64_t)tensor * r->n_saves / r->p->n_tensors);
}

/* From where `now` stands to the end, or until `limit` is out of reach. */
static uint64_t esp__rerun_go(esp__rerun *r, uint64_t limit, int record) {
    esp__save *s = &r->now;
    while (s->waiting.n) {
        uint64_t end;
        if (record && !(s->waiting.at[0].key & 255u) &&
            (!s->tensor || esp__save_of(r, s->tensor) != esp__save_of(r, s->tensor - 1)))
            esp__save_copy(&r->saves[esp__save_of(r, s->tensor)], s);
        esp__waiting w = esp__queue_pop(&s->waiting);
        uint32_t u = (uint32_t)(w.key >> 8), k = (uint32_t)(w.key & 255u);
        if (!k) {
            esp__rerun_backward(r, s, record);
        } else {
            const esp__path *path = r->d->paths[u];
            const esp__plan_op *op = &path->ops[k - 1];
            uint32_t by = esp__rerun_op(s, op->lanes, w.ready, op->ns, esp__rerun_id(u, k - 1), &end);
            if (record) r->by[u * ESP__MAX_OPS + k - 1] = by;
            esp__rerun_push(s, path, u, k, end);
        }
        if (limit != UINT64_MAX && esp__rerun_hopeless(s, limit)) return UINT64_MAX;
    }
    return s->makespan < limit ? s->makespan : UINT64_MAX;
}

/* Walks back from the op that ends last: who is not on this chain of waiting does not matter. */
static void esp__rerun_walk(esp__rerun *r) {
    uint32_t id = r->now.end;
    r->walk++;
    for (;;) {
        uint32_t by, tensor;
        if (id & esp__by_backward) {
            tensor = id & 0x7fffffffu;
            by = r->by_backward[tensor];
            if (by == esp__by_chain && !tensor) return;
            id = by == esp__by_chain ? esp__by_backward | (tensor - 1) : by;
            continue;
        }
        uint32_t u = id >> 5, op = id & 31u;
        r->critical[u] = r->walk;
        by = r->by[u * ESP__MAX_OPS + op];
        if (by == esp__by_chain && op)
            id--;
        else if (by == esp__by_chain)
            id = esp__by_backward | (r->d->units[u].first + r->d->units[u].n - 1);
        else
            id = by;
    }
}

static const esp__save *esp__rerun_before(const esp__rerun *r, uint32_t u) {
    return &r->saves[esp__save_of(r, r->d->units[u].first + r->d->units[u].n - 1)];
}

ESP__FN esp__rerun *esp__rerun_open(esp__problem *p, esp__draft *d) {
    esp__rerun *r = esp__pool_get(p->pool, sizeof *r);
    uint32_t n = (uint32_t)p->n_tensors;
    r->p = p;
    r->d = d;
    r->n_saves = n < ESP__SAVES ? n : (uint32_t)ESP__SAVES;
    r->saves = esp__pool_get(p->pool, r->n_saves * sizeof *r->saves);
    for (uint32_t i = 0; i < r->n_saves; i++)
        r->saves[i].waiting.at = esp__pool_get(p->pool, (d->n_units + 1u) * sizeof(esp__waiting));
    r->now.waiting.at = esp__pool_get(p->pool, (d->n_units + 1u) * sizeof(esp__waiting));
    r->by = esp__pool_get(p->pool, (uint64_t)d->n_units * ESP__MAX_OPS * sizeof *r->by);
    r->by_backward = esp__pool_get(p->pool, n * sizeof *r->by_backward);
    r->critical = esp__pool_get(p->pool, d->n_units * sizeof *r->critical);
    for (uint32_t t = 0; t < n; t++) r->now.left[ESP__LANE_COMPUTE] += p->compute[t];
    for (uint32_t u = 0; u < d->n_units; u++)
        for (uint32_t k = 0; k < ESP__LANES; k++) r->now.left[k] += d->paths[u]->load[k];
    r->now.waiting.n = 1; /* the first backward */
    d->makespan = esp__rerun_go(r, UINT64_MAX, 1);
    esp__rerun_walk(r);
    return r;
}

/* Puts the changes in, sets the clock back before the first of them, and returns what to take back in `old`. */
static void esp__rerun_change(esp__rerun *r, const esp__change *changes, uint32_t n, const esp__path **old) {
    esp__save_copy(&r->now, esp__rerun_before(r, changes[0].unit));
    for (uint32_t i = 0; i < n; i++) {
        const esp__path **at = &r->d->paths[changes[i].unit];
        for (uint32_t k = 0; k < ESP__LANES; k++) r->now.left[k] += changes[i].path->load[k] - (*at)->load[k];
        if (old) old[i] = *at;
        *at = changes[i].path;
    }
}

ESP__FN uint64_t esp__rerun_try(esp__rerun *r, const esp__change *changes, uint32_t n, uint64_t limit) {
    esp__mark mark = esp__pool_mark(r->p->pool);
    const esp__path *one, **old = n == 1 ? &one : esp__pool_get(r->p->pool, n * sizeof *old);
    uint64_t time = UINT64_MAX;
    esp__rerun_change(r, changes, n, old);
    if (!esp__rerun_hopeless(&r->now, limit)) time = esp__rerun_go(r, limit, 0);
    for (uint32_t i = 0; i < n; i++) r->d->paths[changes[i].unit] = old[i];
    esp__pool_release(r->p->pool, mark);
    return time;
}

ESP__FN void esp__rerun_set(esp__rerun *r, const esp__change *changes, uint32_t n) {
    /* saves further back have these loads still to come */
    const esp__save *from = esp__rerun_before(r, changes[0].unit);
    for (esp__save *s = r->saves; s < from; s++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t k = 0; k < ESP__LANES; k++)
                s->left[k] += changes[i].path->load[k] - r->d->paths[changes[i].unit]->load[k];
    esp__rerun_change(r, changes, n, NULL);
    r->d->makespan = esp__rerun_go(r, UINT64_MAX, 1);
    esp__rerun_walk(r);
}

ESP__FN uint64_t esp__rerun_bound(const esp__rerun *r, uint32_t u, const esp__path *path) {
    const esp__save *s = esp__rerun_before(r, u);
    const esp__path *now = r->d->paths[u];
    uint64_t bound = r->p->ready[r->d->units[u].first + r->d->units[u].n - 1] + path->total;
    for (uint32_t k = 0; k < ESP__LANES; k++) {
        uint64_t t = s->free_at[k] + s->left[k] + path->load[k] - now->load[k];
        if (t > bound) bound = t;
    }
    return bound;
}

ESP__FN int esp__rerun_matters(const esp__rerun *r, uint32_t u) { return r->critical[u] == r->walk; }
