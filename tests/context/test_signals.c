/* test_signals.c checks that no thread of the library receives the program's signals. It starts threads of all kinds on
 * two ranks, and reads their signal masks in /proc. */
/* runs: quiet no-tsan: of processes and signals; threads are those of executor/test_lanes */
#include "tests/lib/test.h"

enum { RANKS = 2, STEPS = 400, COUNT = 3000, KNOWN = 8192 };

static pid_t own[RANKS + 1]; /* threads of the test itself */
static atomic_int wrong;
static char seen[KNOWN][24]; /* thread ids of the library's threads */
static int n_seen;

static unsigned long long blocked(const char *task) {
    char path[64], line[128];
    unsigned long long mask = ~0ull;
    int threads = 1;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        (void)sscanf(line, "Threads: %d", &threads);
        if (sscanf(line, "SigBlk: %llx", &mask) == 1) break;
    }
    if (f) fclose(f);
    return threads ? mask : ~0ull; /* the mask of a thread that has just ended reads as 0, so it does not count */
}

/* Checks that every thread of the library blocks the signals that launchers and trainers send. */
static void look(void) {
    const int theirs[] = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGALRM, SIGCHLD, SIGPIPE};
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));) {
        int mine = e->d_name[0] == '.', known = 0;
        for (int i = 0; i <= RANKS; i++) mine |= atoi(e->d_name) == own[i];
        if (mine) continue;
        const unsigned long long mask = blocked(e->d_name);
        for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
            if (!(mask >> (theirs[i] - 1) & 1) && !atomic_exchange(&wrong, 1))
                fprintf(stderr, "thread %s takes signal %d\n", e->d_name, theirs[i]);
        for (int i = 0; i < n_seen; i++) known |= !strcmp(seen[i], e->d_name);
        if (!known && n_seen < KNOWN) snprintf(seen[n_seen++], sizeof *seen, "%.20s", e->d_name);
    }
    if (d) closedir(d);
}

static void body(esp_ctx *ctx, void *user) {
    esp_tensor_desc d = ESP_ZERO;
    const esp_stream here = ESP_ZERO;
    float grad[COUNT] = {0};
    pthread_barrier_t *all = (pthread_barrier_t *)user;
    uint32_t id;
    own[esp_rank(ctx)] = gettid();
    pthread_barrier_wait(all);
    d.name = "t";
    d.count = COUNT;
    int failed = esp_tensor_add(ctx, &d, &id) || esp_start(ctx);
    for (int step = 0; step < STEPS && !failed; step++) {
        failed = esp_push(ctx, id, grad, here) || esp_wait_all(ctx);
        if (esp_rank(ctx) == 0) look();
    }
    if (failed) fprintf(stderr, "rank %d: %s\n", esp_rank(ctx), esp_last_error(ctx));
    if (failed) atomic_store(&wrong, 1);
    pthread_barrier_wait(all);
}

TEST(all_threads) {
    char stats[64];
    pthread_barrier_t all;
    snprintf(stats, sizeof stats, "/tmp/test_signals_%d.prom", (int)getpid());
    setenv("ESPRESSO_STATS", stats, 1);
    pthread_barrier_init(&all, NULL, RANKS);
    own[RANKS] = gettid();
    RUN_RANKS(.size = RANKS, .body = body, .user = &all, .config.strategy = "auto:steps=5", .config.codec = "fp16",
              .config.cpu_workers = 2);
    unlink(stats);
    assert_int_equal(atomic_load(&wrong), 0);
    /* A rank has a watchdog, a worker, and threads for a core and a link. Rank 0 also has a thread for statistics. */
    assert_true(n_seen >= 4 * RANKS + 1);
}
