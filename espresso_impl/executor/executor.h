/* executor.h: what the files of the executor, and those above it, call of each other. "Lock" is ctx->lanes.lock. */
#ifndef ESP__EXECUTOR_H
#define ESP__EXECUTOR_H
#include "espresso_impl/executor/context.h"

/* ---- dispatch.c: which op is next ---------------------------------------------------------------------------------- */
/* Decides which op runs next on a lane, and when its lane is free again. Lock held in every call. */
typedef struct esp__dispatcher {
    const char *name;
    int yields; /* an idle link thread yields a little before it sleeps: a push is often near */
    /* The unit's next op may run as far as the unit is concerned: wakes the thread that can start it now. */
    void (*unit_ready)(esp_ctx *ctx, uint32_t unit, uint64_t now, int from_link);
    /* What the cpu thread runs next; NULL: it sleeps until *until (0: until told). */
    const esp__op *(*next_cpu)(esp_ctx *ctx, uint64_t *until);
    /* What the link thread starts next on `lane` (0 intra, 1 inter; it asks for 1 first); NULL: nothing before *until, which is
     * only ever made earlier (0: until told). */
    const esp__op *(*next_link)(esp_ctx *ctx, int lane, uint64_t *until);
    /* The op's real work took `real`. Its lanes and its unit go on now (esp__op_ended), or when the dispatcher says so. */
    void (*ended)(esp_ctx *ctx, const esp__op *op, esp__span real);
} esp__dispatcher;
ESP__FN const esp__dispatcher *esp__ready_first(void); /* the earliest ready op; on links, the strategy's order */

ESP__FN void esp__ready_push(esp_ctx *ctx, uint32_t unit, uint64_t now); /* for the cpu thread, earliest ready first */
ESP__FN const esp__op *esp__ready_pop(esp_ctx *ctx);                     /* NULL: none */
ESP__FN const esp__op *esp__link_head(const esp_ctx *ctx, int lane);
/* Can the head of link lane `lane` start now? A flat op over several machines holds both lanes and starts from the inter lane. */
ESP__FN const esp__op *esp__link_startable(const esp_ctx *ctx, int lane);
/* A tensor of a group whose packing is next, but which was not pushed: its push will find this op. */
ESP__FN int esp__op_awaits_push(const esp_ctx *ctx, const esp__op *op);
ESP__FN void esp__link_wake(esp_ctx *ctx);
ESP__FN void esp__unit_done(esp_ctx *ctx, esp__work_unit *u);    /* all its ops have run */
ESP__FN void esp__link_advance(esp_ctx *ctx, const esp__op *op); /* a collective leaves its lanes */
ESP__FN void esp__op_ended(esp_ctx *ctx, const esp__op *op, esp__span real);

/* ---- executor.c: the lanes' threads ---------------------------------------------------------------------------------- */
ESP__FN esp_status esp__executor_open(esp_ctx *ctx);
ESP__FN void esp__executor_close(esp_ctx *ctx);
/* The context is dead from here on: the first error stays. */
ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text);
ESP__FN void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text); /* lock held */

/* ---- late.c ------------------------------------------------------------------------------------------------------------- */
/* A look at what this rank waits for. No lock. */
ESP__FN void esp__late_update(esp_ctx *ctx, uint64_t now);

/* ---- meter.c: when pushes and ops of a step ran ------------------------------------------------------------------------- */
/* A push was entered at in_push.start_ns and is about to return. Lock held. */
ESP__FN void esp__meter_push(esp_ctx *ctx, esp__tensor *t, esp__span in_push);
ESP__FN void esp__meter_op(esp_ctx *ctx, const esp__op *op, esp__span real); /* lock held */
/* All of the step is synchronised: closes the step's clock and adds to the statistics. Lock held. */
ESP__FN void esp__meter_step(esp_ctx *ctx);
/* Nanoseconds of [from, to) in which a link was busy, and in which only compression was. Of the last step. */
ESP__FN void esp__meter_exposed(const esp_ctx *ctx, uint64_t from, uint64_t to, uint64_t *communication,
                                uint64_t *compression);
/* Of the last step: when each tensor was ready, counted from its begin without the time spent inside esp_push, and never
 * before the tensor before it. out[n_tensors]. */
ESP__FN void esp__meter_ready(const esp_ctx *ctx, uint64_t *out);

/* ---- ops.c, tokens.c: one compress, decompress or copy op ----------------------------------------------------------------- */
ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op);
ESP__FN uint8_t *esp__at(const esp_ctx *ctx, const esp__op *op, esp__ref r); /* where it lies in this step */
ESP__FN void esp__args_init(const esp_ctx *ctx, const esp__op *op, esp_codec_args *a, esp_tensor *x, esp_buf *scratch);
ESP__FN void esp__args_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp_tensor *x);
/* Residual feedback for a codec that leaves it to the host: residual = phi - decode(payload). phi and back have room for the
 * part's elements. */
ESP__FN esp_status esp__compress_unfused(const esp__codec *c, esp_codec_args *a, float *phi, float *back);
/* Bodies were summed, headers with them: write them anew, as this rank's own payloads of the same parts have them. */
ESP__FN void esp__headers_rebuild(const esp_ctx *ctx, const esp__op *op);
ESP__FN void esp__tokens_open(esp_ctx *ctx);
ESP__FN int esp__token_take(esp_ctx *ctx, uint64_t elements); /* 1: put it back */
ESP__FN void esp__token_put(esp_ctx *ctx, int token);

/* ---- program.c ------------------------------------------------------------------------------------------------------------- */
/* Compiles all units of f->strategy: f->program and the shapes (not the memory) of f->feedback. */
ESP__FN esp_status esp__program_make(esp_ctx *ctx, esp__in_force *f);
ESP__FN void esp__program_free(esp_ctx *ctx, esp__program *p);

/* ---- arena.c: the memory of a program --------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__memory_take(esp_ctx *ctx, esp__in_force *f);
ESP__FN void esp__in_force_free(esp_ctx *ctx, esp__in_force *f); /* with strategy and program; zeroed is fine */

/* ---- feedback.c: from one strategy to the next, so that nothing is lost ---------------------------------------------------- */
/* Takes carry[tensor] (n_tensors pointers, NULL: none yet) for the residuals of all[n] that have no place in `to`. */
ESP__FN esp_status esp__feedback_carry_take(esp_ctx *ctx, const esp__in_force *to, const esp__feedback *all, uint32_t n,
                                            float **carry);
/* Adds them to carry, and moves the others to their place in `to`. Cannot fail. */
ESP__FN void esp__feedback_move(esp_ctx *ctx, const esp__in_force *to, const esp__feedback *all, uint32_t n,
                                float **carry);

/* ---- install.c: strategies ---------------------------------------------------------------------------------------------------- */
/* mine: this rank's own status so far. Builds the strategy that `spec` says, whole and aside, with the feedback of the one in force; then, if every rank could,
 * swaps. Else the one in force stays. Collective, between steps. files: `spec` may be a path. */
ESP__FN esp_status esp__install(esp_ctx *ctx, esp_status mine, const char *spec, int files);

/* ---- state.c ---------------------------------------------------------------------------------------------------- */
/* esp_state_write/read's bodies: the context is started, between steps, and has ctx->in_force.feedback[], ctx->carry. */
ESP__FN esp_status esp__state_write(esp_ctx *ctx, esp_io_fn write, void *user);
ESP__FN esp_status esp__state_read(esp_ctx *ctx, esp_io_fn read, void *user);

/* ---- step.c ------------------------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__usable(const esp_ctx *ctx);
ESP__FN esp_status esp__usable_id(const esp_ctx *ctx, uint32_t id);
ESP__FN esp_status esp__between_steps(const esp_ctx *ctx, const char *what);
ESP__FN esp_status esp__dead(const esp_ctx *ctx); /* the error that killed the context */
ESP__FN void esp__spent_free(esp_ctx *ctx, esp__tensor *t);
ESP__FN void esp__wait_begin(esp_ctx *ctx); /* lock held; the waiter subtracts itself from lanes.waiters */
ESP__FN void esp__coll_init(esp_coll *c, uint32_t op, esp_dtype dtype, uint64_t count, void *data, int32_t root);
/* Hands a collective on the ranks of one level to the communication thread and waits for it. */
ESP__FN esp_status esp__request_run_at(esp_ctx *ctx, uint8_t level, const esp_coll *c, const char *what);
#endif
