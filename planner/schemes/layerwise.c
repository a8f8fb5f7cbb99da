/* layerwise.c: every tensor is compressed by itself as soon as it is ready, as most codec libraries do. Small ones stay raw if the
 * configuration says so. */
#include "planner/search/search.h"

ESP__FN void esp__layerwise_with(esp__problem *p, esp__schedule *d, uint32_t codec) {
    esp__scheme_memo memo;
    memset(&memo, 0, sizeof memo);
    esp__schedule_tensors(p, d);
    for (uint32_t u = 0; u < d->n_units; u++) {
        const int small = esp__has_small(p, u, 1);
        esp__scheme_set(p, d, u, small ? &esp__form_raw : &esp__form_allgather, ESP_PLAN_GPU,
                        small ? (uint32_t)ESP__NO_CODEC : codec, &memo);
    }
    esp__generate(p, d);
}

static void esp__layerwise_make(esp__problem *p, esp__schedule *d) { esp__layerwise_with(p, d, esp__scheme_codec(p)); }

static const esp__scheme esp__scheme_layerwise = {
    .name = "layerwise",
    .summary = "every tensor compressed where codecs do by default: between reduce_scatter and allgather",
    .source = "GRACE, ICDCS 2021; this library's strategy of the same name",
    .make = esp__layerwise_make,
};
