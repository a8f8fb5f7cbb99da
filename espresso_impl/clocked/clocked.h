/* clocked.h: the executor under a model's clock (`espresso replay --mode model`): every op keeps its lane busy for the time that a
 * plan predicts, on absolute deadlines, while the real bytes move in the real order. Private: only the command uses it. */
#ifndef ESP__CLOCKED_H
#define ESP__CLOCKED_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

/* Matches the ops of this rank's program to the events of a plan for the same strategy text: event_of_op[program.n_ops],
 * UINT32_MAX where the plan has no such op (copies of the executor's own). For both modes of replay. */
ESP__FN esp_status esp__clocked_match(const esp_ctx *ctx, const esp_plan *plan, uint32_t *event_of_op);
/* From now on ops take the plan's times (esp_plan_events), times `time_scale`, in every step that esp__clocked_begin opens; other
 * steps run as always. Between steps, after the strategy was set to esp_plan_text(plan) (it has the order of all ops), on all
 * ranks; a change of strategy ends it. NULL ends it. The plan need not outlive the call. */
ESP__FN esp_status esp__clocked_set(esp_ctx *ctx, const esp_plan *plan, double time_scale);
/* Backward of the step that comes begins at `at_ns` of esp__now_ns, the same on all ranks (of one machine). */
ESP__FN void esp__clocked_begin(esp_ctx *ctx, uint64_t at_ns);
/* Tensor `id`'s backward: takes its turn on the compute lane, returns when its time is over; then push the tensor. Tensors in
 * order of their ids. An error has killed the context, as one of esp_push would tell. */
ESP__FN esp_status esp__clocked_backward(esp_ctx *ctx, uint32_t id);

/* ---- of the last step; nanoseconds since its esp__clocked_begin's at_ns ------------------------------------------------- */
/* When an event of the plan (index in esp_plan_events) really began and ended; a time before at_ns is 0. */
ESP__FN esp__span esp__clocked_event_real(const esp_ctx *ctx, uint32_t event);

/* ---- between match.c, clock.c and the executor -------------------------------------------------------------------- */
enum { ESP__CLOCKED_WAITS = 0, ESP__CLOCKED_RUNS, ESP__CLOCKED_WORKED, ESP__CLOCKED_OVER };
enum { ESP__CLOCKED_CALLER = 0, ESP__CLOCKED_CPU, ESP__CLOCKED_LINK };
#define ESP__CLOCKED_NONE UINT32_MAX

/* One event of the plan, and where it is in the step under way. */
typedef struct esp__clocked_event {
    uint32_t unit;        /* backward: the tensor                                                       */
    uint32_t op;          /* of this rank's program, or ESP__CLOCKED_NONE: only its time passes            */
    uint32_t place;       /* in its unit's chain                                                        */
    uint8_t lanes, owner; /* mask; the thread that runs it                                              */
    uint8_t backward;
    uint8_t state;  /* RUNS: the real work is under way; HELD: it is done, the deadline is to come */
    uint64_t ns;    /* the plan's                                                                 */
    esp__span due;  /* by the clock of deadlines; plan's nanoseconds since the begin of backward  */
    esp__span real; /* of esp__now_ns                                                             */
} esp__clocked_event;

typedef struct esp__clocked {
    double scale;
    esp__clocked_event *event; /* [n] by event of the plan                                    */
    uint32_t n;
    uint32_t *lane[ESP__LANES], lane_n[ESP__LANES]; /* events in the plan's order                       */
    uint32_t *chain, *first;                        /* events of unit u: chain[first[u]] to chain[first[u + 1] - 1] */
    uint32_t *event_of_op, *event_of_tensor;
    uint32_t sharp; /* threads that wake up on time: bits by ESP__CLOCKED_CPU, ESP__CLOCKED_LINK */
    /* the step: under the context's lock */
    uint64_t step; /* that was opened last */
    uint64_t zero_ns, lane_end[ESP__LANES], backward_end;
    uint32_t cursor[ESP__LANES], tensor; /* next of the lane; next backward */
    uint32_t *at;                        /* [n_units] next of the chain     */
    uint64_t *ready;                     /* [n_units] when that has its input */
} esp__clocked;

/* Is the step under way a clocked one? Lock held. */
ESP__UNUSED static inline int esp__clocked_on(const esp_ctx *ctx) {
    return ctx->clocked && ctx->started && ctx->clocked->step == ctx->steps.step;
}
/* Ends clocked execution: the program is about to go. No lock held. */
ESP__FN void esp__clocked_drop(esp_ctx *ctx);
/* From now on these, or none; frees those before. No lock held. */
ESP__FN void esp__clocked_swap(esp_ctx *ctx, esp__clocked *now);
#endif
