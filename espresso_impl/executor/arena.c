/* arena.c: takes all memory of a compiled strategy (arena, feedback, scratch, lane queues), and frees it. Knows of an op only how
 * much memory it needs. */
#include "espresso_impl/executor/executor.h"

static void *esp__take(esp_ctx *ctx, esp__in_force *f, uint64_t bytes, esp_status *s) {
    void *p = bytes ? esp__alloc(ctx, bytes) : NULL;
    if (bytes && !p && !*s)
        *s = esp__fail(ctx, ESP_E_NOMEM, "out of memory: the strategy needs %llu bytes more, after %llu",
                       (unsigned long long)bytes, (unsigned long long)f->memory_bytes);
    f->memory_bytes += p ? bytes : 0;
    return p;
}

static esp_status esp__feedback_take(esp_ctx *ctx, esp__in_force *f) {
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < f->n_feedback; i++) {
        esp__feedback *one = &f->feedback[i];
        one->residual = esp__take(ctx, f, one->count * 4u, &s);
        one->state = esp__take(ctx, f, one->state_bytes, &s);
        if (!(ctx->config.flags & ESP_DISCARDABLE)) continue;
        one->residual_before = esp__take(ctx, f, one->count * 4u, &s);
        one->state_before = esp__take(ctx, f, one->state_bytes, &s);
    }
    return s;
}

/* Makes each link lane's sequence: this rank's part of the strategy's order. at[unit]: how far the order has come in the unit's
 * chain; op_of[unit * ESP__CHAIN_MAX + place]: this rank's op there, from 1. */
static void esp__links_sequence(esp__in_force *f, uint32_t *at, uint32_t *op_of) {
    const esp__strategy *y = &f->strategy;
    esp__chain_step chain[ESP__CHAIN_MAX];
    for (uint32_t i = 0; i < f->program.n_ops; i++) {
        const esp__op *op = &f->program.ops[i];
        if (op->kind != ESP__OP_COLLECTIVE) continue;
        const uint32_t n = esp__unit_chain(&y->units[op->unit], chain);
        for (uint32_t k = 0; k < n; k++)
            if (chain[k].step == op->step && chain[k].round == op->round) op_of[op->unit * ESP__CHAIN_MAX + k] = i + 1;
    }
    for (uint32_t k = 0; k < y->n_order; k++) {
        const uint32_t unit = y->order[k] >> 8, n = esp__unit_chain(&y->units[unit], chain);
        const uint32_t place = esp__chain_collective(&y->units[unit].option, chain, n, at[unit]);
        at[unit] = place + 1;
        if (place == n || !op_of[unit * ESP__CHAIN_MAX + place]) continue;
        const uint32_t i = op_of[unit * ESP__CHAIN_MAX + place] - 1;
        const esp__op *op = &f->program.ops[i];
        for (int l = 0; l < 2; l++)
            if (op->both_links || op->lane == ESP__LANE_INTRA + l) f->sequence[l][f->n_sequence[l]++] = i;
    }
}

static esp_status esp__links_take(esp_ctx *ctx, esp__in_force *f) {
    esp_status s = ESP_OK;
    const uint64_t bytes = ((uint64_t)f->strategy.n_units + 1) * (ESP__CHAIN_MAX + 1) * sizeof(uint32_t);
    uint32_t *at = esp__take(ctx, f, bytes, &s);
    for (int k = 0; k < 2; k++) f->sequence[k] = esp__take(ctx, f, (uint64_t)f->program.n_ops * 4u + 4u, &s);
    if (!s) esp__links_sequence(f, at, at + f->strategy.n_units + 1);
    if (at) f->memory_bytes -= bytes;
    esp__free(ctx, at);
    return s;
}

ESP__FN esp_status esp__memory_take(esp_ctx *ctx, esp__in_force *f) {
    esp_status s = ESP_OK;
    const esp__program *p = &f->program;
    f->memory_bytes = p->cap_ops + p->cap_ranges + p->cap_slots;
    f->arena_bytes = p->arena_bytes;
    f->arena = esp__take(ctx, f, f->arena_bytes, &s);
    f->scratch_bytes = p->scratch_bytes;
    f->scratch = esp__take(ctx, f, f->scratch_bytes, &s);
    f->phi_count = p->phi_count;
    f->phi = esp__take(ctx, f, f->phi_count * 8u, &s); /* two arrays: compensated gradient, decoded payload */
    f->payloads = esp__take(ctx, f, ((uint64_t)p->max_payloads + 1) * sizeof *f->payloads, &s);
    f->ready.at = esp__take(ctx, f, ((uint64_t)f->strategy.n_units + 1) * sizeof *f->ready.at, &s);
    f->op_time = esp__take(ctx, f, ((uint64_t)p->n_ops + 1) * sizeof *f->op_time, &s);
    for (uint32_t i = 0; i < f->strategy.n_units && !s;
         i++) { /* a group's elements lie at a fixed place of the arena */
        esp__work_unit *u = &f->strategy.units[i];
        u->data = esp__unit_is_group(u) ? f->arena + u->packed : NULL;
    }
    if (!s) s = esp__feedback_take(ctx, f);
    if (!s) s = esp__links_take(ctx, f);
    return s;
}

ESP__FN void esp__in_force_free(esp_ctx *ctx, esp__in_force *f) {
    esp__free(ctx, f->arena);
    esp__free(ctx, f->scratch);
    esp__free(ctx, f->phi);
    esp__free(ctx, f->payloads);
    esp__free(ctx, f->ready.at);
    esp__free(ctx, f->op_time);
    for (int k = 0; k < 2; k++) esp__free(ctx, f->sequence[k]);
    for (uint32_t i = 0; i < f->n_feedback; i++) {
        esp__free(ctx, f->feedback[i].residual);
        esp__free(ctx, f->feedback[i].state);
        esp__free(ctx, f->feedback[i].residual_before);
        esp__free(ctx, f->feedback[i].state_before);
    }
    esp__free(ctx, f->feedback);
    esp__program_free(ctx, &f->program);
    esp__strategy_free(ctx, &f->strategy);
    memset(f, 0, sizeof *f);
}
