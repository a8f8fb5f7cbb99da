/* hold.h: the executor under a model's clock (`espresso replay --mode model`): every op keeps its lane busy for the time that a
 * plan predicts, on absolute deadlines, while the real bytes move in the real order. Private: only the command uses it. */
#ifndef ESP__HOLD_H
#define ESP__HOLD_H
#include "context.h"

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

#endif
