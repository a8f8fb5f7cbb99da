/* options.c: reads "auto:key=value,..." and the list of codecs that plans may use. */
#include "planner/auto/autopilot.h"
#include <ctype.h>

static const char esp__auto_keys[] =
    "steps=20, min_gain=0.05, drift=0.2, window=50, cooldown=200, warmup=0, max_error=X, plan=espresso+";

/* Reads a number in [low, high], without a fraction if `whole`. Returns 0 if the text is not such a number. */
static int esp__auto_number(const char *text, double low, double high, int whole, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= low && *out <= high && (!whole || *out == (double)(uint64_t)*out);
}

/* Sets one key. Returns NULL, or the text of what was expected if the value is wrong. */
static const char *esp__auto_key(esp__auto_options *o, const char *key, const char *val) {
    static const char share[] = "a number from 0 to 10";
    double x;
    if (!strcmp(key, "steps")) {
        if (!esp__auto_number(val, 4, 10000, 1, &x)) return "a whole number from 4 to 10000";
        o->steps = (uint32_t)x;
    } else if (!strcmp(key, "window")) {
        if (!esp__auto_number(val, 4, 1000, 1, &x)) return "a whole number from 4 to 1000";
        o->window = (uint32_t)x;
    } else if (!strcmp(key, "cooldown")) {
        if (!esp__auto_number(val, 0, 1e9, 1, &x)) return "a whole number from 0 to 1000000000";
        o->cooldown = (uint32_t)x;
    } else if (!strcmp(key, "warmup")) {
        if (!esp__auto_number(val, 0, 1e15, 1, &x)) return "a whole number of steps";
        o->warmup = (uint64_t)x;
    } else if (!strcmp(key, "min_gain")) {
        if (!esp__auto_number(val, 0, 10, 0, &o->min_gain)) return share;
    } else if (!strcmp(key, "drift")) {
        if (!esp__auto_number(val, 0.01, 10, 0, &o->drift)) return "a number from 0.01 to 10";
    } else if (!strcmp(key, "max_error")) {
        if (!esp__auto_number(val, 1e-12, 1e6, 0, &o->max_error)) return "a number over 0";
    } else if (!strcmp(key, "plan")) {
        if (strcmp(val, "espresso+") && !esp__scheme_find(val))
            return "espresso+ or a comparison strategy (espresso compare lists them)";
        snprintf(o->plan, sizeof o->plan, "%.*s", (int)sizeof o->plan - 1, val);
    } else {
        return "";
    }
    return NULL;
}

ESP__FN esp_status esp__auto_options_read(const esp_ctx *ctx, const char *spec, esp__auto_options *o) {
    char key[ESP__NAME_MAX], val[ESP__SPEC_MAX * 4];
    const char *at = spec + 4, *start; /* after "auto" */
    int more;
    memset(o, 0, sizeof *o);
    o->steps = 20, o->window = 50, o->cooldown = 200;
    o->min_gain = 0.05, o->drift = 0.2;
    snprintf(o->plan, sizeof o->plan, "espresso+");
    if (!*at) return ESP_OK;
    for (at++;;) {
        while (*at == ' ' || *at == ',') at++;
        start = at;
        more = esp_params_next(&at, key, sizeof key, val, sizeof val);
        if (!more) return ESP_OK;
        if (more < 0)
            return esp__fail(ctx, ESP_E_ARG, "strategy \"%s\", position %zu: expected key=value; keys: %s", spec,
                             (size_t)(start - spec) + 1, esp__auto_keys);
        const char *expected = esp__auto_key(o, key, val);
        if (expected && !*expected)
            return esp__fail(ctx, ESP_E_ARG, "strategy \"%s\", position %zu: there is no key '%s'; keys: %s", spec,
                             (size_t)(start - spec) + 1, key, esp__auto_keys);
        if (expected)
            return esp__fail(ctx, ESP_E_ARG, "strategy \"%s\", position %zu: '%s=%s': expected %s", spec,
                             (size_t)(start - spec) + 1, key, val, expected);
    }
}

static esp_status esp__auto_codec_add(esp_ctx *ctx, esp__auto_options *o, const char *spec, const char *list) {
    esp__codec *c;
    for (uint32_t i = 0; i < o->n_codecs; i++)
        if (!strcmp(o->codecs[i], spec)) return ESP_OK;
    if (o->n_codecs == ESP__CALIBRATION_CODECS)
        return esp__fail(ctx, ESP_E_ARG, "codec list \"%s\": at most %d codecs can be chosen from: leave some out",
                         list, (int)ESP__CALIBRATION_CODECS);
    esp_status s = esp__codec_get(ctx, spec, &c);
    if (s)
        return esp__fail(ctx, s, "strategy auto, codec list \"%s\": %s%s", list, esp_last_error(ctx),
                         strchr(spec, ',') ? " (codecs stand with ';' between, a codec's parameters with ',')" : "");
    snprintf(o->codecs[o->n_codecs++], ESP__SPEC_MAX, "%s", spec);
    return ESP_OK;
}

/* While there is room, adds the codecs that are always allowed: those that, by their own models, make gradients
 * smaller and only round numbers. They have their default parameters. */
static esp_status esp__auto_codecs_always(esp_ctx *ctx, esp__auto_options *o, const char *list) {
    esp_status s = ESP_OK;
    int lossy = 0;
    for (uint32_t i = 0; i < ctx->registry.codecs.n && !s; i++) {
        const int opens = esp__codec_opens(ctx, i, &lossy);
        if (opens < 0) return ESP_E_NOMEM; /* an error, because all ranks must allow the same codecs */
        if (!opens || lossy) continue;
        if (o->n_codecs == ESP__CALIBRATION_CODECS)
            esp__log(ctx, ESP_LOG_INFO, "autopilot", "codec '%s' is not considered: the list is full",
                     ctx->registry.codecs.at[i].codec->name);
        else
            s = esp__auto_codec_add(ctx, o, ctx->registry.codecs.at[i].codec->name, list);
    }
    return s;
}

/* Reads a list such as "efsignsgd;dgc:ratio=0.01". NULL allows only the codecs that are always allowed, "none" no
 * codec. */
ESP__FN esp_status esp__auto_codecs_read(esp_ctx *ctx, const char *list, esp__auto_options *o) {
    const char *at = list ? list : "";
    esp_status s = ESP_OK;
    int others = 0;
    while (*at && !s) {
        char spec[ESP__SPEC_MAX];
        size_t len = esp__spec_length(at), n = len;
        const char *start = at;
        at += len + (at[len] == ';');
        while (n && isspace((unsigned char)*start)) start++, n--;
        while (n && isspace((unsigned char)start[n - 1])) n--;
        if (!n) continue;
        if (n >= sizeof spec)
            return esp__fail(ctx, ESP_E_ARG, "codec list \"%.40s...\", position %zu: this codec's text is too long",
                             list, (size_t)(start - list) + 1);
        memcpy(spec, start, n);
        spec[n] = 0;
        if (strpbrk(spec, " \t\n\r"))
            return esp__fail(ctx, ESP_E_ARG,
                             "codec list \"%s\", position %zu: '%s': expected codecs with ';' between, "
                             "without blanks inside",
                             list, (size_t)(start - list) + 1, spec);
        if (!strcmp(spec, ESP__CODEC_NONE))
            o->no_codec = 1;
        else if ((s = esp__auto_codec_add(ctx, o, spec, list)) == ESP_OK)
            others++;
    }
    if (s) return s;
    if (o->no_codec && others)
        return esp__fail(ctx, ESP_E_ARG,
                         "codec list \"%s\": 'none' allows no codec at all, so no other can stand beside "
                         "it: leave one of them out",
                         list);
    if (o->no_codec) return ESP_OK;
    return esp__auto_codecs_always(ctx, o, list ? list : "");
}

ESP__FN const esp__codec *esp__auto_codec_of(const esp_ctx *ctx, const char *spec) {
    for (uint32_t i = 0; i < ctx->registry.n_opened; i++)
        if (!strcmp(ctx->registry.opened[i]->spec, spec)) return ctx->registry.opened[i];
    return NULL;
}
