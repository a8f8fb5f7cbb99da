/* test_progress.c checks that compression gives the same bits on threads of the library and of the program, that it
 * goes on while the program computes for long, and that several threads of the program may push and wait. */
/* runs: quiet tsan */
#include "tests/lib/test.h"

/* ---- a codec that records which thread calls it ------------------------------------------------------------------ */
#define RAW_NAME "noting"
#include "tests/abi/raw_codec.h"

static _Thread_local int is_trainer;
static atomic_int by_trainer, by_library;
static esp_status noting_compress(void *self, const esp_codec_args *a) {
    atomic_fetch_add(is_trainer ? &by_trainer : &by_library, 1);
    return raw_compress(self, a);
}
static esp_codec noting_codec = RAW_TABLE(sizeof(esp_codec));
static const esp_plugin *noting_entry(const esp_host *h) {
    static const esp_codec *const codecs[] = {&noting_codec};
    static const esp_plugin plugin = {.struct_size = sizeof plugin, .n_codecs = 1, .codecs = codecs};
    return &plugin;
}
static const esp_plugin_fn noting[] = {noting_entry};

/* ---- steps ------------------------------------------------------------------------------------------------------- */
enum { TENSORS = 5, COUNT = 5003, STEPS = 3, RANKS = 4 };
static const char in_units[] =
    "espresso-strategy 1\n"
    "tensor t0 5003 noting comp@cpu > flat.allgather > decomp@cpu\n"
    "tensor t1 5003 split 2\nchunk 4000 topk:ratio=0.02 comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > "
    "inter.allgather > decomp@cpu > intra.allgather\nchunk 1003 none flat.allreduce\n"
    "tensor t2 5003 group\ntensor t3 5003 group\n"
    "group 10006 efsignsgd intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather\n"
    "tensor t4 5003 none intra.reduce_scatter > inter.allreduce > intra.allgather\n";
static const esp_stream here;

static void add(esp_ctx *ctx) {
    for (uint32_t t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.count = COUNT};
        char name[16];
        snprintf(name, sizeof name, "t%u", t);
        d.name = name;
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_strategy_set(ctx, in_units) == ESP_OK);
}

static void fill(float *g, int32_t rank, int step) {
    for (uint32_t i = 0; i < COUNT; i++) g[i] = (float)((i * 7 + (uint32_t)(rank * 31 + step * 5)) % 101) - 50.0f;
}

/* Ends each step by waiting for tensors one by one, and calls esp_test for some of them before. */
static void body_steps(esp_ctx *ctx, void *user) {
    float *results = user, *g = malloc(TENSORS * COUNT * sizeof *g);
    is_trainer = 1;
    add(ctx);
    for (int k = 0; k < STEPS; k++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            fill(g + t * COUNT, esp_rank(ctx), k);
            CHECK(esp_push(ctx, t, g + t * COUNT, here) == ESP_OK);
            CHECK(esp_test(ctx, t / 2) >= 0);
        }
        CHECK(esp_step_end(ctx) == ESP_OK);
        for (uint32_t t = 0; t < TENSORS; t += 2) CHECK(esp_wait(ctx, t) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (!esp_rank(ctx)) memcpy(results + k * TENSORS * COUNT, g, TENSORS * COUNT * sizeof *g);
    }
    CHECK(esp_barrier(ctx) == ESP_OK);
    free(g);
}

static void run(const char *progress, const char *backend, void (*body)(esp_ctx *, void *), void *user) {
    RUN_RANKS(.size = RANKS, .per_machine = 2, .body = body, .user = user, .config.progress = progress,
              .config.backend = backend, .config.builtin = noting, .config.n_builtin = 1);
}

TEST(test_same_bits) {
    static float results[2][STEPS * TENSORS * COUNT];
    static const char *const backends[] = {"loop", "shm", "shm:inter=1gbit,latency=50us"};
    for (int b = 0; b < 3; b++) {
        run("threads", backends[b], body_steps, results[0]);
        assert_int_equal(atomic_exchange(&by_trainer, 0), 0);
        assert_int_equal(atomic_exchange(&by_library, 0), RANKS * STEPS);
        run("caller", backends[b], body_steps, results[1]);
        assert_true(atomic_load(&by_trainer) > 0);
        assert_int_equal(atomic_exchange(&by_trainer, 0) + atomic_exchange(&by_library, 0), RANKS * STEPS);
        assert_memory_equal(results[0], results[1], sizeof *results);
    }
}

/* ---- a trainer that computes for long without calling the library ------------------------------------------------ */
static int done(esp_ctx *ctx) {
    pthread_mutex_lock(&ctx->lanes.lock);
    int n = (int)ctx->steps.n_done;
    pthread_mutex_unlock(&ctx->lanes.lock);
    return n == TENSORS;
}

static void body_away(esp_ctx *ctx, void *user) {
    float *g = calloc(TENSORS * COUNT, sizeof *g);
    add(ctx);
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_push(ctx, t, g + t * COUNT, here) == ESP_OK);
    for (int k = 0; k < 20000 && !done(ctx); k++) usleep(1000);
    CHECK(done(ctx));
    CHECK(esp_wait_all(ctx) == ESP_OK);
    free(g);
}

TEST(test_nobody_calls) { run("caller", "shm", body_away, NULL); }

/* ---- several threads of a trainer -------------------------------------------------------------------------------- */
typedef struct pushing {
    esp_ctx *ctx;
    float *g;
} pushing;

static void *push_late(void *arg) {
    const pushing *p = arg;
    for (uint32_t t = 2; t < TENSORS; t++) {
        usleep(3000);
        CHECK(esp_push(p->ctx, t, p->g + t * COUNT, here) == ESP_OK);
    }
    return NULL;
}

static void body_two(esp_ctx *ctx, void *user) {
    float *g = calloc(TENSORS * COUNT, sizeof *g);
    pushing p = {ctx, g};
    add(ctx);
    for (int k = 0; k < STEPS; k++) {
        pthread_t other;
        for (uint32_t t = 0; t < 2; t++) CHECK(esp_push(ctx, t, g + t * COUNT, here) == ESP_OK);
        CHECK(!pthread_create(&other, NULL, push_late, &p));
        for (uint32_t t = 0; t < 2; t++) CHECK(esp_wait(ctx, t) == ESP_OK);
        pthread_join(other, NULL);
        CHECK(esp_wait_all(ctx) == ESP_OK);
    }
    free(g);
}

TEST(test_two_threads) {
    run("caller", "shm", body_two, NULL);
    run("threads", "shm", body_two, NULL);
}

/* ---- a rank that leaves while what it sent is still on a slow link ----------------------------------------------- */
enum { LATE_BYTES = 8 << 20 };
static void body_root_leaves(esp_ctx *ctx, void *user) {
    unsigned char *data = calloc(1, LATE_BYTES);
    if (!esp_rank(ctx)) memset(data, 7, LATE_BYTES);
    CHECK(esp_broadcast(ctx, data, LATE_BYTES, 0) == ESP_OK);
    CHECK(data[0] == 7 && data[LATE_BYTES - 1] == 7);
    free(data);
}

TEST(test_root_leaves) {
    run("caller", "loop:inter=32mbit", body_root_leaves, NULL);
    run("threads", "loop:inter=32mbit", body_root_leaves, NULL);
}

/* ---- invalid settings -------------------------------------------------------------------------------------------- */
TEST(test_not_with_openmp) {
    esp_config cfg = {.backend = "loop", .size = 1, .workers = "openmp", .progress = "caller"};
    esp_ctx *ctx = NULL;
    assert_int_not_equal(esp_open(&cfg, &ctx), ESP_OK);
#ifdef _OPENMP
    assert_non_null(strstr(esp_last_error(NULL), "does not work with workers"));
#endif
    esp_close(ctx);
}

int main(void) {
    noting_codec.compress = noting_compress;
    return test_main();
}
