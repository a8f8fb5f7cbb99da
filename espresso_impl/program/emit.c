/* emit.c: appends ops to a program, and chooses their memory and streams. */
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
    *op = (esp__op){.kind = kind, .lane = lane, .step = (uint8_t)step, .unit = c->unit};
    op->n_rounds = (uint8_t)c->u->codec->traits.n_rounds;
    op->round = (uint8_t)(op->n_rounds - 1);
    return op;
}

ESP__FN esp__ref esp__arena_place(esp__compile *c, int space, uint64_t bytes) {
    esp__program_on *on = &c->p->on[c->device];
    uint64_t *block = space == ESP__SPACE_DEVICE ? &on->arena_bytes : &on->pinned_bytes;
    const esp__ref r = {space == ESP__SPACE_DEVICE ? ESP__AT_ARENA : ESP__AT_PINNED, *block};
    *block += (bytes + 63u) / 64u * 64u;
    return r;
}

/* Returns the device stream for `op`. If the op before it is a collective in a device stream, this is a stream that
 * waits for that collective, so that the host need not wait. */
static int esp__stream_now(const esp__compile *c, const esp__op *op) {
    if (c->status || op == &c->p->ops[c->u->first_op]) return ESP__ON_COMPUTE;
    if (op[-1].kind != ESP__OP_COLLECTIVE) return op[-1].on == c->device ? op[-1].stream : ESP__ON_COMPUTE;
    return esp__stream_ordered(op - 1) ? esp__on_behind(op[-1].lane - ESP__LANE_INTRA) : ESP__ON_COMPUTE;
}

ESP__FN void esp__op_place(esp__compile *c, esp__op *op, int space, int stream) {
    const uint32_t device = esp__space_device(c, space);
    esp__program_on *on = &c->p->on[device];
    const int now = space == ESP__SPACE_DEVICE ? esp__stream_now(c, op) : ESP__ON_COMPUTE;
    op->on = (uint8_t)device;
    op->stream = (uint8_t)(now < ESP__ON_LINKS ? stream : now);
    if (esp__op_behind(op) && esp__scratch_of(op) > on->n_behind) on->n_behind = esp__scratch_of(op);
    op->event = on->n_events++;
    op->timed_later = esp__device_has_times(esp__device_at(c->ctx, device));
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

ESP__FN bool esp__takes_part(const esp__compile *c) { return esp__region_active(&c->region); }

ESP__FN uint32_t *esp__slots_new(esp__compile *c, uint64_t n) {
    esp__program *p = c->p;
    uint32_t *grown = esp__grow(c->ctx, p->slots, &p->cap_slots, (p->n_slots + n) * sizeof *p->slots);
    if (!grown) return c->status = ESP_E_NOMEM, NULL;
    p->slots = grown;
    p->n_slots += (uint32_t)n;
    return p->slots + p->n_slots - n;
}
