/* workers.h: the loop that runs now, on the library's threads (workers.c) or the program's (workers_omp.c). */
#ifndef ESP__WORKERS_H
#define ESP__WORKERS_H
#include "espresso_impl/base/base.h"
#include <pthread.h>
#include <stdatomic.h>

struct esp__workers {
    esp_ctx *ctx;
    /* n: threads that may run a loop, the caller included; n_threads: threads started */
    int32_t n, n_threads;
    void (*offer)(esp_ctx *ctx); /* only with OpenMP: wakes the program's waiting threads */
    pthread_t *threads;
    pthread_mutex_t one_loop; /* locked during a loop; meanwhile, another caller runs its loop alone */
    pthread_mutex_t lock;     /* protects the members below */
    pthread_cond_t work, done;
    bool quit, open; /* open: threads may still join the loop */
    bool team_busy;  /* only with OpenMP: a team runs the loop */
    /* written under the lock, but also read without it */
    atomic_uint loops;
    atomic_int inside;
    atomic_int taken; /* only with OpenMP: 1 once a team runs the loop */
    atomic_int team;  /* only with OpenMP: team size of the last waiting thread */
    uint64_t end, piece;
    _Alignas(64) atomic_ullong next;
    void (*body)(void *arg, uint64_t begin, uint64_t end);
    void *arg;
};

ESP__FN esp__workers *esp__workers_new(esp_ctx *ctx, int32_t n);
ESP__FN void esp__workers_pieces(esp__workers *w);
ESP__FN int32_t esp__workers_team(esp__workers *w); /* how many threads may run a loop of the calling thread */
/* Runs the loop on this thread's OpenMP team. The library's own threads offer it to the program's threads instead. */
ESP__FN void esp__workers_call(esp__workers *w);
static inline void esp__cpu_relax(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}
#endif
