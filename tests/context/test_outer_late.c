/* test_outer_late.c checks outer contexts with a window: a rank that comes late does not hold up the others, joins with
 * fewer inner steps, or is left out of a round and brings its difference into the next one. Ranks are threads. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/context/outer.h"

enum { SIZE = 3, N = 700, TENSORS = 3 };
static const esp_stream here;

typedef float model[TENSORS][N];

static void start(esp_ctx *ctx, const char *method, model w) {
    char name[16];
    const esp_outer_desc o = {.method = method};
    memset(w, 0, sizeof(model));
    CHECK(esp_outer_open(ctx, &o) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) {
        snprintf(name, sizeof name, "w%d", t);
        CHECK(tensor_add(ctx, name, N) == (uint32_t)t);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (uint32_t t = 0; t < TENSORS; t++) CHECK(esp_outer_add(ctx, t, w[t]) == ESP_OK);
}
/* An optimizer's step moves all parameters by `by`. */
static void move(model w, float by) {
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < N; i++) w[t][i] += by;
}
static bool step(esp_ctx *ctx, model w, float by) {
    move(w, by);
    const bool ok = esp_outer_step(ctx, here) == ESP_OK;
    CHECK(ok);
    return ok;
}
static bool all_are(model w, float value) {
    bool same = true;
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < N; i++) same &= fabsf(w[t][i] - value) < 1e-5f;
    return same;
}
static esp_stats stats_of(esp_ctx *ctx) {
    esp_stats s = {.struct_size = sizeof s};
    CHECK(esp_stats_read(ctx, &s) == ESP_OK);
    return s;
}

/* Waits until another rank has pushed `pushes` fragments, and lets so many windows pass on this rank: the tests'
 * windows are long, so that nobody is late by chance. */
static void windows_pass(esp_ctx *ctx, uint64_t pushes, uint64_t windows) {
    esp__outer_late *l = &ctx->outer->late;
    for (bool begun = false; !begun; usleep(1000)) {
        pthread_mutex_lock(&l->news);
        begun = l->begun >= pushes;
        if (begun) l->begun_ns -= windows * l->window_ns, pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->news);
    }
}

/* ---- a rank that stays away for a whole round -------------------------------------------------------------------- */
/* Rank 2 makes no call until the others have ended a round: they would wait for ever if it held them up. */
static void body_missed(esp_ctx *ctx, void *user) {
    static atomic_int done[2];
    const int codec = user != NULL;
    const int32_t me = esp_rank(ctx);
    model w;
    start(ctx, "average:every=2,fragments=2,window=30000", w);
    step(ctx, w, 1); /* fragment 1: all push */
    CHECK(stats_of(ctx).outer_missed == 0);
    if (me < 2) {
        step(ctx, w, me == 0 ? 3 : 6); /* fragment 2: tensors 2 and 3 moved by 4 and 7, not those of rank 2 */
        atomic_fetch_add(&done[codec], 1);
    } else {
        move(w, 0.5f);
        windows_pass(ctx, 2, 2);
        while (atomic_load(&done[codec]) < 2 || !stats_of(ctx).outer_missed) usleep(1000);
        CHECK(stats_of(ctx).outer_rounds == 1 && stats_of(ctx).outer_missed == 1);
        CHECK(esp_outer_step(ctx, here) == ESP_OK);
        /* it moved by 1.5 of its own, and with the anchor by (4 + 7) / 3 */
        for (int i = 0; i < N; i++) CHECK(fabsf(w[TENSORS - 1][i] - 1.5f - 11.0f / 3) < 1e-5f);
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    check_same_bits(ctx, w, sizeof(model));
    /* all that ranks have moved is there in the end: (1 + 3, 1 + 6, 1 + 0.5) */
    CHECK(all_are(w, (4 + 7 + 1.5f) / 3));
    CHECK(stats_of(ctx).outer_missed == (me == 2));
}
TEST(test_missed_round) {
    RUN_RANKS(.size = SIZE, .body = body_missed);
    RUN_RANKS(.size = SIZE, .body = body_missed, .user = (void *)1, .config.codec = "fp16",
              .config.min_compress_elements = 1);
}

/* ---- a rank that comes late -------------------------------------------------------------------------------------- */
static void body_fewer_steps(esp_ctx *ctx, void *user) {
    const uint32_t delay = user ? 2 : 0;
    const int32_t me = esp_rank(ctx);
    model w;
    start(ctx, delay ? "average:every=5,delay=2,window=30000" : "average:every=5,window=30000", w);
    if (me < 2) {
        for (int k = 0; k < 5; k++) step(ctx, w, 1);
    } else {
        step(ctx, w, 2);
        move(w, 2);
        windows_pass(ctx, 1, 1);
        CHECK(esp_outer_step(ctx, here) == ESP_OK); /* its second step ends the round */
    }
    CHECK(stats_of(ctx).outer_rounds == !delay);
    for (uint32_t k = 0; k < delay; k++) step(ctx, w, 0);
    CHECK(stats_of(ctx).outer_rounds == 1 && all_are(w, (5 + 5 + 4) / 3.0f));
    CHECK(stats_of(ctx).outer_missed == 0);
    for (uint32_t k = 0; k < 5 - delay; k++) step(ctx, w, 1); /* the next round has 5 steps for all */
    CHECK(esp_outer_sync(ctx, here) == ESP_OK && all_are(w, (5 + 5 + 4) / 3.0f + 5 - (float)delay));
}
TEST(test_fewer_steps) {
    RUN_RANKS(.size = SIZE, .body = body_fewer_steps);
    RUN_RANKS(.size = SIZE, .body = body_fewer_steps, .user = (void *)1);
}

/* ---- ranks that are late at random ------------------------------------------------------------------------------- */
static const char *const random_methods[] = {"average:every=4,window=1", "average:every=6,fragments=3,window=2",
                                             "diloco:every=4,fragments=2,delay=2,window=1",
                                             "streaming:every=6,fragments=3,delay=2,window=1"};
static void body_random(esp_ctx *ctx, void *user) {
    const char *const *method = user;
    const bool mean = !strncmp(*method, "average", 7);
    const int n = getenv("TEST_ALL") ? 900 : 150;
    uint64_t seed = 17 + (uint64_t)esp_rank(ctx);
    double moved[SIZE] = {0}, sum = 0;
    model w;
    start(ctx, *method, w);
    for (int k = 0; k < n; k++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const float by = (float)(seed >> 60) - 7;
        if (seed >> 33 & 1) usleep((unsigned)(seed >> 40) % 3000);
        if (!step(ctx, w, by)) return;
        moved[esp_rank(ctx)] += (double)by;
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    check_same_bits(ctx, w, sizeof(model));
    for (int r = 0; r < SIZE; r++) {
        CHECK(esp_broadcast(ctx, &moved[r], sizeof moved[r], r) == ESP_OK);
        sum += moved[r] / SIZE;
    }
    /* no step is lost: the mean of all that ranks have moved; of the last fragment, which esp_outer_sync always pushes
     */
    if (mean) CHECK(fabs((double)w[TENSORS - 1][N - 1] - sum) < 1e-3 * (1 + fabs(sum)));
    CHECK(stats_of(ctx).outer_rounds >= (uint64_t)n / 6);
}
TEST(test_late_at_random) {
    for (size_t i = 0; i < sizeof random_methods / sizeof *random_methods; i++)
        RUN_RANKS(.size = SIZE, .body = body_random, .user = (void *)(uintptr_t)&random_methods[i]);
}

/* ---- a rank that is lost while others are late --------------------------------------------------------------------
 */
static void body_lost(esp_ctx *ctx, void *user) {
    const int32_t origin = esp_rank(ctx), leaver = user ? 0 : SIZE;
    uint64_t seed = 5 + (uint64_t)origin, before = 0;
    esp_status s = ESP_OK;
    model w;
    start(ctx, "average:every=4,fragments=2,delay=1,window=1", w);
    for (int k = 0; !s && (!before || stats_of(ctx).outer_rounds < before + 20); k++) {
        if (origin == leaver && k == 30) return;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (seed >> 33 & 1) usleep((unsigned)(seed >> 40) % 3000);
        move(w, 1);
        s = esp_outer_step(ctx, here);
        while (s == ESP_E_PEER && !(s = esp_shrink(ctx))) {
            CHECK(ctx->outer->late.begun == 0); /* what was pushed before the loss does not count */
            s = esp_outer_sync(ctx, here);
            before = stats_of(ctx).outer_rounds;
        }
    }
    CHECK(s == ESP_OK && before && esp_size(ctx) == SIZE);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK);
    check_same_bits(ctx, w, sizeof(model));
}
TEST(test_lost_while_late) {
    RUN_RANKS(.size = SIZE + 1, .body = body_lost, .config.timeout_ms = 20000);
    RUN_RANKS(.size = SIZE + 1, .body = body_lost, .user = (void *)1, .config.timeout_ms = 20000);
}

/* ---- NaN in a round that a rank misses --------------------------------------------------------------------------- */
static void body_nan(esp_ctx *ctx, void *user) {
    static atomic_int done;
    const int32_t me = esp_rank(ctx);
    model w;
    (void)user;
    start(ctx, "diloco:every=1,window=30000", w);
    step(ctx, w, 0); /* the first call compares anchors, and waits for all */
    if (me < 2) {
        step(ctx, w, me ? NAN : 1);
        CHECK(all_are(w, 0));
        atomic_fetch_add(&done, 1);
    } else {
        windows_pass(ctx, 2, 2);
        while (atomic_load(&done) < 2 || !stats_of(ctx).outer_missed) usleep(1000);
        step(ctx, w, 1);
        CHECK(all_are(w, 1)); /* its own movement was not among what is thrown away */
    }
    CHECK(esp_outer_sync(ctx, here) == ESP_OK && !all_are(w, 0));
    check_same_bits(ctx, w, sizeof(model));
}
TEST(test_nan) { RUN_RANKS(.size = SIZE, .body = body_nan); }

/* ---- calls in mid-round ------------------------------------------------------------------------------------------ */
static void body_calls(esp_ctx *ctx, void *user) {
    float x = 1;
    model w;
    start(ctx, "average:every=4,window=30000", w);
    CHECK(esp_broadcast(ctx, &x, sizeof x, 0) == ESP_OK);
    step(ctx, w, 1);
    CHECK(esp_broadcast(ctx, &x, sizeof x, 0) == ESP_E_STATE && error_has(ctx, "esp_outer_sync"));
    CHECK(esp_state_save(ctx, user) == ESP_E_STATE && error_has(ctx, "esp_outer_sync"));
    CHECK(esp_outer_sync(ctx, here) == ESP_OK && esp_state_save(ctx, user) == ESP_OK);
    CHECK(stats_of(ctx).outer_rounds == 1);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK && stats_of(ctx).outer_rounds == 1); /* nothing has changed */
    step(ctx, w, 1);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK && all_are(w, 2) && esp_state_load(ctx, user) == ESP_OK);
    memset(w, 0, sizeof(model));
    move(w, 1); /* as saved */
    step(ctx, w, 2);
    CHECK(esp_outer_sync(ctx, here) == ESP_OK && all_are(w, 3));
}
static void body_wrong(esp_ctx *ctx, void *user) {
    static const char *const wrong[][2] = {{"average:every=4,window=0", "window is 0"},
                                           {"average:every=4,window=1e9", "window is 1e9"},
                                           {"average:every=4,window=5,check=10", "check"},
                                           {"average:max_every=4,window=5", "max_every"}};
    (void)user;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const esp_outer_desc o = {.method = wrong[i][0]};
        CHECK(esp_outer_open(ctx, &o) == ESP_E_ARG && error_has(ctx, wrong[i][1]));
    }
}
TEST(test_calls) {
    RUN_RANKS(.size = 1, .body = body_calls, .user = (void *)(uintptr_t)in_folder("alone"));
    RUN_RANKS(.size = 2, .body = body_calls, .user = (void *)(uintptr_t)in_folder("late"));
    RUN_RANKS(.size = 1, .body = body_wrong);
}
