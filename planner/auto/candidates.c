/* candidates.c: makes the strategies that a tournament compares (candidates): the active one, fp32, and one that
 * compresses every large tensor with a codec, for each codec; and on the planning thread, the planner's best plan, its
 * best plan with codecs that lose less, and the best one that merges tensors into few large groups. */
#include "planner/auto/autopilot.h"

/* Returns a hash of a plan's text without comments, which is the same if the plan is made twice. */
static uint64_t esp__auto_text_hash(const char *text) {
    uint64_t h = ESP__HASH0;
    while (*text) {
        size_t len = strcspn(text, "\n");
        if (*text != '#') h = esp__hash64(h, text, len + (text[len] == '\n'));
        text += len + (text[len] == '\n');
    }
    return h;
}

/* Returns the index of a codec in job->all_codecs, or n_all_codecs. */
static uint32_t esp__auto_codec_at(const esp__auto_job *job, const char *spec) {
    uint32_t c = 0;
    while (c < job->n_all_codecs && strcmp(job->all_codecs[c].spec, spec) != 0) c++;
    return c;
}

static double esp__auto_slower(const esp__auto_job *job, const char *spec) {
    const uint32_t c = esp__auto_codec_at(job, spec);
    return c < job->n_all_codecs && job->effects[c] ? job->effects[c]->slower : 1.0;
}

static void esp__auto_effect(const esp__auto_job *job, const esp_plan *plan, esp__auto_candidate *c,
                             struct esp__auto_proposal *of) {
    const size_t room = sizeof of->effect;
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
    if (!worst->loss)
        snprintf(of->effect, room,
                 "; what %s costs in loss depends on the optimizer: set esp_config.optimizer or ESPRESSO_OPTIMIZER",
                 spec);
    else if (worst->slower <= 1.0)
        snprintf(of->effect, room, "; expected with optimizer %s: a loss %s", job->optimizer, worst->loss);
    else
        snprintf(of->effect, room,
                 "; expected with optimizer %s and %s: at first %g times as many steps to the same loss, a loss %s",
                 job->optimizer, spec, worst->slower, worst->loss);
}

/* Corrects a predicted step time by what the active strategy shows: if its steps take longer than predicted, adds the
 * difference; if they are shorter, scales the prediction. */
static double esp__auto_promise(const esp__auto_job *job, double plan_ns) {
    const double measured = job->active_ns, explained = job->explained_ns;
    if (!(explained > 0.0 && measured > 0.0)) return plan_ns;
    return measured > explained ? measured - explained + plan_ns : plan_ns * measured / explained;
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

/* Adds a plan to the candidates, which then own it. `text` replaces the plan's own text unless it is NULL. Returns the
 * new candidate, or an earlier one with the same text. */
static esp__auto_candidate *esp__auto_add(esp__auto_job *job, esp_plan *plan, const esp_plan_report *r,
                                          const char *text, const char *name) {
    esp__auto_candidate *c = &job->candidates[job->n];
    struct esp__auto_proposal *of = &job->of[job->n];
    *of = (struct esp__auto_proposal){.plan = plan, .text = text ? text : esp_plan_text(plan)};
    *c = (esp__auto_candidate){.predicted_ns = esp__auto_promise(job, r->iteration_ns)};
    of->hash = esp__auto_text_hash(of->text);
    snprintf(c->name, sizeof c->name, "%s", name);
    esp__auto_effect(job, plan, c, of);
    for (uint32_t i = 0; i < job->n; i++) {
        if (job->of[i].hash != of->hash) continue;
        esp_plan_free(plan);
        return &job->candidates[i];
    }
    job->n++;
    return c;
}

/* Makes a plan of a strategy that is there. It may use all codecs, and break constraints of new strategies. */
static esp_plan *esp__auto_predict(const esp__auto_job *job, const char *text, esp_plan_report *r) {
    esp_plan_config config = job->config;
    esp_plan_model model = job->model;
    esp_plan *plan = NULL;
    config.flags |= ESP_PLAN_NO_BOUND;
    config.n_forbid = 0;
    config.max_memory_bytes = 0;
    model.tensors = job->free_tensors;
    *r = (esp_plan_report){.struct_size = sizeof *r};
    if (esp__plan_make_for(job->ctx, &model, job->all_codecs, job->n_all_codecs, &job->system, &config, text, &plan))
        return NULL;
    esp_plan_report_read(plan, r);
    return plan;
}

/* Adds the planner's best plan with these codecs. Returns its candidate, or NULL. */
static const esp__auto_candidate *esp__auto_add_plan(esp__auto_job *job, const esp_plan_codec *codecs, uint32_t n) {
    char name[ESP__AUTO_NAME];
    esp_plan_report r;
    esp_plan *plan = esp__auto_make(job, job->config.strategy, codecs, n, &r);
    uint32_t n_units, tensors[ESP__AUTO_CODECS] = {0};
    if (!plan) return NULL;
    const esp_plan_unit *u = esp_plan_units(plan, &n_units);
    size_t at = (size_t)snprintf(name, sizeof name, "plan of %u units for %u tensors", r.n_units, r.n_tensors);
    for (uint32_t c = 0; c < n && at < sizeof name; c++) {
        for (uint32_t i = 0; i < n_units; i++)
            tensors[c] += !strcmp(u[i].codec, codecs[c].spec) && !u[i].begin ? u[i].n_tensors : 0;
        if (tensors[c]) at += (size_t)snprintf(name + at, sizeof name - at, ", %u %s", tensors[c], codecs[c].spec);
    }
    return esp__auto_add(job, plan, &r, NULL, name);
}

/* Adds the planner's best plan. If that plan needs more steps to the same loss, or has a lossy codec, also adds the
 * best plan with codecs that lose less. */
static void esp__auto_add_plans(esp__auto_job *job) {
    esp_plan_codec codecs[ESP__AUTO_CODECS];
    uint32_t n = 0;
    const esp__auto_candidate *best = esp__auto_add_plan(job, job->codecs, job->n_codecs);
    if (!best || !(best->loss > 0.0)) return;
    for (uint32_t c = 0; c < job->n_codecs; c++)
        if (best->slower > 1.0 ? esp__auto_slower(job, job->codecs[c].spec) <= 1.0 : !job->codecs[c].lossy)
            codecs[n++] = job->codecs[c];
    if (n < job->n_codecs) esp__auto_add_plan(job, codecs, n);
}

/* Adds the best of the plans that merge neighbouring tensors into few large groups, with one codec or none. */
static void esp__auto_add_merged(esp__auto_job *job) {
    esp_plan *best = NULL;
    esp_plan_report best_r, r;
    double least = 0.0;
    char name[ESP__AUTO_NAME] = "";
    for (uint32_t c = 0; c <= job->n_codecs && !(job->config.flags & ESP_PLAN_NO_MERGE); c++) {
        const bool raw = c == job->n_codecs;
        const char *spec = raw ? "fp32" : job->codecs[c].spec;
        esp_plan *plan = esp__auto_make(job, raw ? "ddp" : "mergecomp", raw ? NULL : &job->codecs[c], !raw, &r);
        const double cost = esp__auto_promise(job, r.iteration_ns) * (raw ? 1.0 : esp__auto_slower(job, spec));
        if (!plan || (best && cost >= least) || raw == (r.compressed > 0)) {
            esp_plan_free(plan);
            continue;
        }
        esp_plan_free(best);
        best = plan, best_r = r, least = cost;
        snprintf(name, sizeof name, "merged %s", spec);
    }
    if (best) esp__auto_add(job, best, &best_r, NULL, name);
}

/* The active strategy is a candidate unless its compression errors were too large. */
ESP__FN esp_status esp__auto_add_simple(esp__auto_job *job) {
    const esp__auto_candidate now = job->candidates[0];
    char name[ESP__AUTO_NAME];
    esp_plan_report r;
    esp_plan *plan = esp__auto_predict(job, job->active, &r);
    if (!plan && !job->forced) return ESP_E_STATE;
    job->explained_ns = plan ? r.iteration_ns : 0.0;
    if (plan && !job->forced) {
        esp__auto_candidate *c = esp__auto_add(job, plan, &r, job->of[0].text, now.name);
        c->ns = now.ns, c->spread = now.spread, c->n = now.n, c->stale = now.stale;
    } else {
        esp_plan_free(plan);
    }
    if ((!job->n || strcmp(job->of[0].text, "fp32") != 0) && (plan = esp__auto_make(job, "fp32", NULL, 0, &r)) != NULL)
        esp__auto_add(job, plan, &r, "fp32", "fp32");
    for (uint32_t c = 0; c < job->n_codecs; c++) {
        plan = esp__auto_make(job, "layerwise", &job->codecs[c], 1, &r);
        snprintf(name, sizeof name, "layerwise %.100s", job->codecs[c].spec);
        if (plan && r.compressed > job->n_described_units)
            esp__auto_add(job, plan, &r, NULL, name);
        else
            esp_plan_free(plan); /* it compresses nothing more: other tensors are small */
    }
    return ESP_OK;
}

ESP__FN void esp__auto_add_planned(esp__auto_job *job) {
    esp_plan_report r;
    esp_plan *plan = esp__auto_predict(job, job->active, &r);
    job->explained_ns = plan ? r.iteration_ns : 0.0;
    esp_plan_free(plan);
    for (uint32_t i = 0; i < job->n; i++) {
        if (job->candidates[i].n || !(plan = esp__auto_predict(job, job->of[i].text, &r))) continue;
        job->candidates[i].predicted_ns = esp__auto_promise(job, r.iteration_ns);
        esp_plan_free(plan);
    }
    esp__auto_add_plans(job);
    esp__auto_add_merged(job);
}
