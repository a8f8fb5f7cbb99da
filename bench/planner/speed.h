/* speed.h: total planning time by model and by stage, compared with targets, naive evaluation and the published planner. */

enum { RUNS = 21, WORST_RUNS = 5 };
enum { STAGE_OPEN = 0, STAGE_CANDIDATES, STAGE_BOUND, STAGE_ANY, STAGE_SEARCH, STAGE_FREE, STAGES };

/* One run of the stages of esp_plan_make, ms each. */
static void speed_stages(const bench_model *m, const bench_case *c, uint32_t devices, double ms[STAGES]) {
    bench_problem b, other;
    esp__bound bound;
    esp__schedule units = {0}, d = {0}, best = {0};
    uint64_t t = esp__now_ns();
    problem_open(&b, &m->model, c, 0, devices, 0);
    ms[STAGE_OPEN] = ms_since(t), t = esp__now_ns();
    esp__schedule_tensors(&b.p, &units);
    for (uint32_t u = 0; u < units.n_units; u++) esp__candidates_get(&b.p, &units.units[u]);
    ms[STAGE_CANDIDATES] = ms_since(t), t = esp__now_ns();
    if (!b.p.approximate) {
        esp__bound_units(&b.p, units.units, units.n_units, &bound);
        b.p.bound = &bound;
    }
    ms[STAGE_BOUND] = ms_since(t), t = esp__now_ns();
    esp__bound_any(&b.p);
    ms[STAGE_ANY] = ms_since(t), t = esp__now_ns();
    esp__search_all(&b.p, &d);
    ms[STAGE_SEARCH] = ms_since(t), t = esp__now_ns();
    problem_open(&other, &m->model, c, 0, devices, 1);
    other.p.effort = 0.25 * b.p.effort;
    esp__search_all(&other.p, &best);
    ms[STAGE_FREE] = ms_since(t);
    problem_close(&other);
    problem_close(&b);
}

typedef struct speed_row {
    double best, median, stage[STAGES], worst; /* ms; stage: best of each; worst: slowest of the six cases */
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
    if (devices != ONE_DEVICE) return 50.0;
    return m->model.n_tensors < 50 ? 1.0 : 10.0;
}

/* Prints one table; stores its rows for the tables that follow. */
static void speed_table(bench_model *models, const bench_case *c, uint32_t devices, speed_row *rows) {
    uint32_t late = 0, late_worst = 0;
    printf("%s, dgc, paper-nvlink, 8 machines; ms. total: esp_plan_make, everything included, best and median of %d; "
           "stages: "
           "best of each.\nworst: the slowest of the six codecs x testbeds. naive: every option for every tensor in "
           "ready order, "
           "one pass (~: measured on part of the tensors)\n",
           devices == ONE_DEVICE ? "One device (GPU)" : "Two devices (GPU and CPU)", RUNS);
    printf("%-11s %7s %5s | %7s %7s %6s | %5s %6s %6s %6s %7s %7s | %7s %-24s | %11s %9s\n", "model", "tensors",
           "sizes", "total", "median", "target", "open", "paths", "bound", "any", "search", "free", "worst", "",
           "naive", "ratio");
    for (int i = 0; i < MODELS; i++) {
        const bench_model *m = &models[i];
        speed_row *r = &rows[i];
        if (!m->text) continue;
        speed_measure(m, devices, r);
        double target = speed_target(m, devices);
        naive_result naive = naive_greedy(&m->model, c, devices, 4000.0);
        late += r->best > target, late_worst += r->worst > target;
        printf("%-11s %7u %5u | %7.2f %7.2f %6.0f | %5.2f %6.2f %6.2f %6.2f %7.2f %7.2f | %7.2f %-24s | %s%10.1f "
               "%8.0fx%s\n",
               m->model.name, m->model.n_tensors, sizes_of(&m->model), r->best, r->median, target, r->stage[0],
               r->stage[1], r->stage[2], r->stage[3], r->stage[4], r->stage[5], r->worst, r->worst_case,
               naive.done < naive.n ? "~" : " ", naive.ms, naive.ms / r->best, mark(r->best, target));
        fflush(stdout);
    }
    printf("above the target: %u of the models, %u in their slowest case\n\n", late, late_worst);
}

/* Compares with the published planner (Python, 4 options per tensor): its time to choose a strategy on a similar machine, ms. */
static void speed_published(const bench_model *models, const speed_row *rows) {
    static const double published[] = {15, 96, 62, 150, 264, 1}; /* in the order of model_names */
    printf("Beside the published planner (Python; 4 options a tensor; it computes no bound): ms\n");
    printf("%-11s %9s | %9s %7s | %11s %7s\n", "model", "published", "ours, all", "ratio", "search only", "ratio");
    for (int i = 0; i < 6; i++) {
        if (!models[i].published) continue;
        const double *s = rows[i].stage,
                     search = s[STAGE_OPEN] + s[STAGE_CANDIDATES] + s[STAGE_BOUND] + s[STAGE_SEARCH];
        printf("%-11s %9.0f | %9.2f %6.1fx | %11.2f %6.1fx\n", models[i].model.name, published[i], rows[i].best,
               published[i] / rows[i].best, search, published[i] / search);
    }
    printf("ours: all 174 options of one device; all: with both bounds and the Upper Bound's own search; search only: "
           "candidates, "
           "bound_us (its prices start the search) and search\n");
}

static int speed_main(FILE *csv) {
    static bench_model models[MODELS];
    static speed_row one[MODELS], two[MODELS];
    static bench_case c;
    case_open(&c, 0, 0, 8);
    for (int i = 0; i < MODELS; i++)
        if (!model_open(&models[i], model_names[i])) printf("%s: left out: no such model here\n", model_names[i]);
    speed_table(models, &c, ONE_DEVICE, one);
    speed_table(models, &c, TWO_DEVICES, two);
    speed_published(models, one);
    growth_table(csv);
    parts_tables(models, &c);
    for (int i = 0; i < MODELS; i++) model_close(&models[i]);
    return 0;
}
