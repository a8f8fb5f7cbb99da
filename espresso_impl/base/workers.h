/* workers.h: the current loop, for workers.c, with its own threads, and workers_omp.c, with the trainer's. */
#ifndef ESP__WORKERS_H
#define ESP__WORKERS_H
#include "espresso_impl/base/base.h"
#include <pthread.h>
#include <stdatomic.h>

struct esp__workers {
    esp_ctx *ctx;
    int32_t n, n_threads;        /* n: threads in a loop, with the caller */
    void (*offer)(esp_ctx *ctx); /* OpenMP: wakes waiting threads; or NULL */
    pthread_t *threads;
    pthread_mutex_t one_loop; /* held during a loop; a second one runs alone */
    pthread_mutex_t lock;     /* protects the members below */
    pthread_cond_t work, done;
    bool quit, open; /* open: threads may still join the loop */
    bool team_busy;  /* OpenMP: a thread's team runs the loop */
    /* written under the lock, and read also without it */
    atomic_uint loops; /* number of the loop */
    atomic_int inside; /* threads in the loop */
    atomic_int taken;  /* OpenMP: 1 once a team runs the loop */
    atomic_int team;   /* OpenMP: size of the last waiting thread's team */
    uint64_t end, piece;
    _Alignas(64) atomic_ullong next;
    void (*body)(void *arg, uint64_t begin, uint64_t end);
    void *arg;
};

ESP__FN esp__workers *esp__workers_new(esp_ctx *ctx, int32_t n); /* without threads */
ESP__FN void esp__workers_pieces(esp__workers *w);               /* runs pieces until none is left */
/* workers_omp.c */
ESP__FN int32_t esp__workers_team(esp__workers *w); /* threads that may run this thread's loop */
/* Runs the loop on this thread's team or, on a thread of the library, offers it to the trainer's threads. */
ESP__FN void esp__workers_call(esp__workers *w);
static inline void esp__cpu_relax(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}
#endif
