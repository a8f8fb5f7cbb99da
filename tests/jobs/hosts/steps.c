/* steps.c is a program for tests with several hosts. Usage: steps N MILLISECONDS [RANK]. It runs N steps with known
 * means, and pauses between them. Rank 0 prints a line after the first step, and every rank after the last if all means
 * were correct. RANK kills itself after half of the steps, and the others continue without it. */
#include "espresso.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 20000 };
static float grad[COUNT];

static int check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) fprintf(stderr, "steps: %s\n", esp_last_error(ctx));
    return s < 0;
}

/* Runs a step. Returns 0 if the mean is correct, -1 if a rank was lost and `elastic` is set, otherwise 1. */
static int step(esp_ctx *ctx, uint32_t id, int k, int elastic) {
    const esp_stream cpu = ESP_ZERO;
    const int rank = esp_rank(ctx), size = esp_size(ctx);
    for (int i = 0; i < COUNT; i++) grad[i] = (float)(size * (i % 100 + k) + rank);
    esp_status s = esp_push(ctx, id, grad, cpu);
    if (s == ESP_OK) s = esp_wait_all(ctx);
    if (s == ESP_E_PEER && elastic) return -1;
    if (check(s, ctx)) return 1;
    for (int i = 0; i < COUNT; i++) {
        const double mean = size * (i % 100 + k) + (size - 1) / 2.0;
        if (fabs(grad[i] - mean) > (size & (size - 1) ? 1e-6 * mean : 0)) {
            fprintf(stderr, "steps: step %d: element %d is %g\n", k, i, (double)grad[i]);
            return 1;
        }
    }
    return 0;
}

/* Continues without the lost rank. Sets *k to the step of rank 0, so that all ranks continue at the same step. */
static int go_on(esp_ctx *ctx, int *k) {
    if (check(esp_shrink(ctx), ctx) || check(esp_broadcast(ctx, k, sizeof *k, 0), ctx)) return 1;
    printf("rank %d of %d goes on at step %d\n", (int)esp_rank(ctx), (int)esp_size(ctx), *k);
    return 0;
}

int main(int argc, char **argv) {
    const esp_config cfg = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id = 0;
    const int steps = argc > 1 ? atoi(argv[1]) : 10, pause_ms = argc > 2 ? atoi(argv[2]) : 0;
    int victim = argc > 3 ? atoi(argv[3]) : -1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    desc.name = "gradient", desc.count = COUNT;
    if (check(esp_open(&cfg, &ctx), NULL)) return 1;
    int failed = check(esp_tensor_add(ctx, &desc, &id), ctx) || check(esp_start(ctx), ctx);
    for (int k = 0; k < steps && !failed; k++) {
        if (k == steps / 2 && victim == (int)esp_rank(ctx)) raise(SIGKILL);
        failed = step(ctx, id, k, victim >= 0);
        if (failed < 0) {
            failed = go_on(ctx, &k);
            victim = esp_size(ctx);
            k--;
            continue;
        }
        if (k == 0 && !failed && esp_rank(ctx) == 0) printf("the first step is done\n");
        usleep((useconds_t)pause_ms * 1000);
    }
    if (!failed) printf("all %d steps are right on rank %d of %d\n", steps, (int)esp_rank(ctx), (int)esp_size(ctx));
    esp_close(ctx);
    return failed;
}
