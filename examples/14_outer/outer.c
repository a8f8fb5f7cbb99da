/* outer.c: averages gradients in every step, or, if an outer loop is named, lets ranks train alone and averages how far
 * their parameters have moved. Run: espresso run -n 4 --machines 2 --inter 10mbit,20ms -- ./outer [diloco:every=20] */
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CLASSES = 10, FEATURES = 2000, COUNT = CLASSES * FEATURES, BATCH = 16, STEPS = 60, HELD_OUT = 200 };
static float weight[COUNT], grad[COUNT], centre[COUNT]; /* of the model; the samples of a class lie around its centre */

static int check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) fprintf(stderr, "outer: %s\n", esp_last_error(ctx));
    return s < 0;
}

static float noise(uint64_t *seed) { /* from -1 to 1 */
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*seed >> 32) / 2147483648.0f;
}

/* Draws a sample and returns the model's loss (cross entropy) on it; adds the gradient if `learns`. */
static double sample(uint64_t *seed, int learns) {
    float x[FEATURES];
    double score[CLASSES], sum = 0;
    const int class = (int)(fabsf(noise(seed)) * 0.9999f * CLASSES);
    for (int i = 0; i < FEATURES; i++) x[i] = 0.12f * centre[class * FEATURES + i] + noise(seed);
    for (int c = 0; c < CLASSES; c++) {
        score[c] = 0;
        for (int i = 0; i < FEATURES; i++) score[c] += (double)(weight[c * FEATURES + i] * x[i]);
        sum += exp(score[c]);
    }
    for (int c = 0; learns && c < CLASSES; c++) {
        const float error = ((float)(exp(score[c]) / sum) - (c == class ? 1.0f : 0.0f)) / BATCH;
        for (int i = 0; i < FEATURES; i++) grad[c * FEATURES + i] += error * x[i];
    }
    return log(sum) - score[class];
}

static double held_out(void) { /* mean loss on samples that no rank has learned from; the same on all ranks */
    uint64_t seed = 1;
    double loss = 0;
    for (int i = 0; i < HELD_OUT; i++) loss += sample(&seed, 0) / HELD_OUT;
    return loss;
}

static int join_ranks(esp_ctx *ctx, const esp_outer_desc *outer, uint32_t *id) {
    esp_tensor_desc desc = ESP_ZERO;
    desc.name = "weight", desc.count = COUNT, desc.rows = CLASSES, desc.cols = FEATURES;
    if (outer->method && check(esp_outer_open(ctx, outer), ctx)) return 1;
    if (check(esp_tensor_add(ctx, &desc, id), ctx) || check(esp_start(ctx), ctx)) return 1;
    if (check(esp_broadcast(ctx, weight, sizeof weight, 0), ctx)) return 1;
    return outer->method && check(esp_outer_add(ctx, *id, weight), ctx);
}

static int train(esp_ctx *ctx, const char *outer, uint32_t id) {
    const esp_stream cpu = ESP_ZERO;
    uint64_t seed = 100 + (uint64_t)esp_rank(ctx);
    for (int step = 0; step < STEPS; step++) {
        memset(grad, 0, sizeof grad);
        for (int b = 0; b < BATCH; b++) sample(&seed, 1);
        if (!outer && (check(esp_push(ctx, id, grad, cpu), ctx) || check(esp_wait_all(ctx), ctx))) return 1;
        for (int i = 0; i < COUNT; i++) weight[i] -= 0.01f * grad[i];
        if (outer && check(esp_outer_step(ctx, cpu), ctx)) return 1; /* most calls only count the step */
    }
    return outer && check(esp_outer_sync(ctx, cpu), ctx);
}

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    const esp_config config = ESP_ZERO;
    esp_outer_desc outer = ESP_ZERO;
    esp_stats stats = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id = 0;
    uint64_t seed = 7;
    for (int i = 0; i < COUNT; i++) centre[i] = noise(&seed);
    outer.method = argc > 1 ? argv[1] : NULL;
    if (check(esp_open(&config, &ctx), NULL)) return 1;
    int failed = join_ranks(ctx, &outer, &id);
    const double before = held_out(), begin = seconds();
    failed = failed || train(ctx, outer.method, id);
    const double took = seconds() - begin;
    stats.struct_size = sizeof stats;
    failed = failed || check(esp_stats_read(ctx, &stats), ctx);
    if (!failed && esp_rank(ctx) == 0)
        printf("%s: loss %.2f, after %d steps %.2f; %.0f KB a step from the other machine; %.2f s\n",
               outer.method ? outer.method : "every step", before, STEPS, held_out(),
               (double)stats.inter_bytes / STEPS / 1e3, took);
    esp_close(ctx);
    return failed;
}
