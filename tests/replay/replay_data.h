/* replay_data.h: a run of replay made up for tests of its report: plans of the real planner, "measured" by adding noise to what
 * was predicted. Must not know how a report looks. Include after the command's sources. */
#ifndef ESPRESSO_TESTS_REPLAY_DATA_H
#define ESPRESSO_TESTS_REPLAY_DATA_H

enum { MADE_STEPS = 21, MADE_MAX = 24 };
typedef struct made_run {
    plan_inputs in;
    replay_job job;
    replay_result results[MADE_MAX];
} made_run;

static inline double made_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*state >> 11) / 9007199254740992.0;
}
static inline int made_by_size(const void *a, const void *b) {
    const double x = *(const double *)a, *y = b;
    return x < *y ? -1 : x > *y;
}

/* Steps around `factor` times the predicted one, within +-spread. Every op takes `factor` times as long, ops of `inter` more
 * so, some far more, and one in 40 is missing. */
static inline void made_measure(replay_result *r, double factor, double spread, uint64_t seed) {
    double sorted[MADE_STEPS];
    r->n_steps = MADE_STEPS;
    r->step_ns = calloc(MADE_STEPS, sizeof *r->step_ns);
    r->measured = calloc(r->predicted.n_events + 1, sizeof *r->measured);
    if (!r->step_ns || !r->measured) abort();
    for (int k = 0; k < MADE_STEPS; k++)
        sorted[k] = r->step_ns[k] =
            r->predicted.report.iteration_ns * factor * (1 + spread * (2 * made_random(&seed) - 1));
    qsort(sorted, MADE_STEPS, sizeof *sorted, made_by_size);
    r->p10_ns = sorted[2], r->median_ns = sorted[10], r->p90_ns = sorted[18];
    r->noisy = r->p90_ns > 1.3 * r->p10_ns;
    for (uint32_t i = 0; i < r->predicted.n_events; i++) {
        const esp_plan_event *e = &r->predicted.events[i];
        const double start = (double)e->start_ns * factor, takes = (double)(e->end_ns - e->start_ns);
        double longer = e->kind == ESP_PLAN_BACKWARD ? 1 : 1 + 0.3 * made_random(&seed) * (e->lanes & 8 ? 1 : 0.2);
        if (e->kind != ESP_PLAN_BACKWARD && i % 11 == 5) longer = 1.8;
        r->measured[i] = *e;
        r->measured[i].start_ns = (uint64_t)start;
        r->measured[i].end_ns = (uint64_t)(start + takes * factor * longer);
        if (e->kind != ESP_PLAN_BACKWARD && i % 40 == 39) r->measured[i].start_ns = r->measured[i].end_ns = UINT64_MAX;
    }
    r->exposed_communication_ns = r->predicted.report.exposed_communication_ns * factor;
    r->exposed_compression_ns = r->predicted.report.exposed_compression_ns * factor;
    r->intra_bytes = r->predicted.report.intra_bytes * 64;
    r->inter_bytes = r->predicted.report.inter_bytes * 8;
}

/* `names`: the strategies, NULL-terminated. */
static inline int made_open(made_run *m, const char *model, const char *const *names) {
    memset(m, 0, sizeof *m);
    plan_open(&m->in, &compare_command, 8);
    if (plan_flag(&m->in, PLAN_MODEL, model) || plan_flag(&m->in, PLAN_GC, "dgc:ratio=0.01") ||
        plan_flag(&m->in, PLAN_SYSTEM, "paper-pcie") || plan_read(&m->in))
        return -1;
    for (uint32_t i = 0; names[i]; i++) {
        replay_result *r = &m->results[m->job.n_results++];
        r->name = names[i];
        if (plan_make(&m->in, names[i], ESP_PLAN_NO_BOUND, &r->predicted) != ESP_OK) return -1;
        made_measure(r, 1.01 + 0.01 * (i % 4), 0.02, i + 1);
    }
    m->job.in = &m->in;
    m->job.results = m->results;
    m->job.n = 64, m->job.machines = 8, m->job.mode = REPLAY_REAL;
    m->job.inter = "25gbit,50us";
    m->job.elements_scale = 0.01, m->job.time_scale = 1, m->job.ratio = 2.75;
    m->job.stolen = 0.004, m->job.load = 0.41, m->job.cores = 2;
    m->job.command = "espresso replay --model m --strategy all";
    return 0;
}

static inline void made_close(made_run *m) {
    for (uint32_t i = 0; i < m->job.n_results; i++) {
        free(m->results[i].step_ns);
        free(m->results[i].measured);
        plan_free(&m->results[i].predicted);
    }
    plan_close(&m->in);
}
#endif
