/* observe.h: what the observers share: their numbers in ctx->observers, and what each of them tells others. Who listens to the
 * executor is in observers.inc; what they are told is in executor/observer.h. */
#ifndef ESP__OBSERVE_H
#define ESP__OBSERVE_H
#include "espresso_impl/executor/context.h"

/* ---- observers.inc ---------------------------------------------------------------------------------------------------- */
#define ESP__OBSERVER(name) ESP__OBSERVE_##name,
enum {
#include "espresso_impl/observe/observers.inc"
    ESP__OBSERVERS
};
#undef ESP__OBSERVER

/* ---- trace.c: the measured timeline, kept where ESPRESSO_TRACE asks for it ------------------------------------------------- */
ESP__UNUSED static inline esp__trace *esp__trace_of(const esp_ctx *ctx) { return ctx->observers[ESP__OBSERVE_trace]; }

/* ---- errors.c: how far compressed gradients are from what they stand for, sampled where config.sample_errors asks ------- */
struct esp__guard;
ESP__UNUSED static inline struct esp__guard *esp__guard_of(const esp_ctx *ctx) {
    return ctx->observers[ESP__OBSERVE_errors];
}

#endif
