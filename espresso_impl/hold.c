/* hold.c: which ops of a program are which events of a plan, and what the executor under a model's clock (hold_clock.c) walks:
 * every event with its lanes and its time, in the plan's order. Runs nothing. */
#include "hold.h"

/* ---- events of a plan by what they are ------------------------------------------------------------------------------- */
/* Where a unit's event stands in the table: its steps; packing and unpacking; copies to and from the host by step. */
enum { ESP__EVENT_PACK = ESP__MAX_STEPS, ESP__EVENT_COPY = ESP__MAX_STEPS + 2, ESP__EVENT_KINDS = 2 * ESP__MAX_STEPS + 2 };

static uint32_t esp__event_slot(const esp_plan_event *e) {
    if (e->kind == ESP_PLAN_PACK) return (uint32_t)ESP__EVENT_PACK + (e->step > 0);
    return e->step + (e->kind == ESP_PLAN_COPY ? (uint32_t)ESP__EVENT_COPY : 0u);
}

/* [n_units][ESP__EVENT_KINDS] event + 1, 0: there is none. NULL: no memory. Freed with esp__free. */
static uint32_t *esp__event_table(esp_ctx *ctx, const esp_plan *plan) {
    uint32_t n, *table = esp__alloc(ctx, (uint64_t)ctx->strategy.n_units * ESP__EVENT_KINDS * sizeof *table + 1);
    const esp_plan_event *e = esp_plan_events(plan, &n);
    for (uint32_t i = 0; table && i < n; i++)
        if (e[i].kind != ESP_PLAN_BACKWARD) table[e[i].unit * ESP__EVENT_KINDS + esp__event_slot(&e[i])] = i + 1;
    return table;
}

/* Is the plan one for the strategy in force? */
static esp_status esp__hold_check(const esp_ctx *ctx, const esp_plan *plan) {
    char option[ESP__TEXT_MAX];
    uint32_t n, n_events, backwards = 0;
    const esp_plan_unit *units = esp_plan_units(plan, &n);
    const esp_plan_event *events = esp_plan_events(plan, &n_events);
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "hold: call esp_start first");
    if (!plan) return esp__fail(ctx, ESP_E_ARG, "hold: the plan is NULL");
    for (uint32_t i = 0; i < n_events; i++) backwards += events[i].kind == ESP_PLAN_BACKWARD;
    if (n != ctx->strategy.n_units || backwards != ctx->n_tensors)
        return esp__fail(ctx, ESP_E_ARG,
                         "hold: the plan has %u tensors in %u units, the strategy in force %u in %u: set the strategy to "
                         "the plan's text first",
                         backwards, n, ctx->n_tensors, ctx->strategy.n_units);
    for (uint32_t i = 0; i < n; i++) {
        const esp__work_unit *u = &ctx->strategy.units[i];
        const esp__extent place = {units[i].first, units[i].n_tensors, units[i].begin, units[i].elements};
        esp__option_print(&u->option, option, sizeof option);
        if (memcmp(&place, &u->place, sizeof place))
            return esp__fail(ctx, ESP_E_ARG,
                             "hold: unit %u has other elements in the plan than in the strategy in force ('%s'): set the "
                             "strategy to the plan's text first",
                             i, u->name);
        if (strcmp(option, units[i].option) ||
            (esp__option_uses(&u->option, ESP__COMP) && strcmp(u->codec->spec, units[i].codec)))
            return esp__fail(ctx, ESP_E_ARG,
                             "hold: unit '%s' has codec %s, option '%s' in the plan, but %s, '%s' in the strategy in force: "
                             "set the strategy to the plan's text first",
                             u->name, units[i].codec, units[i].option, u->codec->spec, option);
    }
    return ESP_OK;
}

/* The place of the op's event in the table, or ESP__EVENT_KINDS: a copy of the executor's own. The plan packs a group at
 * once when its last tensor is there. */
static uint32_t esp__op_slot(const esp_ctx *ctx, const esp__op *op) {
    const esp__extent *place = &ctx->strategy.units[op->unit].place;
    if (op->kind != ESP__OP_COPY) return op->step;
    if (op->copy == ESP__COPY_UNPACK) return ESP__EVENT_PACK + 1;
    return op->copy == ESP__COPY_PACK && op->member == place->first + place->n - 1 ? ESP__EVENT_PACK : ESP__EVENT_KINDS;
}

static esp_status esp__hold_match_with(const esp_ctx *ctx, const uint32_t *table, uint32_t *event_of_op) {
    for (uint32_t i = 0; i < ctx->program.n_ops; i++) {
        const esp__op *op = &ctx->program.ops[i];
        uint32_t slot = esp__op_slot(ctx, op);
        event_of_op[i] = slot < ESP__EVENT_KINDS ? table[op->unit * ESP__EVENT_KINDS + slot] - 1 : UINT32_MAX;
        if (op->kind != ESP__OP_COPY && event_of_op[i] == UINT32_MAX)
            return esp__fail(ctx, ESP_E_ARG, "hold: the plan has no op '%s'", op->label);
    }
    return ESP_OK;
}

ESP__FN esp_status esp__hold_match(const esp_ctx *ctx, const esp_plan *plan, uint32_t *event_of_op) {
    esp_ctx *mine = (esp_ctx *)(uintptr_t)ctx; /* for its allocator only */
    esp_status s = esp__hold_check(ctx, plan);
    if (s) return s;
    uint32_t *table = esp__event_table(mine, plan);
    s = table ? esp__hold_match_with(ctx, table, event_of_op) : esp__fail(ctx, ESP_E_NOMEM, "hold: out of memory");
    esp__free(mine, table);
    return s;
}
