/* workers.c: worker threads that run one loop at a time, together with the caller. A loop allocates nothing. */
#include "espresso_impl/base/workers.h"
#include "espresso_impl/base/os.h"

enum { ESP__WORKERS_SPIN = 400, ESP__WORKERS_PIECES = 4 };

static void esp__workers_piece(const esp__workers *w, uint64_t begin) {
    uint64_t end = w->end - begin < w->piece ? w->end : begin + w->piece;
    w->body(w->arg, begin, end);
}

ESP__FN void esp__workers_pieces(esp__workers *w) {
    uint64_t begin;
    while ((begin = atomic_fetch_add(&w->next, w->piece)) < w->end) esp__workers_piece(w, begin);
}

static void esp__workers_pieces_untaken(esp__workers *w) {
    uint64_t begin;
    while (!atomic_load(&w->taken) && (begin = atomic_fetch_add(&w->next, w->piece)) < w->end)
        esp__workers_piece(w, begin);
}

static void *esp__workers_main(void *arg) {
    esp__workers *w = (esp__workers *)arg;
    unsigned seen = 0;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        if (!w->quit && (!w->open || seen == atomic_load(&w->loops))) {
            /* the next loop often follows soon, so spinning briefly costs less than sleeping and waking up */
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

ESP__FN esp__workers *esp__workers_new(esp_ctx *ctx, int32_t n) {
    esp__workers *w = (esp__workers *)esp__alloc(ctx, sizeof *w);
    if (!w) return NULL;
    w->ctx = ctx;
    w->n = n < 1 ? 1 : n;
    pthread_mutex_init(&w->one_loop, NULL);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->done, NULL);
    return w;
}

ESP__FN esp_status esp__workers_open(esp_ctx *ctx, int32_t n, esp__workers **out) {
    esp__workers *w = esp__workers_new(ctx, n);
    *out = NULL;
    if (!w) return esp__fail(ctx, ESP_E_NOMEM, "out of memory for the compression workers");
    w->threads = (pthread_t *)esp__alloc(ctx, (uint64_t)w->n * sizeof *w->threads);
    if (!w->threads) {
        esp__workers_close(w);
        return esp__fail(ctx, ESP_E_NOMEM, "out of memory for %d compression workers", (int)n);
    }
    while (w->n_threads < w->n - 1 && esp__thread_start(&w->threads[w->n_threads], esp__workers_main, w) == 0)
        w->n_threads++;
    if (w->n_threads < w->n - 1)
        esp__log(ctx, ESP_LOG_WARN, "workers",
                 "the system gave %d of %d threads (see ulimit -u and -v): going on with these", (int)w->n_threads,
                 (int)w->n - 1);
    *out = w;
    return ESP_OK;
}

ESP__FN void esp__workers_close(esp__workers *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
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

static int32_t esp__workers_most(esp__workers *w) {
    if (!w) return 1;
    return w->offer ? esp__workers_team(w) : w->n_threads + 1;
}

/* Publishes the loop to the threads that may join it. The caller holds w->one_loop. */
static void esp__workers_begin(esp__workers *w, int32_t threads, uint64_t n, uint64_t grain,
                               void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg) {
    /* several pieces for each thread, so that one slow thread delays the loop only a little */
    uint64_t pieces = (uint64_t)threads * ESP__WORKERS_PIECES, grains = (n - 1) / grain + 1;
    pthread_mutex_lock(&w->lock);
    w->body = body;
    w->arg = arg;
    w->end = n;
    w->piece = ((grains - 1) / pieces + 1) * grain;
    atomic_store(&w->next, 0);
    atomic_store(&w->taken, 0);
    w->open = true;
    atomic_fetch_add(&w->loops, 1);
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
}

static void esp__workers_end(esp__workers *w) {
    for (int i = 0; i < ESP__WORKERS_SPIN && atomic_load(&w->inside); i++) esp__cpu_relax();
    pthread_mutex_lock(&w->lock);
    w->open = false; /* threads that wake up later must not join */
    while (atomic_load(&w->inside)) pthread_cond_wait(&w->done, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

ESP__FN void esp__workers_for(esp__workers *w, uint64_t n, uint64_t grain,
                              void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg) {
    int32_t threads = esp__workers_most(w);
    if (grain == 0) grain = 1;
    if (n == 0) return;
    if (threads == 1 || n <= grain || pthread_mutex_trylock(&w->one_loop) != 0) {
        body(arg, 0, n);
        return;
    }
    esp__workers_begin(w, threads, n, grain, body, arg);
    if (!w->offer) {
        esp__workers_pieces(w);
    } else {
        esp__workers_call(w);
        esp__workers_pieces_untaken(w);
    }
    esp__workers_end(w);
    pthread_mutex_unlock(&w->one_loop);
}
