/* ops.c: runs compress, decompress and copy ops. It enqueues their work on streams, and events make each op wait for
 * the previous one. The host waits only for data that it reads itself. */
#include "espresso_impl/executor/executor.h"

static esp__unit *esp__unit_of(const esp__active *f, const esp__op *op) { return &f->strategy.units[op->unit]; }

static esp_stream esp__stream_of(const esp__active *f, const esp__op *op) {
    return f->on[op->on].device->stream[op->stream];
}

/* A device call may return the error of earlier work on that device, so the error text does not blame this op alone. */
static esp_status esp__op_failed(const esp_ctx *ctx, uint32_t device, const esp__op *op, esp_status s,
                                 const char *before) {
    char what[ESP__ERROR_MAX / 4];
    if (!s || s == ESP_PENDING) return s;
    snprintf(what, sizeof what, "rank %d: %s'%.300s', or work before it,", (int)ctx->job.rank, before, op->label);
    return esp__device_failed(ctx, device, s, what);
}

ESP__FN esp_status esp__unit_failed(const esp_ctx *ctx, const esp__unit *u, esp_status s) {
    const esp__op *op = &ctx->active.program.ops[u->first_op + (u->pc ? u->pc - 1 : 0)];
    return esp__op_failed(ctx, u->device, op, s, u->pc ? "" : "the trainer's work before ");
}

/* ---- before and after an op -------------------------------------------------------------------------------------- */
static esp_status esp__op_mark(const esp_ctx *ctx, const esp__op *op, int which, esp_stream on) {
    const bool timed = op->timed_later && ctx->steps.timed;
    const esp__active *f = &ctx->active;
    return timed ? esp__device_record(f->on[op->on].device, esp__op_event(f, op, which), on) : ESP_OK;
}

/* False if nothing waits for the op's event: the unit's next op follows in the same stream, or it is the last one, and
 * the trainer is expected to wait for all tensors at once. */
static bool esp__op_marked(const esp_ctx *ctx, const esp__unit *u, const esp__op *op) {
    const esp__op *next = op + 1;
    if (op->kind == ESP__OP_COLLECTIVE) return true; /* see esp__collective_behind */
    if (next == &ctx->active.program.ops[u->first_op + u->n_ops]) return ctx->steps.marked;
    return next->kind == ESP__OP_COLLECTIVE || next->on != op->on || next->stream != op->stream;
}

ESP__FN esp_status esp__op_begin(esp_ctx *ctx, const esp__op *op, int stream) {
    const esp__active *f = &ctx->active;
    esp__unit *u = esp__unit_of(f, op);
    const esp__device *d = f->on[op->on].device;
    esp_status s = ESP_OK;
    if (op->on != u->device) { /* the previous op ran on another device, so the host waits */
        void *event = u->after;
        u->after = NULL;
        return esp__unit_failed(ctx, u, esp__device_wait(f->on[u->device].device, event));
    }
    if (u->after_on != stream) s = esp__device_follow(d, u->after, d->stream[stream]);
    if (!s && esp__op_is_copy(op, ESP__COPY_PACK) && ctx->model.tensors[op->copy.member].ordered)
        s = esp__device_follow(d, ctx->model.tensors[op->copy.member].pushed, d->stream[stream]);
    /* the op before a copy to the GPU in pieces has begun that copy, and recorded its begin (esp__piece_made) */
    if (!s && !(op->n_pieces && esp__op_is_copy(op, ESP__COPY_UP)))
        s = esp__op_mark(ctx, op, ESP__EVENT_BEGIN, d->stream[stream]);
    return esp__op_failed(ctx, op->on, op, s, "");
}

static void *esp__piece_event(const esp__active *f, const esp__op *op, uint32_t k) {
    const esp__memory_on *m = &f->on[esp__unit_of(f, op)->device];
    return m->events[ESP__EVENTS * f->program.pieces[op->first_piece + k].event + ESP__EVENT_AFTER];
}

ESP__FN esp_status esp__op_issued(esp_ctx *ctx, const esp__op *op, int stream) {
    const esp__active *f = &ctx->active;
    esp__unit *u = esp__unit_of(f, op);
    const esp__memory_on *m = &f->on[op->on];
    const esp__device *d = m->device;
    esp_status s = ESP_OK;
    if (op->kind == ESP__OP_COMPRESS && op->codec.headers_later)
        s = d->table->copy2d(d->self, m->headers + (uint64_t)op->codec.first_header * ESP_PAYLOAD_HEADER,
                             ESP_PAYLOAD_HEADER, esp__at(f, op, op->codec.slots), op->codec.slot_bytes,
                             ESP_PAYLOAD_HEADER, op->codec.n_ranges, d->stream[stream]);
    u->after = esp__op_event(f, op, ESP__EVENT_AFTER);
    if (!s) s = esp__op_mark(ctx, op, ESP__EVENT_END, d->stream[stream]);
    u->after_on = stream;
    u->unmarked = !esp__op_marked(ctx, u, op);
    if (!s && !u->unmarked) s = esp__device_record(d, u->after, d->stream[stream]);
    if (op->n_pieces && esp__op_is_copy(op, ESP__COPY_DOWN)) u->after = esp__piece_event(f, op, 0);
    return esp__op_failed(ctx, op->on, op, s, "");
}

/* ---- copies between GPU and host in pieces ----------------------------------------------------------------------- */
/* True if `op` processes the numbers of the neighbouring op `copy` piece by piece. */
static bool esp__piece_pair(const esp__op *op, const esp__op *copy, uint8_t what) {
    return esp__op_is_copy(copy, what) && copy->n_pieces && copy->first_piece == op->first_piece;
}

static esp_status esp__piece_copy(const esp__active *f, const esp__op *copy, uint32_t k) {
    const esp__device *d = f->on[copy->on].device;
    const esp__copy_piece *x = &f->program.pieces[copy->first_piece + k];
    return d->table->copy(d->self, esp__at(f, copy, copy->copy.dst) + x->offset,
                          esp__at(f, copy, copy->copy.src) + x->offset, x->bytes, d->stream[copy->stream]);
}

static esp_status esp__pieces_enqueue(const esp__active *f, const esp__op *copy) {
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < copy->n_pieces && !s; k++) {
        s = esp__piece_copy(f, copy, k);
        if (!s) s = esp__device_record(f->on[copy->on].device, esp__piece_event(f, copy, k), esp__stream_of(f, copy));
    }
    return s;
}

static esp_status esp__piece_wait(const esp_ctx *ctx, const esp__op *op, uint32_t k) {
    const esp__active *f = &ctx->active;
    const esp__unit *u = esp__unit_of(f, op);
    if (!k || !esp__piece_pair(op, op - 1, ESP__COPY_DOWN)) return ESP_OK;
    return esp__unit_failed(ctx, u, esp__device_wait(f->on[u->device].device, esp__piece_event(f, op, k)));
}

static esp_status esp__piece_made(const esp_ctx *ctx, const esp__op *op, uint32_t k) {
    const esp__active *f = &ctx->active;
    const esp__op *copy = op + 1;
    esp_status s = ESP_OK;
    if (!esp__piece_pair(op, copy, ESP__COPY_UP)) return ESP_OK;
    if (!k) s = esp__op_mark(ctx, copy, ESP__EVENT_BEGIN, esp__stream_of(f, copy));
    if (!s) s = esp__piece_copy(f, copy, k);
    return esp__op_failed(ctx, copy->on, copy, s, "");
}

/* ---- compress and decompress ------------------------------------------------------------------------------------- */
static const esp__feedback *esp__feedback_of(const esp__active *f, const esp__op *op) {
    return op->codec.feedback >= 0 ? &f->feedback[op->codec.feedback] : NULL;
}

static uint8_t *esp__slot(const esp__active *f, const esp__op *op, uint32_t slot) {
    return esp__at(f, op, op->codec.slots) + f->program.slots[slot] * op->codec.slot_bytes;
}

ESP__FN void esp__call_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp__codec_call *c) {
    const esp__active *f = &ctx->active;
    const esp__unit *u = esp__unit_of(f, op);
    esp__call_begin(c, op->codec.codec, esp__stream_of(f, op),
                    (float *)(void *)esp__at(f, op, op->codec.data) + r->begin, r->length);
    c->args.step = ctx->steps.step;
    c->args.seed = ctx->config.seed;
    c->args.source = op->codec.source;
    c->args.comp_index = op->codec.comp_index;
    c->args.n_reduced = op->codec.n_reduced ? op->codec.n_reduced : 1;
    c->args.n_summed = op->codec.n_summed;
    c->part.key = u->key;
    esp__unit_shape(u, r->length, &c->part.rows, &c->part.cols);
    c->args.round = op->round;
    c->offset = u->place.begin + r->begin;
    if (op->codec.reduced.at)
        esp__call_reduced(c, esp__at(f, op, op->codec.reduced) + r->reduced_slot * op->codec.reduced_bytes,
                          op->codec.reduced_bytes);
    const esp__memory_on *m = &f->on[op->on];
    uint8_t *scratch = m->scratch;
    if (scratch) scratch += esp__scratch_of(op) * m->has.scratch_bytes;
    esp__call_scratch(c, scratch, m->has.scratch_bytes);
}

static void esp__compress_range(esp_ctx *ctx, const esp__op *op, const esp__range *r, uint32_t k, esp__codec_call *c) {
    const esp__active *f = &ctx->active;
    const esp__feedback *b = esp__feedback_of(f, op);
    esp__call_range(ctx, op, r, c);
    uint64_t *used = f->on[op->on].used + esp__scratch_of(op) * esp__list_most(&f->program);
    esp__call_payload(c, esp__slot(f, op, r->first_slot), op->codec.slot_bytes, used + k);
    esp__call_residual(c, b && b->residual ? b->residual + (r->begin - b->offset) : NULL);
    esp__call_state(c, b && b->state ? b->state + r->state_offset : NULL, r->state_bytes);
    c->args.flags = op->codec.raw && esp__unit_of(f, op)->codec->own_memory ? ESP_ARG_OWN_MEMORY : 0u;
}

static void esp__compressed(esp_ctx *ctx, const esp__op *op, const esp__range *r, const esp__codec_call *c) {
    if (op->round + 1u != op->n_rounds) return;
    for (uint32_t k = 0; k < c->args.n_tensors; k++) {
        if (!op->codec.headers_later && esp__payload_nonfinite(&c->args.payload[k])) ctx->steps.stats.nonfinite++;
        esp__observers_compressed(ctx, op, r + k);
    }
}

/* Calls `work` for the op's ranges of elements, piece by piece if the op is divided into pieces. Passes all ranges of a
 * piece at once if the codec takes several tensors in one call, else one range at a time. */
static esp_status esp__ranges_run(esp_ctx *ctx, const esp__op *op,
                                  esp_status (*work)(esp_ctx *, const esp__op *, const esp__range *, uint32_t)) {
    const esp__program *p = &ctx->active.program;
    const bool lists = esp__op_list(op) > 1;
    const uint32_t n_pieces = op->n_pieces ? op->n_pieces : 1;
    const esp__range *r = &p->ranges[op->codec.first_range];
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < n_pieces && !s; k++) {
        const uint32_t n = op->n_pieces ? p->pieces[op->first_piece + k].n_ranges : op->codec.n_ranges,
                       each = lists ? n : 1;
        if (op->n_pieces) s = esp__piece_wait(ctx, op, k);
        for (const esp__range *end = r + n; r < end && !s; r += each) s = work(ctx, op, r, each);
        if (op->n_pieces && !s) s = esp__piece_made(ctx, op, k);
    }
    return s;
}

static esp_status esp__compress_some(esp_ctx *ctx, const esp__op *op, const esp__range *ranges, uint32_t each) {
    const esp__unit *u = esp__unit_of(&ctx->active, op);
    const esp__memory_on *m = &ctx->active.on[ESP__CPU_INDEX];
    esp__codec_list *l = &ctx->active.list;
    esp__codec_call c;
    l->n = 0;
    uint32_t k = 0;
    do { /* there is at least one */
        esp__compress_range(ctx, op, &ranges[k], k, &c);
        if (each > 1) esp__call_list_add(l, &c);
    } while (++k < each);
    if (each > 1) esp__call_list_take(&c, l);
    esp_status s = esp__call_compress(&c, m->phi, m->phi ? m->phi + m->has.phi_count / 2 : NULL);
    if (s)
        return esp__fail(ctx, s, "tensor '%s': codec '%s' failed to compress %llu elements%s: %s", u->name,
                         u->codec->spec, (unsigned long long)ranges->length,
                         each > 1 ? " or one of the parts in the same call" : "", esp_status_text(s));
    esp__compressed(ctx, op, ranges, &c);
    return ESP_OK;
}

static esp_status esp__copy_before(const esp__active *f, const esp__op *op, void *to, const void *from,
                                   uint64_t bytes) {
    const esp__device *d = f->on[op->on].device;
    return to ? d->table->copy(d->self, to, from, bytes, d->stream[op->stream]) : ESP_OK;
}

static esp_status esp__run_compress(esp_ctx *ctx, const esp__op *op) {
    const esp__active *f = &ctx->active;
    const esp__feedback *b = esp__feedback_of(f, op);
    esp_status s = ESP_OK;
    if (b && op->round == esp__unit_of(f, op)->first_round) {
        s = esp__copy_before(f, op, b->residual_before, b->residual, b->count * 4u);
        if (!s) s = esp__copy_before(f, op, b->state_before, b->state, b->state_bytes);
    }
    return s ? esp__op_failed(ctx, op->on, op, s, "") : esp__ranges_run(ctx, op, esp__compress_some);
}

static void esp__decompress_range(esp_ctx *ctx, const esp__op *op, const esp__range *r, esp_payload *payloads,
                                  esp__codec_call *c) {
    const esp__active *f = &ctx->active;
    const esp__feedback *b = esp__feedback_of(f, op);
    esp__call_range(ctx, op, r, c);
    for (uint32_t q = 0; q < op->codec.n_sources; q++) {
        esp_payload *p = &payloads[q];
        memset(p, 0, sizeof *p);
        p->data.ptr = esp__slot(f, op, r->first_slot + q);
        p->data.bytes = op->codec.slot_bytes;
        p->data.dev = c->part.data.dev;
    }
    esp__call_state(c, b && b->state && b->device == op->on ? b->state + r->state_offset : NULL, r->state_bytes);
    c->args.mode = ESP_OUT_SET;
    c->args.n_payloads = op->codec.n_sources;
    c->args.scale = op->codec.scale;
}

static esp_status esp__decompress_some(esp_ctx *ctx, const esp__op *op, const esp__range *ranges, uint32_t each) {
    const esp__unit *u = esp__unit_of(&ctx->active, op);
    esp__codec_list *l = &ctx->active.list;
    esp__codec_call c;
    l->n = 0;
    for (uint32_t k = 0; k < each; k++) {
        esp__decompress_range(ctx, op, &ranges[k], ctx->active.payloads + k * op->codec.n_sources, &c);
        if (each > 1) esp__call_list_add(l, &c);
    }
    c.args.payload = ctx->active.payloads;
    if (each > 1) esp__call_list_take(&c, l);
    const esp_status s = esp__call_decompress(&c);
    return s ? esp__fail(ctx, s, "tensor '%s': codec '%s' cannot decode what arrived: %s", u->name, u->codec->spec,
                         esp_status_text(s))
             : ESP_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */
static esp_status esp__run_group(const esp_ctx *ctx, const esp__op *op, const esp__device *d, esp_stream on) {
    const esp__unit *u = esp__unit_of(&ctx->active, op);
    const uint64_t e = esp_dtype_bytes(u->dtype);
    const esp__tensor *t = ctx->model.tensors + (op->copy.what == ESP__COPY_PACK ? op->copy.member : u->place.first);
    uint8_t *at = u->data;
    esp_status s = ESP_OK;
    if (op->copy.what == ESP__COPY_PACK)
        return d->table->copy(d->self, at + op->copy.begin * e, t->grad, t->count * e, on);
    for (uint32_t k = 0; k < u->place.n && !s; at += t[k].count * e, k++)
        s = d->table->copy(d->self, t[k].grad, at, t[k].count * e, on);
    return s;
}

static esp_status esp__run_swap(const esp__active *f, const esp__op *op, const esp__device *d, esp_stream on) {
    const esp__copy_op *c = &op->copy;
    esp_status s = ESP_OK;
    for (uint64_t m = 0; m < c->mid && !s; m++)
        s = d->table->copy2d(d->self, esp__at(f, op, c->dst) + m * c->outer * c->run, c->run,
                             esp__at(f, op, c->src) + m * c->run, c->mid * c->run, c->run, c->outer, on);
    return s;
}

static esp_status esp__run_convert(const esp__active *f, const esp__op *op, uint64_t begin, uint64_t length) {
    const esp__device *d = f->on[op->on].device;
    const esp_dtype dtype = esp__unit_of(f, op)->dtype;
    uint8_t *grad = esp__at(f, op, op->copy.grad) + begin * esp_dtype_bytes(dtype);
    uint8_t *work = esp__at(f, op, op->copy.work) + begin * 4u, *to = grad, *from = grad;
    esp_dtype to_dtype = dtype, from_dtype = dtype;
    if (op->copy.what == ESP__COPY_TO_F32) to = work, to_dtype = ESP_F32;
    if (op->copy.what == ESP__COPY_FROM_F32) from = work, from_dtype = ESP_F32;
    return d->table->convert(d->self, to, to_dtype, from, from_dtype, op->copy.scale, 0, length, esp__stream_of(f, op));
}

static esp_status esp__run_converts(const esp_ctx *ctx, const esp__op *op) {
    const esp__active *f = &ctx->active;
    const uint64_t e = esp_dtype_bytes(esp__unit_of(f, op)->dtype);
    esp_status s = ESP_OK;
    if (!op->n_pieces)
        return esp__op_failed(ctx, op->on, op, esp__run_convert(f, op, op->copy.begin, op->copy.length), "");
    for (uint32_t k = 0; k < op->n_pieces && !s; k++) {
        const esp__copy_piece *x = &f->program.pieces[op->first_piece + k];
        s = esp__piece_wait(ctx, op, k);
        if (!s) s = esp__run_convert(f, op, op->copy.begin + x->offset / e, x->bytes / e);
        if (!s) s = esp__piece_made(ctx, op, k);
    }
    return s;
}

static esp_status esp__run_copy(const esp_ctx *ctx, const esp__op *op) {
    const esp__active *f = &ctx->active;
    const esp__copy_op *c = &op->copy;
    const esp__device *d = f->on[op->on].device;
    const esp_stream on = esp__stream_of(f, op);
    esp_status s = ESP_OK;
    switch (c->what) {
    case ESP__COPY_DOWN:
    case ESP__COPY_UP:
        if (!op->n_pieces)
            s = d->table->copy(d->self, esp__at(f, op, c->dst), esp__at(f, op, c->src), c->length, on);
        else if (c->what == ESP__COPY_DOWN)
            s = esp__pieces_enqueue(f, op);
        break;
    case ESP__COPY_SWAP: s = esp__run_swap(f, op, d, on); break;
    case ESP__COPY_PACK:
    case ESP__COPY_UNPACK: s = esp__run_group(ctx, op, d, on); break;
    case ESP__COPY_FINALIZE:
        s = c->codec->table->finalize(c->codec->self, (float *)(void *)esp__at(f, op, c->work) + c->begin, c->length,
                                      (uint32_t)ctx->job.size, on);
        break;
    default: return esp__run_converts(ctx, op);
    }
    return esp__op_failed(ctx, op->on, op, s, "");
}

/* ---- any op except collectives ----------------------------------------------------------------------------------- */
ESP__FN uint64_t esp__op_elements(const esp__active *f, const esp__op *op) {
    uint64_t n = 0;
    if (!esp__op_is_codec(op)) return 0;
    for (uint32_t i = 0; i < op->codec.n_ranges; i++) n += f->program.ranges[op->codec.first_range + i].length;
    return op->kind == ESP__OP_DECOMPRESS ? n * op->codec.n_sources : n;
}

ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op) {
    const esp__active *f = &ctx->active;
    esp_status s = esp__op_begin(ctx, op, op->stream);
    if (s) return s;
    if (op->kind == ESP__OP_COPY) {
        s = esp__run_copy(ctx, op);
    } else {
        const bool token = !f->on[op->on].device->async && esp__token_take(ctx, esp__op_elements(f, op));
        s = op->kind == ESP__OP_COMPRESS ? esp__run_compress(ctx, op) : esp__ranges_run(ctx, op, esp__decompress_some);
        esp__token_put(ctx, token);
    }
    return s ? s : esp__op_issued(ctx, op, op->stream);
}

/* ---- collectives that sum payloads ------------------------------------------------------------------------------- */
/* Writes the number that stands for "this gradient has NaN or Inf": 1, or -1 if the collective takes the minimum. All
 * other ranks have 0 there, so the result shows it. */
static void esp__flag_number(uint8_t *at, esp_dtype dtype, esp_reduce op) {
    const bool minus = op == ESP_REDUCE_MIN;
    const float f = minus ? -1.0f : 1.0f;
    const uint16_t f16 = minus ? 0xBC00u : 0x3C00u, bf16 = minus ? 0xBF80u : 0x3F80u;
    const int32_t i = minus ? -1 : 1; /* little-endian, so its first bytes are the i8 or i16 */
    if (dtype == ESP_F32)
        memcpy(at, &f, sizeof f);
    else if (dtype == ESP_F16 || dtype == ESP_BF16)
        memcpy(at, dtype == ESP_F16 ? &f16 : &bf16, sizeof f16);
    else
        memcpy(at, &i, esp_dtype_bytes(dtype));
}

ESP__FN void esp__headers_hide(const esp__active *f, const esp__op *op, int32_t rank) {
    const esp__collective_op *c = &op->collective;
    uint8_t *sent = esp__at(f, op, c->src), *kept = esp__at(f, op, c->headers);
    /* ranks set their flags at different places of the header, since 256 flags of i8 at one place would add up to 0 */
    const uint64_t width = esp_dtype_bytes(c->coll.dtype), places = ESP_PAYLOAD_HEADER / width;
    const uint64_t place = (uint64_t)rank % places * width;
    for (uint64_t i = 0; i < c->n_sent; i++) {
        uint8_t *slot = sent + i * c->slot_bytes;
        esp_payload_header h;
        memcpy(&h, slot, sizeof h);
        if (i >= c->own_slot && i < c->own_slot + c->n_slots) memcpy(kept + (i - c->own_slot) * sizeof h, &h, sizeof h);
        memset(slot, 0, sizeof h);
        if (h.flags & ESP_PAYLOAD_NONFINITE) esp__flag_number(slot + place, c->coll.dtype, c->coll.reduce);
    }
}

ESP__FN void esp__headers_show(const esp__active *f, const esp__op *op) {
    const esp__collective_op *c = &op->collective;
    const uint8_t *kept = esp__at(f, op, c->headers);
    uint8_t *out = esp__at(f, op, c->dst);
    for (uint64_t i = 0; i < c->n_slots; i++) {
        uint8_t *slot = out + i * c->slot_bytes;
        esp_payload_header h;
        int flagged = 0;
        for (uint32_t k = 0; k < sizeof h; k++) flagged |= slot[k];
        memcpy(&h, kept + i * sizeof h, sizeof h);
        h.flags = (uint16_t)(flagged ? ESP_PAYLOAD_NONFINITE : 0);
        memcpy(slot, &h, sizeof h);
    }
}

/* ---- what the next op waits for ---------------------------------------------------------------------------------- */
ESP__FN bool esp__unit_waits(const esp__active *f, const esp__unit *u) {
    const esp__op *op = &f->program.ops[u->first_op + u->pc];
    if (!u->after || u->pc == u->n_ops) return false;
    return op->on != u->device || (op->kind == ESP__OP_COLLECTIVE && !op->collective.stream_ordered);
}

ESP__FN esp_status esp__unit_mark(const esp_ctx *ctx, esp__unit *u, bool *late) {
    const esp__device *d = ctx->active.on[u->device].device;
    if (!u->unmarked) return ESP_OK;
    *late = true;
    u->unmarked = false;
    return esp__unit_failed(ctx, u, esp__device_record(d, u->after, d->stream[u->after_on]));
}

ESP__FN esp_status esp__unit_passed(const esp_ctx *ctx, const esp__unit *u) {
    return esp__unit_failed(ctx, u, esp__device_passed(ctx->active.on[u->device].device, u->after));
}

ESP__FN const esp__op *esp__collective_behind(const esp__active *f, uint32_t first, uint32_t n) {
    for (uint32_t i = first; i < first + n; i++) {
        const esp__unit *u = &f->strategy.units[i];
        for (uint32_t k = u->first_op; u->phase != ESP__IDLE && k < u->first_op + u->pc; k++) {
            const esp__op *op = &f->program.ops[k];
            if (esp__stream_ordered(op) &&
                esp__device_passed(f->on[op->on].device, esp__op_event(f, op, ESP__EVENT_AFTER)) == ESP_PENDING)
                return op;
        }
    }
    return NULL;
}

/* ---- pushes ------------------------------------------------------------------------------------------------------ */
ESP__FN float esp__push_factor(const esp_ctx *ctx, const esp__tensor *t) {
    return t->flags & ESP_SUM ? 1.0f : ctx->steps.factor;
}

ESP__FN esp_status esp__push_order(esp_ctx *ctx, esp__tensor *t, esp_stream user, void *grad, bool zero) {
    const esp__device *d = esp__device_at(ctx, t->device);
    const esp_stream on = d->stream[ESP__ON_PUSH];
    const float factor = esp__push_factor(ctx, t);
    zero |= factor == 0.0f; /* factor 0 means that this rank has no data, and the gradient may be NaN */
    const bool scale = !zero && factor != 1.0f;
    const bool work = zero || scale || t->pending_residual, behind = esp__stream_async(user);
    esp_status s = ESP_OK;
    t->ordered = behind || work;
    if (behind) s = esp__device_record(d, t->pushed, user);
    if (!s && work && behind) s = esp__device_follow(d, t->pushed, on);
    if (!s && zero) s = d->table->fill(d->self, grad, 0, t->count * esp_dtype_bytes(t->dtype), on);
    if (!s && scale) s = d->table->convert(d->self, grad, t->dtype, grad, t->dtype, factor, 0, t->count, on);
    if (!s && t->pending_residual)
        s = d->table->convert(d->self, grad, t->dtype, t->pending_residual, ESP_F32, 1.0f, 1, t->count, on);
    if (!s && work) s = esp__device_record(d, t->pushed, on);
    if (t->pending_residual) { /* freed at the step's end, as the device may still read it */
        t->pending_before = t->pending_residual;
        t->pending_residual = NULL;
        t->pending_added = true;
    }
    return s ? esp__device_failed(ctx, t->device, s, "esp_push") : ESP_OK;
}

/* ---- the end of a step ------------------------------------------------------------------------------------------- */
static esp_status esp__headers_count(esp_ctx *ctx, uint32_t device) {
    const esp__memory_on *m = &ctx->active.on[device];
    const esp__device *d = m->device;
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

/* The failed work may belong to any of several tensors, so the error text names one and their number. */
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
    for (uint32_t k = 0; k < ctx->devices.n && !s; k++) {
        esp__memory_on *m = &ctx->active.on[k];
        s = m->has.n_headers ? esp__headers_count(ctx, k) : esp__device_settle(ctx, k);
        if (s) s = esp__step_failed(ctx, k, s);
        m->settled_ns = esp__now_ns();
    }
    for (uint32_t i = 0; i < ctx->active.strategy.n_units; i++) ctx->active.strategy.units[i].after = NULL;
    return s;
}
