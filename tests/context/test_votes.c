/* test_votes.c checks codecs over several ranks: the majority votes of signsgd and signum against a slow reference, and
 * the published examples of MXNet's 2-bit and 1-bit compression. */
/* runs: tsan */
#include "tests/lib/test.h"

enum { N = 4200, MOST = 8 };
static const esp_stream cpu;

static float gradient(int rank, int step, int i) {
    const int v = (i * 7 + rank * 13 + step * 5 + i / 11 * rank) % 9 - 4; /* zeros, too: their sign is + */
    return 0.25f * (float)v;
}

static void start(esp_ctx *ctx, const char *codec) {
    const esp_tensor_desc d = {.name = "w", .count = N, .codec = codec};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK);
}
static void step(esp_ctx *ctx, float *g) { CHECK(esp_push(ctx, 0, g, cpu) == ESP_OK && esp_wait_all(ctx) == ESP_OK); }

/* Each rank has a vote, +1 for numbers >= 0. Ties are +1. */
static void signsgd(esp_ctx *ctx, void *user) {
    float g[N];
    (void)user;
    start(ctx, "signsgd");
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < N; i++) g[i] = gradient(esp_rank(ctx), s, i);
        step(ctx, g);
        check_same_bits(ctx, g, sizeof g);
        int bad = 0;
        for (int i = 0; i < N; i++) {
            int votes = 0;
            for (int r = 0; r < esp_size(ctx); r++) votes += gradient(r, s, i) >= 0 ? 1 : -1;
            bad += memcmp(&(float){votes >= 0 ? 1.0f : -1.0f}, g + i, 4) != 0;
        }
        CHECK(!bad);
    }
}
/* Ranks vote with the signs of their momenta. */
static void signum(esp_ctx *ctx, void *user) {
    static float momenta[MOST][MOST][N];
    float(*m)[N] = momenta[esp_rank(ctx)], g[N];
    (void)user;
    memset(m, 0, sizeof momenta[0]);
    start(ctx, "signum:momentum=0.75");
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < N; i++) g[i] = gradient(esp_rank(ctx), s, i);
        step(ctx, g);
        check_same_bits(ctx, g, sizeof g);
        int bad = 0;
        for (int i = 0; i < N; i++) {
            int votes = 0;
            for (int r = 0; r < esp_size(ctx); r++) {
                m[r][i] = 0.75f * m[r][i] + (1 - 0.75f) * gradient(r, s, i);
                votes += m[r][i] >= 0 ? 1 : -1;
            }
            bad += memcmp(&(float){votes >= 0 ? 1.0f : -1.0f}, g + i, 4) != 0;
        }
        CHECK(!bad);
    }
}
TEST(test_majority) {
    for (int size = 1; size <= 5; size++) RUN_RANKS(.size = size, .body = signsgd);
    for (int size = 2; size <= 4; size += 2) RUN_RANKS(.size = size, .body = signum);
}

/* MXNet's test of kvstore type "2bit" (tests/nightly/dist_sync_kvstore.py): each rank pushes the same numbers, and the
 * results are 0, the threshold or a multiple. The ranks' mean is what one rank sends. */
static void mxnet_2bit(esp_ctx *ctx, void *user) {
    const float t = 0.5f;
    const struct {
        float push, pull;
    } steps[] = {{0.4f, 0}, {t - 0.4f, t}, {0.2f, 0}, {t - 0.2f, t}, {0, 0}, {1, t}, {0, t}, {0, 0}};
    float g[N];
    (void)user;
    start(ctx, "twobit:threshold=0.5");
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        int bad = 0;
        for (int i = 0; i < N; i++) g[i] = steps[s].push;
        step(ctx, g);
        for (int i = 0; i < N; i++) bad += fabsf(g[i] - steps[s].pull) > 0;
        CHECK(!bad);
    }
}
/* With "1bit" the rest of +1 or -1 goes to the next step: 0.25 is sent as +1, +1, -1 and so on about the threshold 0.
 */
static void mxnet_1bit(esp_ctx *ctx, void *user) {
    float g[N], residual = 0;
    (void)user;
    start(ctx, "mxnet1bit");
    for (int s = 0; s < 8; s++) {
        int bad = 0;
        for (int i = 0; i < N; i++) g[i] = 0.25f;
        step(ctx, g);
        residual += 0.25f;
        const float sent = residual > 0 ? 1.0f : -1.0f;
        residual -= sent;
        for (int i = 0; i < N; i++) bad += fabsf(g[i] - sent) > 0;
        CHECK(!bad);
    }
}
TEST(test_mxnet) {
    for (int size = 1; size <= 4; size++) {
        RUN_RANKS(.size = size, .body = mxnet_2bit);
        RUN_RANKS(.size = size, .body = mxnet_1bit);
    }
}

/* With auto, steps of -1 and +1 would alternate with means of gradients. */
static void refused(esp_ctx *ctx, void *user) {
    const esp_tensor_desc d = {.name = "w", .count = N};
    (void)user;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_E_ARG && error_has(ctx, "is not the mean"));
}
TEST(test_auto_refuses) {
    RUN_RANKS(.size = 2, .body = refused, .config.strategy = "auto", .config.codec = "topk;signsgd");
}
