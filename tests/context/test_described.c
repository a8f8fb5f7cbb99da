/* test_described.c checks that the codec and option (way to send it) that a program sets for one tensor are used under
 * every strategy, or that a call says why not. */
/* runs: tsan */
#include "tests/lib/test.h"

enum { COUNT = 20000 };
#define TOPK "topk:ratio=0.01"
#define GATHERED "comp@cpu > flat.allgather > decomp@cpu"
static const esp_stream cpu;

typedef struct task {
    const char *codec, *option;
    uint32_t flags;
    const char *strategy; /* text that replaces the first strategy, or NULL */
    int steps;
    const char *says;
} task;

static esp_status add(esp_ctx *ctx, const task *k) {
    const esp_tensor_desc d = {.name = "w", .count = COUNT, .flags = k->flags, .codec = k->codec, .option = k->option};
    tensor_add(ctx, "first", COUNT);
    const esp_status s = esp_tensor_add(ctx, &d, NULL);
    return s ? s : esp_start(ctx);
}

static void sparse(esp_ctx *ctx, void *user) {
    const task *k = user;
    float *g = malloc(2 * COUNT * sizeof *g);
    CHECK(add(ctx, k) == ESP_OK);
    if (k->strategy) CHECK(esp_strategy_set(ctx, k->strategy) == ESP_OK);
    for (int step = 0; step < k->steps; step++) {
        int full[2] = {0, 0};
        for (int i = 0; i < 2 * COUNT; i++) g[i] = (float)(1 + (i * 7919 + step + ctx->job.rank) % 1009);
        for (uint32_t t = 0; t < 2; t++) CHECK(!esp_push(ctx, t, g + t * COUNT, cpu));
        CHECK(esp_wait_all(ctx) == ESP_OK);
        for (int i = 0; i < 2 * COUNT; i++) full[i / COUNT] += g[i] != 0;
        CHECK(full[0] == COUNT && full[1] <= 2 * COUNT / 100);
    }
    CHECK(count_of(esp_strategy_text(ctx), TOPK) > 0);
    free(g);
}

static void refused(esp_ctx *ctx, void *user) {
    const task *k = user;
    CHECK(add(ctx, k) == ESP_E_ARG);
    CHECK(error_has(ctx, k->says) && error_has(ctx, "'w'"));
}

TEST(test_used_under_every_strategy) {
    static const char *const strategies[] = {NULL, "fp32", "layerwise"};
    static const char *const texts[] = {
        "espresso-strategy 1\ntensor first 20000 none flat.allreduce\ntensor w 20000 none flat.allreduce\n",
        "espresso-strategy 1\ntensor first 20000 none flat.allreduce\ntensor w 20000 none flat.allreduce\n"
        "order 0:0 1:0\n",
        "espresso-strategy 1\ntensor first 20000 none flat.allreduce\ntensor w 20000 split 2\n"
        "chunk 10000 none flat.allreduce\nchunk 10000 none flat.allreduce\norder 1:0 2:0 0:0\n",
        "espresso-strategy 1\ntensor first 20000 none flat.allreduce\ntensor w 20000 none " GATHERED
        "\norder 0:0 1:0 1:1 1:2\n"};
    for (size_t i = 0; i < 2 * 3; i++) {
        task k = {.codec = TOPK, .option = i % 2 ? GATHERED : "", .steps = 2};
        RUN_RANKS(.size = 2, .per_machine = 1, .body = sparse, .user = &k, .config.strategy = strategies[i / 2]);
    }
    for (size_t i = 0; i < 2 * 4; i++) {
        task k = {.codec = TOPK, .option = i % 2 ? GATHERED : NULL, .strategy = texts[i / 2], .steps = 2};
        RUN_RANKS(.size = 2, .per_machine = 1, .body = sparse, .user = &k);
    }
    task k = {.codec = TOPK, .steps = 60};
    RUN_RANKS(.size = 2, .per_machine = 1, .body = sparse, .user = &k, .config.strategy = "auto:warmup=1,steps=5",
              .config.backend = "loop:inter=100mbit,latency=50us");
}

TEST(test_contradictions) {
    task cases[] = {
        {.codec = TOPK, .flags = ESP_RAW, .says = "ESP_RAW"},
        {.option = GATHERED, .flags = ESP_RAW, .says = "ESP_RAW"},
        {.codec = TOPK, .option = "flat.allreduce", .says = "no comp"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) RUN_RANKS(.size = 2, .body = refused, .user = &cases[i]);
}
