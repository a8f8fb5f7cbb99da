/* builtin_costs.c: what the codecs cost on machines known by name: published times on the V100, and estimates elsewhere.
 * Sees a codec as sizes and times: must not know how one works. docs/planner.md explains the estimates.
 *
 * Estimate of a kernel: launches x 10 us + bytes moved / (8/9 of the memory's bandwidth), which is what streaming kernels
 * attain. Where times were published for the V100, their flat part is kept as launches, and the part in proportion to size
 * is scaled by the memory's bandwidth. On the CPU: the codec's own planning figures (its cost_ns), 8 GB/s a worker. */
#include "builtin.h"
#include "builtin_v100.c"
#include <math.h>

/* ---- what is known of each codec ----------------------------------------------------------------------------------- */
typedef struct esp__known_codec {
    const char *name;
    uint32_t caps;
    uint32_t sparse; /* it sends a share of the elements, `ratio`, 0.01 where the spec does not say        */
    /* payload: header bytes and unit_bytes for each of ceil(units e); sparse: units counts in elements sent      */
    double header, unit_bytes, units;
    double cpu_ns[2], cpu_bytes[2], cpu_sent_ns[2]; /* compress, decompress: to begin; an element; an element sent */
    double launches[2], gpu_bytes[2], gpu_sent_bytes[2]; /* not used where the codec is in builtin_v100.c      */
} esp__known_codec;
enum { ESP__WIRE_HEADER = 32 }; /* of espresso.h's payloads; the published figures have none */
/* On a GPU top-k selects with four passes (histogram, filter, compact, update of the residual); a scattered element costs a
 * 32-byte sector read and written. */
static const esp__known_codec esp__known_codecs[] = {
    {"fp16", ESP_CODEC_REDUCIBLE, 0, 0, 2, 1, {1e3, 1e3}, {6, 10}, {0, 0}, {1, 1}, {6, 10}, {0, 0}},
    {"bf16", ESP_CODEC_REDUCIBLE, 0, 0, 2, 1, {1e3, 1e3}, {6, 10}, {0, 0}, {1, 1}, {6, 10}, {0, 0}},
    {"efsignsgd", 0, 0, 4, 1, 0.125, {1e3, 1e3}, {20.1, 8.1}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    {"onebit", 0, 0, 8, 1, 0.125, {1e3, 1e3}, {20.1, 8.1}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    {"twobit", 0, 0, 0, 4, 0.0625, {1e3, 1e3}, {20.3, 8.3}, {0, 0}, {1, 1}, {12.3, 8.3}, {0, 0}},
    {"topk", 0, 1, 0, 6, 1, {2e3, 1e3}, {20, 4}, {3, 2}, {5, 2}, {28, 4}, {0, 64}},
    {"randomk", ESP_CODEC_REDUCIBLE, 1, 0, 4, 1, {2e3, 1e3}, {20, 4}, {3, 2}, {0, 0}, {0, 0}, {0, 0}},
    {"dgc", 0, 1, 0, 6, 1, {2e3, 1e3}, {32, 4}, {3, 2}, {0, 0}, {0, 0}, {0, 0}},
};

ESP__FN const char *esp__builtin_codec_at(uint32_t i) {
    return i < sizeof esp__known_codecs / sizeof *esp__known_codecs ? esp__known_codecs[i].name : NULL;
}

typedef struct esp__known_accelerator {
    const char *name;
    double memory_bytes_per_us; /* data sheet */
    int published;              /* builtin_v100.c was measured on it */
    double cpu_bytes_per_us;    /* its host's, all workers; 0: by their number */
} esp__known_accelerator;
/* The V100's host: what the published efsignsgd attains at 20.1 bytes an element. */
static const esp__known_accelerator esp__known_accelerators[] = {
    {"V100", 900e3, 1, 19.3e3},  {"H100", 3350e3, 0, 0},    {"H200", 4800e3, 0, 0}, {"A100", 2039e3, 0, 0},
    {"A100-40GB", 1555e3, 0, 0}, {"P100", 732e3, 0, 0},     {"T4", 320e3, 0, 0},    {"L4", 300e3, 0, 0},
    {"RTX3090", 936e3, 0, 0},    {"RTX4090", 1008e3, 0, 0},
};
enum { ESP__COMMON_WORKERS = 16, ESP__WORKERS_FILL_MEMORY = 12 }; /* a server's memory carries about 100 GB/s */

/* ---- the spec's parameters -------------------------------------------------------------------------------------------- */
typedef struct esp__known_param {
    const char *codecs, *key;
    double least, most;
    int above, whole; /* more than `least`; a whole number */
} esp__known_param;
static const esp__known_param esp__known_params[] = {
    {"topk randomk dgc", "ratio", 0, 1, 1, 0},
    {"randomk", "unbiased", 0, 1, 0, 1},
    {"twobit", "threshold", 1e-30, 1e30, 0, 0},
    {"dgc", "momentum", 0, 1, 0, 0},
    {"dgc", "masking", 0, 1, 0, 1},
    {"dgc", "warmup", 0, 1e15, 0, 1},
    {"dgc", "sample", 0, 1, 1, 0},
    {"dgc", "nesterov", 0, 1, 0, 1},
};
/* What of them the costs depend on. */
typedef struct esp__spec_values {
    double ratio, unbiased, threshold;
} esp__spec_values;

/* Is `word` one of the words of `list`? */
static int esp__has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return 1;
    return 0;
}

/* A decimal number, the whole of `text`. strtod would read it by the user's locale. */
static int esp__decimal(const char *text, double *out) {
    double value = 0.0, sign = 1.0;
    long digits = 0, power = 0, point = 0, e = 0, e_sign = 1;
    if (*text == '-' || *text == '+') sign = *text++ == '-' ? -1.0 : 1.0;
    for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = 1;
            continue;
        }
        value = value * 10.0 + (*text - '0');
        power -= point;
        digits++;
    }
    if (*text == 'e' || *text == 'E') {
        e_sign = text[1] == '-' ? -1 : 1;
        text += text[1] == '-' || text[1] == '+' ? 2 : 1;
        if (*text < '0' || *text > '9') return 0;
        for (; *text >= '0' && *text <= '9'; text++) e = e < 1000 ? e * 10 + (*text - '0') : e;
    }
    power += e_sign * e;
    *out = sign * (power < 0 ? value / pow(10.0, (double)-power) : value * pow(10.0, (double)power));
    return digits > 0 && !*text && isfinite(*out);
}

static esp_status esp__param_unknown(const char *spec, const char *codec, const char *key) {
    char list[ESP__SPEC_MAX] = "feedback";
    size_t n = strlen(list);
    for (size_t i = 0; i < sizeof esp__known_params / sizeof *esp__known_params; i++)
        if (esp__has_word(esp__known_params[i].codecs, codec))
            n += (size_t)snprintf(list + n, sizeof list - n, ", %s", esp__known_params[i].key);
    return esp__fail(NULL, ESP_E_ARG, "codec '%s': unknown parameter '%s': expected one of %s", spec, key, list);
}

static esp_status esp__param_read(const char *spec, const char *codec, const char *key, const char *text,
                                  esp__spec_values *v) {
    double x;
    for (size_t i = 0; i < sizeof esp__known_params / sizeof *esp__known_params; i++) {
        const esp__known_param *k = &esp__known_params[i];
        if (strcmp(k->key, key) != 0 || !esp__has_word(k->codecs, codec)) continue;
        if (!esp__decimal(text, &x) || x < k->least || x > k->most || (k->above && x <= k->least) ||
            (k->whole && x != floor(x)))
            return esp__fail(NULL, ESP_E_ARG, "codec '%s': %s=%s: expected a %snumber %s %g and at most %g", spec, key,
                             text, k->whole ? "whole " : "", k->above ? "above" : "of at least", k->least, k->most);
        if (!strcmp(key, "ratio")) v->ratio = x;
        if (!strcmp(key, "unbiased")) v->unbiased = x;
        if (!strcmp(key, "threshold")) v->threshold = x;
        return ESP_OK;
    }
    return esp__param_unknown(spec, codec, key);
}

static esp_status esp__spec_read(const char *spec, const esp__known_codec **codec, esp__spec_values *v) {
    char name[ESP__NAME_MAX], key[ESP__NAME_MAX], value[ESP__SPEC_MAX], list[ESP__SPEC_MAX] = "";
    const char *params;
    size_t n = 0;
    esp_status s = esp__spec_split(NULL, spec, name, &params);
    if (s) return s;
    if (strlen(spec) >= ESP__SPEC_MAX || strpbrk(spec, " \t\r\n"))
        return esp__fail(NULL, ESP_E_ARG, "codec '%.40s...': a spec has no blanks and at most %d characters", spec,
                         (int)ESP__SPEC_MAX - 1);
    *codec = NULL;
    for (size_t i = 0; i < sizeof esp__known_codecs / sizeof *esp__known_codecs; i++) {
        if (!strcmp(esp__known_codecs[i].name, name)) *codec = &esp__known_codecs[i];
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", esp__known_codecs[i].name);
    }
    if (!*codec)
        return esp__fail(NULL, ESP_E_ARG,
                         "codec '%s': no costs are known for '%s'. Known: %s; for another, give a file of its costs",
                         spec, name, list);
    while (esp_params_next(&params, key, sizeof key, value, sizeof value) == 1)
        if (strcmp(key, "feedback") != 0 && (s = esp__param_read(spec, name, key, value, v)) != ESP_OK) return s;
    return ESP_OK;
}

/* ---- error: |decoded - x|^2 / |x|^2 for x from a normal distribution of variance 1 --------------------------------------- */
/* The x above which a share `ratio` of |x| lies. */
static double esp__normal_tail(double ratio) {
    double low = 0.0, high = 40.0;
    for (int i = 0; i < 100; i++) {
        double mid = (low + high) / 2;
        *(erfc(mid / sqrt(2.0)) > ratio ? &low : &high) = mid;
    }
    return low;
}

static double esp__known_error(const char *name, const esp__spec_values *v) {
    const double pi = 3.14159265358979323846;
    double t, density;
    if (!strcmp(name, "fp16"))
        return 4.2e-8; /* 2^-22 / 3 x 1/2: relative steps of 2^-11 to 2^-10, tests/planner/test_builtin.c */
    if (!strcmp(name, "bf16")) return 2.7e-6; /* 64 times that */
    if (!strcmp(name, "efsignsgd") || !strcmp(name, "onebit")) return 1.0 - 2.0 / pi;
    if (!strcmp(name, "randomk")) return v->unbiased > 0 ? fmin(1.0, 1.0 / v->ratio - 1.0) : 1.0 - v->ratio;
    if (!strcmp(name, "twobit")) { /* r^2 below the threshold, (|r| - t)^2 above: in gradients of variance 1 */
        t = v->threshold;
        density = exp(-t * t / 2) / sqrt(2.0 * pi);
        return fmin(1.0, 1.0 - 4.0 * t * density + t * t * erfc(t / sqrt(2.0)));
    }
    t = esp__normal_tail(v->ratio); /* topk, dgc: what the largest carry is ratio + 2 t density(t) */
    return fmax(0.0, 1.0 - v->ratio - 2.0 * t * exp(-t * t / 2) / sqrt(2.0 * pi));
}

/* ---- curves --------------------------------------------------------------------------------------------------------------- */
/* base + slope x elements, as two points: the second lies beyond every tensor. */
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

/* One point: the same time up to its size, then in proportion. Faster memory moves the size, not the time. */
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
    if (strcmp(c->name, "dgc") != 0 && strcmp(c->name, "topk") != 0) return;
    if (published) { /* value and index */
        out->unit_bytes = 8.0;
    } else if (ratio > 0.0625) { /* a bit an element then takes less than 2 bytes an index */
        out->unit_bytes = 1.0;
        out->units = 4.0 * ratio + 0.125;
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------------------- */
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
    esp__spec_values v = {0.01, 0.0, 0.5};
    double workers = cpu_workers ? cpu_workers : ESP__COMMON_WORKERS;
    memset(out, 0, sizeof *out);
    esp_status s = esp__spec_read(spec, &c, &v);
    if (!s && accelerator && *accelerator) s = esp__accelerator_find(spec, accelerator, &a);
    if (s) return s;
    const esp__published *published = a && a->published ? esp__published_find(c->name) : NULL;
    snprintf(out->spec, sizeof out->spec, "%s", spec);
    out->codec.struct_size = sizeof out->codec;
    out->codec.spec = out->spec;
    out->codec.caps = published ? 0 : c->caps; /* what was published of randomk is not summed undecoded */
    out->codec.error = esp__known_error(c->name, &v);
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
    return esp__builtin_costs_for(spec, accelerator, k ? k->cpu_workers : 0, out);
}
