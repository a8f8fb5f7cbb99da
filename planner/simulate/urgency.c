/* urgency.c: tries other orders of ops, and keeps the one with the shortest step. When a processor or link becomes
 * free, it runs the most urgent of the ops that are ready. There are several rules of urgency, since none is best
 * for all models and systems. */
#include "espresso_impl/base/heap.h"
#include "planner/simulate/schedule.h"

/* Ops that wait for one processor or link: `coming` become ready later and are sorted by that time; `waiting` are ready
 * and sorted by urgency. */
typedef struct esp__lane_queue {
    esp__heap coming, waiting;
} esp__lane_queue;

typedef struct esp__ordering {
    esp__clock clock;
    esp__lane_queue lanes[ESP__LANES];
    esp__problem *p;
    esp__schedule *d;
    uint64_t *rest;
    uint32_t rule;
} esp__ordering;

/* An op that needs several processors or links waits in one queue only, that of the highest bit in `lanes`. */
static uint32_t esp__lane_of(uint32_t lanes) {
    uint32_t lane = 0;
    while (lanes >> (lane + 1)) lane++;
    return lane;
}

static uint64_t esp__urgency(const esp__ordering *o, uint64_t key) {
    uint32_t u = (uint32_t)(key >> 8);
    if (!(key & 255u)) return o->rule >= ESP__EARLIER_UNIT_AFTER_BACKWARD ? 0 : (o->rule == ESP__LONGER_REST ? 1 : key);
    return o->rule == ESP__LONGER_REST || o->rule == ESP__LONGER_REST_AFTER_BACKWARD ? UINT64_MAX / 2 - o->rest[u]
                                                                                     : key;
}

static void esp__ordering_add(esp__ordering *o, uint32_t lanes, uint64_t ready, uint64_t key) {
    const uint32_t lane = esp__lane_of(lanes);
    esp__lane_queue *q = &o->lanes[lane];
    if (ready <= o->clock.free_at[lane])
        esp__heap_push(&q->waiting, esp__urgency(o, key), key);
    else
        esp__heap_push(&q->coming, ready, key);
}

static void esp__ordering_unit(esp__ordering *o, uint32_t u) {
    const esp__path *path = o->d->paths[u];
    uint32_t op = o->clock.op[u];
    if (op < path->n) esp__ordering_add(o, path->ops[op].lanes, o->clock.ready[u], (uint64_t)u << 8 | (op + 1u));
}

static uint64_t esp__lane_start(const esp__ordering *o, uint32_t lane) {
    const esp__lane_queue *q = &o->lanes[lane];
    uint64_t free_at = o->clock.free_at[lane];
    if (q->waiting.n) return free_at;
    if (!q->coming.n) return UINT64_MAX;
    return q->coming.at[0].ready > free_at ? q->coming.at[0].ready : free_at;
}

/* Runs the most urgent of the ops that wait for this processor or link and are ready by `now`. */
static uint32_t esp__ordering_run(esp__ordering *o, uint32_t lane, uint64_t now) {
    esp__lane_queue *q = &o->lanes[lane];
    while (q->coming.n && q->coming.at[0].ready <= now) {
        esp__waiting w = esp__heap_pop(&q->coming);
        esp__heap_push(&q->waiting, esp__urgency(o, w.key), w.key);
    }
    esp__waiting w = esp__heap_pop(&q->waiting);
    uint32_t u = (uint32_t)(w.key >> 8), first = o->clock.unit;
    if (w.key & 255u) {
        o->rest[u] -= o->d->paths[u]->ops[o->clock.op[u]].time.ns;
        esp__clock_unit(&o->clock, o->d, u);
        esp__ordering_unit(o, u);
        return u;
    }
    esp__clock_backward(&o->clock, o->p, o->d);
    for (u = first; u < o->clock.unit; u++) esp__ordering_unit(o, u);
    if (o->clock.tensor < o->p->n_tensors)
        esp__ordering_add(o, 1u << ESP__LANE_COMPUTE, o->clock.backward_ready, (uint64_t)o->clock.unit << 8);
    return ESP__NEXT_BACKWARD;
}

static uint64_t esp__generate_by(esp__problem *p, esp__schedule *d, uint32_t rule) {
    esp__sequence_room(p, d);
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__ordering *o = esp__arena_get(p->arena, sizeof *o);
    uint32_t n = 0;
    o->p = p, o->d = d, o->rule = rule;
    o->rest = esp__arena_get(p->arena, d->n_units * sizeof *o->rest);
    for (uint32_t u = 0; u < d->n_units; u++) o->rest[u] = d->paths[u]->total;
    for (uint32_t lane = 0; lane < p->n_lanes; lane++) {
        o->lanes[lane].coming.at = esp__arena_get(p->arena, (d->n_units + 1u) * sizeof(esp__waiting));
        o->lanes[lane].waiting.at = esp__arena_get(p->arena, (d->n_units + 1u) * sizeof(esp__waiting));
    }
    esp__clock_open(&o->clock, p, d);
    esp__ordering_add(o, 1u << ESP__LANE_COMPUTE, 0, 0);
    for (;;) {
        uint64_t now = UINT64_MAX;
        uint32_t best = 0;
        for (uint32_t lane = 0; lane < p->n_lanes; lane++) {
            uint64_t start = esp__lane_start(o, lane);
            if (start < now) now = start, best = lane;
        }
        if (now == UINT64_MAX) break;
        d->sequence[n++] = esp__ordering_run(o, best, now);
    }
    p->work += 4u * n;
    d->makespan = o->clock.makespan;
    esp__arena_rewind(p->arena, mark);
    return d->makespan;
}

/* Tries each rule of urgency, and the order in which ops become ready. If one makes the step shorter, changes `d`
 * and returns 1. */
ESP__FN int esp__reorder(esp__problem *p, esp__schedule *d) {
    esp__schedule *other = &p->spare[0];
    int better = 0;
    esp__schedule_copy(p, other, d);
    for (uint32_t rule = 0; rule <= ESP__RULES; rule++) {
        if (rule == ESP__RULES)
            esp__generate(p, other);
        else
            esp__generate_by(p, other, rule);
        better |= esp__schedule_keep_better(p, d, other);
    }
    return better;
}
