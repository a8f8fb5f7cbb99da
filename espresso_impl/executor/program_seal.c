/* program_seal.c: the ops that write and check epoch and CRC-32C around a collective of payloads, where its backend asks for them.
 * Part of program.c. */
static int esp__scope_seals(const esp__compile *c, uint8_t scope) {
    return c->at.size[scope] > 1 && (esp__backend_of(&c->ctx->job, scope)->caps & ESP__BACKEND_SEALS) != 0;
}

/* Where a collective of payloads works. The host reads and writes headers and bodies to seal them. */
static int esp__payload_side(const esp__compile *c, uint8_t scope) {
    return esp__scope_seals(c, scope) ? 0 : esp__link_side(c, scope);
}

/* copy: ESP__COPY_SEAL, of the n slots that this rank sends, or ESP__COPY_CHECK, of the n that it has after the collective. */
static void esp__seal_op(esp__compile *c, uint8_t copy, uint32_t i, esp__ref slots, uint64_t n) {
    const esp__step *s = &c->u->option.steps[i];
    if (!esp__scope_seals(c, s->level) || !slots.at || !n) return;
    esp__op *op = esp__op_new(c, ESP__OP_COPY, ESP__LANE_CPU, i);
    op->copy = copy;
    op->level = s->level;
    op->coll.op = s->coll;
    op->coll.root = esp__region_root(&c->at, s);
    op->src = slots;
    op->slot_bytes = c->slot_bytes;
    op->n_slots = n;
}
