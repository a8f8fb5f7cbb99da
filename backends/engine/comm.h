/* comm.h: the functions of the backend table that loop and shm share: requests, in the order in which they were
 * started, and waiting for all comms of a job at once. */
#ifndef ENGINE_COMM_H
#define ENGINE_COMM_H

enum { ENGINE_SPINS = 64, ENGINE_YIELDS = 64 };

ENGINE_FN esp_status engine_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    engine_comm *m = (engine_comm *)comm;
    engine_req *r = &m->reqs[m->req_next % ENGINE_QUEUE];
    (void)s; /* a CPU stream has no work queued: its work is done when the call is made */
    if (m->error != ESP_OK) return m->error;
    if (ENGINE_LOAD(&m->aborted)) return ESP_E_PEER;
    esp_coll call;
    memset(&call, 0, sizeof call); /* a caller of an older version has a shorter struct */
    memcpy(&call, c, engine_min(c->struct_size ? c->struct_size : sizeof call, sizeof call));
    const engine_who who = {m->host, m->name, m->rank, m->size};
    esp_status st = engine_check(&who, &call);
    if (st != ESP_OK) return st;
    if (r->used)
        return engine_say(m->host, m->name, ESP_E_STATE, "%d requests are open: test them before starting more",
                          ENGINE_QUEUE);
    memset(r, 0, sizeof *r);
    r->c = call;
    r->used = 1;
    r->start_ns = m->pace.on ? engine_now_ns() : 0;
    m->req_next++;
    engine_next(m);
    if (m->op.puts && engine_put(m)) engine_tell(m);
    engine_poke_self(m->job); /* there may be more to move */
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

ENGINE_FN int engine_woken(engine_job *j) { return __atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) != 0; }
ENGINE_FN esp_status engine_progress(void *comm, uint64_t timeout_us) {
    engine_comm *m = (engine_comm *)comm;
    engine_job *j = m->job;
    int pending;
    uint64_t due, until = 0;
    if (j->wait_fd >= 0 && !timeout_us) return engine_wait_arm(j), ESP_OK;
    for (int i = j->spin ? 0 : ENGINE_SPINS; i < ENGINE_SPINS + ENGINE_YIELDS; i++) {
        if (engine_woken(j) | engine_drive_all(j, &pending, &due)) return ESP_OK;
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
        ENGINE_STORE(&j->bell->asleep, ENGINE_ASLEEP);
        int again = engine_woken(j) | engine_drive_all(j, &pending, &due);
        uint64_t now = engine_now_ns(), end = engine_min(until, due);
        if (again || now >= until) break;
        /* a sleep costs about 50 us, so a shorter wait for the link yields instead */
        if (end > now + 60000)
            engine_sleep(j->bell, seen, due < until ? end - 30000 : end);
        else
            sched_yield();
    }
    ENGINE_STORE(&j->bell->asleep, j->wait_fd < 0 ? ENGINE_AWAKE : ENGINE_POLLED);
    engine_poke_self(j);
    return ESP_OK;
}

ENGINE_FN void engine_wake(void *comm) {
    engine_job *j = ((engine_comm *)comm)->job;
    ENGINE_STORE(&j->woken, 1u);
    if (ENGINE_LOAD(&j->bell->asleep) == ENGINE_ASLEEP) engine_ring_bell(j->bell);
    engine_poke_self(j);
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
/* What a comm keeps on each rank of each of its ranks, beside the region. */
ENGINE_FN uint64_t engine_rank_bytes(void) {
    return 3 * sizeof(int32_t) + sizeof(engine_bell *) + sizeof(engine_nic *) + sizeof(uint64_t) +
           sizeof(engine_hello) + 2 * sizeof(engine_flow);
}
ENGINE_FN esp_status engine_traffic(void *comm, esp_traffic *out) {
    engine_comm *m = (engine_comm *)comm;
    esp_traffic t;
    memset(&t, 0, sizeof t);
    t.struct_size = out->struct_size;
    t.intra_bytes = m->intra_bytes;
    t.inter_bytes = m->inter_bytes;
    memcpy(t.level_bytes, m->outer.bytes, sizeof t.level_bytes);
    t.memory_bytes = m->region_bytes / (uint64_t)m->size + m->scratch_bytes + engine_rank_bytes() * (uint64_t)m->size;
    memcpy(out, &t, engine_min(out->struct_size, sizeof t));
    return ESP_OK;
}
#endif
