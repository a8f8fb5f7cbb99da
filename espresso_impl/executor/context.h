/* context.h: the struct behind esp_ctx and its member structs: configuration, strategy in force, lanes, steps, health. For the
 * executor and the folders above it. */
#ifndef ESP__CONTEXT_H
#define ESP__CONTEXT_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/heap.h"
#include "espresso_impl/base/process.h"
#include "espresso_impl/device/device.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/codec/call.h"
#include "espresso_impl/strategy/strategy.h"
#include "espresso_impl/executor/observer.h"
#include "espresso_impl/program/program.h"

/* One link lane of the communication thread. */
typedef struct esp__link {
    uint32_t cursor;       /* in in_force.sequence                    */
    const esp__comm *comm; /* of the op in flight; only the link thread touches it and req                     */
    void *req;
    int busy; /* an op is in flight here, or an op that runs from a lane further out occupies this one */
    uint64_t started_ns, core_ns; /* core_ns: core time of the op in flight so far */
} esp__link;

/* A collective outside a program (esp_broadcast, esp_allreduce, a probe), handed to the link thread. */
typedef struct esp__request {
    esp_coll coll;
    uint8_t level;    /* the comm's scope */
    const char *what; /* the call */
    int wanted, done;
    void *req;
    uint64_t started_ns, ended_ns, core_ns;
} esp__request;

/* Times of the step under way, or of the last one. Nanoseconds of esp__now_ns. */
typedef struct esp__step_clock {
    uint64_t begin_ns;                    /* esp_wait_all of the step before returned, or esp_start                   */
    uint64_t first_push_ns, last_push_ns; /* the first esp_push was called; the last one returned                     */
    uint64_t end_ns;                      /* all tensors were synchronised                                            */
    uint64_t next_ns;                     /* begin_ns of the next step                                                */
} esp__step_clock;

/* The backend of one scope, and its parameters; no backend: not said. */
typedef struct esp__comm_plan {
    const esp_backend *backend;
    char params[ESP__SPEC_MAX * 2];
} esp__comm_plan;

/* Settings from esp_config and the environment. */
typedef struct esp__config {
    uint32_t flags, timeout_ms;
    uint64_t seed;
    char *plugin_path, *strategy_spec, *trace_path, *stats_spec;
    esp__process opened_by;            /* a forked child must not use the context        */
    int simd;                          /* instruction set for conversions between halves and floats */
    int sample_errors;                 /* an observer reads compression errors                */
    uint32_t optimizer;                /* the trainer's: ESP_OPTIMIZER_*                      */
    double momentum;                   /* 0: none                                             */
    esp__comm_plan plans[ESP__SCOPES]; /* as chosen in esp_open, for esp_shrink */
} esp__config;

/* The feedback of one Comp of one unit on this rank. Memory belongs to the context. */
typedef struct esp__feedback {
    esp__extent place;      /* of the unit                                                         */
    uint64_t codec, option; /* hashes of their texts                                               */
    uint32_t comp_index, n_ranges;
    uint32_t raw;           /* the Comp reads the rank's own gradient: a change of strategy keeps the residual */
    uint32_t owner_replica; /* this rank is the lowest with this residual                          */
    uint32_t device;        /* where the arrays below lie                                          */
    uint64_t offset, count; /* element range in the unit                                           */
    float *residual;        /* count floats, or NULL                                               */
    uint8_t *state;         /* the codec's, or NULL                                                */
    uint64_t state_bytes;
    float *residual_before; /* ESP_DISCARDABLE: copies from before the step                        */
    uint8_t *state_before;
} esp__feedback;

/* To which backends an arena was announced. */
typedef struct esp__announced {
    uint32_t to;              /* bit p: to that of job.parents[p] */
    void *given[ESP__SCOPES]; /* [p]: what its reg() gave */
} esp__announced;

/* A program's memory on one device, and in the host's memory for copies to and from it. */
typedef struct esp__memory_on {
    uint8_t *arena, *pinned, *scratch;
    float *phi;          /* for sampling errors: a decoded payload                               */
    uint64_t *used;      /* where compress writes the bytes used, which nobody reads; one for each scratch memory */
    uint8_t *headers;    /* of all payloads that were compressed in this step                    */
    uint8_t *flags;      /* pinned: `headers` at the end of the step                             */
    uint64_t settled_ns; /* when the device had done the last step */
    void **events;       /* [2 n_events]: of the begin and the end of each op */
    esp__program_on has; /* what was taken                                                      */
    esp__announced announced;
} esp__memory_on;

/* The strategy in force, its program, and all of its memory. */
typedef struct esp__in_force {
    esp__strategy strategy;
    esp__program program;
    esp__feedback *feedback;
    uint32_t n_feedback;
    uint64_t cap_feedback; /* bytes */
    uint8_t *arena;
    uint64_t arena_bytes, memory_bytes;
    uint64_t slots_bytes, feedback_bytes; /* of memory_bytes: the arenas; residuals and codecs' state */
    uint64_t most_bytes;                  /* ESPRESSO_MEMORY_MAX; 0: no limit */
    esp__announced announced;
    uint8_t *scratch;
    uint64_t scratch_bytes;
    float *phi; /* compensated gradient and its decoded payload, for codecs without ESP_CODEC_FUSED_RESIDUAL */
    uint64_t phi_count;
    esp_payload *payloads; /* room for the payloads of the call of a decompress that has most       */
    void *list_room;
    esp__codec_list list; /* in list_room, for the call that has most parts                        */
    esp__heap ready;      /* units whose next op is on the cpu or compute lane; key: unit */
    uint32_t *sequence[ESP__LEVELS], n_sequence[ESP__LEVELS]; /* ops of each link lane, in the strategy's order */
    uint32_t *order, n_order;                                 /* collectives of all lanes, in the strategy's order */
    int has_behind;                                           /* some ops are in streams behind links */
    uint32_t behind;      /* [0 .. behind) of `order`: all that follows them in streams behind links is enqueued */
    esp__span *op_time;   /* [program.n_ops] of the step under way, or of the last one              */
    uint64_t *op_core_ns; /* [program.n_ops] core time of each op, while lanes.core_times is not 0; else 0 */
    esp__memory_on on[ESP__DEVICES_MAX];
    uint32_t *pending, n_pending; /* units whose next op must not begin before their device has done the op before it */
} esp__in_force;

/* The threads that run ops, and the callers that wait. `lock` protects every field but those that only one thread uses. */
typedef struct esp__lanes {
    pthread_mutex_t lock; /* protects all shared state of the context                                        */
    pthread_cond_t done_cv, cpu_cv, link_cv;
    pthread_t cpu_thread, link_thread;
    int threads, stopping;
    esp__link links[ESP__LEVELS]; /* intra, inter, ...                                   */
    esp__request request;
    int link_busy;                 /* the link thread has requests in flight              */
    int cpu_busy;                  /* a thread is inside an op of the cpu or compute lane */
    int caller_drives;             /* the trainer's threads run the ops: it has no core for others     */
    int caller_only;               /* no other threads may: a backend's table says ESP_BACKEND_CALLER   */
    int driving;                   /* a thread is inside the backends: starts, tests or sleeps there   */
    int helped;                    /* a thread of the trainer is inside a long op: the link thread drives */
    uint64_t drove_ns, looked_ns;  /* when ops, and late ranks, were last looked for      */
    uint32_t waiters, waiters_one; /* threads in any wait; those of them in esp_wait      */
    uint64_t wait_since_ns;        /* when the first of the waiters began to wait */
    uint64_t stream_since_ns; /* since when a stream of the trainer waits, by esp_wait_on in this step; 0: none does */
    int core_times;           /* bits: who wants core times (ESP__CORE_*); atomic    */
    int tokens[2];            /* tokens.c: the pipe's ends; -1: no tokens, so all ranks may compress at once */
} esp__lanes;

/* The step under way, and all steps so far. Under lanes.lock. */
typedef struct esp__steps {
    uint64_t step;
    uint32_t n_pushed, n_done;
    int closed, open;
    char missing_text[ESP__NAME_MAX * 4];
    esp__step_clock clock;
    esp_stats stats;
    const char *phase; /* the autopilot's phase as a static text; NULL: no autopilot */
    /* the autopilot's, of the strategy in force: its prediction, 0: none; and what explains the difference from what was measured,
     * "": nothing to explain. They change between steps. */
    double predicted_ns;
    char difference[160];
    double loss; /* the last that the trainer reported; NaN: none, or not finite */
} esp__steps;

/* What esp_gather works with: one call at a time. */
typedef struct esp__gather {
    uint8_t *slots, *scratch, *host; /* payloads of all ranks' parts; of the codec; of a tensor on a device */
    uint64_t slots_bytes, scratch_bytes, host_bytes;
} esp__gather;

/* Errors, and waits that may become errors. Under lanes.lock. */
typedef struct esp__health {
    int waiting;                /* a request is in flight for ESP__LONG_AFTER_MS or more */
    int32_t waits_for;          /* the rank that the request waits for, -1: unknown */
    uint32_t waits_tensor;      /* the request's; UINT32_MAX: none (a broadcast or the like) */
    int checked, suspected;     /* this wait is long: the ranks were asked who answers; it is too long */
    int32_t left_rank;          /* a peer that closed its context, or -1           */
    esp_status left_after;      /* the error after which it did; ESP_OK: none      */
    uint64_t got_bytes, got_ns; /* since it left: bytes received so far; when a look found more of them */
    /* a collective that is enqueued and that its device had not done at the last look; behind: there is one */
    int behind;
    uint32_t behind_op, behind_tensor;
    int32_t behind_rank;                /* for which it waits; -1: unknown */
    uint64_t behind_ns, behind_look_ns; /* when a look found it first; the last look */
    esp_status fatal;
    char fatal_text[ESP__ERROR_MAX];
    int said_no_gpu, said_unpushed;
    int shrinking; /* esp_shrink began and has not succeeded: it may be called again */
} esp__health;

struct esp_ctx {
    esp__base base; /* first: the folders below find it there */
    esp_host host;  /* the table given to plugins; host.user = ctx */
    esp__config config;
    esp__registry registry;
    esp__device_list devices;
    esp__job job;
    esp__model model;
    esp__in_force in_force;
    esp__gather gather;
    esp__lanes lanes;
    esp__steps steps;
    esp__health health;
    int started;

    void *observers[ESP__OBSERVERS_MAX]; /* each one's `self`; NULL: not asked for. observe/observe.h numbers them */
};
_Static_assert(offsetof(esp_ctx, base) == 0, "esp__base_of takes a context for its first member");
/* Sets where base's parts are. For esp_open, and for tests that fill a context themselves. */
ESP__FN void esp__base_parts(esp_ctx *ctx);

#endif
