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

/* ---- trace.c: the measured timeline --------------------------------------------------------------------------------- */
typedef struct esp__trace esp__trace;
/* Room for `capacity` events, taken now; later ones overwrite none and are counted as dropped. */
ESP__FN esp_status esp__trace_open(esp_ctx *ctx, uint64_t capacity, esp__trace **out);
/* Any thread. `label` must outlive the trace (an op's text). tensor UINT32_MAX: none. */
ESP__FN void esp__trace_add(esp__trace *t, uint32_t lane, const char *label, uint32_t tensor, uint64_t step,
                            uint64_t start_ns, uint64_t end_ns, uint64_t bytes);
/* The events as bytes for a farewell, and the file written from all ranks' bytes (rank 0). */
ESP__FN esp_status esp__trace_pack(esp_ctx *ctx, esp__trace *t, void **data, uint64_t *bytes);
typedef struct esp__trace_file esp__trace_file;
ESP__FN esp_status esp__trace_file_open(esp_ctx *ctx, const char *path, esp__trace_file **out);
ESP__FN void esp__trace_file_rank(void *file, int32_t rank, const void *data, uint64_t bytes);
ESP__FN esp_status esp__trace_file_close(esp__trace_file *f); /* temporary name, then renamed */
ESP__FN void esp__trace_free(esp_ctx *ctx, esp__trace *t);

ESP__UNUSED static inline esp__trace *esp__trace_of(const esp_ctx *ctx) { return ctx->observers[ESP__OBSERVE_trace]; }

/* ---- errors.c: how far compressed gradients are from what they stand for, sampled where config.sample_errors asks ------- */
struct esp__errors;
ESP__UNUSED static inline struct esp__errors *esp__errors_of(const esp_ctx *ctx) {
    return ctx->observers[ESP__OBSERVE_errors];
}

#endif
