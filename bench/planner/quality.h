/* quality.h: compares the planner's strategies (espresso+) in 144 cases, with the costs from the Espresso paper: with
 * simple strategies, with those of the paper's Algorithms 1 and 2, and with a lower bound of the step time. The same
 * simulator predicts all steps. */

enum { PAPER_MODELS = 6, SIZES = 4, CASES = PAPER_MODELS * CODECS * TESTBEDS * SIZES, SCHEMES_MAX = 24, TEXT = 1200 };
typedef struct quality_case {
    uint32_t model, codec, testbed, machines;
    double scheme[SCHEMES_MAX]; /* ms per step with simple strategies (esp__schemes) */
    double paper_given;         /* ms per step by the paper's algorithms (no groups or splits) */
    double given[2], any[2];    /* [usual, thorough] search; given: no groups, no splits */
    double upper_given, upper;  /* ms per step if compression took no time (paper: Upper Bound) */
    double bound;
    double plan_given[2], plan[2]; /* planning time in ms */
    double no_merge, no_split;
    double alone; /* step on one GPU, without synchronization */
    uint32_t units, compressed, tensors;
    char why[TEXT]; /* why the thorough plan exceeds the bound */
} quality_case;

static uint32_t n_schemes;

static void quality_measure(quality_case *q, const bench_model *m, const bench_case *c) {
    const uint32_t as_given = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
    esp_plan_report r;
    const esp__scheme *schemes = esp__schemes();
    for (n_schemes = 0; schemes[n_schemes].name && n_schemes < SCHEMES_MAX; n_schemes++) {
        esp_plan_free(plan_make(m, c, schemes[n_schemes].name, ESP_PLAN_NO_BOUND, 0, &r));
        q->scheme[n_schemes] = r.iteration_ns / 1e6;
    }
    q->alone = m->model.forward_ns + m->model.update_ns;
    for (uint32_t i = 0; i < m->model.n_tensors; i++) q->alone += m->model.tensors[i].compute_ns;
    q->alone /= 1e6;
    esp_plan_free(plan_make(m, c, "paper", ESP_PLAN_NO_BOUND | as_given, 0, &r));
    q->paper_given = r.iteration_ns / 1e6;
    for (uint32_t e = 0; e < 2; e++) {
        uint32_t effort = e ? (uint32_t)ESP_PLAN_THOROUGH : 0u;
        esp_plan *plan = plan_make(m, c, NULL, as_given | effort, 0, &r);
        q->given[e] = r.iteration_ns / 1e6, q->upper_given = r.free_compression_ns / 1e6;
        q->plan_given[e] = r.plan_ns / 1e6;
        esp_plan_free(plan);
        plan = plan_make(m, c, NULL, effort, 0, &r);
        q->any[e] = r.iteration_ns / 1e6, q->bound = r.bound_ns / 1e6, q->upper = r.free_compression_ns / 1e6;
        q->plan[e] = r.plan_ns / 1e6;
        q->units = r.n_units, q->compressed = r.compressed, q->tensors = r.n_tensors;
        explain(q->why, TEXT, m, plan, &r);
        esp_plan_free(plan);
    }
    esp_plan_free(plan_make(m, c, NULL, ESP_PLAN_THOROUGH | ESP_PLAN_NO_MERGE, 0, &r));
    q->no_merge = r.iteration_ns / 1e6;
    esp_plan_free(plan_make(m, c, NULL, ESP_PLAN_THOROUGH | ESP_PLAN_NO_SPLIT, 0, &r));
    q->no_split = r.iteration_ns / 1e6;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
static void quality_name(const quality_case *q, FILE *csv) {
    fprintf(csv, "%s,%s,%s,%u", model_names[q->model], codec_names[q->codec],
            testbed_names[q->testbed] + strlen("paper-"), 8 * q->machines);
}

static void quality_csv(const quality_case *all, const char *dir, const char *what) {
    char columns[TEXT] = "model,codec,testbed,gpus";
    for (uint32_t s = 0; s < n_schemes; s++)
        snprintf(columns + strlen(columns), TEXT - strlen(columns), ",%s_us", esp__schemes()[s].name);
    snprintf(columns + strlen(columns), TEXT - strlen(columns), "%s",
             ",paper_given_us,plus_given_us,plus_us,thorough_given_us,thorough_us,no_merge_us,no_split_us,"
             "upper_given_us,upper_us,bound_us,plan_ms,plan_thorough_ms,tensors,units,compressed,alone_us");
    FILE *csv = result_open(dir, "plan-quality", what, columns);
    for (uint32_t i = 0; i < CASES; i++) {
        const quality_case *q = &all[i];
        const double us[] = {q->paper_given, q->given[0], q->any[0],      q->given[1], q->any[1],
                             q->no_merge,    q->no_split, q->upper_given, q->upper,    q->bound};
        quality_name(q, csv);
        for (uint32_t s = 0; s < n_schemes; s++) fprintf(csv, ",%.3f", 1000.0 * q->scheme[s]);
        for (uint32_t k = 0; k < sizeof us / sizeof *us; k++) fprintf(csv, ",%.3f", 1000.0 * us[k]);
        fprintf(csv, ",%.3f,%.3f,%u,%u,%u,%.3f\n", q->plan[0], q->plan[1], q->tensors, q->units, q->compressed,
                1000.0 * q->alone);
    }
    result_close(csv);
}

static void quality_misses(const quality_case *all, const char *dir) {
    FILE *csv =
        result_open(dir, "plan-misses", "build/bench/plan quality: thorough plans above 9% over bound_us; times in ms",
                    "model,codec,testbed,gpus,gap_percent,explanation");
    for (uint32_t i = 0; i < CASES; i++) {
        const double gap = 100.0 * (all[i].any[1] / all[i].bound - 1.0);
        if (gap <= 9.0) continue;
        quality_name(&all[i], csv);
        fprintf(csv, ",%.2f,\"%s\"\n", gap, all[i].why);
    }
    result_close(csv);
}

static void quality_main(const char *dir) {
    static quality_case all[CASES];
    static bench_case c;
    uint32_t i = 0, published = 0;
    for (uint32_t m = 0; m < PAPER_MODELS; m++) {
        bench_model model;
        if (!model_open(&model, model_names[m])) die("no such model here", model_names[m]);
        published += (uint32_t)model.published;
        for (uint32_t k = 0; k < CODECS * TESTBEDS * SIZES; k++, i++) {
            quality_case *q = &all[i];
            q->model = m, q->codec = k / SIZES % CODECS, q->testbed = k / SIZES / CODECS, q->machines = 1u << k % SIZES;
            case_open(&c, q->codec, q->testbed, q->machines);
            quality_measure(q, &model, &c);
            if (isatty(2)) fprintf(stderr, "\r%u of %d cases", i + 1, CASES);
        }
        model_close(&model);
    }
    if (isatty(2)) fprintf(stderr, "\n");
    char what[128];
    snprintf(what, sizeof what,
             "build/bench/plan quality: predicted steps, one thread; %u of %d models are the published traces",
             published, PAPER_MODELS);
    quality_csv(all, dir, what);
    quality_misses(all, dir);
}
