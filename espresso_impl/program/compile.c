/* compile.c: compiles a strategy into the ops that this rank runs, and gives each buffer an offset in one block of
 * memory, the arena. */
#include "espresso_impl/program/compile.h"

static bool esp__wants_mean(const esp__compile *c) {
    return !(c->u->flags & ESP_SUM) && c->job->size > 1 && !c->finalized;
}

static bool esp__power_of_two(uint64_t n) { return (n & (n - 1)) == 0; }

/* If stage `i` is the last that changes the numbers, divides the sum by the number of ranks. f16 and bf16 are divided
 * later, when they are copied back into the gradient. */
static void esp__compile_mean(esp__compile *c, uint32_t i) {
    uint64_t n = (uint64_t)c->job->size;
    esp__op *op = c->p->n_ops > c->u->first_op ? &c->p->ops[c->p->n_ops - 1] : NULL;
    if (i != c->last_value || c->half || !esp__wants_mean(c) || !op) return;
    float scale = (float)(1.0 / (double)n);
    if (op->step == i && op->kind == ESP__OP_COLLECTIVE &&
        esp__backend_of(c->job, op->collective.scope)->caps & ESP_BACKEND_SCALE)
        op->collective.coll.scale = scale;
    else if (op->step == i && op->kind == ESP__OP_DECOMPRESS && esp__power_of_two(n))
        op->codec.scale = scale; /* dividing by a power of two rounds nothing */
    else
        esp__op_copy(c, ESP__COPY_SCALE, i, scale);
}

static void esp__compile_finalize(esp__compile *c, uint32_t i) {
    if (c->finalized || !ESP_HAS(esp_codec, c->u->codec->table, finalize) || !esp__option_compresses(&c->u->option) ||
        esp__contributions(c) != (uint64_t)c->job->size)
        return;
    if (!c->device_codec) esp__numbers_to(c, c->host, i);
    esp__to_f32(c, i);
    esp__op *op = esp__op_copy(c, ESP__COPY_FINALIZE, i, 1.0f);
    if (op) op->copy.codec = esp__codec_of(c, c->space);
    c->finalized = true;
}

static void esp__decomp_state(esp__compile *c, esp__op *op) {
    op->codec.feedback = c->comp_ranges ? c->comp_feedback : -1;
    for (uint32_t k = 0; k < op->codec.n_ranges && op->codec.feedback >= 0; k++) {
        esp__range *r = &c->p->ranges[op->codec.first_range + k];
        for (uint32_t j = 0; j < c->comp_ranges; j++) {
            const esp__range *x = &c->p->ranges[c->comp_range + j];
            if (x->begin != r->begin || x->length != r->length) continue;
            r->state_offset = x->state_offset;
            r->state_bytes = x->state_bytes;
        }
    }
}

static void esp__compile_decomp(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    esp__region before = c->region;
    uint32_t swap;
    const bool active = esp__takes_part(c);
    const int space = esp__codec_space(c, s);
    esp__payloads_to(c, space, i, active ? esp__region_slots(&c->region, &c->at) : 0);
    esp__reduced_to(c, space, i, active);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    esp__numbers_begin(c, space);
    c->in_grad = false;
    if (active) {
        esp__op *op = esp__op_codec(c, ESP__OP_DECOMPRESS, space, i);
        esp__ranges_make(c, &before, op);
        if (!c->status) esp__decomp_state(c, op);
        if (esp__op_list(op) > 1) esp__op_scratch(c, op);
    }
    c->comps++;
    esp__compile_finalize(c, i);
    esp__compile_mean(c, i);
}

/* A collective on payloads receives into a new buffer, except at the root of a broadcast. */
static void esp__compile_payload_coll(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    esp__region before = c->region;
    uint32_t swap;
    const bool part = esp__region_takes_part(&c->region, s), held = esp__takes_part(c);
    uint64_t have = esp__region_slots(&c->region, &c->at), n = (uint64_t)c->at.size[s->level];
    int32_t root = esp__region_root(&c->at, s), me = c->at.index[s->level];
    /* summed payloads go through host memory, where their headers are kept out of the sum */
    const int space = s->summed ? c->host : esp__link_space(c, s->level);
    esp__payloads_to(c, space, i, part && held ? have : 0);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    if (!part || c->status) return;
    uint64_t want = esp__region_slots(&c->region, &c->at), outer = 1;
    esp__ref src = c->slots, dst = {ESP__AT_NOTHING, 0};
    if (swap) { /* alltoall divides the array of payloads at its outermost dimension, so reorder it */
        for (uint32_t d = 0; d < swap; d++) outer *= (uint64_t)c->at.size[before.dims[d].level];
        const uint64_t mid = (uint64_t)c->at.size[before.dims[swap].level];
        esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, i);
        op->copy.what = ESP__COPY_SWAP;
        op->copy.outer = outer, op->copy.mid = mid, op->copy.run = have / (outer * mid) * c->slot_bytes;
        op->copy.src = src;
        op->copy.dst = src = esp__arena_place(c, space, have * c->slot_bytes);
        esp__op_place(c, op, space, ESP__ON_COMPUTE);
    }
    if (s->coll == ESP_COLL_BROADCAST && me == root)
        dst = src;
    else if (s->coll != ESP_COLL_GATHER || me == root)
        dst = esp__arena_place(c, space, want * c->slot_bytes);
    if (!held) src = dst;
    esp__op *op = esp__op_collective(c, space, i);
    op->collective.coll.slot_bytes = c->slot_bytes;
    op->collective.coll.count = s->coll == ESP_COLL_ALLGATHER || s->coll == ESP_COLL_GATHER ? have * n : have;
    if (s->coll == ESP_COLL_BROADCAST) op->collective.coll.count = want;
    if (s->summed) esp__op_reduces(c, op, have, want, s->coll == ESP_COLL_REDUCE_SCATTER ? (uint64_t)me * want : 0);
    op->collective.src = src;
    op->collective.dst = dst;
    op->collective.coll.src.bytes = (held ? have : want) * c->slot_bytes;
    op->collective.coll.dst.bytes = dst.at ? want * c->slot_bytes : 0;
    c->slots = dst;
}

/* A collective on uncompressed numbers works in place in the gradient. */
static void esp__compile_raw_coll(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    uint64_t before, n_before, after, n_after, e = esp_dtype_bytes(c->u->dtype);
    const bool sums = s->role != ESP__SECOND,
               scales = (esp__backend_of(c->job, s->level)->caps & ESP_BACKEND_SCALE) != 0;
    uint64_t n = (uint64_t)c->at.size[s->level];
    uint32_t swap;
    esp__from_f32(c, i, 1.0 / (double)esp__contributions(c));
    if (c->half && sums && !scales && n > 1) { /* divides before the backend sums, so that no f16 sum overflows */
        esp__op_copy(c, ESP__COPY_SCALE, i, (float)(1.0 / (double)n));
        c->share /= (double)n;
    }
    const int space = esp__link_space(c, s->level);
    esp__numbers_to(c, space, i);
    const bool part = esp__region_takes_part(&c->region, s);
    esp__region_now(c, &before, &n_before);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    esp__region_now(c, &after, &n_after);
    if (part) {
        esp__op *op = esp__op_collective(c, space, i);
        op->collective.coll.dtype = c->u->dtype;
        op->collective.coll.count = n_before > n_after ? n_before : n_after;
        if (s->coll == ESP_COLL_REDUCE_SCATTER) op->collective.coll.count = n_before;
        if (s->coll == ESP_COLL_ALLGATHER) op->collective.coll.count = n_after;
        if (c->u->width > 1 && (s->coll == ESP_COLL_REDUCE_SCATTER || s->coll == ESP_COLL_ALLGATHER)) {
            op->collective.coll.width = c->u->width;
            op->collective.coll.count /= c->u->width;
        }
        op->collective.src = op->collective.dst = c->grads[space];
        op->collective.src.offset += before * e;
        op->collective.dst.offset += after * e;
        op->collective.coll.src.bytes = n_before * e;
        op->collective.coll.dst.bytes = n_after * e;
        if (c->half && sums && scales && n > 1) op->collective.coll.scale = (float)(1.0 / (double)n);
    }
    if (c->half && sums && scales) c->share /= (double)n;
    if (sums) esp__compile_finalize(c, i);
    if (part) esp__compile_mean(c, i);
}

static uint32_t esp__last_value(const esp__option *o) {
    uint32_t last = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        const esp__step *s = &o->steps[i];
        if (s->kind == ESP__STAGE_DECOMP ||
            (s->kind == ESP__STAGE_COLLECTIVE && !s->compressed && s->role != ESP__SECOND))
            last = i;
    }
    return last;
}

/* Copies each tensor of a group into the arena as soon as it is pushed, so that copies overlap backward propagation. */
static void esp__compile_pack(esp__compile *c) {
    if (!esp__unit_is_group(c->u)) return;
    c->u->packed = esp__arena_place(c, c->space, c->u->place.elements * esp_dtype_bytes(c->u->dtype)).offset;
    uint64_t begin = 0;
    for (uint32_t k = 0; k < c->u->place.n; k++) {
        esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, 0);
        op->copy.what = ESP__COPY_PACK;
        op->copy.member = c->u->place.first + k;
        op->copy.begin = begin;
        op->copy.length = esp__model_of(c->ctx)->tensors[op->copy.member].count;
        esp__op_place(c, op, c->space, ESP__ON_COMPUTE);
        begin += op->copy.length;
    }
}

static void esp__compile_unpack(esp__compile *c) {
    if (!esp__unit_is_group(c->u)) return;
    esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, c->u->option.n - 1);
    op->copy.what = ESP__COPY_UNPACK;
    esp__op_place(c, op, c->space, ESP__ON_COMPUTE);
}

static void esp__compile_step(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    if (s->kind == ESP__STAGE_COMP)
        esp__compile_comp(c, i);
    else if (s->kind == ESP__STAGE_DECOMP)
        esp__compile_decomp(c, i);
    else if (s->compressed)
        esp__compile_payload_coll(c, i);
    else
        esp__compile_raw_coll(c, i);
}

static void esp__compile_half_end(esp__compile *c) {
    uint32_t last = c->u->option.n - 1;
    double share = c->u->flags & ESP_SUM || c->finalized ? 1.0 : 1.0 / (double)c->job->size;
    esp__from_f32(c, last, share);
    if (c->share < share * 0.999 || c->share > share * 1.001)
        esp__op_copy(c, ESP__COPY_SCALE, last, (float)(share / c->share));
}

static esp_status esp__compile_unit(esp_ctx *ctx, esp__active *f, uint32_t unit) {
    esp__compile c = {.ctx = ctx, .job = esp__job_of(ctx), .f = f, .p = &f->program, .unit = unit};
    c.u = &f->strategy.units[unit];
    c.half = c.u->dtype != ESP_F32;
    c.in_grad = true;
    c.share = 1.0;
    c.last_value = esp__last_value(&c.u->option);
    esp__spaces_start(&c);
    esp__coordinates_of(&esp__job_of(ctx)->topo, &c.at);
    c.at.unit = unit;
    c.at.width = c.u->width;
    esp__region_start(&c.region);
    c.u->first_op = c.p->n_ops;
    c.u->raw_feedback = -1;
    esp__compile_pack(&c);
    for (uint32_t i = 0; i < c.u->option.n && !c.status; i++) esp__compile_step(&c, i);
    if (c.half && !c.status) esp__compile_half_end(&c);
    esp__numbers_to(&c, ESP__SPACE_DEVICE, c.u->option.n - 1);
    esp__compile_unpack(&c);
    esp__unit_pieces(&c);
    c.u->n_ops = c.p->n_ops - c.u->first_op;
    if (c.status == ESP_E_NOMEM) return esp__fail(ctx, c.status, "program: out of memory");
    return c.status;
}

static const char *esp__op_word(const esp__op *op) {
    static const char *const copies[] = {"",         "swap", "to f32", "from f32", "scale",
                                         "finalize", "pack", "unpack", "to host",  "to device"};
    return copies[op->copy.what];
}

static bool esp__op_of_rounds(const esp__unit *u, const esp__op *op) {
    const esp__step *s = &u->option.steps[op->step];
    return op->n_rounds > 1 && op->kind != ESP__OP_COPY && (s->kind == ESP__STAGE_COMP || s->compressed);
}

ESP__FN const char *esp__lane_name(const esp_ctx *ctx, uint32_t lane) {
    if (!ctx || lane < ESP__LANE_INTRA) return esp__lane_word(lane);
    return esp__scope_name(&esp__job_of(ctx)->names, lane - ESP__LANE_CPU);
}

static void esp__step_name(const esp_ctx *ctx, const esp__step *s, char *buf, size_t cap) {
    char text[40];
    esp__step_print(s, text, sizeof text);
    if (s->kind == ESP__STAGE_COLLECTIVE)
        snprintf(buf, cap, "%s%s", esp__scope_name(&esp__job_of(ctx)->names, s->level), strchr(text, '.'));
    else
        snprintf(buf, cap, "%s", text);
}

/* Names ops for timelines, such as "inter.allgather fc1.weight". "comp@cpu[1/2] fc1.weight" is the first of two
 * compressions of one gradient. */
static esp_status esp__labels_make(esp_ctx *ctx, esp__active *f) {
    for (uint32_t i = 0; i < f->program.n_ops; i++) {
        esp__op *op = &f->program.ops[i];
        const esp__unit *u = &f->strategy.units[op->unit];
        char step[64], text[96 + ESP__SPEC_MAX];
        esp__step_name(ctx, &u->option.steps[op->step], step, sizeof step);
        if (esp__op_of_rounds(u, op)) {
            const size_t n = strlen(step);
            snprintf(step + n, sizeof step - n, "[%u/%u]", op->round + 1u, (unsigned)op->n_rounds);
        }
        snprintf(text, sizeof text, "%s %s", op->kind == ESP__OP_COPY ? esp__op_word(op) : step, u->name);
        op->label = esp__strdup(ctx, text);
        if (!op->label) return esp__fail(ctx, ESP_E_NOMEM, "program: out of memory");
    }
    return ESP_OK;
}

ESP__FN void esp__program_free(esp_ctx *ctx, esp__program *p) {
    for (uint32_t i = 0; i < p->n_ops; i++) esp__free(ctx, p->ops[i].label);
    esp__free(ctx, p->ops);
    esp__free(ctx, p->ranges);
    esp__free(ctx, p->slots);
    esp__free(ctx, p->pieces);
    memset(p, 0, sizeof *p);
}

ESP__FN esp_status esp__program_make(esp_ctx *ctx, esp__active *f) {
    memset(&f->program, 0, sizeof f->program);
    for (uint32_t i = 0; i < f->strategy.n_units; i++) {
        esp_status s = esp__compile_unit(ctx, f, i);
        if (s) return s;
    }
    return esp__labels_make(ctx, f);
}
