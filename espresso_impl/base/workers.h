/* workers.h: the loop that runs now; workers.c runs it on its own threads, workers_omp.c on the trainer's. */
#ifndef ESP__WORKERS_H
#define ESP__WORKERS_H
#include "espresso_impl/base/base.h"
#include <pthread.h>
#include <stdatomic.h>

struct esp__workers {
    esp_ctx *ctx;
    int32_t n, n_threads;        /* threads of a loop (with the caller); own threads */
    void (*offer)(esp_ctx *ctx); /* only with OpenMP: wakes the trainer's waiting threads */
    pthread_t *threads;
    pthread_mutex_t one_loop; /* locked during a loop; other callers run theirs alone */
    pthread_mutex_t lock;     /* protects the members below */
    pthread_cond_t work, done;
    bool quit, open; /* open: threads may still join the loop */
    bool team_busy;  /* only with OpenMP: a team runs the loop */
    /* changed under the lock, but read also without it */
    atomic_uint loops; /* number of loops so far */
    atomic_int inside; /* number of threads in the loop */
    atomic_int taken;  /* only with OpenMP: 1 once a team runs the loop */
    atomic_int team;   /* only with OpenMP: team size of the last waiting thread */
    uint64_t end, piece;
    _Alignas(64) atomic_ullong next;
    void (*body)(void *arg, uint64_t begin, uint64_t end);
    void *arg;
};

ESP__FN esp__workers *esp__workers_new(esp_ctx *ctx, int32_t n); /* starts no threads */
ESP__FN void esp__workers_pieces(esp__workers *w);               /* runs pieces until none is left */
/* Defined in workers_omp.c: */
ESP__FN int32_t esp__workers_team(esp__workers *w); /* how many threads may run this thread's loop */
/* Runs the loop on this thread's OpenMP team. A thread of the library offers it to the trainer's threads instead. */
ESP__FN void esp__workers_call(esp__workers *w);
static inline void esp__cpu_relax(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}
#endif
