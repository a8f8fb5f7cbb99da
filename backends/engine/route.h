/* route.h: the steps of an allreduce whose payloads are decoded, summed and compressed again at every hop, and the call of the
 * codec in a step. The buffer is cut into one part a rank. Knows nothing of how payloads travel.
 *
 *     ring      step 0 encodes a part; steps 1 to n-1 forward what the previous rank left. The last of them makes the part's last
 *               payload. Steps n to 2n-2 take the last payloads of the other parts around.
 *     halving   ranks are in the ring's order, so that the first exchanges stay inside a machine. The first n/2 steps encode the
 *               parts of the other half. Exchange k brings payloads from the rank whose place differs in bit k-1: those of parts
 *               that are given away in the next exchange are forwarded, the others are added to the buffer. The last exchange
 *               makes the last payload of this rank's part. Then n steps decode those of all parts, from their owners' windows. */
#ifndef ENGINE_ROUTE_H
#define ENGINE_ROUTE_H
#include "backends/engine/common.h"

enum {
    ENGINE_HOP_PIECE = 65536,
    ENGINE_HOP_LEAST = 32
}; /* elements; a power of two, so that pieces keep a codec's blocks */

enum { ENGINE_HOP_ENCODE, ENGINE_HOP_FORWARD, ENGINE_HOP_LAST, ENGINE_HOP_ADD, ENGINE_HOP_PASS, ENGINE_HOP_TAKE };
typedef struct engine_hop {
    int what;
    int32_t part, from; /* from: the rank that left the payload; -1: none                               */
    uint64_t reads;     /* the step in which it did                                                     */
} engine_hop;

ENGINE_FN uint64_t engine_hops_steps(int32_t n, uint32_t route) {
    const uint64_t u = (uint64_t)n;
    return route == ESP_HOPS_RING ? 2 * u - 1 : u / 2 + u - 1 + u;
}
/* Steps that leave a payload: the first ones. */
ENGINE_FN uint64_t engine_hops_kept(int32_t n, uint32_t route) {
    return route == ESP_HOPS_RING ? 2 * (uint64_t)n - 2 : engine_hops_steps(n, route) - (uint64_t)n;
}

typedef struct engine_route {
    uint32_t route; /* ESP_HOPS_*                                                          */
    int32_t n, place;
    const int32_t *order; /* the ranks by place                                            */
} engine_route;

ENGINE_FN engine_hop engine_hop_ring(const engine_route *r, uint64_t step) {
    const int32_t n = r->n, s = (int32_t)step, shift = s < n ? s + 1 : s - n + 1;
    engine_hop t = {ENGINE_HOP_FORWARD, r->order[(r->place - shift + 2 * n) % n],
                    s ? r->order[(r->place + n - 1) % n] : -1, step - 1};
    t.what = !s              ? ENGINE_HOP_ENCODE
             : s < n - 1     ? ENGINE_HOP_FORWARD
             : s == n - 1    ? ENGINE_HOP_LAST
             : s < 2 * n - 2 ? ENGINE_HOP_PASS
                             : ENGINE_HOP_TAKE;
    return t;
}

/* Parts have the numbers of their owners' places here. */
ENGINE_FN engine_hop engine_hop_halving(const engine_route *r, uint64_t step) {
    const uint64_t n = (uint64_t)r->n, x = (uint64_t)r->place, last = n / 2 + n - 2;
    engine_hop t = {ENGINE_HOP_ENCODE, 0, -1, 0};
    if (step > last) { /* the last payloads of all parts, the own one first */
        const int32_t owner = r->order[(x + step - last - 1) % n];
        return (engine_hop){ENGINE_HOP_TAKE, owner, owner, last};
    }
    uint64_t k = 1, first = n / 2, before = 0;
    if (step < first) return t.part = r->order[((x ^ 1) & 1) + 2 * step], t;
    for (; step >= first + (n >> k); k++) before = first, first += n >> k; /* exchange k has n / 2^k items */
    const uint64_t mask = ((uint64_t)1 << k) - 1, p = (x & mask) + ((step - first) << k);
    t.part = r->order[p];
    t.from = r->order[x ^ (uint64_t)1 << (k - 1)];
    t.reads = before + ((p - (x & mask >> 1)) >> (k - 1));
    if (k == 1) t.reads = (p - (x & 1)) >> 1; /* the first steps have every second part */
    t.what = step == last ? ENGINE_HOP_LAST : (p ^ x) >> k & 1 ? ENGINE_HOP_FORWARD : ENGINE_HOP_ADD;
    return t;
}

ENGINE_FN engine_hop engine_hop_of(const engine_route *r, uint64_t step) {
    return r->route == ESP_HOPS_RING ? engine_hop_ring(r, step) : engine_hop_halving(r, step);
}

/* Calls the codec. Returns what it says. in: what `t->from` left; out: what this step leaves. */
ENGINE_FN esp_status engine_hop_codec(const esp_hops *x, const engine_hop *t, uint64_t begin, uint64_t count,
                                      const void *in, uint64_t in_used, void *out, uint64_t room, uint64_t *out_used) {
    esp_payload from, to;
    memset(&from, 0, sizeof from);
    memset(&to, 0, sizeof to);
    from.data.ptr = (void *)(uintptr_t)in, from.data.bytes = in_used;
    to.data.ptr = out, to.data.bytes = room, to.used = out_used;
    esp_status s = ESP_OK;
    if (t->what == ENGINE_HOP_ENCODE) s = x->encode(x->user, begin, count, &to);
    if (t->what == ENGINE_HOP_FORWARD || t->what == ENGINE_HOP_LAST) s = x->forward(x->user, begin, count, &from, &to);
    if (t->what == ENGINE_HOP_ADD) s = x->decode(x->user, begin, count, ESP_OUT_SUM, &from);
    if (t->what == ENGINE_HOP_PASS) memcpy(out, in, (size_t)in_used), *out_used = in_used;
    if (s == ESP_OK && t->what == ENGINE_HOP_LAST) from = to, from.data.bytes = engine_min(*out_used, room);
    /* in halving, the own last payload is decoded with those of the others */
    if (s == ESP_OK && (t->what == ENGINE_HOP_PASS || t->what == ENGINE_HOP_TAKE ||
                        (t->what == ENGINE_HOP_LAST && x->route == ESP_HOPS_RING)))
        s = x->decode(x->user, begin, count, ESP_OUT_SET, &from);
    return s;
}
#endif
