/* observe.h: trace, statistics and other observers, which the executor calls during a step. */
#ifndef ESP__OBSERVE_H
#define ESP__OBSERVE_H
#include "espresso_impl/executor/executor.h"

ESP__FN const esp__observer *esp__trace_observer(void);
ESP__FN const esp__observer *esp__errors_observer(void);
ESP__FN const esp__observer *esp__growth_observer(void);
ESP__FN const esp__observer *esp__stragglers_observer(void);
ESP__FN const esp__observer *esp__profile_observer(void);
ESP__FN const esp__observer *esp__stats_observer(void);
/* NULL if the library was built without the planner, which has this observer */
ESP__FN const esp__observer *esp__auto_observer(void);

/* ---- trace.c: records when each op of a step ran ---- */
typedef struct esp__trace esp__trace;
/* Allocates memory for `capacity` events. Later events are dropped. */
ESP__FN esp_status esp__trace_open(esp_ctx *ctx, uint64_t capacity, esp__trace **out);
/* Any thread may add events. Copies `label`. Pass tensor UINT32_MAX if it has none, and core_ns (CPU time) 0 if
 * unknown. */
ESP__FN void esp__trace_add(esp__trace *t, uint32_t lane, const char *label, uint32_t tensor, uint64_t step,
                            esp__span when, uint64_t core_ns, uint64_t bytes);
/* Packs the events into one message, which the rank sends to rank 0 when it closes. The caller frees it. */
ESP__FN esp_status esp__trace_pack(esp_ctx *ctx, esp__trace *t, void **data, uint64_t *bytes);
/* Rank 0 writes one trace file of all ranks' events. */
typedef struct esp__trace_file esp__trace_file;
ESP__FN esp_status esp__trace_file_open(esp_ctx *ctx, const char *path, esp__trace_file **out);
ESP__FN void esp__trace_file_rank(void *file, int32_t rank, const void *data, uint64_t bytes);
ESP__FN esp_status esp__trace_file_close(esp__trace_file *f);
ESP__FN void esp__trace_free(esp_ctx *ctx, esp__trace *t);

/* ---- errors.c: samples compression errors ---- */
struct esp__errors;
ESP__UNUSED static inline struct esp__errors *esp__errors_of(const esp_ctx *ctx) {
    return ctx->observers.self[ESP__OBSERVE_ERRORS];
}

/* ---- growth.c: detects residuals that grow without bound ---- */
enum { ESP__GROWTH_LIMIT = 3 };
/* Rates a sample of |residual| / |gradient|: returns 0 if it is normal, else a number of points. A residual that
 * collects ESP__GROWTH_LIMIT points without a normal sample in between grows without bound. *largest is the largest
 * sample so far, at first 0. */
ESP__FN int esp__growth_bad(double *largest, double feedback);

/* ---- strategy auto ---- */
/* `spec` may be NULL. */
ESP__UNUSED static inline bool esp__auto_asked(const char *spec) {
    return spec && !strncmp(spec, "auto", 4) && (!spec[4] || spec[4] == ':');
}
#define ESP__NOT_AUTO "a strategy that is not auto\n"

#endif
