/* plan.c: makes the planner's input from the measured costs, and runs the planner on rank 0. */
#include "planner/auto/autopilot.h"
#include <math.h>

/* ---- the planner's input ----------------------------------------------------------------------------------------- */
/* Returns whether the codec may be used now. `c` is NULL if it is not opened. */
static bool esp__auto_allowed(const esp_ctx *ctx, const esp_plan_codec *codec, const esp__codec *c) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    bool listed = false;
    for (uint32_t i = 0; i < a->opt.n_codecs; i++) listed |= !strcmp(a->opt.codecs[i], codec->spec);
    if (!listed || (c && !esp__calibration_reduces(ctx, c))) return false;
    if (codec->lossy && (!a->lossy || a->trust == ESP__TRUST_NONE)) return false;
    if (a->trust == ESP__TRUST_ROUNDING && !(c && esp__safety_rounds(c, codec->error))) return false;
    return !(a->opt.max_error > 0.0 && codec->error > a->opt.max_error);
}

static esp_status esp__auto_costs(esp_ctx *ctx, esp__auto_job *job) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp_status s;
    job->n_codecs = 0;
    if (a->source.costs) {
        s = a->source.costs(a->source.user, ctx, &job->system, job->all_codecs, &job->n_all_codecs);
    } else {
        s = esp__calibration_finish(ctx, &a->calibration);
        job->system = a->calibration.system;
        job->n_all_codecs = a->calibration.n_codecs;
        memcpy(job->all_codecs, a->calibration.plan_codecs, sizeof job->all_codecs);
    }
    for (uint32_t i = 0; i < job->n_all_codecs && !s; i++) {
        esp_plan_codec *codec = &job->all_codecs[i];
        const esp__codec *c = esp__auto_codec_of(ctx, codec->spec);
        codec->lossy = !c || esp__codec_lossy(c);
        if (c) job->effects[i] = esp__safety(c, codec->error, ctx->config.optimizer, ctx->config.momentum);
        const bool fits = !job->effects[i] || job->effects[i]->slower <= job->slowest;
        if (fits && esp__auto_allowed(ctx, codec, c)) job->codecs[job->n_codecs++] = *codec;
    }
    return s;
}

static esp_status esp__auto_model(esp_ctx *ctx, esp__auto_job *job) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__tensor *first = ctx->model.tensors;
    bool alike = true; /* then any neighbours may form a group */
    job->n_described_units = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        const bool described = esp__auto_described(ctx, i);
        esp_plan_tensor *x = &job->tensors[i];
        *x = (esp_plan_tensor){.name = t->name, .elements = t->count, .rows = t->rows, .cols = t->cols};
        /* maxima over ranks need not rise from tensor to tensor */
        if (i && a->ready_max[i] > a->ready_max[i - 1]) x->compute_ns = (double)(a->ready_max[i] - a->ready_max[i - 1]);
        if (t->flags & ESP_SHARD) x->shard = t->shard.n == 1 ? "flat" : "intra,inter"; /* sharded over two levels */
        x->keep = t->flags & ESP_RAW || described ? "fp32" : esp__auto_keep(ctx, i);
        if (x->keep && !esp__auto_has(job->codecs, job->n_codecs, x->keep)) x->keep = "fp32";
        if (a->described[i]) x->keep = a->described[i], job->n_described_units++;
        alike &= t->dtype == first->dtype && t->device == first->device && !((t->flags ^ first->flags) & ESP_SUM) &&
                 !described;
        if (t->flags & ESP_SHARD && ctx->job.topo.n_levels > 2)
            return esp__fail(
                ctx, ESP_E_UNSUPPORTED,
                "auto plans sharded tensors (ESP_SHARD), such as '%s', in jobs of two levels only; this job has "
                "%u: give it a strategy file",
                t->name, ctx->job.topo.n_levels);
    }
    job->model = (esp_plan_model){.struct_size = sizeof job->model,
                                  .n_tensors = ctx->model.n_tensors,
                                  .name = "measured",
                                  .tensors = job->tensors,
                                  .forward_ns = (double)a->ready_max[0]}; /* the time to the first gradient */
    if (!alike) job->config.flags |= ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
    return ESP_OK;
}

/* Copies what the planner needs. If that fails, stores why. */
static esp_status esp__auto_input(esp_ctx *ctx, esp__auto_job *job) {
    esp_status s = job->tensors ? esp__auto_costs(ctx, job) : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    if (!s) esp__calibration_log(ctx, &job->system, job->codecs, job->n_codecs);
    if (!s) s = esp__auto_model(ctx, job);
    if (s) snprintf(job->failed, sizeof job->failed, "%.500s", esp_last_error(ctx));
    return s;
}

ESP__FN esp__auto_job *esp__auto_job_open(esp_ctx *ctx, double ns) {
    static const char *const not_here[] = {"*intra.*", "*inter.*"};
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__tournament *last = &a->tournament;
    const bool fp32 = ctx->active.strategy.hash == a->fp32, won = last->now < last->n;
    esp__auto_job *job = ctx->job.rank ? NULL : esp__alloc(ctx, sizeof *job);
    if (!job) return NULL;
    job->ctx = ctx;
    job->slowest = INFINITY;
    job->tensors = esp__alloc(ctx, (uint64_t)ctx->model.n_tensors * sizeof *job->tensors);
    job->config.struct_size = sizeof job->config;
    job->config.strategy = "espresso+";
    job->config.min_compress_elements = ctx->model.min_compress_elements;
    job->config.max_memory_bytes = ctx->active.most_bytes;
    if (!esp__hierarchical(ctx)) job->config.forbid = not_here, job->config.n_forbid = 2;
    esp__auto_optimizer(ctx, job->optimizer, sizeof job->optimizer);
    const char *text = fp32 ? "fp32" : won ? a->texts[last->now] : ctx->active.strategy.text;
    if (!a->forced && !(job->active = esp__strdup(ctx, text)))
        snprintf(job->failed, sizeof job->failed, "out of memory");
    else if (!esp__auto_input(ctx, job) && esp__auto_add_simple(job,
                                                                fp32  ? "fp32"
                                                                : won ? last->at[last->now].name
                                                                      : "the saved strategy",
                                                                ns))
        snprintf(job->failed, sizeof job->failed, "%.500s", esp_last_error(NULL));
    return job;
}

ESP__FN void esp__auto_job_free(esp_ctx *ctx, esp__auto_job *job) {
    if (!job) return;
    for (uint32_t i = 0; i < job->n; i++) esp_plan_free(job->of[i].plan);
    esp__free(ctx, job->tensors);
    esp__free(ctx, job->active);
    esp__free(ctx, job);
}

ESP__FN void esp__auto_job_plan(esp_ctx *ctx) {
    const esp__tournament *t = &esp__autopilot_of(ctx)->tournament;
    esp__auto_job *job = esp__autopilot_of(ctx)->job;
    const uint32_t winner = esp__tournament_winner(t);
    for (uint32_t i = 0; i < t->n; i++) job->candidates[i].ns = t->at[i].ns;
    job->slowest = winner < t->n ? t->at[winner].slower : 1.0;
    if (!esp__auto_input(ctx, job)) esp__auto_add_planned(job);
}
