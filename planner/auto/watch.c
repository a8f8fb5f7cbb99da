/* watch.c: watches whether step times of the active strategy drift, and whether a tensor's error is too large. */
#include "planner/auto/autopilot.h"
#include <math.h>

/* Returns the number of training steps between two checks of step times: opt.window / 2, or more if the checks would
 * take over a thousandth of the time. */
static uint32_t esp__auto_interval(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    double exchange = 0.0;
    for (int32_t r = 0; r < ctx->job.size && !a->source.step_ns; r++)
        exchange = fmax(exchange, (double)a->all[r].exchange_ns);
    return (uint32_t)fmax(0.5 * a->opt.window, fmin(exchange * 1250.0 / fmax(a->step_ns, 1.0), 1024.0));
}

/* Watches until the next check. */
static void esp__auto_watch(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__auto_enter(ctx, ESP__AUTO_WATCH);
    a->left = a->interval = esp__auto_interval(ctx);
}

/* Ends a decision and begins to watch the active strategy. */
ESP__FN void esp__auto_settle(esp_ctx *ctx, double reference_ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->reference_ns = reference_ns;
    a->settled_step = ctx->steps.step;
    a->over = a->under = 0;
    a->forced = false;
    a->risen = 0;
    esp__auto_loss_forget(ctx);
    esp__auto_watch(ctx);
}

ESP__FN uint32_t esp__auto_looks(const esp__autopilot *a) {
    return (uint32_t)fmax(ceil(a->opt.window / a->interval), 2.0);
}

static bool esp__auto_drifts(esp__autopilot *a, double now) {
    const uint32_t looks = esp__auto_looks(a);
    a->over = now > a->reference_ns * (1.0 + a->opt.drift) ? a->over + 1 : 0;
    a->under = now * (1.0 + a->opt.drift) < a->reference_ns ? a->under + 1 : 0;
    return a->over >= looks || a->under >= looks;
}

/* Begins another tournament, because an error forced it or the warm-up is over. */
static esp_status esp__auto_plan_again(esp_ctx *ctx) {
    if (esp__autopilot_of(ctx)->have_costs) return esp__auto_try_begin(ctx);
    esp__auto_measure_begin(ctx, true);
    return ESP_OK;
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
        esp__auto_measure_begin(ctx, true);
    }
}

ESP__FN esp_status esp__auto_look(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double now = a->step_ns;
    esp__auto_watch(ctx);
    esp_status s = esp__auto_fall_back(ctx, &a->forced);
    if (s) return s;
    if (a->forced) return esp__auto_plan_again(ctx);
    if (!a->lossy && (double)ctx->steps.step >= a->opt.warmup) {
        a->lossy = true;
        return esp__auto_plan_again(ctx);
    }
    if (!(a->reference_ns > 0.0))
        a->reference_ns = now;
    else if (esp__auto_drifts(a, now))
        esp__auto_drifted(ctx, now);
    return ESP_OK;
}
