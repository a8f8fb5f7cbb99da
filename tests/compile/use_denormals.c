/* use_denormals.c prints the bits of the mean of denormal gradients and of their decoded payload, and whether this
 * program replaces denormal numbers by 0 ("flushes" or "keeps"). The bits must be the same with and without -Ofast. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "espresso.h"

enum { COUNT = 1000 };
static uint32_t grad[COUNT];
static float packed[COUNT];

static void fill(void) { /* writes bits, since arithmetic may flush denormals */
    for (uint32_t i = 0; i < COUNT; i++) grad[i] = (i * 2654435761u >> 10 | 64u) ^ (i % 2 ? 0x80000000u : 0u);
}
static void show(const char *what) {
    uint32_t h = 2166136261u;
    for (int i = 0; i < COUNT; i++) h = (h ^ grad[i]) * 16777619u;
    printf("%s %08x %08x\n", what, (unsigned)grad[7], (unsigned)h);
}
static void must(esp_status s) {
    if (s == ESP_OK) return;
    fprintf(stderr, "%s\n", esp_last_error(NULL));
    exit(1);
}

int main(void) {
    esp_config cfg = ESP_ZERO;
    esp_stream cpu = ESP_ZERO;
    esp_tensor_desc d = ESP_ZERO;
    esp_ctx *ctx;
    esp_codec_handle *h;
    uint32_t id;
    uint64_t used;
    volatile float tiny = 1.2e-38f;
    fputs(tiny / 2 > 0 ? "keeps\n" : "flushes\n", stderr);
    must(esp_open(&cfg, &ctx));
    d.name = "w", d.count = COUNT;
    must(esp_tensor_add(ctx, &d, &id));
    must(esp_start(ctx));
    for (int step = 0; step < 3; step++) {
        fill();
        must(esp_push(ctx, id, grad, cpu));
        must(esp_wait_all(ctx));
    }
    if (esp_rank(ctx) == 0) show("mean");
    must(esp_strategy_set(ctx, "fp32"));
    fill();
    must(esp_push(ctx, id, grad, cpu));
    must(esp_wait_all(ctx));
    if (esp_rank(ctx) == 0) show("carried");
    must(esp_codec_open(ctx, "efsignsgd", COUNT, NULL, &h));
    for (int step = 0; step < 2; step++) {
        fill();
        must(esp_compress(h, (const float *)(const void *)grad, COUNT, packed, sizeof packed, &used));
        must(esp_decompress(h, packed, used, (float *)(void *)grad, COUNT, ESP_OUT_SET));
    }
    if (esp_rank(ctx) == 0) show("codec");
    esp_codec_close(h);
    esp_close(ctx);
    return 0;
}
