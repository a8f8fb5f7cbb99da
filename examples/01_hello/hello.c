/* hello.c: the smallest program that uses espresso: every rank pushes one gradient and gets the mean over all ranks.
 * Run ./hello alone, or: espresso run -n 4 -- ./hello */
#include "espresso.h"
#include <stdio.h>

static int check(esp_status s, const esp_ctx *ctx) {
    if (s < 0) fprintf(stderr, "hello: %s\n", esp_last_error(ctx));
    return s < 0;
}

int main(void) {
    const esp_config cfg = ESP_ZERO; /* the launcher's environment sets rank, size and peers */
    const esp_stream cpu = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_ctx *ctx = NULL;
    uint32_t id = 0;
    float grad[3];
    desc.name = "gradient", desc.count = 3;
    if (check(esp_open(&cfg, &ctx), NULL)) return 1;
    int failed = check(esp_tensor_add(ctx, &desc, &id), ctx) || check(esp_start(ctx), ctx);
    for (int step = 0; !failed && step < 2; step++) {
        for (int i = 0; i < 3; i++) grad[i] = (float)(esp_rank(ctx) + 10 * i + 100 * step);
        failed = check(esp_push(ctx, id, grad, cpu), ctx) || check(esp_wait_all(ctx), ctx);
        if (!failed) printf("step %d: the mean is %g %g %g\n", step, (double)grad[0], (double)grad[1], (double)grad[2]);
    }
    esp_close(ctx);
    return failed;
}
