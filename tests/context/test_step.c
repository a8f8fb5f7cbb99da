/* test_step.c makes a trainer's calls in a step, right and wrong: pushing, waiting, unused tensors, NaN, errors and
 * their texts, changes of strategy. Ranks are threads. */
/* runs: quiet tsan */
#include "tests/lib/test.h"

enum { N = 1000 };
static const char *const topk2 = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather";

static void run(int32_t size, int32_t per_machine, void (*body)(esp_ctx *, void *), void *user, const char *codec,
                uint32_t flags) {
    RUN_RANKS(.size = size, .per_machine = per_machine, .body = body, .user = user, .config.codec = codec,
              .config.flags = flags);
}

static esp_stream here;

static void body_order(esp_ctx *ctx, void *user) {
    float a[N], b[N];
    uint32_t x, y;
    CHECK(esp_push(ctx, 0, a, here) == ESP_E_STATE && error_has(ctx, "esp_start"));
    CHECK(esp_start(ctx) == ESP_E_STATE && error_has(ctx, "no tensor"));
    x = tensor_add(ctx, "x", N), y = tensor_add(ctx, "y", N);
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_E_STATE);
    CHECK(esp_push(ctx, 7, a, here) == ESP_E_ARG && error_has(ctx, "no tensor 7"));
    CHECK(esp_push(ctx, x, NULL, here) == ESP_E_ARG && error_has(ctx, "'x'"));
    CHECK(esp_wait(ctx, x) == ESP_E_STATE && error_has(ctx, "not pushed"));
    CHECK(esp_test(ctx, x) == ESP_E_STATE);
    for (int i = 0; i < N; i++) a[i] = b[i] = (float)(esp_rank(ctx) * 2 + 1);
    CHECK(esp_push(ctx, y, b, here) == ESP_OK);
    CHECK(esp_push(ctx, y, b, here) == ESP_E_STATE && error_has(ctx, "already pushed"));
    CHECK(esp_barrier(ctx) == ESP_E_STATE && error_has(ctx, "step is under way"));
    CHECK(esp_strategy_set(ctx, "fp32") == ESP_E_STATE);
    CHECK(esp_push(ctx, x, a, here) == ESP_OK);
    CHECK(esp_wait(ctx, y) == ESP_OK && esp_test(ctx, y) == ESP_OK);
    CHECK(esp_wait_on(ctx, x, here) == ESP_OK);
    CHECK(a[N - 1] == (float)esp_size(ctx) && b[0] == (float)esp_size(ctx));
    CHECK(esp_push(ctx, x, a, here) == ESP_E_STATE && error_has(ctx, "esp_wait_all"));
    CHECK(esp_step_end(ctx) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_OK);
    CHECK(esp_push(ctx, x, a, here) == ESP_OK && esp_push(ctx, y, b, here) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_OK);
}
TEST(test_order) {
    run(3, 3, body_order, NULL, NULL, 0);
    run(1, 1, body_order, NULL, NULL, 0);
}

static void body_unused(esp_ctx *ctx, void *user) {
    float a[N], b[N];
    uint32_t x = tensor_add(ctx, "x", N), y = tensor_add(ctx, "unused.weight", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < N; i++) a[i] = 1, b[i] = 8;
        CHECK(esp_push(ctx, x, a, here) == ESP_OK);
        if (esp_rank(ctx) == 1 && step == 1) {
            CHECK(esp_step_end(ctx) == ESP_E_STATE && error_has(ctx, "'unused.weight'"));
            CHECK(esp_wait_all(ctx) == ESP_E_STATE && error_has(ctx, "esp_push_zero"));
            continue;
        }
        if (esp_rank(ctx) == 1 && step == 2)
            CHECK(esp_push_zero(ctx, y, b, here) == ESP_OK);
        else
            CHECK(esp_push(ctx, y, b, here) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        CHECK(a[5] == 1 && b[5] == (step == 0 ? 8.0f : 6.0f));
    }
}
TEST(test_unused) { run(4, 2, body_unused, NULL, NULL, 0); }

static void body_descriptions(esp_ctx *ctx, void *user) {
    esp_tensor_desc d = ESP_ZERO;
    CHECK(esp_tensor_add(ctx, NULL, NULL) == ESP_E_ARG);
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "name"));
    d.name = "w";
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "count is 0"));
    d.count = 12;
    d.dtype = 9;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "dtype 9"));
    d.dtype = ESP_F16;
    d.rows = 5, d.cols = 2;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "rows x cols"));
    d.rows = 0, d.cols = 4;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "rows x cols is 0 x 4, but count is 12"));
    d.rows = UINT64_MAX / 4 + 4, d.cols = 4; /* the product overflows to 12 */
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "rows x cols"));
    d.rows = 3, d.cols = 4;
    d.flags = 12;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG &&
          error_has(ctx, "flags is 12: known are ESP_SUM (1), ESP_RAW (2) and ESP_SHARD (4)"));
    d.flags = 0;
    d.device.kind = ESP_DEVKIND_OWN;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_UNSUPPORTED && error_has(ctx, "there is no device of kind 16 here"));
    d.device.kind = 0;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "already added"));
    d.name = "two words";
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_E_ARG && error_has(ctx, "blanks"));
    d.name = "v";
    d.codec = "nosuch";
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_E_NOT_FOUND && error_has(ctx, "nosuch") && error_has(ctx, "'v'"));
}
TEST(test_descriptions) { run(1, 1, body_descriptions, NULL, NULL, 0); }

/* If the ranks' tensors differ, all ranks fail with the first difference. */
static void body_mismatch(esp_ctx *ctx, void *user) {
    int kind = *(int *)user, odd = esp_rank(ctx) == 2;
    esp_tensor_desc d = {.name = kind == 0 && odd ? "fc2.weight" : "fc1.weight",
                         .count = kind == 1 && odd ? 11 : 10,
                         .dtype = kind == 2 && odd ? ESP_F16 : ESP_F32};
    d.codec = kind == 3 && odd ? "topk:ratio=0.1" : "topk:ratio=0.2";
    d.option = kind == 4 && odd ? "comp@cpu > flat.allgather > decomp@cpu"
                                : "comp@cpu > flat.gather > decomp@cpu > flat.broadcast";
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    if (kind == 5 && odd) tensor_add(ctx, "one.more", 4);
    CHECK(esp_start(ctx) == ESP_E_MISMATCH && error_has(ctx, "differing ranks: 2)") &&
          error_has(ctx, kind == 5 ? "2 tensors" : "tensor 0"));
}
TEST(test_mismatch) {
    for (int kind = 0; kind < 6; kind++) run(4, 2, body_mismatch, &kind, NULL, 0);
}

static void body_bad_strategy(esp_ctx *ctx, void *user) {
    const char *const *c = user;
    tensor_add(ctx, "a", 10), tensor_add(ctx, "b", 20);
    CHECK(esp_start(ctx) == ESP_OK);
    for (; *c; c += 2) CHECK(esp_strategy_set(ctx, c[0]) < 0 && error_has(ctx, c[1]));
    CHECK(!strncmp(esp_strategy_text(ctx), "espresso-strategy 1\ntensor a 10 none ", 37));
    float a[10] = {1}, b[20] = {2};
    CHECK(!esp_push(ctx, 0, a, here) && !esp_push(ctx, 1, b, here) && !esp_wait_all(ctx));
    char *text = strdup(esp_strategy_text(ctx));
    CHECK(esp_strategy_set(ctx, text) == ESP_OK && !strcmp(text, esp_strategy_text(ctx)));
    free(text);
}
TEST(test_bad_strategy) {
    static const char *const cases[] = {
        "nonsense",
        "expected fp32, layerwise",
        "tensor a 10 none flat.allreduce\n",
        "expected 'espresso-strategy 1'",
        "espresso-strategy 1\ntensor a 10 none flat.allreduce\n",
        "has 1 tensors, but this model has 2",
        "espresso-strategy 1\ntensor a 11 none flat.allreduce\n",
        "another model",
        "espresso-strategy 1\ntensor a 10 none flat.allreduce\ntensor b 20 none flat.allredoce\n",
        "strategy:3: tensor 'b'",
        "espresso-strategy 1\ntensor a 10 none\n",
        "strategy:2: expected 'tensor NAME",
        "espresso-strategy 1\ntensor a 10 none flat.allreduce\ntensor b 20 topk flat.allreduce\ntensor c 1 none "
        "flat.allreduce\n",
        "one too many",
        "espresso-strategy 1\ntensor a 10 none flat.allreduce\ntensor b 20 none flat.allreduce\norder 0:0\n",
        "1:0 is missing",
        "espresso-strategy 1\ntensor a 10 none flat.allreduce\ntensor b 20 none flat.allreduce\norder 0:0 0:0\n",
        "0:0 stands where",
        "espresso-strategy 1\ntensor a 10 none flat.allreduce\ntensor b 20 none flat.allreduce\norder 0:1\n",
        "names no collective",
        "espresso-strategy 1\ntensor a 10 topk:ratio=0.1 comp@cpu > flat.allreduce > decomp@cpu\ntensor b 20 none "
        "flat.allreduce\n",
        "no payloads that can be summed",
        "espresso-strategy 1\ntensor a 10 topk:ratio=7 flat.allreduce\ntensor b 20 none flat.allreduce\n",
        "ratio",
        "espresso-strategy 1\nbogus\n",
        "expected 'tensor', 'chunk', 'group' or 'order'",
        NULL,
        NULL};
    run(2, 2, body_bad_strategy, (void *)(uintptr_t)cases, NULL, 0);
}

/* A NaN on one rank reaches all ranks. The residual of that rank does not change. */
static void body_nan(esp_ctx *ctx, void *user) {
    float g[N], residual[N];
    uint32_t x = tensor_add(ctx, "x", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < N; i++) g[i] = (float)(i % 17) - 8.0f;
        if (step == 1 && esp_rank(ctx) == 1) g[3] = step % 2 ? NAN : INFINITY;
        if (step == 1) memcpy(residual, ctx->active.feedback[0].residual, sizeof residual);
        CHECK(esp_push(ctx, x, g, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
        int finite = 1;
        for (int i = 0; i < N; i++) finite &= isfinite(g[i]) != 0;
        CHECK(finite == (step != 1));
        if (step == 1 && esp_rank(ctx) == 1)
            CHECK(!memcmp(residual, ctx->active.feedback[0].residual, sizeof residual));
    }
    esp_stats st = ESP_ZERO;
    st.struct_size = sizeof st;
    CHECK(esp_stats_read(ctx, &st) == ESP_OK && st.steps == 3 && st.memory_bytes > N * 4);
    CHECK((st.nonfinite > 0) == (esp_rank(ctx) == 1));
}
TEST(test_nan) {
    static const char *const codecs[] = {
        "topk:ratio=0.1",         "efsignsgd", "twobit", "dgc:ratio=0.1",          "randomk:ratio=0.1",
        "fp16:feedback=residual", "int8",      "int4",   "chunktopk:chunk=64,k=8",
    };
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) run(3, 3, body_nan, NULL, codecs[i], 0);
}

static void body_strategies(esp_ctx *ctx, void *user) {
    const char *texts[] = {topk2,
                           "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu "
                           "> inter.allgather > decomp@cpu > intra.allgather",
                           "comp@cpu > flat.allgather > decomp@cpu", "flat.allreduce", "flat.allreduce"};
    float g[N];
    double in[N] = {0}, out[N] = {0};
    uint32_t x = tensor_add(ctx, "x", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int k = 0; k < 5; k++) {
        char text[ESP__TEXT_MAX];
        snprintf(text, sizeof text, "espresso-strategy 1\ntensor x %d topk:ratio=0.05 %s\n", (int)N, texts[k]);
        CHECK(esp_strategy_set(ctx, text) == ESP_OK);
        for (int step = 0; step < 4; step++) {
            for (int i = 0; i < N; i++) {
                g[i] = (float)((i * 31 + step * 7 + esp_rank(ctx)) % 23) - 11.0f;
                for (int r = 0; r < esp_size(ctx); r++) in[i] += (i * 31 + step * 7 + r) % 23 - 11;
            }
            CHECK(esp_push(ctx, x, g, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
            for (int i = 0; i < N; i++) out[i] += (double)g[i] * esp_size(ctx);
        }
    }
    for (int i = 0; i < N; i++) CHECK(fabs(in[i] - out[i]) < 1e-2);
}
TEST(test_strategies) { run(4, 2, body_strategies, NULL, "topk:ratio=0.05", 0); }

static void body_discard(esp_ctx *ctx, void *user) {
    float g[N], first[N], again[N];
    uint32_t x = tensor_add(ctx, "x", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < N; i++) g[i] = (float)((i * 13) % 29);
        CHECK(esp_push(ctx, x, g, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
        if (step == 1) memcpy(first, g, sizeof g);
        if (step == 2) memcpy(again, g, sizeof g);
        if (step == 1) CHECK(esp_discard_step(ctx) == (user ? ESP_OK : ESP_E_STATE));
    }
    /* A discarded step leaves the residuals as they were, so repeating it gives the same result. */
    CHECK(!memcmp(first, again, sizeof first) == (user != NULL));
    CHECK(esp_feedback_scale(ctx, 0.5f) == ESP_OK && esp_feedback_scale(ctx, -1.0f) == ESP_E_ARG);
}
TEST(test_discard) {
    run(2, 2, body_discard, &failures, "topk:ratio=0.1", ESP_DISCARDABLE);
    run(2, 2, body_discard, NULL, "topk:ratio=0.1", 0);
    run(2, 2, body_discard, &failures, "warmup:steps=1,of=(fp16:of=(topk:ratio=0.1))", ESP_DISCARDABLE);
}

static void body_helpers(esp_ctx *ctx, void *user) {
    unsigned char bytes[7];
    float sum[3] = {1, 2, (float)esp_rank(ctx)};
    for (int i = 0; i < 7; i++) bytes[i] = (unsigned char)(esp_rank(ctx) == 2 ? i + 1 : 0);
    CHECK(esp_broadcast(ctx, bytes, 7, 2) == ESP_OK);
    for (int i = 0; i < 7; i++) CHECK(bytes[i] == i + 1);
    CHECK(esp_broadcast(ctx, bytes, 7, 3) == ESP_E_ARG && error_has(ctx, "root 3"));
    CHECK(esp_allreduce(ctx, sum, 3) == ESP_OK && sum[0] == 3 && sum[1] == 6 && sum[2] == 3);
    CHECK(esp_barrier(ctx) == ESP_OK);
}
TEST(test_helpers) { run(3, 3, body_helpers, NULL, NULL, 0); }

static void body_sum(esp_ctx *ctx, void *user) {
    const char *options[] = {"flat.allreduce", topk2};
    float g[2][N];
    for (int t = 0; t < 2; t++) {
        esp_tensor_desc d = {.name = t ? "b" : "a", .count = N, .flags = ESP_SUM, .option = options[t]};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < N; i++) g[t][i] = 1.5f;
        CHECK(esp_push(ctx, (uint32_t)t, g[t], here) == ESP_OK);
    }
    CHECK(esp_wait_all(ctx) == ESP_OK);
    for (int i = 0; i < N; i++) CHECK(g[0][i] == 6.0f && g[1][i] == 6.0f);
}
TEST(test_sum) { run(4, 2, body_sum, NULL, "none", 0); }

static void body_fork(esp_ctx *ctx, void *user) {
    float g[N] = {0};
    tensor_add(ctx, "x", N);
    CHECK(esp_start(ctx) == ESP_OK);
    const pid_t pid = child_fork(60);
    if (!pid) _exit(esp_push(ctx, 0, g, here) == ESP_E_STATE && strstr(esp_last_error(ctx), "fork") ? 0 : 1);
    CHECK(child_wait(pid) == 0);
    CHECK(esp_push(ctx, 0, g, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
}
TEST(test_fork) { run(1, 1, body_fork, NULL, NULL, 0); }

/* If a rank closes while others wait for it, their errors name it, and so do their answers to a rank that waits for
 * them. Later pushes give the same error. */
static void body_left(esp_ctx *ctx, void *user) {
    float g[N] = {0};
    esp__answer a = {.waits_for = ESP__WAITS_FOR_NOBODY};
    tensor_add(ctx, "x", N);
    CHECK(esp_start(ctx) == ESP_OK);
    if (esp_rank(ctx) == 1) return;
    CHECK(esp_push(ctx, 0, g, here) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_E_PEER && error_has(ctx, "rank 1"));
    usleep(100000); /* the links' requests have ended */
    esp__waits_answer(ctx, &a);
    CHECK(a.waits_for == 1);
    CHECK(esp_push(ctx, 0, g, here) == ESP_E_PEER && error_has(ctx, "rank 1"));
    CHECK(esp_barrier(ctx) == ESP_E_PEER);
}
TEST(test_left) { run(3, 3, body_left, NULL, NULL, 0); }

/* Rank 3 comes when another rank has got the error, which may be late where the machine is busy. */
static void body_late(esp_ctx *ctx, void *user) {
    atomic_int *noticed = user;
    float g[N] = {0};
    tensor_add(ctx, "slow.weight", N);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int ms = 0; esp_rank(ctx) == 3 && !atomic_load(noticed) && ms < 20000; ms++) usleep(1000);
    esp_push(ctx, 0, g, here); /* fails if this rank has got the error already */
    CHECK(esp_wait_all(ctx) == ESP_E_TIMEOUT && error_has(ctx, "rank 3") && error_has(ctx, "slow.weight"));
    atomic_store(noticed, 1);
}
TEST(test_late) {
    atomic_int noticed = 0;
    RUN_RANKS(.size = 4, .per_machine = 2, .body = body_late, .user = &noticed, .config.timeout_ms = 400);
}

/* A rank that waits before it has pushed all tensors gets an error that names the missing tensor, and no rank. */
static void body_unpushed(esp_ctx *ctx, void *user) {
    float g[N] = {0};
    tensor_add(ctx, "first.weight", N), tensor_add(ctx, "second.weight", N);
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_push(ctx, 1, g, here) == ESP_OK);
    CHECK(esp_wait(ctx, 1) == ESP_E_TIMEOUT && error_has(ctx, "not pushed tensor 'first.weight'"));
}
TEST(test_unpushed) { RUN_RANKS(.size = 2, .body = body_unpushed, .config.timeout_ms = 200); }

static esp_status open_alone(const char *backend, const char *codec, const char *strategy, esp_ctx **ctx) {
    esp_config c = {.size = 1, .backend = backend, .codec = codec, .strategy = strategy};
    esp_status s = esp_open(&c, ctx);
    if (s) return s;
    tensor_add(*ctx, "x", 10);
    return esp_start(*ctx);
}

TEST(test_bad_config) {
    static const struct {
        const char *backend, *codec, *strategy;
        esp_status status;
        const char *says;
    } bad[] = {
        {"nosuch", NULL, NULL, ESP_E_NOT_FOUND, "nosuch"},
        {"loop:inter=fast", NULL, NULL, ESP_E_ARG, "inter"},
        {"loop:colour=red", NULL, NULL, ESP_E_ARG, "colour"},
        {":", NULL, NULL, ESP_E_ARG, ":"},
        {"loop", "topk:ratio=2", NULL, ESP_E_ARG, "ratio"},
        {"loop", "topk:size=2", NULL, ESP_E_ARG, "size"},
        {"loop", "nosuch", NULL, ESP_E_NOT_FOUND, "nosuch"},
        {"loop", "topk:feedback=magic", NULL, ESP_E_ARG, "feedback"},
        {"loop", "topk:feedback=own", NULL, ESP_E_ARG, "no memory of its own"},
        {"loop", NULL, "/no/such/file", ESP_E_NOT_FOUND, "/no/such/file"},
        {"loop", NULL, "fastest", ESP_E_NOT_FOUND, "(fp32, layerwise, merged, auto) has that name, and"},
        {"loop", NULL, "AUTO", ESP_E_NOT_FOUND, "did you mean 'auto'?"},
        {"loop", NULL, "topk:ratio=0.1", ESP_E_NOT_FOUND, "'topk' is a codec: ESPRESSO_CODEC=topk:ratio=0.1"},
        {"loop", NULL, "/tmp", ESP_E_ARG, "Is a directory"},
        {"loop", NULL, "/dev/null", ESP_E_ARG, "the file is empty: espresso plan"},
        {"loop", "fp16,topk", "auto", ESP_E_ARG, "codecs stand with ';' between"},
        {"loop", NULL, "autto", ESP_E_NOT_FOUND, "did you mean 'auto'?"},
        {"loop", "topk:ratio=0.01;efsignsgd", NULL, ESP_E_ARG, "ESPRESSO_STRATEGY=auto"},
        {"loop", "fp16;efsignsgd", NULL, ESP_E_ARG, "is a list, but one codec is expected here"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        esp_ctx *ctx = NULL;
        esp_status s = open_alone(bad[i].backend, bad[i].codec, bad[i].strategy, &ctx);
        if (!strstr(esp_last_error(ctx), bad[i].says) || s != bad[i].status)
            fail_msg("case %d gave %s: %s", (int)i, esp_status_name(s), esp_last_error(ctx));
        assert_true(s < 0);
        esp_close(ctx);
    }
    esp_close(NULL);
    assert_int_equal(esp_open(NULL, NULL), ESP_E_ARG);
}

/* If a thread of the library sets the status of an error before its text, calls on other threads must wait for the
 * text. */
static void *barrier_main(void *arg) {
    esp_ctx *ctx = arg;
    CHECK(esp_barrier(ctx) == ESP_E_NOMEM && error_has(ctx, "no memory left"));
    CHECK(esp_strategy_set(ctx, "fp32") == ESP_E_NOMEM && error_has(ctx, "no memory left"));
    return NULL;
}
static void body_dying(esp_ctx *ctx, void *user) {
    pthread_t thread;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->health.fatal = ESP_E_NOMEM;
    CHECK(pthread_create(&thread, NULL, barrier_main, ctx) == 0);
    usleep(20000);
    snprintf(ctx->health.fatal_text, sizeof ctx->health.fatal_text, "no memory left");
    pthread_mutex_unlock(&ctx->lanes.lock);
    pthread_join(thread, NULL);
}
TEST(test_dying) { run(1, 1, body_dying, NULL, NULL, 0); }
