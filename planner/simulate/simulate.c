/* simulate.c: computes when every op of a schedule starts and ends. An op starts when the op before it in its option
 * has ended and when its processor and links are free; the first op of an option waits for the backward that finishes
 * its gradients. Which op is next on a processor or link follows either from the times at which ops become ready
 * (generating an order) or from a given order (replaying it). See docs/design/planner.md, "Rules of time". */
#include "espresso_impl/base/heap.h"
#include "planner/simulate/schedule.h"

ESP__FN uint64_t esp__lanes_free(const uint64_t *free_at, uint32_t lanes, uint64_t ready) {
    if (lanes & 1u && free_at[0] > ready) ready = free_at[0];
    if (lanes & 2u && free_at[1] > ready) ready = free_at[1];
    if (lanes & 4u && free_at[2] > ready) ready = free_at[2];
    if (lanes & 8u && free_at[3] > ready) ready = free_at[3];
    for (uint32_t k = 4; lanes >> k; k++)
        if (lanes >> k & 1u && free_at[k] > ready) ready = free_at[k];
    return ready;
}

ESP__FN void esp__lanes_take(uint64_t *free_at, uint32_t lanes, uint64_t start, const esp__op_time *time) {
    const uint64_t core = start + time->core, link = start + time->link;
    if (lanes & 1u) free_at[0] = core;
    if (lanes & 2u) free_at[1] = core;
    if (lanes & 4u) free_at[2] = link;
    if (lanes & 8u) free_at[3] = link;
    for (uint32_t k = 4; lanes >> k; k++)
        if (lanes >> k & 1u) free_at[k] = k == ESP__LANE_PROGRESS ? core : link;
}

ESP__FN void esp__clock_open(esp__clock *c, const esp__problem *p, const esp__schedule *d) {
    memset(c, 0, sizeof *c);
    c->ready = esp__arena_get(p->arena, d->n_units * sizeof *c->ready);
    c->op = esp__arena_get(p->arena, d->n_units);
    c->turn = p->core_ops ? esp__arena_get(p->arena, d->n_units) : NULL;
}

static uint64_t esp__clock_run(esp__clock *c, uint32_t lanes, uint64_t ready, const esp__op_time *time) {
    uint64_t start = esp__lanes_free(c->free_at, lanes, ready), end = start + time->ns;
    esp__lanes_take(c->free_at, lanes, start, time);
    if (end > c->makespan) c->makespan = end;
    return start;
}

/* Simulates the next tensor's backward pass, and returns its start. A tensor, or a group that ends with this tensor,
 * becomes ready. */
ESP__FN uint64_t esp__clock_backward(esp__clock *c, const esp__problem *p, const esp__schedule *d) {
    const esp__op_time time = esp__backward_time(p->compute[c->tensor]);
    uint64_t start = esp__clock_run(c, 1u << ESP__LANE_COMPUTE, c->backward_ready, &time);
    c->backward_ready = start + time.ns;
    for (; c->unit < d->n_units && d->units[c->unit].first + d->units[c->unit].n - 1 == c->tensor; c->unit++)
        c->ready[c->unit] = c->backward_ready;
    c->tensor++;
    return start;
}

ESP__FN uint64_t esp__clock_unit(esp__clock *c, const esp__schedule *d, uint32_t u) {
    const esp__plan_op *op = &d->paths[u]->ops[c->op[u]++];
    uint64_t start = esp__clock_run(c, op->lanes, c->ready[u], &op->time);
    c->ready[u] = start + op->time.ns;
    return start;
}

/* ---- generating -------------------------------------------------------------------------------------------------- */
/* The heap has the ops that are ready to run, sorted by the time at which they became ready, and then by key. An op
 * of tensor or group u has the key u << 8 | (index of the op + 1); the backward pass before u has the key u << 8. */

/* Adds the next op of tensor or group u to the heap, but if the order of ops on links is given (`fixed_links`), no
 * op that uses links. */
static void esp__queue_unit(esp__heap *h, const esp__clock *c, const esp__schedule *d, uint32_t u, int fixed_links) {
    const esp__path *path = d->paths[u];
    if (c->op[u] == path->n) return;
    if (fixed_links && path->ops[c->op[u]].lanes & ESP__LINK_LANES) return;
    esp__heap_push(h, c->ready[u], (uint64_t)u << 8 | (c->op[u] + 1u));
}

static uint32_t esp__queue_run(esp__heap *h, esp__clock *c, const esp__problem *p, const esp__schedule *d,
                               int fixed_links) {
    const uint64_t key = h->at[0].key;
    uint32_t u = (uint32_t)(key >> 8), first = c->unit;
    if (key & 255u) {
        esp__clock_unit(c, d, u);
        const esp__path *path = d->paths[u];
        if (c->op[u] == path->n || (fixed_links && path->ops[c->op[u]].lanes & ESP__LINK_LANES))
            esp__heap_pop(h);
        else
            esp__heap_replace(h, c->ready[u], (uint64_t)u << 8 | (c->op[u] + 1u));
        return u;
    }
    esp__clock_backward(c, p, d);
    if (c->tensor < p->n_tensors)
        esp__heap_replace(h, c->backward_ready, (uint64_t)c->unit << 8);
    else
        esp__heap_pop(h);
    for (u = first; u < c->unit; u++) esp__queue_unit(h, c, d, u, fixed_links);
    return ESP__NEXT_BACKWARD;
}

ESP__FN uint32_t esp__sequence_length(const esp__problem *p, const esp__schedule *d) {
    uint32_t n = (uint32_t)p->n_tensors;
    for (uint32_t u = 0; u < d->n_units; u++) n += d->paths[u]->n;
    return n;
}

ESP__FN void esp__sequence_room(esp__problem *p, esp__schedule *d) {
    uint32_t n = esp__sequence_length(p, d);
    if (n > d->room_sequence) {
        d->room_sequence = n + n / 4;
        d->sequence = esp__arena_get(p->arena, d->room_sequence * sizeof *d->sequence);
    }
    d->n_sequence = n;
}

typedef struct esp__link_queues {
    uint32_t *unit[ESP__LEVELS], next[ESP__LEVELS], n[ESP__LEVELS];
} esp__link_queues;

static void esp__link_queues_open(esp__link_queues *q, const esp__problem *p, uint32_t n) {
    memset(q, 0, sizeof *q);
    for (uint32_t k = 0; k < p->n_levels; k++) q->unit[k] = esp__arena_get(p->arena, n * sizeof **q->unit + 4);
}

static uint32_t esp__links_of(const esp__clock *c, const esp__schedule *d, uint32_t u) {
    return (d->paths[u]->ops[c->op[u]].lanes & ESP__LINK_LANES) >> ESP__LANE_INTRA;
}

static int esp__links_lead(const esp__link_queues *q, uint32_t links, uint32_t u) {
    for (uint32_t k = 0; links >> k; k++)
        if (links >> k & 1u && (q->next[k] == q->n[k] || q->unit[k][q->next[k]] != u)) return 0;
    return 1;
}

/* Adds the next op of tensor or group u to the heap if it is first in the queues of all links that it uses. In the
 * heap it waits for its processor, from the time at which its links are free. */
static void esp__links_turn(esp__heap *h, esp__clock *c, const esp__schedule *d, const esp__link_queues *q,
                            uint32_t u) {
    if (c->turn[u] || !esp__links_lead(q, esp__links_of(c, d, u), u)) return;
    c->turn[u] = 1;
    esp__heap_push(h, esp__lanes_free(c->free_at, d->paths[u]->ops[c->op[u]].lanes & ESP__LINK_LANES, c->ready[u]),
                   (uint64_t)u << 8 | (c->op[u] + 1u));
}

/* Takes the first op off the heap and runs it. An op that uses links is taken twice: the first time it only joins the
 * links' queues, and the result is ESP__NOTHING_RAN. If an op ran, the result is its tensor or group, or
 * ESP__NEXT_BACKWARD if it was the backward computation of a tensor. */
static uint32_t esp__queue_run_cores(esp__heap *h, esp__clock *c, const esp__problem *p, const esp__schedule *d,
                                     esp__link_queues *q) {
    const uint64_t key = h->at[0].key;
    const uint32_t u = (uint32_t)(key >> 8), links = key & 255u ? esp__links_of(c, d, u) : 0;
    if (!links) return esp__queue_run(h, c, p, d, 0);
    if (!c->turn[u]) {
        esp__heap_pop(h);
        for (uint32_t k = 0; links >> k; k++)
            if (links >> k & 1u) q->unit[k][q->n[k]++] = u;
        esp__links_turn(h, c, d, q, u);
        return ESP__NOTHING_RAN;
    }
    c->turn[u] = 0;
    for (uint32_t k = 0; links >> k; k++) q->next[k] += links >> k & 1u;
    esp__queue_run(h, c, p, d, 0);
    for (uint32_t k = 0; links >> k; k++)
        if (links >> k & 1u && q->next[k] < q->n[k]) esp__links_turn(h, c, d, q, q->unit[k][q->next[k]]);
    return u;
}

ESP__FN uint64_t esp__by_ready(esp__problem *p, const esp__schedule *d, uint32_t *sequence) {
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__clock c;
    esp__link_queues q;
    esp__heap h = {esp__arena_get(p->arena, (d->n_units + 1u) * sizeof *h.at), 0};
    uint32_t n = 0;
    esp__clock_open(&c, p, d);
    esp__heap_push(&h, 0, 0);
    if (p->core_ops) {
        esp__link_queues_open(&q, p, esp__sequence_length(p, d));
        while (h.n) {
            const uint32_t u = esp__queue_run_cores(&h, &c, p, d, &q);
            if (u == ESP__NOTHING_RAN) continue;
            if (sequence) sequence[n] = u;
            n++;
        }
    }
    for (; h.n; n++) {
        const uint32_t u = esp__queue_run(&h, &c, p, d, 0);
        if (sequence) sequence[n] = u;
    }
    p->work += 2 * n;
    esp__arena_rewind(p->arena, mark);
    return c.makespan;
}

ESP__FN uint64_t esp__generate(esp__problem *p, esp__schedule *d) {
    esp__sequence_room(p, d);
    return d->makespan = esp__by_ready(p, d, d->sequence);
}

/* ---- links in a given order -------------------------------------------------------------------------------------- */
/* Returns the tensor or group whose op is next in the given order on link `lane`, or -1 if that op cannot run yet. */
static int esp__links_first(const esp__clock *c, const esp__schedule *d, const esp__link_queues *q, uint32_t lane) {
    if (q->next[lane] == q->n[lane]) return -1;
    uint32_t u = q->unit[lane][q->next[lane]], lanes;
    if (u >= c->unit || c->op[u] == d->paths[u]->n) return -1;
    lanes = (d->paths[u]->ops[c->op[u]].lanes & ESP__LINK_LANES) >> ESP__LANE_INTRA;
    if (!(lanes >> lane & 1u)) return -1;
    return esp__links_lead(q, lanes, u) ? (int)u : -1;
}

/* Returns 1 if the op of u, which uses links, must run before the heap's first op: if it needs no processor, or if
 * its links are free before the other op is ready. */
static int esp__links_before(const esp__clock *c, const esp__schedule *d, uint32_t u, const esp__heap *h) {
    const uint32_t lanes = d->paths[u]->ops[c->op[u]].lanes;
    if (!(lanes & ESP__CORE_LANES) || !h->n) return 1;
    const uint64_t at = esp__lanes_free(c->free_at, lanes & ESP__LINK_LANES, c->ready[u]);
    return at < h->at[0].ready || (at == h->at[0].ready && ((uint64_t)u << 8 | (c->op[u] + 1u)) < h->at[0].key);
}

/* Of the ops that are next on all links that they use, runs the one that can start first. Returns its tensor or
 * group, or -1 if there is none or the heap's first op must run before it. */
static int esp__links_run(esp__clock *c, const esp__problem *p, const esp__schedule *d, esp__link_queues *q,
                          const esp__heap *h) {
    uint64_t soonest = UINT64_MAX;
    int best = -1;
    for (uint32_t lane = 0; lane < p->n_levels; lane++) {
        const int u = esp__links_first(c, d, q, lane);
        if (u < 0 || u == best || !esp__links_before(c, d, (uint32_t)u, h)) continue;
        const uint32_t lanes = d->paths[u]->ops[c->op[u]].lanes;
        const uint64_t at = esp__lanes_free(c->free_at, lanes & ESP__LINK_LANES, c->ready[u]);
        if (at > soonest || (at == soonest && u > best)) continue;
        soonest = at;
        best = u;
    }
    if (best < 0) return -1;
    const uint32_t lanes = (d->paths[best]->ops[c->op[best]].lanes & ESP__LINK_LANES) >> ESP__LANE_INTRA;
    for (uint32_t k = 0; lanes >> k; k++) q->next[k] += lanes >> k & 1u;
    esp__clock_unit(c, d, (uint32_t)best);
    return best;
}

ESP__FN uint64_t esp__generate_with(esp__problem *p, esp__schedule *d, const uint32_t *links, uint32_t n_links) {
    esp__sequence_room(p, d);
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__clock c;
    esp__heap h = {esp__arena_get(p->arena, (d->n_units + 1u) * sizeof *h.at), 0};
    esp__link_queues q;
    uint32_t n = 0;
    esp__link_queues_open(&q, p, n_links);
    uint8_t *at = esp__arena_get(p->arena, d->n_units);
    esp__clock_open(&c, p, d);
    for (uint32_t i = 0; i < n_links; i++) {
        uint32_t u = links[i];
        const esp__path *path = d->paths[u];
        while (at[u] < path->n && !(path->ops[at[u]].lanes & ESP__LINK_LANES)) at[u]++;
        if (at[u] == path->n) continue;
        uint32_t lanes = (path->ops[at[u]++].lanes & ESP__LINK_LANES) >> ESP__LANE_INTRA;
        for (uint32_t k = 0; lanes >> k; k++)
            if (lanes >> k & 1u) q.unit[k][q.n[k]++] = u;
    }
    esp__heap_push(&h, 0, 0);
    for (;;) {
        int u = esp__links_run(&c, p, d, &q, &h);
        if (u >= 0)
            esp__queue_unit(&h, &c, d, (uint32_t)u, 1);
        else if (h.n)
            u = (int)esp__queue_run(&h, &c, p, d, 1);
        else
            break;
        d->sequence[n++] = (uint32_t)u;
    }
    esp__arena_rewind(p->arena, mark);
    /* If not all ops ran, some wait for each other in a circle, and the order is impossible. */
    d->makespan = n == d->n_sequence ? c.makespan : UINT64_MAX;
    return d->makespan;
}

/* ---- replaying --------------------------------------------------------------------------------------------------- */
ESP__FN uint64_t esp__replay(const esp__problem *p, const esp__schedule *d) {
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__clock c;
    esp__clock_open(&c, p, d);
    for (uint32_t i = 0; i < d->n_sequence; i++)
        if (d->sequence[i] == ESP__NEXT_BACKWARD)
            esp__clock_backward(&c, p, d);
        else
            esp__clock_unit(&c, d, d->sequence[i]);
    esp__arena_rewind(p->arena, mark);
    return c.makespan;
}

ESP__FN void esp__timeline(const esp__problem *p, const esp__schedule *d, esp_plan_event *out) {
    esp__checkpoint mark = esp__arena_checkpoint(p->arena);
    esp__clock c;
    esp__clock_open(&c, p, d);
    for (uint32_t i = 0; i < d->n_sequence; i++, out++) {
        uint32_t u = d->sequence[i];
        memset(out, 0, sizeof *out);
        if (u == ESP__NEXT_BACKWARD) {
            out->unit = c.tensor;
            out->kind = ESP_PLAN_BACKWARD;
            out->lanes = 1u << ESP__LANE_COMPUTE;
            out->bytes = 4 * p->model->tensors[c.tensor].elements;
            out->start_ns = esp__clock_backward(&c, p, d);
            out->end_ns = c.backward_ready;
            out->core_ns = out->end_ns - out->start_ns;
            continue;
        }
        const esp__plan_op *op = &d->paths[u]->ops[c.op[u]];
        out->unit = u;
        out->step = op->step;
        out->round = op->round;
        out->kind = op->kind;
        out->lanes = op->lanes;
        out->bytes = esp__op_bytes(p, &d->units[u], d->paths[u], c.op[u]);
        out->start_ns = esp__clock_unit(&c, d, u);
        out->end_ns = c.ready[u];
        out->core_ns = op->time.core;
        out->link_ns = op->time.link;
    }
    esp__arena_rewind(p->arena, mark);
}
