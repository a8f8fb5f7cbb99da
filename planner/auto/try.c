/* try.c: runs a tournament of strategies while training goes on. All ranks change strategies after the same steps. */
#include "planner/auto/autopilot.h"

/* Frees the texts of all candidates, except the winner's, which is active. */
ESP__FN void esp__auto_texts_free(esp_ctx *ctx, esp__autopilot *a, uint32_t winner) {
    if (winner < ESP__AUTO_CANDIDATES) {
        esp__strfree(ctx, a->won);
        a->won = a->texts[winner];
        a->won_hash = a->active;
        a->texts[winner] = NULL;
        snprintf(a->won_name, sizeof a->won_name, "%s", a->tournament.at[winner].name);
    }
    for (uint32_t i = 0; i < ESP__AUTO_CANDIDATES; i++) {
        esp__strfree(ctx, a->texts[i]);
        a->texts[i] = NULL;
    }
}

/* ---- planning is over -------------------------------------------------------------------------------------------- */
/* On rank 0, sets in the word whether planning is over and how many bytes the candidates take. */
static void esp__auto_announce(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    a->mine.done = ctx->job.rank == 0 && esp__auto_plan_done(a);
    a->mine.bytes = 0;
    if (!a->mine.done || !job || *job->failed || !job->n) return;
    a->mine.done = job->n;
    a->mine.bytes = job->n * sizeof *job->candidates;
    for (uint32_t i = 0; i < job->n; i++) a->mine.bytes += strlen(job->of[i].text) + 1;
    esp__log(ctx, ESP_LOG_INFO, "autopilot",
             "planning took %.1f ms; of the step's %.3f ms, measured costs explain %.3f ms", job->plan_ns / 1e6,
             job->base_ns / 1e6, job->explained_ns / 1e6);
}

/* Sends rank 0's candidates to all ranks. */
static esp_status esp__auto_receive(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const uint64_t bytes = a->all[0].bytes, each = sizeof *a->tournament.at;
    const uint32_t n = a->all[0].done;
    char *all = esp__alloc(ctx, bytes), *at = all ? all + n * each : NULL;
    esp_status s = esp__agree_ok(ctx, all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
    for (uint32_t i = 0; i < n && !s && ctx->job.rank == 0; i++) {
        const size_t length = strlen(a->job->of[i].text) + 1;
        memcpy(all + i * each, &a->job->candidates[i], each);
        memcpy(at, a->job->of[i].text, length);
        at += length;
    }
    if (!s) s = esp_broadcast(ctx, all, bytes, 0);
    at = all ? all + n * each : NULL;
    int missing = 0;
    for (uint32_t i = 0; i < n && !s; i++) {
        memcpy(&a->tournament.at[i], all + i * each, each);
        a->texts[i] = esp__strdup(ctx, at);
        missing |= !a->texts[i];
        at += strlen(at) + 1;
    }
    if (!s) s = esp__agree_ok(ctx, missing ? esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory") : ESP_OK);
    a->tournament.n = s ? 0 : n;
    esp__free(ctx, all);
    return s;
}

/* ---- the tournament ---------------------------------------------------------------------------------------------- */
/* On rank 0, logs what was tried and why the winner won. */
static void esp__auto_say_winner(esp_ctx *ctx, uint32_t winner) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    char text[ESP__ERROR_MAX - 512];
    if (ctx->job.rank) return;
    esp__tournament_text(&a->tournament, text, sizeof text);
    esp__auto_say(ctx, "step %llu: %s%s", (unsigned long long)ctx->steps.step, text, a->job->of[winner].effect);
}

/* Whether the strategy could not be activated, but training can go on: no rank has activated it. */
static bool esp__auto_rejected(const esp_ctx *ctx, const esp__auto_candidate *c, esp_status s) {
    if (!s || ctx->health.fatal || s == ESP_E_PEER || s == ESP_E_TIMEOUT) return false;
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "autopilot", "%s could not be activated: %s", c->name, esp_last_error(ctx));
    return true;
}

static esp_status esp__auto_end(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__tournament *t = &a->tournament;
    uint32_t winner = esp__tournament_winner(t);
    if (winner < t->n && winner != t->now) {
        const esp_status s = esp__auto_set(ctx, a->texts[winner]);
        if (s && !esp__auto_rejected(ctx, &t->at[winner], s)) return s;
        if (s) winner = t->now;
    }
    esp__auto_texts_free(ctx, a, winner);
    if (winner < t->n) {
        esp__auto_say_winner(ctx, winner);
        ctx->steps.predicted_ns = t->at[winner].predicted_ns;
    }
    a->winner = winner;
    esp__auto_settle(ctx, winner < t->n ? t->at[winner].ns : a->base_ns);
    return ESP_OK;
}

/* Begins the next block of steps. A strategy that no rank can activate leaves the tournament. */
static esp_status esp__auto_next(esp_ctx *ctx) {
    esp__tournament *t = &esp__autopilot_of(ctx)->tournament;
    for (;;) {
        const int next = esp__tournament_next(t);
        if (next < 0) return esp__auto_end(ctx);
        if ((uint32_t)next == t->now) return ESP_OK;
        const esp_status s = esp__auto_set(ctx, esp__autopilot_of(ctx)->texts[next]);
        if (!s) t->now = (uint32_t)next;
        t->at[next].out = esp__auto_rejected(ctx, &t->at[next], s);
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
        if (ctx->job.rank == 0)
            esp__auto_say(ctx, "step %llu: planning failed: %s; %s", (unsigned long long)ctx->steps.step,
                          a->job ? a->job->failed : "out of memory", a->forced ? "back to fp32" : "nothing changes");
        if (a->forced) s = esp__auto_set(ctx, "fp32");
        if (!s) esp__auto_settle(ctx, a->base_ns);
        return s;
    }
    esp__auto_texts_free(ctx, a, ESP__AUTO_CANDIDATES);
    s = esp__auto_receive(ctx);
    if (s) return s;
    esp__auto_loss_before(ctx);
    const double noise = a->base_ns > 0.0 ? esp__auto_spread(ctx) / a->base_ns : 0.0;
    a->tournament.now = a->forced ? ESP__AUTO_CANDIDATES : 0;
    esp__tournament_begin(&a->tournament, a->opt.min_gain, noise);
    esp__auto_enter(ctx, ESP__AUTO_TRY);
    a->spent_ns = 0;
    return esp__auto_next(ctx);
}

ESP__FN esp_status esp__auto_try_step(esp_ctx *ctx, double ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    int back;
    a->mine.total_ns += (uint64_t)ns;
    if (!esp__tournament_step(&a->tournament, ns)) return ESP_OK;
    esp_status s = esp__auto_exchange(ctx);
    a->mine.total_ns = 0;
    if (!s) s = esp__auto_loss_try(ctx, &back);
    if (s || back) return s;
    uint64_t total = 0;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (a->all[r].total_ns > total) total = a->all[r].total_ns;
    esp__tournament_block(&a->tournament, esp__auto_step_ns(ctx), esp__auto_spread(ctx), (double)(total + a->spent_ns));
    a->spent_ns = 0;
    return esp__auto_next(ctx);
}
