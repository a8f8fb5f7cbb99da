/* try.c: runs a tournament of strategies while training goes on. All ranks change strategies after the same steps. */
#include "planner/auto/autopilot.h"

ESP__FN void esp__auto_forget(esp_ctx *ctx, esp__autopilot *a) {
    for (int i = 0; i < 2; i++) esp__free(ctx, a->received[i]);
    memset(a->received, 0, sizeof a->received);
    memset(&a->tournament, 0, sizeof a->tournament);
}

/* ---- candidates arrive ------------------------------------------------------------------------------------------- */
ESP__FN void esp__auto_announce(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    a->mine.done = ctx->job.rank == 0 && esp__auto_plan_done(a);
    a->mine.bytes = 0;
    if (!a->mine.done || !job || *job->failed) return;
    a->mine.candidates = job->n;
    a->mine.bytes = job->n * sizeof *job->candidates;
    for (uint32_t i = job->n_sent; i < job->n; i++) a->mine.bytes += strlen(job->of[i].text) + 1;
}

/* Sends rank 0's candidates, and the texts of the new ones, to all ranks. Those that have not run get new
 * predictions. */
static esp_status esp__auto_receive(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__tournament *t = &a->tournament;
    esp__auto_job *job = a->job;
    const uint32_t n = a->all[0].candidates;
    esp__auto_candidate *all = a->received[t->n > 0] = esp__alloc(ctx, a->all[0].bytes);
    esp_status s = esp__agree_ok(ctx, all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
    if (s) return s;
    char *text = (char *)(all + n);
    if (ctx->job.rank == 0) {
        memcpy(all, job->candidates, n * sizeof *all);
        for (char *to = text; job->n_sent < n; job->n_sent++) to = stpcpy(to, job->of[job->n_sent].text) + 1;
    }
    if ((s = esp_broadcast(ctx, all, a->all[0].bytes, 0)) != ESP_OK) return s;
    for (uint32_t i = 0; i < t->n; i++)
        if (!t->at[i].n) t->at[i].predicted_ns = all[i].predicted_ns;
    for (; t->n < n; text += strlen(text) + 1) {
        a->texts[t->n] = text;
        t->at[t->n] = all[t->n];
        t->n++;
    }
    return ESP_OK;
}

/* ---- the tournament ---------------------------------------------------------------------------------------------- */
/* Whether a step of the tournament failed on all ranks alike, so that training can go on with the active strategy. */
static bool esp__auto_rejected(const esp_ctx *ctx, const char *what, esp_status s) {
    if (!s || ctx->health.fatal || s == ESP_E_PEER || s == ESP_E_TIMEOUT) return false;
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "autopilot", "%s could not be activated: %s", what, esp_last_error(ctx));
    return true;
}

/* Activates a candidate, unless it is active. A strategy that cannot be activated leaves the tournament. */
static esp_status esp__auto_activate(esp_ctx *ctx, uint32_t i) {
    esp__tournament *t = &esp__autopilot_of(ctx)->tournament;
    if (i == t->now) return ESP_OK;
    const esp_status s = esp__auto_set(ctx, esp__autopilot_of(ctx)->texts[i]);
    t->at[i].out = esp__auto_rejected(ctx, t->at[i].name, s);
    if (!s) t->now = i;
    return t->at[i].out ? ESP_OK : s;
}

/* Ends the tournament with the candidate that is active now, which is its winner unless all are out. */
static void esp__auto_end(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__tournament *t = &a->tournament;
    const esp__auto_candidate *winner = t->now < t->n && t->at[t->now].n ? &t->at[t->now] : NULL;
    esp__text text = {.ctx = ctx};
    if (winner && ctx->job.rank == 0) {
        esp__tournament_text(t, &text);
        if (text.data)
            esp__auto_say(ctx, "step %llu: %s%s", (unsigned long long)ctx->steps.step, text.data,
                          a->job->of[t->now].effect);
        esp__text_free(&text);
    }
    ctx->steps.predicted_ns = winner ? winner->predicted_ns : 0.0;
    esp__auto_settle(ctx, winner ? winner->ns : 0.0);
}

/* Begins the next block of steps, or planning, or ends the tournament. */
static esp_status esp__auto_next(esp_ctx *ctx) {
    esp__tournament *t = &esp__autopilot_of(ctx)->tournament;
    for (;;) {
        const int next = esp__tournament_next(t);
        const uint32_t i = next < 0 ? esp__tournament_winner(t) : (uint32_t)next;
        const esp_status s = i < t->n ? esp__auto_activate(ctx, i) : ESP_OK;
        if (s) return s;
        if (i < t->n && i != t->now) continue; /* it left */
        if (next < 0 && t->more) return esp__auto_plan_begin(ctx);
        if (next < 0) esp__auto_end(ctx);
        return ESP_OK;
    }
}

ESP__FN esp_status esp__auto_announced(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const bool first = a->phase != ESP__AUTO_PLAN;
    if (!a->all[0].done) return ESP_OK;
    a->mine.done = 0;
    esp_status s = a->all[0].bytes ? esp__auto_receive(ctx) : ESP_OK;
    if (!a->all[0].bytes)
        esp__auto_say(ctx, "step %llu: planning failed: %s; %s", (unsigned long long)ctx->steps.step,
                      a->job ? a->job->failed : "out of memory",
                      !first      ? "only simple strategies were tried"
                      : a->forced ? "back to fp32"
                                  : "nothing changes");
    else if (s && !esp__auto_rejected(ctx, "a candidate", s))
        return s;
    if (first && (s || !a->all[0].bytes)) {
        esp__auto_forget(ctx, a);
        s = a->forced ? esp__auto_set(ctx, "fp32") : ESP_OK;
        if (!s) esp__auto_settle(ctx, 0.0);
        return s;
    }
    if (first) esp__auto_loss_before(ctx);
    a->tournament.more = first;
    esp__auto_enter(ctx, ESP__AUTO_TRY);
    return esp__auto_next(ctx);
}

ESP__FN esp_status esp__auto_tried_block(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t total = 0;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (a->all[r].total_ns > total) total = a->all[r].total_ns;
    esp__tournament_block(&a->tournament, a->step_ns, a->spread_ns, (double)(total + a->last_spent_ns));
    a->mine.total_ns = 0;
    const esp_status s = a->calibrating ? esp__auto_calibrate(ctx) : ESP_OK;
    return s ? s : esp__auto_next(ctx);
}
