/* fp32.c: no compression, each tensor on its own: the baseline of the paper's figures. */
#include "planner/plan.h"

static void esp__fp32_make(esp__problem *p, esp__schedule *d) {
    esp__scheme_tensors(p, d, &esp__form_raw, ESP_PLAN_GPU, ESP__NO_CODEC);
}

static const esp__scheme esp__scheme_fp32 = {
    .name = "fp32",
    .summary = "no compression, tensor by tensor: intra reduce_scatter, inter allreduce, intra allgather",
    .source = "BytePS and Horovod without fusion; Espresso, section 5.1",
    .make = esp__fp32_make,
};
