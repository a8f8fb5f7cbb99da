/* step.c: measures the library's own overhead: the time of a step of a model's tensors through the executor, divided by
 * that of the same collectives called directly on the shm transport in the same run. Ranks are forked processes.
 *     build/bench/step [RANKS] >bench/results/micro/step.csv        2, 4, ... RANKS ranks; RANKS is 4 by default */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/head.h"
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 5 };

typedef struct row {
    const char *name, *codec, *option;
    uint32_t tensors;
    uint64_t count;
} row;

static const row rows[] = {
    {"1 x 4 KiB", "none", "flat.allreduce", 1, 1024},
    {"100 x 4 KiB", "none", "flat.allreduce", 100, 1024},
    {"100 x 256 KiB", "none", "flat.allreduce", 100, 65536},
    {"4 x 16 MiB", "none", "flat.allreduce", 4, 4194304},
    {"100 x 256 KiB topk 1%", "topk:ratio=0.01", "comp@cpu > flat.allgather > decomp@cpu", 100, 65536},
    {"4 x 16 MiB topk 1%", "topk:ratio=0.01", "comp@cpu > flat.allgather > decomp@cpu", 4, 4194304},
    {"4 x 16 MiB efsignsgd", "efsignsgd", "comp@cpu > flat.allgather > decomp@cpu", 4, 4194304},
};

static void die(esp_ctx *ctx, const char *what) {
    fprintf(stderr, "bench/step: %s: %s\n", what, esp_last_error(ctx));
    exit(1);
}

static double direct_us(esp_ctx *ctx, const row *r, float *g) {
    uint64_t start = esp__now_ns();
    for (uint32_t t = 0; t < r->tensors; t++) {
        esp_coll c;
        void *req;
        esp_stream here = ESP_ZERO;
        esp__coll_init(&c, ESP_COLL_ALLREDUCE, ESP_F32, r->count, g + t * r->count, 0);
        c.scale = 1.0f / (float)ctx->job.size;
        if (ctx->job.backend->start(ctx->job.comms[0].handle, &c, here, &req)) exit(1);
        for (;;) {
            esp_status s = ctx->job.backend->test(ctx->job.comms[0].handle, req);
            if (s == ESP_OK) break;
            if (s < 0) exit(1);
            ctx->job.backend->progress(ctx->job.comms[0].handle, 1000);
        }
    }
    return (double)(esp__now_ns() - start) / 1e3;
}

static double step_us(esp_ctx *ctx, const row *r, float *g) {
    esp_stream here = ESP_ZERO;
    uint64_t start = esp__now_ns();
    for (uint32_t t = 0; t < r->tensors; t++)
        if (esp_push(ctx, t, g + t * r->count, here)) die(ctx, "push");
    if (esp_wait_all(ctx)) die(ctx, "wait");
    return (double)(esp__now_ns() - start) / 1e3;
}

static void bench_row(int32_t rank, int32_t size, const row *r, int job) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    char root[64], name[32];
    double direct = 1e30, through = 1e30;
    snprintf(root, sizeof root, "unix:espresso-bench-%d-%d", (int)getppid(), job);
    cfg.rank = rank, cfg.size = size, cfg.machine = 1, cfg.root = root, cfg.backend = "shm";
    if (esp_open(&cfg, &ctx)) die(NULL, "open");
    float *g = calloc(r->tensors * r->count, sizeof *g);
    for (uint32_t t = 0; t < r->tensors; t++) {
        esp_tensor_desc d = ESP_ZERO;
        snprintf(name, sizeof name, "t%u", t);
        d.name = name, d.count = r->count, d.codec = r->codec, d.option = r->option;
        if (esp_tensor_add(ctx, &d, NULL)) die(ctx, "add");
    }
    if (esp_start(ctx)) die(ctx, "start");
    for (uint64_t i = 0; i < r->tensors * r->count; i++) g[i] = (float)((i * 2654435761u) >> 20 & 1023) - 511.5f;
    for (int k = 0; k < ROUNDS + 1; k++) { /* direct calls and the library take turns; repetition 0 only warms up */
        if (esp_barrier(ctx)) die(ctx, "barrier");
        double d = direct_us(ctx, r, g);
        if (esp_barrier(ctx)) die(ctx, "barrier");
        double s = step_us(ctx, r, g);
        if (k && d < direct) direct = d;
        if (k && s < through) through = s;
    }
    if (rank == 0) printf("%s,%d,%.1f,%.1f,%.2f\n", r->name, size, direct, through, through / direct), fflush(stdout);
    free(g);
    esp_close(ctx);
}

int main(int argc, char **argv) {
    int32_t most = argc > 1 ? atoi(argv[1]) : 4;
    bench_head(stdout,
               "build/bench/step: a step through the executor, and (direct) the same allreduces on the backend");
    printf("# best of %d, interleaved\ntensors,ranks,direct_us,step_us,ratio\n", ROUNDS);
    fflush(stdout);
    for (int32_t size = 2; size <= most; size *= 2)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            for (int32_t r = 0; r < size; r++)
                if (!fork()) {
                    bench_row(r, size, &rows[k], (int)(k + 100 * (size_t)size));
                    _exit(0);
                }
            int status, bad = 0;
            while (wait(&status) > 0) bad |= status != 0;
            if (bad) return 1;
        }
    return 0;
}
