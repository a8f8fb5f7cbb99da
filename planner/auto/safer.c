/* safer.c: among plans with different codecs, finds the one that takes the least time to the same loss, and
 * describes a plan's effect on the loss. */
#include "planner/auto/autopilot.h"

ESP__FN esp_status esp__auto_make(const esp__auto_job *job, const esp_plan_codec *codecs, uint32_t n,
                                  const esp_plan_config *config, esp_plan **out, esp_plan_report *r) {
    const esp_status s = esp__plan_make_for(job->ctx, &job->model, codecs, n, &job->system, config, NULL, out);
    *r = (esp_plan_report){.struct_size = sizeof *r};
    if (!s) esp_plan_report_read(*out, r);
    return s;
}

/* Returns the step time to expect from a plan: the measured step time, minus what the plan saves by prediction. Time
 * that the prediction of the active strategy does not explain stays after the change. */
ESP__FN double esp__auto_promise(const esp__auto_job *job, double plan_ns) {
    return job->base_ns > job->explained_ns ? job->base_ns - (job->explained_ns - plan_ns) : plan_ns;
}

static const esp__effect *esp__auto_effect_of(const esp__auto_job *job, const char *spec) {
    for (uint32_t c = 0; c < job->n_all_codecs; c++)
        if (!strcmp(job->all_codecs[c].spec, spec)) return job->effects[c];
    return NULL;
}

ESP__FN double esp__auto_slower(const esp__auto_job *job, const char *spec) {
    const esp__effect *e = esp__auto_effect_of(job, spec);
    return e ? e->slower : 1.0;
}

/* Returns the worst effect of the plan's codecs on the loss and sets *spec to that codec. Without codecs: NULL. */
static const esp__effect *esp__auto_plan_effect(const esp__auto_job *job, const esp_plan *plan, const char **spec) {
    const esp__effect *most = NULL;
    uint32_t n;
    const esp_plan_unit *u = esp_plan_units(plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        const esp__effect *e = strcmp(u[i].codec, ESP__CODEC_NONE) ? esp__auto_effect_of(job, u[i].codec) : NULL;
        if (!e || (most && (e->slower < most->slower || (e->slower == most->slower && e->loss)))) continue;
        most = e;
        *spec = u[i].codec;
    }
    return most;
}

ESP__FN void esp__auto_effect_text(const esp__auto_job *job, char *text, size_t room) {
    const char *spec = NULL;
    const esp__effect *e = esp__auto_plan_effect(job, job->plan, &spec);
    *text = 0;
    if (e && !e->loss)
        snprintf(text, room,
                 "; what %s costs in loss depends on the optimizer: set esp_config.optimizer or ESPRESSO_OPTIMIZER",
                 spec);
    else if (e && e->slower <= 1.0)
        snprintf(text, room, "; expected with optimizer %s: a loss %s", job->optimizer, e->loss);
    else if (e)
        snprintf(text, room,
                 "; expected with optimizer %s and %s: at first %g times as many steps to the same loss, a loss %s",
                 job->optimizer, spec, e->slower, e->loss);
}

/* Returns the time to the same loss, by which plans are compared: expected step time x relative number of steps. */
static double esp__auto_cost(const esp__auto_job *job, const esp_plan *plan, const esp_plan_report *r) {
    const char *spec;
    const esp__effect *e = esp__auto_plan_effect(job, plan, &spec);
    return esp__auto_promise(job, r->iteration_ns) * job->misjudged[r->compressed != 0] * (e ? e->slower : 1.0);
}

/* Replaces the best plan with a plan of safer codecs while that takes less time to the same loss. It repeatedly
 * leaves out the codecs that slow training as much as the plan's worst. */
ESP__FN void esp__auto_safer(esp__auto_job *job, esp_plan_report *best) {
    const char *spec = NULL;
    const esp__effect *worst = esp__auto_plan_effect(job, job->plan, &spec);
    const double first_ns = esp__auto_promise(job, best->iteration_ns);
    double least = esp__auto_cost(job, job->plan, best), limit = worst ? worst->slower : 1.0;
    char first[ESP__SPEC_MAX];
    snprintf(first, sizeof first, "%s", spec ? spec : "");
    for (const double most = limit; limit > 1.0 && !job->kept;) {
        esp_plan_codec codecs[ESP__CALIBRATION_CODECS];
        esp_plan_config config = job->config;
        esp_plan_report r;
        esp_plan *other = NULL;
        uint32_t n = 0;
        for (uint32_t c = 0; c < job->n_codecs; c++)
            if (esp__auto_slower(job, job->codecs[c].spec) < limit) codecs[n++] = job->codecs[c];
        config.flags |= ESP_PLAN_NO_BOUND | (n ? 0u : ESP_PLAN_NO_COMP);
        if (esp__auto_make(job, codecs, n, &config, &other, &r)) return;
        const esp__effect *e = esp__auto_plan_effect(job, other, &spec);
        const double cost = esp__auto_cost(job, other, &r);
        limit = e ? e->slower : 1.0;
        if (cost > least) {
            esp_plan_free(other);
            continue;
        }
        least = cost;
        r.bound_ns = best->bound_ns;
        *best = r;
        esp_plan_free(job->plan);
        job->plan = other;
        snprintf(
            job->passed_over, sizeof job->passed_over,
            "; passed over: %s, with which a step would take %.3f ms, but training %g times as many steps at first",
            first, first_ns / 1e6, most);
    }
}
