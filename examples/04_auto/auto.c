/* auto.c: strategy "auto" measures while the program trains, and keeps the fastest strategy. A "model" of 240,000
 * numbers learns its target by SGD; rank 0 prints how long its last steps took. Run: espresso run -n 4 --machines 2
 * --inter 100mbit,50us -- ./auto */
#include "espresso.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TENSORS = 4, COUNT = 60000, STEPS = 600, WINDOW = 5 };
static float params[TENSORS][COUNT], grads[TENSORS][COUNT];

static void check(esp_status s, const esp_ctx *ctx) {
    if (s >= 0) return;
    fprintf(stderr, "auto: %s\n", esp_last_error(ctx));
    exit(1);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The gradient of this rank's samples: each parameter is to become 1, and every rank's samples have noise of their own.
 * Returns the loss. */
static double backward(int tensor, unsigned *noise) {
    double loss = 0;
    for (int i = 0; i < COUNT; i++) {
        *noise = *noise * 1664525u + 1013904223u;
        const float off = params[tensor][i] - 1;
        grads[tensor][i] = off + (float)(*noise >> 8) / (1 << 24) - 0.5f;
        loss += 0.5 * (double)off * (double)off / COUNT / TENSORS;
    }
    return loss;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times) {
    qsort(times, WINDOW, sizeof *times, compare);
    return times[WINDOW / 2];
}

int main(void) {
    static const char *const names[TENSORS] = {"first", "second", "third", "fourth"};
    static double took[STEPS];
    esp_config cfg = ESP_ZERO;
    const esp_stream cpu = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id[TENSORS];
    double loss = 0;
    cfg.strategy = "auto";
    cfg.codec = "topk:ratio=0.02;int8"; /* what auto may use: without this list it changes no bit */
    cfg.optimizer = ESP_OPTIMIZER_SGD, cfg.momentum = -1;
    check(esp_open(&cfg, &ctx), NULL);
    unsigned noise = (unsigned)esp_rank(ctx);
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc desc = ESP_ZERO;
        desc.name = names[t], desc.count = COUNT;
        check(esp_tensor_add(ctx, &desc, &id[t]), ctx);
    }
    check(esp_start(ctx), ctx);
    for (int step = 0; step < STEPS; step++) {
        const double start = now_ms();
        loss = 0;
        for (int t = 0; t < TENSORS; t++) {
            loss += backward(t, &noise);
            check(esp_push(ctx, id[t], grads[t], cpu), ctx);
        }
        check(esp_report_loss(ctx, loss), ctx); /* auto stops a codec that harms */
        check(esp_wait_all(ctx), ctx);
        for (int t = 0; t < TENSORS; t++)
            for (int i = 0; i < COUNT; i++) params[t][i] -= 0.05f * grads[t][i];
        took[step] = now_ms() - start;
    }
    if (esp_rank(ctx) == 0) printf("loss %.3f; a step took %.1f ms in the end\n", loss, median(took + STEPS - WINDOW));
    esp_close(ctx);
    return 0;
}
