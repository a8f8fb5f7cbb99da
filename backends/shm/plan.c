/* plan.c: decides into which chunks a collective is cut, and what each rank copies and adds. All ranks must decide
 * alike, so only values that are equal on all ranks may be used. */
#include "backends/shm/transport.h"

enum {
    SHM_SMALL_SUM = 16 * 1024,
    SHM_SMALL_REDUCE = 64 * 1024,
    SHM_SMALL_COPY = 16 * 1024,
    SHM_STREAM = 4 << 20 /* larger results bypass the caches */
};

_Static_assert(sizeof(esp_payload_header) == ESP_PAYLOAD_HEADER && SHM_CELL / (BACKEND_RANKS + 1) >= ESP_PAYLOAD_HEADER,
               "the first column of a slot holds its header");
ESP__FN void shm_plan_columns(const shm_comm *m, shm_op *o) {
    uint64_t slots = shm_result_slot(m, o) + o->result_window;
    uint64_t width = SHM_CHUNK, longest = o->part * o->unit;
    if (slots) width = backend_min(width, SHM_CELL / slots / 64 * 64);
    /* A chunk takes at most 0.5 ms on the emulated link, so that transfers of several ranks overlap. */
    if (m->pace.on && m->machines > 1)
        width = backend_min(width, backend_max(4096, (uint64_t)(5e5 / (m->pace.ns_per_byte + 1e-9)) / 64 * 64));
    if (o->c.slot_bytes > width) {
        o->per_slot = (o->unit + width - 1) / width;
        o->cols = o->part * o->per_slot;
    } else {
        if (o->c.slot_bytes) width = width / o->unit * o->unit;
        o->cols = (longest + width - 1) / width;
    }
    o->width = width;
}

/* What the steps put, sum and get (transport.h) copy or add. Of a small allreduce or reduce, whole inputs are copied
 * and added, so that no results must be sent.
 *     op              put               sum               get
 *     ALLREDUCE       all parts         own part          all ranks' results
 *       small         whole input       whole, all ranks  -
 *     REDUCE_SCATTER  all parts         own part          -
 *     REDUCE          all parts         own part          root: all ranks' results
 *       small         whole input       whole, root       -
 *     ALLGATHER       own part          -                 all ranks' inputs
 *     ALLTOALL        all parts         -                 all ranks' inputs
 *     GATHER          own part          -                 root: all ranks' inputs
 *     BROADCAST       root: whole       -                 others: root's input */
ESP__FN void shm_plan(const shm_comm *m, const esp_coll *c, shm_op *o) {
    memset(o, 0, sizeof *o);
    o->c = *c;
    o->scale = c->scale != 0 ? c->scale : 1.0f;
    o->esize = (uint32_t)(c->slot_bytes ? 1 : esp_dtype_bytes(c->dtype));
    o->unit = backend_item(c);
    o->sum = backend_reduction_of(c, m->simd);
    uint64_t n = (uint64_t)m->size, bytes = c->count * o->unit;
    o->stream = bytes >= SHM_STREAM;
    bool root = m->rank == c->root, sums = backend_op_sums(c->op);
    uint64_t small = c->op == ESP_COLL_REDUCE ? SHM_SMALL_REDUCE : sums ? SHM_SMALL_SUM : SHM_SMALL_COPY;
    o->in_window = !m->direct || bytes <= small;
    /* With more than two ranks, sending whole inputs moves more bytes over the emulated link than sending parts, and
     * then results. So it is done only if these bytes take no longer than the latency of sending results. */
    bool hop = !m->pace.on || n == 2 || (double)bytes * m->pace.ns_per_byte <= (double)m->pace.latency_ns;
    o->whole = c->op == ESP_COLL_BROADCAST || (sums && c->op != ESP_COLL_REDUCE_SCATTER && bytes <= small && hop);
    o->part = o->whole ? c->count : (c->count + n - 1) / n;
    o->per_destination = !o->whole && (sums || c->op == ESP_COLL_ALLTOALL);
    switch (c->op) {
    case ESP_COLL_ALLREDUCE:
        o->puts = o->sums = true;
        o->gets = o->gets_result = !o->whole;
        o->result_window = !o->whole && !m->direct;
        break;
    case ESP_COLL_REDUCE_SCATTER: o->puts = o->sums = true; break;
    case ESP_COLL_REDUCE:
        o->puts = !o->whole || !root;
        o->sums = !o->whole || root;
        o->gets = o->gets_result = !o->whole && root;
        o->result_window = !o->whole;
        break;
    case ESP_COLL_ALLGATHER:
    case ESP_COLL_ALLTOALL: o->puts = o->gets = true; break;
    case ESP_COLL_GATHER: o->puts = !root, o->gets = root; break;
    default: o->puts = root, o->gets = !root; break;
    }
    o->puts = o->puts && o->in_window;
    shm_plan_columns(m, o);
}
