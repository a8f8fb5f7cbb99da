/* shard.c: for tensors of which each rank gets only a part (ESP_SHARD): their options, and their parts. */
#include "espresso_impl/strategy/strategy.h"

ESP__FN const char *esp__shard_option(const esp_ctx *ctx, const esp_traits *codec, bool raw) {
    const bool reducible = (codec->caps & ESP_CODEC_REDUCIBLE) != 0, levels = esp__hierarchical(ctx);
    if (raw) return levels ? "intra.reduce_scatter > inter.reduce_scatter" : "flat.reduce_scatter";
    if (reducible)
        return levels ? "intra.reduce_scatter > comp@cpu > inter.reduce_scatter > decomp@cpu"
                      : "comp@cpu > flat.reduce_scatter > decomp@cpu";
    return levels ? "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu"
                  : "comp@cpu > flat.alltoall > decomp@cpu";
}

ESP__FN esp_status esp__shard_check(const esp_ctx *ctx, const esp__unit *u, const char *option, const char *where) {
    const esp__tensor *t = &esp__model_of(ctx)->tensors[u->place.first];
    const bool narrow = esp__option_narrow(&u->option);
    for (uint32_t k = 0; k < u->place.n; k++) {
        const esp__tensor *x = t + k;
        if (!(x->flags & ESP_SHARD)) continue;
        if (esp__unit_is_group(u) || u->place.elements != x->count)
            return esp__fail(
                ctx, ESP_E_ARG,
                "%s: tensor '%s' is sharded (ESP_SHARD), so it cannot be %s: give it a line of its own, whole", where,
                x->name, esp__unit_is_group(u) ? "in a group" : "cut into chunks");
        if (esp__option_compresses(&u->option) && esp__codec_needs_all(u->codec))
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensor '%s' is sharded (ESP_SHARD), but every rank must get the sum of all payloads "
                             "of codec '%s': use another codec for it, or leave ESP_SHARD out",
                             where, x->name, u->codec->spec);
        if (!narrow)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensor '%s' is sharded (ESP_SHARD), but option '%s' gives every rank all of it: end "
                             "it with a reduce_scatter or an alltoall, as in '%s'",
                             where, x->name, option,
                             esp__shard_option(ctx, &u->codec->traits, !esp__option_compresses(&u->option)));
        return ESP_OK;
    }
    if (!narrow) return ESP_OK;
    return esp__fail(ctx, ESP_E_ARG,
                     "%s: tensor '%s': option '%s' leaves each rank with a part of the result only: set ESP_SHARD in "
                     "the tensor's flags if that is what you want, or spread the result, for example with an allgather",
                     where, u->name, option);
}

static esp__shard esp__shard_of(const esp__unit *u) {
    esp__shard out;
    memset(&out, 0, sizeof out);
    out.n = esp__option_cuts(&u->option, out.scopes);
    out.width = u->width;
    return out;
}

ESP__FN void esp__coordinates_of(const esp__topology *t, esp__coordinates *at) {
    memset(at, 0, sizeof *at);
    for (uint8_t scope = 0; scope < ESP__SCOPES; scope++) {
        int32_t size = esp__group_size(t, scope);
        at->index[scope] = size ? esp__group_index(t, scope) : 0;
        at->size[scope] = size ? size : 1;
    }
}

ESP__FN void esp__shard_range(const esp_ctx *ctx, const esp__shard *s, uint64_t count, int32_t rank, uint64_t *begin,
                              uint64_t *length) {
    esp__coordinates at;
    esp__region r;
    const uint32_t none[ESP__DIMS] = {0};
    esp__topology t = esp__job_of(ctx)->topo;
    t.rank = rank;
    esp__coordinates_of(&t, &at);
    esp__region_start(&r);
    for (uint32_t k = 0; k < s->n; k++) r.cuts[r.n_cuts++].level = s->scopes[k];
    at.width = s->width;
    esp__region_range(&r, &at, count, none, begin, length);
}

ESP__FN esp_status esp__shards_check(const esp_ctx *ctx, const esp__strategy *y) {
    for (uint32_t i = 0; i < esp__model_of(ctx)->n_tensors; i++) {
        const esp__tensor *t = &esp__model_of(ctx)->tensors[i];
        char has[ESP__CUTS_TEXT], wants[ESP__CUTS_TEXT];
        if (!t->shard.n) continue;
        const esp__shard next = esp__shard_of(&y->units[y->of_tensor[i].first]);
        if (!memcmp(&t->shard, &next, sizeof next)) continue;
        esp__scopes_print(t->shard.scopes, t->shard.n, has, sizeof has);
        esp__scopes_print(next.scopes, next.n, wants, sizeof wants);
        return esp__fail(ctx, ESP_E_ARG,
                         "tensor '%s': since esp_start its parts are cut by '%s', and this strategy cuts them by '%s': "
                         "ranks keep their parts while they train, so give it an option that cuts by '%s'",
                         t->name, has, wants, has);
    }
    return ESP_OK;
}

ESP__FN void esp__shards_set(const esp__strategy *y, esp__tensor *tensors, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (tensors[i].flags & ESP_SHARD) tensors[i].shard = esp__shard_of(&y->units[y->of_tensor[i].first]);
}
