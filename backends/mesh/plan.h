/* plan.h: cuts a collective into columns. All ranks must make the same plan from the same call. */
#ifndef MESH_PLAN_H
#define MESH_PLAN_H

ENGINE_FN uint64_t mesh_part_at(const mesh_req *r, int32_t p) {
    return engine_min((uint64_t)p * r->part, r->c.count) * r->unit;
}
/* Column `i` of part `p`: offset in the part, and bytes; 0: the part is shorter. */
ENGINE_FN uint64_t mesh_piece(const mesh_req *r, int32_t p, uint64_t i, uint64_t *at) {
    const uint64_t len = mesh_part_at(r, p + 1) - mesh_part_at(r, p);
    *at = i * r->width;
    return *at < len ? engine_min(r->width, len - *at) : 0;
}
/* The widest column whose inputs fit the staging of one. */
ENGINE_FN uint64_t mesh_widest(int32_t ranks) {
    const uint64_t fits = (uint64_t)MESH_STAGING / (uint64_t)ranks / 64 * 64;
    return engine_max(engine_min(MESH_WIDE, fits), MESH_LEAST);
}

ENGINE_FN void mesh_plan(const mesh_comm *m, const esp_coll *c, mesh_req *r) {
    const uint64_t n = (uint64_t)m->who.size, widest = mesh_widest(m->who.size);
    memset(r, 0, sizeof *r);
    r->c = *c;
    r->scale = c->scale != 0 ? c->scale : 1.0f;
    r->esize = (uint32_t)(c->slot_bytes ? 1 : esp_dtype_bytes(c->dtype));
    r->unit = c->slot_bytes ? c->slot_bytes : r->esize * engine_max(c->width, 1);
    r->how = (engine_sums){c->dtype, c->reduce ? c->reduce : ESP_REDUCE_SUM, m->simd};
    r->kind = (uint32_t)((engine_call_hash(c) + c->op * 0x9e3779b97f4a7c15ull) >> 56); /* below MESH_KINDS */
    const uint64_t bytes = c->count * r->unit;
    const int broadcast = c->op == ESP_COLL_BROADCAST, little = bytes * (n - 1) <= MESH_SMALL && bytes <= widest;
    r->sums = (uint8_t)engine_op_sums(c->op);
    r->whole = (uint8_t)((r->sums && c->op != ESP_COLL_REDUCE_SCATTER && little) ||
                         (broadcast && (little || c->slot_bytes || n == 2)));
    r->scatter = (uint8_t)(broadcast && !r->whole);
    r->gets = (uint8_t)(!r->sums || (c->op != ESP_COLL_REDUCE_SCATTER && !r->whole));
    r->part = r->whole ? c->count : (c->count + n - 1) / n;
    const uint64_t longest = r->part * r->unit;
    if (c->slot_bytes) /* a column has one slot of each part, so that each message has the length that its slot uses */
        r->width = c->slot_bytes;
    else /* at least four columns of a long part, so that stages overlap */
        r->width = engine_min(engine_max((longest / 4 + 63) / 64 * 64, MESH_NARROW), r->sums ? widest : MESH_WIDE);
    r->cols = (longest + r->width - 1) / r->width;
}
#endif
