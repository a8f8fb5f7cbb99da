/* workers.h: runs a loop in parallel, on threads of the library (workers.c) or OpenMP threads of the program
 * (workers_omp.c). */
#ifndef ESP__WORKERS_H
#define ESP__WORKERS_H
#include "espresso_impl/base/base.h"
#include <pthread.h>
#include <stdatomic.h>

struct esp__workers {
    esp_ctx *ctx;
    int32_t n;         /* threads that may run a loop, with the caller */
    int32_t n_threads; /* threads that the library has started */
    void (*offer)(esp_ctx *ctx);
    pthread_t *threads;
    pthread_mutex_t one_loop; /* locked during a loop; meanwhile, another caller runs its loop alone */
    pthread_mutex_t lock;     /* protects the members below */
    pthread_cond_t work, done;
    bool quit, open; /* open: threads may still join the loop */
    bool team_busy;
    atomic_uint loops;
    atomic_int inside;
    atomic_int taken;
    atomic_int team;
    uint64_t end, piece;
    _Alignas(64) atomic_ullong next;
    void (*body)(void *arg, uint64_t begin, uint64_t end);
    void *arg;
};

ESP__FN esp__workers *esp__workers_new(esp_ctx *ctx, int32_t n);
ESP__FN void esp__workers_pieces(esp__workers *w);
ESP__FN int32_t esp__workers_team(esp__workers *w);
/* Runs the loop on the OpenMP team of the calling thread. A thread of the library has no team; it asks a waiting
 * thread of the program to help. */
ESP__FN void esp__workers_call(esp__workers *w);
static inline void esp__cpu_relax(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}
#endif
