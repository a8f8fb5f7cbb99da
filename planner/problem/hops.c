/* hops.c: what a collective costs that compresses at every hop: its wires, its calls of the codec, and the error of its result.
 * docs/planner.md says which figures these are. Pure functions. */
#include "planner/plan.h"

ESP__FN double esp__hops_traffic(const esp_plan_system *s, uint32_t scope, uint32_t route, uint32_t level) {
    uint32_t first, last;
    esp__scope_levels(scope, esp__system_levels(s), &first, &last);
    const double n = esp__system_ranks(s, first, last), inside = esp__system_ranks(s, first, level - 1);
    /* Halving exchanges n / 2^k payloads with the rank at distance 2^(k-1): the ranks of a unit send n - inside of them outside. In
     * the end each reads the last payloads of all parts from their owners. */
    if (route == ESP_HOPS_HALVING && level > first) return (n - inside) * (1.0 + inside);
    return 2.0 * (n - 1.0);
}

ESP__FN double esp__hops_ns(const esp_plan_system *s, uint32_t scope, uint32_t route, double piece, uint32_t flows) {
    uint32_t first, last, outermost = esp__system_outermost(s, scope);
    esp__scope_levels(scope, esp__system_levels(s), &first, &last);
    const uint32_t n = esp__system_ranks(s, first, last);
    const esp_plan_link *tables = esp__system_tables(s, scope), *slowest = esp__system_link(s, outermost);
    double most = 0.0, alpha = slowest->alpha_ns;
    if (n < 2) return 0.0;
    if (tables && tables->table[ESP_COLL_ALLREDUCE].n) /* as an allreduce that moves as much */
        return esp__collective_ns(s, scope, ESP_COLL_ALLREDUCE, n * piece, piece, flows);
    for (uint32_t level = first; level <= outermost; level++) {
        double bytes = esp__hops_traffic(s, scope, route, level) * piece;
        if (esp__system_size(s, level) == 1) continue;
        if (first > 1) bytes *= flows;
        bytes = bytes * 1000.0 / esp__system_link(s, level)->bytes_per_us;
        if (bytes > most) most = bytes;
    }
    if (slowest->alpha_is == ESP_ALPHA_HOP) alpha *= route == ESP_HOPS_RING ? 2.0 * (n - 1.0) : esp__log2_ceil(n) + 1.0;
    return alpha + most;
}

ESP__FN double esp__hops_error(uint32_t route, uint32_t n) {
    return route == ESP_HOPS_RING ? (n + 1.0) / 2.0 : esp__log2_ceil(n) / 2.0 + 1.0;
}

/* So many times the error `one`, but not more than everything. */
ESP__FN double esp__error_times(double times, double one) { return times * one < 1.0 ? times * one : 1.0; }

/* ---- an op ---------------------------------------------------------------------------------------------------------------- */
/* The elements of one payload of a collective that compresses at every hop, and how many payloads a part has. */
static uint64_t esp__hop_piece(const esp__problem *p, const esp__op_template *op, const uint64_t *size,
                               double *pieces) {
    const uint64_t part = esp__part_of(size[op->cut], p->size[op->level]);
    const uint64_t n = part ? (part - 1) / ESP__HOP_ELEMENTS + 1 : 1;
    *pieces = (double)n;
    return esp__part_of(part, n);
}

/* Bytes of a part's payloads. */
ESP__FN double esp__hop_bytes(const esp__problem *p, const esp__op_template *op, const uint64_t *size,
                              const esp_plan_codec *codec) {
    double pieces;
    const uint64_t e = esp__hop_piece(p, op, size, &pieces);
    return pieces * esp__payload_bytes(codec, e);
}

ESP__FN int esp__hops_possible(const esp__problem *p, const esp__op_template *op, const esp_plan_codec *codec) {
    const uint32_t n = p->size[op->level];
    if (codec && (codec->bound || codec->round_flags & ESP_ROUND_ALLREDUCE)) return 0;
    return codec && codec->compress[ESP_PLAN_CPU].n && codec->decompress[ESP_PLAN_CPU].n &&
           !(codec->caps & ESP_CODEC_HAS_STATE) && (op->hops == ESP_HOPS_RING || !(n & (n - 1)));
}

/* A rank compresses each of its n parts once, decompresses n - 1 of them on the way, and n results. The codecs' time and that of the
 * wires add up: a hop's payload cannot be sent before it is made. */
ESP__FN double esp__hop_op_ns(const esp__problem *p, const esp__op_template *op, const uint64_t *size,
                              const esp_plan_codec *codec) {
    const double n = p->size[op->level];
    double pieces;
    const double e = (double)esp__hop_piece(p, op, size, &pieces);
    if (n < 2.0) return 0.0;
    if (p->free_compression)
        return esp__hops_ns(&p->system, op->level, op->hops, esp__hop_bytes(p, op, size, codec), op->on_link);
    const double one = n * esp__curve_at(&codec->compress[ESP_PLAN_CPU], e) +
                       (2.0 * n - 1.0) * esp__curve_at(&codec->decompress[ESP_PLAN_CPU], e);
    return esp__hops_ns(&p->system, op->level, op->hops, esp__hop_bytes(p, op, size, codec), op->on_link) +
           pieces * one * op->on_cpu;
}
