/* install.c: puts a strategy in force. It is built whole and aside: program, memory, feedback. Then all ranks swap, or none does
 * and the strategy before goes on. For that moment both strategies' memory is taken. */
#include "espresso_impl/executor/executor.h"

/* All ranks learn whether one of them failed. */
ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine) {
    esp_status *all = esp__alloc(ctx, (uint64_t)ctx->job.size * sizeof *all);
    esp_status s =
        all ? esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine) : ESP_E_NOMEM;
    for (int32_t r = 0; r < ctx->job.size && !s && !mine; r++)
        if (all[r]) s = esp__fail(ctx, all[r], "rank %d failed (%s): see its own error", r, esp_status_text(all[r]));
    esp__free(ctx, all);
    return mine ? mine : s;
}

/* Everything that can fail on this rank alone. carry: for what tensors carry to their next push, as esp__feedback_carry_take. */
static esp_status esp__install_build(esp_ctx *ctx, esp__in_force *next, float **carry) {
    const esp__in_force *now = &ctx->in_force;
    if (!carry) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) carry[i] = ctx->model.tensors[i].carry;
    esp_status s = esp__program_make(ctx, next);
    if (!s) s = esp__memory_take(ctx, next);
    return s ? s : esp__feedback_carry_take(ctx, next, now->feedback, now->n_feedback, carry);
}

/* What was taken for nothing. */
static void esp__install_undo(esp_ctx *ctx, esp__in_force *next, float **carry) {
    for (uint32_t i = 0; carry && i < ctx->model.n_tensors; i++)
        if (carry[i] != ctx->model.tensors[i].carry) esp__free(ctx, carry[i]);
    esp__in_force_free(ctx, next);
}

static void esp__install_swap(esp_ctx *ctx, esp__in_force *next, float **carry) {
    esp__in_force before = ctx->in_force;
    esp__feedback_move(ctx, next, before.feedback, before.n_feedback, carry);
    pthread_mutex_lock(&ctx->lanes.lock);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        ctx->model.tensors[i].carry = carry[i];
        esp__spent_free(ctx, &ctx->model.tensors[i]);
    }
    ctx->in_force = *next;
    ctx->lanes.dispatcher = esp__ready_first();
    for (int k = 0; k < 2; k++) ctx->lanes.links[k].cursor = 0;
    ctx->steps.stats.memory_bytes = next->memory_bytes;
    pthread_mutex_unlock(&ctx->lanes.lock);
    esp__in_force_free(ctx, &before);
}

ESP__FN esp_status esp__install(esp_ctx *ctx, esp_status mine, const char *spec, int files) {
    esp__in_force next;
    memset(&next, 0, sizeof next);
    esp_status s = mine ? mine : esp__strategy_load(ctx, &next.strategy, spec, files);
    s = esp__agree(ctx, &next.strategy, s);
    float **carry = s ? NULL : esp__alloc(ctx, (uint64_t)ctx->model.n_tensors * sizeof *carry + 1);
    if (!s) s = esp__agree_ok(ctx, esp__install_build(ctx, &next, carry));
    if (s)
        esp__install_undo(ctx, &next, carry);
    else
        esp__install_swap(ctx, &next, carry);
    esp__free(ctx, carry);
    return s;
}
