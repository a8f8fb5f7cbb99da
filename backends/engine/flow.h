/* flow.h: what a rank pulls over the emulated link, other than in a ring. The columns from one peer are a flow. A
 * few columns of each flow are given to the links as soon as they are ready, before a stage asks for them: links
 * then stay busy although ranks wake late and read one peer after the other. Knows the plan, not the stages. */
#ifndef ENGINE_FLOW_H
#define ENGINE_FLOW_H

/* Which part of the buffer get() reads from `rank`. */
ENGINE_FN int32_t engine_get_part(const engine_comm *m, int32_t rank) {
    return m->op.whole ? 0 : m->op.c.op == ESP_COLL_ALLTOALL ? m->rank : rank;
}
/* Bytes of column `i` that travel: of payload slots, only the used bytes. */
ENGINE_FN uint64_t engine_flow_bytes(engine_comm *m, int get, int32_t rank, uint64_t i, engine_flow *f) {
    engine_op *o = &m->op;
    int32_t part = get ? engine_get_part(m, rank) : o->whole ? 0 : m->rank;
    uint64_t at, len = engine_piece(o, part, i, &at), sum = 0;
    if (!o->c.slot_bytes || !len) return len;
    const uint8_t *p = engine_cell(m, rank, i, o->by_destination ? (uint64_t)m->rank : 0);
    if (o->per_slot) {
        if (at % o->unit == 0) f->used = engine_slot_used(p, o->unit);
        return engine_used_here(f->used, at % o->unit, len);
    }
    for (uint64_t s = 0; s < len; s += o->unit) sum += engine_slot_used(p + s, o->unit);
    return sum;
}
/* Gives the links those columns of `rank` that are ready, at most ENGINE_AHEAD ahead of the stage. */
ENGINE_FN void engine_flow_ahead(engine_comm *m, int get, int32_t rank) {
    engine_op *o = &m->op;
    engine_line *l = &m->lines[rank];
    engine_flow *f = &m->flows[get * m->size + rank];
    uint64_t shown = ENGINE_LOAD(get && o->gets_result ? &l->sum : &l->put);
    uint64_t end = engine_min((get ? o->get_i : o->sum_i) + ENGINE_AHEAD, o->cols);
    if (m->nics[rank] == m->nics[m->rank]) return;
    for (; f->next < end && o->base + f->next < shown; f->next++) {
        uint64_t i = f->next, *due = &f->due[i % ENGINE_AHEAD];
        uint64_t from = __atomic_load_n(get && o->gets_result ? &l->stamp[(o->base + i) % ENGINE_STAMPS] : &l->start_ns,
                                        __ATOMIC_RELAXED);
        if (i >= ENGINE_AHEAD) from = engine_max(from, *due - engine_latency(m, rank, *due));
        from = engine_max(from, o->start_ns);
        uint64_t bytes = engine_flow_bytes(m, get, rank, i, f);
        uint64_t through = bytes ? engine_transfer(m, rank, from, bytes) : from;
        *due = bytes ? through + engine_latency(m, rank, through) : from;
    }
}
/* Logical time at which column `i` of `rank` arrives here. The column must be ready at its sender. */
ENGINE_FN uint64_t engine_flow_due(engine_comm *m, int get, int32_t rank, uint64_t i) {
    engine_op *o = &m->op;
    engine_line *l = &m->lines[rank];
    if (m->nics[rank] == m->nics[m->rank])
        return __atomic_load_n(get && o->gets_result ? &l->stamp[(o->base + i) % ENGINE_STAMPS] : &l->start_ns,
                               __ATOMIC_RELAXED);
    engine_flow_ahead(m, get, rank);
    return m->flows[get * m->size + rank].due[i % ENGINE_AHEAD];
}
/* Continues all flows of the running op. Called whenever the comm is driven. */
ENGINE_FN void engine_flows(engine_comm *m) {
    engine_op *o = &m->op;
    for (int32_t q = 0; q < m->size; q++) {
        if (q == m->rank) continue;
        if (o->sums && o->sum_i < o->cols) engine_flow_ahead(m, 0, q);
        if (o->gets && o->get_i < o->cols && (!o->whole || q == o->c.root)) engine_flow_ahead(m, 1, q);
    }
}
#endif
