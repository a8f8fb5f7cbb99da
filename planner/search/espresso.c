/* espresso.c: the strategy "espresso", which runs Algorithms 1 and 2 three times and takes the shortest result: on
 * whole tensors; with large tensors in chunks, as in BytePS, on which the paper's system is built; and with small
 * neighbours in groups, as is common in tensor fusion. */
#include "planner/baselines/baselines.h"
#include "planner/search/search.h"

/* A tensor is large if it has at least 1/64 of the model's elements. A group has at most 4 MiB, the usual size of
 * buffers for tensor fusion. */
enum { ESP__CHUNKS_MOST = 8, ESP__LARGE_SHARE = 64, ESP__FUSED_ELEMENTS = 1 << 20 };

/* Returns in how many chunks the tensor would be synchronized soonest if there were no other tensors. The first
 * chunk takes the sum of its ops' times. Since chunks overlap, each further one only adds its time on the processor
 * or link that it uses longest. */
static uint32_t esp__chunks_for(esp__problem *p, uint32_t tensor, uint64_t elements) {
    uint64_t least = UINT64_MAX;
    uint32_t best = 1;
    for (uint32_t n = 1; n <= ESP__CHUNKS_MOST && n <= 2 * best && n <= elements; n *= 2) {
        esp__extent u = {tensor, 1, 0, (elements + n - 1) / n};
        const esp__candidates *candidates = esp__candidates_get(p, &u);
        for (uint32_t i = 0; i < candidates->n; i++) {
            uint64_t pace = 0, time;
            for (uint32_t k = 0; k < ESP__LANES; k++)
                if (candidates->paths[i].load[k] > pace) pace = candidates->paths[i].load[k];
            time = candidates->paths[i].total + (n - 1) * pace;
            if (time < least) least = time, best = n;
        }
    }
    return best;
}

/* Splits large tensors into chunks. Returns 0 and leaves `d` unchanged if no tensor is large. */
static int esp__cut_units(esp__problem *p, esp__schedule *d) {
    uint32_t n = 0, n_tensors = (uint32_t)p->n_tensors, cut = 0;
    uint64_t all = 0;
    esp__extent *units = esp__arena_get(p->arena, (uint64_t)n_tensors * ESP__CHUNKS_MOST * sizeof *units);
    uint32_t *like = esp__arena_get(p->arena, 1024 * sizeof *like);
    uint32_t *chunks = esp__arena_get(p->arena, n_tensors * sizeof *chunks);
    for (uint32_t i = 0; i < n_tensors; i++) all += p->model->tensors[i].elements;
    for (uint32_t i = 0; i < n_tensors; i++) {
        uint64_t elements = p->model->tensors[i].elements;
        uint32_t *slot = &like[(elements * 64 + p->keep[i]) * 0x9E3779B97F4A7C15ull >> 54], j = *slot - 1u;
        if (elements < all / ESP__LARGE_SHARE || p->model->tensors[i].shard)
            chunks[i] = 1;
        else if (*slot && p->model->tensors[j].elements == elements &&
                 p->model->tensors[j].cols == p->model->tensors[i].cols && p->keep[j] == p->keep[i])
            chunks[i] = chunks[j];
        else
            chunks[i] = esp__chunks_for(p, i, elements);
        *slot = i + 1;
        cut |= chunks[i] > 1;
        n = esp__units_chunks(p, units, n, i, (elements + chunks[i] - 1) / chunks[i]);
    }
    if (cut) esp__schedule_set_units(p, d, units, n);
    return cut != 0;
}

/* Merges small neighbouring tensors. Returns 0 and leaves `d` unchanged if no two neighbours are small. */
static int esp__fuse_units(esp__problem *p, esp__schedule *d) {
    uint32_t n = 0, first = 0, n_tensors = (uint32_t)p->n_tensors;
    uint64_t elements = 0;
    esp__extent *units = esp__arena_get(p->arena, n_tensors * sizeof *units);
    for (uint32_t i = 0; i < n_tensors; i++) {
        elements += p->model->tensors[i].elements;
        if (elements < ESP__FUSED_ELEMENTS && i + 1 < n_tensors) continue;
        n = esp__units_group(p, units, n, first, i + 1);
        first = i + 1;
        elements = 0;
    }
    if (n < n_tensors) esp__schedule_set_units(p, d, units, n);
    return n < n_tensors;
}

static void esp__espresso_also(esp__problem *p, esp__schedule *d, esp__schedule *other) {
    esp__algorithm1(p, other);
    esp__algorithm2(p, other);
    esp__keep_better_allowed(p, d, other);
}

ESP__FN void esp__espresso(esp__problem *p, esp__schedule *d) {
    esp__schedule other;
    esp__schedule_tensors(p, d);
    esp__algorithm1(p, d);
    esp__algorithm2(p, d);
    memset(&other, 0, sizeof other);
    if (!(p->config.flags & ESP_PLAN_NO_SPLIT) && !esp__out_of_time(p) && esp__cut_units(p, &other))
        esp__espresso_also(p, d, &other);
    if (!(p->config.flags & ESP_PLAN_NO_MERGE) && !esp__out_of_time(p) && esp__fuse_units(p, &other))
        esp__espresso_also(p, d, &other);
}
