/* clock.c: the model's clock in the executor: whose turn it is on every lane, from when to when an op takes its lanes, and
 * when that is over. An op starts, by this clock, when the op before it in its unit's chain and those before it on its lanes
 * end: counted from their deadlines, so that waking late does not add up. Real work that takes longer than the plan says is
 * caught up with. Must not know how ops are done. Lock held everywhere but where it says. */
#include "espresso_impl/clocked/clocked.h"
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

static uint64_t esp__hold_scaled(const esp__holds *h, uint64_t ns) { return (uint64_t)((double)ns * h->scale + 0.5); }
static uint64_t esp__hold_deadline(const esp__holds *h, const esp__held *x) {
    return h->zero_ns + esp__hold_scaled(h, x->due.end_ns);
}

/* The calling thread sleeps to the nanosecond from now on: usually the system may wake it 50 us late. */
static void esp__hold_sharpen(esp__holds *h, uint32_t who) {
    if (h->sharp >> who & 1u) return;
    h->sharp |= 1u << who;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
}

/* ---- whose turn it is ---------------------------------------------------------------------------------------------------- */
static uint32_t esp__hold_head(const esp__holds *h, int lane) {
    return h->cursor[lane] < h->lane_n[lane] ? h->lane[lane][h->cursor[lane]] : ESP__HOLD_NONE;
}

/* Has the unit come to this event? Copies of the executor's own go before one that this rank has no op for. */
static int esp__hold_unit_at(const esp_ctx *ctx, const esp__held *x) {
    const esp__holds *h = ctx->holds;
    const esp__work_unit *u = &ctx->in_force.strategy.units[x->unit];
    uint32_t op = u->first_op + u->pc;
    if (u->phase != ESP__PUSHED || h->at[x->unit] != x->place) return 0;
    if (x->op == ESP__HOLD_NONE) return u->pc == u->n_ops || h->event_of_op[op] != ESP__HOLD_NONE;
    return x->op == op && !esp__op_awaits_push(ctx, &ctx->in_force.program.ops[op]);
}

static int esp__hold_can_start(const esp_ctx *ctx, uint32_t event) {
    const esp__holds *h = ctx->holds;
    if (event == ESP__HOLD_NONE || h->held[event].state != ESP__HOLD_WAITS) return 0;
    for (int lane = 0; lane < ESP__LANES; lane++)
        if (h->held[event].lanes >> lane & 1u && esp__hold_head(h, lane) != event) return 0;
    return h->held[event].backward || esp__hold_unit_at(ctx, &h->held[event]);
}

ESP__FN int esp__hold_turn(const esp_ctx *ctx, const esp__op *op) {
    return esp__hold_can_start(ctx, ctx->holds->event_of_op[op - ctx->in_force.program.ops]);
}

/* Tells the threads for which there is something to start. */
static void esp__hold_wake(esp_ctx *ctx, int from_link) {
    const esp__holds *h = ctx->holds;
    for (int lane = 0; lane < ESP__LANES; lane++) {
        uint32_t event = esp__hold_head(h, lane);
        if (!esp__hold_can_start(ctx, event)) continue;
        if (h->held[event].owner == ESP__HOLD_CALLER)
            pthread_cond_broadcast(&ctx->lanes.done_cv);
        else if (h->held[event].owner == ESP__HOLD_CPU)
            pthread_cond_signal(&ctx->lanes.cpu_cv);
        else if (!from_link)
            esp__link_wake(ctx);
    }
}

ESP__FN void esp__hold_unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, int from_link) {
    const esp__holds *h = ctx->holds;
    esp__work_unit *u = &ctx->in_force.strategy.units[unit];
    uint32_t op = u->first_op + u->pc,
             last = u->place.n > u->pc ? u->place.first + u->pc : u->place.first + u->place.n - 1;
    u->ready_ns = now;
    if (h->tensor <= last && ctx->model.tensors[last].phase != ESP__IDLE) {
        esp__fatal_locked(ctx, ESP_E_STATE, "a tensor was pushed in a step with holds before its esp__hold_backward");
    } else if (u->pc < u->n_ops && h->event_of_op[op] == ESP__HOLD_NONE) { /* takes no lane and no time */
        if (esp__op_awaits_push(ctx, &ctx->in_force.program.ops[op])) return;
        esp__heap_push(ctx, unit);
        pthread_cond_signal(&ctx->lanes.cpu_cv);
    } else if (u->pc == u->n_ops && h->at[unit] == h->first[unit + 1] - h->first[unit]) {
        esp__unit_done(ctx, u);
    } else {
        esp__hold_wake(ctx, from_link);
    }
}

/* ---- from when to when ---------------------------------------------------------------------------------------------------- */
static void esp__hold_begin_event(esp_ctx *ctx, esp__held *x) {
    esp__holds *h = ctx->holds;
    uint64_t start = x->backward ? h->backward_end : h->ready[x->unit];
    for (int lane = 0; lane < ESP__LANES; lane++)
        if (x->lanes >> lane & 1u && h->lane_end[lane] > start) start = h->lane_end[lane];
    x->due = (esp__span){start, start + x->ns};
    for (int lane = 0; lane < ESP__LANES; lane++)
        if (x->lanes >> lane & 1u) h->lane_end[lane] = x->due.end_ns;
    x->real.start_ns = esp__now_ns();
    x->state = ESP__HOLD_RUNS;
}

ESP__FN void esp__hold_start(esp_ctx *ctx, const esp__op *op) {
    esp__hold_begin_event(ctx, &ctx->holds->held[ctx->holds->event_of_op[op - ctx->in_force.program.ops]]);
}

ESP__FN int esp__hold_keep(esp_ctx *ctx, const esp__op *op) {
    uint32_t event = ctx->holds->event_of_op[op - ctx->in_force.program.ops];
    if (event == ESP__HOLD_NONE) return 0;
    ctx->holds->held[event].state = ESP__HOLD_HELD;
    return 1;
}

/* Units whose last tensor this is have their input. */
static void esp__hold_backward_over(esp_ctx *ctx, uint32_t tensor, uint64_t end) {
    const esp__tensor *t = &ctx->model.tensors[tensor];
    for (uint32_t u = t->first_unit; u < t->first_unit + t->n_units; u++) {
        const esp__extent *place = &ctx->in_force.strategy.units[u].place;
        if (place->first + place->n - 1 == tensor) ctx->holds->ready[u] = end;
    }
    ctx->holds->backward_end = end;
    ctx->holds->tensor = tensor + 1;
}

/* Its deadline is over: its lanes and its unit go on. */
static void esp__hold_end(esp_ctx *ctx, esp__held *x) {
    esp__holds *h = ctx->holds;
    uint64_t now = esp__now_ns(), deadline = esp__hold_deadline(h, x);
    int from_link = x->owner == ESP__HOLD_LINK;
    x->real.end_ns = now;
    x->state = ESP__HOLD_OVER;
    if (x->due.end_ns >= h->last_due) {
        h->last_due = x->due.end_ns;
        h->late_ns = now > deadline ? now - deadline : 0;
    }
    for (int lane = 0; lane < ESP__LANES; lane++) h->cursor[lane] += x->lanes >> lane & 1u;
    if (x->backward) {
        esp__hold_backward_over(ctx, x->unit, x->due.end_ns);
    } else {
        h->ready[x->unit] = x->due.end_ns;
        h->at[x->unit]++;
        if (x->op != ESP__HOLD_NONE)
            esp__op_done(ctx, &ctx->in_force.program.ops[x->op], x->real.start_ns, now);
        else
            esp__unit_ready(ctx, x->unit, now, from_link);
    }
    esp__hold_wake(ctx, from_link);
}

/* ---- the executor's threads ------------------------------------------------------------------------------------------------ */
/* One look at the head of a lane, for its thread. 1: the head has changed; *until: or its deadline is to come. */
static int esp__hold_look(esp_ctx *ctx, int lane, uint32_t owner, uint64_t *until) {
    esp__holds *h = ctx->holds;
    uint32_t event = esp__hold_head(h, lane);
    esp__held *x = event == ESP__HOLD_NONE ? NULL : &h->held[event];
    if (!x || x->owner != owner) return 0;
    if (x->op == ESP__HOLD_NONE && esp__hold_can_start(ctx, event)) {
        esp__hold_begin_event(ctx, x);
        x->state = ESP__HOLD_HELD;
    }
    if (x->state != ESP__HOLD_HELD) return 0;
    uint64_t deadline = esp__hold_deadline(h, x);
    if (esp__now_ns() < deadline) {
        if (!*until || deadline < *until) *until = deadline;
        return 0;
    }
    if (owner == ESP__HOLD_LINK && x->op != ESP__HOLD_NONE) esp__link_advance(ctx, &ctx->in_force.program.ops[x->op]);
    esp__hold_end(ctx, x);
    return 1;
}

ESP__FN const esp__op *esp__hold_cpu(esp_ctx *ctx, uint64_t *until) {
    esp__holds *h = ctx->holds;
    esp__hold_sharpen(h, ESP__HOLD_CPU);
    do {
        *until = 0;
    } while (esp__hold_look(ctx, ESP__LANE_COMPUTE, ESP__HOLD_CPU, until) ||
             esp__hold_look(ctx, ESP__LANE_CPU, ESP__HOLD_CPU, until));
    if (ctx->lanes.n_heap) {
        const esp__work_unit *u = &ctx->in_force.strategy.units[esp__heap_pop(ctx)];
        return &ctx->in_force.program.ops[u->first_op + u->pc];
    }
    for (int lane = ESP__LANE_COMPUTE; lane <= ESP__LANE_CPU; lane++) {
        uint32_t event = esp__hold_head(h, lane);
        if (!esp__hold_can_start(ctx, event) || h->held[event].owner != ESP__HOLD_CPU) continue;
        esp__hold_begin_event(ctx, &h->held[event]);
        return &ctx->in_force.program.ops[h->held[event].op];
    }
    return NULL;
}

ESP__FN uint64_t esp__hold_links(esp_ctx *ctx) {
    uint64_t until;
    esp__hold_sharpen(ctx->holds, ESP__HOLD_LINK);
    do {
        until = 0;
    } while (esp__hold_look(ctx, ESP__LANE_INTRA, ESP__HOLD_LINK, &until) ||
             esp__hold_look(ctx, ESP__LANE_INTER, ESP__HOLD_LINK, &until));
    return until;
}

/* ---- the caller: no lock held ----------------------------------------------------------------------------------------------- */
ESP__FN void esp__hold_begin(esp_ctx *ctx, uint64_t at_ns) {
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__holds *h = ctx->holds;
    if (h && !ctx->steps.open) {
        for (uint32_t i = 0; i < h->n; i++) {
            h->held[i].state = ESP__HOLD_WAITS;
            h->held[i].due = h->held[i].real = (esp__span){0, 0};
        }
        memset(h->cursor, 0, sizeof h->cursor);
        memset(h->lane_end, 0, sizeof h->lane_end);
        memset(h->at, 0, ctx->in_force.strategy.n_units * sizeof *h->at);
        memset(h->ready, 0, ctx->in_force.strategy.n_units * sizeof *h->ready);
        h->tensor = 0;
        h->backward_end = h->last_due = h->late_ns = 0;
        h->zero_ns = at_ns;
        h->step = ctx->steps.step;
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
}

static void esp__sleep_until(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

ESP__FN esp_status esp__hold_backward(esp_ctx *ctx, uint32_t id) {
    esp_status s = ESP_OK;
    esp__held *x = NULL;
    pthread_mutex_lock(&ctx->lanes.lock);
    if (!esp__hold_on(ctx)) {
        s = esp__fail(ctx, ESP_E_STATE, "hold: no step with holds was begun (esp__hold_set, then esp__hold_begin)");
    } else if (id != ctx->holds->tensor) {
        s = esp__fail(ctx, ESP_E_ARG, "hold: backward of tensor %u, but the next in order is %u of %u", id,
                      ctx->holds->tensor, ctx->model.n_tensors);
    } else {
        uint32_t event = ctx->holds->event_of_tensor[id];
        x = &ctx->holds->held[event];
        esp__wait_begin(ctx);
        while (!ctx->health.fatal && !esp__hold_can_start(ctx, event))
            pthread_cond_wait(&ctx->lanes.done_cv, &ctx->lanes.lock);
        ctx->lanes.waiters--;
        if (ctx->health.fatal)
            s = esp__dead(ctx);
        else
            esp__hold_begin_event(ctx, x);
    }
    uint64_t deadline = s ? 0 : esp__hold_deadline(ctx->holds, x);
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (s) return s;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    esp__sleep_until(deadline);
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__hold_end(ctx, x);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return ESP_OK;
}

/* ---- questions --------------------------------------------------------------------------------------------------------------- */
ESP__FN esp__span esp__hold_event_time(const esp_ctx *ctx, uint32_t event) {
    const esp__holds *h = ctx->holds;
    esp__span none = {0, 0};
    if (!h || event >= h->n) return none;
    const esp__held *x = &h->held[event];
    return (esp__span){esp__hold_scaled(h, x->due.start_ns), esp__hold_scaled(h, x->due.end_ns)};
}

ESP__FN esp__span esp__hold_event_real(const esp_ctx *ctx, uint32_t event) {
    const esp__holds *h = ctx->holds;
    esp__span none = {0, 0};
    if (!h || event >= h->n) return none;
    const esp__span *r = &h->held[event].real;
    return (esp__span){r->start_ns > h->zero_ns ? r->start_ns - h->zero_ns : 0,
                       r->end_ns > h->zero_ns ? r->end_ns - h->zero_ns : 0};
}

ESP__FN esp__span esp__hold_time(const esp_ctx *ctx, uint32_t op) {
    uint32_t none = !ctx->holds || op >= ctx->in_force.program.n_ops;
    return esp__hold_event_time(ctx, none ? ESP__HOLD_NONE : ctx->holds->event_of_op[op]);
}

ESP__FN esp__span esp__hold_backward_time(const esp_ctx *ctx, uint32_t tensor) {
    uint32_t none = !ctx->holds || tensor >= ctx->model.n_tensors;
    return esp__hold_event_time(ctx, none ? ESP__HOLD_NONE : ctx->holds->event_of_tensor[tensor]);
}

ESP__FN uint64_t esp__hold_late_ns(const esp_ctx *ctx) { return ctx->holds ? ctx->holds->late_ns : 0; }
