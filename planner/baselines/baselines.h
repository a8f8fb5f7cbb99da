/* baselines.h: what the comparison strategies share. Each strategy is a function that fills a schedule. */
#ifndef ESP__SCHEMES_H
#define ESP__SCHEMES_H
#include "planner/problem/problem.h"
#include "planner/simulate/schedule.h"

typedef struct esp__form {
    const char *tree, *flat;
} esp__form;

static const esp__form esp__form_raw = {"intra.reduce_scatter > inter.allreduce > intra.allgather", "flat.allreduce"};
static const esp__form esp__form_ring = {"flat.allreduce", "flat.allreduce"};
static const esp__form esp__form_allgather = {
    "intra.reduce_scatter > comp > inter.allgather > decomp > intra.allgather", "comp > flat.allgather > decomp"};
static const esp__form esp__form_alltoall = {
    "intra.reduce_scatter > comp > inter.alltoall > decomp > comp > inter.allgather > decomp > intra.allgather",
    "comp > flat.alltoall > decomp > comp > flat.allgather > decomp"};

/* Options for codecs whose payloads can only be summed by an allreduce. No published strategy uses them. */
static const esp__form esp__form_sum = {"intra.reduce_scatter > comp > inter.allreduce > decomp > intra.allgather",
                                        "comp > flat.allreduce > decomp"};

/* Sharded tensors get these options in all strategies, because none of the published systems has sharded tensors. */
static const esp__form esp__form_shard_raw = {"intra.reduce_scatter > inter.reduce_scatter", "flat.reduce_scatter"};
static const esp__form esp__form_shard = {"intra.reduce_scatter > comp > inter.alltoall > decomp",
                                          "comp > flat.alltoall > decomp"};

enum { ESP__SCHEME_MEMO = 256 };
typedef struct esp__scheme_memo {
    const esp__form *form[ESP__SCHEME_MEMO];
    esp__extent unit[ESP__SCHEME_MEMO];
    uint64_t cols[ESP__SCHEME_MEMO];
    const esp__path *path[ESP__SCHEME_MEMO];
} esp__scheme_memo;

/* ---- the strategies ---------------------------------------------------------------------------------------------- */
ESP__FN void esp__fp32_make(esp__problem *p, esp__schedule *d);
ESP__FN void esp__ddp_make(esp__problem *p, esp__schedule *d);
ESP__FN void esp__fp16_make(esp__problem *p, esp__schedule *d);
ESP__FN void esp__layerwise_with(esp__problem *p, esp__schedule *d, uint32_t codec);
ESP__FN void esp__layerwise_make(esp__problem *p, esp__schedule *d);
ESP__FN void esp__mergecomp_make(esp__problem *p, esp__schedule *d);
ESP__FN void esp__mergecomp_1(esp__problem *p, esp__schedule *d);
ESP__FN void esp__mergecomp_2(esp__problem *p, esp__schedule *d);
ESP__FN void esp__mergecomp_3(esp__problem *p, esp__schedule *d);
ESP__FN void esp__mergecomp_4(esp__problem *p, esp__schedule *d);
ESP__FN void esp__even_2(esp__problem *p, esp__schedule *d);
ESP__FN void esp__even_3(esp__problem *p, esp__schedule *d);
ESP__FN void esp__even_4(esp__problem *p, esp__schedule *d);
ESP__FN void esp__hipress_make(esp__problem *p, esp__schedule *d);
ESP__FN void esp__hitopkcomm_make(esp__problem *p, esp__schedule *d);
ESP__FN void esp__byteps_make(esp__problem *p, esp__schedule *d);
ESP__FN const esp__path *esp__form_path(esp__problem *p, const esp__extent *u, const esp__form *f, uint32_t device,
                                        uint32_t codec);
ESP__FN uint32_t esp__scheme_codec(const esp__problem *p);
ESP__FN void esp__scheme_set(esp__problem *p, esp__schedule *d, uint32_t u, const esp__form *f, uint32_t device,
                             uint32_t codec, esp__scheme_memo *memo);
ESP__FN uint32_t esp__units_chunks(const esp__problem *p, esp__extent *units, uint32_t n, uint32_t tensor,
                                   uint64_t most);
ESP__FN void esp__scheme_tensors(esp__problem *p, esp__schedule *d, const esp__form *f, uint32_t device,
                                 uint32_t codec);
ESP__FN void esp__scheme_fill(esp__problem *p, esp__schedule *d, const esp__form *f, uint32_t device, uint32_t codec);
ESP__FN uint32_t esp__units_group(const esp__problem *p, esp__extent *units, uint32_t n, uint32_t first, uint32_t end);
#endif
