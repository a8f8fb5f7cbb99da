/* context.h: functions shared by the files of the public API, the observers and the autopilot. */
#ifndef ESP__CONTEXT_H
#define ESP__CONTEXT_H
#include "espresso_impl/executor/executor.h"

/* ---- activate.c: strategies ---- */
/* Activates the strategy of `spec`, which may be a path if `files`, and moves residuals to it. If a rank fails, or
 * passes an error in `mine`, all ranks fail and keep the old strategy. Collective; call it between steps. */
ESP__FN esp_status esp__activate(esp_ctx *ctx, esp_status mine, const char *spec, bool files);

ESP__FN void esp__agree_tensor(const esp_ctx *ctx, uint32_t i, esp__text *t);

/* ---- shrink.c ---- */
static inline bool esp__shrink_lost(esp_status s) { return s == ESP_E_PEER || s == ESP_E_TIMEOUT; }
/* Stops the threads that run ops, and closes the communicators. */
ESP__FN void esp__shrink_quiet(esp_ctx *ctx);
/* Clears an error after ranks were lost. Until esp__shrink_end, another loss is possible. */
ESP__FN void esp__shrink_healthy(esp_ctx *ctx);
ESP__FN void esp__shrink_end(esp_ctx *ctx, esp_status s);
/* Activates strategy `text` for the job's present ranks. If the job has not the levels for it, tries the built-in
 * strategy with the same codec, then fp32. All ranks get the same status. */
ESP__FN esp_status esp__shrink_activate(esp_ctx *ctx, const char *text);
/* Opens communicators to the job's present ranks. */
ESP__FN esp_status esp__shrink_connect(esp_ctx *ctx);
ESP__FN esp_status esp__shrink_weights(esp_ctx *ctx);
/* Fails if a backend or a sharded tensor does not allow other ranks. `what` begins the message. */
ESP__FN esp_status esp__shrink_possible(const esp_ctx *ctx, const char *what);

/* ---- reconfigure.c ---- */
/* For a context with ESP_JOIN, in esp_start: joins the running job, and activates its strategy. */
ESP__FN esp_status esp__join_start(esp_ctx *ctx);

/* ---- open.c, step.c ---- */
ESP__FN esp__peers_events esp__open_events(esp_ctx *ctx);
ESP__FN esp_status esp__open_workers(esp_ctx *ctx, const esp_config *c);
ESP__FN esp_status esp__open_progress(esp_ctx *ctx, const esp_config *c);
ESP__FN void esp__topology_free(esp_ctx *ctx, esp__topology *t);
ESP__FN void esp__host_init(esp_host *host, esp_ctx *ctx);
/* Opens a context without other ranks and without a backend, just to use codecs. esp_close frees it. */
ESP__FN esp_status esp__open_alone(esp_ctx **out);
ESP__FN esp_status esp__between_steps(esp_ctx *ctx, const char *what);
/* Prepares the next step. Call it with the lock, or while no thread runs ops. */
ESP__FN void esp__step_free(esp_ctx *ctx);
ESP__FN void esp__step_reset(esp_ctx *ctx);
ESP__FN void esp__pending_before_free(esp_ctx *ctx, esp__tensor *t);
ESP__FN void esp__coll_init(esp_coll *c, uint32_t op, esp_dtype dtype, uint64_t count, void *data, int32_t root);
/* Fails unless `stream` belongs to the tensor's device or to the CPU. `what` begins the message. */
ESP__FN esp_status esp__stream_check(const esp_ctx *ctx, const esp__tensor *t, esp_stream stream, const char *what);
/* Runs a collective outside a step on the link thread, and waits for it. `what` names the caller in errors. */
ESP__FN esp_status esp__request_run_at(esp_ctx *ctx, uint8_t level, const esp_coll *c, const char *what);
enum { ESP__ARGUMENTS = 3 };
/* Fails on all ranks if ranks call `what` with different arguments; a backend might succeed on some. Collective. */
ESP__FN esp_status esp__same_arguments(esp_ctx *ctx, const char *what, const char *const names[ESP__ARGUMENTS],
                                       const uint64_t mine[ESP__ARGUMENTS]);

/* ---- weight.c ---- */
/* Exchanges all ranks' weights, and sets the factor by which this rank's gradients are multiplied. Collective; call it
 * between steps. */
ESP__FN esp_status esp__weights_share(esp_ctx *ctx);

/* ---- outer.c, outer_late.c: outer contexts; all but esp__outer_start, esp__outer_between_steps and esp__outer_load
 * allow a NULL ctx->outer ---- */
/* Warns once if ESPRESSO_OUTER is set, but no context of the process is an outer one. */
ESP__FN void esp__outer_unused(const esp_ctx *ctx);
/* Divides the tensors into fragments. Call it before the first strategy is active. */
ESP__FN esp_status esp__outer_start(esp_ctx *ctx);
/* Call it when a strategy is active, which determines the parts of sharded tensors: takes momenta. */
ESP__FN esp_status esp__outer_parts(esp_ctx *ctx);
ESP__FN void esp__outer_agree(const esp_ctx *ctx, esp__text *lines);
/* Sorts the strategy's collectives by fragment. Fails if it synchronizes tensors of two fragments together. */
ESP__FN esp_status esp__outer_order(esp_ctx *ctx, esp__strategy *y);
/* Fails if the trainer calls `what`, which only other contexts have. */
ESP__FN esp_status esp__outer_refuse(const esp_ctx *ctx, const char *what);
/* Blocks until what was pushed in this round is averaged, so that other collectives can run. */
ESP__FN esp_status esp__outer_quiet(esp_ctx *ctx);
/* Does that before collective call `what`, which may come in mid-round unless late ranks are at other places of it. */
ESP__FN esp_status esp__outer_between_steps(esp_ctx *ctx, const char *what);
/* Some rank pushes fragment number `fragment`, counted over all rounds. Called by the watch thread. */
ESP__FN void esp__outer_begun(esp_ctx *ctx, uint64_t fragment);
/* Marks what this round has averaged before the active strategy or a loaded state began. */
ESP__FN void esp__outer_resume(esp_ctx *ctx);
/* Drops the round after ranks were lost, and gives the remaining ones the anchors and momenta of rank 0. The second is
 * collective. */
ESP__FN void esp__outer_restart(esp_ctx *ctx);
ESP__FN esp_status esp__outer_shrunk(esp_ctx *ctx);
/* Fails in mid-round. `what` begins the message. */
ESP__FN esp_status esp__outer_between(const esp_ctx *ctx, const char *what);
ESP__FN bool esp__outer_compared(const esp_ctx *ctx);
/* Notes that this rank has joined a job, and whose anchors it gets. */
ESP__FN void esp__outer_joined(esp_ctx *ctx, bool compared);
ESP__FN void esp__outer_close(esp_ctx *ctx);
/* Calls put(user, device, data, bytes) for each part of what a saved state has of it. */
typedef void (*esp__outer_put)(const esp_ctx *ctx, void *user, uint32_t device, const void *data, uint64_t bytes);
ESP__FN void esp__outer_save(const esp_ctx *ctx, esp__outer_put put, void *user);
/* Checks the `bytes` bytes of a saved state that esp__outer_save has put, or loads them. */
ESP__FN esp_status esp__outer_check(esp_ctx *ctx, const void *saved, uint64_t bytes);
ESP__FN esp_status esp__outer_load(esp_ctx *ctx, const void *saved);

/* ---- lent.c ---- */
/* Lends `grad` to the library as the gradient of `t`. Returns NULL, or the tensor whose lent gradient overlaps it. Lock
 * held. */
ESP__FN const esp__tensor *esp__lend(esp_ctx *ctx, esp__tensor *t, const void *grad);

/* ---- helpers.c, gather.c ---- */
/* Blocks until the work that is now in `stream` is done. */
ESP__FN esp_status esp__stream_settle(esp_ctx *ctx, uint32_t device, esp_stream stream);
/* Opens the codecs of esp_gather and allocates its memory. Call it after the first strategy is active. */
ESP__FN esp_status esp__gather_open(esp_ctx *ctx);
ESP__FN void esp__gather_close(esp_ctx *ctx);
#endif
