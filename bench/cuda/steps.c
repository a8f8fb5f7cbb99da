/* steps.c: measures training steps of one rank whose tensors are compressed and decompressed on a GPU. The collective
 * is a copy on the GPU, so that the times are those of the library, without a network. */
#include "bench/cuda/steps.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "tests/cuda/here.h"

const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);
enum { WARM = 10, RUNS = 21 };

double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
int bench_by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void must(esp_status s, esp_ctx *ctx) {
    if (s == ESP_OK) return;
    fprintf(stderr, "step: %s\n", esp_last_error(ctx));
    exit(1);
}
/* Sets how tensors are synchronised: `collective` is allgather, or allreduce for codecs that need sums. */
static esp_status strategy(esp_ctx *ctx, const bench_step *b, const char *collective) {
    const size_t room = 64 + b->tensors * (strlen(b->codec) + 100);
    char *text = malloc(room);
    size_t n = (size_t)snprintf(text, room, "espresso-strategy 1\n");
    for (uint32_t t = 0; t < b->tensors; t++)
        n += (size_t)snprintf(text + n, room - n, "tensor t%u %llu %s comp@gpu > flat.%s > decomp@gpu\n", t,
                              (unsigned long long)b->elements, b->codec, collective);
    const esp_status s = esp_strategy_set(ctx, text);
    free(text);
    return s;
}

void bench_steps(bench_step *b) {
    static const esp_plugin_fn plugins[2] = {espresso_plugin_v1_cuda, here_plugin};
    const esp_config config = {
        .size = 1, .builtin = plugins, .n_builtin = 2, .backend = "here", .progress = "threads", .plugin_path = ""};
    double step[RUNS], push[RUNS];
    esp_ctx *ctx;
    must(esp_open(&config, &ctx), NULL);
    for (uint32_t t = 0; t < b->tensors; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", t);
        const uint64_t rows = b->elements % 1024 ? 1 : b->elements / 1024;
        const esp_tensor_desc d = {
            .name = name, .count = b->elements, .rows = rows, .cols = b->elements / rows, .device = b->stream.dev};
        must(esp_tensor_add(ctx, &d, NULL), ctx);
    }
    must(esp_start(ctx), ctx);
    if (strategy(ctx, b, "allgather")) must(strategy(ctx, b, "allreduce"), ctx);
    for (int i = 0; i < WARM + RUNS; i++) {
        if (i == WARM + RUNS - 1 && b->begins) b->begins();
        const double began = bench_now();
        for (uint32_t t = 0; t < b->tensors; t++) must(esp_push(ctx, t, b->gradient[t], b->stream), ctx);
        const double pushed = bench_now();
        must(esp_wait_all(ctx), ctx);
        if (i >= WARM) push[i - WARM] = pushed - began, step[i - WARM] = bench_now() - began;
    }
    if (b->ended) b->ended();
    esp_close(ctx);
    qsort(step, RUNS, sizeof *step, bench_by_size), qsort(push, RUNS, sizeof *push, bench_by_size);
    b->step_ns = step[RUNS / 2] / b->tensors, b->push_ns = push[RUNS / 2] / b->tensors;
}
