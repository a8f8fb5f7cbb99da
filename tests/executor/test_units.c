/* test_units.c checks that chunks and groups give the same results as whole tensors, and the same bits on all ranks, in
 * whatever order tensors are pushed. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "small_model.h"

static esp_stream here;

/* Gradients are small multiples of the number of ranks, so that means are exact even in 16-bit floats. */
static float gradient(int32_t size, int32_t rank, uint64_t i, int step) {
    return (float)(size * ((int)((i * 7 + (uint64_t)step * 5 + (uint64_t)rank * 11) % 13) - 6));
}
static float mean_of(int32_t size, uint64_t i, int step) {
    float sum = 0;
    for (int32_t r = 0; r < size; r++) sum += gradient(1, r, i, step);
    return sum;
}

static void *at(void *grads, esp_dtype d, int t) { return (char *)grads + begins[t] * (d == ESP_F32 ? 4 : 2); }

static void fill(const esp_ctx *ctx, esp_dtype d, void *grads, int step) {
    for (uint64_t i = 0; i < TOTAL; i++) test_value_set(d, grads, i, gradient(ctx->job.size, ctx->job.rank, i, step));
}

/* ---- without compression, chunks and groups give exact means ----------------------------------------------------- */
static void body_exact(esp_ctx *ctx, void *user) {
    const task *k = user;
    void *g = malloc(TOTAL * 4);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        text s = strategy_of(kind, k->codec, k->option);
        CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
        for (int step = 0; step < 2; step++) {
            fill(ctx, k->dtype, g, step);
            for (int t = 0; t < TENSORS; t++) {
                int pushed = (step ? t * 5 : t) % TENSORS;
                CHECK(esp_push(ctx, (uint32_t)pushed, at(g, k->dtype, pushed), here) == ESP_OK);
            }
            CHECK(esp_wait_all(ctx) == ESP_OK);
            float scale = k->tensor_flags & ESP_SUM ? (float)ctx->job.size : 1.0f;
            uint64_t bad = 0;
            for (uint64_t i = 0; i < TOTAL; i++)
                bad += test_value(k->dtype, g, i) != scale * mean_of(ctx->job.size, i, step);
            CHECK(bad == 0);
            check_same_bits(ctx, g, TOTAL * (k->dtype == ESP_F32 ? 4 : 2));
        }
    }
    free(g);
}

TEST(test_exact) {
    static const char *const options[] = {FLAT_RAW, TREE_RAW, TREE_ROOT, FLAT_COMP, TREE_THREE};
    static const esp_dtype dtypes[] = {ESP_F32, ESP_F16, ESP_BF16};
    for (size_t o = 0; o < 5; o++)
        for (int d = 0; d < 3; d++) {
            task k = {"none", options[o], dtypes[d], 0, 0, NULL};
            run_ranks(6, 2, d ? "loop" : "shm", 0, body_exact, &k);
        }
    task sums = {"none", TREE_RAW, ESP_F32, 0, ESP_SUM, NULL};
    run_ranks(4, 2, "loop", 0, body_exact, &sums);
    task alone = {"none", FLAT_RAW, ESP_F16, 0, 0, NULL};
    run_ranks(1, 1, "loop", 0, body_exact, &alone);
}

/* ---- with each codec, all ranks get the same bits ---------------------------------------------------------------- */
static void body_same(esp_ctx *ctx, void *user) {
    const task *k = user;
    void *g = malloc(TOTAL * 4);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        text s = strategy_of(kind, k->codec, k->option);
        CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
        for (int step = 0; step < 3; step++) {
            for (uint64_t i = 0; i < TOTAL; i++)
                test_value_set(k->dtype, g, i, sinf((float)(i * 3 + (uint64_t)ctx->job.rank * 17 + (uint64_t)step)));
            for (int t = 0; t < TENSORS; t++) CHECK(!esp_push(ctx, (uint32_t)t, at(g, k->dtype, t), here));
            CHECK(esp_wait_all(ctx) == ESP_OK);
            check_same_bits(ctx, g, TOTAL * (k->dtype == ESP_F32 ? 4 : 2));
        }
    }
    free(g);
}
TEST(test_same_bits) {
    static const char *const codecs[] = {"topk:ratio=0.05", "dgc:ratio=0.05",    "efsignsgd",
                                         "twobit",          "randomk:ratio=0.1", "fp16"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        task k = {codecs[c], c % 2 ? TREE_THREE : TREE_COMP, c == 3 ? ESP_F16 : ESP_F32, 0, 0, NULL};
        run_ranks(6, 2, c % 2 ? "loop" : "shm", 0, body_same, &k);
        k.option = FLAT_COMP;
        run_ranks(3, 3, "loop", 0, body_same, &k);
    }
}

static void body_one_tensor(esp_ctx *ctx, void *user) {
    float g[TOTAL];
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    text s = strategy_of(MIXED, "topk:ratio=0.01", FLAT_COMP);
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
    for (int i = 0; i < TOTAL; i++) g[i] = i < 7 ? (float)(i + 1) : 1.0f;
    g[1037 + 2] = 50.0f;
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(!esp_push(ctx, t, g + begins[t], here));
    CHECK(esp_wait_all(ctx) == ESP_OK);
    for (int i = 0; i < 7; i++) CHECK(g[i] == (i == 6 ? 7.0f : 0.0f));
    for (int i = 1000; i < 1042; i++) CHECK(g[i] == (i == 1039 ? 50.0f : 0.0f));
}
/* In two chunks of equal size, codec randomk must choose different elements. */
static void body_draws(esp_ctx *ctx, void *user) {
    float g[TOTAL];
    int differ = 0;
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    text s = strategy_of(WHOLE, "randomk:ratio=0.1", FLAT_COMP);
    text cut = s;
    snprintf(cut.data, sizeof cut.data,
             "espresso-strategy 1\ntensor a 1000 split 2\nchunk 500 randomk:ratio=0.1 " FLAT_COMP
             "\nchunk 500 randomk:ratio=0.1 " FLAT_COMP "\n%s",
             strstr(s.data, "tensor b"));
    CHECK(esp_strategy_set(ctx, cut.data) == ESP_OK);
    for (int i = 0; i < TOTAL; i++) g[i] = 1.0f;
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(!esp_push(ctx, t, g + begins[t], here));
    CHECK(esp_wait_all(ctx) == ESP_OK);
    for (int i = 0; i < 500; i++) differ += (g[i] != 0) != (g[500 + i] != 0);
    CHECK(differ > 20);
}

TEST(test_compressed_as_one) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(2, 2, "loop", 0, body_draws, &k);
    run_ranks(2, 2, "loop", 0, body_one_tensor, &k);
}

/* ---- pushing and waiting ----------------------------------------------------------------------------------------- */
static void body_pushing(esp_ctx *ctx, void *user) {
    const task *k = user;
    float g[TOTAL];
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    text s = strategy_of(k->kind, "none", TREE_RAW);
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
    for (int step = 0; step < 4; step++) {
        fill(ctx, ESP_F32, g, step);
        CHECK(esp_wait(ctx, 3) == ESP_E_STATE && error_has(ctx, "'d' was not pushed"));
        for (uint32_t t = 0; t < TENSORS; t++) {
            if (t == 3 && step == 1 && ctx->job.rank == 1) continue;
            if (t == 1 && step == 2 && ctx->job.rank == 0)
                CHECK(esp_push_zero(ctx, t, g + begins[t], here) == ESP_OK);
            else
                CHECK(esp_push(ctx, t, g + begins[t], here) == ESP_OK);
            if (t == 0) CHECK(esp_push(ctx, t, g, here) == ESP_E_STATE && error_has(ctx, "'a' was already pushed"));
        }
        if (step == 1 && ctx->job.rank == 1) {
            CHECK(esp_step_end(ctx) == ESP_E_STATE && error_has(ctx, "'d'"));
            CHECK(esp_wait_all(ctx) == ESP_E_STATE && error_has(ctx, "never pushed in this step: 'd'"));
        } else {
            if (step == 3) CHECK(esp_wait(ctx, 4) == ESP_OK && esp_test(ctx, 4) == ESP_OK);
            if (step == 3) CHECK(g[begins[4]] == mean_of(ctx->job.size, begins[4], step));
            CHECK(esp_wait_all(ctx) == ESP_OK);
        }
        for (uint32_t t = 0; t < TENSORS; t++) {
            if (t == 3 && step == 1 && ctx->job.rank == 1) continue;
            for (uint64_t i = begins[t]; i < begins[t] + counts[t]; i++) {
                float want = mean_of(ctx->job.size, i, step);
                if (t == 3 && step == 1) want -= gradient(1, 1, i, step);
                if (t == 1 && step == 2) want -= gradient(1, 0, i, step);
                if (g[i] == want) continue;
                CHECK(g[i] == want);
                break;
            }
        }
    }
}
TEST(test_pushing) {
    for (int kind = 0; kind < KINDS; kind++) {
        task k = {NULL, NULL, ESP_F32, kind, 0, NULL};
        run_ranks(4, 2, "loop", 0, body_pushing, &k);
    }
}

typedef struct half_push {
    esp_ctx *ctx;
    float *g;
    int odd;
} half_push;
static void *push_half(void *arg) {
    half_push *h = arg;
    for (uint32_t t = 0; t < TENSORS; t++)
        if ((int)(t & 1) == h->odd) CHECK(!esp_push(h->ctx, t, h->g + begins[t], here));
    return NULL;
}
static void body_threads(esp_ctx *ctx, void *user) {
    const task *k = user;
    float g[TOTAL];
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    text s = strategy_of(k->kind, "topk:ratio=1", TREE_THREE);
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
    for (int step = 0; step < 10; step++) {
        pthread_t other;
        half_push a = {ctx, g, ctx->job.rank & 1}, b = {ctx, g, !(ctx->job.rank & 1)};
        fill(ctx, ESP_F32, g, step);
        pthread_create(&other, NULL, push_half, &a);
        push_half(&b);
        pthread_join(other, NULL);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        for (uint64_t i = 0; i < TOTAL; i += 7) CHECK(g[i] == mean_of(ctx->job.size, i, step));
    }
}
TEST(test_pushing_from_threads) {
    for (int kind = 0; kind < KINDS; kind++) {
        task k = {NULL, NULL, ESP_F32, kind, 0, NULL};
        run_ranks(4, 2, "loop", 0, body_threads, &k);
    }
}

/* If a group waits for a tensor that was not pushed, the error names that tensor. */
static void body_unpushed(esp_ctx *ctx, void *user) {
    float g[TOTAL] = {0};
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    text s = strategy_of(ALL_IN_ONE, "none", FLAT_RAW);
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
    for (uint32_t t = 0; t < TENSORS; t++)
        if (t != 2) CHECK(!esp_push(ctx, t, g + begins[t], here));
    CHECK(esp_wait(ctx, 0) == ESP_E_TIMEOUT && error_has(ctx, "has not pushed tensor 'c'"));
}
TEST(test_unpushed_is_named) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    RUN_RANKS(.size = 2, .body = body_unpushed, .user = &k, .config.timeout_ms = 200);
}

/* ---- errors if chunks or groups differ between ranks; names, roots and memory of chunks and groups --------------- */
static void body_agreement(esp_ctx *ctx, void *user) {
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    text a = strategy_of(CHUNKS, "none", FLAT_RAW), b = a;
    char *cut = strstr(b.data, "chunk 250");
    memcpy(cut, "chunk 249", 9), memcpy(strstr(cut + 9, "chunk 249"), "chunk 250", 9);
    CHECK(esp_strategy_set(ctx, ctx->job.rank == 1 ? b.data : a.data) == ESP_E_MISMATCH &&
          error_has(ctx, "a[1/4], 250 elements") && error_has(ctx, "differing ranks: 1)"));
    CHECK(!strcmp(ctx->active.strategy.units[0].name, "a") && ctx->active.strategy.of_tensor[3].n == 1);
    a = strategy_of(GROUPS, "none", FLAT_RAW), b = strategy_of(MIXED, "none", FLAT_RAW);
    CHECK(esp_strategy_set(ctx, ctx->job.rank == 1 ? b.data : a.data) == ESP_E_MISMATCH);
    CHECK(esp_strategy_set(ctx, a.data) == ESP_OK);
    CHECK(!strcmp(ctx->active.strategy.units[0].name, "a+1") && !strcmp(ctx->active.strategy.units[2].name, "d+2"));
}
TEST(test_agreement) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(3, 3, "loop", 0, body_agreement, &k);
}

static void body_details(esp_ctx *ctx, void *user) {
    float g[TOTAL] = {0};
    esp_stats whole = ESP_ZERO, group = ESP_ZERO;
    whole.struct_size = group.struct_size = sizeof whole;
    add_tensors(ctx, user);
    CHECK(esp_start(ctx) == ESP_OK);
    text s = strategy_of(CHUNKS, "none", "flat.reduce > flat.broadcast");
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK);
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        const esp__op *op = &ctx->active.program.ops[i];
        if (op->kind == ESP__OP_COLLECTIVE)
            CHECK(op->collective.coll.root == (int32_t)(op->unit % (uint32_t)ctx->job.size));
    }
    const esp__unit *u = &ctx->active.strategy.units[1];
    CHECK(!strcmp(ctx->active.program.ops[u->first_op].label, "flat.reduce a[2/4]"));
    s = strategy_of(WHOLE, "none", FLAT_RAW);
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK && esp_stats_read(ctx, &whole) == ESP_OK);
    s = strategy_of(GROUPS, "none", FLAT_RAW);
    CHECK(esp_strategy_set(ctx, s.data) == ESP_OK && esp_stats_read(ctx, &group) == ESP_OK);
    CHECK(group.memory_bytes >= whole.memory_bytes + (1037 + 2052) * 4 - 2000);
    u = &ctx->active.strategy.units[2];
    CHECK(!strcmp(ctx->active.program.ops[u->first_op].label, "pack d+2"));
    CHECK(!strcmp(ctx->active.program.ops[u->first_op + u->n_ops - 1].label, "unpack d+2"));
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(!esp_push(ctx, t, g + begins[t], here));
    CHECK(esp_wait_all(ctx) == ESP_OK);
}
TEST(test_details) {
    task k = {NULL, NULL, ESP_F32, 0, 0, NULL};
    run_ranks(3, 3, "loop", 0, body_details, &k);
}
