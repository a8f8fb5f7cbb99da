/* strategies.c: the table of all strategies that users can name, except "espresso+", which search.c makes. */
#include "planner/baselines/baselines.h"
#include "planner/search/search.h"

static const esp__scheme esp__scheme_table[] = {
    {.name = "fp32",
     .summary = "no compression, tensor by tensor: intra reduce_scatter, inter allreduce, intra allgather",
     .source = "BytePS and Horovod without fusion; Espresso, section 5.1",
     .make = esp__fp32_make},
    {.name = "ddp",
     .summary = "no compression, buckets of 25 MiB (the first: 1 MiB), each one ring allreduce over all ranks",
     .source = "PyTorch DistributedDataParallel, defaults; Li et al., VLDB 2020",
     .make = esp__ddp_make},
    {.name = "fp16",
     .summary = "ddp's buckets, cast to half and summed as such",
     .source = "PyTorch DDP fp16_compress_hook",
     .make = esp__fp16_make,
     .codec = "fp16"},
    {.name = "layerwise",
     .summary = "every tensor compressed where codecs do by default: between reduce_scatter and allgather",
     .source = "GRACE, ICDCS 2021; this library's strategy of the same name",
     .make = esp__layerwise_make},
    {.name = "mergecomp",
     .summary = "neighbours merged into few groups, each compressed as one on the GPU; borders searched",
     .source = "Wang et al., MergeComp, 2021, section 4",
     .make = esp__mergecomp_make},
    {.name = "hipress",
     .summary = "GPU, between machines only; compresses and cuts a tensor where its own estimate saves time (one "
                "machine: raw)",
     .source = "Bai et al., SOSP 2021, section 3.3",
     .make = esp__hipress_make},
    {.name = "hitopkcomm",
     .summary = "every tensor on the GPU: intra reduce_scatter, comp, inter allgather, decomp, intra allgather",
     .source = "Shi et al., MLSys 2021, section 3.2",
     .make = esp__hitopkcomm_make},
    {.name = "byteps-compress",
     .summary = "CPU, between machines only, partitions of 4 MB, tensors from 64 KiB on (one machine: raw)",
     .source = "BytePS with gradient compression, defaults; Zhong et al., 2021",
     .make = esp__byteps_make},
    {.name = "cpu-only",
     .summary = "Algorithm 1 with the CPU alone",
     .source = "Espresso, section 5.3",
     .make = esp__cpu_only_make},
    {.name = "paper",
     .summary = "Algorithms 1 and 2 as published, tensor by tensor",
     .source = "Espresso, sections 4.3 and 4.4",
     .make = esp__paper},
    {.name = NULL},
};

/* Strategies that only run if the user names them. */
static const char esp__merge_summary[] =
    "at most this number of groups, each compressed as one on the GPU; borders searched";
static const char esp__even_summary[] =
    "this number of groups of about as many elements each, compressed as one on the GPU";
static const char esp__merge_source[] = "Wang et al., MergeComp, 2021, section 4";
static const esp__scheme esp__scheme_merged[] = {
    {"mergecomp-1", esp__merge_summary, esp__merge_source, esp__mergecomp_1, NULL},
    {"mergecomp-2", esp__merge_summary, esp__merge_source, esp__mergecomp_2, NULL},
    {"mergecomp-3", esp__merge_summary, esp__merge_source, esp__mergecomp_3, NULL},
    {"mergecomp-4", esp__merge_summary, esp__merge_source, esp__mergecomp_4, NULL},
    {"even-2", esp__even_summary, esp__merge_source, esp__even_2, NULL},
    {"even-3", esp__even_summary, esp__merge_source, esp__even_3, NULL},
    {"even-4", esp__even_summary, esp__merge_source, esp__even_4, NULL},
    {.name = NULL},
};

ESP__FN const esp__scheme *esp__schemes(void) { return esp__scheme_table; }

ESP__FN const esp__scheme *esp__scheme_find(const char *name) {
    const esp__scheme *const tables[] = {esp__scheme_table, esp__scheme_merged};
    for (int k = 0; k < 2; k++)
        for (const esp__scheme *s = tables[k]; s->name; s++)
            if (!strcmp(s->name, name)) return s;
    return NULL;
}

ESP__FN int esp__scheme_brings_codec(const esp__problem *p, const esp__scheme *s) {
    return s->codec && esp__codec_named(p, s->codec) == ESP__NO_CODEC;
}
