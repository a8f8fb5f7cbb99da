/* steps.c: a program for the tests of jobs on several hosts: steps whose means are known, with pauses between them.
 *   steps N MILLISECONDS
 * Rank 0 says when it has done the first step, and every rank when all were right. */
#include "espresso.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 20000 };
static float grad[COUNT];

static int check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) fprintf(stderr, "steps: %s\n", esp_last_error(ctx));
    return s < 0;
}

static int step(esp_ctx *ctx, uint32_t id, int k) {
    const esp_stream cpu = ESP_ZERO;
    const int rank = esp_rank(ctx), size = esp_size(ctx);
    for (int i = 0; i < COUNT; i++) grad[i] = (float)(size * (i % 100 + k) + rank);
    if (check(esp_push(ctx, id, grad, cpu), ctx) || check(esp_wait_all(ctx), ctx)) return 1;
    for (int i = 0; i < COUNT; i++)
        if (grad[i] != (float)(size * (i % 100 + k)) + (float)(size - 1) / 2) {
            fprintf(stderr, "steps: step %d: element %d is %g\n", k, i, (double)grad[i]);
            return 1;
        }
    return 0;
}

int main(int argc, char **argv) {
    const esp_config cfg = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id = 0;
    const int steps = argc > 1 ? atoi(argv[1]) : 10, pause_ms = argc > 2 ? atoi(argv[2]) : 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    desc.name = "gradient", desc.count = COUNT;
    if (check(esp_open(&cfg, &ctx), NULL)) return 1;
    int failed = check(esp_tensor_add(ctx, &desc, &id), ctx) || check(esp_start(ctx), ctx);
    for (int k = 0; k < steps && !failed; k++) {
        failed = step(ctx, id, k);
        if (k == 0 && !failed && esp_rank(ctx) == 0) printf("the first step is done\n");
        usleep((useconds_t)pause_ms * 1000);
    }
    if (!failed) printf("all %d steps are right on rank %d of %d\n", steps, (int)esp_rank(ctx), (int)esp_size(ctx));
    esp_close(ctx);
    return failed;
}
