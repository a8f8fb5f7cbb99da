/* quality.h: how good plans are: every comparison strategy, Algorithms 1 and 2, espresso+ and its bounds in 144 cases with the
 * published costs. The same simulator predicts all steps. */

enum { PAPER_MODELS = 6, SIZES = 4, CASES = PAPER_MODELS * CODECS * TESTBEDS * SIZES, SCHEMES_MAX = 24, TEXT = 1200 };
/* Targets in %: the gap's median and 90th percentile over all cases, for whole tensors and for any units. */
static const double gap_targets[2][2] = {{1.0, 7.0}, {2.0, 9.0}};

typedef struct quality_case {
    uint32_t model, codec, testbed, machines;
    double scheme[SCHEMES_MAX];    /* ms, by esp__schemes(); "espresso" is one of them */
    double espresso_given;         /* Algorithms 1 and 2 with whole tensors */
    double given[2], any[2];       /* espresso+: usual; with ESP_PLAN_THOROUGH. given: whole tensors */
    double upper_given, upper;     /* the paper's Upper Bound: compression takes no time */
    double bound_given, bound;     /* bound_us, bound_any_us */
    double plan_given[2], plan[2]; /* ms to plan */
    double no_merge, no_split;     /* espresso+ thorough without merging, without splitting */
    double alone;                  /* the step without synchronisation, on one GPU */
    uint32_t units, compressed, tensors;
    char why_given[TEXT], why[TEXT]; /* explanations of the thorough plans */
} quality_case;

static uint32_t n_schemes;

static double gap(double step, double bound) { return 100.0 * (step / bound - 1.0); }

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
    esp_plan_free(plan_make(m, c, "espresso", ESP_PLAN_NO_BOUND | as_given, 0, &r));
    q->espresso_given = r.iteration_ns / 1e6;
    for (uint32_t e = 0; e < 2; e++) {
        uint32_t effort = e ? (uint32_t)ESP_PLAN_THOROUGH : 0u;
        esp_plan *plan = plan_make(m, c, NULL, as_given | effort, 0, &r);
        q->given[e] = r.iteration_ns / 1e6, q->bound_given = r.bound_ns / 1e6,
        q->upper_given = r.free_compression_ns / 1e6;
        q->plan_given[e] = r.plan_ns / 1e6;
        explain(q->why_given, TEXT, m, plan, &r, r.bound_ns);
        esp_plan_free(plan);
        plan = plan_make(m, c, NULL, effort, 0, &r);
        q->any[e] = r.iteration_ns / 1e6, q->bound = r.bound_any_ns / 1e6, q->upper = r.free_compression_ns / 1e6;
        q->plan[e] = r.plan_ns / 1e6;
        q->units = r.n_units, q->compressed = r.compressed, q->tensors = r.n_tensors;
        explain(q->why, TEXT, m, plan, &r, r.bound_any_ns);
        esp_plan_free(plan);
    }
    esp_plan_free(plan_make(m, c, NULL, ESP_PLAN_THOROUGH | ESP_PLAN_NO_MERGE, 0, &r));
    q->no_merge = r.iteration_ns / 1e6;
    esp_plan_free(plan_make(m, c, NULL, ESP_PLAN_THOROUGH | ESP_PLAN_NO_SPLIT, 0, &r));
    q->no_split = r.iteration_ns / 1e6;
}

static double scheme_of(const quality_case *q, const char *name) {
    for (uint32_t s = 0; s < n_schemes; s++)
        if (!strcmp(esp__schemes()[s].name, name)) return q->scheme[s];
    die("no such scheme", name);
    return 0.0;
}

/* ---- tables ------------------------------------------------------------------------------------------------------------- */
static void quality_name(const quality_case *q, char *out, size_t room) {
    snprintf(out, room, "%-9s %-9s %-6s %2u", model_names[q->model], codec_names[q->codec],
             testbed_names[q->testbed] + strlen("paper-"), 8 * q->machines);
}

static void quality_csv(const quality_case *all, FILE *csv) {
    fprintf(csv, "model,codec,testbed,gpus");
    for (uint32_t s = 0; s < n_schemes; s++) fprintf(csv, ",%s_us", esp__schemes()[s].name);
    fprintf(csv, ",espresso_given_us,plus_given_us,plus_us,thorough_given_us,thorough_us,no_merge_us,no_split_us,"
                 "upper_given_us,upper_us,bound_us,bound_any_us,"
                 "plan_ms,plan_thorough_ms,tensors,units,compressed\n");
    for (uint32_t i = 0; i < CASES; i++) {
        const quality_case *q = &all[i];
        const double us[] = {q->espresso_given, q->given[0],    q->any[0], q->given[1],    q->any[1], q->no_merge,
                             q->no_split,       q->upper_given, q->upper,  q->bound_given, q->bound};
        fprintf(csv, "%s,%s,%s,%u", model_names[q->model], codec_names[q->codec],
                testbed_names[q->testbed] + strlen("paper-"), 8 * q->machines);
        for (uint32_t s = 0; s < n_schemes; s++) fprintf(csv, ",%.3f", 1000.0 * q->scheme[s]);
        for (uint32_t k = 0; k < sizeof us / sizeof *us; k++) fprintf(csv, ",%.3f", 1000.0 * us[k]);
        fprintf(csv, ",%.3f,%.3f,%u,%u,%u\n", q->plan[0], q->plan[1], q->tensors, q->units, q->compressed);
    }
}

static double case_gap(const quality_case *q, int any, int e) {
    return any ? gap(q->any[e], q->bound) : gap(q->given[e], q->bound_given);
}

static void quality_gaps(const quality_case *all, int any, int e) {
    double x[CASES];
    uint32_t over = 0;
    for (uint32_t i = 0; i < CASES; i++) {
        x[i] = case_gap(&all[i], any, e);
        over += x[i] > gap_targets[any][1];
    }
    double p90 = quantile(x, CASES, 0.9), median = quantile(x, CASES, 0.5);
    printf("%-8s %-46s median %.2f%% (target %g%%), 90%% of cases %.2f%% (target %g%%), most %.2f%%; %u above %g%%\n",
           e ? "thorough" : "usual",
           any ? "merging and splitting, over bound_any_us:" : "tensors as given, over bound_us:", median,
           gap_targets[any][0], p90, gap_targets[any][1], x[CASES - 1], over, gap_targets[any][1]);
}

/* Is `ours` slower by more than rounding to nanoseconds explains? */
static int slower(double ours, double other) { return ours > other + 1.5e-6; }

/* How often another plan is faster than one that should be the fastest. fp16 counts apart: it has its own codec. */
typedef struct slower_count {
    uint32_t schemes, fp16, given;
} slower_count;

static void slower_than(slower_count *n, const char *name, const char *how, double ours, const char *other,
                        double theirs) {
    int fp16 = !strcmp(other, "fp16");
    if (!slower(ours, theirs)) return;
    *(fp16 ? &n->fp16 : &n->schemes) += 1;
    printf("  %s: %s %.3f is slower than %s %.3f%s\n", name, how, ours, other, theirs, fp16 ? " (another codec)" : "");
}

/* Counts and prints plans that are faster than espresso+ with this effort (e 1: thorough). */
static void quality_slower(const quality_case *q, int e, slower_count *n) {
    const char *how = e ? "espresso+ thorough" : "espresso+";
    char name[64];
    quality_name(q, name, sizeof name);
    for (uint32_t s = 0; s < n_schemes; s++) slower_than(n, name, how, q->any[e], esp__schemes()[s].name, q->scheme[s]);
    slower_than(n, name, e ? "thorough as given" : "as given", q->given[e], "espresso as given", q->espresso_given);
    if (!slower(q->any[e], q->given[e])) return;
    n->given++;
    printf("  %s: %s %.3f is slower than with tensors as given, %.3f\n", name, how, q->any[e], q->given[e]);
}

static void quality_violations(const quality_case *all) {
    static const char *const published[] = {"fp32",      "ddp",     "fp16",       "layerwise",
                                            "mergecomp", "hipress", "hitopkcomm", "byteps-compress"};
    slower_count plus[2], algorithms = {0, 0, 0};
    uint32_t below = 0;
    char name[64];
    memset(plus, 0, sizeof plus);
    for (uint32_t i = 0; i < CASES; i++) {
        const quality_case *q = &all[i];
        quality_name(q, name, sizeof name);
        for (uint32_t s = 0; s < sizeof published / sizeof *published; s++)
            slower_than(&algorithms, name, "espresso", scheme_of(q, "espresso"), published[s],
                        scheme_of(q, published[s]));
        for (int e = 0; e < 2; e++) {
            quality_slower(q, e, &plus[e]);
            below +=
                slower(q->bound_given, q->given[e]) || slower(q->bound, q->any[e]) || slower(q->bound, q->given[e]);
        }
    }
    for (int e = 0; e < 2; e++)
        printf("%-8s espresso+ slower than another strategy: %u times, than fp16 (which has a codec of its own): %u; "
               "than itself "
               "with tensors as given: %u\n",
               e ? "thorough" : "usual", plus[e].schemes, plus[e].fp16, plus[e].given);
    printf("espresso (Algorithms 1 and 2) slower than a published scheme: %u times, than fp16: %u; plans below a "
           "bound: %u\n",
           algorithms.schemes, algorithms.fp16, below);
}

static void quality_spread(const char *what, double *x, uint32_t n) {
    double p90 = quantile(x, n, 0.9), median = quantile(x, n, 0.5);
    printf("%s: median %+.2f%%, 90%% of cases %+.2f%%, least %+.2f%%, most %+.2f%%\n", what, median, p90, x[0],
           x[n - 1]);
}

static void quality_summary(const quality_case *all) {
    double x[CASES];
    printf("\nSummary of %d cases\n", CASES);
    quality_violations(all);
    for (int any = 0; any < 2; any++)
        for (int e = 0; e < 2; e++) quality_gaps(all, any, e);
    for (uint32_t i = 0; i < CASES; i++) x[i] = gap(all[i].any[1], all[i].upper);
    quality_spread("thorough over the Upper Bound (compression free of cost)", x, CASES);
    for (uint32_t i = 0; i < CASES; i++) x[i] = gap(all[i].any[0], all[i].any[1]);
    quality_spread("as usual over thorough", x, CASES);
    for (uint32_t i = 0; i < CASES; i++) x[i] = gap(scheme_of(&all[i], "espresso"), all[i].any[1]);
    quality_spread("espresso (Algorithms 1 and 2) over thorough", x, CASES);
    for (uint32_t i = 0; i < CASES; i++) x[i] = gap(all[i].given[1], all[i].any[1]);
    quality_spread("thorough, tensors as given, over with merging and splitting", x, CASES);
    for (uint32_t i = 0; i < CASES; i++) x[i] = gap(all[i].no_merge, all[i].any[1]);
    quality_spread("thorough without merging over with it", x, CASES);
    for (uint32_t i = 0; i < CASES; i++) x[i] = gap(all[i].no_split, all[i].any[1]);
    quality_spread("thorough without splitting over with it", x, CASES);
}

static void quality_explained(const quality_case *all) {
    for (int any = 0; any < 2; any++) {
        printf("\nThorough plans above %g%% over %s (ms)\n", gap_targets[any][1],
               any ? "bound_any_us" : "bound_us, tensors as given");
        for (uint32_t i = 0; i < CASES; i++) {
            const quality_case *q = &all[i];
            double g = case_gap(q, any, 1);
            char name[64];
            if (g <= gap_targets[any][1]) continue;
            quality_name(q, name, sizeof name);
            printf("  %s: %.2f%%: %s\n", name, g, any ? q->why : q->why_given);
        }
    }
}

/* ---- comparison with the paper's own figures ----------------------------------------------------------------------------------------- */
typedef struct paper_row {
    const char *model, *testbed, *codec;
    int over[4];    /* %, over fp32, byteps-compress, hitopkcomm, hipress; 0: not reported */
    double scaling; /* of fp32: throughput / throughput without synchronisation; 0: not reported */
} paper_row;

static void quality_paper(const quality_case *all) {
    static const char *const schemes[4] = {"fp32", "byteps-compress", "hitopkcomm", "hipress"};
    static const paper_row rows[] = {{"bert-base", "nvlink", "randomk", {0, 31, 54, 40}, 0.51},
                                     {"gpt2", "nvlink", "efsignsgd", {0, 42, 0, 33}, 0.58},
                                     {"ugatit", "nvlink", "dgc", {149, 205, 50, 35}, 0},
                                     {"lstm", "pcie", "efsignsgd", {0, 101, 73, 77}, 0.46},
                                     {"vgg16", "pcie", "randomk", {269, 357, 0, 55}, 0},
                                     {"resnet101", "pcie", "dgc", {20, 18, 0, 24}, 0.70}};
    printf("\nBeside the paper's speed-ups, 64 GPUs: paper / espresso / espresso+ thorough (-: not reported), %% more "
           "throughput\n");
    printf("%-9s %-7s %-10s", "model", "net", "codec");
    for (int k = 0; k < 4; k++) printf(" | %-24s", schemes[k]);
    printf(" | %-13s | espresso+ over the Upper Bound\n", "fp32 scaling");
    for (uint32_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (uint32_t i = 0; i < CASES; i++) {
            const quality_case *q = &all[i];
            if (q->machines != 8 || strcmp(model_names[q->model], rows[r].model) != 0 ||
                strcmp(codec_names[q->codec], rows[r].codec) != 0 ||
                !strstr(testbed_names[q->testbed], rows[r].testbed))
                continue;
            printf("%-9s %-7s %-10s", rows[r].model, rows[r].testbed, rows[r].codec);
            for (int k = 0; k < 4; k++) {
                char reported[16] = "-";
                if (rows[r].over[k]) snprintf(reported, sizeof reported, "+%d", rows[r].over[k]);
                printf(" | %6s / %+6.0f / %+6.0f", reported, gap(scheme_of(q, schemes[k]), scheme_of(q, "espresso")),
                       gap(scheme_of(q, schemes[k]), q->any[1]));
            }
            char reported[16] = "-";
            if (rows[r].scaling > 0.0) snprintf(reported, sizeof reported, "%.2f", rows[r].scaling);
            printf(" | %5s / %5.2f | %.1f%%\n", reported, q->alone / scheme_of(q, "fp32"), gap(q->any[1], q->upper));
        }
}

static int quality_main(FILE *csv) {
    static quality_case all[CASES];
    static bench_case c;
    uint32_t i = 0, published = 0;
    uint64_t start = esp__now_ns();
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
    quality_summary(all);
    quality_paper(all);
    quality_explained(all);
    printf("\n%u of %d models are the published traces; %.0f s\n", published, PAPER_MODELS, ms_since(start) / 1000.0);
    if (csv) quality_csv(all, csv);
    return 0;
}
