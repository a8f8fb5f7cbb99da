/* report.c: prints predicted and measured steps as a table, as JSON or as a page. */
#include "tools/replay/replay.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/quantile.h"
#include "tools/common/json.h"

enum { REPORT_NAME = 48 };

/* ---- steps ------------------------------------------------------------------------------------------------------- */
static double report_quantile(const replay_strategy *s, double part) {
    return esp__quantile(s->step_ns, s->n_steps, part);
}
static double report_median(const replay_strategy *s) { return report_quantile(s, 0.5); }
static bool report_noisy(const replay_strategy *s) {
    return report_quantile(s, 0.9) - report_quantile(s, 0.1) > REPLAY_NOISY * report_median(s);
}
static double report_error(const replay_strategy *s) { return s->predicted.report.iteration_ns / report_median(s) - 1; }

static void report_print(FILE *to, const replay_run *r) {
    plan_print_inputs(to, &r->in);
    if (r->stretch > 1)
        plan_line(to, "cores", "shared by ranks, so that computing takes %.2g times as long as in the model",
                  r->stretch);
    fprintf(to, "\n%-24s %10s %10s %10s %10s %8s\n", "strategy", "predicted", "measured", "10%", "90%", "error");
    for (uint32_t i = 0; i < r->n_list; i++) {
        const replay_strategy *s = &r->list[i];
        fprintf(to, "%-24s %10s %10s %10s %10s %+7.1f%%%s\n", s->name, tool_time(s->predicted.report.iteration_ns),
                tool_time(report_median(s)), tool_time(report_quantile(s, 0.1)), tool_time(report_quantile(s, 0.9)),
                100 * report_error(s), report_noisy(s) ? "  noisy" : "");
    }
    fprintf(to, "\nmeasured: median of %u steps of the slowest rank; error: predicted over measured\n",
            r->list[0].n_steps);
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */
static bool report_has(const replay_strategy *s, uint32_t event) { return s->measured[event].end_ns != UINT64_MAX; }
static double report_takes(const esp_plan_event *e) { return (double)(e->end_ns - e->start_ns); }

/* Adds up how long each core or link was busy, over the events that were measured. */
static void report_lanes(const replay_strategy *s, const esp_plan_event *events, double lane_ns[ESP__LANES]) {
    memset(lane_ns, 0, ESP__LANES * sizeof *lane_ns);
    for (uint32_t i = 0; i < s->predicted.n_events; i++)
        for (uint32_t l = 0; l < ESP__LANES && report_has(s, i); l++)
            if (events[i].lanes >> l & 1) lane_ns[l] += report_takes(&events[i]);
}

typedef struct report_class {
    char name[REPORT_NAME];
    uint32_t n;
    double predicted_ns, measured_ns;
} report_class;

static int report_by_name(const void *a, const void *b) {
    const report_class *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Groups the events by name, into *n classes. The caller frees the array. */
static report_class *report_classes(const plan_inputs *in, const replay_strategy *s, uint32_t *n) {
    const page_plan p = plan_as_page(in, &s->predicted);
    report_class *c = tool_realloc(NULL, ((size_t)p.n_events + 1) * sizeof *c);
    uint32_t all = 0, out = 0;
    for (uint32_t i = 0; i < p.n_events; i++) {
        if (!report_has(s, i)) continue;
        c[all] = (report_class){"", 1, report_takes(&p.events[i]), report_takes(&s->measured[i])};
        page_trace_name(&p, &p.events[i], c[all++].name, REPORT_NAME);
    }
    qsort(c, all, sizeof *c, report_by_name);
    for (uint32_t i = 0; i < all; i++) {
        if (!out || report_by_name(&c[out - 1], &c[i]) != 0) {
            c[out++] = c[i];
            continue;
        }
        c[out - 1].n += c[i].n;
        c[out - 1].predicted_ns += c[i].predicted_ns;
        c[out - 1].measured_ns += c[i].measured_ns;
    }
    *n = out;
    return c;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */
static void report_json_strategy(json_t *to, const plan_inputs *in, const replay_strategy *s) {
    double predicted[ESP__LANES], measured[ESP__LANES];
    uint32_t n, missing = 0;
    report_class *c = report_classes(in, s, &n);
    for (uint32_t i = 0; i < s->predicted.n_events; i++) missing += !report_has(s, i);
    report_lanes(s, s->predicted.events, predicted);
    report_lanes(s, s->measured, measured);
    json_text(to, "name", s->name);
    json_us(to, "predicted_us", s->predicted.report.iteration_ns);
    json_t *step = json_add(to, "measured_us", json_object());
    json_us(step, "median", report_median(s));
    json_us(step, "p10", report_quantile(s, 0.1));
    json_us(step, "p90", report_quantile(s, 0.9));
    json_double(to, "error_percent", 100 * report_error(s));
    json_add(to, "noisy", json_boolean(report_noisy(s)));
    json_double(to, "steps", s->n_steps);
    json_t *lanes = json_add(to, "lanes_us", json_object());
    plan_json_times(lanes, "predicted", predicted);
    plan_json_times(lanes, "measured", measured);
    json_double(to, "ops_missing", missing); /* predicted ops that were not executed */
    json_t *ops = json_add(to, "ops", json_array());
    for (uint32_t i = 0; i < n; i++) {
        json_t *op = json_add(ops, NULL, json_object());
        json_text(op, "op", c[i].name);
        json_double(op, "n", c[i].n);
        json_us(op, "predicted_us", c[i].predicted_ns);
        json_us(op, "measured_us", c[i].measured_ns);
    }
    free(c);
}

static int report_print_json(const replay_run *r) {
    json_t *out = json_object();
    plan_json_inputs(out, &r->in);
    json_text(out, "inter", r->inter);
    json_double(out, "elements_scale", r->elements_scale);
    json_double(out, "compute_stretch", r->stretch);
    json_t *strategies = json_add(out, "strategies", json_array());
    for (uint32_t i = 0; i < r->n_list; i++)
        report_json_strategy(json_add(strategies, NULL, json_object()), &r->in, &r->list[i]);
    return json_print(out);
}

/* ---- the page: the last strategy, predicted above measured ------------------------------------------------------- */
static int report_print_page(FILE *to, const void *what) {
    const replay_run *r = what;
    const replay_strategy *s = &r->list[r->n_list - 1];
    char noisy[PLAN_NOISY];
    const page_info info = plan_page_info(&r->in, r->command, noisy);
    page_plan predicted = plan_as_page(&r->in, &s->predicted), measured = predicted;
    predicted.name = "predicted";
    measured.name = "measured";
    measured.measured = 1;
    measured.events = s->measured;
    measured.report = (esp_plan_report){.struct_size = sizeof measured.report,
                                        .iteration_ns = report_median(s),
                                        .exposed_communication_ns = s->exposed_communication_ns / s->n_steps,
                                        .exposed_compression_ns = s->exposed_compression_ns / s->n_steps,
                                        .memory_bytes = predicted.report.memory_bytes,
                                        .n_tensors = predicted.report.n_tensors,
                                        .n_units = predicted.report.n_units,
                                        .compressed = predicted.report.compressed};
    report_lanes(s, s->measured, measured.report.lane_ns);
    return page_timeline(to, &predicted, &measured, &info);
}

ESP__FN int replay_report(const replay_run *r) {
    if (r->timeline && plan_write_page(&r->in, r->timeline, report_print_page, r) != TOOL_OK) return TOOL_FAILED;
    if (r->json) return report_print_json(r);
    if (!r->timeline || strcmp(r->timeline, "-")) report_print(stdout, r);
    return TOOL_OK;
}
