/* phases.c: the phases of strategy auto, and how one follows another after a block of steps. All ranks decide by the
 * same numbers, and change phases and strategies after the same steps. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/context/context.h"
#include <math.h>

/* ---- what the phases share --------------------------------------------------------------------------------------- */
ESP__FN void esp__auto_enter(esp_ctx *ctx, int phase) {
    static const char *const words[] = {"measuring", "merging", "trying", "watching", "done", "off"};
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->phase = phase;
    a->phase_steps = a->times.n = 0;
    a->left = 1;
    if (phase > ESP__AUTO_TRY) esp__auto_measure_end(ctx);
    a->steps_ns = a->waiting_ns = 0;
    ctx->steps.phase = phase == ESP__AUTO_WATCH && a->active == a->fp32 ? "watching (stays with fp32)" : words[phase];
}

ESP__FN void esp__auto_forget(esp_ctx *ctx, esp__autopilot *a) {
    esp__free(ctx, a->received);
    a->received = NULL;
    memset(&a->tournament, 0, sizeof a->tournament);
}

/* Activates a strategy and stores its hash. If another hash is active later, the program has set a strategy. */
static esp_status esp__auto_set(esp_ctx *ctx, const char *text) {
    const esp_status s = esp_strategy_set(ctx, text);
    ctx->steps.predicted_ns = 0.0;
    esp__autopilot_of(ctx)->active = ctx->active.strategy.hash;
    return s;
}

/* Watches until the next check of step times, after opt.window / 2 training steps, or after a quarter of a second if
 * that is later. */
static void esp__auto_watch(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double steps = a->source.step_ns ? 0.0 : fmin(250e6 / fmax(a->step_ns, 1.0), 1024.0);
    esp__auto_enter(ctx, ESP__AUTO_WATCH);
    a->left = (uint32_t)fmax(0.5 * a->opt.window, steps);
    a->checks = (uint32_t)fmax(ceil(a->opt.window / a->left), 2.0);
}

ESP__FN void esp__auto_settle(esp_ctx *ctx, double reference_ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->reference_ns = reference_ns;
    a->settled_step = ctx->steps.step;
    a->over = a->under = a->risen = 0;
    a->forced = false;
    esp__auto_loss_forget(ctx);
    if (ctx->outer) {
        esp__outer_try_end(ctx);
        esp__auto_enter(ctx, ESP__AUTO_DONE);
    } else {
        esp__auto_watch(ctx);
    }
}

/* Returns whether fp32 is active and no other strategy can be faster by min_gain: others can only save time after the
 * last push of a step, and on some rank that time is too short. */
static bool esp__auto_hidden(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    return ctx->active.strategy.hash == a->fp32 && (1.0 + a->opt.min_gain) * (1.0 - a->waiting) > 1.0;
}

ESP__FN void esp__auto_measure(esp_ctx *ctx, bool again) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__auto_job_free(ctx, a->job); /* the calibration changes */
    a->job = NULL;
    esp__auto_measure_begin(ctx, again);
    esp__auto_enter(ctx, ESP__AUTO_MEASURE);
}

/* Activates fp32 at once and measures it. */
static esp_status esp__auto_measure_fp32(esp_ctx *ctx, bool again) {
    esp__autopilot_of(ctx)->forced = false;
    esp__auto_forget(ctx, esp__autopilot_of(ctx));
    const esp_status s = esp__auto_set(ctx, "fp32");
    if (!s) esp__auto_measure(ctx, again);
    return s;
}

/* ---- candidates arrive ------------------------------------------------------------------------------------------- */
/* Whether a step of the tournament failed on all ranks alike, so that training can go on with the active strategy. */
static bool esp__auto_rejected(const esp_ctx *ctx, const char *what, esp_status s) {
    if (!s || ctx->health.fatal || s == ESP_E_PEER || s == ESP_E_TIMEOUT) return false;
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "autopilot", "%s could not be activated: %s", what, esp_last_error(ctx));
    return true;
}

/* Sends rank 0's candidates to all ranks, or to none if a rank has no memory. Those that have not run get new
 * predictions. */
static esp_status esp__auto_send(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__tournament *t = &a->tournament;
    const uint32_t n = a->all[0].candidates;
    esp__auto_candidate *all = esp__alloc(ctx, a->all[0].bytes);
    esp_status s = esp__agree_ok(ctx, all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
    if (s) {
        esp__free(ctx, all);
        return esp__auto_rejected(ctx, "a candidate", s) ? ESP_OK : s;
    }
    char *text = (char *)(all + n);
    for (uint32_t i = 0; i < n && ctx->job.rank == 0; i++) {
        all[i] = a->job->candidates[i];
        text = stpcpy(text, a->job->of[i].text) + 1;
    }
    s = esp_broadcast(ctx, all, a->all[0].bytes, 0); /* may fail on this rank only, which then must leave */
    esp__free(ctx, s ? all : a->received);
    if (s) return s;
    a->received = all;
    text = (char *)(all + n);
    for (uint32_t i = 0; i < n; i++, text += strlen(text) + 1) {
        a->texts[i] = text;
        if (i >= t->n)
            t->at[i] = all[i];
        else if (!(t->at[i].ns > 0.0))
            t->at[i].predicted_ns = all[i].predicted_ns;
    }
    t->n = n;
    return ESP_OK;
}

/* Adds rank 0's new candidates to the tournament of all ranks. If it could make none, logs why. */
static esp_status esp__auto_receive(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    a->mine.bytes = 0;
    if (job && !*job->failed) {
        a->mine.candidates = job->n;
        a->mine.bytes = job->n * sizeof *job->candidates;
        for (uint32_t i = 0; i < job->n; i++) a->mine.bytes += strlen(job->of[i].text) + 1;
    }
    esp_status s = esp__auto_exchange(ctx);
    if (s) return s;
    if (a->all[0].bytes) return esp__auto_send(ctx);
    esp__auto_say(ctx, "step %llu: planning failed: %s; %s", (unsigned long long)ctx->steps.step,
                  job ? job->failed : "out of memory",
                  a->tournament.n ? "only simple strategies were tried"
                  : a->forced     ? "back to fp32"
                                  : "nothing changes");
    return ESP_OK;
}

/* Rank 0 makes the candidates that need no search, and all ranks receive them. Steps of the active strategy took `ns`,
 * or 0 if none was measured. */
static esp_status esp__auto_propose(esp_ctx *ctx, double ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__auto_job_free(ctx, a->job);
    a->job = esp__auto_job_open(ctx, ns);
    esp__auto_forget(ctx, a);
    a->merge = (esp__grouping){.codec = NULL};
    a->tournament.now = a->forced ? ESP__AUTO_CANDIDATES : 0;
    a->tournament.least_gain = a->opt.min_gain;
    a->tournament.inner = ctx->outer ? ctx->outer->low[0] : 0;
    return esp__auto_receive(ctx);
}

/* ---- the tournament ---------------------------------------------------------------------------------------------- */
/* Activates a candidate, unless it is active. A strategy that cannot be activated leaves the tournament. */
static esp_status esp__auto_activate(esp_ctx *ctx, uint32_t i) {
    esp__tournament *t = &esp__autopilot_of(ctx)->tournament;
    if (i == t->now) return ESP_OK;
    const esp_status s = esp__auto_set(ctx, esp__autopilot_of(ctx)->texts[i]);
    if (!s) t->now = i;
    if (!esp__auto_rejected(ctx, t->at[i].name, s)) return s;
    t->at[i].out = true;
    t->at[i].ns = 0.0;
    memset(t->at[i].steps, 0, sizeof t->at[i].steps);
    return ESP_OK;
}

/* Ends the tournament with the candidate that is active now, which is its winner unless all are out. */
static void esp__auto_end(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__tournament *t = &a->tournament;
    const esp__auto_candidate *winner = t->now < t->n && t->at[t->now].ns > 0.0 ? &t->at[t->now] : NULL;
    esp__text text = {.ctx = ctx};
    if (winner && ctx->job.rank == 0) {
        esp__tournament_text(t, &text);
        if (text.data)
            esp__auto_say(ctx, "%s %llu: %s%s", ctx->outer ? "round" : "step", (unsigned long long)ctx->steps.step,
                          text.data, a->job->of[t->now].effect);
        esp__text_free(&text);
    }
    ctx->steps.predicted_ns = winner ? winner->predicted_ns : 0.0;
    esp__auto_settle(ctx, winner ? winner->ns : 0.0);
}

/* Rank 0 plans, with all that was measured while the simple candidates ran, and all ranks receive the plans. */
static esp_status esp__auto_plan(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->tournament.more = false;
    const esp_status s = esp__auto_calibrated(ctx);
    if (s) return s;
    esp__auto_measure_end(ctx);
    if (a->job) esp__auto_job_plan(a->job);
    return esp__auto_receive(ctx);
}

/* Returns the codec of which groups must be tried: that of the fastest layerwise candidate; else NULL. */
static const char *esp__grouping_codec(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__tournament *t = &a->tournament;
    const char *codec = NULL;
    double least = INFINITY;
    for (const esp__auto_candidate *c = t->at; a->opt.merge > 0.0 && c < t->at + t->n; c++) {
        const double cost = (c->ns > 0.0 ? c->ns : c->predicted_ns) * c->slower;
        if (!strncmp(c->name, "layerwise ", 10) && cost < least) least = cost, codec = c->name + 10;
    }
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        if (a->tensors[i].level) return NULL; /* groups have one codec, and this tensor needs a gentler one */
    return codec;
}

/* Activates the groups to try next, or those that were the fastest, with which the tournament goes on. */
static esp_status esp__auto_merge(esp_ctx *ctx, bool more) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    char text[ESP__SPEC_MAX + 128];
    esp__grouping_text(more ? &a->merge.trial : &a->merge.fastest, a->merge.codec, text, sizeof text);
    a->tournament.now = ESP__AUTO_CANDIDATES; /* none of them is active */
    esp_status s = esp__auto_set(ctx, text);
    const bool rejected = esp__auto_rejected(ctx, text, s);
    if (rejected) a->merge.fastest.n = 0, s = ESP_OK;
    esp__auto_enter(ctx, more && !rejected ? ESP__AUTO_MERGE : ESP__AUTO_TRY);
    a->left = ESP__GROUPING_BLOCK;
    return s;
}

/* Begins the next block of steps, or ends the tournament. */
static esp_status esp__auto_next(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__tournament *t = &a->tournament;
    for (;;) {
        const int next = esp__tournament_next(t);
        const uint32_t i = next < 0 ? esp__tournament_winner(t) : (uint32_t)next;
        const bool plan = next < 0 && t->more;
        if (plan && !a->merge.codec && (a->merge.codec = esp__grouping_codec(ctx)) != NULL) {
            esp__grouping_begin(ctx, &a->merge, (uint32_t)a->opt.merge, a->opt.merge_gain);
            const esp_status s = esp__auto_merge(ctx, true);
            if (s || a->phase == ESP__AUTO_MERGE) return s;
            continue;
        }
        const esp_status s = plan ? esp__auto_plan(ctx) : i < t->n ? esp__auto_activate(ctx, i) : ESP_OK;
        if (s) return s;
        if (plan || (i < t->n && i != t->now)) continue; /* candidates came, or this one left */
        if (next < 0) esp__auto_end(ctx);
        return ESP_OK;
    }
}

static esp_status esp__auto_try(esp_ctx *ctx, double ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (!a->forced && esp__auto_hidden(ctx)) {
        esp__auto_say(ctx,
                      "step %llu: fp32 stays, nothing was tried: of the step's %.3f ms, ranks wait for communication "
                      "%.1f%%",
                      (unsigned long long)ctx->steps.step, ns / 1e6, 100.0 * a->waiting);
        esp__auto_settle(ctx, ns);
        return ESP_OK;
    }
    esp_status s = esp__auto_propose(ctx, ns);
    if (s) return s;
    if (!a->tournament.n) {
        s = a->forced ? esp__auto_set(ctx, "fp32") : ESP_OK;
        esp__auto_forget(ctx, a);
        if (!s) esp__auto_settle(ctx, 0.0);
        return s;
    }
    esp__auto_loss_before(ctx);
    a->tournament.more = true;
    esp__auto_enter(ctx, ESP__AUTO_TRY);
    return esp__auto_next(ctx);
}

/* ---- after a block of steps -------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__auto_first(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp_status s = esp__auto_propose(ctx, 0.0);
    const uint32_t first = s ? 0 : esp__tournament_first(&a->tournament);
    if (!first) return s;
    s = esp__activate(ctx, ESP_OK, a->texts[first], false); /* other observers have not begun */
    if (!s) a->tournament.now = first;
    a->active = ctx->active.strategy.hash;
    return esp__auto_rejected(ctx, a->tournament.at[first].name, s) ? ESP_OK : s;
}

/* Ranks try other strategies after opt.steps steps, or earlier if those cost too much. The first step fills caches and
 * pages, so it is not measured unless it alone costs too much. */
static esp_status esp__auto_measured_block(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__tournament *t = &a->tournament;
    bool enough = a->times.n >= a->opt.steps || esp__measured_enough(a->phase_steps, a->waiting);
    const bool first = t->now && t->now < t->n && !t->steps; /* of all, and not under fp32 */
    if (first) {
        const double computing = (1.0 - a->waiting) * a->step_ns, fp32 = t->at[0].predicted_ns;
        enough = esp__measured_enough(1, fp32 / (fp32 + computing));
        if (!enough) return esp__auto_measure_fp32(ctx, false);
    }
    esp_status s = esp__auto_calibrate(ctx);
    if (!s && enough) s = esp__auto_calibrated(ctx);
    if (s) return s;
    if (!enough) {
        if (a->phase_steps == 1) a->left = 1, a->times.n = 0, a->steps_ns = a->waiting_ns = 0;
        a->left = (uint32_t)fmin(a->left, a->opt.steps - a->times.n);
        return ESP_OK;
    }
    return esp__auto_try(ctx, first ? 0.0 : a->step_ns);
}

static esp_status esp__auto_tried_block(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__tournament_block(&a->tournament, a->step_ns, a->spread_ns);
    const esp_status s = a->calibrating ? esp__auto_calibrate(ctx) : ESP_OK;
    return s ? s : esp__auto_next(ctx);
}

static esp_status esp__auto_merged_block(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp_status s = esp__auto_merge(ctx, esp__grouping_next(ctx, &a->merge, a->step_ns));
    return s || a->phase == ESP__AUTO_MERGE ? s : esp__auto_next(ctx);
}

static bool esp__auto_drifts(esp__autopilot *a, double now) {
    a->over = now > a->reference_ns * (1.0 + a->opt.drift) ? a->over + 1 : 0;
    a->under = now * (1.0 + a->opt.drift) < a->reference_ns ? a->under + 1 : 0;
    return a->over >= a->checks || a->under >= a->checks;
}

/* Call it when step times have changed. Measures again, unless the last decision was too short a time ago. That time
 * doubles with each tournament, so that a machine whose speed varies does not compare strategies all the time. */
static void esp__auto_drifted(esp_ctx *ctx, double now) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double cooldown = ldexp(a->opt.cooldown, (int)(a->tournaments < 5 ? a->tournaments : 5));
    if (esp__auto_hidden(ctx)) {
        esp__auto_settle(ctx, now); /* no other strategy could be faster */
    } else if ((double)ctx->steps.step >= (double)a->settled_step + cooldown) {
        esp__auto_say(ctx, "step %llu: steps take %.3f ms instead of %.3f ms: measuring again",
                      (unsigned long long)ctx->steps.step, now / 1e6, a->reference_ns / 1e6);
        a->tournaments++;
        esp__auto_measure(ctx, true);
    }
}

static esp_status esp__auto_watched_block(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double now = a->step_ns;
    esp__auto_watch(ctx);
    const esp_status s = esp__auto_fall_back(ctx, &a->forced);
    if (s) return s;
    const bool warm = !a->lossy && (double)ctx->steps.step >= a->opt.warmup;
    a->lossy |= warm;
    if ((a->forced || warm) && a->n_ready) return esp__auto_try(ctx, now);
    if (a->forced || warm)
        esp__auto_measure(ctx, true);
    else if (!(a->reference_ns > 0.0))
        a->reference_ns = now;
    else if (esp__auto_drifts(a, now))
        esp__auto_drifted(ctx, now);
    return ESP_OK;
}

ESP__FN esp_status esp__auto_block(esp_ctx *ctx) {
    static esp_status (*const ends[])(esp_ctx *) = {
        [ESP__AUTO_MEASURE] = esp__auto_measured_block,
        [ESP__AUTO_MERGE] = esp__auto_merged_block,
        [ESP__AUTO_TRY] = esp__auto_tried_block,
        [ESP__AUTO_WATCH] = esp__auto_watched_block,
    };
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (a->phase == ESP__AUTO_WATCH) a->mine.excess = esp__auto_excess(ctx);
    const esp_status s = esp__auto_exchange(ctx);
    if (s) return s;
    return esp__auto_loss_rose(ctx) ? esp__auto_measure_fp32(ctx, true) : ends[a->phase](ctx);
}
