/* growth.h: measures how planning time grows with the number of tensors. The models have repeated layers as in
 * transformers, either all of one width (few sizes) or each of its own width (nearly as many sizes as tensors). */
#include "espresso_impl/base/quantile.h"

static const uint32_t growth_sizes[] = {10, 30, 100, 300, 1000, 2000, 5000};
enum { GROWTH = 7 };

/* Each layer has feed-forward and attention matrices, biases and norms, in backward order. */
static esp_plan_model growth_model(uint32_t n, int distinct) {
    static const double parts[] = {4, 0.001, 4, 0.004, 0.001, 0.001, 1, 0.001, 3, 0.003, 0.001, 0.001};
    esp_plan_tensor *t = calloc(n, sizeof *t);
    char *names = malloc((uint64_t)n * 16);
    if (!t || !names) die("out of memory", "growth");
    for (uint32_t i = 0; i < n; i++) {
        double width = distinct ? 600.0 + 7.0 * (double)((uint64_t)i * 2654435769u % 101u) + i * 0.01 : 768.0;
        double e = width * width * parts[i % 12];
        snprintf(names + 16 * i, 16, "t%u", i);
        t[i] = (esp_plan_tensor){
            .name = names + 16 * i, .elements = (uint64_t)e + 1 + (distinct ? i : 0), .compute_ns = 1500.0 + 0.35 * e};
    }
    esp_plan_model m;
    memset(&m, 0, sizeof m);
    m.n_tensors = n;
    m.name = distinct ? "layers, each of its own width" : "layers alike";
    m.tensors = t;
    return m;
}
static void growth_free(const esp_plan_model *m) {
    free((void *)(uintptr_t)m->tensors[0].name);
    free((void *)(uintptr_t)m->tensors);
}

static uint32_t sizes_of(const esp_plan_model *m) {
    double *e = malloc(m->n_tensors * sizeof *e);
    uint32_t n = 0;
    for (uint32_t i = 0; e && i < m->n_tensors; i++) e[i] = (double)m->tensors[i].elements;
    if (e) esp__sort(e, m->n_tensors);
    for (uint32_t i = 0; e && i < m->n_tensors; i++) n += !i || e[i] > e[i - 1];
    free(e);
    return n;
}

static void growth_row(uint32_t n, int distinct, FILE *csv) {
    static const uint32_t devices[] = {ONE_DEVICE, TWO_DEVICES};
    bench_model m = {growth_model(n, distinct), NULL, 0};
    bench_case *c = malloc(sizeof *c);
    if (!c) die("out of memory", "growth");
    case_open(c, 0, 0, 8);
    for (int d = 0; d < 2; d++) {
        double best = 1e30, gap = 0.0;
        for (int run = 0; run < (n > 2000 ? 1 : 2); run++) {
            esp_plan_report r;
            esp_plan_free(plan_make(&m, c, NULL, 0, devices[d], &r));
            if (r.plan_ns / 1e6 < best) best = r.plan_ns / 1e6;
            gap = 100.0 * (r.iteration_ns / r.bound_ns - 1.0);
        }
        fprintf(csv, "%u,%s,%u,%d,%.3f,%.3f\n", n, distinct ? "distinct" : "alike", sizes_of(&m.model), d + 1, best,
                gap);
    }
    free(c);
    growth_free(&m.model);
}

static void growth_table(const char *dir) {
    FILE *csv =
        result_open(dir, "plan-growth", "build/bench/plan speed: dgc, paper-nvlink, 8 machines, everything included",
                    "tensors,layers,sizes,devices,plan_ms,gap_any_percent");
    for (int distinct = 0; distinct < 2; distinct++)
        for (int i = 0; i < GROWTH; i++) growth_row(growth_sizes[i], distinct, csv);
    result_close(csv);
}
