/* test_shrink.c checks esp_shrink, by which a job goes on without lost ranks. Ranks are threads, and leave by closing
 * their contexts. In jobs/faults/test_shrink.c they are processes that die. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include <ifaddrs.h>
#include <net/if.h>
#include "espresso_impl/job/peers.h"
#include "tests/lib/hello.h"

enum { N = 5000, SIZE = 4 };

static struct {
    int32_t leaves[SIZE]; /* the step before which a rank leaves, or 0 if it stays */
    int tcp, steps;
    int done[SIZE], size[SIZE];
    float last[SIZE][N];
    char text[SIZE][512];
} run;

/* A thread that acts as an attacker: it connects to the address where ranks meet, and sends garbage, nothing, or a
 * greeting with a wrong job number. */
static struct {
    int wanted, began;
    char root[ESP__ROOT_MAX];
    uint32_t got;
    pthread_t thread;
} hostile;
static void *hostile_main(void *arg) {
    hello_bytes garbage = {.n = sizeof garbage.data}, sent[2];
    char answer[4096];
    int fds[3];
    for (int i = 0; i < 3; i++) fds[i] = hello_connect(hostile.root, 1000);
    memset(garbage.data, 'x', sizeof garbage.data);
    hello_send(fds[0], &garbage);
    hostile.got = hello_as(fds[2], 3, SIZE, "0123456789abcdef", sent, answer, sizeof answer);
    for (int i = 0; i < 3; i++) close(fds[i]);
    return NULL;
}

static void standby_over_tcp(esp_ctx *ctx) {
    esp__standby *s;
    assert_int_equal(esp__standby_open(ctx, 1, false, &s), ESP_OK);
    esp__standby_close(ctx, ctx->job.standby);
    ctx->job.standby = s;
}

static void body(esp_ctx *ctx, void *user) {
    const int32_t origin = esp_rank(ctx);
    const esp_stream here = ESP_ZERO;
    float *g = run.last[origin];
    uint32_t id;
    esp_tensor_desc d = {.name = "w", .count = N};
    esp_status s = esp_tensor_add(ctx, &d, &id);
    if (!s) s = esp_start(ctx);
    if (!s && run.tcp) standby_over_tcp(ctx);
    for (int step = 1; step <= run.steps && !s;) {
        if (step == run.leaves[origin] && hostile.wanted) {
            esp__standby_root(ctx->job.standby, 0, 0, hostile.root);
            hostile.began = !pthread_create(&hostile.thread, NULL, hostile_main, NULL);
            poll(NULL, 0, 100); /* the hostile peer connects before other ranks do */
        }
        if (step == run.leaves[origin]) return;
        for (int i = 0; i < N; i++) g[i] = (float)(i % 5 + 3 * origin);
        s = esp_push(ctx, id, g, here);
        if (!s) s = esp_wait_all(ctx);
        if (!s) step++;
        while (s == ESP_E_PEER && !(s = esp_shrink(ctx)) &&
               (s = esp_broadcast(ctx, &step, sizeof step, 0)) == ESP_E_PEER) {
        }
    }
    snprintf(run.text[origin], sizeof run.text[origin], "%.500s", s ? esp_last_error(ctx) : "");
    run.done[origin] = s == ESP_OK;
    run.size[origin] = esp_size(ctx);
}

static void train(const char *codec, int32_t first, int32_t second, int tcp) {
    memset(&run, 0, sizeof run);
    run.leaves[first] = 10;
    if (second >= 0) run.leaves[second] = 20;
    run.tcp = tcp;
    run.steps = 30;
    RUN_RANKS(.size = SIZE, .body = body, .config.codec = codec, .config.timeout_ms = 20000,
              .config.progress = "threads");
    for (int32_t r = 0, n = 0; r < SIZE; r++) {
        n += !run.leaves[r];
        if (run.leaves[r]) continue;
        if (!run.done[r]) fail_msg("rank %d: %s", (int)r, run.text[r]);
        assert_int_equal(run.size[r], second < 0 ? 3 : 2);
        if (codec) continue;
        float sum = 0, left = 0;
        for (int32_t k = 0; k < SIZE; k++)
            if (!run.leaves[k]) sum += (float)(3 * k), left++;
        for (int i = 0; i < N; i++) {
            const float want = (float)(i % 5) + sum / left;
            if (run.last[r][i] < want - 1e-4f || run.last[r][i] > want + 1e-4f)
                fail_msg("rank %d: %g is not %g", (int)r, (double)run.last[r][i], (double)want);
        }
    }
}

TEST(test_threads) {
    train(NULL, 2, -1, 0);
    train(NULL, 0, -1, 0);
    train("topk:ratio=0.1", 1, 0, 0);
}
TEST(test_hostile) {
    hostile.wanted = 1;
    train(NULL, 2, -1, 0);
    hostile.wanted = 0;
    assert_true(hostile.began);
    pthread_join(hostile.thread, NULL);
    assert_true(hostile.got == ESP__MSG_REFUSE || hostile.got == 0);
}
TEST(test_tcp) {
    struct ifaddrs *list = NULL;
    int others = 0;
    if (getifaddrs(&list) == 0)
        for (struct ifaddrs *a = list; a; a = a->ifa_next)
            others += a->ifa_addr && a->ifa_addr->sa_family == AF_INET && !(a->ifa_flags & IFF_LOOPBACK);
    freeifaddrs(list);
    if (!others) test_skip("this machine has no address but the loopback");
    train(NULL, 0, 3, 1);
}

/* A topology says which ranks are on which machine. Removing lost ranks from it must give the same topology as a start
 * without them. */
TEST(test_topology) {
    static const struct {
        int32_t size, n, unit[2][6], was[6];
    } cases[] = {
        {4, 3, {{0, 0, 2, 2}, {0}}, {0, 1, 3}},       {4, 2, {{0, 0, 2, 2}, {0}}, {1, 3}},
        {4, 2, {{0, 0, 2, 2}, {0}}, {2, 3}},          {6, 4, {{0, 1, 0, 1, 4, 4}, {0}}, {1, 2, 3, 5}},
        {6, 3, {{0, 0, 2, 2, 4, 4}, {0}}, {1, 3, 4}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t room[2][6 * (4 + 2 * ESP__LEVELS)] = {{0}};
        esp__topology t[2];
        for (int k = 0; k < 2; k++) {
            const int32_t n = k ? cases[c].n : cases[c].size;
            memset(&t[k], 0, sizeof t[k]);
            t[k].size = n;
            t[k].machine_of = room[k];
            t[k].local_of = room[k] + 6;
            t[k].ranks = room[k] + 12;
            t[k].unit_of = room[k] + 18;
            t[k].place = room[k] + 18 + 6 * ESP__LEVELS;
            for (int32_t i = 0; i < n; i++) {
                int32_t first = k ? 0 : cases[c].unit[0][i];
                while (k && cases[c].unit[0][cases[c].was[first]] != cases[c].unit[0][cases[c].was[i]]) first++;
                t[k].unit_of[i] = first;
            }
            t[k].rank = k ? 1 : cases[c].was[1];
            esp__topology_make(&t[k], 2);
        }
        esp__topology_keep(&t[0], cases[c].was, cases[c].n, 1, 2);
        assert_int_equal(t[0].size, t[1].size);
        assert_int_equal(t[0].n_machines, t[1].n_machines);
        assert_int_equal(t[0].n_local, t[1].n_local);
        assert_int_equal(t[0].machine, t[1].machine);
        assert_int_equal(t[0].local, t[1].local);
        for (int32_t i = 0; i < t[0].size; i++) {
            assert_int_equal(t[0].machine_of[i], t[1].machine_of[i]);
            assert_int_equal(t[0].local_of[i], t[1].local_of[i]);
            assert_int_equal(t[0].ranks[i], t[1].ranks[i]);
            assert_int_equal(t[0].unit_of[i], t[1].unit_of[i]);
        }
    }
}

/* The watch thread may abort communicators while esp_shrink closes them. */
static void *aborts(void *arg) {
    esp_ctx *ctx = arg;
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&ctx->lanes.lock);
        esp__comms_abort(ctx);
        pthread_mutex_unlock(&ctx->lanes.lock);
    }
    return NULL;
}
static void body_abort_while_closing(esp_ctx *ctx, void *user) {
    pthread_t thread;
    (void)user;
    esp__executor_close(ctx);
    CHECK(!pthread_create(&thread, NULL, aborts, ctx));
    esp__comms_close(ctx);
    pthread_join(thread, NULL);
}
TEST(test_abort_while_closing) {
    RUN_RANKS(.size = SIZE, .per_machine = 2, .body = body_abort_while_closing, .config.backend = "shm");
}
