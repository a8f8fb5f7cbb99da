/* drive.h: moves the collectives of a comm, in the order in which they were started, and those of all comms of a job. Knows
 * requests, not callers. */
#ifndef ENGINE_DRIVE_H
#define ENGINE_DRIVE_H

ENGINE_FN engine_req *engine_running(engine_comm *m) {
    return m->req_first == m->req_next ? NULL : &m->reqs[m->req_first % ENGINE_QUEUE];
}
ENGINE_FN esp_status engine_fail(engine_comm *m, esp_status s) {
    if (m->error == ESP_OK) {
        m->error = s;
        engine_give_up(m);
    }
    return m->error;
}

/* A collective of one rank: copies its source to its destination, scaled. */
ENGINE_FN void engine_alone(engine_comm *m) {
    engine_op *o = &m->op;
    uint64_t bytes = o->c.count * o->unit;
    void *dst = o->c.dst.ptr;
    const void *src = o->c.src.ptr;
    o->cols = 0;
    if (!bytes || o->c.op == ESP_COLL_BROADCAST) return;
    if (engine_op_sums(o->c.op) && (o->scale < 1.0f || o->scale > 1.0f))
        engine_reduce(&o->sum, (uint8_t *)dst, (const uint8_t *)src, NULL, bytes / o->esize, o->scale);
    else if (o->c.slot_bytes)
        engine_copy_slots(o, (uint8_t *)dst, (const uint8_t *)src, bytes);
    else if (dst != src)
        memcpy(dst, src, bytes);
}

ENGINE_FN void engine_next(engine_comm *m) {
    engine_req *r = engine_running(m);
    if (!r || m->op.begun) return;
    engine_plan(m, &r->c, &m->op);
    if (m->size > 1)
        engine_ring_plan(m, &m->op);
    else
        engine_alone(m);
    engine_call_show(m);
    engine_begin(m, engine_max(r->start_ns, m->logical_end_ns));
    engine_tell(m);
}
ENGINE_FN void engine_done(engine_comm *m) {
    engine_req *r = engine_running(m);
    r->done = 1;
    m->ready++;
    m->req_first++;
    m->op.begun = 0;
    m->logical_end_ns = m->op.end_ns;
    m->waits_for = -1;
}

/* Tries each stage once. */
ENGINE_FN int engine_stages(engine_comm *m) {
    if (m->op.ring) return engine_ring(m);
    if (m->pace.on) engine_flows(m);
    int got = engine_get(m), summed = got < 0 ? got : engine_sum(m);
    if (summed < 0) return summed;
    return (m->op.puts && engine_put(m)) || got || summed;
}

/* Moves what can be moved now, at most ENGINE_BUDGET bytes. Returns 1 when it moved something, 0 when not, negative
 * on error. */
ENGINE_FN int engine_drive(engine_comm *m) {
    int moved = 0, any = 1;
    if (m->error != ESP_OK) return m->error;
    if (!engine_running(m)) return 0;
    if (ENGINE_LOAD(&m->aborted)) return engine_fail(m, ESP_E_PEER);
    if (m->pace.on && *m->link.file) engine_link_look(m, engine_now_ns());
    m->moved = 0;
    while (any && m->moved < ENGINE_BUDGET) {
        engine_next(m);
        any = engine_call_compare(m);
        if (any == ESP_OK) any = engine_stages(m);
        if (any < 0) return engine_fail(m, any);
        if (m->news) engine_tell(m);
        if (m->news)
            return engine_fail(
                m, engine_say(m->host, m->name, ESP_E_COMM, "cannot wake a rank that polls: %s", strerror(errno)));
        moved |= any;
        if (any || !(m->op.ring ? engine_ring_finished(m) : engine_finished(m))) continue;
        if ((any = engine_call_compare(m)) != ESP_OK) return engine_fail(m, any);
        engine_done(m);
        moved = 1, any = engine_running(m) != NULL;
    }
    uint32_t broken = moved ? 0 : ENGINE_LOAD(&m->head->broken);
    if (broken && (any = engine_call_compare(m)) != ESP_OK) return engine_fail(m, any);
    if (broken) return engine_fail(m, engine_lost(m, (int32_t)broken - 1));
    return moved;
}

/* Drives every comm of the job. Returns ENGINE_MOVED, where more may move at once, and ENGINE_READY, where a request waits
 * for its test(). *due: the earliest time at which data on the emulated link arrives, so that a comm can go on without a
 * peer. */
enum { ENGINE_MOVED = 1, ENGINE_READY = 2 };
ENGINE_FN int engine_drive_all(engine_job *j, int *pending, uint64_t *due) {
    int again = 0;
    *pending = 0;
    *due = UINT64_MAX;
    for (engine_comm *m = j->comms; m; m = m->next) {
        int waiting = engine_running(m) != NULL;
        if (waiting && engine_drive(m)) again |= ENGINE_MOVED;
        if (m->ready) again |= ENGINE_READY;
        if (!waiting) continue;
        *pending = 1;
        if (m->op.sum_due_ns) *due = engine_min(*due, m->op.sum_due_ns);
        if (m->op.get_due_ns) *due = engine_min(*due, m->op.get_due_ns);
    }
    return again;
}
#endif
