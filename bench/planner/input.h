/* input.h: the inputs of bench/plan: model files with measured backward times, and the testbeds and codecs of the
 * Espresso paper. It reads model files without a JSON library, and also opens the files of results. */
#include "bench/head.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODELS = 9, CODECS = 3, TESTBEDS = 2 };
static const char *const model_names[MODELS] = {"vgg16", "resnet101",  "ugatit", "bert-base", "gpt2",
                                                "lstm",  "bert-large", "ncf",    "resnet50"};
static const char *const codec_specs[CODECS] = {"dgc:ratio=0.01", "randomk:ratio=0.01", "efsignsgd"};
static const char *const codec_names[CODECS] = {"dgc", "randomk", "efsignsgd"};
static const char *const testbed_names[TESTBEDS] = {"paper-nvlink", "paper-pcie"};
enum { ONE_DEVICE = 1u << ESP_ON_GPU, TWO_DEVICES = 1u << ESP_ON_CPU | 1u << ESP_ON_GPU };

static void die(const char *what, const char *name) {
    fprintf(stderr, "bench/plan: %s: %s\n", name, what);
    exit(1);
}
static double ms_since(uint64_t start) { return (double)(esp__now_ns() - start) / 1e6; }
/* Sorts x. Returns the smallest number in x that is at least as large as `share` (0 to 1) of the numbers in x. */
static double quantile(double *x, uint32_t n, double share) {
    esp__sort(x, n);
    return x[(uint32_t)ceil(share * n) - 1];
}

/* ---- models ------------------------------------------------------------------------------------------------------ */
typedef struct bench_model {
    esp_plan_model model;
    char *text;
    int published;
} bench_model;

static char *file_text(const char *path) {
    char *text;
    size_t bytes;
    int error = esp__file_read(path, SIZE_MAX, &text, &bytes);
    if (error == ENOMEM) die("out of memory", path);
    return text;
}

static char *value_of(char *at, const char *end, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    char *found = strstr(at, quoted);
    return found && (!end || found < end) ? found + strlen(quoted) : NULL;
}

static void model_tensors(bench_model *m, const char *path, char *at) {
    uint32_t room = 64, n = 0;
    esp_plan_tensor *t = malloc(room * sizeof *t);
    for (; t && (at = strchr(at, '{')) != NULL; n++) {
        char *end = strchr(at, '}'), *name = end ? value_of(at, end, "name") : NULL;
        char *elements = end ? value_of(at, end, "elements") : NULL, *us = end ? value_of(at, end, "compute_us") : NULL;
        if (!name || !elements || !us || !(name = strchr(name, '"')))
            die("not a model file that this bench reads", path);
        if (n == room && !(t = realloc(t, (room *= 2) * sizeof *t))) break;
        t[n] = (esp_plan_tensor){
            .name = name + 1, .elements = strtoull(elements, NULL, 10), .compute_ns = 1000.0 * strtod(us, NULL)};
        *strchr(name + 1, '"') = 0;
        at = end + 1;
    }
    if (!t || !n) die("no tensors", path);
    m->model.tensors = t;
    m->model.n_tensors = n;
}

/* Reads FOLDER/NAME.json. Returns 0 if the file does not exist. */
static int model_file(bench_model *m, const char *folder, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    memset(m, 0, sizeof *m);
    if (!(m->text = file_text(path))) return 0;
    char *tensors = value_of(m->text, NULL, "tensors"), *us;
    if (!tensors) die("not a model file that this bench reads", path);
    if ((us = value_of(m->text, tensors, "forward_us")) != NULL) m->model.forward_ns = 1000.0 * strtod(us, NULL);
    if ((us = value_of(m->text, tensors, "update_us")) != NULL) m->model.update_ns = 1000.0 * strtod(us, NULL);
    m->model.name = name;
    model_tensors(m, path, tensors);
    return 1;
}

static int model_open(bench_model *m, const char *name) {
    const char *shared = getenv("ESPRESSO_SHARED");
    char folder[900];
    snprintf(folder, sizeof folder, "%s/models", shared && *shared ? shared : "../shared");
    if ((m->published = model_file(m, folder, name)) != 0) return 1;
    if (!model_file(m, "planner/models", name)) return 0;
    fprintf(stderr, "%s: no published trace here, so planner/models/%s.json: steps are not comparable\n", name, name);
    return 1;
}

static void model_close(bench_model *m) {
    free((void *)m->model.tensors);
    free(m->text);
    memset(m, 0, sizeof *m);
}

/* ---- system and codec -------------------------------------------------------------------------------------------- */
typedef struct bench_case {
    esp_plan_system system;
    esp__costs costs;
} bench_case;

static void case_open(bench_case *c, uint32_t codec, uint32_t testbed, uint32_t machines) {
    c->system = *esp__builtin_system(testbed_names[testbed]);
    c->system.machines = machines;
    esp_ctx *ctx = NULL;
    if (esp__open_alone(&ctx)) die(esp_last_error(NULL), "codecs");
    if (esp__builtin_costs(ctx, codec_specs[codec], &c->system, NULL, &c->costs))
        die(esp_last_error(ctx), codec_specs[codec]);
    esp_close(ctx);
}

/* Makes a plan: with the default search, espresso+, if `strategy` is NULL, and for the system's devices if `devices`
 * is 0. */
static esp_plan *plan_make(const bench_model *m, const bench_case *c, const char *strategy, uint32_t flags,
                           uint32_t devices, esp_plan_report *report) {
    esp_plan_config config;
    esp_plan *plan = NULL;
    memset(&config, 0, sizeof config);
    config.strategy = strategy;
    config.flags = flags;
    config.devices = devices;
    if (esp_plan_make(&m->model, &c->costs.codec, 1, &c->system, &config, &plan))
        die(esp_last_error(NULL), m->model.name);
    report->struct_size = sizeof *report;
    esp_plan_report_read(plan, report);
    return plan;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */
static FILE *result_open(const char *dir, const char *name, const char *what, const char *columns) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.csv", dir, name);
    FILE *f = fopen(path, "w");
    if (!f) die("cannot write", path);
    bench_head(f, what);
    fprintf(f, "%s\n", columns);
    return f;
}
static void result_close(FILE *f) {
    if (ferror(f) | fclose(f)) die("cannot write", "a result");
}
