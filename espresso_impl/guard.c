/* guard.c: how far compressed gradients are from what they stand for: measured now and then on real payloads. Must not know
 * what anybody does about it. */
#include "context.h"

ESPRESSO_API esp_status esp_tensor_stats_read(esp_ctx *ctx, uint32_t id, esp_tensor_stats *out) {
    esp_status s = esp__usable_id(ctx, id);
    if (s) return s;
    if (!out || out->struct_size < 8)
        return esp__fail(ctx, ESP_E_ARG, "esp_tensor_stats_read: set struct_size to sizeof(esp_tensor_stats)");
    pthread_mutex_lock(&ctx->lock);
    esp_tensor_stats all = ctx->tensors[id].sampled;
    pthread_mutex_unlock(&ctx->lock);
    all.struct_size = out->struct_size < sizeof all ? out->struct_size : (uint32_t)sizeof all;
    memcpy(out, &all, all.struct_size);
    return ESP_OK;
}
