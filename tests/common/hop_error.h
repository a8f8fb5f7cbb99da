/* hop_error.h: the error of a mean that was compressed at every hop, beside that of one compression: |mean - exact|^2 / |exact|^2, without
 * feedback. Runs a job over `loop` with one tensor for each option. For a test and a bench. */
#ifndef TEST_HOP_ERROR_H
#define TEST_HOP_ERROR_H
#include "tests/common/ranks.h"
#include <math.h>

enum { HOP_OPTIONS = 4 };
static const char *const hop_options[HOP_OPTIONS] = {
    "comp@cpu > flat.allgather > decomp@cpu",
    "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu", "flat.halving_hops",
    "flat.ring_hops"};
static const char *const hop_names[HOP_OPTIONS] = {"allgather", "alltoall+allgather", "halving_hops", "ring_hops"};

/* shared: part of a gradient's energy that all ranks have in common. heavy: Student's t with 3 degrees of freedom, whose largest numbers
 * are far from the others, as those of gradients are; else normal. */
typedef struct hop_gradients {
    uint64_t count;
    double shared;
    int heavy;
} hop_gradients;

typedef struct hop_errors {
    const char *codec;
    hop_gradients of;
    double error[HOP_OPTIONS];
    int failed, differs;
} hop_errors;

/* ---- gradients: the same on every machine ---- */
static inline double hop_uniform(uint64_t seed, uint64_t i) { /* above 0, below 1 */
    uint64_t x = seed * 0x9E3779B97F4A7C15ull + i * 0xD1B54A32D192ED03ull + 1;
    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return ((double)((x ^ (x >> 31)) >> 12) + 0.5) / 4503599627370496.0;
}
static inline double hop_normal(uint64_t seed, uint64_t i) {
    return sqrt(-2.0 * log(hop_uniform(seed, 2 * i))) * cos(6.283185307179586 * hop_uniform(seed, 2 * i + 1));
}
static inline double hop_draw(const hop_gradients *g, uint64_t seed, uint64_t i) {
    double x = hop_normal(seed, i), square = 0;
    if (!g->heavy) return x;
    for (uint64_t k = 1; k <= 3; k++) square += pow(hop_normal(seed + 1000 * k, i), 2);
    return x / sqrt(square); /* t3 / sqrt(3): variance 1 */
}
static inline float hop_gradient(const hop_gradients *g, int32_t rank, uint64_t i) {
    const double own = hop_draw(g, 100 + (uint64_t)rank, i);
    return (float)(g->shared > 0 ? sqrt(g->shared) * hop_draw(g, 1, i) + sqrt(1 - g->shared) * own : own);
}

static inline void hop_errors_body(esp_ctx *ctx, void *user) {
    hop_errors *h = user;
    const uint64_t n = h->of.count;
    float *mine = malloc(n * 4), *g = malloc(HOP_OPTIONS * n * 4), *first = malloc(n * 4);
    esp_stream here = ESP_ZERO;
    int bad = !mine || !g || !first;
    for (int k = 0; k < HOP_OPTIONS && !bad; k++) {
        esp_tensor_desc d = ESP_ZERO;
        d.name = hop_names[k], d.count = n, d.codec = h->codec, d.option = hop_options[k];
        bad |= esp_tensor_add(ctx, &d, NULL) != ESP_OK;
    }
    if (!bad) bad = esp_start(ctx) != ESP_OK;
    for (uint64_t i = 0; i < n && !bad; i++) mine[i] = hop_gradient(&h->of, esp_rank(ctx), i);
    for (uint32_t k = 0; k < HOP_OPTIONS && !bad; k++) {
        memcpy(g + k * n, mine, n * 4);
        bad |= esp_push(ctx, k, g + k * n, here) != ESP_OK;
    }
    if (!bad) bad = esp_wait_all(ctx) != ESP_OK;
    if (bad) fprintf(stderr, "%s: %s\n", h->codec, esp_last_error(ctx));
    for (uint32_t k = 0; k < HOP_OPTIONS && !bad; k++) { /* all ranks must have the same bits */
        memcpy(first, g + k * n, n * 4);
        bad |= esp_broadcast(ctx, first, n * 4, 0) != ESP_OK;
        if (memcmp(first, g + k * n, n * 4)) __atomic_store_n(&h->differs, 1, __ATOMIC_RELAXED);
    }
    if (bad) __atomic_store_n(&h->failed, 1, __ATOMIC_RELAXED);
    for (uint32_t k = 0; k < HOP_OPTIONS && !bad && esp_rank(ctx) == 0; k++) {
        double lost = 0, all = 0;
        for (uint64_t i = 0; i < n; i++) {
            double exact = 0;
            for (int32_t r = 0; r < esp_size(ctx); r++) exact += (double)hop_gradient(&h->of, r, i);
            exact /= esp_size(ctx);
            lost += pow((double)g[k * n + i] - exact, 2);
            all += exact * exact;
        }
        h->error[k] = lost / all;
    }
    free(mine), free(g), free(first);
}

/* Fills h->error over `size` ranks, a power of two. 0: it went well. */
static inline int hop_errors_run(hop_errors *h, int32_t size) {
    test_job j;
    memset(&j, 0, sizeof j);
    j.size = j.per_machine = size;
    j.body = hop_errors_body, j.user = h;
    j.config.log_level = ESP_LOG_ERROR;
    h->failed = h->differs = 0;
    test_run(&j);
    return h->failed || h->differs;
}
#endif
