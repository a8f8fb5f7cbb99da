/* observe.h: what is measured while training goes on, and who is told after each step. meter.c writes down when ops and pushes
 * ran; probe.c measures links and codecs between steps; profile.c, stats.c and autopilot.c look at what was written down; clocked/match.c
 * makes ops take the time that a model of the machine says. */
#ifndef ESP__OBSERVE_H
#define ESP__OBSERVE_H
#include "espresso_impl/base/base.h"

/* ---- meter.c -------------------------------------------------------------------------------------------------------- */
struct esp__tensor;
/* A push was entered at `entered_ns` and is about to return. Lock held. */
ESP__FN void esp__meter_push(esp_ctx *ctx, struct esp__tensor *t, uint64_t entered_ns);
/* All of the step is synchronised: closes ctx->steps.clock and adds to ctx->steps.stats. Lock held. */
ESP__FN void esp__meter_step(esp_ctx *ctx);
/* Nanoseconds of [from, to) in which a link was busy, and in which only compression was. Of the last step. */
ESP__FN void esp__meter_exposed(const esp_ctx *ctx, uint64_t from, uint64_t to, uint64_t *communication,
                                uint64_t *compression);
/* Of the last step: when each tensor was ready, counted from its begin without the time spent inside esp_push, and never
 * before the tensor before it. out[n_tensors]. */
ESP__FN void esp__meter_ready(const esp_ctx *ctx, uint64_t *out);
/* After the step, no lock held, on the thread that called esp_wait_all, on all ranks: tells the observers below. */
ESP__FN esp_status esp__after_step(esp_ctx *ctx);
/* All ranks learn whether one of them failed: context.c's. Collective. */
ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine);
/* At the end of esp_start, on all ranks (takes memory); and at the begin of esp_close (zeroed and half open are fine). */
ESP__FN esp_status esp__observers_open(esp_ctx *ctx);
ESP__FN void esp__observers_close(esp_ctx *ctx);

/* ---- probe.c: one measurement, by all ranks at the same time, between steps ------------------------------------------ */
/* How long one collective takes on this rank: `best_ns` and `median_ns` of `repeats` runs back to back after one that is not
 * counted. bytes: as a table of the planner counts them (of the whole buffer; all ranks of the level take part). `room`: at
 * least esp__probe_room(...) bytes, zeroed or holding finite floats; as many bytes on every rank. Where it is larger, runs are at
 * different places: gradients are not in the caches either. Collective over all ranks; no memory is taken. */
typedef struct esp__probe {
    uint64_t best_ns, median_ns, worst_ns;
    uint64_t spread_ns; /* between the quartiles */
} esp__probe;
enum { ESP__PROBE_REPEATS = 64 };
ESP__FN int32_t esp__group_size(const esp_ctx *ctx, uint8_t level); /* ranks of one collective */
ESP__FN uint64_t esp__probe_room(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes);
ESP__FN esp_status esp__probe_collective(esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, uint32_t repeats,
                                         void *room, uint64_t room_bytes, esp__probe *out);

/* ---- profile.c: ESPRESSO_PROFILE=FILE[,steps=100]: the trainer's own times, as a model file ------------------------------ */
ESP__FN esp_status esp__record_open(esp_ctx *ctx);
ESP__FN esp_status esp__record_step(esp_ctx *ctx);
ESP__FN void esp__record_close(esp_ctx *ctx);

/* ---- stats.c: ESPRESSO_STATS -------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__stats_open(esp_ctx *ctx);
ESP__FN esp_status esp__stats_step(esp_ctx *ctx);
ESP__FN void esp__stats_close(esp_ctx *ctx);

/* ---- errors.c: what compression did to a unit, sampled ----------------------------------------------------------------- */
struct esp__op;
struct esp__range;
/* With the memory of a strategy: taken where somebody asked for errors (ESPRESSO_STATS, auto); forgets what was measured. */
ESP__FN esp_status esp__guard_take(esp_ctx *ctx);
ESP__FN void esp__guard_free(esp_ctx *ctx);
/* Around one compress op, with ctx->guard, on the cpu lane: 1 if it is to be measured; then each range once its payload is
 * made; then the end. */
ESP__FN int esp__guard_begin(esp_ctx *ctx, const struct esp__op *op);
ESP__FN void esp__guard_range(esp_ctx *ctx, const struct esp__op *op, const struct esp__range *r);
ESP__FN void esp__guard_end(esp_ctx *ctx);

/* ---- autopilot.c: strategy "auto" ------------------------------------------------------------------------------------------ */
/* Where *spec is "auto" or "auto:key=val,...": takes it apart, and sets *spec to what the first steps run with. */
ESP__FN esp_status esp__auto_open(esp_ctx *ctx, const char **spec);
/* After memory was taken. */
ESP__FN esp_status esp__auto_start(esp_ctx *ctx);
ESP__FN esp_status esp__auto_step(esp_ctx *ctx);
ESP__FN void esp__auto_close(esp_ctx *ctx);
/* Is the strategy in force the autopilot's choice, or about to be? The same on all ranks. */
ESP__FN int esp__auto_chooses(const esp_ctx *ctx);
/* state.c: a state was loaded, and with it the strategy that was in force when it was saved. All ranks. */
ESP__FN void esp__auto_loaded(esp_ctx *ctx);
/* Where it stands, in a word ("measuring", "watching"): static text, for statistics. NULL: no autopilot. */
ESP__FN const char *esp__auto_phase(const esp_ctx *ctx);
#endif
