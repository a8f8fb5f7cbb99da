/* handle.c: implements esp_codec_handle, which compresses and decompresses without other ranks. */
#include "espresso_impl/context/context.h"

struct esp_codec_handle {
    esp_ctx *ctx;
    esp__codec *codec;
    uint64_t count, rows, cols, step;
    uint32_t first_round;
    esp_bound bound;
    float *residual, *temp;
    uint8_t *state, *scratch;
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

static esp_status esp__handle_open(esp_ctx *ctx, const char *spec, const esp_tensor *like, const char *feedback,
                                   esp_codec_handle **out) {
    const uint64_t count = like->count;
    esp_status s = ESP_OK;
    *out = NULL;
    esp_codec_handle *h = esp__alloc(ctx, sizeof *h);
    if (!h) return esp__fail(ctx, ESP_E_NOMEM, "codec '%s': out of memory", spec);
    h->ctx = ctx;
    h->count = count, h->rows = like->rows, h->cols = like->cols;
    s = esp__codec_open(ctx, spec, feedback, &h->codec);
    if (!s) s = esp__alone_bound(ctx, h->codec, like, &h->bound, &h->first_round);
    if (s == ESP_E_UNSUPPORTED && h->codec && h->codec->traits.caps & ESP_CODEC_NEEDS_MATRIX && !like->rows)
        s = esp__fail(ctx, s, "codec '%s' needs rows and cols: open it by esp_codec_open_matrix", spec);
    if (!s) {
        const bool unfused = h->codec->feedback && !(h->codec->traits.caps & ESP_CODEC_FUSED_RESIDUAL);
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

ESPRESSO_API esp_status esp_codec_open(esp_ctx *ctx, const char *spec, uint64_t count, const char *feedback,
                                       esp_codec_handle **out) {
    const esp_tensor like = esp__codec_like(count, 0, 0);
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!out || !spec) return esp__fail(ctx, ESP_E_ARG, "esp_codec_open: spec and out must not be NULL");
    return esp__handle_open(ctx, spec, &like, feedback, out);
}

ESPRESSO_API esp_status esp_codec_open_matrix(esp_ctx *ctx, const char *spec, uint64_t rows, uint64_t cols,
                                              const char *feedback, esp_codec_handle **out) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!out || !spec) return esp__fail(ctx, ESP_E_ARG, "esp_codec_open_matrix: spec and out must not be NULL");
    if (!rows || !cols || rows > ESP__ELEMENTS_MAX / cols)
        return esp__fail(ctx, ESP_E_ARG, "esp_codec_open_matrix: %llu x %llu: expected 1 to 2^58 elements",
                         (unsigned long long)rows, (unsigned long long)cols);
    const esp_tensor like = esp__codec_like(rows * cols, rows, cols);
    return esp__handle_open(ctx, spec, &like, feedback, out);
}

ESPRESSO_API uint64_t esp_compress_bound(const esp_codec_handle *h) { return h ? h->bound.payload_bytes : 0; }
ESPRESSO_API const float *esp_codec_residual(const esp_codec_handle *h) { return h ? h->residual : NULL; }

static void esp__handle_call(esp_codec_handle *h, const float *data, esp__codec_call *c) {
    esp__call_begin(c, h->codec, esp__host_stream(), data, h->count);
    c->args.step = h->step;
    c->args.seed = h->ctx->config.seed;
    c->part.rows = h->rows, c->part.cols = h->cols;
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
    esp__call_residual(&c, h->residual);
    uint64_t fp = esp__fp_default();
    s = esp__alone_compress(&c, h->first_round, out, capacity, &wrote, h->temp, h->temp + h->count);
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
    c.args.mode = mode;
    uint64_t fp = esp__fp_default();
    esp_status s = esp__alone_decompress(&c, h->first_round, in, bytes);
    esp__fp_restore(fp);
    return s ? esp__fail(h->ctx, s, "esp_decompress: codec '%s': %s", h->codec->spec,
                         s == ESP_E_CORRUPT ? "the payload is corrupt, of another codec or for another count"
                                            : esp_status_text(s))
             : ESP_OK;
}
