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

/* Makes a plan by the named strategy, or the planner's best plan if `strategy` is NULL. `flags` are added to
 * in->config.flags. */
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

ESP__FN double plan_gap_percent(const esp_plan_report *r) {
    return r->bound_ns > 0 ? (r->iteration_ns / r->bound_ns - 1) * 100 : NAN;
}
