/* comm.c: requests, in the order in which they were started, and how a comm opens and closes: exchanges hellos, lays out the region. */
#include "backends/shm/transport.h"
#include "codecs/common/simd.h"
#include "espresso_impl/base/cores.h"

ESP__FN esp_status engine_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    engine_comm *m = (engine_comm *)comm;
    engine_req *r = &m->reqs[m->req_next % ENGINE_QUEUE];
    (void)s; /* a CPU stream has no work queued: its work is done when the call is made */
    if (m->error != ESP_OK) return m->error;
    if (BACKEND_LOAD(&m->aborted)) return ESP_E_PEER;
    if (r->used)
        return backend_error(m, ESP_E_STATE, "%d requests are open: test them before starting more", ENGINE_QUEUE);
    backend_whole_call(c, &r->c);
    const backend_who who = {m->host, m->name, m->rank, m->size};
    const esp_status st = backend_check(&who, &r->c);
    if (st != ESP_OK) return st;
    r->used = 1, r->done = 0;
    r->start_ns = m->pace.on ? backend_now_ns() : 0;
    m->req_next++;
    engine_next(m);
    if (m->op.puts && engine_put(m)) engine_tell(m);
    engine_poke_self(m->job); /* there may be more to move */
    *req = r;
    return ESP_OK;
}

ESP__FN esp_status engine_test(void *comm, void *req) {
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

ESP__FN esp_status engine_abort(void *comm) {
    BACKEND_STORE(&((engine_comm *)comm)->aborted, 1u);
    engine_wake(comm);
    return ESP_OK;
}
ESP__FN int32_t engine_late(void *comm, void *req) {
    engine_comm *m = (engine_comm *)comm;
    return ((engine_req *)req)->done || !engine_running(m) ? -1 : m->waits_for;
}
/* The arrays of a comm, beside the region: name, and how many for each rank. */
#define ENGINE_ARRAYS(X)                                                                                               \
    X(job_rank, 1)                                                                                                     \
    X(level, 1)                                                                                                        \
    X(bells, 1) X(nics, 1) X(outer.nics, 1) X(used, 1) X(ring_rank, 1) X(order, 1) X(pid, 1) X(hello, 1) X(flows, 2)
#define ENGINE_BYTES(array, each) +(uint64_t)m->size *each * sizeof *m->array
ESP__FN esp_status engine_traffic(void *comm, esp_traffic *out) {
    engine_comm *m = (engine_comm *)comm;
    return backend_traffic(out, m->level_bytes,
                           m->region_bytes / (uint64_t)m->size + m->scratch_bytes ENGINE_ARRAYS(ENGINE_BYTES));
}

/* ---- the region ---- */
/* Cells of a window. Measured: this many keep most of what a peer reads in a near cache. */
static uint64_t engine_cells(int32_t ranks) { return ranks <= 2 ? 8 : 4; }
ESP__FN uint64_t engine_region_bytes(int32_t n) {
    uint64_t each = sizeof(engine_bell) + ENGINE_NICS * sizeof(engine_nic) + sizeof(engine_line) +
                    engine_cells(n) * (uint64_t)ENGINE_CELL;
    return (sizeof(engine_head) + (uint64_t)n * each + 8191) / 4096 * 4096;
}
static engine_bell *engine_bells(engine_head *h) { return (engine_bell *)(void *)(h + 1); }
static engine_nic *engine_nics(engine_head *h, int32_t n) { return (engine_nic *)(void *)(engine_bells(h) + n); }

/* ---- closing ---- */
static void engine_free(engine_comm *m) {
    if (m->head) m->drop_region(m);
    backend_release(m->host, m->scratch, m->scratch_bytes);
#define ENGINE_RELEASE(array, each) backend_release(m->host, m->array, ENGINE_BYTES(array, each));
    ENGINE_ARRAYS(ENGINE_RELEASE)
    backend_release(m->host, m, sizeof *m);
}
/* The comm of level 0 owns the bells and links of all comms, so its memory stays until the last comm of the job is
 * closed. */
ESP__FN void engine_close(void *comm) {
    engine_comm *m = (engine_comm *)comm;
    if (!m) return;
    engine_job *j = m->job;
    if (j) {
        if (engine_running(m)) engine_fail(m, ESP_E_STATE);
        engine_comm **at = &j->comms;
        while (*at && *at != m) at = &(*at)->next;
        if (*at) *at = m->next;
        if (m != j->owner) engine_free(m);
        if (--j->refs) return;
        m = j->owner;
        engine_wait_close(j);
        backend_release(m->host, j, sizeof *j);
    }
    engine_free(m);
}

/* ---- opening ---- */
static esp_status engine_new(const esp_host *h, const esp_group *g, const char *name, engine_comm **out) {
    *out = NULL;
    const esp_status s = backend_check_group(h, name, g, BACKEND_RANKS);
    if (s != ESP_OK) return s;
    engine_comm *m = (engine_comm *)backend_alloc(h, sizeof *m);
    if (!m) return backend_say(h, name, ESP_E_NOMEM, "no memory for a communicator");
    m->host = h, m->name = name, m->rank = g->rank, m->size = g->size, m->waits_for = -1, m->simd = esp_simd_level();
    m->scratch_bytes = 4 * (uint64_t)ENGINE_CHUNK;
    m->scratch = backend_alloc(h, m->scratch_bytes);
    bool all = m->scratch != NULL;
#define ENGINE_ALLOC(array, each) all &= (m->array = backend_alloc(h, ENGINE_BYTES(array, each))) != NULL;
    ENGINE_ARRAYS(ENGINE_ALLOC)
    if (all) {
        m->sum_acc = (uint8_t *)m->scratch; /* halves are summed as f32: twice the bytes */
        m->sum_in = m->sum_acc + 2 * ENGINE_CHUNK;
        m->outer.on = g->place && g->n_levels > 2;
        for (int32_t q = 0; q < m->size; q++) m->level[q] = backend_level(g, q, m->rank);
        *out = m;
        return ESP_OK;
    }
    engine_free(m);
    return backend_say(h, name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)g->size);
}

ESP__FN esp_status engine_open(const esp_host *h, const esp_group *g, const char *name, const char *params,
                               engine_pull pull, engine_meet meet, void **comm) {
    engine_comm *m;
    esp_status s = engine_new(h, g, name, &m);
    *comm = NULL;
    if (s != ESP_OK) return s;
    m->pull = pull;
    s = meet(m, g, engine_params(m, params), params);
    if (s == ESP_OK)
        *comm = m;
    else
        engine_free(m);
    return s;
}
ESP__FN engine_hello engine_hello_of(const engine_comm *m, const esp_group *g, esp_status so_far, const char *params) {
    engine_hello mine;
    memset(&mine, 0, sizeof mine);
    mine.status = so_far;
    mine.pid = (int32_t)getpid();
    mine.opened_ns = backend_now_ns();
    mine.job_rank = g->parent ? ((const engine_comm *)g->parent)->rank : m->rank;
    mine.params = esp_name_hash(params);
    return mine;
}
ESP__FN esp_status engine_exchange(engine_comm *m, const esp_group *g, const engine_hello *mine) {
    const engine_hello *all = m->hello;
    const int32_t ranks = g->parent ? ((engine_comm *)g->parent)->size : m->size;
    m->hello[0] = *mine;
    esp_status s = m->size > 1 ? g->oob_allgather(g->user, mine, m->hello, sizeof *mine) : ESP_OK;
    if (s != ESP_OK) return s == ESP_E_PEER || mine->status == ESP_OK ? s : mine->status;
    for (int32_t q = 0; q < m->size; q++) {
        m->pid[q] = all[q].pid, m->job_rank[q] = all[q].job_rank;
        if (all[q].job_rank < 0 || all[q].job_rank >= ranks)
            return backend_error(m, ESP_E_MISMATCH, "rank %d says it is rank %d of a job of %d", (int)q,
                                 (int)all[q].job_rank, (int)ranks);
        if (all[q].status == ESP_OK) continue;
        if (mine->status != ESP_OK) return mine->status;
        return backend_error(m, all[q].status, "rank %d could not open: see its own error", (int)all[q].job_rank);
    }
    return ESP_OK;
}
ESP__FN esp_status engine_same_params(engine_comm *m) {
    for (int32_t q = 1; q < m->size; q++)
        if (m->hello[q].params != m->hello[0].params)
            return backend_error(m, ESP_E_MISMATCH,
                                 "ranks 0 and %d were given different parameters: make them the same", (int)q);
    return ESP_OK;
}

ESP__FN esp_status engine_join(engine_comm *m, const esp_group *g, void *region) {
    engine_comm *parent = (engine_comm *)g->parent;
    uint64_t n = (uint64_t)m->size;
    m->head = (engine_head *)region;
    m->region_bytes = engine_region_bytes(m->size);
    m->lines = (engine_line *)(void *)(engine_nics(m->head, m->size) + ENGINE_NICS * n);
    m->windows = (uint8_t *)(m->lines + n);
    m->cells = engine_cells(m->size);
    engine_ring_order(m, g);
    if (parent) {
        m->job = parent->job;
    } else {
        m->job = (engine_job *)backend_alloc(m->host, sizeof *m->job);
        if (!m->job) return backend_error(m, ESP_E_NOMEM, "no memory for a communicator");
        m->job->owner = m;
        m->job->wait_fd = m->job->socket = m->job->timer = m->job->sender = -1;
        m->job->bell = engine_bells(m->head) + m->rank;
        m->job->spin = m->size <= (int32_t)esp__cores();
    }
    for (int32_t q = 0; q < m->size; q++) {
        m->bells[q] = parent ? parent->bells[m->job_rank[q]] : engine_bells(m->head) + q;
        m->nics[q] = parent ? parent->nics[m->job_rank[q]] : engine_nics(m->head, m->size) + engine_unit(g, 1, q);
    }
    m->link.opened_ns = parent ? parent->link.opened_ns : m->hello[0].opened_ns;
    if (m->machines < 2) m->pace.on = 0;
    engine_outer_join(m, g, parent, engine_nics(m->head, m->size));
    if (m->pace.on) m->reach = ENGINE_REACH_WINDOW; /* the emulated link is slower than any copy, so windows do */
    m->job->refs++;
    m->next = m->job->comms;
    m->job->comms = m;
    return ESP_OK;
}
