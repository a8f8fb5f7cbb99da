/* try.c: runs a tournament of strategies while training goes on. All ranks change strategies after the same steps. */
#include "planner/auto/autopilot.h"

ESP__FN void esp__auto_texts_free(esp_ctx *ctx, esp__autopilot *a, uint32_t winner) {
    if (winner < ESP__AUTO_CANDIDATES) {
        esp__free(ctx, a->won);
        a->won = a->texts[winner];
        a->won_hash = a->active;
        a->texts[winner] = NULL;
        snprintf(a->won_name, sizeof a->won_name, "%s", a->tournament.at[winner].name);
    }
    for (uint32_t i = 0; i < ESP__AUTO_CANDIDATES; i++) {
        esp__free(ctx, a->texts[i]);
        a->texts[i] = NULL;
    }
}

/* ---- planning is over -------------------------------------------------------------------------------------------- */
static void esp__auto_announce(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    a->mine.done = ctx->job.rank == 0 && esp__auto_plan_done(a);
    a->mine.bytes = 0;
    if (!a->mine.done || !job || *job->failed || !job->n) return;
    a->mine.done = job->n;
    a->mine.bytes = job->n * sizeof *job->candidates;
    for (uint32_t i = 0; i < job->n; i++) a->mine.bytes += strlen(job->of[i].text) + 1;
}

/* Sends rank 0's candidates and their texts to all ranks. */
static esp_status esp__auto_receive(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const uint64_t n = a->all[0].done, heads = n * sizeof *a->tournament.at;
    char *all = esp__alloc(ctx, a->all[0].bytes), *at = all ? all + heads : NULL;
    esp_status s = esp__agree_ok(ctx, all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
    if (!s && ctx->job.rank == 0) memcpy(all, a->job->candidates, heads);
    for (uint64_t i = 0; i < n && !s && ctx->job.rank == 0; i++)
        at = (char *)memcpy(at, a->job->of[i].text, strlen(a->job->of[i].text) + 1) + strlen(a->job->of[i].text) + 1;
    if (!s) s = esp_broadcast(ctx, all, a->all[0].bytes, 0);
    esp_status own = ESP_OK;
    if (!s) memcpy(a->tournament.at, all, heads), at = all + heads;
    for (uint64_t i = 0; i < n && !s; i++, at += strlen(at) + 1)
        if (!(a->texts[i] = esp__strdup(ctx, at))) own = esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    a->tournament.n = (uint32_t)n;
    esp__free(ctx, all);
    return s ? s : esp__agree_ok(ctx, own);
}

/* ---- the tournament ---------------------------------------------------------------------------------------------- */
/* Whether activating failed on all ranks alike, so that training can go on with the active strategy. */
static bool esp__auto_rejected(const esp_ctx *ctx, const char *what, esp_status s) {
    if (!s || ctx->health.fatal || s == ESP_E_PEER || s == ESP_E_TIMEOUT) return false;
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "autopilot", "%s could not be activated: %s", what, esp_last_error(ctx));
    return true;
}

static esp_status esp__auto_end(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__tournament *t = &a->tournament;
    uint32_t winner = esp__tournament_winner(t);
    char text[ESP__ERROR_MAX - 512];
    if (winner < t->n && winner != t->now) {
        const esp_status s = esp__auto_set(ctx, a->texts[winner]);
        if (s && !esp__auto_rejected(ctx, t->at[winner].name, s)) return s;
        if (s) winner = t->now;
    }
    esp__auto_texts_free(ctx, a, winner < t->n ? winner : ESP__AUTO_CANDIDATES);
    if (winner < t->n && ctx->job.rank == 0) {
        esp__tournament_text(t, text, sizeof text);
        esp__auto_say(ctx, "step %llu: %s%s", (unsigned long long)ctx->steps.step, text, a->job->of[winner].effect);
    }
    ctx->steps.predicted_ns = winner < t->n ? t->at[winner].predicted_ns : 0.0;
    esp__auto_settle(ctx, winner < t->n ? t->at[winner].ns : 0.0);
    return ESP_OK;
}

/* Begins the next block of steps. A strategy that cannot be activated leaves the tournament. */
static esp_status esp__auto_next(esp_ctx *ctx) {
    esp__tournament *t = &esp__autopilot_of(ctx)->tournament;
    for (;;) {
        const int next = esp__tournament_next(t);
        if (next < 0) return esp__auto_end(ctx);
        if ((uint32_t)next == t->now) return ESP_OK;
        const esp_status s = esp__auto_set(ctx, esp__autopilot_of(ctx)->texts[next]);
        if (!s) t->now = (uint32_t)next;
        t->at[next].out = esp__auto_rejected(ctx, t->at[next].name, s);
        if (!t->at[next].out) return s;
    }
}

ESP__FN esp_status esp__auto_plan_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (a->phase_steps % a->every) return ESP_OK;
    esp__auto_announce(ctx);
    esp_status s = esp__auto_exchange(ctx);
    a->mine.done = 0;
    if (s || !a->all[0].done) return s;
    if (!a->all[0].bytes) {
        esp__auto_say(ctx, "step %llu: planning failed: %s; %s", (unsigned long long)ctx->steps.step,
                      a->job ? a->job->failed : "out of memory", a->forced ? "back to fp32" : "nothing changes");
        if (a->forced) s = esp__auto_set(ctx, "fp32");
        if (!s) esp__auto_settle(ctx, 0.0);
        return s;
    }
    esp__auto_texts_free(ctx, a, ESP__AUTO_CANDIDATES);
    s = esp__auto_receive(ctx);
    if (esp__auto_rejected(ctx, "a candidate", s)) {
        esp__auto_texts_free(ctx, a, ESP__AUTO_CANDIDATES);
        esp__auto_settle(ctx, 0.0);
        return ESP_OK;
    }
    if (s) return s;
    esp__auto_loss_before(ctx);
    esp__tournament_begin(&a->tournament, a->forced ? a->tournament.n : 0, a->opt.min_gain, a->tournament.at[0].spread);
    esp__auto_enter(ctx, ESP__AUTO_TRY);
    return esp__auto_next(ctx);
}

ESP__FN esp_status esp__auto_try_step(esp_ctx *ctx, double ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    bool back = false;
    uint64_t total = 0;
    a->mine.total_ns += (uint64_t)ns;
    if (!esp__tournament_step(&a->tournament, ns)) return ESP_OK;
    esp_status s = esp__auto_exchange(ctx);
    if (!s) s = esp__auto_loss_try(ctx, &back);
    if (s || back) return s;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (a->all[r].total_ns > total) total = a->all[r].total_ns;
    esp__tournament_block(&a->tournament, a->step_ns, a->spread_ns, (double)(total + a->spent_ns));
    a->mine.total_ns = a->spent_ns = 0;
    return esp__auto_next(ctx);
}
