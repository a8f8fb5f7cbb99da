/* shard.c: measures the communication of a training step with sharded tensors, from the first pushed gradient to the
 * last gathered parameter, with compression and without. Nothing is computed meanwhile. Ranks are forked processes
 * over shm: 2 machines with 2 ranks each and an emulated network between them. Compressed and uncompressed steps
 * take turns, so that other load changes their ratio little.
 *     build/bench/shard [LINK] >bench/results/micro/shard.csv        LINK is 1gbit by default */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/head.h"
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, TENSORS = 8, ELEMENTS = 1 << 20, ROUNDS = 9 };

typedef struct row {
    const char *codec, *gather;
} row;
static const row rows[] = {
    {"none", NULL},        {"none", "bf16"},   {"fp16", NULL}, {"fp16", "bf16"}, {"topk:ratio=0.01", "bf16"},
    {"efsignsgd", "bf16"}, {"twobit", "bf16"},
};

static void die(esp_ctx *ctx, const char *what) {
    fprintf(stderr, "bench/shard: %s: %s\n", what, esp_last_error(ctx));
    exit(1);
}

static esp_ctx *job_open(int32_t rank, const row *r, const char *link, int number) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    char root[64], backend[96], name[16];
    snprintf(root, sizeof root, "unix:espresso-shard-%d-%d", (int)getppid(), number);
    snprintf(backend, sizeof backend, "shm:inter=%s,latency=50us", link);
    cfg.rank = rank, cfg.size = RANKS, cfg.machine = 1 + rank / 2, cfg.root = root, cfg.backend = backend;
    if (strcmp(r->codec, "none")) cfg.codec = r->codec;
    if (esp_open(&cfg, &ctx)) die(NULL, "open");
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = ESP_ZERO;
        snprintf(name, sizeof name, "t%u", t);
        d.name = name, d.count = ELEMENTS, d.flags = ESP_SHARD, d.gather = r->gather;
        if (esp_tensor_add(ctx, &d, NULL)) die(ctx, "add");
    }
    if (esp_start(ctx)) die(ctx, "start");
    return ctx;
}

/* Sets ms[] to the milliseconds until the first gradient arrived, and until the last parameter did. */
static void job_step(esp_ctx *ctx, float *grad, float *params, double ms[2]) {
    esp_stream here = ESP_ZERO;
    if (esp_barrier(ctx)) die(ctx, "barrier");
    uint64_t start = esp__now_ns();
    for (uint32_t t = 0; t < TENSORS; t++)
        if (esp_push(ctx, t, grad + (uint64_t)t * ELEMENTS, here)) die(ctx, "push");
    if (esp_wait_all(ctx)) die(ctx, "wait");
    ms[0] = (double)(esp__now_ns() - start) / 1e6;
    for (uint32_t t = 0; t < TENSORS; t++)
        if (esp_gather(ctx, t, params + (uint64_t)t * ELEMENTS, here)) die(ctx, "gather");
    ms[1] = (double)(esp__now_ns() - start) / 1e6;
}

static void fill(float *x, int32_t rank) {
    uint64_t s = (uint64_t)rank + 1;
    for (uint64_t i = 0; i < (uint64_t)TENSORS * ELEMENTS; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = ((float)(s >> 40) * 0x1p-24f - 0.5f) * 0.01f;
    }
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x) {
    qsort(x, ROUNDS, sizeof *x, by_value);
    return x[ROUNDS / 2];
}

static void bench_row(int32_t rank, const row *r, const char *link, int number) {
    esp_ctx *base = job_open(rank, &rows[0], link, 2 * number), *ctx = job_open(rank, r, link, 2 * number + 1);
    const uint64_t n = (uint64_t)TENSORS * ELEMENTS;
    float *grad = calloc(n, sizeof *grad), *params = calloc(n, sizeof *params);
    double times[2][2][ROUNDS], ratio[ROUNDS];
    if (!grad || !params) die(NULL, "memory");
    for (int k = -1; k < ROUNDS; k++) { /* repetition -1 only warms up */
        for (int which = 0; which < 2; which++) {
            double ms[2];
            fill(grad, rank);
            job_step(which ? ctx : base, grad, params, ms);
            for (int i = 0; i < 2 && k >= 0; i++) times[which][i][k] = ms[i];
        }
        if (k >= 0) ratio[k] = times[0][1][k] / times[1][1][k];
    }
    const double low = (qsort(ratio, ROUNDS, sizeof *ratio, by_value), ratio[0]);
    if (!rank)
        printf("%s,%s,%.1f,%.1f,%.1f,%.1f,%.2f,%.2f\n", r->codec, r->gather ? r->gather : "exact", median(times[0][0]),
               median(times[0][1]), median(times[1][0]), median(times[1][1]), median(ratio), low);
    esp_close(ctx);
    esp_close(base);
    free(grad);
    free(params);
}

int main(int argc, char **argv) {
    const char *link = argc > 1 ? argv[1] : "1gbit";
    int failed = 0;
    bench_head(stdout, "build/bench/shard: a step of sharded tensors, compressed and not (fp32), in turns");
    printf(
        "# %d tensors of %d elements, 2 machines x 2 ranks, %s and 50 us between machines; medians of %d steps\n"
        "# sync: from the first push until all ranks have their parts; step: until all have gathered the parameters\n"
        "# ratio: median of the steps' ratios; lowest: the smallest of them\n"
        "gradients,params,fp32_sync_ms,fp32_step_ms,sync_ms,step_ms,ratio,lowest\n",
        TENSORS, ELEMENTS, link, ROUNDS);
    fflush(stdout);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        for (int32_t rank = 0; rank < RANKS; rank++) {
            if (fork()) continue;
            bench_row(rank, &rows[k], link, (int)k);
            fflush(stdout);
            _exit(0);
        }
        for (int i = 0; i < RANKS; i++) {
            int status = 0;
            wait(&status);
            failed |= status;
        }
    }
    return failed != 0;
}
