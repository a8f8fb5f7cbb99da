/* test_reconfigure.c checks esp_reconfigure: ranks join a running job, alone or while others are lost, and ranks that
 * do not fit or fail while they join do no harm. All ranks' bits are compared with a simulation of the ranks that are
 * there. Ranks are threads; in jobs/faults/test_reconfigure.c they are processes that die. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "espresso_impl/job/peers.h"
#include "tests/lib/hello.h"

enum { MOST = 6, TENSORS = 3, N = 600, EVERY = 4 };
static const esp_stream here;

/* What one rank does. Rounds are counted over the whole job. */
typedef struct part {
    const struct play *play;
    int32_t me;      /* its number in the test */
    int first, last; /* rounds; a rank whose first is above 0 joins */
    int32_t tensors; /* another number if not 0 */
    uint32_t every;
    const char *codec;
    esp_status status;
    char text[400];
    int32_t size;
    uint64_t bits[64]; /* after each round */
    int rounds[64];    /* esp_stats.outer_rounds then */
} part;
typedef struct play {
    const char *root, *codec, *backend;
    esp_outer_desc o;
    int32_t n, machines[MOST];
    part of[MOST];
    int rounds;
    atomic_int joined, round, refused; /* ranks that have joined; the round of the job; a rank was refused */
} play;

static void inner(float *w, int t, int32_t rank, int step) {
    for (int i = 0; i < N; i++) w[i] -= 0.01f * w[i] + 0.001f * (float)((i * 3 + t + step * 5 + rank * 11) % 17);
}

static esp_ctx *open_rank(part *p, int32_t rank, int32_t size, bool joins) {
    static const char *const names[] = {"w0", "w1", "w2", "w3"};
    const play *y = p->play;
    esp_ctx *ctx = NULL;
    const esp_config c = {.rank = rank,
                          .size = size,
                          .root = y->root,
                          .machine = 1 + y->machines[p->me],
                          .backend = y->backend ? y->backend : "shm",
                          .codec = p->codec ? p->codec : y->codec,
                          .min_compress_elements = 1,
                          .timeout_ms = 20000,
                          .cpu_workers = 1,
                          .flags = joins ? ESP_JOIN : 0,
                          .log_level = ESP_LOG_ERROR};
    esp_outer_desc o = y->o;
    if (p->every) o.every = p->every;
    if ((p->status = esp_open(&c, &ctx)) != ESP_OK) return NULL;
    p->status = esp_outer_open(ctx, &o);
    for (int32_t t = 0; t < (p->tensors ? p->tensors : TENSORS) && !p->status; t++)
        p->status = esp_tensor_add(ctx, &(esp_tensor_desc){.name = names[t], .count = N}, NULL);
    if (!p->status) p->status = esp_start(ctx);
    return ctx;
}

static uint64_t hash(float w[TENSORS][N]) { return esp__hash64(ESP__HASH0, w, sizeof(float) * TENSORS * N); }

/* Waits, before a round, until the ranks are there that take part in it, and those that do not fit are refused. */
static esp_status await_ranks(esp_ctx *ctx, play *y, int round) {
    esp_status s = ESP_OK;
    if (esp_rank(ctx) == 0) atomic_store(&y->round, round);
    for (int32_t wait = 1; wait && !s;) {
        int32_t n = 0;
        wait = 0;
        for (int32_t r = 0; r < y->n; r++) {
            const part *p = &y->of[r];
            const bool misfit = p->tensors || p->every || p->codec;
            n += p->first <= round && round < p->last && !misfit;
            wait |= misfit && p->first <= round && !atomic_load(&y->refused);
        }
        wait |= esp_size(ctx) < n;
        s = esp_broadcast(ctx, &wait, sizeof wait, 0);
        if (!s && wait) s = esp_reconfigure(ctx);
        if (wait) usleep(500);
    }
    return s;
}

static void *rank_main(void *arg) {
    part *p = arg;
    play *y = (play *)(uintptr_t)p->play;
    float w[TENSORS][N];
    int32_t first = 0, begins = 0;
    for (int32_t r = 0; r < y->n; r++) begins += !y->of[r].first;
    for (int32_t r = 0; r < p->me; r++) first += !y->of[r].first;
    while (p->first && atomic_load(&y->round) < p->first) usleep(1000);
    esp_ctx *ctx = open_rank(p, first, begins, p->first > 0);
    for (int t = 0; t < TENSORS && !p->status; t++) {
        for (int i = 0; i < N; i++) w[t][i] = p->first ? -1.0f : (float)((i * 7 + t) % 13) - 5.5f;
        p->status = esp_outer_add(ctx, (uint32_t)t, w[t]);
    }
    esp_stats stats = {.struct_size = sizeof stats};
    if (!p->status) p->status = esp_stats_read(ctx, &stats);
    if (!p->status && p->first) atomic_fetch_add(&y->joined, 1);
    for (int round = (int)stats.outer_rounds; round < p->last && !p->status; round++) {
        if (round >= y->rounds) break;
        p->status = await_ranks(ctx, y, round);
        for (int k = 0; k < EVERY && !p->status; k++) {
            for (int t = 0; t < TENSORS; t++) inner(w[t], t, p->me, round * EVERY + k);
            p->status = esp_outer_step(ctx, here);
        }
        if (!p->status) p->bits[round] = hash(w), p->status = esp_stats_read(ctx, &stats);
        p->rounds[round] = (int)stats.outer_rounds;
        if (round + 1 == p->last) break; /* leaves */
        if (!p->status) p->status = esp_reconfigure(ctx);
        p->size = esp_size(ctx);
    }
    snprintf(p->text, sizeof p->text, "%s", p->status ? esp_last_error(ctx) : "");
    if (p->status == ESP_E_MISMATCH) atomic_store(&y->refused, 1);
    esp_close(ctx);
    return NULL;
}

static void run(play *y, const char *root) {
    if (!y->root) y->root = root;
    for (int32_t r = 0; r < y->n; r++) y->of[r].play = y, y->of[r].me = r;
    run_threads(y->n, rank_main, y->of, sizeof *y->of);
}

/* Checks that each rank ended as `status` and `size` say, and that ranks had the same bits in each round. */
static void expect_same(const play *y, int32_t size) {
    for (int32_t r = 0; r < y->n; r++) {
        const part *p = &y->of[r];
        if (p->status) fail_msg("rank %d: %s", (int)r, p->text);
        if (p->last > y->rounds) assert_int_equal(p->size, size);
        for (int k = 0; k < y->rounds; k++)
            for (int32_t q = 0; q < r; q++)
                if (p->bits[k] && y->of[q].bits[k] && p->bits[k] != y->of[q].bits[k])
                    fail_msg("after round %d, ranks %d and %d differ", k, (int)q, (int)r);
        if (p->last > y->rounds) assert_true(p->bits[y->rounds - 1] != 0);
    }
}

static int threads(void) { return test_count_files("/proc/self/task", ""); }

#define DILOCO                                                                                                         \
    { .every = EVERY, .lr = 0.7f, .momentum = 0.9f, .nesterov = 1 }

TEST(test_ranks_join) {
    static play y;
    static const char *const codecs[] = {NULL, "topk:ratio=0.1", "int8"};
    const int files = test_count_files("/proc/self/fd", ""), shared = test_count_files("/dev/shm", "espresso");
    int running = 0; /* the thread sanitizer has one of its own */
    for (int i = 0; i < 6; i++) {
        y = (play){.n = 3 + i % 2,
                   .rounds = 20,
                   .o = DILOCO,
                   .codec = codecs[i / 2],
                   .machines = {0, i % 2, 0, i % 2},
                   .of = {{.last = 99}, {.last = 99}, {.first = 2, .last = 99}, {.first = 5, .last = 99}}};
        run(&y, test_root(i == 5));
        expect_same(&y, y.n);
        if (!i) running = threads();
        assert_true(!y.of[2].bits[1]);
        assert_int_equal(y.of[2].rounds[19], 20);
    }
    assert_int_equal(test_count_files("/proc/self/fd", ""), files);
    assert_int_equal(test_count_files("/dev/shm", "espresso"), shared);
    assert_int_equal(threads(), running);
}

TEST(test_one_becomes_two) {
    static play y;
    y = (play){.n = 2, .rounds = 12, .o = DILOCO, .of = {{.last = 99}, {.first = 1, .last = 99}}};
    run(&y, test_root(false));
    expect_same(&y, 2);
}

/* A rank leaves while others join. Rank 0 may be the one that leaves; then another rank listens. */
TEST(test_fewer_and_more) {
    for (int32_t leaves = 0; leaves < 3; leaves++) {
        static play y;
        y = (play){
            .n = 5,
            .rounds = 40,
            .o = DILOCO,
            .codec = "topk:ratio=0.1",
            .of = {{.last = 99}, {.last = 99}, {.last = 99}, {.first = 3, .last = 99}, {.first = 6, .last = 99}}};
        y.of[leaves].last = 8;
        run(&y, test_root(false));
        expect_same(&y, 4);
    }
}

/* Ranks that do not fit are refused by name, and the job goes on. */
TEST(test_refused) {
    static play y;
    static const char *const words[] = {"name w3", "no more tensors", "every=5", "codec int8"};
    for (int i = 0; i < 4; i++) {
        y = (play){.n = 4,
                   .rounds = 16,
                   .o = DILOCO,
                   .of = {{.last = 99}, {.last = 99}, {.first = 2, .last = 99}, {.first = 2, .last = 99}}};
        part *p = &y.of[3];
        p->tensors = i == 0 ? 4 : i == 1 ? 2 : 0;
        p->every = i == 2 ? 5 : 0;
        p->codec = i == 3 ? "int8" : NULL;
        run(&y, test_root(false));
        assert_int_equal(p->status, ESP_E_MISMATCH);
        if (!strstr(p->text, words[i])) fail_msg("%s", p->text);
        y.n = 3;
        expect_same(&y, 3);
    }
}

/* Another version of the library, a rank that proves itself and goes, one that stays silent. */
static void *unknown_main(void *arg) {
    play *y = arg;
    char root[80], answer[4096];
    hello_bytes sent[2], old;
    esp__peers me = {.rank = -1};
    esp__hello hello;
    int fds[3];
    snprintf(root, sizeof root, "%s/join", y->root);
    while (atomic_load(&y->round) < 1) usleep(1000);
    for (int i = 0; i < 3; i++) fds[i] = hello_connect(root, 10000);
    esp__hello_make(&me, 0, &hello);
    snprintf(hello.version, sizeof hello.version, "0.0.1/1");
    old = hello_message(ESP__MSG_HELLO, &hello, sizeof hello);
    CHECK(hello_send(fds[0], &old) && hello_receive(fds[0], answer, sizeof answer) == ESP__MSG_REFUSE);
    CHECK(strstr(answer, "a rank that joins runs espresso 0.0.1") != NULL);
    CHECK(hello_as(fds[1], 1, 2, "", sent, answer, sizeof answer) == ESP__MSG_REFUSE);
    CHECK(strstr(answer, "needs ESP_JOIN") != NULL);
    for (int i = 0; i < 2; i++) close(fds[i]);
    while (atomic_load(&y->joined) < 1) usleep(1000);
    close(fds[2]);
    return NULL;
}
TEST(test_unknown_peers) {
    static play y;
    pthread_t thread;
    y = (play){.n = 3,
               .rounds = 40,
               .o = DILOCO,
               .root = test_root(false),
               .of = {{.last = 99}, {.last = 99}, {.first = 4, .last = 99}}};
    atomic_store(&failures, 0);
    pthread_create(&thread, NULL, unknown_main, &y);
    run(&y, y.root);
    pthread_join(thread, NULL);
    expect_same(&y, 3);
    assert_int_equal(atomic_load(&failures), 0);
}

/* ---- contexts that average gradients in every step, and wrong calls ---- */
typedef struct trainee {
    const char *root;
    int32_t rank; /* 2 joins */
    int failed;
} trainee;
static void *trainee_main(void *arg) {
    trainee *k = arg;
    const esp_config c = {.rank = k->rank % 2,
                          .size = 2,
                          .root = k->root,
                          .timeout_ms = 20000,
                          .cpu_workers = 1,
                          .codec = "topk:ratio=0.5",
                          .min_compress_elements = 1,
                          .backend = "shm",
                          .flags = k->rank == 2 ? ESP_JOIN : 0,
                          .log_level = ESP_LOG_ERROR};
    esp_stats stats = {.struct_size = sizeof stats};
    float g[N], x = 1;
    int step = 0, end = 0;
    esp_ctx *ctx;
    CHECK(esp_open(&c, &ctx) == ESP_OK);
    CHECK(esp_reconfigure(ctx) == ESP_E_STATE && error_has(ctx, "esp_start"));
    if (k->rank == 2) CHECK(esp_broadcast(ctx, &x, 4, 0) == ESP_E_STATE && error_has(ctx, "ESP_JOIN"));
    tensor_add(ctx, "w", N);
    CHECK(esp_start(ctx) == ESP_OK);
    if (k->rank == 2) CHECK(esp_broadcast(ctx, &step, sizeof step, 0) == ESP_OK && step > 0);
    for (end = step + 20; esp_size(ctx) == 2 || step < end;) {
        for (int i = 0; i < N; i++) g[i] = (float)(i % 7);
        CHECK(esp_push(ctx, 0, g, here) == ESP_OK);
        if (!step) CHECK(esp_reconfigure(ctx) == ESP_E_STATE && error_has(ctx, "esp_wait_all"));
        CHECK(esp_wait_all(ctx) == ESP_OK);
        check_same_bits(ctx, g, sizeof g);
        step++;
        if (esp_size(ctx) == 2) {
            CHECK(esp_reconfigure(ctx) == ESP_OK && esp_stats_read(ctx, &stats) == ESP_OK);
            CHECK(stats.ranks_joined == (esp_size(ctx) == 3));
            if (stats.ranks_joined) CHECK(esp_broadcast(ctx, &step, sizeof step, 0) == ESP_OK);
            end = step + 20;
        }
        if (atomic_load(&failures)) break;
    }
    CHECK(esp_size(ctx) == 3 && esp_rank(ctx) == k->rank);
    esp_close(ctx);
    return NULL;
}
TEST(test_steps) {
    trainee k[3] = {{test_root(false), 0}, {0}, {0}};
    char root[64];
    snprintf(root, sizeof root, "%s", k[0].root);
    for (int32_t r = 0; r < 3; r++) k[r] = (trainee){root, r};
    atomic_store(&failures, 0);
    run_threads(3, trainee_main, k, sizeof *k);
    assert_int_equal(atomic_load(&failures), 0);
}

/* ---- two jobs become one: the ranks of the smaller one join the larger one ---- */
enum { HALF_ROUNDS = 3 };
typedef struct half {
    const char *roots[2];
    int32_t me, larger, all; /* the first `larger` ranks are the larger job */
    bool keeps;              /* what the smaller job has learnt */
} half;
static float half_moves(int32_t me, int round, int i) { return (float)((me * 5 + round * 3 + i) % 8); }

static esp_ctx *half_open(const half *h, int32_t rank, int32_t size, float *w) {
    const esp_config c = {.rank = rank,
                          .size = size,
                          .root = h->roots[size && h->me >= h->larger],
                          .timeout_ms = 20000,
                          .cpu_workers = 1,
                          .backend = "shm",
                          .flags = size ? 0 : ESP_JOIN,
                          .log_level = ESP_LOG_ERROR};
    const esp_outer_desc o = {.every = 1};
    esp_ctx *ctx;
    CHECK(esp_open(&c, &ctx) == ESP_OK && esp_outer_open(ctx, &o) == ESP_OK);
    tensor_add(ctx, "w", N);
    CHECK(esp_start(ctx) == ESP_OK && esp_outer_add(ctx, 0, w) == ESP_OK);
    return ctx;
}

/* A round of ranks `from` to `to`. Sums are of whole numbers and, divided by 1 to 4, exact on all ranks alike. */
static void half_round(const half *h, esp_ctx *ctx, int round, float *w, const float *before, int32_t from,
                       int32_t to) {
    for (int i = 0; i < N; i++) w[i] += half_moves(h->me, round, i);
    CHECK(esp_outer_step(ctx, here) == ESP_OK);
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int32_t r = from; r < to; r++) sum += before[r * N + i] + half_moves(r, round, i);
        if (fabsf(w[i] - sum / (float)(to - from)) > 1e-4f) {
            CHECK(false);
            return;
        }
    }
    check_same_bits(ctx, w, sizeof(float) * N);
}

static void *half_main(void *arg) {
    const half *h = arg;
    const bool small = h->me >= h->larger;
    const int32_t from = small ? h->larger : 0, to = small ? h->all : h->larger;
    float w[N] = {0}, before[4 * N], ends[2][N] = {{0}};
    esp_ctx *ctx = half_open(h, h->me - from, to - from, w);
    for (int round = 0; round < HALF_ROUNDS; round++) {
        for (int32_t r = 0; r < h->all; r++) memcpy(before + r * N, w, sizeof w);
        half_round(h, ctx, round, w, before, from, to);
    }
    for (int i = 0; i < N; i++) /* where both jobs are, simulated */
        for (int round = 0; round < HALF_ROUNDS; round++)
            for (int32_t r = 0; r < h->all; r++)
                ends[r >= h->larger][i] +=
                    half_moves(r, round, i) / (float)(r < h->larger ? h->larger : h->all - h->larger);
    if (small) {
        esp_close(ctx);
        float own[N];
        memcpy(own, w, sizeof own);
        ctx = half_open(h, 0, 0, w);
        CHECK(fabsf(w[1] - ends[0][1]) < 1e-4f); /* the larger job's anchor */
        if (h->keeps) memcpy(w, own, sizeof own);
    }
    while (esp_size(ctx) < h->all && !atomic_load(&failures)) CHECK(esp_reconfigure(ctx) == ESP_OK);
    for (int32_t r = 0; r < h->all; r++) memcpy(before + r * N, ends[h->keeps && r >= h->larger], sizeof *ends);
    /* ranks that joined one by one are renumbered, but a mean has no order */
    half_round(h, ctx, HALF_ROUNDS, w, before, 0, h->all);
    for (int32_t r = 0; r < h->all; r++) memcpy(before + r * N, w, sizeof w);
    half_round(h, ctx, HALF_ROUNDS + 1, w, before, 0, h->all);
    esp_stats stats = {.struct_size = sizeof stats};
    CHECK(esp_stats_read(ctx, &stats) == ESP_OK && stats.outer_rounds == HALF_ROUNDS + 2);
    esp_close(ctx);
    return NULL;
}
TEST(test_two_jobs_become_one) {
    char roots[2][64];
    for (int i = 0; i < 2; i++) snprintf(roots[i], sizeof roots[i], "%s", test_root(i == 1));
    for (int i = 0; i < 4; i++) {
        half h[4];
        const int32_t larger = i % 2 ? 3 : 2;
        for (int32_t r = 0; r < 4; r++) h[r] = (half){{roots[0], roots[1]}, r, larger, 4, i >= 2};
        atomic_store(&failures, 0);
        run_threads(4, half_main, h, sizeof *h);
        assert_int_equal(atomic_load(&failures), 0);
    }
}

static void body_mid_round(esp_ctx *ctx, void *user) {
    const esp_outer_desc o = {.every = 4, .delay = 2};
    float w[N] = {0};
    CHECK(esp_outer_open(ctx, &o) == ESP_OK);
    tensor_add(ctx, "w", N);
    CHECK(esp_start(ctx) == ESP_OK && esp_outer_add(ctx, 0, w) == ESP_OK);
    CHECK(esp_reconfigure(ctx) == ESP_OK);
    for (int k = 0; k < 4; k++) {
        CHECK(esp_outer_step(ctx, here) == ESP_OK);
        CHECK(esp_reconfigure(ctx) == ESP_E_STATE && error_has(ctx, "esp_outer_sync"));
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK && esp_reconfigure(ctx) == ESP_OK && esp_size(ctx) == 3);
}
TEST(test_mid_round_is_refused) { RUN_RANKS(.size = 3, .body = body_mid_round); }

static esp_status no_allgather(void *user, const void *in, void *out, uint64_t bytes) { return ESP_E_STATE; }
TEST(test_open_refuses) {
    esp_config c = {.flags = ESP_JOIN, .log_level = ESP_LOG_ERROR};
    esp_ctx *ctx;
    unsetenv("ESPRESSO_ROOT");
    assert_int_equal(esp_open(&c, &ctx), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "esp_config.root"));
    c.root = test_root(false), c.oob_allgather = no_allgather;
    assert_int_equal(esp_open(&c, &ctx), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "oob_allgather"));
    c.oob_allgather = NULL, c.timeout_ms = 200;
    assert_int_equal(esp_open(&c, &ctx), ESP_OK);
    tensor_add(ctx, "w", N);
    assert_int_equal(esp_start(ctx), ESP_E_TIMEOUT); /* there is no job */
    assert_non_null(strstr(esp_last_error(ctx), "esp_reconfigure"));
    esp_close(ctx);
}
