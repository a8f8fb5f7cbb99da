/* nccl.h: shared by the files of backend nccl. plugin.c opens and runs communicators, library.c loads NCCL and CUDA,
 * comm.c detects errors and registers memory, issue.c calls NCCL's collectives, host.c copies host memory through
 * the device. */
#ifndef NCCL_H
#define NCCL_H
#include "backends/common/common.h"
#include "backends/nccl/library.h"
#include <pthread.h>

enum {
    NCCL_QUEUE = 64,
    NCCL_PIECE = 1024 * 1024, /* bytes of host memory copied to the device at a time */
    NCCL_SLOTS = 2,
    NCCL_OPS = 8 /* cached NCCL operations with a scale */
};

typedef struct nccl_req {
    esp_coll c;
    void *stream;
    bool used, done;
    bool host;   /* the buffers are in host memory */
    bool issued; /* NCCL has enqueued the collective */
    /* Progress on host memory, per rank, in numbers (in bytes if the collective does not reduce): all, copied to the
     * device, copied back. */
    uint64_t total, filled, drained;
} nccl_req;

/* A piece of host memory that is copied through the device: `n` numbers or bytes of each rank's data, from offset
 * `at`. in and out are pinned memory. */
typedef struct nccl_slot {
    uint8_t *in, *out;
    unsigned long long device_in, device_out;
    void *event;
    uint64_t at, n;
} nccl_slot;

/* An operation of NCCL that multiplies inputs by `scale` and adds them. */
typedef struct nccl_scaled {
    int type, op;
    bool made;
    float scale;
} nccl_scaled;

/* Shared by all communicators of this rank. One thread advances their requests. */
typedef struct nccl_job {
    const nccl_library *library;
    int refs, event; /* wake() writes to the eventfd `event` */
    int ordinal, device;
    void *context;
    uint32_t open;
    uint64_t active_ns; /* when a request last advanced */
    struct nccl_comm *comms;
    struct nccl_memory *memory; /* registered memory */
} nccl_job;

typedef struct nccl_comm {
    backend_caller who;
    const nccl_library *library;
    nccl_job *job;
    struct nccl_comm *next_comm;
    uint8_t *level;
    pthread_mutex_t lock; /* guards handle, since any thread may call abort() */
    nccl_handle handle;
    uint32_t aborted;
    int capture_mode; /* between nccl_enter() and nccl_leave(): of this thread, before */
    pthread_t abort_thread;
    bool aborting; /* abort_thread runs, or must be joined */
    esp_status error;
    nccl_req reqs[NCCL_QUEUE];
    uint64_t first, next;
    void *stream;
    nccl_slot slots[NCCL_SLOTS];
    uint64_t slot_first, slot_next;
    bool launching;
    nccl_scaled scaled[NCCL_OPS];
    int n_scaled;
    /* bytes received inside this machine, between machines, and between racks */
    uint64_t level_bytes[ESP_LEVELS];
} nccl_comm;

#define nccl_log(host, ...) backend_log((host), "nccl", __VA_ARGS__)

/* ---- library.c ---- */
/* Opens both libraries until the process ends. If one cannot be used, returns NULL and an error text in *why. */
ESP__FN const nccl_library *nccl_open_libraries(char *why, size_t cap);
ESP__FN bool nccl_find(void *from, const char *name, void *to);
/* Log that a call of NCCL or CUDA failed, and return the status for it. */
ESP__FN esp_status nccl_failed(const esp_host *h, const nccl_library *l, const char *call, int result,
                               nccl_handle comm);
ESP__FN esp_status nccl_cuda_failed(const esp_host *h, const nccl_library *l, const char *call, int result);

/* ---- comm.c ---- */
/* Calls of NCCL and CUDA must be between these two. They set the thread's CUDA context and restore the previous one. */
ESP__FN void nccl_enter(nccl_comm *m);
ESP__FN void nccl_leave(nccl_comm *m);
ESP__FN esp_status nccl_mark_failed(nccl_comm *m, esp_status s);
ESP__FN esp_status nccl_check(nccl_comm *m, const char *call, int result);
ESP__FN esp_status nccl_check_cuda(nccl_comm *m, const char *call, int result);
/* NCCL's calls return before they have enqueued their work, and another call must wait for that. Returns ESP_OK once
 * the last call has enqueued its work, ESP_PENDING until then, or an asynchronous error. */
ESP__FN esp_status nccl_settled(nccl_comm *m);
ESP__FN void nccl_join_abort(nccl_comm *m);
/* Aborts NCCL's communicator. The caller holds the lock. */
ESP__FN void nccl_abort_locked(nccl_comm *m);
ESP__FN esp_status nccl_reg(void *comm, const esp_buf *b, void **mh);
ESP__FN esp_status nccl_dereg(void *comm, void *mh);
ESP__FN void nccl_deregister_all(const nccl_comm *m);

/* ---- properties of a collective ---- */
static inline uint64_t nccl_begin(const nccl_comm *m, const esp_coll *c, int32_t p) {
    const uint64_t n = (uint64_t)m->who.size, at = (c->count + n - 1) / n * (uint64_t)p;
    return at < c->count ? at : c->count;
}
static inline uint64_t nccl_part(const nccl_comm *m, const esp_coll *c, int32_t p) {
    return nccl_begin(m, c, p + 1) - nccl_begin(m, c, p);
}
/* Returns true if the source or result is divided into one part for each rank, in all but allreduce, reduce and
 * broadcast. */
static inline bool nccl_has_parts(const esp_coll *c) {
    return c->op != ESP_COLL_ALLREDUCE && c->op != ESP_COLL_REDUCE && c->op != ESP_COLL_BROADCAST;
}
/* Return true if this rank's source (rows_in) or result (rows_out) has data for every rank, not only for this one. */
static inline bool nccl_rows_in(const esp_coll *c) {
    return c->op == ESP_COLL_REDUCE_SCATTER || c->op == ESP_COLL_ALLTOALL;
}
static inline bool nccl_rows_out(const esp_coll *c) {
    return c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER || c->op == ESP_COLL_ALLTOALL;
}

static inline bool nccl_has_scale(const esp_coll *c) { return backend_op_sums(c->op) && backend_scales(c); }
/* Returns true for MAX and MIN of floats, which are reduced as integers: NCCL does not order NaNs, nor -0 and +0. */
static inline bool nccl_ordered(const nccl_comm *m, const esp_coll *c) {
    return m->who.size > 1 && backend_op_sums(c->op) && c->reduce > ESP_REDUCE_SUM && c->dtype <= ESP_BF16;
}

/* ---- issue.c: collectives on device memory ---- */
/* Returns true if NCCL multiplies by the scale. If not, the result is multiplied afterwards. */
ESP__FN bool nccl_scales_first(const esp_coll *c);
/* Begins to enqueue a collective of at least one item. nccl_settled() returns ESP_OK once it is in the stream. */
ESP__FN esp_status nccl_issue(nccl_comm *m, const esp_coll *c, void *stream);
ESP__FN void nccl_count(nccl_comm *m, const esp_coll *c);

/* ---- host.c: on host memory ---- */
/* Returns how many numbers or bytes are copied for each rank, or in all if the data are not divided among ranks. */
ESP__FN uint64_t nccl_host_total(const nccl_comm *m, const esp_coll *c);
/* Does the next copy or call of a request on host memory. Call it only when nccl_settled() returns ESP_OK. Returns
 * ESP_OK if it did something, ESP_PENDING if it must wait, or an error. */
ESP__FN esp_status nccl_host_drive(nccl_comm *m, nccl_req *r);
#endif
