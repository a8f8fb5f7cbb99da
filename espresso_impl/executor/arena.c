/* arena.c: takes all memory of a strategy at once (arena, feedback, scratch, lane queues), gives it back, and carries
 * feedback from one strategy to the next so that nothing is lost. Knows no ops' meaning beyond their sizes. */
#include "espresso_impl/executor/executor.h"

static void *esp__take(esp_ctx *ctx, uint64_t bytes, esp_status *s) {
    void *p = bytes ? esp__alloc(ctx, bytes) : NULL;
    if (bytes && !p && !*s)
        *s = esp__fail(ctx, ESP_E_NOMEM, "out of memory: the strategy needs %llu bytes more, after %llu",
                       (unsigned long long)bytes, (unsigned long long)ctx->in_force.memory_bytes);
    ctx->in_force.memory_bytes += p ? bytes : 0;
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
    for (uint32_t i = 0; i < ctx->in_force.n_feedback; i++) {
        esp__feedback *f = &ctx->in_force.feedback[i];
        f->residual = esp__take(ctx, f->count * 4u, &s);
        f->state = esp__take(ctx, f->state_bytes, &s);
        if (!(ctx->config.flags & ESP_DISCARDABLE)) continue;
        f->residual_before = esp__take(ctx, f->count * 4u, &s);
        f->state_before = esp__take(ctx, f->state_bytes, &s);
    }
    return s;
}

static esp_status esp__links_take(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    uint32_t *op_of =
        esp__take(ctx, ((uint64_t)ctx->in_force.strategy.n_units + 1) * ESP__MAX_STEPS * sizeof *op_of, &s);
    for (int k = 0; k < 2; k++)
        ctx->in_force.sequence[k] = esp__take(ctx, (uint64_t)ctx->in_force.program.n_ops * 4u + 4u, &s);
    if (!s) {
        for (uint32_t i = 0; i < ctx->in_force.program.n_ops; i++) {
            const esp__op *op = &ctx->in_force.program.ops[i];
            if (op->kind == ESP__OP_COLLECTIVE) op_of[op->unit * ESP__MAX_STEPS + op->step] = i + 1;
        }
        const uint32_t *order = ctx->in_force.strategy.order;
        for (uint32_t k = 0; k < ctx->in_force.strategy.n_order; k++) { /* this rank's part of the strategy's order */
            uint32_t i = op_of[(order[k] >> 8) * ESP__MAX_STEPS + (order[k] & 255u)];
            if (!i--) continue;
            const esp__op *op = &ctx->in_force.program.ops[i];
            for (int l = 0; l < 2; l++)
                if (op->both_links || op->lane == ESP__LANE_INTRA + l)
                    ctx->in_force.sequence[l][ctx->in_force.n_sequence[l]++] = i;
        }
    }
    if (op_of)
        ctx->in_force.memory_bytes -= ((uint64_t)ctx->in_force.strategy.n_units + 1) * ESP__MAX_STEPS * sizeof *op_of;
    esp__free(ctx, op_of);
    return s;
}

ESP__FN esp_status esp__memory_take(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    const esp__program *p = &ctx->in_force.program;
    ctx->in_force.memory_bytes = p->cap_ops + p->cap_ranges + p->cap_slots;
    ctx->in_force.arena_bytes = p->arena_bytes;
    ctx->in_force.arena = esp__take(ctx, ctx->in_force.arena_bytes, &s);
    ctx->in_force.scratch_bytes = p->scratch_bytes;
    ctx->in_force.scratch = esp__take(ctx, ctx->in_force.scratch_bytes, &s);
    ctx->in_force.phi_count = p->phi_count;
    ctx->in_force.phi = esp__take(ctx, ctx->in_force.phi_count * 8u, &s); /* what goes in, and what comes out again */
    ctx->in_force.payloads = esp__take(ctx, ((uint64_t)p->max_payloads + 1) * sizeof *ctx->in_force.payloads, &s);
    ctx->in_force.heap =
        esp__take(ctx, ((uint64_t)ctx->in_force.strategy.n_units + 1) * sizeof *ctx->in_force.heap, &s);
    ctx->in_force.op_time = esp__take(ctx, ((uint64_t)p->n_ops + 1) * sizeof *ctx->in_force.op_time, &s);
    for (uint32_t i = 0; i < ctx->in_force.strategy.n_units && !s;
         i++) { /* a group's elements are always at the same place */
        esp__work_unit *u = &ctx->in_force.strategy.units[i];
        u->data = esp__unit_is_group(u) ? ctx->in_force.arena + u->packed : NULL;
    }
    if (!s) s = esp__feedback_take(ctx);
    if (!s) s = esp__links_take(ctx);
    return s;
}

/* Everything but the tensors themselves and what they carry. */
ESP__FN void esp__memory_free(esp_ctx *ctx) {
    esp__free(ctx, ctx->in_force.arena);
    esp__free(ctx, ctx->in_force.scratch);
    esp__free(ctx, ctx->in_force.phi);
    esp__free(ctx, ctx->in_force.payloads);
    esp__free(ctx, ctx->in_force.heap);
    esp__free(ctx, ctx->in_force.op_time);
    for (int k = 0; k < 2; k++) esp__free(ctx, ctx->in_force.sequence[k]);
    memset(ctx->lanes.links, 0, sizeof ctx->lanes.links);
    ctx->in_force.sequence[0] = ctx->in_force.sequence[1] = NULL;
    ctx->in_force.n_sequence[0] = ctx->in_force.n_sequence[1] = 0;
    ctx->in_force.arena = ctx->in_force.scratch = NULL;
    ctx->in_force.phi = NULL;
    ctx->in_force.payloads = NULL;
    ctx->in_force.heap = NULL;
    ctx->in_force.op_time = NULL;
    esp__feedback_free(ctx, ctx->in_force.feedback, ctx->in_force.n_feedback);
    ctx->in_force.feedback = NULL;
    ctx->in_force.n_feedback = 0;
    esp__program_free(ctx);
}

/* ---- feedback over a change of strategy ------------------------------------------------------------------------ */
/* What the strategy before held: taken out of the context before it is compiled anew. */
typedef struct esp__old {
    esp__strategy strategy;
    esp__feedback *feedback;
    uint32_t n;
} esp__old;

ESP__FN void esp__old_detach(esp_ctx *ctx, esp__old *old) {
    old->strategy = ctx->in_force.strategy;
    old->feedback = ctx->in_force.feedback;
    old->n = ctx->in_force.n_feedback;
    memset(&ctx->in_force.strategy, 0, sizeof ctx->in_force.strategy);
    ctx->in_force.feedback = NULL;
    ctx->in_force.n_feedback = 0;
}

/* The strategy before stays in force. */
ESP__FN void esp__old_attach(esp_ctx *ctx, esp__old *old) {
    esp__strategy_free(ctx, &ctx->in_force.strategy);
    ctx->in_force.strategy = old->strategy;
    ctx->in_force.feedback = old->feedback;
    ctx->in_force.n_feedback = old->n;
    memset(old, 0, sizeof *old);
    esp__units_link(ctx);
}

ESP__FN void esp__old_free(esp_ctx *ctx, esp__old *old) {
    esp__feedback_free(ctx, old->feedback, old->n);
    esp__strategy_free(ctx, &old->strategy);
    memset(old, 0, sizeof *old);
}

/* Where elements [begin, begin + length) of a tensor go: to the feedback of a Comp on the rank's own gradient, or (out NULL)
 * nowhere. Returns how many of them go there together. */
static uint64_t esp__feedback_place(const esp_ctx *ctx, uint32_t tensor, uint64_t begin, uint64_t length, float **out) {
    const esp__tensor *t = &ctx->model.tensors[tensor];
    const esp__strategy *y = &ctx->in_force.strategy;
    uint64_t skip = 0;
    uint32_t i = t->first_unit;
    *out = NULL;
    while (i + 1 < t->first_unit + t->n_units && begin >= y->units[i + 1].place.begin) i++;
    const esp__work_unit *u = &y->units[i];
    for (uint32_t k = u->place.first; k < tensor; k++) skip += ctx->model.tensors[k].count;
    uint64_t end = u->place.n > 1 ? t->count : u->place.begin + u->place.count;
    const esp__feedback *f = u->raw_feedback >= 0 ? &ctx->in_force.feedback[u->raw_feedback] : NULL;
    if (f && f->residual) *out = f->residual + (skip + begin - u->place.begin);
    return length < end - begin ? length : end - begin;
}

static int esp__feedback_same_place(const esp__feedback *a, const esp__feedback *b) {
    return !memcmp(&a->place, &b->place, sizeof a->place) && a->offset == b->offset && a->count == b->count;
}

/* The codec's own state is bytes to us: it moves only where the same codec has the same elements in the same parts. */
static void esp__feedback_move_state(esp_ctx *ctx, const esp__feedback *was) {
    const esp__tensor *t = &ctx->model.tensors[was->place.first];
    for (uint32_t i = t->first_unit; was->state && i < t->first_unit + t->n_units; i++) {
        int32_t k = ctx->in_force.strategy.units[i].raw_feedback;
        esp__feedback *now = k >= 0 ? &ctx->in_force.feedback[k] : NULL;
        if (!now || !now->state || now->state_bytes != was->state_bytes || now->codec != was->codec) continue;
        if (!esp__feedback_same_place(now, was)) continue;
        if (now->option == was->option || (now->n_ranges == 1 && was->n_ranges == 1))
            memcpy(now->state, was->state, was->state_bytes);
    }
}

/* Residual of the rank's own gradient moves with its elements to where the new strategy has a Comp on them, whatever the
 * units. This part changes feedback only; it cannot fail. */
ESP__FN void esp__feedback_move(esp_ctx *ctx, const esp__feedback *all, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const esp__feedback *was = &all[i];
        esp__segment s = {0, 0, 0, 0};
        if (!was->raw || !was->residual) continue;
        while (esp__segment_next(ctx, &was->place, was->offset, was->count, &s))
            for (uint64_t done = 0, length; done < s.length; done += length) {
                float *to;
                length = esp__feedback_place(ctx, s.tensor, s.begin + done, s.length - done, &to);
                if (to) memcpy(to, was->residual + s.at + done, length * 4u);
            }
        esp__feedback_move_state(ctx, was);
    }
    for (uint32_t i = 0; i < ctx->in_force.n_feedback;
         i++) { /* discarding a step that was before the change changes nothing */
        esp__feedback *f = &ctx->in_force.feedback[i];
        if (f->residual_before) memcpy(f->residual_before, f->residual, f->count * 4u);
        if (f->state_before) memcpy(f->state_before, f->state, f->state_bytes);
    }
}

/* Everything else is added once, by the lowest replica, to this rank's next push: carry[tensor], taken where it is NULL. */
ESP__FN esp_status esp__feedback_carry(esp_ctx *ctx, const esp__feedback *all, uint32_t n, float **carry) {
    for (uint32_t i = 0; i < n; i++) {
        const esp__feedback *was = &all[i];
        esp__segment s = {0, 0, 0, 0};
        if (!was->residual || !was->keeper) continue;
        while (esp__segment_next(ctx, &was->place, was->offset, was->count, &s)) {
            const esp__tensor *t = &ctx->model.tensors[s.tensor];
            for (uint64_t done = 0, length; done < s.length; done += length) {
                float *stays = NULL;
                length = s.length - done;
                if (was->raw) length = esp__feedback_place(ctx, s.tensor, s.begin + done, length, &stays);
                if (stays) continue;
                if (!carry[s.tensor]) carry[s.tensor] = esp__alloc(ctx, t->count * 4u);
                if (!carry[s.tensor])
                    return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory for the feedback of '%s'", t->name);
                uint64_t fp = esp__fp_default();
                for (uint64_t k = 0; k < length; k++)
                    carry[s.tensor][s.begin + done + k] += was->residual[s.at + done + k];
                esp__fp_restore(fp);
            }
        }
    }
    return ESP_OK;
}

ESP__FN esp_status esp__feedback_adopt(esp_ctx *ctx, const esp__old *old) {
    float **carry = esp__alloc(ctx, (uint64_t)ctx->model.n_tensors * sizeof *carry + 1);
    if (!carry) return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) carry[i] = ctx->model.tensors[i].carry;
    esp_status s = esp__feedback_carry(ctx, old->feedback, old->n, carry);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) ctx->model.tensors[i].carry = carry[i];
    esp__free(ctx, carry);
    esp__feedback_move(ctx, old->feedback, old->n);
    return s;
}
