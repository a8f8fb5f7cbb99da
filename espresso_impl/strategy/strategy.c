/* strategy.c: makes a strategy from a built-in name or from the text of a file, and prints strategies. */
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/limits.h"
#include "espresso_impl/strategy/strategy.h"
#include <errno.h>

enum { ESP__STRATEGY_BYTES = 1 << 30 };

/* Strategy "merged": neighbouring tensors are merged into groups. */
enum { ESP__MERGED_MOST = 8 };
typedef struct esp__merged {
    uint32_t n, first[ESP__MERGED_MOST]; /* index of each group's first tensor */
    char of[ESP__SPEC_MAX];              /* codec; "" is esp_config.codec */
} esp__merged;

/* Groups of about as many elements each. */
static void esp__merged_evenly(const esp_ctx *ctx, uint32_t n, esp__merged *m) {
    const esp__model *model = esp__model_of(ctx);
    double all = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < model->n_tensors; i++) all += (double)model->tensors[i].count;
    m->n = 1;
    for (uint32_t i = 0; i < model->n_tensors; sum += (double)model->tensors[i++].count)
        if (m->n < n && i && sum + 0.5 * (double)model->tensors[i].count >= all * m->n / n) m->first[m->n++] = i;
}

/* Reads "merged:groups=N,of=(SPEC)" or "merged:at=I+J,of=(SPEC)", where groups begin at tensors 0, I and J. */
static esp_status esp__merged_read(const esp_ctx *ctx, const char *spec, esp__merged *m) {
    char key[ESP__NAME_MAX], val[ESP__SPEC_MAX];
    const char *at = spec + strlen("merged"), *end;
    const uint32_t n_tensors = esp__model_of(ctx)->n_tensors;
    double x;
    bool good = true, divided = false;
    int more;
    at += *at == ':';
    esp__merged_evenly(ctx, 2, m);
    while ((more = esp_params_next(&at, key, sizeof key, val, sizeof val)) > 0 && good) {
        if (!divided && !strcmp(key, "groups") && esp_params_number(val, NULL, &x) && x >= 1 && x <= ESP__MERGED_MOST) {
            divided = true;
            esp__merged_evenly(ctx, (uint32_t)x, m);
        } else if (!divided && !strcmp(key, "at")) {
            divided = true;
            m->n = 1, end = val;
            do {
                good = m->n < ESP__MERGED_MOST && esp_params_number(end, &end, &x) && x > m->first[m->n - 1] &&
                       x < n_tensors;
                if (good) m->first[m->n++] = (uint32_t)x;
            } while (good && *end == '+' && end++);
            good = good && !*end;
        } else if (!strcmp(key, "of") && *val) {
            const bool wrapped = *val == '(';
            snprintf(m->of, sizeof m->of, "%.*s", (int)strlen(val) - 2 * wrapped, val + wrapped);
        } else {
            good = false;
        }
    }
    return good && !more ? ESP_OK
                         : esp__fail(ctx, ESP_E_ARG,
                                     "strategy '%s': expected merged:groups=N with N from 1 to %d, or merged:at=I+J "
                                     "with rising indices of the groups' first tensors; of=(SPEC) is the codec",
                                     spec, (int)ESP__MERGED_MOST);
}

/* Returns the number of tensors from the i-th on that are one unit: those of its group that may be merged. */
static uint32_t esp__merged_length(const esp_ctx *ctx, const esp__merged *m, uint32_t i) {
    const esp__tensor *t = &esp__model_of(ctx)->tensors[i];
    uint32_t n = 0, end = esp__model_of(ctx)->n_tensors;
    for (uint32_t g = m->n; g-- > 0 && m->first[g] > i;) end = m->first[g];
    while (m->n && i + n < end && t[n].dtype == t->dtype && t[n].device == t->device && t[n].flags == t->flags &&
           !(t->flags & (ESP_SHARD | ESP_RAW)) && !t[n].codec_override && !t[n].option_override)
        n++;
    return n ? n : 1;
}

static esp_status esp__strategy_builtin(esp_ctx *ctx, esp__strategy *y, const char *name, esp__codec **asked) {
    const bool fp32 = !strcmp(name, "fp32");
    const char *spec = fp32 ? NULL : esp__model_of(ctx)->codec_spec;
    esp__codec *codec = NULL;
    esp__merged merged = {.n = 0};
    char where[ESP__NAME_MAX];
    snprintf(where, sizeof where, "strategy %s", name);
    if (!strncmp(name, "merged", 6)) {
        const esp_status s = esp__merged_read(ctx, name, &merged);
        if (s) return s;
        if (*merged.of) spec = merged.of;
    }
    if (spec) {
        const esp_status s = esp__codec_get(ctx, spec, &codec);
        if (s) return esp__fail(ctx, s, "%s: %s", where, esp_last_error(ctx));
    }
    for (uint32_t i = 0, n; i < esp__model_of(ctx)->n_tensors; i += n) {
        const esp__tensor *t = &esp__model_of(ctx)->tensors[i];
        n = esp__merged_length(ctx, &merged, i);
        esp__extent whole = {i, n, 0, 0};
        for (uint32_t k = 0; k < n; k++) whole.elements += t[k].count;
        char raw_option[ESP__TEXT_MAX];
        esp__option o;
        esp__raw_option(ctx, (t->flags & ESP_SHARD) != 0, &o);
        esp__option_print(&o, raw_option, sizeof raw_option);
        esp__unit *u = esp__unit_add(ctx, y, whole, 0, 1);
        if (!u) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
        const bool own = t->codec_override || t->option_override;
        const bool small = !own && whole.elements < esp__model_of(ctx)->min_compress_elements;
        const bool raw = fp32 || small || (codec && !own && esp__codec_refuses(ctx, codec, u));
        esp_status s = esp__unit_assign(ctx, u, raw ? ESP__CODEC_NONE : spec, raw ? raw_option : NULL, where);
        if (s) return s;
    }
    *asked = codec;
    return esp__order_make(ctx, y);
}

static void esp__no_strategy(const esp_ctx *ctx, const char *path, const char *why) {
    static const char *const names[] = {"fp32", "layerwise", "merged", "auto"};
    const char *suggestion = NULL;
    char hint[ESP__SPEC_MAX * 2] = "";
    unsigned best = 3;
    size_t n = strcspn(path, ":;");
    const esp__registry *known = ctx ? esp__registry_of(ctx) : NULL; /* the command-line tool has no context */
    for (uint32_t i = 0; known && i < known->codecs.n; i++)
        if (strlen(known->codecs.at[i].codec->name) == n && !memcmp(known->codecs.at[i].codec->name, path, n))
            snprintf(hint, sizeof hint, " ('%.*s' is a codec: ESPRESSO_CODEC=%.200s, or esp_config.codec)", (int)n,
                     path, path);
    for (int i = 0; i < 4; i++)
        if (esp__suggests(path, names[i], &best)) suggestion = names[i];
    if (suggestion && !*hint) snprintf(hint, sizeof hint, " (did you mean '%s'?)", suggestion);
    esp__fail(
        ctx, ESP_E_NOT_FOUND,
        "strategy '%s': no built-in strategy (fp32, layerwise, merged, auto) has that name%s, and opening it as a file "
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
    if (!strcmp(spec, "fp32") || !strcmp(spec, "layerwise") || !strcmp(spec, "merged") ||
        !strncmp(spec, "merged:", 7)) {
        s = esp__strategy_builtin(ctx, y, spec, &asked);
    } else if (strchr(spec, '\n')) {
        s = esp__strategy_parse(ctx, y, "strategy", spec);
    } else if (!files) {
        s = esp__fail(
            ctx, ESP_E_ARG, "strategy '%s': expected fp32, layerwise, merged or the text of a strategy file%s", spec,
            !strncmp(spec, "auto", 4) ? " (auto is for the start: esp_config.strategy or ESPRESSO_STRATEGY)" : "");
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
