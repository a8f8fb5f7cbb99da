/* round.c: the page with the timeline of one round of an outer loop: its inner steps, and each fragment's collectives
 * between its push and its use. */
#include "tools/plan/plan.h"

typedef struct round_page {
    uint32_t steps, n_events;
    char (*names)[40];
    esp_plan_tensor *tensors; /* those of the model, then one for each inner step */
    esp_plan_model model;
    esp_plan_unit *units;
    esp_plan_event *events;
    page_plan plan;
    page_info info;
} round_page;

static void round_event(round_page *p, uint32_t kind, uint32_t unit, double start_ns, double ns) {
    p->events[p->n_events++] = (esp_plan_event){.unit = unit,
                                                .kind = (uint8_t)kind,
                                                .lanes = 1u << ESP__LANE_COMPUTE,
                                                .start_ns = (uint64_t)start_ns,
                                                .end_ns = (uint64_t)(start_ns + ns),
                                                .core_ns = (uint64_t)ns};
}

/* Adds fragment f, which is pushed at `at_ns`. Its units come after `before` others. */
static void round_fragment(round_page *p, const outer_plans *of, uint32_t f, uint32_t before, double at_ns) {
    const plan_made *m = &of->plan[f];
    for (uint32_t i = of->first[f]; i < of->first[f + 1]; i++) round_event(p, ESP_PLAN_BACKWARD, i, at_ns, 0);
    for (uint32_t i = 0; i < m->n_events; i++) {
        esp_plan_event e = m->events[i];
        if (e.kind == ESP_PLAN_BACKWARD) continue;
        e.unit += before;
        e.start_ns += (uint64_t)at_ns;
        e.end_ns += (uint64_t)at_ns;
        p->events[p->n_events++] = e;
    }
    for (uint32_t i = 0; i < m->n_units; i++) {
        p->units[before + i] = m->units[i];
        p->units[before + i].first += of->first[f];
    }
}

/* Adds the inner steps of a round, which wait after a push while the processor is busy, and at the use for the rest;
 * and as many of the next one as the last fragment's delay has. */
static void round_steps(round_page *p, const outer_job *j, const outer_plans *of) {
    const esp__outer_round *r = &j->best;
    uint32_t pushed = 0, applied = 0, before = 0;
    double now = 0, late = 0;
    for (uint32_t k = 1, due = 0; k <= p->steps; k++) {
        round_event(p, ESP_PLAN_BACKWARD, j->in->model.n_tensors + k - 1, now, j->alone_ns);
        now += j->alone_ns;
        for (int again = 0; again < 2; again++) { /* a fragment without a delay is applied at once */
            if (applied < pushed && k == due) now += late, applied++;
            if (again || pushed == r->of->n || k != (uint64_t)(pushed + 1) * r->every / r->of->n) continue;
            round_fragment(p, of, pushed, before, now);
            now += r->of->busy_ns[pushed];
            late = esp__outer_exposed(r->of, pushed, j->alone_ns, r->delay) - r->of->busy_ns[pushed];
            before += of->plan[pushed++].n_units;
            due = k + r->delay;
        }
    }
}

static void round_report(esp_plan_report *to, const outer_job *j, const outer_plans *of) {
    const esp__outer_round *r = &j->best;
    *to = (esp_plan_report){.struct_size = sizeof *to,
                            .n_tensors = j->in->model.n_tensors,
                            .fp32_ns = r->every * j->fp32_ns,
                            .iteration_ns = r->every * j->alone_ns + r->exposed_ns,
                            .exposed_communication_ns = r->exposed_ns};
    for (uint32_t f = 0; f < r->of->n; f++) {
        const esp_plan_report *m = &of->plan[f].report;
        to->n_units += m->n_units;
        to->compressed += m->compressed;
        to->memory_bytes += m->memory_bytes;
        to->intra_bytes += m->intra_bytes;
        to->inter_bytes += m->inter_bytes;
        for (int k = 0; k < ESP_LEVELS; k++) to->level_bytes[k] += m->level_bytes[k];
        for (int k = 0; k < ESP_PLAN_LANES; k++) to->lane_ns[k] += m->lane_ns[k];
    }
    to->lane_ns[ESP__LANE_COMPUTE] += r->every * j->alone_ns;
}

static int round_print(FILE *to, const void *what) {
    const round_page *p = what;
    return page_timeline(to, NULL, &p->plan, &p->info);
}

ESP__FN int plan_outer_timeline(const outer_job *j, const plan_files *files) {
    const esp__outer_round *r = &j->best;
    const outer_plans *of = &j->plans[r->of - j->all];
    const uint32_t n = j->in->model.n_tensors, steps = r->every + r->delay;
    round_page p = {.steps = steps};
    char name[64], noisy[PLAN_NOISY];
    uint32_t units = 0, events = n + steps;
    for (uint32_t f = 0; f < r->of->n; f++) units += of->plan[f].n_units, events += of->plan[f].n_events;
    p.names = tool_zeroed(steps * sizeof *p.names);
    p.tensors = tool_zeroed((n + steps) * sizeof *p.tensors);
    p.units = tool_zeroed(units * sizeof *p.units);
    p.events = tool_zeroed(events * sizeof *p.events);
    memcpy(p.tensors, j->in->model.tensors, n * sizeof *p.tensors);
    for (uint32_t k = 0; k < steps; k++) {
        snprintf(p.names[k], sizeof p.names[k], "step %u%s", k % r->every + 1, k < r->every ? "" : ", next round");
        p.tensors[n + k].name = p.names[k];
    }
    round_steps(&p, j, of);
    p.model = (esp_plan_model){.n_tensors = n + steps, .name = j->in->model.name, .tensors = p.tensors};
    snprintf(name, sizeof name, "a round of %u inner steps", r->every);
    p.plan = (page_plan){.name = name,
                         .model = &p.model,
                         .units = p.units,
                         .events = p.events,
                         .n_units = units,
                         .n_events = p.n_events};
    round_report(&p.plan.report, j, of);
    p.info = plan_page_info(j->in, files->command, noisy);
    p.info.inner_steps = r->every;
    const int status = plan_write_page(j->in, files->timeline, round_print, &p);
    free(p.names);
    free(p.tensors);
    free(p.units);
    free(p.events);
    return status;
}
