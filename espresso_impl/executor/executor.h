/* executor.h: the functions that the executor's files offer each other and the folders above. "Lock" is ctx->lanes.lock. */
#ifndef ESP__EXECUTOR_H
#define ESP__EXECUTOR_H
#include "espresso_impl/executor/context.h"
#include "espresso_impl/codec/call.h"

/* ---- dispatch.c: which op is next ---------------------------------------------------------------------------------- */
/* Lock held in every call. */
/* The input of the unit's next op is there: wakes the thread that can start the op now. from_link: the link thread itself calls, and needs
 * no waking. */
ESP__FN void esp__unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, int from_link);
/* The op that the cpu thread runs next, the one that became ready first; NULL: the thread sleeps until *until (0: until it is woken). */
ESP__FN const esp__op *esp__next_cpu(esp_ctx *ctx, uint64_t *until);
/* The op that the link thread starts next on `lane` (0 intra, 1 inter; it asks for 1 first), in the strategy's order; NULL: none before it
 * is woken. A flat op over several machines occupies both lanes and starts from the inter lane. */
ESP__FN const esp__op *esp__next_link(esp_ctx *ctx, int lane);
/* The op's work is done and took `real`: frees its lanes and lets its unit continue. */
ESP__FN void esp__op_ended(esp_ctx *ctx, const esp__op *op, esp__span real);
ESP__FN const esp__op *esp__link_head(const esp_ctx *ctx, int lane);
ESP__FN void esp__op_took(esp_ctx *ctx, const esp__op *op, esp__span real); /* the op's time is known */

/* ---- executor.c: the lanes' threads ---------------------------------------------------------------------------------- */
/* Runs what can run now, if the trainer's threads run the ops: after a push, in a test. Lock held, but released meanwhile. */
ESP__FN void esp__drive(esp_ctx *ctx);
/* A wait for a device: sleeps for a moment. Where the trainer's threads run the ops, it also looks for late ranks. Lock held, but released
 * meanwhile. */
ESP__FN void esp__drive_nap(esp_ctx *ctx);
/* A waiting thread's part: runs what can run now, or else sleeps until something may have changed. 0: the context has failed, and
 * nothing touches the caller's memory any more. Lock held, but released meanwhile. */
ESP__FN int esp__drive_wait(esp_ctx *ctx);
ESP__FN void esp__executor_offer(esp_ctx *ctx); /* wakes the threads that wait: a loop of the cpu thread began */
/* Begins or ends recording what core time ops take of the thread that runs them (in_force.op_core_ns, lanes.request.core_ns). `who`:
 * ESP__CORE_*. Each op costs some readings of a clock, of up to 2 us each: not recorded unless somebody reads. */
enum { ESP__CORE_TRACE = 1, ESP__CORE_SURVEY = 2 };
ESP__FN void esp__core_times(esp_ctx *ctx, int who, int on);
ESP__FN void esp__core_enter(esp_ctx *ctx); /* this thread begins to look for ops. Lock held */
ESP__FN esp_status esp__executor_open(esp_ctx *ctx);
ESP__FN void esp__executor_close(esp_ctx *ctx);
/* The context is dead from here on: the first error stays. */
ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text);
ESP__FN void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text); /* lock held */

/* ---- waits.c ------------------------------------------------------------------------------------------------------------ */
/* Looks at what this rank waits for, and fails the context if that takes too long. Called without the lock. */
ESP__FN int esp__links_poll(esp_ctx *ctx); /* by the thread that drives the links */
ESP__FN void esp__waits_update(esp_ctx *ctx, uint64_t now);
ESP__FN void esp__waits_answer(void *user, esp__answer *out);       /* of esp__peers_events.answer */
ESP__FN void esp__waits_left(esp_ctx *ctx, int32_t rank, int left); /* of esp__peers_events.lost */
ESP__FN esp_status esp__waits_left_error(const esp_ctx *ctx, char *text, size_t cap);

/* ---- meter.c: when pushes and ops of a step ran ------------------------------------------------------------------------- */
/* A push was called at in_push.start_ns and returns at in_push.end_ns. Lock held. */
ESP__FN void esp__meter_push(esp_ctx *ctx, esp__tensor *t, esp__span in_push);
ESP__FN void esp__meter_op(esp_ctx *ctx, const esp__op *op, esp__span real); /* lock held */
/* All tensors of the step are synchronised: closes the step's clock and adds to the statistics. Lock held. */
ESP__FN void esp__meter_step(esp_ctx *ctx);
/* Of the last step: out[n_tensors] gets the nanoseconds from the step's begin to each tensor's push, without the time spent
 * inside esp_push. They never fall from one tensor to the next. */
ESP__FN void esp__meter_ready(const esp_ctx *ctx, uint64_t *out);

/* How many ranges of a compress or decompress op go into one call of the codec: all of them, where it takes lists. */
static inline uint32_t esp__op_list(const esp__work_unit *u, const esp__op *op) {
    const esp__codec *c = op->on ? u->twin : u->codec;
    return c->traits.caps & ESP_CODEC_LISTS && op->n_ranges ? op->n_ranges : 1;
}

/* ---- ops.c: one compress, decompress or copy op ----------------------------------------------------------------------------- */
ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op);
ESP__FN uint8_t *esp__at(const esp_ctx *ctx, const esp__op *op, esp__ref r); /* the address of `r` in this step */
/* The arguments for one part of a compress or decompress op: numbers, randomness and scratch; the caller adds payloads, and for
 * compress the residual and the state. */
ESP__FN void esp__call_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp__codec_call *c);
/* Around a collective that reduces payload bodies. Its numbers begin at the first slot's header, because slots lie one behind the
 * other. No header may be summed: `hide` keeps this rank's headers aside, and puts in place of each one number that is not 0 where
 * the payload has NaN or Inf, and zeros. `show` puts the headers back, with the flag that all ranks' numbers give. */
ESP__FN void esp__headers_hide(const esp_ctx *ctx, const esp__op *op);
ESP__FN void esp__headers_show(const esp_ctx *ctx, const esp__op *op);

/* ---- ops_device.c: ops on the memory of a device, which are enqueued on its streams -------------------------------------------- */
/* Before the op's work: lets `stream` wait for the op before, or, where the op is the host's, waits for it. */
ESP__FN esp_status esp__op_begin(esp_ctx *ctx, const esp__op *op, int stream);
ESP__FN esp_status esp__copy_enqueue(esp_ctx *ctx, const esp__op *op);
/* The op's work is enqueued: marks its end with its event, for which the unit's next op waits. */
ESP__FN esp_status esp__op_issued(esp_ctx *ctx, const esp__op *op, int stream);
/* An op of the host that works piece by piece (op->n_pieces): waits until piece k was copied down; lets piece k be copied up. */
ESP__FN esp_status esp__piece_wait(esp_ctx *ctx, const esp__op *op, uint32_t k);
ESP__FN esp_status esp__piece_made(esp_ctx *ctx, const esp__op *op, uint32_t k);
/* Does the backend put this collective in order with the device's other work? Then the host need not see its end. */
ESP__FN int esp__stream_ordered(const esp_ctx *ctx, const esp__op *op);
/* Must the unit's next op wait until the host has seen the event of the op before? */
ESP__FN int esp__unit_waits(const esp_ctx *ctx, const esp__work_unit *u);
ESP__FN esp_status esp__unit_passed(const esp_ctx *ctx,
                                    const esp__work_unit *u); /* that event: ESP_OK or ESP_PENDING */
ESP__FN esp_status esp__unit_failed(const esp_ctx *ctx, const esp__work_unit *u, esp_status s); /* as an error's text */
/* A tensor on a device is pushed: its chain begins after what is on the stream `user` now, and after the gradient was filled with
 * zeros (`zero`) and its pending residual added. Lock held. */
ESP__FN esp_status esp__push_order(esp_ctx *ctx, esp__tensor *t, esp_stream user, void *grad, int zero);
/* Waits until the devices have done all of the step, and counts the parts with NaN or Inf. */
ESP__FN esp_status esp__devices_step_end(esp_ctx *ctx);
/* The first collective of these units that a stream-ordered backend has enqueued and the device has not done; NULL: none. Lock held */
ESP__FN const esp__op *esp__collective_behind(const esp_ctx *ctx, uint32_t first, uint32_t n);
/* Is the op's time known only at the end of the step, from its device's events? */
ESP__FN int esp__op_timed_later(const esp_ctx *ctx, const esp__op *op);
ESP__FN void esp__devices_times(esp_ctx *ctx); /* after devices_step_end: the times of these ops. Lock held */

/* ---- tokens.c -------------------------------------------------------------------------------------------------------------------- */
ESP__FN void esp__tokens_open(esp_ctx *ctx);
ESP__FN int esp__token_take(esp_ctx *ctx, uint64_t elements); /* 1: a token was taken; put it back */
/* Waits for a token. 1: taken, put it back; 0: the context closes or failed, or the wait was too long. */
ESP__FN int esp__token_wait(esp_ctx *ctx, uint64_t longest_ms);
ESP__FN void esp__token_put(esp_ctx *ctx, int token);

/* The lane's name, with the names of the job's levels: "machine". For people: strategies have words. */
ESP__FN const char *esp__lane_name(const esp_ctx *ctx, uint32_t lane); /* ctx NULL: the standard word */

/* ---- comms.c: one comm for each scope of the job ----------------------------------------------------------------------- */
/* Reads a backend's spec, and adds the launcher's link to those that emulate one. *spec NULL: MPI between hosts where the ranks are on
 * several, which *spec then says, or the best one. */
ESP__FN esp_status esp__backends_choose(esp_ctx *ctx, const char **spec, const esp__where *w,
                                        const esp__env_links *links, esp__comm_plan plans[ESP__SCOPES]);
/* Where neither program nor environment says where ranks meet: asks a backend who they are, and gives `cfg` its exchange. */
ESP__FN esp_status esp__backends_meet(esp_ctx *ctx, const esp__comm_plan plans[ESP__SCOPES], esp__where *w,
                                      esp_config *cfg);
ESP__FN esp_status esp__comms_open(esp_ctx *ctx, esp__comm_plan plans[ESP__SCOPES]); /* collective */
ESP__FN void esp__comms_close(esp_ctx *ctx);
ESP__FN void esp__comms_abort(esp_ctx *ctx); /* every comm */
ESP__FN void esp__comms_wake(esp_ctx *ctx);  /* ends esp__comms_sleep; from any thread */
/* With several backends: makes the descriptors unreadable on which esp__comms_sleep sleeps. Requests must be tested in between. 0:
 * one backend, nothing to arm. */
ESP__FN int esp__comms_arm(esp_ctx *ctx);
ESP__FN void esp__comms_sleep(esp_ctx *ctx, uint64_t us); /* until a comm may have changed */
/* Announces f's arenas to each backend that has reg(), and moves such memory; and takes that back, between steps and before the comms close. */
ESP__FN esp_status esp__comms_reg(esp_ctx *ctx, esp__in_force *f);
ESP__FN void esp__comms_dereg(esp_ctx *ctx, esp__in_force *f);
ESP__FN void esp__comms_traffic(const esp_ctx *ctx, esp_stats *all); /* adds what all comms received */

/* ---- program.c ------------------------------------------------------------------------------------------------------------- */
/* Compiles all units of f->strategy into f->program, and sets the sizes of f->feedback. Takes no memory for feedback. */
ESP__FN esp_status esp__program_make(esp_ctx *ctx, esp__in_force *f);
ESP__FN void esp__program_free(esp_ctx *ctx, esp__program *p);

/* ---- arena.c: the memory of a program --------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__memory_take(esp_ctx *ctx, esp__in_force *f);
ESP__FN void esp__memory_log(const esp_ctx *ctx);                /* what esp_start took, before the first step */
ESP__FN void esp__in_force_free(esp_ctx *ctx, esp__in_force *f); /* strategy and program too; a zeroed `f` is fine */

/* ---- feedback.c: from one strategy to the next, so that nothing is lost ---------------------------------------------------- */
/* Takes memory, carry[tensor] (n_tensors pointers, NULL: none yet), for those residuals of all[n] that have no place in `to`. */
ESP__FN esp_status esp__feedback_carry_take(esp_ctx *ctx, const esp__in_force *to, const esp__feedback *all, uint32_t n,
                                            float **carry);
/* Adds these residuals to carry, and moves the others of all[n] to their place in `to`. Fails only where a device does: then
 * feedback is lost, and the job cannot go on. */
ESP__FN esp_status esp__feedback_move(esp_ctx *ctx, const esp__in_force *to, const esp__feedback *all, uint32_t n,
                                      float **carry);

/* ---- install.c: strategies ---------------------------------------------------------------------------------------------------- */
/* Collective, between steps. Builds the strategy of `spec` beside the one in force. If every rank succeeds, all ranks put the
 * new one in force, with the feedback of the one before; else that one stays. mine: this rank's status so far, an error makes
 * all ranks fail. files: `spec` may be a path. */
ESP__FN esp_status esp__install(esp_ctx *ctx, esp_status mine, const char *spec, int files);

/* ---- step.c ------------------------------------------------------------------------------------------------------------------- */
/* A context without ranks and backend, whose codecs can be opened. esp_close frees it. */
ESP__FN esp_status esp__open_alone(esp_ctx **out);
ESP__FN esp_status esp__usable(const esp_ctx *ctx);
ESP__FN esp_status esp__usable_id(const esp_ctx *ctx, uint32_t id);
ESP__FN esp_status esp__between_steps(esp_ctx *ctx, const char *what);
/* Nothing is pushed any more: the next step may begin. Lock held, or no lane runs. */
ESP__FN void esp__step_forget(esp_ctx *ctx);
ESP__FN esp_status esp__dead(const esp_ctx *ctx); /* the error that killed the context. Lock held */
ESP__FN esp_status esp__alive(esp_ctx *ctx);      /* fails with that error; not under the lock */
ESP__FN void esp__spent_free(esp_ctx *ctx, esp__tensor *t);
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
ESP__FN uint64_t esp__op_elements(const esp_ctx *ctx, const esp__op *op);
#endif
