/* move.c: the three steps of a collective, one chunk at a time: put copies inputs into shared memory, sum adds them,
 * get copies a result. No function blocks: a step returns 1 if it moved a chunk, 0 if it must wait for rank
 * m->waits_for, and a negative number on an error. */
#include "backends/shm/transport.h"
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* ---- flows ---- */
/* A flow is the sequence of chunks that this rank reads from one other rank over the emulated link. Arrival times
 * are computed for up to SHM_AHEAD chunks in advance, so that a rank that wakes late does not lower the link's rate. */
static int32_t shm_get_part(const shm_comm *m, int32_t rank) {
    return m->op.whole ? 0 : m->op.c.op == ESP_COLL_ALLTOALL ? m->rank : rank;
}
/* Returns how many bytes of chunk `i` are sent over the emulated link. Unused bytes after a payload are not. */
static uint64_t shm_flow_bytes(shm_comm *m, int get, int32_t rank, uint64_t i, shm_flow *f) {
    shm_op *o = &m->op;
    int32_t part = get ? shm_get_part(m, rank) : o->whole ? 0 : m->rank;
    uint64_t at, len = shm_piece(o, part, i, &at), sum = 0;
    if (!o->c.slot_bytes || !len) return len;
    const uint8_t *p = shm_cell(m, rank, i, o->per_destination ? (uint64_t)m->rank : 0);
    if (o->per_slot) {
        if (at % o->unit == 0) f->used = backend_slot_used(p, o->unit);
        return shm_used_here(f->used, at % o->unit, len);
    }
    for (uint64_t s = 0; s < len; s += o->unit) sum += backend_slot_used(p + s, o->unit);
    return sum;
}
/* Returns the time, on the emulated clock of link.c, at which chunk `i` of the rank that `l` describes was ready. */
static uint64_t shm_ready_ns(const shm_op *o, const shm_published *l, int get, uint64_t i) {
    return __atomic_load_n(get && o->gets_result ? &l->stamp[(o->base + i) % SHM_STAMPS] : &l->start_ns,
                           __ATOMIC_RELAXED);
}
/* Computes arrival times of chunks that `rank` has published, for at most SHM_AHEAD chunks that were not read yet. */
static void shm_flow_ahead(shm_comm *m, int get, int32_t rank) {
    shm_op *o = &m->op;
    shm_published *l = &m->published[rank];
    shm_flow *f = &m->flows[get * m->size + rank];
    uint64_t shown = BACKEND_LOAD(get && o->gets_result ? &l->sum : &l->put);
    uint64_t end = backend_min((get ? o->get_i : o->sum_i) + SHM_AHEAD, o->cols);
    if (!shm_crosses_link(m, rank)) return;
    for (; f->next < end && o->base + f->next < shown; f->next++) {
        uint64_t i = f->next, *due = &f->due[i % SHM_AHEAD];
        uint64_t from = shm_ready_ns(o, l, get, i);
        if (i >= SHM_AHEAD) from = backend_max(from, *due - shm_latency(m, rank, *due));
        from = backend_max(from, o->start_ns);
        uint64_t bytes = shm_flow_bytes(m, get, rank, i, f);
        uint64_t through = bytes ? shm_transfer(m, rank, from, bytes) : from;
        *due = bytes ? through + shm_latency(m, rank, through) : from;
    }
}
static uint64_t shm_flow_due(shm_comm *m, int get, int32_t rank, uint64_t i) {
    shm_op *o = &m->op;
    shm_published *l = &m->published[rank];
    if (!shm_crosses_link(m, rank)) return shm_ready_ns(o, l, get, i);
    shm_flow_ahead(m, get, rank);
    return m->flows[get * m->size + rank].due[i % SHM_AHEAD];
}
ESP__FN void shm_flows(shm_comm *m) {
    shm_op *o = &m->op;
    for (int32_t q = 0; q < m->size; q++) {
        if (q == m->rank) continue;
        if (o->sums && o->sum_i < o->cols) shm_flow_ahead(m, 0, q);
        if (o->gets && o->get_i < o->cols && (!o->whole || q == o->c.root)) shm_flow_ahead(m, 1, q);
    }
}

/* ---- the steps of a collective ---- */
ESP__FN bool shm_all_finished(shm_comm *m, uint64_t x) {
    uint64_t least = UINT64_MAX;
    if (m->min_got >= x) return true;
    for (int32_t q = 0; q < m->size; q++) {
        uint64_t got = q == m->rank ? UINT64_MAX : BACKEND_LOAD(&m->published[q].got);
        if (got < least) least = got, m->waits_for = q;
    }
    m->min_got = least;
    return least >= x;
}
/* Returns true if no peer still needs the shared memory that chunk `i` will overwrite. */
static bool shm_cell_free(shm_comm *m, uint64_t i) {
    uint64_t x = m->op.base + i + 1;
    return x <= m->cells || shm_all_finished(m, x - m->cells);
}

/* This rank reads a peer's buffer only between shm_enter and shm_leave. Returns false if the peer has failed, because
 * its program may then have freed the buffer. */
static bool shm_enter(shm_comm *m, int32_t rank) {
    if (!m->direct || rank == m->rank) return true;
    BACKEND_STORE(&m->published[m->rank].reading, 1u);
    return !BACKEND_LOAD(&m->published[rank].failed);
}
static void shm_leave(shm_comm *m) {
    if (m->direct) BACKEND_STORE(&m->published[m->rank].reading, 0u);
}
ESP__FN esp_status shm_peer_failed(shm_comm *m, int32_t rank) {
    if (BACKEND_LOAD(&m->published[rank].failed) == (uint32_t)-ESP_E_MISMATCH)
        return backend_error(m, ESP_E_MISMATCH,
                             "rank %d of %d ran another collective at the same time as one of its peers: see its own "
                             "error: all ranks must make the same calls in the same order",
                             (int)m->job_rank[rank], (int)m->size);
    return backend_error(m, ESP_E_PEER, "rank %d of %d left %s: see its own error", (int)rank, (int)m->size,
                         backend_op_name(m->op.c.op));
}

/* Copies with stores that bypass the caches, which is faster for results larger than a cache. The stores are visible to
 * other ranks before any later store. */
static void shm_copy_past_caches(uint8_t *to, const uint8_t *from, uint64_t bytes) {
#if defined(__x86_64__)
    uint64_t head = (64 - ((uintptr_t)to & 63)) & 63, i;
    if (bytes < 4096) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(to, from, head);
    for (i = head; i + 64 <= bytes; i += 64)
        for (int k = 0; k < 4; k++)
            _mm_stream_si128((__m128i *)(void *)(to + i) + k,
                             _mm_loadu_si128((const __m128i *)(const void *)(from + i) + k));
    memcpy(to + i, from + i, bytes - i);
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}
static void shm_copy(const shm_op *o, uint8_t *to, const uint8_t *from, uint64_t bytes) {
    if (o->stream)
        shm_copy_past_caches(to, from, bytes);
    else
        memcpy(to, from, bytes);
}
/* ---- put ---- */
static void shm_put_piece(shm_comm *m, int32_t part, uint64_t slot, const uint8_t *src) {
    shm_op *o = &m->op;
    uint64_t at, len = shm_piece(o, part, o->put_i, &at);
    uint8_t *to = shm_cell(m, m->rank, o->put_i, slot);
    if (!len) return;
    if (o->per_slot) {
        uint64_t in = at % o->unit;
        memcpy(to, src + at, shm_used_here(backend_slot_used(src + at - in, o->unit), in, len));
    } else if (o->c.slot_bytes) {
        backend_copy_slots(to, src + at, len, o->unit);
    } else {
        memcpy(to, src + at, len);
    }
}
ESP__FN int shm_put(shm_comm *m) {
    shm_op *o = &m->op;
    const uint8_t *src = (const uint8_t *)o->c.src.ptr;
    if (o->put_i == o->cols || !shm_cell_free(m, o->put_i)) return 0;
    if (!o->per_destination)
        shm_put_piece(m, o->whole ? 0 : m->rank, 0, src);
    else
        for (int32_t q = 0; q < m->size; q++)
            if (q != m->rank) shm_put_piece(m, q, (uint64_t)q, src + shm_part_at(o, q));
    BACKEND_STORE(&m->published[m->rank].put, o->base + ++o->put_i);
    return m->must_notify = true;
}

/* ---- sum ---- */
/* Returns the address of byte `from` of `rank`'s input, or NULL if that rank has failed. */
static const uint8_t *shm_input(shm_comm *m, int32_t rank, uint64_t from) {
    shm_op *o = &m->op;
    if (rank == m->rank) return (const uint8_t *)o->c.src.ptr + from;
    if (o->in_window) return shm_cell(m, rank, o->sum_i, o->per_destination ? (uint64_t)m->rank : 0);
    uint64_t address = __atomic_load_n(&m->published[rank].src, __ATOMIC_RELAXED) + from;
    return shm_enter(m, rank) ? (const uint8_t *)(uintptr_t)address : NULL;
}
/* Adds a chunk of all ranks' inputs, in rank order, into `out`, which may be this rank's own input. */
static int shm_sum_column(shm_comm *m, uint8_t *out, uint64_t from, uint64_t len) {
    shm_op *o = &m->op;
    uint64_t count = len / o->esize;
    const uint8_t *a = shm_input(m, 0, from), *b;
    int32_t q;
    for (q = 1; a && q < m->size; q++) {
        if (!(b = shm_input(m, q, from))) break;
        if (m->size == 2)
            backend_reduce(&o->sum, out, a, b, count, o->scale);
        else
            backend_reduce_step(&o->sum, q == m->size - 1 ? out : NULL, m->sum_acc, q == 1 ? a : NULL, b, count,
                                o->scale);
    }
    shm_leave(m);
    return q == m->size ? 0 : shm_peer_failed(m, a ? q : 0);
}
/* Publishes how many chunks this rank has finished. Peers wait for this count before they overwrite memory that this
 * rank reads. */
static void shm_publish_got(shm_comm *m) {
    shm_op *o = &m->op;
    uint64_t got = o->base + backend_min(o->sums ? o->sum_i : o->cols, o->gets ? o->get_i : o->cols);
    if (m->published[m->rank].got == got) return;
    BACKEND_STORE(&m->published[m->rank].got, got);
    m->must_notify |= o->in_window || o->result_window || got == o->base + o->cols;
}
static int shm_publish_sum(shm_comm *m) {
    shm_op *o = &m->op;
    shm_published *mine = &m->published[m->rank];
    __atomic_store_n(&mine->stamp[(o->base + o->sum_i) % SHM_STAMPS], backend_max(o->sum_due_ns, o->start_ns),
                     __ATOMIC_RELAXED);
    o->end_ns = backend_max(o->end_ns, o->sum_due_ns);
    o->sum_due_ns = 0;
    BACKEND_STORE(&mine->sum, o->base + ++o->sum_i);
    m->must_notify |= o->sum_i == o->cols || o->c.op != ESP_COLL_REDUCE_SCATTER;
    shm_publish_got(m);
    return 1;
}
ESP__FN int shm_sum(shm_comm *m) {
    shm_op *o = &m->op;
    int32_t part = o->whole ? 0 : m->rank;
    uint64_t at, len, due = 0, part_at = shm_part_at(o, part);
    uint8_t *out = (uint8_t *)o->c.dst.ptr;
    if (!o->sums || o->sum_i == o->cols) return 0;
    if (o->puts && o->put_i <= o->sum_i) /* put must copy inputs before results overwrite them */
        return 0;
    if (o->sum_due_ns) return backend_now_ns() >= o->sum_due_ns ? shm_publish_sum(m) : 0;
    len = shm_piece(o, part, o->sum_i, &at);
    if (!len) return shm_publish_sum(m);
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank && BACKEND_LOAD(&m->published[q].put) <= o->base + o->sum_i) return shm_wait_for(m, q);
    if (o->result_window && !shm_cell_free(m, o->sum_i)) return 0;
    uint8_t *cell = o->result_window ? shm_cell(m, m->rank, o->sum_i, shm_result_slot(m, o)) : NULL;
    bool keep = o->c.op != ESP_COLL_REDUCE || m->rank == o->c.root; /* dst gets the result */
    if (keep) out += o->c.op == ESP_COLL_REDUCE_SCATTER ? at : part_at + at;
    int s = shm_sum_column(m, cell ? cell : out, part_at + at, len);
    if (s < 0) return s;
    if (cell && keep) shm_copy(o, out, cell, len);
    m->moved += len * (uint64_t)m->size;
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank) shm_count(m, q, len);
    if (!m->pace.on) return shm_publish_sum(m);
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank) due = backend_max(due, shm_flow_due(m, 0, q, o->sum_i));
    return o->sum_due_ns = due, m->waits_for = -1, 1;
}

/* ---- get ---- */
/* Copies a chunk of `rank`'s input or result to `to`. *moved receives the number of bytes copied. */
static int shm_get_piece(shm_comm *m, int32_t rank, uint64_t from, uint64_t at, uint64_t len, uint8_t *to,
                         uint64_t *moved) {
    shm_op *o = &m->op;
    shm_published *l = &m->published[rank];
    uint64_t in = o->per_slot ? at % o->unit : 0;
    const uint8_t *p = NULL;
    if (in) len = shm_used_here(m->used[rank], in, len);
    *moved = len;
    if (!len) return 0;
    if (rank == m->rank)
        p = (const uint8_t *)o->c.src.ptr + from;
    else if (o->gets_result ? o->result_window : o->in_window)
        p = shm_cell(m, rank, o->get_i,
                     o->gets_result       ? shm_result_slot(m, o)
                     : o->per_destination ? (uint64_t)m->rank
                                          : 0);
    else {
        p = (const uint8_t *)(uintptr_t)__atomic_load_n(o->gets_result ? &l->dst : &l->src, __ATOMIC_RELAXED) + from;
        if (!shm_enter(m, rank)) return shm_leave(m), shm_peer_failed(m, rank);
    }
    if (!o->c.slot_bytes) {
        if (p != to) shm_copy(o, to, p, len);
    } else if (!o->per_slot) {
        *moved = backend_copy_slots(to, p, len, o->unit);
    } else {
        if (!in) m->used[rank] = backend_slot_used(p, o->unit), *moved = shm_used_here(m->used[rank], 0, len);
        if (p != to) memcpy(to, p, *moved);
    }
    if (rank != m->rank) shm_leave(m);
    return 0;
}
static int shm_finish_get(shm_comm *m) {
    shm_op *o = &m->op;
    o->end_ns = backend_max(o->end_ns, o->get_due_ns);
    o->get_due_ns = 0;
    if (o->c.op != ESP_COLL_BROADCAST && ++o->get_k < m->size) return 1;
    o->get_k = 0;
    o->get_i++;
    shm_publish_got(m);
    return 1;
}
ESP__FN int shm_get(shm_comm *m) {
    shm_op *o = &m->op;
    if (!o->gets || o->get_i == o->cols) return 0;
    if (o->get_due_ns) return backend_now_ns() >= o->get_due_ns ? shm_finish_get(m) : 0;
    int32_t q = o->whole ? o->c.root : (m->rank + o->get_k) % m->size;
    int32_t part = shm_get_part(m, q);
    uint64_t at, moved, len = shm_piece(o, part, o->get_i, &at);
    if (!len || (q == m->rank && o->gets_result)) return shm_finish_get(m);
    shm_published *l = &m->published[q];
    if (q != m->rank && BACKEND_LOAD(o->gets_result ? &l->sum : &l->put) <= o->base + o->get_i)
        return shm_wait_for(m, q);
    uint64_t from = o->gets_result || o->c.op == ESP_COLL_ALLTOALL ? shm_part_at(o, part) + at : at;
    uint8_t *to = (uint8_t *)o->c.dst.ptr + (o->whole ? 0 : shm_part_at(o, q)) + at;
    int s = shm_get_piece(m, q, from, at, len, to, &moved);
    if (s < 0) return s;
    m->moved += moved;
    if (q == m->rank) return shm_finish_get(m);
    shm_count(m, q, moved);
    if (!m->pace.on) return shm_finish_get(m);
    o->get_due_ns = shm_flow_due(m, 1, q, o->get_i);
    return m->waits_for = -1, 1;
}

ESP__FN bool shm_finished(shm_comm *m) {
    shm_op *o = &m->op;
    uint64_t end = o->base + o->cols;
    if ((o->puts && o->put_i < o->cols) || (o->sums && o->sum_i < o->cols) || (o->gets && o->get_i < o->cols))
        return false;
    if (o->in_window || !o->cols) return true;
    for (int32_t q = 0; q < m->size; q++) {
        bool reads = o->c.op == ESP_COLL_GATHER      ? q == o->c.root
                     : o->c.op == ESP_COLL_BROADCAST ? m->rank == o->c.root
                                                     : true;
        shm_published *l = &m->published[q];
        if (reads && q != m->rank && BACKEND_LOAD(o->c.op == ESP_COLL_REDUCE ? &l->sum : &l->got) < end)
            return shm_wait_for(m, q);
    }
    return true;
}

ESP__FN void shm_begin(shm_comm *m, uint64_t start_ns) {
    shm_op *o = &m->op;
    shm_published *mine = &m->published[m->rank];
    o->base = m->columns;
    m->columns += o->cols;
    o->clock_ns = o->end_ns = o->start_ns = start_ns;
    if (m->pace.on) memset(m->flows, 0, 2 * (size_t)m->size * sizeof *m->flows);
    o->begun = true;
    __atomic_store_n(&mine->src, (uint64_t)(uintptr_t)o->c.src.ptr, __ATOMIC_RELAXED);
    __atomic_store_n(&mine->dst, (uint64_t)(uintptr_t)o->c.dst.ptr, __ATOMIC_RELAXED);
    __atomic_store_n(&mine->start_ns, start_ns, __ATOMIC_RELAXED);
    if (!o->sums) BACKEND_STORE(&mine->sum, m->columns);
    if (!o->sums && !o->gets) BACKEND_STORE(&mine->got, m->columns);
    if (!o->puts) BACKEND_STORE(&mine->put, m->columns);
}
