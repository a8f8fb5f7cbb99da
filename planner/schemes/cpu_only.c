/* cpu_only.c: Espresso's search with compression on the CPU only: Algorithm 1 with the other device (section 5.3). */
#include "planner/search/search.h"

static int esp__path_on_cpu(const esp__problem *p, const esp__path *path) {
    return esp__path_on(p, path, 1u << ESP_PLAN_CPU);
}

static void esp__cpu_only_make(esp__problem *p, esp__schedule *d) {
    esp__schedule_tensors(p, d);
    esp__algorithm1_over(p, d, esp__choices_of(p, d, esp__path_on_cpu));
}

static const esp__scheme esp__scheme_cpu_only = {
    .name = "cpu-only",
    .summary = "Algorithm 1 with the CPU alone",
    .source = "Espresso, section 5.3",
    .make = esp__cpu_only_make,
};
