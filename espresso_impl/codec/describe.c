/* describe.c: asks an open codec for its properties, and computes its payload sizes, times and error. */
#include "espresso_impl/codec/codec.h"
#include <math.h>

/* A codec's costs are computed for this many elements, so that its constant costs hardly count. */
enum { ESP__MODEL_SIDE = 1 << 10, ESP__MODEL_ELEMENTS = ESP__MODEL_SIDE * ESP__MODEL_SIDE };

ESP__FN esp_status esp__codec_model(esp_ctx *ctx, const esp__codec *c, bool matrix, uint32_t n_reduced,
                                    esp_devkind kind, esp_codec_model *out) {
    const uint64_t side = matrix ? ESP__MODEL_SIDE : 0;
    const esp_tensor like = esp__codec_like(ESP__MODEL_ELEMENTS, side, side);
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    out->error = -1.0;
    if (!ESP_HAS(esp_codec, c->table, model)) return ESP_OK;
    esp_status s = c->table->model(c->self, &like, n_reduced, (esp_device){kind, 0}, out);
    if (s) return esp__fail(ctx, s, "codec '%s': model() failed: %s", c->spec, esp_status_text(s));
    if (out->n_times > ESP_MODEL_TIMES)
        return esp__fail(ctx, ESP_E_ABI, "codec '%s': model() gives %u times; at most %d are allowed", c->spec,
                         (unsigned)out->n_times, (int)ESP_MODEL_TIMES);
    for (uint32_t i = 0; i < out->n_times; i++) {
        const esp_codec_time *t = &out->times[i];
        if (!(t->compress_ns >= 0.0 && t->decompress_ns >= 0.0 && t->elements > (i ? t[-1].elements : 0.0)))
            return esp__fail(ctx, ESP_E_ABI,
                             "codec '%s': model(): times[%u]: expected times of 0 or more, by rising elements", c->spec,
                             (unsigned)i);
    }
    return ESP_OK;
}

ESP__FN esp_status esp__codec_describe(esp_ctx *ctx, esp__codec *c) {
    const esp_codec *t = c->table;
    esp_status s = ESP_OK;
    c->traits.struct_size = sizeof c->traits;
    c->traits.wire_version = t->wire_version;
    c->traits.caps = t->caps;
    c->traits.n_rounds = t->n_rounds;
    c->traits.rounds = t->rounds;
    c->traits.default_option = t->default_option;
    if (ESP_HAS(esp_codec, t, traits)) s = t->traits(c->self, &c->traits);
    if (s) return esp__fail(ctx, s, "codec '%s': traits() failed: %s", c->spec, esp_status_text(s));
    if (c->traits.caps & ~t->caps || c->traits.n_rounds < 1 || c->traits.n_rounds > t->n_rounds)
        return esp__fail(
            ctx, ESP_E_ABI,
            "codec '%s': traits() gives capabilities 0x%llx and %u rounds, more than its table has (0x%llx, "
            "%u): the table must list all that an instance may have",
            c->spec, (unsigned long long)c->traits.caps, c->traits.n_rounds, (unsigned long long)t->caps, t->n_rounds);
    if (c->traits.n_rounds > 1 && (!c->traits.rounds || !(c->traits.caps & ESP_CODEC_FUSED_RESIDUAL)))
        return esp__fail(ctx, ESP_E_ABI,
                         "codec '%s': traits() gives %u rounds, but no list of them or no ESP_CODEC_FUSED_RESIDUAL",
                         c->spec, c->traits.n_rounds);
    if (c->traits.caps & ESP_CODEC_OWN_FEEDBACK && c->traits.caps & ESP_CODEC_NO_FEEDBACK)
        return esp__fail(ctx, ESP_E_ABI,
                         "codec '%s': traits() gives both ESP_CODEC_OWN_FEEDBACK and ESP_CODEC_NO_FEEDBACK, which "
                         "contradict each other",
                         c->spec);
    const esp_round last = esp__codec_round(c, c->traits.n_rounds - 1);
    if (!last.op != !(c->traits.caps & ESP_CODEC_REDUCIBLE))
        return esp__fail(ctx, ESP_E_ABI,
                         "codec '%s': traits() %s ESP_CODEC_REDUCIBLE, but the op of its last round is %u: set both or "
                         "none",
                         c->spec, last.op ? "lacks" : "gives", (unsigned)last.op);
    return ESP_OK;
}

ESP__FN bool esp__codec_has_model(const esp__codec *c) { return ESP_HAS(esp_codec, c->table, model); }

ESP__FN esp_round esp__codec_round(const esp__codec *c, uint32_t round) {
    static const esp_round none = {0, 0, 0, 0};
    return c->traits.rounds && round < c->traits.n_rounds ? c->traits.rounds[round] : none;
}

ESP__FN esp_tensor esp__codec_like(uint64_t count, uint64_t rows, uint64_t cols) {
    esp_tensor like;
    memset(&like, 0, sizeof like);
    like.struct_size = sizeof like;
    like.dtype = ESP_F32;
    like.count = count;
    like.rows = rows, like.cols = cols;
    return like;
}

ESP__FN bool esp__codec_lossy(const esp__codec *c) {
    return !esp__codec_has_model(c) || c->model.flags & ESP_MODEL_LOSSY;
}

ESP__FN double esp__payload_size(const esp_payload_size *s, uint64_t count, uint64_t rows, uint64_t cols) {
    const double quantum = s->quantum > 0.0 ? s->quantum : 1.0;
    const double bytes = s->per_element * (double)count + s->per_row * (double)rows + s->per_col * (double)cols;
    return s->fixed + quantum * ceil(bytes / quantum);
}

ESP__FN bool esp__codec_shrinks(const esp__codec *c) {
    return !esp__codec_has_model(c) ||
           esp__payload_size(&c->model.sent, ESP__MODEL_ELEMENTS, 0, 0) < 4.0 * ESP__MODEL_ELEMENTS;
}
