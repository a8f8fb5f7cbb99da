/* test_cancel.c checks esp_cancel: no thread uses the gradient afterwards, other ranks get an error soon, and
 * esp_shrink brings all ranks together again. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "espresso_impl/registry/builtin.h"

#if defined(__SANITIZE_THREAD__)
enum { N = 1 << 18 }; /* it is slow */
#else
enum { N = 1 << 20 };
#endif
enum { SIZE = 3, CANCELS = 1, AT = 3 };
static const esp_stream cpu;

static float *map(void) {
    void *p = mmap(NULL, N * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* Like a trainer that throws: pushes, takes the gradient back, and frees it at once. */
static void cancel(esp_ctx *ctx, float *g) {
    CHECK(esp_push(ctx, 0, g, cpu) == ESP_OK);
    CHECK(esp_cancel(ctx) == ESP_OK);
    munmap(g, N * sizeof *g);
    CHECK(esp_push(ctx, 1, g, cpu) == ESP_E_CANCELED && error_has(ctx, "esp_cancel"));
    CHECK(esp_wait_all(ctx) == ESP_E_CANCELED);
}

static void body(esp_ctx *ctx, void *user) {
    const int32_t rank = esp_rank(ctx);
    float *g[2] = {map(), map()};
    esp_status s = ESP_OK;
    (void)user;
    tensor_add(ctx, "a", N), tensor_add(ctx, "b", N);
    CHECK(esp_cancel(ctx) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step <= AT && !s; step++) {
        CHECK(esp_cancel(ctx) == ESP_OK); /* outside a step it does nothing */
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < N; i++) g[t][i] = (float)(i % 7 + rank);
        if (step == AT && rank == CANCELS) {
            cancel(ctx, g[0]);
            g[0] = NULL;
            break;
        }
        for (uint32_t t = 0; t < 2 && !s; t++) s = esp_push(ctx, t, g[t], cpu);
        if (!s) s = esp_wait_all(ctx);
        CHECK(step == AT ? s == ESP_E_PEER && error_has(ctx, "the step was canceled") : !s);
    }
    for (int t = 0; t < 2; t++)
        if (g[t]) munmap(g[t], N * sizeof(float));
}

TEST(test_cancel) {
    static const char *const backends[] = {"shm", "loop"}, *const progress[] = {"threads", "caller"};
    for (int k = 0; k < 8; k++)
        RUN_RANKS(.size = SIZE, .body = body, .config.backend = backends[k & 1], .config.progress = progress[k / 2 & 1],
                  .config.codec = k < 4 ? NULL : "topk:ratio=0.01", .config.timeout_ms = 30000);
}

/* Backend loop, which waits before it reads a gradient, so that esp_cancel comes while a collective starts. */
static const esp_backend *loop;
static esp_status slow_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    CHECK(*(volatile const float *)c->src.ptr >= 0.0f);
    return loop->start(comm, c, s, req);
}
static esp_backend slow;
static void slow_make(void) {
    loop = espresso_plugin_v1_loop(NULL)->backends[0];
    slow = *loop;
    slow.name = "slow", slow.start = slow_start;
}
static const esp_plugin *slow_entry(const esp_host *h) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const esp_backend *const slows[] = {&slow};
    static const esp_plugin plugin = {sizeof plugin, 0, 1, 0, NULL, slows, NULL};
    (void)h;
    pthread_once(&once, slow_make);
    return &plugin;
}

TEST(cancel_while_a_collective_starts) {
    static const esp_plugin_fn entry[] = {slow_entry};
    static const char *const progress[] = {"threads", "caller"};
    for (int k = 0; k < 2; k++)
        RUN_RANKS(.size = SIZE, .body = body, .config.backend = "slow", .config.builtin = entry, .config.n_builtin = 1,
                  .config.progress = progress[k], .config.timeout_ms = 30000);
}
