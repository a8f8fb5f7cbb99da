/* clocked.h: the executor under a model's clock (`espresso replay --mode model`): every op keeps its lane busy for the time that a
 * plan predicts, on absolute deadlines, while the real bytes move in the real order. Private: only the command uses it. */
#ifndef ESP__HOLD_H
#define ESP__HOLD_H
#include "espresso_impl/executor/context.h"

/* Matches the ops of this rank's program to the events of a plan for the same strategy text: event_of_op[program.n_ops],
 * UINT32_MAX where the plan has no such op (copies of the executor's own). For both modes of replay. */
ESP__FN esp_status esp__hold_match(const esp_ctx *ctx, const esp_plan *plan, uint32_t *event_of_op);
/* From now on ops take the plan's times (esp_plan_events), times `time_scale`, in every step that esp__hold_begin opens; other
 * steps run as always. Between steps, after the strategy was set to esp_plan_text(plan) (it has the order of all ops), on all
 * ranks; a change of strategy ends it. NULL ends it. The plan need not outlive the call. */
ESP__FN esp_status esp__hold_set(esp_ctx *ctx, const esp_plan *plan, double time_scale);
/* Backward of the step that comes begins at `at_ns` of esp__now_ns, the same on all ranks (of one machine). */
ESP__FN void esp__hold_begin(esp_ctx *ctx, uint64_t at_ns);
/* Tensor `id`'s backward: takes its turn on the compute lane, returns when its time is over; then push the tensor. Tensors in
 * order of their ids. An error has killed the context, as one of esp_push would tell. */
ESP__FN esp_status esp__hold_backward(esp_ctx *ctx, uint32_t id);

/* ---- of the last step; nanoseconds since its esp__hold_begin's at_ns ------------------------------------------------- */
/* When the op (index in program.ops), or a tensor's backward, ran by the clock of deadlines: the plan's times, if every op came
 * in its order. {0, 0} for an op that the plan has not. */
ESP__FN esp__span esp__hold_time(const esp_ctx *ctx, uint32_t op);
ESP__FN esp__span esp__hold_backward_time(const esp_ctx *ctx, uint32_t tensor);
/* The same for an event of the plan (index in esp_plan_events), with those of which this rank has no op; and when it really
 * began and ended. A real time before at_ns is 0. */
ESP__FN esp__span esp__hold_event_time(const esp_ctx *ctx, uint32_t event);
ESP__FN esp__span esp__hold_event_real(const esp_ctx *ctx, uint32_t event);
/* How much later than its deadline the last op of the step really ended. */
ESP__FN uint64_t esp__hold_late_ns(const esp_ctx *ctx);

/* ---- between match.c, clock.c and the executor -------------------------------------------------------------------- */
enum { ESP__HOLD_WAITS = 0, ESP__HOLD_RUNS, ESP__HOLD_HELD, ESP__HOLD_OVER };
enum { ESP__HOLD_CALLER = 0, ESP__HOLD_CPU, ESP__HOLD_LINK };
#define ESP__HOLD_NONE UINT32_MAX

/* One event of the plan, and where it is in the step under way. */
typedef struct esp__held {
    uint32_t unit;        /* backward: the tensor                                                       */
    uint32_t op;          /* of this rank's program, or ESP__HOLD_NONE: only its time passes            */
    uint32_t place;       /* in its unit's chain                                                        */
    uint8_t lanes, owner; /* mask; the thread that runs it                                              */
    uint8_t backward;
    uint8_t state;  /* RUNS: the real work is under way; HELD: it is done, the deadline is to come */
    uint64_t ns;    /* the plan's                                                                 */
    esp__span due;  /* by the clock of deadlines; plan's nanoseconds since the begin of backward  */
    esp__span real; /* of esp__now_ns                                                             */
} esp__held;

typedef struct esp__holds {
    double scale;
    esp__held *held; /* [n] by event of the plan                                    */
    uint32_t n;
    uint32_t *lane[ESP__LANES], lane_n[ESP__LANES]; /* events in the plan's order                       */
    uint32_t *chain, *first;                        /* events of unit u: chain[first[u]] to chain[first[u + 1] - 1] */
    uint32_t *event_of_op, *event_of_tensor;
    uint32_t sharp; /* threads that wake up on time: bits by ESP__HOLD_CPU, ESP__HOLD_LINK */
    /* the step: under the context's lock */
    uint64_t step; /* that was opened last */
    uint64_t zero_ns, lane_end[ESP__LANES], backward_end;
    uint32_t cursor[ESP__LANES], tensor; /* next of the lane; next backward */
    uint32_t *at;                        /* [n_units] next of the chain     */
    uint64_t *ready;                     /* [n_units] when that has its input */
    uint64_t last_due, late_ns;
} esp__holds;

/* Is the step under way one with holds? Lock held, as for all below. */
ESP__UNUSED static inline int esp__hold_on(const esp_ctx *ctx) {
    return ctx->holds && ctx->started && ctx->holds->step == ctx->steps.step;
}
/* Frees what esp__hold_set took: the program is about to go. No lock held. */
ESP__FN void esp__hold_drop(esp_ctx *ctx);
/* The unit's next op may run as far as the unit is concerned: wakes whose turn it is. */
ESP__FN void esp__hold_unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, int from_link);
/* Is it this collective's turn by the plan's order? */
ESP__FN int esp__hold_turn(const esp_ctx *ctx, const esp__op *op);
/* The op's real work begins. */
ESP__FN void esp__hold_start(esp_ctx *ctx, const esp__op *op);
/* The op's real work is done: 1 if it goes on until its deadline, 0 for an op that the plan has not. */
ESP__FN int esp__hold_keep(esp_ctx *ctx, const esp__op *op);
/* What the cpu thread does next, after ending what is due: an op, or NULL, and then sleep until *until (0: until told). */
ESP__FN const esp__op *esp__hold_cpu(esp_ctx *ctx, uint64_t *until);
/* The link thread: ends what is due, starts what this rank has no op for; returns the next deadline, 0: none. */
ESP__FN uint64_t esp__hold_links(esp_ctx *ctx);
#endif
