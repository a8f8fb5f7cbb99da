/* drive.c: moves the collectives of a comm, in the order in which they were started, and those of all comms of a job. Knows
 * requests, not callers. */
#include "backends/shm/transport.h"
#include <errno.h>

/* ---- ranks that run different collectives at the same time, such as a barrier on one rank and a tensor's allreduce on the others, are
 * noticed: every rank shows the number and kind of its collective; each compares it with its peers' ---- */
/* Number of the collective in the high 32 bits, its op in 8, a hash of what else must agree in 24. */
static uint64_t engine_call_word(uint64_t number, const esp_coll *c) {
    return number << 32 | (uint64_t)(c->op & 255u) << 24 | backend_call_hash(c) >> 40;
}
/* A collective begins: shows it to the peers, before any of its data. */
static void engine_call_show(engine_comm *m) {
    m->begun++;
    __atomic_store_n(&m->lines[m->rank].call[m->begun % ENGINE_CALLS], engine_call_word(m->begun, &m->op.c),
                     __ATOMIC_RELEASE);
    m->op.compared = m->size == 1;
}
/* Compares this rank's collective with its peers' of the same number. A peer that is behind is looked at again later; one that is
 * ahead, as the root of a broadcast may be, still shows it. */
static esp_status engine_call_compare(engine_comm *m) {
    const uint64_t at = m->begun % ENGINE_CALLS, mine = m->lines[m->rank].call[at];
    int behind = 0;
    if (m->op.compared || !m->op.begun) return ESP_OK;
    for (int32_t q = 0; q < m->size; q++) {
        const uint64_t theirs = BACKEND_LOAD(&m->lines[q].call[at]);
        behind += (int32_t)((uint32_t)(theirs >> 32) - (uint32_t)(mine >> 32)) < 0;
        if (theirs >> 32 != mine >> 32 || theirs == mine) continue;
        const uint32_t op = (uint32_t)(theirs >> 24) & 255u;
        return backend_error(
            m, ESP_E_MISMATCH,
            "rank %d of %d runs %s%s at the same time as this rank runs %s of %llu items: all ranks must "
            "make the same calls in the same order",
            (int)m->job_rank[q], (int)m->size, op == m->op.c.op ? "another " : "", backend_op_name(op),
            backend_op_name(m->op.c.op), (unsigned long long)m->op.c.count);
    }
    m->op.compared = !behind;
    return ESP_OK;
}
/* ---- requests ---- */
ESP__FN esp_status engine_fail(engine_comm *m, esp_status s) {
    if (m->error == ESP_OK) {
        m->error = s;
        engine_give_up(m);
    }
    return m->error;
}

ESP__FN void engine_next(engine_comm *m) {
    engine_req *r = engine_running(m);
    if (!r || m->op.begun) return;
    engine_plan(m, &r->c, &m->op);
    if (m->size > 1)
        engine_ring_plan(m, &m->op);
    else
        backend_alone(&m->op.c, m->simd), m->op.cols = 0;
    engine_call_show(m);
    engine_begin(m, backend_max(r->start_ns, m->logical_end_ns));
    engine_tell(m);
}
static void engine_done(engine_comm *m) {
    engine_req *r = engine_running(m);
    r->done = 1;
    m->ready++;
    m->req_first++;
    m->op.begun = 0;
    m->logical_end_ns = m->op.end_ns;
    m->waits_for = -1;
}

/* Tries each stage once. */
static int engine_stages(engine_comm *m) {
    if (m->op.ring) return engine_ring(m);
    if (m->pace.on) engine_flows(m);
    int got = engine_get(m), summed = got < 0 ? got : engine_sum(m);
    if (summed < 0) return summed;
    return (m->op.puts && engine_put(m)) || got || summed;
}

ESP__FN int engine_drive(engine_comm *m) {
    int moved = 0, any = 1;
    if (m->error != ESP_OK) return m->error;
    if (!engine_running(m)) return 0;
    if (BACKEND_LOAD(&m->aborted)) return engine_fail(m, ESP_E_PEER);
    if (m->pace.on && *m->link.file) engine_link_look(m, backend_now_ns());
    m->moved = 0;
    while (any && m->moved < ENGINE_BUDGET) {
        engine_next(m);
        any = engine_call_compare(m);
        if (any == ESP_OK) any = engine_stages(m);
        if (any < 0) return engine_fail(m, any);
        if (m->news) engine_tell(m);
        if (m->news)
            return engine_fail(m, backend_error(m, ESP_E_COMM, "cannot wake a rank that polls: %s", strerror(errno)));
        moved |= any;
        if (any || !(m->op.ring ? engine_ring_finished(m) : engine_finished(m))) continue;
        if ((any = engine_call_compare(m)) != ESP_OK) return engine_fail(m, any);
        engine_done(m);
        moved = 1, any = engine_running(m) != NULL;
    }
    uint32_t broken = moved ? 0 : BACKEND_LOAD(&m->head->broken);
    if (broken && (any = engine_call_compare(m)) != ESP_OK) return engine_fail(m, any);
    if (broken) return engine_fail(m, engine_lost(m, (int32_t)broken - 1));
    return moved;
}

ESP__FN int engine_drive_all(engine_job *j, int *pending, uint64_t *due) {
    int again = 0;
    *pending = 0;
    *due = UINT64_MAX;
    for (engine_comm *m = j->comms; m; m = m->next) {
        int waiting = engine_running(m) != NULL;
        if (waiting && engine_drive(m)) again |= ENGINE_MOVED;
        if (m->ready) again |= ENGINE_READY;
        if (!waiting) continue;
        *pending = 1;
        if (m->op.sum_due_ns) *due = backend_min(*due, m->op.sum_due_ns);
        if (m->op.get_due_ns) *due = backend_min(*due, m->op.get_due_ns);
    }
    return again;
}
