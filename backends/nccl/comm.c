/* comm.c: how a communicator of NCCL is asked whether it has done what it was told, and ended; and memory that the host announces: it is
 * registered with NCCL, which may then move it without copies of its own. NCCL before 2.19 cannot, and memory that NCCL does not take is
 * used as any other. Knows nothing of what collectives move. */
#include "backends/nccl/nccl.h"

ESP__FN void nccl_enter(nccl_comm *m) {
    pthread_mutex_lock(&m->lock);
    m->library->cuCtxPushCurrent_v2(m->job->context);
}
ESP__FN void nccl_leave(nccl_comm *m) {
    void *before;
    m->library->cuCtxPopCurrent_v2(&before);
    pthread_mutex_unlock(&m->lock);
}

ESP__FN esp_status nccl_broken(nccl_comm *m, esp_status s) { return m->error = s; }

ESP__FN esp_status nccl_check(nccl_comm *m, const char *call, int result) {
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return ESP_OK;
    return nccl_broken(m, nccl_failed(m->who.host, m->library, call, result, m->handle));
}
ESP__FN esp_status nccl_check_cuda(nccl_comm *m, const char *call, int result) {
    return result == CUDA_SUCCESS_ ? ESP_OK : nccl_broken(m, nccl_cuda_failed(m->who.host, m->library, call, result));
}

ESP__FN esp_status nccl_settled(nccl_comm *m) {
    int state = NCCL_SUCCESS;
    if (m->error) return m->error;
    if (BACKEND_LOAD(&m->aborted) || !m->handle) return m->error = ESP_E_PEER;
    esp_status s = nccl_check(m, "ncclCommGetAsyncError", m->library->ncclCommGetAsyncError(m->handle, &state));
    if (s) return s;
    return state == NCCL_IN_PROGRESS ? ESP_PENDING : nccl_check(m, "a collective", state);
}

ESP__FN void nccl_ended(nccl_comm *m) {
    pthread_mutex_lock(&m->lock);
    const int ending = m->ending;
    m->ending = 0;
    pthread_mutex_unlock(&m->lock);
    if (ending) pthread_join(m->ender, NULL);
}
ESP__FN void nccl_drop(nccl_comm *m) {
    nccl_handle h = m->handle;
    m->handle = NULL;
    if (h) m->library->ncclCommAbort(h);
}

/* ---- announced memory ------------------------------------------------------------------------------------------------- */
/* One communicator's part; a comm's ended handle has taken its part along. */
typedef struct nccl_known {
    nccl_comm *comm;
    void *handle;
} nccl_known;
typedef struct nccl_memory {
    struct nccl_memory *next; /* of the job */
    const esp_host *host;
    nccl_job *job;
    int n;
    nccl_known of[];
} nccl_memory;

static void nccl_memory_register(nccl_known *k, nccl_comm *m, const esp_buf *b) {
    const nccl_library *l = m->library;
    int r = NCCL_IN_PROGRESS;
    k->comm = m;
    nccl_enter(m);
    if (nccl_settled(m) == ESP_OK) r = l->ncclCommRegister(m->handle, b->ptr, b->bytes, &k->handle);
    if (r) k->handle = NULL;
    if (r && r != NCCL_IN_PROGRESS) /* collectives work all the same */
        backend_error(&m->who, ESP_OK, "NCCL does not register %llu bytes at %p: %s", (unsigned long long)b->bytes,
                      b->ptr, l->ncclGetErrorString(r));
    nccl_leave(m);
}
static void nccl_memory_forget(nccl_known *k) {
    if (!k->handle) return;
    nccl_ended(k->comm); /* what NCCL still does uses the memory */
    nccl_enter(k->comm);
    if (k->comm->handle) k->comm->library->ncclCommDeregister(k->comm->handle, k->handle);
    nccl_leave(k->comm);
    k->handle = NULL;
}

/* For all communicators of the job: a group's collectives work on the same memory. */
ESP__FN esp_status nccl_reg(void *comm, const esp_buf *b, void **mh) {
    nccl_comm *m = (nccl_comm *)comm;
    nccl_job *j = m->job;
    int n = 0;
    *mh = NULL;
    if (b->dev.kind != ESP_CUDA || b->dev.ordinal != j->ordinal || !m->library->ncclCommRegister ||
        !m->library->ncclCommDeregister)
        return ESP_OK; /* the host's memory passes the device in pieces */
    for (const nccl_comm *c = j->comms; c; c = c->next_comm) n++;
    nccl_memory *all = (nccl_memory *)backend_alloc(m->who.host, sizeof *all + (uint64_t)n * sizeof *all->of);
    if (!all) return backend_error(&m->who, ESP_E_NOMEM, "no memory for a list of %d communicators", n);
    all->host = m->who.host, all->job = j, all->n = n, all->next = j->memory;
    j->memory = all;
    for (nccl_comm *c = j->comms; c; c = c->next_comm) nccl_memory_register(&all->of[--n], c, b);
    *mh = all;
    return ESP_OK;
}
ESP__FN esp_status nccl_dereg(void *comm, void *mh) {
    nccl_memory *all = (nccl_memory *)mh, **at = &((nccl_comm *)comm)->job->memory;
    if (!all) return ESP_OK;
    while (*at && *at != all) at = &(*at)->next;
    if (*at) *at = all->next;
    for (int i = 0; i < all->n; i++) nccl_memory_forget(&all->of[i]);
    backend_release(all->host, all, sizeof *all + (uint64_t)all->n * sizeof *all->of);
    return ESP_OK;
}
ESP__FN void nccl_memory_leave(const nccl_comm *m) {
    for (nccl_memory *a = m->job->memory; a; a = a->next)
        for (int i = 0; i < a->n; i++)
            if (a->of[i].comm == m) nccl_memory_forget(&a->of[i]);
}
