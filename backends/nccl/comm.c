/* comm.c: takes the lock and the CUDA context that calls of NCCL need, detects errors of NCCL's communicators, and
 * registers memory with NCCL, which then moves it without an extra copy. Before version 2.19 NCCL had no
 * registration; collectives also work on memory that is not registered. */
#include "backends/nccl/nccl.h"

/* The capture mode lets calls succeed while the trainer captures a CUDA graph in another thread. */
ESP__FN void nccl_enter(nccl_comm *m) {
    pthread_mutex_lock(&m->lock);
    m->capture_mode = CUDA_CAPTURE_THREAD_LOCAL;
    m->library->cuCtxPushCurrent_v2(m->job->context);
    m->library->cuThreadExchangeStreamCaptureMode(&m->capture_mode);
}
ESP__FN void nccl_leave(nccl_comm *m) {
    void *before;
    m->library->cuThreadExchangeStreamCaptureMode(&m->capture_mode);
    m->library->cuCtxPopCurrent_v2(&before);
    pthread_mutex_unlock(&m->lock);
}

ESP__FN esp_status nccl_mark_failed(nccl_comm *m, esp_status s) { return m->error = s; }

ESP__FN esp_status nccl_check(nccl_comm *m, const char *call, int result) {
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return ESP_OK;
    return nccl_mark_failed(m, nccl_failed(m->who.host, m->library, call, result, m->handle));
}
ESP__FN esp_status nccl_check_cuda(nccl_comm *m, const char *call, int result) {
    return result == CUDA_SUCCESS_ ? ESP_OK
                                   : nccl_mark_failed(m, nccl_cuda_failed(m->who.host, m->library, call, result));
}

ESP__FN esp_status nccl_settled(nccl_comm *m) {
    int state = NCCL_SUCCESS;
    if (m->error) return m->error;
    if (BACKEND_LOAD(&m->aborted) || !m->handle) return m->error = ESP_E_PEER;
    esp_status s = nccl_check(m, "ncclCommGetAsyncError", m->library->ncclCommGetAsyncError(m->handle, &state));
    if (s) return s;
    return state == NCCL_IN_PROGRESS ? ESP_PENDING : nccl_check(m, "a collective", state);
}

ESP__FN void nccl_join_abort(nccl_comm *m) {
    pthread_mutex_lock(&m->lock);
    const bool aborting = m->aborting;
    m->aborting = false;
    pthread_mutex_unlock(&m->lock);
    if (aborting) pthread_join(m->abort_thread, NULL);
}
ESP__FN void nccl_abort_locked(nccl_comm *m) {
    nccl_handle h = m->handle;
    m->handle = NULL;
    if (h) m->library->ncclCommAbort(h);
}

/* ---- registered memory ------------------------------------------------------------------------------------------- */
typedef struct nccl_registration {
    nccl_comm *comm;
    void *handle;
} nccl_registration;
typedef struct nccl_memory {
    struct nccl_memory *next;
    const esp_host *host;
    nccl_job *job;
    int n;
    nccl_registration of[];
} nccl_memory;

static void nccl_register(nccl_registration *k, nccl_comm *m, const esp_buf *b) {
    const nccl_library *l = m->library;
    int r = NCCL_IN_PROGRESS;
    k->comm = m;
    nccl_enter(m);
    if (nccl_settled(m) == ESP_OK) r = l->ncclCommRegister(m->handle, b->ptr, b->bytes, &k->handle);
    if (r) k->handle = NULL;
    if (r && r != NCCL_IN_PROGRESS)
        backend_error(&m->who, ESP_OK, "NCCL does not register %llu bytes at %p: %s", (unsigned long long)b->bytes,
                      b->ptr, l->ncclGetErrorString(r));
    nccl_leave(m);
}
static void nccl_deregister(nccl_registration *k) {
    if (!k->handle) return;
    nccl_join_abort(k->comm); /* an abort in progress may use the memory */
    nccl_enter(k->comm);
    if (k->comm->handle) /* an abort ends all registrations */
        k->comm->library->ncclCommDeregister(k->comm->handle, k->handle);
    nccl_leave(k->comm);
    k->handle = NULL;
}

/* Registers a buffer with all communicators of this rank, since collectives of several groups use the same buffer. */
ESP__FN esp_status nccl_reg(void *comm, const esp_buf *b, void **mh) {
    nccl_comm *m = (nccl_comm *)comm;
    nccl_job *j = m->job;
    int n = 0;
    *mh = NULL;
    if (b->dev.kind != ESP_CUDA || b->dev.ordinal != j->ordinal || !m->library->ncclCommRegister ||
        !m->library->ncclCommDeregister)
        return ESP_OK; /* host memory is not registered: its data are copied through pinned memory */
    for (const nccl_comm *c = j->comms; c; c = c->next_comm) n++;
    nccl_memory *all = (nccl_memory *)backend_alloc(m->who.host, sizeof *all + (uint64_t)n * sizeof *all->of);
    if (!all) return backend_error(&m->who, ESP_E_NOMEM, "no memory for a list of %d communicators", n);
    all->host = m->who.host, all->job = j, all->n = n, all->next = j->memory;
    j->memory = all;
    for (nccl_comm *c = j->comms; c; c = c->next_comm) nccl_register(&all->of[--n], c, b);
    *mh = all;
    return ESP_OK;
}
ESP__FN esp_status nccl_dereg(void *comm, void *mh) {
    nccl_memory *all = (nccl_memory *)mh, **at = &((nccl_comm *)comm)->job->memory;
    if (!all) return ESP_OK;
    while (*at && *at != all) at = &(*at)->next;
    if (*at) *at = all->next;
    for (int i = 0; i < all->n; i++) nccl_deregister(&all->of[i]);
    backend_release(all->host, all, sizeof *all + (uint64_t)all->n * sizeof *all->of);
    return ESP_OK;
}
ESP__FN void nccl_deregister_all(const nccl_comm *m) {
    for (nccl_memory *a = m->job->memory; a; a = a->next)
        for (int i = 0; i < a->n; i++)
            if (a->of[i].comm == m) nccl_deregister(&a->of[i]);
}
