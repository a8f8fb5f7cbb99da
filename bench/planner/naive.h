/* naive.h: a slow planner, for comparison: for every tensor it tries every combination of collectives and
 * compressions, and simulates the whole step for each. This is one pass of greedy Algorithm 1 of the Espresso paper. */

typedef struct tree_list {
    esp__option *options;
    uint32_t n, room;
} tree_list;
static tree_list every_option;

static int option_add(void *user, const esp__option *o) {
    tree_list *l = user;
    if (l->n == l->room && !(l->options = realloc(l->options, (l->room = 2 * l->room + 256) * sizeof *o)))
        die("out of memory", "options");
    l->options[l->n++] = *o;
    return 0;
}

static const tree_list *tree_options(uint32_t devices) {
    every_option.n = 0;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, devices, 0, option_add, &every_option);
    return &every_option;
}

typedef struct bench_problem {
    jmp_buf no_memory;
    esp__arena arena;
    esp__problem p;
} bench_problem;

static void problem_open(bench_problem *b, const esp_plan_model *model, const bench_case *c, uint32_t flags,
                         uint32_t devices, int free_compression) {
    esp_plan_config config;
    memset(b, 0, sizeof *b);
    memset(&config, 0, sizeof config);
    config.flags = flags;
    config.devices = devices;
    b->arena.on_failure = &b->no_memory;
    if (setjmp(b->no_memory)) die("out of memory", model->name);
    if (esp__problem_open(&b->p, &b->arena, model, &c->costs.codec, 1, &c->system, &config, free_compression))
        die(esp_last_error(NULL), model->name);
}
static void problem_close(bench_problem *b) { esp__arena_free(&b->arena); }

static const esp__path **paths_all(esp__problem *p, const esp__extent *u, const tree_list *tree) {
    const esp__path **paths = esp__arena_get(p->arena, tree->n * sizeof *paths);
    for (uint32_t i = 0; i < tree->n; i++) paths[i] = esp__path_of(p, u, &tree->options[i], 0);
    return paths;
}

typedef struct naive_result {
    double ms, step_ms;
    uint32_t done, n;
    uint32_t options;
} naive_result;

static naive_result naive_greedy(const esp_plan_model *model, const bench_case *c, uint32_t devices, double most_ms) {
    naive_result r = {0};
    bench_problem b;
    problem_open(&b, model, c, ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT, devices, 0);
    const tree_list *tree = tree_options(devices);
    esp__schedule d = {0};
    uint64_t start = esp__now_ns();
    esp__schedule_tensors(&b.p, &d);
    for (uint32_t u = 0; u < d.n_units; u++)
        d.paths[u] = esp__path_make(&b.p, &d.units[u],
                                    b.p.hierarchical ? "intra.reduce_scatter > inter.allreduce > intra.allgather"
                                                     : "flat.allreduce",
                                    ESP__NO_CODEC);
    uint64_t best = esp__generate(&b.p, &d);
    const esp__ranked *by_size = esp__ranking(&b.p, &d);
    const esp__path **paths = NULL;
    for (r.n = d.n_units; r.done < r.n && ms_since(start) < most_ms; r.done++) {
        /* Tensors of equal size follow each other, and have the same options and times. */
        uint32_t u = by_size[r.done].unit;
        if (!r.done || by_size[r.done - 1].elements != by_size[r.done].elements)
            paths = paths_all(&b.p, &d.units[u], tree);
        const esp__path *chosen = d.paths[u];
        for (uint32_t i = 0; i < tree->n; i++) {
            if (!(d.paths[u] = paths[i])) continue;
            uint64_t t = esp__generate(&b.p, &d);
            if (t < best) best = t, chosen = paths[i];
        }
        d.paths[u] = chosen;
    }
    r.ms = ms_since(start) * r.n / (r.done ? r.done : 1);
    r.step_ms = r.done == r.n ? (model->forward_ns + model->update_ns + (double)best) / 1e6 : 0.0;
    r.options = tree->n;
    problem_close(&b);
    return r;
}
