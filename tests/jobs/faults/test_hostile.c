/* test_hostile.c connects 4 ranks over TCP and trains, while hostile processes open connections of all kinds. Ranks
 * must connect, results must be correct, and memory and descriptors of rank 0 must not grow with the connections.
 * ESPRESSO_HOSTILE=100000 (as in make hostile) sets the number of hostile connections while ranks connect, and
 * afterwards. */
/* runs: quiet no-tsan: ranks are processes; job/test_secret has their threads */
#include "tests/lib/test.h"
#include <sys/un.h>
#include "tests/lib/processes.h"
#include "tests/lib/hello.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 }; /* sanitizers keep freed memory: do not check its growth */
#else
enum { SANITIZED = 0 };
#endif
enum { RANKS = 4, HOSTILES = 2, HELD = 200, COUNT = 20000, PLACES = ESP__CANDIDATES + RANKS };
static const char secret[] = "a secret that nobody else knows";

typedef struct flood {
    atomic_int running, connected;
    atomic_ullong made;
    atomic_ullong kinds[16], got_in, datagrams;
    hello_bytes replay[2];
    char root[64];
} flood;
static flood *f;

static uint64_t wanted(void) {
    const char *text = getenv("ESPRESSO_HOSTILE");
    return text ? strtoull(text, NULL, 10) : 3000;
}

/* ---- the job ---- */
static void on_log(void *user, const esp_log_event *ev) {
    if (!strcmp(ev->component, "peers") && strstr(ev->message, "all ranks have connected"))
        fprintf(stderr, "rank 0: %s\n", ev->message);
}

/* Runs a training step. When the test is over, rank 0 sets the last element of its gradient. The mean then tells all
 * ranks that this step was the last one. */
static esp_status train(procs *p, int32_t rank, esp_ctx *ctx, uint32_t id, float *grad, int *done) {
    float want = 0;
    esp_stream here = ESP_ZERO;
    esp_status s;
    for (int i = 0; i < COUNT; i++) grad[i] = (float)((i + rank) % 13);
    for (int r = 0; r < RANKS; r++) want += (float)((77 + r) % 13);
    grad[COUNT - 1] = rank == 0 && atomic_load(&p->b->go) == 2 ? (float)RANKS : 0.0f;
    s = esp_push(ctx, id, grad, here);
    if (s == ESP_OK) s = esp_wait_all(ctx);
    *done = s != ESP_OK || grad[COUNT - 1] > 0.5f;
    if (s == ESP_OK && (grad[77] < want / RANKS || grad[77] > want / RANKS)) s = ESP_E_CORRUPT;
    return s;
}

/* Registers backend shm under a second name, so that ranks wait for two backends. Only then has shm sockets with names,
 * to which the test sends garbage. */
static const esp_plugin *shm_again(const esp_host *h) {
    static esp_backend again;
    static const esp_backend *const list[] = {&again};
    static const esp_plugin plugin = {.struct_size = sizeof plugin, .n_backends = 1, .backends = list};
    for (const esp_plugin_fn *e = esp__builtin_entries(); *e; e++) {
        const esp_plugin *p = (*e)(h);
        if (p->n_backends && !strcmp(p->backends[0]->name, "shm")) again = *p->backends[0];
    }
    again.name = "shm2";
    return &plugin;
}
static const esp_plugin_fn linked[] = {shm_again};

static void body_rank(procs *p, int32_t rank) {
    report *me = &p->b->rank[rank];
    esp_config cfg = ESP_ZERO;
    esp_host host = {.struct_size = sizeof host, .log = on_log};
    esp_ctx *ctx = NULL;
    esp_tensor_desc d = {.name = "w", .count = COUNT};
    float *grad = (float *)malloc(COUNT * sizeof *grad);
    uint32_t id = 0;
    esp_status s;
    int done = 0;
    alarm(900);
    setenv("ESPRESSO_SECRET", secret, 1);
    while (rank == 3 && atomic_load(&p->b->go) == 0) usleep(1000);
    cfg.rank = rank;
    cfg.size = RANKS;
    cfg.root = f->root;
    cfg.machine = 1 + rank / 2;
    cfg.backend = "levels:intra=(shm),inter=(shm2)";
    cfg.builtin = linked, cfg.n_builtin = 1;
    cfg.progress = "threads";
    cfg.timeout_ms = 600000;
    cfg.cpu_workers = 1;
    if (rank == 0) cfg.host = &host;
    if (rank == 0) cfg.log_level = ESP_LOG_INFO;
    atomic_store(&me->other, 1);
    s = esp_open(&cfg, &ctx);
    if (s == ESP_OK) s = esp_tensor_add(ctx, &d, &id);
    if (s == ESP_OK) s = esp_start(ctx);
    for (int k = 0; s == ESP_OK && !done; k++) {
        s = train(p, rank, ctx, id, grad, &done);
        if (k == 20) atomic_store(&me->ready, 1);
        usleep(1000);
    }
    if (s != ESP_OK) snprintf(me->text, sizeof me->text, "%.1000s", esp_last_error(ctx));
    esp_close(ctx);
    free(grad);
    atomic_store(&me->status, s);
}

/* ---- attacks ---- */
enum {
    CLOSES,
    GARBAGE,
    HALF,
    HUGE_SIZE,
    SLOW_WRITER,
    SLOW_READER,
    RESET,
    REPLAY,
    WRONG,
    WRONG_RANK,
    WITHOUT,
    SILENT,
    KINDS
};

/* Opens a connection of one kind. Returns a socket that stays open, or -1. */
static int attack(int kind, uint64_t serial, int *fd) {
    static const struct linger reset = {1, 0};
    hello_bytes sent[2], garbage;
    char answer[4096];
    esp__msg huge = {ESP__MSG_HELLO, 1, 0, 0, 1ull << 63};
    uint32_t got = 0;
    switch (kind) {
    case GARBAGE:
        garbage.n = sizeof garbage.data;
        for (size_t i = 0; i < garbage.n; i++) garbage.data[i] = (uint8_t)(serial * 31u + i * 7u + i * i);
        hello_send(*fd, &garbage);
        return -1;
    case HALF: send(*fd, f->replay[0].data, f->replay[0].n / 2 + serial % 20, MSG_NOSIGNAL); return *fd;
    case HUGE_SIZE: send(*fd, &huge, sizeof huge, MSG_NOSIGNAL); return *fd;
    case SLOW_WRITER: return *fd;
    case SLOW_READER: hello_send(*fd, &f->replay[0]); return *fd; /* never reads the answer */
    case RESET:
        hello_send(*fd, &f->replay[0]);
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        return -1;
    case REPLAY: /* sends both messages at once, without waiting for the answer to the first */
        hello_send(*fd, &f->replay[0]);
        hello_send(*fd, &f->replay[1]);
        if (hello_receive(*fd, answer, sizeof answer) == ESP__MSG_CHALLENGE)
            got = hello_receive(*fd, answer, sizeof answer);
        break;
    case WRONG:
        got = hello_as(*fd, 1 + (int32_t)(serial % 3), RANKS, "some other secret", sent, answer, sizeof answer);
        break;
    case WRONG_RANK:
        got = hello_as(*fd, (int32_t)(serial % 9) - 2, RANKS, "some other secret", sent, answer, sizeof answer);
        break;
    case WITHOUT: got = hello_as(*fd, 3, RANKS, "", sent, answer, sizeof answer); break;
    case SILENT: return *fd;
    default: return -1;
    }
    if (got == ESP__MSG_PROOF || got == ESP__MSG_WELCOME) atomic_fetch_add(&f->got_in, 1);
    return -1;
}

static void hostile(int which) {
    int held[HELD], slow[HELD];
    uint64_t sent[HELD];
    memset(held, -1, sizeof held);
    memset(sent, 0, sizeof sent);
    for (uint64_t serial = 0; atomic_load(&f->running); serial++) {
        int kind = (int)((serial + (uint64_t)which * 5u) % KINDS), fd, keep, at = (int)(serial % HELD);
        const int connected = atomic_load(&f->connected);
        fd = hello_connect(f->root, 0);
        if (fd < 0) {
            atomic_fetch_add(&f->made, connected != 0);
            if (!connected) usleep(1000);
            if (connected && serial % 64 == 0) usleep(1000);
            continue;
        }
        if (connected) atomic_fetch_add(&f->got_in, 1);
        keep = attack(kind, serial, &fd);
        atomic_fetch_add(&f->made, 1);
        atomic_fetch_add(&f->kinds[kind], 1);
        if (keep < 0) {
            close(fd);
            continue;
        }
        if (held[at] >= 0) close(held[at]);
        held[at] = fd;
        slow[at] = kind == SLOW_WRITER;
        sent[at] = 0;
        for (int i = (int)(serial % 8); i < HELD; i += 8)
            if (held[i] >= 0 && slow[i] && sent[i] < f->replay[0].n)
                sent[i] += send(held[i], f->replay[0].data + sent[i], 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
    }
    for (int i = 0; i < HELD; i++)
        if (held[i] >= 0) close(held[i]);
}

/* Sends garbage to every abstract datagram socket of the job, whose names any process can see. */
static void datagrams(const procs *p) {
    char line[512], path[64], link[64];
    FILE *list = fopen("/proc/net/unix", "r");
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    while (list && fgets(line, sizeof line, list)) {
        unsigned long inode = 0;
        char *name = strchr(line, '@');
        if (!name || sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &inode) != 1) continue;
        name[strcspn(name, "\n")] = 0;
        for (int r = 0; r < RANKS; r++)
            for (int fd = 3; fd < 64; fd++) {
                struct sockaddr_un a;
                char want[64];
                snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)p->pid[r], fd);
                snprintf(want, sizeof want, "socket:[%lu]", inode);
                memset(link, 0, sizeof link);
                if (readlink(path, link, sizeof link - 1) < 0 || strcmp(link, want)) continue;
                memset(&a, 0, sizeof a);
                a.sun_family = AF_UNIX;
                memcpy(a.sun_path + 1, name + 1, strlen(name + 1));
                for (int i = 0; i < 100; i++)
                    if (sendto(s, line, (size_t)i + 1, MSG_DONTWAIT, (struct sockaddr *)&a,
                               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))) > 0)
                        atomic_fetch_add(&f->datagrams, 1);
            }
    }
    if (list) fclose(list);
    if (s >= 0) close(s);
}

/* ---- cost for rank 0 ---- */
static long memory_kb(pid_t pid, const char *what) {
    char path[64], line[256];
    long kb = 0;
    FILE *s;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    s = fopen(path, "r");
    while (s && fgets(line, sizeof line, s))
        if (!strncmp(line, what, strlen(what))) sscanf(line + strlen(what), ": %ld", &kb);
    if (s) fclose(s);
    return kb;
}
static int descriptors(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    return test_count_files(path, "");
}

/* Waits until the hostile processes have made `n` more connections. Returns the most descriptors that rank 0 had
 * meanwhile. */
static int await_flood(const procs *p, uint64_t n) {
    const uint64_t from = atomic_load(&f->made), end = esp__now_ns() + 280000000000u;
    uint64_t looked = 0;
    int most = 0;
    while (atomic_load(&f->made) - from < n && esp__now_ns() < end) {
        int now = descriptors(p->pid[0]);
        if (now > most) most = now;
        if (atomic_load(&f->connected) && looked++ % 20 == 0) datagrams(p);
        usleep(5000);
    }
    assert_true(atomic_load(&f->made) - from >= n);
    return most;
}

/* Connects as rank 1 to a rank 0 with the right secret, and records what rank 1 sends, so that attacks can repeat
 * it. */
static void record(void) {
    procs p;
    esp__where w = {.rank = 0, .size = 2, .secret = secret};
    char answer[4096];
    int fd;
    procs_init(&p, 2);
    snprintf(w.root, sizeof w.root, "%s", f->root);
    if (!(p.pid[0] = child_fork(60))) {
        esp__peers *peers = NULL;
        esp_status s = esp__peers_open(NULL, NULL, &w, NULL, &peers);
        _exit(s == ESP_OK ? 0 : 1);
    }
    fd = hello_connect(f->root, 10000);
    assert_int_equal(hello_as(fd, 1, 2, secret, f->replay, answer, sizeof answer), ESP__MSG_PROOF);
    assert_int_equal(hello_receive(fd, answer, sizeof answer), ESP__MSG_WELCOME);
    close(fd);
    assert_int_equal(procs_end(&p), 0);
}

TEST(test_flood) {
    const uint64_t n = wanted();
    pid_t pids[HOSTILES];
    procs p;
    long before, peak, runs, ran;
    int fds_before, fds_most, fds_runs, fds_ran;
    uint64_t t0;
    f = test_shared(sizeof *f);
    snprintf(f->root, sizeof f->root, "%s", test_root(true));
    record();

    procs_init(&p, RANKS);
    procs_start_all(&p, body_rank);
    assert_true(PROCS_AWAIT(&p, other, 0, 3));
    usleep(300000); /* time for ranks 1 and 2 to connect */
    before = memory_kb(p.pid[0], "VmRSS");
    fds_before = descriptors(p.pid[0]);
    atomic_store(&f->running, 1);
    t0 = esp__now_ns();
    for (int i = 0; i < HOSTILES; i++) {
        if ((pids[i] = child_fork(0)) != 0) continue;
        hostile(i);
        _exit(0);
    }
    fds_most = await_flood(&p, n);
    peak = memory_kb(p.pid[0], "VmHWM");
    print_message("%llu connections while the ranks meet, in %.1f s: rank 0 had %ld KiB, and %ld KiB at most; %d "
                  "descriptors, and %d at most\n",
                  (unsigned long long)atomic_load(&f->made), (double)(esp__now_ns() - t0) / 1e9, before, peak,
                  fds_before, fds_most);
    for (int k = 0; k < KINDS; k++) assert_true(atomic_load(&f->kinds[k]) >= n / KINDS / 2);
    assert_true(atomic_load(&p.b->rank[0].status) == 1);
    assert_true(SANITIZED || peak - before < 1024);
    assert_true(fds_most <= fds_before + PLACES + 2);

    t0 = esp__now_ns();
    atomic_store(&p.b->go, 1); /* rank 3 joins */
    assert_true(PROCS_AWAIT(&p, ready, 0, NOBODY));
    print_message("rank 3 joined and all trained 20 steps %.2f s after it came\n", (double)(esp__now_ns() - t0) / 1e9);
    atomic_store(&f->connected, 1);
    usleep(100000);
    runs = memory_kb(p.pid[0], "VmRSS");
    fds_runs = descriptors(p.pid[0]);
    fds_most = await_flood(&p, n);
    ran = memory_kb(p.pid[0], "VmRSS");
    fds_ran = descriptors(p.pid[0]);
    print_message(
        "%llu more while it runs, and %llu datagrams: rank 0 had %ld KiB, then %ld KiB; %d descriptors, %d at "
        "most, then %d\n",
        (unsigned long long)n, (unsigned long long)atomic_load(&f->datagrams), runs, ran, fds_runs, fds_most, fds_ran);
    assert_true(SANITIZED || ran - runs < 1024);
    assert_true(fds_most <= fds_runs + 8 && fds_ran <= fds_runs + 8);
    assert_int_equal(atomic_load(&f->got_in), 0);
    assert_true(atomic_load(&f->datagrams) > 100);

    atomic_store(&p.b->go, 2);
    atomic_store(&f->running, 0);
    assert_true(PROCS_AWAIT(&p, status, 1, NOBODY));
    for (int r = 0; r < RANKS; r++) {
        if (atomic_load(&p.b->rank[r].status)) print_error("rank %d: %s\n", r, p.b->rank[r].text);
        assert_int_equal(atomic_load(&p.b->rank[r].status), ESP_OK);
    }
    for (int i = 0; i < HOSTILES; i++) child_wait(pids[i]);
    assert_int_equal(procs_end(&p), 0);
}
