/* ranks.h runs a function once per rank, in threads (backend loop) or forked processes (shm), with an exchange of data
 * that needs no library. A rank that fails writes the reason into a shared text, and the caller asserts. */
#ifndef RANKS_H
#define RANKS_H
#include "tests/lib/test.h"
#include <sched.h>
#include "espresso_impl/registry/builtin.h"

enum { RANKS_MAX = 16, RANKS_OOB = 65536 };

typedef struct ranks_shared {
    pthread_barrier_t barrier[1 + RANKS_MAX]; /* [0]: all ranks; [1 + r]: the group whose first rank is r */
    uint8_t oob[RANKS_MAX][RANKS_OOB];
    int failed, mark;
    char text[512];
} ranks_shared;

typedef struct ranks_group {
    ranks_shared *shared;
    int32_t members[RANKS_MAX], machine[RANKS_MAX], n, me;
    pthread_barrier_t *barrier;
} ranks_group;

typedef struct ranks_me {
    const esp_backend *b;
    const char *params;
    int32_t rank, size;
    int32_t per_machine; /* neighbouring ranks share a machine; 0 puts all on one */
    ranks_shared *shared;
    void *arg;
} ranks_me;
typedef void (*ranks_fn)(ranks_me *me);

static __thread char ranks_said[512];
static void ranks_log(void *u, const esp_log_event *ev) {
    if (ev->level == ESP_LOG_ERROR) snprintf(ranks_said, sizeof ranks_said, "%s", ev->message);
    if (getenv("RANKS_LOG")) fprintf(stderr, "%s: %s\n", ev->component, ev->message);
}
static const esp_host ranks_host = {.struct_size = sizeof(esp_host),
                                    .abi_major = 1,
                                    .alloc = test_host_alloc,
                                    .free_ = test_host_free,
                                    .log = ranks_log};

__attribute__((format(printf, 2, 3))) static int ranks_fail(ranks_me *me, const char *fmt, ...) {
    va_list ap;
    if (__atomic_exchange_n(&me->shared->failed, 1, __ATOMIC_SEQ_CST)) return -1;
    int at =
        snprintf(me->shared->text, 64, "%s(%s) rank %d of %d: ", me->b->name, me->params, (int)me->rank, (int)me->size);
    va_start(ap, fmt);
    vsnprintf(me->shared->text + at, sizeof me->shared->text - (size_t)at, fmt, ap);
    va_end(ap);
    return -1;
}

static esp_status ranks_oob(void *user, const void *in, void *out, uint64_t bytes) {
    ranks_group *g = (ranks_group *)user;
    if (bytes > RANKS_OOB) return ESP_E_ARG;
    memcpy(g->shared->oob[g->members[g->me]], in, bytes);
    pthread_barrier_wait(g->barrier);
    for (int32_t i = 0; i < g->n; i++) memcpy((char *)out + (uint64_t)i * bytes, g->shared->oob[g->members[i]], bytes);
    pthread_barrier_wait(g->barrier);
    return ESP_OK;
}

static int32_t ranks_machine(const ranks_me *me, int32_t rank) { return me->per_machine ? rank / me->per_machine : 0; }
/* Opens a communicator of all ranks (scope 0), of the ranks on this machine (1), or of one rank from each machine
 * (2). */
static void *ranks_open(ranks_me *me, int32_t scope, void *parent) {
    ranks_group g;
    esp_group eg;
    void *comm = NULL;
    memset(&g, 0, sizeof g);
    memset(&eg, 0, sizeof eg);
    for (int32_t r = 0; r < me->size; r++) {
        int same = ranks_machine(me, r) == ranks_machine(me, me->rank);
        int peer = me->per_machine ? r % me->per_machine == me->rank % me->per_machine : r == me->rank;
        if (scope == 0 || (scope == 1 && same) || (scope == 2 && peer)) {
            if (r == me->rank) g.me = g.n;
            g.machine[g.n] = ranks_machine(me, r);
            g.members[g.n++] = r;
        }
    }
    g.shared = me->shared;
    g.barrier = &me->shared->barrier[scope ? 1 + g.members[0] : 0];
    if (scope) {
        pthread_barrier_wait(&me->shared->barrier[0]);
        if (g.me == 0) {
            pthread_barrierattr_t a;
            pthread_barrierattr_init(&a);
            pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
            pthread_barrier_init(g.barrier, &a, (unsigned)g.n);
        }
        pthread_barrier_wait(&me->shared->barrier[0]);
    }
    eg.struct_size = sizeof eg;
    eg.rank = g.me, eg.size = g.n, eg.level = scope, eg.n_levels = 2, eg.machine = g.machine, eg.parent = parent;
    eg.oob_allgather = ranks_oob, eg.user = &g;
    esp_status s = me->b->open(&ranks_host, &eg, me->params, &comm);
    if (s != ESP_OK) ranks_fail(me, "open: status %d: %s", (int)s, ranks_said);
    if (scope) pthread_barrier_wait(&me->shared->barrier[0]);
    return comm;
}

static esp_status ranks_wait(ranks_me *me, void *comm, void *req) {
    double end = test_seconds() + 20;
    esp_status s;
    while ((s = me->b->test(comm, req)) == ESP_PENDING) {
        if (me->b->progress)
            me->b->progress(comm, 100000);
        else
            sched_yield();
        if (test_seconds() > end)
            return ranks_fail(me, "nothing moves: waits for %d", (int)me->b->straggler(comm, req)), ESP_E_TIMEOUT;
    }
    return s;
}
static esp_status ranks_coll(ranks_me *me, void *comm, const esp_coll *c) {
    void *req = NULL;
    esp_stream none = ESP_ZERO;
    esp_status s = me->b->start(comm, c, none, &req);
    return s != ESP_OK ? s : ranks_wait(me, comm, req);
}

typedef struct ranks_thread {
    ranks_me me;
    ranks_fn fn;
} ranks_thread;
static void *ranks_main(void *arg) {
    ranks_thread *t = (ranks_thread *)arg;
    t->fn(&t->me);
    return NULL;
}
static inline const esp_backend *ranks_backend(const char *name) {
    const esp_plugin *p =
        !strcmp(name, "loop") ? espresso_plugin_v1_loop(&ranks_host) : espresso_plugin_v1_shm(&ranks_host);
    return p->backends[0];
}
static bool ranks_are_threads;
/* Returns "" or the error text, which is valid until the next call. `killed` is a rank that is expected to die, or
 * -1. */
static const char *ranks_run(const esp_backend *b, const char *params, int32_t n, int32_t per_machine, ranks_fn fn,
                             void *arg, int32_t killed) {
    static char text[512];
    ranks_thread *t = (ranks_thread *)calloc((size_t)n, sizeof *t);
    ranks_shared *shared = test_shared(sizeof *shared);
    pthread_barrierattr_t a;
    const bool threads = ranks_are_threads || !strcmp(b->name, "loop");
    pid_t pid[RANKS_MAX];
    pthread_barrierattr_init(&a);
    pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier[0], &a, (unsigned)n);
    for (int32_t r = 0; r < n; r++) {
        t[r].me = (ranks_me){b, params, r, n, per_machine, shared, arg};
        t[r].fn = fn;
        if (threads || (pid[r] = child_fork(120))) continue;
        fn(&t[r].me);
        _exit(0);
    }
    if (threads) run_threads(n, ranks_main, t, sizeof *t);
    for (int32_t r = 0; r < n && !threads; r++) {
        const int ended = child_wait(pid[r]);
        if (ended && r != killed) ranks_fail(&t[r].me, "ended with status %d", ended);
    }
    snprintf(text, sizeof text, "%s", shared->failed ? shared->text : "");
    munmap(shared, sizeof *shared);
    free(t);
    return text;
}
#endif
