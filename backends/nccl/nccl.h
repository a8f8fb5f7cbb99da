/* nccl.h: shared by the files of backend nccl. plugin.c has its table, library.c opens NCCL and CUDA, comm.c has
 * communicators and registered memory, issue.c calls NCCL's collectives, host.c copies host memory through the
 * device. */
#ifndef NCCL_H
#define NCCL_H
#include "backends/common/common.h"
#include "backends/nccl/library.h"
#include <pthread.h>

enum {
    NCCL_QUEUE = 64,          /* most open requests on a communicator */
    NCCL_PIECE = 1024 * 1024, /* bytes of a piece of host memory */
    NCCL_SLOTS = 2,           /* pieces in progress at a time */
    NCCL_OPS = 8              /* cached NCCL operations with a scale */
};

typedef struct nccl_req {
    esp_coll c;
    void *stream; /* the caller's, or m->stream for host memory */
    bool used, done;
    bool host;   /* the buffers are in host memory */
    bool issued; /* NCCL has enqueued the collective */
    /* For host memory: numbers or bytes that each rank's part has, that were sent, and that have arrived. */
    uint64_t total, filled, drained;
} nccl_req;

/* A piece of host memory on its way: `n` numbers or bytes of each rank's part, from `at` on. in and out are pinned. */
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

/* Shared by the communicators of a job, which one thread drives. */
typedef struct nccl_job {
    const nccl_library *library;
    int refs, event; /* wake() writes to the eventfd `event` */
    int ordinal, device;
    void *context;
    uint32_t open;
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
    pthread_t abort_thread;
    bool aborting; /* abort_thread runs, or must be joined */
    esp_status error;
    nccl_req reqs[NCCL_QUEUE];
    uint64_t first, next; /* the running request, and the next free one */
    void *stream;
    nccl_slot slots[NCCL_SLOTS];
    uint64_t slot_first, slot_next;
    bool launching; /* the newest piece is not yet copied back */
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
/* Returns true if the source or the result has one part for each rank. If not, pieces are cut from the whole buffer. */
static inline bool nccl_has_parts(const esp_coll *c) {
    return c->op != ESP_COLL_ALLREDUCE && c->op != ESP_COLL_REDUCE && c->op != ESP_COLL_BROADCAST;
}
/* Returns true if a piece has data of every rank on its way to the device (rows_in), or back (rows_out). */
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

/* ---- issue.c: on the device's memory ---- */
/* Returns true if NCCL multiplies by the scale. If not, the result is multiplied afterwards. */
ESP__FN bool nccl_scales_first(const esp_coll *c);
/* Begins to enqueue a collective of at least one item. nccl_settled() returns ESP_OK once it is in the stream. */
ESP__FN esp_status nccl_issue(nccl_comm *m, const esp_coll *c, void *stream);
ESP__FN void nccl_count(nccl_comm *m, const esp_coll *c);

/* ---- host.c: on host memory ---- */
/* Returns how many numbers or bytes pieces must move: those of the longest part, or of the whole buffer. */
ESP__FN uint64_t nccl_host_total(const nccl_comm *m, const esp_coll *c);
/* Advances the running request, once nccl_settled() returns ESP_OK. Returns ESP_OK if something moved, ESP_PENDING if
 * nothing did, or an error. */
ESP__FN esp_status nccl_host_drive(nccl_comm *m, nccl_req *r);
#endif
