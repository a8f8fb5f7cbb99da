/* move.c: the three stages of a collective, a column at a time, and what they pull over the emulated link. Nothing blocks: a stage
 * returns 1 when it moved a column, 0 when it must wait (waits_for is then the peer), negative on an error. Knows nothing of requests
 * and sleeping. */
#include "backends/shm/transport.h"
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

/* ---- flows ---- */
/* What a rank pulls over the emulated link, other than in a ring. The columns from one peer are a flow. A few columns of each flow are
 * given to the links as soon as they are ready, before a stage asks for them: links then stay busy although ranks wake late and read
 * one peer after the other. */
/* Which part of the buffer get() reads from `rank`. */
static int32_t engine_get_part(const engine_comm *m, int32_t rank) {
    return m->op.whole ? 0 : m->op.c.op == ESP_COLL_ALLTOALL ? m->rank : rank;
}
/* Bytes of column `i` that travel: of payload slots, only the used bytes. */
static uint64_t engine_flow_bytes(engine_comm *m, int get, int32_t rank, uint64_t i, engine_flow *f) {
    engine_op *o = &m->op;
    int32_t part = get ? engine_get_part(m, rank) : o->whole ? 0 : m->rank;
    uint64_t at, len = engine_piece(o, part, i, &at), sum = 0;
    if (!o->c.slot_bytes || !len) return len;
    const uint8_t *p = engine_cell(m, rank, i, o->by_destination ? (uint64_t)m->rank : 0);
    if (o->per_slot) {
        if (at % o->unit == 0) f->used = backend_slot_used(p, o->unit);
        return engine_used_here(f->used, at % o->unit, len);
    }
    for (uint64_t s = 0; s < len; s += o->unit) sum += backend_slot_used(p + s, o->unit);
    return sum;
}
/* Logical time at which column `i` of a peer was ready. */
static uint64_t engine_ready_ns(const engine_op *o, const engine_line *l, int get, uint64_t i) {
    return __atomic_load_n(get && o->gets_result ? &l->stamp[(o->base + i) % ENGINE_STAMPS] : &l->start_ns,
                           __ATOMIC_RELAXED);
}
/* Gives the links those columns of `rank` that are ready, at most ENGINE_AHEAD ahead of the stage. */
static void engine_flow_ahead(engine_comm *m, int get, int32_t rank) {
    engine_op *o = &m->op;
    engine_line *l = &m->lines[rank];
    engine_flow *f = &m->flows[get * m->size + rank];
    uint64_t shown = BACKEND_LOAD(get && o->gets_result ? &l->sum : &l->put);
    uint64_t end = backend_min((get ? o->get_i : o->sum_i) + ENGINE_AHEAD, o->cols);
    if (!engine_is_far(m, rank)) return;
    for (; f->next < end && o->base + f->next < shown; f->next++) {
        uint64_t i = f->next, *due = &f->due[i % ENGINE_AHEAD];
        uint64_t from = engine_ready_ns(o, l, get, i);
        if (i >= ENGINE_AHEAD) from = backend_max(from, *due - engine_latency(m, rank, *due));
        from = backend_max(from, o->start_ns);
        uint64_t bytes = engine_flow_bytes(m, get, rank, i, f);
        uint64_t through = bytes ? engine_transfer(m, rank, from, bytes) : from;
        *due = bytes ? through + engine_latency(m, rank, through) : from;
    }
}
/* Logical time at which column `i` of `rank` arrives here. The column must be ready at its sender. */
static uint64_t engine_flow_due(engine_comm *m, int get, int32_t rank, uint64_t i) {
    engine_op *o = &m->op;
    engine_line *l = &m->lines[rank];
    if (!engine_is_far(m, rank)) return engine_ready_ns(o, l, get, i);
    engine_flow_ahead(m, get, rank);
    return m->flows[get * m->size + rank].due[i % ENGINE_AHEAD];
}
ESP__FN void engine_flows(engine_comm *m) {
    engine_op *o = &m->op;
    for (int32_t q = 0; q < m->size; q++) {
        if (q == m->rank) continue;
        if (o->sums && o->sum_i < o->cols) engine_flow_ahead(m, 0, q);
        if (o->gets && o->get_i < o->cols && (!o->whole || q == o->c.root)) engine_flow_ahead(m, 1, q);
    }
}

/* ---- stages ---- */
ESP__FN int engine_all_through(engine_comm *m, uint64_t x) {
    uint64_t least = UINT64_MAX;
    if (m->min_got >= x) return 1;
    for (int32_t q = 0; q < m->size; q++) {
        uint64_t got = q == m->rank ? UINT64_MAX : BACKEND_LOAD(&m->lines[q].got);
        if (got < least) least = got, m->waits_for = q;
    }
    m->min_got = least;
    return least >= x;
}
/* 1: the cell of column `i` may be written, because all peers have finished the column that it held before. */
static int engine_cell_free(engine_comm *m, uint64_t i) {
    uint64_t x = m->op.base + i + 1;
    return x <= m->cells || engine_all_through(m, x - m->cells);
}

/* Between enter and leave this rank may read a peer's buffers. Returns 0 when the peer gave up: the user owns its
 * buffers again. */
static int engine_enter(engine_comm *m, int32_t rank) {
    if (m->reach != ENGINE_REACH_POINTER || rank == m->rank) return 1;
    BACKEND_STORE(&m->lines[m->rank].reading, 1u);
    return !BACKEND_LOAD(&m->lines[rank].gone);
}
static void engine_leave(engine_comm *m) {
    if (m->reach == ENGINE_REACH_POINTER) BACKEND_STORE(&m->lines[m->rank].reading, 0u);
}
ESP__FN esp_status engine_lost(engine_comm *m, int32_t rank) {
    if (BACKEND_LOAD(&m->lines[rank].gone) == (uint32_t)-ESP_E_MISMATCH)
        return backend_error(m, ESP_E_MISMATCH,
                             "rank %d of %d ran another collective at the same time as one of its peers: see its own "
                             "error: all ranks must make the same calls in the same order",
                             (int)m->job_rank[rank], (int)m->size);
    return backend_error(m, ESP_E_PEER, "rank %d of %d gave up %s: see its own error", (int)rank, (int)m->size,
                         backend_op_name(m->op.c.op));
}

/* memcpy with stores that bypass the caches. For results too large to stay in a cache, it saves reading the memory
 * that is overwritten. The stores are visible before any later one. */
static void engine_copy_past_caches(uint8_t *to, const uint8_t *from, uint64_t bytes) {
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
/* Copies into a result of this rank. */
static void engine_copy(const engine_op *o, uint8_t *to, const uint8_t *from, uint64_t bytes) {
    if (o->stream)
        engine_copy_past_caches(to, from, bytes);
    else
        memcpy(to, from, bytes);
}
/* ---- put ---- */
static void engine_put_piece(engine_comm *m, int32_t part, uint64_t slot, const uint8_t *src) {
    engine_op *o = &m->op;
    uint64_t at, len = engine_piece(o, part, o->put_i, &at);
    uint8_t *to = engine_cell(m, m->rank, o->put_i, slot);
    if (!len) return;
    if (o->per_slot) {
        uint64_t in = at % o->unit;
        memcpy(to, src + at, engine_used_here(backend_slot_used(src + at - in, o->unit), in, len));
    } else if (o->c.slot_bytes) {
        backend_copy_slots(to, src + at, len, o->unit);
    } else {
        memcpy(to, src + at, len);
    }
}
ESP__FN int engine_put(engine_comm *m) {
    engine_op *o = &m->op;
    const uint8_t *src = (const uint8_t *)o->c.src.ptr;
    if (o->put_i == o->cols || !engine_cell_free(m, o->put_i)) return 0;
    if (!o->by_destination)
        engine_put_piece(m, o->whole ? 0 : m->rank, 0, src);
    else
        for (int32_t q = 0; q < m->size; q++)
            if (q != m->rank) engine_put_piece(m, q, (uint64_t)q, src + engine_part_at(o, q));
    BACKEND_STORE(&m->lines[m->rank].put, o->base + ++o->put_i);
    return m->news = 1;
}

/* ---- sum ---- */
/* Address of a piece of `rank`'s input. A piece that must be pulled is copied to `room`. NULL: the peer cannot be
 * reached. */
static const uint8_t *engine_input(engine_comm *m, int32_t rank, uint64_t from, uint64_t len, uint8_t *room) {
    engine_op *o = &m->op;
    if (rank == m->rank) return (const uint8_t *)o->c.src.ptr + from;
    if (o->in_window) return engine_cell(m, rank, o->sum_i, o->by_destination ? (uint64_t)m->rank : 0);
    uint64_t address = __atomic_load_n(&m->lines[rank].src, __ATOMIC_RELAXED) + from;
    if (m->reach == ENGINE_REACH_POINTER) return engine_enter(m, rank) ? (const uint8_t *)(uintptr_t)address : NULL;
    m->read_error = m->pull(m, rank, address, room, len);
    return m->read_error ? NULL : room;
}
/* Adds a column of every rank's input, in rank order, into `out`, which may be this rank's own input. */
static int engine_sum_column(engine_comm *m, uint8_t *out, uint64_t from, uint64_t len) {
    engine_op *o = &m->op;
    uint64_t count = len / o->esize;
    const uint8_t *a = engine_input(m, 0, from, len, m->sum_in), *b;
    int32_t q;
    for (q = 1; a && q < m->size; q++) {
        if (!(b = engine_input(m, q, from, len, m->sum_in + ENGINE_CHUNK))) break;
        if (m->size == 2)
            backend_reduce(&o->sum, out, a, b, count, o->scale);
        else
            backend_reduce_step(&o->sum, q == m->size - 1 ? out : NULL, m->sum_acc, q == 1 ? a : NULL, b, count,
                                o->scale);
    }
    engine_leave(m);
    if (q == m->size) return 0;
    return m->read_error ? m->read_error : engine_lost(m, a ? q : 0);
}
/* Shows how many columns this rank has finished. Peers wait for this at the end, and before they reuse a window
 * cell. */
static void engine_show_got(engine_comm *m) {
    engine_op *o = &m->op;
    uint64_t got = o->base + backend_min(o->sums ? o->sum_i : o->cols, o->gets ? o->get_i : o->cols);
    if (m->lines[m->rank].got == got) return;
    BACKEND_STORE(&m->lines[m->rank].got, got);
    m->news |= o->in_window || o->result_window || got == o->base + o->cols;
}
static int engine_sum_shown(engine_comm *m) {
    engine_op *o = &m->op;
    engine_line *mine = &m->lines[m->rank];
    __atomic_store_n(&mine->stamp[(o->base + o->sum_i) % ENGINE_STAMPS], backend_max(o->sum_due_ns, o->start_ns),
                     __ATOMIC_RELAXED);
    o->end_ns = backend_max(o->end_ns, o->sum_due_ns);
    o->sum_due_ns = 0;
    BACKEND_STORE(&mine->sum, o->base + ++o->sum_i);
    m->news |= o->sum_i == o->cols || o->c.op != ESP_COLL_REDUCE_SCATTER;
    engine_show_got(m);
    return 1;
}
ESP__FN int engine_sum(engine_comm *m) {
    engine_op *o = &m->op;
    int32_t part = o->whole ? 0 : m->rank;
    uint64_t at, len, due = 0, part_at = engine_part_at(o, part);
    uint8_t *out = (uint8_t *)o->c.dst.ptr;
    if (!o->sums || o->sum_i == o->cols) return 0;
    if (o->puts && o->put_i <= o->sum_i)
        return 0; /* in place: the result would overwrite an input that is not in the window yet */
    if (o->sum_due_ns) return backend_now_ns() >= o->sum_due_ns ? engine_sum_shown(m) : 0;
    len = engine_piece(o, part, o->sum_i, &at);
    if (!len) return engine_sum_shown(m);
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank && BACKEND_LOAD(&m->lines[q].put) <= o->base + o->sum_i) return engine_waits(m, q);
    if (o->result_window && !engine_cell_free(m, o->sum_i)) return 0;
    uint8_t *cell = o->result_window ? engine_cell(m, m->rank, o->sum_i, engine_result_slot(m, o)) : NULL;
    int keep = o->c.op != ESP_COLL_REDUCE || m->rank == o->c.root; /* this rank keeps the result */
    if (keep) out += o->c.op == ESP_COLL_REDUCE_SCATTER ? at : part_at + at;
    int s = engine_sum_column(m, cell ? cell : out, part_at + at, len);
    if (s < 0) return s;
    if (cell && keep) engine_copy(o, out, cell, len);
    m->moved += len * (uint64_t)m->size;
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank) engine_count(m, q, len);
    if (!m->pace.on) return engine_sum_shown(m);
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank) due = backend_max(due, engine_flow_due(m, 0, q, o->sum_i));
    return o->sum_due_ns = due, m->waits_for = -1, 1;
}

/* ---- get ---- */
/* Copies a piece of `rank`'s input or result to `to`. *moved: its used bytes. */
static int engine_get_piece(engine_comm *m, int32_t rank, uint64_t from, uint64_t at, uint64_t len, uint8_t *to,
                            uint64_t *moved) {
    engine_op *o = &m->op;
    engine_line *l = &m->lines[rank];
    uint64_t in = o->per_slot ? at % o->unit : 0;
    const uint8_t *p = NULL;
    if (in) len = engine_used_here(m->used[rank], in, len);
    *moved = len;
    if (!len) return 0;
    if (rank == m->rank)
        p = (const uint8_t *)o->c.src.ptr + from;
    else if (o->gets_result ? o->result_window : o->in_window)
        p = engine_cell(m, rank, o->get_i,
                        o->gets_result      ? engine_result_slot(m, o)
                        : o->by_destination ? (uint64_t)m->rank
                                            : 0);
    else {
        uint64_t address = __atomic_load_n(o->gets_result ? &l->dst : &l->src, __ATOMIC_RELAXED) + from;
        if (m->reach == ENGINE_REACH_POINTER) {
            p = (const uint8_t *)(uintptr_t)address;
            if (!engine_enter(m, rank)) return engine_leave(m), engine_lost(m, rank);
        } else {
            int s = m->pull(m, rank, address, to, len);
            if (s) return s;
            p = to;
        }
    }
    if (!o->c.slot_bytes) {
        if (p != to) engine_copy(o, to, p, len);
    } else if (!o->per_slot) {
        *moved = backend_copy_slots(to, p, len, o->unit);
    } else {
        if (!in) m->used[rank] = backend_slot_used(p, o->unit), *moved = engine_used_here(m->used[rank], 0, len);
        if (p != to) memcpy(to, p, *moved);
    }
    if (rank != m->rank) engine_leave(m);
    return 0;
}
static int engine_get_shown(engine_comm *m) {
    engine_op *o = &m->op;
    o->end_ns = backend_max(o->end_ns, o->get_due_ns);
    o->get_due_ns = 0;
    if (o->c.op != ESP_COLL_BROADCAST && ++o->get_k < m->size) return 1;
    o->get_k = 0;
    o->get_i++;
    engine_show_got(m);
    return 1;
}
ESP__FN int engine_get(engine_comm *m) {
    engine_op *o = &m->op;
    if (!o->gets || o->get_i == o->cols) return 0;
    if (o->get_due_ns) return backend_now_ns() >= o->get_due_ns ? engine_get_shown(m) : 0;
    int32_t q = o->whole ? o->c.root : (m->rank + o->get_k) % m->size;
    int32_t part = engine_get_part(m, q);
    uint64_t at, moved, len = engine_piece(o, part, o->get_i, &at);
    if (!len || (q == m->rank && o->gets_result)) return engine_get_shown(m);
    engine_line *l = &m->lines[q];
    if (q != m->rank && BACKEND_LOAD(o->gets_result ? &l->sum : &l->put) <= o->base + o->get_i)
        return engine_waits(m, q);
    uint64_t from = o->gets_result || o->c.op == ESP_COLL_ALLTOALL ? engine_part_at(o, part) + at : at;
    uint8_t *to = (uint8_t *)o->c.dst.ptr + (o->whole ? 0 : engine_part_at(o, q)) + at;
    int s = engine_get_piece(m, q, from, at, len, to, &moved);
    if (s < 0) return s;
    m->moved += moved;
    if (q == m->rank) return engine_get_shown(m);
    engine_count(m, q, moved);
    if (!m->pace.on) return engine_get_shown(m);
    o->get_due_ns = engine_flow_due(m, 1, q, o->get_i);
    return m->waits_for = -1, 1;
}

ESP__FN int engine_finished(engine_comm *m) {
    engine_op *o = &m->op;
    uint64_t end = o->base + o->cols;
    if ((o->puts && o->put_i < o->cols) || (o->sums && o->sum_i < o->cols) || (o->gets && o->get_i < o->cols)) return 0;
    if (o->in_window || !o->cols) return 1;
    for (int32_t q = 0; q < m->size; q++) {
        int reads = o->c.op == ESP_COLL_GATHER      ? q == o->c.root
                    : o->c.op == ESP_COLL_BROADCAST ? m->rank == o->c.root
                                                    : 1;
        engine_line *l = &m->lines[q];
        if (reads && q != m->rank && BACKEND_LOAD(o->c.op == ESP_COLL_REDUCE ? &l->sum : &l->got) < end)
            return engine_waits(m, q);
    }
    return 1;
}

ESP__FN void engine_begin(engine_comm *m, uint64_t start_ns) {
    engine_op *o = &m->op;
    engine_line *mine = &m->lines[m->rank];
    o->base = m->columns;
    m->columns += o->cols;
    o->clock_ns = o->end_ns = o->start_ns = start_ns;
    if (m->pace.on) memset(m->flows, 0, 2 * (size_t)m->size * sizeof *m->flows);
    o->begun = 1;
    __atomic_store_n(&mine->src, (uint64_t)(uintptr_t)o->c.src.ptr, __ATOMIC_RELAXED);
    __atomic_store_n(&mine->dst, (uint64_t)(uintptr_t)o->c.dst.ptr, __ATOMIC_RELAXED);
    __atomic_store_n(&mine->start_ns, start_ns, __ATOMIC_RELAXED);
    if (!o->sums) BACKEND_STORE(&mine->sum, m->columns);
    if (!o->sums && !o->gets) BACKEND_STORE(&mine->got, m->columns);
    if (!o->puts) BACKEND_STORE(&mine->put, m->columns);
}
