/* test_lent.c checks that a push fails if its gradient overlaps one that is pushed and not yet waited for, that the
 * step still completes, and that esp_tensor_add finds equal names in a model with many tensors. */
/* runs: tsan */
#include "tests/lib/test.h"

enum { N = 64, TENSORS = 40, ROOM = 3 * N };
static const esp_stream cpu;

/* A model whose output layer shares the embedding's weights must push them once. */
static void tied(esp_ctx *ctx, void *user) {
    float g[2 * N], other[N];
    (void)user;
    const uint32_t a = tensor_add(ctx, "embedding", N), b = tensor_add(ctx, "output", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 2 * N; i++) g[i] = (float)esp_rank(ctx);
        CHECK(esp_push(ctx, a, g, cpu) == ESP_OK);
        for (int at = 0; at < N; at += N / 2) {
            CHECK(esp_push(ctx, b, g + at, cpu) == ESP_E_STATE);
            CHECK(error_has(ctx, "'embedding'") && error_has(ctx, "'output'"));
            CHECK(esp_push_zero(ctx, b, g + at, cpu) == ESP_E_STATE);
        }
        CHECK(esp_push(ctx, b, step ? g + N : other, cpu) == ESP_OK); /* adjacent, or elsewhere */
        CHECK(esp_wait_all(ctx) == ESP_OK && g[0] == 0.5f && g[N - 1] == 0.5f);
    }
    CHECK(esp_push(ctx, b, g, cpu) == ESP_OK && esp_push(ctx, a, g + N, cpu) == ESP_OK); /* exchanged */
    CHECK(esp_wait_all(ctx) == ESP_OK);
}
TEST(test_tied) { RUN_RANKS(.size = 2, .body = tied); }

/* After esp_wait, or esp_test that returns ESP_OK, another tensor may be pushed from the same memory. */
static void reused(esp_ctx *ctx, void *user) {
    float g[N];
    (void)user;
    tensor_add(ctx, "a", N), tensor_add(ctx, "b", N), tensor_add(ctx, "c", N), tensor_add(ctx, "d", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 2; step++) {
        CHECK(esp_push(ctx, 0, g, cpu) == ESP_OK && esp_wait(ctx, 0) == ESP_OK);
        CHECK(esp_push(ctx, 1, g, cpu) == ESP_OK);
        while (esp_test(ctx, 1) == ESP_PENDING) sched_yield();
        CHECK(esp_push(ctx, 2, g, cpu) == ESP_OK && esp_wait_on(ctx, 2, cpu) == ESP_OK);
        CHECK(esp_push(ctx, 3, g, cpu) == ESP_OK && esp_push(ctx, 2, g, cpu) == ESP_E_STATE);
        CHECK(esp_wait_all(ctx) == ESP_OK);
    }
}
TEST(test_reused) { RUN_RANKS(.size = 2, .body = reused); }

static void random_ranges(esp_ctx *ctx, void *user) {
    static float room[ROOM];
    int begin[TENSORS], end[TENSORS], refused = 0;
    bool lent[TENSORS];
    uint64_t seed = *(uint64_t *)user;
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", t);
        tensor_add(ctx, name, t % 7 + 1);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 20; step++) {
        for (uint32_t t = 0; t < TENSORS;) {
            const uint32_t waits = test_random32(&seed) % (t + 1);
            bool free = true;
            begin[t] = (int)(test_random32(&seed) % (ROOM - 8)), end[t] = begin[t] + (int)(t % 7 + 1);
            for (uint32_t o = 0; o < t; o++) free &= !lent[o] || end[o] <= begin[t] || end[t] <= begin[o];
            CHECK(esp_push(ctx, t, room + begin[t], cpu) == (free ? ESP_OK : ESP_E_STATE));
            refused += !free;
            if (free) lent[t++] = true;
            if (waits >= t || (free && waits % 3)) continue;
            CHECK(esp_wait(ctx, waits) == ESP_OK);
            lent[waits] = false;
        }
        CHECK(esp_wait_all(ctx) == ESP_OK);
    }
    CHECK(refused > 20);
}
TEST(test_random_ranges) {
    for (uint64_t seed = 0; seed < test_repeats(40); seed++) RUN_RANKS(.size = 1, .body = random_ranges, .user = &seed);
}

static void many_names(esp_ctx *ctx, void *user) {
    char name[32];
    (void)user;
    for (uint32_t t = 0; t < 5000; t++) {
        snprintf(name, sizeof name, "layer.%u.weight", t);
        CHECK(tensor_add(ctx, name, 1) == t);
    }
    const esp_tensor_desc d = {.name = "layer.1234.weight", .count = 1};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "tensor 1234"));
}
TEST(test_many_names) { RUN_RANKS(.size = 1, .body = many_names); }
