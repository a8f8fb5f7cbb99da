/* ring.c: runs collectives around a ring of ranks, for large data and an emulated network. A ring enters and leaves
 * each machine once, so fewer bytes pass between machines than if ranks read each other's data directly. Broadcast
 * and reduce use an open chain with the root at one end. Each rank adds its numbers to the sum of the previous rank,
 * and rounds f16 and bf16. Every part is summed only once, so all ranks get the same bits. */
#include "backends/shm/transport.h"

/* A work item of a rank in a ring: it reads what the previous rank wrote `lag` items ago, adds or copies it, and
 * writes the result to its own shared memory for the next rank. Items are numbered so that `group` chunks take a
 * step before the first of them takes the next. Counter `sum` is the number of finished items. Ranks cannot wait for
 * each other in a circle, since the one with the fewest finished items never has to wait. */
typedef struct shm_item {
    uint64_t chunk;
    int32_t step;
    int32_t part; /* rank to which the part belongs */
    bool reads;   /* reads from the previous rank */
    bool keeps;   /* writes data for the next rank */
} shm_item;

/* Orders the ring so that ranks of one machine, and of one rack, are together. */
static bool shm_ring_before(const shm_comm *m, const esp_group *g, int32_t a, int32_t b) {
    for (uint32_t k = m->outer.on ? 2 : 1; k >= 1; k--) {
        int32_t x = shm_unit(g, k, a), y = shm_unit(g, k, b);
        if (x != y) return x < y;
    }
    return a < b;
}
ESP__FN void shm_ring_order(shm_comm *m, const esp_group *g) {
    for (int32_t a = 0; a < m->size; a++) {
        int32_t at = a;
        m->machines += shm_unit(g, 1, a) == a;
        for (; at > 0 && shm_ring_before(m, g, a, m->ring_rank[at - 1]); at--) m->ring_rank[at] = m->ring_rank[at - 1];
        m->ring_rank[at] = a;
    }
}

/* Finds this rank's position and neighbours. A chain begins with the root and the other ranks of its machine; a
 * reduce goes through it backwards. */
static void shm_ring_neighbours(const shm_comm *m, shm_op *o) {
    int32_t n = m->size, at = 0, start = 0;
    bool reduce = o->c.op == ESP_COLL_REDUCE;
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

ESP__FN void shm_ring_plan(const shm_comm *m, shm_op *o) {
    bool chain = o->c.op == ESP_COLL_BROADCAST || o->c.op == ESP_COLL_REDUCE;
    bool around = o->c.op == ESP_COLL_ALLREDUCE || o->c.op == ESP_COLL_REDUCE_SCATTER || o->c.op == ESP_COLL_ALLGATHER;
    double direct_ns = (double)(o->c.count * o->unit) * m->pace.ns_per_byte * (m->size - 1);
    if (!m->pace.on || m->size < 3 || !o->cols || direct_ns <= (double)m->pace.latency_ns) return;
    if (!chain && !(around && m->machines < m->size)) return;
    o->ring = true, o->chain = chain;
    o->whole = chain;
    o->in_window = o->result_window = true;
    o->per_destination = o->puts = o->gets = false;
    o->sums = true;
    o->part = chain ? o->c.count : (o->c.count + (uint64_t)m->size - 1) / (uint64_t)m->size;
    shm_ring_neighbours(m, o);
    shm_plan_columns(m, o);
    o->slots = m->cells * SHM_CELL / o->width;
    o->steps = chain ? 1 : (uint64_t)m->size + (o->c.op == ESP_COLL_ALLREDUCE ? (uint64_t)m->size - 1 : 0);
    o->group = backend_min(backend_min(o->slots / 2, SHM_STAMPS / 3), o->cols);
    o->lag = chain ? 0 : o->group;
    o->cols = (o->cols + o->group - 1) / o->group * o->group * o->steps;
}

static shm_item shm_ring_item(const shm_comm *m, uint64_t idx) {
    const shm_op *o = &m->op;
    shm_item t;
    int32_t n = m->size, x = o->place;
    t.chunk = idx / (o->group * o->steps) * o->group + idx % o->group;
    t.step = (int32_t)(idx / o->group % o->steps);
    if (o->chain) {
        t.part = 0, t.reads = x > 0, t.keeps = x < n - 1;
        return t;
    }
    /* In step s the rank at position x adds to part x-1-s (modulo n), so its last sum is its own part. In an
     * allgather it copies part x-s. */
    int32_t shift = o->c.op == ESP_COLL_ALLGATHER ? t.step : t.step < n ? t.step + 1 : t.step - n + 1;
    t.part = m->order[(x - shift + 2 * n) % n];
    t.reads = t.step > 0;
    t.keeps = t.step < (int32_t)o->steps - 1;
    return t;
}
static uint8_t *shm_ring_slot(const shm_comm *m, int32_t rank, uint64_t idx) {
    return m->windows + (uint64_t)rank * m->cells * SHM_CELL + idx % m->op.slots * m->op.width;
}
static uint64_t shm_ring_copy(shm_comm *m, int32_t part, uint64_t at, uint64_t len, uint8_t *to, const uint8_t *from) {
    shm_op *o = &m->op;
    if (o->c.slot_bytes && !o->per_slot) return backend_copy_slots(to, from, len, o->unit);
    if (o->per_slot) {
        if (at % o->unit == 0) m->used[part] = backend_slot_used(from, o->unit);
        len = shm_used_here(m->used[part], at % o->unit, len);
    }
    if (to != from) memcpy(to, from, len);
    return len;
}

/* Processes item `t`. Returns the bytes that it read from the previous rank. */
static uint64_t shm_ring_move(shm_comm *m, const shm_item *t, uint64_t at, uint64_t len) {
    shm_op *o = &m->op;
    uint64_t idx = o->sum_i, count = len / o->esize, part_at = o->chain ? 0 : shm_part_at(o, t->part);
    const uint8_t *in = t->reads ? shm_ring_slot(m, o->prev, idx - o->lag) : NULL;
    uint8_t *keep = t->keeps ? shm_ring_slot(m, m->rank, idx) : NULL, *dst = (uint8_t *)o->c.dst.ptr;
    const uint8_t *src = (const uint8_t *)o->c.src.ptr;
    bool sums = backend_op_sums(o->c.op) && (o->chain || t->step < m->size);
    bool last = sums && (o->chain ? !t->keeps : t->step == m->size - 1); /* the last step completes the sum */
    if (sums) {
        uint8_t *out = !last ? keep : dst + (o->c.op == ESP_COLL_REDUCE_SCATTER ? 0 : part_at) + at;
        if (in)
            backend_reduce(&o->sum, out, in, src + part_at + at, count, last ? o->scale : 1.0f);
        else
            memcpy(out, src + part_at + at, len);
        if (last && keep) memcpy(keep, out, len);
        return in ? len : 0;
    }
    if (!in) { /* the data are this rank's own: none come from another rank */
        shm_ring_copy(m, t->part, at, len, keep, src + at);
        if (o->c.op == ESP_COLL_ALLGATHER) shm_ring_copy(m, t->part, at, len, dst + part_at + at, src + at);
        return 0;
    }
    uint64_t moved = shm_ring_copy(m, t->part, at, len, dst + part_at + at, in);
    if (keep) shm_ring_copy(m, t->part, at, len, keep, in);
    return moved;
}

static int shm_publish_ring(shm_comm *m) {
    shm_op *o = &m->op;
    shm_published *mine = &m->published[m->rank];
    o->sum_due_ns = 0;
    __atomic_store_n(&mine->stamp[(o->base + o->sum_i) % SHM_STAMPS], o->end_ns, __ATOMIC_RELAXED);
    BACKEND_STORE(&mine->sum, o->base + ++o->sum_i);
    if (o->sum_i == o->cols) BACKEND_STORE(&mine->got, o->base + o->cols);
    return m->must_notify = true;
}
ESP__FN int shm_ring(shm_comm *m) {
    shm_op *o = &m->op;
    uint64_t idx = o->sum_i, at, len;
    int32_t prev = o->prev, next = o->next;
    if (idx == o->cols) return 0;
    if (o->sum_due_ns) return backend_now_ns() >= o->sum_due_ns ? shm_publish_ring(m) : 0;
    shm_item t = shm_ring_item(m, idx);
    len = shm_piece(o, t.part, t.chunk, &at);
    if (!len) return shm_publish_ring(m);
    if (t.reads && BACKEND_LOAD(&m->published[prev].sum) <= o->base + idx - o->lag) return shm_wait_for(m, prev);
    if (t.keeps && !shm_all_finished(m, o->base)) return 0; /* a peer still reads data of an earlier collective */
    if (t.keeps && idx >= o->slots && BACKEND_LOAD(&m->published[next].sum) <= o->base + idx - o->slots + o->lag)
        return shm_wait_for(m, next);
    uint64_t received = shm_ring_move(m, &t, at, len);
    m->moved += len;
    if (!t.reads) return shm_publish_ring(m);
    uint64_t ready =
        __atomic_load_n(&m->published[prev].stamp[(o->base + idx - o->lag) % SHM_STAMPS], __ATOMIC_RELAXED);
    shm_count(m, prev, received);
    if (!shm_crosses_link(m, prev)) {
        o->end_ns = backend_max(o->end_ns, ready);
        return shm_publish_ring(m);
    }
    o->clock_ns = shm_transfer(m, prev, backend_max(o->clock_ns, ready), received);
    o->sum_due_ns = o->clock_ns + shm_latency(m, prev, o->clock_ns);
    o->end_ns = backend_max(o->end_ns, o->sum_due_ns);
    return m->waits_for = -1, 1;
}
ESP__FN int shm_ring_finished(shm_comm *m) {
    shm_op *o = &m->op;
    if (o->sum_i < o->cols) return 0;
    if (o->chain && o->place == m->size - 1) return 1;
    return BACKEND_LOAD(&m->published[o->next].sum) >= o->base + o->cols ? 1 : shm_wait_for(m, o->next);
}
