/* waits.c: finds out what this rank waits for, and when a wait becomes an error. It may be another rank, or this
 * rank's own program, which has not called esp_push for the next tensor. */
#include "espresso_impl/executor/executor.h"

enum { ESP__BEHIND_LOOK_MS = 100, ESP__LONG_AFTER_MS = 20, ESP__UNPUSHED_AFTER_MS = 2000, ESP__LEFT_MS = 1000 };

static const esp__tensor *esp__unit_lacks(const esp_ctx *ctx, const esp__unit *u) {
    for (uint32_t k = u->place.first; k < u->place.first + u->place.n; k++)
        if (ctx->model.tensors[k].phase == ESP__IDLE) return &ctx->model.tensors[k];
    return NULL;
}

/* Warns if the program waits, but has not pushed a tensor that comes next in the strategy's order. If `over` (the
 * timeout), fails the context. The caller holds the lock. */
static void esp__unpushed_look(esp_ctx *ctx, uint64_t waited_ns, bool over) {
    const esp__tensor *unpushed = NULL;
    char text[ESP__ERROR_MAX];
    for (int k = 0; k < (int)ctx->job.topo.n_levels; k++) {
        const esp__op *op = esp__link_head(ctx, k);
        const esp__tensor *t = op ? esp__unit_lacks(ctx, &ctx->active.strategy.units[op->unit]) : NULL;
        if (t) unpushed = t;
    }
    if (!unpushed || (!over && (ctx->health.said_unpushed || waited_ns < ESP__UNPUSHED_AFTER_MS * 1000000ull))) return;
    snprintf(text, sizeof text,
             "waiting for %u ms, but this rank has not pushed tensor '%.200s', whose turn it is in the strategy's "
             "order: push every tensor of a step (or call esp_step_end) before waiting for one",
             (unsigned)(waited_ns / 1000000u), unpushed->name);
    ctx->health.said_unpushed = true;
    if (over)
        esp__fatal_locked(ctx, ESP_E_TIMEOUT, text);
    else
        esp__log(ctx, ESP_LOG_WARN, "executor", "%s", text);
}

/* Notes that a rank has left. This becomes an error only if this rank waits for it. */
ESP__FN void esp__waits_left(esp_ctx *ctx, int32_t rank, int left) {
    pthread_mutex_lock(&ctx->lanes.lock);
    if (ctx->health.left_rank < 0 || left < 0) {
        ctx->health.left_rank = rank;
        ctx->health.left_after = left < 0 ? left : ESP_OK;
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
}

ESP__FN esp_status esp__waits_left_error(const esp_ctx *ctx, char *text, size_t cap) {
    const esp_status after = ctx->health.left_after;
    if (after == ESP_E_MISMATCH)
        snprintf(text, cap,
                 "rank %d left, as it ran other calls than its peers: see its own error: all ranks must make the same "
                 "calls in the same order",
                 ctx->health.left_rank);
    else
        snprintf(text, cap, "rank %d left (it closed its context%s%s) while this rank waits for it",
                 ctx->health.left_rank, after ? " after an error: " : "", after ? esp_status_text(after) : "");
    return after == ESP_E_MISMATCH ? after : ESP_E_PEER;
}

/* After a rank has left, its last data may still be on the way. True if none has arrived for a second. Lock not
 * held. */
static bool esp__nothing_comes(esp_ctx *ctx, uint64_t since, uint64_t now) {
    esp_stats s;
    memset(&s, 0, sizeof s);
    esp__comms_traffic(ctx, &s);
    const uint64_t bytes = s.intra_bytes + s.inter_bytes;
    if (bytes != ctx->health.got_bytes || !ctx->health.got_ns) ctx->health.got_ns = now;
    ctx->health.got_bytes = bytes;
    return now - since > ESP__LEFT_MS * 1000000ull && now - ctx->health.got_ns > ESP__LEFT_MS * 1000000ull;
}

/* Returns when the program began to wait, or 0 if it does not wait. The caller holds the lock. */
static uint64_t esp__waits_since(const esp_ctx *ctx) {
    return ctx->lanes.waiters ? ctx->lanes.wait_since_ns : ctx->lanes.stream_since_ns;
}

/* Looks every 100 ms for an unfinished collective on a device, which may wait for another rank. The caller holds the
 * lock. */
static void esp__behind_look(esp_ctx *ctx, uint64_t now) {
    esp__health *h = &ctx->health;
    const uint64_t since = esp__waits_since(ctx), pause = ESP__BEHIND_LOOK_MS * 1000000ull;
    if (!since) h->behind = false;
    if (!since || now < since + pause || now < h->behind_look_ns + pause) return;
    const esp__op *op = esp__collective_behind(&ctx->active, 0, ctx->active.strategy.n_units);
    h->behind_look_ns = now;
    if (op) {
        const uint32_t at = (uint32_t)(op - ctx->active.program.ops);
        const esp__topology *topo = &ctx->job.topo;
        if (!h->behind || at != h->behind_op || h->behind_ns < since) h->behind_ns = now;
        h->behind_op = at;
        h->behind_tensor = ctx->active.strategy.units[op->unit].place.first;
        h->behind_rank =
            esp__group_size(topo, op->collective.scope) == 2
                ? esp__group_rank(ctx, op->collective.scope, 1 - esp__group_index(topo, op->collective.scope))
                : -1;
    }
    h->behind = op != NULL;
}

/* Returns the oldest collective that has been in flight for long. */
static esp__wait esp__oldest_request(esp_ctx *ctx, uint64_t now) {
    esp__wait o = {.since = UINT64_MAX, .rank = -1, .tensor = UINT32_MAX};
    for (int k = 0, n = (int)ctx->job.topo.n_levels; k <= n; k++) {
        void *req = k < n ? ctx->lanes.links[k].req : ctx->lanes.request.req;
        const uint64_t since = k < n ? ctx->lanes.links[k].started_ns : ctx->lanes.request.started_ns;
        if (!req || now - since < ESP__LONG_AFTER_MS * 1000000ull || since >= o.since) continue;
        const esp__op *op = k < n ? esp__link_head(ctx, k) : NULL;
        const uint8_t level = op ? op->collective.scope : ctx->lanes.request.level;
        const esp__comm *comm = &ctx->job.comms[level];
        o.since = since;
        o.tensor = op ? ctx->active.strategy.units[op->unit].place.first : UINT32_MAX;
        o.delivers = (comm->backend->caps & ESP_BACKEND_DELIVERS) != 0;
        if (ESP_HAS(esp_backend, comm->backend, straggler))
            o.rank = esp__group_rank(ctx, level, comm->backend->straggler(comm->handle, req));
    }
    return o;
}

ESP__FN esp__wait esp__waits_look(esp_ctx *ctx, uint64_t now) {
    esp__health *h = &ctx->health;
    esp__wait o = esp__oldest_request(ctx, now);
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__behind_look(ctx, now);
    if ((o.since == UINT64_MAX || !ctx->lanes.waiters) && h->behind)
        o = (esp__wait){h->behind_ns, h->behind_rank, h->behind_tensor, o.delivers, false, false};
    o.behind = h->behind;
    o.left = h->left_rank >= 0 && o.since != UINT64_MAX;
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (o.left && o.rank >= 0) o.left = esp__peers_left(ctx->job.peers, o.rank);
    if (o.left && (o.rank < 0 || !o.delivers)) o.left = esp__nothing_comes(ctx, o.since, now);
    return o;
}

ESP__FN void esp__waits_judge(esp_ctx *ctx, uint64_t now, const esp__wait *w) {
    esp__health *h = &ctx->health;
    const bool waiting = w->since != UINT64_MAX;
    pthread_mutex_lock(&ctx->lanes.lock);
    const bool waits = ctx->lanes.waiters || w->behind;
    h->waiting = waiting;
    h->waits_for = w->rank;
    h->waits_tensor = w->tensor;
    uint64_t since = esp__waits_since(ctx);
    if (waiting && w->since > since) since = w->since;
    const uint64_t waited_ns = waits && now > since ? now - since : 0, most_ns = ctx->config.timeout_ms * 1000000ull;
    const bool soon = waited_ns > most_ns - esp__peers_lead_ms(ctx->config.timeout_ms) * 1000000ull && waiting;
    const bool check = soon && !h->checked, over = waited_ns > most_ns && !h->suspected;
    h->checked = soon;
    if (over && waiting) h->suspected = true;
    if (ctx->lanes.waiters && !waiting) esp__unpushed_look(ctx, now - since, over);
    if (w->left) {
        char text[ESP__ERROR_MAX];
        esp__fatal_locked(ctx, esp__waits_left_error(ctx, text, sizeof text), text);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (check) esp__peers_check(ctx->job.peers);
    if (over && waiting) esp__peers_suspect(ctx->job.peers, w->rank, w->tensor);
}

ESP__FN void esp__waits_answer(void *user, esp__answer *out) {
    esp_ctx *ctx = user;
    pthread_mutex_lock(&ctx->lanes.lock);
    const esp__model *m = &ctx->model;
    if (ctx->health.waiting) out->waits_for = ctx->health.waits_for, out->tensor = ctx->health.waits_tensor;
    /* the rank that left is to blame, not this one, which others wait for */
    if (ctx->health.fatal == ESP_E_PEER && ctx->health.left_rank >= 0) out->waits_for = ctx->health.left_rank;
    out->started = ctx->started && !ctx->health.fatal;
    out->step = ctx->steps.step;
    out->open = ctx->steps.open != 0;
    if (ctx->lanes.waiters) out->waited_ns = esp__now_ns() - ctx->lanes.wait_since_ns;
    if (ctx->lanes.waiters) out->trainer = ctx->steps.open ? ESP__TRAINER_IN_STEP : ESP__TRAINER_IN_CALL;
    if (ctx->started) out->n_tensors = m->n_tensors;
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        if (m->tensors[i].phase != ESP__IDLE) continue;
        if (out->n_missing < ESP__ANSWER_NAMES) out->missing[out->n_missing] = i;
        out->n_missing++;
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
}
