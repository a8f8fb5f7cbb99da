/* activate.c: changes the strategy. It compiles the new one and allocates its memory while the old one stays active.
 * Then all ranks switch, or none does. */
#include "espresso_impl/context/context.h"
#include "espresso_impl/observe/observe.h"

ESP__FN void esp__agree_tensor(const esp_ctx *ctx, uint32_t i, esp__text *t) {
    const esp__tensor *x = &ctx->model.tensors[i];
    esp__text_add(t, "tensor %u: name %s, dtype %s, %llu elements, %llu x %llu, flags %u%s%s", i, x->name,
                  esp__dtype_word(x->dtype), (unsigned long long)x->count, (unsigned long long)x->rows,
                  (unsigned long long)x->cols, x->flags, x->gather_spec ? ", gather " : "",
                  x->gather_spec ? x->gather_spec : "");
}

static void esp__agree_unit(const esp__unit *u, esp__text *t) {
    char option[ESP__TEXT_MAX];
    esp__option_print(&u->option, option, sizeof option);
    esp__text_add(t, ", codec %s (wire version %u), option %s\n", u->codec->spec, u->codec->traits.wire_version,
                  option);
}

static void esp__agree_text(const esp_ctx *ctx, const esp__strategy *y, esp__text *t) {
    esp__observers_agree(ctx, t);
    esp__outer_agree(ctx, t);
    if (!ctx->observers.table[ESP__OBSERVE_AUTO]) esp__text_add(t, ESP__NOT_AUTO);
    esp__text_add(t, "seed %llu\n", (unsigned long long)ctx->config.seed);
    esp__text_add(t, "ABI %u, flags %u\n", ESP_ABI_MAJOR, ctx->config.flags & ESP_DISCARDABLE);
    esp__text_add(t, "%u tensors\n", ctx->model.n_tensors);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__unit *u = &y->units[y->of_tensor[i].first];
        esp__agree_tensor(ctx, i, t);
        if (esp__unit_is_group(u) || esp__unit_is_chunk(ctx, u))
            esp__text_add(t, "\n");
        else
            esp__agree_unit(u, t);
    }
    for (uint32_t i = 0; i < y->n_units; i++) {
        const esp__unit *u = &y->units[i];
        if (!esp__unit_is_group(u) && !esp__unit_is_chunk(ctx, u)) continue;
        esp__text_add(t, "unit %u: %s, %llu elements", i, u->name, (unsigned long long)u->place.elements);
        esp__agree_unit(u, t);
    }
    esp__text_add(t, "strategy hash %016llx\n", (unsigned long long)y->hash);
}

static esp_status esp__activate_build(esp_ctx *ctx, esp__active *next, float **pending) {
    const esp__active *now = &ctx->active;
    if (!pending) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) pending[i] = ctx->model.tensors[i].pending_residual;
    esp_status s = esp__program_make(ctx, next);
    if (!s) s = esp__memory_take(ctx, next);
    return s ? s : esp__feedback_pending_take(ctx, next, now->feedback, now->n_feedback, pending);
}

static void esp__activate_undo(esp_ctx *ctx, esp__active *next, float **pending) {
    for (uint32_t i = 0; pending && i < ctx->model.n_tensors; i++)
        if (pending[i] != ctx->model.tensors[i].pending_residual)
            esp__device_give(ctx, ctx->model.tensors[i].device, pending[i], ctx->model.tensors[i].count * 4u,
                             ESP_MEM_DEVICE);
    esp__active_free(ctx, next);
}

static void esp__activate_swap(esp_ctx *ctx, esp__active *next, float **pending) {
    esp__active before = ctx->active;
    const esp_status s = esp__feedback_move(ctx, next, before.feedback, before.n_feedback, pending, 1.0, true);
    if (s) esp__fatal(ctx, s, esp_last_error(ctx));
    pthread_mutex_lock(&ctx->lanes.lock);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) ctx->model.tensors[i].pending_residual = pending[i];
    esp__shards_set(&next->strategy, ctx->model.tensors, ctx->model.n_tensors);
    ctx->active = *next;
    for (int k = 0; k < ESP__LEVELS; k++) ctx->lanes.links[k].cursor = 0;
    ctx->steps.stats.memory_bytes = next->memory_bytes;
    ctx->steps.stats.slots_bytes = next->slots_bytes;
    ctx->steps.stats.feedback_bytes = next->feedback_bytes;
    esp__outer_resume(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) esp__pending_before_free(ctx, &ctx->model.tensors[i]);
    esp__active_free(ctx, &before);
}

ESP__FN esp_status esp__activate(esp_ctx *ctx, esp_status mine, const char *spec, bool files) {
    esp__active next;
    memset(&next, 0, sizeof next);
    next.discardable = (ctx->config.flags & ESP_DISCARDABLE) != 0;
    next.sample_errors = ctx->config.sample_errors != 0;
    esp_status s = mine ? mine : esp__strategy_load(ctx, &next.strategy, spec, files);
    esp__text lines = {.ctx = ctx};
    if (!s) s = esp__shards_check(ctx, &next.strategy);
    if (!s) s = esp__outer_order(ctx, &next.strategy);
    if (!s) esp__agree_text(ctx, &next.strategy, &lines);
    s = esp__agree_lines(ctx, &lines, s);
    float **pending = s ? NULL : esp__alloc(ctx, (uint64_t)ctx->model.n_tensors * sizeof *pending + 1);
    if (!s) s = esp__agree_ok(ctx, esp__activate_build(ctx, &next, pending));
    if (s)
        esp__activate_undo(ctx, &next, pending);
    else
        esp__activate_swap(ctx, &next, pending);
    esp__free(ctx, pending);
    return s;
}
