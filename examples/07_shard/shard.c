/* shard.c: each rank keeps only its part of Adam's state (as ZeRO does): it gets its part of the mean gradient, updates
 * its part of the parameters, and esp_gather collects all parts. Run: espresso run -n 4 -- ./shard */
#include "espresso.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100000, STEPS = 300 };
static float params[COUNT], grad[COUNT];

static void check(esp_status s, const esp_ctx *ctx) {
    if (s >= 0) return;
    fprintf(stderr, "shard: %s\n", esp_last_error(ctx));
    exit(1);
}

/* Adam's update of `count` parameters. */
static void adam(float *p, const float *g, float *m, float *v, uint64_t count, int step) {
    const float b1 = 0.9f, b2 = 0.999f, rate = 0.05f;
    const float c1 = 1 - powf(b1, (float)step), c2 = 1 - powf(b2, (float)step);
    for (uint64_t i = 0; i < count; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        p[i] -= rate * (m[i] / c1) / (sqrtf(v[i] / c2) + 1e-8f);
    }
}

int main(void) {
    const esp_config cfg = ESP_ZERO;
    const esp_stream cpu = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id = 0;
    uint64_t begin, count;
    double off = 0;
    check(esp_open(&cfg, &ctx), NULL);
    desc.name = "params", desc.count = COUNT, desc.flags = ESP_SHARD;
    check(esp_tensor_add(ctx, &desc, &id), ctx);
    check(esp_start(ctx), ctx);
    check(esp_part(ctx, id, esp_rank(ctx), &begin, &count), ctx); /* fixed from here on */
    float *m = calloc(count + 1, sizeof *m), *v = calloc(count + 1, sizeof *v);
    if (!m || !v) return fprintf(stderr, "shard: out of memory\n"), 1;
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < COUNT; i++) /* the mean over ranks leads each parameter to i % 7 */
            grad[i] = params[i] - (float)(i % 7) + (float)(esp_rank(ctx) * 2 - esp_size(ctx) + 1);
        check(esp_push(ctx, id, grad, cpu), ctx);
        check(esp_wait_all(ctx), ctx); /* grad has the mean in this rank's part */
        adam(params + begin, grad + begin, m, v, count, step);
        check(esp_gather(ctx, id, params, cpu), ctx);
    }
    for (int i = 0; i < COUNT; i++) off = fmax(off, fabs((double)params[i] - i % 7));
    printf("this rank has the state of %llu of %d parameters; all are right to %.1f\n", (unsigned long long)count,
           COUNT, ceil(off * 10) / 10);
    free(m), free(v);
    esp_close(ctx);
    return 0;
}
