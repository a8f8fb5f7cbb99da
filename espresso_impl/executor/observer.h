/* observer.h: the interface of observers, such as trace and statistics: functions that the executor calls at fixed
 * places of a step. */
#ifndef ESP__OBSERVER_H
#define ESP__OBSERVER_H
#include "espresso_impl/base/base.h"

struct esp__op;
struct esp__range;

/* One observer. Each function may be NULL. `self` is what `open` or `strategy` stored, or NULL if the user did not ask
 * for this observer; then only open, strategy and agree are called. */
typedef struct esp__observer {
    /* Called in esp_start, before the strategy is loaded. If *spec is the strategy that this observer chooses, as
     * "auto" is the autopilot's, it stores *self and sets *spec to the strategy that runs first. */
    esp_status (*strategy)(esp_ctx *ctx, void **self, const char **spec);
    /* Adds lines that esp_start compares across ranks. Also called with self NULL. */
    void (*agree)(const esp_ctx *ctx, const void *self, esp__text *lines);
    /* Called at the end of esp_start on all ranks. Leaves *self NULL if the user does not want this observer. */
    esp_status (*open)(esp_ctx *ctx, void **self);
    bool collective;                             /* open communicates with other ranks, so no rank may skip it */
    void (*activated)(esp_ctx *ctx, void *self); /* the active strategy is new; also after open; no lock */
    void (*pushed)(esp_ctx *ctx, void *self, uint32_t tensor, esp__span in_push); /* lock held: only copy numbers */
    void (*op_done)(esp_ctx *ctx, void *self, const struct esp__op *op,
                    esp__span when); /* lock held: only copy numbers */
    /* A compress op has made one part's payload. Called on the cpu thread, without the lock. */
    void (*compressed)(esp_ctx *ctx, void *self, const struct esp__op *op, const struct esp__range *part);
    void (*loss)(esp_ctx *ctx, void *self, double loss); /* lock held: only copy numbers */
    /* Called after every step on all ranks, without the lock, by the thread that called esp_wait_all. */
    esp_status (*step)(esp_ctx *ctx, void *self);
    /* Returns true if this observer chose the active strategy. Loading a state may then replace it by the saved
     * strategy. All ranks return the same. */
    bool (*chose)(const esp_ctx *ctx, const void *self);
    void (*loaded)(esp_ctx *ctx, void *self); /* a saved state and its strategy were loaded */
    /* Ranks were lost: rank and size have changed, and the strategy was compiled again. If this observer had chosen it,
     * fp32 is active now. Called on all remaining ranks, also with *self NULL; `activated` follows. */
    esp_status (*shrunk)(esp_ctx *ctx, void **self);
    void (*close)(esp_ctx *ctx, void *self); /* the lanes' threads have ended; also after open failed */
} esp__observer;

/* The observers, in the order of calls. context/open.c fills the table. */
enum {
    ESP__OBSERVE_TRACE,
    ESP__OBSERVE_ERRORS,
    ESP__OBSERVE_GROWTH,
    ESP__OBSERVE_STRAGGLERS,
    ESP__OBSERVE_PROFILE,
    ESP__OBSERVE_STATS,
    ESP__OBSERVE_AUTO, /* absent in builds without planner */
    ESP__OBSERVERS
};
typedef struct esp__observers {
    const esp__observer *table[ESP__OBSERVERS];
    void *self[ESP__OBSERVERS];
} esp__observers;

/* ---- observers.c: calls all observers ---------------------------------------------------------------------------- */
ESP__FN esp_status esp__observers_strategy(esp_ctx *ctx, const char **spec);
ESP__FN void esp__observers_agree(const esp_ctx *ctx, esp__text *lines);
ESP__FN esp_status esp__observers_open(esp_ctx *ctx);
ESP__FN void esp__observers_activated(esp_ctx *ctx);
ESP__FN void esp__observers_pushed(esp_ctx *ctx, uint32_t tensor, esp__span in_push);
ESP__FN void esp__observers_op_done(esp_ctx *ctx, const struct esp__op *op, esp__span when);
ESP__FN void esp__observers_compressed(esp_ctx *ctx, const struct esp__op *op, const struct esp__range *part);
ESP__FN void esp__observers_loss(esp_ctx *ctx, double loss);
ESP__FN esp_status esp__observers_step(esp_ctx *ctx); /* after a failure, ranks may be in different steps */
ESP__FN bool esp__observers_chose(const esp_ctx *ctx);
ESP__FN void esp__observers_loaded(esp_ctx *ctx);
ESP__FN esp_status esp__observers_shrunk(esp_ctx *ctx);
ESP__FN void esp__observers_close(esp_ctx *ctx); /* `ctx` need not have been started */
#endif
