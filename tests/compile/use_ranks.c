/* use_ranks.c is one rank of a job that test_no_planner.sh starts: it runs three steps of two tensors, each of which
 * must end with the exact mean. Of three ranks the last one dies first, and the others continue without it. It prints
 * "ok", or the text of the error. */
#define _GNU_SOURCE
#include "espresso.h"
#include <stdio.h>
#include <unistd.h>

enum { STEPS = 3, W = 64, B = 10 };

static int failed(const esp_ctx *ctx) {
    puts(esp_last_error(ctx));
    return 1;
}

static float value(int i, int step, int32_t rank) { return i % 2 ? 0.0f : (float)((i + step + 1) * (rank * 2 + 1)); }

static int steps(esp_ctx *ctx, const uint32_t id[2]) {
    const esp_stream cpu = ESP_ZERO;
    static float w[W], b[B];
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < W; i++) w[i] = value(i, step, esp_rank(ctx));
        for (int i = 0; i < B; i++) b[i] = value(i, step, esp_rank(ctx));
        if (esp_push(ctx, id[0], w, cpu) || esp_push(ctx, id[1], b, cpu) || esp_wait_all(ctx)) return failed(ctx);
        for (int i = 0; i < W; i++) {
            float mean = (value(i, step, 0) + value(i, step, 1)) / 2, wrong = w[i] - mean + (i < B ? b[i] - mean : 0);
            if (wrong < 0 || wrong > 0) return printf("element %d: another mean\n", i), 1;
        }
    }
    return 0;
}

/* Rank 2 has died: the first step fails, and the remaining ranks form a new job. */
static int shrink(esp_ctx *ctx, const uint32_t id[2]) {
    const esp_stream cpu = ESP_ZERO;
    static float w[W], b[B];
    if (esp_push(ctx, id[0], w, cpu) == ESP_OK && esp_push(ctx, id[1], b, cpu) == ESP_OK && esp_wait_all(ctx) == ESP_OK)
        return puts("a step without rank 2 succeeded"), 1;
    return esp_shrink(ctx) ? failed(ctx) : 0;
}

int main(void) {
    esp_config cfg = ESP_ZERO;
    const esp_tensor_desc w = {.name = "w", .count = W}, b = {.name = "b", .count = B};
    esp_ctx *ctx = NULL;
    uint32_t id[2];
    if (esp_open(&cfg, &ctx)) return failed(NULL);
    int wrong = esp_tensor_add(ctx, &w, &id[0]) || esp_tensor_add(ctx, &b, &id[1]) || esp_start(ctx);
    if (!wrong && esp_rank(ctx) == 2) _exit(0);
    wrong = wrong ? failed(ctx) : (esp_size(ctx) == 3 && shrink(ctx, id)) || steps(ctx, id);
    esp_close(ctx);
    if (!wrong) puts("ok");
    return wrong;
}
