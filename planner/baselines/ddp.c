/* ddp.c: PyTorch's DistributedDataParallel with its defaults. It does not compress, and fills buckets in backward
 * order. A bucket ends with the tensor that reaches its limit: 1 MiB for the first, so that communication starts
 * early, then 25 MiB. Each bucket is one NCCL allreduce over all ranks (flat.allreduce), a ring that crosses each
 * machine's network card once. */
#include "planner/baselines/baselines.h"

static const uint64_t esp__ddp_first_bytes = 1u << 20, esp__ddp_bytes = 25u << 20;

static void esp__ddp_units(esp__problem *p, esp__schedule *d) {
    esp__extent *units = esp__arena_get(p->arena, p->n_tensors * sizeof *units);
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

ESP__FN void esp__ddp_make(esp__problem *p, esp__schedule *d) {
    esp__ddp_units(p, d);
    esp__scheme_fill(p, d, &esp__form_ring, ESP_ON_GPU, ESP__NO_CODEC);
}

/* ---- fp16_compress_hook: DDP's buckets, cast to half precision, summed in half precision, and cast back ---------- */
/* If the caller gives no costs of codec fp16, compression with it takes as long as a cast at the speed of GPU
 * memory. */
static const char esp__fp16_name[] = "fp16";

/* A launch takes 10 us. Each element reads 4 bytes and writes 2, at 800 GB/s (8/9 of the V100's memory bandwidth). */
static const esp_cost_point esp__fp16_points[] = {{1.0, 10e3}, {1048576.0, 17864.0}, {1073741824.0, 8063064.0}};

/* Returns the index of codec fp16. If the caller gave no costs for it, adds it after the caller's codecs. */
static uint32_t esp__fp16_codec(esp__problem *p) {
    uint32_t given = esp__codec_named(p, esp__fp16_name);
    if (given != ESP__NO_CODEC && p->codecs[given].caps & ESP_CODEC_REDUCIBLE) return given;
    esp_plan_codec *all = esp__arena_get(p->arena, (p->n_codecs + 1u) * sizeof *all), *c = &all[p->n_codecs];
    esp_cost_curve cast = {esp__fp16_points, 3, 0};
    if (p->n_codecs) memcpy(all, p->codecs, p->n_codecs * sizeof *all);
    c->struct_size = sizeof *c;
    c->caps = ESP_CODEC_REDUCIBLE;
    c->spec = esp__fp16_name;
    c->unit_bytes = 2.0;
    c->units = 1.0;
    for (uint32_t k = 0; k < 2; k++) c->compress[k] = c->decompress[k] = cast;
    p->codecs = all;
    return p->n_codecs;
}

ESP__FN void esp__fp16_make(esp__problem *p, esp__schedule *d) {
    static const esp__form sum = {"comp > flat.allreduce > decomp", "comp > flat.allreduce > decomp"};
    uint32_t codec = esp__fp16_codec(p);
    esp__ddp_units(p, d);
    esp__scheme_fill(p, d, &sum, ESP_ON_GPU, codec);
}
