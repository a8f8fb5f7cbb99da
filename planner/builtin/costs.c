/* costs.c: what the codecs cost on accelerators known by name: published times on the V100, estimates on the others. Must not know
 * systems' links. README.md beside it explains the estimates.
 * Estimate of a kernel: launches * 10 us + bytes moved / (8/9 of the memory's bandwidth); streaming kernels attain this share. If
 * times were published for the V100, their constant part stays as it is, and the part in proportion to size is scaled by the
 * memory's bandwidth. On the CPU: the codec's own planning figures (its cost_ns), at 8 GB/s per worker. */
#include "planner/builtin/builtin.h"
#include "planner/builtin/codecs.c"
#include "planner/builtin/v100.c"

/* ---- machines --------------------------------------------------------------------------------------------------- */
typedef struct esp__known_accelerator {
    const char *name;
    double memory_bytes_per_us; /* data sheet */
    int published;              /* v100.c was measured on it */
    double cpu_bytes_per_us;    /* of its host, all workers; 0: computed from their number */
} esp__known_accelerator;
/* The V100's host: the rate of the published efsignsgd, which moves 20.1 bytes per element. */
static const esp__known_accelerator esp__known_accelerators[] = {
    {"V100", 900e3, 1, 19.3e3},  {"H100", 3350e3, 0, 0},    {"H200", 4800e3, 0, 0}, {"A100", 2039e3, 0, 0},
    {"A100-40GB", 1555e3, 0, 0}, {"P100", 732e3, 0, 0},     {"T4", 320e3, 0, 0},    {"L4", 300e3, 0, 0},
    {"RTX3090", 936e3, 0, 0},    {"RTX4090", 1008e3, 0, 0},
};
enum { ESP__COMMON_WORKERS = 16, ESP__WORKERS_FILL_MEMORY = 12 }; /* a server's memory attains about 100 GB/s */

/* ---- curves --------------------------------------------------------------------------------------------------------------- */
/* base + slope * elements as a curve of two points; the second is beyond every tensor's size. */
static esp_cost_curve esp__line(esp_cost_point *p, double base_ns, double slope_ns) {
    const double far = 1e12;
    p[0] = (esp_cost_point){1.0, base_ns + slope_ns};
    p[1] = (esp_cost_point){far, base_ns + slope_ns * far};
    return (esp_cost_curve){p, 2, 0};
}

static void esp__cpu_costs(esp__costs *out, const esp__known_codec *c, double ratio, double bytes_per_us) {
    for (int d = 0; d < 2; d++) {
        double slope = c->cpu_bytes[d] * 1000.0 / bytes_per_us + c->cpu_sent_ns[d] * ratio * 8000.0 / bytes_per_us;
        esp_cost_curve curve = esp__line(out->points[ESP_PLAN_CPU][d], c->cpu_ns[d], slope);
        *(d ? &out->codec.decompress[ESP_PLAN_CPU] : &out->codec.compress[ESP_PLAN_CPU]) = curve;
    }
}

static void esp__published_cpu(esp__costs *out, const esp__published *p) {
    for (int d = 0; d < 2; d++) {
        esp_cost_point *at = out->points[ESP_PLAN_CPU][d];
        for (int i = 0; i < ESP__V100_SIZES; i++)
            at[i] = (esp_cost_point){(double)(1u << (ESP__V100_FIRST + i)), 1000.0 * p->cpu[i][d]};
        *(d ? &out->codec.decompress[ESP_PLAN_CPU] : &out->codec.compress[ESP_PLAN_CPU]) =
            (esp_cost_curve){at, ESP__V100_SIZES, 1};
    }
}

/* A curve of one point: constant up to its size, then in proportion to size. Faster memory changes the size, not the time. */
static esp_cost_curve esp__published_gpu(esp_cost_point *at, double us, double memory_bytes_per_us) {
    at[0] = (esp_cost_point){1048576.0 * memory_bytes_per_us / 900e3, us * 1000.0};
    return (esp_cost_curve){at, 1, 0};
}

static void esp__gpu_costs(esp__costs *out, const esp__known_codec *c, double ratio, double memory_bytes_per_us) {
    const esp__published *p = esp__published_find(c->name);
    for (int d = 0; d < 2; d++) {
        esp_cost_point *at = out->points[ESP_PLAN_GPU][d];
        double bytes = c->gpu_bytes[d] + c->gpu_sent_bytes[d] * ratio;
        *(d ? &out->codec.decompress[ESP_PLAN_GPU] : &out->codec.compress[ESP_PLAN_GPU]) =
            p ? esp__published_gpu(at, p->gpu[d], memory_bytes_per_us)
              : esp__line(at, 10e3 * c->launches[d], bytes * 1000.0 / (memory_bytes_per_us * 8.0 / 9.0));
    }
}

static void esp__payload_costs(esp_plan_codec *out, const esp__known_codec *c, double ratio, int published) {
    out->header_bytes = c->header + (published ? 0 : ESP__WIRE_HEADER);
    out->unit_bytes = c->unit_bytes;
    out->units = c->units * (c->sparse ? ratio : 1.0);
    if (c->sparse < 2) return;
    if (published) { /* value and index */
        out->unit_bytes = 8.0;
    } else if (ratio > 0.0625) { /* one bit per element is then shorter than 2 bytes per index */
        out->unit_bytes = 1.0;
        out->units = 4.0 * ratio + 0.125;
    }
}

/* ---- a codec's costs --------------------------------------------------------------------------------------------------------------- */
static esp_status esp__accelerator_find(const char *spec, const char *name, const esp__known_accelerator **out) {
    char list[ESP__SPEC_MAX] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof esp__known_accelerators / sizeof *esp__known_accelerators; i++) {
        *out = &esp__known_accelerators[i];
        if (!strcmp((*out)->name, name)) return ESP_OK;
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", (*out)->name);
    }
    return esp__fail(NULL, ESP_E_ARG,
                     "codec '%s': no costs are known for accelerator '%s'. Known: %s; for another, give a file of the "
                     "codec's costs",
                     spec, name, list);
}

ESP__FN esp_status esp__builtin_costs_for(const char *spec, const char *accelerator, uint32_t cpu_workers,
                                          esp__costs *out) {
    const esp__known_codec *c = NULL;
    const esp__known_accelerator *a = NULL;
    esp__spec_values v = esp__spec_defaults;
    double workers = cpu_workers ? cpu_workers : ESP__COMMON_WORKERS;
    memset(out, 0, sizeof *out);
    esp_status s = esp__spec_read(spec, &c, &v);
    if (!s && accelerator && *accelerator) s = esp__accelerator_find(spec, accelerator, &a);
    if (s) return s;
    const esp__published *published = a && a->published ? esp__published_find(c->name) : NULL;
    snprintf(out->spec, sizeof out->spec, "%s", spec);
    out->codec.struct_size = sizeof out->codec;
    out->codec.spec = out->spec;
    out->codec.caps = published ? 0 : c->caps; /* the published randomk cannot sum payloads without decoding */
    out->codec.error = c->error(&v);
    esp__payload_costs(&out->codec, c, v.ratio, published != NULL);
    if (workers > ESP__WORKERS_FILL_MEMORY) workers = ESP__WORKERS_FILL_MEMORY;
    if (published)
        esp__published_cpu(out, published);
    else
        esp__cpu_costs(out, c, v.ratio, a && a->cpu_bytes_per_us > 0 ? a->cpu_bytes_per_us : 8000.0 * workers);
    if (a) esp__gpu_costs(out, c, v.ratio, a->memory_bytes_per_us);
    out->source =
        published ? "times published with the Espresso artifact (EuroSys 2023), V100 and its host"
        : !a      ? "estimate: the codec's own planning figures, 8 GB/s a worker"
        : esp__published_find(c->name)
            ? "estimate: GPU: the published V100 times, scaled by memory bandwidth; CPU: the codec's planning figures"
            : "estimate: GPU: launches and bytes at memory bandwidth; CPU: the codec's planning figures";
    return ESP_OK;
}

ESP__FN esp_status esp__builtin_costs(const char *spec, const esp_plan_system *system, const char *accelerator,
                                      esp__costs *out) {
    const esp__known_system *k = esp__known_system_find(system ? system->name : NULL);
    if (!accelerator && k) accelerator = k->accelerator;
    if (!accelerator && system && system->devices & 1u << ESP_PLAN_GPU)
        return esp__fail(NULL, ESP_E_ARG,
                         "codec '%s': system '%s' can compress on its GPUs but does not say what they are: name its "
                         "\"accelerator\" (such as \"V100\"), or give a file of the codec's costs",
                         spec ? spec : "", system->name ? system->name : "");
    return esp__builtin_costs_for(spec, accelerator, k ? k->cpu_workers : 0, out);
}
