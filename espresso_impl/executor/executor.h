/* executor.h: the struct behind esp_ctx and its member structs (configuration, lanes, steps, health), and the functions
 * that the executor's files offer each other and the folders above. "Lock" is ctx->lanes.lock. */
#ifndef ESP__EXECUTOR_H
#define ESP__EXECUTOR_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/os.h"
#include "espresso_impl/device/device.h"
#include "espresso_impl/executor/observer.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/program/program.h"

/* One link lane of the communication thread. */
typedef struct esp__link {
    uint32_t cursor;       /* in active.sequence                    */
    const esp__comm *comm; /* of the op in flight; only the link thread touches it and req                     */
    void *req;
    bool busy; /* an op is in flight here, or an op that runs from a lane further out occupies this one */
    uint64_t started_ns, core_ns; /* of the op in flight; core time so far */
} esp__link;

/* A collective outside a program (esp_broadcast, esp_allreduce, a probe), handed to the link thread. */
typedef struct esp__request {
    esp_coll coll;
    uint8_t level;    /* the comm's scope */
    const char *what; /* the call */
    bool wanted, done;
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

/* The backend of one scope, and its parameters. No backend: nobody named one. */
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
    bool sample_errors;                /* an observer reads compression errors                */
    uint32_t optimizer;                /* the trainer's: ESP_OPTIMIZER_*                      */
    double momentum;                   /* 0: none                                             */
    esp__comm_plan plans[ESP__SCOPES]; /* as chosen in esp_open, for esp_shrink */
} esp__config;

/* The threads that run ops, and the callers that wait. `lock` protects every field but those that only one thread uses.
 */
typedef struct esp__lanes {
    pthread_mutex_t lock; /* protects all shared state of the context                                        */
    pthread_cond_t done_cv, cpu_cv, link_cv;
    pthread_t cpu_thread, link_thread;
    int threads;
    bool stopping;
    esp__link links[ESP__LEVELS]; /* intra, inter, ...                                   */
    esp__request request;
    bool link_busy;                /* the link thread has requests in flight              */
    bool cpu_busy;                 /* a thread is inside an op of the cpu or compute lane */
    bool caller_drives;            /* the trainer's threads run the ops: it has no core for others */
    bool caller_only;              /* no other thread may: a backend has ESP_BACKEND_CALLER */
    bool driving;                  /* a thread is inside the backends: starts, tests or sleeps there   */
    bool helped;                   /* a thread of the trainer is inside a long op: the link thread drives */
    uint64_t drove_ns, looked_ns;  /* the last looks for ops and for stragglers */
    uint32_t waiters, waiters_one; /* threads in any wait; those of them in esp_wait      */
    uint64_t wait_since_ns;        /* when the first of the waiters began to wait */
    uint64_t stream_since_ns;      /* when esp_wait_on made a stream of the trainer wait in this step, or 0 */
    int core_times;                /* bits: the readers of core times (ESP__CORE_*); atomic */
    int tokens[2];                 /* tokens.c: the pipe's ends; -1: no tokens, so all ranks may compress at once */
} esp__lanes;

/* The step under way, and all steps so far. Under lanes.lock. */
typedef struct esp__steps {
    uint64_t step;
    uint32_t n_pushed, n_done;
    bool closed, open;
    char missing_text[ESP__NAME_MAX * 4];
    esp__step_clock clock;
    esp_stats stats;
    const char *phase; /* the autopilot's phase as a static text; NULL: no autopilot */
    /* The autopilot's prediction for the active strategy, or 0, and what explains the difference from the measured
     * time, or "". They change between steps. */
    double predicted_ns;
    char difference[160];
    double loss; /* the last that the trainer reported; NaN: none, or not finite */
} esp__steps;

/* Errors, and waits that may become errors. Under lanes.lock. */
typedef struct esp__health {
    bool waiting;               /* a request is in flight for ESP__LONG_AFTER_MS or more */
    int32_t waits_for;          /* the rank that the request waits for, or -1 */
    uint32_t waits_tensor;      /* the request's; UINT32_MAX: none (a broadcast or the like) */
    bool checked;               /* this wait is long, and the ranks were asked who answers */
    bool suspected;             /* this wait is too long */
    int32_t left_rank;          /* a peer that closed its context, or -1           */
    esp_status left_after;      /* the error after which it did; ESP_OK: none      */
    uint64_t got_bytes, got_ns; /* since it left: bytes received so far; when a look found more of them */
    bool behind;                /* at the last look an enqueued collective was not done: the one below */
    uint32_t behind_op, behind_tensor;
    int32_t behind_rank;                /* the rank that it waits for, or -1 */
    uint64_t behind_ns, behind_look_ns; /* when a look found it first; the last look */
    esp_status fatal;
    char fatal_text[ESP__ERROR_MAX];
    bool said_unpushed;
    bool shrinking; /* esp_shrink began and has not succeeded: it may be called again */
} esp__health;

/* What esp_gather works with: one call at a time. */
typedef struct esp__gather {
    uint8_t *slots, *scratch, *host; /* payloads of all ranks' parts; of the codec; of a tensor on a device */
    uint64_t slots_bytes, scratch_bytes, host_bytes;
} esp__gather;

struct esp_ctx {
    esp__base base; /* first: the folders below find it there */
    esp_host host;  /* the table given to plugins; host.user = ctx */
    esp__config config;
    esp__registry registry;
    esp__device_list devices;
    esp__job job;
    esp__model model;
    esp__active active;
    esp__gather gather;
    esp__lanes lanes;
    esp__steps steps;
    esp__health health;
    bool started;
    esp__observers observers; /* self NULL: not asked for */
};
_Static_assert(offsetof(esp_ctx, base) == 0, "esp__base_of takes a context for its first member");
/* Sets where base's parts are. For esp_open, and for tests that fill a context themselves. */
ESP__FN void esp__base_parts(esp_ctx *ctx);

/* ---- dispatch.c: which op is next; lock held in every call ------------------------------------------------------- */
/* The input of the unit's next op is there: wakes the thread that can start the op. Called by the link thread
 * (from_link), it does not wake that thread. */
ESP__FN void esp__unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, bool from_link);
/* The op that the cpu thread runs next: the one that became ready first. NULL: the thread sleeps until *until, or if
 * that is 0 until it is woken. */
ESP__FN const esp__op *esp__next_cpu(esp_ctx *ctx, uint64_t *until);
/* The op that the link thread starts next on `lane`, in the strategy's order; NULL: none before the thread is woken. A
 * flat op over several machines occupies all lanes and starts from the outermost: the thread asks for that lane first.
 */
ESP__FN const esp__op *esp__next_link(esp_ctx *ctx, int lane);
/* The op's work is done and took `real`: frees its lanes and lets its unit continue. */
ESP__FN void esp__op_ended(esp_ctx *ctx, const esp__op *op, esp__span real);
/* The next op of a link lane, or the one in flight; NULL: none is left in this step. */
static inline const esp__op *esp__link_head(const esp_ctx *ctx, int lane) {
    const esp__active *f = &ctx->active;
    const uint32_t cursor = ctx->lanes.links[lane].cursor;
    return ctx->started && cursor < f->n_sequence[lane] ? &f->program.ops[f->sequence[lane][cursor]] : NULL;
}

/* ---- lanes.c: the lanes' threads --------------------------------------------------------------------------------- */
/* Runs what can run now, if the trainer's threads run the ops: after a push, in a test. Lock held, but released
 * meanwhile. */
ESP__FN void esp__drive(esp_ctx *ctx);
/* Sleeps for a moment. Where the trainer's threads run the ops, it looks for stragglers. Lock held, but released
 * meanwhile. */
ESP__FN void esp__drive_nap(esp_ctx *ctx);
/* A waiting thread's part: runs what can run now, or else sleeps until something may have changed. False: the context
 * has failed, and nothing touches the caller's memory any more. Lock held, but released meanwhile. */
ESP__FN bool esp__drive_wait(esp_ctx *ctx);
ESP__FN void esp__executor_offer(esp_ctx *ctx); /* wakes the threads that wait, to help with a loop of the cpu thread */
/* Begins or ends recording the core time of ops (active.op_core_ns, lanes.request.core_ns) for a reader `who`. Each op
 * costs some readings of a clock, of up to 2 us each. */
enum { ESP__CORE_TRACE = 1, ESP__CORE_CALIBRATION = 2 };
ESP__FN void esp__core_times(esp_ctx *ctx, int who, bool on);
ESP__FN void esp__core_enter(esp_ctx *ctx); /* this thread begins to look for ops. Lock held */
ESP__FN esp_status esp__executor_open(esp_ctx *ctx);
ESP__FN void esp__executor_close(esp_ctx *ctx);

/* ---- health.c ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__usable(const esp_ctx *ctx);                 /* fails for NULL, and in a forked child */
ESP__FN esp_status esp__usable_id(const esp_ctx *ctx, uint32_t id); /* and before esp_start, or for an unknown id */
ESP__FN esp_status esp__dead(const esp_ctx *ctx);                   /* the error that killed the context. Lock held */
ESP__FN esp_status esp__alive(esp_ctx *ctx);                        /* fails with that error; not under the lock */
/* The context is dead from here on: the first error stays. */
ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text);
ESP__FN void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text); /* lock held */

/* ---- waits.c ----------------------------------------------------------------------------------------------------- */
/* What this rank waits for, as esp__waits_look finds it. */
typedef struct esp__wait {
    uint64_t since; /* UINT64_MAX: for nothing */
    int32_t rank;   /* -1: unknown */
    uint32_t tensor;
    bool delivers, left; /* what a rank sent before it left still arrives; it has left */
    bool behind;         /* for a collective that the device has not done */
} esp__wait;
/* Called without the lock: looks, and judges: fails the context if the wait is too long. Between the two the caller
 * polls the links if the rank has left, for it may have left because of an error that this rank has not seen yet. */
ESP__FN esp__wait esp__waits_look(esp_ctx *ctx, uint64_t now);
ESP__FN void esp__waits_judge(esp_ctx *ctx, uint64_t now, const esp__wait *w);
ESP__FN void esp__waits_answer(void *user, esp__answer *out);       /* of esp__peers_events.answer */
ESP__FN void esp__waits_left(esp_ctx *ctx, int32_t rank, int left); /* of esp__peers_events.lost */
ESP__FN esp_status esp__waits_left_error(const esp_ctx *ctx, char *text, size_t cap);

/* ---- meter.c: when pushes and ops of a step ran ------------------------------------------------------------------ */
/* A push was called at in_push.start_ns and returns at in_push.end_ns. Lock held. */
ESP__FN void esp__meter_push(esp_ctx *ctx, esp__tensor *t, esp__span in_push);
/* The op's time is known. Lock held in both. */
ESP__FN void esp__op_took(esp_ctx *ctx, const esp__op *op, esp__span real);
ESP__FN void esp__devices_times(esp_ctx *ctx); /* after esp__devices_step_end: of the ops that are timed_later */
/* All tensors of the step are synchronised: closes the step's clock and adds to the statistics. Lock held. */
ESP__FN void esp__meter_step(esp_ctx *ctx);
/* Of the last step: out[n_tensors] gets the nanoseconds from the step's begin to each tensor's push, without the time
 * spent inside esp_push. They never fall from one tensor to the next. */
ESP__FN void esp__meter_ready(const esp_ctx *ctx, uint64_t *out);

/* ---- ops.c: ops, which are enqueued on the streams of their device ----------------------------------------------- */
ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op); /* compress, decompress or copy */
/* The elements that a codec op reads; 0 for other ops. */
ESP__FN uint64_t esp__op_elements(const esp__active *f, const esp__op *op);
/* The arguments for one part of a compress or decompress op: numbers, randomness and scratch; the caller adds payloads,
 * and for compress the residual and the state. */
ESP__FN void esp__call_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp__codec_call *c);
/* Around a collective that reduces payload bodies. Its numbers begin at the first slot's header, because slots lie one
 * behind the other. No header may be summed: `hide` keeps this rank's headers aside, and puts in place of each one
 * number that is not 0 where the payload has NaN or Inf, and zeros. `show` puts the headers back, with the flag that
 * all ranks' numbers give. */
ESP__FN void esp__headers_hide(const esp__active *f, const esp__op *op, int32_t rank);
ESP__FN void esp__headers_show(const esp__active *f, const esp__op *op);
/* Before the op's work: lets `stream` wait for the op before, or waits for it where that op is on another device. */
ESP__FN esp_status esp__op_begin(esp_ctx *ctx, const esp__op *op, int stream);
/* The op's work is enqueued: marks its end with its event, which the unit's next op waits for. */
ESP__FN esp_status esp__op_issued(esp_ctx *ctx, const esp__op *op, int stream);
/* Must the unit's next op wait until the host has seen the event of the op before? */
ESP__FN bool esp__unit_waits(const esp__active *f, const esp__unit *u);
ESP__FN esp_status esp__unit_passed(const esp_ctx *ctx, const esp__unit *u);               /* ESP_PENDING: not yet */
ESP__FN esp_status esp__unit_failed(const esp_ctx *ctx, const esp__unit *u, esp_status s); /* as an error's text */
/* A tensor is pushed: its chain begins after what is on the stream `user` now, and after the gradient was filled with
 * zeros (`zero`) and its pending residual added. */
ESP__FN esp_status esp__push_order(esp_ctx *ctx, esp__tensor *t, esp_stream user, void *grad, bool zero);
/* Waits until the devices have done all of the step, and counts the parts with NaN or Inf. */
ESP__FN esp_status esp__devices_step_end(esp_ctx *ctx);
/* The first collective of these units that a stream-ordered backend has enqueued and the device has not done; NULL:
 * none. Lock held */
ESP__FN const esp__op *esp__collective_behind(const esp__active *f, uint32_t first, uint32_t n);

/* ---- tokens.c ---------------------------------------------------------------------------------------------------- */
ESP__FN void esp__tokens_open(esp_ctx *ctx);
ESP__FN bool esp__token_take(esp_ctx *ctx, uint64_t elements); /* Was a token taken? Then put it back. */
/* Waits for a token. False: the context closes or failed, or the wait was too long. */
ESP__FN bool esp__token_wait(esp_ctx *ctx, uint64_t longest_ms);
ESP__FN void esp__token_put(esp_ctx *ctx, bool token);

/* ---- comms.c: one comm for each scope of the job ----------------------------------------------------------------- */
/* Reads a backend's spec, and adds the launcher's link to those that emulate one. *spec NULL: MPI between hosts where
 * the ranks are on several, and then *spec names it, or the best one. */
ESP__FN esp_status esp__backends_choose(esp_ctx *ctx, const char **spec, const esp__where *w,
                                        const esp__env_links *links, esp__comm_plan plans[ESP__SCOPES]);
/* Where neither program nor environment names a place to meet: asks a backend for the ranks, and gives `cfg` its
 * exchange. */
ESP__FN esp_status esp__backends_meet(esp_ctx *ctx, const esp__comm_plan plans[ESP__SCOPES], esp__where *w,
                                      esp_config *cfg);
ESP__FN esp_status esp__comms_open(esp_ctx *ctx, esp__comm_plan plans[ESP__SCOPES]); /* collective */
ESP__FN void esp__comms_close(esp_ctx *ctx);
ESP__FN void esp__comms_abort(esp_ctx *ctx); /* every comm */
ESP__FN void esp__comms_wake(esp_ctx *ctx);  /* ends esp__comms_sleep; from any thread */
/* With several backends: makes the descriptors unreadable on which esp__comms_sleep sleeps. Requests must be tested in
 * between. 0: one backend, nothing to arm. */
ESP__FN bool esp__comms_arm(esp_ctx *ctx);
ESP__FN void esp__comms_sleep(esp_ctx *ctx, uint64_t us);            /* until a comm may have changed */
ESP__FN void esp__comms_traffic(const esp_ctx *ctx, esp_stats *all); /* adds what all comms received */
#endif
