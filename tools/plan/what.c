/* what.c: `plan --what-if` changes the inputs, and shows the step times of the old plan and of a new one. */
#include "tools/plan/plan.h"
#include <math.h>

/* Predicts the step times of the old plan and of a new one after a change. Returns TOOL_OK, or the exit status after
 * it has printed an error. */
ESP__FN int plan_try(const plan_inputs *in, const plan_made *m, const char *strategy, const char *change,
                     plan_outcome *out) {
    plan_changed changed;
    plan_made kept = {0}, replanned = {0};
    int status = TOOL_OK;
    change_make(in, change, &changed);
    *out = (plan_outcome){change, NAN, NAN, NAN, NAN};
    /* fails if the old plan is impossible now: one machine, for example, has no communication between machines */
    if (plan_simulate(&changed.in, esp_plan_text(m->plan), m->name, &kept) == ESP_OK)
        out->kept_ns = kept.report.iteration_ns;
    if (!in->simulated) {
        if (plan_make(&changed.in, strategy, 0, &replanned) != ESP_OK)
            status = tool_fail(in->command, "--what-if %s: %s", change, esp_last_error(NULL));
        else
            out->planned_ns = replanned.report.iteration_ns;
        /* the search may miss the best plan, so the old one may be better than the new one */
        if (!strategy && out->kept_ns < out->planned_ns) out->planned_ns = out->kept_ns;
    }
    const plan_made *either = replanned.plan ? &replanned : &kept;
    if (status == TOOL_OK && either->plan) {
        out->fp32_ns = either->report.fp32_ns;
        out->bound_ns = either->report.bound_ns;
    }
    plan_free(&kept);
    plan_free(&replanned);
    change_free(&changed);
    return status;
}

static const char *plan_time_or_dash(double ns) { return isfinite(ns) && ns > 0 ? tool_time(ns) : "-"; }

ESP__FN const char *plan_change_of(double ns, double from) {
    char *out = tool_scratch();
    if (!isfinite(ns)) return "";
    const double percent = (ns / from - 1) * 100;
    snprintf(out, 32, fabs(percent) < 0.05 ? "same" : "%+.1f%%", percent);
    return out;
}

ESP__FN void plan_print_outcomes(FILE *to, const plan_made *m, double bound, const plan_outcome *o, uint32_t n) {
    const double now = m->report.iteration_ns;
    size_t wide = 8;
    for (uint32_t i = 0; i < n; i++)
        if (strlen(o[i].change) > wide) wide = strlen(o[i].change);
    fprintf(to, "\n%-*s  %10s  %10s %8s  %10s %8s  %10s\n", (int)wide, "what if", "fp32", "plan kept", "", "new plan",
            "", "bound");
    fprintf(to, "%-*s  %10s  %10s %8s  %12s %8s  %10s\n", (int)wide, "as it is", tool_time(m->report.fp32_ns),
            tool_time(now), "", tool_time(now), "", plan_time_or_dash(bound));
    for (uint32_t i = 0; i < n; i++)
        fprintf(to, "%-*s  %10s  %10s %8s  %12s %8s  %10s\n", (int)wide, o[i].change, plan_time_or_dash(o[i].fp32_ns),
                plan_time_or_dash(o[i].kept_ns), plan_change_of(o[i].kept_ns, now), plan_time_or_dash(o[i].planned_ns),
                plan_change_of(o[i].planned_ns, now), plan_time_or_dash(o[i].bound_ns));
}

ESP__FN void plan_json_outcomes(json_t *j, const plan_outcome *o, uint32_t n) {
    json_t *out = json_add(j, "what_if", json_array());
    for (uint32_t i = 0; i < n; i++) {
        json_t *row = json_add(out, NULL, json_object());
        json_text(row, "change", o[i].change);
        json_us(row, "fp32_us", o[i].fp32_ns);
        json_us(row, "kept_us", o[i].kept_ns);
        json_us(row, "iteration_us", o[i].planned_ns);
        json_us(row, "bound_us", o[i].bound_ns);
    }
}
