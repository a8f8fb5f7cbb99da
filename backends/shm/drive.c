/* drive.c: runs a communicator's collectives one after another, in the order in which they were started. */
#include "backends/shm/transport.h"
#include "espresso_impl/base/limits.h"
#include <errno.h>

/* ---- detecting ranks that run different collectives at the same time, such as a barrier and an allreduce ---- */
/* Packs a collective into 64 bits: its number (32), its op (8), and a hash of its other arguments (24). */
static uint64_t shm_call_word(uint64_t number, const esp_coll *c) {
    return number << 32 | (uint64_t)(c->op & 255u) << 24 | backend_call_hash(c) >> 40;
}
/* Publishes which collective begins, before any of its data. */
static void shm_publish_call(shm_comm *m) {
    m->begun++;
    __atomic_store_n(&m->published[m->rank].call[m->begun % SHM_CALLS], shm_call_word(m->begun, &m->op.c),
                     __ATOMIC_RELEASE);
    m->op.compared = m->size == 1;
}
/* Compares this rank's collective with each peer's collective of the same number, later again if a peer has not
 * begun it. A peer may also have begun later collectives, so each rank publishes its last SHM_CALLS ones. */
static esp_status shm_compare_call(shm_comm *m) {
    const uint64_t at = m->begun % SHM_CALLS, mine = m->published[m->rank].call[at];
    bool behind = false;
    if (m->op.compared || !m->op.begun) return ESP_OK;
    for (int32_t q = 0; q < m->size; q++) {
        const uint64_t theirs = BACKEND_LOAD(&m->published[q].call[at]);
        behind |= (int32_t)((uint32_t)(theirs >> 32) - (uint32_t)(mine >> 32)) < 0;
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
ESP__FN esp_status shm_fail(shm_comm *m, esp_status s) {
    if (m->error == ESP_OK) {
        m->error = s;
        shm_publish_failure(m);
    }
    return m->error;
}

ESP__FN void shm_next(shm_comm *m) {
    shm_req *r = shm_running(m);
    if (!r || m->op.begun) return;
    shm_plan(m, &r->c, &m->op);
    if (m->size > 1)
        shm_ring_plan(m, &m->op);
    else
        backend_single_rank(&m->op.c, m->simd), m->op.cols = 0;
    shm_publish_call(m);
    shm_begin(m, backend_max(r->start_ns, m->logical_end_ns));
    shm_notify_peers(m);
}
static void shm_done(shm_comm *m) {
    shm_req *r = shm_running(m);
    r->done = true;
    m->ready++;
    m->req_first++;
    m->op.begun = false;
    m->logical_end_ns = m->op.end_ns;
    m->waits_for = -1;
}

static int shm_stages(shm_comm *m) {
    if (m->op.ring) return shm_ring(m);
    if (m->pace.on) shm_flows(m);
    int got = shm_get(m), summed = got < 0 ? got : shm_sum(m);
    if (summed < 0) return summed;
    return (m->op.puts && shm_put(m)) || got || summed;
}

ESP__FN int shm_drive(shm_comm *m) {
    int moved = 0, any = 1;
    if (m->error != ESP_OK) return m->error;
    if (!shm_running(m)) return 0;
    if (BACKEND_LOAD(&m->aborted)) return shm_fail(m, ESP_E_PEER);
    if (m->pace.on && *m->link.file) shm_link_poll(m, backend_now_ns());
    m->moved = 0;
    while (any && m->moved < SHM_BUDGET) {
        shm_next(m);
        any = shm_compare_call(m);
        if (any == ESP_OK) any = shm_stages(m);
        if (any < 0) return shm_fail(m, any);
        if (m->must_notify) shm_notify_peers(m);
        if (m->must_notify)
            return shm_fail(m, backend_error(m, ESP_E_COMM, "cannot wake a rank that polls: %s", esp__strerror(errno)));
        moved |= any;
        if (any || !(m->op.ring ? shm_ring_finished(m) : shm_finished(m))) continue;
        if ((any = shm_compare_call(m)) != ESP_OK) return shm_fail(m, any);
        shm_done(m);
        moved = 1, any = shm_running(m) != NULL;
    }
    uint32_t broken = moved ? 0 : BACKEND_LOAD(&m->head->broken);
    if (broken && (any = shm_compare_call(m)) != ESP_OK) return shm_fail(m, any);
    if (broken) return shm_fail(m, shm_peer_failed(m, (int32_t)broken - 1));
    return moved;
}

ESP__FN int shm_drive_all(shm_job *j, int *pending, uint64_t *due) {
    int again = 0;
    *pending = 0;
    *due = UINT64_MAX;
    for (shm_comm *m = j->comms; m; m = m->next) {
        int waiting = shm_running(m) != NULL;
        if (waiting && shm_drive(m)) again |= SHM_MOVED;
        if (m->ready) again |= SHM_READY;
        if (!waiting) continue;
        *pending = 1;
        if (m->op.sum_due_ns) *due = backend_min(*due, m->op.sum_due_ns);
        if (m->op.get_due_ns) *due = backend_min(*due, m->op.get_due_ns);
    }
    return again;
}
