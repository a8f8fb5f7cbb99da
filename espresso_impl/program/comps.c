/* comps.c: turns a compress stage into ops. A codec with several rounds, such as PowerSGD, gets one compress op for
 * each round, with collectives between them. A slot is memory for one payload. */
#include "espresso_impl/program/compile.h"

static uint32_t esp__slot_reduced(const esp__compile *c, const esp__region *r, const uint32_t *index) {
    uint32_t slot = 0;
    for (uint32_t k = 0; k < c->reduced_region.n_dims; k++) {
        const uint8_t level = c->reduced_region.dims[k].level;
        uint32_t part = (uint32_t)c->at.index[level];
        for (uint32_t d = 0; d < r->n_dims; d++)
            if (r->dims[d].what == ESP__DIM_PART && r->dims[d].level == level) part = index[d];
        slot = slot * (uint32_t)c->at.size[level] + part;
    }
    return slot;
}

/* Adds one range of elements to the op for each part of the tensor that it works on. A range's payloads are listed in
 * the order in which they are summed. */
ESP__FN void esp__ranges_make(esp__compile *c, const esp__region *r, esp__op *op) {
    esp__program *p = c->p;
    uint64_t n_slots = esp__region_slots(r, &c->at), n_parts = 1, stride[ESP__DIMS] = {0}, s = 1;
    uint32_t size[ESP__DIMS] = {0};
    for (uint32_t d = r->n_dims; d-- > 0;) {
        size[d] = (uint32_t)c->at.size[r->dims[d].level];
        stride[d] = s;
        s *= size[d];
        if (r->dims[d].what == ESP__DIM_PART) n_parts *= size[d];
    }
    op->codec.first_range = p->n_ranges;
    op->codec.n_ranges = (uint32_t)n_parts;
    op->codec.n_sources = (uint32_t)(n_slots / n_parts);
    const uint32_t list = esp__op_list(op);
    if (list * op->codec.n_sources > p->max_payloads) p->max_payloads = list * op->codec.n_sources;
    if (list > 1 && list > p->max_list) p->max_list = list;
    esp__range *grown = esp__grow(c->ctx, p->ranges, &p->cap_ranges, (p->n_ranges + n_parts) * sizeof *p->ranges);
    if (grown) p->ranges = grown;
    uint32_t first = p->n_slots, *slots = esp__slots_new(c, n_slots);
    if (!grown || !slots) {
        c->status = ESP_E_NOMEM;
        return;
    }
    for (uint64_t part = 0; part < n_parts; part++) {
        esp__range *range = &p->ranges[p->n_ranges++];
        uint32_t index[ESP__DIMS] = {0};
        uint64_t rest = part, base = 0;
        memset(range, 0, sizeof *range);
        /* visits parts in the order of their elements, which may differ from the order of payloads */
        for (uint32_t k = r->n_cuts; k-- > 0;)
            for (uint32_t d = 0; d < r->n_dims; d++)
                if (r->cuts[k].open && r->dims[d].what == ESP__DIM_PART && r->dims[d].level == r->cuts[k].level) {
                    index[d] = (uint32_t)(rest % size[d]);
                    rest /= size[d];
                    base += index[d] * stride[d];
                }
        esp__region_range(r, &c->at, c->u->place.elements, index, &range->begin, &range->length);
        range->first_slot = first + (uint32_t)(part * op->codec.n_sources);
        range->reduced_slot = esp__slot_reduced(c, r, index);
        for (uint64_t q = 0; q < op->codec.n_sources; q++) {
            uint64_t left = q, slot = base;
            for (uint32_t d = r->n_dims; d-- > 0;)
                if (r->dims[d].what == ESP__DIM_SOURCE) {
                    slot += left % size[d] * stride[d];
                    left /= size[d];
                }
            slots[part * op->codec.n_sources + q] = (uint32_t)slot;
        }
    }
}

static int32_t esp__feedback_new(esp__compile *c, const esp__op *op, uint64_t begin, uint64_t length, uint64_t state) {
    esp__active *now = c->f;
    esp__feedback *grown =
        esp__grow(c->ctx, now->feedback, &now->cap_feedback, ((uint64_t)now->n_feedback + 1) * sizeof *grown);
    if (!grown) return c->status = ESP_E_NOMEM, -1;
    now->feedback = grown;
    esp__feedback *f = &grown[now->n_feedback];
    memset(f, 0, sizeof *f);
    f->place = c->u->place;
    f->codec = esp__hash64(ESP__HASH0, c->u->codec->spec, strlen(c->u->codec->spec));
    f->option = esp__hash64(ESP__HASH0, c->u->option.steps, c->u->option.n * sizeof *c->u->option.steps);
    f->comp_index = op->codec.comp_index;
    f->n_ranges = op->codec.n_ranges;
    f->raw = op->codec.raw;
    f->device = op->on;
    f->owner_replica = (int32_t)op->codec.source == c->job->rank;
    f->offset = begin;
    f->count = c->u->codec->feedback ? length : 0;
    f->state_bytes = state;
    if (f->raw) c->u->raw_feedback = (int32_t)now->n_feedback;
    return (int32_t)now->n_feedback++;
}

/* Returns the lowest rank that compresses the same numbers as this one. All of these use that rank's random numbers, so
 * that they make equal payloads. */
static uint32_t esp__lowest_replica(const esp__compile *c) {
    const esp__topology *p = &c->job->topo;
    int32_t place[ESP__LEVELS];
    if (c->region.replicated[ESP__FLAT]) return 0;
    if (!p->n_local) return (uint32_t)p->rank;
    for (uint32_t level = 1; level <= p->n_levels; level++) place[level - 1] = esp__place_at(p, p->rank, level);
    for (uint32_t scope = 1, first, last; scope < ESP__SCOPES; scope++) {
        if (!c->region.replicated[scope]) continue;
        esp__scope_levels(scope, p->n_levels, &first, &last);
        for (uint32_t level = first; level <= last; level++) place[level - 1] = 0;
    }
    return (uint32_t)esp__rank_at(p, place);
}

static bool esp__early_spreads(const esp__step *s) { return s->role == ESP__SECOND; }

static void esp__check_reduces(esp__compile *c, const esp__op *op) {
    static const char *const ops[] = {"?", "sum", "max", "min"};
    const esp_backend *b = esp__backend_of(c->job, op->collective.scope);
    if (c->status ||
        (b->dtypes & ESP_BIT(op->collective.coll.dtype) && b->reduces & ESP_BIT(op->collective.coll.reduce)))
        return;
    c->status = esp__fail(c->ctx, ESP_E_UNSUPPORTED,
                          "tensor '%s': codec '%s' needs a %s of %s, which backend '%s' does not do: use %s",
                          c->u->name, c->u->codec->spec, ops[op->collective.coll.reduce & 3u],
                          esp__dtype_word(op->collective.coll.dtype), b->name,
                          op->round + 1u < op->n_rounds
                              ? "another codec or another backend"
                              : "an option without summed payloads (allgather or alltoall), or another backend");
}

ESP__FN esp__op *esp__op_collective(esp__compile *c, int space, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    uint32_t first, last;
    esp__op *op = esp__op_new(c, ESP__OP_COLLECTIVE, 0, i);
    op->collective.scope = s->level;
    esp__scope_lanes(&c->job->topo, s->level, &first, &last);
    op->collective.links = (uint8_t)((2u << (last - ESP__LANE_INTRA)) - (1u << (first - ESP__LANE_INTRA)));
    op->lane = (uint8_t)last;
    op->collective.coll.struct_size = sizeof op->collective.coll;
    op->collective.coll.op = s->coll;
    op->collective.coll.root = esp__region_root(&c->at, s);
    if (op->collective.coll.root < 0) op->collective.coll.root = 0;
    esp__op_place(c, op, space, ESP__ON_COMPUTE);
    op->collective.stream_ordered =
        esp__device_at(c->ctx, op->on)->async && esp__backend_of(c->job, s->level)->caps & ESP_BACKEND_STREAM_ORDERED;
    op->timed_later &= op->collective.stream_ordered;
    return op;
}

/* Sums payloads as one array of numbers. The executor saves their headers before and restores them after. */
ESP__FN void esp__op_reduces(esp__compile *c, esp__op *op, uint64_t have, uint64_t want, uint64_t own_slot) {
    op->collective.coll.dtype = c->body_dtype;
    op->collective.coll.reduce = esp__codec_round(c->u->codec, op->round).op;
    op->collective.coll.count = have * (c->slot_bytes / esp_dtype_bytes(op->collective.coll.dtype));
    op->collective.coll.slot_bytes = 0;
    op->collective.rebuild = true;
    op->collective.slot_bytes = c->slot_bytes;
    op->collective.n_slots = want;
    op->collective.own_slot = own_slot;
    op->collective.n_sent = have;
    op->collective.headers = esp__arena_place(c, c->host, want * ESP_PAYLOAD_HEADER);
    esp__check_reduces(c, op);
}

/* Adds the collectives between two rounds of a codec: an allreduce where several ranks have payloads of the same
 * elements, and an allgather or broadcast where one rank has them. */
static void esp__compile_early(esp__compile *c, uint32_t comp, uint32_t round) {
    const esp__option *o = &c->u->option;
    esp__region r = c->comp_region;
    uint32_t swap;
    for (uint32_t i = comp + 1; i < o->n && o->steps[i].kind != ESP__STAGE_DECOMP && !c->status; i++) {
        const esp__step *s = &o->steps[i];
        const bool held = esp__region_active(&r), root = s->coll == ESP_COLL_BROADCAST && held;
        const uint64_t have = esp__region_slots(&r, &c->at);
        if (!esp__early_step(o, comp, i)) continue;
        const bool part = esp__region_takes_part(&r, s);
        /* payloads are summed in host memory, where their headers can be saved */
        const int space = esp__early_spreads(s) ? esp__link_space(c, s->level) : c->host;
        esp__payloads_to(c, space, i, part && held ? have : 0);
        if (esp__early_spreads(s)) esp__region_step(&r, &c->at, o, i, &swap);
        if (!part) continue;
        const uint64_t want = esp__region_slots(&r, &c->at);
        const esp__ref dst = root ? c->slots : esp__arena_place(c, space, want * c->slot_bytes);
        esp__op *op = esp__op_collective(c, space, i);
        op->round = (uint8_t)round;
        op->collective.dst = dst;
        op->collective.src = held ? c->slots : dst;
        op->collective.coll.src.bytes = (held ? have : want) * c->slot_bytes;
        op->collective.coll.dst.bytes = want * c->slot_bytes;
        op->collective.coll.slot_bytes = c->slot_bytes;
        op->collective.coll.count = want;
        c->slots = dst;
        if (esp__early_spreads(s)) continue;
        op->collective.coll.op = ESP_COLL_ALLREDUCE;
        op->collective.coll.root = 0;
        esp__op_reduces(c, op, have, want, 0);
    }
    c->reduced = c->slots;
    c->reduced_space = c->slots_space;
    c->reduced_bytes = c->slot_bytes;
}

static uint32_t esp__bodies_reduced(const esp__compile *c, uint32_t i, bool last) {
    const esp__option *o = &c->u->option;
    uint32_t n = 1;
    for (uint32_t k = i + 1; k < o->n && o->steps[k].kind != ESP__STAGE_DECOMP; k++)
        if (last ? o->steps[k].summed : esp__early_step(o, i, k) && !esp__early_spreads(&o->steps[k]))
            n *= (uint32_t)c->at.size[o->steps[k].level];
    return n;
}

static void esp__comp_ranges(esp__compile *c, esp__op *op, uint64_t begin, uint64_t length) {
    esp__program *p = c->p;
    uint64_t state = 0, phi = 0;
    esp__ranges_make(c, &c->region, op);
    for (uint32_t k = 0; k < op->codec.n_ranges && !c->status; k++) {
        esp__range *r = &p->ranges[op->codec.first_range + k];
        esp_bound b;
        esp_status status = esp__codec_bound(c->ctx, c->u->codec, c->u, r->length, 0,
                                             esp__bodies_reduced(c, op->step, op->n_rounds == 1), &b);
        if (status) c->status = status;
        r->state_offset = state;
        r->state_bytes = b.state_bytes;
        state += (b.state_bytes + 63u) / 64u * 64u;
        phi = esp__op_list(op) > 1 ? phi + r->length : r->length;
        esp__room_for_phi(c, esp__op_space(c, op), phi);
    }
    if (!c->status && (c->u->codec->feedback || state))
        op->codec.feedback = esp__feedback_new(c, op, begin, length, state);
    c->comp_range = op->codec.first_range;
    c->comp_ranges = op->codec.n_ranges;
    c->comp_feedback = op->codec.feedback;
}

ESP__FN void esp__op_scratch(esp__compile *c, const esp__op *op) {
    for (uint32_t k = 0; k < op->codec.n_ranges && !c->status; k++) {
        const uint64_t n = c->p->ranges[op->codec.first_range + k].length;
        esp_bound b;
        c->status = esp__codec_bound(c->ctx, c->u->codec, c->u, n, op->round, op->codec.n_reduced, &b);
        if (!c->status)
            esp__room_for_codec(c, esp__op_space(c, op), n, op->round, op->codec.n_reduced, esp__op_list(op), &b);
    }
}

/* Sets the size of a payload to that for the largest part of the tensor, because collectives need equal sizes on all
 * ranks. */
static void esp__comp_sizes(esp__compile *c, int space, uint32_t round, uint32_t n_reduced) {
    uint64_t largest = c->u->place.elements / c->u->width, off, len;
    for (uint32_t k = 0; k < c->region.n_cuts; k++) {
        esp__part(largest, (uint64_t)c->at.size[c->region.cuts[k].level], 0, &off, &len);
        largest = len;
    }
    largest *= c->u->width;
    esp_bound b;
    esp_status status = esp__codec_bound(c->ctx, c->u->codec, c->u, largest, round, n_reduced, &b);
    if (status) c->status = status;
    c->slot_bytes = b.payload_bytes < ESP_PAYLOAD_HEADER ? ESP_PAYLOAD_HEADER : b.payload_bytes;
    c->body_dtype = b.dtype;
    if (!status) esp__room_for_codec(c, space, largest, round, n_reduced, 1, &b);
}

static bool esp__summed_any(const esp__region *r) {
    for (uint32_t scope = 0; scope < ESP__SCOPES; scope++)
        if (r->summed[scope]) return true;
    return false;
}

ESP__FN esp__op *esp__op_codec(esp__compile *c, uint8_t kind, int space, uint32_t i) {
    const uint8_t device = c->u->option.steps[i].device;
    esp__op *op = esp__op_new(c, kind, device == ESP_ON_GPU ? ESP__LANE_COMPUTE : ESP__LANE_CPU, i);
    esp__op_place(c, op, space, ESP__ON_COMPUTE);
    op->codec = (esp__codec_op){.codec = esp__codec_of(c, space),
                                .comp_index = (uint8_t)c->comps,
                                .feedback = -1,
                                .n_reduced = c->n_reduced,
                                .n_summed = c->n_summed,
                                .data = c->work,
                                .slots = c->slots,
                                .slot_bytes = c->slot_bytes,
                                .reduced = c->reduced,
                                .reduced_bytes = c->reduced_bytes};
    return op;
}

ESP__FN void esp__compile_comp(esp__compile *c, uint32_t i) {
    const esp__step *s = &c->u->option.steps[i];
    const uint32_t n_rounds = c->u->codec->traits.n_rounds;
    uint64_t begin, length;
    uint32_t swap;
    const bool active = esp__takes_part(c), raw = esp__contributions(c) == 1 && !esp__summed_any(&c->region);
    const uint32_t source = esp__lowest_replica(c);
    const int space = esp__codec_space(c, s);
    esp__numbers_to(c, space, i);
    esp__to_f32(c, i);
    esp__region_now(c, &begin, &length);
    c->n_summed = (uint32_t)esp__contributions(c);
    esp__region_step(&c->region, &c->at, &c->u->option, i, &swap);
    c->comp_region = c->reduced_region = c->region;
    for (uint32_t k = i + 1; k < c->u->option.n && c->u->option.steps[k].kind != ESP__STAGE_DECOMP; k++)
        if (esp__early_step(&c->u->option, i, k) && esp__early_spreads(&c->u->option.steps[k]))
            esp__region_step(&c->reduced_region, &c->at, &c->u->option, k, &swap);
    c->comp_ranges = 0;
    memset(&c->reduced, 0, sizeof c->reduced);
    c->reduced_space = space;
    for (uint32_t round = c->u->first_round; round < n_rounds && !c->status; round++) {
        const uint32_t n_reduced = c->n_reduced = esp__bodies_reduced(c, i, round + 1 == n_rounds);
        esp__reduced_to(c, space, i, active);
        esp__comp_sizes(c, space, round, n_reduced);
        c->slots_space = space;
        if (active && !c->status) {
            c->slots = esp__arena_place(c, space, esp__region_slots(&c->region, &c->at) * c->slot_bytes);
            esp__op *op = esp__op_codec(c, ESP__OP_COMPRESS, space, i);
            op->round = (uint8_t)round;
            op->codec.raw = raw;
            op->codec.source = source;
            if (round == c->u->first_round) esp__comp_ranges(c, op, begin, length);
            op->codec.first_range = c->comp_range;
            op->codec.n_ranges = c->comp_ranges;
            op->codec.n_sources = 1;
            op->codec.feedback = c->comp_feedback;
            if (space != c->host && round + 1 == n_rounds) {
                op->codec.headers_later = true;
                op->codec.first_header = c->p->on[c->device].n_headers;
                c->p->on[c->device].n_headers += op->codec.n_ranges;
            }
            esp__op_scratch(c, op);
        }
        if (round + 1 < n_rounds) esp__compile_early(c, i, round);
    }
}
