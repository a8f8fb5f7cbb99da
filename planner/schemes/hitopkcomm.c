/* hitopkcomm.c: HiTopKComm. For every tensor: gradients are summed inside the machine; each rank compresses its shard on its GPU;
 * payloads are gathered between machines and decompressed; the result is gathered inside the machine. */
#include "planner/plan.h"

static void esp__hitopkcomm_make(esp__problem *p, esp__schedule *d) {
    esp__scheme_tensors(p, d, &esp__form_allgather, ESP_PLAN_GPU, esp__scheme_codec(p));
}

static const esp__scheme esp__scheme_hitopkcomm = {
    .name = "hitopkcomm",
    .summary = "every tensor on the GPU: intra reduce_scatter, comp, inter allgather, decomp, intra allgather",
    .source = "Shi et al., MLSys 2021, section 3.2",
    .make = esp__hitopkcomm_make,
};
