/* json.c: prints a plan as one JSON object for scripts. Its keys stay the same in later versions. */
#include "tools/plan/plan.h"
#include <math.h>

ESP__FN void plan_json_times(json_t *to, const char *key, const double *ns) {
    json_t *times = json_add(to, key, json_object());
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (k < ESP__LANE_OUTER || ns[k] > 0) json_us(times, esp__lane_word(k), ns[k]);
}

ESP__FN void plan_json_inputs(json_t *j, const plan_inputs *in) {
    json_text(j, "model", in->model.name);
    json_text(j, "codec", in->codec_text);
    json_text(j, "system", in->system.name);
    json_double(j, "machines", in->system.machines);
    json_double(j, "ranks_per_machine", in->system.ranks_per_machine);
    json_double(j, "tensors", in->model.n_tensors);
    json_t *noisy = json_add(j, "noisy", json_array());
    const esp__measured *m;
    const char *name;
    for (uint32_t i = 0; (m = plan_measured(in, i, &name)) != NULL; i++)
        if (m->noisy) json_text(noisy, NULL, name);
}

ESP__FN void plan_json_or_null(json_t *j, const char *key, double ns) { json_us(j, key, ns > 0 ? ns : NAN); }

ESP__FN void plan_json_report(json_t *j, const plan_made *m) {
    const esp_plan_report *r = &m->report;
    json_text(j, "strategy", m->name);
    json_us(j, "fp32_us", r->fp32_ns);
    json_us(j, "iteration_us", r->iteration_ns);
    plan_json_or_null(j, "bound_us", r->bound_ns);
    plan_json_or_null(j, "free_compression_us", r->free_compression_ns);
    json_double(j, "gap_percent", plan_gap_percent(r));
    json_double(j, "speedup", r->fp32_ns / r->iteration_ns);
    json_double(j, "memory_bytes", (double)r->memory_bytes);
    json_us(j, "plan_us", r->plan_ns);
    json_double(j, "compressed", r->compressed);
    json_double(j, "n_units", r->n_units);
    json_us(j, "exposed_communication_us", r->exposed_communication_ns);
    json_us(j, "exposed_compression_us", r->exposed_compression_ns);
    json_double(j, "intra_bytes", (double)r->intra_bytes);
    json_double(j, "inter_bytes", (double)r->inter_bytes);
    plan_json_times(j, "lanes_us", r->lane_ns);
    plan_json_times(j, "bubbles_us", r->bubble_ns);
}

static void plan_json_units(json_t *j, const plan_inputs *in, const plan_made *m) {
    json_t *units = json_add(j, "units", json_array());
    for (uint32_t u = 0; u < m->n_units; u++) {
        const esp_plan_unit *unit = &m->units[u];
        json_t *one = json_add(units, NULL, json_object()), *tensors = json_add(one, "tensors", json_array());
        for (uint32_t t = 0; t < unit->n_tensors; t++)
            json_text(tensors, NULL, in->model.tensors[unit->first + t].name);
        json_double(one, "begin", (double)unit->begin);
        json_double(one, "elements", (double)unit->elements);
        json_text(one, "codec", unit->codec);
        json_text(one, "option", unit->option);
    }
}

ESP__FN void plan_json_plan(json_t *j, const plan_inputs *in, const plan_made *m) {
    plan_json_inputs(j, in);
    plan_json_report(j, m);
    plan_json_units(j, in, m);
}
