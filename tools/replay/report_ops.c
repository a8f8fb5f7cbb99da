/* report_ops.c: evaluates a run of strategies: prediction errors, the fastest one, and op by op where a prediction is
 * wrong. Computes and prints; must not know how anything was measured. */
#include "tools/replay/replay.h"

enum { REPORT_NAME = 48, REPORT_TOP = 12 };

/* ---- strategies ------------------------------------------------------------------------------------------------------ */
/* 1: the measured step can be reported as a number. */
static int report_is_measured(const replay_result *r) { return !r->noisy && r->n_steps > 0 && r->median_ns > 0; }

/* Error of the prediction, as a share of the measured step; NAN where nothing was measured. */
static double report_error(const replay_result *r) {
    return report_is_measured(r) ? r->predicted.report.iteration_ns / r->median_ns - 1 : NAN;
}

/* Index of the fastest measured strategy; n_results where there is none. */
static uint32_t report_fastest(const replay_job *job) {
    uint32_t best = job->n_results;
    for (uint32_t i = 0; i < job->n_results; i++)
        if (report_is_measured(&job->results[i]) &&
            (best == job->n_results || job->results[i].median_ns < job->results[best].median_ns))
            best = i;
    return best;
}

/* The strategy that the planner would choose of those that ran: espresso+, its full search, or else the one with the
 * shortest predicted step. */
static uint32_t report_chosen(const replay_job *job) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < job->n_results; i++) {
        if (strcmp(job->results[i].name, "espresso+") == 0) return i;
        if (job->results[i].predicted.report.iteration_ns < job->results[best].predicted.report.iteration_ns) best = i;
    }
    return best;
}

/* 1: the choice is the fastest, or its median is within the fastest one's spread; 0: neither; -1: unknown. */
static int report_chosen_is_right(const replay_job *job) {
    const uint32_t fastest = report_fastest(job), chosen = report_chosen(job);
    if (fastest == job->n_results || !report_is_measured(&job->results[chosen])) return -1;
    return chosen == fastest || job->results[chosen].median_ns <= job->results[fastest].p90_ns;
}

/* The strategy that is reported op by op. */
static uint32_t report_shown(const replay_job *job) {
    for (uint32_t i = 0; job->strategy_shown && i < job->n_results; i++)
        if (strcmp(job->results[i].name, job->strategy_shown) == 0) return i;
    return report_chosen(job);
}

/* ---- ops ---------------------------------------------------------------------------------------------------------------- */
/* An op that was both predicted and measured. */
static int report_has(const replay_result *r, uint32_t i) {
    return r->measured && r->measured[i].end_ns != UINT64_MAX && r->measured[i].start_ns <= r->measured[i].end_ns;
}
static double report_takes(const esp_plan_event *e) { return (double)(e->end_ns - e->start_ns); }

/* Measured exposed time, as the planner counts it: while no backward runs, the time in which a link is busy, and the
 * time in which only compression runs. */
typedef struct report_exposed {
    double communication_ns, compression_ns;
} report_exposed;
static report_exposed report_exposed_of(const replay_result *r) {
    report_exposed out = {r->exposed_communication_ns, r->exposed_compression_ns};
    jmp_buf no_memory;
    uint32_t n = 0;
    if (!r->measured) return out;
    esp_plan *p = tool_realloc(NULL, sizeof *p);
    memset(p, 0, sizeof *p);
    p->events = tool_realloc(NULL, ((size_t)r->predicted.n_events + 1) * sizeof *p->events);
    for (uint32_t i = 0; i < r->predicted.n_events; i++)
        if (report_has(r, i)) p->events[n++] = r->measured[i];
    p->arena.on_failure = &no_memory;
    if (setjmp(no_memory)) {
        fputs("espresso: out of memory\n", stderr);
        exit(TOOL_FAILED);
    }
    if (n) {
        esp__exposed(p, n);
        out = (report_exposed){p->report.exposed_communication_ns, p->report.exposed_compression_ns};
    }
    esp__arena_free(&p->arena);
    free(p->events);
    free(p);
    return out;
}

/* Ops of the same lanes and name, as sums. */
typedef struct report_group {
    char name[REPORT_NAME];
    uint8_t lanes;
    uint32_t ops;
    double predicted_ns, measured_ns;
} report_group;

/* Busy time by lane, of ops that were both predicted and measured. */
static void report_lanes(const replay_result *r, report_group lane[4]) {
    memset(lane, 0, 4 * sizeof *lane);
    for (uint32_t i = 0; i < r->predicted.n_events; i++) {
        const esp_plan_event *e = &r->predicted.events[i];
        for (int l = 0; l < 4 && report_has(r, i); l++) {
            if (!(e->lanes >> l & 1)) continue;
            lane[l].ops++;
            lane[l].predicted_ns += report_takes(e);
            lane[l].measured_ns += report_takes(&r->measured[i]);
        }
    }
}

static int report_group_order(const void *a, const void *b) {
    const report_group *x = a, *y = b;
    return x->lanes != y->lanes ? x->lanes - y->lanes : strcmp(x->name, y->name);
}

/* Makes one group for each lane and name. The caller frees them. */
static report_group *report_groups(const plan_inputs *in, const replay_result *r, uint32_t *n) {
    const page_plan p = plan_as_page(in, &r->predicted);
    report_group *g = tool_realloc(NULL, ((size_t)p.n_events + 1) * sizeof *g);
    uint32_t all = 0, out = 0;
    for (uint32_t i = 0; i < p.n_events; i++) {
        if (!report_has(r, i)) continue;
        g[all] = (report_group){"", p.events[i].lanes, 1, report_takes(&p.events[i]), report_takes(&r->measured[i])};
        page_trace_name(&p, &p.events[i], g[all++].name, REPORT_NAME);
    }
    qsort(g, all, sizeof *g, report_group_order);
    for (uint32_t i = 0; i < all; i++) {
        if (out && report_group_order(&g[out - 1], &g[i]) == 0) {
            g[out - 1].ops += g[i].ops;
            g[out - 1].predicted_ns += g[i].predicted_ns;
            g[out - 1].measured_ns += g[i].measured_ns;
        } else {
            g[out++] = g[i];
        }
    }
    *n = out;
    return g;
}

/* Finds the ops whose measured times differ most from the predicted ones, largest difference first. Returns how
 * many. */
static uint32_t report_largest(const replay_result *r, uint32_t top[REPORT_TOP]) {
    double off[REPORT_TOP];
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->predicted.n_events; i++) {
        if (!report_has(r, i)) continue;
        const double mine = fabs(report_takes(&r->measured[i]) - report_takes(&r->predicted.events[i]));
        uint32_t at = n;
        while (at && off[at - 1] < mine) at--;
        if (at == REPORT_TOP) continue;
        if (n < REPORT_TOP) n++;
        memmove(&off[at + 1], &off[at], (n - 1 - at) * sizeof *off);
        memmove(&top[at + 1], &top[at], (n - 1 - at) * sizeof *top);
        off[at] = mine;
        top[at] = i;
    }
    return n;
}

/* "conv1.weight", "conv1.weight 2/4" for a chunk, "fc.bias and 5 more" for a group. */
static void report_unit_name(const plan_inputs *in, const plan_made *m, const esp_plan_event *e, char *out,
                             size_t cap) {
    const int backward = e->kind == ESP_PLAN_BACKWARD;
    const uint32_t first = backward ? e->unit : m->units[e->unit].first;
    const char *name = in->model.tensors[first].name;
    uint32_t begin = e->unit;
    if (backward) {
        snprintf(out, cap, "%s", name);
    } else if (m->units[e->unit].n_tensors > 1) {
        snprintf(out, cap, "%s and %u more", name, m->units[e->unit].n_tensors - 1);
    } else {
        while (begin && m->units[begin - 1].first == first && m->units[begin - 1].n_tensors == 1) begin--;
        const uint32_t chunks = plan_chunks(in, m, begin);
        if (chunks > 1)
            snprintf(out, cap, "%s %u/%u", name, e->unit - begin + 1, chunks);
        else
            snprintf(out, cap, "%s", name);
    }
}

/* ---- for people ---------------------------------------------------------------------------------------------------------- */
static const char *report_lane_names(uint8_t lanes) {
    for (uint32_t l = 0; l < ESP__LANES; l++)
        if (lanes == 1u << l) return esp__lane_word(l);
    return lanes == 12 ? "intra-inter" : "several";
}

/* How far the measured time is above the predicted one: "+3.1%"; "" where nothing was predicted. */
static const char *report_over(double measured, double predicted) {
    char *out = tool_scratch();
    out[0] = 0;
    if (predicted > 0) snprintf(out, 32, "%+.1f%%", (measured / predicted - 1) * 100);
    return out;
}

static void report_print_group(FILE *to, const char *lane, const report_group *g) {
    fprintf(to, "%-12s %-28.28s %6u  %10s  %10s  %10s %8s\n", lane, g->name, g->ops, tool_time(g->predicted_ns),
            tool_time(g->measured_ns), tool_time(g->measured_ns - g->predicted_ns),
            report_over(g->measured_ns, g->predicted_ns));
}

static void report_print_groups(FILE *to, const plan_inputs *in, const replay_result *r) {
    uint32_t n;
    report_group *g = report_groups(in, r, &n), lane[4];
    fprintf(to, "\n%-12s %-28s %6s  %10s  %10s  %10s\n", "lane", "op", "ops", "predicted", "measured", "difference");
    for (uint32_t i = 0; i < n; i++)
        report_print_group(to, i && g[i - 1].lanes == g[i].lanes ? "" : report_lane_names(g[i].lanes), &g[i]);
    report_lanes(r, lane);
    for (uint8_t l = 0; l < 4; l++) {
        if (!lane[l].ops) continue;
        snprintf(lane[l].name, REPORT_NAME, "busy in all");
        report_print_group(to, report_lane_names((uint8_t)(1u << l)), &lane[l]);
    }
    free(g);
}

static void report_print_largest(FILE *to, const plan_inputs *in, const replay_result *r) {
    const page_plan p = plan_as_page(in, &r->predicted);
    uint32_t top[REPORT_TOP];
    const uint32_t n = report_largest(r, top);
    fprintf(
        to,
        "\nlargest differences: when it starts, and how long it takes\n%-36s %-24s %-11s %10s %10s  %10s %10s %8s\n",
        "unit", "op", "lane", "predicted:", "takes", "measured:", "takes", "");
    for (uint32_t k = 0; k < n; k++) {
        const esp_plan_event *e = &p.events[top[k]], *was = &r->measured[top[k]];
        char unit[128], op[REPORT_NAME];
        report_unit_name(in, &r->predicted, e, unit, sizeof unit);
        page_trace_name(&p, e, op, sizeof op);
        fprintf(to, "%-36.36s %-24.24s %-11s %10s %10s  %10s %10s %8s\n", unit, op, report_lane_names(e->lanes),
                tool_time((double)e->start_ns), tool_time(report_takes(e)), tool_time((double)was->start_ns),
                tool_time(report_takes(was)), report_over(report_takes(was), report_takes(e)));
    }
}

/* Prints where the cost model is wrong, for one strategy. */
static void report_print_ops(FILE *to, const plan_inputs *in, const replay_result *r) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < r->predicted.n_events; i++) found += (uint32_t)report_has(r, i);
    fprintf(to, "\n%s, op by op: %u of %u predicted ops were measured, medians over steps; time 0: begin of backward\n",
            r->name, found, r->predicted.n_events);
    if (!found) return;
    report_print_groups(to, in, r);
    report_print_largest(to, in, r);
}
