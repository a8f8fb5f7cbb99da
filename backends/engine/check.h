/* check.h: refuses a malformed call, with a message that says what to do. Knows the call and the group, not the plan. */
#ifndef ENGINE_CHECK_H
#define ENGINE_CHECK_H
#include "backends/engine/common.h"

/* The rank that calls. */
typedef struct engine_who {
    const esp_host *host;
    const char *name; /* of the backend */
    int32_t rank, size;
} engine_who;

/* What the items are: payload slots, or numbers that may be reduced. */
ENGINE_FN esp_status engine_check_items(const engine_who *m, const esp_coll *c) {
    const char *what = engine_op_name(c->op);
    const esp_host *h = m->host;
    int reduces = engine_op_sums(c->op), floats = c->dtype >= ESP_F32 && c->dtype <= ESP_BF16;
    if (c->slot_bytes && reduces)
        return engine_say(h, m->name, ESP_E_ARG, "%s: payload slots cannot be reduced: set slot_bytes to 0", what);
    if (c->slot_bytes && c->slot_bytes < ESP_PAYLOAD_HEADER)
        return engine_say(h, m->name, ESP_E_ARG, "%s: slot_bytes is %llu, but a payload's header alone has %u bytes",
                          what, (unsigned long long)c->slot_bytes, (unsigned)ESP_PAYLOAD_HEADER);
    if (c->slot_bytes && c->width > 1)
        return engine_say(h, m->name, ESP_E_ARG, "%s: width %llu is for plain numbers: set it to 0 with payload slots",
                          what, (unsigned long long)c->width);
    if (!c->slot_bytes && !esp_dtype_bytes(c->dtype))
        return engine_say(h, m->name, ESP_E_ARG, "%s: there is no dtype %u: use ESP_F32 to ESP_I32", what,
                          (unsigned)c->dtype);
    if (c->reduce > ESP_REDUCE_MIN)
        return engine_say(h, m->name, ESP_E_ARG, "%s: there is no reduction %u: use ESP_REDUCE_*", what,
                          (unsigned)c->reduce);
    if (reduces && (c->scale < 0 || c->scale > 0) && (c->scale < 1 || c->scale > 1) &&
        (!floats || c->reduce > ESP_REDUCE_SUM))
        return engine_say(h, m->name, ESP_E_ARG,
                          "%s: scale %g is for sums of f32, f16 and bf16: set it to 0 for integers, MAX and MIN", what,
                          (double)c->scale);
    return ESP_OK;
}
/* How many items there are, over how many ranks, and from which root. */
ENGINE_FN esp_status engine_check_shape(const engine_who *m, const esp_coll *c, int rooted) {
    const char *what = engine_op_name(c->op);
    const uint64_t most = UINT64_MAX / 16, width = engine_max(c->width, 1);
    if (rooted && (c->root < 0 || c->root >= m->size))
        return engine_say(m->host, m->name, ESP_E_ARG, "%s: root %d is not in 0..%d", what, (int)c->root,
                          (int)m->size - 1);
    if (c->op == ESP_COLL_ALLTOALL && c->count % (uint64_t)m->size)
        return engine_say(m->host, m->name, ESP_E_ARG, "alltoall: count %llu must be a multiple of the %d ranks",
                          (unsigned long long)c->count, (int)m->size);
    if (width > most / 4 || c->count > most / (c->slot_bytes ? c->slot_bytes : 4 * width))
        return engine_say(m->host, m->name, ESP_E_ARG, "%s: count %llu of width %llu is too large", what,
                          (unsigned long long)c->count, (unsigned long long)width);
    return ESP_OK;
}
ENGINE_FN esp_status engine_check_buffers(const engine_who *m, const esp_coll *c, int rooted) {
    const char *what = engine_op_name(c->op);
    int root = m->rank == c->root;
    if (c->src.dev.kind > ESP_CPU || c->dst.dev.kind > ESP_CPU)
        return engine_say(m->host, m->name, ESP_E_UNSUPPORTED, "%s: moves host memory only: copy to the CPU first",
                          what);
    uint64_t per = (c->count + (uint64_t)m->size - 1) / (uint64_t)m->size;
    int own = (uint64_t)m->rank * per < c->count; /* this rank's part has items */
    int needs_src = c->op == ESP_COLL_BROADCAST                               ? root
                    : c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER ? own
                                                                              : 1;
    int needs_dst = c->op == ESP_COLL_BROADCAST ? !root : rooted ? root : c->op == ESP_COLL_REDUCE_SCATTER ? own : 1;
    if (c->count && ((needs_src && !c->src.ptr) || (needs_dst && !c->dst.ptr)))
        return engine_say(m->host, m->name, ESP_E_ARG, "%s: %s is NULL", what,
                          needs_src && !c->src.ptr ? "src" : "dst");
    return ESP_OK;
}

ENGINE_FN esp_status engine_check(const engine_who *m, const esp_coll *c) {
    int rooted = c->op == ESP_COLL_BROADCAST || c->op == ESP_COLL_GATHER || c->op == ESP_COLL_REDUCE;
    if (c->op < ESP_COLL_ALLREDUCE || c->op > ESP_COLL_REDUCE)
        return engine_say(m->host, m->name, ESP_E_ARG, "there is no collective %u: use ESP_COLL_*", (unsigned)c->op);
    esp_status s = engine_check_items(m, c);
    if (s == ESP_OK) s = engine_check_shape(m, c, rooted);
    return s == ESP_OK ? engine_check_buffers(m, c, rooted) : s;
}
#endif
