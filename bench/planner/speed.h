/* speed.h: measures planning time by model and by stage of the planner, and compares it with its target and with the
 * planner in naive.h, which tries everything. */

enum { RUNS = 21, WORST_RUNS = 5 };
enum { STAGE_OPEN = 0, STAGE_CANDIDATES, STAGE_BOUND, STAGE_SEARCH, STAGE_FREE, STAGES };

static void speed_stages(const bench_model *m, const bench_case *c, uint32_t devices, double ms[STAGES]) {
    bench_problem b, other;
    esp__schedule units = {0}, d = {0}, best = {0};
    uint64_t t = esp__now_ns();
    problem_open(&b, &m->model, c, 0, devices, 0);
    ms[STAGE_OPEN] = ms_since(t), t = esp__now_ns();
    esp__schedule_tensors(&b.p, &units);
    for (uint32_t u = 0; u < units.n_units; u++) esp__candidates_get(&b.p, &units.units[u]);
    ms[STAGE_CANDIDATES] = ms_since(t), t = esp__now_ns();
    esp__bound(&b.p);
    ms[STAGE_BOUND] = ms_since(t), t = esp__now_ns();
    esp__search_all(&b.p, &d);
    ms[STAGE_SEARCH] = ms_since(t), t = esp__now_ns();
    problem_open(&other, &m->model, c, 0, devices, 1);
    other.p.effort = 0.1 * b.p.effort;
    esp__search_all(&other.p, &best);
    ms[STAGE_FREE] = ms_since(t);
    problem_close(&other);
    problem_close(&b);
}

typedef struct speed_row {
    double best, median, stage[STAGES], worst; /* in ms */
    const char *worst_case;
} speed_row;

static void speed_measure(const bench_model *m, uint32_t devices, speed_row *r) {
    bench_case *c = malloc(sizeof *c);
    double ms[RUNS], stage[STAGES];
    esp_plan_report report;
    static char name[64];
    if (!c) die("out of memory", "speed");
    case_open(c, 0, 0, 8);
    memset(r, 0, sizeof *r);
    for (int run = 0; run < RUNS; run++) {
        esp_plan_free(plan_make(m, c, NULL, 0, devices, &report));
        ms[run] = report.plan_ns / 1e6;
        speed_stages(m, c, devices, stage);
        for (int s = 0; s < STAGES; s++)
            if (!run || stage[s] < r->stage[s]) r->stage[s] = stage[s];
    }
    r->median = quantile(ms, RUNS, 0.5);
    r->best = ms[0];
    for (uint32_t k = 0; k < CODECS * TESTBEDS; k++) {
        double best = 1e30;
        case_open(c, k % CODECS, k / CODECS, 8);
        for (int run = 0; run < WORST_RUNS; run++) {
            esp_plan_free(plan_make(m, c, NULL, 0, devices, &report));
            if (report.plan_ns / 1e6 < best) best = report.plan_ns / 1e6;
        }
        if (best <= r->worst) continue;
        r->worst = best;
        snprintf(name, sizeof name, "%s, %s", codec_names[k % CODECS], testbed_names[k / CODECS]);
        r->worst_case = name;
    }
    free(c);
}

static double speed_target(const bench_model *m, uint32_t devices) {
    if (devices != ONE_DEVICE) return 40.0;
    return m->model.n_tensors < 50 ? 1.0 : 8.0;
}

static void speed_row_write(const bench_model *m, const bench_case *c, uint32_t devices, FILE *csv) {
    speed_row r;
    speed_measure(m, devices, &r);
    const naive_result naive = naive_greedy(&m->model, c, devices, 4000.0);
    fprintf(csv, "%s,%d,%d,%u,%u,%.3f,%.3f,%.0f", m->model.name, devices == ONE_DEVICE ? 1 : 2, m->published,
            m->model.n_tensors, sizes_of(&m->model), r.best, r.median, speed_target(m, devices));
    for (int s = 0; s < STAGES; s++) fprintf(csv, ",%.3f", r.stage[s]);
    fprintf(csv, ",%.3f,\"%s\",%.1f,%u\n", r.worst, r.worst_case, naive.ms, naive.done);
}

static void speed_main(const char *dir) {
    static const uint32_t devices[] = {ONE_DEVICE, TWO_DEVICES};
    static bench_model models[MODELS];
    static bench_case c;
    case_open(&c, 0, 0, 8);
    for (int i = 0; i < MODELS; i++)
        if (!model_open(&models[i], model_names[i])) fprintf(stderr, "%s: left out: no such model\n", model_names[i]);
    FILE *csv = result_open(dir, "plan-speed",
                            "build/bench/plan speed: planning time, one thread; dgc, paper-nvlink, 8 machines. total: "
                            "best of 21; stages: best of "
                            "each; worst: the slowest of six codecs x testbeds; naive: every option for every tensor, "
                            "simulated in ready order "
                            "(extrapolated where naive_done is not tensors)",
                            "model,devices,published,tensors,sizes,total_ms,median_ms,target_ms,open_ms,candidates_ms,"
                            "bound_ms,search_ms,free_ms,worst_ms,worst_case,naive_ms,naive_done");
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < MODELS; i++)
            if (models[i].text) speed_row_write(&models[i], &c, devices[d], csv);
    result_close(csv);
    growth_table(dir);
    parts_tables(models, &c, dir);
    for (int i = 0; i < MODELS; i++) model_close(&models[i]);
}
