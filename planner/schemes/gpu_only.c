/* gpu_only.c: Espresso's search with compression on the GPU only: Algorithm 1 without Algorithm 2 (section 5.3). */
#include "planner/search/search.h"

static int esp__path_on_gpu(const esp__problem *p, const esp__path *path) {
    return esp__path_on(p, path, 1u << ESP_PLAN_GPU);
}

static void esp__gpu_only_make(esp__problem *p, esp__schedule *d) {
    esp__schedule_tensors(p, d);
    esp__algorithm1_over(p, d, esp__choices_of(p, d, esp__path_on_gpu));
}

static const esp__scheme esp__scheme_gpu_only = {
    .name = "gpu-only",
    .summary = "Algorithm 1 with the GPU alone",
    .source = "Espresso, section 5.3",
    .make = esp__gpu_only_make,
};
