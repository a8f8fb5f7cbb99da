/* report_pages.c: writes replay's results as pages and as a trace. Must not know how a page looks. */

typedef struct report_drawn {
    page_run *runs;
    page_plan *traced; /* two for each strategy: predicted and measured */
    char (*names)[2][64];
    page_runs all;
    page_info info;
    char how[256], noisy[PLAN_NOISY];
} report_drawn;

/* The plan's report with measured times and traffic in place of the predicted ones. */
static esp_plan_report report_of_measured(const replay_job *job, const replay_result *r) {
    const report_exposed exposed = report_exposed_of(r);
    esp_plan_report m = r->predicted.report;
    report_group lane[4];
    report_lanes(r, lane);
    m.iteration_ns = r->median_ns;
    m.exposed_communication_ns = exposed.communication_ns;
    m.exposed_compression_ns = exposed.compression_ns;
    m.intra_bytes = r->intra_bytes / (uint64_t)(job->n > 0 ? job->n : 1);
    m.inter_bytes = r->inter_bytes / (uint64_t)(job->machines > 0 ? job->machines : 1);
    for (int l = 0; l < 4; l++) m.lane_ns[l] = lane[l].measured_ns, m.price[l] = m.bubble_ns[l] = 0;
    return m;
}

static const char *report_summary(const char *name) {
    for (const esp__scheme *const *s = esp__schemes(); *s; s++)
        if (strcmp((*s)->name, name) == 0) return (*s)->summary;
    return strcmp(compare_plus.name, name) == 0 ? compare_plus.summary : NULL;
}

static void report_draw_run(const replay_job *job, uint32_t i, report_drawn *d) {
    const replay_result *r = &job->results[i];
    page_run *run = &d->runs[i];
    *run = (page_run){.name = r->name,
                      .summary = report_summary(r->name),
                      .ours = strncmp(r->name, "espresso", 8) == 0,
                      .noisy = r->noisy,
                      .median_ns = r->median_ns,
                      .p10_ns = r->p10_ns,
                      .p90_ns = r->p90_ns,
                      .n_steps = r->n_steps};
    run->predicted = run->measured = plan_as_page(job->in, &r->predicted);
    run->predicted.name = "predicted";
    run->measured.name = "measured";
    run->measured.measured = 1;
    run->measured.events = r->measured;
    run->measured.n_events = r->measured ? r->predicted.n_events : 0;
    run->measured.report = report_of_measured(job, r);
    for (int k = 0; k < 2; k++) {
        snprintf(d->names[i][k], sizeof d->names[i][k], "%.40s, %s", r->name, k ? "measured" : "predicted");
        d->traced[2 * i + (uint32_t)k] = k ? run->measured : run->predicted;
        d->traced[2 * i + (uint32_t)k].name = d->names[i][k];
    }
}

static double report_base_ns(const esp_plan_model *m) {
    double ns = m->forward_ns + m->update_ns;
    for (uint32_t t = 0; t < m->n_tensors; t++) ns += m->tensors[t].compute_ns;
    return ns;
}

static void report_draw(const replay_job *job, report_drawn *d) {
    memset(d, 0, sizeof *d);
    d->runs = tool_realloc(NULL, job->n_results * sizeof *d->runs);
    d->traced = tool_realloc(NULL, 2 * (size_t)job->n_results * sizeof *d->traced);
    d->names = tool_realloc(NULL, job->n_results * sizeof *d->names);
    for (uint32_t i = 0; i < job->n_results; i++) report_draw_run(job, i, d);
    snprintf(d->how, sizeof d->how, "%s mode%s%s; elements \xc3\x97 %g, times \xc3\x97 %g; %u cores, %.1f%% stolen",
             report_mode(job), job->inter ? ", between machines " : "", job->inter ? job->inter : "",
             job->elements_scale, job->time_scale, job->cores, 100 * job->stolen);
    d->all = (page_runs){.runs = d->runs,
                         .n_runs = job->n_results,
                         .shown = report_shown(job),
                         .base_ns = report_base_ns(&job->in->model),
                         .how = d->how,
                         .warning = job->warning};
    d->info = plan_page_info(job->in, job->command, d->noisy);
    d->info.machines = (uint32_t)job->machines;
    d->info.ranks_per_machine = (uint32_t)(job->machines > 0 ? job->n / job->machines : job->n);
}

static int report_print_timeline(FILE *to, const void *what) {
    const report_drawn *d = what;
    return page_runs_timeline(to, &d->all, &d->info);
}
static int report_print_page(FILE *to, const void *what) {
    const report_drawn *d = what;
    return page_runs_compare(to, &d->all, &d->info);
}
static int report_print_trace(FILE *to, const void *what) {
    const report_drawn *d = what;
    return page_trace(to, d->traced, 2 * d->all.n_runs, &d->info);
}

/* Writes the pages and the trace that the user asked for. */
static int report_pages(const replay_job *job) {
    report_drawn d;
    int status = TOOL_OK;
    if (!job->timeline && !job->trace && !job->page) return TOOL_OK;
    report_draw(job, &d);
    if (job->timeline) status = plan_write_page(job->in, job->timeline, report_print_timeline, &d);
    if (job->trace && status == TOOL_OK) status = plan_write_page(job->in, job->trace, report_print_trace, &d);
    if (job->page && status == TOOL_OK) status = plan_write_page(job->in, job->page, report_print_page, &d);
    free(d.runs);
    free(d.traced);
    free(d.names);
    return status;
}
