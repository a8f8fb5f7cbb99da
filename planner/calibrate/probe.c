/* probe.c: measures one collective between steps, on all ranks at once. The thread that runs a step's collectives runs
 * it. */
#include "espresso_impl/context/context.h"
#include "espresso_impl/base/quantile.h"
#include "planner/calibrate/costs.h"

static uint64_t esp__probe_count(uint64_t bytes) { return bytes < 4 ? 1 : bytes / 4; }

ESP__FN uint8_t esp__calibration_outermost(const esp_ctx *ctx) {
    const esp__topology *t = &ctx->job.topo;
    int three = t->n_levels == 3 && t->n_local;
    for (uint32_t level = 1; three && level <= 3; level++) three = t->level_size[level] > 1;
    return three ? ESP__OUTER : ESP__INTER;
}

ESP__FN uint8_t esp__calibration_scope(const esp_ctx *ctx, uint8_t level) {
    if (esp__calibration_outermost(ctx) == ESP__OUTER) return level;
    return level > ESP__INTER ? (uint8_t)ESP__SCOPES : esp__two_levels(ctx, level);
}

ESP__FN int32_t esp__calibration_ranks(const esp_ctx *ctx, uint8_t level) {
    return esp__group_size(&ctx->job.topo, esp__calibration_scope(ctx, level));
}

ESP__FN uint64_t esp__probe_room(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes) {
    uint64_t n = (uint64_t)esp__calibration_ranks(ctx, level), count = esp__probe_count(bytes);
    if (!n) return 0;
    uint64_t whole = (count + n - 1) / n * n * 4;
    return coll == ESP_COLL_ALLTOALL || coll == ESP_COLL_GATHER ? 2 * whole : whole;
}

/* Returns the root that a step would use. The ranks of a machine get different roots, so that all machines send and all
 * receive. */
static int32_t esp__probe_root(const esp_ctx *ctx, uint8_t scope, uint32_t coll) {
    esp__coordinates at;
    const esp__step step = {.kind = ESP__STAGE_COLLECTIVE, .coll = (uint8_t)coll, .level = scope};
    esp__coordinates_of(&ctx->job.topo, &at);
    const int32_t root = esp__region_root(&at, &step);
    return root < 0 ? 0 : root;
}

/* Sets the buffers of a collective in `room`. src and dst are the same memory where esp_coll (plugins/abi.h) allows it.
 * */
static void esp__probe_coll(const esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, void *room, esp_coll *c) {
    uint64_t n = (uint64_t)esp__calibration_ranks(ctx, level), count = esp__probe_count(bytes),
             part = (count + n - 1) / n;
    uint64_t own = (uint64_t)esp__group_index(&ctx->job.topo, esp__calibration_scope(ctx, level)) * part;
    uint8_t *data = room;
    if (coll == ESP_COLL_ALLTOALL) count = part * n;
    esp__coll_init(c, coll, ESP_F32, count, room, esp__probe_root(ctx, esp__calibration_scope(ctx, level), coll));
    if (coll == ESP_COLL_ALLTOALL || coll == ESP_COLL_GATHER) c->dst.ptr = data + part * n * 4;
    if (coll == ESP_COLL_REDUCE_SCATTER) c->dst.ptr = data + (own < count ? own : 0) * 4;
    if (coll == ESP_COLL_ALLGATHER) c->src.ptr = data + (own < count ? own : 0) * 4;
}

ESP__FN esp_status esp__probe_collective(esp_ctx *ctx, uint8_t level, uint32_t coll, uint64_t bytes, uint32_t repeats,
                                         void *room, uint64_t room_bytes, esp__probe *out) {
    double ns[ESP__PROBE_REPEATS], core[ESP__PROBE_REPEATS];
    uint64_t each = (esp__probe_room(ctx, level, coll, bytes) + 4095u) & ~UINT64_C(4095);
    uint64_t places = each && room_bytes >= each ? room_bytes / each : 1;
    esp_coll c;
    esp_status s = ESP_OK;
    if (repeats < 1) repeats = 1;
    if (repeats > ESP__PROBE_REPEATS) repeats = ESP__PROBE_REPEATS;
    memset(out, 0, sizeof *out);
    if (esp__calibration_ranks(ctx, level) < 2 || !ctx->job.comms[esp__calibration_scope(ctx, level)].handle)
        return ESP_OK;
    /* The first time does not count, because it waits for other ranks. */
    for (uint32_t i = 0; i <= repeats && !s; i++) {
        esp__probe_coll(ctx, level, coll, bytes, (uint8_t *)room + i % places * each, &c);
        /* With a root, a rank may end before another begins, so the collectives would overlap and seem too fast. */
        if (esp__coll_rooted(coll)) s = esp_barrier(ctx);
        if (!s) s = esp__request_run_at(ctx, esp__calibration_scope(ctx, level), &c, "measuring links");
        if (!i || s) continue;
        ns[i - 1] = (double)(ctx->lanes.request.ended_ns - ctx->lanes.request.started_ns);
        core[i - 1] = (double)ctx->lanes.request.core_ns;
    }
    if (s) return s;
    out->median_ns = (uint64_t)esp__median(ns, repeats);
    out->spread_ns = (uint64_t)esp__quartile_distance(ns, repeats);
    out->core_ns = (uint64_t)esp__median(core, repeats);
    return ESP_OK;
}
