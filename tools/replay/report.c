/* report.c: prints replay's results for people, and writes the other outputs that the user asked for. Must not know how
 * anything was measured. */

static void report_say_run(FILE *to, const replay_job *job) {
    char scales[96] = "";
    plan_say_inputs(to, job->in);
    plan_say(to, "ranks", "%d on %d machine%s%s%s", job->n, job->machines, plan_s((uint64_t)job->machines),
             job->inter ? ", between machines " : "", job->inter ? job->inter : "");
    if (job->elements_scale != 1 || job->time_scale != 1)
        snprintf(scales, sizeof scales, "; elements x %g, times x %g", job->elements_scale, job->time_scale);
    plan_say(to, "mode", "%s%s; fp32 communication is %.2f of computing", report_mode(job), scales, job->ratio);
    plan_say(to, "cores", "%u, computing and codecs need %.0f%% of them; %.1f%% of the time went to others", job->cores,
             100 * job->load, 100 * job->stolen);
    if (job->warning) plan_say(to, "warning", "%s", job->warning);
}

/* The measured time, or "noisy", or a dash where nothing ran. */
static const char *report_time(const replay_result *r, double ns) {
    return r->noisy ? "noisy" : r->n_steps ? tool_time(ns) : "-";
}

static void report_say_results(FILE *to, const replay_job *job) {
    const uint32_t fastest = report_fastest(job), chosen = report_chosen(job);
    fprintf(to, "\n%-20s %10s %10s %10s %10s %7s  %10s %10s  %9s %9s\n", "strategy", "predicted", "measured", "10%",
            "90%", "error", "exposed", "exposed", "intra", "inter");
    fprintf(to, "%-20s %10s %10s %10s %10s %7s  %10s %10s  %9s %9s\n", "", "step", "step", "", "", "", "links",
            "codecs", "", "");
    for (uint32_t i = 0; i < job->n_results; i++) {
        const replay_result *r = &job->results[i];
        const report_exposed exposed = report_exposed_of(r);
        char error[16] = "";
        if (report_is_measured(r)) snprintf(error, sizeof error, "%+.1f%%", 100 * report_error(r));
        fprintf(to, "%-20s %10s %10s %10s %10s %7s  %10s %10s  %9s %9s%s%s\n", r->name,
                tool_time(r->predicted.report.iteration_ns), report_time(r, r->median_ns), tool_time(r->p10_ns),
                tool_time(r->p90_ns), error, tool_time(exposed.communication_ns), tool_time(exposed.compression_ns),
                tool_bytes((double)r->intra_bytes), tool_bytes((double)r->inter_bytes), i == fastest ? "  fastest" : "",
                i == chosen ? "  chosen" : "");
    }
}

/* Says whether the planner chose the fastest strategy. */
static void report_say_verdict(FILE *to, const replay_job *job) {
    const uint32_t fastest = report_fastest(job), chosen = report_chosen(job);
    fputs("\nerror: predicted over measured; exposed: measured, with no backward running; bytes: received by all ranks "
          "in a "
          "step\n",
          to);
    if (job->n_results < 2) return;
    const replay_result *a = &job->results[chosen];
    switch (report_chosen_is_right(job)) {
    case -1:
        fprintf(to, "%s is the planner's choice; it cannot be said whether it is the fastest: too noisy\n", a->name);
        break;
    case 1:
        if (chosen == fastest)
            fprintf(to, "%s, the planner's choice, is the fastest measured\n", a->name);
        else
            fprintf(to, "%s, the planner's choice, is within the spread of the fastest measured, %s\n", a->name,
                    job->results[fastest].name);
        break;
    default:
        fprintf(to, "%s, the planner's choice, takes %.1f%% longer than the fastest measured, %s\n", a->name,
                100 * (a->median_ns / job->results[fastest].median_ns - 1), job->results[fastest].name);
    }
}

static void report_print(FILE *to, const replay_job *job) {
    report_say_run(to, job);
    report_say_results(to, job);
    report_say_verdict(to, job);
    report_print_ops(to, job->in, &job->results[report_shown(job)]);
}

static int replay_report(const replay_job *job) {
    const char *const paths[] = {job->json, job->csv, job->timeline, job->trace, job->page};
    int status = TOOL_OK, to_stdout = 0;
    if (!job->n_results) return tool_fail(job->in->command, "no strategy was run");
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) to_stdout += paths[i] && strcmp(paths[i], "-") == 0;
    if (to_stdout > 1) return tool_usage(job->in->command, "only one output can go to standard output");
    if (job->csv) status = plan_write_page(job->in, job->csv, report_print_csv, job);
    if (status == TOOL_OK) status = report_pages(job);
    if (status == TOOL_OK && job->json) status = report_json(job);
    if (status == TOOL_OK && !to_stdout) report_print(stdout, job);
    return status;
}
