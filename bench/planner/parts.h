/* parts.h: measures the time that two shortcuts of the planner save: pruning, which drops ways to compress a tensor
 * that others beat, and incremental evaluation, which simulates only what a change affects. */

/* ---- pruning ----------------------------------------------------------------------------------------------------- */
/* Finds the options that pruning leaves for each size of tensor: *paths is their mean number, *us the mean time in
 * us. */
static void parts_candidates(const bench_model *m, const bench_case *c, uint32_t devices, double *paths, double *us) {
    double sum = 0.0;
    uint32_t sizes = 0;
    bench_problem b;
    esp__schedule d = {0};
    problem_open(&b, &m->model, c, 0, devices, 0);
    esp__schedule_tensors(&b.p, &d);
    uint64_t start = esp__now_ns();
    for (uint32_t u = 0; u < d.n_units; u++) {
        uint32_t before = b.p.n_candidate_sets;
        const esp__candidates *candidates = esp__candidates_get(&b.p, &d.units[u]);
        if (b.p.n_candidate_sets == before) continue;
        sum += candidates->n;
        sizes++;
    }
    *us = 1000.0 * ms_since(start) / sizes;
    *paths = sum / sizes;
    problem_close(&b);
}

static double parts_unpruned(const bench_model *m, const bench_case *c, uint32_t devices, uint32_t *options) {
    bench_problem b;
    esp__schedule d = {0};
    uint32_t sizes = 0;
    problem_open(&b, &m->model, c, 0, devices, 0);
    const tree_list *tree = tree_options(devices);
    *options = tree->n;
    esp__schedule_tensors(&b.p, &d);
    uint64_t start = esp__now_ns();
    for (uint32_t u = 0; u < d.n_units && sizes < 10; u++) {
        if (u && d.units[u].elements == d.units[u - 1].elements) continue;
        paths_all(&b.p, &d.units[u], tree);
        sizes++;
    }
    double us = 1000.0 * ms_since(start) / sizes;
    problem_close(&b);
    return us;
}

static void parts_pruning(const bench_model *m, const bench_case *c, uint32_t devices, FILE *csv) {
    uint32_t options;
    double paths, us;
    const double all_us = parts_unpruned(m, c, devices, &options);
    parts_candidates(m, c, devices, &paths, &us);
    fprintf(csv, "%u,%.1f,%.1f,%.1f\n", options, all_us, paths, us);
}

/* ---- incremental evaluation -------------------------------------------------------------------------------------- */
static void parts_plan(bench_problem *b, esp__schedule *d, const bench_model *m, const bench_case *c,
                       uint32_t devices) {
    problem_open(b, &m->model, c, ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT, devices, 0);
    esp__search_all(&b->p, d);
}

static double parts_repeat_ns(esp__problem *p, esp__schedule *d, int replay) {
    uint64_t sum = 0, start = esp__now_ns(), n = 0;
    do
        for (int i = 0; i < 20; i++, n++) sum += replay ? esp__replay(p, d) : esp__generate(p, d);
    while (ms_since(start) < 20.0);
    if (!sum) die("a simulated step takes no time", "parts");
    return 1e6 * ms_since(start) / (double)n;
}

/* Returns the mean ns that the evaluation of one other option for one tensor takes. *passed counts the tensors that the
 * planner skips, since no change to them makes the step shorter. */
static double parts_trials(esp__problem *p, esp__schedule *d, uint64_t *trials, uint32_t *passed) {
    esp__incremental *k = esp__incremental_open(p, d);
    esp__swap *w = &k->swaps[0];
    uint64_t before = k->trials, start = esp__now_ns();
    *passed = 0;
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__candidates *candidates = esp__candidates_get(p, &d->units[u]);
        *passed += !esp__incremental_critical(k, u, 1);
        esp__incremental_remove(k, w, u, 1);
        for (uint32_t i = 0; i < candidates->n; i++) {
            w->n = 0;
            esp__swap_add(k, w, &k->d->units[u], &candidates->paths[i]);
            esp__incremental_try(k, w, d->makespan);
        }
        esp__incremental_restore(k, w);
    }
    *trials = k->trials - before;
    return 1e6 * ms_since(start) / (double)*trials;
}

static void parts_replay(const bench_model *m, const bench_case *c, FILE *csv) {
    bench_problem b;
    esp__schedule d = {0}, copy = {0};
    uint64_t trials;
    uint32_t passed;
    parts_plan(&b, &d, m, c, TWO_DEVICES);
    double trial = parts_trials(&b.p, &d, &trials, &passed), n = d.n_sequence;
    esp__schedule_copy(&b.p, &copy, &d);
    double replay = parts_repeat_ns(&b.p, &copy, 1), generate = parts_repeat_ns(&b.p, &copy, 0);
    fprintf(csv, "%s,%.0f,%.1f,%.1f,%.0f,%.0f,%.0f,%u,%u\n", m->model.name, n, generate / n, replay / n, trial,
            generate, replay, passed, d.n_units);
    problem_close(&b);
}

static void parts_tables(bench_model *models, const bench_case *c, const char *dir) {
    FILE *csv =
        result_open(dir, "plan-parts",
                    "build/bench/plan speed: pruning while options grow, and all options timed; dgc, paper-nvlink, 8 "
                    "machines",
                    "model,devices,options,all_us,left,left_us");
    for (int i = 0; i < MODELS; i++)
        for (int d = 0; d < 2 && models[i].text; d++) {
            const uint32_t devices = d ? TWO_DEVICES : ONE_DEVICE;
            fprintf(csv, "%s,%d,", models[i].model.name, d + 1);
            parts_pruning(&models[i], c, devices, csv);
        }
    result_close(csv);
    csv = result_open(
        dir, "plan-trials",
        "build/bench/plan speed: one evaluation in ready order, in a fixed order, and as an incremental trial; "
        "two devices, tensors as given; dgc, paper-nvlink, 8 machines",
        "model,ops,ready_ns_per_op,fixed_ns_per_op,trial_ns,ready_ns,fixed_ns,units_skipped,units");
    for (int i = 0; i < MODELS; i++)
        if (models[i].text) parts_replay(&models[i], c, csv);
    result_close(csv);
}
