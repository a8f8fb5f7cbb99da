/* workers.h: the loop under way, as its two kinds of helpers see it: workers.c has threads of its own, workers_omp.c borrows the
 * trainer's. For these two files only. */
#ifndef ESP__WORKERS_H
#define ESP__WORKERS_H
#include "espresso_impl/base/base.h"
#include <pthread.h>
#include <stdatomic.h>

struct esp__workers {
    esp_ctx *ctx;
    int32_t n, n_threads;        /* n counts the caller; with `offer`, the most threads that may run one loop */
    void (*offer)(esp_ctx *ctx); /* OpenMP: wakes the threads that wait, so that they may join; NULL: own threads */
    pthread_t *threads;
    pthread_mutex_t one_loop; /* locked while a loop runs: a second caller runs its own loop alone */
    pthread_mutex_t lock;     /* protects what follows */
    pthread_cond_t work, done;
    int quit, open;    /* open: threads may still join the loop */
    int team_busy;     /* OpenMP: a thread has lent its team */
    atomic_uint loops; /* number of the loop; written under the lock, but threads that spin read it without */
    atomic_int inside; /* threads in the loop; written and read likewise */
    atomic_int taken;  /* OpenMP: a team runs the rest of the loop, and the caller only waits */
    atomic_int team;   /* OpenMP: how many threads the team of the last thread that waited may bring */
    uint64_t end, piece;
    _Alignas(64) atomic_ullong next;
    void (*body)(void *arg, uint64_t begin, uint64_t end);
    void *arg;
};

ESP__FN esp__workers *esp__workers_new(esp_ctx *ctx, int32_t n); /* without threads; NULL: out of memory */
ESP__FN void esp__workers_pieces(esp__workers *w);               /* runs pieces of the loop until none is left */
/* workers_omp.c */
ESP__FN int32_t esp__workers_team(esp__workers *w); /* threads that may run a loop that this thread calls */
ESP__FN void esp__workers_call(esp__workers *w);    /* offers the loop to others, or runs it on this thread's team */
static inline void esp__cpu_relax(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}
#endif
