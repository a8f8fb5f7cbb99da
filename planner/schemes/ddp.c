/* ddp.c: PyTorch's DistributedDataParallel with its defaults: no compression, and buckets that are filled in backward order. A
 * bucket ends with the tensor that reaches its limit: 1 MiB for the first, so that communication starts early, then 25 MiB. Each
 * bucket is one NCCL allreduce over all ranks (flat.allreduce): a ring that passes each machine's NIC once. */
#include "planner/plan.h"

static const uint64_t esp__ddp_first_bytes = 1u << 20, esp__ddp_bytes = 25u << 20;

static void esp__ddp_units(esp__problem *p, esp__schedule *d) {
    esp__unit *units = esp__arena_get(p->arena, p->n_tensors * sizeof *units);
    uint64_t bytes = 0, limit = esp__ddp_first_bytes;
    uint32_t n = 0, first = 0, end = (uint32_t)p->n_tensors;
    for (uint32_t i = 0; i < end; i++) {
        bytes += 4 * p->model->tensors[i].elements;
        if (bytes < limit && i + 1 < end) continue;
        n = esp__units_group(p, units, n, first, i + 1);
        first = i + 1;
        bytes = 0;
        limit = esp__ddp_bytes;
    }
    esp__schedule_set_units(p, d, units, n);
}

static void esp__ddp_make(esp__problem *p, esp__schedule *d) {
    esp__ddp_units(p, d);
    esp__scheme_fill(p, d, &esp__form_ring, ESP_PLAN_GPU, ESP__NO_CODEC);
}

static const esp__scheme esp__scheme_ddp = {
    .name = "ddp",
    .summary = "no compression, buckets of 25 MiB (the first: 1 MiB), each one ring allreduce over all ranks",
    .source = "PyTorch DistributedDataParallel, defaults; Li et al., VLDB 2020",
    .make = esp__ddp_make,
};
