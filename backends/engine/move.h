/* move.h: the three stages of a collective, a column at a time. Nothing blocks: a stage function returns 1 when it
 * moved a column, 0 when it must wait (waits_for is then the peer), negative on an error. Knows nothing of requests
 * and sleeping. */
#ifndef ENGINE_MOVE_H
#define ENGINE_MOVE_H

ENGINE_FN int engine_waits(engine_comm *m, int32_t rank) { return m->waits_for = rank, 0; }

/* 1: all peers have finished all columns before `x`. */
ENGINE_FN int engine_all_through(engine_comm *m, uint64_t x) {
    uint64_t least = UINT64_MAX;
    if (m->min_got >= x) return 1;
    for (int32_t q = 0; q < m->size; q++) {
        uint64_t got = q == m->rank ? UINT64_MAX : ENGINE_LOAD(&m->lines[q].got);
        if (got < least) least = got, m->waits_for = q;
    }
    m->min_got = least;
    return least >= x;
}
/* 1: the cell of column `i` may be written, because all peers have finished the column that it held before. */
ENGINE_FN int engine_cell_free(engine_comm *m, uint64_t i) {
    uint64_t x = m->op.base + i + 1;
    return x <= m->cells || engine_all_through(m, x - m->cells);
}

/* Between enter and leave this rank may read a peer's buffers. Returns 0 when the peer gave up: the user owns its
 * buffers again. */
ENGINE_FN int engine_enter(engine_comm *m, int32_t rank) {
    if (m->reach != ENGINE_REACH_POINTER || rank == m->rank) return 1;
    ENGINE_STORE(&m->lines[m->rank].reading, 1u);
    return !ENGINE_LOAD(&m->lines[rank].gone);
}
ENGINE_FN void engine_leave(engine_comm *m) {
    if (m->reach == ENGINE_REACH_POINTER) ENGINE_STORE(&m->lines[m->rank].reading, 0u);
}
ENGINE_FN esp_status engine_lost(engine_comm *m, int32_t rank) {
    if (ENGINE_LOAD(&m->lines[rank].gone) == (uint32_t)-ESP_E_MISMATCH)
        return engine_say(m->host, m->name, ESP_E_MISMATCH,
                          "rank %d of %d ran another collective at the same time as one of its peers: see its own "
                          "error: all ranks must make the same calls in the same order",
                          (int)m->job_rank[rank], (int)m->size);
    return engine_say(m->host, m->name, ESP_E_PEER, "rank %d of %d gave up %s: see its own error", (int)rank,
                      (int)m->size, engine_op_name(m->op.c.op));
}

/* Copies into a result of this rank. */
ENGINE_FN void engine_copy(const engine_op *o, uint8_t *to, const uint8_t *from, uint64_t bytes) {
    if (o->stream)
        engine_copy_past_caches(to, from, bytes);
    else
        memcpy(to, from, bytes);
}
/* Copies the used bytes of the payload slots that begin at `from`; returns how many. */
ENGINE_FN uint64_t engine_copy_slots(const engine_op *o, uint8_t *to, const uint8_t *from, uint64_t bytes) {
    uint64_t sum = 0;
    for (uint64_t at = 0; at < bytes; at += o->unit) {
        uint64_t used = engine_slot_used(from + at, o->unit);
        if (to != from) memcpy(to + at, from + at, used);
        sum += used;
    }
    return sum;
}
/* ---- put ---- */
ENGINE_FN void engine_put_piece(engine_comm *m, int32_t part, uint64_t slot, const uint8_t *src) {
    engine_op *o = &m->op;
    uint64_t at, len = engine_piece(o, part, o->put_i, &at);
    uint8_t *to = engine_cell(m, m->rank, o->put_i, slot);
    if (!len) return;
    if (o->per_slot) {
        uint64_t in = at % o->unit;
        memcpy(to, src + at, engine_used_here(engine_slot_used(src + at - in, o->unit), in, len));
    } else if (o->c.slot_bytes) {
        engine_copy_slots(o, to, src + at, len);
    } else {
        memcpy(to, src + at, len);
    }
}
ENGINE_FN int engine_put(engine_comm *m) {
    engine_op *o = &m->op;
    const uint8_t *src = (const uint8_t *)o->c.src.ptr;
    if (o->put_i == o->cols || !engine_cell_free(m, o->put_i)) return 0;
    if (!o->by_destination)
        engine_put_piece(m, o->whole ? 0 : m->rank, 0, src);
    else
        for (int32_t q = 0; q < m->size; q++)
            if (q != m->rank) engine_put_piece(m, q, (uint64_t)q, src + engine_part_at(o, q));
    ENGINE_STORE(&m->lines[m->rank].put, o->base + ++o->put_i);
    return m->news = 1;
}

/* ---- sum ---- */
/* Address of a piece of `rank`'s input. A piece that must be pulled is copied to `room`. NULL: the peer cannot be
 * reached. */
ENGINE_FN const uint8_t *engine_input(engine_comm *m, int32_t rank, uint64_t from, uint64_t len, uint8_t *room) {
    engine_op *o = &m->op;
    if (rank == m->rank) return (const uint8_t *)o->c.src.ptr + from;
    if (o->in_window) return engine_cell(m, rank, o->sum_i, o->by_destination ? (uint64_t)m->rank : 0);
    uint64_t address = __atomic_load_n(&m->lines[rank].src, __ATOMIC_RELAXED) + from;
    if (m->reach == ENGINE_REACH_POINTER) return engine_enter(m, rank) ? (const uint8_t *)(uintptr_t)address : NULL;
    m->read_error = m->pull(m, rank, address, room, len);
    return m->read_error ? NULL : room;
}
/* Adds a column of every rank's input, in rank order, into `out`, which may be this rank's own input. */
ENGINE_FN int engine_sum_column(engine_comm *m, uint8_t *out, uint64_t from, uint64_t len) {
    engine_op *o = &m->op;
    uint64_t count = len / o->esize;
    const uint8_t *a = engine_input(m, 0, from, len, m->sum_in), *b;
    float *acc = (float *)(void *)m->sum_acc;
    int32_t q = 0;
    for (q = 1; a && q < m->size; q++) {
        if (!(b = engine_input(m, q, from, len, m->sum_in + ENGINE_CHUNK))) break;
        const int first = q == 1, last = q == m->size - 1;
        if (m->size == 2)
            engine_reduce(&o->sum, out, a, b, count, o->scale);
        else if (engine_sums_halves(&o->sum))
            engine_sum_halves(&o->sum, last ? out : NULL, acc, first ? a : NULL, b, count, o->scale);
        else
            engine_reduce_same(&o->sum, last ? out : m->sum_acc, first ? a : m->sum_acc, b, count,
                               last ? o->scale : 1.0f);
    }
    engine_leave(m);
    if (q == m->size) return 0;
    return m->read_error ? m->read_error : engine_lost(m, a ? q : 0);
}
/* Shows how many columns this rank has finished. Peers wait for this at the end, and before they reuse a window
 * cell. */
ENGINE_FN void engine_show_got(engine_comm *m) {
    engine_op *o = &m->op;
    uint64_t got = o->base + engine_min(o->sums ? o->sum_i : o->cols, o->gets ? o->get_i : o->cols);
    if (m->lines[m->rank].got == got) return;
    ENGINE_STORE(&m->lines[m->rank].got, got);
    m->news |= o->in_window || o->result_window || got == o->base + o->cols;
}
ENGINE_FN int engine_sum_shown(engine_comm *m) {
    engine_op *o = &m->op;
    engine_line *mine = &m->lines[m->rank];
    __atomic_store_n(&mine->stamp[(o->base + o->sum_i) % ENGINE_STAMPS], engine_max(o->sum_due_ns, o->start_ns),
                     __ATOMIC_RELAXED);
    o->end_ns = engine_max(o->end_ns, o->sum_due_ns);
    o->sum_due_ns = 0;
    ENGINE_STORE(&mine->sum, o->base + ++o->sum_i);
    m->news |= o->sum_i == o->cols || o->c.op != ESP_COLL_REDUCE_SCATTER;
    engine_show_got(m);
    return 1;
}
ENGINE_FN int engine_sum(engine_comm *m) {
    engine_op *o = &m->op;
    int32_t part = o->whole ? 0 : m->rank;
    uint64_t at, len, due = 0, part_at = engine_part_at(o, part);
    uint8_t *out = (uint8_t *)o->c.dst.ptr;
    if (!o->sums || o->sum_i == o->cols) return 0;
    if (o->puts && o->put_i <= o->sum_i)
        return 0; /* in place: the result would overwrite an input that is not in the window yet */
    if (o->sum_due_ns) return engine_now_ns() >= o->sum_due_ns ? engine_sum_shown(m) : 0;
    len = engine_piece(o, part, o->sum_i, &at);
    if (!len) return engine_sum_shown(m);
    for (int32_t q = 0; q < m->size; q++)
        if (q != m->rank && ENGINE_LOAD(&m->lines[q].put) <= o->base + o->sum_i) return engine_waits(m, q);
    if (o->result_window && !engine_cell_free(m, o->sum_i)) return 0;
    uint8_t *cell = o->result_window ? engine_cell(m, m->rank, o->sum_i, engine_result_slot(m)) : NULL;
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
        if (q != m->rank) due = engine_max(due, engine_flow_due(m, 0, q, o->sum_i));
    return o->sum_due_ns = due, m->waits_for = -1, 1;
}

/* ---- get ---- */
/* Copies a piece of `rank`'s input or result to `to`. *moved: its used bytes. */
ENGINE_FN int engine_get_piece(engine_comm *m, int32_t rank, uint64_t from, uint64_t at, uint64_t len, uint8_t *to,
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
                        o->gets_result      ? engine_result_slot(m)
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
        *moved = engine_copy_slots(o, to, p, len);
    } else {
        if (!in) m->used[rank] = engine_slot_used(p, o->unit), *moved = engine_used_here(m->used[rank], 0, len);
        if (p != to) memcpy(to, p, *moved);
    }
    if (rank != m->rank) engine_leave(m);
    return 0;
}
ENGINE_FN int engine_get_shown(engine_comm *m) {
    engine_op *o = &m->op;
    o->end_ns = engine_max(o->end_ns, o->get_due_ns);
    o->get_due_ns = 0;
    if (o->c.op != ESP_COLL_BROADCAST && ++o->get_k < m->size) return 1;
    o->get_k = 0;
    o->get_i++;
    engine_show_got(m);
    return 1;
}
ENGINE_FN int engine_get(engine_comm *m) {
    engine_op *o = &m->op;
    if (!o->gets || o->get_i == o->cols) return 0;
    if (o->get_due_ns) return engine_now_ns() >= o->get_due_ns ? engine_get_shown(m) : 0;
    int32_t q = o->whole ? o->c.root : (m->rank + o->get_k) % m->size;
    int32_t part = engine_get_part(m, q);
    uint64_t at, moved, len = engine_piece(o, part, o->get_i, &at);
    if (!len || (q == m->rank && o->gets_result)) return engine_get_shown(m);
    engine_line *l = &m->lines[q];
    if (q != m->rank && ENGINE_LOAD(o->gets_result ? &l->sum : &l->put) <= o->base + o->get_i)
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

/* 1: this rank's stages of the op are done, and no peer reads its buffers any more. */
ENGINE_FN int engine_finished(engine_comm *m) {
    engine_op *o = &m->op;
    uint64_t end = o->base + o->cols;
    if ((o->puts && o->put_i < o->cols) || (o->sums && o->sum_i < o->cols) || (o->gets && o->get_i < o->cols)) return 0;
    if (o->in_window || !o->cols) return 1;
    for (int32_t q = 0; q < m->size; q++) {
        int reads = o->c.op == ESP_COLL_GATHER      ? q == o->c.root
                    : o->c.op == ESP_COLL_BROADCAST ? m->rank == o->c.root
                                                    : 1;
        engine_line *l = &m->lines[q];
        if (reads && q != m->rank && ENGINE_LOAD(o->c.op == ESP_COLL_REDUCE ? &l->sum : &l->got) < end)
            return engine_waits(m, q);
    }
    return 1;
}

/* Begins an op that is planned: shows this rank's buffers to the others. */
ENGINE_FN void engine_begin(engine_comm *m, uint64_t start_ns) {
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
    if (!o->sums) ENGINE_STORE(&mine->sum, m->columns);
    if (!o->sums && !o->gets) ENGINE_STORE(&mine->got, m->columns);
    if (!o->puts) ENGINE_STORE(&mine->put, m->columns);
}
#endif
