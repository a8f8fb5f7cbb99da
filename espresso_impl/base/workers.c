/* workers.c: worker threads that run one loop at a time together with the caller. Must not know what the loop does. Allocates
 * nothing after esp__workers_open. */
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/thread.h"
#include <stdatomic.h>

enum { ESP__WORKERS_SPIN = 400, ESP__WORKERS_PIECES = 4 };

struct esp__workers {
    esp_ctx *ctx;
    int32_t n, n_threads; /* n counts the caller */
    pthread_t *threads;
    pthread_mutex_t one_loop; /* locked while a loop runs: a second caller runs its own loop alone */
    pthread_mutex_t lock;     /* protects what follows */
    pthread_cond_t work, done;
    int quit, open;    /* open: threads may still join the loop */
    atomic_uint loops; /* number of the loop; written under the lock, but threads that spin read it without */
    atomic_int inside; /* threads in the loop; written and read likewise */
    uint64_t end, piece;
    _Alignas(64) atomic_ullong next;
    void (*body)(void *arg, uint64_t begin, uint64_t end);
    void *arg;
};

static inline void esp__cpu_relax(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}

static void esp__workers_pieces(esp__workers *w) {
    uint64_t begin;
    while ((begin = atomic_fetch_add(&w->next, w->piece)) < w->end) {
        uint64_t end = w->end - begin < w->piece ? w->end : begin + w->piece;
        w->body(w->arg, begin, end);
    }
}

static void *esp__workers_main(void *arg) {
    esp__workers *w = (esp__workers *)arg;
    unsigned seen = 0;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (!w->quit && (!w->open || seen == atomic_load(&w->loops))) {
            /* the next loop often follows soon: spinning for a short time costs less than waking from sleep */
            unsigned now = atomic_load(&w->loops);
            pthread_mutex_unlock(&w->lock);
            for (int i = 0; i < ESP__WORKERS_SPIN && atomic_load(&w->loops) == now; i++) esp__cpu_relax();
            pthread_mutex_lock(&w->lock);
        }
        while (!w->quit && (!w->open || seen == atomic_load(&w->loops))) pthread_cond_wait(&w->work, &w->lock);
        if (w->quit) break;
        seen = atomic_load(&w->loops);
        atomic_fetch_add(&w->inside, 1);
        pthread_mutex_unlock(&w->lock);
        esp__workers_pieces(w);
        pthread_mutex_lock(&w->lock);
        if (atomic_fetch_sub(&w->inside, 1) == 1) pthread_cond_signal(&w->done);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

ESP__FN esp_status esp__workers_open(esp_ctx *ctx, int32_t n, esp__workers **out) {
    esp__workers *w = (esp__workers *)esp__alloc(ctx, sizeof *w);
    *out = NULL;
    if (!w) return esp__fail(ctx, ESP_E_NOMEM, "out of memory for the compression workers");
    w->ctx = ctx;
    w->n = n < 1 ? 1 : n;
    pthread_mutex_init(&w->one_loop, NULL);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->done, NULL);
    w->threads = (pthread_t *)esp__alloc(ctx, (uint64_t)w->n * sizeof *w->threads);
    if (!w->threads) {
        esp__workers_close(w);
        return esp__fail(ctx, ESP_E_NOMEM, "out of memory for %d compression workers", (int)n);
    }
    while (w->n_threads < w->n - 1 && esp__thread_start(&w->threads[w->n_threads], esp__workers_main, w) == 0)
        w->n_threads++;
    if (w->n_threads < w->n - 1)
        esp__log(ctx, ESP_LOG_WARN, "workers", "the system gave %d of %d threads: going on with these",
                 (int)w->n_threads, (int)w->n - 1);
    *out = w;
    return ESP_OK;
}

ESP__FN void esp__workers_close(esp__workers *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->quit = 1;
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    for (int32_t i = 0; i < w->n_threads; i++) pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->one_loop);
    esp__free(w->ctx, w->threads);
    esp__free(w->ctx, w);
}

ESP__FN void esp__workers_for(esp__workers *w, uint64_t n, uint64_t grain,
                              void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg) {
    uint64_t pieces, grains;
    if (grain == 0) grain = 1;
    if (n == 0) return;
    if (!w || w->n_threads == 0 || n <= grain || pthread_mutex_trylock(&w->one_loop) != 0) {
        body(arg, 0, n);
        return;
    }
    /* a few pieces for each thread, so that a slow thread delays the loop little */
    pieces = (uint64_t)(w->n_threads + 1) * ESP__WORKERS_PIECES;
    grains = (n - 1) / grain + 1;
    pthread_mutex_lock(&w->lock);
    w->body = body;
    w->arg = arg;
    w->end = n;
    w->piece = ((grains - 1) / pieces + 1) * grain;
    atomic_store(&w->next, 0);
    w->open = 1;
    atomic_fetch_add(&w->loops, 1);
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
    esp__workers_pieces(w);
    for (int i = 0; i < ESP__WORKERS_SPIN && atomic_load(&w->inside); i++) esp__cpu_relax();
    pthread_mutex_lock(&w->lock);
    w->open = 0; /* a thread that wakes only now finds nothing to do and is not waited for */
    while (atomic_load(&w->inside)) pthread_cond_wait(&w->done, &w->lock);
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_unlock(&w->one_loop);
}
