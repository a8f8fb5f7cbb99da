/* observers.c: the list of observers, and the functions that call all of them. Must not know what any observer does. */
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

_Static_assert((int)ESP__OBSERVERS <= (int)ESP__OBSERVERS_MAX, "esp_ctx has no room for as many observers");

#define ESP__OBSERVER(name) ESP__FN const esp__observer *esp__##name##_observer(void);
#include "espresso_impl/observe/observers.inc"
#undef ESP__OBSERVER

#define ESP__OBSERVER(name) esp__##name##_observer,
static const esp__observer *(*const esp__observer_list[])(void) = {
#include "espresso_impl/observe/observers.inc"
};
#undef ESP__OBSERVER

static const esp__observer *esp__observer_at(int i) { return esp__observer_list[i](); }

ESP__FN esp_status esp__observers_strategy(esp_ctx *ctx, const char **spec) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS && !s; i++)
        if (esp__observer_at(i)->strategy) s = esp__observer_at(i)->strategy(ctx, &ctx->observers[i], spec);
    return s;
}

ESP__FN void esp__observers_agree(const esp_ctx *ctx, esp__text *lines) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (esp__observer_at(i)->agree) esp__observer_at(i)->agree(ctx, ctx->observers[i], lines);
}

ESP__FN esp_status esp__observers_open(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS; i++) {
        const esp__observer *o = esp__observer_at(i);
        if (o->open && o->collective) s = esp__agree_ok(ctx, s); /* no rank may enter a collective open alone */
        if (o->open && !s) s = o->open(ctx, &ctx->observers[i]);
    }
    if (!s) esp__observers_installed(ctx);
    return s;
}

ESP__FN void esp__observers_installed(esp_ctx *ctx) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers[i] && esp__observer_at(i)->installed) esp__observer_at(i)->installed(ctx, ctx->observers[i]);
}

ESP__FN void esp__observers_pushed(esp_ctx *ctx, uint32_t tensor, esp__span in_push) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers[i] && esp__observer_at(i)->pushed)
            esp__observer_at(i)->pushed(ctx, ctx->observers[i], tensor, in_push);
}

ESP__FN void esp__observers_op_done(esp_ctx *ctx, const esp__op *op, esp__span when) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers[i] && esp__observer_at(i)->op_done)
            esp__observer_at(i)->op_done(ctx, ctx->observers[i], op, when);
}

ESP__FN void esp__observers_compressed(esp_ctx *ctx, const esp__op *op, const esp__range *part) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers[i] && esp__observer_at(i)->compressed)
            esp__observer_at(i)->compressed(ctx, ctx->observers[i], op, part);
}

ESP__FN void esp__observers_loss(esp_ctx *ctx, double loss) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers[i] && esp__observer_at(i)->loss) esp__observer_at(i)->loss(ctx, ctx->observers[i], loss);
}

ESP__FN esp_status esp__observers_step(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS && !s; i++)
        if (ctx->observers[i] && esp__observer_at(i)->step) s = esp__observer_at(i)->step(ctx, ctx->observers[i]);
    if (s) esp__fatal(ctx, s, esp_last_error(ctx)); /* ranks are out of step: the next push must not seem to work */
    ctx->steps.clock.next_ns = esp__now_ns();
    return s;
}

ESP__FN int esp__observers_chose(const esp_ctx *ctx) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers[i] && esp__observer_at(i)->chose && esp__observer_at(i)->chose(ctx, ctx->observers[i]))
            return 1;
    return 0;
}

ESP__FN void esp__observers_loaded(esp_ctx *ctx) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers[i] && esp__observer_at(i)->loaded) esp__observer_at(i)->loaded(ctx, ctx->observers[i]);
}

ESP__FN esp_status esp__observers_shrunk(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS; i++) {
        const esp__observer *o = esp__observer_at(i);
        if (o->shrunk && o->collective) s = esp__agree_ok(ctx, s); /* no rank may exchange alone */
        if (o->shrunk && !s) s = o->shrunk(ctx, &ctx->observers[i]);
    }
    return s;
}

ESP__FN void esp__observers_close(esp_ctx *ctx) {
    for (int i = ESP__OBSERVERS - 1; i >= 0; i--) {
        if (ctx->observers[i] && esp__observer_at(i)->close) esp__observer_at(i)->close(ctx, ctx->observers[i]);
        ctx->observers[i] = NULL;
    }
}
