/* executor.h: the context (esp_ctx), and the executor, which runs the ops of a step. The cpu thread compresses,
 * decompresses and copies; the link thread runs collectives. "Lock held" in a comment means ctx->lanes.lock. */
#ifndef ESP__EXECUTOR_H
#define ESP__EXECUTOR_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/os.h"
#include "espresso_impl/device/device.h"
#include "espresso_impl/executor/observer.h"
#include "espresso_impl/job/job.h"
#include "espresso_impl/program/program.h"

/* A link (such as the network between machines) runs at most one collective at a time. */
typedef struct esp__link {
    uint32_t cursor;
    const esp__comm *comm; /* of its collective; used by one thread at a time */
    void *req;
    bool busy;
    uint64_t started_ns, core_ns; /* its collective's start, and CPU time so far */
} esp__link;

/* A collective outside training steps, such as esp_broadcast. The link thread runs it. */
typedef struct esp__request {
    esp_coll coll;
    uint8_t level; /* which ranks take part, such as ESP__FLAT */
    const char *what;
    bool wanted, done;
    void *req;
    uint64_t started_ns, ended_ns, core_ns;
} esp__request;

typedef struct esp__step_clock {
    uint64_t begin_ns;                    /* when esp_start or the last esp_wait_all returned */
    uint64_t first_push_ns, last_push_ns; /* when the first began, and the last returned */
    uint64_t end_ns;
    uint64_t next_ns;
} esp__step_clock;

/* A backend and its parameters. `backend` is NULL if the user named none. */
typedef struct esp__comm_plan {
    const esp_backend *backend;
    char params[ESP__SPEC_MAX * 2];
} esp__comm_plan;

typedef struct esp__config {
    uint32_t flags, timeout_ms;
    uint64_t seed;
    char *plugin_path, *strategy_spec, *trace_path, *stats_spec;
    esp__process opened_by; /* a forked child must not use the context */
    bool sample_errors;
    uint32_t optimizer;
    double momentum;                   /* 0 if the optimizer has none */
    esp__comm_plan plans[ESP__SCOPES]; /* chosen by esp_open; esp_shrink opens them again */
    esp__where where;                  /* as esp_open found it; rank and size may have changed since */
    char *settings;                    /* what all ranks must have alike */
} esp__config;

/* The threads that run ops, and the trainer's threads that wait for them. */
typedef struct esp__lanes {
    pthread_mutex_t lock;
    pthread_cond_t done_cv, cpu_cv, link_cv;
    pthread_t cpu_thread, link_thread;
    int threads;
    bool stopping;
    esp__link links[ESP__LEVELS]; /* [0]: between ranks of a machine, [1]: between machines, ... */
    esp__request request;
    bool link_busy;
    bool cpu_busy;      /* a thread compresses, decompresses or copies */
    bool caller_drives; /* the trainer's threads run the ops, not threads of the library */
    bool caller_only;
    bool driving; /* a thread starts or tests collectives, so that no other may */
    bool helped;
    uint64_t drove_ns, looked_ns;
    uint32_t waiters, waiters_one;
    uint64_t wait_since_ns;
    uint64_t stream_since_ns; /* time of this step's first esp_wait_on, or 0 */
    int core_times;
    int tokens[2]; /* reading and writing end of the pipe of ESPRESSO_TOKENS, or -1 (tokens.c) */
} esp__lanes;

typedef struct esp__steps {
    uint64_t step;
    uint32_t n_pushed, n_done;
    bool closed, open;
    bool timed;           /* devices measure the times of this step's ops */
    bool marked;          /* each tensor's last op records its event in this step */
    uint32_t unasked;     /* steps since the trainer last waited for or tested a single tensor */
    bool weighted;        /* esp_weight was called, on all ranks */
    float weight, factor; /* esp_weight of this rank, and what its gradients are multiplied by */
    uint32_t lent;        /* root of the tree of addresses (context/lent.c) */
    char missing_text[ESP__NAME_MAX * 4];
    esp__step_clock clock;
    esp_stats stats;
    const char *phase;
    double predicted_ns; /* the step time that the autopilot predicts, or 0 */
    double loss;         /* the trainer's last reported loss, or NaN */
} esp__steps;

typedef struct esp__health {
    bool waiting;          /* a collective has been in flight for long */
    int32_t waits_for;     /* the rank that it waits for, or -1 if unknown */
    uint32_t waits_tensor; /* the collective's tensor, UINT32_MAX outside steps */
    bool checked;
    bool suspected;
    int32_t left_rank;
    esp_status left_after;
    uint64_t got_bytes, got_ns; /* bytes received so far, time of the last increase */
    bool behind;
    uint32_t behind_op, behind_tensor;
    int32_t behind_rank;
    uint64_t behind_ns, behind_look_ns;
    esp_status fatal;
    char fatal_text[ESP__ERROR_MAX];
    bool said_unpushed;
    bool shrinking; /* esp_shrink has begun and not yet succeeded */
} esp__health;

/* Memory that esp_start allocates for esp_gather. */
typedef struct esp__gather {
    uint8_t *slots, *scratch, *host;
    uint64_t slots_bytes, scratch_bytes, host_bytes;
} esp__gather;

struct esp_ctx {
    esp__base base; /* first, so that a pointer to a context points to it */
    esp_host host;  /* functions that plugins call; host.user is this context */
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
    struct esp__outer *outer; /* of an outer context (context/outer.c), else NULL */
    esp_config *joining;      /* with ESP_JOIN, until this rank has joined in esp_start: what esp_open got */
    bool started;
    esp__observers observers;
};
_Static_assert(offsetof(esp_ctx, base) == 0, "esp__base_of takes a context for its first member");
ESP__FN void esp__base_parts(esp_ctx *ctx);

/* ---- dispatch.c: which op runs next; call all with the lock held ------------------------------------------------- */
/* Call it after a push or an op that allows the next op of a tensor or group to run. Wakes the thread that runs the
 * next op, except the link thread if that is the caller (from_link). */
ESP__FN void esp__unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, bool from_link);
/* Returns the op that the cpu thread runs next. If it returns NULL, the thread sleeps until *until or, if that is 0,
 * until it is woken. */
ESP__FN const esp__op *esp__next_cpu(esp_ctx *ctx, uint64_t *until);
/* Returns the op that can start on link `lane` now, or NULL. A collective that also uses links of inner levels, such as
 * an allreduce over all ranks of several machines, is returned only for its outermost link. */
ESP__FN const esp__op *esp__next_link(esp_ctx *ctx, int lane);
/* Call it after `op`, which ran from real.start_ns to real.end_ns. Frees the links that it used, and makes the next op
 * of its tensor or group ready. */
ESP__FN void esp__op_ended(esp_ctx *ctx, const esp__op *op, esp__span real);
/* Returns the link's op in flight, else its next op, or NULL if this step has no more. */
static inline const esp__op *esp__link_head(const esp_ctx *ctx, int lane) {
    const esp__active *f = &ctx->active;
    const uint32_t cursor = ctx->lanes.links[lane].cursor;
    return ctx->started && cursor < f->n_sequence[lane] ? &f->program.ops[f->sequence[lane][cursor]] : NULL;
}

/* ---- lanes.c: the threads that run ops --------------------------------------------------------------------------- */
/* If the trainer's threads run the ops (caller_drives), runs all that can run now. Lock held, but released
 * meanwhile. */
ESP__FN void esp__drive(esp_ctx *ctx);
/* For a thread that waits for a device: sleeps 20 us. If the trainer's threads run the ops (caller_drives), also checks
 * now and then whether a rank keeps this one waiting for too long. Lock held, but released meanwhile. */
ESP__FN void esp__drive_nap(esp_ctx *ctx);
/* A waiting thread calls it to run ops, or to sleep until something may have changed. Returns false if the context has
 * failed and no thread uses the caller's memory any more. Lock held, but released meanwhile. */
ESP__FN bool esp__drive_wait(esp_ctx *ctx);
/* Wakes the threads that wait in esp_wait and similar calls, to run parts of a long loop over elements. */
ESP__FN void esp__executor_offer(esp_ctx *ctx);
/* Turns the measuring of ops' times on devices, from the next step on, and of their CPU times (op_core_ns,
 * request.core_ns) on or off for trace or calibration. It stays on while either wants it. Statistics want times on
 * devices only. Each reading of the CPU's clock costs up to 2 us; a timed op costs two more events on its stream, and
 * two calls at the step's end. */
enum { ESP__CORE_TRACE = 1, ESP__CORE_CALIBRATION = 2, ESP__CORE_STATS = 4 };
ESP__FN void esp__core_times(esp_ctx *ctx, int who, bool on);
ESP__FN void esp__core_enter(esp_ctx *ctx);   /* starts to measure this thread's CPU time. Lock held */
ESP__FN int esp__host_own_thread(void *user); /* esp_host.own_thread */
ESP__FN esp_status esp__executor_open(esp_ctx *ctx);
ESP__FN void esp__executor_close(esp_ctx *ctx);

/* ---- health.c ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__usable(const esp_ctx *ctx); /* fails if ctx is NULL, and in a forked child */
/* Like esp__usable. Also fails before esp_start, and if there is no tensor `id`. */
ESP__FN esp_status esp__usable_id(const esp_ctx *ctx, uint32_t id);
ESP__FN esp_status esp__dead(const esp_ctx *ctx); /* fails with the first fatal error. Lock held */
ESP__FN esp_status esp__alive(esp_ctx *ctx);      /* if the context has failed, the first fatal error. Takes the lock */
/* Makes all later calls on the context fail with this error. Only the first call counts. */
ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text);
ESP__FN void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text);

/* ---- waits.c ----------------------------------------------------------------------------------------------------- */
typedef struct esp__wait {
    uint64_t since; /* when the wait began, or UINT64_MAX if there is none */
    int32_t rank;   /* the rank that it waits for, or -1 if unknown */
    uint32_t tensor;
    bool delivers, left; /* `delivers`: data of a rank that left may still arrive */
    bool behind;
} esp__wait;
/* esp__waits_look finds what this rank waits for. Test the collectives next, because that may show why a rank left.
 * Then esp__waits_judge fails the context if the wait takes too long or is for a rank that left. Call both without the
 * lock. */
ESP__FN esp__wait esp__waits_look(esp_ctx *ctx, uint64_t now);
ESP__FN void esp__waits_judge(esp_ctx *ctx, uint64_t now, const esp__wait *w);
ESP__FN void esp__waits_answer(void *user, esp__answer *out);
ESP__FN void esp__waits_left(esp_ctx *ctx, int32_t rank, int left);
ESP__FN esp_status esp__waits_left_error(const esp_ctx *ctx, char *text, size_t cap);

/* ---- meter.c: when pushes and ops of a step ran ------------------------------------------------------------------ */
ESP__FN void esp__meter_push(esp_ctx *ctx, esp__tensor *t, esp__span in_push);
ESP__FN void esp__op_took(esp_ctx *ctx, const esp__op *op, esp__span real);
ESP__FN void esp__devices_times(esp_ctx *ctx); /* reads the times of ops from device events, if the step is timed */
/* Adds the step's times to the statistics. Call it when all tensors are synchronized. Lock held. */
ESP__FN void esp__meter_step(esp_ctx *ctx);
/* Stores in out[n_tensors] the ns from the last step's begin to each tensor's push, without the time inside esp_push. A
 * tensor that was pushed before its predecessor gets the predecessor's time. */
ESP__FN void esp__meter_ready(const esp_ctx *ctx, uint64_t *out);

/* ---- ops.c: ops, which are enqueued on the streams of their device ----------------------------------------------- */
ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op);
ESP__FN uint64_t esp__op_elements(const esp__active *f, const esp__op *op);
ESP__FN void esp__call_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp__codec_call *c);
/* For collectives that add up payloads as arrays of numbers, whose headers must not be added. `hide` replaces each
 * header by zeros before the collective, with one nonzero number if the payload has NaN or Inf. `show` restores the
 * headers after it, and sets the NaN flag where the sum is not zero. */
ESP__FN void esp__headers_hide(const esp__active *f, const esp__op *op, int32_t rank);
ESP__FN void esp__headers_show(const esp__active *f, const esp__op *op);
/* Makes `stream` wait for the previous op of the tensor or group. If that ran on another device, the calling thread
 * waits. */
ESP__FN esp_status esp__op_begin(esp_ctx *ctx, const esp__op *op, int stream);
/* Call it after the op's work is enqueued: records the event that the next op waits for. */
ESP__FN esp_status esp__op_issued(esp_ctx *ctx, const esp__op *op, int stream);
/* True if the next op cannot wait in a stream, so that a thread must first wait for the previous op's event. */
ESP__FN bool esp__unit_waits(const esp__active *f, const esp__unit *u);
ESP__FN esp_status esp__unit_passed(const esp_ctx *ctx, const esp__unit *u);
/* Records the event of the unit's last op where that op did not (esp__steps.marked), and sets *late: the event then
 * also waits for what the stream was given since. Lock held */
ESP__FN esp_status esp__unit_mark(const esp_ctx *ctx, esp__unit *u, bool *late);
ESP__FN esp_status esp__unit_failed(const esp_ctx *ctx, const esp__unit *u, esp_status s);
/* Returns what esp_weight multiplies this rank's gradient of `t` by. */
ESP__FN float esp__push_factor(const esp_ctx *ctx, const esp__tensor *t);
/* Makes the ops on a pushed gradient wait for the work on the caller's stream `user`. Multiplies the gradient by its
 * esp_weight factor, or zeroes it if `zero`, and adds the residual that a former strategy left over. */
ESP__FN esp_status esp__push_order(esp_ctx *ctx, esp__tensor *t, esp_stream user, void *grad, bool zero);
/* Waits until the devices have finished the step, and adds to the statistics how many payloads had NaN or Inf. */
ESP__FN esp_status esp__devices_step_end(esp_ctx *ctx);
/* Returns a collective of these tensors that is enqueued on a device and not finished, or NULL. Lock held. */
ESP__FN const esp__op *esp__collective_behind(const esp__active *f, uint32_t first, uint32_t n);

/* ---- tokens.c ---------------------------------------------------------------------------------------------------- */
ESP__FN void esp__tokens_open(esp_ctx *ctx);
/* Before a compression on the CPU, waits for a token; a machine has as many tokens as cores. If it returns true, call
 * esp__token_put afterwards. */
ESP__FN bool esp__token_take(esp_ctx *ctx, uint64_t elements);
ESP__FN bool esp__token_wait(esp_ctx *ctx, uint64_t longest_ms);
ESP__FN void esp__token_put(esp_ctx *ctx, bool token);

/* Chooses backends from *spec, such as one inside machines and another between them, and adds the parameters of slow
 * links that the launcher emulates. If *spec is NULL, chooses and stores a default: MPI or gloo on several hosts, else
 * the backend with the highest score. */
ESP__FN esp_status esp__backends_choose(esp_ctx *ctx, const char **spec, const esp__where *w,
                                        const esp__env_links *links, esp__comm_plan plans[ESP__SCOPES]);
/* If neither program nor environment gives the address at which ranks find each other, asks a backend that knows, such
 * as MPI, for rank and size. */
ESP__FN esp_status esp__backends_meet(esp_ctx *ctx, const esp__comm_plan plans[ESP__SCOPES], esp__where *w,
                                      esp_config *cfg);
ESP__FN esp_status esp__comms_open(esp_ctx *ctx, esp__comm_plan plans[ESP__SCOPES]);
ESP__FN void esp__comms_close(esp_ctx *ctx);
ESP__FN void esp__comms_abort(esp_ctx *ctx);
ESP__FN void esp__comms_wake(esp_ctx *ctx);
/* Resets the file descriptors on which esp__comms_sleep sleeps. Test all collectives between this call and the sleep,
 * or one may end unnoticed. Returns false if there is only one backend, which needs no reset. */
ESP__FN bool esp__comms_arm(esp_ctx *ctx);
ESP__FN void esp__comms_sleep(esp_ctx *ctx, uint64_t us);            /* sleeps until a collective may have ended */
ESP__FN void esp__comms_traffic(const esp_ctx *ctx, esp_stats *all); /* adds the bytes received */
#endif
