/* comm.h: the functions of the backend table that loop and shm share: requests, in the order in which they were
 * started, and waiting for all comms of a job at once. */
#ifndef ENGINE_COMM_H
#define ENGINE_COMM_H

enum { ENGINE_SPINS = 64, ENGINE_YIELDS = 64 };

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
        o->sum.two(dst, src, NULL, o->c.count, o->scale);
    else if (o->c.slot_bytes)
        engine_copy_slots(o, (uint8_t *)dst, (const uint8_t *)src, bytes);
    else if (dst != src)
        memcpy(dst, src, bytes);
}

ENGINE_FN void engine_next(engine_comm *m) {
    engine_req *r = engine_running(m);
    if (!r || m->op.begun) return;
    engine_plan(m, &r->c, &m->op);
    if (m->size > 1) engine_ring_plan(m, &m->op);
    if (m->size == 1) engine_alone(m);
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
        any = engine_stages(m);
        if (any < 0) return engine_fail(m, any);
        if (m->news) engine_tell(m);
        moved |= any;
        if (any || !(m->op.ring ? engine_ring_finished(m) : engine_finished(m))) continue;
        engine_done(m);
        moved = 1, any = engine_running(m) != NULL;
    }
    uint32_t broken = moved ? 0 : ENGINE_LOAD(&m->head->broken);
    if (broken) return engine_fail(m, engine_lost(m, (int32_t)broken - 1));
    return moved;
}

ENGINE_FN esp_status engine_check(engine_comm *m, const esp_coll *c) {
    const char *what = engine_op_name(c->op);
    const esp_host *h = m->host;
    int root = m->rank == c->root, sums = engine_op_sums(c->op);
    int rooted = c->op == ESP_COLL_BROADCAST || c->op == ESP_COLL_GATHER || c->op == ESP_COLL_REDUCE;
    if (c->op < ESP_COLL_ALLREDUCE || c->op > ESP_COLL_REDUCE)
        return engine_say(h, m->name, ESP_E_ARG, "there is no collective %u: use ESP_COLL_*", (unsigned)c->op);
    if (rooted && (c->root < 0 || c->root >= m->size))
        return engine_say(h, m->name, ESP_E_ARG, "%s: root %d is not in 0..%d", what, (int)c->root, (int)m->size - 1);
    if (c->slot_bytes ? sums || c->slot_bytes < ESP_PAYLOAD_HEADER : c->dtype < ESP_F32 || c->dtype > ESP_BF16)
        return engine_say(h, m->name, ESP_E_ARG, "%s: needs dtype f32, f16 or bf16%s", what,
                          sums ? " and no slots" : ", or slots of 64 bytes and more");
    if (c->hops || c->width > 1 || c->reduce > ESP_REDUCE_SUM)
        return engine_say(h, m->name, ESP_E_UNSUPPORTED, "%s: only sums of single numbers, without hops", what);
    if (c->op == ESP_COLL_ALLTOALL && c->count % (uint64_t)m->size)
        return engine_say(h, m->name, ESP_E_ARG, "alltoall: count %llu must be a multiple of the %d ranks",
                          (unsigned long long)c->count, (int)m->size);
    if (c->src.dev.kind > ESP_CPU || c->dst.dev.kind > ESP_CPU)
        return engine_say(h, m->name, ESP_E_UNSUPPORTED, "%s: moves host memory only: copy to the CPU first", what);
    if (c->count > UINT64_MAX / 16 / (c->slot_bytes ? c->slot_bytes : 4))
        return engine_say(h, m->name, ESP_E_ARG, "%s: count is too large", what);
    uint64_t per = (c->count + (uint64_t)m->size - 1) / (uint64_t)m->size;
    int own = (uint64_t)m->rank * per < c->count; /* this rank's part has elements */
    int needs_src = c->op == ESP_COLL_BROADCAST                               ? root
                    : c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER ? own
                                                                              : 1;
    int needs_dst = c->op == ESP_COLL_BROADCAST ? !root : rooted ? root : c->op == ESP_COLL_REDUCE_SCATTER ? own : 1;
    if (c->count && ((needs_src && !c->src.ptr) || (needs_dst && !c->dst.ptr)))
        return engine_say(h, m->name, ESP_E_ARG, "%s: %s is NULL", what, needs_src && !c->src.ptr ? "src" : "dst");
    return ESP_OK;
}

ENGINE_FN esp_status engine_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    engine_comm *m = (engine_comm *)comm;
    engine_req *r = &m->reqs[m->req_next % ENGINE_QUEUE];
    (void)s; /* a CPU stream has no work queued: its work is done when the call is made */
    if (m->error != ESP_OK) return m->error;
    if (ENGINE_LOAD(&m->aborted)) return ESP_E_PEER;
    esp_status st = engine_check(m, c);
    if (st != ESP_OK) return st;
    if (r->used)
        return engine_say(m->host, m->name, ESP_E_STATE, "%d requests are open: test them before starting more",
                          ENGINE_QUEUE);
    memset(r, 0, sizeof *r);
    memcpy(&r->c, c, engine_min(c->struct_size ? c->struct_size : sizeof r->c, sizeof r->c));
    r->used = 1;
    r->start_ns = m->pace.on ? engine_now_ns() : 0;
    m->req_next++;
    engine_next(m);
    if (m->op.puts && engine_put(m)) engine_tell(m);
    *req = r;
    return ESP_OK;
}

ENGINE_FN esp_status engine_test(void *comm, void *req) {
    engine_comm *m = (engine_comm *)comm;
    engine_req *r = (engine_req *)req;
    for (int spins = m->job->spin ? 32 : 0; !r->done; spins--) {
        int s = engine_drive(m);
        if (s < 0) return s;
        if (r->done) break;
        if (m->moved >= ENGINE_BUDGET || (!s && spins <= 0)) return ESP_PENDING;
        if (!s) engine_relax();
    }
    r->used = 0;
    m->ready--;
    return ESP_OK;
}

/* Drives every comm of the job. Returns 1 when the caller should look again. *due: the earliest time at which data
 * on the emulated link arrives, so that a comm can go on without a peer. */
ENGINE_FN int engine_drive_all(engine_job *j, int *pending, uint64_t *due) {
    int again = __atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) != 0;
    *pending = 0;
    *due = UINT64_MAX;
    for (engine_comm *m = j->comms; m; m = m->next) {
        int waiting = engine_running(m) != NULL;
        if (waiting && engine_drive(m)) again = 1;
        if (m->ready) again = 1;
        if (!waiting) continue;
        *pending = 1;
        if (m->op.sum_due_ns) *due = engine_min(*due, m->op.sum_due_ns);
        if (m->op.get_due_ns) *due = engine_min(*due, m->op.get_due_ns);
    }
    return again;
}

ENGINE_FN esp_status engine_progress(void *comm, uint64_t timeout_us) {
    engine_comm *m = (engine_comm *)comm;
    engine_job *j = m->job;
    int pending;
    uint64_t due, until = 0;
    for (int i = j->spin ? 0 : ENGINE_SPINS; i < ENGINE_SPINS + ENGINE_YIELDS; i++) {
        if (engine_drive_all(j, &pending, &due)) return ESP_OK;
        if (!pending) break;
        if (i < ENGINE_SPINS)
            engine_relax();
        else
            sched_yield();
    }
    until = engine_now_ns() + engine_min(timeout_us, 3600000000u) * 1000u;
    if (m->pace.on) prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    for (;;) {
        uint32_t seen = ENGINE_LOAD(&j->bell->word);
        ENGINE_STORE(&j->bell->asleep, 1u);
        int again = engine_drive_all(j, &pending, &due);
        uint64_t now = engine_now_ns(), end = engine_min(until, due);
        if (again || now >= until) break;
        /* a sleep costs about 50 us, so a shorter wait for the link yields instead */
        if (end > now + 60000)
            engine_sleep(j->bell, seen, due < until ? end - 30000 : end);
        else
            sched_yield();
    }
    ENGINE_STORE(&j->bell->asleep, 0u);
    return ESP_OK;
}

ENGINE_FN void engine_wake(void *comm) {
    engine_job *j = ((engine_comm *)comm)->job;
    ENGINE_STORE(&j->woken, 1u);
    if (ENGINE_LOAD(&j->bell->asleep)) engine_ring_bell(j->bell);
}
ENGINE_FN esp_status engine_abort(void *comm) {
    ENGINE_STORE(&((engine_comm *)comm)->aborted, 1u);
    engine_wake(comm);
    return ESP_OK;
}
ENGINE_FN int32_t engine_late(void *comm, void *req) {
    engine_comm *m = (engine_comm *)comm;
    return ((engine_req *)req)->done || !engine_running(m) ? -1 : m->waits_for;
}
ENGINE_FN esp_status engine_traffic(void *comm, esp_traffic *out) {
    engine_comm *m = (engine_comm *)comm;
    esp_traffic t;
    memset(&t, 0, sizeof t);
    t.struct_size = out->struct_size;
    t.intra_bytes = m->intra_bytes;
    t.inter_bytes = m->inter_bytes;
    memcpy(out, &t, engine_min(out->struct_size, sizeof t));
    return ESP_OK;
}
#endif
