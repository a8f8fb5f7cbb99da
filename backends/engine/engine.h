/* engine.h: the streaming engine behind the backends loop and shm. It must not know how ranks meet or where memory
 * comes from: a backend makes the region and says how a peer's buffers are reached (engine_reach).
 *
 * A collective is cut into columns: column i holds bytes [i width, (i+1) width) of every part. Each rank walks three stages,
 * each with a counter that peers read, and moves a column on as soon as what it needs is there:
 *
 *     put   copy inputs into the own window in shared memory (only where peers cannot reach the buffer itself)
 *     sum   read one column of everybody's input, add in rank order, write the result
 *     get   read a column of a peer's input or result into dst
 *
 * Counters never go back: a collective of `cols` columns moves all of them from `base` to `base + cols` on every rank.
 * Column x of the count of all columns lives in window cell x % cells and may be written once every peer has got past column
 * x - cells. A rank writes its own lines only, so a rank that dies leaves nothing locked.
 *
 * Reading order: this file, sum.h, pace.h, wait.h, plan.h, flow.h, move.h, ring.h, comm.h,
 * open.h. */
#ifndef ENGINE_H
#define ENGINE_H
#include "espresso_impl/base/cores.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ENGINE_FN __attribute__((unused)) static

enum {
    ENGINE_CELL = 512 * 1024,  /* bytes of one column in a window: inputs and result                      */
    ENGINE_CHUNK = 256 * 1024, /* widest column (measured: narrower ones cost more in waiting)           */
    ENGINE_BUDGET = 1 << 20,   /* bytes moved by one call of test(): about 0.1 ms                         */
    ENGINE_STAMPS = 64,        /* logical times kept of the last columns                                  */
    ENGINE_AHEAD = 8,          /* columns of a flow given to the link at once                             */
    ENGINE_QUEUE = 64,         /* requests open at once on one comm                                       */
    ENGINE_PHASES = 16,        /* of a link that changes                                                  */
    ENGINE_LINK_MAX = 256      /* characters of its text                                                  */
};

#define ENGINE_COLLS                                                                                                   \
    (ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_ALLGATHER) | ESP_BIT(ESP_COLL_ALLTOALL) |                          \
     ESP_BIT(ESP_COLL_REDUCE_SCATTER) | ESP_BIT(ESP_COLL_BROADCAST) | ESP_BIT(ESP_COLL_GATHER) |                       \
     ESP_BIT(ESP_COLL_REDUCE))

/* How a rank reads a peer's own buffers. */
enum {
    ENGINE_REACH_WINDOW = 0, /* not at all: everything passes through windows                             */
    ENGINE_REACH_POINTER,    /* threads of one process: the address is good here too                      */
    ENGINE_REACH_PULL        /* comm->pull copies from the other process                                  */
};

/* What one rank tells the others. Written by that rank alone. */
typedef struct engine_line {
    uint64_t put, sum, got; /* columns whose input, whose result is ready; that this rank is through with  */
    uint64_t src, dst;      /* addresses in the owner's process                                           */
    uint64_t start_ns;      /* logical time at which the inputs were there                                */
    uint32_t reading, gone; /* POINTER only: in the middle of a read; buffers were given back to the user  */
    uint64_t reserved0;
    uint64_t stamp[ENGINE_STAMPS]; /* logical time at which a column's result was there                   */
} engine_line;

/* Wakes one rank's thread; the emulated link of one machine. Both live in the region of the comm of scope 0. */
typedef struct engine_bell {
    uint32_t word, asleep;
    uint64_t reserved0[7];
} engine_bell;
typedef struct engine_nic {
    uint64_t tx_free_ns, rx_free_ns; /* when the link has sent, received all that was given to it         */
    uint64_t reserved0[6];
} engine_nic;

/* Start of a region; bells[n], nics[n], lines[n] and the windows follow. */
typedef struct engine_head {
    uint64_t magic, bytes;
    uint32_t refs;   /* loop: comms that still use the memory                                             */
    uint32_t broken; /* rank + 1 of the first rank that gave up a collective                              */
    uint64_t reserved0[5];
} engine_head;

/* What every rank tells the group before anything is shared. */
typedef struct engine_hello {
    int32_t status; /* of this rank so far: if one cannot, nobody goes on                               */
    int32_t pid, job_rank;
    uint32_t params;    /* hash                                                                             */
    uint64_t address;   /* loop: rank 0's region. shm: a word to read for a trial                           */
    uint64_t secret;    /* shm: what is in that word                                                        */
    char socket[40];    /* shm: where rank 0 gives the memory away                                          */
    uint64_t opened_ns; /* rank 0's is where the times of a changing link count from                      */
} engine_hello;

typedef struct engine_pace {
    double ns_per_byte; /* 0: no limit */
    uint64_t latency_ns;
    int on;
} engine_pace;

/* A link that changes while a job runs: what it is from a time on, or a file that says what it is now. */
typedef struct engine_phase {
    double ns_per_byte;
    uint64_t latency_ns, from_ns; /* from_ns: since the link was opened                                       */
} engine_phase;
typedef struct engine_link {
    engine_phase phases[ENGINE_PHASES];
    int n;
    uint64_t opened_ns, looked_ns; /* looked_ns: at the file                                               */
    char file[ENGINE_LINK_MAX];    /* "": none                                                             */
    int warned;
} engine_link;

#include "backends/engine/sum.h"

/* Columns of one peer on their way over the emulated link, for one stage. */
typedef struct engine_flow {
    uint64_t next; /* first column that is not                                                            */
    uint64_t used; /* bytes of the payload slot that `next` is in                                         */
    uint64_t due[ENGINE_AHEAD]; /* logical time of arrival                                                */
} engine_flow;

/* The collective that moves now. */
typedef struct engine_op {
    esp_coll c;
    uint64_t unit, part;          /* bytes of a unit, units of a part                                       */
    uint64_t width, cols, base;   /* bytes of a column, columns, first column in the count of all columns    */
    uint64_t per_slot;            /* columns of one payload slot where it is wider than a column, else 0     */
    uint64_t put_i, sum_i, get_i; /* next column of each stage                                            */
    int32_t get_k;                /* next peer of column get_i                                            */
    uint8_t in_window, result_window, whole, by_destination; /* see plan.h                          */
    uint8_t puts, sums, gets, gets_result;                   /* what this rank does                        */
    uint8_t stream, ring, chain, begun;                      /* ring: see ring.h                       */
    int32_t place, prev, next;                               /* in the ring                                       */
    uint64_t steps, group, lag, slots;                       /* of the ring                                   */
    uint32_t esize;
    float scale;
    engine_sums sum;
    uint64_t start_ns;               /* logical                                                           */
    uint64_t clock_ns;               /* logical time at which this rank's link is through with its last piece */
    uint64_t sum_due_ns, get_due_ns; /* a moved column may be shown from then on; 0: none waits            */
    uint64_t end_ns;                 /* logical end so far                                                */
} engine_op;

typedef struct engine_req {
    esp_coll c;
    uint64_t start_ns;
    uint32_t used, done;
} engine_req;

/* Shared by all comms of one job in one process: they sleep together. */
typedef struct engine_job {
    struct engine_comm *comms; /* list                                                                    */
    struct engine_comm *owner; /* the comm of scope 0                                                     */
    engine_bell *bell;         /* this rank's                                                             */
    uint32_t woken;            /* wake() came since the last progress()                                   */
    uint32_t refs;
    int32_t spin; /* ranks fit the cores: spinning takes nobody's time                       */
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
    uint64_t cells; /* of a window: columns that a rank may be ahead of the slowest reader                   */
    uint64_t region_bytes;
    void (*drop_region)(struct engine_comm *m);
    /* per rank of the group */
    int32_t *job_rank; /* rank in the job                                                               */
    engine_bell **bells;
    engine_nic **nics;  /* of the rank's machine                                                         */
    uint64_t *used;     /* bytes of the payload slot that is being read from each rank                   */
    int32_t *ring_rank; /* ranks with those of one machine side by side                                  */
    int32_t *order;     /* of the running ring or chain                                                       */
    int32_t machines;
    int32_t *pid;
    engine_hello *hello;
    int reach;
    int (*pull)(struct engine_comm *m, int32_t rank, uint64_t address, void *to, uint64_t bytes);
    engine_pace pace;   /* the link as it was opened: plans follow it, so that all ranks make the same ones */
    engine_link link;   /* as it is now: how long what moves takes                                          */
    engine_flow *flows; /* [2][size]: of sum and of get                                         */
    /* moving */
    engine_op op;
    engine_req reqs[ENGINE_QUEUE];
    uint64_t req_first, req_next; /* running; next free                                                   */
    uint32_t ready;               /* done and not yet tested                                              */
    uint64_t columns, min_got;    /* begun so far; a bound below everybody's got                          */
    uint64_t logical_end_ns;
    uint64_t moved; /* bytes in this call                                                   */
    int simd;
    int news; /* a counter moved that a sleeping peer may wait for                                        */
    uint8_t *sum_acc, *sum_in; /* one column: accumulator (f32), two peers' inputs                        */
    uint64_t scratch_bytes;
    void *scratch;
    uint32_t aborted;
    esp_status error, trouble; /* of the comm; of the last read                                           */
    int32_t waits_for;
    uint64_t intra_bytes, inter_bytes;
} engine_comm;

#define ENGINE_LOAD(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define ENGINE_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)

/* Measured: with more ranks, or fewer cells for two, less of what is read still lies in a cache that is quick to read. */
ENGINE_FN uint64_t engine_cells(int32_t ranks) { return ranks <= 2 ? 8 : 4; }
ENGINE_FN uint64_t engine_min(uint64_t a, uint64_t b) { return a < b ? a : b; }
ENGINE_FN uint64_t engine_max(uint64_t a, uint64_t b) { return a > b ? a : b; }
ENGINE_FN uint64_t engine_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Tells the host what is wrong, and returns `s`. */
__attribute__((format(printf, 4, 5))) ENGINE_FN esp_status engine_say(const esp_host *h, const char *name, esp_status s,
                                                                      const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    esp_log_event ev;
    memset(&ev, 0, sizeof ev);
    ev.struct_size = sizeof ev;
    ev.level = s == ESP_OK ? ESP_LOG_INFO : ESP_LOG_ERROR;
    ev.status = s;
    ev.component = name;
    ev.message = text;
    ev.file = "backends";
    if (h && h->log) h->log(h->user, &ev);
    return s;
}

#include "backends/engine/pace.h"
#include "backends/engine/wait.h"
#include "backends/engine/plan.h"
#include "backends/engine/flow.h"
#include "backends/engine/move.h"
#include "backends/engine/ring.h"
#include "backends/engine/comm.h"
#include "backends/engine/open.h"
#endif
