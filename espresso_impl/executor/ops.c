/* ops.c: runs one compress, decompress or copy op on its memory, on the cpu thread. Knows nothing of lanes, order or peers. */
#include "codecs/common/half.h"
#include "espresso_impl/executor/executor.h"

enum { ESP__OP_GRAIN = 65536, ESP__HALF_BLOCK = 1024 };

ESP__FN uint8_t *esp__at(const esp_ctx *ctx, const esp__op *op, esp__ref r) {
    if (r.at == ESP__AT_DATA) return (uint8_t *)ctx->in_force.strategy.units[op->unit].data + r.offset;
    return r.at == ESP__AT_ARENA ? ctx->in_force.arena + r.offset : NULL;
}

/* The address of element `begin` of the unit, as f32. */
static float *esp__numbers(const esp_ctx *ctx, const esp__op *op, uint64_t begin) {
    return (float *)(void *)esp__at(ctx, op, op->data) + begin;
}

ESP__FN void esp__args_init(const esp_ctx *ctx, const esp__op *op, esp_codec_args *a, esp_tensor *x, esp_buf *scratch) {
    memset(a, 0, sizeof *a);
    memset(x, 0, sizeof *x);
    a->struct_size = sizeof *a;
    a->step = ctx->steps.step;
    a->seed = ctx->config.seed;
    a->source = op->source;
    a->comp_index = op->comp_index;
    a->n_reduced = op->n_reduced ? op->n_reduced : 1;
    a->beta = a->gamma = 1.0f;
    x->struct_size = sizeof *x;
    x->dtype = ESP_F32;
    x->key = ctx->in_force.strategy.units[op->unit].key;
    scratch->ptr = ctx->in_force.scratch;
    scratch->bytes = ctx->in_force.scratch_bytes;
    scratch->dev.kind = ESP_CPU;
    scratch->dev.ordinal = 0;
    if (ctx->in_force.scratch_bytes) a->scratch = scratch;
    a->tensor = x;
}

ESP__FN void esp__args_range(const esp_ctx *ctx, const esp__op *op, const esp__range *r, esp_tensor *x) {
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
    x->count = r->length;
    x->rows = r->length == u->place.count ? u->rows : 0;
    x->cols = r->length == u->place.count ? u->cols : 0;
    x->data.ptr = esp__numbers(ctx, op, r->begin);
    x->data.bytes = r->length * 4u;
}

ESP__FN esp_status esp__compress_unfused(const esp__codec *c, esp_codec_args *a, float *phi, float *back) {
    uint64_t n = a->tensor->count;
    float *e = a->residual;
    const float *g = a->tensor->data.ptr;
    esp_tensor x = *a->tensor;
    esp_payload_header h;
    esp_status s;
    for (uint64_t i = 0; i < n; i++) phi[i] = a->beta * e[i] + a->gamma * g[i];
    a->residual = NULL;
    x.data.ptr = phi;
    a->tensor = &x;
    s = c->table->compress(c->self, a);
    if (s) return s;
    memcpy(&h, a->payload->data.ptr, sizeof h);
    if (h.flags & ESP_PAYLOAD_NONFINITE) return ESP_OK; /* NaN or Inf: the residual stays as it was */
    x.data.ptr = back;
    a->mode = ESP_OUT_SET;
    a->n_payloads = 1;
    a->scale = 1.0f;
    s = c->table->decompress(c->self, a);
    for (uint64_t i = 0; i < n && !s; i++) e[i] = phi[i] - back[i];
    return s;
}

static esp_status esp__compress_range(esp_ctx *ctx, const esp__op *op, const esp__range *r, esp__feedback *f,
                                      esp_codec_args *a) {
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
    const esp__codec *c = u->codec;
    uint64_t used = 0;
    esp_payload p;
    esp_buf state;
    esp_payload_header h;
    esp_status s;
    memset(&p, 0, sizeof p);
    p.data.ptr = esp__at(ctx, op, op->slots) + ctx->in_force.program.slots[r->first_slot] * op->slot_bytes;
    p.data.bytes = op->slot_bytes;
    p.used = &used;
    a->payload = &p;
    a->offset = u->place.begin + r->begin;
    a->residual = f && f->residual ? f->residual + (r->begin - f->offset) : NULL;
    a->beta = c->beta, a->gamma = c->gamma;
    a->flags = op->raw && c->own_memory ? ESP_ARG_OWN_MEMORY : 0u;
    state.ptr = f && f->state ? f->state + r->state_offset : NULL;
    state.bytes = r->state_bytes;
    state.dev.kind = ESP_CPU;
    state.dev.ordinal = 0;
    a->state = state.ptr && state.bytes ? &state : NULL;
    if (a->residual && !(c->table->caps & ESP_CODEC_FUSED_RESIDUAL))
        s = esp__compress_unfused(c, a, ctx->in_force.phi, ctx->in_force.phi + ctx->in_force.phi_count);
    else
        s = c->table->compress(c->self, a);
    if (s) return s;
    memcpy(&h, p.data.ptr, sizeof h);
    if (h.flags & ESP_PAYLOAD_NONFINITE) ctx->steps.stats.nonfinite++;
    return ESP_OK;
}

static esp_status esp__run_compress(esp_ctx *ctx, const esp__op *op) {
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
    esp__feedback *f = op->feedback >= 0 ? &ctx->in_force.feedback[op->feedback] : NULL;
    esp_codec_args a;
    esp_tensor x;
    esp_buf scratch;
    esp__args_init(ctx, op, &a, &x, &scratch);
    if (f && f->residual_before) memcpy(f->residual_before, f->residual, f->count * 4u);
    if (f && f->state_before) memcpy(f->state_before, f->state, f->state_bytes);
    for (uint32_t i = 0; i < op->n_ranges; i++) {
        const esp__range *r = &ctx->in_force.program.ranges[op->first_range + i];
        esp__args_range(ctx, op, r, &x);
        a.tensor = &x;
        esp_status s = esp__compress_range(ctx, op, r, f, &a);
        if (s)
            return esp__fail(ctx, s, "tensor '%s': codec '%s' failed to compress %llu elements: %s", u->name,
                             u->codec->spec, (unsigned long long)r->length, esp_status_text(s));
        esp__observers_compressed(ctx, op, r);
    }
    return ESP_OK;
}

static esp_status esp__run_decompress(esp_ctx *ctx, const esp__op *op) {
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
    uint8_t *slots = esp__at(ctx, op, op->slots);
    esp_codec_args a;
    esp_tensor x;
    esp_buf scratch;
    esp__args_init(ctx, op, &a, &x, &scratch);
    a.mode = ESP_OUT_SET;
    a.n_payloads = op->n_sources;
    a.payload = ctx->in_force.payloads;
    a.scale = op->scale;
    for (uint32_t i = 0; i < op->n_ranges; i++) {
        const esp__range *r = &ctx->in_force.program.ranges[op->first_range + i];
        for (uint32_t q = 0; q < op->n_sources; q++) {
            esp_payload *p = &ctx->in_force.payloads[q];
            memset(p, 0, sizeof *p);
            p->data.ptr = slots + ctx->in_force.program.slots[r->first_slot + q] * op->slot_bytes;
            p->data.bytes = op->slot_bytes;
        }
        a.offset = u->place.begin + r->begin;
        esp__args_range(ctx, op, r, &x);
        esp_status s = u->codec->table->decompress(u->codec->self, &a);
        if (s)
            return esp__fail(ctx, s, "tensor '%s': codec '%s' cannot decode what arrived: %s", u->name, u->codec->spec,
                             esp_status_text(s));
    }
    return ESP_OK;
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
    if (p->dtype == ESP_F16)
        half_f16_add_for(p->ctx->config.simd)(out, in, scale, 1, n);
    else
        half_bf16_add_for(p->ctx->config.simd)(out, in, scale, 1, n);
}
static void esp__half_encode(const esp__piece *p, uint16_t *out, const float *in, uint64_t n) {
    if (p->dtype == ESP_F16)
        half_f16_encode_for(p->ctx->config.simd)(out, in, NULL, 1.0f, 1.0f, n);
    else
        half_bf16_encode_for(p->ctx->config.simd)(out, in, NULL, n);
}

static void esp__piece_run(void *arg, uint64_t begin, uint64_t end) {
    const esp__piece *p = arg;
    float block[ESP__HALF_BLOCK];
    if (p->dtype == ESP_F32) { /* no conversion, only scaling */
        float *g = p->grad;
        for (uint64_t i = begin; i < end; i++) g[i] *= p->scale;
        return;
    }
    uint16_t *h = p->grad;
    for (uint64_t i = begin; i < end; i += ESP__HALF_BLOCK) {
        uint64_t n = end - i < ESP__HALF_BLOCK ? end - i : ESP__HALF_BLOCK;
        if (p->copy == ESP__COPY_TO_F32) {
            esp__half_decode(p, p->work + i, h + i, p->scale, n);
        } else if (p->copy == ESP__COPY_FROM_F32) {
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
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
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

static esp_status esp__run_copy(esp_ctx *ctx, const esp__op *op) {
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
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
    esp__piece p;
    p.ctx = ctx;
    p.dtype = u->dtype;
    p.copy = op->copy;
    p.scale = op->scale;
    p.grad = (uint8_t *)u->data + op->begin * (u->dtype == ESP_F32 ? 4u : 2u);
    p.work = op->data.at == ESP__AT_ARENA ? esp__numbers(ctx, op, op->begin) : NULL;
    ctx->host.parallel_for(ctx->host.user, op->length, ESP__OP_GRAIN, esp__piece_run, &p);
    return ESP_OK;
}

/* Elements that the op reads: a token is taken only for a large op. */
static uint64_t esp__op_elements(const esp_ctx *ctx, const esp__op *op) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < op->n_ranges; i++) n += ctx->in_force.program.ranges[op->first_range + i].length;
    return op->kind == ESP__OP_DECOMPRESS ? n * op->n_sources : n;
}

ESP__FN esp_status esp__op_run(esp_ctx *ctx, const esp__op *op) {
    if (op->kind != ESP__OP_COMPRESS && op->kind != ESP__OP_DECOMPRESS) return esp__run_copy(ctx, op);
    int token = esp__token_take(ctx, esp__op_elements(ctx, op));
    esp_status s = op->kind == ESP__OP_COMPRESS ? esp__run_compress(ctx, op) : esp__run_decompress(ctx, op);
    esp__token_put(ctx, token);
    return s;
}

ESP__FN void esp__headers_rebuild(const esp_ctx *ctx, const esp__op *op) {
    const uint8_t *own = esp__at(ctx, op, op->src) + op->own_slot * op->slot_bytes;
    uint8_t *out = esp__at(ctx, op, op->dst);
    for (uint64_t i = 0; i < op->n_slots; i++) {
        uint8_t *slot = out + i * op->slot_bytes;
        esp_payload_header h;
        uint32_t first = 0;
        memcpy(&h, own + i * op->slot_bytes, sizeof h);
        /* a rank with NaN or Inf fills its body with NaN, which makes the sum NaN */
        if (h.body_bytes >= 4 || h.body_bytes == 2)
            memcpy(&first, slot + ESP_PAYLOAD_HEADER, h.body_bytes == 2 ? 2 : 4);
        int nan = op->coll.dtype == ESP_F32   ? (first & 0x7FFFFFFFu) > 0x7F800000u
                  : op->coll.dtype == ESP_F16 ? (first & 0x7FFFu) > 0x7C00u
                                              : (first & 0x7FFFu) > 0x7F80u;
        h.flags = (uint16_t)(nan ? ESP_PAYLOAD_NONFINITE : 0);
        memcpy(slot, &h, sizeof h);
    }
}
