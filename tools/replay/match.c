/* match.c: finds which event of the plan predicts each op that this rank executes. */
#include "tools/replay/replay.h"

/* Numbers of the possible events of a tensor or group: first all steps of its option, then packing and unpacking of a
 * group, then copies between host and device. */
enum { REPLAY_PACK = ESP__CHAIN_MAX, REPLAY_UNPACK, REPLAY_COPY, REPLAY_COLUMNS = REPLAY_COPY + ESP__MAX_STEPS };

static uint32_t replay_column_of_event(const esp_plan_event *e) {
    if (e->kind == ESP_PLAN_PACK) return e->step > 0 ? REPLAY_UNPACK : REPLAY_PACK;
    if (e->kind == ESP_PLAN_COPY) return (uint32_t)REPLAY_COPY + e->step;
    return e->round * (uint32_t)ESP__MAX_STEPS + e->step;
}

/* Returns the number of the event that predicts an op, or REPLAY_COLUMNS if none does. A plan has one event for packing
 * a group, but each tensor of it is copied by an op of its own: the last of these ops counts. */
static uint32_t replay_column_of_op(const esp_ctx *ctx, const esp__op *op) {
    const esp__extent *place = &ctx->active.strategy.units[op->unit].place;
    if (op->kind != ESP__OP_COPY) return op->round * (uint32_t)ESP__MAX_STEPS + op->step;
    if (op->copy.what == ESP__COPY_UNPACK) return REPLAY_UNPACK;
    return op->copy.what == ESP__COPY_PACK && op->copy.member == place->first + place->n - 1 ? REPLAY_PACK
                                                                                             : REPLAY_COLUMNS;
}

ESP__FN uint32_t *replay_match(const esp_ctx *ctx, const plan_made *m) {
    const esp__program *p = &ctx->active.program;
    const size_t cells = (size_t)m->n_units * REPLAY_COLUMNS;
    uint32_t *event_of = tool_realloc(NULL, (cells + 1) * sizeof *event_of);
    uint32_t *out = tool_realloc(NULL, ((size_t)p->n_ops + 1) * sizeof *out);
    memset(event_of, 0xff, cells * sizeof *event_of);
    for (uint32_t i = 0; i < m->n_events; i++)
        if (m->events[i].kind != ESP_PLAN_BACKWARD)
            event_of[m->events[i].unit * REPLAY_COLUMNS + replay_column_of_event(&m->events[i])] = i;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t column = replay_column_of_op(ctx, &p->ops[i]);
        out[i] = column < REPLAY_COLUMNS ? event_of[p->ops[i].unit * REPLAY_COLUMNS + column] : UINT32_MAX;
    }
    free(event_of);
    return out;
}
