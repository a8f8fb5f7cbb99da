/* strategy.c: gives every unit its codec and option, from a built-in name or, through read.c, from a strategy's text; and prints the
 * strategy as text. Knows nothing of memory and of how ops are executed. */
#include "espresso_impl/base/file.h"
#include "espresso_impl/strategy/strategy.h"
#include <errno.h>
#include <stdbool.h>

enum { ESP__STRATEGY_BYTES = 1 << 30 };

ESP__FN int esp__hierarchical(const esp_ctx *ctx) {
    const esp__topology *t = &esp__job_of(ctx)->topo;
    uint32_t n = 0;
    for (uint32_t level = 1; level <= t->n_levels && t->n_local; level++) n += t->level_size[level] > 1;
    return n > 1;
}

/* The job's levels as blocks of neighbours, each with more than one rank where possible. Returns how many. The job is hierarchical. */
static uint32_t esp__blocks(const esp__topology *t, uint8_t scope[ESP__LEVELS]) {
    uint32_t first = 1, n = 0, ends[ESP__LEVELS] = {0};
    for (uint32_t level = 1; level <= t->n_levels; level++)
        if (t->level_size[level] > 1) ends[n++] = level;
    ends[n - 1] = t->n_levels;
    for (uint32_t k = 0; k < n; first = ends[k++] + 1) scope[k] = esp__scope_of(first, ends[k], t->n_levels);
    return n;
}

ESP__FN uint8_t esp__two_levels(const esp_ctx *ctx, uint8_t level) {
    const esp__topology *t = &esp__job_of(ctx)->topo;
    uint8_t scope[ESP__LEVELS];
    uint32_t first, last;
    if (level == ESP__FLAT || t->n_levels == 2 || !esp__hierarchical(ctx)) return level;
    esp__blocks(t, scope);
    esp__scope_levels(scope[0], t->n_levels, &first, &last);
    return level == ESP__INTRA ? scope[0] : esp__scope_of(last + 1, t->n_levels, t->n_levels);
}

/* An option that names intra and inter only, in a job of more levels. */
static void esp__option_spread(const esp_ctx *ctx, esp__option *o) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].level > ESP__INTER) return;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__COLL) o->steps[i].level = esp__two_levels(ctx, o->steps[i].level);
}

/* The option without compression: the flat allreduce, or the hierarchical one that sends each byte over an outer link only once.
 * shard: its first half. */
static void esp__raw_option(const esp_ctx *ctx, int shard, esp__option *o) {
    uint8_t scope[ESP__LEVELS] = {ESP__FLAT};
    uint32_t n = esp__hierarchical(ctx) ? esp__blocks(&esp__job_of(ctx)->topo, scope) : 1;
    memset(o, 0, sizeof *o);
    o->n = shard ? n : 2 * n - 1;
    for (uint32_t k = 0; k < n; k++) {
        esp__step *s = &o->steps[k], *back = shard ? s : &o->steps[o->n - 1 - k];
        s->kind = back->kind = ESP__COLL;
        s->level = back->level = scope[k];
        back->coll = ESP_COLL_ALLGATHER, back->role = ESP__SECOND;
        s->coll = ESP_COLL_REDUCE_SCATTER, s->role = ESP__FIRST;
        if (k == n - 1 && !shard) s->coll = ESP_COLL_ALLREDUCE, s->role = ESP__WHOLE;
    }
}

/* The codec's default option. Where only the flat tree is allowed, a similar flat option. */
static const char *esp__codec_option(const esp_ctx *ctx, const esp_traits *codec) {
    int reducible = (codec->caps & ESP_CODEC_REDUCIBLE) != 0;
    const char *text = codec->default_option;
    if (!esp__hierarchical(ctx))
        return reducible ? "comp@cpu > flat.allreduce > decomp@cpu" : "comp@cpu > flat.allgather > decomp@cpu";
    if (text && strncmp(text, "flat.", 5) && !strstr(text, " flat.")) return text;
    return codec->rounds && codec->rounds[codec->n_rounds - 1].flags & ESP_ROUND_ALLREDUCE
               ? "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather"
               : "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather";
}

/* Do the option's steps name every level of the job, and each once? The grammar has seen to it that they follow each other. */
static int esp__option_fits(const esp_ctx *ctx, const esp__option *o) {
    const esp__topology *t = &esp__job_of(ctx)->topo;
    uint32_t outermost = 0, first, last;
    for (uint32_t i = 0; i < o->n; i++) {
        if (o->steps[i].kind != ESP__COLL) continue;
        if (!esp__scope_exists(o->steps[i].level, t->n_levels) || esp__group_size(t, o->steps[i].level) < 2) return 0;
        esp__scope_levels(o->steps[i].level, t->n_levels, &first, &last);
        if (last > outermost) outermost = last;
    }
    return outermost == t->n_levels;
}

/* Fails if the topology, the codec or the unit's shape does not allow its option. */
static esp_status esp__unit_check(esp_ctx *ctx, const esp__work_unit *u, const char *option, const char *where) {
    if (!esp__option_is_flat(&u->option) && !esp__hierarchical(ctx))
        return esp__fail(ctx, ESP_E_ARG,
                         "%s: tensor '%s': option '%s' needs several machines with the same number (over one) of ranks "
                         "each; here are %d ranks on %d machine(s): use a flat option such as flat.allreduce",
                         where, u->name, option, esp__job_of(ctx)->size, esp__job_of(ctx)->topo.n_machines);
    if (!esp__option_is_flat(&u->option) && !esp__option_fits(ctx, &u->option))
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: tensor '%s': option '%s' is not for a job of %u levels: its steps must name each of them once, "
            "from '%s' to '%s' (or '%s' and the like for several at once)",
            where, u->name, option, esp__job_of(ctx)->topo.n_levels, esp__scope_word(1),
            esp__scope_word(esp__job_of(ctx)->topo.n_levels), esp__scope_word(esp__scope_of(1, 2, ESP__LEVELS)));
    for (uint32_t i = 0; i < u->option.n; i++) {
        const esp_backend *b = esp__backend_of(esp__job_of(ctx), u->option.steps[i].level);
        if (b && u->option.steps[i].kind == ESP__COLL && !(b->colls & ESP_BIT(u->option.steps[i].coll)))
            return esp__fail(ctx, ESP_E_UNSUPPORTED,
                             "%s: tensor '%s': option '%s' uses a collective that backend '%s' does not have (%s): use "
                             "another option, or another backend",
                             where, u->name, option, b->name, esp__coll_word(u->option.steps[i].coll));
    }
    for (uint32_t i = 0; i < u->option.n; i++)
        if (u->option.steps[i].summed && !(u->codec->traits.caps & ESP_CODEC_REDUCIBLE))
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensor '%s': codec '%s' has no payloads that can be summed undecoded, so '%s' cannot "
                             "be used with it: use allgather or alltoall there",
                             where, u->name, u->codec->spec, option);
    if (!esp__option_compresses(&u->option)) return ESP_OK;
    const uint32_t last = u->codec->traits.n_rounds - 1;
    for (uint32_t i = 0; esp__codec_round(u->codec, last).flags & ESP_ROUND_ALLREDUCE && i < u->option.n; i++)
        if (u->option.steps[i].compressed && u->option.steps[i].coll != ESP_COLL_ALLREDUCE)
            return esp__fail(
                ctx, ESP_E_ARG,
                "%s: tensor '%s': every rank must get the sum of all payloads of codec '%s', so '%s' cannot "
                "be used with it: use allreduce between comp and decomp, as in '%s'",
                where, u->name, u->codec->spec, option,
                esp__hierarchical(ctx)
                    ? "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather"
                    : "comp@cpu > flat.allreduce > decomp@cpu");
    esp_bound bound;
    if (u->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX && !u->rows &&
        esp__codec_bound(ctx, u->codec, u, u->place.count, last, 1, &bound) == ESP_E_UNSUPPORTED)
        return esp__fail(
            ctx, ESP_E_ARG, "%s: tensor '%s': codec '%s' needs rows and cols%s", where, u->name, u->codec->spec,
            esp__unit_is_group(u) ? ", which a group has not: take the matrices out of it, or use another codec"
            : esp__unit_is_chunk(ctx, u)
                ? ", which a chunk has only if it consists of whole rows: leave the tensor whole, make its chunks "
                  "multiples of cols, or use another codec"
                : " in its description");
    for (uint32_t k = 0; esp__unit_is_group(u) && k < u->place.n; k++)
        if (esp__model_of(ctx)->tensors[u->place.first + k].flags & ESP_RAW)
            return esp__fail(
                ctx, ESP_E_ARG,
                "%s: tensor '%s' must not be compressed (ESP_RAW), but the group '%s' compresses: take the "
                "tensor out of the group, or give the group an option without comp",
                where, esp__model_of(ctx)->tensors[u->place.first + k].name, u->name);
    return ESP_OK;
}

/* Sets the round that the unit's codec begins with: earlier ones have no body for parts of its shape. */
static esp_status esp__unit_rounds(const esp_ctx *ctx, esp__work_unit *u) {
    const uint32_t last = u->codec->traits.n_rounds - 1;
    for (u->first_round = 0; u->first_round < last; u->first_round++) {
        esp_bound b;
        esp_status s =
            esp__codec_bound(ctx, u->codec, u, u->place.count, u->first_round, (uint32_t)esp__job_of(ctx)->size, &b);
        if (s || b.payload_bytes) return s;
    }
    return ESP_OK;
}

/* Groups are checked before: no tensor of a group has a codec or option in its description. */
ESP__FN esp_status esp__unit_assign(esp_ctx *ctx, esp__work_unit *u, const char *spec, const char *option,
                                    const char *where) {
    const esp__tensor *t = &esp__model_of(ctx)->tensors[u->place.first];
    int single = !esp__unit_is_group(u), raw = single && t->flags & ESP_RAW;
    const int shard = single && t->flags & ESP_SHARD;
    esp_status s;
    const char *codec_spec = single && t->want_codec ? t->want_codec : spec ? spec : ESP__CODEC_NONE;
    if (raw) codec_spec = ESP__CODEC_NONE;
    s = esp__codec_get(ctx, codec_spec, &u->codec);
    if (s) return esp__fail(ctx, s, "%s: tensor '%s': %s", where, u->name, esp_last_error(ctx));
    if (single && t->want_option) option = t->want_option;
    if (!option)
        option = shard ? esp__shard_option(ctx, &u->codec->traits, raw) : esp__codec_option(ctx, &u->codec->traits);
    s = esp__option_parse(ctx, option, &u->option);
    if (s) return esp__fail(ctx, s, "%s: tensor '%s': %s", where, u->name, esp_last_error(ctx));
    esp__option_spread(ctx, &u->option);
    if (raw && esp__option_compresses(&u->option)) esp__raw_option(ctx, shard, &u->option);
    if (u->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX && esp__option_compresses(&u->option) && u->rows)
        u->width = u->cols;
    s = esp__shard_check(ctx, u, option, where);
    if (!s) s = esp__unit_check(ctx, u, option, where);
    if (!s) s = esp__unit_rounds(ctx, u);
    return s;
}

/* Do built-in strategies leave this tensor uncompressed because it is small? What its description asks for goes first. */
static bool esp__tensor_small(const esp_ctx *ctx, const esp__tensor *t) {
    return t->count <= esp__model_of(ctx)->raw_up_to && !t->want_codec && !t->want_option;
}

static esp_status esp__strategy_builtin(esp_ctx *ctx, esp__strategy *y, const char *name) {
    const int fp32 = !strcmp(name, "fp32");
    char where[ESP__NAME_MAX];
    snprintf(where, sizeof where, "strategy %s", name);
    for (uint32_t i = 0; i < esp__model_of(ctx)->n_tensors; i++) {
        const esp__tensor *t = &esp__model_of(ctx)->tensors[i];
        const int raw = fp32 || esp__tensor_small(ctx, t);
        esp__extent whole = {i, 1, 0, t->count};
        char raw_option[ESP__TEXT_MAX];
        esp__option o;
        esp__raw_option(ctx, (t->flags & ESP_SHARD) != 0, &o);
        esp__option_print(&o, raw_option, sizeof raw_option);
        esp__work_unit *u = esp__unit_add(ctx, y, whole, 0, 1);
        if (!u) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
        esp_status s = esp__unit_assign(ctx, u, raw ? ESP__CODEC_NONE : esp__model_of(ctx)->codec_spec,
                                        raw ? raw_option : NULL, where);
        if (s) return s;
    }
    return esp__order_make(ctx, y);
}

/* The error if `path` is neither a built-in strategy nor a file, with a guess at what was meant. */
static void esp__no_strategy(const esp_ctx *ctx, const char *path, const char *why) {
    static const char *const names[] = {"fp32", "layerwise", "auto"};
    const char *near = NULL;
    char hint[ESP__SPEC_MAX * 2] = "";
    unsigned best = 3;
    size_t n = strcspn(path, ":;");
    const esp__registry *known = ctx ? esp__registry_of(ctx) : NULL; /* the command reads files without a context */
    for (uint32_t i = 0; known && i < known->n_codecs; i++)
        if (strlen(known->codecs[i]->name) == n && !memcmp(known->codecs[i]->name, path, n))
            snprintf(hint, sizeof hint, " ('%.*s' is a codec: ESPRESSO_CODEC=%.200s, or esp_config.codec)", (int)n,
                     path, path);
    for (int i = 0; i < 3; i++)
        if (esp__suggests(path, names[i], &best)) near = names[i];
    if (near && !*hint) snprintf(hint, sizeof hint, " (did you mean '%s'?)", near);
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
        esp__no_strategy(ctx, path, strerror(error));
        return ESP_E_NOT_FOUND;
    }
    return esp__fail(ctx, error == ENOMEM ? ESP_E_NOMEM : ESP_E_ARG, "strategy '%s': %s", path,
                     error == EFBIG ? "the file is larger than 1 GiB: this is no strategy" : strerror(error));
}

/* ---- back to text ------------------------------------------------------------------------------------------------ */
static void esp__unit_print(const esp_ctx *ctx, const esp__strategy *y, esp__text *t, const esp__work_unit *u) {
    const esp__text_tensors tensors = esp__text_tensors_of(ctx);
    const esp__extent *p = &u->place;
    char option[ESP__TEXT_MAX];
    esp__text_unit x = {p->first, p->n, p->begin, p->count, 0, 1, u->codec->spec, option};
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
    esp__strfree(ctx, s->text);
    s->text = esp__strdup(ctx, t.data);
    s->hash = esp__hash64(ESP__HASH0, t.data, t.len);
    esp__text_free(&t);
    return s->text ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
}

ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, esp__strategy *y, const char *spec, int files) {
    esp_status s;
    if (!spec) spec = esp__model_of(ctx)->codec_spec ? "layerwise" : "fp32";
    if (!strcmp(spec, "fp32") || !strcmp(spec, "layerwise")) {
        s = esp__strategy_builtin(ctx, y, spec);
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
    return s ? s : esp__strategy_print(ctx, y);
}
