/* clocked.h: clocked execution (`espresso replay --mode model`): every op keeps each of its lanes for as long as a plan predicts, and
 * its unit goes on when the plan says, at absolute deadlines, while the real bytes move in the real order. Only the command uses it. */
#ifndef ESP__CLOCKED_H
#define ESP__CLOCKED_H
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

/* Finds the event of each op of this rank's program in a plan for the same strategy text: event_of_op[program.n_ops], UINT32_MAX
 * for an op that plans do not have (a copy that only the executor makes). For both modes of replay. */
ESP__FN esp_status esp__clocked_match(const esp_ctx *ctx, const esp_plan *plan, uint32_t *event_of_op);
/* From now on every step that esp__clocked_begin opens is clocked: ops take the plan's times (esp_plan_events) times
 * `time_scale`. Other steps run as always. Call it between steps on all ranks, after the strategy was set to esp_plan_text(plan),
 * which has the order of all ops. A change of strategy ends clocked execution, and so does plan NULL. The plan may be freed
 * after the call. */
ESP__FN esp_status esp__clocked_set(esp_ctx *ctx, const esp_plan *plan, double time_scale);
/* Backward of the next step begins at `at_ns` of esp__now_ns, the same on all ranks of a machine. */
ESP__FN void esp__clocked_begin(esp_ctx *ctx, uint64_t at_ns);
/* Tensor `id`'s backward: occupies the compute lane for its time and returns when that is over; then push the tensor. Call it for
 * one tensor after another, by rising id. Returns an error only if the context has failed, as esp_push does. */
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
    uint32_t op;          /* of this rank's program; ESP__CLOCKED_NONE: it has none, and only time passes  */
    uint32_t place;       /* in its unit's chain                                                        */
    uint8_t lanes, owner; /* lanes: bits by ESP__LANE_*; owner: the thread that runs it, ESP__CLOCKED_CALLER, ... */
    uint8_t backward;     /* 1: a tensor's backward                                                     */
    uint8_t state; /* ESP__CLOCKED_RUNS: the real work is under way; WORKED: it is done, but its deadline is to come */
    uint8_t held;  /* those of its lanes that it still keeps                                     */
    uint32_t next; /* event in flight of the same owner; ESP__CLOCKED_NONE: the last              */
    uint64_t ns, core_ns, link_ns; /* the plan's: until its unit goes on; how long it keeps a core, and links */
    esp__span due;                 /* planned begin and deadline, in nanoseconds since the begin of backward     */
    esp__span real;                /* of esp__now_ns                                                             */
} esp__clocked_event;

typedef struct esp__clocked {
    double scale;
    esp__clocked_event *event; /* [n] by event of the plan                                    */
    uint32_t n;
    uint32_t *lane[ESP__LANES], lane_n[ESP__LANES]; /* events in the plan's order                       */
    uint32_t *chain, *first;                        /* events of unit u: chain[first[u]] to chain[first[u + 1] - 1] */
    uint32_t *event_of_op, *event_of_tensor;
    uint32_t sharp; /* threads whose sleep was made precise: bits by ESP__CLOCKED_CPU, ESP__CLOCKED_LINK */
    /* the step: under lanes.lock */
    uint64_t step; /* the clocked step that was opened last */
    uint64_t zero_ns, lane_end[ESP__LANES], backward_end;
    uint32_t cursor[ESP__LANES], tensor; /* the lane's next event; the next backward's tensor */
    uint32_t in_flight[3]; /* events that have begun and not ended, by owner: the first; then esp__clocked_event.next */
    uint32_t *at;          /* [n_units] next event of the chain */
    uint64_t *ready;       /* [n_units] when that event has its input */
} esp__clocked;

/* Is the step under way a clocked one? Lock held. */
ESP__UNUSED static inline int esp__clocked_on(const esp_ctx *ctx) {
    return ctx->clocked && ctx->started && ctx->clocked->step == ctx->steps.step;
}
/* Makes the events' times zero: a step begins. */
ESP__FN void esp__clocked_reset(const esp_ctx *ctx, esp__clocked *h);
/* From when to when the event is due, if it is the next one on all its lanes and of its unit: sets x->due and takes the lanes. */
ESP__FN void esp__clocked_take(esp__clocked *h, esp__clocked_event *x);
/* What follows on the event, as far as it is about time: when its unit's next op, or the next backward, has its input. */
ESP__FN void esp__clocked_hand_on(const esp_ctx *ctx, esp__clocked *h, const esp__clocked_event *x);
/* Ends clocked execution, because the program is about to be freed. No lock held. */
ESP__FN void esp__clocked_drop(esp_ctx *ctx);
/* Puts `now` (NULL: none) in the place of ctx->clocked, which is freed. No lock held. */
ESP__FN void esp__clocked_swap(esp_ctx *ctx, esp__clocked *now);
#endif
