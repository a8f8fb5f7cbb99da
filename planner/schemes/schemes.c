/* schemes.c: the list of comparison strategies, in the order in which they are shown. Each is a file in schemes/. */
#include "planner/search/search.h"

#include "planner/schemes/common.c"
#include "planner/schemes/per_tensor.c"
#include "planner/schemes/ddp.c"
#include "planner/schemes/mergecomp.c"
#include "planner/schemes/hipress.c"
#include "planner/schemes/byteps_compress.c"

/* Espresso's search with compression on the CPU only: Algorithm 1 with the other device. */
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

static const esp__scheme esp__scheme_espresso = {
    .name = "espresso",
    .summary = "Algorithms 1 and 2 over tensors, over chunks of large and over groups of small ones; the best",
    .source = "Espresso, sections 4.3 and 4.4",
    .make = esp__espresso,
};

/* "espresso+", which goes beyond the paper, is in search/search.c. */
ESP__FN const esp__scheme *const *esp__schemes(void) {
    static const esp__scheme *const all[] = {&esp__scheme_fp32,
                                             &esp__scheme_ddp,
                                             &esp__scheme_fp16,
                                             &esp__scheme_layerwise,
                                             &esp__scheme_mergecomp,
                                             &esp__scheme_hipress,
                                             &esp__scheme_hitopkcomm,
                                             &esp__scheme_byteps,
                                             &esp__scheme_cpu_only,
                                             &esp__scheme_espresso,
                                             NULL};
    return all;
}

ESP__FN const esp__scheme *esp__scheme_find(const char *name) {
    for (const esp__scheme *const *s = esp__schemes(); *s; s++)
        if (!strcmp((*s)->name, name)) return *s;
    return NULL;
}

ESP__FN int esp__scheme_brings_codec(const esp__problem *p, const esp__scheme *s) {
    return s->codec && esp__codec_named(p, s->codec) == ESP__NO_CODEC;
}
