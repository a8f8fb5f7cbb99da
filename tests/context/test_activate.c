/* test_activate.c checks that a change of strategy happens completely or, if an allocation fails, not at all; that
 * memory is proportional to the number of tensors; and that of two simultaneous pushes of a tensor one is refused. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "tests/executor/totals.h"

/* ---- memory that runs out ---------------------------------------------------------------------------------------- */
/* After `left` more allocations, those of this thread fail; -1 means never. `live` counts the blocks of all ranks. */
static _Thread_local long left = -1;
static atomic_long live;
/* Ranks meet here before and after they count allocated blocks. Messages between ranks are such blocks, too, so none
 * may be under way meanwhile. */
static pthread_barrier_t quiet;

static void *take(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    void *p = NULL;
    if (left == 0) return NULL;
    if (left > 0) left--;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes ? bytes : 1)) return NULL;
    atomic_fetch_add(&live, 1);
    return p;
}
static void give(void *user, esp_device d, void *p, uint64_t bytes) {
    if (p) atomic_fetch_sub(&live, 1);
    free(p);
}

static int lives_again(long lives) {
    for (int tries = 0; tries < 5000 && atomic_load(&live) > lives; tries++) usleep(1000);
    return atomic_load(&live) <= lives;
}

/* Rank 1 runs out of memory at the first allocation of a change, then at the second, until the change succeeds. */
static void body_memory_ends(esp_ctx *ctx, void *user) {
    const task *k = user;
    totals *b = calloc(1, sizeof *b);
    add_tensors(ctx, k);
    CHECK(esp_start(ctx) == ESP_OK);
    text first = strategy_of(MIXED, k->codec, k->option), next = strategy_of(GROUPS, k->codec, TREE_REPLICAS);
    CHECK(esp_strategy_set(ctx, first.data) == ESP_OK);
    char *before = strdup(esp_strategy_text(ctx));
    int failed = 0;
    long lives = 0;
    for (long n = 0;; n++) {
        train(ctx, b, 1);
        pthread_barrier_wait(&quiet);
        if (!n || atomic_load(&live) < lives) lives = atomic_load(&live);
        pthread_barrier_wait(&quiet);
        if (esp_rank(ctx) == 1) left = n;
        esp_status s = esp_strategy_set(ctx, next.data);
        left = -1;
        if (s == ESP_OK) break;
        failed++;
        CHECK(s == ESP_E_NOMEM);
        CHECK(esp_rank(ctx) == 1 || error_has(ctx, "rank 1"));
        CHECK(!strcmp(esp_strategy_text(ctx), before));
        pthread_barrier_wait(&quiet);
        CHECK(lives_again(lives));
        pthread_barrier_wait(&quiet);
        if (n % 8 == 0) check_totals(ctx, b);
        if (n > 2000) break;
    }
    CHECK(failed > 20);
    CHECK(strcmp(esp_strategy_text(ctx), before) != 0);
    train(ctx, b, 3);
    check_totals(ctx, b);
    free(before);
    free(b);
}

static const esp_host scarce = {.struct_size = sizeof scarce, .alloc = take, .free_ = give};

TEST(a_change_without_memory_changes_nothing) {
    task k = {.codec = "topk:ratio=0.1", .option = TREE_COMP, .dtype = ESP_F32};
    assert_int_equal(pthread_barrier_init(&quiet, NULL, 4), 0);
    RUN_RANKS(.size = 4, .per_machine = 2, .body = body_memory_ends, .user = &k, .config.codec = k.codec,
              .config.host = &scarce);
    pthread_barrier_destroy(&quiet);
}

/* ---- many tensors ------------------------------------------------------------------------------------------------ */
static atomic_ulong taken; /* bytes allocated so far, including freed ones */
static void *take_counted(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    atomic_fetch_add(&taken, bytes);
    return test_host_alloc(user, d, bytes, align);
}
static const esp_host counting = {.struct_size = sizeof counting, .alloc = take_counted, .free_ = test_host_free};

static void body_start(esp_ctx *ctx, void *user) {
    char name[16];
    esp_tensor_desc d = {.name = name, .count = 64};
    for (int i = 0; i < *(int *)user; i++) {
        snprintf(name, sizeof name, "t%d", i);
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    unsigned long before = atomic_load(&taken);
    CHECK(esp_start(ctx) == ESP_OK);
    atomic_store(&taken, atomic_load(&taken) - before);
}

/* Twice the tensors need about twice the bytes. If a table were copied for each entry that is added, they would need
 * four times as many. */
TEST(memory_of_a_start_is_linear) {
    unsigned long bytes[2];
    for (int k = 0; k < 2; k++) {
        int n = 1000 << k;
        atomic_store(&taken, 0);
        RUN_RANKS(.size = 1, .body = body_start, .user = &n, .config.host = &counting,
                  .config.codec = "topk:ratio=0.1");
        bytes[k] = atomic_load(&taken);
    }
    if (bytes[1] > bytes[0] * 5 / 2) fail_msg("1000 tensors: %lu bytes, 2000: %lu", bytes[0], bytes[1]);
}

/* ---- two threads push one tensor at the same time ---------------------------------------------------------------- */
enum { LARGE = 1 << 20 };
typedef struct pusher {
    esp_ctx *ctx;
    pthread_barrier_t *go;
    float *data;
    int zero;
    esp_status status;
} pusher;

static void *push_main(void *arg) {
    pusher *p = arg;
    pthread_barrier_wait(p->go);
    p->status = p->zero ? esp_push_zero(p->ctx, 0, p->data, here) : esp_push(p->ctx, 0, p->data, here);
    return NULL;
}

/* One of the two pushes succeeds. The other is refused, and its gradient stays as it was. */
static void body_race(esp_ctx *ctx, void *user) {
    esp_tensor_desc d = {.name = "w", .count = LARGE};
    float *zeros = malloc(LARGE * sizeof *zeros), *ones = malloc(LARGE * sizeof *ones);
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK && esp_start(ctx) == ESP_OK);
    for (int round = 0; round < 40; round++) {
        pthread_barrier_t go;
        pusher p[2] = {{ctx, &go, zeros, 1, ESP_OK}, {ctx, &go, ones, 0, ESP_OK}};
        for (uint64_t i = 0; i < LARGE; i++) zeros[i] = 7.0f, ones[i] = 1.0f;
        pthread_barrier_init(&go, NULL, 2);
        run_threads(2, push_main, p, sizeof *p);
        pthread_barrier_destroy(&go);
        CHECK((p[0].status == ESP_OK) != (p[1].status == ESP_OK));
        CHECK(p[0].status == ESP_OK || p[0].status == ESP_E_STATE);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        int zero_won = p[0].status == ESP_OK;
        for (uint64_t i = 0; i < LARGE; i += 4097) {
            CHECK(zeros[i] == (zero_won ? 0.0f : 7.0f));
            CHECK(ones[i] == 1.0f);
        }
    }
    free(zeros);
    free(ones);
}

TEST(one_of_two_pushes_takes_part) { RUN_RANKS(.size = 1, .body = body_race); }

/* ---- registering a strategy's memory with the backend ------------------------------------------------------------ */
static int announced, announcements, refusing;
static esp_status announce(void *comm, const esp_buf *b, void **mh) {
    assert_true(comm && b->ptr && b->bytes);
    if (refusing) return ESP_E_NOMEM;
    *mh = b->ptr;
    announced++, announcements++;
    return ESP_OK;
}
static esp_status take_back(void *comm, void *mh) {
    assert_true(comm && mh);
    memset(mh, 0x5A, 1); /* a sanitizer reports this if the memory was freed before */
    announced--;
    return ESP_OK;
}

TEST(the_arena_is_announced) {
    const esp_config cfg = {.size = 1, .backend = "loop"};
    const esp_tensor_desc d = {.name = "w", .count = 1000};
    esp_ctx *ctx;
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    esp_backend table = *ctx->job.backend;
    table.reg = announce;
    table.dereg = take_back;
    for (uint32_t k = 0; k < ESP__SCOPES; k++)
        if (ctx->job.comms[k].handle) ctx->job.comms[k].backend = &table;
    ctx->job.backend = &table;
    assert_int_equal(esp_tensor_add(ctx, &d, NULL), ESP_OK);
    ctx->model.codec_spec = esp__strdup(ctx, "topk:ratio=0.1");
    assert_int_equal(esp_start(ctx), ESP_OK);
    assert_true(announced == 1 && announcements == 1);
    char *before = strdup(esp_strategy_text(ctx));
    static const char other[] =
        "espresso-strategy 1\ntensor w 1000 topk:ratio=0.2 comp@cpu > flat.allgather > decomp@cpu\n";
    refusing = 1;
    assert_int_equal(esp_strategy_set(ctx, other), ESP_E_NOMEM);
    assert_non_null(strstr(esp_last_error(ctx), "backend 'loop' cannot use the strategy's"));
    assert_string_equal(esp_strategy_text(ctx), before);
    assert_int_equal(announced, 1);
    refusing = 0;
    assert_int_equal(esp_strategy_set(ctx, other), ESP_OK);
    assert_true(announced == 1 && announcements == 2);
    esp_close(ctx);
    assert_int_equal(announced, 0);
    free(before);
}
