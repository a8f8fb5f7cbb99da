/* options.c: reads "auto:key=value,..." and the list of codecs that may be used. */
#include "planner/auto/autopilot.h"
#include <ctype.h>
#include <math.h>

static const char esp__auto_keys[] =
    "steps=20, min_gain=0.02, drift=0.2, window=50, cooldown=200, warmup=0, max_error=X, merge=0, merge_gain=0.02";

/* Sets one key. Returns NULL, or the text of what was expected if the value is wrong, "" if there is no such key. */
static const char *esp__auto_key(esp__auto_options *o, const char *key, const char *val) {
    const struct {
        const char *key, *expected;
        double low, high, *to;
        bool whole;
    } keys[] = {{"steps", "a whole number from 4 to 10000", 4, 10000, &o->steps, true},
                {"window", "a whole number from 4 to 1000", 4, 1000, &o->window, true},
                {"cooldown", "a whole number from 0 to 1000000000", 0, 1e9, &o->cooldown, true},
                {"warmup", "a whole number of steps", 0, 1e15, &o->warmup, true},
                {"min_gain", "a number from 0 to 10", 0, 10, &o->min_gain, false},
                {"drift", "a number from 0.01 to 10", 0.01, 10, &o->drift, false},
                {"max_error", "a number over 0", 1e-12, 1e6, &o->max_error, false},
                {"merge", "a whole number from 0 to 8", 0, ESP__GROUPING_MOST, &o->merge, true},
                {"merge_gain", "a number from 0 to 1", 0, 1, &o->merge_gain, false}};
    for (uint32_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        double x = 0;
        if (strcmp(key, keys[i].key) != 0) continue;
        const bool number = esp_params_number(val, NULL, &x);
        *keys[i].to = x;
        return number && x >= keys[i].low && x <= keys[i].high && (!keys[i].whole || x == floor(x)) ? NULL
                                                                                                    : keys[i].expected;
    }
    return "";
}

ESP__FN esp_status esp__auto_options_read(const esp_ctx *ctx, const char *spec, esp__auto_options *o) {
    char key[ESP__NAME_MAX], val[ESP__SPEC_MAX * 4];
    const char *at = spec + 4, *expected; /* after "auto" */
    *o = (esp__auto_options){
        .steps = 20, .window = 50, .cooldown = 200, .min_gain = 0.02, .drift = 0.2, .merge_gain = 0.02};
    at += *at == ':';
    for (;;) {
        while (*at == ' ' || *at == ',') at++;
        const size_t position = (size_t)(at - spec) + 1;
        const int more = esp_params_next(&at, key, sizeof key, val, sizeof val);
        if (!more) return ESP_OK;
        if (more < 0)
            return esp__fail(ctx, ESP_E_ARG, "strategy \"%s\", position %zu: expected key=value; keys: %s", spec,
                             position, esp__auto_keys);
        if (!(expected = esp__auto_key(o, key, val))) continue;
        if (!*expected)
            return esp__fail(ctx, ESP_E_ARG, "strategy \"%s\", position %zu: there is no key '%s'; keys: %s", spec,
                             position, key, esp__auto_keys);
        return esp__fail(ctx, ESP_E_ARG, "strategy \"%s\", position %zu: '%s=%s': expected %s", spec, position, key,
                         val, expected);
    }
}

static esp_status esp__auto_codec_add(esp_ctx *ctx, esp__auto_options *o, const char *spec, const char *list) {
    esp__codec *c;
    for (uint32_t i = 0; i < o->n_codecs; i++)
        if (!strcmp(o->codecs[i], spec)) return ESP_OK;
    if (o->n_codecs == ESP__AUTO_CODECS)
        return esp__fail(ctx, ESP_E_ARG, "codec list \"%s\": at most %d codecs can be chosen from: leave some out",
                         list, (int)ESP__AUTO_CODECS);
    esp_status s = esp__codec_get(ctx, spec, &c);
    if (s)
        return esp__fail(ctx, s, "strategy auto, codec list \"%s\": %s%s", list, esp_last_error(ctx),
                         strchr(spec, ',') ? " (codecs stand with ';' between, a codec's parameters with ',')" : "");
    /* auto changes between codecs while training goes on, so their results must be of one kind */
    if (ESP_HAS(esp_codec, c->table, finalize))
        return esp__fail(ctx, ESP_E_ARG,
                         "strategy auto cannot choose codec '%s', whose result is not the mean of the gradients: leave "
                         "it out, or use strategy layerwise",
                         spec);
    snprintf(o->codecs[o->n_codecs++], ESP__SPEC_MAX, "%s", spec);
    return ESP_OK;
}

/* While the list has room, adds the codecs that may be used although the user does not name them: those that make
 * gradients smaller and, as they declare, only round numbers. They have their default parameters. */
static esp_status esp__auto_codecs_always(esp_ctx *ctx, esp__auto_options *o) {
    esp_status s = ESP_OK;
    int lossy = 0;
    for (uint32_t i = 0; i < ctx->registry.codecs.n && !s && o->n_codecs < ESP__AUTO_CODECS; i++) {
        const int opens = esp__codec_opens(ctx, i, &lossy);
        if (opens < 0) return ESP_E_NOMEM;
        if (opens && !lossy) s = esp__auto_codec_add(ctx, o, ctx->registry.codecs.at[i].codec->name, "");
    }
    return s;
}

/* Reads a list such as "efsignsgd;dgc:ratio=0.01". NULL allows only the codecs that are always allowed, "none" no
 * codec. */
ESP__FN esp_status esp__auto_codecs_read(esp_ctx *ctx, const char *list, esp__auto_options *o) {
    esp_status s = ESP_OK;
    bool none = false;
    for (const char *at = list ? list : ""; *at && !s;) {
        char spec[ESP__SPEC_MAX];
        const char *start = at;
        size_t n = esp__spec_length(at);
        at += n + (at[n] == ';');
        while (n && isspace((unsigned char)*start)) start++, n--;
        while (n && isspace((unsigned char)start[n - 1])) n--;
        if (!n) continue;
        snprintf(spec, sizeof spec, "%.*s", (int)n, start);
        if (n >= sizeof spec || strpbrk(spec, " \t\n\r"))
            return esp__fail(ctx, ESP_E_ARG,
                             "codec list \"%.200s\", position %zu: '%.40s': expected codecs of at most %zu bytes with "
                             "';' between, without blanks inside",
                             list, (size_t)(start - list) + 1, spec, sizeof spec - 1);
        if (!strcmp(spec, ESP__CODEC_NONE))
            none = true;
        else
            s = esp__auto_codec_add(ctx, o, spec, list);
    }
    if (!s && none && o->n_codecs)
        s = esp__fail(ctx, ESP_E_ARG,
                      "codec list \"%s\": 'none' allows no codec at all, so no other can stand beside it: leave one of "
                      "them out",
                      list);
    return s || none ? s : esp__auto_codecs_always(ctx, o);
}

ESP__FN const esp__codec *esp__auto_codec_of(const esp_ctx *ctx, const char *spec) {
    for (uint32_t i = 0; i < ctx->registry.n_opened; i++)
        if (!strcmp(ctx->registry.opened[i]->spec, spec)) return ctx->registry.opened[i];
    return NULL;
}

ESP__FN const char *esp__auto_optimizer(const esp_ctx *ctx, char *text, size_t room) {
    const char *name = esp__optimizer_name(ctx->config.optimizer);
    if (ctx->config.optimizer < ESP_OPTIMIZER_MOMENTUM)
        snprintf(text, room, "%s", name);
    else
        snprintf(text, room, "%s:%g", name, (double)(float)ctx->config.momentum);
    return text;
}
