/* compile.c: compiles every unit's option into this rank's chain of ops, with every buffer at a fixed place in one arena.
 * region.c says which elements the rank has after each step; this file adds memory, lanes and number formats. Runs nothing. */
#include "espresso_impl/program/compile.h"

ESP__FN esp__op *esp__op_new(esp__compile *c, uint8_t kind, uint8_t lane, uint32_t step) {
    esp__program *p = c->p;
    esp__op *grown = esp__grow(c->ctx, p->ops, &p->cap_ops, ((uint64_t)p->n_ops + 1) * sizeof *p->ops);
    if (!grown) {
        c->status = ESP_E_NOMEM;
        return &c->nowhere;
    }
    p->ops = grown;
    esp__op *op = &p->ops[p->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = kind;
    op->lane = lane;
    op->unit = c->unit;
    op->step = (uint8_t)step;
    op->n_rounds = (uint8_t)c->u->codec->traits.n_rounds;
    op->round = (uint8_t)(op->n_rounds - 1);
    op->feedback = -1;
    return op;
}

/* Memory on a space of the unit. */
ESP__FN esp__ref esp__arena_place(esp__compile *c, int space, uint64_t bytes) {
    esp__program_on *on = &c->p->on[c->device];
    esp__ref r = {ESP__AT_ARENA, 0};
    uint64_t *arena = &c->p->arena_bytes;
    if (c->device) {
        r.at = space ? ESP__AT_DEVICE : ESP__AT_PINNED;
        arena = space ? &on->arena_bytes : &on->pinned_bytes;
    }
    r.offset = *arena;
    *arena += (bytes + 63u) / 64u * 64u;
    return r;
}

/* The stream of the unit's op that is compiled now, if it were on a device: behind a link's, if it follows a stream-ordered collective
 * and the host has nothing to do in between; else that of kernels. */
static int esp__stream_now(const esp__compile *c, const esp__op *op) {
    if (c->status || op == &c->p->ops[c->u->first_op]) return ESP__ON_COMPUTE;
    if (op[-1].kind != ESP__OP_COLLECTIVE) return op[-1].on ? op[-1].stream : ESP__ON_COMPUTE;
    return esp__stream_ordered(c->ctx, op - 1) ? esp__on_behind(op[-1].lane - ESP__LANE_INTRA) : ESP__ON_COMPUTE;
}

/* The op, which is the last one so far, works on this space's memory, in `stream` of its device or in one behind a link. */
ESP__FN void esp__op_place(esp__compile *c, esp__op *op, int space, int stream) {
    if (!space) return;
    esp__program_on *on = &c->p->on[c->device];
    const int now = esp__stream_now(c, op);
    op->on = (uint8_t)c->device;
    op->stream = (uint8_t)(now < ESP__ON_LINKS ? stream : now);
    if (esp__op_behind(op) && esp__scratch_of(op) > on->n_behind) on->n_behind = esp__scratch_of(op);
    op->event = on->n_events++;
}

ESP__FN uint64_t esp__contributions(const esp__compile *c) {
    uint64_t n = 1;
    for (uint32_t scope = 0; scope < ESP__SCOPES; scope++)
        if (c->region.summed[scope]) n *= (uint64_t)c->at.size[scope];
    return n;
}

ESP__FN void esp__region_now(const esp__compile *c, uint64_t *begin, uint64_t *length) {
    uint32_t none[ESP__DIMS] = {0};
    esp__region_range(&c->region, &c->at, c->u->place.elements, none, begin, length);
}

ESP__FN int esp__takes_part(const esp__compile *c) { return esp__region_active(&c->region); }

/* A copy op over the numbers of the current region; NULL if this rank has no data there. */
static esp__op *esp__copy_op(esp__compile *c, uint8_t copy, uint32_t step, float scale) {
    if (!esp__takes_part(c)) return NULL;
    esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, step);
    op->copy = copy;
    op->data = c->work;
    op->grad = c->grads[c->space];
    op->scale = scale;
    esp__region_now(c, &op->begin, &op->length);
    esp__op_place(c, op, c->space, ESP__ON_COMPUTE);
    return op;
}

ESP__FN void esp__to_f32(esp__compile *c, uint32_t step) {
    if (!c->half || !c->in_grad) return;
    esp__copy_op(c, ESP__COPY_TO_F32, step, (float)(1.0 / c->share));
    c->in_grad = 0;
}

/* Moves the numbers back into the gradient's halves, as the sum so far times `share`. On the way halves are a mean: share is
 * 1 / contributions so far. At the end of the option it is what the caller of esp_push asked for. */
static void esp__from_f32(esp__compile *c, uint32_t step, double share) {
    if (!c->half || c->in_grad) return;
    esp__copy_op(c, ESP__COPY_FROM_F32, step, (float)share);
    c->in_grad = 1;
    c->share = share;
}

static int esp__wants_mean(const esp__compile *c) {
    return !(c->u->flags & ESP_SUM) && c->job->size > 1 && !c->finalized;
}

static int esp__power_of_two(uint64_t n) { return (n & (n - 1)) == 0; }

ESP__FN uint32_t *esp__slots_new(esp__compile *c, uint64_t n) {
    esp__program *p = c->p;
    uint32_t *grown = esp__grow(c->ctx, p->slots, &p->cap_slots, (p->n_slots + n) * sizeof *p->slots);
    if (!grown) return c->status = ESP_E_NOMEM, NULL;
    p->slots = grown;
    p->n_slots += (uint32_t)n;
    return p->slots + p->n_slots - n;
}

/* After the last step that changes numbers: the sum becomes the mean. Halves are scaled when they go back to the gradient. */
static void esp__compile_mean(esp__compile *c, uint32_t i) {
    uint64_t n = (uint64_t)c->job->size;
    esp__op *op = c->p->n_ops > c->u->first_op ? &c->p->ops[c->p->n_ops - 1] : NULL;
    if (i != c->last_value || c->half || !esp__wants_mean(c) || !op) return;
    float scale = (float)(1.0 / (double)n);
    if (op->step == i && op->kind == ESP__OP_COLLECTIVE && esp__backend_of(c->job, op->level)->caps & ESP_BACKEND_SCALE)
        op->coll.scale = scale;
    else if (op->step == i && op->kind == ESP__OP_DECOMPRESS && esp__power_of_two(n))
        op->scale = scale; /* a power of two is exact: a codec may scale before or after it sums */
    else
        esp__copy_op(c, ESP__COPY_SCALE, i, scale);
}

static void esp__compile_finalize(esp__compile *c, uint32_t i) {
    if (c->finalized || !ESP_HAS(esp_codec, c->u->codec->table, finalize) || !esp__option_compresses(&c->u->option) ||
        esp__contributions(c) != (uint64_t)c->job->size)
        return;
    if (!c->device_codec) esp__numbers_to(c, 0, i);
    esp__to_f32(c, i);
    esp__copy_op(c, ESP__COPY_FINALIZE, i, 1.0f);
    c->finalized = 1;
}

/* A Decomp of parts that this rank has compressed gets the codec's state for them. */
static void esp__decomp_state(esp__compile *c, esp__op *op) {
    op->feedback = c->comp_ranges ? c->comp_feedback : -1;
    for (uint32_t k = 0; k < op->n_ranges && op->feedback >= 0; k++) {
        esp__range *r = &c->p->ranges[op->first_range + k];
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
    int active = esp__takes_part(c);
    const int space = esp__codec_space(c, s);
    esp__payloads_to(c, space, i, active ? esp__region_slots(&c->region, &c->at) : 0);
    esp__reduced_to(c, space, i, active);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    esp__numbers_begin(c, space);
    c->in_grad = 0;
    if (active) {
        esp__op *op = esp__op_codec(c, ESP__OP_DECOMPRESS, space, i);
        esp__ranges_make(c, &before, op);
        if (!c->status) esp__decomp_state(c, op);
        if (esp__op_list(c->u, op) > 1) esp__op_scratch(c, op); /* else those of the Comp are as large */
    }
    c->comps++;
    esp__compile_finalize(c, i);
    esp__compile_mean(c, i);
}

/* A collective on payload slots. It receives into a new buffer, except at a broadcast's root. */
static void esp__compile_payload_coll(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    esp__region before = c->region;
    uint32_t swap;
    int part = esp__region_takes_part(&c->region, s), held = esp__takes_part(c);
    uint64_t have = esp__region_slots(&c->region, &c->at), n = (uint64_t)c->at.size[s->level];
    int32_t root = esp__region_root(&c->at, s), me = c->at.index[s->level];
    const int space =
        s->summed ? 0 : esp__link_space(c, s->level); /* the host keeps the headers of bodies that are summed */
    esp__payloads_to(c, space, i, part && held ? have : 0);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    if (!part || c->status) return;
    uint64_t want = esp__region_slots(&c->region, &c->at), outer = 1;
    esp__ref src = c->slots, dst = {ESP__AT_NOTHING, 0};
    if (swap) { /* the alltoall's cut must be the outermost dimension */
        for (uint32_t d = 0; d < swap; d++) outer *= (uint64_t)c->at.size[before.dims[d].level];
        const uint64_t mid = (uint64_t)c->at.size[before.dims[swap].level];
        esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, i);
        op->copy = ESP__COPY_SWAP;
        op->outer = outer, op->mid = mid, op->inner = have / (outer * mid);
        op->slot_bytes = c->slot_bytes;
        op->src = src;
        op->dst = src = esp__arena_place(c, space, have * c->slot_bytes);
        esp__op_place(c, op, space, ESP__ON_COMPUTE);
    }
    if (s->coll == ESP_COLL_BROADCAST && me == root)
        dst = src;
    else if (s->coll != ESP_COLL_GATHER || me == root)
        dst = esp__arena_place(c, space, want * c->slot_bytes);
    if (!held) src = dst; /* a broadcast's receivers hold nothing yet */
    esp__op *op = esp__op_collective(c, space, i);
    op->coll.slot_bytes = c->slot_bytes;
    op->coll.count = s->coll == ESP_COLL_ALLGATHER || s->coll == ESP_COLL_GATHER ? have * n : have;
    if (s->coll == ESP_COLL_BROADCAST) op->coll.count = want;
    if (s->summed) esp__op_reduces(c, op, have, want, s->coll == ESP_COLL_REDUCE_SCATTER ? (uint64_t)me * want : 0);
    op->src = src;
    op->dst = dst;
    op->coll.src.bytes = (held ? have : want) * c->slot_bytes;
    op->coll.dst.bytes = dst.at ? want * c->slot_bytes : 0;
    c->slots = dst;
}

/* A collective on numbers, in place. */
static void esp__compile_raw_coll(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    uint64_t before, n_before, after, n_after, e = esp_dtype_bytes(c->u->dtype);
    int sums = s->role != ESP__SECOND, scales = (esp__backend_of(c->job, s->level)->caps & ESP_BACKEND_SCALE) != 0;
    uint64_t n = (uint64_t)c->at.size[s->level];
    uint32_t swap;
    esp__from_f32(c, i, 1.0 / (double)esp__contributions(c));
    if (c->half && sums && !scales && n > 1) { /* divide before the backend sums, so that halves do not overflow */
        esp__copy_op(c, ESP__COPY_SCALE, i, (float)(1.0 / (double)n));
        c->share /= (double)n;
    }
    const int space = esp__link_space(c, s->level);
    esp__numbers_to(c, space, i);
    int part = esp__region_takes_part(&c->region, s);
    esp__region_now(c, &before, &n_before);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    esp__region_now(c, &after, &n_after);
    if (part) {
        esp__op *op = esp__op_collective(c, space, i);
        op->coll.dtype = c->u->dtype;
        op->coll.count = n_before > n_after ? n_before : n_after;
        if (s->coll == ESP_COLL_REDUCE_SCATTER) op->coll.count = n_before;
        if (s->coll == ESP_COLL_ALLGATHER) op->coll.count = n_after;
        if (c->u->width > 1 && (s->coll == ESP_COLL_REDUCE_SCATTER || s->coll == ESP_COLL_ALLGATHER)) {
            op->coll.width = c->u->width;
            op->coll.count /= c->u->width;
        }
        op->src = op->dst = c->grads[space];
        op->src.offset += before * e;
        op->dst.offset += after * e;
        op->coll.src.bytes = n_before * e;
        op->coll.dst.bytes = n_after * e;
        if (c->half && sums && scales && n > 1) op->coll.scale = (float)(1.0 / (double)n);
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

/* Copies a group's tensors into the arena, each as soon as it is pushed, so that copies overlap backward. */
static void esp__compile_pack(esp__compile *c) {
    if (!esp__unit_is_group(c->u)) return;
    c->u->packed = esp__arena_place(c, c->space, c->u->place.elements * esp_dtype_bytes(c->u->dtype)).offset;
    uint64_t begin = 0;
    for (uint32_t k = 0; k < c->u->place.n; k++) {
        esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, 0);
        op->copy = ESP__COPY_PACK;
        op->member = c->u->place.first + k;
        op->begin = begin;
        op->length = esp__model_of(c->ctx)->tensors[op->member].count;
        esp__op_place(c, op, c->space, ESP__ON_COMPUTE);
        begin += op->length;
    }
}

static void esp__compile_unpack(esp__compile *c) {
    if (!esp__unit_is_group(c->u)) return;
    esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, c->u->option.n - 1);
    op->copy = ESP__COPY_UNPACK;
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

/* Halves: back into the gradient, as sum or mean. */
static void esp__compile_half_end(esp__compile *c) {
    uint32_t last = c->u->option.n - 1;
    double share = c->u->flags & ESP_SUM || c->finalized ? 1.0 : 1.0 / (double)c->job->size;
    esp__from_f32(c, last, share);
    if (c->share < share * 0.999 || c->share > share * 1.001)
        esp__copy_op(c, ESP__COPY_SCALE, last, (float)(share / c->share));
}

static esp_status esp__compile_unit(esp_ctx *ctx, esp__active *f, uint32_t unit) {
    esp__compile c;
    memset(&c, 0, sizeof c);
    c.ctx = ctx;
    c.job = esp__job_of(ctx);
    c.f = f;
    c.p = &f->program;
    c.u = &f->strategy.units[unit];
    c.unit = unit;
    c.half = c.u->dtype != ESP_F32;
    c.in_grad = 1;
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
    esp__numbers_to(&c, c.device != 0, c.u->option.n - 1);
    esp__compile_unpack(&c);
    esp__unit_pieces(&c);
    c.u->n_ops = c.p->n_ops - c.u->first_op;
    if (c.status == ESP_E_NOMEM) return esp__fail(ctx, c.status, "program: out of memory");
    return c.status;
}

static const char *esp__op_word(const esp__op *op) {
    static const char *const copies[] = {"",         "swap", "to f32", "from f32", "scale",
                                         "finalize", "pack", "unpack", "to host",  "to device"};
    return copies[op->copy];
}

/* Is the op one of several rounds: a Comp, or a collective of its payloads? */
static int esp__op_of_rounds(const esp__unit *u, const esp__op *op) {
    const esp__step *s = &u->option.steps[op->step];
    return op->n_rounds > 1 && op->kind != ESP__OP_COPY && (s->kind == ESP__STAGE_COMP || s->compressed);
}

ESP__FN int esp__stream_ordered(const esp_ctx *ctx, const esp__op *op) {
    return op->kind == ESP__OP_COLLECTIVE && op->on &&
           esp__backend_of(esp__job_of(ctx), op->level)->caps & ESP_BACKEND_STREAM_ORDERED;
}

ESP__FN const char *esp__lane_name(const esp_ctx *ctx, uint32_t lane) {
    if (!ctx || lane < ESP__LANE_INTRA) return esp__lane_word(lane);
    return esp__scope_name(&esp__job_of(ctx)->names, lane - ESP__LANE_CPU);
}

/* "machine.allgather", with the names of the job's levels. */
static void esp__step_name(const esp_ctx *ctx, const esp__step *s, char *buf, size_t cap) {
    char text[40];
    esp__step_print(s, text, sizeof text);
    if (s->kind == ESP__STAGE_COLLECTIVE)
        snprintf(buf, cap, "%s%s", esp__scope_name(&esp__job_of(ctx)->names, s->level), strchr(text, '.'));
    else
        snprintf(buf, cap, "%s", text);
}

/* Ops' names for the timeline: "inter.allgather fc1.weight", with several rounds "comp@cpu[1/2] fc1.weight". */
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
    for (uint32_t i = 0; i < p->n_ops; i++) esp__strfree(ctx, p->ops[i].label);
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
