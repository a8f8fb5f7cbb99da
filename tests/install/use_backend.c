/* use_backend.c is a rank of a job that `espresso run` starts, with backend argv[2] of plugin argv[1]. It runs three
 * steps with small integers, whose mean is exact, without and with a codec. Rank 0 prints "ok". */
#include "espresso.h"
#include <stdio.h>

enum { N = 1001 };

static int steps(esp_ctx *ctx) {
    static float grad[2][N];
    const esp_stream cpu = ESP_ZERO;
    const float size = (float)esp_size(ctx);
    esp_tensor_desc d = ESP_ZERO;
    uint32_t id[2];
    static const char *const names[] = {"plain", "halved"};
    for (int t = 0; t < 2; t++) {
        d.name = names[t];
        d.count = N;
        d.codec = t ? "fp16" : "none";
        if (esp_tensor_add(ctx, &d, &id[t]) != ESP_OK) return 1;
    }
    if (esp_start(ctx) != ESP_OK) return 1;
    for (int step = 0; step < 3; step++) {
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < N; i++) grad[t][i] = (float)(i % 100 + esp_rank(ctx));
            if (esp_push(ctx, id[t], grad[t], cpu) != ESP_OK) return 1;
        }
        for (int t = 0; t < 2; t++) {
            if (esp_wait(ctx, id[t]) != ESP_OK) return 1;
            for (int i = 0; i < N; i++)
                if (grad[t][i] != (float)(i % 100) + (size - 1) / 2)
                    return fprintf(stderr, "%s[%d] is %g\n", names[t], i, (double)grad[t][i]), 1;
        }
        if (esp_wait_all(ctx) != ESP_OK) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx = NULL;
    int wrong, rank;
    cfg.backend = argc > 2 ? argv[2] : NULL;
    cfg.plugin_path = argc > 1 ? argv[1] : NULL;
    if (esp_open(&cfg, &ctx) != ESP_OK) return fprintf(stderr, "%s\n", esp_last_error(NULL)), 1;
    rank = esp_rank(ctx);
    wrong = steps(ctx);
    if (wrong) fprintf(stderr, "rank %d: %s\n", rank, esp_last_error(ctx));
    esp_close(ctx);
    if (!wrong && rank == 0) puts("ok");
    return wrong;
}
