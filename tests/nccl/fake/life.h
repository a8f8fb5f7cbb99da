/* life.h is a part of fake.c, the stand-in for NCCL. It creates and ends communicators. */
#ifndef FAKE_LIFE_H
#define FAKE_LIFE_H

FAKE_EXPORT int ncclGetVersion(int *version) {
    const char *env = getenv("FAKE_NCCL_VERSION");
#ifdef FAKE_OLD
    return *version = env ? atoi(env) : 21400, OK;
#else
    return *version = env ? atoi(env) : 22809, OK;
#endif
}
FAKE_EXPORT const char *ncclGetErrorString(int result) {
    return result == OK         ? "no error"
           : result == SYSTEM   ? "unhandled system error"
           : result == ARGUMENT ? "invalid argument"
           : result == USAGE    ? "invalid usage"
           : result == REMOTE   ? "remote process exited or there was a network error"
                                : "some NCCL error";
}
#ifndef FAKE_OLD
FAKE_EXPORT const char *ncclGetLastError(void *c) { return (void)c, last_error; }
#endif
FAKE_EXPORT int ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    return world_name(id->bytes), OK;
}

static int last_ctas;
FAKE_EXPORT int fake_ctas(void) { return last_ctas; }
FAKE_EXPORT int ncclCommInitRankConfig(void **out, int n, ncclUniqueId id, int rank, config *g) {
    const int device = gpu_current("ncclCommInitRankConfig");
    if (g->magic != 0xCAFEBEEFu || g->version < 21400 || g->size > 256) fake_wrong("the configuration is malformed");
    if (g->blocking) fake_wrong("a communicator that blocks");
    if (n < 1 || n > RANKS || rank < 0 || rank >= n) return ARGUMENT;
    *out = NULL;
    pthread_mutex_lock(&gpu_lock);
    int r = fails("ncclCommInitRankConfig", rank);
    comm *m = r ? NULL : (comm *)calloc(1, sizeof *m);
    if (m && world_join(&m->w, id.bytes, rank, n, device)) {
        snprintf(last_error, sizeof last_error, "no way to %.90s", id.bytes);
        r = SYSTEM;
        free(m);
    } else if (m) {
        gpu_live++;
        m->magic = MAGIC, m->rank = rank, m->n = n, m->device = device;
        last_ctas = g->max_ctas;
        *out = m;
    }
    pthread_mutex_unlock(&gpu_lock);
    return r ? r : IN_PROGRESS;
}
FAKE_EXPORT int ncclCommGetAsyncError(void *c, int *state) {
    comm *m = known(c, "ncclCommGetAsyncError");
    pthread_mutex_lock(&gpu_lock);
    if (!m->error) m->error = fails("async", m->rank);
    const int joined = world_joined(&m->w) >= m->n;
    if (!m->error && !joined && __atomic_load_n(&m->w.all->lost, __ATOMIC_SEQ_CST)) m->error = REMOTE;
    for (int q = 0; q < m->n && joined && !m->error && !getenv("FAKE_SHARED"); q++)
        if (q != m->rank && m->w.all->device[q] == m->device)
            m->error = USAGE, snprintf(last_error, sizeof last_error, "Duplicate GPU detected");
    *state = m->error ? m->error : !joined || m->delay ? IN_PROGRESS : m->finalized && m->running ? IN_PROGRESS : OK;
    pthread_mutex_unlock(&gpu_lock);
    return OK;
}
#ifndef FAKE_OLD
FAKE_EXPORT int ncclCommRegister(void *c, void *at, size_t bytes, void **handle) {
    comm *m = known(c, "ncclCommRegister");
    gpu_known *k = (gpu_known *)calloc(1, sizeof *k);
    const int device = gpu_current("ncclCommRegister");
    if (m->delay || device != m->device) fake_wrong("ncclCommRegister: when, or of which device");
    pthread_mutex_lock(&gpu_lock);
    if (!gpu_holds(at, bytes, 0) && !(hooks.own && hooks.own(at, bytes)))
        fake_wrong("ncclCommRegister: %zu bytes are not device memory", bytes);
    const int r = fails("ncclCommRegister", m->rank);
    *k = (gpu_known){(const uint8_t *)at, bytes, m, gpu_all_known};
    if (!r) gpu_all_known = k, *handle = k, gpu_live++;
    pthread_mutex_unlock(&gpu_lock);
    if (r) free(k);
    return r;
}
static void unregister(gpu_known *k) {
    gpu_known **at = &gpu_all_known;
    while (*at && *at != k) at = &(*at)->next;
    if (!*at) fake_wrong("ncclCommDeregister of what is not registered");
    *at = k->next;
    gpu_live--;
    free(k);
}
FAKE_EXPORT int ncclCommDeregister(void *c, void *handle) {
    const comm *m = known(c, "ncclCommDeregister");
    pthread_mutex_lock(&gpu_lock);
    if (((gpu_known *)handle)->comm != m) fake_wrong("ncclCommDeregister with another communicator");
    unregister((gpu_known *)handle);
    pthread_mutex_unlock(&gpu_lock);
    return OK;
}
static void unregister_all(const comm *m, int may) {
    for (gpu_known *k = gpu_all_known, *next; k; k = next) {
        next = k->next;
        if (k->comm == m && !may) fake_wrong("ncclCommDestroy while memory is registered");
        if (k->comm == m) unregister(k);
    }
}
#else
static void unregister_all(const comm *m, int may) { (void)m, (void)may; }
#endif
static void comm_free(comm *m) {
    static comm *gone;
    m->magic = 0; /* keeps the memory, so that known() detects later use */
    m->next = gone;
    gone = m;
    gpu_live--;
    world_leave(&m->w);
}
FAKE_EXPORT int ncclCommFinalize(void *c) {
    comm *m = known(c, "ncclCommFinalize");
    if (m->delay) fake_wrong("ncclCommFinalize while the communicator is in progress");
    m->finalized = 1;
    return IN_PROGRESS;
}
FAKE_EXPORT int ncclCommDestroy(void *c) {
    comm *m = known(c, "ncclCommDestroy");
    pthread_mutex_lock(&gpu_lock);
    if (!m->finalized || m->running) fake_wrong("ncclCommDestroy before all is finalized");
    unregister_all(m, 0);
    comm_free(m);
    pthread_mutex_unlock(&gpu_lock);
    return OK;
}
/* Ends running collectives on this rank only. Other ranks wait until they abort too. */
FAKE_EXPORT int ncclCommAbort(void *c) {
    comm *m = known(c, "ncclCommAbort");
    gpu_current("ncclCommAbort");
    pthread_mutex_lock(&gpu_lock);
    m->aborted = 1;
    if (world_joined(&m->w) < m->n) __atomic_store_n(&m->w.all->lost, 1, __ATOMIC_SEQ_CST);
    if (m->waits) m->running--, free(m->waits), m->waits = NULL;
    pthread_cond_broadcast(&gpu_news);
    while (m->running) pthread_cond_wait(&gpu_news, &gpu_lock);
    unregister_all(m, 1);
    comm_free(m);
    pthread_mutex_unlock(&gpu_lock);
    return OK;
}

FAKE_EXPORT int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int where, void *c) {
    comm *m = known(c, "ncclRedOpCreatePreMulSum");
    if (where != 1 || m->n_ops == OPS || m->delay) fake_wrong("ncclRedOpCreatePreMulSum: where, how many, or when");
    m->scales[m->n_ops] = load(type, (const uint8_t *)scalar);
    m->types[m->n_ops] = type;
    *op = FIRST_OWN_OP + m->n_ops++;
    return OK;
}
FAKE_EXPORT int ncclRedOpDestroy(int op, void *c) {
    comm *m = known(c, "ncclRedOpDestroy");
    if (op < FIRST_OWN_OP || op >= FIRST_OWN_OP + m->n_ops) fake_wrong("ncclRedOpDestroy: no operation %d", op);
    m->types[op - FIRST_OWN_OP] = -1;
    return OK;
}
#endif
