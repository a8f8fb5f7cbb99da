/* test_shard.c checks tensors whose mean is divided among the ranks: each rank's elements, gathered parameters, refused
 * calls, and that the division stays when the strategy changes. strategy/test_narrow.c tries every option. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "tests/lib/allocations.h"

#define SAYS(ctx, text) CHECK(strstr(esp_last_error(ctx), text) != NULL)

static void run(int32_t size, int32_t per_machine, void (*body)(esp_ctx *, void *), void *user) {
    RUN_RANKS(.size = size, .per_machine = per_machine, .body = body, .user = user, .config.timeout_ms = 30000);
}

static const uint64_t counts[] = {1, 3, 4, 5, 37, 1000};
enum { TENSORS = 6 };

static void add(esp_ctx *ctx, const char *codec, const char *gather, uint32_t flags) {
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", t);
        esp_tensor_desc d = {.name = name, .count = counts[t], .flags = flags, .codec = codec, .gather = gather};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
}

/* Each element of the tensor belongs to one rank. The sizes of parts differ only by rounding. */
static void parts_body(esp_ctx *ctx, void *user) {
    add(ctx, NULL, NULL, ESP_SHARD);
    esp_tensor_desc d = {.name = "whole", .count = 7};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    uint64_t begin, n;
    CHECK(esp_part(ctx, 0, 0, &begin, &n) == ESP_E_STATE);
    CHECK(esp_start(ctx) == ESP_OK);
    for (uint32_t t = 0; t < TENSORS; t++) {
        uint8_t owned[1000] = {0};
        for (int32_t r = 0; r < esp_size(ctx); r++) {
            CHECK(esp_part(ctx, t, r, &begin, &n) == ESP_OK && begin + n <= counts[t]);
            for (uint64_t i = begin; i < begin + n && i < 1000; i++) owned[i]++;
        }
        for (uint64_t i = 0; i < counts[t]; i++) CHECK(owned[i] == 1);
    }
    CHECK(esp_part(ctx, 5, esp_rank(ctx), NULL, &n) == ESP_OK && n == 1000 / (uint64_t)esp_size(ctx));
    CHECK(esp_part(ctx, TENSORS, 1, &begin, &n) == ESP_OK && begin == 0 && n == 7);
    CHECK(esp_part(ctx, 0, esp_size(ctx), &begin, &n) == ESP_E_ARG);
    SAYS(ctx, "rank 4 is none of 0 to 3");
    CHECK(esp_part(ctx, 99, 0, &begin, &n) == ESP_E_ARG);
}

TEST(parts) {
    run(4, 2, parts_body, NULL);
    run(4, 4, parts_body, NULL);
}

/* All ranks gather the same parameters: exact ones, or what the codec decodes. */
static void gather_body(esp_ctx *ctx, void *user) {
    const char *gather = user;
    esp_stream here = ESP_ZERO;
    float grad[1000], params[1000];
    add(ctx, NULL, gather, ESP_SHARD);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 3; step++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            memset(grad, 0, sizeof grad);
            CHECK(esp_push(ctx, t, grad, here) == ESP_OK);
            if (!t) CHECK(esp_gather(ctx, t, params, here) == ESP_E_STATE);
            CHECK(esp_wait(ctx, t) == ESP_OK);
        }
        CHECK(esp_wait_all(ctx) == ESP_OK);
        for (uint32_t t = 0; t < TENSORS; t++) {
            uint64_t begin, n;
            CHECK(esp_part(ctx, t, esp_rank(ctx), &begin, &n) == ESP_OK);
            for (uint64_t i = 0; i < counts[t]; i++)
                params[i] = i - begin < n ? 1.0f / (float)(3 + i + (uint64_t)step) : NAN;
#if COUNTS_ALLOCATIONS
            CHECK(esp_barrier(ctx) == ESP_OK);
            atomic_store(&counting, 1);
            CHECK(esp_barrier(ctx) == ESP_OK);
#endif
            CHECK(esp_gather(ctx, t, params, here) == ESP_OK);
#if COUNTS_ALLOCATIONS
            CHECK(esp_barrier(ctx) == ESP_OK);
            atomic_store(&counting, 0);
#endif
            for (uint64_t i = 0; i < counts[t]; i++) {
                const float x = 1.0f / (float)(3 + i + (uint64_t)step);
                const float want = !gather ? x : bits_float((uint32_t)half_to_bf16(x) << 16);
                CHECK(params[i] == want);
            }
        }
    }
    CHECK(esp_gather(ctx, 0, NULL, here) == ESP_E_ARG);
}

TEST(gathered) {
    static char bf16[] = "bf16";
    static const int32_t jobs[][2] = {{4, 2}, {4, 4}, {6, 2}, {1, 1}};
    for (int k = 0; k < 4; k++) {
        run(jobs[k][0], jobs[k][1], gather_body, NULL);
        run(jobs[k][0], jobs[k][1], gather_body, bf16);
    }
#if COUNTS_ALLOCATIONS
    assert_int_equal(atomic_load(&allocations), 0);
#endif
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */
typedef struct wrong {
    const char *codec, *option, *gather, *says;
    uint32_t flags, dtype;
    esp_status status;
} wrong;

static void wrong_body(esp_ctx *ctx, void *user) {
    const wrong *w = user;
    esp_tensor_desc d = {.name = "w",
                         .count = 100,
                         .codec = w->codec,
                         .option = w->option,
                         .gather = w->gather,
                         .flags = w->flags,
                         .dtype = (esp_dtype)w->dtype};
    esp_status s = esp_tensor_add(ctx, &d, NULL);
    if (!s) s = esp_start(ctx);
    CHECK(s == w->status);
    SAYS(ctx, w->says);
}

TEST(refused) {
    static const wrong all[] = {
        {NULL, "flat.allreduce", NULL,
         "tensor 'w' is sharded (ESP_SHARD), but option 'flat.allreduce' gives every rank all", ESP_SHARD, 0,
         ESP_E_ARG},
        {"topk", "comp@cpu > flat.allgather > decomp@cpu", NULL,
         "as in 'intra.reduce_scatter > comp@cpu > inter.alltoall", ESP_SHARD, 0, ESP_E_ARG},
        {NULL, "flat.reduce_scatter", NULL, "leaves each rank with a part of the result only: set ESP_SHARD", 0, 0,
         ESP_E_ARG},
        {"powersgd", "comp@cpu > flat.reduce_scatter > decomp@cpu", NULL, "every rank must get the sum", ESP_SHARD, 0,
         ESP_E_ARG},
        {NULL, NULL, "bf16", "gather is 'bf16', but the tensor is not sharded", 0, 0, ESP_E_ARG},
        {NULL, NULL, "nosuch", "tensor 'w': gather: ", ESP_SHARD, 0, ESP_E_NOT_FOUND},
        {NULL, NULL, "powersgd", "codec 'powersgd' has several rounds", ESP_SHARD, 0, ESP_E_UNSUPPORTED},
        {NULL, NULL, NULL, "known are ESP_SUM (1), ESP_RAW (2) and ESP_SHARD (4)", 8, 0, ESP_E_ARG},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) run(4, 2, wrong_body, (void *)(uintptr_t)&all[i]);
}

/* All ranks refuse a strategy that divides the tensor in another way, and keep the active one. */
static void change_body(esp_ctx *ctx, void *user) {
    static const char flat[] = "espresso-strategy 1\ntensor w 100 none flat.reduce_scatter\n",
                      same[] =
                          "espresso-strategy 1\ntensor w 100 topk:ratio=0.1 comp@cpu > intra.alltoall > decomp@cpu > "
                          "comp@cpu > inter.alltoall > decomp@cpu\n",
                      chunks[] = "espresso-strategy 1\ntensor w 100 split 2\n"
                                 "chunk 50 none intra.reduce_scatter > inter.reduce_scatter\n"
                                 "chunk 50 none intra.reduce_scatter > inter.reduce_scatter\n";
    uint64_t a, b, n;
    esp_stream here = ESP_ZERO;
    float grad[100];
    esp_tensor_desc d = {.name = "w", .count = 100, .flags = ESP_SHARD};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK);
    CHECK(esp_part(ctx, 0, esp_rank(ctx), &a, &n) == ESP_OK);
    CHECK(strstr(esp_strategy_text(ctx), "intra.reduce_scatter > inter.reduce_scatter") != NULL);
    CHECK(esp_strategy_set(ctx, flat) == ESP_E_ARG);
    SAYS(ctx, "since esp_start its parts are cut by 'intra,inter', and this strategy cuts them by 'flat'");
    CHECK(esp_strategy_set(ctx, chunks) == ESP_E_ARG);
    SAYS(ctx, "so it cannot be cut into chunks");
    CHECK(strstr(esp_strategy_text(ctx), "intra.reduce_scatter > inter.reduce_scatter") != NULL);
    CHECK(esp_strategy_set(ctx, same) == ESP_OK);
    CHECK(esp_part(ctx, 0, esp_rank(ctx), &b, &n) == ESP_OK && a == b);
    for (int i = 0; i < 100; i++) grad[i] = (float)i;
    CHECK(esp_push(ctx, 0, grad, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
}

TEST(parts_stay) { run(4, 2, change_body, NULL); }
