/* health.c: checks whether a context may be used, and records its first fatal error, after which it stays failed. */
#include "espresso_impl/executor/executor.h"

ESP__FN esp_status esp__usable(const esp_ctx *ctx) {
    if (!ctx)
        return esp__fail(NULL, ESP_E_ARG,
                         "the context is NULL: esp_open makes one, and says why it could not (esp_last_error)");
    if (esp__in_log(ctx))
        return esp__fail(ctx, ESP_E_STATE,
                         "a log callback (esp_host.log) must not use the context whose event it gets: store what it "
                         "needs, and call the library elsewhere");
    if (!esp__process_same(&ctx->config.opened_by))
        return esp__fail(ctx, ESP_E_STATE, "the context was opened before fork(): open a new one in the child");
    return ESP_OK;
}

ESP__FN esp_status esp__usable_id(const esp_ctx *ctx, uint32_t id) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "call esp_start before pushing or waiting");
    if (id >= ctx->model.n_tensors)
        return esp__fail(ctx, ESP_E_ARG, "there is no tensor %u: ids go from 0 to %u", id, ctx->model.n_tensors - 1);
    return ESP_OK;
}

ESP__FN esp_status esp__dead(const esp_ctx *ctx) {
    return esp__fail(ctx, ctx->health.fatal, "%s", ctx->health.fatal_text);
}

ESP__FN esp_status esp__alive(esp_ctx *ctx) {
    if (ctx->joining)
        return esp__fail(ctx, ESP_E_STATE, "this rank joins a running job (ESP_JOIN) in esp_start: call that first");
    pthread_mutex_lock(&ctx->lanes.lock);
    const esp_status s = ctx->health.fatal ? esp__dead(ctx) : ESP_OK;
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

/* Appends to an error's text which collective of which step is in flight on this rank or, if none is, comes next.
 * The caller holds the lock. */
static void esp__add_place(const esp_ctx *ctx, char *text, size_t cap) {
    const size_t n = strlen(text);
    const unsigned long long step = (unsigned long long)ctx->steps.step;
    const esp__op *op = NULL;
    int lane = -1;
    if (ctx->lanes.request.req) {
        snprintf(text + n, cap - n, "; this rank is in a broadcast, allreduce or barrier after step %llu", step);
        return;
    }
    if (!ctx->steps.open) return;
    for (int k = 0; k < (int)ctx->job.topo.n_levels; k++) {
        const esp__op *head = esp__link_head(ctx, k);
        if (!head || (lane >= 0 && ctx->lanes.links[lane].req && !ctx->lanes.links[k].req)) continue;
        op = head;
        lane = k;
    }
    if (!op) {
        snprintf(text + n, cap - n, "; this rank is in step %llu, and has run all of its ops on links", step);
        return;
    }
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    snprintf(text + n, cap - n, "; this rank is in step %llu at op %u of %u on link '%s', %.300s, of tensor '%.300s'",
             step, ctx->lanes.links[lane].cursor + 1, ctx->active.n_sequence[lane],
             esp__scope_name(&ctx->job.names, (uint32_t)lane + 1), op->label, ctx->model.tensors[u->place.first].name);
}

ESP__FN void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text) {
    if (ctx->health.fatal) return;
    ctx->health.fatal = s;
    snprintf(ctx->health.fatal_text, sizeof ctx->health.fatal_text, "%.*s", (int)sizeof ctx->health.fatal_text - 1,
             text);
    esp__add_place(ctx, ctx->health.fatal_text, sizeof ctx->health.fatal_text);
    esp__comms_abort(ctx);
    pthread_cond_broadcast(&ctx->lanes.done_cv);
    pthread_cond_broadcast(&ctx->lanes.cpu_cv);
    pthread_cond_broadcast(&ctx->lanes.link_cv);
}

ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text) {
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__fatal_locked(ctx, s, text);
    pthread_mutex_unlock(&ctx->lanes.lock);
}
