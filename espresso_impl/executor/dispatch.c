/* dispatch.c: decides which operation runs next. Compressions, decompressions and copies run in the order in which
 * they become ready. Collectives run in the order of the strategy, which is the same on all ranks. The caller of
 * these functions holds the lock. */
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/executor/observer.h"

enum { ESP__PENDING_LOOK_NS = 20000 }; /* testing a device event costs about 1 us */

/* ---- compress, decompress and copy ops that are ready ------------------------------------------------------------ */
static void esp__ready_push(esp_ctx *ctx, uint32_t unit, uint64_t now) {
    esp__heap_push(&ctx->active.ready, now, unit);
    if (!ctx->lanes.caller_drives) pthread_cond_signal(&ctx->lanes.cpu_cv);
}

static const esp__op *esp__ready_pop(esp_ctx *ctx) {
    if (!ctx->active.ready.n) return NULL;
    const esp__unit *u = &ctx->active.strategy.units[esp__heap_pop(&ctx->active.ready).key];
    return &ctx->active.program.ops[u->first_op + u->pc];
}

/* ---- links ------------------------------------------------------------------------------------------------------- */
static bool esp__op_is_next(const esp_ctx *ctx, const esp__op *op) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    return u->phase == ESP__PUSHED && &ctx->active.program.ops[u->first_op + u->pc] == op &&
           !esp__unit_waits(&ctx->active, u);
}

static const esp__op *esp__link_startable(const esp_ctx *ctx, int lane) {
    const esp__op *op = esp__link_head(ctx, lane);
    if (!op || ctx->lanes.links[lane].busy || !esp__op_is_next(ctx, op)) return NULL;
    if (op->lane != ESP__LANE_INTRA + lane) return NULL;
    for (int k = 0; k < lane; k++)
        if (op->collective.links >> k & 1u && (ctx->lanes.links[k].busy || esp__link_head(ctx, k) != op)) return NULL;
    return op;
}

static bool esp__link_any(const esp_ctx *ctx) {
    for (int k = 0; k < (int)ctx->job.topo.n_levels; k++)
        if (esp__link_startable(ctx, k)) return true;
    return false;
}

static bool esp__op_awaits_push(const esp_ctx *ctx, const esp__op *op) {
    return esp__op_is_copy(op, ESP__COPY_PACK) && ctx->model.tensors[op->copy.member].phase < ESP__PUSHED;
}

static void esp__link_wake(esp_ctx *ctx) {
    const bool caller = ctx->lanes.caller_drives;
    if (ctx->lanes.link_busy && (!caller || ctx->lanes.driving)) esp__comms_wake(ctx);
    if (!caller) pthread_cond_signal(&ctx->lanes.link_cv);
}

static void esp__link_advance(esp_ctx *ctx, const esp__op *op) {
    for (int k = 0; k < ESP__LEVELS; k++) {
        if (!(op->collective.links >> k & 1u)) continue;
        ctx->lanes.links[k].cursor++;
        ctx->lanes.links[k].busy = false;
    }
}

/* ---- work that a device's stream does after a collective --------------------------------------------------------- */
static bool esp__all_behind(const esp_ctx *ctx, const esp__op *collective, const esp__op *next) {
    const esp__unit *u = &ctx->active.strategy.units[collective->unit];
    if (next == &ctx->active.program.ops[u->first_op + u->n_ops]) return false;
    for (const esp__op *op = collective + 1; op <= next; op++)
        if (!esp__op_behind(op)) return false;
    return true;
}

/* Returns the next operation to enqueue on a stream that waits for a collective. All ranks enqueue these operations
 * in the same order, and only after all earlier collectives were started. Otherwise ranks could deadlock where
 * streams share a hardware queue. */
static const esp__op *esp__behind_next(esp_ctx *ctx) {
    esp__active *f = &ctx->active;
    for (; f->has_behind && f->behind < f->n_order; f->behind++) {
        const esp__op *c = &f->program.ops[f->order[f->behind]];
        const esp__unit *u = &f->strategy.units[c->unit];
        const esp__op *next = &f->program.ops[u->first_op + u->pc];
        const int lane = c->lane - ESP__LANE_INTRA;
        const bool started = next > c || (ctx->lanes.links[lane].busy && esp__link_head(ctx, lane) == c);
        if (!started || (next <= c && esp__stream_ordered(c))) return NULL;
        if (next > c && esp__all_behind(ctx, c, next)) return next;
    }
    return NULL;
}

static void esp__behind_wake(esp_ctx *ctx) {
    if (ctx->active.has_behind && !ctx->lanes.caller_drives) pthread_cond_signal(&ctx->lanes.cpu_cv);
}

/* ---- an op has run ----------------------------------------------------------------------------------------------- */
static void esp__unit_done(esp_ctx *ctx, esp__unit *u) {
    u->phase = ESP__DONE;
    for (uint32_t k = u->place.first; k < u->place.first + u->place.n; k++)
        if (--ctx->model.tensors[k].units_left == 0) {
            ctx->model.tensors[k].phase = ESP__DONE;
            ctx->steps.n_done++;
        }
    if (ctx->lanes.waiters_one || (ctx->lanes.waiters && ctx->steps.n_done == ctx->model.n_tensors))
        pthread_cond_broadcast(&ctx->lanes.done_cv);
}

/* ---- what is next ------------------------------------------------------------------------------------------------ */
ESP__FN void esp__unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, bool from_link) {
    esp__unit *u = &ctx->active.strategy.units[unit];
    const esp__op *op = &ctx->active.program.ops[u->first_op + u->pc];
    if (u->pc == u->n_ops) {
        esp__unit_done(ctx, u);
    } else if (esp__unit_waits(&ctx->active, u)) {
        ctx->active.pending[ctx->active.n_pending++] = unit;
        if (!ctx->lanes.caller_drives) pthread_cond_signal(&ctx->lanes.cpu_cv);
    } else if (op->kind == ESP__OP_COLLECTIVE) {
        if (!from_link && esp__link_any(ctx)) esp__link_wake(ctx);
    } else if (!esp__op_awaits_push(ctx, op) && !esp__op_behind(op)) {
        esp__ready_push(ctx, unit, now);
    }
}

static void esp__pending_poll(esp_ctx *ctx) {
    esp__active *f = &ctx->active;
    for (uint32_t i = 0; i < f->n_pending;) {
        const uint32_t unit = f->pending[i];
        const esp_status s = esp__unit_passed(ctx, &f->strategy.units[unit]);
        if (s == ESP_PENDING) {
            i++;
            continue;
        }
        f->pending[i] = f->pending[--f->n_pending];
        f->strategy.units[unit].after = NULL;
        if (s)
            esp__fatal_locked(ctx, s, esp_last_error(ctx));
        else
            esp__unit_ready(ctx, unit, esp__now_ns(), false);
    }
}

ESP__FN const esp__op *esp__next_cpu(esp_ctx *ctx, uint64_t *until) {
    if (ctx->active.n_pending) esp__pending_poll(ctx);
    *until = ctx->active.n_pending ? esp__now_ns() + ESP__PENDING_LOOK_NS : 0;
    const esp__op *behind = esp__behind_next(ctx);
    return behind ? behind : esp__ready_pop(ctx);
}

ESP__FN const esp__op *esp__next_link(esp_ctx *ctx, int lane) {
    const esp__op *op = esp__link_startable(ctx, lane);
    if (op && !esp__stream_ordered(op)) esp__behind_wake(ctx);
    return op;
}

ESP__FN void esp__op_ended(esp_ctx *ctx, const esp__op *op, esp__span real) {
    const bool collective = op->kind == ESP__OP_COLLECTIVE;
    if (collective) esp__link_advance(ctx, op);
    if (!op->timed_later) esp__op_took(ctx, op, real);
    ctx->active.strategy.units[op->unit].pc++;
    esp__unit_ready(ctx, op->unit, real.end_ns, collective);
    if (collective) esp__behind_wake(ctx);
}
