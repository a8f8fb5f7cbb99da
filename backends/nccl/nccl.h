/* nccl.h: the parts of backend nccl: library.c opens NCCL and CUDA, comm.c holds a communicator and announced memory, issue.c calls
 * NCCL's collectives, host.c passes host memory through the device. */
#ifndef NCCL_H
#define NCCL_H
#include "backends/common/common.h"
#include "backends/nccl/library.h"
#include <pthread.h>

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
    backend_who who;
    const nccl_library *library;
    nccl_job *job;
    struct nccl_comm *next_comm; /* of the job */
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
    uint64_t level_bytes[ESP_LEVELS]; /* received */
} nccl_comm;

/* Passes the error text to the host and returns `s`; ESP_OK: for information. */
#define nccl_say(host, ...) backend_say((host), "nccl", __VA_ARGS__)

/* ---- library.c ---- */
/* Opens both libraries. NULL: *why says what was tried. They stay open. */
ESP__FN const nccl_library *nccl_open_libraries(char *why, size_t cap);
/* The function `name`, into *to. 0: it is not there. */
ESP__FN int nccl_find(void *from, const char *name, void *to);
/* Tell the host that a call failed. */
ESP__FN esp_status nccl_failed(const esp_host *h, const nccl_library *l, const char *call, int result,
                               nccl_handle comm);
ESP__FN esp_status nccl_cuda_failed(const esp_host *h, const nccl_library *l, const char *call, int result);

/* ---- comm.c ---- */
/* Calls of NCCL and CUDA stand between these two: the thread has the device's context, and gets back its own. */
ESP__FN void nccl_enter(nccl_comm *m);
ESP__FN void nccl_leave(nccl_comm *m);
/* The comm is of no use any more. Returns `s`. */
ESP__FN esp_status nccl_broken(nccl_comm *m, esp_status s);
ESP__FN esp_status nccl_check(nccl_comm *m, const char *call, int result);
ESP__FN esp_status nccl_check_cuda(nccl_comm *m, const char *call, int result);
/* Has NCCL done what it was told? ESP_OK: what was started is in its stream, and the next call may follow. It also finds what
 * failed since. */
ESP__FN esp_status nccl_settled(nccl_comm *m);
/* Waits for the end of the handle that abort() began. */
ESP__FN void nccl_ended(nccl_comm *m);
/* Ends NCCL's communicator with all that it still does. The lock is held. */
ESP__FN void nccl_drop(nccl_comm *m);
ESP__FN esp_status nccl_reg(void *comm, const esp_buf *b, void **mh);
ESP__FN esp_status nccl_dereg(void *comm, void *mh);
/* This comm is about to close: gives up what announced memory it has registered. */
ESP__FN void nccl_memory_leave(const nccl_comm *m);

/* ---- facts of a collective ---- */
/* Where part p begins, in items. */
static inline uint64_t nccl_begin(const nccl_comm *m, const esp_coll *c, int32_t p) {
    const uint64_t n = (uint64_t)m->who.size, at = (c->count + n - 1) / n * (uint64_t)p;
    return at < c->count ? at : c->count;
}
static inline uint64_t nccl_part(const nccl_comm *m, const esp_coll *c, int32_t p) {
    return nccl_begin(m, c, p + 1) - nccl_begin(m, c, p);
}
/* Does each rank have a part of its own, in the source or in the result? Else the pieces are of the whole buffer. */
static inline int nccl_parted(const esp_coll *c) {
    return c->op != ESP_COLL_ALLREDUCE && c->op != ESP_COLL_REDUCE && c->op != ESP_COLL_BROADCAST;
}
/* Has a piece a row for each rank on its way in, or out? */
static inline int nccl_rows_in(const esp_coll *c) {
    return c->op == ESP_COLL_REDUCE_SCATTER || c->op == ESP_COLL_ALLTOALL;
}
static inline int nccl_rows_out(const esp_coll *c) {
    return c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER || c->op == ESP_COLL_ALLTOALL;
}

static inline int nccl_has_scale(const esp_coll *c) { return backend_op_sums(c->op) && backend_scales(c); }
/* MAX and MIN of floats go as integers of the same order: NCCL's own leave out NaNs, and take -0 and +0 as they come. */
static inline int nccl_ordered(const nccl_comm *m, const esp_coll *c) {
    return m->who.size > 1 && backend_op_sums(c->op) && c->reduce > ESP_REDUCE_SUM && c->dtype <= ESP_BF16;
}

/* ---- issue.c: on the device's memory ---- */
/* Is the scale a part of NCCL's operation? Otherwise it is applied to the result. */
ESP__FN int nccl_scales_first(const esp_coll *c);
/* Enqueues the collective, of at least one item; nccl_settled() says when it is in the stream. */
ESP__FN esp_status nccl_issue(nccl_comm *m, const esp_coll *c, void *stream);
/* Counts what it brings to this rank. */
ESP__FN void nccl_count(nccl_comm *m, const esp_coll *c);

/* ---- host.c: on host memory ---- */
/* What pieces cover: units of the longest part, or of the whole buffer. */
ESP__FN uint64_t nccl_host_total(const nccl_comm *m, const esp_coll *c);
/* Does what can be done now for the running request. ESP_OK: something moved; ESP_PENDING: nothing. NCCL is settled. */
ESP__FN esp_status nccl_host_drive(nccl_comm *m, nccl_req *r);
#endif
