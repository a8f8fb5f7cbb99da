/* observer.h: who is told what the executor does. The executor calls the functions below at fixed places; observe/observers.inc
 * lists who listens. So neither the executor nor a step names the timeline, the statistics or the autopilot. */
#ifndef ESP__OBSERVER_H
#define ESP__OBSERVER_H
#include "espresso_impl/base/base.h"

struct esp__op;
struct esp__range;

/* One that listens. Every member but the name is optional. `self` is what open (or strategy) stored: NULL means that nobody
 * asked for this observer, and then only open, strategy and agree are called. */
typedef struct esp__observer {
    const char *name;
    /* In esp_start, before the strategy is loaded. Where *spec is this observer's own name for a strategy ("auto"): stores *self
     * and sets *spec to the strategy that runs first. */
    esp_status (*strategy)(esp_ctx *ctx, void **self, const char **spec);
    /* Adds a line of what all ranks must agree on. Called with self NULL, too. */
    void (*agree)(const esp_ctx *ctx, const void *self, esp__text *lines);
    /* At the end of esp_start, on all ranks; takes memory. Leaves *self NULL where it was not asked for. */
    esp_status (*open)(esp_ctx *ctx, void **self);
    int collective;                              /* open talks to the other ranks: called once all have come so far */
    void (*installed)(esp_ctx *ctx, void *self); /* another program is in force; after open, too; no lock      */
    void (*pushed)(esp_ctx *ctx, void *self, uint32_t tensor, esp__span in_push); /* lock held: copy numbers only */
    void (*op_done)(esp_ctx *ctx, void *self, const struct esp__op *op, esp__span when); /* lock held: likewise   */
    /* A part of a compress op has its payload. On the cpu lane's thread, no lock. */
    void (*compressed)(esp_ctx *ctx, void *self, const struct esp__op *op, const struct esp__range *part);
    /* After every step, on the thread that called esp_wait_all, no lock, in the order of the list. Collective. */
    esp_status (*step)(esp_ctx *ctx, void *self);
    /* Is the strategy in force this observer's own choice? Then a saved state may bring another one. Same on all ranks. */
    int (*chose)(const esp_ctx *ctx, const void *self);
    void (*loaded)(esp_ctx *ctx, void *self); /* a state was loaded, and with it the strategy of its time    */
    void (*close)(esp_ctx *ctx, void *self);  /* the lanes' threads have ended; also after a failed open     */
} esp__observer;

enum { ESP__OBSERVERS_MAX = 8 };

/* ---- observe/observers.c: tells all that listen ----------------------------------------------------------------------- */
ESP__FN esp_status esp__observers_strategy(esp_ctx *ctx, const char **spec);
ESP__FN void esp__observers_agree(const esp_ctx *ctx, esp__text *lines);
ESP__FN esp_status esp__observers_open(esp_ctx *ctx);
ESP__FN void esp__observers_installed(esp_ctx *ctx);
ESP__FN void esp__observers_pushed(esp_ctx *ctx, uint32_t tensor, esp__span in_push);
ESP__FN void esp__observers_op_done(esp_ctx *ctx, const struct esp__op *op, esp__span when);
ESP__FN void esp__observers_compressed(esp_ctx *ctx, const struct esp__op *op, const struct esp__range *part);
ESP__FN esp_status esp__observers_step(esp_ctx *ctx); /* a failure ends the job: ranks are out of step */
ESP__FN int esp__observers_chose(const esp_ctx *ctx);
ESP__FN void esp__observers_loaded(esp_ctx *ctx);
ESP__FN void esp__observers_close(esp_ctx *ctx); /* fine on a context that was never started */
#endif
