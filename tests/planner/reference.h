/* reference.h simulates a schedule slowly and simply, so that tests can check the planner's fast simulators against it.
 * It shares no code with them; docs/design/planner.md states when an op may run. */
#ifndef TESTS_PLANNER_REFERENCE_H
#define TESTS_PLANNER_REFERENCE_H
#include "tests/lib/test.h"

enum { REF_WAITING = 0, REF_READY, REF_RUNNING, REF_DONE };
enum { REF_NONE = -1 };
typedef struct ref_op {
    uint32_t unit, index;
    int backward, before;
    uint8_t lanes;
    uint64_t ns, core, link, ready, start, end;
    uint64_t since;
    int turn;
    int state;
    uint32_t place;
} ref_op;
typedef struct ref_program {
    ref_op *ops;
    int n, n_backward;
    int *first;
    uint32_t n_units;
    uint64_t now, makespan;
    int core_ops;
} ref_program;

/* Lists the ops of a schedule: the backward ops of all tensors, then the ops of each tensor or group. */
static inline ref_program *ref_open(const esp__problem *p, const esp__schedule *d) {
    ref_program *r = calloc(1, sizeof *r);
    int n = (int)p->n_tensors;
    for (uint32_t u = 0; u < d->n_units; u++) n += (int)d->paths[u]->n;
    r->ops = calloc((size_t)n + 1, sizeof *r->ops);
    r->first = calloc(d->n_units + 1u, sizeof *r->first);
    r->n_units = d->n_units, r->core_ops = p->core_ops;
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        ref_op *o = &r->ops[r->n];
        o->unit = t, o->backward = 1, o->lanes = 1u << ESP__LANE_COMPUTE, o->ns = o->core = p->compute[t];
        o->before = t ? r->n - 1 : REF_NONE;
        r->n++;
    }
    r->n_backward = r->n;
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__path *path = d->paths[u];
        r->first[u] = r->n;
        for (uint32_t k = 0; k < path->n; k++) {
            ref_op *o = &r->ops[r->n];
            o->unit = u, o->index = k, o->lanes = path->ops[k].lanes;
            o->ns = path->ops[k].time.ns, o->core = path->ops[k].time.core, o->link = path->ops[k].time.link;
            o->before = k ? r->n - 1 : (int)(d->units[u].first + d->units[u].n - 1);
            r->n++;
        }
    }
    r->first[d->n_units] = r->n;
    return r;
}

static inline void ref_close(ref_program *r) {
    free(r->ops);
    free(r->first);
    free(r);
}

/* Returns 1 if a goes before b where both wait for a link or core: the op that is ready earlier goes first, a
 * communication or codec op before a backward op, then the smaller index. */
static int ref_key_less(const ref_op *a, const ref_op *b) {
    if (a->since != b->since) return a->since < b->since;
    if (a->backward != b->backward) return b->backward;
    if (a->unit != b->unit) return a->unit < b->unit;
    return a->index < b->index;
}

/* Returns how long (ns) an op occupies a link or core. */
static uint64_t ref_kept(const ref_op *o, uint32_t lane) {
    return lane >= ESP__LANE_INTRA && lane < ESP__LANE_PROGRESS ? o->link : o->core;
}

/* Returns the op that is next on a link or core, or REF_NONE if an op runs there or none is ready. */
static int ref_head(const ref_program *r, uint32_t lane, int ordered) {
    int head = REF_NONE;
    for (int i = 0; i < r->n; i++) {
        const ref_op *o = &r->ops[i];
        if (!(o->lanes >> lane & 1u) || o->state == REF_DONE) continue;
        if (o->state == REF_RUNNING && o->start + ref_kept(o, lane) > r->now) return REF_NONE;
        if (o->state == REF_RUNNING) continue;
        if (!ordered && !(o->state == REF_READY && o->turn)) continue;
        if (head == REF_NONE || (ordered ? o->place < r->ops[head].place : ref_key_less(o, &r->ops[head]))) head = i;
    }
    return head;
}

/* Returns the op that has been ready longest on a link, or REF_NONE if an op runs there or none is ready. */
static int ref_first(const ref_program *r, uint32_t lane) {
    int first = REF_NONE;
    for (int i = 0; i < r->n; i++) {
        const ref_op *o = &r->ops[i], *f = &r->ops[first == REF_NONE ? 0 : first];
        if (!(o->lanes >> lane & 1u)) continue;
        if (o->state == REF_RUNNING && o->start + ref_kept(o, lane) > r->now) return REF_NONE;
        if (o->state != REF_READY) continue;
        if (first == REF_NONE || o->ready < f->ready ||
            (o->ready == f->ready && (o->unit < f->unit || (o->unit == f->unit && o->index < f->index))))
            first = i;
    }
    return first;
}

/* Returns the op that starts next: it is ready, next on all of its links and cores, and first by ref_key_less. */
static int ref_next(ref_program *r, uint8_t ordered_lanes) {
    int head[ESP__LANES], next = REF_NONE;
    const uint8_t links = r->core_ops ? ESP__LINK_LANES : 0;
    for (uint8_t l = 0; l < ESP__LANES; l++)
        head[l] = ordered_lanes >> l & 1u ? ref_head(r, l, 1) : links >> l & 1u ? ref_first(r, l) : REF_NONE;
    for (int i = 0; i < r->n; i++) {
        ref_op *o = &r->ops[i];
        if (o->turn && o->since == r->now && o->lanes & links & ~ordered_lanes) o->turn = 0;
        int turn = o->state == REF_READY && !o->turn;
        for (uint8_t l = 0; l < ESP__LANES; l++)
            turn &= !((o->lanes & (ordered_lanes | links)) >> l & 1u) || head[l] == i;
        if (turn) o->turn = 1, o->since = r->now;
    }
    for (uint8_t l = 0; l < ESP__LANES; l++)
        if (!(ordered_lanes >> l & 1u)) head[l] = ref_head(r, l, 0);
    for (uint8_t l = 0; l < ESP__LANES; l++) {
        int i = head[l], all = 1;
        if (i == REF_NONE || r->ops[i].state != REF_READY) continue;
        for (uint8_t m = 0; m < ESP__LANES; m++) all &= !(r->ops[i].lanes >> m & 1u) || head[m] == i;
        if (all && (next == REF_NONE || ref_key_less(&r->ops[i], &r->ops[next]))) next = i;
    }
    return next;
}

static void ref_settle(ref_program *r) {
    for (int i = 0; i < r->n; i++)
        if (r->ops[i].state == REF_RUNNING && r->ops[i].end <= r->now) r->ops[i].state = REF_DONE;
    for (int i = 0; i < r->n; i++) {
        ref_op *o = &r->ops[i];
        if (o->state != REF_WAITING || (o->before != REF_NONE && r->ops[o->before].state != REF_DONE)) continue;
        o->state = REF_READY;
        o->ready = o->before == REF_NONE ? 0 : r->ops[o->before].end;
    }
}

/* Runs the program and returns when its last op ends. On the links and cores in the mask `ordered_lanes`, ops run in
 * the order of `place`, on all others in the order in which they become ready. */
static uint64_t ref_run(ref_program *r, uint8_t ordered_lanes) {
    for (int i = 0; i < r->n; i++) r->ops[i].state = REF_WAITING, r->ops[i].turn = 0;
    r->now = r->makespan = 0;
    for (;;) {
        uint64_t soonest = UINT64_MAX;
        ref_settle(r);
        int i = ref_next(r, ordered_lanes);
        if (i != REF_NONE) {
            ref_op *o = &r->ops[i];
            o->state = REF_RUNNING;
            o->start = r->now, o->end = r->now + o->ns;
            if (o->end > r->makespan) r->makespan = o->end;
            continue;
        }
        for (int k = 0; k < r->n; k++) {
            const ref_op *o = &r->ops[k];
            const uint64_t ends[] = {o->end, o->start + o->core, o->start + o->link};
            for (int e = 0; e < 3 && o->state == REF_RUNNING; e++)
                if (ends[e] > r->now && ends[e] < soonest) soonest = ends[e];
        }
        if (soonest == UINT64_MAX) break;
        r->now = soonest;
    }
    for (int i = 0; i < r->n; i++) assert_int_equal(r->ops[i].state, REF_DONE);
    return r->makespan;
}

static inline uint64_t ref_ready_order(ref_program *r) { return ref_run(r, 0); }

enum { REF_LINKS = 1u << ESP__LANE_INTRA | 1u << ESP__LANE_INTER, REF_ALL_LANES = REF_LINKS | ESP__CORE_LANES };
/* Runs the program. links[i] is the tensor or group whose next collective is the i-th on the links. Cores run ops in
 * the order in which they become ready. */
static inline uint64_t ref_link_order(ref_program *r, const uint32_t *links, uint32_t n) {
    int *next = calloc(r->n_units + 1u, sizeof *next);
    for (uint32_t u = 0; u < r->n_units; u++) next[u] = r->first[u];
    for (uint32_t i = 0; i < n; i++) {
        int *k = &next[links[i]];
        while (*k < r->first[links[i] + 1] && !(r->ops[*k].lanes & REF_LINKS)) ++*k;
        assert_true(*k < r->first[links[i] + 1]);
        r->ops[(*k)++].place = i;
    }
    free(next);
    return ref_run(r, REF_LINKS);
}

/* Runs the program. sequence[i] is the tensor or group whose next op is the i-th of all, or ESP__NEXT_BACKWARD. */
static inline uint64_t ref_sequence(ref_program *r, const uint32_t *sequence, uint32_t n) {
    int *next = calloc(r->n_units + 1u, sizeof *next), backward = 0;
    assert_int_equal(n, r->n);
    for (uint32_t u = 0; u < r->n_units; u++) next[u] = r->first[u];
    for (uint32_t i = 0; i < n; i++) {
        int k = sequence[i] == ESP__NEXT_BACKWARD ? backward++ : next[sequence[i]]++;
        assert_true(sequence[i] == ESP__NEXT_BACKWARD ? k < r->n_backward : k < r->first[sequence[i] + 1]);
        r->ops[k].place = i;
    }
    free(next);
    return ref_run(r, REF_ALL_LANES);
}
#endif
