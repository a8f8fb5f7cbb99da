/* test_rounds.c checks codecs that need several exchanges between ranks for one gradient: every option, equal bits, no
 * lost gradients, discarded steps, saved states, changes of strategy, NaN. */
/* runs: slow asan-long tsan-long */
#include "tests/lib/test.h"
#include "tests/lib/rounds_codec.h"

#define FLAT "comp@cpu > flat.allreduce > decomp@cpu"
#define TREE "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather"
#define TREE_ALL "comp@cpu > intra.reduce_scatter > inter.allreduce > intra.allgather > decomp@cpu"

typedef struct task {
    const char *codec, *option, *path;
    uint64_t count;
    int steps;
} task;

static void run(int32_t size, int32_t per_machine, uint32_t flags, void (*body)(esp_ctx *, void *), task *k) {
    static const esp_plugin_fn builtin[] = {rounds_entry};
    RUN_RANKS(.size = size, .per_machine = per_machine, .body = body, .user = k, .config.builtin = builtin,
              .config.n_builtin = 1, .config.flags = flags, .config.timeout_ms = 30000);
}

static int add_tensor(esp_ctx *ctx, const task *k, const char *option) {
    char name[32];
    snprintf(name, sizeof name, "t%u", ctx->model.n_tensors);
    esp_tensor_desc d = {.name = name, .count = k->count, .codec = k->codec, .option = option};
    return esp_tensor_add(ctx, &d, NULL) != ESP_OK;
}

typedef struct adding {
    esp_ctx *ctx;
    const task *k;
    int failed;
} adding;
static int add_option(void *user, const esp__option *o) {
    adding *a = user;
    char text[ESP__TEXT_MAX];
    if (!esp__option_compresses(o)) return 0;
    esp__option_print(o, text, sizeof text);
    a->failed |= add_tensor(a->ctx, a->k, text);
    return 0;
}

static float gradient(int32_t rank, uint32_t t, int step, uint64_t i) {
    return (float)((int)((i * 7 + t * 3 + (uint64_t)step * 5 + (uint64_t)rank * 11) % 13) - 6) * 0.37f;
}

static void fill(const esp_ctx *ctx, const task *k, float *g, int step) {
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++)
        for (uint64_t i = 0; i < k->count; i++) g[t * k->count + i] = gradient(ctx->job.rank, t, step, i);
}

static void step_run(esp_ctx *ctx, const task *k, float *g) {
    esp_stream here = ESP_ZERO;
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++) CHECK(esp_push(ctx, t, g + t * k->count, here) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_OK);
}

static void check_same_options(esp_ctx *ctx, const task *k, const float *g) {
    const uint64_t bytes = ctx->model.n_tensors * k->count * 4;
    float *root = malloc(bytes);
    memcpy(root, g, bytes);
    CHECK(esp_broadcast(ctx, root, bytes, 0) == ESP_OK);
    for (uint32_t t = 0; t < ctx->model.n_tensors; t++) {
        char option[ESP__TEXT_MAX];
        if (!memcmp(root + t * k->count, g + t * k->count, k->count * 4)) continue;
        esp__option_print(&ctx->active.strategy.units[t].option, option, sizeof option);
        fprintf(stderr, "%s: ranks differ\n", option);
        atomic_fetch_add(&failures, 1);
    }
    free(root);
}

/* Checks that no gradient is lost: over all ranks and steps, the sum of gradients must equal the sum of results and
 * of what is left in residuals. `out` has the sum of results. */
static void check_conserved(esp_ctx *ctx, const task *k, const double *out) {
    const uint64_t n = ctx->model.n_tensors * k->count;
    float *held = calloc(n, 4);
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        for (uint64_t x = 0; f->owner_replica && x < f->count; x++)
            held[f->place.first * k->count + f->offset + x] += f->residual[x];
    }
    CHECK(esp_allreduce(ctx, held, n) == ESP_OK);
    for (uint64_t x = 0; x < n; x++) {
        double in = 0;
        for (int s = 0; s < k->steps; s++)
            for (int32_t r = 0; r < ctx->job.size; r++)
                in += (double)gradient(r, (uint32_t)(x / k->count), s, x % k->count);
        if (fabs(out[x] * ctx->job.size + (double)held[x] - in) <= 1e-3) continue;
        char option[ESP__TEXT_MAX];
        esp__option_print(&ctx->active.strategy.units[x / k->count].option, option, sizeof option);
        fprintf(stderr, "%s: element %d: %g went in, %g came out, %g is held\n", option, (int)(x % k->count), in,
                out[x] * ctx->job.size, (double)held[x]);
        atomic_fetch_add(&failures, 1);
        break;
    }
    free(held);
}

static void options_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    const int flat = ctx->job.topo.n_local <= 1 || ctx->job.topo.n_machines == 1;
    adding a = {ctx, k, 0};
    esp__option_each(flat ? ESP__TREE_FLAT : ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 1, 1, add_option, &a);
    CHECK(!a.failed && esp_start(ctx) == ESP_OK);
    const uint64_t n = ctx->model.n_tensors * k->count;
    float *g = malloc(n * 4);
    double *out = calloc(n, sizeof *out);
    CHECK(!flat || ctx->model.n_tensors >= 10);
    for (int step = 0; step < k->steps && !atomic_load(&failures); step++) {
        fill(ctx, k, g, step);
        step_run(ctx, k, g);
        for (uint64_t i = 0; i < n; i++) out[i] += (double)g[i];
        check_same_options(ctx, k, g);
    }
    check_conserved(ctx, k, out);
    free(g);
    free(out);
}

/* Runs every kind of strategy on one machine and several. With 1 or 5 elements, some ranks have none to compress. */
TEST(test_options) {
    static const int32_t shapes[][2] = {{4, 2}, {6, 2}, {3, 3}, {2, 2}, {6, 3}};
    static const uint64_t counts[] = {5, 515, 1, 37};
    static const char *const codecs[] = {"shared2", "shared3", "int8:shared=1"};
    for (size_t c = 0; c < 3; c++)
        for (size_t s = 0; s < 5; s++)
            for (size_t n = 0; n < (s ? 2 : 4); n++) {
                task k = {.codec = codecs[c], .count = counts[n], .steps = 2};
                run(shapes[s][0], shapes[s][1], 0, options_body, &k);
            }
}

/* ---- orders in which the collectives of all exchanges run: wrong ones are refused, right ones kept --------------- */
static void order_body(esp_ctx *ctx, void *user) {
    static const char unit[] = "espresso-strategy 1\ntensor t0 37 shared2 " TREE_ALL "\ntensor t1 37 shared3 " FLAT
                               "\ntensor t2 2 shared2 " FLAT "\n";
    static const struct {
        const char *order, *says;
    } bad[] = {
        {"order 0:1 0:2 0:1 0:2 0:3 1:1 1:1 2:1\n",
         "order: 1:1 is missing in round 3 of its codec's 3: unit 1 is 't1'"},
        {"order 0:1 0:2 0:1 0:2 0:3 1:1 1:1 1:1 1:1 2:1\n",
         "1:1 stands where unit 1 has no collective left: it comes too often"},
        {"order 0:1 0:2 0:1 0:2 0:3 1:1 1:1 1:1 2:1 2:1\n",
         "2:1 stands where unit 2 has no collective left: it comes twice"},
        {"order 0:1 0:1 0:2 0:2 0:3 1:1 1:1 1:1 2:1\n", "order: 0:1 stands where 0:2 must come first"},
        {"order 0:1 0:2 0:3 0:1 0:2 1:1 1:1 1:1 2:1\n", "order: 0:3 stands where 0:1 must come first"},
        {"order 0:1 0:2 0:1 0:2 0:3 1:1 1:0 1:1 1:0 1:0 1:1 2:1\n", "order: 1:0 comes twice, or too late"},
    };
    static const char *const good[] = {"order 0:1 1:1 0:2 2:1 0:1 1:1 0:2 1:1 0:3\n",
                                       "order b b b 0:0 0:1 0:2 0:0 0:1 0:2 0:3 0:4 1:0 1:1 1:0 1:1 1:0 1:1 1:2 2:1\n"};
    char text[1024], *printed;
    static const uint64_t counts[] = {37, 37, 2};
    for (int t = 0; t < 3; t++) {
        task one = {.count = counts[t]};
        CHECK(!add_tensor(ctx, &one, NULL));
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "%s%s", unit, bad[i].order);
        CHECK(esp_strategy_set(ctx, text) == ESP_E_ARG && error_has(ctx, bad[i].says));
    }
    for (int i = -1; i < 2; i++) {
        snprintf(text, sizeof text, "%s%s", unit, i < 0 ? "" : good[i]);
        CHECK(esp_strategy_set(ctx, text) == ESP_OK);
        printed = strdup(ctx->active.strategy.text);
        const uint64_t hash = ctx->active.strategy.hash;
        CHECK(ctx->active.strategy.n_order == 9);
        char order[256] = "order", word[ESP__ENTRY_MAX];
        for (uint32_t e = 0; e < ctx->active.strategy.n_entries; e++) {
            strcat(order, " ");
            strcat(order, esp__order_entry_word(&ctx->active.strategy.entries[e], word));
        }
        CHECK(i < 0 || !strcmp(strcat(order, "\n"), good[i]));
        CHECK(esp_strategy_set(ctx, printed) == ESP_OK && ctx->active.strategy.hash == hash);
        float g[3][37];
        esp_stream here = ESP_ZERO;
        for (uint32_t t = 0; t < 3; t++)
            for (int x = 0; x < 37; x++) g[t][x] = 1.0f;
        for (uint32_t t = 0; t < 3; t++) CHECK(esp_push(ctx, t, g[t], here) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        CHECK(fabsf(g[0][5] - 1) < 0.01f && fabsf(g[1][5] - 1) < 0.01f && g[2][1] == 1.0f);
        free(printed);
    }
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++) {
        const esp__op *op = &ctx->active.program.ops[i];
        if (op->unit == 1 && op->step == 1 && op->round == 1) CHECK(!strcmp(op->label, "flat.allreduce[2/3] t1"));
        if (op->unit == 0 && op->step == 4) CHECK(!strcmp(op->label, "decomp@cpu t0"));
    }
}

TEST(test_order) {
    task k = {0};
    run(4, 2, 0, order_body, &k);
}

/* ---- codecs whose payloads must be summed ------------------------------------------------------------------------ */
static void allreduce_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    CHECK(!add_tensor(ctx, k, NULL) && esp_start(ctx) == ESP_OK);
    static const char *const no[] = {
        "comp@cpu > flat.allgather > decomp@cpu", TREE_ALL,
        "comp@cpu > flat.reduce_scatter > decomp@cpu > flat.allgather",
        "intra.reduce_scatter > comp@cpu > inter.allreduce > intra.allgather > decomp@cpu"};
    static const char *const yes[] = {FLAT, TREE, "flat.allreduce",
                                      "intra.reduce > comp@cpu > inter.allreduce > decomp@cpu > intra.broadcast"};
    char text[512];
    for (size_t i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "espresso-strategy 1\ntensor t0 37 sharedall %s\n", no[i]);
        CHECK(esp_strategy_set(ctx, text) == ESP_E_ARG &&
              error_has(ctx, "every rank must get the sum of all payloads"));
        snprintf(text, sizeof text, "espresso-strategy 1\ntensor t0 37 sharedall %s\n", yes[i]);
        CHECK(esp_strategy_set(ctx, text) == ESP_OK);
    }
}
TEST(test_only_allreduce) {
    task k = {.count = 37, .codec = NULL};
    run(4, 2, 0, allreduce_body, &k);
}

/* ---- state between steps -------------------------------------------------------------------------------- */
/* A discarded step must leave neither a residual nor the codec's state changed. */
static void discard_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    float *g = malloc(k->count * 4), *want = malloc(k->count * 4);
    CHECK(!add_tensor(ctx, k, k->option) && esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 4; step++) {
        const esp__feedback *f = &ctx->active.feedback[0];
        for (int again = 0; again < 2; again++) {
            fill(ctx, k, g, step);
            step_run(ctx, k, g);
            for (uint64_t x = 0; f->state && x < f->state_bytes / 64; x++)
                CHECK(((const rounds_state *)(const void *)(f->state + x * 64))->steps == (uint32_t)step + 1);
            if (again) {
                CHECK(!memcmp(g, want, k->count * 4));
                continue;
            }
            memcpy(want, g, k->count * 4);
            CHECK(esp_discard_step(ctx) == ESP_OK);
        }
        CHECK(f->state && ((const rounds_state *)(const void *)f->state)->decoded > 0);
    }
    free(g);
    free(want);
}
TEST(test_discard) {
    static const char *const options[] = {FLAT, TREE, TREE_ALL};
    for (int i = 0; i < 3; i++) {
        task k = {.codec = "shared3", .option = options[i], .count = 515};
        run(4, 2, ESP_DISCARDABLE, discard_body, &k);
    }
}

static void save_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    float *g = malloc(k->count * 4), *want = malloc(k->count * 4);
    CHECK(!add_tensor(ctx, k, k->option) && esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 4; step++) {
        if (step == 2) CHECK(esp_state_save(ctx, k->path) == ESP_OK);
        fill(ctx, k, g, step);
        step_run(ctx, k, g);
    }
    memcpy(want, g, k->count * 4);
    CHECK(esp_state_load(ctx, k->path) == ESP_OK);
    CHECK(((const rounds_state *)(const void *)ctx->active.feedback[0].state)->steps == 2);
    for (int step = 2; step < 4; step++) {
        fill(ctx, k, g, step);
        step_run(ctx, k, g);
    }
    CHECK(!memcmp(g, want, k->count * 4));
    free(g);
    free(want);
}
TEST(test_state) {
    char path[64], name[96];
    snprintf(path, sizeof path, "/tmp/espresso_rounds_%d", (int)getpid());
    task k = {.codec = "shared3", .option = TREE, .count = 515, .path = path};
    run(4, 2, 0, save_body, &k);
    for (int r = 0; r < 4; r++) {
        snprintf(name, sizeof name, "%s.r%dof4", path, r);
        assert_int_equal(unlink(name), 0);
    }
}

static void change_body(esp_ctx *ctx, void *user) {
    task *k = user;
    static const char *const lines[] = {"shared2 " FLAT,
                                        "int8:shared=1 " TREE,
                                        "shared3 " TREE,
                                        "shared2 " TREE_ALL,
                                        "int8:shared=1 " FLAT,
                                        "none flat.allreduce",
                                        "shared3 comp@cpu > flat.alltoall > decomp@cpu > flat.allgather"};
    float g[37];
    double out[37] = {0};
    char text[256];
    CHECK(!add_tensor(ctx, k, NULL) && esp_start(ctx) == ESP_OK);
    for (int step = 0; step < k->steps; step++) {
        snprintf(text, sizeof text, "espresso-strategy 1\ntensor t0 37 %s\n", lines[step % 7]);
        CHECK(esp_strategy_set(ctx, text) == ESP_OK);
        fill(ctx, k, g, step);
        step_run(ctx, k, g);
        for (int i = 0; i < 37; i++) out[i] += (double)g[i];
        check_same_options(ctx, k, g);
    }
    check_conserved(ctx, k, out);
}
TEST(test_change) {
    task k = {.count = 37, .steps = 10};
    run(4, 2, 0, change_body, &k);
}

/* A NaN on one rank reaches all ranks in the first exchange, and no residual changes. */
static void nan_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    float g[37], before[37];
    CHECK(!add_tensor(ctx, k, k->option) && esp_start(ctx) == ESP_OK);
    fill(ctx, k, g, 0);
    step_run(ctx, k, g);
    const esp__feedback *f = &ctx->active.feedback[0];
    memcpy(before, f->residual, f->count * 4);
    fill(ctx, k, g, 1);
    if (ctx->job.rank == 1) g[36] = NAN;
    step_run(ctx, k, g);
    CHECK(isnan(g[36]));
    CHECK(strcmp(k->option, FLAT) || !memcmp(before, f->residual, f->count * 4));
    fill(ctx, k, g, 2);
    step_run(ctx, k, g);
    for (int i = 0; i < 37; i++) CHECK(isfinite(g[i]));
    check_same_options(ctx, k, g);
}
TEST(test_nan) {
    static const char *const options[] = {FLAT, TREE, TREE_ALL, "comp@cpu > flat.allgather > decomp@cpu"};
    static const char *const codecs[] = {"shared2", "shared3", "int8:shared=1"};
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 3; c++) {
            task k = {.codec = codecs[c], .option = options[i], .count = 37};
            run(4, 2, 0, nan_body, &k);
        }
}

/* ---- codec int8 with one scale for all ranks (shared=1), with extreme inputs ------------------------------------- */
/* In step 0 every rank sends the codec's largest number, so that sums are as large as possible. In step 1 values
 * differ, and results may be off by half of the smallest difference that the codec can send. Later gradients are
 * zero. */
static void full_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    const int32_t size = ctx->job.size;
    float *g = malloc(k->count * 4);
    CHECK(!add_tensor(ctx, k, k->option) && esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 3; step++) {
        for (uint64_t i = 0; i < k->count; i++)
            g[i] = step == 0 ? (i % 2 ? -127.0f : 127.0f) : step == 1 ? gradient(ctx->job.rank, 0, 1, i) : 0;
        step_run(ctx, k, g);
        check_same_options(ctx, k, g);
        for (uint64_t i = 0; i < k->count && !atomic_load(&failures); i++) {
            double mean = 0;
            for (int32_t r = 0; r < size && step == 1; r++) mean += (double)gradient(r, 0, 1, i) / size;
            if (step == 0) CHECK(fabsf(g[i] - (i % 2 ? -127.0f : 127.0f)) < 2e-5f); /* dividing by 127 rounds */
            if (step == 1) CHECK(fabs((double)g[i] - mean) <= 2.22 / 127 / 2 + 1e-6);
            if (step == 2) CHECK(fabs((double)g[i]) <= 2.22 / 127);
        }
    }
    free(g);
}
TEST(test_int8_full) {
    static const char *const flat[] = {FLAT, "comp@cpu > flat.reduce_scatter > flat.allgather > decomp@cpu",
                                       "comp@cpu > flat.reduce_scatter > decomp@cpu > flat.allgather",
                                       "comp@cpu > flat.allgather > decomp@cpu"};
    static const char *const tree[] = {TREE, TREE_ALL,
                                       "intra.reduce > comp@cpu > inter.allreduce > decomp@cpu > intra.broadcast"};
    for (int32_t size = 2; size <= 8; size++) {
        for (int i = 0; i < 4; i++) {
            task k = {.codec = "int8:shared=1", .option = flat[i], .count = 515};
            run(size, size, 0, full_body, &k);
        }
        for (int i = 0; i < 3 && size % 2 == 0 && size > 2; i++) {
            task k = {.codec = "int8:shared=1", .option = tree[i], .count = 515};
            run(size, size / 2, 0, full_body, &k);
        }
    }
}

static void halves_body(esp_ctx *ctx, void *user) {
    const task *k = user;
    uint16_t g[37];
    esp_stream here = ESP_ZERO;
    esp_tensor_desc d = {.name = "t", .count = 37, .dtype = ESP_F16, .codec = k->codec, .option = k->option};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK);
    for (uint64_t i = 0; i < 37; i++) test_value_set(ESP_F16, g, i, i == 3 ? 2.0f : 1.0f);
    CHECK(esp_push(ctx, 0, g, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK);
    CHECK(fabsf(test_value(ESP_F16, g, 3) - 2.0f) < 0.01f && fabsf(test_value(ESP_F16, g, 4) - 1.0f) < 0.01f);
}
TEST(test_halves) {
    task k = {.codec = "shared2", .option = TREE};
    run(4, 2, 0, halves_body, &k);
}
