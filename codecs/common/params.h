/* params.h: used by all codecs: parsing of parameters, error messages, memory of opened codecs, loops on several
 * threads, and members that most esp_codec tables share. */
#ifndef ESP_PARAMS_H
#define ESP_PARAMS_H
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "espresso.h"

enum { ESP_PARAM_REAL, ESP_PARAM_WHOLE, ESP_PARAM_POWER_OF_TWO };
/* A numeric parameter. *value holds the default until the parameter is parsed. */
typedef struct esp_param {
    const char *key;
    double *value;
    double min, max;
    bool above_min;    /* min itself is not allowed */
    uint8_t kind;      /* ESP_PARAM_* */
    const char *takes; /* the allowed values in words, for error messages */
} esp_param;

static inline esp_status esp_codec_fail(const esp_host *h, const char *codec, esp_status s, const char *text) {
    esp_log_event ev = {(uint32_t)sizeof ev, ESP_LOG_ERROR, s, 0, codec, text, codec};
    if (h && h->log) h->log(h->user, &ev);
    return s;
}

/* Stores the parameters of `params` in the `n` entries of `p`. `all` lists the allowed ones, for the error message. */
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
        if (!esp_params_number(val, NULL, &x) || !isfinite(x) || x < p[i].min || x > p[i].max ||
            (p[i].above_min && x <= p[i].min) || (p[i].kind != ESP_PARAM_REAL && x != floor(x)) ||
            (p[i].kind == ESP_PARAM_POWER_OF_TWO && (uint64_t)x & ((uint64_t)x - 1))) {
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

enum { ESP_PARAMS_MAX = 256 }; /* longest codec spec that the host accepts */

/* Removes parameter `taken` from `params`: copies its value, with parentheses, to `value` ("" if it is absent), and
 * the remaining parameters to `rest`. */
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
    if (more < 0) (void)snprintf(rest, ESP_PARAMS_MAX, "%s", params); /* esp_params_parse will report the error */
    return ESP_OK;
}

/* Stored directly before a codec's `self`, so that close() knows the allocator and the size. */
typedef struct esp_codec_memory {
    const esp_host *host;
    uint64_t bytes;
} esp_codec_memory;
enum { ESP_CODEC_MEMORY = 64 };

static inline void *esp_codec_self(const esp_host *h, size_t bytes) {
    const esp_codec_memory m = {h, ESP_CODEC_MEMORY + bytes};
    unsigned char *p = (unsigned char *)h->alloc(h->user, (esp_device){ESP_CPU, 0}, m.bytes, 64);
    if (!p) return NULL;
    memset(p, 0, m.bytes);
    memcpy(p, &m, sizeof m);
    return p + ESP_CODEC_MEMORY;
}

/* Implements close() for codecs that own no memory besides `self`. */
static inline void esp_codec_self_free(void *self) {
    unsigned char *p = (unsigned char *)self - ESP_CODEC_MEMORY;
    esp_codec_memory m;
    memcpy(&m, p, sizeof m);
    m.host->free_(m.host->user, (esp_device){ESP_CPU, 0}, p, m.bytes);
}

/* Raises *to to `value`, if `value` is larger, as one atomic operation. */
static inline void esp_codec_raise(uint32_t *to, uint32_t value) {
    uint32_t old = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(to, &old, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static inline void esp_codec_parallel(const esp_host *h, uint64_t n, uint64_t grain,
                                      void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg) {
    if (n > 2 * grain && ESP_HAS(esp_host, h, parallel_for))
        h->parallel_for(h->user, n, grain, body, arg);
    else if (n)
        body(arg, 0, n);
}

/* Copies a call's arguments, since the host's struct may be older (shorter) or newer (longer) than this plugin's. */
static inline esp_codec_args esp_codec_args_of(const esp_codec_args *a) {
    esp_codec_args copy;
    memset(&copy, 0, sizeof copy);
    memcpy(&copy, a, a->struct_size < sizeof copy ? a->struct_size : sizeof copy);
    copy.struct_size = sizeof copy;
    return copy;
}

static inline esp_status esp_bound_fill(esp_bound *out, uint64_t body, uint64_t scratch, uint64_t state) {
    esp_bound b = {out->struct_size, 0, esp_payload_capacity(body), scratch, state};
    memcpy(out, &b, out->struct_size < sizeof b ? out->struct_size : sizeof b);
    return ESP_OK;
}

#define ESP_CODEC_HEAD(version, own_caps)                                                                              \
    .struct_size = sizeof(esp_codec), .wire_version = (version), .caps = (own_caps), .dtypes = ESP_BIT(ESP_F32),       \
    .devices = ESP_BIT(ESP_CPU)
#define ESP_CODEC_CALLS(open_, close_, traits_, id)                                                                    \
    .open = (open_), .close = (close_), .bound = id##_bound, .compress = id##_compress, .decompress = id##_decompress, \
    .traits = (traits_), .model = id##_model
#endif
