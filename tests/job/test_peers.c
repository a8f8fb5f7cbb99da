/* test_peers.c checks how ranks, which are threads, connect, exchange data and leave. In tests/jobs/faults they die. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "espresso_impl/job/peers.h"

enum { MAX_RANKS = 8 };

typedef struct rank_t rank_t;
typedef struct job {
    char root[64];
    int32_t size, victim;
    uint32_t timeout_ms;
    void (*body)(rank_t *);
    test_exchange all;
    bool use_oob;
} job;

struct rank_t {
    job *j;
    test_member member;
    int32_t rank, says_rank, says_size;
    esp__peers *p;
    esp_status status; /* of esp__peers_open or, after that, of the test */
    char error[ESP__ERROR_MAX];
    int32_t lost_rank, lost_left, late_rank;
    uint32_t late_tensor;
    int32_t waits_for; /* the rank that this one waits for; -2: none */
    char *collected[MAX_RANKS];
    uint64_t collected_bytes[MAX_RANKS];
    pthread_mutex_t lock;
    pthread_cond_t told;
};

static void on_lost(void *user, int32_t rank, int left) {
    rank_t *t = (rank_t *)user;
    pthread_mutex_lock(&t->lock);
    t->lost_rank = rank;
    t->lost_left = left;
    pthread_cond_broadcast(&t->told);
    pthread_mutex_unlock(&t->lock);
}

static void on_late(void *user, int32_t rank, uint32_t tensor) {
    rank_t *t = (rank_t *)user;
    pthread_mutex_lock(&t->lock);
    t->late_rank = rank;
    t->late_tensor = tensor;
    pthread_cond_broadcast(&t->told);
    pthread_mutex_unlock(&t->lock);
}

static void on_answer(void *user, esp__answer *out) {
    rank_t *t = (rank_t *)user;
    pthread_mutex_lock(&t->lock);
    out->waits_for = t->waits_for;
    out->tensor = 100u + (uint32_t)t->rank;
    pthread_mutex_unlock(&t->lock);
}

static void on_collect(void *user, int32_t rank, const void *data, uint64_t bytes) {
    rank_t *t = (rank_t *)user;
    t->collected[rank] = (char *)malloc(bytes);
    memcpy(t->collected[rank], data, bytes);
    t->collected_bytes[rank] = bytes;
}

static void *rank_main(void *arg) {
    rank_t *t = (rank_t *)arg;
    esp__where w = {0};
    esp__peers_events ev = {t, on_lost, on_late, on_answer, NULL};
    esp_config cfg = ESP_ZERO;
    w.rank = t->says_rank;
    w.size = t->says_size;
    cfg.timeout_ms = t->j->timeout_ms;
    if (t->j->use_oob) cfg.oob_allgather = exchange_allgather, cfg.oob_user = &t->member;
    snprintf(w.root, sizeof w.root, "%s", t->j->root);
    t->status = esp__peers_open(NULL, &cfg, &w, &ev, &t->p);
    if (t->status != ESP_OK)
        snprintf(t->error, sizeof t->error, "%s", esp_last_error(NULL));
    else
        t->j->body(t);
    esp__peers_close(t->p, NULL, 0, NULL, NULL);
    return NULL;
}

static void job_init(job *j, rank_t *t, int32_t size, void (*body)(rank_t *)) {
    memset(j, 0, sizeof *j);
    snprintf(j->root, sizeof j->root, "%s", test_root(false));
    j->size = size;
    j->timeout_ms = 20000;
    j->body = body;
    for (int32_t r = 0; r < size; r++) {
        memset(&t[r], 0, sizeof t[r]);
        t[r].j = j;
        t[r].member = (test_member){&j->all, r};
        t[r].rank = t[r].says_rank = r;
        t[r].says_size = size;
        t[r].lost_rank = t[r].late_rank = t[r].waits_for = -2;
        pthread_mutex_init(&t[r].lock, NULL);
        pthread_cond_init(&t[r].told, NULL);
    }
}

/* Runs ranks first, first + 1, ... of the job. `meet` is how many of them take part in the barrier. */
static void job_run_some(job *j, rank_t *t, int32_t first, int32_t meet) {
    exchange_open(&j->all, meet);
    run_threads(j->size - first, rank_main, &t[first], sizeof *t);
    exchange_close(&j->all);
}
static void job_run(job *j, rank_t *t) { job_run_some(j, t, 0, j->size); }
static void expect_statuses(const rank_t *t, int32_t size, esp_status want) {
    for (int32_t r = 0; r < size; r++) {
        if (t[r].status != want) print_error("rank %d: %s\n", (int)r, t[r].error);
        assert_int_equal(t[r].status, want);
    }
}

static void run(int32_t size, void (*body)(rank_t *)) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, size, body);
    job_run(&j, t);
    expect_statuses(t, size, ESP_OK);
}

/* Waits until a callback of this rank has set *value, and checks all arguments that the callback got. */
static int await(rank_t *t, int32_t *value, int32_t want, int32_t want_left, uint32_t want_tensor) {
    int ok;
    pthread_mutex_lock(&t->lock);
    while (*value == -2) pthread_cond_wait(&t->told, &t->lock);
    ok = *value == want;
    if (value == &t->lost_rank) ok = ok && t->lost_left == want_left;
    if (value == &t->late_rank && want >= 0) ok = ok && t->late_tensor == want_tensor;
    pthread_mutex_unlock(&t->lock);
    if (!ok) t->status = ESP_E_STATE;
    return ok;
}

static uint64_t word(int32_t rank, int round, int what) {
    return (uint64_t)rank * 1000003u + (uint64_t)round * 7u + (uint64_t)what;
}

static int exchange(rank_t *t, const int32_t *members, int32_t n, int round, int what) {
    uint64_t in = word(t->rank, round, what), out[MAX_RANKS] = {0};
    esp_status s = esp__peers_allgather(t->p, members, n, &in, out, sizeof in);
    if (s != ESP_OK) {
        snprintf(t->error, sizeof t->error, "%s", esp_last_error(NULL));
        t->status = s;
        return 0;
    }
    for (int32_t i = 0; i < (members ? n : t->j->size); i++)
        if (out[i] != word(members ? members[i] : i, round, what)) t->status = ESP_E_CORRUPT;
    return t->status == ESP_OK;
}

static void body_all(rank_t *t) {
    for (int i = 0; i < 200; i++)
        if (!exchange(t, NULL, 0, i, 0)) return;
}
TEST(test_allgather) {
    run(1, body_all);
    run(2, body_all);
    run(7, body_all);
}

/* Pairs of ranks exchange data at their own pace, then all ranks do. Rank 0 serves every exchange, so it leaves
 * last. */
static void body_sets(rank_t *t) {
    int32_t pair[2] = {t->rank & ~1, t->rank | 1}, column[3] = {t->rank % 2, t->rank % 2 + 2, t->rank % 2 + 4};
    int rounds = 20 * (1 + t->rank / 2);
    for (int i = 0; i < rounds; i++)
        if (!exchange(t, pair, 2, i, 1)) return;
    for (int i = 0; i < 20; i++)
        if (!exchange(t, column, 3, i, 2) || !exchange(t, NULL, 0, i, 3) || !exchange(t, pair, 2, i, 4)) return;
    exchange(t, NULL, 0, 20, 3);
}
TEST(test_sets_are_independent) { run(6, body_sets); }

static void *second_thread(void *arg) {
    rank_t *t = (rank_t *)arg;
    int32_t reversed[4] = {3, 2, 1, 0};
    for (int i = 0; i < 100; i++)
        if (!exchange(t, reversed, 4, i, 5)) break;
    return NULL;
}
static void body_two_threads(rank_t *t) {
    rank_t other = *t;
    pthread_t thread;
    pthread_create(&thread, NULL, second_thread, &other);
    body_all(t);
    pthread_join(thread, NULL);
    if (other.status != ESP_OK) t->status = other.status;
}
TEST(test_two_threads_of_a_rank) { run(4, body_two_threads); }

static void body_large(rank_t *t) {
    uint64_t bytes = 3000001;
    uint8_t *in = (uint8_t *)malloc(bytes), *out = (uint8_t *)malloc(bytes * 3);
    for (uint64_t i = 0; i < bytes; i++) in[i] = (uint8_t)(i * 31u + (uint64_t)t->rank);
    t->status = esp__peers_allgather(t->p, NULL, 0, in, out, bytes);
    for (uint64_t r = 0; r < 3; r++)
        for (uint64_t i = 0; i < bytes; i++)
            if (out[r * bytes + i] != (uint8_t)(i * 31u + r)) t->status = ESP_E_CORRUPT;
    free(in);
    free(out);
}
TEST(test_large_exchange) { run(3, body_large); }

static void body_uneven(rank_t *t) {
    char in[16] = "", out[64];
    t->status = esp__peers_allgather(t->p, NULL, 0, in, out, t->rank == 1 ? 16 : 8);
    if (t->status == ESP_E_MISMATCH && strstr(esp_last_error(NULL), "different amounts")) t->status = ESP_OK;
}
TEST(test_uneven_sizes_are_a_mismatch) { run(3, body_uneven); }

TEST(test_tcp) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 4, body_all);
    snprintf(j.root, sizeof j.root, "%s", test_root(true));
    job_run(&j, t);
    expect_statuses(t, 4, ESP_OK);
}

TEST(test_by_callers_allgather) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 4, body_all);
    j.root[0] = 0;
    j.use_oob = true;
    job_run(&j, t);
    expect_statuses(t, 4, ESP_OK);
    t[1].says_rank = 2;
    job_run(&j, t);
    expect_statuses(t, 4, ESP_E_MISMATCH);
}

/* Ranks on several hosts need addresses at which others can reach them. In this test all are on one host. */
TEST(test_invitation_over_tcp) {
    esp__invitation inv;
    esp__peers p;
    esp__addr addr[4];
    const char *error = "";
    int fd, out;
    memset(&inv, 0, sizeof inv);
    memset(&p, 0, sizeof p);
    fd = esp__invite(&p, &inv, false);
    assert_true(fd >= 0);
    assert_true(inv.roots.n >= 1 && inv.job != 0 && strlen(inv.secret) == 48 && !strcmp(inv.secret, p.secret));
    for (int32_t i = 0; i < inv.roots.n; i++) {
        assert_int_equal(esp__addr_resolve(inv.roots.at[i], addr, 4, &error), 1);
        out = esp__join_connect(&addr[0], esp__now_ns() + 1000000000u);
        assert_true(out >= 0);
        close(out);
    }
    close(fd);
}

static void body_none(rank_t *t) {}
TEST(test_missing_rank_is_named) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 4, body_none);
    j.timeout_ms = 300;
    j.size = 3; /* rank 3 of 4 never starts */
    job_run(&j, t);
    expect_statuses(t, 3, ESP_E_TIMEOUT);
    for (int32_t r = 0; r < 3; r++) assert_non_null(strstr(t[r].error, "missing rank 3."));
}

TEST(test_no_rank_0) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 2, body_none);
    j.timeout_ms = 200;
    job_run_some(&j, t, 1, 1);
    assert_int_equal(t[1].status, ESP_E_TIMEOUT);
    assert_non_null(strstr(t[1].error, "Did rank 0 start"));
    assert_non_null(strstr(t[1].error, j.root));
}

TEST(test_wrong_size_fails_everywhere) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 3, body_none);
    t[2].says_size = 8;
    job_run(&j, t);
    expect_statuses(t, 3, ESP_E_MISMATCH);
    for (int32_t r = 0; r < 3; r++)
        assert_non_null(strstr(t[r].error, "rank 2 was started in a job of 8 ranks, rank 0 in a job of 3"));
}

TEST(test_duplicate_rank_is_named) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 3, body_none);
    j.timeout_ms = 500;
    t[2].says_rank = 1;
    job_run(&j, t);
    expect_statuses(t, 3, ESP_E_MISMATCH);
    for (int32_t r = 0; r < 3; r++) assert_non_null(strstr(t[r].error, "two processes joined as rank 1 of 3"));
}

TEST(test_address_in_use) {
    job j;
    rank_t t[MAX_RANKS];
    const char *error = "";
    int fd;
    job_init(&j, t, 2, body_none);
    fd = esp__listen(j.root, &error);
    j.size = 1; /* only rank 0 runs */
    job_run(&j, t);
    close(fd);
    assert_int_equal(t[0].status, ESP_E_COMM);
    assert_non_null(strstr(t[0].error, "in use"));
}

/* Unknown processes connect, and send noise, half a message, or nothing. They must not disturb the job. */
typedef struct noise {
    job *j;
    const char *text;
    size_t n;
} noise;
static void *noise_main(void *arg) {
    noise *x = (noise *)arg;
    esp__addr a;
    const char *error;
    int fd = -1;
    esp__addr_resolve(x->j->root, &a, 1, &error);
    for (int i = 0; i < 2000 && fd < 0; i++) {
        fd = esp__join_connect(&a, esp__now_ns() + 1000000000u);
        if (fd < 0) poll(NULL, 0, 1);
    }
    if (fd >= 0 && x->n) send(fd, x->text, x->n, MSG_NOSIGNAL);
    if (fd >= 0) poll(NULL, 0, 100);
    if (fd >= 0) close(fd);
    return NULL;
}
TEST(test_unknown_peers_are_ignored) {
    static char garbage[300];
    job j;
    rank_t t[MAX_RANKS];
    pthread_t noisy[3], other;
    noise x[3] = {{&j, garbage, sizeof garbage}, {&j, "GET / HTTP/1.0\r\n", 16}, {&j, NULL, 0}};
    memset(garbage, 1, sizeof garbage);
    job_init(&j, t, 2, body_all);
    pthread_create(&other, NULL, rank_main, &t[0]);
    for (int i = 0; i < 3; i++) pthread_create(&noisy[i], NULL, noise_main, &x[i]);
    poll(NULL, 0, 50);
    rank_main(&t[1]);
    pthread_join(other, NULL);
    for (int i = 0; i < 3; i++) pthread_join(noisy[i], NULL);
    expect_statuses(t, 2, ESP_OK);
}

/* When rank 1 leaves, the others are told, and an exchange with it fails at once. */
static void body_leave(rank_t *t) {
    int32_t without[2] = {0, 2};
    if (t->rank == 1) return;
    await(t, &t->lost_rank, 1, 1, 0);
    if (t->rank != 3 && !exchange(t, without, 2, 0, 0)) return;
    if (exchange(t, NULL, 0, 0, 0) || t->status != ESP_E_PEER || !strstr(t->error, "rank 1 closed its context")) return;
    t->status = ESP_OK;
    pthread_barrier_wait(&t->j->all.barrier);
}
TEST(test_leaving_rank) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 4, body_leave);
    job_run_some(&j, t, 0, 3);
    expect_statuses(t, 4, ESP_OK);
}

static void body_hub_leaves(rank_t *t) {
    if (!exchange(t, NULL, 0, 0, 0) || t->rank == 0) return;
    await(t, &t->lost_rank, 0, 1, 0);
    if (exchange(t, NULL, 0, 1, 0) || !strstr(t->error, "rank 0 closed its context")) return;
    t->status = ESP_OK;
}
TEST(test_rank_0_leaves_first) {
    for (int i = 0; i < 20; i++) run(3, body_hub_leaves);
}

/* One rank leaves, then a second rank leaves because of an error. The remaining ranks are told of both departures. */
static void body_leave_after_error(rank_t *t) {
    const int32_t failing = t->j->victim;
    const int32_t first = (failing + 1) % t->j->size;
    if (t->rank == first) return;
    await(t, &t->lost_rank, first, 1, 0);
    pthread_mutex_lock(&t->lock);
    t->lost_rank = -2;
    pthread_mutex_unlock(&t->lock);
    pthread_barrier_wait(&t->j->all.barrier);
    if (t->rank == failing) esp__peers_cause(t->p, ESP_E_MISMATCH);
    if (t->rank != failing) await(t, &t->lost_rank, failing, ESP_E_MISMATCH, 0);
}
TEST(test_leaving_after_error) {
    for (int32_t failing = 1; failing < 3; failing++) {
        job j;
        rank_t t[MAX_RANKS];
        job_init(&j, t, 4, body_leave_after_error);
        j.victim = failing;
        job_run_some(&j, t, 0, 3);
        expect_statuses(t, 4, ESP_OK);
    }
}

static void body_final(rank_t *t) {
    uint64_t bytes = t->rank == 2 ? 5000000 : 10;
    char *words = (char *)malloc(bytes);
    memset(words, 'a' + t->rank, bytes);
    esp__peers_close(t->p, words, t->rank == 3 ? 0 : bytes, on_collect, t);
    t->p = NULL;
    free(words);
}
TEST(test_final_messages_reach_rank_0) {
    job j;
    rank_t t[MAX_RANKS];
    uint64_t expect[4] = {10, 10, 5000000, 0};
    job_init(&j, t, 4, body_final);
    job_run(&j, t);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(t[0].collected_bytes[r], expect[r]);
        for (uint64_t i = 0; i < expect[r]; i++) assert_int_equal(t[0].collected[r][i], 'a' + r);
        free(t[0].collected[r]);
        assert_null(t[1].collected[r]);
    }
}

static void set_waits_for(rank_t *t, int32_t rank) {
    pthread_mutex_lock(&t->lock);
    t->waits_for = rank;
    pthread_mutex_unlock(&t->lock);
}

/* Rank 3 suspects rank 2, which waits for rank 1, which computes. So rank 1 must be found to be late. */
static void body_chain(rank_t *t) {
    set_waits_for(t, t->rank == 3 ? 2 : t->rank == 2 ? 1 : t->rank == 1 ? -2 : 3);
    pthread_barrier_wait(&t->j->all.barrier);
    if (t->rank == 3) esp__peers_suspect(t->p, 2, 103);
    await(t, &t->late_rank, 1, 0, 102);
    pthread_barrier_wait(&t->j->all.barrier);
}
TEST(test_late_rank_behind_a_chain) { run(4, body_chain); }

/* If all ranks wait in a circle, none is found to be late. */
static void body_circle(rank_t *t) {
    set_waits_for(t, (t->rank + 1) % 3);
    pthread_barrier_wait(&t->j->all.barrier);
    esp__peers_suspect(t->p, t->waits_for, 7);
    await(t, &t->late_rank, -1, 0, 0);
    pthread_barrier_wait(&t->j->all.barrier);
}
TEST(test_circle_of_waits) { run(3, body_circle); }

/* Rank `victim` leaves, then the other of ranks 0 and 1 because of it. Rank 2, which waited for it, must blame the
 * victim. */
static void body_left_behind(rank_t *t) {
    const int32_t first = t->j->victim, second = 1 - first;
    if (t->rank == first) return;
    await(t, &t->lost_rank, first, 1, 0);
    if (t->rank == second) return;
    while (!esp__peers_left(t->p, second)) usleep(1000);
    esp__peers_suspect(t->p, second, 7);
    await(t, &t->late_rank, first, 0, 7);
}
TEST(test_first_rank_that_left_is_to_blame) {
    for (int32_t victim = 0; victim < 2; victim++) {
        job j;
        rank_t t[MAX_RANKS];
        job_init(&j, t, 3, body_left_behind);
        j.victim = victim;
        job_run(&j, t);
        expect_statuses(t, 3, ESP_OK);
    }
}

/* Connections may be opened again at the same address. */
static void body_reopen(rank_t *t) {
    esp__where w = {0};
    esp_config cfg = ESP_ZERO;
    esp__peers *second = NULL;
    w.rank = t->rank;
    w.size = t->j->size;
    cfg.timeout_ms = 20000;
    snprintf(w.root, sizeof w.root, "%s", t->j->root);
    t->status = esp__peers_open(NULL, &cfg, &w, NULL, &second);
    if (t->status == ESP_OK) {
        esp__peers *first = t->p;
        t->p = second;
        exchange(t, NULL, 0, 0, 0);
        t->p = first;
        exchange(t, NULL, 0, 0, 0);
    }
    esp__peers_close(second, NULL, 0, NULL, NULL);
}
TEST(test_two_contexts) {
    for (int i = 0; i < 10; i++) run(4, body_reopen);
}

/* If a rank never takes part in an exchange, the error names it. */
static void body_absent(rank_t *t) {
    char in[8] = "", out[32];
    if (t->rank != 2) {
        t->status = esp__peers_allgather(t->p, NULL, 0, in, out, sizeof in);
        if (t->status == ESP_E_TIMEOUT && strstr(esp_last_error(NULL), "rank 2")) t->status = ESP_OK;
    }
    pthread_barrier_wait(&t->j->all.barrier);
}
TEST(test_absent_rank_is_named) {
    job j;
    rank_t t[MAX_RANKS];
    job_init(&j, t, 4, body_absent);
    j.timeout_ms = 1000;
    job_run(&j, t);
    expect_statuses(t, 4, ESP_OK);
}
