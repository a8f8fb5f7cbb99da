/* helpers.c: esp_broadcast_on and esp_allreduce_on for device memory, which they copy to the host in pieces. */
#include "espresso_impl/context/context.h"

ESP__FN esp_status esp__stream_settle(esp_ctx *ctx, uint32_t device, esp_stream stream) {
    const esp__device *d = esp__device_at(ctx, device);
    esp_status s = esp__device_record(d, d->settled, stream);
    if (!s) s = esp__device_wait(d, d->settled);
    return s ? esp__device_failed(ctx, device, s, "work") : ESP_OK;
}

static esp_status esp__helper_begin(esp_ctx *ctx, esp_stream stream, const char *what, uint32_t *index) {
    esp_status s = esp__between_steps(ctx, what);
    *index = ESP__CPU_INDEX;
    if (s || !esp__stream_async(stream)) return s;
    s = esp__device_open(ctx, stream.dev, what, index);
    if (s) return s;
    const esp__device *d = esp__device_at(ctx, *index);
    if (d->table->caps & ESP_DEVICE_HOST_ACCESS) return *index = ESP__CPU_INDEX, ESP_OK;
    s = esp__device_use(ctx, *index, ctx->job.levels, what);
    return s ? s : esp__stream_settle(ctx, *index, stream);
}

enum { ESP__HELPER_BYTES = ESP__BOUNCE_BYTES / 4 };

static esp_status esp__helper_run(esp_ctx *ctx, esp_stream stream, const char *what, void *data, uint64_t bytes,
                                  int32_t root) {
    uint32_t on;
    esp_status s = esp__helper_begin(ctx, stream, what, &on);
    if (s) return s;
    if (!data && bytes) return esp__fail(ctx, ESP_E_ARG, "%s: data is NULL", what);
    float *room = esp__alloc(ctx, ESP__HELPER_BYTES);
    if (!room) return esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", what);
    for (uint64_t at = 0, n; at < bytes && !s; at += n) {
        n = bytes - at < ESP__HELPER_BYTES ? bytes - at : ESP__HELPER_BYTES;
        s = esp__device_copy(ctx, ESP__CPU_INDEX, room, on, (uint8_t *)data + at, n);
        if (!s) s = root < 0 ? esp_allreduce(ctx, room, n / 4) : esp_broadcast(ctx, room, n, root);
        if (!s) s = esp__device_copy(ctx, on, (uint8_t *)data + at, ESP__CPU_INDEX, room, n);
    }
    esp__free(ctx, room);
    return s;
}

ESPRESSO_API esp_status esp_broadcast_on(esp_ctx *ctx, esp_stream stream, void *data, uint64_t bytes, int32_t root) {
    if (root < 0) return esp__fail(ctx, ESP_E_ARG, "esp_broadcast_on: root %d is no rank", root);
    return esp__helper_run(ctx, stream, "esp_broadcast_on", data, bytes, root);
}

ESPRESSO_API esp_status esp_allreduce_on(esp_ctx *ctx, esp_stream stream, float *data, uint64_t count) {
    return esp__helper_run(ctx, stream, "esp_allreduce_on", data, count * 4u, -1);
}
