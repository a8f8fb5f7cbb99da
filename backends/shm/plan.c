/* plan.c: plans a collective: into which chunks it is cut, and what this rank copies and adds (transport.h). Every rank
 * must make the same plan from the same call, so nothing that differs between ranks may affect it. */
#include "backends/shm/transport.h"

enum {
    SHM_SMALL_SUM = 16 * 1024,    /* up to this size, every rank adds a whole allreduce */
    SHM_SMALL_REDUCE = 64 * 1024, /* up to this size, the root alone adds a reduce */
    SHM_SMALL_COPY = 16 * 1024,   /* up to this size, others copy through shared memory */
    SHM_STREAM = 4 << 20          /* larger results bypass the caches */
};

/* A chunk is never shorter than a payload's header. */
_Static_assert(sizeof(esp_payload_header) == ESP_PAYLOAD_HEADER && SHM_CELL / (BACKEND_RANKS + 1) >= ESP_PAYLOAD_HEADER,
               "the first column of a slot holds its header");
ESP__FN void shm_plan_columns(const shm_comm *m, shm_op *o) {
    uint64_t slots = shm_result_slot(m, o) + o->result_window;
    uint64_t width = SHM_CHUNK, longest = o->part * o->unit;
    if (slots) width = backend_min(width, SHM_CELL / slots / 64 * 64);
    if (m->pace.on && m->machines > 1) /* a chunk takes 0.5 ms on the link at most, so that hops overlap */
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

/* The table shows what put, sum and get move. Small collectives take one hop instead of two.
 *     op              put (to window)  sum               get               way of the data
 *     ALLREDUCE       parts            own part          results of all    reduce_scatter, then allgather
 *       small         whole            whole, all ranks  -                 one hop
 *     REDUCE_SCATTER  parts            own part          -
 *     REDUCE          parts            own part          root: results     two hops: each rank adds a part
 *       small         whole            whole, root       -                 one hop
 *     ALLGATHER       own part         -                 inputs of all
 *     ALLTOALL        parts            -                 inputs of all
 *     GATHER          own part         -                 root: inputs
 *     BROADCAST       root: whole      -                 others: root's input */
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
    /* With more than two ranks, one hop moves more bytes over the emulated link than two do. So it is used only if
     * these bytes take no longer than a second hop's latency. */
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
