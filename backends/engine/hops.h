/* hops.h: an allreduce whose payloads are decoded, summed and compressed again at every hop. The host's functions (esp_hops) call
 * the codec; this file decides which rank does what, and where payloads lie.
 *
 * The buffer is cut into one part a rank, and parts into pieces of `piece` elements: a payload carries a piece. A column is the
 * piece of the same number of every part. `group` columns go together. Everything passes through windows: a rank leaves a
 * payload in a slot of its own window, and the next rank on the way reads it there.
 *
 * route.h has the steps of the two routes.
 *
 * A rank does its items (group, step, column of the group) in order, and counts them in `sum`. What an item reads was left by an
 * item of an earlier step, so the rank that is furthest behind can always go on. Groups use the two halves of a window in
 * turn: a rank begins a group when every peer has finished the one before the last.
 *
 * Ranks decode the same last payload of a piece, so all get the same bits. */
#ifndef ENGINE_HOPS_H
#define ENGINE_HOPS_H
#include "backends/engine/route.h"

/* In front of a payload in its slot. */
typedef struct engine_hop_slot {
    uint64_t ready_ns; /* logical time at which it was there */
    uint64_t used, reserved0[6];
} engine_hop_slot;

ENGINE_FN uint64_t engine_hop_width(const esp_hops *x, uint64_t elements) {
    return sizeof(engine_hop_slot) + (x->bound(x->user, elements) + 63) / 64 * 64;
}
/* The most elements of a payload, so that a column's slots fit half a window, and a payload takes at most half a millisecond of the
 * emulated link; 0: not even a few do. Depends on nothing that differs between ranks. */
ENGINE_FN uint64_t engine_hops_piece(const engine_comm *m, const esp_hops *x) {
    uint64_t e = ENGINE_HOP_PIECE, most = m->cells * ENGINE_CELL / 2 / engine_hops_kept(m->size, x->route), link = most;
    if (m->pace.on) link = engine_max(4096, (uint64_t)(5e5 / (m->pace.ns_per_byte + 1e-9)));
    while (e >= ENGINE_HOP_LEAST && (e > x->most || engine_hop_width(x, e) > most)) e /= 2;
    while (e > 4096 && engine_hop_width(x, e) > link) e /= 2;
    return e < ENGINE_HOP_LEAST ? 0 : e;
}

ENGINE_FN void engine_hops_plan(engine_comm *m, engine_op *o) {
    const esp_hops *x = o->c.hops;
    const uint64_t kept = engine_hops_kept(m->size, x->route);
    o->whole = o->puts = o->gets = 0;
    o->sums = 1;
    o->part = (o->c.count + (uint64_t)m->size - 1) / (uint64_t)m->size;
    engine_ring_neighbours(m, o);
    o->piece = engine_hops_piece(m, x);
    const uint64_t columns = o->part ? (o->part - 1) / o->piece + 1 : 0;
    o->width = engine_hop_width(x, engine_min(o->piece, engine_max(o->part, 1)));
    o->steps = engine_hops_steps(m->size, x->route);
    o->group = engine_min(m->cells * ENGINE_CELL / 2 / (kept * o->width), engine_max(columns, 1));
    o->cols = (columns + o->group - 1) / o->group * o->group * o->steps;
}

/* The slot in which `rank` leaves what it makes in `step` of the running item's column. */
ENGINE_FN engine_hop_slot *engine_hop_at(const engine_comm *m, int32_t rank, uint64_t step) {
    const engine_op *o = &m->op;
    const uint64_t whole = m->cells * ENGINE_CELL, turn = o->sum_i / (o->group * o->steps) % 2;
    return (engine_hop_slot *)(void *)(m->windows + (uint64_t)rank * whole + turn * (whole / 2) +
                                       (step * o->group + o->sum_i % o->group) * o->width);
}

/* Bytes of the payload in a slot. A peer writes there: reads the number once, and believes at most what fits. */
ENGINE_FN uint64_t engine_hop_used(const engine_op *o, const engine_hop_slot *slot) {
    return engine_min(__atomic_load_n(&slot->used, __ATOMIC_RELAXED), o->width - sizeof *slot);
}

ENGINE_FN int engine_hop_shown(engine_comm *m) {
    engine_op *o = &m->op;
    engine_line *mine = &m->lines[m->rank];
    o->sum_due_ns = 0;
    ENGINE_STORE(&mine->sum, o->base + ++o->sum_i);
    if (o->sum_i % (o->group * o->steps) == 0) ENGINE_STORE(&mine->got, o->base + o->sum_i);
    return m->news = 1;
}

ENGINE_FN esp_status engine_hop_run(engine_comm *m, const engine_hop *t, uint64_t step, uint64_t begin,
                                    uint64_t count) {
    engine_op *o = &m->op;
    const engine_hop_slot *in = t->from < 0 ? NULL : engine_hop_at(m, t->from, t->reads);
    engine_hop_slot *out = engine_hop_at(m, m->rank, step);
    const uint64_t room = o->width - sizeof *out;
    return engine_hop_codec(o->c.hops, t, begin, count, in ? in + 1 : NULL, in ? engine_hop_used(o, in) : 0, out + 1,
                            room, &out->used);
}

/* When the payload arrives here over the emulated link. */
ENGINE_FN uint64_t engine_hop_arrives(engine_comm *m, const engine_hop *t, const engine_hop_slot *in) {
    engine_op *o = &m->op;
    if (m->nics[t->from] == m->nics[m->rank]) return in->ready_ns;
    o->clock_ns = engine_transfer(m, t->from, engine_max(o->clock_ns, in->ready_ns), engine_hop_used(o, in));
    return o->clock_ns + engine_latency(m, t->from, o->clock_ns);
}

ENGINE_FN int engine_hops(engine_comm *m) {
    engine_op *o = &m->op;
    const uint64_t idx = o->sum_i, each = o->group * o->steps, step = idx / o->group % o->steps;
    if (idx == o->cols) return 0;
    const engine_hop t = engine_hop_of(&(engine_route){o->c.hops->route, m->size, o->place, m->order}, step);
    const uint64_t from = engine_part_at(o, t.part) / 4, end = engine_part_at(o, t.part + 1) / 4;
    const uint64_t begin = engine_min(end, from + (idx / each * o->group + idx % o->group) * o->piece);
    const uint64_t count = engine_min(o->piece, end - begin);
    if (!count) return engine_hop_shown(m);
    const uint64_t wants = o->base + idx / each * each + t.reads * o->group + idx % o->group;
    if (!o->sum_due_ns) {
        if (t.from >= 0 && t.from != m->rank && ENGINE_LOAD(&m->lines[t.from].sum) <= wants)
            return engine_waits(m, t.from);
        if (!engine_all_through(m, o->base + (idx < 2 * each ? 0 : (idx / each - 1) * each))) return 0;
    }
    const engine_hop_slot *in = t.from < 0 ? NULL : engine_hop_at(m, t.from, t.reads);
    if (m->pace.on && !o->sum_due_ns) {
        o->sum_due_ns = in ? engine_hop_arrives(m, &t, in) : o->start_ns;
        m->waits_for = -1;
    }
    if (m->pace.on && engine_now_ns() < o->sum_due_ns) return 0;
    const uint64_t began = m->pace.on ? engine_now_ns() : 0;
    const esp_status s = engine_hop_run(m, &t, step, begin, count);
    if (s < 0) return s;
    if (m->pace.on) { /* the codec begins when the payload is there and the one before is done */
        o->core_ns = engine_max(o->core_ns, o->sum_due_ns) + (engine_now_ns() - began);
        o->end_ns = engine_max(o->end_ns, o->core_ns);
    }
    if (step < engine_hops_kept(m->size, o->c.hops->route)) engine_hop_at(m, m->rank, step)->ready_ns = o->core_ns;
    if (in && t.from != m->rank) engine_count(m, t.from, engine_hop_used(o, in));
    m->moved += count * 4;
    return engine_hop_shown(m);
}

/* Peers read this rank's window until they are through. */
ENGINE_FN int engine_hops_finished(engine_comm *m) {
    const engine_op *o = &m->op;
    return o->sum_i == o->cols && engine_all_through(m, o->base + o->cols);
}
#endif
