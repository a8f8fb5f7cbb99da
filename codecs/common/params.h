/* params.h: what every codec's open() does: reads "key=val,key=val", reports errors, allocates the codec's self.
 * Also fills the answer of bound(), and what tables share. Knows no codec; the caller gives the names. */
#ifndef ESP_PARAMS_H
#define ESP_PARAMS_H
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "espresso.h"

/* One numeric parameter. `takes` says in words what is allowed ("> 0"). */
typedef struct esp_param {
    const char *key;
    double *value; /* holds the default at the start */
    double min, max;
    int above_min; /* 1: min itself is not allowed */
    int whole;     /* 1: whole numbers only */
    const char *takes;
} esp_param;

/* Passes an error to the host, which keeps it as the detail of the failing call. Returns `s`. */
static inline esp_status esp_codec_fail(const esp_host *h, const char *codec, esp_status s, const char *text) {
    esp_log_event ev = {(uint32_t)sizeof ev, ESP_LOG_ERROR, s, 0, codec, text, codec};
    if (h && h->log) h->log(h->user, &ev);
    return s;
}

/* Returns 1 if all of `text` is one decimal number. Not strtod, which reads "0.5" by the user's locale. */
static inline int esp_params_number(const char *text, double *out) {
    double sign = 1, value = 0;
    long digits = 0, exponent = 0, point = 0, e = 0, e_sign = 1;
    if (*text == '-' || *text == '+') sign = *text++ == '-' ? -1 : 1;
    for (; (*text >= '0' && *text <= '9') || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = 1;
            continue;
        }
        value = value * 10 + (*text - '0');
        digits++;
        exponent -= point;
    }
    if (!digits) return 0;
    if (*text == 'e' || *text == 'E') {
        if (*++text == '-' || *text == '+') e_sign = *text++ == '-' ? -1 : 1;
        if (*text < '0' || *text > '9') return 0;
        for (; *text >= '0' && *text <= '9'; text++) e = e < 1000 ? e * 10 + (*text - '0') : e;
    }
    exponent += e_sign * e;
    *out = sign * (exponent < 0 ? value / pow(10, (double)-exponent) : value * pow(10, (double)exponent));
    return *text == 0;
}

/* Parses `params` into the `n` entries of `p`. `all` lists the codec's parameters, for the error text. */
static inline esp_status esp_params_parse(const esp_host *h, const char *codec, const char *params, esp_param *p, int n,
                                          const char *all) {
    char key[64], val[128], text[512];
    const char *item = params;
    int more;
    for (; (more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0; item = params) {
        int i = 0;
        while (i < n && strcmp(p[i].key, key) != 0) i++;
        if (i == n) {
            (void)snprintf(text, sizeof text, "%s: unknown parameter '%s'; %s %s", codec, key,
                           *all ? "its parameters are" : "it takes", *all ? all : "none");
            return esp_codec_fail(h, codec, ESP_E_ARG, text);
        }
        double x = 0;
        if (!esp_params_number(val, &x) || !isfinite(x) || x < p[i].min || x > p[i].max ||
            (p[i].above_min && x <= p[i].min) || (p[i].whole && x != floor(x))) {
            (void)snprintf(text, sizeof text, "%s: parameter %s=%s is not allowed: it must be %s (parameters: %s)",
                           codec, key, val, p[i].takes, all);
            return esp_codec_fail(h, codec, ESP_E_ARG, text);
        }
        *p[i].value = x;
    }
    if (more == 0) return ESP_OK;
    (void)snprintf(text, sizeof text,
                   "%s: malformed parameters near '%.100s': write key=value,key=value (parameters: %s)", codec, item,
                   *all ? all : "none");
    return esp_codec_fail(h, codec, ESP_E_ARG, text);
}

enum { ESP_PARAMS_MAX = 256 }; /* characters of a spec, with the 0 at its end; the host allows no more */

/* Divides params into `rest` and the value of `taken`, as it is written, with its parentheses; "" if it is absent. */
static inline esp_status esp_params_take(const esp_host *h, const char *codec, const char *params, const char *taken,
                                         char rest[ESP_PARAMS_MAX], char value[ESP_PARAMS_MAX]) {
    char key[64], val[ESP_PARAMS_MAX], text[512];
    const char *at = params;
    size_t n = 0;
    int more;
    rest[0] = value[0] = 0;
    while ((more = esp_params_next(&at, key, sizeof key, val, sizeof val)) > 0) {
        if (!strcmp(key, taken)) {
            (void)snprintf(value, ESP_PARAMS_MAX, "%s", val);
            continue;
        }
        n += (size_t)snprintf(rest + n, ESP_PARAMS_MAX - n, "%s%s=%s", n ? "," : "", key, val);
        if (n >= ESP_PARAMS_MAX) {
            (void)snprintf(text, sizeof text, "%s: the parameters are too long", codec);
            return esp_codec_fail(h, codec, ESP_E_ARG, text);
        }
    }
    if (more < 0) (void)snprintf(rest, ESP_PARAMS_MAX, "%s", params); /* the reader of `rest` names the fault */
    return ESP_OK;
}

/* What stands in front of a codec's `self`. */
typedef struct esp_codec_memory {
    const esp_host *host;
    uint64_t bytes;
} esp_codec_memory;
enum { ESP_CODEC_MEMORY = 64 };

/* Zeroed memory for `self` from the host; NULL when memory is short. */
static inline void *esp_codec_self(const esp_host *h, size_t bytes) {
    const esp_codec_memory m = {h, ESP_CODEC_MEMORY + bytes};
    unsigned char *p = (unsigned char *)h->alloc(h->user, (esp_device){ESP_CPU, 0}, m.bytes, 64);
    if (!p) return NULL;
    memset(p, 0, m.bytes);
    memcpy(p, &m, sizeof m);
    return p + ESP_CODEC_MEMORY;
}

/* close() of a codec that holds nothing else. */
static inline void esp_codec_self_free(void *self) {
    unsigned char *p = (unsigned char *)self - ESP_CODEC_MEMORY;
    esp_codec_memory m;
    memcpy(&m, p, sizeof m);
    m.host->free_(m.host->user, (esp_device){ESP_CPU, 0}, p, m.bytes);
}

/* Runs on the host's workers, where it has them and the range is large enough; else here. */
static inline void esp_codec_parallel(const esp_host *h, uint64_t n, uint64_t grain,
                                      void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg) {
    if (n > 2 * grain && ESP_HAS(esp_host, h, parallel_for))
        h->parallel_for(h->user, n, grain, body, arg);
    else if (n)
        body(arg, 0, n);
}

/* A copy of a call's arguments, whose struct may be shorter or longer than the host's. */
static inline esp_codec_args esp_codec_args_of(const esp_codec_args *a) {
    esp_codec_args copy;
    memset(&copy, 0, sizeof copy);
    memcpy(&copy, a, a->struct_size < sizeof copy ? a->struct_size : sizeof copy);
    copy.struct_size = sizeof copy;
    return copy;
}

/* Fills the answer of bound(), only the members that the caller's struct has. */
static inline esp_status esp_bound_fill(esp_bound *out, uint64_t body, uint64_t scratch, uint64_t state) {
    esp_bound b = {out->struct_size, 0, esp_payload_capacity(body), scratch, state};
    memcpy(out, &b, out->struct_size < sizeof b ? out->struct_size : sizeof b);
    return ESP_OK;
}

/* Members that most tables of codecs share: f32 on the CPU, and calls with the codec's name. */
#define ESP_CODEC_HEAD(version, own_caps)                                                                              \
    .struct_size = sizeof(esp_codec), .wire_version = (version), .caps = (own_caps), .dtypes = ESP_BIT(ESP_F32),       \
    .devices = ESP_BIT(ESP_CPU)
#define ESP_CODEC_CALLS(id)                                                                                            \
    .open = id##_open, .close = esp_codec_self_free, .bound = id##_bound, .compress = id##_compress,                   \
    .decompress = id##_decompress
#endif
