/* autopilot.c: strategy "auto", which measures during the first steps, tries strategies, plans, tries the plans too,
 * and watches the best. This file opens and closes the autopilot, and counts its steps. After a number of them (a
 * block), ranks exchange measurements and decide, in phases.c. */
#include "planner/auto/autopilot.h"

/* ---- life -------------------------------------------------------------------------------------------------------- */
/* Reads "auto" or "auto:key=val,...". The strategy that runs first is fp32. */
static esp_status esp__auto_strategy(esp_ctx *ctx, void **self, const char **spec) {
    if (!esp__auto_asked(*spec)) return ESP_OK;
    esp__autopilot *a = esp__alloc(ctx, sizeof *a);
    if (!a) return esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    *self = a;
    ctx->config.sample_errors = 1;
    esp_status s = esp__auto_options_read(ctx, *spec, &a->opt);
    if (!s) s = esp__auto_codecs_read(ctx, ctx->model.codec_spec, &a->opt);
    if (!s && ctx->outer && a->opt.warmup > 0.0)
        s = esp__fail(ctx, ESP_E_ARG,
                      "strategy \"%s\": in an outer context auto chooses once, at the begin, so warmup has no meaning: "
                      "leave it out",
                      *spec);
    *spec = "fp32";
    return s;
}

/* Takes one block of memory for all arrays, the ones of the largest alignment first. */
static esp_status esp__auto_memory(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const uint64_t n = ctx->model.n_tensors, ranks = (uint64_t)ctx->job.size;
    a->all = esp__alloc(ctx, ranks * sizeof *a->all + (ESP__AUTO_READY + 1) * n * sizeof *a->ready +
                                 n * (sizeof *a->described + sizeof *a->tensors) + n * (ranks + 1));
    if (!a->all) return esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    a->ready = (uint64_t *)(a->all + ranks);
    a->ready_max = a->ready + ESP__AUTO_READY * n;
    a->described = (char **)(a->ready_max + n);
    a->tensors = (esp__auto_tensor *)(a->described + n);
    a->bad = (uint8_t *)(a->tensors + n);
    a->all_bad = a->bad + n;
    return ESP_OK;
}

/* All ranks must have an autopilot with the same options, because ranks with one exchange data after steps. Ranks
 * without one may write the same strategy differently. */
static void esp__auto_agree(const esp_ctx *ctx, const void *self, esp__text *lines) {
    char optimizer[ESP__NAME_MAX];
    if (self)
        esp__text_add(lines, "strategy %s, codecs %s\noptimizer %s\n",
                      ctx->config.strategy_spec ? ctx->config.strategy_spec : "auto",
                      ctx->model.codec_spec ? ctx->model.codec_spec : "none named",
                      esp__auto_optimizer(ctx, optimizer, sizeof optimizer));
    else
        esp__text_add(lines, ESP__NOT_AUTO);
}

/* In an outer context, a round is a step, in which all tensors are ready at once. */
static uint64_t esp__auto_round_ns(void *user, esp_ctx *ctx) {
    (void)user;
    return (uint64_t)esp__outer_tried_ns(ctx);
}
static void esp__auto_round_ready(void *user, esp_ctx *ctx, uint64_t *out) {
    (void)user;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        out[i] = (uint64_t)(ctx->outer->timer.alone_ns * ctx->outer->low[0]);
}

static esp_status esp__auto_start(esp_ctx *ctx, void **self) {
    esp__autopilot *a = *self;
    if (!a) return ESP_OK;
    esp_status s = esp__agree_ok(ctx, esp__auto_memory(ctx)); /* ranks measure only if all of them have memory */
    if (s) return s;
    a->active = a->fp32 = ctx->active.strategy.hash;
    a->lossy = !(a->opt.warmup > 0.0);
    esp__auto_loss_begin(ctx);
    if (ctx->job.size == 1) {
        esp__auto_say(ctx, "one rank: there is nothing to synchronise; stays with fp32");
        esp__auto_enter(ctx, ESP__AUTO_OFF);
        return ESP_OK;
    }
    uint32_t on = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) on += ctx->model.tensors[i].device != ESP__CPU_INDEX;
    if (on)
        esp__auto_say(
            ctx,
            "%u of %u tensors are on a device, for which auto has no costs: it measures and compresses on the "
            "host. For compression on the device use strategy layerwise, or a plan of espresso plan",
            on, ctx->model.n_tensors);
    if (ctx->outer) {
        esp__outer_try(ctx);
        a->source.step_ns = esp__auto_round_ns;
        a->source.ready = esp__auto_round_ready;
    }
    s = esp__auto_measure_open(ctx);
    if (!s) s = esp__auto_first(ctx);
    if (!s) esp__auto_measure(ctx, false);
    return s;
}

static void esp__auto_free(esp_ctx *ctx, esp__autopilot *a) {
    esp__auto_job_free(ctx, a->job);
    esp__calibration_close(ctx, &a->calibration);
    for (uint32_t i = 0; a->all && i < ctx->model.n_tensors; i++) esp__free(ctx, a->described[i]);
    esp__free(ctx, a->all);
    esp__auto_forget(ctx, a);
    esp__free(ctx, a);
}

static void esp__auto_close(esp_ctx *ctx, void *self) {
    const esp__autopilot *a = self;
    if (a->phase <= ESP__AUTO_TRY && ctx->steps.step && !a->settled_step && !ctx->health.fatal)
        esp__auto_say(ctx,
                      "the job ends after %s %llu, before auto has chosen a strategy: for jobs as short as this, name "
                      "one, such as layerwise",
                      ctx->outer ? "round" : "step", (unsigned long long)ctx->steps.step);
    esp__auto_free(ctx, self);
}

static bool esp__auto_chose(const esp_ctx *ctx, const void *self) {
    const esp__autopilot *a = self;
    return a->phase != ESP__AUTO_OFF && a->active == ctx->active.strategy.hash;
}

/* Called after a saved state was loaded, whose strategy is now active. The autopilot watches this strategy if it
 * compresses; else it starts from the beginning. */
static void esp__auto_loaded(esp_ctx *ctx, void *self) {
    esp__autopilot *a = self;
    if (a->phase == ESP__AUTO_OFF) return;
    a->active = ctx->active.strategy.hash;
    esp__auto_forget(ctx, a);
    a->lossy = (double)ctx->steps.step >= a->opt.warmup;
    esp__auto_loss_begin(ctx);
    if (ctx->outer && !ctx->outer->timer.tries) {
        esp__auto_enter(ctx, ESP__AUTO_DONE); /* it had chosen */
        return;
    }
    for (uint32_t i = 0; i < ctx->active.strategy.n_units && !ctx->outer; i++)
        if (esp__auto_compresses(ctx, &ctx->active.strategy.units[i])) {
            esp__auto_settle(ctx, 0.0);
            return;
        }
    esp__auto_measure(ctx, false); /* the state may be older than the first plan */
}

/* Called after ranks were lost. The system has changed and fp32 is active, so the autopilot starts from the beginning,
 * without the earlier measurements. */
static esp_status esp__auto_shrunk(esp_ctx *ctx, void **self) {
    esp__autopilot *was = *self;
    if (!was || was->phase == ESP__AUTO_OFF) return ESP_OK;
    esp__autopilot *a = esp__alloc(ctx, sizeof *a);
    if (!a) return esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    a->opt = was->opt;
    a->source = was->source;
    esp__auto_free(ctx, was);
    *self = a;
    ctx->steps.predicted_ns = 0.0;
    esp__auto_say(ctx, "%d ranks are left: starts again with fp32", ctx->job.size);
    const esp_status s = esp__auto_start(ctx, self);
    a->lossy = (double)ctx->steps.step >= a->opt.warmup;
    return s;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */
/* Stores the time of the step that ended, and returns it. */
static double esp__auto_note(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__step_clock *c = &ctx->steps.clock;
    uint64_t ns = c->begin_ns ? c->end_ns - c->begin_ns : 0;
    if (a->source.step_ns) ns = a->source.step_ns(a->source.user, ctx);
    a->phase_steps++;
    if (ns) esp__step_times_add(&a->times, (double)ns);
    if (c->last_push_ns > c->begin_ns && c->end_ns > c->last_push_ns) {
        a->steps_ns += c->end_ns - c->begin_ns;
        a->waiting_ns += c->end_ns - c->last_push_ns;
    }
    return (double)ns;
}

static esp_status esp__auto_step(esp_ctx *ctx, void *self) {
    esp__autopilot *a = self;
    if (a->phase == ESP__AUTO_OFF) return ESP_OK;
    if (ctx->active.strategy.hash != a->active) {
        esp__auto_say(ctx, "the program set a strategy of its own: nothing is measured or changed any more");
        esp__auto_enter(ctx, ESP__AUTO_OFF);
        return ESP_OK;
    }
    /* a round that begins or ends early has fewer inner steps */
    if (a->phase == ESP__AUTO_DONE || (ctx->outer && ctx->outer->timer.early)) return ESP_OK;
    const double ns = esp__auto_note(ctx);
    if (a->calibrating) esp__auto_ready(ctx);
    const bool over = a->phase == ESP__AUTO_TRY ? esp__tournament_step(&a->tournament, ns) : --a->left == 0;
    const esp_status s = over ? esp__auto_block(ctx) : ESP_OK;
    if (a->calibrating) esp__calibration_trainer_begins(ctx, &a->trainer);
    return s;
}

ESP__FN const esp__observer *esp__auto_observer(void) {
    static const esp__observer o = {.strategy = esp__auto_strategy,
                                    .agree = esp__auto_agree,
                                    .open = esp__auto_start,
                                    .collective = 1,
                                    .loss = esp__auto_loss_reported,
                                    .step = esp__auto_step,
                                    .chose = esp__auto_chose,
                                    .loaded = esp__auto_loaded,
                                    .shrunk = esp__auto_shrunk,
                                    .close = esp__auto_close};
    return &o;
}
