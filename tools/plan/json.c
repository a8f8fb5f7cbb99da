/* json.c: prints a plan as JSON for scripts: one object whose keys do not change. Must not know how the plan was
 * made. */
#include "tools/plan/plan.h"
#include <math.h>

ESP__FN void plan_json_times(tool_json *j, const char *key, const double *ns) {
    json_open(j, key, '{');
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (k < ESP__LANE_OUTER || ns[k] > 0) json_us(j, esp__lane_word(k), ns[k]);
    json_close(j, '}');
}

/* The plan's inputs. */
ESP__FN void plan_json_inputs(tool_json *j, const plan_inputs *in) {
    json_text(j, "model", in->model.name);
    json_text(j, "codec", in->codec_text);
    json_text(j, "system", in->system.name);
    json_number(j, "machines", in->system.machines);
    json_number(j, "ranks_per_machine", in->system.ranks_per_machine);
    json_number(j, "tensors", in->model.n_tensors);
    json_open(j, "noisy", '[');
    const esp__measured *m;
    const char *name;
    for (uint32_t i = 0; (m = plan_measured(in, i, &name)) != NULL; i++)
        if (m->noisy) json_text(j, NULL, name);
    json_close(j, ']');
}

ESP__FN void plan_json_or_null(tool_json *j, const char *key, double ns) { json_us(j, key, ns > 0 ? ns : NAN); }

/* The report; values that were not computed are null. */
ESP__FN void plan_json_report(tool_json *j, const plan_inputs *in, const plan_made *m) {
    const esp_plan_report *r = &m->report;
    json_text(j, "strategy", m->name);
    json_us(j, "fp32_us", r->fp32_ns);
    json_us(j, "iteration_us", r->iteration_ns);
    plan_json_or_null(j, "bound_us", r->bound_ns);
    plan_json_or_null(j, "bound_any_us", r->bound_any_ns);
    plan_json_or_null(j, "free_compression_us", r->free_compression_ns);
    json_number(j, "gap_percent", plan_gap_percent(in, r));
    json_number(j, "speedup", r->fp32_ns / r->iteration_ns);
    json_number(j, "memory_bytes", (double)r->memory_bytes);
    json_us(j, "plan_us", r->plan_ns);
    json_number(j, "compressed", r->compressed);
    json_number(j, "n_units", r->n_units);
    json_us(j, "exposed_communication_us", r->exposed_communication_ns);
    json_us(j, "exposed_compression_us", r->exposed_compression_ns);
    json_number(j, "intra_bytes", (double)r->intra_bytes);
    json_number(j, "inter_bytes", (double)r->inter_bytes);
    plan_json_times(j, "lanes_us", r->lane_ns);
    plan_json_times(j, "bubbles_us", r->bubble_ns);
    json_open(j, "prices", '{');
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (k < ESP__LANE_OUTER || r->price[k] > 0) json_number(j, esp__lane_word(k), r->price[k]);
    json_close(j, '}');
}

static void plan_json_units(tool_json *j, const plan_inputs *in, const plan_made *m) {
    json_open(j, "units", '[');
    for (uint32_t u = 0; u < m->n_units; u++) {
        const esp_plan_unit *unit = &m->units[u];
        json_open(j, NULL, '{');
        json_open(j, "tensors", '[');
        for (uint32_t t = 0; t < unit->n_tensors; t++) json_text(j, NULL, in->model.tensors[unit->first + t].name);
        json_close(j, ']');
        json_number(j, "begin", (double)unit->begin);
        json_number(j, "elements", (double)unit->elements);
        json_text(j, "codec", unit->codec);
        json_text(j, "option", unit->option);
        json_close(j, '}');
    }
    json_close(j, ']');
}

ESP__FN void plan_json_plan(tool_json *j, const plan_inputs *in, const plan_made *m) {
    plan_json_inputs(j, in);
    plan_json_report(j, in, m);
    plan_json_units(j, in, m);
}

/* Prints the JSON text to stdout. */
ESP__FN int plan_json_out(const plan_inputs *in, tool_json *j) {
    const int failed = j->text.failed || esp__output_write("-", j->text.data, j->text.len) != ESP_OK;
    if (failed) tool_fail(in->command, "%s", j->text.failed ? "out of memory" : esp_last_error(NULL));
    esp__text_free(&j->text);
    return failed ? TOOL_FAILED : TOOL_OK;
}
