/* observer.h: how observers learn what the executor does. The executor calls the functions below at fixed places, and
 * names no observer. */
#ifndef ESP__OBSERVER_H
#define ESP__OBSERVER_H
#include "espresso_impl/base/base.h"

struct esp__op;
struct esp__range;

/* One observer. Every member is optional. `self` is what open (or strategy) stored. NULL means that the user did not
 * ask for this observer: then only open, strategy and agree are called. */
typedef struct esp__observer {
    /* In esp_start, before the strategy is loaded. If *spec is this observer's own name of a strategy ("auto"), stores
     * *self and sets *spec to the strategy that runs first. */
    esp_status (*strategy)(esp_ctx *ctx, void **self, const char **spec);
    /* Adds lines that must be the same on all ranks. Called with self NULL, too. */
    void (*agree)(const esp_ctx *ctx, const void *self, esp__text *lines);
    /* At the end of esp_start, on all ranks; takes memory. Leaves *self NULL if the user did not ask for this observer.
     */
    esp_status (*open)(esp_ctx *ctx, void **self);
    bool collective; /* open exchanges with other ranks: it runs once no rank has failed so far */
    void (*activated)(esp_ctx *ctx, void *self); /* another program is active; also called after open; no lock */
    void (*pushed)(esp_ctx *ctx, void *self, uint32_t tensor, esp__span in_push); /* lock held: copy numbers only */
    void (*op_done)(esp_ctx *ctx, void *self, const struct esp__op *op,
                    esp__span when); /* lock held: copy numbers only */
    /* A compress op has made the payload of one part. On the cpu thread, no lock. */
    void (*compressed)(esp_ctx *ctx, void *self, const struct esp__op *op, const struct esp__range *part);
    void (*loss)(esp_ctx *ctx, void *self, double loss); /* the trainer reported one; lock held: copy numbers only */
    /* After every step, on the thread that called esp_wait_all, no lock, in the order of the list. All ranks call it.
     */
    esp_status (*step)(esp_ctx *ctx, void *self);
    /* Did this observer choose the active strategy? Then loading a state may replace it by the saved one. Same on all
     * ranks. */
    bool (*chose)(const esp_ctx *ctx, const void *self);
    void (*loaded)(esp_ctx *ctx, void *self); /* a state was loaded, and the strategy saved with it activated */
    /* Ranks were lost: rank and size have changed, and the active strategy was compiled again; if this observer had
     * chosen it, it is fp32 now. On all remaining ranks, also with *self NULL. `activated` follows. */
    esp_status (*shrunk)(esp_ctx *ctx, void **self);
    void (*close)(esp_ctx *ctx, void *self); /* the lanes' threads have ended; also after a failed open     */
} esp__observer;

/* The observers of a context, in the order in which they are called. context/open.c fills the table. */
enum {
    ESP__OBSERVE_TRACE,
    ESP__OBSERVE_ERRORS,
    ESP__OBSERVE_GROWTH,
    ESP__OBSERVE_STRAGGLERS,
    ESP__OBSERVE_PROFILE,
    ESP__OBSERVE_STATS,
    ESP__OBSERVE_AUTO, /* has no table where the build has no planner */
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
ESP__FN esp_status esp__observers_step(esp_ctx *ctx); /* after a failure ranks are out of step */
ESP__FN bool esp__observers_chose(const esp_ctx *ctx);
ESP__FN void esp__observers_loaded(esp_ctx *ctx);
ESP__FN esp_status esp__observers_shrunk(esp_ctx *ctx);
ESP__FN void esp__observers_close(esp_ctx *ctx); /* fine on a context that was never started */
#endif
