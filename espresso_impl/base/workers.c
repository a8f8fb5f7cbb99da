/* workers.c: several threads run one loop at a time, together with the caller: worker threads of the library, or
 * threads of the training program's OpenMP team. A loop allocates nothing. */
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/os.h"
#include <stdatomic.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { ESP__WORKERS_SPIN = 400, ESP__WORKERS_PIECES = 4 };

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

static inline void esp__cpu_relax(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_ia32_pause();
#endif
}

static void esp__workers_piece(const esp__workers *w, uint64_t begin) {
    uint64_t end = w->end - begin < w->piece ? w->end : begin + w->piece;
    w->body(w->arg, begin, end);
}

static void esp__workers_pieces(esp__workers *w) {
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

static esp__workers *esp__workers_new(esp_ctx *ctx, int32_t n) {
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

/* ---- OpenMP ---- */
/* Runs the library's loops on the training program's OpenMP team. An OpenMP runtime keeps a team for
 * each thread that opens parallel regions, so the library's own thread for compression must open none: that would start
 * a second team. It offers its loop to a thread of the program that waits in esp_wait or esp_wait_all, whose team is
 * idle, and runs the loop alone if none waits. A region has as many threads as the runtime gives it, and surplus
 * threads leave it at once: with num_threads(n), libgomp would end and restart threads of the team again and again. */
#ifdef _OPENMP
static __thread bool esp__omp_never; /* true in a thread that the library started */
static __thread int32_t esp__omp_pid;

/* Returns the number of threads in the calling thread's OpenMP team. It is 1 where no parallel region may be
 * opened: in threads of the library, inside a parallel region, and in forked processes. */
static int32_t esp__omp_team(const esp__workers *w) {
    if (esp__omp_never || omp_get_level() > 0) return 1;
    if (esp__omp_pid && esp__omp_pid != (int32_t)getpid()) return 1;
    int32_t n = omp_get_max_threads();
    return n < w->n ? n : w->n;
}

/* Makes the calling thread run pieces of the loop, unless none is left or w->n threads already do so. */
static void esp__omp_join(esp__workers *w, bool with_team) {
    pthread_mutex_lock(&w->lock);
    int others = atomic_load(&w->inside) + (with_team || atomic_load(&w->taken) ? 0 : 1);
    const bool in = w->open && atomic_load(&w->next) < w->end && others < w->n;
    if (in) atomic_fetch_add(&w->inside, 1);
    if (in && with_team) atomic_store(&w->taken, 1);
    pthread_mutex_unlock(&w->lock);
    if (!in) return;
    uint64_t fp = esp__fp_default(); /* the program may have set another floating-point mode */
    esp__workers_pieces(w);
    esp__fp_restore(fp);
    pthread_mutex_lock(&w->lock);
    if (atomic_fetch_sub(&w->inside, 1) == 1) pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

static void esp__omp_join_all(esp__workers *w) {
    int32_t most = w->n;
    esp__omp_pid = (int32_t)getpid();
#pragma omp parallel default(none) shared(w, most)
    if (omp_get_thread_num() < most) esp__omp_join(w, omp_get_num_threads() > 1);
}

ESP__FN esp_status esp__workers_open_omp(esp_ctx *ctx, int32_t most, void (*offer)(esp_ctx *ctx), esp__workers **out) {
    *out = esp__workers_new(ctx, most > 0 ? most : INT32_MAX);
    if (!*out) return esp__fail(ctx, ESP_E_NOMEM, "out of memory for the compression workers");
    (*out)->offer = offer;
    atomic_store(&(*out)->team, most == 1 ? 1 : 2);
    return ESP_OK;
}

ESP__FN void esp__workers_never_lend(void) { esp__omp_never = true; }

static int32_t esp__workers_team(esp__workers *w) { return esp__omp_never ? atomic_load(&w->team) : esp__omp_team(w); }

/* Runs the loop on the OpenMP team of the calling thread. A thread of the library has no team; it asks a waiting
 * thread of the program to help. */
static void esp__workers_call(esp__workers *w) {
    if (esp__omp_never)
        w->offer(w->ctx);
    else
        esp__omp_join_all(w);
}

ESP__FN bool esp__workers_offered(esp__workers *w) {
    if (!w || !w->offer || w->n < 2) return false;
    const bool alone = omp_get_level() > 0;
    int32_t team = alone ? 1 : esp__omp_team(w);
    if (!alone) atomic_store(&w->team, team);
    pthread_mutex_lock(&w->lock);
    const bool some = w->open && atomic_load(&w->next) < w->end;
    const bool room = alone || (team > 1 && !w->team_busy && !atomic_load(&w->taken));
    pthread_mutex_unlock(&w->lock);
    return some && room;
}

ESP__FN void esp__workers_help(esp__workers *w) {
    if (omp_get_level() > 0) {
        esp__omp_join(w, false);
        return;
    }
    pthread_mutex_lock(&w->lock);
    const bool mine = !w->team_busy;
    w->team_busy = true;
    pthread_mutex_unlock(&w->lock);
    if (!mine) return;
    esp__omp_join_all(w);
    pthread_mutex_lock(&w->lock);
    w->team_busy = false;
    pthread_mutex_unlock(&w->lock);
}

#else
ESP__FN esp_status esp__workers_open_omp(esp_ctx *ctx, int32_t most, void (*offer)(esp_ctx *ctx), esp__workers **out) {
    (void)most, (void)offer;
    *out = NULL;
    return esp__fail(ctx, ESP_E_UNSUPPORTED,
                     "workers are \"openmp\", but the library was compiled without OpenMP: compile espresso.c, or the "
                     "file with ESPRESSO_IMPLEMENTATION, with -fopenmp (here: make OPENMP=1), or set "
                     "ESPRESSO_WORKERS=N for N threads of its own");
}
ESP__FN void esp__workers_never_lend(void) {}
static int32_t esp__workers_team(esp__workers *w) { return w->n; }
static void esp__workers_call(esp__workers *w) { (void)w; }
ESP__FN bool esp__workers_offered(esp__workers *w) {
    (void)w;
    return false;
}
ESP__FN void esp__workers_help(esp__workers *w) { (void)w; }
#endif

/* ---- loops ---- */
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
