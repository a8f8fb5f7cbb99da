/* workers.c: compares two sets of threads on which gradients can be compressed: the library's own, and the OpenMP
 * threads of the program. It measures step time and number of threads, with one rank, in a program that only
 * compresses and in one that also computes with OpenMP. Runs with either set take turns.
 *   build/bench/workers [PAIRS] >bench/results/micro/workers.csv        PAIRS is 12 by default */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/head.h"
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef _OPENMP
int main(void) {
    fprintf(stderr, "bench/workers: the compiler has no OpenMP\n");
    return 77;
}
#else
#include <omp.h>

enum { TENSORS = 8, COUNT = 1 << 19, STEPS = 25 };

typedef struct scene {
    const char *name, *codec;
    int passes;
} scene;
static const scene scenes[] = {
    {"alone", "efsignsgd", 0},
    {"alone", "topk:ratio=0.01", 0},
    {"beside, short backward", "efsignsgd", 2},
    {"beside, short backward", "topk:ratio=0.01", 2},
    {"beside, long backward", "efsignsgd", 8},
    {"beside, long backward", "topk:ratio=0.01", 8},
};
typedef struct outcome {
    double us;
    int threads;
} outcome;

static int n_threads(void) {
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void must(esp_status s) {
    if (s == ESP_OK) return;
    fprintf(stderr, "bench/workers: %s\n", esp_last_error(NULL));
    _exit(1);
}

/* Stands for a layer's backward pass: arithmetic on all cores. */
static void compute(float *g, int passes) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < COUNT; i++) {
        float x = (float)(((uint32_t)i * 2654435761u) >> 20 & 1023) - 511.5f;
        for (int p = 0; p < passes; p++) x = x * 0.999f + 0.25f / (1.0f + x * x);
        g[i] = x;
    }
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static outcome run(const scene *s, const char *workers) {
    esp_config cfg = {.workers = workers, .codec = s->codec, .backend = "loop", .size = 1};
    const esp_stream here = ESP_ZERO;
    esp_ctx *ctx;
    double us[STEPS];
    char name[16];
    float *g = malloc(sizeof(float) * TENSORS * COUNT);
    must(esp_open(&cfg, &ctx));
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = name, .count = COUNT, .option = "comp@cpu > flat.allgather > decomp@cpu"};
        snprintf(name, sizeof name, "t%d", t);
        must(esp_tensor_add(ctx, &d, NULL));
    }
    must(esp_start(ctx));
    if (!s->passes)
        for (int64_t i = 0; i < (int64_t)TENSORS * COUNT; i++) g[i] = (float)((i * 2654435761u) >> 20 & 1023) - 511.5f;
    for (int k = -2; k < STEPS; k++) {
        const uint64_t start = esp__now_ns();
        for (uint32_t t = 0; t < TENSORS; t++) {
            if (s->passes) compute(g + (size_t)t * COUNT, s->passes);
            must(esp_push(ctx, t, g + (size_t)t * COUNT, here));
        }
        must(esp_wait_all(ctx));
        if (k >= 0) us[k] = (double)(esp__now_ns() - start) / 1e3;
    }
    qsort(us, STEPS, sizeof *us, by_value);
    outcome o = {us[0], n_threads()};
    esp_close(ctx);
    return o;
}

static outcome run_alone(const scene *s, const char *workers) {
    int ends[2], status;
    outcome o = {0, 0};
    if (pipe(ends)) exit(1);
    const pid_t child = fork();
    if (!child) {
        o = run(s, workers);
        _exit(write(ends[1], &o, sizeof o) != sizeof o);
    }
    close(ends[1]);
    if (read(ends[0], &o, sizeof o) != sizeof o || waitpid(child, &status, 0) != child || status) exit(1);
    close(ends[0]);
    return o;
}

int main(int argc, char **argv) {
    const int given = argc > 1 ? atoi(argv[1]) : 12, pairs = given < 1 ? 1 : given > 64 ? 64 : given;
    if (!getenv("OMP_WAIT_POLICY")) { /* restart, because OpenMP has already read the environment */
        setenv("OMP_WAIT_POLICY", "passive", 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    unsetenv("ESPRESSO_WORKERS");
    bench_head(stdout, "build/bench/workers: own threads and the trainer's OpenMP team");
    printf("# %d tensors of %d floats, one rank, OMP_WAIT_POLICY=%s; us: the best of %d steps\n", TENSORS, COUNT,
           getenv("OMP_WAIT_POLICY"), STEPS);
    printf("trainer,codec,pair,first,pthreads_us,openmp_us,ratio,pthreads_threads,openmp_threads\n");
    for (size_t k = 0; k < sizeof scenes / sizeof *scenes; k++) {
        double ratio[64], best[2] = {1e30, 1e30};
        for (int p = 0; p < pairs; p++) {
            outcome o[2];
            for (int i = 0; i < 2; i++) o[(p + i) % 2] = run_alone(&scenes[k], (p + i) % 2 ? "openmp" : NULL);
            ratio[p] = o[1].us / o[0].us;
            for (int i = 0; i < 2; i++) best[i] = o[i].us < best[i] ? o[i].us : best[i];
            printf("\"%s\",%s,%d,%s,%.0f,%.0f,%.3f,%d,%d\n", scenes[k].name, scenes[k].codec, p + 1,
                   p % 2 ? "openmp" : "pthreads", o[0].us, o[1].us, ratio[p], o[0].threads, o[1].threads);
            fflush(stdout);
        }
        qsort(ratio, (size_t)pairs, sizeof *ratio, by_value);
        printf("# %s, %s: openmp / own threads: %.3f (median of %d pairs; quartiles %.3f and %.3f); best runs %.0f and "
               "%.0f us\n",
               scenes[k].name, scenes[k].codec, ratio[pairs / 2], pairs, ratio[pairs / 4], ratio[pairs * 3 / 4],
               best[1], best[0]);
    }
    return 0;
}
#endif
