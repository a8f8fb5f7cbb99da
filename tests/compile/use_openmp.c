/* use_openmp.c is a training program that includes the library as a single header. It prints a hash of all results
 * for each codec, which must be the same in all builds and with either kind of worker threads. With
 * ESPRESSO_WORKERS=openmp, it may have no threads but those of its own OpenMP loops and two of the library. */
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { TENSORS = 3, STEPS = 4 };
static const uint64_t counts[TENSORS] = {262144 + 77, 5000, 100001};
static float *grad[TENSORS];

static void must(esp_status s) {
    if (s == ESP_OK) return;
    fprintf(stderr, "%s\n", esp_last_error(NULL));
    exit(1);
}

static int n_threads(void) {
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Computes gradients in an OpenMP loop, as a backward pass does. No operation rounds, so that all builds get the same
 * bits. The last step has a NaN. */
static void compute(int t, int step) {
    const int64_t n = (int64_t)counts[t];
#ifdef _OPENMP
#pragma omp parallel for
#endif
    for (int64_t i = 0; i < n; i++)
        grad[t][i] = (float)(((uint32_t)i * 2654435761u + (uint32_t)(t + 7 * step)) >> 12 & 4095) / 64.0f - 32.0f;
    if (step == STEPS - 1 && t == 1) memcpy(grad[t] + 100, &(uint32_t){0x7FC00000u}, 4);
}

static uint64_t run(const char *codec, int *more) {
    static const char *const names[TENSORS] = {"a", "b", "c"};
    const int reducible = !strcmp(codec, "none") || strstr(codec, "16");
    const esp_stream cpu = ESP_ZERO;
    uint64_t h = 14695981039346656037ull;
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    compute(0, 0);
    const int before = n_threads();
    cfg.backend = "loop", cfg.codec = codec;
    must(esp_open(&cfg, &ctx));
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = ESP_ZERO;
        d.name = names[t], d.count = counts[t];
        if (!reducible) d.option = "comp@cpu > flat.allgather > decomp@cpu";
        must(esp_tensor_add(ctx, &d, NULL));
    }
    must(esp_start(ctx));
    for (int s = 0; s < STEPS; s++) {
        for (uint32_t t = 0; t < TENSORS; t++) compute((int)t, s), must(esp_push(ctx, t, grad[t], cpu));
        must(esp_wait_all(ctx));
        for (int t = 0; t < TENSORS; t++)
            for (uint64_t i = 0; i < 4 * counts[t]; i++) h = (h ^ ((unsigned char *)grad[t])[i]) * 1099511628211ull;
        *more = n_threads() - before;
    }
    esp_close(ctx);
    return h;
}

int main(void) {
    static const char *const codecs[] = {
        "none", "fp16", "bf16", "topk:ratio=0.01", "randomk:ratio=0.02", "dgc:ratio=0.01", "efsignsgd", "twobit"};
    const char *workers = getenv("ESPRESSO_WORKERS");
    int more = 0;
    for (int t = 0; t < TENSORS; t++) grad[t] = malloc(4 * counts[t]);
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        printf("%s %016llx\n", codecs[c], (unsigned long long)run(codecs[c], &more));
        if (workers && !strncmp(workers, "openmp", 6) && more != 2) {
            fprintf(stderr, "%d threads beside the team, not 2\n", more);
            return 1;
        }
    }
    return 0;
}
