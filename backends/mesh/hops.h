/* hops.h: a column of an allreduce that compresses at every hop: one piece of every part. route.h says what a rank does in a step. The
 * staging has one slot for the payload that a step reads, and two for those that steps leave, so that one travels while the next
 * is made. Messages of a column between two ranks have one tag: they are asked for in the order in which they are sent. */
#ifndef MESH_HOPS_H
#define MESH_HOPS_H
#include "backends/engine/route.h"

enum { MESH_HOP_TAG = 2, MESH_HOP_OUTS = 2, MESH_HOP_SLOTS = MESH_HOP_OUTS + 1 };

ENGINE_FN uint64_t mesh_hop_width(const esp_hops *x, uint64_t elements) {
    return (x->bound(x->user, elements) + 63) / 64 * 64;
}
/* The most elements of a payload; 0: not even a few fit. The same on all ranks. */
ENGINE_FN uint64_t mesh_hops_piece(const mesh_comm *m, const esp_hops *x) {
    uint64_t e = ENGINE_HOP_PIECE;
    while (e >= ENGINE_HOP_LEAST && (e > x->most || mesh_hop_width(x, e) > m->cell_bytes / MESH_HOP_SLOTS)) e /= 2;
    return e < ENGINE_HOP_LEAST ? 0 : e;
}
ENGINE_FN void mesh_hops_plan(const mesh_comm *m, mesh_req *r) {
    const uint64_t n = (uint64_t)m->who.size;
    r->whole = 0;
    r->part = (r->c.count + n - 1) / n;
    r->piece = mesh_hops_piece(m, r->c.hops);
    r->width = mesh_hop_width(r->c.hops, engine_min(r->piece, engine_max(r->part, 1)));
    r->cols = r->part ? (r->part - 1) / r->piece + 1 : 0;
    r->steps = engine_hops_steps(m->who.size, r->c.hops->route);
}

ENGINE_FN int mesh_hop_leaves(const engine_hop *t) { return t->what != ENGINE_HOP_ADD && t->what != ENGINE_HOP_TAKE; }

/* Sends the payload of a step to the rank that reads it, or in halving the last one to all. */
ENGINE_FN int mesh_hop_send(mesh_comm *m, mesh_column *x, const engine_hop *t, uint32_t out) {
    const mesh_req *r = x->r;
    const int32_t n = m->who.size;
    const uint8_t *p = x->cell + (1 + out) * r->width;
    if (r->c.hops->route == ESP_HOPS_HALVING && t->what == ENGINE_HOP_LAST) {
        for (int32_t k = 1; k < n; k++) {
            x->sending[out]++;
            const int s = mesh_post(m, x, MESH_HOP_OUT + out, mesh_peer(m, k), MESH_HOP_TAG, p, x->length[1 + out]);
            if (s) return s;
        }
        return 0;
    }
    int32_t to = (m->place + 1) % n;
    if (r->c.hops->route == ESP_HOPS_HALVING) { /* exchange k follows after n/2 + n/2 + ... steps: see route.h */
        uint64_t k = 0, end = (uint64_t)n / 2;
        for (; x->step >= end; end += (uint64_t)n >> k) k++;
        to = m->place ^ (int32_t)((uint64_t)1 << k);
    }
    x->sending[out]++;
    return mesh_post(m, x, MESH_HOP_OUT + out, m->order[to], MESH_HOP_TAG, p, x->length[1 + out]);
}

/* Does the steps whose payloads are there. Returns 1 when the column is done, 0 when it waits, or an error. */
ENGINE_FN int mesh_hops_go_on(mesh_comm *m, mesh_column *x) {
    const mesh_req *r = x->r;
    const engine_route route = {r->c.hops->route, m->who.size, m->place, m->order};
    for (; x->step < r->steps; x->step++, x->asked = x->here = 0) {
        const engine_hop t = engine_hop_of(&route, x->step);
        const uint64_t from = mesh_part_at(r, t.part) / 4, end = mesh_part_at(r, t.part + 1) / 4;
        const uint64_t begin = engine_min(end, from + x->i * r->piece), count = engine_min(r->piece, end - begin);
        const int arrives = t.from >= 0 && t.from != m->who.rank, leaves = mesh_hop_leaves(&t);
        uint32_t out = x->out;
        if (!count) continue;
        if (arrives && !x->asked) {
            const int s = mesh_post(m, x, MESH_HOP_IN, t.from, MESH_HOP_TAG, x->cell, r->width);
            if (s) return s;
            x->asked = 1;
        }
        if ((arrives && !x->here) || (leaves && x->sending[out])) return 0;
        if (t.from == m->who.rank)
            out = (out + MESH_HOP_OUTS - 1) % MESH_HOP_OUTS; /* the last payload that this rank left */
        uint8_t *slot = x->cell + (1 + out) * r->width;
        const uint8_t *in = arrives ? x->cell : t.from < 0 ? NULL : slot;
        const uint64_t used = arrives ? x->length[0] : t.from < 0 ? 0 : x->length[1 + out];
        const int s = engine_hop_codec(r->c.hops, &t, begin, count, in, used, slot, r->width, &x->length[1 + out]);
        if (s < 0) return s;
        if (!leaves) continue;
        if (x->length[1 + out] > r->width)
            return mesh_say(m, ESP_E_CORRUPT, "hops", "the codec says that it wrote more than the slot has");
        const int sent = mesh_hop_send(m, x, &t, out);
        if (sent) return sent;
        x->out = (out + 1) % MESH_HOP_OUTS;
    }
    return !x->sending[0] && !x->sending[1];
}
ENGINE_FN void mesh_hop_through(mesh_column *x, const mesh_message *t, uint64_t bytes) {
    if (t->what != MESH_HOP_IN)
        x->sending[t->what - MESH_HOP_OUT]--;
    else
        x->here = 1, x->length[0] = bytes;
}
#endif
