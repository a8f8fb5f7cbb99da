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
    atomic_int joined, round; /* ranks that have joined; the round of the job */
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
    for (int round = (int)stats.outer_rounds; round < y->rounds && round < p->last && !p->status; round++) {
        if (esp_rank(ctx) == 0) atomic_store(&y->round, round);
        for (int k = 0; k < EVERY && !p->status; k++) {
            for (int t = 0; t < TENSORS; t++) inner(w[t], t, p->me, round * EVERY + k);
            p->status = esp_outer_step(ctx, here);
        }
        if (!p->status) p->bits[round] = hash(w);
        if (!p->status) p->status = esp_reconfigure(ctx);
        p->size = esp_size(ctx);
    }
    snprintf(p->text, sizeof p->text, "%s", p->status ? esp_last_error(ctx) : "");
    esp_close(ctx);
    return NULL;
}

static void run(play *y, const char *root) {
    y->root = root;
    for (int32_t r = 0; r < y->n; r++) y->of[r].play = y, y->of[r].me = r;
    run_threads(y->n, rank_main, y->of, sizeof *y->of);
}

TEST(test_two_become_three) {
    static play y;
    y = (play){.n = 3,
               .rounds = 20,
               .o = {.every = EVERY, .lr = 0.7f, .momentum = 0.9f, .nesterov = 1},
               .of = {{.last = 99}, {.last = 99}, {.first = 2, .last = 99}}};
    run(&y, test_root(false));
    for (int r = 0; r < 3; r++)
        if (y.of[r].status) fail_msg("rank %d: %s", r, y.of[r].text);
    for (int r = 0; r < 3; r++) assert_int_equal(y.of[r].size, 3);
    for (int k = 0; k < 20; k++) {
        assert_true(y.of[0].bits[k] == y.of[1].bits[k]);
        if (y.of[2].bits[k]) assert_true(y.of[0].bits[k] == y.of[2].bits[k]);
    }
    assert_true(y.of[2].bits[19] && !y.of[2].bits[2]);
}
