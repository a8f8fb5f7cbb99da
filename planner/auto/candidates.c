/* candidates.c: makes the strategies that a tournament compares (candidates): the active one, fp32, and one that
 * compresses every large tensor with a codec, for each codec; and on the planning thread, the planner's best plan, and
 * the best one that merges tensors into few large groups. */
#include "planner/auto/autopilot.h"

ESP__FN bool esp__auto_has(const esp_plan_codec *codecs, uint32_t n, const char *spec) {
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(codecs[i].spec, spec)) return true;
    return false;
}

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

/* Adds a plan to the candidates, which then own it, unless one has the same text. `text` replaces the plan's own text
 * unless it is NULL. */
static void esp__auto_add(esp__auto_job *job, esp_plan *plan, const esp_plan_report *r, const char *text,
                          const char *name) {
    esp__auto_candidate *c = &job->candidates[job->n];
    struct esp__auto_proposal *of = &job->of[job->n];
    *of = (struct esp__auto_proposal){.plan = plan, .text = text ? text : esp_plan_text(plan)};
    *c = (esp__auto_candidate){.predicted_ns = r->iteration_ns};
    of->hash = esp__auto_text_hash(of->text);
    snprintf(c->name, sizeof c->name, "%s", name);
    esp__auto_effect(job, plan, c, of);
    for (uint32_t i = 0; i < job->n; i++) {
        if (job->of[i].hash != of->hash) continue;
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
    if (best) esp__auto_add(job, best, &best_r, NULL, name);
}

ESP__FN esp_status esp__auto_add_simple(esp__auto_job *job, const char *active, double ns) {
    char name[ESP__AUTO_NAME];
    esp_plan_report r;
    esp_plan *plan = NULL;
    if (job->active) {
        if (!(plan = esp__auto_predict(job, job->active, &r))) return ESP_E_STATE;
        esp__auto_add(job, plan, &r, job->active, active);
        job->candidates[0].ns = ns;
    }
    if ((plan = esp__auto_predict(job, "fp32", &r)) != NULL) esp__auto_add(job, plan, &r, "fp32", "fp32");
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
    char name[ESP__AUTO_NAME];
    esp_plan_report r;
    esp_plan *plan;
    for (uint32_t i = 0; i < job->n; i++) {
        if (job->candidates[i].ns > 0.0 || !(plan = esp__auto_predict(job, job->of[i].text, &r))) continue;
        job->candidates[i].predicted_ns = r.iteration_ns;
        esp_plan_free(plan);
    }
    if ((plan = esp__auto_make(job, job->config.strategy, job->codecs, job->n_codecs, &r)) != NULL) {
        snprintf(name, sizeof name, "plan of %u units for %u tensors", r.n_units, r.n_tensors);
        esp__auto_add(job, plan, &r, NULL, name);
    }
    esp__auto_add_merged(job);
}
