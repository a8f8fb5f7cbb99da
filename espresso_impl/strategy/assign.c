/* assign.c: chooses a tensor's (or chunk's or group's) codec and option (the stages that compress and send it), and
 * checks that job, codec and shape allow them. */
#include "espresso_impl/strategy/strategy.h"

static void esp__option_spread(const esp_ctx *ctx, esp__option *o) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].level > ESP__INTER) return;
    for (uint32_t i = 0; i < o->n; i++)
        if (o->steps[i].kind == ESP__STAGE_COLLECTIVE) o->steps[i].level = esp__two_levels(ctx, o->steps[i].level);
}

ESP__FN void esp__raw_option(const esp_ctx *ctx, bool shard, esp__option *o) {
    uint8_t scope[ESP__LEVELS] = {ESP__FLAT};
    uint32_t n = esp__hierarchical(ctx) ? esp__level_blocks(&esp__job_of(ctx)->topo, scope) : 1;
    memset(o, 0, sizeof *o);
    o->n = shard ? n : 2 * n - 1;
    for (uint32_t k = 0; k < n; k++) {
        esp__step *s = &o->steps[k], *back = shard ? s : &o->steps[o->n - 1 - k];
        s->kind = back->kind = ESP__STAGE_COLLECTIVE;
        s->level = back->level = scope[k];
        back->coll = ESP_COLL_ALLGATHER, back->role = ESP__SECOND;
        s->coll = ESP_COLL_REDUCE_SCATTER, s->role = ESP__FIRST;
        if (k == n - 1 && !shard) s->coll = ESP_COLL_ALLREDUCE, s->role = ESP__WHOLE;
    }
}

/* Returns the usual option (list of stages) for a tensor with this codec. If machines differ in size or have one rank
 * each, these are collectives over all ranks (flat), else the codec's default option or a usual hierarchical one. */
static const char *esp__codec_option(const esp_ctx *ctx, const esp_traits *codec) {
    const bool reducible = (codec->caps & ESP_CODEC_REDUCIBLE) != 0;
    const char *text = codec->default_option;
    if (!esp__hierarchical(ctx))
        return reducible ? "comp@cpu > flat.allreduce > decomp@cpu" : "comp@cpu > flat.allgather > decomp@cpu";
    if (text && strncmp(text, "flat.", 5) && !strstr(text, " flat.")) return text;
    return codec->rounds && codec->rounds[codec->n_rounds - 1].flags & ESP_ROUND_ALLREDUCE
               ? "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather"
               : "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather";
}

/* Returns whether the option's collectives reach all levels of the job. The parser has checked that no level occurs
 * twice. */
static bool esp__option_fits(const esp_ctx *ctx, const esp__option *o) {
    const esp__topology *t = &esp__job_of(ctx)->topo;
    uint32_t outermost = 0, first, last;
    for (uint32_t i = 0; i < o->n; i++) {
        if (o->steps[i].kind != ESP__STAGE_COLLECTIVE) continue;
        if (!esp__scope_exists(o->steps[i].level, t->n_levels) || esp__group_size(t, o->steps[i].level) < 2)
            return false;
        esp__scope_levels(o->steps[i].level, t->n_levels, &first, &last);
        if (last > outermost) outermost = last;
    }
    return outermost == t->n_levels;
}

static esp_status esp__unit_check(esp_ctx *ctx, const esp__unit *u, const char *option, const char *where) {
    if (!esp__option_is_flat(&u->option) && !esp__hierarchical(ctx))
        return esp__fail(ctx, ESP_E_ARG,
                         "%s: tensor '%s': option '%s' needs several machines with the same number (over one) of ranks "
                         "each; here are %d ranks on %d machine(s): use a flat option such as flat.allreduce",
                         where, u->name, option, esp__job_of(ctx)->size, esp__job_of(ctx)->topo.n_machines);
    if (!esp__option_is_flat(&u->option) && !esp__option_fits(ctx, &u->option))
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: tensor '%s': option '%s' is not for a job of %u levels: its stages must name each of them once, "
            "from '%s' to '%s' (or '%s' and the like for several at once)",
            where, u->name, option, esp__job_of(ctx)->topo.n_levels, esp__scope_word(1),
            esp__scope_word(esp__job_of(ctx)->topo.n_levels), esp__scope_word(esp__scope_of(1, 2, ESP__LEVELS)));
    for (uint32_t i = 0; i < u->option.n; i++) {
        const esp_backend *b = esp__backend_of(esp__job_of(ctx), u->option.steps[i].level);
        if (b && u->option.steps[i].kind == ESP__STAGE_COLLECTIVE && !(b->colls & ESP_BIT(u->option.steps[i].coll)))
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
    for (uint32_t i = 0; esp__codec_needs_all(u->codec) && i < u->option.n; i++)
        if (u->option.steps[i].compressed && u->option.steps[i].coll != ESP_COLL_ALLREDUCE)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensor '%s': every rank must get the sum of all payloads of codec '%s', so '%s' "
                             "cannot be used with it: use allreduce between comp and decomp, as in '%s'",
                             where, u->name, u->codec->spec, option,
                             esp__hierarchical(ctx)
                                 ? "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather"
                                 : "comp@cpu > flat.allreduce > decomp@cpu");
    esp_bound bound;
    if (u->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX && !u->rows &&
        esp__codec_bound(ctx, u->codec, u, u->place.elements, last, 1, &bound) == ESP_E_UNSUPPORTED)
        return esp__fail(
            ctx, ESP_E_ARG, "%s: tensor '%s': codec '%s' needs rows and cols%s", where, u->name, u->codec->spec,
            esp__unit_is_group(u)        ? ", which a group has not: take the matrices out of it, or use another codec"
            : esp__unit_is_chunk(ctx, u) ? ", which a chunk has only if it consists of whole rows: leave the tensor "
                                           "whole, make its chunks multiples of cols, or use another codec"
                                         : " in its description");
    for (uint32_t k = 0; esp__unit_is_group(u) && k < u->place.n; k++)
        if (esp__model_of(ctx)->tensors[u->place.first + k].flags & ESP_RAW)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensor '%s' must not be compressed (ESP_RAW), but the group '%s' compresses: take "
                             "the tensor out of the group, or give the group an option without comp",
                             where, esp__model_of(ctx)->tensors[u->place.first + k].name, u->name);
    return ESP_OK;
}

static esp_status esp__unit_rounds(const esp_ctx *ctx, esp__unit *u) {
    const uint32_t last = u->codec->traits.n_rounds - 1;
    for (u->first_round = 0; u->first_round < last; u->first_round++) {
        esp_bound b;
        esp_status s =
            esp__codec_bound(ctx, u->codec, u, u->place.elements, u->first_round, (uint32_t)esp__job_of(ctx)->size, &b);
        if (s || b.payload_bytes) return s;
    }
    return ESP_OK;
}

static esp_status esp__option_read(const esp_ctx *ctx, const char *text, esp__option *out) {
    const esp_status s = esp__option_parse(ctx, text, out);
    if (!s) esp__option_spread(ctx, out);
    return s;
}

/* The tensor's own codec or option, from esp_tensor_desc, replaces the strategy's. If only the codec is given and the
 * strategy's option does not compress, the codec's default option is used. */
static esp_status esp__unit_option(esp_ctx *ctx, esp__unit *u, const char **option, const char *where) {
    const esp__tensor *t = &esp__model_of(ctx)->tensors[u->place.first];
    const bool single = !esp__unit_is_group(u), raw = single && t->flags & ESP_RAW, shard = t->flags & ESP_SHARD;
    const bool compresses = single && t->codec_override && strcmp(t->codec_override, ESP__CODEC_NONE);
    const char *own = single ? t->option_override : NULL;
    const char *usual =
        single && shard ? esp__shard_option(ctx, &u->codec->traits, raw) : esp__codec_option(ctx, &u->codec->traits);
    esp__option line;
    esp_status s = *option ? esp__option_read(ctx, *option, &line) : ESP_OK;
    const bool given = *option != NULL;
    if (own || !given) *option = own ? own : usual;
    if (!s) s = esp__option_read(ctx, *option, &u->option);
    if (!s && own && raw && esp__option_compresses(&u->option))
        s = esp__fail(ctx, ESP_E_ARG, "its flags have ESP_RAW, but its option '%s' compresses: leave one of them out",
                      own);
    if (!s && own && compresses && !esp__option_compresses(&u->option))
        s = esp__fail(ctx, ESP_E_ARG,
                      "its codec is '%s', but its option '%s' has no comp: leave one of them out, or use '%s'",
                      t->codec_override, own, usual);
    if (s) return esp__fail(ctx, s, "%s: tensor '%s': %s", where, u->name, esp_last_error(ctx));
    if (raw && esp__option_compresses(&u->option)) esp__raw_option(ctx, shard, &u->option);
    if (compresses && !esp__option_compresses(&u->option)) s = esp__option_read(ctx, *option = usual, &u->option);
    u->replaced = given && (line.n != u->option.n || memcmp(line.steps, u->option.steps, line.n * sizeof *line.steps));
    return s;
}

ESP__FN esp_status esp__unit_assign(esp_ctx *ctx, esp__unit *u, const char *spec, const char *option,
                                    const char *where) {
    const esp__tensor *t = &esp__model_of(ctx)->tensors[u->place.first];
    const bool single = !esp__unit_is_group(u);
    if (single && t->codec_override) spec = t->codec_override;
    if (!spec || (single && t->flags & ESP_RAW)) spec = ESP__CODEC_NONE;
    esp_status s = esp__codec_get(ctx, spec, &u->codec);
    if (s) return esp__fail(ctx, s, "%s: tensor '%s': %s", where, u->name, esp_last_error(ctx));
    s = esp__unit_option(ctx, u, &option, where);
    if (s) return s;
    if (u->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX && esp__option_compresses(&u->option) && u->rows)
        u->width = u->cols;
    s = esp__shard_check(ctx, u, option, where);
    if (!s) s = esp__unit_check(ctx, u, option, where);
    if (!s) s = esp__unit_rounds(ctx, u);
    return s;
}
