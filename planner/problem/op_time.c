/* op_time.c: computes the time, bytes and memory of an op for a given number of elements. */
#include "planner/problem/problem.h"

static const double esp__op_longest = 5e12; /* ns; longer times are cut to it, so that no sum overflows */

static void esp__sizes(const esp__problem *p, uint64_t e, uint64_t size[ESP__CUTS]) {
    for (uint32_t k = 0; k < p->n_cuts; k++) {
        size[k] = e;
        for (uint32_t level = 1; level <= p->n_levels && p->cuts[k]; level++)
            for (uint32_t scope = 0, first, last; scope < ESP__SCOPES; scope++) {
                if (!(p->cuts[k] >> scope & 1u)) continue;
                esp__scope_levels(scope, p->n_levels, &first, &last);
                if (first == level) size[k] = esp__part_of(size[k], p->size[scope]);
            }
    }
}

ESP__FN void esp__shape_make(const esp__problem *p, uint64_t elements, uint64_t cols, const esp_plan_codec *codec,
                             esp__shape *out) {
    const uint64_t width = cols && codec && codec->caps & ESP_CODEC_NEEDS_MATRIX ? cols : 1;
    esp__sizes(p, elements / width, out->size);
    for (uint32_t k = 0; k < p->n_cuts; k++) out->size[k] *= width;
    out->elements = elements, out->cols = cols;
}

ESP__FN double esp__slots(const esp__problem *p, const uint8_t slots[ESP__SCOPES]) {
    double n = 1.0;
    for (uint32_t scope = 0; scope < ESP__SCOPES; scope++)
        for (uint32_t k = 0; k < slots[scope]; k++) n *= p->size[scope];
    return n;
}

ESP__FN double esp__template_payload(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                     const esp_plan_codec *codec, uint8_t cut) {
    if (!codec->bound) return esp__payload_bytes(codec, shape->size[cut]);
    return esp__round_bytes(p, op, shape, codec, shape->size[cut], NULL);
}

ESP__FN double esp__op_bytes_before(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                    const esp_plan_codec *codec) {
    if (!op->compressed) return 4.0 * (double)shape->size[op->cut];
    return esp__slots(p, op->slots) * esp__template_payload(p, op, shape, codec, op->cut);
}

static double esp__piece_bytes(const esp__op_template *op, const esp__shape *shape, const esp_plan_codec *codec,
                               uint32_t n) {
    const uint64_t width = shape->cols && codec && codec->caps & ESP_CODEC_NEEDS_MATRIX ? shape->cols : 1;
    return 4.0 * (double)(esp__part_of(shape->size[op->cut] / width, n) * width);
}

/* Returns a collective's time from a measured `curve`, or by formula if `curve` is NULL. */
static double esp__link_ns(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                           const esp_plan_codec *codec, const esp_cost_curve *curve) {
    double before = esp__op_bytes_before(p, op, shape, codec), piece = before;
    uint32_t n = p->size[op->level];
    if (op->coll == ESP_COLL_ALLREDUCE || op->coll == ESP_COLL_REDUCE_SCATTER || op->coll == ESP_COLL_ALLTOALL)
        piece = op->compressed ? before / n : esp__piece_bytes(op, shape, codec, n);
    if (curve) return esp__measured_ns(&p->system, curve, op->level, op->coll, before, piece, op->on_link);
    return esp__collective_ns(&p->system, op->level, op->coll, before, piece, op->on_link);
}

/* Returns the time of one compression or decompression. On the CPU, the ranks of a machine take turns; each has its own
 * GPU. */
static double esp__codec_ns(const esp__op_template *op, const esp_cost_curve *curve, double elements) {
    const double one = esp__curve_at(curve, elements) / (op->n_rounds > 1 ? op->n_rounds : 1);
    return op->device == ESP_ON_GPU ? one : one * op->on_cpu;
}

/* Returns the time to decompress several payloads. `curve` is the time for one; further ones of the same elements
 * may take less (esp__decompress_more). */
static double esp__decomp_ns(const esp__problem *p, const esp__op_template *op, const esp_plan_codec *codec,
                             const esp_cost_curve *curve, double elements) {
    const esp_cost_curve *more = esp__decompress_more(codec, curve, op->device);
    const double slots = esp__slots(p, op->slots), sources = more ? esp__slots(p, op->sources) : 1.0;
    double ns = esp__codec_ns(op, curve, slots / sources * elements);
    if (sources > 1.0) ns += (sources - 1.0) * esp__codec_ns(op, more, slots / sources * elements);
    return ns;
}

static double esp__dispatch_ns(const esp__problem *p, uint32_t lanes) {
    double most = 0.0;
    for (uint32_t k = 0; k < ESP__LANES; k++)
        if (lanes >> k & 1u && p->system.dispatch_ns[k] > most) most = p->system.dispatch_ns[k];
    return most;
}

/* Returns 1 if this compression, decompression or collective works with the codec. `codec` is NULL without
 * compression. */
ESP__FN int esp__template_possible(const esp__op_template *op, const esp_plan_codec *codec) {
    switch (op->kind) {
    case ESP_PLAN_COLLECTIVE: return !op->compressed || (codec && esp__payloads_pass(codec, op));
    case ESP_PLAN_COMPRESS: return codec && codec->compress[op->device].n;
    case ESP_PLAN_DECOMPRESS: return codec && codec->decompress[op->device].n;
    default: return 1;
    }
}

static uint64_t esp__template_ns(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                 const esp_plan_codec *codec) {
    const double elements = (double)shape->size[op->cut];
    double ns = 0.0;
    if (!esp__template_possible(op, codec)) return esp__cannot;
    if (op->n_rounds &&
        esp__template_payload(p, op, shape, codec, op->kind == ESP_PLAN_COMPRESS ? op->parts : op->cut) < 0)
        return esp__cannot;
    switch (op->kind) {
    case ESP_PLAN_COLLECTIVE: ns = esp__link_ns(p, op, shape, codec, NULL); break;
    case ESP_PLAN_COMPRESS:
        ns = esp__codec_ns(op, esp__codec_curve(codec, shape->cols, 0, op->device), elements);
        break;
    case ESP_PLAN_DECOMPRESS:
        ns = esp__decomp_ns(p, op, codec, esp__codec_curve(codec, shape->cols, 1, op->device), elements);
        break;
    case ESP_PLAN_COPY: ns = 4.0 * elements * 1000.0 / p->system.host_bytes_per_us; break;
    default:
        ns = p->system.pack_ns;
        if (p->system.pack_bytes_per_us > 0.0)
            ns += 4.0 * (double)shape->size[0] * 1000.0 / p->system.pack_bytes_per_us;
    }
    ns += esp__dispatch_ns(p, op->lanes);
    return ns < esp__op_longest ? (uint64_t)(ns + 0.5) : (uint64_t)esp__op_longest;
}

static uint64_t esp__at_most(double ns, uint64_t most) { return ns < (double)most ? (uint64_t)(ns + 0.5) : most; }

ESP__FN esp__op_time esp__template_time(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                        const esp_plan_codec *codec) {
    const uint64_t ns = esp__template_ns(p, op, shape, codec);
    const esp_plan_link *link = op->kind == ESP_PLAN_COLLECTIVE ? esp__system_tables(&p->system, op->level) : NULL;
    esp__op_time time = {ns, 0, 0};
    *(op->lanes & ESP__LINK_LANES ? &time.link : &time.core) = ns;
    if (ns == esp__cannot || !link || p->size[op->level] < 2) return time;
    if (link->gap[op->coll].n) time.link = esp__at_most(esp__link_ns(p, op, shape, codec, &link->gap[op->coll]), ns);
    if (op->lanes & ESP__CORE_LANES)
        time.core = esp__at_most(esp__link_ns(p, op, shape, codec, &link->core[op->coll]), ns);
    return time;
}

/* Returns the bytes of memory for the residual, the codec's state, and the payloads that the op makes or receives. */
ESP__FN uint64_t esp__template_memory(const esp__problem *p, const esp__op_template *op, const esp__shape *shape,
                                      const esp_plan_codec *codec) {
    const int first = op->early + 1u >= op->n_rounds;
    double bytes = 0.0;
    uint64_t state = 0;
    if (op->kind == ESP_PLAN_COMPRESS || (op->kind == ESP_PLAN_COLLECTIVE && op->compressed))
        bytes = esp__slots(p, op->slots_after) * esp__template_payload(p, op, shape, codec, op->parts);
    if (op->kind == ESP_PLAN_COMPRESS && first) bytes += 4.0 * (double)shape->size[op->cut];
    if (op->kind == ESP_PLAN_COMPRESS && first && codec->bound && codec->caps & ESP_CODEC_HAS_STATE) {
        esp__round_bytes(p, op, shape, codec, shape->size[op->parts], &state);
        bytes += esp__slots(p, op->slots_after) * (double)state;
    }
    if (op->kind == ESP_PLAN_PACK && !op->reverse) bytes = 4.0 * (double)shape->size[0];
    return (uint64_t)bytes;
}
