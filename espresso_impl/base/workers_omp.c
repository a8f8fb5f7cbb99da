/* workers_omp.c: runs the library's loops on the training program's OpenMP team. An OpenMP runtime keeps a team for
 * each thread that opens parallel regions, so the library's own thread for compression must open none: that would start
 * a second team. It offers its loop to a thread of the program that waits in esp_wait or esp_wait_all, whose team is
 * idle, and runs the loop alone if none waits. A region has as many threads as the runtime gives it, and surplus
 * threads leave it at once: with num_threads(n), libgomp would end and restart threads of the team again and again. */
#include "espresso_impl/base/workers.h"
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>

static __thread bool esp__omp_never; /* true in a thread that the library started */
static __thread int32_t esp__omp_pid;

/* Returns the size of this thread's team. Returns 1 for a thread that the library started; inside a parallel region,
 * where a nested one would start threads; and in a forked process, which has none of the team's threads. */
static int32_t esp__omp_team(const esp__workers *w) {
    if (esp__omp_never || omp_get_level() > 0) return 1;
    if (esp__omp_pid && esp__omp_pid != (int32_t)getpid()) return 1;
    int32_t n = omp_get_max_threads();
    return n < w->n ? n : w->n;
}

/* The calling thread, alone or as one of a team, joins the loop. It does nothing if no piece of the loop is left, or if
 * w->n threads run it already. If a team joins, the thread that offered the loop stops and waits. */
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
    /* a guess until a thread waits in the library; loops are offered if it is above 1 */
    atomic_store(&(*out)->team, most == 1 ? 1 : 2);
    return ESP_OK;
}

ESP__FN void esp__workers_never_lend(void) { esp__omp_never = true; }

ESP__FN int32_t esp__workers_team(esp__workers *w) { return esp__omp_never ? atomic_load(&w->team) : esp__omp_team(w); }

ESP__FN void esp__workers_call(esp__workers *w) {
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
    return esp__fail(
        ctx, ESP_E_UNSUPPORTED,
        "workers are \"openmp\", but the library was compiled without OpenMP: compile espresso.c, or the file "
        "with ESPRESSO_IMPLEMENTATION, with -fopenmp (here: make OPENMP=1), or set ESPRESSO_WORKERS=N for N "
        "threads of its own");
}
ESP__FN void esp__workers_never_lend(void) {}
ESP__FN int32_t esp__workers_team(esp__workers *w) { return w->n; }
ESP__FN void esp__workers_call(esp__workers *w) { (void)w; }
ESP__FN bool esp__workers_offered(esp__workers *w) {
    (void)w;
    return false;
}
ESP__FN void esp__workers_help(esp__workers *w) { (void)w; }
#endif
