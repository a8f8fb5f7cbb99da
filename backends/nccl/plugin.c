/* plugin.c: backend "nccl", for ranks that have a GPU each. Collectives on device memory are enqueued on the
 * caller's stream; host memory is copied through the device in pieces. Every group of ranks has its own non-blocking
 * NCCL communicator, with an id of its own: ncclCommSplit and ncclCommShrink would need all ranks of the parent.
 * Communicators share no resources, since several of them move data at the same time. */
#include "backends/nccl/nccl.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    NCCL_RANKS = 65536,
    NCCL_SPIN_NS = 30000,
    NCCL_POLL_US = 50,
    NCCL_CTAS_MOST = 16,
    NCCL_CLOSE_MS = 2000,
    NCCL_TIMEOUT_MS = 300000
};
enum { NCCL_DEVICE_LOCAL = -1, NCCL_DEVICE_CURRENT = -2 };

typedef struct nccl_params {
    int device, ctas;
    uint64_t timeout_ms; /* time in which NCCL must connect the ranks */
} nccl_params;

/* What ranks exchange when a group opens. The group uses rank 0's id. */
typedef struct nccl_hello {
    int32_t status, version;
    nccl_id id;
} nccl_hello;

static void nccl_pause(void) {
    const struct timespec moment = {0, 200000};
    nanosleep(&moment, NULL);
}

/* Does not call cuInit, after which a forked process could not use CUDA. So only open() detects a missing GPU. The
 * score is below that of shm, since tensors are in host memory unless they name a device. */
static esp_status nccl_probe(const esp_host *h, int32_t *score) {
    char why[512];
    *score = nccl_open_libraries(why, sizeof why) ? 5 : 0;
    if (!*score) nccl_log(h, ESP_OK, "cannot run here: %s", why);
    return ESP_OK;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */
static long long nccl_number(const char *text, long long most) {
    char *end;
    const long long x = strtoll(text, &end, 10);
    return *text < '0' || *text > '9' || *end || x > most ? -1 : x;
}
static esp_status nccl_read_params(const esp_host *h, const char *params, nccl_params *p) {
    const char *env = getenv("ESPRESSO_TIMEOUT_MS");
    char key[32], val[64];
    int more;
    const long long limit = env ? nccl_number(env, INT_MAX) : -1;
    *p = (nccl_params){NCCL_DEVICE_LOCAL, 0, (uint64_t)(limit > 0 ? limit : NCCL_TIMEOUT_MS) / 2};
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        const long long x = nccl_number(val, INT_MAX);
        if (!strcmp(key, "device") && (x >= 0 || !strcmp(val, "local") || !strcmp(val, "current")))
            p->device = x >= 0 ? (int)x : val[0] == 'l' ? NCCL_DEVICE_LOCAL : NCCL_DEVICE_CURRENT;
        else if (!strcmp(key, "timeout") && x > 0)
            p->timeout_ms = (uint64_t)x;
        else if (!strcmp(key, "ctas") && x >= 0 && x <= 64)
            p->ctas = (int)x;
        else
            return nccl_log(
                h, ESP_E_ARG,
                "does not know %s=%s: it takes device=local (or current, or a number), timeout=150000 (ms), "
                "ctas=0 (to 64)",
                key, val);
    }
    return more < 0 ? nccl_log(h, ESP_E_ARG, "parameters are malformed: write device=local,timeout=150000,ctas=0")
                    : ESP_OK;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */
static int32_t nccl_local_rank(const esp_group *g) {
    int32_t n = 0;
    if (g->place && g->n_levels > 0) return g->place[g->rank * g->n_levels];
    for (int32_t q = 0; q < g->rank; q++) n += !g->machine || g->machine[q] == g->machine[g->rank];
    return n;
}
static esp_status nccl_pick_device(nccl_comm *m, const esp_group *g, const nccl_params *p) {
    const nccl_library *l = m->library;
    int count = 0, r = l->cuInit(0);
    if (r) return nccl_cuda_failed(m->who.host, l, "cuInit", r);
    if ((r = l->cuDeviceGetCount(&count)) != 0) return nccl_cuda_failed(m->who.host, l, "cuDeviceGetCount", r);
    if (!count)
        return backend_error(&m->who, ESP_E_DEVICE, "the CUDA driver has no device here (see CUDA_VISIBLE_DEVICES)");
    m->job->ordinal = p->device >= 0 ? p->device : nccl_local_rank(g) % count;
    if (p->device == NCCL_DEVICE_CURRENT && (r = l->cuCtxGetDevice(&m->job->ordinal)) != 0)
        return backend_error(
            &m->who, ESP_E_DEVICE,
            "device=current, but this thread has no device: call cudaSetDevice before esp_open, or leave "
            "device= out");
    if (m->job->ordinal >= count)
        return backend_error(&m->who, ESP_E_ARG, "device=%d: there are %d devices, from 0 on", m->job->ordinal, count);
    if ((r = l->cuDeviceGet(&m->job->device, m->job->ordinal)) != 0)
        return nccl_cuda_failed(m->who.host, l, "cuDeviceGet", r);
    r = l->cuDevicePrimaryCtxRetain(&m->job->context, m->job->device);
    return r ? nccl_cuda_failed(m->who.host, l, "cuDevicePrimaryCtxRetain", r) : ESP_OK;
}
/* Allocates the stream, events and buffers for pieces. Must be called between nccl_enter and nccl_leave. */
static esp_status nccl_alloc_memory(nccl_comm *m) {
    const nccl_library *l = m->library;
    esp_status s = nccl_check_cuda(m, "cuStreamCreate", l->cuStreamCreate(&m->stream, CUDA_STREAM_NON_BLOCKING));
    for (int i = 0; i < NCCL_SLOTS && !s; i++) {
        nccl_slot *t = &m->slots[i];
        int r = l->cuEventCreate(&t->event, CUDA_EVENT_NO_TIMES);
        if (!r) r = l->cuMemHostAlloc((void **)&t->in, NCCL_PIECE, CUDA_HOST_PORTABLE);
        if (!r) r = l->cuMemHostAlloc((void **)&t->out, NCCL_PIECE, CUDA_HOST_PORTABLE);
        if (!r) r = l->cuMemAlloc_v2(&t->device_in, NCCL_PIECE);
        if (!r) r = l->cuMemAlloc_v2(&t->device_out, NCCL_PIECE);
        s = nccl_check_cuda(m, "memory for the host's data", r);
    }
    return s;
}
static void nccl_free_memory(nccl_comm *m) {
    const nccl_library *l = m->library;
    if (m->stream) l->cuStreamSynchronize(m->stream);
    for (int i = 0; i < NCCL_SLOTS; i++) {
        nccl_slot *t = &m->slots[i];
        if (t->event) l->cuEventDestroy_v2(t->event);
        if (t->in) l->cuMemFreeHost(t->in);
        if (t->out) l->cuMemFreeHost(t->out);
        if (t->device_in) l->cuMemFree_v2(t->device_in);
        if (t->device_out) l->cuMemFree_v2(t->device_out);
    }
    if (m->stream) l->cuStreamDestroy_v2(m->stream);
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */
/* Finalizes NCCL's communicator if no request is open and the other ranks finalize it within NCCL_CLOSE_MS
 * milliseconds; otherwise aborts it. Must be called between nccl_enter and nccl_leave. */
static void nccl_disconnect(nccl_comm *m) {
    const uint64_t end = backend_now_ns() / 1000000u + NCCL_CLOSE_MS;
    const bool idle = m->first == m->next && nccl_settled(m) == ESP_OK;
    int r = idle ? m->library->ncclCommFinalize(m->handle) : NCCL_BAD_USAGE, state = NCCL_IN_PROGRESS;
    while ((r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS) && state == NCCL_IN_PROGRESS &&
           backend_now_ns() / 1000000u < end) {
        r = m->library->ncclCommGetAsyncError(m->handle, &state);
        if (state == NCCL_IN_PROGRESS) nccl_pause();
    }
    if (r == NCCL_SUCCESS && state == NCCL_SUCCESS && !m->library->ncclCommDestroy(m->handle))
        m->handle = NULL;
    else
        nccl_abort_locked(m);
}
static void nccl_close(void *comm) {
    nccl_comm *m = (nccl_comm *)comm;
    if (!m) return;
    const esp_host *h = m->who.host;
    nccl_job *j = m->job;
    nccl_comm **at = j ? &j->comms : NULL;
    while (at && *at && *at != m) at = &(*at)->next_comm;
    if (at && *at) *at = m->next_comm;
    nccl_join_abort(m);
    if (j) nccl_deregister_all(m);
    if (m->library && j && j->context) {
        nccl_enter(m);
        nccl_disconnect(m);
        nccl_free_memory(m);
        nccl_leave(m);
    }
    if (j && --j->refs == 0) {
        if (j->context) j->library->cuDevicePrimaryCtxRelease_v2(j->device);
        if (j->event >= 0) close(j->event);
        backend_release(h, j, sizeof *j);
    }
    pthread_mutex_destroy(&m->lock);
    backend_release(h, m->level, (uint64_t)m->who.size);
    backend_release(h, m, sizeof *m);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static nccl_comm *nccl_new(const esp_host *h, const esp_group *g) {
    nccl_comm *m = (nccl_comm *)backend_alloc(h, sizeof *m);
    if (!m) return NULL;
    m->who = (backend_caller){h, "nccl", g->rank, g->size};
    pthread_mutex_init(&m->lock, NULL);
    m->level = (uint8_t *)backend_alloc(h, (uint64_t)g->size);
    if (g->parent)
        m->job = ((nccl_comm *)g->parent)->job;
    else if ((m->job = (nccl_job *)backend_alloc(h, sizeof *m->job)) != NULL)
        m->job->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (m->job) m->job->refs++;
    for (int32_t q = 0; m->level && q < g->size; q++) m->level[q] = backend_level(g, q, g->rank);
    if (m->level && m->job && m->job->event >= 0) return m;
    nccl_close(m);
    return NULL;
}

/* Reads the parameters, opens the libraries and allocates memory, for which no other rank is needed. */
static esp_status nccl_prepare(nccl_comm *m, const esp_group *g, const char *params, nccl_params *p) {
    char why[512];
    esp_status s = nccl_read_params(m->who.host, params, p);
    if (s) return s;
    m->library = nccl_open_libraries(why, sizeof why);
    if (!m->library) return backend_error(&m->who, ESP_E_UNSUPPORTED, "%s", why);
    m->job->library = m->library;
    if (!g->parent) s = nccl_pick_device(m, g, p);
    if (s) return s;
    nccl_enter(m);
    s = nccl_alloc_memory(m);
    nccl_leave(m);
    return s;
}

/* Exchanges the ranks' statuses, so that all ranks of the group fail if one does. */
static esp_status nccl_agree(nccl_comm *m, const esp_group *g, esp_status mine, nccl_hello *all) {
    nccl_hello hello = all[0];
    hello.status = mine, hello.version = m->library ? m->library->version : 0;
    all[0] = hello;
    const esp_status s = m->who.size > 1 ? g->oob_allgather(g->user, &hello, all, sizeof hello) : ESP_OK;
    if (mine || s) return mine && s != ESP_E_PEER ? mine : s;
    for (int32_t q = 0; q < m->who.size; q++)
        if (all[q].status)
            return backend_error(&m->who, all[q].status, "rank %d could not open: see its own error", (int)q);
    for (int32_t q = 0; q < m->who.size; q++)
        if (all[q].version != hello.version)
            return backend_error(&m->who, ESP_E_MISMATCH,
                                 "this rank has version %d of NCCL, rank %d has %d: use the same library on all ranks",
                                 (int)hello.version, (int)q, (int)all[q].version);
    return ESP_OK;
}

/* Collectives of several levels run at the same time, and a kernel of NCCL waits until all its blocks run. So those of
 * all levels must fit the GPU together, and leave most of it to the trainer. A collective of all ranks has no other
 * beside it. */
static int nccl_ctas(const nccl_comm *m, const esp_group *g, const nccl_params *p) {
    int sms = 0;
    if (p->ctas || !g->level || g->n_levels < 2) return p->ctas ? p->ctas : NCCL_UNSET;
    if (m->library->cuDeviceGetAttribute(&sms, CUDA_MULTIPROCESSORS, m->job->device)) return NCCL_UNSET;
    const int each = sms / (4 * g->n_levels);
    return each < 1 ? 1 : each < NCCL_CTAS_MOST ? each : NCCL_CTAS_MOST;
}

/* Connects the ranks. Fails after a timeout, since NCCL would wait for a failed rank forever. */
static esp_status nccl_connect(nccl_comm *m, const esp_group *g, const nccl_id *id, const nccl_params *p) {
    nccl_config config = {sizeof config, 0xCAFEBEEFu, NCCL_WITH_CTAS,     0,
                          NCCL_UNSET,    NCCL_UNSET,  nccl_ctas(m, g, p), NULL};
    const uint64_t end = backend_now_ns() / 1000000u + p->timeout_ms;
    esp_status s = nccl_check(m, "ncclCommInitRankConfig",
                              m->library->ncclCommInitRankConfig(&m->handle, m->who.size, *id, m->who.rank, &config));
    while (!s && (s = nccl_settled(m)) == ESP_PENDING && backend_now_ns() / 1000000u < end) nccl_pause(), s = ESP_OK;
    if (s == ESP_PENDING)
        s = nccl_mark_failed(
            m, backend_error(&m->who, ESP_E_TIMEOUT,
                             "NCCL has not connected the %d ranks within %llu ms: set NCCL_DEBUG=INFO to see what "
                             "it waits for, or timeout=",
                             (int)m->who.size, (unsigned long long)p->timeout_ms));
    return s;
}

static esp_status nccl_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    const uint64_t bytes = (uint64_t)(g->size > 0 ? g->size : 1) * sizeof(nccl_hello);
    nccl_params p;
    *comm = NULL;
    esp_status s = backend_check_group(h, "nccl", g, NCCL_RANKS);
    if (s) return s;
    nccl_comm *m = nccl_new(h, g);
    nccl_hello *all = (nccl_hello *)backend_alloc(h, bytes);
    if (!m || !all) {
        nccl_close(m);
        backend_release(h, all, bytes);
        return nccl_log(h, ESP_E_NOMEM, "no memory for a communicator");
    }
    s = nccl_prepare(m, g, params, &p);
    if (!s && m->who.rank == 0) {
        const int r = m->library->ncclGetUniqueId(&all[0].id);
        if (r) s = nccl_failed(h, m->library, "ncclGetUniqueId", r, NULL);
    }
    s = nccl_agree(m, g, s, all);
    if (!s) {
        nccl_enter(m);
        s = nccl_connect(m, g, &all[0].id, &p);
        if (s) nccl_abort_locked(m); /* peers may be waiting for this rank to connect */
        nccl_leave(m);
        s = nccl_agree(m, g, s, all);
    }
    backend_release(h, all, bytes);
    if (s)
        nccl_close(m);
    else
        m->next_comm = m->job->comms, m->job->comms = m, *comm = m;
    return s;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */
static esp_status nccl_check_call(nccl_comm *m, const esp_coll *c, esp_stream s) {
    const esp_host *h = m->who.host;
    const char *what = backend_op_name(c->op);
    const esp_status st = backend_check_call(&m->who, c);
    if (st) return st;
    if (backend_op_sums(c->op) && c->dtype == ESP_I16)
        return nccl_log(h, ESP_E_UNSUPPORTED, "%s: reduces f32, f16, bf16, i8 and i32 by SUM, MAX and MIN", what);
    const int sends = backend_needs_src(&m->who, c), receives = backend_needs_dst(&m->who, c);
    if ((sends && c->src.dev.kind != s.dev.kind && c->src.dev.kind + s.dev.kind > 1) ||
        (receives && c->dst.dev.kind != s.dev.kind && c->dst.dev.kind + s.dev.kind > 1))
        return nccl_log(h, ESP_E_ARG, "%s: the buffers and the stream must be on the same device", what);
    if (s.dev.kind <= ESP_CPU) return ESP_OK;
    if (s.dev.kind != ESP_CUDA || s.dev.ordinal != m->job->ordinal)
        return nccl_log(h, ESP_E_ARG,
                        "%s: the memory is of device %u:%d, but this rank's communicator is on CUDA device %d: "
                        "see the parameter device=",
                        what, (unsigned)s.dev.kind, (int)s.dev.ordinal, m->job->ordinal);
    if (nccl_ordered(m, c))
        return nccl_log(h, ESP_E_UNSUPPORTED,
                        "%s: MAX and MIN of floats in a device's memory: NCCL's leave out NaNs: reduce in host memory",
                        what);
    return ESP_OK;
}

/* Multiplies the result by the scale, if NCCL has not done so (nccl_scales_first). */
static esp_status nccl_scale_after(nccl_comm *m, const nccl_req *r) {
    const esp_coll *c = &r->c;
    const esp_device_table *t = NULL;
    void *self = NULL;
    const uint64_t n =
        (c->op == ESP_COLL_REDUCE_SCATTER ? nccl_part(m, c, m->who.rank) : c->count) * backend_max(c->width, 1);
    const esp_stream stream = {c->dst.dev, r->stream};
    if (!n || !backend_needs_dst(&m->who, c)) return ESP_OK;
    esp_status s = ESP_HAS(esp_host, m->who.host, device)
                       ? m->who.host->device(m->who.host->user, c->dst.dev, &t, &self)
                       : backend_error(&m->who, ESP_E_UNSUPPORTED, "the host has no devices");
    if (!s) s = t->convert(self, c->dst.ptr, ESP_F32, c->dst.ptr, ESP_F32, c->scale, 0, n, stream);
    return s ? nccl_mark_failed(m, s) : ESP_OK;
}
static esp_status nccl_device_drive(nccl_comm *m, nccl_req *r) {
    if (!r->issued) {
        r->issued = true;
        return nccl_issue(m, &r->c, r->stream);
    }
    r->done = true;
    return nccl_has_scale(&r->c) && !nccl_scales_first(&r->c) ? nccl_scale_after(m, r) : ESP_OK;
}
/* Advances the oldest request only, since NCCL requires all ranks to call collectives in the same order. Each gets a
 * call of its own: a shared ncclGroupStart would save time, but NCCL sorts a group's collectives by size and chooses
 * one algorithm, protocol and division into channels for them. So all ranks must form the same groups, while which
 * requests are ready differs between ranks. Returns ESP_OK if it did something, ESP_PENDING if it must wait. */
static esp_status nccl_drive(nccl_comm *m) {
    esp_status s = nccl_settled(m);
    if (s || m->first == m->next) return s ? s : ESP_PENDING;
    nccl_req *r = &m->reqs[m->first % NCCL_QUEUE];
    if (!r->c.count)
        r->done = true;
    else
        s = r->host ? nccl_host_drive(m, r) : nccl_device_drive(m, r);
    if (!s) m->job->active_ns = backend_now_ns();
    if (s || !r->done) return s;
    nccl_count(m, &r->c);
    __atomic_sub_fetch(&m->job->open, 1u, __ATOMIC_SEQ_CST);
    m->first++;
    return ESP_OK;
}

static esp_status nccl_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    nccl_comm *m = (nccl_comm *)comm;
    nccl_req *r = &m->reqs[m->next % NCCL_QUEUE];
    esp_coll copy;
    backend_copy_call(c, &copy);
    if (BACKEND_LOAD(&m->aborted)) return ESP_E_PEER;
    if (m->error) return m->error;
    const esp_status st = nccl_check_call(m, &copy, s);
    if (st) return st;
    if (r->used) return backend_error(&m->who, ESP_E_STATE, "64 requests are open: test them before starting more");
    memset(r, 0, sizeof *r);
    r->c = copy;
    r->host = s.dev.kind <= ESP_CPU;
    r->stream = r->host ? m->stream : s.native;
    r->total = r->host ? nccl_host_total(m, &copy) : 0;
    r->used = true;
    m->next++;
    __atomic_add_fetch(&m->job->open, 1u, __ATOMIC_SEQ_CST);
    *req = r;
    return ESP_OK;
}
static esp_status nccl_test(void *comm, void *req) {
    nccl_comm *m = (nccl_comm *)comm;
    nccl_req *r = (nccl_req *)req;
    esp_status s = ESP_OK;
    nccl_enter(m);
    for (int i = 0; i < 4 && !r->done && !s; i++) s = nccl_drive(m);
    nccl_leave(m);
    if (s < 0) return s;
    if (!r->done) return ESP_PENDING;
    r->used = false;
    return ESP_OK;
}

/* Polls while requests are open, since NCCL sends no notification. A call of NCCL takes some 20 us, so this sleeps only
 * if nothing has happened for longer. Errors are returned by test(), not here. */
static esp_status nccl_progress(void *comm, uint64_t timeout_us) {
    nccl_job *j = ((nccl_comm *)comm)->job;
    const struct timespec interval = {0, NCCL_POLL_US * 1000};
    struct pollfd p = {j->event, POLLIN, 0};
    uint64_t drop;
    const bool polls = BACKEND_LOAD(&j->open) && timeout_us;
    if (polls && backend_now_ns() - j->active_ns < NCCL_SPIN_NS)
        sched_yield();
    else if (polls)
        nanosleep(&interval, NULL);
    if (poll(&p, 1, polls ? 0 : (int)((timeout_us + 999) / 1000)) < 0 && errno != EINTR) return ESP_E_COMM;
    while (read(j->event, &drop, sizeof drop) > 0) {
    }
    for (nccl_comm *m = j->comms; m; m = m->next_comm) {
        if (m->first == m->next || m->error) continue;
        nccl_enter(m);
        nccl_drive(m);
        nccl_leave(m);
    }
    return ESP_OK;
}
static void nccl_wake(void *comm) {
    const uint64_t one = 1;
    if (write(((nccl_comm *)comm)->job->event, &one, sizeof one) < 0) return; /* EAGAIN: it is readable already */
}
static void *nccl_abort_thread(void *comm) {
    nccl_comm *m = (nccl_comm *)comm;
    void *before;
    int mode = CUDA_CAPTURE_THREAD_LOCAL;
    pthread_mutex_lock(&m->lock);
    nccl_handle h = m->handle;
    m->handle = NULL;
    pthread_mutex_unlock(&m->lock);
    m->library->cuCtxPushCurrent_v2(m->job->context);
    m->library->cuThreadExchangeStreamCaptureMode(&mode);
    if (h) m->library->ncclCommAbort(h);
    m->library->cuThreadExchangeStreamCaptureMode(&mode);
    m->library->cuCtxPopCurrent_v2(&before);
    return NULL;
}
/* Aborts now, since a thread that waits for a stream calls no test() while the stream waits for NCCL. Runs in a thread
 * of its own, since ncclCommAbort waits for kernels, which may be queued behind those of a communicator that the caller
 * aborts next. */
static esp_status nccl_abort(void *comm) {
    nccl_comm *m = (nccl_comm *)comm;
    pthread_mutex_lock(&m->lock);
    const bool again = __atomic_exchange_n(&m->aborted, 1u, __ATOMIC_SEQ_CST) != 0;
    if (!again) {
        sigset_t all, old; /* signals must go to the program's own threads */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        m->aborting = pthread_create(&m->abort_thread, NULL, nccl_abort_thread, m) == 0;
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    const bool no_thread = !again && !m->aborting;
    pthread_mutex_unlock(&m->lock);
    if (no_thread) nccl_abort_thread(m);
    nccl_wake(comm);
    return ESP_OK;
}
/* NCCL does not report which rank it waits for, so only with two ranks it is known: the other one. */
static int32_t nccl_straggler(void *comm, void *req) {
    const nccl_comm *m = (nccl_comm *)comm;
    return m->who.size == 2 && !((nccl_req *)req)->done ? 1 - m->who.rank : -1;
}
static esp_status nccl_traffic(void *comm, esp_traffic *out) {
    return backend_traffic(out, ((nccl_comm *)comm)->level_bytes, 0);
}

static const esp_backend nccl_backend = {
    .struct_size = sizeof(esp_backend),
    .caps = ESP_BACKEND_STREAM_ORDERED | ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_SCALE | ESP_BACKEND_REOPENS,
    .colls = BACKEND_COLLS,
    .devices = ESP_BIT(ESP_CPU) | ESP_BIT(ESP_CUDA),
    .dtypes = BACKEND_DTYPES & ~ESP_BIT(ESP_I16),
    .reduces = BACKEND_REDUCTIONS,
    .name = "nccl",
    .summary = "ranks have a GPU each, which NCCL connects",
    .params = "device=local,timeout=150000,ctas=0",
    .probe = nccl_probe,
    .open = nccl_open,
    .close = nccl_close,
    .start = nccl_start,
    .test = nccl_test,
    .progress = nccl_progress,
    .wake = nccl_wake,
    .abort = nccl_abort,
    .straggler = nccl_straggler,
    .traffic = nccl_traffic,
    .reg = nccl_reg,
    .dereg = nccl_dereg,
};

ESP_PLUGIN_BACKEND(nccl, &nccl_backend)
