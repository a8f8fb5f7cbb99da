/* codec_handle.c: esp_codec_handle: a codec for one caller, without peers, lanes or strategy. */
#include "espresso_impl/executor/executor.h"

struct esp_codec_handle {
    esp_ctx *ctx;
    esp__codec *codec;
    uint64_t count, step;
    esp_bound bound;
    float *residual, *temp;
    uint8_t *state, *scratch;
    uint64_t nonfinite;
};

ESPRESSO_API void esp_codec_close(esp_codec_handle *h) {
    if (!h) return;
    esp__codec_free(h->ctx, h->codec);
    esp__free(h->ctx, h->residual);
    esp__free(h->ctx, h->temp);
    esp__free(h->ctx, h->state);
    esp__free(h->ctx, h->scratch);
    esp__free(h->ctx, h);
}

ESPRESSO_API esp_status esp_codec_open(esp_ctx *ctx, const char *spec, uint64_t count, const char *feedback,
                                       esp_codec_handle **out) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!out || !spec) return esp__fail(ctx, ESP_E_ARG, "esp_codec_open: spec and out must not be NULL");
    *out = NULL;
    esp_codec_handle *h = esp__alloc(ctx, sizeof *h);
    if (!h) return esp__fail(ctx, ESP_E_NOMEM, "codec '%s': out of memory", spec);
    h->ctx = ctx;
    h->count = count;
    s = esp__codec_make(ctx, spec, feedback, &h->codec);
    if (!s && h->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX)
        s = esp__fail(ctx, ESP_E_UNSUPPORTED,
                      "codec '%s' needs rows and cols, which esp_codec_open has not: give it to a tensor with rows and "
                      "cols by esp_tensor_desc.codec or a strategy file",
                      spec);
    if (!s) s = esp__codec_bound(ctx, h->codec, NULL, count, 0, 1, &h->bound);
    if (!s) {
        int unfused = h->codec->feedback && !(h->codec->traits.caps & ESP_CODEC_FUSED_RESIDUAL);
        if (h->codec->feedback) h->residual = esp__alloc(ctx, count * 4u + 4u);
        if (unfused) h->temp = esp__alloc(ctx, count * 8u + 8u);
        if (h->bound.state_bytes) h->state = esp__alloc(ctx, h->bound.state_bytes);
        if (h->bound.scratch_bytes) h->scratch = esp__alloc(ctx, h->bound.scratch_bytes);
        if ((h->codec->feedback && !h->residual) || (unfused && !h->temp) || (h->bound.state_bytes && !h->state) ||
            (h->bound.scratch_bytes && !h->scratch))
            s = esp__fail(ctx, ESP_E_NOMEM, "codec '%s': out of memory for %llu elements", spec,
                          (unsigned long long)count);
    }
    if (s)
        esp_codec_close(h);
    else
        *out = h;
    return s;
}

ESPRESSO_API uint64_t esp_compress_bound(const esp_codec_handle *h) { return h ? h->bound.payload_bytes : 0; }
ESPRESSO_API const float *esp_codec_residual(const esp_codec_handle *h) { return h ? h->residual : NULL; }

static void esp__handle_call(esp_codec_handle *h, const float *data, esp__codec_call *c) {
    esp__call_begin(c, h->codec, data, h->count);
    c->args.step = h->step;
    c->args.seed = h->ctx->config.seed;
    c->args.source = (uint32_t)h->ctx->job.rank;
    c->args.flags = h->codec->own_memory ? ESP_ARG_OWN_MEMORY : 0u;
    esp__call_state(c, h->state, h->bound.state_bytes);
    esp__call_scratch(c, h->scratch, h->bound.scratch_bytes);
}

ESPRESSO_API esp_status esp_compress(esp_codec_handle *h, const float *in, uint64_t count, void *out, uint64_t capacity,
                                     uint64_t *used) {
    esp__codec_call c;
    uint64_t wrote = 0;
    esp_status s;
    if (!h || (!in && count) || !out)
        return esp__fail(NULL, ESP_E_ARG, "esp_compress: handle, in and out must not be NULL");
    if (count != h->count)
        return esp__fail(h->ctx, ESP_E_ARG, "esp_compress: %llu elements, but the handle was opened for %llu",
                         (unsigned long long)count, (unsigned long long)h->count);
    esp__handle_call(h, in, &c);
    esp__call_payload(&c, out, capacity, &wrote);
    esp__call_residual(&c, h->residual);
    uint64_t fp = esp__fp_default();
    s = esp__call_compress(&c, h->temp, h->temp + h->count);
    esp__fp_restore(fp);
    if (s == ESP_E_TOO_SMALL)
        return esp__fail(h->ctx, s,
                         "esp_compress: the buffer has %llu bytes, but up to %llu are needed (esp_compress_bound)",
                         (unsigned long long)capacity, (unsigned long long)h->bound.payload_bytes);
    if (s) return esp__fail(h->ctx, s, "esp_compress: codec '%s': %s", h->codec->spec, esp_status_text(s));
    if (used) *used = wrote;
    h->step++;
    return ESP_OK;
}

ESPRESSO_API esp_status esp_decompress(esp_codec_handle *h, const void *in, uint64_t bytes, float *out, uint64_t count,
                                       uint32_t mode) {
    esp__codec_call c;
    if (!h || !in || (!out && count))
        return esp__fail(NULL, ESP_E_ARG, "esp_decompress: handle, in and out must not be NULL");
    if (count != h->count)
        return esp__fail(h->ctx, ESP_E_ARG, "esp_decompress: %llu elements, but the handle was opened for %llu",
                         (unsigned long long)count, (unsigned long long)h->count);
    if (mode > ESP_OUT_SUM)
        return esp__fail(h->ctx, ESP_E_ARG, "esp_decompress: mode %u is neither ESP_OUT_SET nor ESP_OUT_SUM", mode);
    esp__handle_call(h, out, &c);
    esp__call_payload(&c, in, bytes, NULL);
    c.args.mode = mode;
    uint64_t fp = esp__fp_default();
    esp_status s = esp__call_decompress(&c);
    esp__fp_restore(fp);
    return s ? esp__fail(h->ctx, s, "esp_decompress: codec '%s': %s", h->codec->spec,
                         s == ESP_E_CORRUPT ? "the payload is corrupt, of another codec or for another count"
                                            : esp_status_text(s))
             : ESP_OK;
}
