/* meter.c: measures when the pushes and ops of a step ran, for statistics, trace and autopilot. */
#include "espresso_impl/executor/executor.h"

ESP__FN void esp__meter_push(esp_ctx *ctx, esp__tensor *t, esp__span in_push) {
    if (ctx->steps.n_pushed == 1) {
        ctx->steps.clock.begin_ns = ctx->steps.clock.next_ns;
        ctx->steps.clock.first_push_ns = in_push.start_ns;
    }
    t->enter_ns = in_push.start_ns;
    t->leave_ns = ctx->steps.clock.last_push_ns = in_push.end_ns;
}

static void esp__meter_op(esp_ctx *ctx, const esp__op *op, esp__span real) {
    esp_stats *t = &ctx->steps.stats;
    uint64_t took = real.end_ns - real.start_ns;
    if (op->kind == ESP__OP_COMPRESS) t->compress_ns += took;
    if (op->kind == ESP__OP_DECOMPRESS) t->decompress_ns += took;
    if (op->kind != ESP__OP_COLLECTIVE) return;
    *(op->lane == ESP__LANE_INTRA ? &t->intra_ns : &t->inter_ns) += took;
    for (int k = 0; k < ESP__LEVELS; k++)
        if (op->collective.links >> k & 1u) t->level_ns[k] += took;
}

ESP__FN void esp__op_took(esp_ctx *ctx, const esp__op *op, esp__span real) {
    ctx->active.op_time[op - ctx->active.program.ops] = real;
    esp__meter_op(ctx, op, real);
    esp__observers_op_done(ctx, op, real);
}

ESP__FN void esp__devices_times(esp_ctx *ctx) {
    const esp__active *f = &ctx->active;
    for (uint32_t i = 0; i < f->program.n_ops && ctx->steps.timed; i++) {
        const esp__op *op = &f->program.ops[i];
        if (!op->timed_later) continue;
        const esp__memory_on *m = &f->on[op->on];
        const esp__device *d = m->device;
        void *begin = esp__op_event(f, op, ESP__EVENT_BEGIN), *end = esp__op_event(f, op, ESP__EVENT_END);
        uint64_t took = 0, ago = 0;
        if (d->table->elapsed(d->self, begin, end, &took) || d->table->elapsed(d->self, end, d->settled, &ago))
            took = ago = 0;
        esp__op_took(ctx, op, (esp__span){m->settled_ns - ago - took, m->settled_ns - ago});
    }
}

static uint64_t esp__span_take(esp__span s, uint64_t *from, uint64_t to) {
    uint64_t begin = s.start_ns > *from ? s.start_ns : *from, end = s.end_ns < to ? s.end_ns : to;
    if (end <= begin) return 0;
    *from = end;
    return end - begin;
}

/* Computes for how many ns between `from` and `to` a collective was running, and for how many only compression. */
static void esp__meter_exposed(const esp_ctx *ctx, uint64_t from, uint64_t to, uint64_t *communication,
                               uint64_t *compression) {
    uint64_t at = from, busy = 0;
    uint32_t k[ESP__LEVELS] = {0};
    *communication = 0;
    for (;;) {
        const esp__span *first = NULL;
        int lane = 0;
        for (int l = 0; l < ESP__LEVELS; l++) {
            if (k[l] >= ctx->active.n_sequence[l]) continue;
            const esp__span *s = &ctx->active.op_time[ctx->active.sequence[l][k[l]]];
            if (!first || s->start_ns < first->start_ns) first = s, lane = l;
        }
        if (!first) break;
        *communication += esp__span_take(*first, &at, to);
        k[lane]++;
    }
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        uint64_t begin = from;
        if (ctx->active.program.ops[i].kind != ESP__OP_COLLECTIVE)
            busy += esp__span_take(ctx->active.op_time[i], &begin, to);
    }
    uint64_t rest = to > from + *communication ? to - from - *communication : 0;
    *compression = busy < rest ? busy : rest;
}

ESP__FN void esp__meter_step(esp_ctx *ctx) {
    esp__step_clock *c = &ctx->steps.clock;
    uint64_t communication, compression;
    c->end_ns = esp__now_ns();
    if (!c->begin_ns) return;
    ctx->steps.stats.step_ns += c->end_ns - c->begin_ns;
    ctx->steps.stats.backward_ns += c->last_push_ns - c->first_push_ns;
    esp__meter_exposed(ctx, c->last_push_ns, c->end_ns, &communication, &compression);
    ctx->steps.stats.exposed_communication_ns += communication;
    ctx->steps.stats.exposed_compression_ns += compression;
}

ESP__FN void esp__meter_ready(const esp_ctx *ctx, uint64_t *out) {
    uint64_t before = 0, inside = 0; /* Sum of the times that earlier pushes took. */
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        uint64_t ready =
            t->enter_ns > ctx->steps.clock.begin_ns + inside ? t->enter_ns - ctx->steps.clock.begin_ns - inside : 0;
        out[i] = before = ready > before ? ready : before;
        inside += t->leave_ns - t->enter_ns;
    }
}
