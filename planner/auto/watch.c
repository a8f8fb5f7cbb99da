/* watch.c: carries out a decision: all ranks change the strategy at the same step, compare it with the previous
 * strategy, and afterwards watch whether step times drift.
 * A gain is the previous step time divided by the new one. */
#include "planner/auto/autopilot.h"
#include <math.h>

enum { ESP__AUTO_CHECK_STEPS = 12, ESP__AUTO_AGAIN_STEPS = 24, ESP__AUTO_SKIP = 1 };
static const double esp__auto_longer = 1.03; /* a measured time this many times the prediction is longer */
/* Predictions are wrong by about 5%, so only a time below this share of a prediction is faster for sure. */
static const double esp__auto_tolerance = 0.95;
/* A step time below this share of the previous strategy's is faster for sure. */
static const double esp__auto_clear = 0.85;

/* ---- settling ---------------------------------------------------------------------------------------------------- */
/* Ends a decision and begins to watch the active strategy. */
ESP__FN void esp__auto_settle(esp_ctx *ctx, double reference_ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->reference_ns = reference_ns;
    a->settled_step = ctx->steps.step;
    a->over = a->under = 0;
    a->said_waiting = 0;
    a->forced = 0;
    esp__strfree(ctx, a->before);
    esp__strfree(ctx, a->next);
    a->before = a->next = NULL;
    esp__auto_loss_settle(ctx);
    esp__auto_enter(ctx, ESP__AUTO_WATCH);
}

/* ---- planning is over -------------------------------------------------------------------------------------------- */
/* On rank 0, logs the planning thread's decision and copies it to the rank's word. */
static void esp__auto_announce(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    a->mine.done = ctx->job.rank == 0 && esp__auto_plan_done(a);
    if (a->mine.done && job && !a->source.step_ns) a->mine.spent_ns += job->cpu_ns;
    a->mine.compresses = a->mine.done && job && job->compresses;
    a->mine.decision = ESP__DECISION_STAY;
    a->mine.gain = 1.0;
    a->mine.text_bytes = 0;
    a->mine.second_ns = 0.0;
    if (!a->mine.done || !job || job->decision != ESP__DECISION_SWITCH) return;
    a->mine.decision = ESP__DECISION_SWITCH;
    a->mine.gain = job->gain;
    a->mine.predicted_ns = job->predicted_ns;
    a->mine.second_ns = job->tried ? 0.0 : job->second_ns;
    a->mine.text_bytes = strlen(esp_plan_text(job->plan)) + 1;
}

static void esp__auto_say_plan(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    char bound[64] = "", effect[ESP__AUTO_TEXT * 2];
    if (ctx->job.rank || !job) return;
    if (job->explained_ns > 0.0)
        esp__log(ctx, ESP_LOG_INFO, "autopilot",
                 "planning took %.1f ms; of the step's %.3f ms, measured costs explain %.3f ms", job->plan_ns / 1e6,
                 job->base_ns / 1e6, job->explained_ns / 1e6);
    if (job->decision == ESP__DECISION_STAY) {
        esp__auto_say(ctx, "%s%s%s", job->reason,
                      ctx->active.strategy.hash != a->fp32 ? "; the active strategy stays" : "; stays with fp32",
                      job->passed_over);
        return;
    }
    esp__autopilot_of(ctx)->tried_layerwise |= job->tried;
    if (job->bound >= 0.0) snprintf(bound, sizeof bound, ", at most %.0f%% above the bound", 100.0 * job->bound);
    esp__auto_effect_text(job, effect, sizeof effect);
    esp__auto_say(ctx, "step %llu: %s, predicted %.2fx (%.3f ms a step, before %.3f ms)%s%s%s",
                  (unsigned long long)ctx->steps.step, job->chosen, job->gain, job->predicted_ns / 1e6,
                  job->base_ns / 1e6, bound, effect, job->passed_over);
}

/* Sets *yes if any rank has a pending residual of a tensor that the new strategy would compress. */
static esp_status esp__auto_pending(esp_ctx *ctx, int *yes) {
    int32_t mine = 0, *all = esp__alloc(ctx, (uint64_t)ctx->job.size * sizeof *all);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        const esp__tensor_units *of = &ctx->active.strategy.of_tensor[i];
        for (uint32_t k = 0; t->pending_residual && k < of->n; k++)
            mine |= esp__option_compresses(&ctx->active.strategy.units[of->first + k].option);
    }
    esp_status s = esp__agree_ok(ctx, all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
    if (!s) s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine);
    *yes = 0;
    for (int32_t r = 0; r < ctx->job.size && !s; r++) *yes |= all[r];
    esp__free(ctx, all);
    return s;
}

/* Sends rank 0's text to all ranks, which activate it. */
static esp_status esp__auto_switch(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t bytes = a->all[0].text_bytes;
    char *all = esp__alloc(ctx, bytes * (uint64_t)ctx->job.size), *own = esp__alloc(ctx, bytes);
    int pending = 0;
    a->before = esp__strdup(ctx, ctx->active.strategy.text);
    esp_status s = all && own && a->before ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    if (!s && ctx->job.rank == 0) memcpy(own, esp_plan_text(a->job->plan), bytes);
    s = esp__agree_ok(ctx, s);
    if (!s) s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, own, all, bytes);
    if (!s) s = esp__auto_set(ctx, all);
    if (!s) s = esp__auto_pending(ctx, &pending);
    if (!s && pending) { /* one step without compression sends the residuals first */
        a->next = esp__strdup(ctx, ctx->active.strategy.text);
        s = esp__agree_ok(ctx, a->next ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
        if (!s) s = esp__auto_set(ctx, "fp32");
    }
    esp__free(ctx, own);
    esp__free(ctx, all);
    if (s) return s;
    a->gain = a->all[0].gain;
    a->predicted_ns = a->all[0].predicted_ns;
    a->second_ns = a->all[0].second_ns;
    a->compresses = a->all[0].compresses != 0;
    a->check_steps = ESP__AUTO_CHECK_STEPS;
    a->again_ns = 0.0;
    if (pending && ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_INFO, "autopilot",
                 "one uncompressed step takes along feedback that has no place any more");
    esp__auto_enter(ctx, pending ? ESP__AUTO_FLUSH : ESP__AUTO_CHECK);
    return ESP_OK;
}

ESP__FN esp_status esp__auto_plan_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (a->phase_steps % a->every) return ESP_OK;
    esp__auto_announce(ctx);
    esp_status s = esp__auto_exchange(ctx);
    a->mine.done = 0;
    if (s || !a->all[0].done) return s;
    esp__budget_measured(&a->budget, (double)a->spent_ns);
    esp__auto_say_plan(ctx);
    if (a->all[0].decision == ESP__DECISION_SWITCH) {
        esp__auto_loss_before(ctx);
        s = esp__auto_switch(ctx);
        if (s && !ctx->health.fatal && s != ESP_E_PEER && s != ESP_E_TIMEOUT) { /* all ranks rejected the text */
            if (ctx->job.rank == 0)
                esp__log(ctx, ESP_LOG_WARN, "autopilot",
                         "the plan could not be activated, the previous strategy stays: %s", esp_last_error(ctx));
            esp__auto_settle(ctx, a->base_ns);
            s = ESP_OK;
        }
        return s;
    }
    a->stays = ctx->active.strategy.hash == a->fp32;
    esp__auto_settle(ctx, a->base_ns);
    return ESP_OK;
}

ESP__FN esp_status esp__auto_flush_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp_status s = esp__auto_set(ctx, a->next);
    if (!s) esp__auto_enter(ctx, ESP__AUTO_CHECK);
    return s;
}

/* ---- is it as fast as promised? ---------------------------------------------------------------------------------- */
/* Returns twice the standard error of a median of n times, from their quartile distance. */
static double esp__auto_error(double spread, double n) { return 2.0 * 0.93 * spread / sqrt(n > 1.0 ? n : 1.0); }

/* Whether enough steps were timed after a change of strategy. The first ones touch new memory and do not count. */
static int esp__auto_enough(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (a->phase_steps <= ESP__AUTO_SKIP) a->n_times = 0;
    return a->phase_steps >= ESP__AUTO_SKIP + a->check_steps;
}

/* Returns the step time with which later ones are compared: the prediction, or the measured time if that was wrong. */
static double esp__auto_reference(const esp_ctx *ctx, double measured) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    if (fabs(measured - a->predicted_ns) <= 0.5 * a->opt.drift * a->predicted_ns) return a->predicted_ns;
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_INFO, "autopilot",
                 "predicted %.3f ms a step, measured %.3f ms: from now on steps are watched against what was measured",
                 a->predicted_ns / 1e6, measured / 1e6);
    return measured;
}

/* On rank 0, explains why a step took longer or shorter than predicted. The parts overlap, so their sum is not the
 * difference. */
static void esp__auto_explain(esp_ctx *ctx, double measured) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__auto_job *job = a->job;
    const esp_stats *now = &ctx->steps.stats, *then = &a->phase_stats;
    const double steps = (double)(now->steps - then->steps);
    double backward = 0.0, compression, links = 0.0, slowest = 0.0, mean = 0.0;
    ctx->steps.predicted_ns = a->predicted_ns;
    *ctx->steps.difference = 0;
    if (!job || steps < 1.0 || fabs(measured / a->predicted_ns - 1.0) < esp__auto_longer - 1.0) return;
    backward = (double)(now->backward_ns - then->backward_ns) / steps;
    for (uint32_t i = 1; i < job->model.n_tensors; i++) backward -= job->tensors[i].compute_ns;
    compression = (double)(now->compress_ns + now->decompress_ns - then->compress_ns - then->decompress_ns) / steps;
    compression -= job->best.lane_ns[ESP__LANE_CPU];
    for (int k = 0; k < ESP__LEVELS; k++)
        links += (double)(now->level_ns[k] - then->level_ns[k]) / steps - job->best.lane_ns[ESP__LANE_INTRA + k];
    for (int32_t r = 0; r < ctx->job.size; r++) {
        mean += a->all[r].pushed_ns / ctx->job.size;
        if (a->all[r].pushed_ns > slowest) slowest = a->all[r].pushed_ns;
    }
    snprintf(ctx->steps.difference, sizeof ctx->steps.difference,
             "%+.3f ms a step: backward %+.3f, compression %+.3f, links %+.3f; ranks wait %.3f for the slowest",
             (measured - a->predicted_ns) / 1e6, backward / 1e6, compression / 1e6, links / 1e6,
             (slowest - mean) / 1e6);
}

/* Begins a trial of strategy layerwise, unless the active strategy is clearly faster than the prediction for
 * layerwise. Returns whether it did. */
static int esp__auto_try_second(esp_ctx *ctx, double kept_ns) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double second_ns = a->second_ns;
    a->second_ns = 0.0;
    if (a->source.step_ns && !a->source.tries_second) return 0;
    if (!(second_ns > 0.0) || a->forced || kept_ns < esp__auto_tolerance * second_ns) return 0;
    esp__strfree(ctx, a->before);
    esp__strfree(ctx, a->next);
    a->before = a->next = NULL;
    a->base_ns = kept_ns;
    if (ctx->job.rank == 0) {
        a->job->base_ns = kept_ns;
        esp__auto_second(a->job);
    }
    esp__auto_enter(ctx, ESP__AUTO_PLAN);
    return 1;
}

/* Ends a trial that the new strategy won. */
static esp_status esp__auto_accept(esp_ctx *ctx, double before, double now) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__auto_say(ctx, "measured %.2fx (%.3f ms a step, before %.3f ms, predicted %.3f ms)", before / now, now / 1e6,
                  before / 1e6, a->predicted_ns / 1e6);
    if (ctx->job.rank == 0) esp__auto_explain(ctx, now);
    if (*ctx->steps.difference) esp__auto_say(ctx, "%s", ctx->steps.difference);
    a->stays = 0;
    esp__budget_won(&a->budget, a->compresses, (before - now) * (double)a->tries);
    if (esp__auto_try_second(ctx, now)) return ESP_OK;
    esp__auto_settle(ctx, esp__auto_reference(ctx, now));
    return ESP_OK;
}

/* Ends a trial that the previous strategy, which is active again, won. */
static esp_status esp__auto_give_up(esp_ctx *ctx, double before, double tried) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__auto_say(ctx, "measured %.3f ms a step, predicted %.3f ms, before %.3f ms: returned to the strategy before",
                  tried / 1e6, a->predicted_ns / 1e6, before / 1e6);
    if (ctx->job.rank == 0 && a->job) a->refuse = a->job->text_hash;
    esp__budget_lost(&a->budget, a->compresses, tried, a->predicted_ns);
    a->stays = ctx->active.strategy.hash == a->fp32;
    if (esp__auto_try_second(ctx, before)) return ESP_OK;
    esp__auto_settle(ctx, before);
    return ESP_OK;
}

/* Activates the previous strategy and times it again, because the machine may have become faster or slower. */
static esp_status esp__auto_return(esp_ctx *ctx, double measured) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (!a->next) a->next = esp__strdup(ctx, ctx->active.strategy.text);
    a->tried_ns = measured;
    esp_status s = esp__agree_ok(ctx, a->next ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
    if (!s) s = esp__auto_set(ctx, a->before);
    a->check_steps = ESP__AUTO_AGAIN_STEPS;
    esp__auto_enter(ctx, ESP__AUTO_BACK);
    return s;
}

/* Returns how much longer the trial's steps took than the previous strategy's, on the slowest rank. */
static double esp__auto_over(const esp_ctx *ctx, double *first) {
    const esp__auto_word *w = esp__autopilot_of(ctx)->all;
    double over = w[0].over_ns;
    *first = w[0].first_ns;
    for (int32_t r = 1; r < ctx->job.size; r++) {
        if (w[r].over_ns > over) over = w[r].over_ns;
        if (w[r].first_ns > *first) *first = w[r].first_ns;
    }
    return over;
}

/* Activates the previous strategy at once, because the trial has used up the budget. */
static esp_status esp__auto_abort(esp_ctx *ctx, double over) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    double before = a->again_ns > 0.0 ? a->again_ns : a->base_ns;
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_INFO, "autopilot", "the try lost %.3f ms by its step %llu: more than it may cost",
                 over / 1e6, (unsigned long long)a->tries);
    esp_status s = esp__auto_set(ctx, a->before);
    return s ? s : esp__auto_give_up(ctx, before, before + over / (double)a->tries);
}

/* The new strategy stays if it is clearly faster and this was predicted. If a large gain was measured but a small
 * one predicted, the machine may have become faster. Then, or without a clear gain, the previous strategy is timed
 * again, and then the new one. The new one stays if its second time is shorter than the previous strategy's, and the
 * mean of both its times is shorter by the least gain. */
static esp_status esp__auto_check_end(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp_status s;
    double now = (double)esp__auto_step_ns(ctx), mean = 0.5 * (a->tried_ns + now);
    double noise =
        esp__auto_error(esp__auto_spread(ctx), a->check_steps) + esp__auto_error(a->base_spread_ns, a->opt.steps);
    if (!(a->again_ns > 0.0)) {
        int likely =
            a->predicted_ns < esp__auto_clear * a->base_ns || now * (1.0 + 0.5 * a->opt.drift) >= a->predicted_ns;
        if (a->forced || (likely && now < esp__auto_clear * a->base_ns && now + noise < a->base_ns))
            return esp__auto_accept(ctx, a->base_ns, now);
        return esp__auto_return(ctx, now);
    }
    if (now < a->again_ns && mean * (1.0 + a->opt.min_gain) <= a->again_ns)
        return esp__auto_accept(ctx, a->again_ns, mean);
    s = esp__auto_set(ctx, a->before);
    return s ? s : esp__auto_give_up(ctx, a->again_ns, mean);
}

/* Called when the previous strategy was timed again. It stays, unless the new one was faster by the least gain and
 * so gets a second trial. */
static esp_status esp__auto_back_end(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp_status s = esp__auto_exchange(ctx);
    if (s) return s;
    a->again_ns = (double)esp__auto_step_ns(ctx);
    if (a->again_ns < (1.0 + a->opt.min_gain) * a->tried_ns) return esp__auto_give_up(ctx, a->again_ns, a->tried_ns);
    s = esp__auto_set(ctx, a->next);
    esp__auto_enter(ctx, ESP__AUTO_CHECK);
    return s;
}

/* Ranks exchange the cost of the trial after every step, or less often if steps are so short that exchanges cost
 * much. */
ESP__FN esp_status esp__auto_check_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    int enough = esp__auto_enough(ctx), back;
    double over, first;
    if (a->phase == ESP__AUTO_BACK) return enough ? esp__auto_back_end(ctx) : ESP_OK;
    if (!enough && a->phase_steps % a->every) return ESP_OK;
    esp_status s = esp__auto_exchange(ctx);
    if (!s) s = esp__auto_loss_try(ctx, &back);
    if (s || back) return s;
    over = esp__auto_over(ctx, &first);
    int exhausted = !a->forced && esp__budget_exhausted(&a->budget, over, first);
    if (enough || exhausted) esp__budget_pay(&a->budget, over);
    if (exhausted) return esp__auto_abort(ctx, over);
    return enough ? esp__auto_check_end(ctx) : ESP_OK;
}

/* ---- drift ------------------------------------------------------------------------------------------------------- */
/* Returns the number of training steps between two checks of step times: opt.window / 2, or more if the checks would
 * take over a thousandth of the time. */
static uint32_t esp__auto_interval(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    uint32_t n = a->opt.window / 2;
    uint64_t exchange = 0, step = esp__auto_step_ns(ctx);
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (a->all[r].exchange_ns > exchange && !a->source.step_ns) exchange = a->all[r].exchange_ns;
    uint64_t least = step ? exchange * 1250u / step : 0;
    if (least > ESP__AUTO_TIMES) least = ESP__AUTO_TIMES;
    return n > least ? n : (uint32_t)least;
}

ESP__FN uint32_t esp__auto_looks(const esp__autopilot *a) {
    const uint32_t looks = (a->opt.window + a->interval - 1) / a->interval;
    return looks < 2 ? 2 : looks;
}

/* Counts consecutive checks at which steps were too long, or too short. Returns 1 if this lasted opt.window steps. */
static int esp__auto_drifts(esp__autopilot *a, double now) {
    const uint32_t looks = esp__auto_looks(a);
    a->over = now > a->reference_ns * (1.0 + a->opt.drift) ? a->over + 1 : 0;
    a->under = now * (1.0 + a->opt.drift) < a->reference_ns ? a->under + 1 : 0;
    return a->over >= looks || a->under >= looks;
}

/* Plans again with the codecs that are allowed now, because errors forced it or the warm-up is over. */
static esp_status esp__auto_plan_again(esp_ctx *ctx, double now) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->base_ns = now;
    a->base_spread_ns = esp__auto_spread(ctx);
    if (a->have_costs) return esp__auto_plan_begin(ctx);
    esp__auto_measure_begin(ctx, 1);
    return ESP_OK;
}

static esp_status esp__auto_look(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    double now = (double)esp__auto_step_ns(ctx), was = a->reference_ns;
    int changed = 0;
    esp_status s = esp__auto_fall_back(ctx, &changed);
    if (s) return s;
    if (changed) {
        a->forced = 1;
        return esp__auto_plan_again(ctx, now);
    }
    if (!a->lossy && ctx->steps.step >= a->opt.warmup) {
        a->lossy = 1;
        if (a->opt.n_codecs > 2) return esp__auto_plan_again(ctx, now);
    }
    if (!(was > 0.0)) { /* a loaded strategy has no reference yet */
        a->reference_ns = now;
        return ESP_OK;
    }
    if (!esp__auto_drifts(a, now)) return ESP_OK;
    if (a->stays && esp__auto_hidden(ctx)) {
        if (ctx->job.rank == 0)
            esp__log(ctx, ESP_LOG_INFO, "autopilot",
                     "steps take %.3f ms instead of %.3f ms, and hardly wait for communication: nothing to measure",
                     now / 1e6, was / 1e6);
        esp__auto_settle(ctx, now);
        return ESP_OK;
    }
    uint64_t until = a->settled_step + a->opt.cooldown, paid = ctx->steps.step + esp__budget_wait(&a->budget);
    if (until < paid) until = paid;
    if (ctx->steps.step < until) {
        if (!a->said_waiting && ctx->job.rank == 0)
            esp__log(ctx, ESP_LOG_INFO, "autopilot", "steps take %.3f ms instead of %.3f ms: waiting for step %llu",
                     now / 1e6, was / 1e6, (unsigned long long)until);
        a->said_waiting = 1;
        return ESP_OK;
    }
    esp__auto_say(ctx, "step %llu: steps take %.3f ms instead of %.3f ms: measuring again",
                  (unsigned long long)ctx->steps.step, now / 1e6, was / 1e6);
    a->refuse = 0; /* a plan that was slower then may be faster now */
    esp__budget_drifted(&a->budget);
    esp__auto_measure_begin(ctx, 1);
    return ESP_OK;
}

ESP__FN esp_status esp__auto_watch_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (!a->interval) a->interval = esp__auto_interval(ctx);
    if (a->phase_steps < a->interval) return ESP_OK;
    a->mine.excess = esp__auto_excess(ctx);
    esp_status s = esp__auto_exchange(ctx);
    if (s) return s;
    esp__budget_open(&a->budget, ctx->steps.step,
                     (double)esp__auto_step_ns(ctx)); /* a loaded strategy has not opened the budget */
    a->phase_steps = 0;
    a->steps_ns = a->waiting_ns = 0;
    a->interval = esp__auto_interval(ctx);
    int back = 0;
    s = esp__auto_loss_look(ctx, &back);
    if (s || back) return s;
    s = esp__auto_look(ctx);
    a->n_times = 0;
    return s;
}
