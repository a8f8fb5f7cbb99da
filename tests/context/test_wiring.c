/* test_wiring.c checks what docs/use/wiring.md promises about momentum in the pushed buffer, sums instead of means,
 * and running statistics. The numbers are exact in f32. */
/* runs: tsan */
#include "tests/lib/test.h"

enum { N = 300, STEPS = 6 };

static float gradient(int rank, int step, int i) { return (float)((rank * 7 + step * 5 + i * 3) % 16 - 8); }

/* Pushes the momentum m = m / 2 + gradient instead of the gradient. After each step, m must be the same on all ranks:
 * the momentum of the mean gradient. */
static void momentum_body(esp_ctx *ctx, void *user) {
    float m[N] = {0}, want[N] = {0};
    const int size = esp_size(ctx);
    const uint32_t id = tensor_add(ctx, "m", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < N; i++) {
            float mean = 0;
            for (int r = 0; r < size; r++) mean += gradient(r, s, i) / (float)size;
            want[i] = want[i] / 2 + mean;
            m[i] = m[i] / 2 + gradient(esp_rank(ctx), s, i);
        }
        CHECK(esp_push(ctx, id, m, (esp_stream){0}) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
        CHECK(!memcmp(m, want, sizeof m));
    }
}
TEST(momentum_in_the_buffer) { RUN_RANKS(.size = 4, .per_machine = 2, .body = momentum_body); }

static void sum_body(esp_ctx *ctx, void *user) {
    float g[N], want[N] = {0};
    uint32_t id;
    CHECK(esp_tensor_add(ctx, &(esp_tensor_desc){.name = "g", .count = N, .flags = ESP_SUM}, &id) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int i = 0; i < N; i++) {
        g[i] = gradient(esp_rank(ctx), 0, i) / 64;
        for (int r = 0; r < esp_size(ctx); r++) want[i] += gradient(r, 0, i) / 64;
    }
    CHECK(esp_push(ctx, id, g, (esp_stream){0}) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
    CHECK(!memcmp(g, want, sizeof g));
}
TEST(sums_instead_of_means) { RUN_RANKS(.size = 4, .per_machine = 2, .body = sum_body); }

static void statistics_body(esp_ctx *ctx, void *user) {
    const float size = (float)esp_size(ctx);
    float mean[2] = {(float)esp_rank(ctx), 4}, first[2] = {(float)esp_rank(ctx) + 5, 1};
    tensor_add(ctx, "w", N);
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_allreduce(ctx, mean, 2) == ESP_OK && esp_broadcast(ctx, first, sizeof first, 0) == ESP_OK);
    CHECK(mean[0] / size == (size - 1) / 2 && mean[1] / size == 4);
    CHECK(first[0] == 5 && first[1] == 1);
}
TEST(running_statistics) { RUN_RANKS(.size = 4, .per_machine = 2, .body = statistics_body); }
