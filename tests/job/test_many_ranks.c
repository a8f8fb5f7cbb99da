/* test_many_ranks.c measures bytes and time while 1,024 ranks connect, exchange addresses, agree on settings and leave.
 * Ranks are threads. A rank may send only a few bytes for each rank of the job. */
/* runs: quiet no-tsan: two thousand threads by what job/test_peers runs: too slow */
#include "tests/lib/test.h"
#include "espresso_impl/job/peers.h"
#include <sys/resource.h>

enum { MOST = 1024, PER_MACHINE = 8, FILES_EACH = 7, OTHER_FILES = 200 };

typedef struct rank_t {
    int32_t rank, size;
    const char *root;
    bool one_host; /* false if ranks of other hosts may connect */
    bool odd;
    uint64_t sent, closed; /* bytes sent before and during esp__peers_close */
    esp_status status;
    char error[256];
    pthread_t thread;
} rank_t;
static rank_t ranks[MOST];
static pthread_barrier_t all_here;
static _Thread_local rank_t *closing;

/* The linker redirects the library's calls to this function, which counts bytes. */
void __wrap_esp__conn_free(esp_ctx *ctx, esp__conn *c);
void __real_esp__conn_free(esp_ctx *ctx, esp__conn *c);
void __wrap_esp__conn_free(esp_ctx *ctx, esp__conn *c) {
    if (closing) closing->closed += c->sent;
    __real_esp__conn_free(ctx, c);
}

static esp_status meet(rank_t *t, esp_ctx *ctx) {
    const esp_config cfg = {.timeout_ms = 60000};
    esp__where w = {.rank = t->rank, .size = t->size, .n_levels = 2};
    uint64_t number = 0;
    bool one_host = false;
    snprintf(w.root, sizeof w.root, "%s", t->root);
    snprintf(w.machine, sizeof w.machine, "m%d", (int)t->rank / PER_MACHINE);
    esp_status s = esp__peers_open(ctx, &cfg, &w, NULL, &ctx->job.peers);
    if (!s) s = esp__job_introduce(ctx, &ctx->job, &w, t->odd ? "backend shm" : "backend loop", &number, &one_host);
    if (!s && (!one_host || !number)) s = ESP_E_CORRUPT;
    if (!s) s = esp__standby_open(ctx, number, t->one_host, &ctx->job.standby);
    if (!s) s = esp__agree_ok(ctx, ESP_OK);
    if (!s && (ctx->job.topo.n_local != PER_MACHINE || ctx->job.topo.machine != t->rank / PER_MACHINE))
        s = ESP_E_CORRUPT;
    return s;
}

static void *rank_main(void *arg) {
    rank_t *t = arg;
    esp_ctx *ctx = calloc(1, sizeof *ctx);
    esp__base_parts(ctx);
    ctx->base.log_level = ESP_LOG_ERROR;
    ctx->job.rank = ctx->base.rank = t->rank;
    ctx->job.size = ctx->base.size = t->size;
    t->status = meet(t, ctx);
    if (t->status) snprintf(t->error, sizeof t->error, "%.250s", esp_last_error(NULL));
    esp__peers *p = ctx->job.peers;
    pthread_barrier_wait(&all_here);
    if (p) pthread_mutex_lock(&p->lock);
    for (int32_t i = 0; p && i < p->n_conns; i++) t->sent += p->conns[i].sent;
    if (p) pthread_mutex_unlock(&p->lock);
    pthread_barrier_wait(&all_here);
    esp__standby_close(ctx, ctx->job.standby);
    closing = t;
    esp__peers_close(p, NULL, 0, NULL, NULL);
    void *const rooms[] = {ctx->job.topo.machine_of, ctx->job.topo.local_of, ctx->job.topo.unit_of,
                           ctx->job.topo.place,      ctx->job.topo.ranks,    ctx->job.room};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) esp__free(ctx, rooms[i]);
    free(ctx);
    return NULL;
}

/* `odd` is the rank whose settings are wrong, or 0 if there is none. */
static void run(int32_t size, bool one_host, int32_t odd) {
    static int serial;
    char root[64], differing[64];
    pthread_attr_t small;
    uint64_t most = 0, began = esp__now_ns();
    snprintf(root, sizeof root, "unix:test-many-%d-%d", (int)getpid(), serial++);
    snprintf(differing, sizeof differing, "(differing ranks: %d)", (int)odd);
    pthread_barrier_init(&all_here, NULL, (unsigned)size);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    for (int32_t r = 0; r < size; r++) {
        ranks[r] = (rank_t){.rank = r, .size = size, .root = root, .one_host = one_host, .odd = odd && r == odd};
        assert_int_equal(pthread_create(&ranks[r].thread, &small, rank_main, &ranks[r]), 0);
    }
    for (int32_t r = 0; r < size; r++) pthread_join(ranks[r].thread, NULL);
    pthread_attr_destroy(&small);
    pthread_barrier_destroy(&all_here);
    for (int32_t r = 0; r < size; r++) {
        const esp_status want = odd ? ESP_E_MISMATCH : ESP_OK;
        if (ranks[r].status != want)
            fail_msg("rank %d: %s: %s", (int)r, esp_status_name(ranks[r].status), ranks[r].error);
        if (odd && (!strstr(ranks[r].error, "rank 0 has 'backend loop") || !strstr(ranks[r].error, differing)))
            fail_msg("rank %d: %s", (int)r, ranks[r].error);
        if (r && ranks[r].sent > most) most = ranks[r].sent;
    }
    const uint64_t to_close = (ranks[0].closed - ranks[0].sent) / (uint64_t)(size - 1);
    print_message("%d ranks, %s: rank 0 sent %llu bytes to each, others at most %llu in all; to close, %llu; %.1f s\n",
                  (int)size,
                  odd        ? "one of them other"
                  : one_host ? "one host"
                             : "several hosts",
                  (unsigned long long)ranks[0].sent / (unsigned)(size - 1), (unsigned long long)most,
                  (unsigned long long)to_close, (double)(esp__now_ns() - began) * 1e-9);
    /* rank 0 sends each rank a few bytes for every rank and, with several hosts, also its port */
    assert_true(ranks[0].sent / (uint64_t)(size - 1) < 1000u + (one_host ? 4u : 12u) * (uint64_t)size);
    assert_true(most < 1500);
    /* Rank 0 tells the others who has left: 4 bytes for each rank that left, several in one message. */
    assert_true(to_close < 700u + 5u * (uint64_t)size / 2u);
}

static void many(int32_t size, bool one_host, int32_t odd) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < (rlim_t)(size * FILES_EACH + OTHER_FILES)) {
        print_message("skipped: %d ranks need %d descriptors, and ulimit -n allows %llu\n", (int)size,
                      (int)size * FILES_EACH + OTHER_FILES, (unsigned long long)files.rlim_cur);
        skip();
    }
    run(size, one_host, odd);
}

TEST(test_64) {
    many(64, true, 0);
    many(64, false, 0);
    many(64, true, 33);
}
TEST(test_1024) {
    struct rusage use;
    many(MOST, true, 0);
    many(MOST, true, 700);
    getrusage(RUSAGE_SELF, &use);
    assert_true(use.ru_maxrss < 4 << 20); /* in KiB */
    print_message("%ld MiB\n", use.ru_maxrss >> 10);
}
