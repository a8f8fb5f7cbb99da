/* outer_late.c: late ranks of outer contexts that have a window. A rank that pushes a fragment tells rank 0, which
 * tells all others. A rank that has not pushed it a window later pushes it in its next call of esp_outer_step, though
 * it has made fewer inner steps. If that call does not come within another window, a thread of the library pushes
 * zeros: the rank is left out. The thread also applies the mean to the anchor, but leaves the parameters to the
 * trainer's next call. They then move as the anchor did, so that the rank's own difference remains, for the next round.
 */
#include "espresso_impl/base/limits.h"
#include "espresso_impl/base/os.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/outer.h"
#include "espresso_impl/job/job.h"
#include <sys/prctl.h>

enum { ESP__OUTER_DRIVE_NS = 1000000 };

/* ---- news from other ranks --------------------------------------------------------------------------------------- */
ESP__FN void esp__outer_late_tell(esp_ctx *ctx) {
    if (ctx->outer->late.window_ns) esp__peers_turn(ctx->job.peers, ctx->outer->late.pushes);
}

ESP__FN void esp__outer_begun(esp_ctx *ctx, uint64_t fragment) {
    esp__outer_late *l = ctx->outer ? &ctx->outer->late : NULL;
    if (!l || !l->has_thread) return;
    pthread_mutex_lock(&l->news);
    if (fragment >= l->begun) {
        l->begun = fragment + 1;
        l->begun_ns = esp__now_ns();
        pthread_cond_signal(&l->changed);
    }
    pthread_mutex_unlock(&l->news);
}

ESP__FN bool esp__outer_late_called(const esp_ctx *ctx) {
    esp__outer_late *l = &ctx->outer->late;
    if (!l->window_ns) return false;
    pthread_mutex_lock(&l->news);
    const bool called = l->begun > l->pushes && esp__now_ns() - l->begun_ns >= l->window_ns;
    pthread_mutex_unlock(&l->news);
    return called;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__outer_late_moves(esp_ctx *ctx, uint32_t id, bool after) {
    const esp__tensor *t = &ctx->model.tensors[id];
    esp__outer_tensor *x = &ctx->outer->tensors[id];
    const bool adds = after || x->due & ESP__OUTER_MOVE;
    const esp_status s =
        esp__device_convert(ctx, t->device, x->move, ESP_F32, x->anchor, ESP_F32, after ? 1.0f : -1.0f, adds, t->count);
    if (after) x->due |= ESP__OUTER_MOVE;
    return s;
}

/* Does to the parameters what the late thread has left to do, after the work that `stream` has now. */
static esp_status esp__outer_late_settle(esp_ctx *ctx, esp_stream stream) {
    const esp__outer *o = ctx->outer;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        esp__outer_tensor *x = &o->tensors[i];
        if (x->due && t->device && esp__stream_async(stream)) s = esp__stream_settle(ctx, t->device, stream);
        if (!s && x->due & ESP__OUTER_MOVE)
            s = esp__device_convert(ctx, t->device, x->params, t->dtype, x->move, ESP_F32, 1.0f, true, t->count);
        if (!s && x->due & ESP__OUTER_MIX) s = esp__outer_mix(ctx, i, o->alpha);
        if (!s && x->due & ESP__OUTER_RETURN) s = esp__outer_mix(ctx, i, 0.0f);
        x->due = 0;
    }
    return s;
}

/* ---- the late thread --------------------------------------------------------------------------------------------- */
/* Pushes zeros for the next fragment, and applies what is under way. */
static esp_status esp__outer_late_miss(esp_ctx *ctx) {
    const esp_stream none = {{0, 0}, NULL};
    esp__outer *o = ctx->outer;
    esp_status s = o->pushed > o->applied ? esp__outer_apply(ctx, none) : ESP_OK;
    if (s) return s;
    const uint64_t round = ctx->steps.stats.outer_rounds;
    const uint32_t f = o->pushed;
    o->at = f + 1 == o->fragments ? 0 : esp__outer_turn(o, f);
    o->late.misses = true;
    s = esp__outer_push(ctx, f, none);
    if (!s) s = esp__outer_apply(ctx, none);
    o->late.misses = false;
    if (s) return s;
    o->late.missed = true;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->steps.stats.outer_missed++;
    pthread_mutex_unlock(&ctx->lanes.lock);
    esp__log(ctx, ESP_LOG_INFO, "outer",
             "rank %d is left out of fragment %u of round %llu: it was late by two windows of %g ms; its difference "
             "goes into the next round",
             ctx->job.rank, f + 1, (unsigned long long)round + 1, (double)o->late.window_ns / 1e6);
    return ESP_OK;
}

/* Where the trainer's calls run the ops, a trainer that stays away holds up a fragment that it has pushed, too. Runs
 * what can run now. Returns whether that is not all. */
static bool esp__outer_late_drive(esp_ctx *ctx) {
    const esp__outer *o = ctx->outer;
    bool more = false;
    for (uint32_t i = o->first[o->applied]; i < o->first[o->pushed]; i++) more |= esp_test(ctx, i) == ESP_PENDING;
    return more;
}

/* Fragment number `fragment` was pushed somewhere two windows ago. Returns true if this function must be called again
 * soon. */
static bool esp__outer_late_act(esp_ctx *ctx, uint64_t fragment) {
    esp__outer *o = ctx->outer;
    esp__outer_late *l = &o->late;
    bool again = false;
    pthread_mutex_lock(&l->lock);
    if (l->armed && !l->status && !esp__alive(ctx)) {
        o->calls = l->acts = true;
        if (l->pushes == fragment) l->status = esp__outer_late_miss(ctx);
        if (l->pushes == fragment + 1) again = esp__outer_late_drive(ctx);
        o->calls = l->acts = false;
        if (l->status) snprintf(l->text, sizeof l->text, "%s", esp_last_error(ctx));
    }
    pthread_mutex_unlock(&l->lock);
    return again;
}

static void *esp__outer_late_main(void *arg) {
    esp_ctx *ctx = arg;
    esp__outer_late *l = &ctx->outer->late;
    prctl(PR_SET_NAME, "espresso-late", 0, 0, 0);
    uint64_t again_ns = 0;
    pthread_mutex_lock(&l->news);
    while (!l->quit) {
        const uint64_t due = l->begun_ns + 2 * l->window_ns, at = due > again_ns ? due : again_ns, begun = l->begun;
        if (begun <= l->handled) {
            pthread_cond_wait(&l->changed, &l->news);
        } else if (esp__now_ns() < at) {
            const struct timespec t = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
            pthread_cond_timedwait(&l->changed, &l->news, &t);
        } else {
            pthread_mutex_unlock(&l->news);
            const bool again = esp__outer_late_act(ctx, begun - 1);
            pthread_mutex_lock(&l->news);
            if (again) again_ns = esp__now_ns() + ESP__OUTER_DRIVE_NS;
            if (!again && l->handled < begun && begun <= l->begun) l->handled = begun;
        }
    }
    pthread_mutex_unlock(&l->news);
    return NULL;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__outer_late_enter(esp_ctx *ctx, esp_stream stream) {
    esp__outer_late *l = &ctx->outer->late;
    if (!l->window_ns) return ESP_OK;
    pthread_mutex_lock(&l->lock);
    l->armed = true;
    const esp_status s = l->status ? esp__fail(ctx, l->status, "%s", l->text) : esp__outer_late_settle(ctx, stream);
    if (s) pthread_mutex_unlock(&l->lock);
    return s;
}

ESP__FN void esp__outer_late_leave(esp_ctx *ctx) {
    if (ctx->outer->late.window_ns) pthread_mutex_unlock(&ctx->outer->late.lock);
}

/* Pushes what others have pushed: ranks whose `pushes` are equal are at the same place of a round. */
static esp_status esp__outer_late_catch_up(esp_ctx *ctx, esp_stream stream, uint64_t pushes) {
    esp__outer *o = ctx->outer;
    esp_status s = o->late.status ? esp__fail(ctx, o->late.status, "%s", o->late.text) : ESP_OK;
    if (!s) s = esp__outer_late_settle(ctx, stream);
    while (!s && o->late.pushes < pushes) {
        if (o->pushed > o->applied) s = esp__outer_apply(ctx, stream);
        if (!s) s = esp__outer_push(ctx, o->pushed, stream);
    }
    return s;
}

/* What ranks tell each other when they meet. */
typedef struct esp__outer_meeting {
    uint64_t pushes, stepped;
} esp__outer_meeting;

ESP__FN esp_status esp__outer_late_meet(esp_ctx *ctx, esp_stream stream) {
    esp__outer_late *l = &ctx->outer->late;
    const esp__outer_meeting mine = {l->pushes, l->stepped};
    uint64_t most = 0;
    if (!l->window_ns) return ESP_OK;
    /* without memory, this rank would not take part, and others would wait for it: few ranks need none */
    esp__outer_meeting few[ESP__FEW_RANKS];
    const bool is_few = ctx->job.size <= ESP__FEW_RANKS;
    esp__outer_meeting *all = is_few ? few : esp__alloc(ctx, (uint64_t)ctx->job.size * sizeof *all);
    if (!all) return esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory");
    pthread_mutex_unlock(&l->lock); /* meanwhile the late thread takes part in what others push */
    esp_status s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine);
    pthread_mutex_lock(&l->lock);
    ctx->outer->calls = true;
    for (int32_t r = 0; r < ctx->job.size && !s; r++) {
        most = all[r].pushes > most ? all[r].pushes : most;
        l->stepped |= all[r].stepped != 0;
    }
    if (!is_few) esp__free(ctx, all);
    if (esp__shrink_lost(s)) esp__fatal(ctx, s, esp_last_error(ctx));
    return s ? s : esp__outer_late_catch_up(ctx, stream, most);
}

ESP__FN void esp__outer_late_pause(esp_ctx *ctx) {
    esp__outer_late *l = ctx->outer ? &ctx->outer->late : NULL;
    if (!l || !l->has_thread) return;
    pthread_mutex_lock(&l->lock);
    l->armed = false;
    pthread_mutex_unlock(&l->lock);
}

ESP__FN void esp__outer_late_restart(esp_ctx *ctx) {
    esp__outer_late *l = &ctx->outer->late;
    if (!l->has_thread) return;
    pthread_mutex_lock(&l->news);
    l->begun = l->handled = 0;
    pthread_mutex_unlock(&l->news);
    pthread_mutex_lock(&l->lock);
    l->status = ESP_OK;
    l->missed = false;
    l->pushes = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) ctx->outer->tensors[i].due = 0;
    pthread_mutex_unlock(&l->lock);
}

static void esp__outer_late_destroy(esp__outer_late *l) {
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->news);
    pthread_cond_destroy(&l->changed);
}

ESP__FN esp_status esp__outer_late_open(esp_ctx *ctx) {
    esp__outer_late *l = &ctx->outer->late;
    if (!l->window_ns || l->has_thread) return ESP_OK;
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->news, NULL);
    esp__cond_init(&l->changed);
    const int error = esp__thread_start(&l->thread, esp__outer_late_main, ctx);
    l->has_thread = !error;
    if (!error) return ESP_OK;
    esp__outer_late_destroy(l);
    return esp__fail(ctx, ESP_E_NOMEM, "outer: cannot start a thread: %s", esp__strerror(error));
}

ESP__FN void esp__outer_late_close(esp_ctx *ctx) {
    esp__outer_late *l = ctx->outer ? &ctx->outer->late : NULL;
    if (!l || !l->has_thread) return;
    pthread_mutex_lock(&l->news);
    l->quit = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->news);
    pthread_join(l->thread, NULL);
    esp__outer_late_destroy(l);
    l->has_thread = false;
}
