/* options.c is a rank of a job started by a launcher, to test backend mpi: mpirun -n 4 options [K [PLUGIN]]. It
 * tries every K-th way to compress and send a gradient. With PLUGIN, gradients are on its CUDA device. Means must be
 * exact without compression, and have the same bits on all ranks. */
#include "tests/strategy/run_options.h"

static const char *const none[] = {"none", NULL};
static const char *const lossy[] = {"topk:ratio=0.1", "efsignsgd", "int8", NULL};
static const char *const topk[] = {"topk:ratio=0.05", NULL};

static const char *device; /* plugin of the CUDA device, or NULL */
static int run(plan *p, const char *what) {
    esp_config c = ESP_ZERO;
    esp_ctx *ctx = NULL;
    c.log_level = ESP_LOG_ERROR;
    atomic_store(&failures, 0);
    if (esp_open(&c, &ctx)) return fprintf(stderr, "esp_open: %s\n", esp_last_error(NULL)), 1;
    if (device && esp_plugin_load(ctx, device)) return fprintf(stderr, "%s\n", esp_last_error(ctx)), 1;
    if (device) p->where.kind = ESP_CUDA;
    p->levels = ctx->job.topo.n_levels;
    run_body(ctx, p);
    const int failed = atomic_load(&failures);
    if (ctx->job.rank == 0)
        printf("%s%s: %u options on %d ranks, %d machines, %u levels: %s\n", device ? "device " : "", what,
               ctx->model.n_tensors, (int)ctx->job.size, (int)ctx->job.topo.n_machines, ctx->job.topo.n_levels,
               failed ? "FAILED" : "ok");
    esp_close(ctx);
    return failed != 0;
}

int main(int argc, char **argv) {
    const uint32_t every = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    plan exact = {.devices = 1, .codecs = none, .count = 515, .steps = 2, .exact = 1, .extended = 1, .dtype = ESP_F32};
    plan codecs = {.devices = 1, .codecs = lossy, .count = 515, .steps = 4, .extended = 1, .dtype = ESP_F32};
    plan all = {.devices = 3, .codecs = topk, .count = 37, .steps = 1, .dtype = ESP_F32}; /* all 4341 options */
    plan large = {.devices = 1, .codecs = none, .count = 70001, .steps = 1, .exact = 1, .dtype = ESP_F32};
    plan narrow = {.devices = 1, .codecs = none, .count = 515, .steps = 2, .narrow = 1, .dtype = ESP_F32};
    int failed = 0;
    device = argc > 2 ? argv[2] : NULL;
    exact.every = large.every = every, codecs.every = 3 * every, narrow.every = every;
    all.every = every;
    failed |= run(&exact, "none");
    failed |= run(&codecs, "lossy");
    failed |= run(&large, "large");
    failed |= run(&all, "all");
    failed |= run(&narrow, "narrow");
    return failed;
}
