/* comm.c: opens and closes a communicator of the shm transport, and starts and tests its requests. */
#include "backends/shm/transport.h"
#include "codecs/common/simd.h"
#include "espresso_impl/base/machine.h"

ESP__FN esp_status shm_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    shm_comm *m = (shm_comm *)comm;
    shm_req *r = &m->reqs[m->req_next % SHM_QUEUE];
    (void)s; /* work on a CPU stream has already ended */
    if (m->error != ESP_OK) return m->error;
    if (BACKEND_LOAD(&m->aborted)) return ESP_E_PEER;
    if (r->used)
        return backend_error(m, ESP_E_STATE, "%d requests are open: test them before starting more", SHM_QUEUE);
    backend_copy_call(c, &r->c);
    const backend_caller who = {m->host, m->name, m->rank, m->size};
    const esp_status st = backend_check(&who, &r->c);
    if (st != ESP_OK) return st;
    r->used = true, r->done = false;
    r->start_ns = m->pace.on ? backend_now_ns() : 0;
    m->req_next++;
    shm_next(m);
    if (m->op.puts && shm_put(m)) shm_notify_peers(m);
    shm_notify_self(m->job); /* wakes a poll() of this rank, which has data to move now */
    *req = r;
    return ESP_OK;
}

ESP__FN esp_status shm_test(void *comm, void *req) {
    shm_comm *m = (shm_comm *)comm;
    shm_req *r = (shm_req *)req;
    for (int spins = m->job->spin ? 32 : 0; !r->done; spins--) {
        int s = shm_drive(m);
        if (s < 0) return s;
        if (r->done) break;
        if (m->moved >= SHM_BUDGET || (!s && spins <= 0)) return ESP_PENDING;
        if (!s) shm_relax();
    }
    r->used = false;
    m->ready--;
    return ESP_OK;
}

ESP__FN esp_status shm_abort(void *comm) {
    BACKEND_STORE(&((shm_comm *)comm)->aborted, 1u);
    shm_wake(comm);
    return ESP_OK;
}
ESP__FN int32_t shm_straggler(void *comm, void *req) {
    shm_comm *m = (shm_comm *)comm;
    return ((shm_req *)req)->done || !shm_running(m) ? -1 : m->waits_for;
}
/* A communicator's arrays outside the shared region: X(name, entries for each rank). */
#define SHM_ARRAYS(X)                                                                                                  \
    X(job_rank, 1)                                                                                                     \
    X(level, 1)                                                                                                        \
    X(doorbells, 1) X(nics, 1) X(outer.nics, 1) X(used, 1) X(ring_rank, 1) X(order, 1) X(pid, 1) X(hello, 1) X(flows, 2)
#define SHM_BYTES(array, each) +(uint64_t)m->size *each * sizeof *m->array
ESP__FN esp_status shm_traffic(void *comm, esp_traffic *out) {
    shm_comm *m = (shm_comm *)comm;
    return backend_traffic(out, m->level_bytes, m->region_bytes / (uint64_t)m->size + SHM_SUMS SHM_ARRAYS(SHM_BYTES));
}

/* ---- the region ---- */
/* Returns how many chunks a rank may be ahead of its readers: so few that readers mostly find them in a cache. */
static uint64_t shm_cells(int32_t ranks) { return ranks <= 2 ? 8 : 4; }
ESP__FN uint64_t shm_region_bytes(int32_t n) {
    uint64_t each =
        sizeof(shm_doorbell) + SHM_NICS * sizeof(shm_nic) + sizeof(shm_published) + shm_cells(n) * (uint64_t)SHM_CELL;
    return (sizeof(shm_head) + (uint64_t)n * each + 8191) / 4096 * 4096;
}
static shm_doorbell *shm_doorbells(shm_head *h) { return (shm_doorbell *)(void *)(h + 1); }
static shm_nic *shm_nics(shm_head *h, int32_t n) { return (shm_nic *)(void *)(shm_doorbells(h) + n); }

/* ---- closing ---- */
static void shm_free(shm_comm *m) {
    if (m->head) m->drop_region(m);
    backend_release(m->host, m->sum_acc, SHM_SUMS);
#define SHM_RELEASE(array, each) backend_release(m->host, m->array, SHM_BYTES(array, each));
    SHM_ARRAYS(SHM_RELEASE)
    backend_release(m->host, m, sizeof *m);
}
/* The communicator of all ranks owns memory that the others use too, so it is freed when the job's last one closes. */
ESP__FN void shm_close(void *comm) {
    shm_comm *m = (shm_comm *)comm;
    if (!m) return;
    shm_job *j = m->job;
    if (j) {
        if (shm_running(m)) shm_fail(m, ESP_E_STATE);
        shm_comm **at = &j->comms;
        while (*at && *at != m) at = &(*at)->next;
        if (*at) *at = m->next;
        if (m != j->owner) shm_free(m);
        if (--j->refs) return;
        m = j->owner;
        shm_wait_close(j);
        backend_release(m->host, j, sizeof *j);
    }
    shm_free(m);
}

/* ---- opening ---- */
static esp_status shm_new(const esp_host *h, const esp_group *g, const char *name, shm_comm **out) {
    *out = NULL;
    const esp_status s = backend_check_group(h, name, g, BACKEND_RANKS);
    if (s != ESP_OK) return s;
    shm_comm *m = (shm_comm *)backend_alloc(h, sizeof *m);
    if (!m) return backend_log(h, name, ESP_E_NOMEM, "no memory for a communicator");
    m->host = h, m->name = name, m->rank = g->rank, m->size = g->size, m->waits_for = -1, m->simd = esp_simd_level();
    m->sum_acc = backend_alloc(h, SHM_SUMS);
    bool all = m->sum_acc != NULL;
#define SHM_ALLOC(array, each) all &= (m->array = backend_alloc(h, SHM_BYTES(array, each))) != NULL;
    SHM_ARRAYS(SHM_ALLOC)
    if (all) {
        m->outer.on = g->place && g->n_levels > 2;
        for (int32_t q = 0; q < m->size; q++) m->level[q] = backend_level(g, q, m->rank);
        *out = m;
        return ESP_OK;
    }
    shm_free(m);
    return backend_log(h, name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)g->size);
}

ESP__FN esp_status shm_transport_open(const esp_host *h, const esp_group *g, const char *name, const char *params,
                                      shm_rendezvous rendezvous, void **comm) {
    shm_comm *m;
    esp_status s = shm_new(h, g, name, &m);
    *comm = NULL;
    if (s != ESP_OK) return s;
    s = rendezvous(m, g, shm_params(m, params), params);
    if (s == ESP_OK)
        *comm = m;
    else
        shm_free(m);
    return s;
}
ESP__FN shm_hello shm_hello_of(const shm_comm *m, const esp_group *g, esp_status so_far, const char *params) {
    shm_hello mine;
    memset(&mine, 0, sizeof mine);
    mine.status = so_far;
    mine.pid = (int32_t)getpid();
    mine.opened_ns = backend_now_ns();
    mine.job_rank = g->parent ? ((const shm_comm *)g->parent)->rank : m->rank;
    mine.params = esp_name_hash(params);
    return mine;
}
ESP__FN esp_status shm_exchange(shm_comm *m, const esp_group *g, const shm_hello *mine) {
    const shm_hello *all = m->hello;
    const int32_t ranks = g->parent ? ((shm_comm *)g->parent)->size : m->size;
    m->hello[0] = *mine;
    esp_status s = m->size > 1 ? g->oob_allgather(g->user, mine, m->hello, sizeof *mine) : ESP_OK;
    if (s != ESP_OK) return s == ESP_E_PEER || mine->status == ESP_OK ? s : mine->status;
    for (int32_t q = 0; q < m->size; q++) {
        m->pid[q] = all[q].pid, m->job_rank[q] = all[q].job_rank;
        if (all[q].job_rank < 0 || all[q].job_rank >= ranks)
            return backend_error(m, ESP_E_MISMATCH, "rank %d sent that it is rank %d of a job of %d", (int)q,
                                 (int)all[q].job_rank, (int)ranks);
        if (all[q].status == ESP_OK) continue;
        if (mine->status != ESP_OK) return mine->status;
        return backend_error(m, all[q].status, "rank %d could not open: see its own error", (int)all[q].job_rank);
    }
    return ESP_OK;
}
ESP__FN esp_status shm_same_params(shm_comm *m) {
    for (int32_t q = 1; q < m->size; q++)
        if (m->hello[q].params != m->hello[0].params)
            return backend_error(m, ESP_E_MISMATCH,
                                 "ranks 0 and %d were given different parameters: make them the same", (int)q);
    return ESP_OK;
}

ESP__FN esp_status shm_join(shm_comm *m, const esp_group *g, void *region) {
    shm_comm *parent = (shm_comm *)g->parent;
    uint64_t n = (uint64_t)m->size;
    m->head = (shm_head *)region;
    m->region_bytes = shm_region_bytes(m->size);
    m->published = (shm_published *)(void *)(shm_nics(m->head, m->size) + SHM_NICS * n);
    m->windows = (uint8_t *)(m->published + n);
    m->cells = shm_cells(m->size);
    shm_ring_order(m, g);
    if (parent) {
        m->job = parent->job;
    } else {
        m->job = (shm_job *)backend_alloc(m->host, sizeof *m->job);
        if (!m->job) return backend_error(m, ESP_E_NOMEM, "no memory for a communicator");
        m->job->owner = m;
        m->job->wait_fd = m->job->socket = m->job->timer = m->job->sender = -1;
        m->job->doorbell = shm_doorbells(m->head) + m->rank;
        m->job->spin = m->size <= (int32_t)esp__cores();
    }
    for (int32_t q = 0; q < m->size; q++) {
        m->doorbells[q] = parent ? parent->doorbells[m->job_rank[q]] : shm_doorbells(m->head) + q;
        m->nics[q] = parent ? parent->nics[m->job_rank[q]] : shm_nics(m->head, m->size) + shm_unit(g, 1, q);
    }
    m->link.opened_ns = parent ? parent->link.opened_ns : m->hello[0].opened_ns;
    if (m->machines < 2) m->pace.on = 0;
    shm_outer_join(m, g, parent, shm_nics(m->head, m->size));
    if (m->pace.on) m->direct = false; /* an extra copy takes little time beside this slow link */
    m->job->refs++;
    m->next = m->job->comms;
    m->job->comms = m;
    return ESP_OK;
}
