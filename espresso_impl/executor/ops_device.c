/* ops_device.c: ops on the memory of a device: enqueues them on its streams, and chains the ops of a unit by events. The host waits
 * for an event only where it touches the data itself. Knows nothing of lanes and peers. */
#include "espresso_impl/executor/executor.h"

static esp__unit *esp__unit_of(esp_ctx *ctx, const esp__op *op) { return &ctx->active.strategy.units[op->unit]; }

/* The error of a call of `device`'s table. What failed is op, or earlier work on that device: a kernel that found a corrupt payload, say,
 * of which every call may tell that comes after it. */
static esp_status esp__op_failed(const esp_ctx *ctx, uint32_t device, const esp__op *op, esp_status s,
                                 const char *before) {
    char what[ESP__ERROR_MAX / 4];
    if (!s || s == ESP_PENDING) return s;
    snprintf(what, sizeof what, "rank %d: %s'%.300s', or work before it,", (int)ctx->job.rank, before, op->label);
    return esp__device_failed(ctx, device, s, what);
}

/* Of the unit's events: the op that its last event ends. */
ESP__FN esp_status esp__unit_failed(const esp_ctx *ctx, const esp__unit *u, esp_status s) {
    const esp__op *op = &ctx->active.program.ops[u->first_op + (u->pc ? u->pc - 1 : 0)];
    return esp__op_failed(ctx, u->device, op, s, u->pc ? "" : "the trainer's work before ");
}

/* Waits until the host has seen the event behind the unit's last op. */
static esp_status esp__unit_settle(esp_ctx *ctx, esp__unit *u) {
    const esp__device *d = esp__device_at(ctx, u->device);
    void *event = u->after;
    u->after = NULL;
    return event ? esp__unit_failed(ctx, u, d->table->event_sync(d->self, event)) : ESP_OK;
}

ESP__FN esp_status esp__op_begin(esp_ctx *ctx, const esp__op *op, int stream) {
    esp__unit *u = esp__unit_of(ctx, op);
    const esp__device *d = esp__device_at(ctx, u->device);
    esp_status s = ESP_OK;
    if (!op->on) return esp__unit_settle(ctx, u);
    if (u->after && u->after_on != stream) s = d->table->event_wait(d->self, u->after, d->stream[stream]);
    if (!s && op->kind == ESP__OP_COPY && op->copy == ESP__COPY_PACK && ctx->model.tensors[op->member].ordered)
        s = d->table->event_wait(d->self, ctx->model.tensors[op->member].pushed, d->stream[stream]);
    /* a copy up in pieces has begun with the op before */
    if (!s && esp__op_timed_later(ctx, op) && !(op->n_pieces && op->copy == ESP__COPY_UP))
        s = d->table->event_record(d->self, ctx->active.on[op->on].events[2 * op->event], d->stream[stream]);
    return esp__op_failed(ctx, u->device, op, s, "");
}

/* ---- pieces ----------------------------------------------------------------------------------------------------------------- */
/* Is `copy`, a neighbour of op, the copy in whose pieces op works? The other neighbour may be a copy of payloads. */
static int esp__piece_pair(const esp__op *op, const esp__op *copy, uint8_t kind) {
    return copy->copy == kind && copy->n_pieces && copy->first_piece == op->first_piece;
}

static const esp__copy_piece *esp__piece_of(const esp_ctx *ctx, const esp__op *op, uint32_t k) {
    return &ctx->active.program.pieces[op->first_piece + k];
}

/* Of the end of piece k of a copy down. */
static void *esp__piece_event(esp_ctx *ctx, const esp__op *op, uint32_t k) {
    return ctx->active.on[esp__unit_of(ctx, op)->device].events[2 * esp__piece_of(ctx, op, k)->event + 1];
}

static esp_status esp__piece_copy(const esp_ctx *ctx, const esp__op *copy, uint32_t k) {
    const esp__device *d = esp__device_at(ctx, copy->on);
    const esp__copy_piece *x = esp__piece_of(ctx, copy, k);
    return d->table->copy(d->self, esp__at(ctx, copy, copy->dst) + x->offset, esp__at(ctx, copy, copy->src) + x->offset,
                          x->bytes, d->stream[copy->stream]);
}

/* Enqueues a copy down, with an event behind each piece. */
static esp_status esp__pieces_enqueue(esp_ctx *ctx, const esp__op *copy) {
    const esp__device *d = esp__device_at(ctx, copy->on);
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < copy->n_pieces && !s; k++) {
        s = esp__piece_copy(ctx, copy, k);
        if (!s) s = d->table->event_record(d->self, esp__piece_event(ctx, copy, k), d->stream[copy->stream]);
    }
    return s;
}

/* Piece 0 was there when the op began. The others follow it in the same stream, so this wait is short. */
ESP__FN esp_status esp__piece_wait(esp_ctx *ctx, const esp__op *op, uint32_t k) {
    const esp__unit *u = esp__unit_of(ctx, op);
    const esp__device *d = esp__device_at(ctx, u->device);
    if (!k || !esp__piece_pair(op, op - 1, ESP__COPY_DOWN)) return ESP_OK;
    return esp__unit_failed(ctx, u, d->table->event_sync(d->self, esp__piece_event(ctx, op, k)));
}

ESP__FN esp_status esp__piece_made(esp_ctx *ctx, const esp__op *op, uint32_t k) {
    const esp__op *copy = op + 1;
    if (!esp__piece_pair(op, copy, ESP__COPY_UP)) return ESP_OK;
    const esp__device *d = esp__device_at(ctx, copy->on);
    esp_status s = ESP_OK;
    if (!k && esp__op_timed_later(ctx, copy))
        s = d->table->event_record(d->self, ctx->active.on[copy->on].events[2 * copy->event], d->stream[copy->stream]);
    if (!s) s = esp__piece_copy(ctx, copy, k);
    return esp__op_failed(ctx, copy->on, copy, s, "");
}

ESP__FN esp_status esp__op_issued(esp_ctx *ctx, const esp__op *op, int stream) {
    esp__unit *u = esp__unit_of(ctx, op);
    const esp__device *d = esp__device_at(ctx, op->on);
    const esp__memory_on *m = &ctx->active.on[op->on];
    esp_status s = ESP_OK;
    if (op->kind == ESP__OP_COMPRESS && op->round + 1u == op->n_rounds)
        s = d->table->copy2d(d->self, m->headers + (uint64_t)op->first_header * ESP_PAYLOAD_HEADER, ESP_PAYLOAD_HEADER,
                             esp__at(ctx, op, op->slots), op->slot_bytes, ESP_PAYLOAD_HEADER, op->n_ranges,
                             d->stream[stream]);
    u->after = m->events[2 * op->event + 1];
    if (!s) s = d->table->event_record(d->self, u->after, d->stream[stream]);
    u->after_on = stream;
    /* the host goes on with the first piece */
    if (op->n_pieces && op->copy == ESP__COPY_DOWN) u->after = esp__piece_event(ctx, op, 0);
    return esp__op_failed(ctx, op->on, op, s, "");
}

/* Between the tensors of a group and its memory. */
static esp_status esp__group_enqueue(esp_ctx *ctx, const esp__op *op, const esp__device *d) {
    const esp__unit *u = esp__unit_of(ctx, op);
    const esp_stream on = d->stream[op->stream];
    const uint64_t e = esp_dtype_bytes(u->dtype);
    const esp__tensor *t = &ctx->model.tensors[op->member];
    uint8_t *at = u->data;
    esp_status s = ESP_OK;
    if (op->copy == ESP__COPY_PACK) return d->table->copy(d->self, at + op->begin * e, t->grad, t->count * e, on);
    t = &ctx->model.tensors[u->place.first];
    for (uint32_t k = 0; k < u->place.n && !s; at += t[k].count * e, k++)
        s = d->table->copy(d->self, t[k].grad, at, t[k].count * e, on);
    return s;
}

/* [outer][mid][inner] -> [mid][outer][inner] */
static esp_status esp__swap_enqueue(esp_ctx *ctx, const esp__op *op, const esp__device *d) {
    const uint64_t run = op->inner * op->slot_bytes;
    esp_status s = ESP_OK;
    for (uint64_t m = 0; m < op->mid && !s; m++)
        s = d->table->copy2d(d->self, esp__at(ctx, op, op->dst) + m * op->outer * run, run,
                             esp__at(ctx, op, op->src) + m * run, op->mid * run, run, op->outer, d->stream[op->stream]);
    return s;
}

ESP__FN esp_status esp__copy_enqueue(esp_ctx *ctx, const esp__op *op) {
    const esp__unit *u = esp__unit_of(ctx, op);
    const esp__device *d = esp__device_at(ctx, op->on);
    const esp_stream on = d->stream[op->stream];
    const uint64_t e = esp_dtype_bytes(u->dtype);
    uint8_t *grad = esp__at(ctx, op, op->grad), *work = esp__at(ctx, op, op->data);
    esp_status s = ESP_E_UNSUPPORTED;
    if (grad) grad += op->begin * e;
    if (work) work += op->begin * 4u;
    switch (op->copy) {
    case ESP__COPY_DOWN:
    case ESP__COPY_UP:
        if (op->n_pieces) { /* the op before a copy up has enqueued it piece by piece */
            s = op->copy == ESP__COPY_UP ? ESP_OK : esp__pieces_enqueue(ctx, op);
            break;
        }
        s = d->table->copy(d->self, esp__at(ctx, op, op->dst), esp__at(ctx, op, op->src), op->length, on);
        break;
    case ESP__COPY_SWAP: s = esp__swap_enqueue(ctx, op, d); break;
    case ESP__COPY_PACK:
    case ESP__COPY_UNPACK: s = esp__group_enqueue(ctx, op, d); break;
    case ESP__COPY_TO_F32:
        s = d->table->convert(d->self, work, ESP_F32, grad, u->dtype, op->scale, 0, op->length, on);
        break;
    case ESP__COPY_FROM_F32:
        s = d->table->convert(d->self, grad, u->dtype, work, ESP_F32, op->scale, 0, op->length, on);
        break;
    case ESP__COPY_SCALE:
        s = d->table->convert(d->self, grad, u->dtype, grad, u->dtype, op->scale, 0, op->length, on);
        break;
    case ESP__COPY_FINALIZE:
        s = u->device_codec->table->finalize(u->device_codec->self, (float *)(void *)work, op->length,
                                             (uint32_t)ctx->job.size, on);
        break;
    default: break;
    }
    return esp__op_failed(ctx, op->on, op, s, "");
}

ESP__FN int esp__unit_waits(const esp_ctx *ctx, const esp__unit *u) {
    const esp__op *op = &ctx->active.program.ops[u->first_op + u->pc];
    if (!u->after || u->pc == u->n_ops) return 0;
    return !op->on || (op->kind == ESP__OP_COLLECTIVE && !esp__stream_ordered(ctx, op));
}

ESP__FN esp_status esp__unit_passed(const esp_ctx *ctx, const esp__unit *u) {
    const esp__device *d = esp__device_at(ctx, u->device);
    return esp__unit_failed(ctx, u, u->after ? d->table->event_query(d->self, u->after) : ESP_OK);
}

ESP__FN const esp__op *esp__collective_behind(const esp_ctx *ctx, uint32_t first, uint32_t n) {
    for (uint32_t i = first; i < first + n; i++) {
        const esp__unit *u = &ctx->active.strategy.units[i];
        for (uint32_t k = u->first_op; u->phase != ESP__IDLE && k < u->first_op + u->pc; k++) {
            const esp__op *op = &ctx->active.program.ops[k];
            if (!esp__stream_ordered(ctx, op)) continue;
            const esp__device *d = esp__device_at(ctx, op->on);
            if (d->table->event_query(d->self, ctx->active.on[op->on].events[2 * op->event + 1]) == ESP_PENDING)
                return op;
        }
    }
    return NULL;
}

/* ---- pushes --------------------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__push_order(esp_ctx *ctx, esp__tensor *t, esp_stream user, void *grad, int zero) {
    const esp__device *d = esp__device_at(ctx, t->device);
    const esp_stream on = d->stream[ESP__ON_PUSH];
    const uint64_t bytes = t->count * esp_dtype_bytes(t->dtype);
    const int work = zero || t->pending_residual;
    esp_status s = ESP_OK;
    t->ordered = user.dev.kind > ESP_CPU || work; /* on a CPU stream the gradient is there now */
    if (user.dev.kind > ESP_CPU) s = d->table->event_record(d->self, t->pushed, user);
    if (!s && work && user.dev.kind > ESP_CPU) s = d->table->event_wait(d->self, t->pushed, on);
    if (!s && zero) s = d->table->fill(d->self, grad, 0, bytes, on);
    if (!s && t->pending_residual)
        s = d->table->convert(d->self, grad, t->dtype, t->pending_residual, ESP_F32, 1.0f, 1, t->count, on);
    if (!s && work) s = d->table->event_record(d->self, t->pushed, on);
    if (t->pending_residual) { /* freed when the tensor is pushed again: the device may read it until the step ends */
        t->pending_before = t->pending_residual;
        t->pending_residual = NULL;
    }
    return s ? esp__device_failed(ctx, t->device, s, "esp_push") : ESP_OK;
}

/* ---- times ------------------------------------------------------------------------------------------------------------------ */
ESP__FN int esp__op_timed_later(const esp_ctx *ctx, const esp__op *op) {
    const esp_device_table *t = esp__device_at(ctx, op->on)->table;
    /* the host sees the end of a collective that is not stream-ordered */
    const int seen = op->kind == ESP__OP_COLLECTIVE && !esp__stream_ordered(ctx, op);
    return op->on && ESP_HAS(esp_device_table, t, elapsed) && !seen;
}

ESP__FN void esp__devices_times(esp_ctx *ctx) {
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        const esp__op *op = &ctx->active.program.ops[i];
        if (!op->on || !esp__op_timed_later(ctx, op)) continue;
        const esp__device *d = esp__device_at(ctx, op->on);
        const esp__memory_on *m = &ctx->active.on[op->on];
        void *const *event = &m->events[2 * op->event];
        uint64_t took = 0, ago = 0; /* settled: the last event of the step */
        if (d->table->elapsed(d->self, event[0], event[1], &took) ||
            d->table->elapsed(d->self, event[1], d->settled, &ago))
            took = ago = 0;
        esp__op_took(ctx, op, (esp__span){m->settled_ns - ago - took, m->settled_ns - ago});
    }
}

/* ---- the end of a step ------------------------------------------------------------------------------------------------------- */
/* Counts the parts with NaN or Inf that were compressed on the device. */
static esp_status esp__headers_count(esp_ctx *ctx, uint32_t device) {
    const esp__memory_on *m = &ctx->active.on[device];
    const esp__device *d = esp__device_at(ctx, device);
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < m->has.n_behind && !s; k++) s = esp__device_join(ctx, device, esp__on_behind((int)k));
    if (!s)
        s = d->table->copy(d->self, m->flags, m->headers, (uint64_t)m->has.n_headers * ESP_PAYLOAD_HEADER,
                           d->stream[ESP__ON_COMPUTE]);
    if (!s) s = esp__device_settle(ctx, device);
    for (uint32_t i = 0; i < m->has.n_headers && !s; i++) {
        esp_payload_header h;
        memcpy(&h, m->flags + (uint64_t)i * sizeof h, sizeof h);
        if (h.flags & ESP_PAYLOAD_NONFINITE) ctx->steps.stats.nonfinite++;
    }
    return s;
}

/* Work of the step failed: says of which tensors it may be. */
static esp_status esp__step_failed(const esp_ctx *ctx, uint32_t device, esp_status s) {
    const esp__unit *first = NULL;
    char what[ESP__ERROR_MAX / 4], others[40] = "";
    uint32_t n = 0;
    for (uint32_t i = 0; i < ctx->active.strategy.n_units; i++) {
        const esp__unit *u = &ctx->active.strategy.units[i];
        if (u->device != device || u->phase == ESP__IDLE) continue;
        if (!n++) first = u;
    }
    if (n > 1) snprintf(others, sizeof others, " or one of %u others", (unsigned)(n - 1));
    snprintf(what, sizeof what, "rank %d: work of step %llu%s%.300s%s%s%s", (int)ctx->job.rank,
             (unsigned long long)ctx->steps.step, n ? " (tensor '" : "", n ? first->name : "", n ? "'" : "", others,
             n ? ")" : "");
    return esp__device_failed(ctx, device, s, what);
}

ESP__FN esp_status esp__devices_step_end(esp_ctx *ctx) {
    esp_status s = ESP_OK;
    for (uint32_t k = 1; k < ctx->devices.n && !s; k++) {
        if (!ctx->devices.open[k].used) continue;
        s = ctx->active.on[k].has.n_headers ? esp__headers_count(ctx, k) : esp__device_settle(ctx, k);
        if (s) s = esp__step_failed(ctx, k, s);
        ctx->active.on[k].settled_ns = esp__now_ns();
    }
    for (uint32_t i = 0; i < ctx->active.strategy.n_units; i++) ctx->active.strategy.units[i].after = NULL;
    return s;
}
