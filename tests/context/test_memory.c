/* test_memory.c checks that esp_start logs what needs memory, and that ESPRESSO_MEMORY_MAX limits strategies. */
/* runs: tsan */
#include "tests/lib/test.h"

enum { N = 1 << 18 }; /* elements of the tensor: 1 MiB of floats */
static const char text[] = "espresso-strategy 1\ntensor t 262144 %s\n";
static atomic_int refused, said;
static esp_stats stats[8];
static char refusal[ESP__ERROR_MAX];
static pthread_mutex_t hearing = PTHREAD_MUTEX_INITIALIZER;

static void hear(void *user, const esp_log_event *ev) {
    if (ev->component && !strcmp(ev->component, "memory") && ev->level == ESP_LOG_INFO &&
        strstr(ev->message, "MiB for payloads and groups") && strstr(ev->message, "the backends take "))
        atomic_fetch_add(&said, 1);
}

static void step(esp_ctx *ctx, float *g) {
    for (uint32_t i = 0; i < N; i++) g[i] = (float)(i % 7u) - 3.0f;
    if (esp_push(ctx, 0, g, (esp_stream){0}) || esp_wait_all(ctx)) atomic_fetch_add(&failures, 1);
}

static const char *option;
static int start(esp_ctx *ctx) {
    const esp_tensor_desc d = {.name = "t", .count = N, .option = option};
    if (esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK) return 1;
    atomic_fetch_add(&refused, 1);
    pthread_mutex_lock(&hearing);
    if (strstr(esp_last_error(ctx), "MEMORY_MAX")) snprintf(refusal, sizeof refusal, "%s", esp_last_error(ctx));
    pthread_mutex_unlock(&hearing);
    return 0;
}

static void just_start(esp_ctx *ctx, void *user) {
    float *g = malloc(N * sizeof *g);
    esp_stats *s = &stats[esp_rank(ctx)];
    if (start(ctx)) step(ctx, g);
    s->struct_size = sizeof *s;
    if (esp_stats_read(ctx, s)) atomic_fetch_add(&failures, 1);
    free(g);
}

static void run(int32_t size, const char *codec, const char *most, void (*body)(esp_ctx *, void *)) {
    static const esp_host host = {.struct_size = sizeof host, .log = hear};
    memset(stats, 0, sizeof stats);
    atomic_store(&refused, 0), atomic_store(&said, 0);
    *refusal = 0;
    if (most) setenv("ESPRESSO_MEMORY_MAX", most, 1);
    RUN_RANKS(.size = size, .per_machine = size, .body = body, .config.codec = codec, .config.host = &host,
              .config.log_level = ESP_LOG_INFO);
    unsetenv("ESPRESSO_MEMORY_MAX");
}

/* An allgather of payloads needs memory for the payloads of all ranks. The memory for residuals stays the same. */
TEST(grows_with_ranks) {
    uint64_t slots[3] = {0};
    option = "comp@cpu > flat.allgather > decomp@cpu";
    for (int k = 0; k < 3; k++) {
        const int32_t n = 2 << k;
        run(n, "topk:ratio=0.01", NULL, just_start);
        assert_int_equal(atomic_load(&said), n);
        for (int32_t r = 0; r < n; r++) {
            const esp_stats *s = &stats[r];
            assert_true(s->slots_bytes > 0 && s->feedback_bytes == 4u * N);
            assert_true(s->slots_bytes + s->feedback_bytes <= s->memory_bytes);
            assert_true(s->backend_bytes >= (1u << 20));
            assert_int_equal(s->slots_bytes, stats[0].slots_bytes);
        }
        slots[k] = stats[0].slots_bytes;
        print_message("%d ranks: %llu bytes for payloads\n", (int)n, (unsigned long long)slots[k]);
        /* topk keeps 1% of the elements, each with a value and an index */
        assert_true(slots[k] >= (uint64_t)n * (N / 100) * 4u);
    }
    option = NULL;
    assert_true((double)slots[1] > 1.6 * (double)slots[0] && (double)slots[1] < 2.1 * (double)slots[0]);
    assert_true((double)slots[2] > 1.6 * (double)slots[1] && (double)slots[2] < 2.1 * (double)slots[1]);
}

TEST(is_refused) {
    option = NULL;
    run(4, "topk:ratio=0.01", "1M", just_start);
    assert_int_equal(atomic_load(&refused), 4);
    assert_non_null(strstr(refusal, "more memory than ESPRESSO_MEMORY_MAX: 1.0 MiB is the limit of a rank"));
    assert_int_equal(stats[0].memory_bytes, 0);
    run(4, "topk:ratio=0.01", "64MiB", just_start);
    assert_int_equal(atomic_load(&refused), 0);
    run(4, NULL, "1M", just_start); /* without compression, 1 MiB is enough */
    assert_int_equal(atomic_load(&refused), 0);
}

/* All ranks refuse a strategy that needs too much memory, and keep the active one. */
static void change(esp_ctx *ctx, void *user) {
    float *g = malloc(N * sizeof *g);
    char next[256];
    if (!start(ctx)) atomic_fetch_add(&failures, 1);
    step(ctx, g);
    snprintf(next, sizeof next, text, "topk:ratio=0.01 comp@cpu > flat.allgather > decomp@cpu");
    char *before = strdup(esp_strategy_text(ctx));
    if (esp_strategy_set(ctx, next) == ESP_OK) atomic_fetch_add(&failures, 1);
    if (!strstr(esp_last_error(ctx), "MEMORY_MAX") && !strstr(esp_last_error(ctx), "could not start"))
        atomic_fetch_add(&failures, 1);
    if (strcmp(before, esp_strategy_text(ctx)) != 0) atomic_fetch_add(&failures, 1);
    step(ctx, g);
    snprintf(next, sizeof next, text, "none flat.allreduce");
    if (esp_strategy_set(ctx, next)) atomic_fetch_add(&failures, 1);
    step(ctx, g);
    free(before);
    free(g);
}
TEST(a_change_is_refused) {
    option = NULL;
    run(3, NULL, "1M", change);
}

TEST(malformed) {
    static const char *const wrong[] = {
        "0", "much", "-1", "1X", "1MB", "1Mi", " 1", "20000000T", "18446744073709551616", "1.5G"};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        esp_ctx *ctx = NULL;
        setenv("ESPRESSO_MEMORY_MAX", wrong[i], 1);
        if (esp_open(NULL, &ctx) != ESP_E_ARG) fail_msg("'%s' was taken", wrong[i]);
        assert_non_null(strstr(esp_last_error(NULL), "ESPRESSO_MEMORY_MAX is \""));
    }
    static const struct {
        const char *text;
        uint64_t bytes;
    } right[] = {{"1", 1}, {"512K", 524288}, {"3MiB", 3145728}, {"8G", 8589934592u}, {"1T", 1099511627776u}};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        setenv("ESPRESSO_MEMORY_MAX", right[i].text, 1);
        assert_int_equal(esp__env_memory_max(&bytes), ESP_OK);
        assert_int_equal(bytes, right[i].bytes);
    }
    unsetenv("ESPRESSO_MEMORY_MAX");
}
