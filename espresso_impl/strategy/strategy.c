/* strategy.c: makes a strategy from a built-in name or from the text of a file, and prints strategies. */
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/limits.h"
#include "espresso_impl/strategy/strategy.h"
#include <errno.h>

enum { ESP__STRATEGY_BYTES = 1 << 30 };

static esp_status esp__strategy_builtin(esp_ctx *ctx, esp__strategy *y, const char *name, esp__codec **asked) {
    const bool fp32 = !strcmp(name, "fp32");
    const char *spec = fp32 ? NULL : esp__model_of(ctx)->codec_spec;
    esp__codec *codec = NULL;
    char where[ESP__NAME_MAX];
    snprintf(where, sizeof where, "strategy %s", name);
    if (spec) {
        const esp_status s = esp__codec_get(ctx, spec, &codec);
        if (s) return esp__fail(ctx, s, "%s: %s", where, esp_last_error(ctx));
    }
    for (uint32_t i = 0; i < esp__model_of(ctx)->n_tensors; i++) {
        const esp__tensor *t = &esp__model_of(ctx)->tensors[i];
        esp__extent whole = {i, 1, 0, t->count};
        char raw_option[ESP__TEXT_MAX];
        esp__option o;
        esp__raw_option(ctx, (t->flags & ESP_SHARD) != 0, &o);
        esp__option_print(&o, raw_option, sizeof raw_option);
        esp__unit *u = esp__unit_add(ctx, y, whole, 0, 1);
        if (!u) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
        const bool own = t->codec_override || t->option_override;
        const bool raw = fp32 || esp__tensor_small(ctx, t) || (codec && !own && esp__codec_refuses(ctx, codec, u));
        esp_status s = esp__unit_assign(ctx, u, raw ? ESP__CODEC_NONE : spec, raw ? raw_option : NULL, where);
        if (s) return s;
    }
    *asked = codec;
    return esp__order_make(ctx, y);
}

static void esp__no_strategy(const esp_ctx *ctx, const char *path, const char *why) {
    static const char *const names[] = {"fp32", "layerwise", "auto"};
    const char *suggestion = NULL;
    char hint[ESP__SPEC_MAX * 2] = "";
    unsigned best = 3;
    size_t n = strcspn(path, ":;");
    const esp__registry *known = ctx ? esp__registry_of(ctx) : NULL; /* the command-line tool has no context */
    for (uint32_t i = 0; known && i < known->codecs.n; i++)
        if (strlen(known->codecs.at[i].codec->name) == n && !memcmp(known->codecs.at[i].codec->name, path, n))
            snprintf(hint, sizeof hint, " ('%.*s' is a codec: ESPRESSO_CODEC=%.200s, or esp_config.codec)", (int)n,
                     path, path);
    for (int i = 0; i < 3; i++)
        if (esp__suggests(path, names[i], &best)) suggestion = names[i];
    if (suggestion && !*hint) snprintf(hint, sizeof hint, " (did you mean '%s'?)", suggestion);
    esp__fail(ctx, ESP_E_NOT_FOUND,
              "strategy '%s': no built-in strategy (fp32, layerwise, auto) has that name%s, and opening it as a file "
              "failed: %s",
              path, hint, why);
}

ESP__FN esp_status esp__file_text(esp_ctx *ctx, const char *path, char **out) {
    esp__text text = {.ctx = ctx};
    int error = esp__file_read_text(path, ESP__STRATEGY_BYTES, &text);
    *out = text.data;
    if (!error && text.len) return ESP_OK;
    esp__text_free(&text);
    *out = NULL;
    if (!error)
        return esp__fail(ctx, ESP_E_ARG, "strategy '%s': the file is empty: espresso plan -o FILE writes one", path);
    if (error == ENOENT || error == EACCES || error == ENOTDIR || error == ENAMETOOLONG) {
        esp__no_strategy(ctx, path, esp__strerror(error));
        return ESP_E_NOT_FOUND;
    }
    return esp__fail(ctx, error == ENOMEM ? ESP_E_NOMEM : ESP_E_ARG, "strategy '%s': %s", path,
                     error == EFBIG ? "the file is larger than 1 GiB: this is no strategy" : esp__strerror(error));
}

/* ---- printing ---- */
static void esp__unit_print(const esp_ctx *ctx, const esp__strategy *y, esp__text *t, const esp__unit *u) {
    const esp__text_tensors tensors = esp__text_tensors_of(ctx);
    const esp__extent *p = &u->place;
    char option[ESP__TEXT_MAX];
    esp__unit_line x = {p->first, p->n, p->begin, p->elements, 0, 1, u->codec->spec, option};
    esp__option_print(&u->option, option, sizeof option);
    if (esp__unit_is_chunk(ctx, u)) {
        x.n_chunks = y->of_tensor[p->first].n;
        x.chunk = p->begin ? 1 : 0;
    }
    esp__strategy_put_unit(t, &tensors, &x);
}

static void esp__order_print(const esp__strategy *s, esp__text *t) {
    uint32_t n = s->n_entries ? s->n_entries : s->n_order;
    for (uint32_t k = 0; k < n; k++) {
        esp__order_entry e = {0, ESP__ENTRY_STEP, 0};
        if (s->n_entries)
            e = s->entries[k];
        else
            e.unit = s->order[k] >> 8, e.step = (uint8_t)(s->order[k] & 255u);
        esp__strategy_put_entry(t, k, n, &e);
    }
}

ESP__FN esp_status esp__strategy_print(esp_ctx *ctx, esp__strategy *s) {
    esp__text t = {.ctx = ctx};
    esp__strategy_put_head(&t, "");
    for (uint32_t i = 0; i < s->n_units; i++) esp__unit_print(ctx, s, &t, &s->units[i]);
    esp__order_print(s, &t);
    if (t.failed) {
        esp__text_free(&t);
        return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    }
    esp__free(ctx, s->text);
    s->text = esp__strdup(ctx, t.data);
    s->hash = esp__hash64(ESP__HASH0, t.data, t.len);
    esp__text_free(&t);
    return s->text ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
}

ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, esp__strategy *y, const char *spec, bool files) {
    esp__codec *asked = NULL;
    esp_status s;
    if (!spec) spec = esp__model_of(ctx)->codec_spec ? "layerwise" : "fp32";
    if (!strcmp(spec, "fp32") || !strcmp(spec, "layerwise")) {
        s = esp__strategy_builtin(ctx, y, spec, &asked);
    } else if (strchr(spec, '\n')) {
        s = esp__strategy_parse(ctx, y, "strategy", spec);
    } else if (!files) {
        s = esp__fail(ctx, ESP_E_ARG, "strategy '%s': expected fp32, layerwise or the text of a strategy file%s", spec,
                      !strncmp(spec, "auto", 4) ? " (auto is for the start: esp_config.strategy or ESPRESSO_STRATEGY)"
                                                : "");
    } else {
        char *text;
        s = esp__file_text(ctx, spec, &text);
        if (s) return s;
        s = esp__strategy_parse(ctx, y, spec, text);
        esp__free(ctx, text);
    }
    if (!s) esp__codecs_report(ctx, y, asked);
    return s ? s : esp__strategy_print(ctx, y);
}
