/* candidates.c: makes the strategies that a tournament compares (candidates), on rank 0, from the measured costs: first
 * the active one, fp32, and for each codec one that compresses every large tensor with it; later the planner's best
 * plan, and the best one that merges tensors into few large groups. */
#include "planner/auto/autopilot.h"
#include <math.h>

/* ---- the planner's input ----------------------------------------------------------------------------------------- */
/* Returns whether the codec is one of codecs[n]. */
static bool esp__auto_has(const esp_plan_codec *codecs, uint32_t n, const char *spec) {
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(codecs[i].spec, spec)) return true;
    return false;
}

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
        if (c && !ctx->outer)
            job->effects[i] = esp__safety(c, codec->error, ctx->config.optimizer, ctx->config.momentum);
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
    /* a group must not reach into another fragment */
    if (!alike || (ctx->outer && ctx->outer->high[1] > 1)) job->config.flags |= ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
    return ESP_OK;
}

/* Copies what the planner needs. */
static esp_status esp__auto_input(esp_ctx *ctx, esp__auto_job *job) {
    const esp_status s = esp__auto_costs(ctx, job);
    if (s) return s;
    esp__calibration_log(ctx, &job->system, job->codecs, job->n_codecs);
    return esp__auto_model(ctx, job);
}

/* ---- one candidate ----------------------------------------------------------------------------------------------- */
/* Returns whether two strategies do the same with every tensor. Only the lines about tensors count: not the first ones,
 * which say how a plan was made, and not the order of operations, which changes with each measurement. */
static bool esp__auto_same(const char *a, const char *b) {
    const char *a_lines = strstr(a, "\ntensor "), *b_lines = strstr(b, "\ntensor ");
    if (!a_lines || !b_lines) return !strcmp(a, b);
    const char *a_end = strstr(a_lines, "\norder "), *b_end = strstr(b_lines, "\norder ");
    const size_t n = a_end ? (size_t)(a_end - a_lines) : strlen(a_lines);
    return n == (b_end ? (size_t)(b_end - b_lines) : strlen(b_lines)) && !memcmp(a_lines, b_lines, n);
}

/* Returns the index of a codec in job->all_codecs, or n_all_codecs. */
static uint32_t esp__auto_codec_at(const esp__auto_job *job, const char *spec) {
    uint32_t c = 0;
    while (c < job->n_all_codecs && strcmp(job->all_codecs[c].spec, spec) != 0) c++;
    return c;
}

static void esp__auto_effect(const esp__auto_job *job, const esp_plan *plan, esp__auto_candidate *c,
                             struct esp__auto_proposal *of) {
    const size_t room = sizeof of->effect;
    char optimizer[ESP__NAME_MAX];
    const esp__effect *worst = NULL;
    const char *spec = "";
    double error = 0.0, elements = 1.0;
    uint32_t n;
    const esp_plan_unit *u = esp_plan_units(plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = esp__auto_codec_at(job, u[i].codec);
        elements += (double)u[i].elements;
        if (!strcmp(u[i].codec, ESP__CODEC_NONE) || k == job->n_all_codecs) continue;
        if (esp__auto_described(job->ctx, u[i].first)) continue; /* its codec is the same in all candidates */
        error += job->all_codecs[k].error * (double)u[i].elements;
        const esp__effect *e = job->effects[k];
        if (e && (!worst || e->slower > worst->slower || (e->slower == worst->slower && !e->loss)))
            worst = e, spec = u[i].codec;
        c->loss = 1e-3;
    }
    c->slower = worst ? worst->slower : 1.0;
    c->loss += error / elements;
    if (!worst) return;
    esp__auto_optimizer(job->ctx, optimizer, sizeof optimizer);
    if (!worst->loss)
        snprintf(of->effect, room,
                 "; what %s costs in loss depends on the optimizer: set esp_config.optimizer or ESPRESSO_OPTIMIZER",
                 spec);
    else if (worst->slower <= 1.0)
        snprintf(of->effect, room, "; expected with optimizer %s: a loss %s", optimizer, worst->loss);
    else
        snprintf(of->effect, room,
                 "; expected with optimizer %s and %s: at first %g times as many steps to the same loss, a loss %s",
                 optimizer, spec, worst->slower, worst->loss);
}

/* Makes a plan of a strategy with these codecs, and other ones only for tensors whose descriptions name them. Reads its
 * report. Returns NULL if none can be made. */
static esp_plan *esp__auto_make(const esp__auto_job *job, const char *strategy, const esp_plan_codec *codecs,
                                uint32_t n, esp_plan_report *r) {
    esp_plan_config config = job->config;
    esp_plan_codec all[ESP__AUTO_CODECS + ESP__CALIBRATION_CODECS];
    esp_plan *plan = NULL;
    if (n) memcpy(all, codecs, n * sizeof *all);
    for (uint32_t c = 0; c < job->n_all_codecs; c++)
        if (!esp__auto_has(all, n, job->all_codecs[c].spec)) all[n + config.n_kept_codecs++] = job->all_codecs[c];
    config.flags |= ESP_PLAN_NO_BOUND | (n ? 0u : ESP_PLAN_NO_COMP);
    config.strategy = strategy;
    *r = (esp_plan_report){.struct_size = sizeof *r};
    if (esp__plan_make_for(job->ctx, &job->model, all, n + config.n_kept_codecs, &job->system, &config, NULL, &plan))
        return NULL;
    esp_plan_report_read(plan, r);
    return plan;
}

/* Adds a plan to the candidates, which then own it, unless one does the same. */
static void esp__auto_add(esp__auto_job *job, esp_plan *plan, const esp_plan_report *r, const char *name) {
    esp__auto_candidate *c = &job->candidates[job->n];
    struct esp__auto_proposal *of = &job->of[job->n];
    if (!plan) return;
    *of = (struct esp__auto_proposal){.plan = plan, .text = strcmp(name, "fp32") ? esp_plan_text(plan) : "fp32"};
    *c = (esp__auto_candidate){.predicted_ns = r->iteration_ns};
    snprintf(c->name, sizeof c->name, "%s", name);
    esp__auto_effect(job, plan, c, of);
    for (uint32_t i = 0; i < job->n; i++) {
        if (!esp__auto_same(job->of[i].text, of->text)) continue;
        esp_plan_free(plan);
        return;
    }
    job->n++;
}

/* Makes a plan of a strategy that is there, which may use all codecs. */
static esp_plan *esp__auto_predict(const esp__auto_job *job, const char *text, esp_plan_report *r) {
    esp_plan_config config = job->config;
    esp_plan *plan = NULL;
    if (!strcmp(text, "fp32")) return esp__auto_make(job, text, NULL, 0, r);
    config.flags |= ESP_PLAN_NO_BOUND;
    config.max_memory_bytes = 0;
    *r = (esp_plan_report){.struct_size = sizeof *r};
    if (esp__plan_make_for(job->ctx, &job->model, job->all_codecs, job->n_all_codecs, &job->system, &config, text,
                           &plan))
        return NULL;
    esp_plan_report_read(plan, r);
    return plan;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */
/* Adds the best of the plans that merge neighbouring tensors into few large groups, with one codec or none. */
static void esp__auto_add_merged(esp__auto_job *job) {
    esp_plan *best = NULL;
    esp_plan_report best_r, r;
    char name[ESP__AUTO_NAME] = "";
    for (uint32_t c = 0; c <= job->n_codecs && !(job->config.flags & ESP_PLAN_NO_MERGE); c++) {
        const bool raw = c == job->n_codecs;
        esp_plan *plan = esp__auto_make(job, raw ? "ddp" : "mergecomp", raw ? NULL : &job->codecs[c], !raw, &r);
        if (!plan || (best && r.iteration_ns >= best_r.iteration_ns) || raw == (r.compressed > 0)) {
            esp_plan_free(plan);
            continue;
        }
        esp_plan_free(best);
        best = plan, best_r = r;
        snprintf(name, sizeof name, "merged %s", raw ? "fp32" : job->codecs[c].spec);
    }
    esp__auto_add(job, best, &best_r, name);
}

/* Adds the groups that were the fastest of those tried. They are active. */
static void esp__auto_add_tried(esp__auto_job *job, const esp__grouping *m) {
    const uint32_t n = job->n;
    char name[ESP__AUTO_NAME];
    esp_plan_report r;
    if (!m->fastest.n) return;
    snprintf(name, sizeof name, "merged %.80s into %u as tried", m->codec, m->fastest.n);
    esp__auto_add(job, esp__auto_predict(job, job->ctx->active.strategy.text, &r), &r, name);
    if (job->n > n) job->candidates[n].ns = m->fastest.ns;
}

/* Adds the candidates that need no search. */
static esp_status esp__auto_add_simple(esp__auto_job *job, double ns) {
    const esp__autopilot *a = esp__autopilot_of(job->ctx);
    const esp__tournament *last = &a->tournament;
    const bool fp32 = job->ctx->active.strategy.hash == a->fp32;
    char name[ESP__AUTO_NAME];
    esp_plan_report r;
    if (!a->forced) {
        esp_plan *now = esp__auto_predict(job, fp32 ? "fp32" : job->ctx->active.strategy.text, &r);
        if (!now) return ESP_E_STATE;
        esp__auto_add(job, now, &r, fp32 ? "fp32" : last->now < last->n ? last->at[last->now].name : "the saved one");
        job->candidates[0].ns = ns;
    }
    esp__auto_add(job, esp__auto_predict(job, "fp32", &r), &r, "fp32");
    for (uint32_t c = 0; c < job->n_codecs; c++) {
        esp_plan *plan = esp__auto_make(job, "layerwise", &job->codecs[c], 1, &r);
        snprintf(name, sizeof name, "layerwise %.100s", job->codecs[c].spec);
        if (plan && r.compressed > job->n_described_units)
            esp__auto_add(job, plan, &r, name);
        else
            esp_plan_free(plan); /* it compresses nothing more: other tensors are small */
    }
    return ESP_OK;
}

ESP__FN esp__auto_job *esp__auto_job_open(esp_ctx *ctx, double ns) {
    static const char *const not_here[] = {"*intra.*", "*inter.*"};
    esp__auto_job *job = ctx->job.rank ? NULL : esp__alloc(ctx, sizeof *job);
    if (!job) return NULL;
    job->ctx = ctx;
    job->slowest = INFINITY;
    job->tensors = esp__alloc(ctx, (uint64_t)ctx->model.n_tensors * sizeof *job->tensors);
    job->config = (esp_plan_config){.struct_size = sizeof job->config,
                                    .strategy = "espresso+",
                                    .min_compress_elements = ctx->model.min_compress_elements,
                                    .max_memory_bytes = ctx->active.most_bytes};
    if (!esp__hierarchical(ctx)) job->config.forbid = not_here, job->config.n_forbid = 2;
    esp_status s = job->tensors ? esp__auto_input(ctx, job) : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    const char *why = esp_last_error(ctx);
    if (!s && (s = esp__auto_add_simple(job, ns)) != ESP_OK) why = esp_last_error(NULL);
    if (s) snprintf(job->failed, sizeof job->failed, "%.500s", why);
    return job;
}

ESP__FN void esp__auto_job_free(esp_ctx *ctx, esp__auto_job *job) {
    if (!job) return;
    for (uint32_t i = 0; i < job->n; i++) esp_plan_free(job->of[i].plan);
    esp__free(ctx, job->tensors);
    esp__free(ctx, job);
}

ESP__FN void esp__auto_job_plan(esp__auto_job *job) {
    const esp__tournament *t = &esp__autopilot_of(job->ctx)->tournament;
    const uint32_t winner = esp__tournament_winner(t);
    char name[ESP__AUTO_NAME];
    esp_plan_report r;
    esp_plan *plan;
    job->slowest = winner < t->n ? t->at[winner].slower : 1.0;
    if (esp__auto_input(job->ctx, job)) {
        snprintf(job->failed, sizeof job->failed, "%.500s", esp_last_error(job->ctx));
        return;
    }
    for (uint32_t i = 0; i < job->n; i++) {
        if (t->at[i].ns > 0.0 || !(plan = esp__auto_predict(job, job->of[i].text, &r))) continue;
        job->candidates[i].predicted_ns = r.iteration_ns;
        esp_plan_free(plan);
    }
    esp__auto_add_tried(job, &esp__autopilot_of(job->ctx)->merge);
    plan = esp__auto_make(job, job->config.strategy, job->codecs, job->n_codecs, &r);
    snprintf(name, sizeof name, "plan of %u units for %u tensors", r.n_units, r.n_tensors);
    esp__auto_add(job, plan, &r, name);
    esp__auto_add_merged(job);
}
