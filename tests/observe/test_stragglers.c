/* test_stragglers.c checks that the library reports ranks that make others wait, the tensors that they have not pushed,
 * and the end of the wait. Ranks are processes, or threads for the thread sanitizer. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "tests/lib/processes.h"

enum { RANKS = 4, TENSORS = 12, LATE_STEP = 3, ALL_STEPS = 5 };
static float grads[TENSORS][256];

/* ---- ranks as processes: a report has what the rank has logged about stragglers; `other` counts the messages ---- */
static void hear(void *user, const esp_log_event *ev) {
    report *me = user;
    const size_t n = strlen(me->text);
    if (!ev->component || strcmp(ev->component, "straggler")) return;
    snprintf(me->text + n, sizeof me->text - n, "%s\n", ev->message);
    atomic_fetch_add(&me->other, 1);
}

static esp_ctx *open_rank(procs *p, int32_t rank, esp_host *host) {
    esp_ctx *ctx = NULL;
    char name[16];
    memset(host, 0, sizeof *host);
    host->struct_size = sizeof *host;
    host->user = &p->b->rank[rank];
    host->log = hear;
    esp_config c = {.rank = rank,
                    .size = p->size,
                    .root = p->root,
                    .machine = 1,
                    .backend = "shm",
                    .host = host,
                    .timeout_ms = 50000};
    int bad = esp_open(&c, &ctx) != ESP_OK;
    for (int t = 0; t < TENSORS && !bad; t++) {
        esp_tensor_desc d = {.name = name, .count = 256};
        snprintf(name, sizeof name, "t%d", t);
        bad = esp_tensor_add(ctx, &d, NULL) != ESP_OK;
    }
    if (!bad) bad = esp_start(ctx) != ESP_OK;
    if (bad) print_error("rank %d: %s\n", (int)rank, esp_last_error(ctx));
    return bad ? NULL : ctx;
}

static void await_go(const procs *p) {
    while (!atomic_load(&p->b->go)) usleep(5000);
}

/* Trains. In step LATE_STEP, rank `late` pushes only the first `pushed` tensors until the test lets it go on. */
static void train(procs *p, int32_t rank, int32_t late, int pushed) {
    esp_host host;
    report *me = &p->b->rank[rank];
    esp_ctx *ctx = open_rank(p, rank, &host);
    esp_status s = ctx ? ESP_OK : ESP_E_STATE;
    for (int step = 0; step < ALL_STEPS && !s; step++) {
        for (uint32_t t = 0; t < TENSORS && !s; t++) {
            if (step == LATE_STEP && rank == late && (int)t == pushed) {
                atomic_store(&me->ready, 1);
                await_go(p);
            }
            s = esp_push(ctx, t, grads[t], (esp_stream){0});
        }
        if (!s) s = esp_wait_all(ctx);
    }
    atomic_store(&me->status, s);
    esp_close(ctx);
}

/* Waits until the log of rank r contains `words`, and returns it. */
static const char *await_text(const procs *p, int32_t r, const char *words) {
    const uint64_t end = esp__now_ns() + 30000000000ull;
    while (!strstr(p->b->rank[r].text, words) && esp__now_ns() < end) usleep(5000);
    if (!strstr(p->b->rank[r].text, words)) fail_msg("rank %d said \"%s\", not \"%s\"", r, p->b->rank[r].text, words);
    return p->b->rank[r].text;
}

/* Lets all ranks go on, and expects the text `ended`. */
static void finish(procs *p, int32_t speaker, const char *ended) {
    atomic_store(&p->b->go, 1);
    if (ended) await_text(p, speaker, ended);
    for (int32_t r = 0; r < p->size; r++) { /* waits, since procs_end() kills ranks that still run */
        const uint64_t end = esp__now_ns() + 30000000000ull;
        while (atomic_load(&p->b->rank[r].status) == 1 && esp__now_ns() < end) usleep(5000);
        assert_int_equal(atomic_load(&p->b->rank[r].status), ESP_OK);
        if (r != speaker) assert_string_equal(p->b->rank[r].text, "");
    }
    assert_int_equal(procs_end(p), 0);
}

static void job(procs *p, const char *straggler_ms, void (*body)(procs *, int32_t)) {
    setenv("ESPRESSO_STRAGGLER_MS", straggler_ms, 1);
    procs_init(p, RANKS);
    procs_start_all(p, body);
    unsetenv("ESPRESSO_STRAGGLER_MS");
}

static void body_two_late(procs *p, int32_t rank) { train(p, rank, 2, 10); }
static void body_zero_late(procs *p, int32_t rank) { train(p, rank, 0, 0); }
static void body_healthy(procs *p, int32_t rank) { train(p, rank, NOBODY, 0); }

static void expect(const char *text, const char *words) {
    if (!strstr(text, words)) fail_msg("\"%s\" lacks \"%s\"", text, words);
}

TEST(a_rank_does_not_push) {
    procs p;
    job(&p, "300", body_two_late);
    const char *text = await_text(&p, 0, "step 3: for 0.");
    expect(text, " ranks 0, 1, 3 could not go on; rank 2 has not pushed 't10', 't11' (ESPRESSO_STRAGGLER_MS)\n");
    finish(&p, 0, "step 3 went on after ");
}

/* Rank 0 makes the others wait. It logs this, with some tensors that it has not pushed, and how many there are. */
TEST(rank_0_does_not_push) {
    procs p;
    job(&p, "300", body_zero_late);
    const char *text = await_text(&p, 0, "step 3: for 0.");
    expect(text, " ranks 1-3 could not go on; rank 0 has pushed no tensor of this step: 't0', 't1', 't2', 't3' and 8 "
                 "more of its 12 tensors");
    finish(&p, 0, "step 3 went on after ");
}

/* The message is repeated whenever the wait has doubled. */
TEST(again) {
    procs p;
    job(&p, "100", body_two_late);
    const uint64_t end = esp__now_ns() + 30000000000ull, begin = esp__now_ns();
    while (atomic_load(&p.b->rank[0].other) < 4 && esp__now_ns() < end) usleep(5000);
    const int said = atomic_load(&p.b->rank[0].other);
    const double waited = (double)(esp__now_ns() - begin) * 1e-9;
    assert_true(said >= 4);
    assert_true(waited > 0.3); /* messages come after 0.1, 0.2, 0.4 and 0.8 s */
    finish(&p, 0, "step 3 went on after ");
}

/* A stopped process pushes nothing, and does not answer. */
static void stopped(int32_t victim, int32_t speaker, const char *said) {
    procs p;
    job(&p, "300", body_two_late);
    while (!atomic_load(&p.b->rank[2].ready)) usleep(5000);
    kill(p.pid[victim], SIGSTOP);
    await_text(&p, speaker, said);
    kill(p.pid[victim], SIGCONT);
    atomic_store(&p.b->go, 1);
    await_text(&p, speaker, "step 3 went on after ");
    for (int32_t r = 0; r < p.size; r++) {
        const uint64_t end = esp__now_ns() + 30000000000ull;
        while (atomic_load(&p.b->rank[r].status) == 1 && esp__now_ns() < end) usleep(5000);
        assert_int_equal(atomic_load(&p.b->rank[r].status), ESP_OK);
    }
    assert_int_equal(procs_end(&p), 0);
}
TEST(a_rank_is_stopped) { stopped(2, 0, "rank 2 does not answer: it is stopped"); }
TEST(rank_0_is_stopped) { stopped(0, 1, "rank 0, which reports stragglers, does not answer"); }

static void body_barrier(procs *p, int32_t rank) {
    esp_host host;
    esp_ctx *ctx = open_rank(p, rank, &host);
    if (rank == 3) await_go(p);
    atomic_store(&p->b->rank[rank].status, ctx ? esp_barrier(ctx) : ESP_E_STATE);
    esp_close(ctx);
}
TEST(a_rank_does_not_come_to_a_call) {
    procs p;
    job(&p, "300", body_barrier);
    const char *text = await_text(&p, 0, "after step 0, in a broadcast, allreduce or barrier: for 0.");
    expect(text, " ranks 0-2 could not go on; rank 3 has not come to that call");
    finish(&p, 0, "the call after step 0 went on after ");
}

TEST(nothing_is_said) {
    procs p;
    job(&p, "5000", body_healthy);
    finish(&p, NOBODY, NULL);
    job(&p, "0", body_two_late); /* "0" turns messages off */
    while (!atomic_load(&p.b->rank[2].ready)) usleep(5000);
    usleep(500000);
    finish(&p, NOBODY, NULL);
}

TEST(malformed) {
    static const char *const wrong[] = {"10s", "-1", "many", "1e3", "5000000000"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        esp_ctx *ctx = NULL;
        setenv("ESPRESSO_STRAGGLER_MS", wrong[i], 1);
        assert_int_equal(esp_open(NULL, &ctx), ESP_E_ARG);
        assert_non_null(strstr(esp_last_error(NULL), "ESPRESSO_STRAGGLER_MS is \""));
        assert_non_null(strstr(esp_last_error(NULL), "a whole number from 0 to"));
    }
    unsetenv("ESPRESSO_STRAGGLER_MS");
}

/* ---- ranks as threads, for the thread sanitizer ---- */
static atomic_int heard;
static void hear_one(void *user, const esp_log_event *ev) {
    if (ev->component && !strcmp(ev->component, "straggler") && strstr(ev->message, "rank 1 has not pushed 't1'"))
        atomic_store(&heard, 1);
}
static void body_thread(esp_ctx *ctx, void *user) {
    static float zeros[3][64];
    esp_tensor_desc d[2] = {{.name = "t0", .count = 64}, {.name = "t1", .count = 64}};
    int bad = esp_tensor_add(ctx, &d[0], NULL) || esp_tensor_add(ctx, &d[1], NULL) || esp_start(ctx);
    for (uint32_t t = 0; t < 2 && !bad; t++) {
        for (int k = 0; t && esp_rank(ctx) == 1 && k < 6000 && !atomic_load(&heard); k++) usleep(5000);
        bad |= esp_push(ctx, t, zeros[esp_rank(ctx)], (esp_stream){0}) != ESP_OK;
    }
    bad |= esp_wait_all(ctx) != ESP_OK;
    atomic_fetch_add(&failures, bad);
}
TEST(threads) {
    static const esp_host host = {.struct_size = sizeof host, .log = hear_one};
    setenv("ESPRESSO_STRAGGLER_MS", "100", 1);
    RUN_RANKS(.size = 3, .per_machine = 3, .body = body_thread, .config.host = &host, .config.log_level = ESP_LOG_WARN);
    unsetenv("ESPRESSO_STRAGGLER_MS");
    assert_int_equal(atomic_load(&heard), 1);
}
