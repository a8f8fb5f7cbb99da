/* cost.c: computes the times of collectives, by formula or from measured tables, and the sizes of payloads. Sources:
 * Thakur, Rabenseifner, Gropp 2005 (messages and bytes of each algorithm); NVIDIA nccl-tests, PERFORMANCE.md (bus
 * bandwidth). docs/design/planner.md has worked examples. */
#include "planner/problem/problem.h"
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
    /* The product may be slightly too large: in binary, 0.01 * 300 is 3.0000000000000001, which must not become 4. */
    double units = c->units * (double)elements, rounded;
    if (units < 1e15) {
        rounded = (double)(int64_t)(units + 0.5);
        if (units > rounded + 1e-9 * (rounded + 1.0)) rounded += 1.0;
    } else {
        rounded = ceil(units);
    }
    return c->header_bytes + c->unit_bytes * rounded;
}

static uint32_t esp__log2_ceil(uint32_t n) {
    uint32_t k = 0;
    while ((uint64_t)1 << k < n) k++;
    return k;
}

/* Returns how many messages follow one another: n - 1 in an alltoall, else the depth of a tree, or twice that in an
 * allreduce. */
ESP__FN uint32_t esp__hops(uint32_t coll, uint32_t n) {
    switch (coll) {
    case ESP_COLL_ALLTOALL: return n - 1;
    case ESP_COLL_ALLREDUCE: return 2 * esp__log2_ceil(n);
    default: return esp__log2_ceil(n);
    }
}

/* Returns the bytes that one rank sends or, for a gather, that the root receives. `before` is the size of a rank's
 * input, `piece` that of one message. */
ESP__FN double esp__traffic(uint32_t coll, double n, double before, double piece) {
    switch (coll) {
    case ESP_COLL_ALLREDUCE: return 2.0 * (n - 1.0) * piece;
    case ESP_COLL_REDUCE_SCATTER:
    case ESP_COLL_ALLTOALL:
    case ESP_COLL_ALLGATHER:
    case ESP_COLL_GATHER: return (n - 1.0) * piece;
    default: return before; /* a broadcast or reduce is pipelined: each rank sends the buffer once */
    }
}

static double esp__alpha(const esp_plan_link *l, uint32_t coll, uint32_t n) {
    return l->alpha_is == ESP_ALPHA_HOP ? l->alpha_ns * esp__hops(coll, n) : l->alpha_ns;
}

/* Returns the size at which to read a measured table: the bytes of the whole buffer, as in nccl-tests. */
static double esp__table_size(uint32_t coll, double n, double before, double piece) {
    return coll == ESP_COLL_ALLGATHER || coll == ESP_COLL_GATHER ? n * piece : before;
}

/* ---- levels ------------------------------------------------------------------------------------------------------ */
ESP__FN uint32_t esp__system_levels(const esp_plan_system *s) { return 2 + s->n_outer; }

ESP__FN uint32_t esp__system_size(const esp_plan_system *s, uint32_t level) {
    return level == 1 ? s->ranks_per_machine : level == 2 ? s->machines : s->outer[level - 3].size;
}

ESP__FN const esp_plan_link *esp__system_link(const esp_plan_system *s, uint32_t level) {
    return level == 1 ? &s->intra : level == 2 ? &s->inter : &s->outer[level - 3].link;
}

/* Returns the outermost level (1 inside a machine, 2 between machines, 3 between racks) over which the collective
 * sends data. Its links have the longest latency. */
static uint32_t esp__system_outermost(const esp_plan_system *s, uint32_t scope) {
    uint32_t first, last;
    esp__scope_levels(scope, esp__system_levels(s), &first, &last);
    while (last > first && esp__system_size(s, last) == 1) last--;
    return last;
}

ESP__FN const esp_plan_link *esp__system_tables(const esp_plan_system *s, uint32_t scope) {
    uint32_t first, last;
    if (scope == ESP__FLAT) return &s->flat;
    esp__scope_levels(scope, esp__system_levels(s), &first, &last);
    return first == last ? esp__system_link(s, first) : NULL;
}

ESP__FN uint32_t esp__system_ranks(const esp_plan_system *s, uint32_t first, uint32_t last) {
    uint32_t n = 1;
    for (uint32_t level = first; level <= last; level++) n *= esp__system_size(s, level);
    return n;
}

/* Returns which fraction of the bytes that crossed an uplink of a machine or rack in a measurement crosses it here.
 * In measurements all ranks of the machine or rack send, here fewer may. The roots of reduces and gathers are spread
 * over machines, and an uplink carries only the data of its own machine's roots. */
ESP__FN double esp__table_share(const esp_plan_system *s, uint32_t scope, uint32_t coll, uint32_t flows) {
    uint32_t first, last;
    esp__scope_levels(scope, esp__system_levels(s), &first, &last);
    if (first == 1) return 1.0;
    const uint32_t all = esp__system_ranks(s, 1, first - 1), n = esp__system_ranks(s, first, last);
    return esp__coll_rooted(coll) ? (double)((flows + n - 1) / n) / ((all + n - 1) / n) : (double)flows / all;
}

ESP__FN double esp__measured_ns(const esp_plan_system *s, const esp_cost_curve *curve, uint32_t scope, uint32_t coll,
                                double before, double piece, uint32_t flows) {
    uint32_t first, last;
    esp__scope_levels(scope, esp__system_levels(s), &first, &last);
    const double share = esp__table_share(s, scope, coll, flows);
    return esp__curve_at(curve, esp__table_size(coll, esp__system_ranks(s, first, last), before, piece) * share);
}

ESP__FN double esp__collective_ns(const esp_plan_system *s, uint32_t scope, uint32_t coll, double before, double piece,
                                  uint32_t flows) {
    uint32_t first, last, outermost = esp__system_outermost(s, scope), n;
    esp__scope_levels(scope, esp__system_levels(s), &first, &last);
    n = esp__system_ranks(s, first, last);
    const esp_plan_link *tables = esp__system_tables(s, scope);
    double traffic = esp__traffic(coll, n, before, piece), most = 0.0;
    if (n < 2) return 0.0;
    if (tables && tables->table[coll].n)
        return esp__measured_ns(s, &tables->table[coll], scope, coll, before, piece, flows);
    /* The slowest link determines the time. In a ring, each link between machines or racks carries as many bytes as
     * a rank sends. In an alltoall it carries everything that leaves the machine or rack. */
    for (uint32_t level = first; level <= outermost; level++) {
        double inside = esp__system_ranks(s, first, level - 1), bytes = traffic;
        if (esp__system_size(s, level) == 1) continue;
        if (level > first && coll == ESP_COLL_ALLTOALL) bytes = piece * inside * (n - inside);
        if (first > 1) bytes *= flows;
        bytes = bytes * 1000.0 / esp__system_link(s, level)->bytes_per_us;
        if (bytes > most) most = bytes;
    }
    return esp__alpha(esp__system_link(s, outermost), coll, n) + most;
}
