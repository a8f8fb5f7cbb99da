/* shrink.c: esp_shrink lets the remaining ranks continue after others died. They drop the failed step, regroup
 * (job/regroup.c), get new ranks and connections, and compile the strategy for fewer ranks. If another rank dies
 * meanwhile, they start again. */
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/outer.h"
#include <unistd.h>

#define ESP__SHRINK_HEARS_NS 1000000000u

ESP__FN esp_status esp__shrink_possible(const esp_ctx *ctx, const char *what) {
    for (uint32_t k = 0; k < ESP__SCOPES; k++) {
        const esp_backend *b = ctx->config.plans[k].backend;
        if (b && !(b->caps & ESP_BACKEND_REOPENS))
            return esp__fail(ctx, ESP_E_UNSUPPORTED,
                             "%s: backend '%s' cannot be opened again for other ranks: start all ranks again, from the "
                             "last state that was saved",
                             what, b->name);
    }
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        if (ctx->model.tensors[i].flags & ESP_SHARD)
            return esp__fail(ctx, ESP_E_UNSUPPORTED,
                             "%s: tensor '%s' is sharded (ESP_SHARD), so each rank has a part of its optimizer state "
                             "that no other has: start all ranks again, from the last state that was saved",
                             what, ctx->model.tensors[i].name);
    return ESP_OK;
}

static esp_status esp__shrink_check(esp_ctx *ctx) {
    esp__outer_late_pause(ctx);
    pthread_mutex_lock(&ctx->lanes.lock);
    const esp__health h = ctx->health;
    const uint32_t waiters = ctx->lanes.waiters;
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "esp_shrink: call esp_start first");
    if (waiters)
        return esp__fail(ctx, ESP_E_STATE,
                         "esp_shrink: another thread still waits in this context: let it return first");
    if (!h.fatal && !h.shrinking)
        return esp__fail(
            ctx, ESP_E_STATE,
            "esp_shrink: no rank was lost: call it when a step has failed with ESP_E_PEER or ESP_E_TIMEOUT");
    if (h.fatal != ESP_E_PEER && h.fatal != ESP_E_TIMEOUT && !h.shrinking)
        return esp__fail(ctx, ESP_E_STATE,
                         "esp_shrink goes on without lost ranks, but this context failed by itself: %s", h.fatal_text);
    if (ctx->job.silent == ctx->job.rank)
        return esp__fail(ctx, ESP_E_PEER,
                         "the other ranks excluded rank %d, which did not answer in time: close this context, and "
                         "start the job again to take part",
                         ctx->job.rank);
    const esp_status s = esp__shrink_possible(ctx, "esp_shrink");
    if (s) return s;
    if (!esp__standby_ready(ctx->job.standby))
        return esp__fail(
            ctx, ESP_E_UNSUPPORTED,
            "esp_shrink: a rank could not listen for the others (no free socket?), so they cannot meet again");
    return ESP_OK;
}

/* ---- the ranks ---- */
ESP__FN void esp__shrink_quiet(esp_ctx *ctx) {
    if (ctx->lanes.threads) esp__executor_close(ctx);
    for (uint32_t k = 1; k < ctx->devices.n; k++)
        if (ctx->devices.open[k].used) esp__device_settle(ctx, k);
    ctx->lanes.stopping = 0;
    memset(ctx->lanes.links, 0, sizeof ctx->lanes.links);
    memset(&ctx->lanes.request, 0, sizeof ctx->lanes.request);
    ctx->lanes.link_busy = ctx->lanes.cpu_busy = ctx->lanes.driving = ctx->lanes.helped = 0;
    esp__comms_traffic(ctx, &ctx->steps.stats);
    esp__arenas_withdraw(ctx, &ctx->active);
    esp__comms_close(ctx);
}

ESP__FN void esp__shrink_healthy(esp_ctx *ctx) {
    esp__health *h = &ctx->health;
    pthread_mutex_lock(&ctx->lanes.lock);
    memset(h, 0, sizeof *h);
    h->left_rank = h->waits_for = -1;
    h->waits_tensor = UINT32_MAX;
    h->shrinking = 1;
    pthread_mutex_unlock(&ctx->lanes.lock);
}

ESP__FN void esp__shrink_end(esp_ctx *ctx, esp_status s) {
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->health.shrinking = s != ESP_OK;
    ctx->steps.clock.next_ns = esp__now_ns();
    pthread_mutex_unlock(&ctx->lanes.lock);
}

static void esp__shrink_adopt(esp_ctx *ctx, const esp__survivors *now) {
    esp__job *j = &ctx->job;
    uint64_t step = 0;
    esp__regroup_adopt(j->standby, j->peers, now);
    j->peers = now->peers;
    j->rank = ctx->base.rank = now->rank;
    j->size = ctx->base.size = now->n;
    j->silent = -1;
    j->sharing = 0;
    for (int32_t r = 0; r < now->n; r++) {
        j->sharing += now->who[r].host == now->who[now->rank].host;
        if (now->who[r].step > step) step = now->who[r].step;
    }
    esp__topology_keep(&j->topo, now->was, now->n, now->rank, j->levels);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) { /* restores pending residuals from before the failed step */
        esp__tensor *t = &ctx->model.tensors[i];
        if (t->pending_added) t->pending_residual = t->pending_before, t->pending_before = NULL;
    }
    esp__step_free(ctx);
    esp__step_reset(ctx);
    esp__outer_restart(ctx);
    ctx->steps.step = step;
    esp__shrink_healthy(ctx);
}

/* ---- the strategy ---- */
static void esp__shrink_warn(const esp_ctx *ctx, const char *instead) {
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "shrink", "the strategy does not fit the %d ranks that go on, so %s: %s",
                 ctx->job.size, instead, esp_last_error(ctx));
}

/* Drops tensors' own options, since they may name levels that the job no longer has. Returns true if there were any. */
static bool esp__shrink_free_options(esp_ctx *ctx) {
    bool any = false;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        any |= t->option_override != NULL;
        esp__free(ctx, t->option_override);
        t->option_override = NULL;
    }
    return any;
}

ESP__FN esp_status esp__shrink_activate(esp_ctx *ctx, const char *text) {
    const char *simple = ctx->model.codec_spec ? "layerwise" : "fp32";
    char *copy = esp__strdup(ctx, text); /* `text` may be the active strategy's, which is freed */
    esp_status s = copy ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    s = esp__activate(ctx, s, copy, false);
    esp__free(ctx, copy);
    for (int again = 0; s && !esp__shrink_lost(s) && s != ESP_E_NOMEM && again < 2; again++) {
        esp__shrink_warn(ctx, "a built-in one replaces it");
        s = esp__activate(ctx, ESP_OK, simple, false);
        if (s && !esp__shrink_lost(s) && strcmp(simple, "fp32") != 0) {
            esp__shrink_warn(ctx, "gradients are not compressed");
            s = esp__activate(ctx, ESP_OK, "fp32", false);
        }
        if (!s || !esp__shrink_free_options(ctx)) break;
    }
    return s;
}

/* If another rank dies while backends connect, that is an error of the backend at first, which does not know why; the
 * watch thread hears of the death a moment later. */
ESP__FN esp_status esp__shrink_connect(esp_ctx *ctx) {
    esp__comm_plan plans[ESP__SCOPES];
    memcpy(plans, ctx->config.plans, sizeof plans);
    esp_status s = esp__comms_open(ctx, plans), lost = ESP_OK;
    const uint64_t until = esp__now_ns() + ESP__SHRINK_HEARS_NS;
    while (s && !esp__shrink_lost(s) && !(lost = esp__alive(ctx)) && esp__now_ns() < until) usleep(5000);
    return lost ? lost : s;
}

ESP__FN esp_status esp__shrink_weights(esp_ctx *ctx) {
    const esp_status s = ctx->steps.weighted ? esp__weights_share(ctx) : ESP_OK;
    return s == ESP_E_STATE ? ESP_OK : s; /* all ranks have weight 0: they contribute zeros */
}

static esp_status esp__shrink_build(esp_ctx *ctx) {
    esp_status s = esp__peers_watch(ctx->job.peers);
    if (!s) s = esp__shrink_connect(ctx);
    if (!s) s = esp__executor_open(ctx);
    /* the autopilot starts again with fp32; a rank that is just joining has no active strategy yet */
    const char *active = ctx->active.strategy.text ? ctx->active.strategy.text : ctx->config.strategy_spec;
    if (!s) s = esp__shrink_activate(ctx, esp__observers_chose(ctx) ? "fp32" : active);
    if (!s) s = esp__agree_ok(ctx, esp__observers_shrunk(ctx));
    if (!s) s = esp__shrink_weights(ctx);
    if (!s) s = esp__outer_shrunk(ctx);
    if (!s) esp__observers_activated(ctx);
    return s;
}

static esp_status esp__shrink_once(esp_ctx *ctx, esp__survivors *now, bool *fewer) {
    const int32_t before = ctx->job.size;
    const esp__survivor mine = {0, 0, ctx->steps.step, esp__env_host()};
    esp__shrink_quiet(ctx);
    esp_status s = esp__regroup(ctx->job.standby, ctx->job.peers, &mine, ctx->job.silent, now);
    if (s) return s;
    *fewer = now->n < before;
    esp__shrink_adopt(ctx, now);
    return esp__shrink_build(ctx);
}

ESPRESSO_API esp_status esp_shrink(esp_ctx *ctx) {
    esp__survivors now;
    char text[ESP__ERROR_MAX];
    esp_status s = esp__usable(ctx);
    if (!s) s = esp__shrink_check(ctx);
    if (s) return s;
    const int32_t before = ctx->job.size;
    const uint64_t start = esp__now_ns();
    memset(&now, 0, sizeof now);
    now.who = esp__alloc(ctx, (uint64_t)before * sizeof *now.who);
    now.was = esp__alloc(ctx, (uint64_t)before * sizeof *now.was);
    bool again = now.who && now.was;
    if (!again) s = esp__fail(ctx, ESP_E_NOMEM, "esp_shrink: out of memory");
    for (bool fewer = true; again; again = s == ESP_E_PEER && fewer) {
        fewer = false;
        s = esp__shrink_once(ctx, &now, &fewer);
    }
    esp__free(ctx, now.who);
    esp__free(ctx, now.was);
    esp__shrink_end(ctx, s);
    if (!s) ctx->steps.stats.ranks_lost += (uint64_t)(before - ctx->job.size);
    if (!s && ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "shrink",
                 "%d of %d ranks go on, after %.1f ms: epoch %u, step %llu, strategy %016llx", ctx->job.size, before,
                 (double)(esp__now_ns() - start) / 1e6, (unsigned)now.epoch, (unsigned long long)ctx->steps.step,
                 (unsigned long long)ctx->active.strategy.hash);
    if (!s) return s;
    snprintf(text, sizeof text, "%s", esp_last_error(ctx));
    esp__fatal(ctx, s, text);
    return esp__fail(ctx, s, "%s", text);
}
