/* memory.c: takes all memory of a strategy at once (arena, feedback, scratch, lane queues), gives it back, and carries
 * feedback from one strategy to the next so that nothing is lost. Knows no ops' meaning beyond their sizes. */
#include "context.h"

ESP__FN void esp__program_free(esp_ctx *ctx);

static void *esp__take(esp_ctx *ctx, uint64_t bytes, esp_status *s) {
    void *p = bytes ? esp__alloc(ctx, bytes) : NULL;
    if (bytes && !p && !*s)
        *s = esp__fail(ctx, ESP_E_NOMEM, "out of memory: the strategy needs %llu bytes more, after %llu",
                       (unsigned long long)bytes, (unsigned long long)ctx->memory_bytes);
    ctx->memory_bytes += p ? bytes : 0;
    return p;
}

static void esp__feedback_free(esp_ctx *ctx, esp__feedback *all, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        esp__free(ctx, all[i].residual);
        esp__free(ctx, all[i].state);
        esp__free(ctx, all[i].residual_before);
        esp__free(ctx, all[i].state_before);
    }
    esp__free(ctx, all);
}

static esp_status esp__feedback_take(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < ctx->n_feedback; i++) {
        esp__feedback *f = &ctx->feedback[i];
        f->residual = esp__take(ctx, f->count * 4u, &s);
        f->state = esp__take(ctx, f->state_bytes, &s);
        if (!(ctx->flags & ESP_DISCARDABLE)) continue;
        f->residual_before = esp__take(ctx, f->count * 4u, &s);
        f->state_before = esp__take(ctx, f->state_bytes, &s);
    }
    return s;
}

static esp_status esp__links_take(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    uint32_t *op_of = esp__take(ctx, ((uint64_t)ctx->n_tensors + 1) * ESP__MAX_STEPS * sizeof *op_of, &s);
    for (int k = 0; k < 2; k++) ctx->links[k].sequence = esp__take(ctx, (uint64_t)ctx->program.n_ops * 4u + 4u, &s);
    if (!s) {
        for (uint32_t i = 0; i < ctx->program.n_ops; i++) {
            const esp__op *op = &ctx->program.ops[i];
            if (op->kind == ESP__OP_COLLECTIVE) op_of[op->tensor * ESP__MAX_STEPS + op->step] = i + 1;
        }
        for (uint32_t k = 0; k < ctx->n_order; k++) { /* this rank's part of the strategy's order */
            uint32_t i = op_of[(ctx->order[k] >> 8) * ESP__MAX_STEPS + (ctx->order[k] & 255u)];
            if (!i--) continue;
            const esp__op *op = &ctx->program.ops[i];
            for (int l = 0; l < 2; l++)
                if (op->both_links || op->lane == ESP__LANE_INTRA + l) ctx->links[l].sequence[ctx->links[l].n++] = i;
        }
    }
    if (op_of) ctx->memory_bytes -= ((uint64_t)ctx->n_tensors + 1) * ESP__MAX_STEPS * sizeof *op_of;
    esp__free(ctx, op_of);
    return s;
}

ESP__FN esp_status esp__memory_take(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    const esp__program *p = &ctx->program;
    ctx->memory_bytes = p->cap_ops + p->cap_ranges + p->cap_slots;
    ctx->arena_bytes = p->arena_bytes;
    ctx->arena = esp__take(ctx, ctx->arena_bytes, &s);
    ctx->scratch_bytes = p->scratch_bytes;
    ctx->scratch = esp__take(ctx, ctx->scratch_bytes, &s);
    ctx->phi_count = p->phi_count;
    ctx->phi = esp__take(ctx, ctx->phi_count * 8u, &s); /* what goes in, and what comes out again */
    ctx->payloads = esp__take(ctx, ((uint64_t)p->max_payloads + 1) * sizeof *ctx->payloads, &s);
    ctx->heap = esp__take(ctx, ((uint64_t)ctx->n_tensors + 1) * sizeof *ctx->heap, &s);
    if (!s) s = esp__feedback_take(ctx);
    if (!s) s = esp__links_take(ctx);
    return s;
}

/* Everything but the tensors themselves and what they carry. */
ESP__FN void esp__memory_free(esp_ctx *ctx) {
    esp__free(ctx, ctx->arena);
    esp__free(ctx, ctx->scratch);
    esp__free(ctx, ctx->phi);
    esp__free(ctx, ctx->payloads);
    esp__free(ctx, ctx->heap);
    for (int k = 0; k < 2; k++) esp__free(ctx, ctx->links[k].sequence);
    memset(ctx->links, 0, sizeof ctx->links);
    ctx->arena = ctx->scratch = NULL;
    ctx->phi = NULL;
    ctx->payloads = NULL;
    ctx->heap = NULL;
    esp__feedback_free(ctx, ctx->feedback, ctx->n_feedback);
    ctx->feedback = NULL;
    ctx->n_feedback = 0;
    esp__program_free(ctx);
}

/* ---- feedback over a change of strategy ------------------------------------------------------------------------ */
/* What the strategy before held: taken out of the context before it is compiled anew. */
typedef struct esp__old {
    esp__feedback *feedback;
    uint32_t n;
    esp__codec **codecs; /* of each tensor */
    esp__option *options;
} esp__old;

ESP__FN esp_status esp__feedback_detach(esp_ctx *ctx, esp__old *old) {
    old->codecs = esp__alloc(ctx, (uint64_t)ctx->n_tensors * sizeof *old->codecs + 1);
    old->options = esp__alloc(ctx, (uint64_t)ctx->n_tensors * sizeof *old->options + 1);
    if (!old->codecs || !old->options) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    for (uint32_t i = 0; i < ctx->n_tensors; i++) {
        old->codecs[i] = ctx->tensors[i].codec;
        old->options[i] = ctx->tensors[i].option;
    }
    old->feedback = ctx->feedback;
    old->n = ctx->n_feedback;
    ctx->feedback = NULL;
    ctx->n_feedback = 0;
    return ESP_OK;
}

static esp__feedback *esp__feedback_find(esp_ctx *ctx, const esp__feedback *like) {
    for (uint32_t i = 0; i < ctx->n_feedback; i++) {
        esp__feedback *f = &ctx->feedback[i];
        if (f->tensor == like->tensor && f->raw && like->raw) return f;
    }
    return NULL;
}

/* Residual of the rank's own gradient stays where the new option has a Comp on it; everything else is added once, by
 * the lowest replica, to this rank's next push. */
ESP__FN esp_status esp__feedback_adopt(esp_ctx *ctx, esp__old *old) {
    for (uint32_t i = 0; i < old->n; i++) {
        esp__feedback *was = &old->feedback[i], *now = esp__feedback_find(ctx, was);
        esp__tensor *t = &ctx->tensors[was->tensor];
        if (!was->residual) continue;
        if (now && now->residual && now->count == was->count) {
            memcpy(now->residual, was->residual, was->count * 4u);
            if (now->state && now->state_bytes == was->state_bytes && t->codec == old->codecs[was->tensor] &&
                !memcmp(&t->option, &old->options[was->tensor], sizeof t->option))
                memcpy(now->state, was->state, was->state_bytes);
            continue;
        }
        if (!was->keeper) continue;
        if (!t->carry) t->carry = esp__alloc(ctx, t->count * 4u);
        if (!t->carry) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory for the feedback of '%s'", t->name);
        for (uint64_t k = 0; k < was->count; k++) t->carry[was->offset + k] += was->residual[k];
    }
    return ESP_OK;
}

ESP__FN void esp__old_free(esp_ctx *ctx, esp__old *old) {
    esp__feedback_free(ctx, old->feedback, old->n);
    esp__free(ctx, old->codecs);
    esp__free(ctx, old->options);
    memset(old, 0, sizeof *old);
}
