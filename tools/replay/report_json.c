/* report_json.c: replay's results for scripts: one JSON object whose keys do not change, and a CSV table.
 * Must not know how anything was measured. */

static const char *report_mode(const replay_job *job) { return job->mode == REPLAY_MODEL ? "model" : "real"; }

/* A value of a noisy result becomes NAN, which JSON prints as null. */
static double report_number(const replay_result *r, double value) { return report_is_measured(r) ? value : NAN; }

static void report_json_lanes(tool_json *j, const replay_result *r) {
    report_group lane[4];
    double predicted[ESP__LANES] = {0}, measured[ESP__LANES] = {0};
    report_lanes(r, lane);
    for (int l = 0; l < 4; l++) predicted[l] = lane[l].predicted_ns, measured[l] = lane[l].measured_ns;
    json_open(j, "lanes_us", '{');
    plan_json_times(j, "predicted", predicted);
    plan_json_times(j, "measured", measured);
    json_close(j, '}');
}

/* Sums of ops with the same lanes and name, which show where the prediction is wrong. */
static void report_json_ops(tool_json *j, const plan_inputs *in, const replay_result *r) {
    uint32_t n;
    report_group *g = report_groups(in, r, &n);
    json_open(j, "ops", '[');
    for (uint32_t i = 0; i < n; i++) {
        json_open(j, NULL, '{');
        json_text(j, "lane", report_lane_names(g[i].lanes));
        json_text(j, "op", g[i].name);
        json_number(j, "n", g[i].ops);
        json_us(j, "predicted_us", g[i].predicted_ns);
        json_us(j, "measured_us", g[i].measured_ns);
        json_close(j, '}');
    }
    json_close(j, ']');
    free(g);
}

static void report_json_result(tool_json *j, const plan_inputs *in, const replay_result *r) {
    const report_exposed exposed = report_exposed_of(r);
    json_open(j, NULL, '{');
    json_text(j, "name", r->name);
    json_us(j, "predicted_us", r->predicted.report.iteration_ns);
    json_open(j, "measured_us", '{');
    json_us(j, "median", report_number(r, r->median_ns));
    json_us(j, "p10", r->p10_ns);
    json_us(j, "p90", r->p90_ns);
    json_close(j, '}');
    json_number(j, "error_percent", 100 * report_error(r));
    json_bool(j, "noisy", r->noisy);
    json_number(j, "steps", r->n_steps);
    json_open(j, "bytes", '{');
    json_number(j, "intra", (double)r->intra_bytes);
    json_number(j, "inter", (double)r->inter_bytes);
    json_close(j, '}');
    json_us(j, "exposed_communication_us", exposed.communication_ns);
    json_us(j, "exposed_compression_us", exposed.compression_ns);
    report_json_lanes(j, r);
    report_json_ops(j, in, r);
    json_close(j, '}');
}

static int report_json(const replay_job *job) {
    tool_json j = {0};
    const uint32_t fastest = report_fastest(job);
    const int right = report_chosen_is_right(job);
    json_open(&j, NULL, '{');
    json_text(&j, "model", job->in->model.name);
    json_text(&j, "codec", job->in->codec_text);
    json_number(&j, "n", job->n);
    json_number(&j, "machines", job->machines);
    json_text(&j, "inter", job->inter);
    json_text(&j, "mode", report_mode(job));
    json_number(&j, "elements_scale", job->elements_scale);
    json_number(&j, "time_scale", job->time_scale);
    json_number(&j, "ratio", job->ratio);
    json_number(&j, "cores", job->cores);
    json_number(&j, "stolen_percent", 100 * job->stolen);
    json_number(&j, "load_percent", 100 * job->load);
    json_text(&j, "warning", job->warning);
    json_open(&j, "strategies", '[');
    for (uint32_t i = 0; i < job->n_results; i++) report_json_result(&j, job->in, &job->results[i]);
    json_close(&j, ']');
    json_text(&j, "fastest", fastest < job->n_results ? job->results[fastest].name : NULL);
    json_text(&j, "chosen", job->n_results ? job->results[report_chosen(job)].name : NULL);
    if (right < 0)
        json_text(&j, "chosen_within_spread", NULL);
    else
        json_bool(&j, "chosen_within_spread", right);
    json_close(&j, '}');
    const int failed = j.text.failed || esp__output_write(job->json, j.text.data, j.text.len) != ESP_OK;
    if (failed) tool_fail(job->in->command, "%s", j.text.failed ? "out of memory" : esp_last_error(NULL));
    esp__text_free(&j.text);
    return failed ? TOOL_FAILED : TOOL_OK;
}

/* ---- CSV: a row a strategy ------------------------------------------------------------------------------------------------ */
static void report_csv_text(FILE *to, const char *s) {
    fputc('"', to);
    for (; s && *s; s++) {
        if (*s == '"') fputc('"', to);
        fputc(*s, to);
    }
    fputs("\",", to);
}
/* Prints a number, or nothing for NAN. */
static void report_csv_number(FILE *to, double x) {
    if (isfinite(x)) fprintf(to, "%.15g", x);
    fputc(',', to);
}

static void report_csv_row(FILE *to, const replay_job *job, uint32_t i) {
    const replay_result *r = &job->results[i];
    const esp_plan_report *p = &r->predicted.report;
    report_csv_text(to, job->in->model.name);
    report_csv_text(to, job->in->codec_text);
    fprintf(to, "%d,%d,", job->n, job->machines);
    report_csv_text(to, job->inter);
    fprintf(to, "%s,%.15g,%.15g,%.15g,%u,%.15g,%.15g,", report_mode(job), job->elements_scale, job->time_scale,
            job->ratio, job->cores, 100 * job->stolen, 100 * job->load);
    report_csv_text(to, r->name);
    const double us[] = {p->iteration_ns, report_number(r, r->median_ns), r->p10_ns, r->p90_ns};
    for (size_t k = 0; k < sizeof us / sizeof *us; k++) report_csv_number(to, us[k] / 1000);
    report_csv_number(to, 100 * report_error(r));
    const report_exposed exposed = report_exposed_of(r);
    const double more[] = {p->exposed_communication_ns, exposed.communication_ns, p->exposed_compression_ns,
                           exposed.compression_ns};
    for (size_t k = 0; k < sizeof more / sizeof *more; k++) report_csv_number(to, more[k] / 1000);
    fprintf(to, "%d,%u,%llu,%llu,%d,%d\n", r->noisy != 0, r->n_steps, (unsigned long long)r->intra_bytes,
            (unsigned long long)r->inter_bytes, i == report_fastest(job), i == report_chosen(job));
}

static int report_print_csv(FILE *to, const void *what) {
    const replay_job *job = what;
    fputs(
        "model,codec,n,machines,inter,mode,elements_scale,time_scale,ratio,cores,stolen_percent,load_percent,strategy,"
        "predicted_us,measured_us,p10_us,p90_us,error_percent,predicted_exposed_communication_us,"
        "exposed_communication_us,predicted_exposed_compression_us,exposed_compression_us,noisy,steps,intra_bytes,"
        "inter_bytes,fastest,chosen\n",
        to);
    for (uint32_t i = 0; i < job->n_results; i++) report_csv_row(to, job, i);
    return ferror(to) ? -1 : 0;
}
