/* ring.c: collectives around a ring, used only where the emulated link is on and reading peers directly would carry
 * the same bytes over a machine's link more than once. Ranks of one machine are neighbours in the ring, so it enters
 * and leaves each machine once. A link carries (n-1)/n of the data each way for reduce_scatter and allgather, and
 * 2(n-1)/n for allreduce. Broadcast and reduce form a chain that begins or ends at the root; a link carries their
 * data once.
 *
 * Sums follow the order of the ring, and halves are rounded at every hop, as on a real ring. All ranks still get the
 * same bits, since each part is summed once. All data passes through windows.
 *
 * A part is cut into chunks, and `group` chunks go around together. Ring item (g, s, i) is step s of chunk i of
 * group g. A rank does its ring items in order and counts them in `sum`. A ring item reads what the previous rank
 * left `lag` items ago, one step before, and leaves its own data in the window, over data that the next rank has
 * read. The rank that is furthest behind can always go on. */
#include "backends/shm/transport.h"

typedef struct engine_item {
    uint64_t chunk;
    int32_t step;
    int32_t part;     /* rank that owns the part */
    int reads, keeps; /* reads from the previous rank; leaves data for the next */
} engine_item;

/* Does rank a come before b in a ring that enters and leaves every unit of every level once? */
static int engine_ring_before(const engine_comm *m, const esp_group *g, int32_t a, int32_t b) {
    for (uint32_t k = m->outer.on ? 2 : 1; k >= 1; k--) {
        int32_t x = engine_unit(g, k, a), y = engine_unit(g, k, b);
        if (x != y) return x < y;
    }
    return a < b;
}
/* Orders ranks so that those of one machine, and of one rack, are side by side, machines in the order of their first rank. A ring
 * in this order enters and leaves each machine once. */
ESP__FN void engine_ring_order(engine_comm *m, const esp_group *g) {
    for (int32_t a = 0; a < m->size; a++) {
        int32_t at = a;
        m->machines += engine_unit(g, 1, a) == a;
        for (; at > 0 && engine_ring_before(m, g, a, m->ring_rank[at - 1]); at--)
            m->ring_rank[at] = m->ring_rank[at - 1];
        m->ring_rank[at] = a;
    }
}

/* Finds this rank's neighbours. The root and the ranks of its machine are at one end of a chain, so a chain too
 * enters and leaves each machine once. */
static void engine_ring_neighbours(const engine_comm *m, engine_op *o) {
    int32_t n = m->size, at = 0, start = 0;
    int reduce = o->c.op == ESP_COLL_REDUCE;
    if (o->chain) {
        while (m->nics[m->ring_rank[start]] != m->nics[o->c.root]) start++;
        m->order[at++] = o->c.root;
    }
    for (int32_t k = 0; k < n; k++) {
        int32_t q = m->ring_rank[(start + k) % n];
        if (!o->chain || q != o->c.root) m->order[at++] = q;
    }
    for (at = 0; m->order[at] != m->rank;) at++;
    o->place = reduce ? n - 1 - at : at;
    o->prev = m->order[(at + (reduce ? 1 : n - 1)) % n];
    o->next = m->order[(at + (reduce ? n - 1 : 1)) % n];
}

ESP__FN void engine_ring_plan(const engine_comm *m, engine_op *o) {
    int chain = o->c.op == ESP_COLL_BROADCAST || o->c.op == ESP_COLL_REDUCE;
    int around = o->c.op == ESP_COLL_ALLREDUCE || o->c.op == ESP_COLL_REDUCE_SCATTER || o->c.op == ESP_COLL_ALLGATHER;
    double direct_ns = (double)(o->c.count * o->unit) * m->pace.ns_per_byte * (m->size - 1);
    if (!m->pace.on || m->size < 3 || !o->cols || direct_ns <= (double)m->pace.latency_ns) return;
    if (!chain && !(around && m->machines < m->size)) return;
    o->ring = 1, o->chain = (uint8_t)chain;
    o->whole = (uint8_t)chain;
    o->in_window = o->result_window = 1;
    o->by_destination = o->puts = o->gets = 0;
    o->sums = 1;
    o->part = chain ? o->c.count : (o->c.count + (uint64_t)m->size - 1) / (uint64_t)m->size;
    engine_ring_neighbours(m, o);
    engine_plan_columns(m, o);
    o->slots = m->cells * ENGINE_CELL / o->width;
    o->steps = chain ? 1 : (uint64_t)m->size + (o->c.op == ESP_COLL_ALLREDUCE ? (uint64_t)m->size - 1 : 0);
    o->group = backend_min(backend_min(o->slots / 2, ENGINE_STAMPS / 3), o->cols);
    o->lag = chain ? 0 : o->group;
    o->cols = (o->cols + o->group - 1) / o->group * o->group * o->steps;
}

static engine_item engine_ring_item(const engine_comm *m, uint64_t idx) {
    const engine_op *o = &m->op;
    engine_item t;
    int32_t n = m->size, x = o->place;
    t.chunk = idx / (o->group * o->steps) * o->group + idx % o->group;
    t.step = (int32_t)(idx / o->group % o->steps);
    if (o->chain) {
        t.part = 0, t.reads = x > 0, t.keeps = x < n - 1;
        return t;
    }
    /* For the rank at place x: sums take part x-1-s in step s and end with the rank's own part; copies bring part
     * x-s. */
    int32_t shift = o->c.op == ESP_COLL_ALLGATHER ? t.step : t.step < n ? t.step + 1 : t.step - n + 1;
    t.part = m->order[(x - shift + 2 * n) % n];
    t.reads = t.step > 0;
    t.keeps = t.step < (int32_t)o->steps - 1;
    return t;
}
static uint8_t *engine_ring_slot(const engine_comm *m, int32_t rank, uint64_t idx) {
    return m->windows + (uint64_t)rank * m->cells * ENGINE_CELL + idx % m->op.slots * m->op.width;
}
static uint64_t engine_ring_copy(engine_comm *m, int32_t part, uint64_t at, uint64_t len, uint8_t *to,
                                 const uint8_t *from) {
    engine_op *o = &m->op;
    if (o->c.slot_bytes && !o->per_slot) return backend_copy_slots(to, from, len, o->unit);
    if (o->per_slot) {
        if (at % o->unit == 0) m->used[part] = backend_slot_used(from, o->unit);
        len = engine_used_here(m->used[part], at % o->unit, len);
    }
    if (to != from) memcpy(to, from, len);
    return len;
}

/* Does ring item `t`. Returns the bytes that came from the previous rank. */
static uint64_t engine_ring_move(engine_comm *m, const engine_item *t, uint64_t at, uint64_t len) {
    engine_op *o = &m->op;
    uint64_t idx = o->sum_i, count = len / o->esize, part_at = o->chain ? 0 : engine_part_at(o, t->part);
    const uint8_t *in = t->reads ? engine_ring_slot(m, o->prev, idx - o->lag) : NULL;
    uint8_t *keep = t->keeps ? engine_ring_slot(m, m->rank, idx) : NULL, *dst = (uint8_t *)o->c.dst.ptr;
    const uint8_t *src = (const uint8_t *)o->c.src.ptr;
    int sums = backend_op_sums(o->c.op) && (o->chain || t->step < m->size);
    int last = sums && (o->chain ? !t->keeps : t->step == m->size - 1); /* the sum holds all ranks' inputs */
    if (sums) {
        uint8_t *out = !last ? keep : dst + (o->c.op == ESP_COLL_REDUCE_SCATTER ? 0 : part_at) + at;
        if (in)
            backend_reduce(&o->sum, out, in, src + part_at + at, count, last ? o->scale : 1.0f);
        else
            memcpy(out, src + part_at + at, len);
        if (last && keep) memcpy(keep, out, len);
        return in ? len : 0;
    }
    if (!in) { /* the data begins here: this rank's own part, or the root's data */
        engine_ring_copy(m, t->part, at, len, keep, src + at);
        if (o->c.op == ESP_COLL_ALLGATHER) engine_ring_copy(m, t->part, at, len, dst + part_at + at, src + at);
        return 0;
    }
    uint64_t moved = engine_ring_copy(m, t->part, at, len, dst + part_at + at, in);
    if (keep) engine_ring_copy(m, t->part, at, len, keep, in);
    return moved;
}

static int engine_ring_shown(engine_comm *m) {
    engine_op *o = &m->op;
    engine_line *mine = &m->lines[m->rank];
    o->sum_due_ns = 0;
    __atomic_store_n(&mine->stamp[(o->base + o->sum_i) % ENGINE_STAMPS], o->end_ns, __ATOMIC_RELAXED);
    BACKEND_STORE(&mine->sum, o->base + ++o->sum_i);
    if (o->sum_i == o->cols) BACKEND_STORE(&mine->got, o->base + o->cols);
    return m->news = 1;
}
ESP__FN int engine_ring(engine_comm *m) {
    engine_op *o = &m->op;
    uint64_t idx = o->sum_i, at, len;
    int32_t prev = o->prev, next = o->next;
    if (idx == o->cols) return 0;
    if (o->sum_due_ns) return backend_now_ns() >= o->sum_due_ns ? engine_ring_shown(m) : 0;
    engine_item t = engine_ring_item(m, idx);
    len = engine_piece(o, t.part, t.chunk, &at);
    if (!len) return engine_ring_shown(m);
    if (t.reads && BACKEND_LOAD(&m->lines[prev].sum) <= o->base + idx - o->lag) return engine_waits(m, prev);
    if (t.keeps && !engine_all_through(m, o->base)) return 0; /* windows still hold an earlier collective */
    if (t.keeps && idx >= o->slots && BACKEND_LOAD(&m->lines[next].sum) <= o->base + idx - o->slots + o->lag)
        return engine_waits(m, next);
    uint64_t came = engine_ring_move(m, &t, at, len);
    m->moved += len;
    if (!t.reads) return engine_ring_shown(m);
    uint64_t ready = __atomic_load_n(&m->lines[prev].stamp[(o->base + idx - o->lag) % ENGINE_STAMPS], __ATOMIC_RELAXED);
    engine_count(m, prev, came);
    if (!engine_is_far(m, prev)) { /* same machine: no link between the two */
        o->end_ns = backend_max(o->end_ns, ready);
        return engine_ring_shown(m);
    }
    o->clock_ns = engine_transfer(m, prev, backend_max(o->clock_ns, ready), came);
    o->sum_due_ns = o->clock_ns + engine_latency(m, prev, o->clock_ns);
    o->end_ns = backend_max(o->end_ns, o->sum_due_ns);
    return m->waits_for = -1, 1;
}
ESP__FN int engine_ring_finished(engine_comm *m) {
    engine_op *o = &m->op;
    if (o->sum_i < o->cols) return 0;
    if (o->chain && o->place == m->size - 1) return 1;
    return BACKEND_LOAD(&m->lines[o->next].sum) >= o->base + o->cols ? 1 : engine_waits(m, o->next);
}
