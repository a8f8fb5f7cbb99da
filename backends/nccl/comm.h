/* comm.h: what a communicator holds, and how NCCL's is asked whether it has done what it was told. Knows nothing of what
 * collectives move. */
#ifndef NCCL_COMM_H
#define NCCL_COMM_H
#include "backends/nccl/library.h"

enum {
    NCCL_QUEUE = 64,          /* requests open at the same time on one comm                         */
    NCCL_PIECE = 1024 * 1024, /* bytes of host memory that pass the device at once                  */
    NCCL_SLOTS = 2,           /* pieces on their way                                                */
    NCCL_OPS = 8              /* sums with a scale that are kept                                    */
};

typedef struct nccl_req {
    esp_coll c;
    void *stream; /* of the caller; host memory: this comm's own                                        */
    uint32_t used, done;
    uint32_t host, issued;           /* host memory; enqueued                                              */
    uint64_t total, filled, drained; /* host memory: numbers of a rank's part; of these sent and received */
} nccl_req;

/* A piece of host memory on its way through the device. */
typedef struct nccl_slot {
    uint8_t *in, *out; /* pinned */
    unsigned long long device_in, device_out;
    void *event;
    uint64_t at, n; /* the piece: n numbers of each part, from `at` on                                     */
} nccl_slot;

/* A sum that multiplies by `scale` first. */
typedef struct nccl_scaled {
    int type, op, made;
    float scale;
} nccl_scaled;

/* The same for all comms that have the same parent: one thread drives them. */
typedef struct nccl_job {
    const nccl_library *library;
    int refs, event; /* eventfd: wake() */
    int ordinal, device;
    void *context;
    uint32_t open; /* requests that are not done */
    struct nccl_comm *comms;
    struct nccl_memory *memory; /* that the host announced */
} nccl_job;

typedef struct nccl_comm {
    const esp_host *host;
    const nccl_library *library;
    nccl_job *job;
    struct nccl_comm *next_comm; /* of the job */
    int32_t rank, size;
    uint8_t *level;       /* [size] the outermost level at which the rank's place differs                        */
    pthread_mutex_t lock; /* of the handle: abort() comes from any thread                                  */
    nccl_handle handle;
    uint32_t aborted;
    pthread_t ender; /* ends the handle after abort() */
    int ending;
    esp_status error;
    nccl_req reqs[NCCL_QUEUE];
    uint64_t first, next; /* the request that runs; the next free one                                      */
    void *stream;
    nccl_slot slots[NCCL_SLOTS];
    uint64_t slot_first, slot_next;
    int launching; /* slot_next - 1 was given to NCCL, and its way back is not enqueued                    */
    nccl_scaled scaled[NCCL_OPS];
    int n_scaled;
    esp_traffic traffic;
} nccl_comm;

/* Calls of NCCL and CUDA stand between these two: the thread has the device's context, and gets back its own. */
ENGINE_FN void nccl_enter(nccl_comm *m) {
    pthread_mutex_lock(&m->lock);
    m->library->cuCtxPushCurrent_v2(m->job->context);
}
ENGINE_FN void nccl_leave(nccl_comm *m) {
    void *before;
    m->library->cuCtxPopCurrent_v2(&before);
    pthread_mutex_unlock(&m->lock);
}

/* The comm is of no use any more. Returns `s`. */
ENGINE_FN esp_status nccl_broken(nccl_comm *m, esp_status s) { return m->error = s; }

ENGINE_FN esp_status nccl_check(nccl_comm *m, const char *call, int result) {
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return ESP_OK;
    return nccl_broken(m, nccl_failed(m->host, m->library, call, result, m->handle));
}
ENGINE_FN esp_status nccl_check_cuda(nccl_comm *m, const char *call, int result) {
    return result == CUDA_SUCCESS_ ? ESP_OK : nccl_broken(m, nccl_cuda_failed(m->host, m->library, call, result));
}

/* Has NCCL done what it was told? ESP_OK: what was started is in its stream, and the next call may follow. It also finds what
 * failed since. */
ENGINE_FN esp_status nccl_settled(nccl_comm *m) {
    int state = NCCL_SUCCESS;
    if (m->error) return m->error;
    if (__atomic_load_n(&m->aborted, __ATOMIC_SEQ_CST) || !m->handle) return m->error = ESP_E_PEER;
    esp_status s = nccl_check(m, "ncclCommGetAsyncError", m->library->ncclCommGetAsyncError(m->handle, &state));
    if (s) return s;
    return state == NCCL_IN_PROGRESS ? ESP_PENDING : nccl_check(m, "a collective", state);
}

/* Waits for the end of the handle that abort() began. */
ENGINE_FN void nccl_ended(nccl_comm *m) {
    pthread_mutex_lock(&m->lock);
    const int ending = m->ending;
    m->ending = 0;
    pthread_mutex_unlock(&m->lock);
    if (ending) pthread_join(m->ender, NULL);
}
/* Ends NCCL's communicator with all that it still does. The lock is held. */
ENGINE_FN void nccl_drop(nccl_comm *m) {
    nccl_handle h = m->handle;
    m->handle = NULL;
    if (h) m->library->ncclCommAbort(h);
}
#endif
