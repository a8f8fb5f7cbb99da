/* patterns.c: Espresso's search with only one way to communicate compressed tensors. Whether to compress a tensor, and on which
 * device, is still searched (section 5.3, the three patterns of its figure on communication). */
#include "planner/search/search.h"

/* [n_units] the choices raw, this form on the GPU and, if `cpu`, this form on the CPU. */
static esp__choices *esp__pattern_choices(esp__problem *p, const esp__schedule *d, const esp__form *form, int cpu) {
    esp__choices *all = esp__arena_get(p->arena, d->n_units * sizeof *all);
    uint32_t *like = esp__arena_get(p->arena, 1024 * sizeof *like); /* by size: a unit of this size + 1 */
    uint32_t codec = esp__scheme_codec(p), gpu = p->system.devices >> ESP_PLAN_GPU & 1u;
    for (uint32_t u = 0; u < d->n_units; u++) {
        const esp__unit *unit = &d->units[u];
        uint32_t *slot = &like[unit->elements * 0x9E3779B97F4A7C15ull >> 54];
        if (*slot && d->units[*slot - 1].elements == unit->elements &&
            esp__unit_cols(p, &d->units[*slot - 1]) == esp__unit_cols(p, unit) && !p->keep[unit->first]) {
            all[u] = all[*slot - 1];
            continue;
        }
        all[u].like = u;
        all[u].paths = esp__arena_get(p->arena, 3 * sizeof *all[u].paths);
        if (p->keep[unit->first]) {
            all[u].paths[all[u].n++] = esp__candidates_get(p, unit)->paths;
            continue;
        }
        *slot = u + 1;
        all[u].paths[all[u].n++] = esp__form_path(p, unit, &esp__form_raw, ESP_PLAN_GPU, ESP__NO_CODEC);
        if (codec == ESP__NO_CODEC) continue;
        all[u].paths[all[u].n++] = esp__form_path(p, unit, form, ESP_PLAN_GPU, codec);
        if (cpu && gpu) all[u].paths[all[u].n++] = esp__form_path(p, unit, form, ESP_PLAN_CPU, codec);
    }
    return all;
}

static void esp__pattern_make(esp__problem *p, esp__schedule *d, const esp__form *form) {
    esp__schedule_tensors(p, d);
    esp__choices *both = esp__pattern_choices(p, d, form, 1), *one = esp__arena_get(p->arena, d->n_units * sizeof *one);
    for (uint32_t u = 0; u < d->n_units; u++) {
        one[u] = both[u];
        if (one[u].n > 2) one[u].n = 2;
    }
    esp__algorithm1_over(p, d, one);
    esp__algorithm2_over(p, d, both);
}

static void esp__inter_allgather_make(esp__problem *p, esp__schedule *d) {
    esp__pattern_make(p, d, &esp__form_allgather);
}
static void esp__inter_alltoall_make(esp__problem *p, esp__schedule *d) {
    esp__pattern_make(p, d, &esp__form_alltoall);
}
static void esp__alltoall_alltoall_make(esp__problem *p, esp__schedule *d) {
    static const esp__form both = {"comp > intra.alltoall > decomp > comp > inter.alltoall > decomp > comp > "
                                   "inter.allgather > decomp > comp > intra.allgather > decomp",
                                   "comp > flat.alltoall > decomp > comp > flat.allgather > decomp"};
    esp__pattern_make(p, d, &both);
}

static const esp__scheme esp__scheme_inter_allgather = {
    .name = "inter-allgather",
    .summary = "compression only between machines, by allgather; whether and on which device is searched",
    .source = "Espresso, section 5.3",
    .make = esp__inter_allgather_make,
};
static const esp__scheme esp__scheme_inter_alltoall = {
    .name = "inter-alltoall",
    .summary = "compression only between machines, by alltoall and allgather; whether and where is searched",
    .source = "Espresso, section 5.3",
    .make = esp__inter_alltoall_make,
};
static const esp__scheme esp__scheme_alltoall_alltoall = {
    .name = "alltoall-alltoall",
    .summary = "compression inside and between machines, by alltoall and allgather; whether and where is searched",
    .source = "Espresso, section 5.3",
    .make = esp__alltoall_alltoall_make,
};
