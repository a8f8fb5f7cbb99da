/* test_train_die.c kills, stops, slows or closes a rank in the middle of steps. Every other rank must get an error that
 * names it. Prints how long that takes, without a limit. */
/* runs: quiet no-tsan: ranks are processes; context/test_step has their threads */
#include "tests/lib/test.h"
#include "tests/lib/processes.h"

enum { N = 50000, TENSORS = 3 };
static const char *option, *codec, *backend = "shm";
static uint32_t timeout_ms;
static int warm = 10; /* steps before a rank reports that it is ready */

static esp_ctx *open_ctx(procs *p, int32_t rank) {
    report *me = &p->b->rank[rank];
    esp_ctx *ctx = NULL;
    esp_config cfg = {.rank = rank,
                      .size = p->size,
                      .machine = 1 + rank / 2,
                      .root = p->root,
                      .backend = backend,
                      .codec = codec,
                      .timeout_ms = timeout_ms,
                      .cpu_workers = 1,
                      .log_level = ESP_LOG_ERROR};
    if (esp_open(&cfg, &ctx) != ESP_OK) {
        snprintf(me->text, sizeof me->text, "open: %.900s", esp_last_error(NULL));
        return NULL;
    }
    for (int i = 0; i < TENSORS; i++) {
        esp_tensor_desc d = ESP_ZERO;
        char name[32];
        uint32_t id;
        snprintf(name, sizeof name, "layer%d.weight", i);
        d.name = name;
        d.count = N;
        d.option = option;
        if (esp_tensor_add(ctx, &d, &id) != ESP_OK)
            snprintf(me->text, sizeof me->text, "add: %.900s", esp_last_error(ctx));
    }
    if (esp_start(ctx) == ESP_OK) return ctx;
    snprintf(me->text, sizeof me->text, "start: %.900s", esp_last_error(ctx));
    esp_close(ctx);
    return NULL;
}

static void note(report *me, esp_ctx *ctx, esp_status s) {
    if (ctx) snprintf(me->text, sizeof me->text, "%.1000s", s == ESP_OK ? "" : esp_last_error(ctx));
    atomic_store(&me->returned_ns, esp__now_ns());
    atomic_store(&me->status, s);
}

static esp_status step(esp_ctx *ctx, float *grads) {
    esp_stream here = ESP_ZERO;
    esp_status s = ESP_OK;
    for (int i = 0; i < TENSORS * N; i++) grads[i] = (float)(i % 13) - 6.0f;
    for (uint32_t i = 0; i < TENSORS && s == ESP_OK; i++) s = esp_push(ctx, i, grads + i * N, here);
    return s == ESP_OK ? esp_wait_all(ctx) : s;
}

/* Trains until an error. If the test sets `go` to 1, rank 2 pauses for 4 s; if it sets 2, rank 2 closes its context. */
static void body_train(procs *p, int32_t rank) {
    report *me = &p->b->rank[rank];
    float *grads = (float *)malloc(TENSORS * N * sizeof *grads);
    esp_ctx *ctx = open_ctx(p, rank);
    esp_status s = ctx ? ESP_OK : ESP_E_STATE;
    for (int k = 0; s == ESP_OK; k++) {
        int go = rank == 2 ? atomic_load(&p->b->go) : 0;
        if (go == 1) usleep(4000000);
        if (go == 2) break;
        s = step(ctx, grads);
        if (k == warm) atomic_store(&me->ready, 1);
    }
    note(me, ctx, s);
    if (s != ESP_OK && esp_push(ctx, 0, grads, (esp_stream)ESP_ZERO) != s) atomic_store(&me->other, 1);
    esp_close(ctx);
    atomic_store(&me->closed_ns, esp__now_ns());
    free(grads);
}

/* Checks that all other ranks have failed with status `want`, and a text that contains the victim and `word`. */
static void expect_all(procs *p, int32_t victim, esp_status want, const char *word, uint64_t t0, const char *how) {
    char who[32];
    uint64_t returned = 0, closed = 0;
    int all_back = PROCS_AWAIT(p, closed_ns, 0, victim);
    snprintf(who, sizeof who, "rank %d", (int)victim);
    for (int32_t r = 0; r < p->size; r++) {
        report *x = &p->b->rank[r];
        if (r == victim) continue;
        if (atomic_load(&x->status) != want || !strstr(x->text, who) || !strstr(x->text, word))
            print_error("%d %s: rank %d after %.1f ms: %d %s\n", (int)victim, how, (int)r,
                        (double)(atomic_load(&x->returned_ns) - t0) / 1e6, atomic_load(&x->status), x->text);
    }
    assert_true(all_back);
    for (int32_t r = 0; r < p->size; r++) {
        report *x = &p->b->rank[r];
        if (r == victim) continue;
        assert_int_equal(atomic_load(&x->status), want);
        assert_non_null(strstr(x->text, who));
        assert_non_null(strstr(x->text, word));
        assert_int_equal(atomic_load(&x->other), 0); /* later calls must fail too */
        if (atomic_load(&x->returned_ns) > returned) returned = atomic_load(&x->returned_ns);
        if (atomic_load(&x->closed_ns) > closed) closed = atomic_load(&x->closed_ns);
    }
    print_message("rank %d %s: all waits back after %.1f ms, all closed after %.1f ms\n", (int)victim, how,
                  (double)(returned - t0) / 1e6, (double)(closed - t0) / 1e6);
}

static void prepare(procs *p, uint32_t timeout) {
    timeout_ms = timeout;
    procs_init(p, 4);
    procs_start_all(p, body_train);
    if (!PROCS_AWAIT(p, ready, 0, NOBODY))
        for (int r = 0; r < 4; r++) fail_msg("rank %d: %s", r, p->b->rank[r].text);
}

/* Returns 1 if the rank uses named shared memory, which would stay behind after kill -9. */
static int maps_named_memory(pid_t pid) {
    char path[64], line[512];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) found |= strstr(line, "/dev/shm/") != NULL;
    fclose(f);
    return found;
}

static void kill_each(const char *with_codec, const char *with_option) {
    codec = with_codec;
    option = with_option;
    for (int32_t victim = 0; victim < 4; victim++) {
        procs p;
        uint64_t t0;
        prepare(&p, 20000);
        for (int32_t r = 0; r < p.size; r++) assert_int_equal(maps_named_memory(p.pid[r]), 0);
        t0 = esp__now_ns();
        kill(p.pid[victim], SIGKILL);
        expect_all(&p, victim, ESP_E_PEER, "died", t0, "killed");
        assert_int_equal(procs_end(&p), 0);
    }
}
TEST(test_killed_without_compression) { kill_each(NULL, NULL); }
TEST(test_killed_with_compression) {
    kill_each("topk:ratio=0.1", "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > "
                                "inter.allgather > decomp@cpu > intra.allgather");
}

/* If a rank is stopped, all others name it after their timeout. */
TEST(test_stopped) {
    codec = option = NULL;
    for (int32_t victim = 1; victim < 4; victim += 2) {
        procs p;
        uint64_t t0;
        prepare(&p, 1500);
        t0 = esp__now_ns();
        kill(p.pid[victim], SIGSTOP);
        waitpid(p.pid[victim], NULL, WUNTRACED); /* until it has stopped */
        expect_all(&p, victim, ESP_E_TIMEOUT, "tensor 'layer", t0, "stopped");
        kill(p.pid[victim], SIGKILL);
        assert_int_equal(procs_end(&p), 0);
    }
}

/* A step takes longer than the timeout here, although no single collective does. A stopped rank must be found all
 * the same. */
TEST(test_stopped_where_steps_are_long) {
    procs p;
    uint64_t t0;
    codec = option = NULL;
    backend = "shm:inter=2mbit";
    warm = 1;
    prepare(&p, 1000);
    t0 = esp__now_ns();
    kill(p.pid[3], SIGSTOP);
    waitpid(p.pid[3], NULL, WUNTRACED); /* until it has stopped */
    expect_all(&p, 3, ESP_E_TIMEOUT, "tensor 'layer", t0, "stopped, long steps");
    kill(p.pid[3], SIGKILL);
    assert_int_equal(procs_end(&p), 0);
    backend = "shm";
    warm = 10;
}

/* Errors name a rank that computes for too long, although it still answers the other ranks' questions. */
TEST(test_slow) {
    procs p;
    uint64_t t0;
    codec = option = NULL;
    prepare(&p, 1500);
    t0 = esp__now_ns();
    atomic_store(&p.b->go, 1);
    expect_all(&p, 2, ESP_E_TIMEOUT, "tensor 'layer", t0, "slow");
    kill(p.pid[2], SIGKILL);
    assert_int_equal(procs_end(&p), 0);
}

TEST(test_left) {
    procs p;
    uint64_t t0;
    codec = option = NULL;
    prepare(&p, 20000);
    t0 = esp__now_ns();
    atomic_store(&p.b->go, 2);
    expect_all(&p, 2, ESP_E_PEER, "closed its context", t0, "left");
    assert_int_equal(procs_end(&p), 0);
}

/* A rank is killed between esp_open and esp_start, while the others wait for it in esp_start. */
static void body_start_late(procs *p, int32_t rank) {
    report *me = &p->b->rank[rank];
    atomic_store(&me->ready, 1);
    esp_ctx *ctx = open_ctx(p, rank);
    atomic_store(&me->status, ctx ? ESP_OK : ESP_E_PEER);
    esp_close(ctx);
}
static void body_never_starts(procs *p, int32_t rank) {
    esp_ctx *ctx = NULL;
    esp_config cfg = {.rank = rank, .size = p->size, .machine = 1 + rank / 2, .root = p->root, .backend = backend};
    atomic_store(&p->b->rank[rank].other, esp_open(&cfg, &ctx));
    atomic_store(&p->b->rank[rank].ready, 1);
    usleep(30000000);
}
TEST(test_killed_before_start) {
    procs p;
    codec = option = NULL;
    timeout_ms = 20000;
    procs_init(&p, 4);
    for (int32_t r = 0; r < 4; r++) procs_start(&p, r, r == 3 ? body_never_starts : body_start_late);
    assert_true(PROCS_AWAIT(&p, ready, 0, NOBODY));
    usleep(50000);
    kill(p.pid[3], SIGKILL);
    assert_true(PROCS_AWAIT(&p, status, 1, 3));
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(atomic_load(&p.b->rank[r].status), ESP_E_PEER);
        if (!strstr(p.b->rank[r].text, "rank 3 died")) print_error("rank %d: %s\n", (int)r, p.b->rank[r].text);
        assert_non_null(strstr(p.b->rank[r].text, "rank 3 died"));
    }
    assert_int_equal(procs_end(&p), 0);
}
