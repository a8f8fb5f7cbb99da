/* cost.c: the time of one op: curves through measured points, collectives by formula or table, payload sizes.
 * Sources: Thakur, Rabenseifner, Gropp 2005 (hops and traffic of each algorithm); NVIDIA nccl-tests, PERFORMANCE.md (bus
 * bandwidth factors). Pure functions; docs/planner.md has worked examples. */
#include "planner/plan.h"
#include <math.h>

ESP__FN double esp__curve_at(const esp_cost_curve *c, double size) {
    const esp_cost_point *p = c->points;
    uint32_t low = 0, high = c->n - 1;
    if (size <= p[0].size) return p[0].ns;
    if (size >= p[high].size) return p[high].ns * (size / p[high].size);
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        *(p[mid].size <= size ? &low : &high) = mid;
    }
    double share = c->log_size ? log(size / p[low].size) / log(p[high].size / p[low].size)
                               : (size - p[low].size) / (p[high].size - p[low].size);
    return p[low].ns + share * (p[high].ns - p[low].ns);
}

ESP__FN double esp__payload_bytes(const esp_plan_codec *c, uint64_t elements) {
    /* units like 0.01 are not exact in binary: 0.01 * 300 must be 3, not 3.0000000000000001 rounded up */
    double units = c->units * (double)elements, near;
    if (units < 1e15) {
        near = (double)(int64_t)(units + 0.5);
        if (units > near + 1e-9 * (near + 1.0))
            near += 1.0; /* only what is clearly above a whole number is rounded up */
    } else {
        near = ceil(units);
    }
    return c->header_bytes + c->unit_bytes * near;
}

static uint32_t esp__log2_ceil(uint32_t n) {
    uint32_t k = 0;
    while ((uint64_t)1 << k < n) k++;
    return k;
}

/* Hops in sequence: n - 1 where every rank exchanges with every other one, the depth of a tree elsewhere. */
ESP__FN uint32_t esp__hops(uint32_t coll, uint32_t n) {
    switch (coll) {
    case ESP_COLL_ALLTOALL: return n - 1;
    case ESP_COLL_ALLREDUCE: return 2 * esp__log2_ceil(n);
    default: return esp__log2_ceil(n);
    }
}

/* Bytes that a rank sends; for a collective to a root: that the root receives. */
ESP__FN double esp__traffic(uint32_t coll, double n, double before, double piece) {
    switch (coll) {
    case ESP_COLL_ALLREDUCE: return 2.0 * (n - 1.0) * piece;
    case ESP_COLL_REDUCE_SCATTER:
    case ESP_COLL_ALLTOALL:
    case ESP_COLL_ALLGATHER:
    case ESP_COLL_GATHER: return (n - 1.0) * piece;
    default: return before; /* broadcast, reduce: pipelined */
    }
}

static double esp__alpha(const esp_plan_link *l, uint32_t coll, uint32_t n) {
    return l->alpha_is == ESP_ALPHA_HOP ? l->alpha_ns * esp__hops(coll, n) : l->alpha_ns;
}

/* The size to look up in a table: the whole buffer, as nccl-tests counts it. */
static double esp__table_size(uint32_t coll, double n, double before, double piece) {
    return coll == ESP_COLL_ALLGATHER || coll == ESP_COLL_GATHER ? n * piece : before;
}

ESP__FN double esp__collective_ns(const esp_plan_system *s, uint32_t level, uint32_t coll, double before, double piece,
                                  uint32_t flows) {
    uint32_t local = s->ranks_per_machine, ranks = local * s->machines;
    uint32_t n = level == ESP__INTRA ? local : level == ESP__INTER ? s->machines : ranks;
    const esp_plan_link *link = level == ESP__INTRA || s->machines == 1 ? &s->intra : &s->inter;
    const esp_plan_link *tables = level == ESP__FLAT ? &s->flat : link;
    double traffic = esp__traffic(coll, n, before, piece), nic;
    if (n < 2) return 0.0;
    if (tables->table[coll].n) {
        /* tables are measured with all ranks of a machine active: fewer ranks send that much less through its NIC */
        double share = level == ESP__INTER ? (double)flows / local : 1.0;
        return esp__curve_at(&tables->table[coll], esp__table_size(coll, n, before, piece) * share);
    }
    double alpha = esp__alpha(link, coll, n);
    if (level == ESP__INTRA || s->machines == 1) return alpha + traffic * 1000.0 / s->intra.bytes_per_us;
    if (level == ESP__INTER) return alpha + traffic * flows * 1000.0 / s->inter.bytes_per_us;
    /* flat: a ring enters and leaves a machine once; alltoall sends every part for another machine through the NIC */
    nic = coll == ESP_COLL_ALLTOALL ? piece * local * (double)(ranks - local) : traffic;
    nic = nic * 1000.0 / s->inter.bytes_per_us;
    traffic = traffic * 1000.0 / s->intra.bytes_per_us;
    return alpha + (local > 1 && traffic > nic ? traffic : nic);
}
