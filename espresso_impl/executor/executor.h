/* executor.h: the context (esp_ctx) and the functions of the executor, which runs a program's ops. The cpu thread runs
 * the cpu and compute lanes, and the link thread runs the collectives of each link. "Lock" is ctx->lanes.lock. */
#ifndef ESP__EXECUTOR_H
#define ESP__EXECUTOR_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/os.h"
#include "espresso_impl/device/device.h"
#include "espresso_impl/executor/observer.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/program/program.h"

/* One link, with at most one collective in flight. */
typedef struct esp__link {
    uint32_t cursor;       /* index of the next op in active.sequence */
    const esp__comm *comm; /* comm and req of the op in flight; only one thread uses them */
    void *req;
    bool busy;                    /* an op occupies the link, alone or with other links */
    uint64_t started_ns, core_ns; /* start and core time so far of the op in flight */
} esp__link;

/* A collective that is not part of a training step's program, such as esp_broadcast. The link thread runs it. */
typedef struct esp__request {
    esp_coll coll;
    uint8_t level;    /* scope whose comm runs it */
    const char *what; /* name of the API call, for errors */
    bool wanted, done;
    void *req;
    uint64_t started_ns, ended_ns, core_ns;
} esp__request;

/* Times of the current or last step, in nanoseconds of esp__now_ns. */
typedef struct esp__step_clock {
    uint64_t begin_ns;                    /* previous esp_wait_all, or esp_start, returned */
    uint64_t first_push_ns, last_push_ns; /* first esp_push was called; last esp_push returned */
    uint64_t end_ns;                      /* all tensors were synchronized */
    uint64_t next_ns;                     /* begin_ns of the next step */
} esp__step_clock;

/* The backend of one scope and its parameters. `backend` is NULL if the user named none. */
typedef struct esp__comm_plan {
    const esp_backend *backend;
    char params[ESP__SPEC_MAX * 2];
} esp__comm_plan;

/* Settings from esp_config and the environment. */
typedef struct esp__config {
    uint32_t flags, timeout_ms;
    uint64_t seed;
    char *plugin_path, *strategy_spec, *trace_path, *stats_spec;
    esp__process opened_by;            /* a forked child must not use the context */
    bool sample_errors;                /* an observer measures compression errors */
    uint32_t optimizer;                /* the trainer's optimizer, ESP_OPTIMIZER_* */
    double momentum;                   /* the optimizer's momentum; 0 if it has none */
    esp__comm_plan plans[ESP__SCOPES]; /* chosen in esp_open, used again by esp_shrink */
} esp__config;

/* The threads that run ops, and the callers that wait for them. */
typedef struct esp__lanes {
    pthread_mutex_t lock; /* protects all fields of the context that threads share */
    pthread_cond_t done_cv, cpu_cv, link_cv;
    pthread_t cpu_thread, link_thread;
    int threads;
    bool stopping;
    esp__link links[ESP__LEVELS]; /* [0] intra, [1] inter, ... */
    esp__request request;
    bool link_busy;                /* the link thread has requests in flight */
    bool cpu_busy;                 /* a thread is inside an op of the cpu or compute lane */
    bool caller_drives;            /* the trainer's threads run the ops, to save cores */
    bool caller_only;              /* no other thread may run them (ESP_BACKEND_CALLER) */
    bool driving;                  /* a thread is inside the backends; only one may be */
    bool helped;                   /* a long op keeps the caller from testing collectives */
    uint64_t drove_ns, looked_ns;  /* times of the last search for ops and check for stragglers */
    uint32_t waiters, waiters_one; /* all waiting threads; those in esp_wait */
    uint64_t wait_since_ns;        /* time at which the first of them began to wait */
    uint64_t stream_since_ns;      /* time of the first esp_wait_on in this step, or 0 */
    int core_times;                /* bits ESP__CORE_* of its readers; atomic */
    int tokens[2];                 /* pipe of tokens.c, or -1 if ranks take no turns */
} esp__lanes;

/* The current step and totals of all steps. Protected by the lock. */
typedef struct esp__steps {
    uint64_t step;
    uint32_t n_pushed, n_done;
    bool closed, open;
    char missing_text[ESP__NAME_MAX * 4];
    esp__step_clock clock;
    esp_stats stats;
    const char *phase;   /* name of the autopilot's phase; NULL without autopilot */
    double predicted_ns; /* the step time that the autopilot predicts, or 0 */
    double loss;         /* last loss that the trainer reported, or NaN */
} esp__steps;

/* Errors, and long waits that may become errors. Protected by the lock. */
typedef struct esp__health {
    bool waiting;               /* a request is in flight longer than ESP__LONG_AFTER_MS */
    int32_t waits_for;          /* rank that the request waits for, or -1 */
    uint32_t waits_tensor;      /* the request's tensor, or UINT32_MAX, as for a broadcast */
    bool checked;               /* the wait is long, and all ranks were pinged */
    bool suspected;             /* the wait has timed out */
    int32_t left_rank;          /* a rank that closed its context, or -1 */
    esp_status left_after;      /* the error after which it closed, or ESP_OK */
    uint64_t got_bytes, got_ns; /* bytes received since it left; when they last grew */
    bool behind;                /* a collective on the device was unfinished when last checked */
    uint32_t behind_op, behind_tensor;
    int32_t behind_rank;                /* rank that this collective waits for, or -1 */
    uint64_t behind_ns, behind_look_ns; /* when it was first unfinished; when last checked */
    esp_status fatal;
    char fatal_text[ESP__ERROR_MAX];
    bool said_unpushed;
    bool shrinking; /* esp_shrink has begun and not succeeded; it may be retried */
} esp__health;

/* Memory of esp_gather, which runs one call at a time. */
typedef struct esp__gather {
    uint8_t *slots, *scratch, *host; /* all ranks' payloads; codec's scratch; host copy of a tensor */
    uint64_t slots_bytes, scratch_bytes, host_bytes;
} esp__gather;

struct esp_ctx {
    esp__base base; /* first member, so that lower folders find it by a cast */
    esp_host host;  /* functions for plugins; host.user is this context */
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
    esp__observers observers; /* self[i] is NULL if the user wants no observer i */
};
_Static_assert(offsetof(esp_ctx, base) == 0, "esp__base_of takes a context for its first member");
/* Sets the pointers in ctx->base. Called by esp_open, and by tests that fill a context themselves. */
ESP__FN void esp__base_parts(esp_ctx *ctx);

/* ---- dispatch.c: which op is next; lock held in every call ------------------------------------------------------- */
/* Tells that the input of the unit's next op is complete, and wakes the thread that can start the op. The link thread
 * passes from_link, so that it does not wake itself. */
ESP__FN void esp__unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, bool from_link);
/* Returns the op that the cpu thread runs next. Returns NULL if it must sleep: until *until, or if that is 0 until
 * another thread wakes it. */
ESP__FN const esp__op *esp__next_cpu(esp_ctx *ctx, uint64_t *until);
/* Returns the op that the link thread starts next on link `lane`, or NULL if the thread must sleep. A collective over
 * several levels occupies their links and starts from the outermost, so ask for that link first. */
ESP__FN const esp__op *esp__next_link(esp_ctx *ctx, int lane);
/* Ends an op that ran during `real`: frees its lanes and lets its unit continue. */
ESP__FN void esp__op_ended(esp_ctx *ctx, const esp__op *op, esp__span real);
/* Returns the link's op in flight, or its next op. Returns NULL if this step has no more. */
static inline const esp__op *esp__link_head(const esp_ctx *ctx, int lane) {
    const esp__active *f = &ctx->active;
    const uint32_t cursor = ctx->lanes.links[lane].cursor;
    return ctx->started && cursor < f->n_sequence[lane] ? &f->program.ops[f->sequence[lane][cursor]] : NULL;
}

/* ---- lanes.c: the lanes' threads --------------------------------------------------------------------------------- */
/* Runs all ops that can run now, if the trainer's threads run the ops. Called in esp_push and esp_test. Lock held, but
 * released meanwhile. */
ESP__FN void esp__drive(esp_ctx *ctx);
/* Sleeps briefly, and checks for stragglers if the trainer's threads run the ops. Lock held, but released meanwhile. */
ESP__FN void esp__drive_nap(esp_ctx *ctx);
/* Called by a waiting thread: runs ops that can run, or sleeps until something may have changed. Returns false if the
 * context has failed and no thread uses the caller's memory any more. Lock held, but released meanwhile. */
ESP__FN bool esp__drive_wait(esp_ctx *ctx);
ESP__FN void esp__executor_offer(esp_ctx *ctx); /* wakes waiting threads to help the cpu thread in a loop */
/* Begins or ends measuring each op's core time (active.op_core_ns, lanes.request.core_ns) for the reader `who`. Reading
 * the clock costs up to 2 us, several times per op. */
enum { ESP__CORE_TRACE = 1, ESP__CORE_CALIBRATION = 2 };
ESP__FN void esp__core_times(esp_ctx *ctx, int who, bool on);
ESP__FN void esp__core_enter(esp_ctx *ctx); /* starts to measure this thread's core time. Lock held */
ESP__FN esp_status esp__executor_open(esp_ctx *ctx);
ESP__FN void esp__executor_close(esp_ctx *ctx);

/* ---- health.c ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__usable(const esp_ctx *ctx);                 /* fails for NULL and in a forked child */
ESP__FN esp_status esp__usable_id(const esp_ctx *ctx, uint32_t id); /* also before esp_start or for a wrong id */
ESP__FN esp_status esp__dead(const esp_ctx *ctx); /* fails with the context's first error. Lock held */
ESP__FN esp_status esp__alive(esp_ctx *ctx);      /* the same, but takes the lock */
/* Makes all later calls on the context fail with this error. A second call changes nothing. */
ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text);
ESP__FN void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text); /* lock held */

/* ---- waits.c ----------------------------------------------------------------------------------------------------- */
/* What this rank waits for, as esp__waits_look found it. */
typedef struct esp__wait {
    uint64_t since; /* since when it waits; UINT64_MAX if it does not */
    int32_t rank;   /* rank that it waits for, or -1 if unknown */
    uint32_t tensor;
    bool delivers, left; /* data of a rank that left still arrives; a rank has left */
    bool behind;         /* the wait is for a collective on the device */
} esp__wait;
/* Call both without the lock. esp__waits_look finds what this rank waits for, and esp__waits_judge fails the context if
 * the wait is too long. Poll the links in between: they may report the error that made a rank leave. */
ESP__FN esp__wait esp__waits_look(esp_ctx *ctx, uint64_t now);
ESP__FN void esp__waits_judge(esp_ctx *ctx, uint64_t now, const esp__wait *w);
ESP__FN void esp__waits_answer(void *user, esp__answer *out);       /* callback esp__peers_events.answer */
ESP__FN void esp__waits_left(esp_ctx *ctx, int32_t rank, int left); /* callback esp__peers_events.lost */
ESP__FN esp_status esp__waits_left_error(const esp_ctx *ctx, char *text, size_t cap);

/* ---- meter.c: when pushes and ops of a step ran ------------------------------------------------------------------ */
/* Records a push, which began at in_push.start_ns and returns at in_push.end_ns. Lock held. */
ESP__FN void esp__meter_push(esp_ctx *ctx, esp__tensor *t, esp__span in_push);
/* Records when an op ran. Lock held in both functions. */
ESP__FN void esp__op_took(esp_ctx *ctx, const esp__op *op, esp__span real);
ESP__FN void esp__devices_times(esp_ctx *ctx); /* records the times of ops with timed_later */
/* Ends the step's times and adds them to the statistics, when all tensors are synchronized. Lock held. */
ESP__FN void esp__meter_step(esp_ctx *ctx);
/* Stores in out[n_tensors] the nanoseconds from the last step's begin to each tensor's push, without the time spent
 * inside esp_push. They never fall from one tensor to the next. */
ESP__FN void esp__meter_ready(const esp_ctx *ctx, uint64_t *out);

/* ---- ops.c: ops, which are enqueued on the streams of their device ----------------------------------------------- */
ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op); /* runs a compress, decompress or copy op */
/* Returns how many elements a codec op reads, or 0 for other ops. */
ESP__FN uint64_t esp__op_elements(const esp__active *f, const esp__op *op);
/* Fills the codec call for one part of a compress or decompress op: numbers, random seed and scratch memory. The caller
 * adds payloads, and for compress the residual and the state. */
ESP__FN void esp__call_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp__codec_call *c);
/* Before and after a collective that sums payloads as one array, in which headers lie between the numbers. `hide`
 * copies the headers away and writes zeros in their place, with one number that is not 0 if the payload has NaN or Inf.
 * `show` puts the headers back, with the NaN flag of all ranks. */
ESP__FN void esp__headers_hide(const esp__active *f, const esp__op *op, int32_t rank);
ESP__FN void esp__headers_show(const esp__active *f, const esp__op *op);
/* Makes `stream` wait for the unit's previous op. If that op is on another device, this thread waits. */
ESP__FN esp_status esp__op_begin(esp_ctx *ctx, const esp__op *op, int stream);
/* Records the op's end event, which the unit's next op waits for, after its work is enqueued. */
ESP__FN esp_status esp__op_issued(esp_ctx *ctx, const esp__op *op, int stream);
/* True if the unit's next op must wait until the host has seen the previous op's event. */
ESP__FN bool esp__unit_waits(const esp__active *f, const esp__unit *u);
ESP__FN esp_status esp__unit_passed(const esp_ctx *ctx, const esp__unit *u);               /* ESP_OK or ESP_PENDING */
ESP__FN esp_status esp__unit_failed(const esp_ctx *ctx, const esp__unit *u, esp_status s); /* sets the error's text */
/* Makes a pushed tensor's ops wait for the work on the caller's stream `user`. Before them, the gradient is filled with
 * zeros if `zero` is set, and its pending residual is added. */
ESP__FN esp_status esp__push_order(esp_ctx *ctx, esp__tensor *t, esp_stream user, void *grad, bool zero);
/* Waits until the devices have finished the step, and counts the parts with NaN or Inf. */
ESP__FN esp_status esp__devices_step_end(esp_ctx *ctx);
/* Returns the first collective of these units that is enqueued on a device and not finished, or NULL. Lock held. */
ESP__FN const esp__op *esp__collective_behind(const esp__active *f, uint32_t first, uint32_t n);

/* ---- tokens.c ---------------------------------------------------------------------------------------------------- */
ESP__FN void esp__tokens_open(esp_ctx *ctx);
ESP__FN bool esp__token_take(esp_ctx *ctx, uint64_t elements); /* true: call esp__token_put after the work */
/* Waits for a token. Returns false if the context closes or fails, or if the wait takes too long. */
ESP__FN bool esp__token_wait(esp_ctx *ctx, uint64_t longest_ms);
ESP__FN void esp__token_put(esp_ctx *ctx, bool token);

/* ---- comms.c: one comm for each scope of the job ----------------------------------------------------------------- */
/* Chooses a backend for each scope from *spec, and adds the launcher's emulated links. If *spec is NULL, it chooses and
 * stores a default: MPI or gloo for several hosts, otherwise the backend with the highest score. */
ESP__FN esp_status esp__backends_choose(esp_ctx *ctx, const char **spec, const esp__where *w,
                                        const esp__env_links *links, esp__comm_plan plans[ESP__SCOPES]);
/* If neither program nor environment says where ranks connect, asks a backend for rank and size, and uses its exchange
 * as cfg->oob_allgather. */
ESP__FN esp_status esp__backends_meet(esp_ctx *ctx, const esp__comm_plan plans[ESP__SCOPES], esp__where *w,
                                      esp_config *cfg);
ESP__FN esp_status esp__comms_open(esp_ctx *ctx, esp__comm_plan plans[ESP__SCOPES]); /* collective call */
ESP__FN void esp__comms_close(esp_ctx *ctx);
ESP__FN void esp__comms_abort(esp_ctx *ctx); /* aborts every comm */
ESP__FN void esp__comms_wake(esp_ctx *ctx);  /* ends esp__comms_sleep; any thread may call it */
/* Resets the descriptors on which esp__comms_sleep sleeps. Test all requests before sleeping, or you miss news. Returns
 * false if there is only one backend, which needs no reset. */
ESP__FN bool esp__comms_arm(esp_ctx *ctx);
ESP__FN void esp__comms_sleep(esp_ctx *ctx, uint64_t us);            /* sleeps until a comm may have news */
ESP__FN void esp__comms_traffic(const esp_ctx *ctx, esp_stats *all); /* adds the bytes that all comms received */
#endif
