/* test_tokens.c checks the pipe of tokens, which limits how many ranks of a machine compress at the same time (see
 * run_tokens_open in tools/run/spawn.c), and that a lost token blocks no rank for ever. */
/* runs: quiet tsan */
#include "tests/lib/test.h"

enum { TOKENS = 2, RANKS = 4, STEPS = 5, COUNT = 20000 };
static atomic_int inside, most, calls;

/* Codec fp16, which also counts how many ranks compress at the same time. */
static const esp_codec *fp16;
static void enter(void) {
    int now = atomic_fetch_add(&inside, 1) + 1, seen = atomic_load(&most);
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now)) {
    }
    atomic_fetch_add(&calls, 1);
    usleep(2000);
}
static esp_status counted_compress(void *self, const esp_codec_args *a) {
    enter();
    esp_status s = fp16->compress(self, a);
    atomic_fetch_sub(&inside, 1);
    return s;
}
static esp_status counted_decompress(void *self, const esp_codec_args *a) {
    enter();
    esp_status s = fp16->decompress(self, a);
    atomic_fetch_sub(&inside, 1);
    return s;
}

static esp_codec table;
static const esp_codec *const codecs[] = {&table};
static esp_plugin plugin;
static void counted_make(void) {
    esp_host h;
    esp__host_init(&h, NULL);
    for (const esp_plugin_fn *e = esp__builtin_entries(); *e; e++) {
        const esp_plugin *p = (*e)(&h);
        for (uint32_t i = 0; p && i < p->n_codecs; i++)
            if (!strcmp(p->codecs[i]->name, "fp16")) fp16 = p->codecs[i];
    }
    memcpy(&table, fp16, sizeof table);
    table.name = "counted";
    table.compress = counted_compress;
    table.decompress = counted_decompress;
    plugin.struct_size = sizeof plugin;
    plugin.n_codecs = 1;
    plugin.codecs = codecs;
}
static const esp_plugin *counted_entry(const esp_host *h) { return &plugin; }

static void tokens_make(int ends[2], int n) {
    char text[64];
    struct stat st;
    assert_int_equal(pipe(ends), 0);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    for (int i = 0; i < n; i++) assert_int_equal(write(ends[1], "+", 1), 1);
    assert_int_equal(fstat(ends[0], &st), 0);
    snprintf(text, sizeof text, "%d,%d,%llu", ends[0], ends[1], (unsigned long long)st.st_ino);
    setenv("ESPRESSO_TOKENS", text, 1);
}

static void steps(esp_ctx *ctx, void *user) {
    const esp_stream cpu = ESP_ZERO;
    static float grads[RANKS][2][COUNT];
    for (int i = 0; i < 2; i++) {
        esp_tensor_desc d = {.name = i ? "b" : "a", .count = COUNT};
        CHECK(!esp_tensor_add(ctx, &d, NULL));
    }
    CHECK(!esp_start(ctx));
    for (int step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < 2; i++) CHECK(!esp_push(ctx, i, grads[esp_rank(ctx)][i], cpu));
        CHECK(!esp_wait_all(ctx));
    }
}

static void run_steps(void) {
    static const esp_plugin_fn builtin[] = {counted_entry};
    atomic_store(&most, 0);
    atomic_store(&calls, 0);
    RUN_RANKS(.size = RANKS, .per_machine = RANKS, .body = steps, .config.codec = "counted", .config.builtin = builtin,
              .config.n_builtin = 1);
    assert_true(calls >= 2 * 2 * STEPS * RANKS);
}

TEST(test_limit) {
    int ends[2];
    char byte;
    tokens_make(ends, TOKENS);
    run_steps();
    assert_true(most >= 1 && most <= TOKENS);
    for (int i = 0; i < TOKENS; i++) assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(read(ends[0], &byte, 1), -1);
    assert_true(fcntl(ends[0], F_GETFD) & FD_CLOEXEC);
    /* the program has closed them, and opened other files under their numbers */
    const int other = open("/dev/null", O_RDWR);
    for (int i = 0; i < 2; i++) assert_int_equal(dup2(other, ends[i]), ends[i]);
    close(other);
    int crowd = 0;
    for (int i = 0; i < 20 && crowd <= TOKENS; i++) {
        run_steps();
        crowd = most;
    }
    close(ends[0]);
    close(ends[1]);
    assert_true(crowd > TOKENS);
    unsetenv("ESPRESSO_TOKENS");
}

/* ESPRESSO_TOKENS may contain file descriptors that are not the launcher's pipe. They are not used. */
TEST(test_other_files) {
    static const char *const wrong[] = {"junk", "0,1", "0,1,5", "9999,9998,1", "-1,-1,0", ""};
    esp_ctx ctx;
    memset(&ctx, 0, sizeof ctx);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("ESPRESSO_TOKENS", wrong[i], 1);
        esp__tokens_open(&ctx);
        assert_int_equal(ctx.lanes.tokens[0], -1);
        assert_int_equal(esp__token_take(&ctx, 1 << 20), 0);
        esp__token_put(&ctx, 0);
    }
    unsetenv("ESPRESSO_TOKENS");
}

/* If a rank dies with a token, others wait for it only until the job ends or a time limit passes. */
TEST(test_lost) {
    int ends[2];
    esp_ctx ctx;
    memset(&ctx, 0, sizeof ctx);
    pthread_mutex_init(&ctx.lanes.lock, NULL);
    tokens_make(ends, 0);
    esp__tokens_open(&ctx);
    assert_int_equal(ctx.lanes.tokens[0], ends[0]);
    assert_int_equal(esp__token_take(&ctx, 10), 0); /* compressing a few elements needs no token */
    ctx.health.fatal = ESP_E_PEER;
    assert_int_equal(esp__token_take(&ctx, 1 << 20), 0);
    assert_int_equal(ctx.lanes.tokens[0], ends[0]);
    ctx.health.fatal = ESP_OK;
    ctx.base.log_level = ESP_LOG_ERROR;
    assert_int_equal(esp__token_wait(&ctx, 30), 0);
    assert_int_equal(ctx.lanes.tokens[0], -1); /* after the time limit, the rank uses no tokens any more */
    pthread_mutex_destroy(&ctx.lanes.lock);
    unsetenv("ESPRESSO_TOKENS");
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    counted_make();
    return test_main();
}
