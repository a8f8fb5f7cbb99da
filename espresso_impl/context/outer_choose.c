/* outer_choose.c: chooses the inner steps of a round, its fragments and its delay, within the user's limits. Some
 * rounds are timed first. Then all ranks exchange their times, and take the shortest round that trains 95% of the time.
 */
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/context/outer.h"
#include "espresso_impl/strategy/fragments.h"
#include <math.h>

enum { ESP__OUTER_TIMED_STEPS = 10 }; /* inner steps of a round that is timed, if the limits allow it */
static const double esp__outer_enough = 0.95;

/* ---- timed rounds ------------------------------------------------------------------------------------------------ */
/* Whether the active strategy synchronizes tensors of two fragments together. */
static bool esp__outer_cuts(const esp_ctx *ctx, const uint32_t *first, uint32_t fragments) {
    const esp__strategy *y = &ctx->active.strategy;
    for (uint32_t i = 0; i < y->n_units; i++)
        for (uint32_t f = 1; f < fragments; f++)
            if (y->units[i].place.first < first[f] && first[f] < y->units[i].place.first + y->units[i].place.n)
                return true;
    return false;
}

/* Returns the largest number of fragments that the limits, the tensors and the active strategy allow. */
static uint32_t esp__outer_most_fragments(const esp_ctx *ctx) {
    const esp__outer *o = ctx->outer;
    uint32_t first[ESP__FRAGMENTS_MOST + 1];
    for (uint32_t n = o->high[1]; n > o->low[1]; n--) {
        if (n > o->high[0] || n > ctx->model.n_tensors) continue;
        esp__outer_divide(ctx, n, first);
        if (!esp__outer_cuts(ctx, first, n)) return n;
    }
    return o->low[1];
}

static void esp__outer_timed_shape(esp_ctx *ctx, uint32_t fragments) {
    const esp__outer *o = ctx->outer;
    uint32_t every = fragments > ESP__OUTER_TIMED_STEPS ? fragments : ESP__OUTER_TIMED_STEPS;
    if (every > o->high[0] || o->low[0] == o->high[0]) every = o->high[0];
    esp__outer_shape(ctx, every, fragments, 0);
}

ESP__FN void esp__outer_timer_begin(esp_ctx *ctx) {
    esp__outer *o = ctx->outer;
    o->timer.on = o->timer.early = true;
    o->timer.n = 0;
    o->timer.fragments[0] = o->low[1];
    esp__outer_timed_shape(ctx, o->low[1]);
}

ESP__FN void esp__outer_try(esp_ctx *ctx) {
    ctx->outer->timer.automatic = ctx->outer->timer.tries = true;
    ctx->outer->timer.alone_ns = 0;
    esp__outer_timer_begin(ctx);
}

ESP__FN void esp__outer_try_end(esp_ctx *ctx) {
    esp__outer *o = ctx->outer;
    if (!o->timer.tries) return;
    o->timer.tries = false;
    if (esp__outer_limits(o)) {
        esp__outer_timer_begin(ctx);
    } else {
        o->timer.on = false;
        esp__outer_shape(ctx, o->low[0], o->low[1], o->low[2]);
    }
}

ESP__FN double esp__outer_tried_ns(const esp_ctx *ctx) {
    const esp__outer *o = ctx->outer;
    esp__outer_timer *t = &ctx->outer->timer;
    const double exchange = (double)t->exchange_ns;
    const double waited = (double)(ctx->steps.stats.outer_wait_ns - t->waited_ns - t->gather_ns);
    if (!(t->alone_ns > 0)) t->alone_ns = (double)(esp__now_ns() - t->begin_ns - t->exchange_ns) / o->every;
    esp__outer_times x = {t->alone_ns, exchange, exchange - waited};
    if (t->times) t->times(t->user, ctx, &x);
    return x.alone_ns * o->low[0] + fmax(x.busy_ns, x.exchange_ns - x.alone_ns * o->low[1] * o->low[2]);
}

ESP__FN esp_status esp__outer_activate(esp_ctx *ctx) {
    char *text = esp__strdup(ctx, ctx->active.strategy.text); /* which esp__activate frees */
    const esp_status s =
        esp__activate(ctx, text ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory"), text, false);
    esp__free(ctx, text);
    return s;
}

/* Stores the times of the round that ended, unless it does not count, and begins the next one. */
static void esp__outer_timer_note(esp_ctx *ctx) {
    esp__outer *o = ctx->outer;
    esp__outer_timer *t = &o->timer;
    const uint64_t now = esp__now_ns(), waited = ctx->steps.stats.outer_wait_ns;
    esp__outer_times *x = &t->at[t->n / ESP__OUTER_TIMED][t->n % ESP__OUTER_TIMED];
    x->exchange_ns = (double)t->exchange_ns;
    x->busy_ns = x->exchange_ns - (double)(waited - t->waited_ns - t->gather_ns);
    x->alone_ns = (double)(now - t->begin_ns - t->exchange_ns) / o->every;
    if (t->times) t->times(t->user, ctx, x);
    t->n += !t->early;
    t->early = false;
    t->exchange_ns = t->gather_ns = 0;
    t->waited_ns = waited;
    t->begin_ns = now;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */
/* What a rank sends: medians of its times, by division. */
typedef struct esp__outer_word {
    esp__outer_times by[2];
} esp__outer_word;

static esp__outer_times esp__outer_medians(const esp__outer_times at[ESP__OUTER_TIMED]) {
    double v[3][ESP__OUTER_TIMED];
    for (int i = 0; i < ESP__OUTER_TIMED; i++)
        v[0][i] = at[i].alone_ns, v[1][i] = at[i].exchange_ns, v[2][i] = at[i].busy_ns;
    return (esp__outer_times){esp__median(v[0], ESP__OUTER_TIMED), esp__median(v[1], ESP__OUTER_TIMED),
                              esp__median(v[2], ESP__OUTER_TIMED)};
}

/* The slowest rank's computing, and the exchange of the rank that waited least for others. */
static void esp__outer_join(esp__outer_word *all, int32_t n) {
    for (int32_t r = 1; r < n; r++)
        for (int k = 0; k < 2; k++) {
            all->by[k].alone_ns = fmax(all->by[k].alone_ns, all[r].by[k].alone_ns);
            all->by[k].exchange_ns = fmin(all->by[k].exchange_ns, all[r].by[k].exchange_ns);
            all->by[k].busy_ns = fmin(fmax(all->by[k].busy_ns, all[r].by[k].busy_ns), all->by[k].exchange_ns);
        }
}

/* Sets the times of fragments: a constant, which both timed divisions together determine, and a part in proportion to
 * the fragment's elements. */
static void esp__outer_fragment_times(const esp_ctx *ctx, const uint32_t fragments[2], double fewest_ns, double most_ns,
                                      const uint32_t *first, uint32_t n, double *ns) {
    double each = fragments[1] > fragments[0] ? (most_ns - fewest_ns) / (fragments[1] - fragments[0]) : 0, all = 0;
    each = fmax(0, fmin(each, fewest_ns / fragments[0]));
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) all += (double)ctx->model.tensors[i].count;
    for (uint32_t f = 0; f < n; f++) {
        double part = 0;
        for (uint32_t i = first[f]; i < first[f + 1]; i++) part += (double)ctx->model.tensors[i].count;
        ns[f] = each + (fewest_ns - each * fragments[0]) * part / all;
    }
}

static uint32_t esp__outer_divisions(const esp_ctx *ctx, const esp__outer_word *w, esp__division *out) {
    const esp__outer *o = ctx->outer;
    uint32_t first[ESP__FRAGMENTS_MOST + 1], n = 0;
    for (uint32_t k = o->timer.fragments[0]; k <= o->timer.fragments[1]; k++) {
        esp__division *d = &out[n];
        esp__outer_divide(ctx, k, first);
        if (esp__outer_cuts(ctx, first, k)) continue;
        d->n = k;
        esp__outer_fragment_times(ctx, o->timer.fragments, w->by[0].exchange_ns, w->by[1].exchange_ns, first, k, d->ns);
        esp__outer_fragment_times(ctx, o->timer.fragments, w->by[0].busy_ns, w->by[1].busy_ns, first, k, d->busy_ns);
        n++;
    }
    return n;
}

static void esp__outer_say(const esp_ctx *ctx, const esp__outer_word *w, const esp__outer_round *r) {
    const esp__outer_timer *t = &ctx->outer->timer;
    char more[96] = "";
    if (t->fragments[1] > t->fragments[0])
        snprintf(more, sizeof more, ", and %.3f ms in %u fragments", w->by[1].exchange_ns / 1e6, t->fragments[1]);
    esp__say(ctx, "outer",
             "chose every=%u,fragments=%u,delay=%u: an inner step takes %.3f ms, an exchange %.3f ms%s, so ranks train "
             "%.1f%% of the time%s",
             r->every, r->of->n, r->delay, w->by[0].alone_ns / 1e6, w->by[0].exchange_ns / 1e6, more, 100 * r->used,
             r->used < esp__outer_enough ? "; the limits allow no more" : "");
}

/* Takes the shortest round that trains enough, else the longest. */
static esp_status esp__outer_take_best(esp_ctx *ctx, const esp__outer_word *w, const esp__division *all, uint32_t n) {
    esp__outer *o = ctx->outer;
    const uint32_t before = o->fragments;
    const uint32_t delay[2] = {o->low[2], o->high[2]};
    esp__outer_round r, best = {0, 0, NULL, 0, 0};
    for (uint32_t every = o->low[0]; every <= o->high[0] && best.used < esp__outer_enough; every++) {
        r = esp__outer_round_best(all, n, fmax(w->by[0].alone_ns, 1), every, delay);
        if (r.of) best = r;
    }
    esp__outer_say(ctx, w, &best);
    o->timer.on = false;
    esp__outer_shape(ctx, best.every, best.of->n, best.delay);
    return best.of->n == before ? ESP_OK : esp__outer_activate(ctx);
}

static esp_status esp__outer_choose(esp_ctx *ctx) {
    const esp__outer_timer *t = &ctx->outer->timer;
    const int32_t size = ctx->job.size;
    esp__outer_word mine = {{esp__outer_medians(t->at[0]), esp__outer_medians(t->at[1])}};
    esp__outer_word *all = esp__alloc(ctx, (uint64_t)size * sizeof *all);
    esp__division *divisions = esp__alloc(ctx, ESP__FRAGMENTS_MOST * sizeof *divisions);
    esp_status s = all && divisions ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "outer: out of memory");
    s = esp__agree_ok(ctx, s);
    if (!s) s = esp__peers_allgather(ctx->job.peers, NULL, size, &mine, all, sizeof mine);
    if (!s) esp__outer_join(all, size);
    if (!s) s = esp__outer_take_best(ctx, all, divisions, esp__outer_divisions(ctx, all, divisions));
    esp__free(ctx, divisions);
    esp__free(ctx, all);
    return s;
}

/* Times rounds of another division. */
static esp_status esp__outer_timer_divide(esp_ctx *ctx, uint32_t fragments) {
    const bool same = ctx->outer->fragments == fragments;
    esp__outer_timed_shape(ctx, fragments);
    const esp_status s = same ? ESP_OK : esp__outer_activate(ctx);
    ctx->outer->timer.begin_ns = esp__now_ns();
    return s;
}

ESP__FN esp_status esp__outer_timed(esp_ctx *ctx) {
    esp__outer_timer *t = &ctx->outer->timer;
    esp__outer_timer_note(ctx);
    if (t->tries) t->n = 0; /* strategy auto has asked for their times */
    if (t->tries) return ESP_OK;
    if (!t->n) return esp__outer_timer_divide(ctx, t->fragments[0]);
    if (t->n % ESP__OUTER_TIMED) return ESP_OK;
    if (t->n > ESP__OUTER_TIMED) return esp__outer_choose(ctx);
    t->fragments[1] = esp__outer_most_fragments(ctx);
    return t->fragments[1] > t->fragments[0] ? esp__outer_timer_divide(ctx, t->fragments[1]) : esp__outer_choose(ctx);
}
