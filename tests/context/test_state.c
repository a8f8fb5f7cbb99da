/* test_state.c saves and loads states. A resumed job must give the same bits, and a damaged, foreign or missing state
 * must change nothing on any rank. Ranks are threads. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/context/state.h"

enum { N = 777, RANKS = 4 };
#if defined(__SANITIZE_THREAD__)
enum { EVERY = 5 }; /* it is slow; an odd number, so that both options run */
#else
enum { EVERY = 1 };
#endif
static const char *const two =
    "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > "
    "decomp@cpu > intra.allgather";
static char path[64];
static void use(const char *name) { snprintf(path, sizeof path, "%s", in_folder(name)); }

static void run(int32_t size, void (*body)(esp_ctx *, void *), void *user, const char *codec, uint64_t seed) {
    RUN_RANKS(.size = size, .per_machine = 2, .body = body, .user = user, .config.codec = codec, .config.seed = seed,
              .config.timeout_ms = 20000);
}

static void start(esp_ctx *ctx, uint64_t count, const char *option) {
    uint32_t id;
    esp_tensor_desc d = {.name = "first.weight", .count = count, .option = option};
    CHECK(esp_tensor_add(ctx, &d, &id) == ESP_OK);
    d.name = "last.bias";
    d.count = 10;
    CHECK(esp_tensor_add(ctx, &d, &id) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
}

/* Runs a step whose gradients depend only on its number and the rank. `out` gets the mean of the first tensor. */
static void step(esp_ctx *ctx, int number, float out[N]) {
    float bias[10];
    esp_stream here = ESP_ZERO;
    for (int i = 0; i < N; i++) out[i] = (float)((i * 37 + number * 101 + esp_rank(ctx) * 11) % 97) - 40.5f;
    for (int i = 0; i < 10; i++) bias[i] = (float)(i + number);
    CHECK(esp_push(ctx, 0, out, here) == ESP_OK);
    CHECK(esp_push(ctx, 1, bias, here) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_OK);
}

static float expected[6][N];

static void body_whole(esp_ctx *ctx, void *user) {
    float out[N];
    start(ctx, N, (const char *)user);
    for (int k = 0; k < 6; k++) {
        step(ctx, k, out);
        if (esp_rank(ctx) == 0) memcpy(expected[k], out, sizeof out);
    }
}
static void body_first_half(esp_ctx *ctx, void *user) {
    float out[N];
    start(ctx, N, (const char *)user);
    for (int k = 0; k < 3; k++) step(ctx, k, out);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
}
static void body_second_half(esp_ctx *ctx, void *user) {
    float out[N];
    start(ctx, N, (const char *)user);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    for (int k = 3; k < 6; k++) {
        step(ctx, k, out);
        CHECK(memcmp(out, expected[k], sizeof out) == 0);
    }
}

/* Tries codecs with residuals, with momenta, and with random numbers. The resumed job has another seed. */
TEST(test_resumed_run_is_bit_identical) {
    static const char *const codecs[] = {
        "topk:ratio=0.05", "dgc:ratio=0.05", "randomk:ratio=0.1", "efsignsgd", "twobit", "int8", "int8:shared=1",
        "int4", "chunktopk:chunk=64,k=8", "fp16:of=(topk:ratio=0.05)",
        /* The state is saved after 3 steps: before the first of these has warmed up, and after the second has. */
        "warmup:steps=4,of=(dgc:ratio=0.05)", "warmup:steps=3,of=(fp16:of=(topk:ratio=0.05))"};
    for (size_t c = 0; c < 2 * sizeof codecs / sizeof *codecs; c += getenv("TEST_ALL") ? 1 : EVERY) {
        /* Option `two` compresses several times. The other option compresses each rank's own gradient, for which dgc
         * keeps momenta. */
        const char *option = c % 2 ? two : "comp@cpu > flat.allgather > decomp@cpu";
        run(RANKS, body_whole, (void *)(uintptr_t)option, codecs[c / 2], 5);
        run(RANKS, body_first_half, (void *)(uintptr_t)option, codecs[c / 2], 5);
        run(RANKS, body_second_half, (void *)(uintptr_t)option, codecs[c / 2], 6);
    }
}

/* After a change to a strategy that does not compress, residuals wait to be added to the next gradient. They are
 * saved and loaded, too. */
static void body_carry(esp_ctx *ctx, void *user) {
    float out[N], again[N];
    char after[128];
    snprintf(after, sizeof after, "%s.pending_residual", path);
    start(ctx, N, NULL);
    for (int k = 0; k < 3; k++) step(ctx, k, out);
    CHECK(esp_strategy_set(ctx, "fp32") == ESP_OK);
    CHECK(ctx->model.tensors[0].pending_residual != NULL);
    CHECK(esp_state_save(ctx, after) == ESP_OK);
    step(ctx, 3, out);
    CHECK(ctx->model.tensors[0].pending_residual == NULL);
    CHECK(esp_state_load(ctx, after) == ESP_OK);
    CHECK(ctx->model.tensors[0].pending_residual != NULL);
    CHECK(ctx->steps.step == 3);
    step(ctx, 3, again);
    CHECK(memcmp(out, again, sizeof out) == 0);
}
TEST(test_carried_feedback) { run(RANKS, body_carry, NULL, "topk:ratio=0.05", 0); }

typedef struct tape {
    uint8_t data[65536];
    uint64_t n, at, end;
} tape;
static esp_status tape_write(void *user, void *data, uint64_t bytes) {
    tape *t = (tape *)user;
    if (t->n + bytes > t->end) return ESP_E_TOO_SMALL;
    memcpy(t->data + t->n, data, bytes);
    t->n += bytes;
    return ESP_OK;
}
static esp_status tape_read(void *user, void *data, uint64_t bytes) {
    tape *t = (tape *)user;
    if (t->at + bytes > t->n) return ESP_E_CORRUPT;
    memcpy(data, t->data + t->at, bytes);
    t->at += bytes;
    return ESP_OK;
}

/* Hashes everything in the context that loading a state may change. */
static uint64_t fingerprint(const esp_ctx *ctx) {
    uint64_t h = ESP__HASH0;
    h = esp__hash64(h, &ctx->steps.step, sizeof ctx->steps.step);
    h = esp__hash64(h, &ctx->config.seed, sizeof ctx->config.seed);
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        if (f->residual) h = esp__hash64(h, f->residual, f->count * 4);
        if (f->state) h = esp__hash64(h, f->state, f->state_bytes);
    }
    return h;
}

static void body_memory(esp_ctx *ctx, void *user) {
    tape *t = (tape *)calloc(1, sizeof *t);
    float out[N];
    uint64_t saved, other;
    t->end = sizeof t->data;
    start(ctx, N, two);
    for (int k = 0; k < 2; k++) step(ctx, k, out);
    saved = fingerprint(ctx);
    CHECK(esp_state_write(ctx, tape_write, t) == ESP_OK);
    step(ctx, 2, out);
    other = fingerprint(ctx);
    CHECK(saved != other);
    CHECK(esp_state_read(ctx, tape_read, t) == ESP_OK);
    CHECK(t->at == t->n);
    CHECK(fingerprint(ctx) == saved);
    t->n = 0;
    t->end = esp_rank(ctx) == 2 ? 1000 : sizeof t->data;
    CHECK(esp_state_write(ctx, tape_write, t) == ESP_E_TOO_SMALL);
    CHECK(esp_rank(ctx) == 2 || strstr(esp_last_error(ctx), "rank 2"));
    free(t);
}
TEST(test_through_callbacks) { run(RANKS, body_memory, NULL, "dgc:ratio=0.05", 3); }

static void body_damage(esp_ctx *ctx, void *user) {
    tape *t = (tape *)calloc(1, sizeof *t);
    float out[N];
    uint64_t before, n;
    t->end = sizeof t->data;
    start(ctx, N, NULL);
    step(ctx, 0, out);
    CHECK(esp_state_write(ctx, tape_write, t) == ESP_OK);
    step(ctx, 1, out);
    before = fingerprint(ctx);
    n = t->n;
    for (uint64_t i = 0; i < n; i += i < 400 ? 1 : 7) {
        t->data[i] ^= (uint8_t)(1u << (i % 8));
        t->at = 0;
        esp_status s = esp_state_read(ctx, tape_read, t);
        /* bytes 8 to 11 are the format's version */
        CHECK(s == ESP_E_CORRUPT || (i >= 8 && i < 12 && s == ESP_E_MISMATCH));
        t->data[i] ^= (uint8_t)(1u << (i % 8));
    }
    for (t->n = 0; t->n < n; t->n += t->n < 200 ? 1 : 13) {
        t->at = 0;
        CHECK(esp_state_read(ctx, tape_read, t) == ESP_E_CORRUPT);
    }
    CHECK(fingerprint(ctx) == before);
    t->n = n;
    t->at = 0;
    CHECK(esp_state_read(ctx, tape_read, t) == ESP_OK);
    CHECK(fingerprint(ctx) != before);
    free(t);
}
TEST(test_damage_is_found) { run(1, body_damage, NULL, "topk:ratio=0.05", 0); }

static void body_versions(esp_ctx *ctx, void *user) {
    tape *t = (tape *)calloc(1, sizeof *t);
    t->end = sizeof t->data;
    start(ctx, N, two);
    CHECK(esp_state_write(ctx, tape_write, t) == ESP_OK);
    for (uint32_t version = 0; version < 5; version++) {
        memcpy(t->data + 8, &version, sizeof version);
        t->at = 0;
        CHECK(esp_state_read(ctx, tape_read, t) == (version == ESP__STATE_VERSION ? ESP_OK : ESP_E_MISMATCH));
        CHECK(version == ESP__STATE_VERSION || strstr(esp_last_error(ctx), "reads version 3"));
    }
    free(t);
}
TEST(test_other_versions_are_refused) { run(RANKS, body_versions, NULL, "dgc:ratio=0.05", 3); }

/* ---- with strategy "auto", which changes the strategy by itself: loading a state also loads its strategy ---- */
static void run_auto(void (*body)(esp_ctx *, void *), void *user, uint64_t seed) {
    RUN_RANKS(.size = RANKS, .per_machine = 2, .body = body, .user = user, .config.strategy = "auto:steps=100",
              .config.codec = "dgc:ratio=0.05", .config.seed = seed, .config.timeout_ms = 20000);
}

static int compresses(const esp_ctx *ctx) { return strstr(esp_strategy_text(ctx), "comp@cpu") != NULL; }
static uint64_t saved_strategy;

static void body_save_strategy(esp_ctx *ctx, void *user) {
    body_first_half(ctx, user);
    if (esp_rank(ctx) == 0) saved_strategy = ctx->active.strategy.hash;
}

static void body_auto_resumes(esp_ctx *ctx, void *user) {
    float out[N];
    start(ctx, N, NULL);
    CHECK(!compresses(ctx));
    for (int k = 0; k < *(const int *)user; k++) step(ctx, 90 + k, out); /* auto may try another strategy */
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    CHECK(compresses(ctx) && ctx->active.strategy.hash == saved_strategy && ctx->steps.step == 3);
    for (int k = 3; k < 6; k++) {
        step(ctx, k, out);
        CHECK(memcmp(out, expected[k], sizeof out) == 0);
    }
    CHECK(ctx->active.strategy.hash == saved_strategy);
}
TEST(test_auto_takes_the_saved_strategy) {
    run(RANKS, body_whole, (void *)(uintptr_t)two, "dgc:ratio=0.05", 5);
    run(RANKS, body_save_strategy, (void *)(uintptr_t)two, "dgc:ratio=0.05", 5);
    for (int before = 0; before < 4; before += 3) run_auto(body_auto_resumes, &before, 6);
}

/* If loading fails on one rank, nothing changes on any rank, not even the strategy. */
static void body_auto_refuses(esp_ctx *ctx, void *user) {
    char name[160], kept[200];
    float out[N];
    start(ctx, N, NULL);
    step(ctx, 0, out);
    const uint64_t before = fingerprint(ctx), strategy = ctx->active.strategy.hash;
    snprintf(name, sizeof name, "%s.r1of4", path);
    snprintf(kept, sizeof kept, "%s.kept", name);
    if (esp_rank(ctx) == 1) CHECK(rename(name, kept) == 0);
    CHECK(esp_state_load(ctx, path) == ESP_E_NOT_FOUND);
    CHECK(fingerprint(ctx) == before && ctx->active.strategy.hash == strategy);
    CHECK(esp_barrier(ctx) == ESP_OK);
    if (esp_rank(ctx) == 1) CHECK(rename(kept, name) == 0);
    step(ctx, 1, out);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    CHECK(ctx->active.strategy.hash == saved_strategy);
}
TEST(test_auto_keeps_its_strategy_on_failure) {
    run(RANKS, body_save_strategy, (void *)(uintptr_t)two, "dgc:ratio=0.05", 5);
    run_auto(body_auto_refuses, NULL, 6);
}

/* Loading a state does not replace a strategy that the program has set itself. */
static void body_program_decides(esp_ctx *ctx, void *user) {
    float out[N];
    start(ctx, N, NULL);
    CHECK(esp_strategy_set(ctx, "layerwise") == ESP_OK);
    const uint64_t strategy = ctx->active.strategy.hash;
    CHECK(strategy != saved_strategy);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    CHECK(ctx->active.strategy.hash == strategy && ctx->steps.step == 3);
    step(ctx, 3, out);
    CHECK(ctx->active.strategy.hash == strategy);
}
TEST(test_auto_leaves_the_program_its_strategy) {
    run(RANKS, body_save_strategy, (void *)(uintptr_t) "comp@cpu > flat.allgather > decomp@cpu", "dgc:ratio=0.05", 5);
    run_auto(body_program_decides, NULL, 6);
}

static void body_damaged_file(esp_ctx *ctx, void *user) {
    char name[160];
    float out[N];
    uint64_t before;
    start(ctx, N, two);
    for (int k = 0; k < 3; k++) step(ctx, k, out);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    step(ctx, 3, out);
    before = fingerprint(ctx);
    snprintf(name, sizeof name, "%s.r1of4", path);
    if (esp_rank(ctx) == 1) CHECK(truncate(name, 500) == 0);
    CHECK(esp_state_load(ctx, path) == ESP_E_CORRUPT);
    CHECK(strstr(esp_last_error(ctx), esp_rank(ctx) == 1 ? "ends too early" : "rank 1 could not load"));
    CHECK(esp_barrier(ctx) == ESP_OK);
    if (esp_rank(ctx) == 1) CHECK(unlink(name) == 0);
    CHECK(esp_state_load(ctx, path) == ESP_E_NOT_FOUND);
    CHECK(fingerprint(ctx) == before);
    CHECK(esp_state_load(ctx, "/no/such/dir/x") == ESP_E_NOT_FOUND);
    step(ctx, 4, out);
}
TEST(test_damaged_and_missing_files) { run(RANKS, body_damaged_file, NULL, "topk:ratio=0.05", 0); }

static void body_save(esp_ctx *ctx, void *user) {
    float out[N];
    start(ctx, N, NULL);
    step(ctx, 0, out);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
}
static void body_other_model(esp_ctx *ctx, void *user) {
    start(ctx, N + 1, NULL);
    CHECK(esp_state_load(ctx, path) == ESP_E_MISMATCH);
    CHECK(strstr(esp_last_error(ctx), "tensor 0 is first.weight with 777 elements there, first.weight with 778 here"));
}
static void body_other_strategy(esp_ctx *ctx, void *user) {
    start(ctx, N, NULL);
    CHECK(esp_state_load(ctx, path) == ESP_E_MISMATCH);
    CHECK(strstr(esp_last_error(ctx), "another strategy"));
}
/* Rank 3 loads an older state than the others. */
static void body_other_step(esp_ctx *ctx, void *user) {
    float out[N];
    char name[160], old[200];
    start(ctx, N, NULL);
    step(ctx, 0, out);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    snprintf(name, sizeof name, "%s.r3of4", path);
    snprintf(old, sizeof old, "%s.old", name);
    if (esp_rank(ctx) == 3) CHECK(rename(name, old) == 0);
    step(ctx, 1, out);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    if (esp_rank(ctx) == 3) CHECK(rename(old, name) == 0);
    CHECK(esp_state_load(ctx, path) == ESP_E_MISMATCH);
    CHECK(strstr(esp_last_error(ctx), "rank 3's of step 1"));
}
/* Rank 3 loads a state of the same step, saved under another strategy. */
static void body_mixed_strategies(esp_ctx *ctx, void *user) {
    float out[N];
    char name[160], old[200];
    start(ctx, N, NULL);
    step(ctx, 0, out);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    snprintf(name, sizeof name, "%s.r3of4", path);
    snprintf(old, sizeof old, "%s.old", name);
    if (esp_rank(ctx) == 3) CHECK(rename(name, old) == 0);
    CHECK(esp_strategy_set(ctx, "fp32") == ESP_OK);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    if (esp_rank(ctx) == 3) CHECK(rename(old, name) == 0);
    CHECK(esp_state_load(ctx, path) == ESP_E_MISMATCH);
    CHECK(strstr(esp_last_error(ctx), "was saved under strategy"));
}
TEST(test_foreign_states) {
    run(RANKS, body_save, NULL, "topk:ratio=0.05", 0);
    run(RANKS, body_other_model, NULL, "topk:ratio=0.05", 0);
    run(RANKS, body_other_strategy, NULL, "topk:ratio=0.25", 0);
    run(RANKS, body_other_step, NULL, "topk:ratio=0.05", 0);
    run(RANKS, body_mixed_strategies, NULL, "topk:ratio=0.05", 0);
}

/* ---- a state is loaded by a job with another number of ranks than the one that saved it ---- */
typedef struct resize {
    const char *option;
    uint32_t flags;
    int pending;          /* before the save, switch to a strategy that does not compress */
    float owed[RANKS][N]; /* each rank's result if all push zeros after the save */
} resize;

static void start_resize(esp_ctx *ctx, const resize *z) {
    const esp_tensor_desc d = {
        .name = "first.weight", .count = N, .rows = 21, .cols = 37, .flags = z->flags, .option = z->option};
    CHECK(!esp_tensor_add(ctx, &d, NULL));
    tensor_add(ctx, "last.bias", 10);
    CHECK(!esp_start(ctx));
}

/* Pushes zeros without compression. So `out` becomes what the residuals of all ranks add to the tensor's result. */
static void flush(esp_ctx *ctx, float out[N]) {
    static const esp_stream here = ESP_ZERO;
    float bias[10] = {0};
    CHECK(!esp_strategy_set(ctx, "fp32"));
    memset(out, 0, N * sizeof *out);
    CHECK(!esp_push(ctx, 0, out, here) && !esp_push(ctx, 1, bias, here) && !esp_wait_all(ctx));
}

static void body_resize_save(esp_ctx *ctx, void *user) {
    resize *z = user;
    float out[N];
    start_resize(ctx, z);
    for (int k = 0; k < 3; k++) step(ctx, k, out);
    if (z->pending) CHECK(!esp_strategy_set(ctx, "fp32"));
    CHECK(!esp_state_save(ctx, path));
    flush(ctx, z->owed[esp_rank(ctx)]);
}

static void body_resize_load(esp_ctx *ctx, void *user) {
    const resize *z = user;
    float out[N], most = 0.0f;
    start_resize(ctx, z);
    step(ctx, 9, out); /* leaves residuals, which loading replaces */
    CHECK(!esp_state_load(ctx, path));
    CHECK(ctx->steps.step == 3 && ctx->config.seed == 5);
    flush(ctx, out);
    for (int i = 0; i < N; i++) {
        CHECK(fabsf(out[i] - z->owed[0][i]) < 1e-3f);
        most = fmaxf(most, fabsf(out[i]));
    }
    CHECK(most > 10.0f);
}

/* Residuals of ranks that the job no longer has are not lost, and what residuals add to the mean or sum over ranks does
 * not depend on the number of ranks. */
TEST(test_other_number_of_ranks) {
    use("other_number_of_ranks");
    static const char *const flat = "comp@cpu > flat.allgather > decomp@cpu";
    static const char *const codecs[] = {"topk:ratio=0.05", "dgc:ratio=0.05", "powersgd:rank=1", "efsignsgd"};
    static const int32_t sizes[] = {1, 2, 3, 4, 6, 8};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int how = 0; how < 8; how++) {
            resize z = {.option = how & 1 && c != 2 ? flat : NULL, .flags = how & 2 ? ESP_SUM : 0, .pending = how & 4};
            run(RANKS, body_resize_save, &z, codecs[c], 5);
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                run(sizes[i], body_resize_load, &z, codecs[c], 6);
            }
        }
    use("state");
}

/* All ranks fail if the file of a rank that the job no longer has is missing, damaged or of another save. */
static void body_resize_errors(esp_ctx *ctx, void *user) {
    char name[160], other[200];
    float out[N];
    start_resize(ctx, user);
    step(ctx, 9, out);
    const uint64_t before = fingerprint(ctx);
    snprintf(name, sizeof name, "%s.r3of4", path);
    snprintf(other, sizeof other, "%s.other", name);
    if (esp_rank(ctx) == 1) CHECK(rename(name, other) == 0);
    CHECK(esp_state_load(ctx, path) == ESP_E_NOT_FOUND);
    CHECK(error_has(ctx, esp_rank(ctx) == 1 ? ".r3of4" : "rank 1 could not load"));
    if (esp_rank(ctx) == 1) {
        esp__state_head h;
        FILE *f = fopen(other, "rb"), *to = fopen(name, "wb");
        CHECK(fread(&h, sizeof h, 1, f) == 1);
        h.step++;
        CHECK(fwrite(&h, sizeof h, 1, to) == 1);
        fclose(f);
        fclose(to);
    }
    CHECK(esp_state_load(ctx, path) == ESP_E_CORRUPT);
    CHECK(esp_barrier(ctx) == ESP_OK);
    if (esp_rank(ctx) == 1) CHECK(rename(other, name) == 0);
    CHECK(fingerprint(ctx) == before);
    step(ctx, 10, out);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
}

/* Of saves by different numbers of ranks, the last one is loaded. */
static void body_resize_last(esp_ctx *ctx, void *user) {
    float out[N];
    start_resize(ctx, user);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    CHECK(ctx->steps.step == (esp_size(ctx) == 2 ? 3u : 4u));
    step(ctx, 4, out);
    if (esp_size(ctx) == 2) CHECK(esp_state_save(ctx, path) == ESP_OK);
}

TEST(test_files_of_other_numbers_of_ranks) {
    use("files_of_other_numbers_of_ranks");
    resize z = {0};
    run(RANKS, body_resize_save, &z, "topk:ratio=0.05", 5);
    run(2, body_resize_errors, &z, "topk:ratio=0.05", 6);
    run(2, body_resize_last, &z, "topk:ratio=0.05", 6);
    run(3, body_resize_last, &z, "topk:ratio=0.05", 6);
    run(RANKS, body_resize_last, &z, "topk:ratio=0.05", 6);
    use("state");
}

static char refit[1024];
static void refit_log(void *user, const esp_log_event *ev) {
    if (!strcmp(ev->component, "state")) snprintf(refit, sizeof refit, "%s", ev->message);
}

/* Strategy auto keeps the saved strategy if it fits the number of ranks, else it starts again. */
static void body_refit(esp_ctx *ctx, void *user) {
    float out[N];
    start(ctx, N, NULL);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    CHECK(ctx->steps.step == 3);
    CHECK(compresses(ctx) == (esp_size(ctx) == 6));
    step(ctx, 3, out);
    CHECK(!strcmp(ctx->steps.phase, "watching") == (esp_size(ctx) == 6));
}

TEST(test_auto_with_another_number_of_ranks) {
    use("auto_with_another_number_of_ranks");
    const esp_host host = {.struct_size = sizeof host,
                           .abi_major = ESP_ABI_MAJOR,
                           .log = refit_log,
                           .alloc = test_host_alloc,
                           .free_ = test_host_free};
    run(RANKS, body_save_strategy, (void *)(uintptr_t)two, "dgc:ratio=0.05", 5);
    for (int32_t size = 2; size <= 6; size += 4) {
        refit[0] = 0;
        RUN_RANKS(.size = size, .per_machine = 2, .body = body_refit, .config.strategy = "auto:steps=100",
                  .config.codec = "dgc:ratio=0.05", .config.host = &host, .config.log_level = ESP_LOG_WARN);
        assert_int_equal(count_of(refit, "that 4 ranks saved does not fit these 2"), size == 2);
    }
    use("state");
}

static const char *in_the_way(char *out, size_t cap, int i) {
    int n = snprintf(out, cap, "%s.r2of4.tmp-espresso", path);
    if (i) snprintf(out + n, cap - (size_t)n, "-%d", i);
    return out;
}

/* If saving fails on one rank, the previous state of all ranks stays as it was. */
static void body_failed_save(esp_ctx *ctx, void *user) {
    char name[160];
    float out[N];
    struct stat st;
    start(ctx, N, NULL);
    step(ctx, 0, out);
    CHECK(esp_state_save(ctx, path) == ESP_OK);
    step(ctx, 1, out);
    for (int i = 0; i < ESP__FILE_NAMES && esp_rank(ctx) == 2; i++)
        CHECK(mkdir(in_the_way(name, sizeof name, i), 0700) == 0);
    CHECK(esp_state_save(ctx, path) == ESP_E_ARG);
    CHECK(strstr(esp_last_error(ctx), esp_rank(ctx) == 2 ? "cannot write the state" : "rank 2 could not save"));
    for (int i = 0; i < ESP__FILE_NAMES && esp_rank(ctx) == 2; i++) CHECK(rmdir(in_the_way(name, sizeof name, i)) == 0);
    snprintf(name, sizeof name, "%s.r%dof4.tmp-espresso", path, (int)esp_rank(ctx));
    CHECK(stat(name, &st) != 0);
    CHECK(esp_state_load(ctx, path) == ESP_OK);
    CHECK(ctx->steps.step == 1);
    CHECK(esp_state_save(ctx, "/no/such/dir/x") == ESP_E_ARG);
}
TEST(test_failed_save) { run(RANKS, body_failed_save, NULL, "topk:ratio=0.05", 0); }

static void body_misuse(esp_ctx *ctx, void *user) {
    esp_stream here = ESP_ZERO;
    float data[N] = {0}, bias[10] = {0};
    CHECK(esp_state_save(ctx, path) == ESP_E_STATE); /* before esp_start */
    start(ctx, N, NULL);
    CHECK(esp_state_save(ctx, NULL) == ESP_E_ARG);
    CHECK(esp_state_read(ctx, NULL, NULL) == ESP_E_ARG);
    CHECK(esp_push(ctx, 0, data, here) == ESP_OK);
    CHECK(esp_state_save(ctx, path) == ESP_E_STATE); /* inside a step */
    CHECK(esp_state_load(ctx, path) == ESP_E_STATE);
    CHECK(esp_push(ctx, 1, bias, here) == ESP_OK);
    CHECK(esp_wait_all(ctx) == ESP_OK);
}
TEST(test_misuse) { run(1, body_misuse, NULL, "topk:ratio=0.05", 0); }

static int make_folder(void **state) {
    if (folder_make(state)) return -1;
    use("state");
    return 0;
}

TEST_GROUP(make_folder, folder_remove)
