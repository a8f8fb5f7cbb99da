/* ops.c: runs one compress, decompress or copy op on its memory, on the cpu thread. Knows nothing of lanes, order or peers. */
#include "codecs/common/half.h"
#include "espresso_impl/executor/executor.h"

enum { ESP__OP_GRAIN = 65536, ESP__HALF_BLOCK = 1024 };

ESP__FN uint8_t *esp__at(const esp_ctx *ctx, const esp__op *op, esp__ref r) {
    if (r.at == ESP__AT_DATA) return (uint8_t *)ctx->active.strategy.units[op->unit].data + r.offset;
    if (r.at == ESP__AT_ARENA) return ctx->active.arena + r.offset;
    const esp__memory_on *m = &ctx->active.on[ctx->active.strategy.units[op->unit].device];
    return r.at == ESP__AT_DEVICE ? m->arena + r.offset : r.at == ESP__AT_PINNED ? m->pinned + r.offset : NULL;
}

/* The address of element `begin` of the unit, as f32. */
static float *esp__numbers(const esp_ctx *ctx, const esp__op *op, uint64_t begin) {
    return (float *)(void *)esp__at(ctx, op, op->data) + begin;
}

static esp_status esp__copy_on(const esp_ctx *ctx, const esp__op *op, void *dst, const void *src, uint64_t bytes) {
    const esp__device *d = esp__device_at(ctx, op->on);
    return d->table->copy(d->self, dst, src, bytes, d->stream[op->stream]);
}

ESP__FN void esp__call_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp__codec_call *c) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    esp__call_begin(c, op->on ? u->device_codec : u->codec, esp__numbers(ctx, op, r->begin), r->length);
    if (op->on) esp__call_on(c, esp__device_at(ctx, op->on)->stream[op->stream]);
    c->args.step = ctx->steps.step;
    c->args.seed = ctx->config.seed;
    c->args.source = op->source;
    c->args.comp_index = op->comp_index;
    c->args.n_reduced = op->n_reduced ? op->n_reduced : 1;
    c->part.key = u->key;
    esp__unit_shape(u, r->length, &c->part.rows, &c->part.cols);
    c->args.round = op->round;
    c->offset = u->place.begin + r->begin;
    if (op->reduced.at)
        esp__call_reduced(c, esp__at(ctx, op, op->reduced) + r->reduced_slot * op->reduced_bytes, op->reduced_bytes);
    const esp__memory_on *m = &ctx->active.on[op->on];
    if (op->on)
        esp__call_scratch(c, m->scratch + esp__scratch_of(op) * m->has.scratch_bytes, m->has.scratch_bytes);
    else
        esp__call_scratch(c, ctx->active.scratch, ctx->active.scratch_bytes);
}

static void esp__compress_range(esp_ctx *ctx, const esp__op *op, const esp__range *r, uint64_t *used,
                                esp__codec_call *c) {
    const esp__feedback *f = op->feedback >= 0 ? &ctx->active.feedback[op->feedback] : NULL;
    esp__call_range(ctx, op, r, c);
    esp__call_payload(c, esp__at(ctx, op, op->slots) + ctx->active.program.slots[r->first_slot] * op->slot_bytes,
                      op->slot_bytes, op->on ? ctx->active.on[op->on].used + esp__scratch_of(op) : used);
    esp__call_residual(c, f && f->residual ? f->residual + (r->begin - f->offset) : NULL);
    esp__call_state(c, f && f->state ? f->state + r->state_offset : NULL, r->state_bytes);
    c->args.flags = op->raw && ctx->active.strategy.units[op->unit].codec->own_memory ? ESP_ARG_OWN_MEMORY : 0u;
}

/* What comes after the call for these ranges. */
static void esp__compressed(esp_ctx *ctx, const esp__op *op, const esp__range *r, const esp__codec_call *c) {
    if (op->round + 1u != op->n_rounds) return;
    for (uint32_t k = 0; k < c->args.n_tensors; k++) {
        /* headers on a device are read at the end of the step */
        if (!op->on && esp__payload_nonfinite(&c->args.payload[k])) ctx->steps.stats.nonfinite++;
        esp__observers_compressed(ctx, op, r + k);
    }
}

/* Runs `work` on the op's ranges: those of one piece after another, if the op works piece by piece. One call takes all of them if the
 * codec takes lists, else one. */
static esp_status esp__ranges_run(esp_ctx *ctx, const esp__op *op,
                                  esp_status (*work)(esp_ctx *, const esp__op *, const esp__range *, uint32_t)) {
    const esp__program *p = &ctx->active.program;
    const int lists = esp__op_list(&ctx->active.strategy.units[op->unit], op) > 1;
    const uint32_t n_pieces = op->n_pieces ? op->n_pieces : 1;
    const esp__range *r = &p->ranges[op->first_range];
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < n_pieces && !s; k++) {
        const uint32_t n = op->n_pieces ? p->pieces[op->first_piece + k].n_ranges : op->n_ranges, each = lists ? n : 1;
        if (op->n_pieces) s = esp__piece_wait(ctx, op, k);
        for (const esp__range *end = r + n; r < end && !s; r += each) s = work(ctx, op, r, each);
        if (op->n_pieces && !s) s = esp__piece_made(ctx, op, k);
    }
    return s;
}

/* One call, for `each` ranges. */
static esp_status esp__compress_some(esp_ctx *ctx, const esp__op *op, const esp__range *ranges, uint32_t each) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    esp__codec_list *l = &ctx->active.list;
    esp__codec_call c;
    uint64_t used = 0;
    l->n = 0;
    for (uint32_t k = 0; k < each; k++) {
        esp__compress_range(ctx, op, &ranges[k], each > 1 ? &l->used[k] : &used, &c);
        if (each > 1) esp__call_list_add(l, &c);
    }
    if (each > 1) esp__call_list_take(&c, l);
    esp_status s = esp__call_compress(&c, ctx->active.phi, ctx->active.phi + ctx->active.phi_count);
    if (s)
        return esp__fail(ctx, s, "tensor '%s': codec '%s' failed to compress %llu elements%s: %s", u->name,
                         u->codec->spec, (unsigned long long)ranges->length,
                         each > 1 ? " or one of the parts in the same call" : "", esp_status_text(s));
    esp__compressed(ctx, op, ranges, &c);
    return ESP_OK;
}

static esp_status esp__run_compress(esp_ctx *ctx, const esp__op *op) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    const esp__feedback *f = op->feedback >= 0 ? &ctx->active.feedback[op->feedback] : NULL;
    const int first = op->round == u->first_round; /* later rounds read the residual that the first one read */
    if (first && f && f->residual_before) esp__copy_on(ctx, op, f->residual_before, f->residual, f->count * 4u);
    if (first && f && f->state_before) esp__copy_on(ctx, op, f->state_before, f->state, f->state_bytes);
    return esp__ranges_run(ctx, op, esp__compress_some);
}

/* Fills the call for one range, and the payloads that are summed into it. */
static void esp__decompress_range(esp_ctx *ctx, const esp__op *op, const esp__range *r, esp_payload *payloads,
                                  esp__codec_call *c) {
    uint8_t *slots = esp__at(ctx, op, op->slots);
    const esp__feedback *f = op->feedback >= 0 ? &ctx->active.feedback[op->feedback] : NULL;
    esp__call_range(ctx, op, r, c);
    for (uint32_t q = 0; q < op->n_sources; q++) {
        esp_payload *p = &payloads[q];
        memset(p, 0, sizeof *p);
        p->data.ptr = slots + ctx->active.program.slots[r->first_slot + q] * op->slot_bytes;
        p->data.bytes = op->slot_bytes;
        p->data.dev = c->part.data.dev;
    }
    esp__call_state(c, f && f->state && f->device == op->on ? f->state + r->state_offset : NULL, r->state_bytes);
    c->args.mode = ESP_OUT_SET;
    c->args.n_payloads = op->n_sources;
    c->args.scale = op->scale;
}

/* One call, for `each` ranges. */
static esp_status esp__decompress_some(esp_ctx *ctx, const esp__op *op, const esp__range *ranges, uint32_t each) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    esp__codec_list *l = &ctx->active.list;
    esp__codec_call c;
    l->n = 0;
    for (uint32_t k = 0; k < each; k++) {
        esp__decompress_range(ctx, op, &ranges[k], ctx->active.payloads + k * op->n_sources, &c);
        if (each > 1) esp__call_list_add(l, &c);
    }
    c.args.payload = ctx->active.payloads;
    if (each > 1) esp__call_list_take(&c, l);
    const esp_status s = esp__call_decompress(&c);
    return s ? esp__fail(ctx, s, "tensor '%s': codec '%s' cannot decode what arrived: %s", u->name, u->codec->spec,
                         esp_status_text(s))
             : ESP_OK;
}

/* Contiguous numbers to convert from one format into another. */
typedef struct esp__piece {
    const esp_ctx *ctx;
    esp_dtype dtype;
    uint8_t copy;
    float scale;
    void *grad; /* the region's first element, in the unit's dtype */
    float *work;
} esp__piece;

static void esp__half_decode(const esp__piece *p, float *out, const uint16_t *in, float scale, uint64_t n) {
    half_add_for(p->dtype == ESP_F16, p->ctx->config.simd)(out, in, scale, 1, n);
}
static void esp__half_encode(const esp__piece *p, uint16_t *out, const float *in, uint64_t n) {
    half_encode_for(p->dtype == ESP_F16, p->ctx->config.simd)(out, in, NULL, 1.0f, 1.0f, n);
}

static void esp__piece_run(void *arg, uint64_t begin, uint64_t end) {
    const esp__piece *p = arg;
    float block[ESP__HALF_BLOCK];
    if (p->dtype == ESP_F32) { /* no conversion, only scaling */
        float *g = p->grad;
        ESP_SIMD
        for (uint64_t i = begin; i < end; i++) g[i] *= p->scale;
        return;
    }
    uint16_t *h = p->grad;
    for (uint64_t i = begin; i < end; i += ESP__HALF_BLOCK) {
        uint64_t n = end - i < ESP__HALF_BLOCK ? end - i : ESP__HALF_BLOCK;
        if (p->copy == ESP__COPY_TO_F32) {
            esp__half_decode(p, p->work + i, h + i, p->scale, n);
        } else if (p->copy == ESP__COPY_FROM_F32) {
            ESP_SIMD
            for (uint64_t k = 0; k < n; k++) block[k] = p->work[i + k] * p->scale;
            esp__half_encode(p, h + i, block, n);
        } else {
            esp__half_decode(p, block, h + i, p->scale, n);
            esp__half_encode(p, h + i, block, n);
        }
    }
}

/* A copy between a tensor and its place in its group. */
typedef struct esp__move {
    uint8_t *to;
    const uint8_t *from;
} esp__move;
static void esp__move_run(void *arg, uint64_t begin, uint64_t end) {
    const esp__move *m = arg;
    memcpy(m->to + begin, m->from + begin, end - begin);
}

/* Copies tensor `t` to its place `at` in its group (pack), or back. */
static void esp__pack_run(esp_ctx *ctx, const esp__tensor *t, uint8_t *at, int pack) {
    esp__move in = {at, t->grad}, out = {t->grad, at};
    ctx->host.parallel_for(ctx->host.user, t->count * (t->dtype == ESP_F32 ? 4u : 2u), ESP__OP_GRAIN * 4, esp__move_run,
                           pack ? &in : &out);
}

static void esp__run_group(esp_ctx *ctx, const esp__op *op) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    uint64_t e = u->dtype == ESP_F32 ? 4u : 2u, begin = 0;
    uint8_t *data = u->data;
    if (op->copy == ESP__COPY_PACK) {
        esp__pack_run(ctx, &ctx->model.tensors[op->member], data + op->begin * e, 1);
        return;
    }
    for (uint32_t k = u->place.first; k < u->place.first + u->place.n; k++) {
        esp__pack_run(ctx, &ctx->model.tensors[k], data + begin * e, 0);
        begin += ctx->model.tensors[k].count;
    }
}

/* Converts or scales the op's numbers, one piece after another if it works piece by piece. */
static esp_status esp__run_convert(esp_ctx *ctx, const esp__op *op) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    const uint64_t e = esp_dtype_bytes(u->dtype);
    const uint32_t n_pieces = op->n_pieces ? op->n_pieces : 1;
    esp_status s = ESP_OK;
    for (uint32_t k = 0; k < n_pieces && !s; k++) {
        const esp__copy_piece whole = {0, op->length * e, 0, 0};
        const esp__copy_piece *x = op->n_pieces ? &ctx->active.program.pieces[op->first_piece + k] : &whole;
        const uint64_t begin = op->begin + x->offset / e;
        esp__piece p = {ctx, u->dtype, op->copy, op->scale, NULL, NULL};
        p.grad = esp__at(ctx, op, op->grad) + begin * e;
        p.work = op->copy == ESP__COPY_SCALE ? NULL : esp__numbers(ctx, op, begin);
        if (op->n_pieces) s = esp__piece_wait(ctx, op, k);
        if (!s) ctx->host.parallel_for(ctx->host.user, x->bytes / e, ESP__OP_GRAIN, esp__piece_run, &p);
        if (op->n_pieces && !s) s = esp__piece_made(ctx, op, k);
    }
    return s;
}

static esp_status esp__run_copy(esp_ctx *ctx, const esp__op *op) {
    const esp__unit *u = &ctx->active.strategy.units[op->unit];
    if (op->copy == ESP__COPY_SWAP) { /* [outer][mid][inner] -> [mid][outer][inner] */
        const uint8_t *in = esp__at(ctx, op, op->src);
        uint8_t *out = esp__at(ctx, op, op->dst);
        uint64_t run = op->inner * op->slot_bytes;
        for (uint64_t o = 0; o < op->outer; o++)
            for (uint64_t m = 0; m < op->mid; m++)
                memcpy(out + (m * op->outer + o) * run, in + (o * op->mid + m) * run, run);
        return ESP_OK;
    }
    if (op->copy == ESP__COPY_PACK || op->copy == ESP__COPY_UNPACK) {
        esp__run_group(ctx, op);
        return ESP_OK;
    }
    if (op->copy == ESP__COPY_FINALIZE) {
        esp_stream here = {{ESP_CPU, 0}, NULL};
        return u->codec->table->finalize(u->codec->self, esp__numbers(ctx, op, op->begin), op->length,
                                         (uint32_t)ctx->job.size, here);
    }
    return esp__run_convert(ctx, op);
}

/* Elements that the op reads: a token is taken only for a large op. */
ESP__FN uint64_t esp__op_elements(const esp_ctx *ctx, const esp__op *op) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < op->n_ranges; i++) n += ctx->active.program.ranges[op->first_range + i].length;
    return op->kind == ESP__OP_DECOMPRESS ? n * op->n_sources : n;
}

ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op) {
    const int codec = op->kind == ESP__OP_COMPRESS || op->kind == ESP__OP_DECOMPRESS;
    esp_status s = ESP_OK;
    if (op->on || ctx->active.strategy.units[op->unit].after) s = esp__op_begin(ctx, op, op->stream);
    if (s) return s;
    int token = codec && !op->on ? esp__token_take(ctx, esp__op_elements(ctx, op)) : 0;
    if (codec)
        s = op->kind == ESP__OP_COMPRESS ? esp__run_compress(ctx, op) : esp__ranges_run(ctx, op, esp__decompress_some);
    else
        s = op->on ? esp__copy_enqueue(ctx, op) : esp__run_copy(ctx, op);
    esp__token_put(ctx, token);
    return s || !op->on ? s : esp__op_issued(ctx, op, op->stream);
}

/* The number that stands for "NaN or Inf" in a reduction: 1, or -1 where the least counts. */
static void esp__flag_number(uint8_t *at, esp_dtype dtype, esp_reduce op) {
    const int minus = op == ESP_REDUCE_MIN;
    const float f = minus ? -1.0f : 1.0f;
    const uint16_t f16 = minus ? 0xBC00u : 0x3C00u, bf16 = minus ? 0xBF80u : 0x3F80u;
    const int32_t i = minus ? -1 : 1; /* little-endian: its first bytes are the narrower integers */
    if (dtype == ESP_F32)
        memcpy(at, &f, sizeof f);
    else if (dtype == ESP_F16 || dtype == ESP_BF16)
        memcpy(at, dtype == ESP_F16 ? &f16 : &bf16, sizeof f16);
    else
        memcpy(at, &i, esp_dtype_bytes(dtype));
}

ESP__FN void esp__headers_hide(const esp_ctx *ctx, const esp__op *op) {
    uint8_t *sent = esp__at(ctx, op, op->src), *kept = esp__at(ctx, op, op->headers);
    /* a sum of bytes wraps at 256: ranks use different numbers of the header's place, which has 64 of them */
    const uint64_t width = esp_dtype_bytes(op->coll.dtype), places = ESP_PAYLOAD_HEADER / width;
    const uint64_t place = (uint64_t)ctx->job.rank % places * width;
    for (uint64_t i = 0; i < op->n_sent; i++) {
        uint8_t *slot = sent + i * op->slot_bytes;
        esp_payload_header h;
        memcpy(&h, slot, sizeof h);
        if (i >= op->own_slot && i < op->own_slot + op->n_slots)
            memcpy(kept + (i - op->own_slot) * sizeof h, &h, sizeof h);
        memset(slot, 0, sizeof h);
        if (h.flags & ESP_PAYLOAD_NONFINITE) esp__flag_number(slot + place, op->coll.dtype, op->coll.reduce);
    }
}

ESP__FN void esp__headers_show(const esp_ctx *ctx, const esp__op *op) {
    const uint8_t *kept = esp__at(ctx, op, op->headers);
    uint8_t *out = esp__at(ctx, op, op->dst);
    for (uint64_t i = 0; i < op->n_slots; i++) {
        uint8_t *slot = out + i * op->slot_bytes;
        esp_payload_header h;
        int flagged = 0;
        for (uint32_t k = 0; k < sizeof h; k++) flagged |= slot[k];
        memcpy(&h, kept + i * sizeof h, sizeof h);
        h.flags = (uint16_t)(flagged ? ESP_PAYLOAD_NONFINITE : 0);
        memcpy(slot, &h, sizeof h);
    }
}
