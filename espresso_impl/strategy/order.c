/* order.c: makes the order of collectives for a strategy that has none, by simulating a training step with fixed costs.
 * A link or core runs the op that was ready first. Nothing depends on the rank, so all ranks get the same order. */
#include "espresso_impl/base/heap.h"
#include "espresso_impl/strategy/strategy.h"

typedef struct esp__sim_lane {
    esp__heap waiting;
    uint64_t free_at;
} esp__sim_lane;

ESP__FN void esp__scope_lanes(const esp__topology *t, uint8_t scope, uint32_t *first, uint32_t *last) {
    esp__scope_levels(scope, t->n_levels, first, last);
    if (scope == ESP__FLAT && t->n_machines == 1) *last = 1;
    *first += ESP__LANE_CPU;
    *last += ESP__LANE_CPU;
}

static uint32_t esp__step_lane(const esp_ctx *ctx, const esp__step *s) {
    if (s->kind != ESP__STAGE_COLLECTIVE) return s->device == ESP_ON_GPU ? ESP__LANE_COMPUTE : ESP__LANE_CPU;
    uint32_t first, last;
    esp__scope_lanes(&esp__job_of(ctx)->topo, s->level, &first, &last);
    return last;
}

/* Assumed durations, in ns: 10 Gbit/s between machines, 100 Gbit/s inside. Only the sequence matters. Backward of small
 * tensors, and codecs on a GPU, take as long as launching their kernels. CPU codecs count as short, because where they
 * are slow, backward is slow too. tests/planner/simulate/test_default_order.c compares the orders that result with
 * those from known costs. */
static const uint64_t esp__nominal_launch_ns = 40000, esp__nominal_cpu_ns = 1000;

static uint64_t esp__nominal_ns(const esp_ctx *ctx, const esp__unit *u, const esp__step *s, double share) {
    double bytes = (double)u->place.elements * share * 4.0;
    if (s->kind != ESP__STAGE_COLLECTIVE) return s->device == ESP_ON_GPU ? esp__nominal_launch_ns : esp__nominal_cpu_ns;
    if (s->compressed) bytes /= 16.0;
    if (esp__step_lane(ctx, s) == ESP__LANE_INTRA) return 5000u + (uint64_t)(bytes * 0.08);
    return 30000u + (uint64_t)(bytes * 0.8);
}

static double esp__share_after(const esp_ctx *ctx, const esp__step *s, double share) {
    double n = (double)esp__group_size(&esp__job_of(ctx)->topo, s->level);
    if (s->kind != ESP__STAGE_COLLECTIVE) return share;
    if (s->coll == ESP_COLL_REDUCE_SCATTER || s->coll == ESP_COLL_ALLTOALL) return share / n;
    return s->coll == ESP_COLL_ALLGATHER && s->role == ESP__SECOND ? share * n : share;
}

static void esp__sim_enter(const esp_ctx *ctx, const esp__strategy *y, esp__sim_lane *lanes, uint32_t unit,
                           uint32_t place, uint64_t ready) {
    const esp__unit *u = &y->units[unit];
    esp__chain_step chain[ESP__CHAIN_MAX];
    if (place < esp__unit_chain(u, chain))
        esp__heap_push(&lanes[esp__step_lane(ctx, &u->option.steps[chain[place].step])].waiting, ready,
                       (uint64_t)unit << 32 | place);
}

static bool esp__sim_run_one(const esp_ctx *ctx, esp__strategy *y, esp__sim_lane *lanes, double *share) {
    uint64_t best = UINT64_MAX;
    uint32_t lane = ESP__LANES;
    for (uint32_t k = 0; k < ESP__LANES; k++) {
        if (!lanes[k].waiting.n) continue;
        uint64_t ready = lanes[k].waiting.at[0].ready, start = ready > lanes[k].free_at ? ready : lanes[k].free_at;
        if (start < best) best = start, lane = k;
    }
    if (lane == ESP__LANES) return false;
    uint64_t key = esp__heap_pop(&lanes[lane].waiting).key;
    uint32_t unit = (uint32_t)(key >> 32), place = (uint32_t)key;
    const esp__unit *u = &y->units[unit];
    esp__chain_step chain[ESP__CHAIN_MAX];
    esp__unit_chain(u, chain);
    const uint32_t step = chain[place].step;
    const bool early = u->option.steps[step].compressed && chain[place].round + 1u < u->codec->traits.n_rounds;
    const esp__step *s = &u->option.steps[step];
    uint64_t end = best + esp__nominal_ns(ctx, u, s, share[unit]);
    lanes[lane].free_at = end;
    if (s->kind == ESP__STAGE_COLLECTIVE) {
        uint32_t first, last;
        esp__scope_lanes(&esp__job_of(ctx)->topo, s->level, &first, &last);
        for (; first < last; first++)
            if (lanes[first].free_at < end) lanes[first].free_at = end;
        y->order[y->n_order++] = unit << 8 | step;
    }
    if (!early) share[unit] = esp__share_after(ctx, s, share[unit]);
    esp__sim_enter(ctx, y, lanes, unit, place + 1, end);
    return true;
}

static void esp__sim_backward(const esp_ctx *ctx, const esp__strategy *y, esp__sim_lane *lanes, double *share) {
    uint64_t now = 0;
    uint32_t reached = 0;
    for (uint32_t i = 0; i < y->n_units; i++) {
        const esp__extent *p = &y->units[i].place;
        for (; reached < p->first + p->n; reached++)
            now += esp__nominal_launch_ns + esp__model_of(ctx)->tensors[reached].count / 10;
        share[i] = 1.0;
        esp__sim_enter(ctx, y, lanes, i, 0, now);
    }
}

ESP__FN esp_status esp__order_make(esp_ctx *ctx, esp__strategy *y) {
    esp__sim_lane lanes[ESP__LANES];
    uint64_t n_colls = 0, heap_bytes = (uint64_t)y->n_units * sizeof(esp__waiting);
    double *share = esp__alloc(ctx, (uint64_t)y->n_units * sizeof *share + 1);
    uint8_t *heaps = esp__alloc(ctx, heap_bytes * ESP__LANES + 1);
    for (uint32_t i = 0; i < y->n_units; i++) {
        esp__chain_step chain[ESP__CHAIN_MAX];
        const uint32_t n = esp__unit_chain(&y->units[i], chain);
        for (uint32_t k = 0; k < n; k++)
            n_colls += y->units[i].option.steps[chain[k].step].kind == ESP__STAGE_COLLECTIVE;
    }
    esp__free(ctx, y->order);
    y->cap_order = n_colls * sizeof *y->order + 1;
    y->order = esp__alloc(ctx, y->cap_order);
    y->n_order = 0;
    if (share && heaps && y->order) {
        for (uint32_t k = 0; k < ESP__LANES; k++) {
            lanes[k].waiting.at = (esp__waiting *)(void *)(heaps + k * heap_bytes);
            lanes[k].waiting.n = 0;
            lanes[k].free_at = 0;
        }
        esp__sim_backward(ctx, y, lanes, share);
        while (esp__sim_run_one(ctx, y, lanes, share)) {
        }
    }
    const bool failed = !share || !heaps || !y->order;
    esp__free(ctx, share);
    esp__free(ctx, heaps);
    return failed ? esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory") : ESP_OK;
}
