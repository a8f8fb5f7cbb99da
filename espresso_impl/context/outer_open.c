/* outer_open.c: esp_outer_open, which reads how an outer context synchronizes. */
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/outer.h"
#include "espresso_impl/strategy/fragments.h"
#include <stdlib.h>

/* A method's settings. SparseLoCo has no outer momentum: the residuals of its codec take that place. */
typedef struct esp__outer_method {
    const char *name;
    uint32_t every, fragments, delay;
    float alpha, lr, momentum;
    uint32_t nesterov;
} esp__outer_method;
static const esp__outer_method esp__outer_methods[] = {{"average", 0, 1, 0, 0.0f, 1.0f, 0.0f, 0},
                                                       {"diloco", 500, 1, 0, 0.0f, 0.7f, 0.9f, 1},
                                                       {"streaming", 100, 8, 5, 0.5f, 0.4f, 0.9f, 1},
                                                       {"sparseloco", 30, 1, 0, 0.0f, 1.0f, 0.0f, 0}};

static const esp__outer_method *esp__outer_method_of(const char *name) {
    for (size_t i = 0; i < sizeof esp__outer_methods / sizeof *esp__outer_methods; i++)
        if (!strcmp(name, esp__outer_methods[i].name)) return &esp__outer_methods[i];
    return NULL;
}

static bool esp__outer_number(double v, bool whole, double least, double most) {
    return v >= least && v <= most && (!whole || v == (double)(uint64_t)v);
}

/* Sets the member or limit that `key` names. */
static esp_status esp__outer_set(const esp_ctx *ctx, esp__outer *o, const char *key, double v, const char *said) {
    static const struct {
        const char *key;
        double least, most;
        bool whole;
    } keys[] = {{"every", 1, 1e9, true},
                {"fragments", 1, 1e6, true},
                {"delay", 0, 1e9, true},
                {"max_every", 1, 1e5, true},
                {"max_fragments", 1, ESP__FRAGMENTS_MOST, true},
                {"max_delay", 1, 1e5, true},
                {"nesterov", 0, 1, true},
                {"alpha", 0, 0.9999999, false},
                {"lr", 1e-9, 1e6, false},
                {"momentum", 0, 0.9999999, false},
                {"check", 1, 1e9, false},
                {"window", 1, 3.6e6, false}};
    enum { KEYS = sizeof keys / sizeof *keys };
    static const uint32_t least[] = {1, 1, 0};
    float window = 0;
    float *const numbers[] = {&o->alpha, &o->lr, &o->momentum, &o->check, &window};
    size_t k = 0;
    while (k < KEYS && strcmp(key, keys[k].key)) k++;
    if (k == KEYS)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: '%s' is no parameter: known are every, fragments, delay, the same with max_ before, "
                         "alpha, lr, momentum, nesterov (0 or 1), check and window",
                         key);
    if (!esp__outer_number(v, keys[k].whole, keys[k].least, keys[k].most))
        return esp__fail(ctx, ESP_E_ARG, "outer: %s is %s: expected %s from %g to %g", key, said,
                         keys[k].whole ? "a whole number" : "a number", keys[k].least, keys[k].most);
    if (k < 6)
        o->low[k % 3] = k < 3 ? (uint32_t)v : least[k % 3], o->high[k % 3] = (uint32_t)v;
    else if (k == 6)
        o->nesterov = v != 0;
    else
        *numbers[k - 7] = (float)v;
    if (window > 0) o->late.window_ns = (uint64_t)(v * 1e6);
    return ESP_OK;
}

static esp_status esp__outer_set_text(const esp_ctx *ctx, esp__outer *o, const char *params) {
    char key[ESP__NAME_MAX], text[ESP__SPEC_MAX];
    esp_status s = ESP_OK;
    while (!s && esp_params_next(&params, key, sizeof key, text, sizeof text) > 0) {
        double v;
        if (!esp_params_number(text, NULL, &v))
            return esp__fail(ctx, ESP_E_ARG, "outer: %s is '%s', which is no number", key, text);
        s = esp__outer_set(ctx, o, key, v, text);
    }
    return s;
}

static esp_status esp__outer_set_member(const esp_ctx *ctx, esp__outer *o, const char *key, double v) {
    char said[32];
    esp__format(said, sizeof said, "%g", v);
    if (v == -1.0 && (!strcmp(key, "alpha") || !strcmp(key, "momentum"))) v = 0;
    return esp__outer_set(ctx, o, key, v, said);
}

static esp_status esp__outer_set_members(const esp_ctx *ctx, esp__outer *o, const esp_outer_desc *d) {
    esp_status s = ESP_OK;
    if (d->every) s = esp__outer_set_member(ctx, o, "every", d->every);
    if (!s && d->fragments) s = esp__outer_set_member(ctx, o, "fragments", d->fragments);
    if (!s && d->delay) s = esp__outer_set_member(ctx, o, "delay", d->delay);
    if (!s && d->nesterov) s = esp__outer_set_member(ctx, o, "nesterov", d->nesterov);
    if (!s && d->alpha != 0) s = esp__outer_set_member(ctx, o, "alpha", (double)d->alpha);
    if (!s && d->lr != 0) s = esp__outer_set_member(ctx, o, "lr", (double)d->lr);
    if (!s && d->momentum != 0) s = esp__outer_set_member(ctx, o, "momentum", (double)d->momentum);
    return s;
}

/* Checks the longest round that is allowed. */
static esp_status esp__outer_fits(const esp_ctx *ctx, esp__outer *o) {
    o->every = o->high[0], o->fragments = o->low[1], o->delay = o->low[2];
    if (!o->every)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: every is not set: give the inner steps of a round, such as every=30, or max_every=100 "
                         "to let the library choose");
    if (o->fragments > o->every)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: fragments is %u, but a round has only %u inner steps (every): fragments take turns, "
                         "one at a step",
                         o->fragments, o->every);
    if (o->delay > o->every / o->fragments)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: delay is %u, but with every=%u and fragments=%u a fragment's turn comes %u inner "
                         "steps after the one before: delay is at most that",
                         o->delay, o->every, o->fragments, o->every / o->fragments);
    if (esp__outer_chooses(o) && o->high[1] > ESP__FRAGMENTS_MOST)
        return esp__fail(ctx, ESP_E_ARG, "outer: fragments is %u: at most %d, if the library chooses something",
                         o->fragments, (int)ESP__FRAGMENTS_MOST);
    if (o->nesterov && o->momentum == 0.0f)
        return esp__fail(ctx, ESP_E_ARG, "outer: nesterov is set without momentum: set momentum, such as 0.9");
    if (o->late.window_ns && (esp__outer_chooses(o) || o->check != 0.0f))
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: window cannot be set together with %s: ranks exchange %s at once, which a late rank "
                         "would hold up",
                         o->check != 0.0f ? "check" : "max_every, max_fragments or max_delay",
                         o->check != 0.0f ? "lengths" : "times");
    return ESP_OK;
}

static esp_status esp__outer_configure(const esp_ctx *ctx, esp__outer *o, const esp_outer_desc *d) {
    const char *env = getenv("ESPRESSO_OUTER"), *spec = env && *env ? env : d->method, *params;
    char name[ESP__NAME_MAX];
    esp_status s = esp__spec_split(ctx, spec && *spec ? spec : "average", name, &params);
    const esp__outer_method *m = s ? NULL : esp__outer_method_of(name);
    if (s) return s;
    if (!m)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: '%s' is no method: known are average, diloco, streaming and sparseloco", name);
    if (d->flags & ~(uint32_t)ESP_OUTER_HOST)
        return esp__fail(ctx, ESP_E_ARG,
                         "outer: flags is %u: known is ESP_OUTER_HOST (%u); was the struct zeroed (ESP_ZERO)?",
                         (unsigned)d->flags, (unsigned)ESP_OUTER_HOST);
    o->flags = d->flags;
    o->low[0] = o->high[0] = m->every;
    o->low[1] = o->high[1] = m->fragments;
    o->low[2] = o->high[2] = m->delay;
    o->alpha = m->alpha, o->lr = m->lr, o->momentum = m->momentum, o->nesterov = m->nesterov != 0;
    s = esp__outer_set_members(ctx, o, d);
    if (!s) s = esp__outer_set_text(ctx, o, params);
    return s ? s : esp__outer_fits(ctx, o);
}

/* An outer loop was opened in this process, or its user was warned that none was. */
static bool esp__outer_known;

ESP__FN void esp__outer_unused(const esp_ctx *ctx) {
    const char *env = getenv("ESPRESSO_OUTER");
    if (!env || !*env || !esp__log_speaks(ctx) || __atomic_exchange_n(&esp__outer_known, true, __ATOMIC_RELAXED))
        return;
    esp__log(ctx, ESP_LOG_WARN, "outer",
             "ESPRESSO_OUTER is \"%s\", but this program calls no esp_outer_open: gradients are averaged in every step",
             env);
}

ESPRESSO_API esp_status esp_outer_open(esp_ctx *ctx, const esp_outer_desc *desc) {
    esp_outer_desc d;
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!desc) return esp__fail(ctx, ESP_E_ARG, "esp_outer_open: the description is NULL");
    if (ctx->started) return esp__fail(ctx, ESP_E_STATE, "esp_outer_open: call it before esp_start");
    if (ctx->outer) return esp__fail(ctx, ESP_E_STATE, "esp_outer_open was already called");
    __atomic_store_n(&esp__outer_known, true, __ATOMIC_RELAXED);
    memset(&d, 0, sizeof d);
    memcpy(&d, desc, desc->struct_size && desc->struct_size < sizeof d ? desc->struct_size : sizeof d);
    esp__outer *o = esp__alloc(ctx, sizeof *o);
    if (!o) return esp__fail(ctx, ESP_E_NOMEM, "esp_outer_open: out of memory");
    s = esp__outer_configure(ctx, o, &d);
    if (s)
        esp__free(ctx, o);
    else
        ctx->outer = o;
    return s;
}
