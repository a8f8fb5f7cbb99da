/* all.c: Espresso's search without the choice not to compress (section 5.3, "All compression"). */
#include "planner/search/search.h"

static int esp__path_compresses(const esp__problem *p, const esp__path *path) {
    (void)p;
    return path->codec != ESP__NO_CODEC;
}

static int esp__path_compresses_here(const esp__problem *p, const esp__path *path) {
    return path->codec != ESP__NO_CODEC && esp__path_one_device(p, path);
}

/* For small tensors every option that compresses may be dominated, so that none is a candidate: these get the two common ones. */
static void esp__all_amend(esp__problem *p, const esp__schedule *d, esp__choices *choices) {
    static const esp__form *const forms[] = {&esp__form_allgather, &esp__form_alltoall};
    uint32_t codec = esp__scheme_codec(p);
    for (uint32_t u = 0; u < d->n_units && codec != ESP__NO_CODEC; u++) {
        if (p->keep[d->units[u].first] || choices[u].paths[0]->codec != ESP__NO_CODEC) continue;
        const esp__path **paths = esp__arena_get(p->arena, 2 * sizeof *paths);
        for (uint32_t f = 0; f < 2; f++) paths[f] = esp__form_path(p, &d->units[u], forms[f], ESP_PLAN_GPU, codec);
        choices[u].paths = paths;
        choices[u].n = 2;
        choices[u].like = u;
    }
}

static void esp__all_make(esp__problem *p, esp__schedule *d) {
    esp__schedule_tensors(p, d);
    esp__choices *one = esp__choices_of(p, d, esp__path_compresses_here);
    esp__all_amend(p, d, one);
    esp__algorithm1_over(p, d, one);
    esp__algorithm2_over(p, d, esp__choices_of(p, d, esp__path_compresses));
}

static const esp__scheme esp__scheme_all = {
    .name = "all",
    .summary = "every tensor compressed, all else searched as Algorithms 1 and 2 do",
    .source = "Espresso, section 5.3",
    .make = esp__all_make,
};
