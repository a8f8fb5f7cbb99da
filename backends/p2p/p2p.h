/* p2p.h: the p2p transport runs collectives by messages between pairs of ranks, for backends without shared memory. A
 * backend only defines a p2p_wire, which sends and receives messages. */
#ifndef P2P_H
#define P2P_H
#include "backends/common/common.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Every rank owns a part of the data, which is cut into chunks. A chunk of all parts is processed in up to two
 * stages:
 *     op              stage 1 sends to a part's owner   stage 2 sends from a part's owner
 *     ALLREDUCE       inputs, which the owner adds      the result, to all ranks
 *     REDUCE          inputs, which the owner adds      the result, to the root
 *     REDUCE_SCATTER  inputs, which the owner adds      nothing
 *     BROADCAST       the root's data                   the data, to all ranks but the root
 *     ALLGATHER       nothing                           the input, to all ranks
 *     GATHER          nothing                           the input, to the root
 *     ALLTOALL        nothing                           each rank's part, to that rank
 * Small allreduces and reduces have one stage: ranks send whole inputs to all ranks (or the root), which add them. So
 * do small broadcasts, from the root. Inputs are added in rank order, so results have the same bits as with backends
 * loop and shm.
 * A message's tag contains the chunk's number, the same on all ranks, and a hash of the collective. If ranks call
 * different collectives, their messages do not match (except 1 in P2P_KINDS), and the calls time out. */
enum {
    P2P_QUEUE = 64,
    P2P_AHEAD = 4,
    P2P_WIDE = 512 * 1024,  /* most bytes of a chunk from one rank */
    P2P_NARROW = 32 * 1024, /* least bytes of a chunk, unless memory is short */
    P2P_STAGING = 8 << 20,  /* bytes of scratch memory for a chunk's received inputs */
    P2P_LEAST = 4096,       /* least bytes of a chunk, even if P2P_STAGING is too small */
    P2P_SMALL = 64 * 1024,
    P2P_COLUMNS = 2048,
    P2P_KINDS = 256,
    P2P_TAGS = 2 * P2P_COLUMNS * P2P_KINDS,
    P2P_MESSAGE = 1 << 30,
    P2P_DONE = 64,
    P2P_BUDGET_NS = 200 * 1000, /* test() works for about this time */
    P2P_NAP_LEAST_NS = 20 * 1000,
    P2P_NAP_MOST_NS = 250 * 1000
};

/* The functions that a backend defines. `place`, a number below p2p_comm.places, identifies a posted message.
 * Messages with one tag between two ranks arrive in order. No function blocks; all return 0, or an error that they
 * have logged. */
typedef struct p2p_wire {
    int (*send)(void *self, uint32_t place, int32_t to, uint32_t tag, const void *p, uint64_t bytes);
    int (*recv)(void *self, uint32_t place, int32_t from, uint32_t tag, void *p, uint64_t room);
    /* Stores the places and received bytes of up to `most` completed messages. Returns their number, or an error. */
    int (*poll)(void *self, uint32_t *places, uint64_t *bytes, uint32_t most);
    /* Cancels all posted messages. Afterwards none writes into memory of this rank. */
    void (*cancel)(void *self);
    void (*close)(void *self, bool failed);
} p2p_wire;

typedef struct p2p_req {
    esp_coll c;
    uint64_t unit, part;
    uint64_t width, cols;
    uint64_t begun, ended; /* chunks that have begun, chunks that are done */
    uint32_t esize;
    uint32_t kind;
    bool used, done;
    bool whole;
    bool sums;
    bool scatter;
    bool gets;
    float scale;
    backend_reduction reduction;
} p2p_req;

/* A chunk in progress. The counters are its unfinished messages of stage 1 (inputs) and 2 (results). */
typedef struct p2p_column {
    p2p_req *r;
    uint64_t i, seq;
    uint32_t inputs_in, inputs_out, results_in, results_out;
    bool summed;
    uint8_t *cell;
} p2p_column;

enum { P2P_FREE, P2P_INPUT_IN, P2P_INPUT_OUT, P2P_RESULT_IN, P2P_RESULT_OUT };
typedef struct p2p_message {
    uint32_t column, what;
    int32_t peer;
} p2p_message;

struct p2p_comm;
/* Shared by the communicators of a job, which one thread drives. Nothing wakes that thread when a message completes,
 * so it sleeps on a timerfd and polls. */
typedef struct p2p_job {
    struct p2p_comm *comms;
    uint32_t refs, woken;
    int32_t timer;
    uint64_t nap_ns;
} p2p_job;

typedef struct p2p_comm {
    backend_caller who;
    p2p_job *job;
    struct p2p_comm *next;
    const p2p_wire *wire;
    void *self;
    uint8_t *level;
    p2p_req reqs[P2P_QUEUE];
    uint64_t first;
    uint64_t next_begin;
    uint64_t next_req;
    uint64_t seq; /* chunks begun so far */
    p2p_column columns[P2P_AHEAD];
    uint8_t *staging;
    uint64_t cell_bytes;
    p2p_message *messages;
    uint32_t *free;
    uint32_t places, n_free;
    uint32_t ready;
    uint32_t aborted;
    esp_status error;
    uint64_t level_bytes[ESP_LEVELS];
    int simd;
} p2p_comm;

/* ---- column.c: cuts a collective into chunks, which the code calls columns, and runs one chunk ---- */
/* Cuts a collective into chunks. The result depends only on arguments that are equal on all ranks. */
ESP__FN void p2p_plan(const p2p_comm *m, const esp_coll *c, p2p_req *r);
/* Returns the largest chunk size for which the inputs of all ranks fit into P2P_STAGING bytes. */
ESP__FN uint64_t p2p_widest(int32_t ranks);
/* Posts a chunk's first messages: those that do not depend on data which the chunk must receive first. */
ESP__FN int p2p_begin(p2p_comm *m, p2p_column *x);
/* Counts a completed message, and posts messages that waited for it. */
ESP__FN int p2p_message_done(p2p_comm *m, p2p_column *x, const p2p_message *t);
/* Sends results when all inputs have come. Returns 1 if the chunk is done. */
ESP__FN int p2p_advance(p2p_comm *m, p2p_column *x);

/* ---- comm.c: opens a communicator and runs its collectives ---- */
ESP__FN esp_status p2p_new(const esp_host *h, const esp_group *g, const char *name, p2p_comm **out);
ESP__FN void p2p_close(void *comm);
ESP__FN esp_status p2p_start(void *comm, const esp_coll *c, esp_stream s, void **req);
ESP__FN esp_status p2p_test(void *comm, void *req);
ESP__FN esp_status p2p_progress(void *comm, uint64_t timeout_us);
ESP__FN void p2p_wake(void *comm);
ESP__FN int32_t p2p_wait_fd(void *comm);
ESP__FN esp_status p2p_abort(void *comm);
ESP__FN int32_t p2p_straggler(void *comm, void *req);
ESP__FN esp_status p2p_traffic(void *comm, esp_traffic *out);
/* Defines a backend table for backend `id`, which provides id_probe and id_open. meet_with may be NULL. */
#define P2P_TABLE(id, more_caps, text, parameters, meet_with)                                                          \
    {                                                                                                                  \
        .struct_size = sizeof(esp_backend),                                                                            \
        .caps =                                                                                                        \
            ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_VARLEN | ESP_BACKEND_SCALE | ESP_BACKEND_REOPENS | (more_caps),   \
        .colls = BACKEND_COLLS, .devices = ESP_BIT(ESP_CPU), .dtypes = BACKEND_DTYPES, .reduces = BACKEND_REDUCTIONS,  \
        .name = #id, .summary = text, .params = parameters, .probe = id##_probe, .open = id##_open,                    \
        .close = p2p_close, .start = p2p_start, .test = p2p_test, .progress = p2p_progress, .wake = p2p_wake,          \
        .wait_fd = p2p_wait_fd, .abort = p2p_abort, .straggler = p2p_straggler, .traffic = p2p_traffic,                \
        .meet = meet_with,                                                                                             \
    }
#ifdef __cplusplus
}
#endif
#endif
