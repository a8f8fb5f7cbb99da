/* observers.c: calls all observers. executor/observer.h says when. */
#include "espresso_impl/executor/executor.h"

#define ESP__OBSERVERS_WITH(i, function)                                                                               \
    for (int i = 0; i < ESP__OBSERVERS; i++)                                                                           \
        if (ctx->observers.self[i] && ctx->observers.table[i]->function)

ESP__FN esp_status esp__observers_strategy(esp_ctx *ctx, const char **spec) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS && !s; i++)
        if (ctx->observers.table[i] && ctx->observers.table[i]->strategy)
            s = ctx->observers.table[i]->strategy(ctx, &ctx->observers.self[i], spec);
    return s;
}

ESP__FN void esp__observers_agree(const esp_ctx *ctx, esp__text *lines) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers.table[i] && ctx->observers.table[i]->agree)
            ctx->observers.table[i]->agree(ctx, ctx->observers.self[i], lines);
}

static bool esp__is_collective(const esp__observer *o) { return !o || o->collective; }

ESP__FN esp_status esp__observers_open(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS; i++) {
        const esp__observer *o = ctx->observers.table[i];
        /* if another rank failed, it would not take part in this call, which would wait for it forever */
        if (esp__is_collective(o)) s = esp__agree_ok(ctx, s);
        if (o && o->open && !s) s = o->open(ctx, &ctx->observers.self[i]);
    }
    if (!s) esp__observers_activated(ctx);
    return s;
}

ESP__FN void esp__observers_activated(esp_ctx *ctx) {
    ESP__OBSERVERS_WITH(i, activated) ctx->observers.table[i]->activated(ctx, ctx->observers.self[i]);
}

ESP__FN void esp__observers_pushed(esp_ctx *ctx, uint32_t tensor, esp__span in_push) {
    ESP__OBSERVERS_WITH(i, pushed) ctx->observers.table[i]->pushed(ctx, ctx->observers.self[i], tensor, in_push);
}

ESP__FN void esp__observers_op_done(esp_ctx *ctx, const esp__op *op, esp__span when) {
    ESP__OBSERVERS_WITH(i, op_done) ctx->observers.table[i]->op_done(ctx, ctx->observers.self[i], op, when);
}

ESP__FN void esp__observers_compressed(esp_ctx *ctx, const esp__op *op, const esp__range *part) {
    ESP__OBSERVERS_WITH(i, compressed) ctx->observers.table[i]->compressed(ctx, ctx->observers.self[i], op, part);
}

ESP__FN void esp__observers_loss(esp_ctx *ctx, double loss) {
    ESP__OBSERVERS_WITH(i, loss) ctx->observers.table[i]->loss(ctx, ctx->observers.self[i], loss);
}

ESP__FN esp_status esp__observers_step(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS && !s; i++)
        if (ctx->observers.self[i] && ctx->observers.table[i]->step)
            s = ctx->observers.table[i]->step(ctx, ctx->observers.self[i]);
    ctx->steps.clock.next_ns = esp__now_ns();
    return s;
}

ESP__FN bool esp__observers_chose(const esp_ctx *ctx) {
    for (int i = 0; i < ESP__OBSERVERS; i++)
        if (ctx->observers.self[i] && ctx->observers.table[i]->chose &&
            ctx->observers.table[i]->chose(ctx, ctx->observers.self[i]))
            return true;
    return false;
}

ESP__FN void esp__observers_loaded(esp_ctx *ctx) {
    ESP__OBSERVERS_WITH(i, loaded) ctx->observers.table[i]->loaded(ctx, ctx->observers.self[i]);
}

ESP__FN esp_status esp__observers_shrunk(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (int i = 0; i < ESP__OBSERVERS; i++) {
        const esp__observer *o = ctx->observers.table[i];
        if (esp__is_collective(o)) s = esp__agree_ok(ctx, s);
        if (o && o->shrunk && !s) s = o->shrunk(ctx, &ctx->observers.self[i]);
    }
    return s;
}

ESP__FN void esp__observers_close(esp_ctx *ctx) {
    for (int i = ESP__OBSERVERS - 1; i >= 0; i--) {
        if (ctx->observers.self[i] && ctx->observers.table[i]->close)
            ctx->observers.table[i]->close(ctx, ctx->observers.self[i]);
        ctx->observers.self[i] = NULL;
    }
}
