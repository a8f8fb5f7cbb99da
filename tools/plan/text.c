/* text.c: prints a plan as text. */
#include "tools/plan/plan.h"
#include <math.h>

enum { PLAN_ROWS_MAX = 12 };

ESP__FN void plan_line(FILE *to, const char *label, const char *fmt, ...) {
    va_list ap;
    fprintf(to, "%-11s ", label);
    va_start(ap, fmt);
    vfprintf(to, fmt, ap);
    va_end(ap);
    fputc('\n', to);
}

ESP__FN const char *plan_s(uint64_t n) { return n == 1 ? "" : "s"; }

ESP__FN void plan_print_inputs(FILE *to, const plan_inputs *in) {
    double elements = 0;
    for (uint32_t i = 0; i < in->model.n_tensors; i++) elements += (double)in->model.tensors[i].elements;
    plan_line(to, "model", "%s: %u tensor%s, %s elements, %s", in->model.name, in->model.n_tensors,
              plan_s(in->model.n_tensors), tool_count(elements), tool_bytes(4 * elements));
    plan_line(to, in->n_codecs > 1 ? "codecs" : "codec", "%s", in->codec_text);
    char racks[40] = "", noisy[PLAN_NOISY];
    if (in->system.n_outer) snprintf(racks, sizeof racks, "%u racks of ", in->system.outer[0].size);
    plan_line(to, "system", "%s: %s%u machine%s with %u rank%s each", in->system.name, racks, in->system.machines,
              plan_s(in->system.machines), in->system.ranks_per_machine, plan_s(in->system.ranks_per_machine));
    if (plan_noisy(in, noisy, sizeof noisy)) plan_line(to, "noisy", "%s", noisy);
}

static void plan_print_bounds(FILE *to, const esp_plan_report *r) {
    const double gap = plan_gap_percent(r);
    if (isfinite(gap))
        plan_line(to, "optimum", "the plan is at most %.2f%% above it: nothing is faster than %s", gap,
                  tool_time(r->bound_ns));
    if (r->free_compression_ns > 0)
        plan_line(to, "", "were compressing free, a step would take %s", tool_time(r->free_compression_ns));
}

/* Prints how long cores and links are busy in a step: those whose bits are set in `which`. */
static void plan_busy_line(FILE *to, const char *label, const esp_plan_report *r, uint32_t which) {
    esp__text busy = {NULL, 0, 0, 0, NULL};
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (which >> k & 1)
            esp__text_add(&busy, "%s%s %s (%.0f%%)", busy.len ? ", " : "", esp__lane_word(k), tool_time(r->lane_ns[k]),
                          r->iteration_ns > 0 ? 100 * r->lane_ns[k] / r->iteration_ns : 0);
    plan_line(to, label, "%s", busy.data ? busy.data : "");
    esp__text_free(&busy);
}

static void plan_print_lanes(FILE *to, const plan_inputs *in, const esp_plan_report *r) {
    static const uint32_t cores[] = {0, 1u << ESP__LANE_COMPUTE, 1u << ESP__LANE_COMPUTE | 1u << ESP__LANE_CPU,
                                     ESP__CORE_LANES};
    const uint32_t n = in->system.cores_per_rank;
    uint32_t which = 0;
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (k < ESP__LANE_OUTER || r->lane_ns[k] > 0) which |= 1u << k;
    if (!n) {
        plan_busy_line(to, "lanes busy", r, which);
        return;
    }
    plan_busy_line(to, n > 1 ? "cores busy" : "core busy", r, cores[n]);
    const double around = in->model.forward_ns + in->model.update_ns;
    plan_line(to, "", "beside forward and update, which take compute %s (%.0f%%)", tool_time(around),
              r->iteration_ns > 0 ? 100 * around / r->iteration_ns : 0);
    plan_busy_line(to, "links busy", r, which & ESP__LINK_LANES);
}

static void plan_print_options(FILE *to, const plan_made *m) {
    uint32_t n;
    plan_row *rows = plan_rows(m, &n);
    size_t wide = 5;
    for (uint32_t k = 0; k < n && k < PLAN_ROWS_MAX; k++)
        if (strlen(rows[k].codec) > wide) wide = strlen(rows[k].codec);
    fprintf(to, "\n%7s %7s %9s  %-*s  option\n", "units", "tensors", "elements", (int)wide, "codec");
    for (uint32_t k = 0; k < n && k < PLAN_ROWS_MAX; k++)
        fprintf(to, "%7u %7u %9s  %-*s  %s\n", rows[k].units, rows[k].tensors, tool_count((double)rows[k].elements),
                (int)wide, rows[k].codec, rows[k].option);
    if (n > PLAN_ROWS_MAX) fprintf(to, "        and %u more: --json, or -o, has them all\n", n - PLAN_ROWS_MAX);
    free(rows);
}

static void plan_print_units(FILE *to, const plan_inputs *in, const plan_made *m) {
    const esp_plan_report *r = &m->report;
    const plan_shape s = plan_shape_of(in, m);
    esp__text how = {NULL, 0, 0, 0, NULL};
    if (s.groups) esp__text_add(&how, "; %u tensors are in %u group%s", s.grouped_tensors, s.groups, plan_s(s.groups));
    if (s.split_tensors)
        esp__text_add(&how, "; %u %s in %u chunks", s.split_tensors, s.split_tensors == 1 ? "is" : "are", s.chunks);
    plan_line(to, "compressed", "%u of %u tensor%s%s", r->compressed, r->n_tensors, plan_s(r->n_tensors),
              how.data ? how.data : "");
    esp__text_free(&how);
}

ESP__FN void plan_print(FILE *to, const plan_inputs *in, const plan_made *m) {
    const esp_plan_report *r = &m->report;
    plan_print_inputs(to, in);
    plan_line(to, "strategy", "%s, %s in %s", m->name, in->simulated ? "simulated" : "found", tool_time(r->plan_ns));
    /* the errors are those of trainers in the table of docs/plan/truth.md */
    plan_line(to, "step",
              "fp32 %s -> %s: %.2f times as fast (such predictions were wrong by 4.5%% in the median, "
              "and 90%% of them by at most 15%%)",
              tool_time(r->fp32_ns), tool_time(r->iteration_ns),
              r->iteration_ns > 0 ? r->fp32_ns / r->iteration_ns : 1);
    plan_print_bounds(to, r);
    plan_print_units(to, in, m);
    plan_line(to, "exposed", "communication %s, compression %s", tool_time(r->exposed_communication_ns),
              tool_time(r->exposed_compression_ns));
    plan_print_lanes(to, in, r);
    plan_line(to, "traffic", "a rank inside its machine %s, a machine's NIC %s", tool_bytes((double)r->intra_bytes),
              tool_bytes((double)r->inter_bytes));
    plan_line(to, "memory", "%s a rank, for residuals and payloads", tool_bytes((double)r->memory_bytes));
    plan_print_options(to, m);
}
