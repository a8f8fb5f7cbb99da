/* units.c: sync units (tensors, chunks of a tensor, groups of tensors), and which elements each of them has. */
#include "espresso_impl/strategy/strategy.h"

ESP__FN bool esp__segment_next(const esp_ctx *ctx, const esp__extent *place, uint64_t from, uint64_t length,
                               esp__segment *s) {
    uint64_t done = s->at + s->length, at = from + done, count = place->elements;
    uint32_t tensor = place->first;
    if (done >= length) return false;
    if (place->n > 1)
        for (; at >= (count = esp__model_of(ctx)->tensors[tensor].count); tensor++) at -= count;
    s->tensor = tensor;
    s->begin = place->begin + at;
    s->at = done;
    s->length = length - done < count - at ? length - done : count - at;
    return true;
}

ESP__FN bool esp__tensor_small(const esp_ctx *ctx, const esp__tensor *t) {
    return t->count < esp__model_of(ctx)->min_compress_elements && !t->codec_override && !t->option_override;
}

ESP__FN bool esp__unit_is_group(const esp__unit *u) { return u->place.n > 1; }
ESP__FN bool esp__unit_is_chunk(const esp_ctx *ctx, const esp__unit *u) {
    return u->place.n == 1 && u->place.elements != esp__model_of(ctx)->tensors[u->place.first].count;
}

/* Sets the key and name of a tensor, chunk or group. They depend only on names of tensors, so that they are the same on
 * all ranks and in every run. */
static void esp__unit_identity(const esp_ctx *ctx, esp__unit *u, uint32_t chunk, uint32_t n_chunks, char *name,
                               size_t cap) {
    const esp__tensor *t = &esp__model_of(ctx)->tensors[u->place.first];
    u->key = t->key;
    for (uint32_t k = 1; k < u->place.n; k++) u->key = esp__hash64(u->key, t[k].name, strlen(t[k].name) + 1);
    if (u->place.n > 1)
        snprintf(name, cap, "%s+%u", t->name, u->place.n - 1);
    else if (n_chunks > 1)
        snprintf(name, cap, "%s[%u/%u]", t->name, chunk + 1, n_chunks);
    else
        snprintf(name, cap, "%s", t->name);
}

ESP__FN esp__unit *esp__unit_add(esp_ctx *ctx, esp__strategy *s, esp__extent place, uint32_t chunk, uint32_t n_chunks) {
    char name[ESP__SPEC_MAX + 32];
    if (s->n_units >= ESP__UNITS_MAX) return NULL;
    if (!s->of_tensor)
        s->of_tensor = esp__alloc(ctx, (uint64_t)esp__model_of(ctx)->n_tensors * sizeof *s->of_tensor + 1);
    if (!s->of_tensor) return NULL;
    esp__unit *grown = esp__grow(ctx, s->units, &s->cap_units, ((uint64_t)s->n_units + 1) * sizeof *grown);
    if (!grown) return NULL;
    s->units = grown;
    esp__unit *u = &grown[s->n_units];
    memset(u, 0, sizeof *u);
    u->place = place;
    for (uint32_t k = 0; k < place.n; k++) {
        const esp__tensor *t = &esp__model_of(ctx)->tensors[place.first + k];
        esp__tensor_units *of = &s->of_tensor[place.first + k];
        if (chunk == 0) of->first = s->n_units;
        of->n = chunk + 1;
        if (place.n == 1 && t->cols && !(place.begin % t->cols) && !(place.elements % t->cols))
            u->rows = place.elements / t->cols, u->cols = t->cols;
        u->dtype = t->dtype;
        u->device = t->device;
        u->flags = t->flags & ESP_SUM;
    }
    esp__unit_identity(ctx, u, chunk, n_chunks, name, sizeof name);
    u->width = 1;
    u->raw_feedback = -1;
    u->name = esp__strdup(ctx, name);
    if (!u->name) return NULL;
    s->n_units++;
    return u;
}

ESP__FN uint32_t esp__unit_chain(const esp__unit *u, esp__chain_step out[ESP__CHAIN_MAX]) {
    return esp__option_chain(&u->option, u->first_round, u->codec->traits.n_rounds, out);
}

ESP__FN void esp__strategy_free(esp_ctx *ctx, esp__strategy *s) {
    for (uint32_t i = 0; i < s->n_units; i++) esp__free(ctx, s->units[i].name);
    esp__free(ctx, s->units);
    esp__free(ctx, s->of_tensor);
    esp__free(ctx, s->order);
    esp__free(ctx, s->entries);
    esp__free(ctx, s->text);
    memset(s, 0, sizeof *s);
}

ESP__FN void esp__unit_shape(const esp__unit *u, uint64_t count, uint64_t *rows, uint64_t *cols) {
    const bool matrix =
        u->rows && count && (u->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX || count == u->place.elements);
    *rows = matrix ? count / u->cols : 0;
    *cols = matrix ? u->cols : 0;
}

ESP__FN esp_status esp__codec_bound(const esp_ctx *ctx, const esp__codec *c, const esp__unit *u, uint64_t count,
                                    uint32_t round, uint32_t n_reduced, esp_bound *b) {
    esp_tensor like = esp__codec_like(count, 0, 0);
    like.key = u->key;
    esp__unit_shape(u, count, &like.rows, &like.cols);
    return esp__codec_bound_of(ctx, c, &like, round, n_reduced, b);
}
