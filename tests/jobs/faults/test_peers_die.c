/* test_peers_die.c kills or stops ranks, or lets them exit without telling the others. Ranks are processes that only
 * connect (job/peers.h). It prints how long others need to notice. */
/* runs: quiet no-tsan: ranks are processes; context/test_step has their threads */
#include "tests/lib/test.h"
#include "tests/lib/processes.h"

typedef struct self {
    procs *p;
    report *me;
    int32_t rank;
} self;

static void on_lost(void *user, int32_t rank, int left) {
    self *s = (self *)user;
    atomic_store(&s->me->noticed_ns, esp__now_ns());
    atomic_store(&s->me->lost_left, left);
    atomic_store(&s->me->lost, rank);
}
static void on_late(void *user, int32_t rank, uint32_t tensor) {
    self *s = (self *)user;
    atomic_store(&s->me->straggler_tensor, tensor);
    atomic_store(&s->me->straggler, rank);
}
/* Answers the question what this rank waits for: rank r waits for rank r - 1 at tensor 10 + r. */
static void on_answer(void *user, esp__answer *out) {
    self *s = (self *)user;
    out->waits_for = (s->rank + s->p->size - 1) % s->p->size;
    out->tensor = 10u + (uint32_t)s->rank;
}

static esp__peers *open_peers(procs *p, int32_t rank, self *s, uint32_t timeout_ms) {
    esp__where w;
    esp_config cfg = ESP_ZERO;
    esp__peers_events ev = {s, on_lost, on_late, on_answer, NULL};
    esp__peers *peers = NULL;
    memset(&w, 0, sizeof w);
    *s = (self){p, &p->b->rank[rank], rank};
    w.rank = rank;
    w.size = p->size;
    cfg.timeout_ms = timeout_ms;
    snprintf(w.root, sizeof w.root, "%s", p->root);
    atomic_store(&s->me->other, esp__peers_open(NULL, &cfg, &w, &ev, &peers));
    if (!peers) snprintf(s->me->text, sizeof s->me->text, "%s", esp_last_error(NULL));
    return peers;
}

static void note(report *me, esp_status s) {
    snprintf(me->text, sizeof me->text, "%s", s == ESP_OK ? "" : esp_last_error(NULL));
    atomic_store(&me->returned_ns, esp__now_ns());
    atomic_store(&me->status, s);
}

static void body_exchange(procs *p, int32_t rank) {
    self me;
    uint64_t in = 1, out[MAX_PROCS];
    esp__peers *peers = open_peers(p, rank, &me, 20000);
    esp_status s = peers ? ESP_OK : ESP_E_STATE;
    for (int i = 0; s == ESP_OK; i++) {
        s = esp__peers_allgather(peers, NULL, 0, &in, out, sizeof in);
        if (i == 20) atomic_store(&me.me->ready, 1);
    }
    note(me.me, s);
    while (atomic_load(&me.me->lost) == NOBODY) usleep(1000);
    esp__peers_close(peers, "words", 5, NULL, NULL);
    atomic_store(&me.me->closed_ns, esp__now_ns());
}

/* Checks that all other ranks notice the loss of `victim`, which was at t0, and name it. */
static void expect_all_know(procs *p, int32_t victim, uint64_t t0, const char *how) {
    char words[64];
    uint64_t noticed = 0, returned = 0, closed = 0;
    assert_true(PROCS_AWAIT(p, lost, NOBODY, victim));
    assert_true(PROCS_AWAIT(p, status, 1, victim));
    assert_true(PROCS_AWAIT(p, closed_ns, 0, victim));
    snprintf(words, sizeof words, "rank %d died", (int)victim);
    for (int32_t r = 0; r < p->size; r++) {
        report *x = &p->b->rank[r];
        if (r == victim) continue;
        assert_int_equal(atomic_load(&x->lost), victim);
        assert_int_equal(atomic_load(&x->lost_left), 0);
        assert_int_equal(atomic_load(&x->status), ESP_E_PEER);
        if (!strstr(x->text, words)) print_error("rank %d: %s\n", (int)r, x->text);
        assert_non_null(strstr(x->text, words));
        if (atomic_load(&x->noticed_ns) > noticed) noticed = atomic_load(&x->noticed_ns);
        if (atomic_load(&x->returned_ns) > returned) returned = atomic_load(&x->returned_ns);
        if (atomic_load(&x->closed_ns) > closed) closed = atomic_load(&x->closed_ns);
    }
    print_message("rank %d %s: all noticed after %.2f ms, all calls back after %.2f ms, all closed after %.2f ms\n",
                  (int)victim, how, (double)(noticed - t0) / 1e6, (double)(returned - t0) / 1e6,
                  (double)(closed - t0) / 1e6);
}

static void kill_each(int tcp) {
    for (int32_t victim = 0; victim < 4; victim++) {
        procs p;
        uint64_t t0;
        procs_init(&p, 4);
        if (tcp) snprintf(p.root, sizeof p.root, "%s", test_root(true));
        procs_start_all(&p, body_exchange);
        assert_true(PROCS_AWAIT(&p, ready, 0, NOBODY));
        t0 = esp__now_ns();
        kill(p.pid[victim], SIGKILL);
        expect_all_know(&p, victim, t0, tcp ? "killed (tcp)" : "killed");
        assert_int_equal(procs_end(&p), 0);
    }
}
TEST(test_killed_rank_is_named) { kill_each(0); }
TEST(test_killed_rank_is_named_over_tcp) { kill_each(1); }

static void body_exit(procs *p, int32_t rank) {
    self me;
    if (rank != 2) {
        body_exchange(p, rank);
    } else if (open_peers(p, rank, &me, 20000)) {
        usleep(20000);
        atomic_store(&me.me->noticed_ns, esp__now_ns());
        _exit(0); /* exits without telling the others */
    }
}
TEST(test_exit_without_leaving) {
    procs p;
    procs_init(&p, 3);
    procs_start_all(&p, body_exit);
    assert_true(PROCS_AWAIT(&p, noticed_ns, 0, NOBODY));
    expect_all_know(&p, 2, atomic_load(&p.b->rank[2].noticed_ns), "ended without leaving");
    assert_int_equal(procs_end(&p), 0);
}

/* When rank 1 has died, its child process still has the sockets open. Rank 1 must count as dead. */
static void body_with_child(procs *p, int32_t rank) {
    if (rank == 1) {
        self me;
        esp__peers *peers = open_peers(p, rank, &me, 20000);
        int child = fork();
        if (child == 0) {
            usleep(30000000);
            _exit(0);
        }
        atomic_store(&p->b->rank[1].other, child);
        atomic_store(&p->b->rank[1].ready, peers != NULL);
        usleep(30000000);
    } else {
        body_exchange(p, rank);
    }
}
TEST(test_forked_child_does_not_hide_a_death) {
#ifdef SYS_pidfd_open
    procs p;
    uint64_t t0;
    procs_init(&p, 3);
    procs_start_all(&p, body_with_child);
    while (!atomic_load(&p.b->rank[1].ready)) usleep(1000);
    t0 = esp__now_ns();
    kill(p.pid[1], SIGKILL);
    expect_all_know(&p, 1, t0, "killed, its child lives");
    kill(atomic_load(&p.b->rank[1].other), SIGKILL);
    assert_int_equal(procs_end(&p), 0);
#else
    skip();
#endif
}

/* A child process closes its copy of the connections, which must not affect the rank. */
static void body_child_closes(procs *p, int32_t rank) {
    self me;
    uint64_t in = 1, out[MAX_PROCS];
    esp__peers *peers = open_peers(p, rank, &me, 20000);
    const pid_t child = child_fork(60);
    if (!child) {
        esp__peers_close(peers, "x", 1, NULL, NULL);
        _exit(0);
    }
    atomic_store(&me.me->ready, child_wait(child) == 0);
    esp_status s = ESP_OK;
    for (int i = 0; i < 20 && s == ESP_OK; i++) s = esp__peers_allgather(peers, NULL, 0, &in, out, sizeof in);
    note(me.me, s);
    esp__peers_close(peers, NULL, 0, NULL, NULL);
}
TEST(test_forked_child_may_close) {
    procs p;
    procs_init(&p, 3);
    procs_start_all(&p, body_child_closes);
    assert_true(PROCS_AWAIT(&p, status, 1, NOBODY));
    for (int r = 0; r < 3; r++) {
        assert_int_equal(atomic_load(&p.b->rank[r].status), ESP_OK);
        assert_int_equal(atomic_load(&p.b->rank[r].ready), 1);
    }
    assert_int_equal(procs_end(&p), 0);
}

/* A rank is killed after it has connected, while another one has not connected yet. */
static void body_open_only(procs *p, int32_t rank) {
    self me;
    atomic_store(&p->b->rank[rank].ready, 1);
    esp__peers *peers = open_peers(p, rank, &me, 20000);
    atomic_store(&me.me->status, atomic_load(&me.me->other));
    esp__peers_close(peers, NULL, 0, NULL, NULL);
}
TEST(test_killed_while_meeting) {
    procs p;
    procs_init(&p, 4);
    for (int r = 0; r < 3; r++) procs_start(&p, r, body_open_only); /* rank 3 never starts */
    p.size = 3;
    assert_true(PROCS_AWAIT(&p, ready, 0, NOBODY));
    usleep(200000);
    kill(p.pid[2], SIGKILL);
    assert_true(PROCS_AWAIT(&p, status, 1, 2));
    for (int r = 0; r < 2; r++) {
        assert_int_equal(atomic_load(&p.b->rank[r].status), ESP_E_PEER);
        assert_non_null(strstr(p.b->rank[r].text, "rank 2 died while the ranks were meeting"));
    }
    assert_int_equal(procs_end(&p), 0);
}

/* A stopped rank does not answer, but its sockets are open. Rank r waits for rank r - 1, down to the stopped one. */
static void body_suspect(procs *p, int32_t rank) {
    self me;
    esp__peers *peers = open_peers(p, rank, &me, 20000);
    atomic_store(&me.me->ready, 1);
    while (!atomic_load(&p->b->go)) usleep(1000);
    if (rank == 3) esp__peers_suspect(peers, 2, 13);
    while (atomic_load(&me.me->straggler) == NOBODY && atomic_load(&p->b->go) == 1) usleep(1000);
    atomic_store(&me.me->status, 0);
    while (atomic_load(&p->b->go) == 1) usleep(1000);
    esp__peers_close(peers, NULL, 0, NULL, NULL);
}
TEST(test_stopped_rank_is_named) {
    for (int32_t victim = 2; victim >= 0; victim--) {
        procs p;
        uint64_t t0;
        procs_init(&p, 4);
        procs_start_all(&p, body_suspect);
        assert_true(PROCS_AWAIT(&p, ready, 0, NOBODY));
        kill(p.pid[victim], SIGSTOP);
        waitpid(p.pid[victim], NULL, WUNTRACED); /* until it has stopped */
        t0 = esp__now_ns();
        atomic_store(&p.b->go, 1);
        while (atomic_load(&p.b->rank[3].straggler) == NOBODY && esp__now_ns() - t0 < 10000000000u) usleep(1000);
        print_message("rank %d stopped: decision after %.1f ms\n", (int)victim, (double)(esp__now_ns() - t0) / 1e6);
        assert_int_equal(atomic_load(&p.b->rank[3].straggler), victim);
        if (victim != 0) {
            assert_true(PROCS_AWAIT(&p, straggler, NOBODY, victim));
            for (int32_t r = 0; r < 4; r++) {
                if (r == victim) continue;
                assert_int_equal(atomic_load(&p.b->rank[r].straggler), victim);
                assert_int_equal(atomic_load(&p.b->rank[r].straggler_tensor), 11 + victim);
            }
        }
        atomic_store(&p.b->go, 2);
        kill(p.pid[victim], SIGCONT);
        assert_int_equal(procs_end(&p), 0);
    }
}

/* A stopped rank does not block esp_close of the others. */
static void body_leave(procs *p, int32_t rank) {
    self me;
    esp__peers *peers = open_peers(p, rank, &me, 20000);
    atomic_store(&me.me->ready, 1);
    while (!atomic_load(&p->b->go)) usleep(1000);
    esp__peers_close(peers, NULL, 0, NULL, NULL);
    atomic_store(&me.me->status, 0);
}
TEST(test_closing_beside_a_stopped_rank) {
    for (int32_t victim = 0; victim < 2; victim++) {
        procs p;
        uint64_t t0;
        procs_init(&p, 3);
        procs_start_all(&p, body_leave);
        assert_true(PROCS_AWAIT(&p, ready, 0, NOBODY));
        kill(p.pid[victim], SIGSTOP);
        waitpid(p.pid[victim], NULL, WUNTRACED); /* until it has stopped */
        t0 = esp__now_ns();
        atomic_store(&p.b->go, 1);
        assert_true(PROCS_AWAIT(&p, status, 1, victim));
        print_message("rank %d stopped: the others closed after %.1f ms\n", (int)victim,
                      (double)(esp__now_ns() - t0) / 1e6);
        kill(p.pid[victim], SIGCONT);
        assert_int_equal(procs_end(&p), 0);
    }
}

/* Jobs leave no descriptors or threads behind, whether or not all ranks connect. */
static void body_leaks(procs *p, int32_t rank) {
    int files = test_count_files("/proc/self/fd", ""), threads = test_count_files("/proc/self/task", "");
    char root[64];
    snprintf(root, sizeof root, "%s", p->root);
    for (int i = 0; i < 10; i++) {
        self me;
        esp__peers *peers;
        snprintf(p->root, sizeof p->root, "%.40s-%d", root, i);
        peers = open_peers(p, rank, &me, i % 2 && rank == 2 ? 100 : 20000);
        esp__peers_close(peers, NULL, 0, NULL, NULL);
    }
    p->size++;
    for (int i = 0; i < 3; i++) {
        self me;
        esp__peers_close(open_peers(p, rank, &me, 50), NULL, 0, NULL, NULL);
    }
    atomic_store(&p->b->rank[rank].other,
                 test_count_files("/proc/self/fd", "") - files + test_count_files("/proc/self/task", "") - threads);
    atomic_store(&p->b->rank[rank].status, 0);
}
TEST(test_nothing_leaks) {
    procs p;
    procs_init(&p, 3);
    procs_start_all(&p, body_leaks);
    assert_true(PROCS_AWAIT(&p, status, 1, NOBODY));
    for (int r = 0; r < 3; r++) assert_int_equal(atomic_load(&p.b->rank[r].other), 0);
    assert_int_equal(procs_end(&p), 0);
}
