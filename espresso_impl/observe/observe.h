/* observe.h: the observers, and the functions that some of them offer to others. executor/observer.h says when the executor calls an
 * observer. */
#ifndef ESP__OBSERVE_H
#define ESP__OBSERVE_H
#include "espresso_impl/executor/executor.h"

ESP__FN const esp__observer *esp__trace_observer(void);
ESP__FN const esp__observer *esp__errors_observer(void);
ESP__FN const esp__observer *esp__growth_observer(void);
ESP__FN const esp__observer *esp__stragglers_observer(void);
ESP__FN const esp__observer *esp__profile_observer(void);
ESP__FN const esp__observer *esp__stats_observer(void);
/* Strategy auto, which observes too: planner/auto, or NULL in a build without planner. */
ESP__FN const esp__observer *esp__auto_observer(void);

/* ---- trace.c: the measured timeline --------------------------------------------------------------------------------- */
typedef struct esp__trace esp__trace;
/* Takes room for `capacity` events. Events beyond it are dropped and counted. */
ESP__FN esp_status esp__trace_open(esp_ctx *ctx, uint64_t capacity, esp__trace **out);
/* Adds an event, from any thread. `label` is copied. tensor UINT32_MAX: none. Times are of esp__now_ns; core_ns 0: not known. */
ESP__FN void esp__trace_add(esp__trace *t, uint32_t lane, const char *label, uint32_t tensor, uint64_t step,
                            esp__span when, uint64_t core_ns, uint64_t bytes);
/* Packs the events into bytes, which the caller frees: a rank sends them to rank 0 as its final message. */
ESP__FN esp_status esp__trace_pack(esp_ctx *ctx, esp__trace *t, void **data, uint64_t *bytes);
/* The file, which rank 0 writes from all ranks' bytes. */
typedef struct esp__trace_file esp__trace_file;
ESP__FN esp_status esp__trace_file_open(esp_ctx *ctx, const char *path, esp__trace_file **out);
ESP__FN void esp__trace_file_rank(void *file, int32_t rank, const void *data, uint64_t bytes);
ESP__FN esp_status esp__trace_file_close(esp__trace_file *f); /* the file takes its name, whole */
ESP__FN void esp__trace_free(esp_ctx *ctx, esp__trace *t);

/* ---- errors.c: compression errors, sampled if config.sample_errors is set ----------------------------------------------- */
struct esp__errors;
ESP__UNUSED static inline struct esp__errors *esp__errors_of(const esp_ctx *ctx) {
    return ctx->observers.self[ESP__OBSERVE_ERRORS];
}

/* ---- growth.c: the rule for feedback that grows past all bounds ------------------------------------------------------------ */
enum { ESP__GROWTH_LIMIT = 3 };
/* Judges a sample of |residual| / |gradient|: how many strikes it counts; 0: it is good, and the strikes before are void. *seen: the
 * largest such figure so far, 0 at first. So many strikes in a row as ESP__GROWTH_LIMIT are too many. */
ESP__FN int esp__growth_bad(double *seen, double feedback);

/* ---- strategy auto ------------------------------------------------------------------------- */
/* Is it "auto" or "auto:key=val,..."? spec may be NULL. */
ESP__UNUSED static inline int esp__auto_asked(const char *spec) {
    return spec && !strncmp(spec, "auto", 4) && (!spec[4] || spec[4] == ':');
}
#define ESP__NOT_AUTO "a strategy that is not auto\n" /* what ranks without an autopilot must agree on */

#endif
