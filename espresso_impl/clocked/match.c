/* match.c: finds the plan's event of every op of a program, and builds what clock.c walks: all events with their lanes and times,
 * in the plan's order. Runs nothing. */
#include "espresso_impl/clocked/clocked.h"

/* ---- events of a plan by what they are ------------------------------------------------------------------------------- */
/* Columns of the table of a unit's events: steps by round, pack and unpack, copies to and from the host by step. */
enum {
    ESP__EVENT_PACK = ESP__CHAIN_MAX,
    ESP__EVENT_COPY = ESP__EVENT_PACK + 2,
    ESP__EVENT_KINDS = ESP__EVENT_COPY + ESP__MAX_STEPS
};

static uint32_t esp__event_slot(const esp_plan_event *e) {
    if (e->kind == ESP_PLAN_PACK) return (uint32_t)ESP__EVENT_PACK + (e->step > 0);
    if (e->kind == ESP_PLAN_COPY) return (uint32_t)ESP__EVENT_COPY + e->step;
    return e->round * (uint32_t)ESP__MAX_STEPS + e->step;
}

/* Makes the table of events: [n_units][ESP__EVENT_KINDS], then every tensor's backward. An entry is the event's index + 1, 0: none.
 * NULL: out of memory. Freed with esp__free. */
static uint32_t *esp__event_table(esp_ctx *ctx, const esp_plan *plan) {
    uint64_t backward = (uint64_t)ctx->in_force.strategy.n_units * ESP__EVENT_KINDS;
    uint32_t n, *table = esp__alloc(ctx, (backward + ctx->model.n_tensors) * sizeof *table + 1);
    const esp_plan_event *e = esp_plan_events(plan, &n);
    for (uint32_t i = 0; table && i < n; i++)
        if (e[i].kind == ESP_PLAN_BACKWARD)
            table[backward + e[i].unit] = i + 1;
        else
            table[e[i].unit * ESP__EVENT_KINDS + esp__event_slot(&e[i])] = i + 1;
    return table;
}

/* Is the plan one for the strategy in force? */
static esp_status esp__clocked_check(const esp_ctx *ctx, const esp_plan *plan) {
    char option[ESP__TEXT_MAX];
    uint32_t n, n_events, backwards = 0;
    const esp_plan_unit *units = esp_plan_units(plan, &n);
    const esp_plan_event *events = esp_plan_events(plan, &n_events);
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "clocked execution: call esp_start first");
    if (!plan) return esp__fail(ctx, ESP_E_ARG, "clocked execution: the plan is NULL");
    for (uint32_t i = 0; i < n_events; i++) backwards += events[i].kind == ESP_PLAN_BACKWARD;
    if (n != ctx->in_force.strategy.n_units || backwards != ctx->model.n_tensors)
        return esp__fail(ctx, ESP_E_ARG,
                         "clocked execution: the plan has %u tensors in %u units, the strategy in force %u in %u: set "
                         "the strategy to "
                         "the plan's text first",
                         backwards, n, ctx->model.n_tensors, ctx->in_force.strategy.n_units);
    for (uint32_t i = 0; i < n; i++) {
        const esp__work_unit *u = &ctx->in_force.strategy.units[i];
        const esp__extent place = {units[i].first, units[i].n_tensors, units[i].begin, units[i].elements};
        esp__option_print(&u->option, option, sizeof option);
        if (memcmp(&place, &u->place, sizeof place))
            return esp__fail(ctx, ESP_E_ARG,
                             "clocked execution: unit %u has other elements in the plan than in the strategy in force "
                             "('%s'): set the "
                             "strategy to the plan's text first",
                             i, u->name);
        if (strcmp(option, units[i].option) ||
            (esp__option_compresses(&u->option) && strcmp(u->codec->spec, units[i].codec)))
            return esp__fail(ctx, ESP_E_ARG,
                             "clocked execution: unit '%s' has codec %s, option '%s' in the plan, but %s, '%s' in the "
                             "strategy in force: "
                             "set the strategy to the plan's text first",
                             u->name, units[i].codec, units[i].option, u->codec->spec, option);
    }
    return ESP_OK;
}

/* The column of the op's event, or ESP__EVENT_KINDS for a copy that plans do not have. A plan packs a whole group when its last
 * tensor is pushed. */
static uint32_t esp__op_slot(const esp_ctx *ctx, const esp__op *op) {
    const esp__extent *place = &ctx->in_force.strategy.units[op->unit].place;
    if (op->kind != ESP__OP_COPY) return op->round * (uint32_t)ESP__MAX_STEPS + op->step;
    if (op->copy == ESP__COPY_UNPACK) return ESP__EVENT_PACK + 1;
    return op->copy == ESP__COPY_PACK && op->member == place->first + place->n - 1 ? ESP__EVENT_PACK : ESP__EVENT_KINDS;
}

static esp_status esp__clocked_match_with(const esp_ctx *ctx, const uint32_t *table, uint32_t *event_of_op) {
    for (uint32_t i = 0; i < ctx->in_force.program.n_ops; i++) {
        const esp__op *op = &ctx->in_force.program.ops[i];
        uint32_t slot = esp__op_slot(ctx, op);
        event_of_op[i] = slot < ESP__EVENT_KINDS ? table[op->unit * ESP__EVENT_KINDS + slot] - 1 : UINT32_MAX;
        if (op->kind != ESP__OP_COPY && event_of_op[i] == UINT32_MAX)
            return esp__fail(ctx, ESP_E_ARG, "clocked execution: the plan has no op '%s'", op->label);
    }
    return ESP_OK;
}

ESP__FN esp_status esp__clocked_match(const esp_ctx *ctx, const esp_plan *plan, uint32_t *event_of_op) {
    esp_ctx *mine = (esp_ctx *)(uintptr_t)ctx; /* for its allocator only */
    esp_status s = esp__clocked_check(ctx, plan);
    if (s) return s;
    uint32_t *table = esp__event_table(mine, plan);
    s = table ? esp__clocked_match_with(ctx, table, event_of_op)
              : esp__fail(ctx, ESP_E_NOMEM, "clocked execution: out of memory");
    esp__free(mine, table);
    return s;
}

/* ---- the plan as the executor walks it ------------------------------------------------------------------------------- */
static void esp__clocked_free(esp_ctx *ctx, esp__clocked *h) {
    if (!h) return;
    for (int k = 0; k < ESP__LANES; k++) esp__free(ctx, h->lane[k]);
    esp__free(ctx, h->event);
    esp__free(ctx, h->chain);
    esp__free(ctx, h->first);
    esp__free(ctx, h->event_of_op);
    esp__free(ctx, h->event_of_tensor);
    esp__free(ctx, h->at);
    esp__free(ctx, h->ready);
    esp__free(ctx, h);
}

static esp__clocked *esp__clocked_new(esp_ctx *ctx, uint32_t n_events) {
    esp__clocked *h = esp__alloc(ctx, sizeof *h);
    uint64_t n = n_events, units = ctx->in_force.strategy.n_units;
    int whole = h != NULL;
    if (!h) return NULL;
    for (int k = 0; k < ESP__LANES; k++) whole &= (h->lane[k] = esp__alloc(ctx, n * sizeof **h->lane + 1)) != NULL;
    whole &= (h->event = esp__alloc(ctx, n * sizeof *h->event + 1)) != NULL;
    whole &= (h->chain = esp__alloc(ctx, n * sizeof *h->chain + 1)) != NULL;
    whole &= (h->first = esp__alloc(ctx, (units + 1) * sizeof *h->first)) != NULL;
    whole &=
        (h->event_of_op = esp__alloc(ctx, (uint64_t)ctx->in_force.program.n_ops * sizeof *h->event_of_op + 1)) != NULL;
    whole &=
        (h->event_of_tensor = esp__alloc(ctx, (uint64_t)ctx->model.n_tensors * sizeof *h->event_of_tensor + 1)) != NULL;
    whole &= (h->at = esp__alloc(ctx, units * sizeof *h->at + 1)) != NULL;
    whole &= (h->ready = esp__alloc(ctx, units * sizeof *h->ready + 1)) != NULL;
    h->n = n_events;
    h->step = UINT64_MAX;
    if (whole) return h;
    esp__clocked_free(ctx, h);
    return NULL;
}

static void esp__clocked_event_init(esp__clocked_event *x, const esp_plan_event *e) {
    x->unit = e->unit;
    x->op = ESP__CLOCKED_NONE;
    x->lanes = e->lanes;
    x->backward = e->kind == ESP_PLAN_BACKWARD;
    x->owner = x->backward ? ESP__CLOCKED_CALLER : e->lanes & ESP__LINK_LANES ? ESP__CLOCKED_LINK : ESP__CLOCKED_CPU;
    x->ns = e->end_ns - e->start_ns;
    x->core_ns = e->core_ns, x->link_ns = e->link_ns;
}

static uint64_t esp__entry_slot(const esp_ctx *ctx, const esp__order_entry *e, uint32_t tensor) {
    uint64_t unit = (uint64_t)e->unit * ESP__EVENT_KINDS;
    switch (e->what) {
    case ESP__ENTRY_BACKWARD: return (uint64_t)ctx->in_force.strategy.n_units * ESP__EVENT_KINDS + tensor;
    case ESP__ENTRY_PACK: return unit + ESP__EVENT_PACK;
    case ESP__ENTRY_UNPACK: return unit + ESP__EVENT_PACK + 1;
    case ESP__ENTRY_STEP: return unit + e->step;
    default: return unit + ESP__EVENT_COPY + e->step;
    }
}

/* Enters every event into the lists of its lanes and into its unit's chain. 0: the strategy in force has another order. */
static int esp__clocked_order(const esp_ctx *ctx, esp__clocked *h, const uint32_t *table) {
    const esp__strategy *y = &ctx->in_force.strategy;
    uint32_t tensor = 0;
    if (y->n_entries != h->n) return 0;
    for (uint32_t i = 0; i < h->n;
         i++) /* first[]: counts each unit's events, then becomes where they begin in chain[] */
        if (!h->event[i].backward) h->first[h->event[i].unit + 1]++;
    for (uint32_t u = 0; u < y->n_units; u++) h->first[u + 1] += h->first[u];
    for (uint32_t k = 0; k < y->n_entries; k++) {
        uint32_t event = table[esp__entry_slot(ctx, &y->entries[k], tensor)] - 1;
        if (event == ESP__CLOCKED_NONE) return 0;
        esp__clocked_event *x = &h->event[event];
        if (x->state) return 0; /* the order has it twice */
        x->state = 1;
        for (int lane = 0; lane < ESP__LANES; lane++)
            if (x->lanes >> lane & 1u) h->lane[lane][h->lane_n[lane]++] = event;
        if (x->backward) {
            h->event_of_tensor[tensor++] = event;
        } else {
            x->place = h->at[x->unit]++;
            h->chain[h->first[x->unit] + x->place] = event;
        }
    }
    return 1;
}

/* Checks that a unit's ops are in the order of their events: else the unit would wait for itself. */
static int esp__clocked_ops(const esp_ctx *ctx, esp__clocked *h) {
    for (uint32_t u = 0; u < ctx->in_force.strategy.n_units; u++) {
        const esp__work_unit *unit = &ctx->in_force.strategy.units[u];
        uint32_t next = 0;
        for (uint32_t i = unit->first_op; i < unit->first_op + unit->n_ops; i++) {
            if (h->event_of_op[i] == ESP__CLOCKED_NONE) continue;
            esp__clocked_event *x = &h->event[h->event_of_op[i]];
            if (x->place < next) return 0;
            next = x->place + 1;
            x->op = i;
        }
    }
    return 1;
}

/* Checks that the order gives the plan's times, by what the clock does in a step: else a step would show other times than predicted. */
static esp_status esp__clocked_agrees(const esp_ctx *ctx, esp__clocked *h, const uint32_t *table,
                                      const esp_plan_event *events) {
    const esp__strategy *y = &ctx->in_force.strategy;
    esp__clocked_reset(ctx, h);
    for (uint32_t k = 0; k < y->n_entries; k++) {
        const uint32_t event = table[esp__entry_slot(ctx, &y->entries[k], h->tensor)] - 1;
        esp__clocked_event *x = &h->event[event];
        const esp_plan_event *e = &events[event];
        esp__clocked_take(h, x);
        if (x->due.start_ns != e->start_ns || x->core_ns > x->ns || x->link_ns > x->ns)
            return esp__fail(ctx, ESP_E_ARG,
                             "clocked execution: %s '%s', step %u, begins at %llu ns in the plan, but its order of ops "
                             "lets it begin at "
                             "%llu ns: take the events of a plan as the planner made them",
                             x->backward ? "backward of tensor" : "the op of unit",
                             x->backward ? ctx->model.tensors[x->unit].name : y->units[x->unit].name, (unsigned)e->step,
                             (unsigned long long)e->start_ns, (unsigned long long)x->due.start_ns);
        esp__clocked_hand_on(ctx, h, x);
    }
    return ESP_OK;
}

static esp_status esp__clocked_make(esp_ctx *ctx, const esp_plan *plan, double scale, esp__clocked **out) {
    uint32_t n, *table = esp__event_table(ctx, plan);
    const esp_plan_event *events = esp_plan_events(plan, &n);
    esp__clocked *h = *out = esp__clocked_new(ctx, n);
    esp_status s = table && h ? esp__clocked_match_with(ctx, table, h->event_of_op)
                              : esp__fail(ctx, ESP_E_NOMEM, "clocked execution: out of memory");
    for (uint32_t i = 0; !s && i < n; i++) esp__clocked_event_init(&h->event[i], &events[i]);
    if (!s && (!esp__clocked_order(ctx, h, table) || !esp__clocked_ops(ctx, h)))
        s = esp__fail(ctx, ESP_E_ARG,
                      "clocked execution: the strategy in force has not the plan's order of all ops: set it to the "
                      "plan's own text "
                      "(esp_plan_text) first");
    if (!s) s = esp__clocked_agrees(ctx, h, table, events);
    if (!s) h->scale = scale;
    esp__free(ctx, table);
    return s;
}

ESP__FN void esp__clocked_swap(esp_ctx *ctx, esp__clocked *now) {
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__clocked *before = ctx->clocked;
    ctx->clocked = now;
    pthread_mutex_unlock(&ctx->lanes.lock);
    esp__clocked_free(ctx, before);
}

ESP__FN esp_status esp__clocked_set(esp_ctx *ctx, const esp_plan *plan, double time_scale) {
    esp__clocked *h = NULL;
    esp_status s = esp__between_steps(ctx, "clocked execution");
    if (s) return s;
    if (!plan) return esp__clocked_drop(ctx), ESP_OK;
    if (!(time_scale > 0.0 && time_scale < 1e6))
        return esp__fail(ctx, ESP_E_ARG, "clocked execution: the time scale must be a number > 0, not %g", time_scale);
    s = esp__clocked_check(ctx, plan);
    if (!s) s = esp__clocked_make(ctx, plan, time_scale, &h);
    if (s)
        esp__clocked_free(ctx, h);
    else
        esp__clocked_swap(ctx, h);
    return s;
}

/* The observer exists to end clocked execution when another program is in force: the plan is not for that one. */
static esp_status esp__clocked_open(esp_ctx *ctx, void **self) {
    *self = ctx;
    return ESP_OK;
}
static void esp__clocked_installed(esp_ctx *ctx, void *self) {
    (void)self;
    esp__clocked_drop(ctx);
}

ESP__FN const esp__observer *esp__clocked_observer(void) {
    static const esp__observer o = {.name = "clocked execution",
                                    .open = esp__clocked_open,
                                    .installed = esp__clocked_installed,
                                    .close = esp__clocked_installed};
    return &o;
}
