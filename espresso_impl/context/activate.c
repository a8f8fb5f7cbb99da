/* activate.c: puts a strategy in force. Builds its program, memory and feedback beside the strategy in force. Then all ranks change
 * over, or none does and the strategy before stays in force. Until then both strategies have their memory. */
#include "espresso_impl/executor/executor.h"

static void esp__agree_tensor(const esp_ctx *ctx, uint32_t i, esp__text *t) {
    const esp__tensor *x = &ctx->model.tensors[i];
    esp__text_add(t, "tensor %u: name %s, dtype %s, %llu elements, %llu x %llu, flags %u%s%s", i, x->name,
                  esp__dtype_word(x->dtype), (unsigned long long)x->count, (unsigned long long)x->rows,
                  (unsigned long long)x->cols, x->flags, x->want_gather ? ", gather " : "",
                  x->want_gather ? x->want_gather : "");
}

static void esp__agree_unit(const esp__work_unit *u, esp__text *t) {
    char option[ESP__TEXT_MAX];
    esp__option_print(&u->option, option, sizeof option);
    esp__text_add(t, ", codec %s (wire version %u), option %s\n", u->codec->spec, u->codec->traits.wire_version,
                  option);
}

/* Writes a line for each thing that must be the same on all ranks. */
static void esp__agree_text(const esp_ctx *ctx, const esp__strategy *y, esp__text *t) {
    esp__observers_agree(ctx, t);
    esp__text_add(t, "seed %llu\n", (unsigned long long)ctx->config.seed);
    esp__text_add(t, "ABI %u, flags %u\n", ESP_ABI_MAJOR, ctx->config.flags & ESP_DISCARDABLE);
    esp__text_add(t, "%u tensors\n", ctx->model.n_tensors);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__work_unit *u = &y->units[y->of_tensor[i].first];
        esp__agree_tensor(ctx, i, t);
        if (esp__unit_is_group(u) || esp__unit_is_chunk(ctx, u))
            esp__text_add(t, "\n");
        else
            esp__agree_unit(u, t);
    }
    for (uint32_t i = 0; i < y->n_units; i++) {
        const esp__work_unit *u = &y->units[i];
        if (!esp__unit_is_group(u) && !esp__unit_is_chunk(ctx, u)) continue;
        esp__text_add(t, "unit %u: %s, %llu elements", i, u->name, (unsigned long long)u->place.count);
        esp__agree_unit(u, t);
    }
    esp__text_add(t, "strategy hash %016llx\n", (unsigned long long)y->hash);
}

/* Does everything that can fail on this rank alone. carry: memory for pending residuals, as in esp__feedback_carry_take. */
static esp_status esp__install_build(esp_ctx *ctx, esp__in_force *next, float **carry) {
    const esp__in_force *now = &ctx->in_force;
    if (!carry) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) carry[i] = ctx->model.tensors[i].carry;
    esp_status s = esp__program_make(ctx, next);
    if (!s) s = esp__memory_take(ctx, next);
    return s ? s : esp__feedback_carry_take(ctx, next, now->feedback, now->n_feedback, carry);
}

/* Frees everything that esp__install_build took. */
static void esp__install_undo(esp_ctx *ctx, esp__in_force *next, float **carry) {
    for (uint32_t i = 0; carry && i < ctx->model.n_tensors; i++)
        if (carry[i] != ctx->model.tensors[i].carry)
            esp__device_give(ctx, ctx->model.tensors[i].device, carry[i], ctx->model.tensors[i].count * 4u,
                             ESP_MEM_DEVICE);
    esp__in_force_free(ctx, next);
}

static void esp__install_swap(esp_ctx *ctx, esp__in_force *next, float **carry) {
    esp__in_force before = ctx->in_force;
    const esp_status s = esp__feedback_move(ctx, next, before.feedback, before.n_feedback, carry);
    if (s) esp__fatal(ctx, s, esp_last_error(ctx));
    pthread_mutex_lock(&ctx->lanes.lock);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        ctx->model.tensors[i].carry = carry[i];
        esp__spent_free(ctx, &ctx->model.tensors[i]);
    }
    esp__shards_set(&next->strategy, ctx->model.tensors, ctx->model.n_tensors);
    ctx->in_force = *next;
    for (int k = 0; k < ESP__LEVELS; k++) ctx->lanes.links[k].cursor = 0;
    ctx->steps.stats.memory_bytes = next->memory_bytes;
    ctx->steps.stats.slots_bytes = next->slots_bytes;
    ctx->steps.stats.feedback_bytes = next->feedback_bytes;
    pthread_mutex_unlock(&ctx->lanes.lock);
    esp__in_force_free(ctx, &before);
}

ESP__FN esp_status esp__install(esp_ctx *ctx, esp_status mine, const char *spec, int files) {
    esp__in_force next;
    memset(&next, 0, sizeof next);
    esp_status s = mine ? mine : esp__strategy_load(ctx, &next.strategy, spec, files);
    esp__text lines = {.ctx = ctx};
    if (!s) s = esp__shards_check(ctx, &next.strategy);
    if (!s) esp__agree_text(ctx, &next.strategy, &lines);
    s = esp__agree_lines(ctx, &lines, s);
    float **carry = s ? NULL : esp__alloc(ctx, (uint64_t)ctx->model.n_tensors * sizeof *carry + 1);
    if (!s) s = esp__agree_ok(ctx, esp__install_build(ctx, &next, carry));
    if (s)
        esp__install_undo(ctx, &next, carry);
    else
        esp__install_swap(ctx, &next, carry);
    esp__free(ctx, carry);
    return s;
}
