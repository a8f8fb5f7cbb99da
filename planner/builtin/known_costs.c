/* known_costs.c: computes what codecs cost on known accelerators. The times come from a codec's own model, or from
 * those that were published with the Espresso paper for the V100. On a device whose memory is k times as fast, k times
 * as many elements take the same time. README.md beside this file explains the estimates. */
#include "planner/builtin/builtin.h"
#include "planner/builtin/v100.h"

/* ---- machines --------------------------------------------------------------------------------------------------- */
typedef struct esp__known_accelerator {
    const char *name;
    double memory_bytes_per_us;
    bool published;          /* the times in v100.c were measured on it */
    double cpu_bytes_per_us; /* of its host, all threads together; 0 if not known */
} esp__known_accelerator;
/* The CPU rate of "V100" follows from the published time of sign compression, which moves 20.1 bytes per element. */
static const esp__known_accelerator esp__known_accelerators[] = {
    {"V100", 900e3, true, 19.3e3}, {"H100", 3350e3, false, 0},      {"H200", 4800e3, false, 0},
    {"A100", 2039e3, false, 0},    {"A100-40GB", 1555e3, false, 0}, {"P100", 732e3, false, 0},
    {"T4", 320e3, false, 0},       {"L4", 300e3, false, 0},         {"RTX3090", 936e3, false, 0},
    {"RTX4090", 1008e3, false, 0},
};
static const double esp__published_memory = 900e3, esp__published_core = 19.3e3;
/* A server's memory is taken to transfer 100 GB/s, which 12 threads use up. */
enum { ESP__COMMON_WORKERS = 16, ESP__WORKERS_FILL_MEMORY = 12 };

ESP__FN const char *esp__known_accelerator_at(uint32_t i) {
    return i < sizeof esp__known_accelerators / sizeof *esp__known_accelerators ? esp__known_accelerators[i].name
                                                                                : NULL;
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */
static esp_cost_curve *esp__costs_curve(esp__costs *out, int device, int d) {
    return d ? &out->codec.decompress[device] : &out->codec.compress[device];
}

static void esp__model_curves(esp__costs *out, int device, const esp_codec_model *m, double faster) {
    for (int d = 0; d < 2; d++) {
        esp_cost_point *at = out->points[device][d];
        uint32_t n = 0;
        for (uint32_t i = 0; i < m->n_times; i++) {
            const double size = m->times[i].elements * (i < m->n_fixed ? 1.0 : faster);
            if (n && size <= at[n - 1].size) continue; /* a slow device reaches it where the fixed times still hold */
            at[n++] = (esp_cost_point){size, d ? m->times[i].decompress_ns : m->times[i].compress_ns};
        }
        if (n) *esp__costs_curve(out, device, d) = (esp_cost_curve){at, n, 0};
    }
}

/* Keeps the curves that were set so far as those for vectors, and sets the curves for matrices. */
static esp_status esp__matrix_curves(esp_ctx *ctx, const esp__codec *c, int device, double faster, esp__costs *out) {
    esp_codec_model matrix;
    esp_status s = esp__codec_model(ctx, c, 1, 1, device == ESP_ON_GPU ? ESP_CUDA : ESP_CPU, &matrix);
    if (s) return s;
    memcpy(out->vector_points[device], out->points[device], sizeof out->vector_points[device]);
    for (int d = 0; d < 2; d++) {
        esp_cost_curve *to = d ? &out->codec.vector_decompress[device] : &out->codec.vector_compress[device];
        *to = *esp__costs_curve(out, device, d);
        to->points = out->vector_points[device][d];
    }
    if (device == ESP_ON_CPU) out->codec.vector_error = out->codec.error;
    out->codec.error = matrix.error >= 0.0 && matrix.error <= 1.0 ? matrix.error : 1.0;
    esp__model_curves(out, device, &matrix, faster);
    return ESP_OK;
}

static void esp__published_cpu(esp__costs *out, const esp__published *p, double faster) {
    for (int d = 0; d < 2; d++) {
        esp_cost_point *at = out->points[ESP_ON_CPU][d];
        for (int i = 0; i < ESP__V100_SIZES; i++)
            at[i] = (esp_cost_point){(double)(1u << (ESP__V100_FIRST + i)) * faster, 1000.0 * p->cpu[d][i]};
        *esp__costs_curve(out, ESP_ON_CPU, d) = (esp_cost_curve){at, ESP__V100_SIZES, 1};
    }
}

/* Sets a curve of one point, which means: constant up to the point's size, then proportional to size. */
static void esp__published_gpu(esp__costs *out, const esp__published *p, double faster) {
    for (int d = 0; d < 2; d++) {
        esp_cost_point *at = out->points[ESP_ON_GPU][d];
        at[0] = (esp_cost_point){1048576.0 * faster, p->gpu[d] * 1000.0};
        *esp__costs_curve(out, ESP_ON_GPU, d) = (esp_cost_curve){at, 1, 0};
    }
}

/* ---- a codec's costs --------------------------------------------------------------------------------------------- */
static esp_status esp__accelerator_find(esp_ctx *ctx, const char *spec, const char *name,
                                        const esp__known_accelerator **out) {
    char list[ESP__SPEC_MAX] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof esp__known_accelerators / sizeof *esp__known_accelerators; i++) {
        *out = &esp__known_accelerators[i];
        if (!strcmp((*out)->name, name)) return ESP_OK;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", (*out)->name);
    }
    return esp__fail(
        ctx, ESP_E_ARG,
        "codec '%s': no costs are known for accelerator '%s'. Known: %s; for another, give a file of the codec's costs",
        spec, name, list);
}

/* Sets the size of payloads as published. The codec's parameter "ratio" is the share of the elements that it sends. */
static esp_status esp__published_payload(esp_ctx *ctx, const char *spec, const char *params, const esp__published *p,
                                         esp_plan_codec *out) {
    char key[ESP__NAME_MAX], value[ESP__SPEC_MAX];
    double ratio = 0.01;
    while (esp_params_next(&params, key, sizeof key, value, sizeof value) == 1) {
        if (!p->ratio || strcmp(key, "ratio") != 0) continue;
        if (!esp_params_number(value, NULL, &ratio) || !(ratio > 0.0 && ratio <= 1.0))
            return esp__fail(ctx, ESP_E_ARG, "codec '%s': ratio=%s: expected a number above 0 and at most 1", spec,
                             value);
    }
    out->header_bytes = p->header_bytes;
    out->unit_bytes = p->unit_bytes;
    out->units = p->units * (p->ratio ? ratio : 1.0);
    out->caps = 0; /* published payloads cannot be summed */
    return ESP_OK;
}

static esp_status esp__model_costs(esp_ctx *ctx, esp__codec *c, double core_faster, double gpu_faster,
                                   esp__costs *out) {
    const esp_payload_size *size = &c->model.sent;
    esp_codec_model gpu;
    esp__codec *on_gpu = NULL;
    if (!esp__codec_has_model(c) || !c->model.n_times)
        return esp__fail(ctx, ESP_E_UNSUPPORTED,
                         "codec '%s' has no model() of its costs: measure it with espresso profile, and give the file",
                         c->spec);
    const int matrices = (c->traits.caps & ESP_CODEC_NEEDS_MATRIX) != 0;
    if (!matrices && !esp__codec_shrinks(c))
        return esp__fail(ctx, ESP_E_ARG,
                         "codec '%s' makes nothing smaller: leave it out, plans always may send gradients as they are",
                         c->spec);
    const double quantum = size->quantum > 0.0 ? size->quantum : 1.0;
    out->codec.caps = (uint32_t)(c->traits.caps & ESP_CODEC_REDUCIBLE);
    out->codec.takes_list = (c->traits.caps & ESP_CODEC_LISTS) != 0;
    out->codec.lossy = esp__codec_lossy(c) != 0;
    out->codec.error = c->model.error >= 0.0 && c->model.error <= 1.0 ? c->model.error : 1.0;
    out->codec.header_bytes = size->fixed;
    out->codec.unit_bytes = quantum;
    out->codec.units = size->per_element / quantum;
    esp__model_curves(out, ESP_ON_CPU, &c->model, core_faster);
    esp__plan_codec_rounds(&out->codec, c->table, &c->traits, c->self);
    esp_status s = matrices ? esp__matrix_curves(ctx, c, ESP_ON_CPU, core_faster, out) : ESP_OK;
    if (s || gpu_faster <= 0.0) return s;
    s = esp__codec_on(ctx, c, ESP_CUDA, &on_gpu);
    if (!on_gpu) on_gpu = c;
    if (!s) s = esp__codec_model(ctx, on_gpu, 0, 1, ESP_CUDA, &gpu);
    if (!s) esp__model_curves(out, ESP_ON_GPU, &gpu, gpu_faster);
    return !s && matrices ? esp__matrix_curves(ctx, on_gpu, ESP_ON_GPU, gpu_faster, out) : s;
}

/* Computes costs from published times, for a codec that this library lacks. */
static esp_status esp__published_only(esp_ctx *ctx, const char *spec, const char *params, const esp__published *p,
                                      double faster, esp__costs *out) {
    char key[ESP__NAME_MAX], value[ESP__SPEC_MAX];
    while (esp_params_next(&params, key, sizeof key, value, sizeof value) == 1)
        if (strcmp(key, "feedback") != 0 && !(p->ratio && !strcmp(key, "ratio")))
            return esp__fail(ctx, ESP_E_ARG, "codec '%s': unknown parameter '%s': expected %sfeedback", spec, key,
                             p->ratio ? "ratio or " : "");
    out->codec.error = p->error;
    out->codec.lossy = 1;
    esp__published_cpu(out, p, faster);
    return ESP_OK;
}

ESP__FN esp_status esp__builtin_costs_for(esp_ctx *ctx, const char *spec, const char *accelerator, uint32_t cpu_workers,
                                          double copied, esp__costs *out) {
    char name[ESP__NAME_MAX];
    const char *params;
    const esp__known_accelerator *a = NULL;
    esp__codec *c = NULL;
    double workers = cpu_workers ? cpu_workers : ESP__COMMON_WORKERS;
    memset(out, 0, sizeof *out);
    esp_status s = esp__spec_split(ctx, spec, name, &params);
    if (!s && (strlen(spec) >= ESP__SPEC_MAX || strpbrk(spec, " \t\r\n")))
        s = esp__fail(ctx, ESP_E_ARG, "codec '%.40s...': a spec has no blanks and at most %d characters", spec,
                      (int)ESP__SPEC_MAX - 1);
    if (!s && accelerator && *accelerator) s = esp__accelerator_find(ctx, spec, accelerator, &a);
    if (s) return s;
    if (workers > ESP__WORKERS_FILL_MEMORY) workers = ESP__WORKERS_FILL_MEMORY;
    const esp__published *p = esp__published_find(name);
    const double core = a && a->cpu_bytes_per_us > 0 ? a->cpu_bytes_per_us
                        : copied > 0                 ? 2 * copied * workers
                                                     : 1000.0 * ESP_MODEL_CORE_RATE * workers;
    const double gpu = a ? a->memory_bytes_per_us * 8.0 / 9.0 : 0.0;
    snprintf(out->spec, sizeof out->spec, "%s", spec);
    out->codec.struct_size = sizeof out->codec;
    out->codec.spec = out->spec;
    /* The codec stays open as long as the context, because the planner may call its bound(). */
    s = esp__codec_get(ctx, spec, &c);
    if (!s)
        s = esp__model_costs(ctx, c, core / (1000.0 * ESP_MODEL_CORE_RATE), gpu / (1000.0 * ESP_MODEL_CUDA_RATE), out);
    else if (s == ESP_E_NOT_FOUND && p)
        s = esp__published_only(ctx, spec, params, p, core / esp__published_core, out);
    if (!s && p && a) esp__published_gpu(out, p, a->memory_bytes_per_us / esp__published_memory);
    if (!s && p && ((a && a->published) || !c)) s = esp__published_payload(ctx, spec, params, p, &out->codec);
    if (!s && p && a && a->published) esp__published_cpu(out, p, 1.0);
    return s;
}

ESP__FN esp_status esp__builtin_costs(esp_ctx *ctx, const char *spec, const esp_plan_system *system,
                                      const char *accelerator, esp__costs *out) {
    const esp__known_system *k = esp__known_system_find(system ? system->name : NULL);
    if (!accelerator && k) accelerator = k->accelerator;
    if (!accelerator && system && system->devices & 1u << ESP_ON_GPU)
        return esp__fail(ctx, ESP_E_ARG,
                         "codec '%s': system '%s' can compress on GPUs of unknown type: name its \"accelerator\" (such "
                         "as \"V100\"), or give a file of the codec's costs",
                         spec ? spec : "", system->name ? system->name : "");
    return esp__builtin_costs_for(ctx, spec, accelerator, k ? k->cpu_workers : 0, 0, out);
}
