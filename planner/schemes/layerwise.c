/* layerwise.c: every tensor is compressed by itself as soon as it is ready, as most codec libraries do. */
#include "planner/plan.h"

static void esp__layerwise_make(esp__problem *p, esp__schedule *d) {
    esp__scheme_tensors(p, d, &esp__form_allgather, ESP_PLAN_GPU, esp__scheme_codec(p));
}

static const esp__scheme esp__scheme_layerwise = {
    .name = "layerwise",
    .summary = "every tensor compressed where codecs do by default: between reduce_scatter and allgather",
    .source = "GRACE, ICDCS 2021; this library's strategy of the same name",
    .make = esp__layerwise_make,
};
