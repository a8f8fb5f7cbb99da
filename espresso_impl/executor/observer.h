/* observer.h: observers, such as trace and statistics, are functions that the executor calls at certain points of a
 * step. */
#ifndef ESP__OBSERVER_H
#define ESP__OBSERVER_H
#include "espresso_impl/base/base.h"

struct esp__op;
struct esp__range;

/* The calls of an observer, any of which may be NULL. If the user does not want an observer, `self` is NULL, and
 * only `strategy`, `agree`, `open` and `shrunk` are called. */
typedef struct esp__observer {
    /* Called by esp_start. An observer may store *self, and choose the first strategy by setting *spec. */
    esp_status (*strategy)(esp_ctx *ctx, void **self, const char **spec);
    void (*agree)(const esp_ctx *ctx, const void *self, esp__text *lines);
    /* Called at the end of esp_start. Leaves *self NULL if the user does not want this observer. */
    esp_status (*open)(esp_ctx *ctx, void **self);
    bool collective; /* open and shrunk communicate, so every rank must call them */
    void (*activated)(esp_ctx *ctx, void *self);
    void (*pushed)(esp_ctx *ctx, void *self, uint32_t tensor, esp__span in_push);
    void (*op_done)(esp_ctx *ctx, void *self, const struct esp__op *op, esp__span when);
    /* Called by a thread that has compressed, without the lock. */
    void (*compressed)(esp_ctx *ctx, void *self, const struct esp__op *op, const struct esp__range *part);
    void (*loss)(esp_ctx *ctx, void *self, double loss);
    /* Called after every step on all ranks, without the lock. */
    esp_status (*step)(esp_ctx *ctx, void *self);
    /* True if this observer chose the active strategy. All ranks return the same. */
    bool (*chose)(const esp_ctx *ctx, const void *self);
    void (*loaded)(esp_ctx *ctx, void *self); /* called after a saved state was loaded */
    /* Called by esp_shrink, after rank and size have changed. */
    esp_status (*shrunk)(esp_ctx *ctx, void **self);
    void (*close)(esp_ctx *ctx, void *self);
} esp__observer;

/* All observers, in the order in which they are called. */
enum {
    ESP__OBSERVE_TRACE,
    ESP__OBSERVE_ERRORS,
    ESP__OBSERVE_GROWTH,
    ESP__OBSERVE_STRAGGLERS,
    ESP__OBSERVE_PROFILE,
    ESP__OBSERVE_STATS,
    ESP__OBSERVE_AUTO,
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
ESP__FN esp_status esp__observers_step(esp_ctx *ctx);
ESP__FN bool esp__observers_chose(const esp_ctx *ctx);
ESP__FN void esp__observers_loaded(esp_ctx *ctx);
ESP__FN esp_status esp__observers_shrunk(esp_ctx *ctx);
ESP__FN void esp__observers_close(esp_ctx *ctx);
#endif
