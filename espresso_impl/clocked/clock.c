/* clock.c: the dispatcher of clocked execution: which event is next on every lane, and from when to when it keeps its lanes.
 * An event begins when the event before it in its unit's chain has ended, and those before it have given up its lanes: a core after
 * their core time, a link after their gap (docs/planner.md, "Rules of time"). Deadlines count, not real ends, so that delays in waking
 * a thread do not add up, and a step catches up after real work that took longer than planned. Real work that is late keeps a link,
 * which has one request at a time, and delays its unit; it does not keep a core.
 * Must not know what ops do. Lock held in all functions that do not say otherwise. */
#include "espresso_impl/clocked/clocked.h"
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

static uint64_t esp__clocked_scaled(const esp__clocked *h, uint64_t ns) {
    return (uint64_t)((double)ns * h->scale + 0.5);
}
/* The same moment of esp__now_ns; `ns` counts from the begin of backward. */
static uint64_t esp__clocked_deadline(const esp__clocked *h, uint64_t ns) {
    return h->zero_ns + esp__clocked_scaled(h, ns);
}

/* Makes the calling thread's sleeps precise: by default the system may wake it 50 us late. */
static void esp__clocked_sharpen(esp__clocked *h, uint32_t who) {
    if (h->sharp >> who & 1u) return;
    h->sharp |= 1u << who;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
}

/* ---- which event is next ------------------------------------------------------------------------------------------------- */
static uint32_t esp__clocked_head(const esp__clocked *h, int lane) {
    return h->cursor[lane] < h->lane_n[lane] ? h->lane[lane][h->cursor[lane]] : ESP__CLOCKED_NONE;
}

/* Is the event its unit's next one? If this rank has no op for it, the unit's copies that are not in the plan come first. */
static int esp__clocked_unit_at(const esp_ctx *ctx, const esp__clocked_event *x) {
    const esp__clocked *h = ctx->clocked;
    const esp__work_unit *u = &ctx->in_force.strategy.units[x->unit];
    uint32_t op = u->first_op + u->pc;
    if (u->phase != ESP__PUSHED || h->at[x->unit] != x->place) return 0;
    if (x->op == ESP__CLOCKED_NONE) return u->pc == u->n_ops || h->event_of_op[op] != ESP__CLOCKED_NONE;
    return x->op == op && !esp__op_awaits_push(ctx, &ctx->in_force.program.ops[op]);
}

static int esp__clocked_can_start(const esp_ctx *ctx, uint32_t event) {
    const esp__clocked *h = ctx->clocked;
    if (event == ESP__CLOCKED_NONE || h->event[event].state != ESP__CLOCKED_WAITS) return 0;
    for (int lane = 0; lane < ESP__LANES; lane++)
        if (h->event[event].lanes >> lane & 1u && esp__clocked_head(h, lane) != event) return 0;
    return h->event[event].backward || esp__clocked_unit_at(ctx, &h->event[event]);
}

static int esp__clocked_turn(const esp_ctx *ctx, const esp__op *op) {
    return esp__clocked_can_start(ctx, ctx->clocked->event_of_op[op - ctx->in_force.program.ops]);
}

/* Wakes the threads that have something to start. */
static void esp__clocked_wake(esp_ctx *ctx, int from_link) {
    const esp__clocked *h = ctx->clocked;
    for (int lane = 0; lane < ESP__LANES; lane++) {
        uint32_t event = esp__clocked_head(h, lane);
        if (!esp__clocked_can_start(ctx, event)) continue;
        if (h->event[event].owner == ESP__CLOCKED_CALLER)
            pthread_cond_broadcast(&ctx->lanes.done_cv);
        else if (h->event[event].owner == ESP__CLOCKED_CPU)
            pthread_cond_signal(&ctx->lanes.cpu_cv);
        else if (!from_link)
            esp__link_wake(ctx);
    }
}

static void esp__clocked_unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, int from_link) {
    const esp__clocked *h = ctx->clocked;
    esp__work_unit *u = &ctx->in_force.strategy.units[unit];
    uint32_t op = u->first_op + u->pc,
             last = u->place.n > u->pc ? u->place.first + u->pc : u->place.first + u->place.n - 1;
    if (h->tensor <= last && ctx->model.tensors[last].phase >= ESP__PUSHED) {
        esp__fatal_locked(ctx, ESP_E_STATE, "a tensor was pushed in a clocked step before its esp__clocked_backward");
    } else if (u->pc < u->n_ops && h->event_of_op[op] == ESP__CLOCKED_NONE) { /* takes no lane and no time */
        if (esp__op_awaits_push(ctx, &ctx->in_force.program.ops[op])) return;
        esp__ready_push(ctx, unit, now);
    } else if (u->pc == u->n_ops && h->at[unit] == h->first[unit + 1] - h->first[unit]) {
        esp__unit_done(ctx, u);
    } else {
        esp__clocked_wake(ctx, from_link);
    }
}

/* ---- from when to when ---------------------------------------------------------------------------------------------------- */
static uint64_t esp__clocked_kept(const esp__clocked_event *x, int lane) {
    return ESP__CORE_LANES >> lane & 1 ? x->core_ns : x->link_ns;
}

ESP__FN void esp__clocked_take(esp__clocked *h, esp__clocked_event *x) {
    uint64_t start = x->backward ? h->backward_end : h->ready[x->unit];
    for (int lane = 0; lane < ESP__LANES; lane++)
        if (x->lanes >> lane & 1u && h->lane_end[lane] > start) start = h->lane_end[lane];
    x->due = (esp__span){start, start + x->ns};
    for (int lane = 0; lane < ESP__LANES; lane++)
        if (x->lanes >> lane & 1u) h->lane_end[lane] = start + esp__clocked_kept(x, lane);
}

ESP__FN void esp__clocked_hand_on(const esp_ctx *ctx, esp__clocked *h, const esp__clocked_event *x) {
    if (!x->backward) {
        h->ready[x->unit] = x->due.end_ns;
        h->at[x->unit]++;
        return;
    }
    const esp__tensor_units *t = &ctx->in_force.strategy.of_tensor[x->unit];
    for (uint32_t u = t->first; u < t->first + t->n; u++) { /* those whose last tensor it is have their input */
        const esp__extent *place = &ctx->in_force.strategy.units[u].place;
        if (place->first + place->n - 1 == x->unit) h->ready[u] = x->due.end_ns;
    }
    h->backward_end = x->due.end_ns;
    h->tensor = x->unit + 1;
}

ESP__FN void esp__clocked_reset(const esp_ctx *ctx, esp__clocked *h) {
    for (uint32_t i = 0; i < h->n; i++) {
        h->event[i].state = ESP__CLOCKED_WAITS;
        h->event[i].held = 0;
        h->event[i].due = h->event[i].real = (esp__span){0, 0};
    }
    memset(h->cursor, 0, sizeof h->cursor);
    memset(h->lane_end, 0, sizeof h->lane_end);
    memset(h->in_flight, 0xff, sizeof h->in_flight);
    memset(h->at, 0, ctx->in_force.strategy.n_units * sizeof *h->at);
    memset(h->ready, 0, ctx->in_force.strategy.n_units * sizeof *h->ready);
    h->tensor = 0;
    h->backward_end = 0;
}

/* ---- begin and end -------------------------------------------------------------------------------------------------------- */
static void esp__clocked_begin_event(esp_ctx *ctx, esp__clocked_event *x) {
    esp__clocked *h = ctx->clocked;
    esp__clocked_take(h, x);
    x->real.start_ns = esp__now_ns();
    x->state = ESP__CLOCKED_RUNS;
    x->held = x->lanes;
    x->next = h->in_flight[x->owner];
    h->in_flight[x->owner] = (uint32_t)(x - h->event);
}

static void esp__clocked_start(esp_ctx *ctx, const esp__op *op) {
    esp__clocked_begin_event(ctx, &ctx->clocked->event[ctx->clocked->event_of_op[op - ctx->in_force.program.ops]]);
}

static int esp__clocked_keep(esp_ctx *ctx, const esp__op *op) {
    uint32_t event = ctx->clocked->event_of_op[op - ctx->in_force.program.ops];
    if (event == ESP__CLOCKED_NONE) return 0;
    ctx->clocked->event[event].state = ESP__CLOCKED_WORKED;
    return 1;
}

/* Gives up those of the event's lanes. */
static void esp__clocked_release(esp_ctx *ctx, esp__clocked_event *x, uint32_t lanes) {
    esp__clocked *h = ctx->clocked;
    for (int lane = 0; lane < ESP__LANES; lane++) h->cursor[lane] += lanes >> lane & 1u;
    x->held &= (uint8_t)~lanes;
    if (lanes & ESP__LINK_LANES && x->op != ESP__CLOCKED_NONE)
        esp__link_advance(ctx, &ctx->in_force.program.ops[x->op]);
}

/* The event's deadline has passed, and its work is done: its unit continues. */
static void esp__clocked_end(esp_ctx *ctx, esp__clocked_event *x) {
    esp__clocked *h = ctx->clocked;
    const uint64_t now = esp__now_ns();
    const int from_link = x->owner == ESP__CLOCKED_LINK;
    uint32_t *in_flight = &h->in_flight[x->owner];
    while (*in_flight != (uint32_t)(x - h->event)) in_flight = &h->event[*in_flight].next;
    *in_flight = x->next;
    x->real.end_ns = now;
    x->state = ESP__CLOCKED_OVER;
    esp__clocked_release(ctx, x, x->held);
    esp__clocked_hand_on(ctx, h, x);
    if (x->op != ESP__CLOCKED_NONE)
        esp__op_ended(ctx, &ctx->in_force.program.ops[x->op], (esp__span){x->real.start_ns, now});
    else if (!x->backward)
        esp__clocked_unit_ready(ctx, x->unit, now, from_link);
    esp__clocked_wake(ctx, from_link);
}

/* ---- the executor's threads ------------------------------------------------------------------------------------------------ */
/* Has this moment of the event passed? Otherwise *until is no later. */
static int esp__clocked_passed(const esp__clocked *h, uint64_t ns, uint64_t now, uint64_t *until) {
    const uint64_t deadline = esp__clocked_deadline(h, ns);
    if (now < deadline && (!*until || deadline < *until)) *until = deadline;
    return now >= deadline;
}

/* Begins an event of the thread `owner` that has no op here, if one can start. */
static int esp__clocked_begin_empty(esp_ctx *ctx, uint32_t owner) {
    for (int lane = 0; lane < ESP__LANES; lane++) {
        const uint32_t event = esp__clocked_head(ctx->clocked, lane);
        esp__clocked_event *x = event == ESP__CLOCKED_NONE ? NULL : &ctx->clocked->event[event];
        if (!x || x->owner != owner || x->op != ESP__CLOCKED_NONE || !esp__clocked_can_start(ctx, event)) continue;
        esp__clocked_begin_event(ctx, x);
        x->state = ESP__CLOCKED_WORKED;
        return 1;
    }
    return 0;
}

/* Gives up the lanes that the event has kept for long enough, or ends it. 1: it did; 0: nothing to do before *until. */
static int esp__clocked_go_on(esp_ctx *ctx, esp__clocked_event *x, uint64_t *until) {
    const esp__clocked *h = ctx->clocked;
    const uint64_t now = esp__now_ns(), start = x->due.start_ns;
    const uint32_t cores = x->held & ESP__CORE_LANES, links = x->held & ESP__LINK_LANES;
    const int worked = x->state == ESP__CLOCKED_WORKED;
    if (worked && esp__clocked_passed(h, x->due.end_ns, now, until)) {
        esp__clocked_end(ctx, x);
        return 1;
    }
    uint32_t free = cores && esp__clocked_passed(h, start + x->core_ns, now, until) ? cores : 0;
    if (worked && links && esp__clocked_passed(h, start + x->link_ns, now, until)) free |= links;
    if (!free) return 0;
    esp__clocked_release(ctx, x, free);
    esp__clocked_wake(ctx, x->owner == ESP__CLOCKED_LINK);
    return 1;
}

/* Looks at what has begun, for the thread `owner`. 1: something changed; 0: nothing to do before *until. */
static int esp__clocked_look(esp_ctx *ctx, uint32_t owner, uint64_t *until) {
    const esp__clocked *h = ctx->clocked;
    *until = 0;
    if (esp__clocked_begin_empty(ctx, owner)) return 1;
    for (uint32_t i = h->in_flight[owner]; i != ESP__CLOCKED_NONE; i = h->event[i].next)
        if (esp__clocked_go_on(ctx, &ctx->clocked->event[i], until)) return 1;
    return 0;
}

static const esp__op *esp__clocked_cpu(esp_ctx *ctx, uint64_t *until) {
    esp__clocked *h = ctx->clocked;
    if (!esp__clocked_on(ctx)) return NULL;
    esp__clocked_sharpen(h, ESP__CLOCKED_CPU);
    while (esp__clocked_look(ctx, ESP__CLOCKED_CPU, until)) {
    }
    const esp__op *untimed = esp__ready_pop(ctx); /* copies that are not in the plan occupy no lane */
    if (untimed) return untimed;
    for (int lane = ESP__LANE_COMPUTE; lane <= ESP__LANE_CPU; lane++) {
        uint32_t event = esp__clocked_head(h, lane);
        if (!esp__clocked_can_start(ctx, event) || h->event[event].owner != ESP__CLOCKED_CPU) continue;
        esp__clocked_begin_event(ctx, &h->event[event]);
        return &ctx->in_force.program.ops[h->event[event].op];
    }
    return NULL;
}

static uint64_t esp__clocked_links(esp_ctx *ctx) {
    uint64_t until;
    esp__clocked_sharpen(ctx->clocked, ESP__CLOCKED_LINK);
    while (esp__clocked_look(ctx, ESP__CLOCKED_LINK, &until)) {
    }
    return until;
}

/* The link thread asks for the outermost lane first: that call ends ops and frees lanes whose deadlines have passed. */
static const esp__op *esp__clocked_link(esp_ctx *ctx, int lane, uint64_t *until) {
    if (!esp__clocked_on(ctx)) return NULL;
    if (lane + 1 == (int)ctx->job.topo.n_levels) *until = esp__clocked_links(ctx);
    const esp__op *op = esp__link_startable(ctx, lane);
    if (!op || !esp__clocked_turn(ctx, op)) return NULL;
    esp__clocked_start(ctx, op);
    return op;
}

/* An op of the plan keeps its lanes, and its unit waits, until their deadlines. A copy that is not in the plan ends at once. */
static void esp__clocked_ended(esp_ctx *ctx, const esp__op *op, esp__span real) {
    if (!esp__clocked_keep(ctx, op)) esp__ready_first()->ended(ctx, op, real);
}

static const esp__dispatcher esp__clocked_dispatcher = {
    "clocked", 0, 0, esp__clocked_unit_ready, esp__clocked_cpu, esp__clocked_link, esp__clocked_ended};

ESP__FN void esp__clocked_drop(esp_ctx *ctx) {
    if (!ctx->clocked) return;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.dispatcher = esp__ready_first();
    pthread_mutex_unlock(&ctx->lanes.lock);
    esp__clocked_swap(ctx, NULL);
}

/* ---- the caller: no lock held ----------------------------------------------------------------------------------------------- */
ESP__FN void esp__clocked_begin(esp_ctx *ctx, uint64_t at_ns) {
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__clocked *h = ctx->clocked;
    if (h && !ctx->steps.open && !ctx->lanes.caller_only) { /* the link thread runs clocked ops */
        ctx->lanes.dispatcher = &esp__clocked_dispatcher;
        esp__clocked_reset(ctx, h);
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

ESP__FN esp_status esp__clocked_backward(esp_ctx *ctx, uint32_t id) {
    esp_status s = ESP_OK;
    esp__clocked_event *x = NULL;
    pthread_mutex_lock(&ctx->lanes.lock);
    if (!esp__clocked_on(ctx)) {
        s = esp__fail(ctx, ESP_E_STATE,
                      "clocked execution: no clocked step was begun (esp__clocked_set, then esp__clocked_begin)");
    } else if (id != ctx->clocked->tensor) {
        s = esp__fail(ctx, ESP_E_ARG, "clocked execution: backward of tensor %u, but the next in order is %u of %u", id,
                      ctx->clocked->tensor, ctx->model.n_tensors);
    } else {
        uint32_t event = ctx->clocked->event_of_tensor[id];
        x = &ctx->clocked->event[event];
        esp__wait_begin(ctx);
        while (!ctx->health.fatal && !esp__clocked_can_start(ctx, event))
            pthread_cond_wait(&ctx->lanes.done_cv, &ctx->lanes.lock);
        ctx->lanes.waiters--;
        if (ctx->health.fatal)
            s = esp__dead(ctx);
        else
            esp__clocked_begin_event(ctx, x);
    }
    uint64_t deadline = s ? 0 : esp__clocked_deadline(ctx->clocked, x->due.end_ns);
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (s) return s;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    esp__sleep_until(deadline);
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__clocked_end(ctx, x);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return ESP_OK;
}

/* ---- questions --------------------------------------------------------------------------------------------------------------- */
ESP__FN esp__span esp__clocked_event_real(const esp_ctx *ctx, uint32_t event) {
    const esp__clocked *h = ctx->clocked;
    esp__span none = {0, 0};
    if (!h || event >= h->n) return none;
    const esp__span *r = &h->event[event].real;
    return (esp__span){r->start_ns > h->zero_ns ? r->start_ns - h->zero_ns : 0,
                       r->end_ns > h->zero_ns ? r->end_ns - h->zero_ns : 0};
}
