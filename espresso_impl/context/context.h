/* context.h: the functions that the API's files offer each other, observers and the autopilot. */
#ifndef ESP__CONTEXT_H
#define ESP__CONTEXT_H
#include "espresso_impl/executor/executor.h"

/* ---- activate.c: strategies ---------------------------------------------------------------------------------------------------- */
/* Collective, between steps. Builds the strategy of `spec` beside the one in force. If every rank succeeds, all ranks put the
 * new one in force, with the feedback of the one before; else that one stays. mine: this rank's status so far, an error makes
 * all ranks fail. files: `spec` may be a path. */
ESP__FN esp_status esp__activate(esp_ctx *ctx, esp_status mine, const char *spec, int files);

/* ---- step.c ------------------------------------------------------------------------------------------------------------------- */
/* A context without ranks and backend, whose codecs can be opened. esp_close frees it. */
ESP__FN esp_status esp__open_alone(esp_ctx **out);
ESP__FN esp_status esp__between_steps(esp_ctx *ctx, const char *what);
/* Nothing is pushed any more: the next step may begin. Lock held, or no lane runs. */
ESP__FN void esp__step_forget(esp_ctx *ctx);
ESP__FN void esp__pending_before_free(esp_ctx *ctx, esp__tensor *t);
ESP__FN void esp__coll_init(esp_coll *c, uint32_t op, esp_dtype dtype, uint64_t count, void *data, int32_t root);
/* Is `stream` one of the tensor's device, or a CPU stream, on which everything is done? `what` begins the message. */
ESP__FN esp_status esp__stream_check(const esp_ctx *ctx, const esp__tensor *t, esp_stream stream, const char *what);
/* Hands a collective of one level's ranks to the link thread and waits for its end. `what` names the caller in errors. */
ESP__FN esp_status esp__request_run_at(esp_ctx *ctx, uint8_t level, const esp_coll *c, const char *what);

/* ---- request_on.c, gather.c ------------------------------------------------------------------------------------------------ */
/* Waits for the work that is on the device's stream now. */
ESP__FN esp_status esp__stream_settle(esp_ctx *ctx, uint32_t device, esp_stream stream);
/* Opens the codecs of sharded tensors' parameters, and takes memory. After the first strategy is in force. */
ESP__FN esp_status esp__gather_open(esp_ctx *ctx);
ESP__FN void esp__gather_close(esp_ctx *ctx);
#endif
