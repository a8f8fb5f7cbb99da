/* shrink.c: measures for how long a rank's death stops training: from kill -9 to the end of the next step of the ranks
 * that remain, which call esp_shrink. Ranks are forked processes over shm. Each repetition starts a job, kills one rank
 * at a random time, and takes the time of the slowest rank that remains. build/bench/shrink [KILLS]
 * >bench/results/micro/shrink.csv (KILLS for each row, 100 by default) */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/head.h"
#include "espresso_impl/base/quantile.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 8, TENSORS = 20, COUNT = 65536, BEFORE = 5 };

typedef struct row {
    const char *name, *codec, *strategy;
    int32_t size, per_machine;
} row;
static const row rows[] = {
    {"4 ranks, fp32", NULL, "fp32", 4, 4},
    {"4 ranks, topk 1%", "topk:ratio=0.01", "layerwise", 4, 4},
    {"2 machines x 2, topk 1%", "topk:ratio=0.01", "layerwise", 4, 2},
    {"8 ranks, fp32", NULL, "fp32", 8, 8},
};

/* What a rank reports to the parent, in nanoseconds of CLOCK_MONOTONIC. */
typedef struct report {
    volatile uint64_t ready, noticed, shrunk, stepped;
    volatile int failed;
} report;
static report *board;

static int fail(report *t, const esp_ctx *ctx, const char *what) {
    fprintf(stderr, "bench/shrink: %s: %s\n", what, esp_last_error(ctx));
    return t->failed = 1;
}

static esp_status step(esp_ctx *ctx, float *g) {
    const esp_stream here = ESP_ZERO;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < TENSORS && !s; i++) s = esp_push(ctx, i, g + (size_t)i * COUNT, here);
    return s ? s : esp_wait_all(ctx);
}

static int train(const row *r, int32_t rank, const char *root) {
    report *me = &board[rank];
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    float *g = calloc((size_t)TENSORS * COUNT, sizeof *g);
    cfg.rank = rank, cfg.size = r->size, cfg.machine = 1 + rank / r->per_machine;
    cfg.root = root, cfg.backend = "shm", cfg.codec = r->codec, cfg.strategy = r->strategy;
    cfg.timeout_ms = 20000, cfg.log_level = ESP_LOG_ERROR, cfg.cpu_workers = 1;
    if (!g || esp_open(&cfg, &ctx)) return fail(me, NULL, "esp_open");
    for (uint32_t i = 0; i < TENSORS; i++) {
        char name[16];
        esp_tensor_desc d = ESP_ZERO;
        snprintf(name, sizeof name, "layer%u", i);
        d.name = name, d.count = COUNT;
        if (esp_tensor_add(ctx, &d, NULL)) return fail(me, ctx, "esp_tensor_add");
    }
    if (esp_start(ctx)) return fail(me, ctx, "esp_start");
    esp_status s = ESP_OK;
    for (int k = 0; !s; k++) {
        for (size_t i = 0; i < (size_t)TENSORS * COUNT; i++) g[i] = (float)(i % 17) - 8.0f;
        s = step(ctx, g);
        if (k == BEFORE) me->ready = esp__now_ns();
    }
    me->noticed = esp__now_ns();
    if (esp_shrink(ctx)) return fail(me, ctx, "esp_shrink");
    me->shrunk = esp__now_ns();
    if (step(ctx, g)) return fail(me, ctx, "the step after");
    me->stepped = esp__now_ns();
    esp_close(ctx);
    free(g);
    return 0;
}

static double ms(uint64_t from, uint64_t to) { return (double)(to - from) / 1e6; }

/* Runs one job. Returns 0 if a rank failed. */
static int one(const row *r, int round, double *noticed, double *shrunk, double *stepped) {
    char root[64];
    pid_t pid[RANKS_MAX];
    const int32_t victim = round % r->size;
    int ok = 1, ready = 0;
    memset(board, 0, RANKS_MAX * sizeof *board);
    snprintf(root, sizeof root, "unix:bench-shrink-%d-%d", (int)getpid(), round);
    for (int32_t k = 0; k < r->size; k++) {
        pid[k] = fork();
        if (pid[k]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(train(r, k, root));
    }
    for (int waits = 0; ready < r->size && waits < 60000; waits++, usleep(1000)) {
        ready = 0;
        for (int32_t k = 0; k < r->size; k++) ready += board[k].ready || board[k].failed;
    }
    usleep((useconds_t)(rand() % 20000));
    const uint64_t start = esp__now_ns();
    kill(pid[victim], SIGKILL);
    *noticed = *shrunk = *stepped = 0;
    for (int32_t k = 0; k < r->size; k++) {
        int status = 0;
        waitpid(pid[k], &status, 0);
        if (k == victim) continue;
        ok &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (ms(start, board[k].noticed) > *noticed) *noticed = ms(start, board[k].noticed);
        if (ms(start, board[k].shrunk) > *shrunk) *shrunk = ms(start, board[k].shrunk);
        if (ms(start, board[k].stepped) > *stepped) *stepped = ms(start, board[k].stepped);
    }
    return ok;
}

static void print(const char *job, const char *what, double *x, size_t n) {
    esp__sort(x, n);
    printf("\"%s\",%s,%.1f,%.1f,%.1f\n", job, what, esp__quantile(x, n, 0.5), esp__quantile(x, n, 0.95), x[n - 1]);
}

int main(int argc, char **argv) {
    const int kills = argc > 1 ? atoi(argv[1]) : 100;
    double *t[3];
    if (kills < 1 || kills > 100000) return fprintf(stderr, "bench/shrink: KILLS is a number from 1 to 100000\n"), 2;
    board = mmap(NULL, RANKS_MAX * sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int k = 0; k < 3; k++) t[k] = calloc((size_t)kills, sizeof *t[k]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_head(stdout,
               "build/bench/shrink: from kill -9 to the end of the next step, the latest of all ranks that are left");
    printf("# shm; %d tensors of %d floats; %d kills a row; a step computes nothing\n", TENSORS, COUNT, kills);
    printf("job,until,median_ms,p95_ms,most_ms\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int failed = 0;
        for (int k = 0; k < kills; k++) failed += !one(&rows[i], k, &t[0][k], &t[1][k], &t[2][k]);
        if (failed) return fprintf(stderr, "bench/shrink: %s: %d jobs failed\n", rows[i].name, failed), 1;
        print(rows[i].name, "the step failed", t[0], (size_t)kills);
        print(rows[i].name, "esp_shrink returned", t[1], (size_t)kills);
        print(rows[i].name, "the next step was done", t[2], (size_t)kills);
    }
    return 0;
}
