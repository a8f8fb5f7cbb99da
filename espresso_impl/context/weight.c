/* weight.c: esp_weight, for ranks with batches of different sizes. The mean over n ranks of gradients that are scaled
 * by n * weight / (sum of all weights) is their weighted mean, so each push scales its gradient, before compression.
 * Residuals come from scaled gradients, so the next step adds them without scaling them again. */
#include "espresso_impl/context/context.h"

ESP__FN esp_status esp__weights_share(esp_ctx *ctx) {
    const int32_t n = ctx->job.size;
    double sum = 0.0;
    esp_status s = ESP_OK;
    float *all = ctx->job.room; /* no rank may be without memory, for which others would wait */
    _Static_assert(sizeof *all <= ESP__JOB_ROOM, "a weight must fit into the room of a rank");
    memset(all, 0, (uint64_t)n * sizeof *all);
    all[ctx->job.rank] = ctx->steps.weight;
    s = esp_allreduce(ctx, all, (uint64_t)n);
    for (int32_t r = 0; r < n && !s; r++) {
        if (!(all[r] >= 0.0f && all[r] < 1e30f))
            s = esp__fail(ctx, ESP_E_ARG, "esp_weight: rank %d passed %g: expected a number from 0 to 1e30", r,
                          (double)all[r]);
        sum += (double)all[r];
    }
    if (!s && !(sum > 0.0)) s = esp__fail(ctx, ESP_E_STATE, "esp_weight: all ranks passed 0: no rank has a gradient");
    /* with equal weights, sum and quotient are exact, and the factor is 1 */
    if (!s) ctx->steps.factor = (float)((double)n * (double)ctx->steps.weight / sum);
    return s;
}

ESPRESSO_API esp_status esp_weight(esp_ctx *ctx, float weight) {
    esp_status s = esp__between_steps(ctx, "esp_weight");
    if (s) return s;
    const float before = ctx->steps.weight;
    ctx->steps.weight = weight;
    s = esp__weights_share(ctx);
    if (s) ctx->steps.weight = before;
    if (!s) ctx->steps.weighted = true;
    return s;
}
