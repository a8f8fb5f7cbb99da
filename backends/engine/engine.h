/* engine.h: the streaming engine behind the backends loop and shm. It must not know how ranks meet or where memory
 * comes from: a backend makes the region and says how a peer's buffers are reached (engine_reach).
 *
 * A collective is cut into columns: column i holds bytes [i width, (i+1) width) of every part. Each rank passes
 * columns through three stages. Each stage has a counter that peers read, and takes a column as soon as the column's
 * input is ready:
 *
 *     put   copy inputs into the rank's own window in shared memory (only where peers cannot read the buffer itself)
 *     sum   read one column of every rank's input, add in rank order, write the result
 *     get   read a column of a peer's input or result into dst
 *
 * Counters never go back: a collective of `cols` columns moves each counter from `base` to `base + cols` on every
 * rank. Columns are numbered through all collectives of a comm. Column x uses window cell x % cells, which may be
 * written when every peer has finished column x - cells. A rank writes its own counters only, so a rank that dies
 * leaves nothing locked.
 *
 * Reading order: common.h, this file, pace.h, outer.h, wait.h, plan.h, flow.h, move.h, ring.h, check.h,
 * drive.h, wait_fd.h, comm.h, open.h. */
#ifndef ENGINE_H
#define ENGINE_H
#include "backends/engine/common.h"
#include "backends/engine/local_socket.h"
#include "espresso_impl/base/cores.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    ENGINE_CELL = 512 * 1024,  /* bytes of a window for one column: inputs and result                     */
    ENGINE_CHUNK = 256 * 1024, /* widest column (measured: narrower ones cost more in waiting)           */
    ENGINE_BUDGET = 1 << 20,   /* bytes moved by one call of test(): about 0.1 ms                         */
    ENGINE_STAMPS = 64,        /* logical times kept of the last columns                                  */
    ENGINE_AHEAD = 8,          /* columns of a flow on the link at the same time                          */
    ENGINE_QUEUE = 64,         /* requests open at the same time on one comm                              */
    ENGINE_CALLS = 8,          /* collectives that a rank shows: a root may be that many ahead of others  */
    ENGINE_PHASES = 16,        /* changes of a link while a job runs                                      */
    ENGINE_LINK_MAX = 256,     /* characters of a link's description                                      */
    ENGINE_NICS = 2            /* links that data of a rank may pass: its machine's and its rack's        */
};

/* How a rank reads a peer's own buffers. */
enum {
    ENGINE_REACH_WINDOW = 0, /* not at all: everything passes through windows                             */
    ENGINE_REACH_POINTER,    /* threads of one process: addresses are valid in all of them                */
    ENGINE_REACH_PULL        /* comm->pull copies from the other process                                  */
};

/* What one rank shows to the others. Only that rank writes it. */
typedef struct engine_line {
    uint64_t put, sum, got; /* columns whose input is ready; whose result is ready; that this rank has finished */
    uint64_t src, dst;      /* addresses in the owner's process                                           */
    uint64_t start_ns;      /* logical time at which the inputs were ready                                */
    uint32_t reading;       /* POINTER only: inside a read                                           */
    uint32_t gone;          /* the user owns the buffers again: the rank failed, with this status times -1 */
    uint64_t reserved0;
    uint64_t call[ENGINE_CALLS];   /* the collectives that the rank began last: see same.h                */
    uint64_t stamp[ENGINE_STAMPS]; /* logical time at which a column's result was ready                   */
} engine_line;

/* A bell wakes one rank's thread; a nic is the emulated link of one machine, or of one rack. Both lie in the region of the comm of
 * level 0. */
enum {
    ENGINE_AWAKE = 0,
    ENGINE_ASLEEP, /* in progress(): woken through a futex on `word`                                      */
    ENGINE_POLLED  /* its thread may sleep in poll(): see wait_fd.h                                       */
};
typedef struct engine_bell {
    uint32_t word, asleep;
    char socket[ENGINE_LOCAL_NAME]; /* of the rank's wait_fd; written before `asleep` is POLLED               */
    uint64_t reserved0[2];
} engine_bell;
typedef struct engine_nic {
    uint64_t tx_free_ns, rx_free_ns; /* when the link will have sent, received all that it was given      */
    uint64_t reserved0[6];
} engine_nic;

/* Start of a region; bells[n], nics[ENGINE_NICS][n], lines[n] and the windows follow. */
typedef struct engine_head {
    uint32_t refs;   /* loop: comms that still use the memory                                             */
    uint32_t broken; /* rank + 1 of the first rank that gave up a collective                              */
    uint64_t reserved0[7];
} engine_head;

/* What every rank tells the group when a comm opens, before memory is shared. */
typedef struct engine_hello {
    int32_t status; /* of this rank so far: where one rank failed, all give up                          */
    int32_t pid, job_rank;
    uint32_t params;  /* hash of the parameters: must be the same on all ranks                            */
    uint64_t address; /* loop: rank 0's region. shm: a word that peers read to test CMA                   */
    uint64_t secret;  /* shm: the value of that word                                                      */
    char socket
        [ENGINE_LOCAL_NAME]; /* shm: where rank 0 gives the memory away                                          */
    uint64_t opened_ns;      /* the times of a changing link count from rank 0's                               */
} engine_hello;

typedef struct engine_pace {
    double ns_per_byte; /* 0: no limit */
    uint64_t latency_ns;
    int on;
} engine_pace;

/* A link that may change while a job runs: its phases, each in effect from a time on, or a file that holds its
 * present state. */
typedef struct engine_phase {
    double ns_per_byte;
    uint64_t latency_ns, from_ns; /* from_ns: counted from opened_ns                                          */
} engine_phase;
typedef struct engine_link {
    engine_phase phases[ENGINE_PHASES];
    int n;
    uint64_t opened_ns, looked_ns; /* looked_ns: last look at the file                                     */
    char file[ENGINE_LINK_MAX];    /* "": the link has no file                                             */
    int warned;
} engine_link;

/* The racks of a job of three levels: see outer.h. */
typedef struct engine_outer {
    bool on;                    /* the job has three levels                                           */
    uint8_t *level;             /* per rank: the outermost level at which its place differs from ours */
    engine_nic **nics;          /* [size]: link of the rank's rack                                    */
    engine_link link;           /* n phases 0: not emulated                                           */
    uint64_t bytes[ESP_LEVELS]; /* received, by level                                                 */
} engine_outer;

/* Columns of one peer on their way over the emulated link, for one stage. */
typedef struct engine_flow {
    uint64_t next; /* first column that is not on the link yet                                            */
    uint64_t used; /* used bytes of the payload slot that `next` is in                                    */
    uint64_t due[ENGINE_AHEAD]; /* logical time at which a column arrives                                 */
} engine_flow;

/* The collective that moves now. */
typedef struct engine_op {
    esp_coll c;
    uint64_t unit, part;          /* bytes of an item (a number, a row or a slot), items of a part          */
    uint64_t width, cols, base;   /* bytes of a column; columns; number of the first column in this comm     */
    uint64_t per_slot;            /* columns of one payload slot that is wider than a column, else 0         */
    uint64_t put_i, sum_i, get_i; /* next column of each stage                                            */
    int32_t get_k;                /* next peer of column get_i                                            */
    uint8_t in_window, result_window, whole, by_destination; /* see plan.h                          */
    uint8_t puts, sums, gets, gets_result; /* stages that this rank has; get reads results, not inputs */
    uint8_t stream, ring, chain, begun;    /* ring: see ring.h                       */
    uint8_t compared;                      /* all peers were seen in this collective, or beyond it: see same.h */
    int32_t place, prev, next;             /* this rank's place in the ring, and its neighbours */
    uint64_t steps, group, lag, slots;     /* of the ring: see ring.h                       */
    uint32_t esize;                        /* bytes of a number */
    float scale;
    engine_sums sum;
    uint64_t start_ns;               /* logical begin                                                     */
    uint64_t clock_ns;               /* logical time at which this rank's link finishes its last piece        */
    uint64_t sum_due_ns, get_due_ns; /* when a moved column may be shown to peers; 0: no column waits      */
    uint64_t end_ns;                 /* logical end so far                                                */
} engine_op;

typedef struct engine_req {
    esp_coll c;
    uint64_t start_ns;
    uint32_t used, done;
} engine_req;

/* Shared by all comms of one rank: its thread drives all of them, and sleeps for all of them together. */
typedef struct engine_job {
    struct engine_comm *comms; /* linked list                                                             */
    struct engine_comm *owner; /* the comm of level 0                                                     */
    engine_bell *bell;         /* this rank's                                                             */
    uint32_t woken;            /* wake() came since the last progress()                                   */
    uint32_t refs;
    int32_t spin; /* the ranks fit the cores, so spinning takes no other rank's time         */
    /* see wait_fd.h; -1: none */
    int32_t wait_fd, socket, timer, sender;
} engine_job;

typedef struct engine_comm {
    const esp_host *host;
    const char *name;
    int32_t rank, size;
    engine_job *job;
    struct engine_comm *next;
    /* the region */
    engine_head *head;
    engine_line *lines;
    uint8_t *windows;
    uint64_t cells; /* cells of a window: how many columns a rank may be ahead of the slowest reader          */
    uint64_t region_bytes;
    void (*drop_region)(struct engine_comm *m);
    /* per rank of the group */
    int32_t *job_rank; /* each rank's number in the job                                                 */
    engine_bell **bells;
    engine_nic **nics;  /* link of the rank's machine                                                    */
    uint64_t *used;     /* used bytes of the payload slot that is being read from each rank              */
    int32_t *ring_rank; /* the ranks, those of one machine side by side                                  */
    int32_t *order;     /* the ranks in the order of the running ring or chain                                */
    int32_t machines;
    int32_t *pid;
    engine_hello *hello;
    int reach;
    int (*pull)(struct engine_comm *m, int32_t rank, uint64_t address, void *to, uint64_t bytes);
    engine_pace pace; /* the link as it was opened: all ranks plan with it, so their plans agree */
    engine_link link; /* the link as it is now: transfer times follow it                                  */
    engine_outer outer;
    engine_flow *flows; /* [2][size]: for sum, then for get                                     */
    /* the collectives that run */
    engine_op op;
    engine_req reqs[ENGINE_QUEUE];
    uint64_t req_first, req_next; /* the request that runs; the next free one                             */
    uint32_t ready;               /* requests that are done but not yet tested                            */
    uint64_t columns, min_got;    /* columns begun so far; a lower bound of every peer's `got`            */
    uint64_t begun;               /* collectives begun so far                                             */
    uint64_t logical_end_ns;
    uint64_t moved; /* bytes moved in this call                                             */
    int simd;
    int news; /* a counter moved that a sleeping peer may wait for                                        */
    uint8_t *sum_acc, *sum_in; /* room for one column: f32 accumulator; two peers' inputs                 */
    uint64_t scratch_bytes;
    void *scratch;
    uint32_t aborted;
    esp_status error, read_error; /* of the comm; of the last read */
    int32_t waits_for;
    uint64_t intra_bytes, inter_bytes;
} engine_comm;

#define ENGINE_LOAD(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define ENGINE_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)

/* Cells of a window. Measured: this many keep most of what a peer reads in a near cache. */
ENGINE_FN uint64_t engine_cells(int32_t ranks) { return ranks <= 2 ? 8 : 4; }
#include "backends/engine/pace.h"
#include "backends/engine/outer.h"
#include "backends/engine/wait.h"
#include "backends/engine/plan.h"
#include "backends/engine/flow.h"
#include "backends/engine/move.h"
#include "backends/engine/ring.h"
#include "backends/engine/check.h"
#include "backends/engine/same.h"
#include "backends/engine/drive.h"
#include "backends/engine/wait_fd.h"
#include "backends/engine/comm.h"
#include "backends/engine/open.h"
#endif
