/* link.c: checks that the emulated network between machines has the requested rate. It runs every collective between
 * machines of one rank each, and divides the bytes that must pass a machine's link by the measured time.
 *     build/bench/link >bench/results/micro/link.csv */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/head.h"
#include <sys/wait.h>
#include <unistd.h>

typedef struct row {
    uint32_t op;
    const char *name;
} row;
static const row rows[] = {{ESP_COLL_ALLREDUCE, "allreduce"}, {ESP_COLL_REDUCE_SCATTER, "reduce_scatter"},
                           {ESP_COLL_ALLGATHER, "allgather"}, {ESP_COLL_ALLTOALL, "alltoall"},
                           {ESP_COLL_BROADCAST, "broadcast"}, {ESP_COLL_GATHER, "gather"}};

/* Returns the bytes that cross the busiest link in one direction, for a buffer of `e` bytes on `n` machines. */
static double link_bytes(uint32_t op, double e, double n) {
    if (op == ESP_COLL_ALLREDUCE) return 2 * (n - 1) / n * e;
    if (op == ESP_COLL_BROADCAST) return e;
    return (n - 1) / n * e;
}

static double run_us(esp_ctx *ctx, const row *r, uint64_t count, float *a, float *b) {
    esp_stream here = ESP_ZERO;
    esp_coll c;
    void *req;
    uint64_t c1 = (count + (uint64_t)ctx->job.size - 1) / (uint64_t)ctx->job.size;
    if (esp_barrier(ctx)) exit(1);
    esp__coll_init(&c, r->op, ESP_F32, count, a, 0);
    c.dst.ptr = r->op == ESP_COLL_ALLREDUCE || r->op == ESP_COLL_BROADCAST ? a : b;
    if (r->op == ESP_COLL_ALLGATHER || r->op == ESP_COLL_GATHER) c.src.ptr = a + c1 * (uint64_t)ctx->job.rank;
    uint64_t start = esp__now_ns();
    if (ctx->job.backend->start(ctx->job.comms[0].handle, &c, here, &req)) exit(1);
    for (;;) {
        esp_status s = ctx->job.backend->test(ctx->job.comms[0].handle, req);
        if (s < 0) exit(1);
        if (s == ESP_OK) break;
        ctx->job.backend->progress(ctx->job.comms[0].handle, 1000);
    }
    double us = (double)(esp__now_ns() - start) / 1e3;
    float most = (float)us; /* becomes the slowest rank's time */
    float all[64] = {0};
    all[ctx->job.rank] = most;
    if (esp_allreduce(ctx, all, 64)) exit(1);
    for (int k = 0; k < ctx->job.size; k++) most = all[k] > most ? all[k] : most;
    return (double)most;
}

static void bench(int32_t rank, int32_t size, const char *rate, double mbit, uint64_t mib) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    char root[64], backend[64];
    snprintf(root, sizeof root, "unix:espresso-link-%d-%s-%d-%d", (int)getppid(), rate, (int)size, (int)mib);
    snprintf(backend, sizeof backend, "shm:inter=%s,latency=50us", rate);
    cfg.rank = rank, cfg.size = size, cfg.machine = rank + 1, cfg.root = root, cfg.backend = backend;
    if (esp_open(&cfg, &ctx)) {
        fprintf(stderr, "bench/link: %s\n", esp_last_error(NULL));
        exit(1);
    }
    uint64_t count = mib << 18;
    float *a = calloc(count, 4), *b = calloc(count, 4);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        double us = run_us(ctx, &rows[k], count, a, b);
        double got = link_bytes(rows[k].op, (double)count * 4, size) * 8 / us;
        if (rank == 0)
            printf("%s,%s,%d,%d,%.1f,%+.2f\n", rows[k].name, rate, (int)size, (int)mib, got, (got / mbit - 1) * 100),
                fflush(stdout);
    }
    free(a), free(b);
    esp_close(ctx);
}

int main(void) {
    static const struct {
        const char *rate;
        double mbit;
        uint64_t mib;
    } links[] = {{"100mbit", 100, 16}, {"1gbit", 1000, 16}, {"1gbit", 1000, 64}, {"5gbit", 5000, 64}};
    bench_head(stdout, "build/bench/link: the emulated link's rate, asked and measured");
    printf("collective,link,machines,buffer_mib,mbit_per_s,error_percent\n");
    fflush(stdout);
    for (size_t l = 0; l < sizeof links / sizeof *links; l++)
        for (int32_t size = 2; size <= 4; size += 2) {
            for (int32_t r = 0; r < size; r++)
                if (!fork()) {
                    bench(r, size, links[l].rate, links[l].mbit, links[l].mib);
                    _exit(0);
                }
            int status, bad = 0;
            while (wait(&status) > 0) bad |= status != 0;
            if (bad) return 1;
        }
    return 0;
}
