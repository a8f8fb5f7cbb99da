/* drive.h: moves the collectives of a comm, and those of all comms of a job. Knows requests, not callers. */
#ifndef MESH_DRIVE_H
#define MESH_DRIVE_H

ENGINE_FN int mesh_pending(const mesh_comm *m) { return m->first != m->next_req; }

/* No message under way touches this rank's memory afterwards. */
ENGINE_FN esp_status mesh_fail(mesh_comm *m, esp_status s) {
    if (m->error != ESP_OK) return m->error;
    m->error = s;
    m->wire->drop(m->self);
    return s;
}

/* A collective of one rank: copies its source to its destination, scaled. */
ENGINE_FN void mesh_alone(const mesh_req *r) {
    const uint64_t bytes = r->c.count * r->unit;
    uint8_t *dst = (uint8_t *)r->c.dst.ptr;
    const uint8_t *src = (const uint8_t *)r->c.src.ptr;
    if (!bytes || r->c.op == ESP_COLL_BROADCAST) return;
    if (r->sums && (r->scale < 1.0f || r->scale > 1.0f))
        engine_reduce(&r->how, dst, src, NULL, bytes / r->esize, r->scale);
    else
        for (uint64_t at = 0; at < bytes; at += r->unit) {
            const uint64_t len = r->c.slot_bytes ? r->unit : bytes;
            mesh_copy(r, dst + at, src + at, len);
            if (len == bytes) break;
        }
}

/* How many messages a column may have under way. */
ENGINE_FN uint32_t mesh_most_messages(int32_t n) { return 4 * (uint32_t)n; }

/* Begins the columns for which there is room, in the order of requests. Returns 1 when it began one. */
ENGINE_FN int mesh_begin_some(mesh_comm *m) {
    int began = 0;
    while (m->next_begin != m->next_req) {
        mesh_req *r = &m->reqs[m->next_begin % MESH_QUEUE];
        if (r->begun == r->cols) {
            m->next_begin++;
            continue;
        }
        uint32_t k = 0;
        while (k < MESH_AHEAD && m->columns[k].r) k++;
        if (k == MESH_AHEAD) break;
        mesh_column *x = &m->columns[k];
        uint8_t *cell = m->staging + k * m->cell_bytes;
        memset(x, 0, sizeof *x);
        x->r = r, x->i = r->begun++, x->seq = m->seq++, x->cell = cell;
        began = 1;
        const int s = mesh_begin(m, x);
        if (s) return s;
    }
    return began;
}

/* Ends requests whose columns are all done. They become done in the order in which they end. */
ENGINE_FN void mesh_end_some(mesh_comm *m) {
    for (uint64_t k = m->first; k != m->next_req; k++) {
        mesh_req *r = &m->reqs[k % MESH_QUEUE];
        if (!r->done && r->ended == r->cols) r->done = 1, m->ready++;
    }
    while (m->first != m->next_req && m->reqs[m->first % MESH_QUEUE].done) m->first++;
}

/* Lets columns go on until none can. Returns 1 when one did. */
ENGINE_FN int mesh_go_all(mesh_comm *m) {
    int any = 0;
    for (uint32_t k = 0; k < MESH_AHEAD; k++) {
        mesh_column *x = &m->columns[k];
        if (!x->r) continue;
        const int s = mesh_go_on(m, x);
        if (s < 0) return s;
        if (!s) continue;
        x->r->ended++;
        x->r = NULL;
        any = 1;
    }
    return any;
}

ENGINE_FN int mesh_take(mesh_comm *m) {
    uint32_t places[MESH_DONE];
    uint64_t bytes[MESH_DONE];
    const int n = m->wire->some(m->self, places, bytes, MESH_DONE);
    for (int k = 0; k < n; k++) {
        const mesh_message t = m->messages[places[k]];
        mesh_column *x = &m->columns[t.column];
        m->free[m->n_free++] = places[k];
        m->messages[places[k]].what = MESH_FREE;
        if (t.what == MESH_IN || t.what == MESH_GET) m->level_bytes[m->level[t.peer] - 1] += bytes[k];
        const int s = mesh_through(m, x, &t);
        if (s) return s;
    }
    return n;
}

/* Moves what can be moved now. Returns 1 when something moved, 0 when not, or an error. */
ENGINE_FN int mesh_drive(mesh_comm *m) {
    const uint64_t until = engine_now_ns() + MESH_BUDGET_NS;
    int moved = 0;
    if (m->error != ESP_OK) return m->error;
    if (!mesh_pending(m)) return 0;
    if (__atomic_load_n(&m->aborted, __ATOMIC_SEQ_CST)) return mesh_fail(m, ESP_E_PEER);
    for (;;) {
        int s, any = 0;
        if ((s = mesh_begin_some(m)) < 0) return mesh_fail(m, s);
        any |= s;
        if ((s = mesh_take(m)) < 0) return mesh_fail(m, s);
        any |= s;
        if ((s = mesh_go_all(m)) < 0) return mesh_fail(m, s);
        any |= s;
        if (!any) break;
        moved = 1;
        mesh_end_some(m);
        if (!mesh_pending(m) || engine_now_ns() >= until) break;
    }
    mesh_end_some(m); /* those without columns too */
    return moved;
}

/* Drives every comm of the job. Returns 1 where something moved, or a request waits for its test(). *pending: messages are under
 * way. */
ENGINE_FN int mesh_drive_all(mesh_job *j, int *pending) {
    int again = 0;
    *pending = 0;
    for (mesh_comm *m = j->comms; m; m = m->next) {
        if (mesh_pending(m) && mesh_drive(m)) again = 1;
        if (m->ready) again = 1;
        *pending |= mesh_pending(m) && m->error == ESP_OK;
    }
    return again;
}
#endif
