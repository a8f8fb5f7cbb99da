/* test_wait_fd.c checks that a thread can sleep in poll() on the file descriptors of one or two backends: they are
 * readable whenever something has changed. For a descriptor that nobody uses, a backend makes no system calls. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include <poll.h>

#include "backends/shm/transport.h"
#include "ranks.h"

enum { LATE_MS = 20000 }; /* a poll that takes this long has missed a change */
static const char *const both[] = {"loop", "shm"};

static void expect_ok(const char *name, const char *params, int32_t n, int32_t per_machine, ranks_fn fn,
                      int32_t killed) {
    const char *why = ranks_run(ranks_backend(name), params, n, per_machine, fn, NULL, killed);
    if (why[0]) fail_msg("%s", why);
}
static esp_coll sum_of(uint64_t count, float *x) {
    esp_coll c = ESP_ZERO;
    c.struct_size = sizeof c, c.op = ESP_COLL_ALLREDUCE, c.dtype = ESP_F32, c.count = count, c.src.ptr = c.dst.ptr = x;
    return c;
}
static int readable(int fd, int ms) {
    struct pollfd p = {fd, POLLIN, 0};
    int n;
    do n = poll(&p, 1, ms);
    while (n < 0 && errno == EINTR);
    return n > 0;
}
static void expect(ranks_me *me, int yes, const char *what) {
    if (!yes) ranks_fail(me, "%s", what);
}
static int failed(ranks_me *me) { return __atomic_load_n(&me->shared->failed, __ATOMIC_SEQ_CST); }
static void meet(ranks_me *me) { pthread_barrier_wait(&me->shared->barrier[0]); }

/* ---- when it is readable ---- */
static void states(ranks_me *me) {
    float x[100] = {1};
    esp_stream none = ESP_ZERO;
    esp_coll c = sum_of(100, x);
    void *comm = ranks_open(me, 0, NULL), *child = ranks_open(me, 1, comm), *req;
    const esp_backend *b = me->b;
    if (!comm || !child) return;
    if (me->rank) {
        int fd = b->wait_fd(comm);
        expect(me, fd >= 0 && fd == b->wait_fd(child), "comms of one job have one descriptor");
        expect(me, readable(fd, 0), "readable at first");
        b->progress(comm, 0);
        expect(me, !readable(fd, 0), "nothing to do: not readable");
        expect(me, b->start(comm, &c, none, &req) == ESP_OK && readable(fd, 0), "readable after start()");
        b->progress(child, 0);
        expect(me, !readable(fd, 0) && b->test(comm, req) == ESP_PENDING && !readable(fd, 0), "waits for rank 0");
        b->wake(child);
        expect(me, readable(fd, 0), "readable after wake()");
        b->wake(comm);
        b->progress(comm, 0);
        expect(me, !readable(fd, 0), "two calls of wake() ended by one progress()");
        b->progress(comm, 1);
        expect(me, readable(fd, 0), "readable after another sleep");
        b->progress(comm, 0);
        expect(me, !readable(fd, 0), "not readable before rank 0 comes");
        meet(me);
        esp_status s;
        while ((s = b->test(comm, req)) == ESP_PENDING) {
            expect(me, readable(fd, LATE_MS), "rank 0 came, but nothing became readable");
            b->progress(comm, 0);
        }
        expect(me, s == ESP_OK && x[0] > 1 && x[0] < 3, "the sum");
    } else {
        meet(me);
        expect(me, ranks_coll(me, comm, &c) == ESP_OK, "rank 0's sum");
        expect(me, ((shm_comm *)comm)->job->wait_fd < 0, "rank 0 did not ask for a descriptor");
    }
    meet(me);
    b->close(child);
    b->close(comm);
}
TEST(readable_when_something_changed) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 2, 0, states, -1);
}
/* If progress() leaves data unread, the descriptor remains readable, because no peer will notify this rank again. */
static void moves_much(ranks_me *me) {
    enum { N = 4 << 20 };
    float *x = (float *)calloc(N, sizeof *x);
    esp_coll c = sum_of(N, x);
    esp_stream none = ESP_ZERO;
    void *comm = ranks_open(me, 0, NULL), *req;
    if (!comm) return;
    int fd = me->rank ? me->b->wait_fd(comm) : -1;
    c.op = ESP_COLL_BROADCAST;
    expect(me, me->b->start(comm, &c, none, &req) == ESP_OK, "start");
    meet(me);
    if (me->rank) {
        me->b->progress(comm, 0);
        expect(me, readable(fd, 0), "there is more to move, but it is not readable");
        while (me->b->test(comm, req) == ESP_PENDING) me->b->progress(comm, 0);
    } else {
        expect(me, ranks_wait(me, comm, req) == ESP_OK, "the root's broadcast");
    }
    me->b->close(comm);
    free(x);
}
TEST(readable_while_more_can_move) { expect_ok("loop", "", 2, 0, moves_much, -1); }
static void no_descriptor_unasked(ranks_me *me) {
    float x[70000] = {1};
    esp_coll c = sum_of(70000, x);
    void *comm = ranks_open(me, 0, NULL);
    for (int i = 0; comm && i < 20; i++) expect(me, ranks_coll(me, comm, &c) == ESP_OK, "a sum");
    if (!comm) return;
    const shm_job *j = ((shm_comm *)comm)->job;
    expect(me, j->wait_fd < 0 && j->socket < 0 && j->sender < 0 && j->timer < 0, "a descriptor was made unasked");
    me->b->close(comm);
}
TEST(costs_nothing_unasked) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 3, 0, no_descriptor_unasked, -1);
}

/* ---- one thread waits for whichever of two backends changes first ---- */
typedef struct pair {
    const esp_backend *b[2];
    void *comm[2], *req[2];
    float *x[2];
    uint64_t count[2];
    int32_t fd[2];
} pair;
static void wait_for_both(ranks_me *me, pair *p) {
    while (p->req[0] || p->req[1]) {
        struct pollfd on[2];
        for (int k = 0; k < 2; k++) {
            on[k] = (struct pollfd){p->fd[k], POLLIN, 0};
            p->b[k]->progress(p->comm[k], 0);
        }
        for (int k = 0; k < 2; k++) {
            esp_status s = p->req[k] ? p->b[k]->test(p->comm[k], p->req[k]) : ESP_PENDING;
            if (s < 0) expect(me, 0, "a collective failed");
            if (s != ESP_PENDING) p->req[k] = NULL;
        }
        int n = p->req[0] || p->req[1] ? poll(on, 2, LATE_MS) : 1;
        if (n == 0) expect(me, 0, "slept through a change");
        if (failed(me)) return;
    }
}
static void open_pair(ranks_me *me, pair *p, int polls) {
    static const char *const names[] = {"shm", "loop"};
    memset(p, 0, sizeof *p);
    for (int k = 0; k < 2; k++) {
        ranks_me other = *me;
        other.b = p->b[k] = strcmp(me->b->name, "shm") ? ranks_backend(names[k]) : me->b;
        p->comm[k] = ranks_open(&other, 0, NULL);
        p->x[k] = (float *)malloc(sizeof(float) * 200000);
        p->fd[k] = p->comm[k] && polls ? p->b[k]->wait_fd(p->comm[k]) : -1;
        expect(me, p->comm[k] && (!polls || p->fd[k] >= 0), "open");
    }
}
static void two_backends(ranks_me *me) {
    const int polls = me->rank != 1, rounds = (int)test_repeats(60);
    esp_stream none = ESP_ZERO;
    pair p;
    open_pair(me, &p, polls);
    for (int i = 0; i < rounds && !failed(me); i++) {
        int first = (i + me->rank) % 2;
        if ((i + me->rank) % 5 == 0) usleep(1000);
        for (int k = 0; k < 2; k++) {
            int w = first ^ k;
            p.count[w] = (uint64_t)(i % 7 == 3 ? 150000 : 1 + i * 97 % 5000);
            for (uint64_t e = 0; e < p.count[w]; e++) p.x[w][e] = (float)(1 + i % 3 + me->rank);
            esp_coll c = sum_of(p.count[w], p.x[w]);
            if (p.b[w]->start(p.comm[w], &c, none, &p.req[w]) != ESP_OK) expect(me, 0, "start");
        }
        if (polls)
            wait_for_both(me, &p);
        else
            for (int k = 0; k < 2; k++) {
                ranks_me other = *me;
                other.b = p.b[k];
                if (ranks_wait(&other, p.comm[k], p.req[k]) != ESP_OK) expect(me, 0, "a collective failed");
            }
        float want = (float)(me->size * (1 + i % 3) + me->size * (me->size - 1) / 2);
        for (int k = 0; k < 2; k++)
            if (p.x[k][p.count[k] - 1] < want || p.x[k][p.count[k] - 1] > want) expect(me, 0, "a sum is wrong");
    }
    for (int k = 0; k < 2; k++) {
        if (p.comm[k]) p.b[k]->close(p.comm[k]);
        free(p.x[k]);
    }
}
TEST(one_thread_two_backends) {
    expect_ok("loop", "", 3, 0, two_backends, -1);
    expect_ok("shm", "", 3, 0, two_backends, -1);
}
/* Data on an emulated link arrives without a peer's notification, so a timer makes the descriptor readable. */
TEST(data_under_way) {
    expect_ok("loop", "inter=10gbit,latency=2ms", 2, 1, two_backends, -1);
    expect_ok("shm", "inter=10gbit,latency=1ms", 4, 2, two_backends, -1);
}

/* ---- ends ---- */
static void *abort_later(void *arg) {
    usleep(20000);
    ((ranks_me **)arg)[0]->b->abort(((void **)arg)[1]);
    return NULL;
}
static void aborted(ranks_me *me) {
    float x[10] = {0};
    esp_coll c = sum_of(10, x);
    void *comm = ranks_open(me, 0, NULL), *arg[2] = {me, comm}, *req;
    esp_stream none = ESP_ZERO;
    esp_status s = ESP_PENDING;
    pthread_t t;
    if (!comm) return;
    if (me->rank) {
        int fd = me->b->wait_fd(comm);
        expect(me, me->b->start(comm, &c, none, &req) == ESP_OK, "start");
        pthread_create(&t, NULL, abort_later, arg);
        while (me->b->progress(comm, 0), (s = me->b->test(comm, req)) == ESP_PENDING)
            expect(me, readable(fd, LATE_MS), "abort() woke nobody");
        pthread_join(t, NULL);
        expect(me, s == ESP_E_PEER, "not ESP_E_PEER");
    }
    meet(me);
    me->b->close(comm);
}
TEST(abort_wakes) {
    for (int b = 0; b < 2; b++) expect_ok(both[b], "", 2, 0, aborted, -1);
}
static void dies_polling(ranks_me *me) {
    float x[10] = {0};
    esp_coll c = sum_of(10, x);
    void *comm = ranks_open(me, 0, NULL), *req;
    esp_stream none = ESP_ZERO;
    if (!comm) return;
    if (me->rank == 1) {
        me->b->wait_fd(comm);
        me->b->progress(comm, 0);
        __atomic_store_n(&me->shared->mark, (int)getpid(), __ATOMIC_SEQ_CST);
        for (;;) pause();
    }
    while (!__atomic_load_n(&me->shared->mark, __ATOMIC_SEQ_CST)) usleep(1000);
    if (me->rank == 0) {
        kill(__atomic_load_n(&me->shared->mark, __ATOMIC_SEQ_CST), SIGKILL);
        usleep(50000);
        expect(me, me->b->start(comm, &c, none, &req) == ESP_OK && me->b->test(comm, req) == ESP_PENDING, "start");
    }
    me->b->close(comm);
}
TEST(a_dead_poller) { expect_ok("shm", "", 3, 0, dies_polling, 1); }
