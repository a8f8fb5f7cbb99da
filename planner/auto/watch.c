/* watch.c: watches the active strategy: whether its step times drift, and whether a tensor's error is too large. */
#include "planner/auto/autopilot.h"
#include <math.h>

/* Predictions that are wrong by more than this share are explained. */
static const double esp__auto_longer = 0.03;
static const uint32_t esp__auto_most_doublings = 5;

/* Ends a decision and begins to watch the active strategy, whose step time is reference_ns, or 0 if it is unknown. */
ESP__FN void esp__auto_settle(esp_ctx *ctx, double reference_ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->reference_ns = reference_ns;
    a->settled_step = ctx->steps.step;
    a->over = a->under = a->interval = 0;
    a->said_waiting = a->explained = 0;
    a->forced = 0;
    esp__auto_loss_settle(ctx);
    esp__auto_enter(ctx, ESP__AUTO_WATCH);
}

/* On rank 0, explains why steps of the winner took longer or shorter than predicted. The parts overlap, so their sum is
 * not the difference. */
static void esp__auto_explain(esp_ctx *ctx, double measured) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    const esp_stats *now = &ctx->steps.stats, *then = &a->phase_stats;
    const double steps = (double)(now->steps - then->steps), predicted = ctx->steps.predicted_ns;
    double backward, compression, links = 0.0, slowest = 0.0, mean = 0.0;
    if (a->explained || ctx->job.rank || !job || a->winner >= job->n || !(predicted > 0.0)) return;
    a->explained = 1;
    if (steps < 1.0 || fabs(measured / predicted - 1.0) < esp__auto_longer) return;
    const esp_plan_report *plan = &job->of[a->winner].report;
    backward = (double)(now->backward_ns - then->backward_ns) / steps;
    for (uint32_t i = 1; i < job->model.n_tensors; i++) backward -= job->tensors[i].compute_ns;
    compression = (double)(now->compress_ns + now->decompress_ns - then->compress_ns - then->decompress_ns) / steps -
                  plan->lane_ns[ESP__LANE_CPU];
    for (int k = 0; k < ESP__LEVELS; k++)
        links += (double)(now->level_ns[k] - then->level_ns[k]) / steps - plan->lane_ns[ESP__LANE_INTRA + k];
    for (int32_t r = 0; r < ctx->job.size; r++) {
        mean += a->all[r].pushed_ns / ctx->job.size;
        slowest = fmax(slowest, a->all[r].pushed_ns);
    }
    snprintf(ctx->steps.difference, sizeof ctx->steps.difference,
             "%+.3f ms a step: backward %+.3f, compression %+.3f, links %+.3f; ranks wait %.3f for the slowest",
             (measured - predicted) / 1e6, backward / 1e6, compression / 1e6, links / 1e6, (slowest - mean) / 1e6);
    esp__log(ctx, ESP_LOG_INFO, "autopilot", "%s", ctx->steps.difference);
}

/* ---- drift ------------------------------------------------------------------------------------------------------- */
/* Returns the number of training steps between two checks of step times: opt.window / 2, or more if the checks would
 * take over a thousandth of the time. */
static uint32_t esp__auto_interval(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    double exchange = 0.0;
    const double step = esp__auto_step_ns(ctx), n = a->opt.window / 2;
    for (int32_t r = 0; r < ctx->job.size && !a->source.step_ns; r++)
        exchange = fmax(exchange, (double)a->all[r].exchange_ns);
    const double least = step > 0.0 ? exchange * 1250.0 / step : 0.0;
    return (uint32_t)fmax(n, fmin(least, ESP__AUTO_TIMES));
}

ESP__FN uint32_t esp__auto_looks(const esp__autopilot *a) {
    const uint32_t looks = (a->opt.window + a->interval - 1) / a->interval;
    return looks < 2 ? 2 : looks;
}

/* Counts consecutive checks at which steps were too long, or too short. Returns whether this lasted opt.window
 * steps. */
static bool esp__auto_drifts(esp__autopilot *a, double now) {
    const uint32_t looks = esp__auto_looks(a);
    a->over = now > a->reference_ns * (1.0 + a->opt.drift) ? a->over + 1 : 0;
    a->under = now * (1.0 + a->opt.drift) < a->reference_ns ? a->under + 1 : 0;
    return a->over >= looks || a->under >= looks;
}

/* Begins another tournament, because errors forced it or the warm-up is over. */
static esp_status esp__auto_plan_again(esp_ctx *ctx, double now) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->base_ns = now;
    if (a->have_costs) return esp__auto_plan_begin(ctx);
    esp__auto_measure_begin(ctx, 1);
    return ESP_OK;
}

/* Step times have drifted. Measures again, but only if the last decision is some time ago. This time doubles with each
 * tournament, so that a machine whose speed varies all the time does not try all the time. */
static void esp__auto_drifted(esp_ctx *ctx, double now) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double was = a->reference_ns;
    const uint32_t doublings = a->tournaments < esp__auto_most_doublings ? a->tournaments : esp__auto_most_doublings;
    const uint64_t until = a->settled_step + ((uint64_t)a->opt.cooldown << doublings);
    if (ctx->active.strategy.hash == a->fp32 && esp__auto_hidden(ctx)) {
        if (ctx->job.rank == 0)
            esp__log(ctx, ESP_LOG_INFO, "autopilot",
                     "steps take %.3f ms instead of %.3f ms, and hardly wait for communication: nothing to measure",
                     now / 1e6, was / 1e6);
        esp__auto_settle(ctx, now);
    } else if (ctx->steps.step < until) {
        if (!a->said_waiting && ctx->job.rank == 0)
            esp__log(ctx, ESP_LOG_INFO, "autopilot", "steps take %.3f ms instead of %.3f ms: waiting for step %llu",
                     now / 1e6, was / 1e6, (unsigned long long)until);
        a->said_waiting = 1;
    } else {
        esp__auto_say(ctx, "step %llu: steps take %.3f ms instead of %.3f ms: measuring again",
                      (unsigned long long)ctx->steps.step, now / 1e6, was / 1e6);
        a->tournaments++;
        esp__auto_measure_begin(ctx, 1);
    }
}

static esp_status esp__auto_look(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double now = esp__auto_step_ns(ctx);
    int changed = 0;
    esp_status s = esp__auto_fall_back(ctx, &changed);
    if (s) return s;
    esp__auto_explain(ctx, now);
    if (changed) {
        a->forced = 1;
        return esp__auto_plan_again(ctx, now);
    }
    if (!a->lossy && ctx->steps.step >= a->opt.warmup) {
        a->lossy = 1;
        return esp__auto_plan_again(ctx, now);
    }
    if (!(a->reference_ns > 0.0))
        a->reference_ns = now;
    else if (esp__auto_drifts(a, now))
        esp__auto_drifted(ctx, now);
    return ESP_OK;
}

ESP__FN esp_status esp__auto_watch_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (!a->interval) a->interval = esp__auto_interval(ctx);
    if (a->phase_steps < a->interval) return ESP_OK;
    a->mine.excess = esp__auto_excess(ctx);
    esp_status s = esp__auto_exchange(ctx);
    if (s) return s;
    a->phase_steps = 0;
    a->steps_ns = a->waiting_ns = 0;
    a->interval = esp__auto_interval(ctx);
    int back = 0;
    s = esp__auto_loss_look(ctx, &back);
    if (s || back) return s;
    s = esp__auto_look(ctx);
    if (a->phase == ESP__AUTO_WATCH) a->n_times = 0;
    return s;
}
