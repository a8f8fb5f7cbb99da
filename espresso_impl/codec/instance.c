/* instance.c: opens a codec from a text such as "topk:ratio=0.01,feedback=none". */
#include "espresso_impl/codec/codec.h"

/* Splits params into the codec's own parameters and the value of the library's key "feedback", or "". */
static esp_status esp__feedback_key(const esp_ctx *ctx, const char *spec, const char *params, char *own, size_t own_cap,
                                    char *feedback, size_t feedback_cap) {
    char key[ESP__NAME_MAX], val[ESP__SPEC_MAX];
    size_t n = 0;
    int more;
    own[0] = feedback[0] = 0;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) == 1) {
        if (!strcmp(key, "feedback"))
            snprintf(feedback, feedback_cap, "%s", val);
        else
            n += (size_t)snprintf(own + n, own_cap - n, "%s%s=%s", n ? "," : "", key, val);
        if (n >= own_cap) return esp__fail(ctx, ESP_E_ARG, "codec '%s': the parameters are too long", spec);
    }
    if (more < 0) return esp__fail(ctx, ESP_E_ARG, "codec '%s': expected key=value pairs with ',' between them", spec);
    return ESP_OK;
}

/* Reads the value of the key "feedback": "none", "own", "residual" or "residual:beta=1,gamma=1", which may be in
 * parentheses, or "" for the codec's default. */
static esp_status esp__feedback_parse(const esp_ctx *ctx, esp__codec *c, const char *text) {
    char buf[ESP__SPEC_MAX], name[ESP__NAME_MAX], key[ESP__NAME_MAX], val[ESP__NAME_MAX];
    const char *params;
    size_t len = strlen(text);
    esp_status s;
    int more;
    c->feedback = !(c->traits.caps & ESP_CODEC_NO_FEEDBACK);
    c->own_memory = c->feedback && c->traits.caps & ESP_CODEC_OWN_FEEDBACK;
    c->beta = c->gamma = 1.0f;
    if (!len) return ESP_OK;
    if (text[0] == '(' && text[len - 1] == ')') text++, len -= 2;
    snprintf(buf, sizeof buf, "%.*s", (int)(len < sizeof buf ? len : sizeof buf - 1), text);
    s = esp__spec_split(ctx, buf, name, &params);
    if (s) return s;
    if (!strcmp(name, "none")) {
        c->feedback = c->own_memory = false;
    } else if (!strcmp(name, "own")) {
        if (!(c->traits.caps & ESP_CODEC_OWN_FEEDBACK))
            return esp__fail(ctx, ESP_E_ARG, "codec '%s' has no memory of its own: use feedback=residual or none",
                             c->spec);
    } else if (!strcmp(name, "residual")) {
        c->feedback = true;
        c->own_memory = false;
        while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) == 1) {
            double v;
            if (!esp_params_number(val, NULL, &v) || !(v >= 0.0 && v <= 1e6) ||
                (strcmp(key, "beta") && strcmp(key, "gamma")))
                return esp__fail(ctx, ESP_E_ARG,
                                 "codec '%s': feedback: '%s=%s': expected beta or gamma with a number >= 0", c->spec,
                                 key, val);
            *(key[0] == 'b' ? &c->beta : &c->gamma) = (float)v;
        }
        if (more < 0) return esp__fail(ctx, ESP_E_ARG, "codec '%s': feedback: expected key=value", c->spec);
    } else {
        return esp__fail(ctx, ESP_E_ARG,
                         "codec '%s': feedback '%s': expected none, own, residual or residual:beta=1,gamma=1", c->spec,
                         name);
    }
    return ESP_OK;
}

ESP__FN void esp__codec_free(esp_ctx *ctx, esp__codec *c) {
    if (!c) return;
    esp__codec_free(ctx, c->device_codec);
    if (c->self && ESP_HAS(esp_codec, c->table, close)) c->table->close(c->self);
    esp__free(ctx, c->spec);
    esp__free(ctx, c);
}

ESP__FN esp_status esp__codec_bound_of(const esp_ctx *ctx, const esp__codec *c, const esp_tensor *like, uint32_t round,
                                       uint32_t n_reduced, esp_bound *b) {
    memset(b, 0, sizeof *b);
    b->struct_size = sizeof *b;
    esp__plugin_detail_clear();
    esp_status s = c->table->bound(c->self, like, round, n_reduced, b);
    const bool skipped = !b->payload_bytes && round + 1 < c->traits.n_rounds;
    if (!s && b->payload_bytes < ESP_PAYLOAD_HEADER && !skipped) s = ESP_E_ABI;
    if (!s && b->state_bytes && !(c->traits.caps & ESP_CODEC_HAS_STATE))
        return esp__fail(ctx, ESP_E_ABI,
                         "codec '%s': bound() asks for %llu bytes of state, but its caps lack ESP_CODEC_HAS_STATE",
                         c->spec, (unsigned long long)b->state_bytes);
    b->payload_bytes = (b->payload_bytes + 31u) / 32u * 32u;
    if (!b->dtype) b->dtype = esp__codec_round(c, round).dtype;
    return s ? esp__fail(ctx, s, "codec '%s': its bound for %llu elements is not usable%s%s", c->spec,
                         (unsigned long long)like->count, *esp__plugin_detail() ? ": " : "", esp__plugin_detail())
             : ESP_OK;
}

/* Opens the codec for devices of one kind, without its model. *out stays NULL if it does not support them; for the CPU,
 * that is an error. */
static esp_status esp__codec_open_on(esp_ctx *ctx, const char *spec, const char *feedback, esp_devkind kind,
                                     esp__codec **out) {
    char name[ESP__NAME_MAX], own[ESP__SPEC_MAX], key[ESP__SPEC_MAX];
    const char *params;
    esp__codec *c;
    esp_status s = esp__spec_split(ctx, spec, name, &params);
    if (!s) s = esp__feedback_key(ctx, spec, params, own, sizeof own, key, sizeof key);
    if (s) return s;
    const esp_codec *table = kind == ESP_CPU ? esp__registry_codec(ctx, name) : esp__registry_codec_on(ctx, name, kind);
    if (!table) return kind == ESP_CPU ? ESP_E_NOT_FOUND : ESP_OK;
    c = esp__alloc(ctx, sizeof *c);
    if (c) c->spec = esp__strdup(ctx, spec);
    if (!c || !c->spec) {
        esp__codec_free(ctx, c);
        return esp__fail(ctx, ESP_E_NOMEM, "codec '%s': out of memory", spec);
    }
    c->table = table;
    c->id = esp_name_hash(table->name);
    esp__plugin_detail_clear();
    esp__registry_of(ctx)->opening = kind;
    s = table->open(esp__registry_of(ctx)->host, own, &c->self);
    esp__registry_of(ctx)->opening = 0;
    if (s == ESP_E_UNSUPPORTED && kind != ESP_CPU) {
        esp__log(ctx, ESP_LOG_INFO, "plugins", "codec '%s' cannot run on devices of kind %u: %s", spec, (unsigned)kind,
                 esp__plugin_why(s));
        c->self = NULL;
        esp__codec_free(ctx, c);
        return ESP_OK;
    }
    if (s) {
        const char *detail = esp__plugin_detail();
        /* the list of parameters is left out if the error has it already, or is that of a wrapped codec */
        const bool hint = table->params && !strstr(detail, table->params) && strncmp(detail, "of=(", 4);
        s = esp__fail(ctx, s, "codec '%s': %s%s%s", spec, *detail ? detail : esp_status_text(s),
                      hint ? "; its parameters: " : "", hint ? table->params : "");
        c->self = NULL;
    }
    if (!s) s = esp__codec_describe(ctx, c);
    if (!s) s = esp__feedback_parse(ctx, c, feedback ? feedback : key);
    if (s) {
        esp__codec_free(ctx, c);
        return s;
    }
    *out = c;
    return ESP_OK;
}

ESP__FN esp_status esp__codec_open(esp_ctx *ctx, const char *spec, const char *feedback, esp__codec **out) {
    esp_status s = esp__codec_open_on(ctx, spec, feedback, ESP_CPU, out);
    if (s && spec && spec[esp__spec_length(spec)])
        return esp__fail(ctx, ESP_E_ARG,
                         "codec '%s' is a list, but one codec is expected here: name one of them, or let strategy auto "
                         "choose from the list (ESPRESSO_STRATEGY=auto)",
                         spec);
    return s;
}

ESP__FN esp_status esp__codec_make(esp_ctx *ctx, const char *spec, const char *feedback, esp__codec **out) {
    esp__codec *c = NULL;
    esp_status s = esp__codec_open(ctx, spec, feedback, &c);
    if (!s) s = esp__codec_model(ctx, c, false, 1, ESP_CPU, &c->model);
    if (s) {
        esp__codec_free(ctx, c);
        return s;
    }
    *out = c;
    return ESP_OK;
}

static esp_status esp__instances_refuse(esp_ctx *ctx, const esp__codec *c, const esp__codec *other, esp_devkind kind) {
    const esp_traits *a = &c->traits, *b = &other->traits;
    const char *what = NULL;
    if (a->wire_version != b->wire_version) what = "wire_version";
    if ((a->caps ^ b->caps) & ~(uint64_t)ESP__CALL_CAPS) what = "caps";
    for (uint32_t i = 0; i < a->n_rounds && i < b->n_rounds && !what; i++) {
        const esp_round x = esp__codec_round(c, i), y = esp__codec_round(other, i);
        if (memcmp(&x, &y, sizeof x)) what = "rounds";
    }
    if (a->n_rounds != b->n_rounds) what = "n_rounds";
    return what ? esp__fail(ctx, ESP_E_ABI,
                            "codec '%s': traits() of its table for devices of kind %u gives another %s than that of "
                            "its table for the CPU: they must be the same",
                            c->spec, (unsigned)kind, what)
                : ESP_OK;
}

ESP__FN esp_status esp__codec_on(esp_ctx *ctx, esp__codec *c, esp_devkind kind, esp__codec **out) {
    for (*out = c; *out; *out = (*out)->device_codec)
        if ((*out)->table->devices & ESP_BIT(kind)) return ESP_OK;
    esp_status s = esp__codec_open_on(ctx, c->spec, NULL, kind, out);
    if (s || !*out) return s;
    s = esp__codec_model(ctx, *out, false, 1, kind, &(*out)->model);
    if (!s) s = esp__instances_refuse(ctx, *out, c, kind);
    if (s) {
        esp__codec_free(ctx, *out);
        *out = NULL;
        return s;
    }
    (*out)->device_codec = c->device_codec;
    c->device_codec = *out;
    return ESP_OK;
}

ESP__FN esp_status esp__codec_get(esp_ctx *ctx, const char *spec, esp__codec **out) {
    esp__registry *r = esp__registry_of(ctx);
    for (uint32_t i = 0; i < r->n_opened; i++)
        if (!strcmp(r->opened[i]->spec, spec)) return *out = r->opened[i], ESP_OK;
    esp__codec *c = NULL;
    esp_status s = esp__codec_make(ctx, spec, NULL, &c);
    if (s) return s;
    uint64_t cap = (uint64_t)r->n_opened * sizeof *r->opened;
    esp__codec **grown = esp__grow(ctx, r->opened, &cap, ((uint64_t)r->n_opened + 1) * sizeof *r->opened);
    if (!grown) {
        esp__codec_free(ctx, c);
        return esp__fail(ctx, ESP_E_NOMEM, "codec '%s': out of memory", spec);
    }
    r->opened = grown;
    r->opened[r->n_opened++] = c;
    *out = c;
    return ESP_OK;
}

ESP__FN int esp__codec_opens(esp_ctx *ctx, uint32_t i, int *lossy) {
    const esp_codec *t = esp__registry_of(ctx)->codecs.at[i].codec;
    esp__codec *c = NULL;
    esp__errors_quiet(true); /* it is no error here if a codec has no default parameters */
    const esp_status s = t->devices & ESP_BIT(ESP_CPU) ? esp__codec_make(ctx, t->name, NULL, &c) : ESP_E_UNSUPPORTED;
    esp__errors_quiet(false);
    if (s) return s == ESP_E_NOMEM ? -1 : 0;
    const bool useful = !(c->traits.caps & ESP_CODEC_NEEDS_MATRIX) && esp__codec_shrinks(c);
    if (lossy) *lossy = esp__codec_lossy(c);
    esp__codec_free(ctx, c);
    return useful;
}

/* ---- for wrappers ---- */
enum { ESP__WRAP_DEPTH = 4 };

/* Returns how deep codecs nest in a spec: 1 for "topk", 2 for "fp16:of=(topk:ratio=0.01)". */
static int esp__spec_depth(const char *spec) {
    int depth = 1, most = 1;
    for (; *spec; spec++) {
        depth += (*spec == '(') - (*spec == ')');
        if (depth > most) most = depth;
    }
    return most;
}

static bool esp__feedback_is_key(const char *params) {
    char key[ESP__NAME_MAX], val[ESP__SPEC_MAX];
    while (esp_params_next(&params, key, sizeof key, val, sizeof val) == 1)
        if (!strcmp(key, "feedback")) return true;
    return false;
}

static esp_status esp__inner_open(esp_ctx *ctx, const char *spec, const esp_codec **table, void **self) {
    char name[ESP__NAME_MAX];
    const char *params;
    if (esp__spec_depth(spec) >= ESP__WRAP_DEPTH)
        return esp__fail(ctx, ESP_E_ARG, "codecs may nest %d deep", (int)ESP__WRAP_DEPTH);
    esp_status s = esp__spec_split(ctx, spec, name, &params);
    if (s) return s;
    if (esp__feedback_is_key(params))
        return esp__fail(ctx, ESP_E_ARG, "feedback= belongs to the outermost codec, outside all parentheses");
    const esp_devkind kind = esp__registry_of(ctx)->opening;
    *table = esp__registry_codec(ctx, name);
    if (!*table) return ESP_E_NOT_FOUND;
    if (kind > ESP_CPU) *table = esp__registry_codec_on(ctx, name, kind);
    if (!*table) return esp__fail(ctx, ESP_E_UNSUPPORTED, "it has no table for devices of kind %u", (unsigned)kind);
    esp__plugin_detail_clear();
    s = (*table)->open(esp__registry_of(ctx)->host, params, self);
    return s ? esp__fail(ctx, s, "%s", esp__plugin_why(s)) : ESP_OK;
}

ESP__FN esp_status esp__host_codec_open(void *user, const char *spec, const esp_codec **table, void **self) {
    esp_ctx *ctx = user;
    char inner[ESP__SPEC_MAX], text[ESP__ERROR_MAX];
    const size_t n = strlen(spec);
    *self = NULL;
    if (n >= sizeof inner) return esp__fail(ctx, ESP_E_ARG, "codec '%.60s...': the spec is too long", spec);
    const bool wrapped = n > 1 && spec[0] == '(' && spec[n - 1] == ')';
    snprintf(inner, sizeof inner, "%.*s", (int)(wrapped ? n - 2 : n), spec + wrapped);
    esp_status s = esp__inner_open(ctx, inner, table, self);
    if (!s) return ESP_OK;
    snprintf(text, sizeof text, "of=(%s): %.1500s", inner, esp_last_error(ctx));
    esp__plugin_detail_set(text);
    return s;
}

ESP__FN void esp__host_codec_close(void *user, const esp_codec *table, void *self) {
    (void)user;
    if (self) table->close(self);
}
