/* codecs.c: facts about each codec by name: payload size, work, parameters and compression error. Must not know how a codec works,
 * nor any machine. */
#include "planner/builtin/builtin.h"
#include <math.h>

/* ---- error: |decoded - x|^2 / |x|^2 for x from a normal distribution of variance 1 --------------------------------------- */
/* The spec's parameters that costs depend on. */
typedef struct esp__spec_values {
    double ratio, unbiased, threshold;
} esp__spec_values;

/* The t for which |x| > t has probability `ratio`. */
static double esp__normal_tail(double ratio) {
    double low = 0.0, high = 40.0;
    for (int i = 0; i < 100; i++) {
        double mid = (low + high) / 2;
        *(erfc(mid / sqrt(2.0)) > ratio ? &low : &high) = mid;
    }
    return low;
}

static const double esp__pi = 3.14159265358979323846;

static double esp__error_fp16(const esp__spec_values *v) {
    (void)v;
    return 4.33e-8; /* measured, tests/files/test_builtin.c: about 2^-22 / 5.5 */
}

static double esp__error_bf16(const esp__spec_values *v) {
    (void)v;
    return 2.77e-6; /* 64 times fp16's: three bits less */
}

static double esp__error_sign(const esp__spec_values *v) {
    (void)v;
    return 1.0 - 2.0 / esp__pi;
}

/* The error is r^2 below the threshold t and (|r| - t)^2 above, for gradients of variance 1. */
static double esp__error_twobit(const esp__spec_values *v) {
    double t = v->threshold, density = exp(-t * t / 2) / sqrt(2.0 * esp__pi);
    return fmin(1.0, 1.0 - 4.0 * t * density + t * t * erfc(t / sqrt(2.0)));
}

static double esp__error_rand(const esp__spec_values *v) {
    return v->unbiased > 0 ? fmin(1.0, 1.0 / v->ratio - 1.0) : 1.0 - v->ratio;
}

/* The largest elements, |x| > t, carry ratio + 2 t density(t) of |x|^2. */
static double esp__error_largest(const esp__spec_values *v) {
    double t = esp__normal_tail(v->ratio);
    return fmax(0.0, 1.0 - v->ratio - 2.0 * t * exp(-t * t / 2) / sqrt(2.0 * esp__pi));
}

/* ---- the codecs ----------------------------------------------------------------------------------- */
typedef struct esp__known_codec {
    const char *name;
    double (*error)(const esp__spec_values *v);
    uint32_t caps;
    /* 1: sends the share `ratio` of the elements (default 0.01). 2: sends an index with each too, or one bit for every
     * element if that is shorter. */
    uint32_t sparse;
    /* payload: header + unit_bytes * ceil(units * e) bytes for e elements; sparse: for e elements sent */
    double header, unit_bytes, units;
    double cpu_ns[2], cpu_bytes[2], cpu_sent_ns[2]; /* compress, decompress: fixed; per element; per element sent */
    double launches[2], gpu_bytes[2], gpu_sent_bytes[2]; /* not used if the codec is in v100.c */
} esp__known_codec;
enum {
    ESP__WIRE_HEADER = ESP_PAYLOAD_HEADER
}; /* bytes of a payload's header in espresso.h; the published codecs have no header */
/* On a GPU top-k selects with four passes (histogram, filter, compact, update of the residual); one scattered element
 * reads and writes a sector of 32 bytes. */
static const esp__known_codec esp__known_codecs[] = {
    {"fp16", esp__error_fp16, ESP_CODEC_REDUCIBLE, 0, 0, 2, 1, {1e3, 1e3}, {6, 10}, {0, 0}, {1, 1}, {6, 10}, {0, 0}},
    {"bf16", esp__error_bf16, ESP_CODEC_REDUCIBLE, 0, 0, 2, 1, {1e3, 1e3}, {6, 10}, {0, 0}, {1, 1}, {6, 10}, {0, 0}},
    {"efsignsgd", esp__error_sign, 0, 0, 4, 1, 0.125, {1e3, 1e3}, {20.1, 8.1}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    {"onebit", esp__error_sign, 0, 0, 8, 1, 0.125, {1e3, 1e3}, {20.1, 8.1}, {0, 0}, {0, 0}, {0, 0}, {0, 0}},
    {"twobit", esp__error_twobit, 0, 0, 0, 4, 0.0625, {1e3, 1e3}, {20.3, 8.3}, {0, 0}, {1, 1}, {12.3, 8.3}, {0, 0}},
    {"topk", esp__error_largest, 0, 2, 0, 6, 1, {2e3, 1e3}, {20, 4}, {3, 2}, {5, 2}, {28, 4}, {0, 64}},
    {"randomk", esp__error_rand, ESP_CODEC_REDUCIBLE, 1, 0, 4, 1, {2e3, 1e3}, {20, 4}, {3, 2}, {0, 0}, {0, 0}, {0, 0}},
    {"dgc", esp__error_largest, 0, 2, 0, 6, 1, {2e3, 1e3}, {32, 4}, {3, 2}, {0, 0}, {0, 0}, {0, 0}},
};

ESP__FN const char *esp__builtin_codec_at(uint32_t i) {
    return i < sizeof esp__known_codecs / sizeof *esp__known_codecs ? esp__known_codecs[i].name : NULL;
}

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

/* Is `word` one of the words of `list`? */
static int esp__has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += n)
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return 1;
    return 0;
}

/* Reads all of `text` as a decimal number. strtod would depend on the user's locale. */
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

static const esp__spec_values esp__spec_defaults = {0.01, 0.0, 0.5};

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

ESP__FN double esp__builtin_error(const char *spec) {
    const esp__known_codec *c = NULL;
    esp__spec_values v = esp__spec_defaults;
    return esp__spec_read(spec, &c, &v) ? -1.0 : c->error(&v);
}
