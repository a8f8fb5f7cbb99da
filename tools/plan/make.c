/* make.c: makes plans by the library's public functions. */
#include "tools/plan/plan.h"
#include "tools/common/progress.h"
#include <math.h>

static esp_status plan_take(plan_made *m, const char *name) {
    m->name = name;
    m->report.struct_size = sizeof m->report;
    const esp_status s = esp_plan_report_read(m->plan, &m->report);
    m->units = esp_plan_units(m->plan, &m->n_units);
    m->events = esp_plan_events(m->plan, &m->n_events);
    return s;
}

/* Makes a plan by the named strategy or, if that is NULL, the best plan. `flags` are added to those in `in`. */
ESP__FN esp_status plan_make(const plan_inputs *in, const char *strategy, uint32_t flags, plan_made *out) {
    esp_plan_config config = in->config;
    memset(out, 0, sizeof *out);
    config.strategy = strategy;
    config.flags |= flags;
    progress_set("espresso %s: looking for %s, %u tensors", in->command->name, strategy ? strategy : "espresso+",
                 in->model.n_tensors);
    const esp_status s = esp_plan_make(&in->model, in->codecs, in->n_codecs, &in->system, &config, &out->plan);
    progress_done();
    return s ? s : plan_take(out, strategy ? strategy : "espresso+");
}

ESP__FN esp_status plan_simulate(const plan_inputs *in, const char *text, const char *name, plan_made *out) {
    memset(out, 0, sizeof *out);
    progress_set("espresso %s: simulating %s", in->command->name, name);
    const esp_status s =
        esp_plan_simulate(&in->model, in->codecs, in->n_codecs, &in->system, &in->config, text, &out->plan);
    progress_done();
    return s ? s : plan_take(out, name);
}

ESP__FN void plan_free(plan_made *m) {
    if (m->plan) esp_plan_free(m->plan);
    memset(m, 0, sizeof *m);
}

/* Returns the time of a step without communication, in ns. */
ESP__FN double plan_alone_ns(const plan_inputs *in) {
    double ns = in->model.forward_ns + in->model.update_ns;
    for (uint32_t t = 0; t < in->model.n_tensors; t++) ns += in->model.tensors[t].compute_ns;
    return ns;
}

/* Returns a lower bound of the step time of all plans that the flags allow, or 0 if none was computed. */
ESP__FN double plan_bound(const plan_inputs *in, const esp_plan_report *r) {
    const uint32_t as_given = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
    return (in->config.flags & as_given) == as_given ? r->bound_ns : r->bound_any_ns;
}

ESP__FN double plan_gap_percent(const plan_inputs *in, const esp_plan_report *r) {
    const double bound = plan_bound(in, r);
    return bound > 0 ? (r->iteration_ns / bound - 1) * 100 : NAN;
}
