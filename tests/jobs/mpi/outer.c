/* outer.c is a rank of a short job with an outer loop, to compare backends: test_mpi.sh starts it under mpirun and
 * under `espresso run`. Rank 0 prints a hash of its parameters in all inner steps. */
#include "espresso.h"
#include <stdio.h>

enum { PARTS = 4, COUNT = 5000, STEPS = 26 };
static float params[PARTS][COUNT];

static int wrong(const esp_ctx *ctx) {
    fprintf(stderr, "outer: %s\n", esp_last_error(ctx));
    return 1;
}

static void inner(int rank, int step) { /* what an optimizer might do, different on each rank */
    for (int p = 0; p < PARTS; p++)
        for (int i = 0; i < COUNT; i++)
            params[p][i] -= 0.01f * params[p][i] + 0.001f * (float)((i * 3 + p + step * 5 + rank * 11) % 17);
}

int main(void) {
    esp_config config = ESP_ZERO;
    esp_outer_desc outer = ESP_ZERO;
    const esp_stream cpu = ESP_ZERO;
    esp_ctx *ctx;
    unsigned long long hash = 0;
    config.codec = "int4";
    outer.method = "streaming:every=6,fragments=2,delay=2";
    if (esp_open(&config, &ctx)) return wrong(NULL);
    if (esp_outer_open(ctx, &outer)) return wrong(ctx);
    for (uint32_t p = 0; p < PARTS; p++) {
        char name[8];
        esp_tensor_desc d = ESP_ZERO;
        snprintf(name, sizeof name, "w%u", p);
        d.name = name, d.count = COUNT;
        if (esp_tensor_add(ctx, &d, NULL)) return wrong(ctx);
    }
    if (esp_start(ctx)) return wrong(ctx);
    for (uint32_t p = 0; p < PARTS; p++) {
        for (int i = 0; i < COUNT; i++) params[p][i] = (float)((i * 7 + (int)p) % 13) - 5.5f;
        if (esp_outer_add(ctx, p, params[p])) return wrong(ctx);
    }
    for (int step = 0; step <= STEPS; step++) {
        if (step < STEPS) inner(esp_rank(ctx), step);
        if (step < STEPS ? esp_outer_step(ctx, cpu) : esp_outer_sync(ctx, cpu)) return wrong(ctx);
        for (size_t i = 0; i < sizeof params; i++)
            hash = (hash ^ ((const unsigned char *)params)[i]) * 1099511628211ull;
    }
    if (esp_rank(ctx) == 0) printf("outer: %016llx on %d ranks\n", hash, esp_size(ctx));
    esp_close(ctx);
    return 0;
}
