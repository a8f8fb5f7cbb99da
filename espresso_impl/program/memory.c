/* memory.c: allocates and frees all memory of a compiled strategy: payloads, residuals, scratch memory and queues. */
#include "espresso_impl/program/program.h"

static bool esp__may_take(const esp_ctx *ctx, const esp__active *f, uint64_t bytes, esp_status *s) {
    if (!bytes || !f->most_bytes || (bytes <= f->most_bytes && f->memory_bytes <= f->most_bytes - bytes)) return true;
    if (!*s)
        *s = esp__fail(ctx, ESP_E_NOMEM,
                       "the strategy needs more memory than ESPRESSO_MEMORY_MAX: %.1f MiB is the limit of a rank, %.1f "
                       "MiB are taken, and %.1f MiB more are needed (room for payloads takes %.1f MiB): raise the "
                       "limit, or make a plan that needs less: espresso plan --max-memory",
                       (double)f->most_bytes / 1048576.0, (double)f->memory_bytes / 1048576.0,
                       (double)bytes / 1048576.0, (double)f->slots_bytes / 1048576.0);
    return false;
}

static void *esp__take_on(esp_ctx *ctx, esp__active *f, uint32_t device, uint64_t bytes, uint32_t where,
                          esp_status *s) {
    const esp__device *d = esp__device_at(ctx, device);
    if (!esp__may_take(ctx, f, bytes, s)) return NULL;
    void *p = esp__device_take(ctx, device, bytes, where);
    if (bytes && !p && !*s)
        *s = esp__fail(ctx, ESP_E_NOMEM, "out of memory: the strategy needs %llu bytes more %s device %s:%d",
                       (unsigned long long)bytes, where == ESP_MEM_PINNED ? "of pinned memory for" : "on",
                       d->table->name, (int)d->id.ordinal);
    f->memory_bytes += p ? bytes : 0;
    return p;
}

static void *esp__take(esp_ctx *ctx, esp__active *f, uint64_t bytes, esp_status *s) {
    return esp__take_on(ctx, f, ESP__CPU_INDEX, bytes, ESP_MEM_DEVICE, s);
}

static esp_status esp__feedback_take(esp_ctx *ctx, esp__active *f) {
    const uint64_t before = f->memory_bytes;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < f->n_feedback; i++) {
        esp__feedback *one = &f->feedback[i];
        one->residual = esp__take_on(ctx, f, one->device, one->count * 4u, ESP_MEM_DEVICE, &s);
        one->state = esp__take_on(ctx, f, one->device, one->state_bytes, ESP_MEM_DEVICE, &s);
        if (!f->discardable) continue;
        one->residual_before = esp__take_on(ctx, f, one->device, one->count * 4u, ESP_MEM_DEVICE, &s);
        one->state_before = esp__take_on(ctx, f, one->device, one->state_bytes, ESP_MEM_DEVICE, &s);
    }
    f->feedback_bytes = f->memory_bytes - before;
    return s;
}

/* Lists for each link the collectives that this rank runs on it, in the strategy's order. `at` and `op_of` are
 * temporary memory, initially zero. */
static void esp__links_sequence(esp__active *f, uint32_t *at, uint32_t *op_of) {
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
        f->order[f->n_order++] = i;
        for (int l = 0; l < ESP__LEVELS; l++)
            if (op->collective.links >> l & 1u) f->sequence[l][f->n_sequence[l]++] = i;
    }
}

static esp_status esp__links_take(esp_ctx *ctx, esp__active *f) {
    esp_status s = ESP_OK;
    const uint64_t bytes = ((uint64_t)f->strategy.n_units + 1) * (ESP__CHAIN_MAX + 1) * sizeof(uint32_t);
    uint32_t *at = esp__take(ctx, f, bytes, &s);
    for (int k = 0; k < ESP__LEVELS; k++) f->sequence[k] = esp__take(ctx, f, (uint64_t)f->program.n_ops * 4u + 4u, &s);
    f->order = esp__take(ctx, f, (uint64_t)f->program.n_ops * 4u + 4u, &s);
    if (!s) esp__links_sequence(f, at, at + f->strategy.n_units + 1);
    if (at) f->memory_bytes -= bytes;
    esp__free(ctx, at);
    return s;
}

static uint64_t esp__used_bytes(const esp__program *p, const esp__program_on *on) {
    return (1u + on->n_behind) * esp__list_most(p) * sizeof(uint64_t);
}

static esp_status esp__memory_on_take(esp_ctx *ctx, esp__active *f, uint32_t device) {
    const esp__program_on *p = &f->program.on[device];
    esp__memory_on *m = &f->on[device];
    const uint64_t headers = (uint64_t)p->n_headers * ESP_PAYLOAD_HEADER;
    esp_status s = ESP_OK;
    m->has = *p;
    if (p->n_behind) m->has.scratch_bytes = (p->scratch_bytes + 255u) / 256u * 256u;
    m->arena = esp__take_on(ctx, f, device, p->arena_bytes, ESP_MEM_DEVICE, &s);
    m->pinned = esp__take_on(ctx, f, device, p->pinned_bytes, ESP_MEM_PINNED, &s);
    m->scratch = esp__take_on(ctx, f, device, (1u + p->n_behind) * m->has.scratch_bytes, ESP_MEM_DEVICE, &s);
    m->phi = esp__take_on(ctx, f, device, p->phi_count * 4u, ESP_MEM_DEVICE, &s);
    m->used = esp__take_on(ctx, f, device, esp__used_bytes(&f->program, p), ESP_MEM_DEVICE, &s);
    m->headers = esp__take_on(ctx, f, device, headers, ESP_MEM_DEVICE, &s);
    m->flags = esp__take_on(ctx, f, device, headers, ESP_MEM_PINNED, &s);
    if (!s) s = esp__device_events_take(ctx, device, ESP__EVENTS * p->n_events, &m->events);
    if (m->events) f->memory_bytes += (uint64_t)p->n_events * ESP__EVENTS * sizeof *m->events;
    f->has_behind |= p->n_behind != 0;
    return s;
}

static void esp__memory_on_give(esp_ctx *ctx, const esp__program *p, uint32_t device, esp__memory_on *m) {
    const uint64_t headers = (uint64_t)m->has.n_headers * ESP_PAYLOAD_HEADER;
    esp__device_events_give(ctx, device, ESP__EVENTS * m->has.n_events, m->events);
    esp__device_give(ctx, device, m->arena, m->has.arena_bytes, ESP_MEM_DEVICE);
    esp__device_give(ctx, device, m->pinned, m->has.pinned_bytes, ESP_MEM_PINNED);
    esp__device_give(ctx, device, m->scratch, (1u + m->has.n_behind) * m->has.scratch_bytes, ESP_MEM_DEVICE);
    esp__device_give(ctx, device, m->phi, m->has.phi_count * 4u, ESP_MEM_DEVICE);
    esp__device_give(ctx, device, m->used, esp__used_bytes(p, &m->has), ESP_MEM_DEVICE);
    esp__device_give(ctx, device, m->headers, headers, ESP_MEM_DEVICE);
    esp__device_give(ctx, device, m->flags, headers, ESP_MEM_PINNED);
}

ESP__FN uint8_t *esp__at(const esp__active *f, const esp__op *op, esp__ref r) {
    const esp__unit *u = &f->strategy.units[op->unit];
    switch (r.at) {
    case ESP__AT_DATA: return (uint8_t *)u->data + r.offset;
    case ESP__AT_ARENA: return f->on[u->device].arena + r.offset;
    case ESP__AT_PINNED: return f->on[u->device].pinned + r.offset;
    default: return NULL;
    }
}

/* ---- registering memory with backends (reg and dereg) ---- */
static void esp__arena_withdraw(esp_ctx *ctx, esp__announced *a) {
    for (uint32_t p = 0; p < esp__job_of(ctx)->n_parents; p++) {
        const esp__comm *c = &esp__job_of(ctx)->comms[esp__job_of(ctx)->parents[p]];
        if (a->to >> p & 1u && c->handle) c->backend->dereg(c->handle, a->given[p]);
    }
    a->to = 0;
}
ESP__FN void esp__arenas_withdraw(esp_ctx *ctx, esp__active *f) {
    for (uint32_t k = 0; k < esp__device_list_of(ctx)->n; k++) esp__arena_withdraw(ctx, &f->on[k].announced);
}

static esp_status esp__arena_announce(esp_ctx *ctx, const esp_buf *arena, esp__announced *a) {
    for (uint32_t p = 0; p < esp__job_of(ctx)->n_parents && arena->bytes; p++) {
        const esp__comm *c = &esp__job_of(ctx)->comms[esp__job_of(ctx)->parents[p]];
        if (!ESP_HAS(esp_backend, c->backend, reg) || !(c->backend->devices & ESP_BIT(arena->dev.kind))) continue;
        esp__plugin_detail_clear();
        const esp_status s = c->backend->reg(c->handle, arena, &a->given[p]);
        if (s)
            return esp__fail(ctx, s, "backend '%s' cannot use the strategy's %llu bytes of memory: reg(): %s",
                             c->backend->name, (unsigned long long)arena->bytes, esp__plugin_why(s));
        a->to |= 1u << p;
    }
    return ESP_OK;
}
static esp_status esp__arenas_announce(esp_ctx *ctx, esp__active *f) {
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < esp__device_list_of(ctx)->n && !s; k++) {
        esp__memory_on *m = &f->on[k];
        const esp_buf arena = {m->arena, m->arena ? m->has.arena_bytes : 0, esp__device_at(ctx, k)->id};
        s = esp__arena_announce(ctx, &arena, &m->announced);
    }
    return s;
}

/* ---- all of a strategy's memory ---- */
ESP__FN esp_status esp__memory_take(esp_ctx *ctx, esp__active *f) {
    esp_status s = esp__env_memory_max(&f->most_bytes);
    const esp__program *p = &f->program;
    for (uint32_t k = 0; k < esp__device_list_of(ctx)->n; k++)
        f->slots_bytes += p->on[k].arena_bytes + p->on[k].pinned_bytes;
    f->memory_bytes = p->cap_ops + p->cap_ranges + p->cap_slots + p->cap_pieces;
    f->payloads = esp__take(ctx, f, ((uint64_t)p->max_payloads + 1) * sizeof *f->payloads, &s);
    f->list_room = esp__take(ctx, f, esp__call_list_bytes(p->max_list), &s);
    if (f->list_room) esp__call_list_place(&f->list, f->list_room, p->max_list);
    f->ready.at = esp__take(ctx, f, ((uint64_t)f->strategy.n_units + 1) * sizeof *f->ready.at, &s);
    f->op_time = esp__take(ctx, f, ((uint64_t)p->n_ops + 1) * sizeof *f->op_time, &s);
    f->op_core_ns = esp__take(ctx, f, ((uint64_t)p->n_ops + 1) * sizeof *f->op_core_ns, &s);
    f->pending = esp__take(ctx, f, ((uint64_t)f->strategy.n_units + 1) * sizeof *f->pending, &s);
    for (uint32_t k = 0; k < esp__device_list_of(ctx)->n && !s; k++) {
        f->on[k].device = esp__device_at(ctx, k);
        if (p->on[k].n_events) s = esp__memory_on_take(ctx, f, k);
    }
    for (uint32_t i = 0; i < f->strategy.n_units && !s; i++) {
        esp__unit *u = &f->strategy.units[i];
        u->data = esp__unit_is_group(u) ? f->on[u->device].arena + u->packed : NULL;
    }
    if (!s) s = esp__feedback_take(ctx, f);
    if (!s) s = esp__links_take(ctx, f);
    return s ? s : esp__arenas_announce(ctx, f);
}

ESP__FN void esp__active_free(esp_ctx *ctx, esp__active *f) {
    esp__arenas_withdraw(ctx, f);
    esp__free(ctx, f->payloads);
    esp__free(ctx, f->list_room);
    esp__free(ctx, f->ready.at);
    esp__free(ctx, f->op_time);
    esp__free(ctx, f->op_core_ns);
    esp__free(ctx, f->pending);
    for (uint32_t k = 0; k < esp__device_list_of(ctx)->n; k++) esp__memory_on_give(ctx, &f->program, k, &f->on[k]);
    for (int k = 0; k < ESP__LEVELS; k++) esp__free(ctx, f->sequence[k]);
    esp__free(ctx, f->order);
    for (uint32_t i = 0; i < f->n_feedback; i++) {
        const esp__feedback *one = &f->feedback[i];
        esp__device_give(ctx, one->device, one->residual, one->count * 4u, ESP_MEM_DEVICE);
        esp__device_give(ctx, one->device, one->state, one->state_bytes, ESP_MEM_DEVICE);
        esp__device_give(ctx, one->device, one->residual_before, one->count * 4u, ESP_MEM_DEVICE);
        esp__device_give(ctx, one->device, one->state_before, one->state_bytes, ESP_MEM_DEVICE);
    }
    esp__free(ctx, f->feedback);
    esp__program_free(ctx, &f->program);
    esp__strategy_free(ctx, &f->strategy);
    memset(f, 0, sizeof *f);
}
