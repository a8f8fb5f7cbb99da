/* comm.h: the functions of the backend table, and waiting. A wire tells nobody when a message comes through: a thread that waits looks
 * after naps, at first short ones. A timer is the descriptor on which it sleeps, so it can sleep on other backends as well. */
#ifndef MESH_COMM_H
#define MESH_COMM_H

enum { MESH_LOOKS = 32 }; /* with a yield between, before the first nap */

ENGINE_FN esp_status mesh_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    mesh_comm *m = (mesh_comm *)comm;
    mesh_req *r = &m->reqs[m->next_req % MESH_QUEUE];
    esp_coll call;
    (void)s; /* a CPU stream has no work queued: its work is done when the call is made */
    if (m->error != ESP_OK) return m->error;
    if (__atomic_load_n(&m->aborted, __ATOMIC_SEQ_CST)) return ESP_E_PEER;
    memset(&call, 0, sizeof call); /* a caller of an older version has a shorter struct */
    memcpy(&call, c, engine_min(c->struct_size ? c->struct_size : sizeof call, sizeof call));
    esp_status st = engine_check(&m->who, &call);
    if (st != ESP_OK) return st;
    if (call.slot_bytes > MESH_MESSAGE)
        return engine_say(m->who.host, m->who.name, ESP_E_UNSUPPORTED,
                          "payload slots of %llu bytes: at most %d go into one message: cut the tensor into chunks",
                          (unsigned long long)call.slot_bytes, (int)MESH_MESSAGE);
    if (r->used)
        return engine_say(m->who.host, m->who.name, ESP_E_STATE, "%d requests are open: test them before starting more",
                          MESH_QUEUE);
    mesh_plan(m, &call, r);
    if (m->who.size == 1) mesh_alone(r), r->cols = 0;
    r->used = 1;
    m->next_req++;
    m->job->nap_ns = MESH_NAP_LEAST_NS;
    *req = r;
    const int begun = mesh_begin_some(m);
    return begun < 0 ? mesh_fail(m, begun) : ESP_OK;
}

ENGINE_FN esp_status mesh_test(void *comm, void *req) {
    mesh_comm *m = (mesh_comm *)comm;
    mesh_req *r = (mesh_req *)req;
    if (!r->done) {
        const int s = mesh_drive(m);
        if (s < 0) return s;
        if (!r->done) return ESP_PENDING;
    }
    r->used = 0;
    m->ready--;
    return ESP_OK;
}

ENGINE_FN void mesh_timer(mesh_job *j, uint64_t ns) {
    struct itimerspec at;
    memset(&at, 0, sizeof at);
    at.it_value.tv_sec = (time_t)(ns / 1000000000u), at.it_value.tv_nsec = (long)(ns % 1000000000u);
    if (j->timer >= 0) timerfd_settime(j->timer, 0, &at, NULL);
}
/* Makes the timer unreadable, moves what can be moved, and sets it for the next look; off where nothing is under way. */
ENGINE_FN void mesh_arm(mesh_job *j) {
    int pending, again;
    mesh_timer(j, 0);                                  /* setting it also makes it unreadable */
    __atomic_store_n(&j->woken, 0u, __ATOMIC_SEQ_CST); /* the caller looks at everything now */
    again = mesh_drive_all(j, &pending);
    j->nap_ns = again ? MESH_NAP_LEAST_NS : engine_min(j->nap_ns * 2, MESH_NAP_MOST_NS);
    if (__atomic_load_n(&j->woken, __ATOMIC_SEQ_CST)) again = 1;
    mesh_timer(j, again ? 1 : pending ? j->nap_ns : 0);
    if (!again && __atomic_load_n(&j->woken, __ATOMIC_SEQ_CST))
        mesh_timer(j, 1); /* wake() came before the line above */
}
ENGINE_FN int32_t mesh_wait_fd(void *comm) { return ((mesh_comm *)comm)->job->timer; }

ENGINE_FN esp_status mesh_progress(void *comm, uint64_t timeout_us) {
    mesh_job *j = ((mesh_comm *)comm)->job;
    const uint64_t until = engine_now_ns() + engine_min(timeout_us, 3600000000u) * 1000u;
    uint64_t nap = MESH_NAP_LEAST_NS;
    if (!timeout_us) return mesh_arm(j), ESP_OK;
    for (int looks = 0;; looks++) {
        int pending;
        if (__atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) || mesh_drive_all(j, &pending)) return ESP_OK;
        const uint64_t now = engine_now_ns();
        if (now >= until) return ESP_OK;
        if (pending && looks < MESH_LOOKS) {
            sched_yield();
            continue;
        }
        struct pollfd fd = {j->timer, POLLIN, 0};
        const uint64_t ns = pending ? engine_min(nap, until - now) : until - now;
        mesh_timer(j, ns);
        if (__atomic_load_n(&j->woken, __ATOMIC_SEQ_CST)) continue; /* wake() may have come before the timer was set */
        poll(&fd, 1, (int)(ns / 1000000u) + 1);
        nap = engine_min(nap * 2, MESH_NAP_MOST_NS);
    }
}
ENGINE_FN void mesh_wake(void *comm) {
    mesh_job *j = ((mesh_comm *)comm)->job;
    __atomic_store_n(&j->woken, 1u, __ATOMIC_SEQ_CST);
    mesh_timer(j, 1);
}
ENGINE_FN esp_status mesh_abort(void *comm) {
    __atomic_store_n(&((mesh_comm *)comm)->aborted, 1u, __ATOMIC_SEQ_CST);
    mesh_wake(comm);
    return ESP_OK;
}

/* The peer of the oldest message that has not come to a column of the request. */
ENGINE_FN int32_t mesh_late(void *comm, void *req) {
    const mesh_comm *m = (const mesh_comm *)comm;
    int32_t late = -1;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t k = 0; k < m->places; k++) {
        const mesh_message *t = &m->messages[k];
        const mesh_column *x = &m->columns[t->column];
        if (t->what != MESH_IN && t->what != MESH_GET) continue;
        if (x->r != req || x->seq > oldest || (x->seq == oldest && t->what == MESH_GET)) continue;
        oldest = x->seq, late = t->peer;
    }
    return late;
}

ENGINE_FN esp_status mesh_traffic(void *comm, esp_traffic *out) {
    const mesh_comm *m = (const mesh_comm *)comm;
    esp_traffic t;
    memset(&t, 0, sizeof t);
    t.struct_size = out->struct_size;
    t.intra_bytes = m->level_bytes[0];
    for (int k = 1; k < ESP_LEVELS; k++) t.inter_bytes += m->level_bytes[k];
    memcpy(t.level_bytes, m->level_bytes, sizeof t.level_bytes);
    t.memory_bytes = MESH_AHEAD * m->cell_bytes + m->places * (sizeof *m->messages + sizeof *m->free);
    memcpy(out, &t, engine_min(out->struct_size, sizeof t));
    return ESP_OK;
}

/* ---- open and close --------------------------------------------------------------------------------------------------- */
ENGINE_FN void mesh_free(mesh_comm *m) {
    const esp_host *h = m->who.host;
    const uint64_t n = (uint64_t)m->who.size;
    if (m->wire) m->wire->close(m->self, m->error != ESP_OK || m->aborted);
    engine_release(h, m->level, n);
    engine_release(h, m->staging, MESH_AHEAD * m->cell_bytes);
    engine_release(h, m->messages, m->places * sizeof *m->messages);
    engine_release(h, m->free, m->places * sizeof *m->free);
    if (m->job && --m->job->refs == 0) {
        if (m->job->timer >= 0) close(m->job->timer);
        engine_release(h, m->job, sizeof *m->job);
    }
    engine_release(h, m, sizeof *m);
}
ENGINE_FN void mesh_close(void *comm) {
    mesh_comm *m = (mesh_comm *)comm;
    if (!m) return;
    if (mesh_pending(m)) mesh_fail(m, ESP_E_STATE);
    mesh_comm **at = &m->job->comms;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    mesh_free(m);
}

/* The outermost level at which the places of two members differ: 1 inside a machine. */
ENGINE_FN uint8_t mesh_level(const esp_group *g, int32_t a, int32_t b) {
    const uint32_t n = (uint32_t)g->n_levels;
    uint32_t level = g->machine && g->machine[a] != g->machine[b] ? 2 : 1;
    for (uint32_t k = 2; g->place && k < n; k++)
        if (g->place[(uint32_t)a * n + k] != g->place[(uint32_t)b * n + k]) level = k + 1;
    return (uint8_t)level;
}

/* Makes a comm without a wire. */
ENGINE_FN esp_status mesh_new(const esp_host *h, const esp_group *g, const char *name, mesh_comm **out) {
    const uint64_t n = (uint64_t)g->size;
    *out = NULL;
    if (g->size < 1 || g->rank < 0 || g->rank >= g->size || g->size > ENGINE_RANKS)
        return engine_say(h, name, ESP_E_ARG, "rank %d of %d: the group is malformed (at most %d ranks)", (int)g->rank,
                          (int)g->size, (int)ENGINE_RANKS);
    mesh_comm *m = (mesh_comm *)engine_alloc(h, sizeof *m), *parent = (mesh_comm *)g->parent;
    if (!m) return engine_say(h, name, ESP_E_NOMEM, "no memory for a communicator");
    m->who = (engine_who){h, name, g->rank, g->size};
    m->simd = esp_simd_level();
    m->places = MESH_AHEAD * mesh_most_messages(g->size);
    m->cell_bytes = n * mesh_widest(g->size);
    m->level = (uint8_t *)engine_alloc(h, n);
    m->staging = (uint8_t *)engine_alloc(h, MESH_AHEAD * m->cell_bytes);
    m->messages = (mesh_message *)engine_alloc(h, m->places * sizeof *m->messages);
    m->free = (uint32_t *)engine_alloc(h, m->places * sizeof *m->free);
    m->job = parent ? parent->job : (mesh_job *)engine_alloc(h, sizeof *m->job);
    if (m->job && !parent) m->job->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (m->job) m->job->refs++;
    if (!m->level || !m->staging || !m->messages || !m->free || !m->job || m->job->timer < 0) {
        mesh_free(m);
        return engine_say(h, name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)n);
    }
    for (uint32_t k = 0; k < m->places; k++) m->free[m->n_free++] = m->places - 1 - k;
    for (int32_t q = 0; q < g->size; q++) m->level[q] = mesh_level(g, q, g->rank);
    m->next = m->job->comms;
    m->job->comms = m;
    *out = m;
    return ESP_OK;
}
#endif
