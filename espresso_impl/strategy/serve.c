/* serve.c: finds tensors that a codec cannot compress, and logs how much of the model they are. */
#include "espresso_impl/strategy/strategy.h"

static const double esp__unserved_warn = 0.1; /* warns if more of the elements are sent in full */

ESP__FN bool esp__codec_needs_all(const esp__codec *c) {
    return esp__codec_round(c, c->traits.n_rounds - 1).flags & ESP_ROUND_ALLREDUCE;
}

ESP__FN const char *esp__codec_refuses(const esp_ctx *ctx, const esp__codec *c, const esp__unit *u) {
    const esp_tensor like = esp__codec_like(u->place.elements, u->rows, u->cols);
    const bool matrices = c->traits.caps & ESP_CODEC_NEEDS_MATRIX;
    esp_bound b;
    uint32_t first;
    if (esp__codec_needs_all(c) && !esp__unit_is_group(u) &&
        esp__model_of(ctx)->tensors[u->place.first].flags & ESP_SHARD)
        return "is sharded (ESP_SHARD), but every rank must get the sum of all payloads of this codec: use another "
               "codec, or leave ESP_SHARD out";
    if (matrices && !u->rows)
        return "has no rows and cols: set them in its esp_tensor_desc (rows * cols = count), or use another codec";
    const esp_status s = esp__alone_bound(ctx, c, &like, &b, &first);
    if (s == ESP_E_UNSUPPORTED) return "has a size or shape that this codec does not support: use another codec";
    if (!s && matrices && b.payload_bytes >= 4 * u->place.elements)
        return "is a matrix with too few rows or columns for this codec, whose payloads would not be smaller: use "
               "other parameters (a lower rank), or another codec";
    return NULL;
}

typedef struct esp__unserved {
    uint32_t units;
    uint64_t elements, largest;
    const esp__unit *example;
    const char *why;
} esp__unserved;

static esp__unserved esp__unserved_by(const esp_ctx *ctx, const esp__strategy *y, const esp__codec *c, bool asked) {
    esp__unserved n = {0};
    for (uint32_t i = 0; i < y->n_units; i++) {
        const esp__unit *u = &y->units[i];
        const esp__tensor *t = &esp__model_of(ctx)->tensors[u->place.first];
        const bool own = t->flags & ESP_RAW || t->codec_override || t->option_override;
        const bool meant = asked && !own && !esp__tensor_small(ctx, t);
        const char *why = NULL;
        if (esp__option_compresses(&u->option) ? u->codec == c : meant) why = esp__codec_refuses(ctx, c, u);
        if (!why) continue;
        n.units++;
        n.elements += u->place.elements;
        if (u->place.elements <= n.largest) continue;
        n.largest = u->place.elements;
        n.example = u, n.why = why;
    }
    return n;
}

static void esp__codec_report(const esp_ctx *ctx, const esp__strategy *y, esp__codec *c, bool asked) {
    const esp__model *m = esp__model_of(ctx);
    uint64_t all = 0, compressed = 0;
    if (c->reported || !esp__log_speaks(ctx)) return;
    c->reported = true;
    for (uint32_t i = 0; i < y->n_units; i++) {
        all += y->units[i].place.elements;
        if (esp__option_compresses(&y->units[i].option)) compressed += y->units[i].place.elements;
    }
    const esp__unserved n = esp__unserved_by(ctx, y, c, asked);
    if (n.units)
        esp__log(ctx, (double)n.elements > esp__unserved_warn * (double)all ? ESP_LOG_WARN : ESP_LOG_INFO, "codec",
                 "codec '%s' cannot compress %u of %u tensors, with %.3g%% of the elements, so they are sent in full: "
                 "'%s' %s",
                 c->spec, n.units, y->n_units, 100.0 * (double)n.elements / (double)all, n.example->name, n.why);
    else if (asked && !compressed && all && strcmp(c->table->name, ESP__CODEC_NONE))
        esp__log(ctx, ESP_LOG_WARN, "codec",
                 "codec '%s' compresses nothing: each tensor has fewer than %llu elements or must not be compressed "
                 "(ESP_RAW): set ESPRESSO_MIN_COMPRESS_ELEMENTS=1 to compress tensors of any size",
                 c->spec, (unsigned long long)m->min_compress_elements);
}

ESP__FN void esp__codecs_report(const esp_ctx *ctx, const esp__strategy *y, esp__codec *asked) {
    if (asked) esp__codec_report(ctx, y, asked, true);
    for (uint32_t i = 0; i < y->n_units; i++)
        if (esp__option_compresses(&y->units[i].option)) esp__codec_report(ctx, y, y->units[i].codec, false);
}
