/* goodput.c: how much a job in an outer loop gets done if each minute a rank dies (kill -9, at a random time, any rank)
 * and another joins. Two jobs of 4 forked ranks over shm run side by side, under the same load. In each minute, one of
 * them has a loss and a join, in turns. An inner step sleeps, as if a GPU computed. build/bench/goodput [MINUTES]
 * >bench/results/micro/goodput.csv (10) */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/head.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, COUNT = 1 << 18, EVERY = 10, STEP_US = 50000, RESTART_US = 1000000 };

typedef struct page {
    volatile int stop, failed;
    volatile uint64_t rounds, steps, size; /* of the job; steps are inner steps of all ranks */
} page;
static page *board; /* of this process's job */

static int fail(const esp_ctx *ctx, const char *what) {
    fprintf(stderr, "bench/goodput: %s: %s\n", what, esp_last_error(ctx));
    return board->failed = 1;
}

static esp_status one_round(esp_ctx *ctx, float *w, uint64_t *n) {
    const esp_stream here = ESP_ZERO;
    const uint64_t size = (uint64_t)esp_size(ctx);
    esp_status s = ESP_OK;
    for (; *n < EVERY && !s; ++*n) {
        usleep(STEP_US);
        for (int i = 0; i < COUNT; i++) w[i] += 0.001f;
        s = esp_outer_step(ctx, here);
    }
    *n = 0;
    if (s || esp_rank(ctx)) return s;
    __atomic_fetch_add(&board->rounds, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&board->steps, EVERY * size, __ATOMIC_RELAXED);
    return s;
}

static int train(const char *root, int32_t rank, int joins) {
    const esp_outer_desc o = {.method = "diloco", .every = EVERY};
    esp_tensor_desc d = ESP_ZERO;
    esp_config cfg = ESP_ZERO;
    esp_stats stats = {.struct_size = sizeof stats};
    esp_ctx *ctx;
    uint64_t n = 0;
    float *w = calloc(COUNT, sizeof *w);
    cfg.rank = rank, cfg.size = joins ? 0 : RANKS, cfg.flags = joins ? ESP_JOIN : 0;
    cfg.root = root, cfg.backend = "shm", cfg.timeout_ms = 60000, cfg.cpu_workers = 1, cfg.log_level = ESP_LOG_ERROR;
    d.name = "w", d.count = COUNT;
    if (!w || esp_open(&cfg, &ctx)) return fail(NULL, "esp_open");
    if (esp_outer_open(ctx, &o) || esp_tensor_add(ctx, &d, NULL) || esp_start(ctx) || esp_outer_add(ctx, 0, w))
        return fail(ctx, "start");
    for (int go = 1; go;) {
        esp_status s = esp_broadcast(ctx, &go, sizeof go, 0);
        if (!s && !go) break;
        if (!s) s = one_round(ctx, w, &n);
        if (!s) s = esp_reconfigure(ctx);
        while (s == ESP_E_PEER || s == ESP_E_TIMEOUT) s = esp_reconfigure(ctx), n = 0;
        if (s || esp_stats_read(ctx, &stats)) return fail(ctx, "a round");
        if (esp_rank(ctx) == 0) {
            go = !board->stop;
            board->size = (uint64_t)esp_size(ctx);
        }
    }
    esp_close(ctx);
    free(w);
    return 0;
}

typedef struct job {
    char root[64];
    page *board;
    pid_t pid[RANKS];
    uint64_t rounds, steps; /* at the beginning of this minute */
} job;

static void begin(job *j, int32_t rank, int joins) {
    j->pid[rank] = fork();
    if (j->pid[rank]) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    board = j->board;
    _exit(train(j->root, rank, joins));
}

/* Waits until `ns`, or until a rank fails. */
static int until(const job jobs[2], uint64_t ns) {
    while (esp__now_ns() < ns && !jobs[0].board->failed && !jobs[1].board->failed) usleep(1000);
    return !jobs[0].board->failed && !jobs[1].board->failed;
}

/* A minute in which one of the jobs loses a rank and gets another. Adds what was done without a loss to [0], with
 * one to [1]. */
static int minute(job jobs[2], int m, uint64_t rounds[2], uint64_t steps[2]) {
    const uint64_t start = esp__now_ns();
    job *loses = &jobs[m % 2];
    const int victim = rand() % RANKS;
    for (int k = 0; k < 2; k++) jobs[k].rounds = jobs[k].board->rounds, jobs[k].steps = jobs[k].board->steps;
    if (!until(jobs, start + (uint64_t)(rand() % 55000) * 1000000u)) return 0;
    kill(loses->pid[victim], SIGKILL);
    waitpid(loses->pid[victim], NULL, 0);
    usleep(RESTART_US);
    begin(loses, victim, 1);
    if (!until(jobs, start + 60000000000u)) return 0;
    for (int k = 0; k < 2; k++) {
        const page *b = jobs[k].board;
        const int lost = &jobs[k] == loses;
        const uint64_t r = b->rounds - jobs[k].rounds, n = b->steps - jobs[k].steps;
        rounds[lost] += r, steps[lost] += n;
        printf("%d,%d,%d,%llu,%llu,%llu\n", m + 1, k + 1, lost, (unsigned long long)r, (unsigned long long)n,
               (unsigned long long)b->size);
    }
    return 1;
}

int main(int argc, char **argv) {
    const int minutes = argc > 1 ? atoi(argv[1]) : 10;
    uint64_t rounds[2] = {0}, steps[2] = {0};
    job jobs[2];
    int well = 1;
    if (minutes < 2 || minutes > 1000 || minutes % 2)
        return fprintf(stderr, "bench/goodput: MINUTES is an even number from 2 to 1000\n"), 2;
    srand((unsigned)getpid());
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_head(stdout,
               "build/bench/goodput: what jobs of 4 ranks get done in minutes with a loss and a join, and without");
    printf("# shm; diloco, %d floats, a round of %d inner steps that sleep %d ms; a rank starts %d s after a loss\n",
           COUNT, EVERY, STEP_US / 1000, RESTART_US / 1000000);
    printf("minute,job,loss_and_join,rounds,inner_steps_of_all_ranks,ranks_at_the_end\n");
    for (int k = 0; k < 2; k++) {
        snprintf(jobs[k].root, sizeof jobs[k].root, "unix:bench-goodput-%d-%d", (int)getpid(), k);
        jobs[k].board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        for (int32_t r = 0; r < RANKS; r++) begin(&jobs[k], r, 0);
    }
    for (int k = 0; k < 2; k++)
        while (jobs[k].board->rounds < 5 && !jobs[k].board->failed) usleep(1000);
    for (int m = 0; m < minutes && well; m++) well = minute(jobs, m, rounds, steps);
    for (int k = 0; k < 2; k++) jobs[k].board->stop = 1;
    for (int k = 0; k < 2; k++)
        for (int32_t r = 0, status; r < RANKS; r++) waitpid(jobs[k].pid[r], &status, 0), well &= status == 0;
    if (!well) return 1;
    printf("# goodput, as a share of what was done without a loss: rounds %.2f%%, inner steps of all ranks %.2f%%\n",
           100 * (double)rounds[1] / (double)rounds[0], 100 * (double)steps[1] / (double)steps[0]);
    return 0;
}
