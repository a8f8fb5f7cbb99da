/* test_secret.c checks that only ranks with the job's secret can join. Ranks are threads.
 * tests/jobs/faults/test_hostile.c makes very many hostile connections. */
/* runs: quiet slow tsan */
#include "tests/lib/test.h"
#include "espresso_impl/job/peers.h"
#include "tests/lib/hello.h"

enum { MAX_RANKS = 4 };
static const char ours[] = "correct horse battery", theirs[] = "Tr0ub4dor&3 and more";

typedef struct rank_t {
    const char *root, *secret;
    test_member member;
    int32_t rank, size;
    uint32_t timeout_ms;
    esp_status status;
    char error[ESP__ERROR_MAX];
    uint64_t began_ns, ended_ns;
    pthread_t thread;
} rank_t;

static void *rank_main(void *arg) {
    rank_t *t = (rank_t *)arg;
    esp__where w = {0};
    esp_config cfg = ESP_ZERO;
    esp__peers *p = NULL;
    w.rank = t->rank;
    w.size = t->size;
    w.secret = t->secret;
    cfg.timeout_ms = t->timeout_ms;
    snprintf(w.root, sizeof w.root, "%s", t->root);
    if (t->member.all) cfg.oob_allgather = exchange_allgather, cfg.oob_user = &t->member;
    t->began_ns = esp__now_ns();
    t->status = esp__peers_open(NULL, &cfg, &w, NULL, &p);
    t->ended_ns = esp__now_ns();
    snprintf(t->error, sizeof t->error, "%s", t->status ? esp_last_error(NULL) : "");
    if (t->status == ESP_OK) {
        uint64_t in = (uint64_t)t->rank + 1, out[MAX_RANKS] = {0};
        t->status = esp__peers_allgather(p, NULL, 0, &in, out, sizeof in);
        for (int32_t r = 0; r < t->size; r++)
            if (out[r] != (uint64_t)r + 1) t->status = ESP_E_CORRUPT;
        if (p->secret[0]) t->status = ESP_E_CORRUPT;
    }
    esp__peers_close(p, NULL, 0, NULL, NULL);
    return NULL;
}

static void ranks_init(rank_t *t, int32_t size, const char *root, const char *secret) {
    for (int32_t r = 0; r < size; r++)
        t[r] = (rank_t){.root = root, .secret = secret, .rank = r, .size = size, .timeout_ms = 20000};
}
static void start(rank_t *t) { assert_int_equal(pthread_create(&t->thread, NULL, rank_main, t), 0); }
static void ended(rank_t *t, esp_status want, const char *words) {
    pthread_join(t->thread, NULL);
    if (t->status != want || !strstr(t->error, words))
        print_error("rank %d: %s: %s (want %s)\n", (int)t->rank, esp_status_name(t->status), t->error, words);
    assert_int_equal(t->status, want);
    assert_non_null(strstr(t->error, words));
    assert_null(strstr(t->error, ours));
    assert_null(strstr(t->error, theirs));
}

TEST(test_same_secret) {
    for (int tcp = 0; tcp < 2; tcp++) {
        rank_t t[4];
        ranks_init(t, 4, test_root(tcp), ours);
        for (int r = 0; r < 4; r++) start(&t[r]);
        for (int r = 0; r < 4; r++) ended(&t[r], ESP_OK, "");
    }
}

/* Rank 1 has another secret, so it fails at once. The other ranks time out, with an error that says why rank 1 is
 * missing. */
static void refused(const char *zero, const char *one, const char *words_one, const char *words_zero) {
    for (int tcp = 0; tcp < 2; tcp++) {
        rank_t t[3];
        ranks_init(t, 3, test_root(tcp), zero);
        t[1].secret = one;
        t[0].timeout_ms = 1000;
        start(&t[0]);
        start(&t[2]);
        poll(NULL, 0, 100);
        start(&t[1]);
        ended(&t[1], ESP_E_MISMATCH, words_one);
        assert_null(strstr(t[1].error, "waited"));
        ended(&t[0], ESP_E_TIMEOUT, words_zero);
        ended(&t[2], ESP_E_TIMEOUT, words_zero);
        assert_non_null(strstr(t[0].error, "missing rank 1."));
        assert_true(t[1].ended_ns < t[0].ended_ns);
    }
}
TEST(test_another_secret) {
    refused(ours, theirs, "ESPRESSO_SECRET differs from rank 0's",
            "meeting point? Refused connections: 1 with another ESPRESSO_SECRET");
}
TEST(test_rank_without) { refused(ours, NULL, "this process has none", "1 without ESPRESSO_SECRET, which rank 0 has"); }
TEST(test_rank_0_without) {
    refused(NULL, ours, "rank 0 has no ESPRESSO_SECRET", "1 with ESPRESSO_SECRET, which rank 0 lacks");
}

/* After a connection was refused, the right rank 1 can still connect. */
TEST(test_meeting_goes_on) {
    rank_t t[3], wrong;
    ranks_init(t, 3, test_root(true), ours);
    wrong = t[1];
    wrong.secret = theirs;
    start(&t[0]);
    start(&t[2]);
    start(&wrong);
    ended(&wrong, ESP_E_MISMATCH, "differs");
    start(&t[1]);
    for (int r = 0; r < 3; r++) ended(&t[r], ESP_OK, "");
}

/* If ranks exchange addresses by the caller's allgather, a job without a secret gets one. If rank 0 has one in its
 * environment, all others must have it too. */
TEST(test_callers_allgather) {
    static const struct {
        const char *zero, *one, *says_one, *says_zero;
    } kinds[] = {{NULL, NULL, "", ""},
                 {ours, ours, "", ""},
                 {ours, NULL, "this process has none", "1 without ESPRESSO_SECRET"},
                 {NULL, ours, "differs from rank 0's", "1 with another ESPRESSO_SECRET"}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const int good = !kinds[k].says_one[0];
        rank_t t[2];
        esp__invitation inv;
        ranks_init(t, 2, "", kinds[k].zero);
        t[1].secret = kinds[k].one;
        test_exchange area;
        exchange_open(&area, 2);
        for (int r = 0; r < 2; r++) t[r].member = (test_member){&area, r}, t[r].timeout_ms = good ? 20000 : 500;
        for (int r = 0; r < 2; r++) start(&t[r]);
        ended(&t[1], good ? ESP_OK : ESP_E_MISMATCH, kinds[k].says_one);
        ended(&t[0], good ? ESP_OK : ESP_E_TIMEOUT, kinds[k].says_zero);
        memcpy(&inv, area.board, sizeof inv); /* rank 0's last message */
        exchange_close(&area);
        assert_int_equal(strlen(inv.secret), kinds[k].zero ? 0 : 48);
        assert_int_equal(strspn(inv.secret, "0123456789abcdef"), strlen(inv.secret));
    }
}

/* Messages that were recorded when ranks connected earlier, with the same secret, are refused. */
TEST(test_replay) {
    rank_t t[2];
    hello_bytes sent[2], unused[2];
    char answer[4096];
    int fd;
    ranks_init(t, 2, test_root(true), ours);
    start(&t[0]);
    fd = hello_connect(t[0].root, 5000);
    assert_int_equal(hello_as(fd, 1, 2, ours, sent, answer, sizeof answer), ESP__MSG_PROOF);
    assert_int_equal(hello_receive(fd, answer, sizeof answer), ESP__MSG_WELCOME); /* rank 0 accepts it as rank 1 */
    close(fd);
    pthread_join(t[0].thread, NULL);

    ranks_init(t, 2, test_root(true), ours);
    start(&t[0]);
    fd = hello_connect(t[0].root, 5000);
    assert_true(hello_send(fd, &sent[0]));
    assert_int_equal(hello_receive(fd, answer, sizeof answer), ESP__MSG_CHALLENGE);
    assert_true(hello_send(fd, &sent[1]));
    assert_int_equal(hello_receive(fd, answer, sizeof answer), ESP__MSG_REFUSE);
    assert_non_null(strstr(answer, "ESPRESSO_SECRET differs"));
    close(fd);
    fd = hello_connect(t[0].root, 5000);
    assert_int_equal(hello_as(fd, 1, 2, theirs, unused, answer, sizeof answer), ESP__MSG_REFUSE);
    close(fd);
    start(&t[1]);
    for (int r = 0; r < 2; r++) ended(&t[r], ESP_OK, "");
}

/* The authentication code covers every byte, so that any changed byte is refused. */
TEST(test_every_byte_counts) {
    esp__peers p;
    esp__hello k;
    esp__challenge ch;
    esp__response h;
    uint8_t *const parts[3] = {(uint8_t *)&k, (uint8_t *)&ch, (uint8_t *)&h};
    const size_t bytes[3] = {sizeof k, sizeof ch, sizeof h};
    memset(&p, 0, sizeof p);
    p.size = 2;
    p.rank = 1;
    snprintf(p.secret, sizeof p.secret, "%s", ours);
    esp__hello_make(&p, 7, &k);
    assert_true(esp__challenge_make(&p, &ch));
    assert_true(esp__response_make(&p, &k, &ch, &h));
    assert_true(esp__code_check(&p, 0, &k, &ch, &h, h.code));
    assert_false(esp__code_check(&p, 1, &k, &ch, &h, h.code)); /* rank 1's code is no proof of being rank 0 */
    for (int part = 0; part < 3; part++)
        for (size_t i = 0; i < bytes[part]; i++) {
            parts[part][i] ^= 1;
            assert_false(esp__code_check(&p, 0, &k, &ch, &h, h.code));
            parts[part][i] ^= 1;
        }
    p.secret[3] ^= 1;
    assert_false(esp__code_check(&p, 0, &k, &ch, &h, h.code));
}

/* A process that listens at the address and answers like rank 0, but does not know the secret. */
typedef struct impostor {
    int listener;
    uint32_t type;
    const char *text;
} impostor;
static void *impostor_main(void *arg) {
    impostor *x = (impostor *)arg;
    struct pollfd ready = {x->listener, POLLIN, 0};
    esp__peers p;
    esp__challenge ch;
    esp__proof proof;
    hello_bytes b;
    char heard[512];
    int fd;
    poll(&ready, 1, 20000);
    fd = accept(x->listener, NULL, NULL);
    memset(&p, 0, sizeof p);
    p.secret[0] = 'x';
    hello_receive(fd, heard, sizeof heard);
    esp__challenge_make(&p, &ch);
    b = hello_message(ESP__MSG_CHALLENGE, &ch, sizeof ch);
    hello_send(fd, &b);
    hello_receive(fd, heard, sizeof heard);
    memset(&proof, 0x55, sizeof proof);
    b = x->type == ESP__MSG_PROOF ? hello_message(x->type, &proof, sizeof proof)
                                  : hello_message(x->type, x->text, strlen(x->text));
    if (x->type == ESP__MSG_REFUSE) b.data[offsetof(esp__msg, rank)] = 0x85, memset(b.data + 5, 0xff, 3);
    hello_send(fd, &b);
    hello_receive(fd, heard, sizeof heard);
    close(fd);
    return NULL;
}
TEST(test_impostor) {
    static const struct {
        uint32_t type;
        esp_status status;
        const char *text, *error;
    } kinds[] = {{ESP__MSG_PROOF, ESP_E_MISMATCH, "", "does not know this job's ESPRESSO_SECRET"},
                 {ESP__MSG_WELCOME, ESP_E_COMM, "", "is not espresso"},
                 {ESP__MSG_SHARED, ESP_E_COMM, "", "is not espresso"},
                 {ESP__MSG_REFUSE, ESP_E_COMM, "no\033[31m\n\tway%s%n", "no?[31m??way%s%"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        rank_t t[2];
        const char *error = "";
        impostor x = {-1, kinds[i].type, kinds[i].text};
        pthread_t thread;
        ranks_init(t, 2, test_root(true), ours);
        x.listener = esp__listen(t[0].root, &error);
        assert_true(x.listener >= 0);
        pthread_create(&thread, NULL, impostor_main, &x);
        start(&t[1]);
        ended(&t[1], kinds[i].status, kinds[i].error);
        pthread_join(thread, NULL);
        close(x.listener);
    }
}

/* A rank with another version of the library gets an error that says so. Over a Unix socket, which only this user can
 * connect to, connecting then fails for all. Over TCP the others go on waiting. */
TEST(test_versions) {
    for (int tcp = 0; tcp < 2; tcp++) {
        rank_t t[2];
        esp__peers p;
        esp__hello k;
        hello_bytes b;
        char answer[4096];
        int fd;
        memset(&p, 0, sizeof p);
        p.rank = 1;
        p.size = 2;
        esp__hello_make(&p, 0, &k);
        memset(k.version, 0, sizeof k.version);
        memcpy(k.version, "0.1.0\a", 6); /* first bytes of a version of an older library */
        b = hello_message(ESP__MSG_HELLO, &k, sizeof k);
        ranks_init(t, 2, test_root(tcp), ours);
        start(&t[0]);
        fd = hello_connect(t[0].root, 5000);
        assert_true(hello_send(fd, &b));
        assert_int_equal(hello_receive(fd, answer, sizeof answer), ESP__MSG_REFUSE);
        assert_non_null(strstr(answer, "rank 1 runs espresso 0.1.0?, rank 0 runs " ESPRESSO_VERSION "/2"));
        close(fd);
        if (tcp) start(&t[1]);
        ended(&t[0], tcp ? ESP_OK : ESP_E_MISMATCH, tcp ? "" : "install one version everywhere");
        if (tcp) ended(&t[1], ESP_OK, "");
    }
}

/* Tests a process of another user: rank 0 refuses it, and no rank accepts it as rank 0. */
TEST(test_other_users) {
    rank_t t[2];
    char answer[4096];
    hello_bytes sent[2];
    const char *error = "";
    int ends[2];
    pid_t child;
    if (geteuid() != 0) test_skip("needs root, to start a process of another user");
    ranks_init(t, 2, test_root(false), ours);
    start(&t[0]);
    if (!(child = child_fork(60))) {
        int fd, heard;
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(3);
        fd = hello_connect(t[0].root, 5000);
        heard = (int)hello_as(fd, 1, 2, ours, sent, answer, sizeof answer); /* refused, although it knows the secret */
        _exit(fd < 0 ? 4 : heard);
    }
    assert_int_equal(child_wait(child), 0);
    start(&t[1]);
    for (int r = 0; r < 2; r++) ended(&t[r], ESP_OK, "");

    ranks_init(t, 2, test_root(false), NULL);
    t[1].timeout_ms = 500;
    assert_int_equal(pipe(ends), 0);
    if (!(child = child_fork(60))) {
        int fd;
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(3);
        fd = esp__listen(t[0].root, &error);
        if (fd < 0 || write(ends[1], "x", 1) != 1) _exit(4);
        poll(NULL, 0, 20000);
        _exit(0);
    }
    assert_int_equal(read(ends[0], answer, 1), 1);
    close(ends[0]);
    close(ends[1]);
    start(&t[1]);
    ended(&t[1], ESP_E_TIMEOUT, "it belongs to another user");
    kill(child, SIGKILL);
    child_wait(child);
}

/* esp__open_to_all() must distinguish sockets that other hosts can reach from those that they cannot. */
TEST(test_who_can_reach) {
    static const char *const local[] = {"127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0",
                                        "unix:test-secret-reach"};
    const char *error = "";
    esp__roots roots;
    int fd;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++) {
        if ((fd = esp__listen(local[i], &error)) < 0 && strstr(local[i], "::1")) continue; /* this host has no IPv6 */
        assert_true(fd >= 0);
        assert_false(esp__open_to_all(fd));
        close(fd);
    }
    fd = esp__listen_roots(NULL, &roots, &error);
    assert_true(fd >= 0 && esp__open_to_all(fd));
    close(fd);
}

/* esp_open warns on rank 0 if anybody may join the job, and only then. */
static atomic_int warned;
static void on_log(void *user, const esp_log_event *ev) {
    if (ev->level == ESP_LOG_WARN && strstr(ev->message, "has no secret")) warned++;
    if (strstr(ev->message, ours)) warned += 100;
}
typedef struct opener {
    esp_config cfg;
    esp_status status;
} opener;
static void *opener_main(void *arg) {
    opener *o = (opener *)arg;
    esp_ctx *ctx = NULL;
    o->status = esp_open(&o->cfg, &ctx);
    esp_close(ctx);
    return NULL;
}
TEST(test_warning) {
    /* without a secret; with one; without one, but only processes of this host can connect */
    for (int kind = 0; kind < 3; kind++) {
        char root[64];
        opener o[2];
        esp_host host = {.struct_size = sizeof host, .log = on_log};
        snprintf(root, sizeof root, "%s:%s", kind == 2 ? "127.0.0.1" : "0.0.0.0", strrchr(test_root(true), ':') + 1);
        if (kind == 1) setenv("ESPRESSO_SECRET", ours, 1);
        warned = 0;
        for (int r = 0; r < 2; r++) {
            o[r] = (opener){.cfg = ESP_ZERO};
            o[r].cfg.rank = r;
            o[r].cfg.size = 2;
            o[r].cfg.root = root;
            o[r].cfg.host = &host;
            o[r].cfg.log_level = ESP_LOG_DEBUG;
        }
        run_threads(2, opener_main, o, sizeof *o);
        unsetenv("ESPRESSO_SECRET");
        for (int r = 0; r < 2; r++) assert_int_equal(o[r].status, ESP_OK);
        assert_int_equal(warned, kind == 0);
    }
}

int main(void) {
    unsetenv("ESPRESSO_SECRET");
    return test_main();
}
