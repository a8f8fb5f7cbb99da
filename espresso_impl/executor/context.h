/* context.h: the structs behind esp_ctx: tensors, units, codec instances, program, executor. Shared by the files below
 * option.c in espresso_impl.c; nothing outside espresso_impl/ sees it. */
#ifndef ESP__CONTEXT_H
#define ESP__CONTEXT_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/heap.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/plugins/plugins.h"
#include "espresso_impl/strategy/strategy.h"
#include "espresso_impl/executor/observer.h"
#include "espresso_impl/executor/program.h"

/* One link lane of the communication thread. */
typedef struct esp__link {
    uint32_t cursor;  /* in in_force.sequence                    */
    void *comm, *req; /* in flight: the link thread's own                                    */
    int busy;         /* an op is in flight here, or a flat one that runs from the other lane */
    uint64_t started_ns;
} esp__link;

/* A collective of esp_broadcast and its kind, handed to the communication thread. */
typedef struct esp__request {
    esp_coll coll;
    uint8_t level; /* whose comm */
    int wanted, done;
    void *req;
    esp_status status;
    uint64_t started_ns, ended_ns;
} esp__request;

/* When the step under way, or the last one, was where. Nanoseconds of esp__now_ns. */
typedef struct esp__step_clock {
    uint64_t begin_ns;                    /* the caller got control back after the step before (esp_start: the first) */
    uint64_t first_push_ns, last_push_ns; /* entered; left                                                            */
    uint64_t end_ns;                      /* everything was synchronised                                              */
    uint64_t next_ns;                     /* begin_ns of the step that comes                                          */
} esp__step_clock;

/* What the program and the environment asked for. */
typedef struct esp__config {
    const esp_host *user_host;
    int32_t log_level;
    uint32_t flags, timeout_ms;
    uint64_t seed;
    char *plugin_path, *strategy_spec, *trace_path, *stats_spec;
    int32_t owner_pid; /* a forked child must not use the context             */
    int simd;          /* of the conversions between halves and floats        */
    int sample_errors; /* somebody wants to know what compression loses       */
} esp__config;

/* The feedback of one Comp of one unit on this rank. Memory belongs to the context. */
typedef struct esp__feedback {
    esp__extent place;      /* of the unit                                                         */
    uint64_t codec, option; /* hashes of their texts                                               */
    uint32_t comp_index, n_ranges;
    uint32_t raw;           /* reads the rank's own gradient: kept over strategy changes           */
    uint32_t owner_replica; /* this rank is the lowest of the replica set                          */
    uint64_t offset, count; /* element range in the unit                                           */
    float *residual;        /* count floats, or NULL                                               */
    uint8_t *state;         /* codec's own, or NULL                                                */
    uint64_t state_bytes;
    float *residual_before; /* ESP_DISCARDABLE: copies from before the step                        */
    uint8_t *state_before;
} esp__feedback;

/* The strategy that runs, compiled, with all its memory. */
typedef struct esp__in_force {
    esp__strategy strategy;
    esp__program program;
    esp__feedback *feedback;
    uint32_t n_feedback;
    uint8_t *arena;
    uint64_t arena_bytes, memory_bytes;
    uint8_t *scratch;
    uint64_t scratch_bytes;
    float *phi; /* for codecs that leave feedback to the host */
    uint64_t phi_count;
    esp_payload *payloads;                /* argument array of the widest decompress                               */
    esp__heap ready;                      /* units whose next op is on the cpu or compute lane; key: unit */
    uint32_t *sequence[2], n_sequence[2]; /* ops of the link lanes, in the strategy's order            */
    esp__span *op_time;                   /* [program.n_ops] of the step under way, or the last                     */
} esp__in_force;

/* The threads that run ops, and who waits for them. Under `lock`, but for the fields that one thread owns. */
typedef struct esp__lanes {
    pthread_mutex_t lock; /* all shared state of the context                                                 */
    pthread_cond_t done_cv, cpu_cv, link_cv;
    pthread_t cpu_thread, link_thread;
    int threads, stopping;
    const struct esp__dispatcher *dispatcher; /* of the step under way; never NULL after esp_open */
    esp__link links[2];                       /* intra, inter                                        */
    esp__request request;
    int link_busy;                 /* the communication thread has requests in flight     */
    int cpu_busy;                  /* the cpu lane's thread is inside an op               */
    uint32_t waiters, waiters_one; /* threads in any wait; of these, for one tensor only  */
    uint64_t wait_since_ns;
    int tokens[2]; /* tokens.c: the pipe's ends; -1: as many ops at once as there are ranks */
} esp__lanes;

/* The step under way, and all steps so far. Under lanes.lock. */
typedef struct esp__steps {
    uint64_t step;
    uint32_t n_pushed, n_done;
    int closed, open;
    char missing_text[ESP__NAME_MAX * 4];
    esp__step_clock clock;
    esp_stats stats;
    const char *phase; /* of the autopilot, in a word: static text; NULL: there is none */
} esp__steps;

/* What went wrong, or is about to. Under lanes.lock. */
typedef struct esp__health {
    int late_waiting;     /* a request has been in flight for a while        */
    int32_t late_rank;    /* the rank it waits for, -1: unknown              */
    uint32_t late_tensor; /* UINT32_MAX: none (a broadcast or the like)      */
    int accused;
    int32_t left_rank; /* a peer that closed its context, or -1           */
    esp_status fatal;
    char fatal_text[ESP__ERROR_MAX];
    int said_no_gpu, said_unpushed;
} esp__health;

struct esp_ctx {
    esp_host host; /* the table given to plugins; host.user = ctx */
    esp__config config;
    esp__registry registry;
    esp__workers *workers;
    esp__job job;
    esp__model model;
    esp__in_force in_force;
    esp__lanes lanes;
    esp__steps steps;
    esp__health health;
    int started;

    void
        *observers[ESP__OBSERVERS_MAX]; /* what each keeps; NULL: nobody asked for it. observe/observe.h numbers them */
    struct esp__clocked *clocked;       /* clocked/: the plan whose times ops take; NULL: none */
};

#endif
