/* loss.c: compares the losses that the trainer reports (esp_report_loss) with those from before the change of
 * strategy, and says if they rise. All ranks received the same numbers, so all decide the same. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>

enum { ESP__LOSS_LEAST = 16 }; /* reports of all ranks that a comparison needs */
/* A rise counts if it is larger than this many times the quartile distance, and than this share of the loss. */
static const double esp__loss_quartiles = 3.0, esp__loss_share = 0.05;

/* Called for each reported loss, with lanes.lock held. */
ESP__FN void esp__auto_loss_reported(esp_ctx *ctx, void *self, double loss) {
    esp__autopilot *a = self;
    (void)ctx;
    if (isfinite(loss))
        a->losses[a->n_losses++ % ESP__AUTO_LOSSES] = loss;
    else
        a->bad_losses++;
}

ESP__FN void esp__auto_loss_word(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    pthread_mutex_lock(&ctx->lanes.lock);
    const uint32_t n = a->n_losses < ESP__AUTO_LOSSES ? a->n_losses : ESP__AUTO_LOSSES;
    memcpy(a->sorted, a->losses, n * sizeof *a->sorted);
    a->mine.bad_losses = a->bad_losses;
    pthread_mutex_unlock(&ctx->lanes.lock);
    a->mine.losses = n;
    a->mine.loss = esp__median(a->sorted, n);
    a->mine.loss_spread = esp__quartile_distance(a->sorted, n);
}

ESP__FN void esp__auto_loss_forget(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    pthread_mutex_lock(&ctx->lanes.lock);
    a->n_losses = a->bad_losses = 0;
    pthread_mutex_unlock(&ctx->lanes.lock);
}

/* Combines the losses that all ranks sent; the result is the same on all ranks. */
static esp__losses esp__auto_loss_all(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    esp__losses all = {0, -1, 0.0, 0.0};
    for (int32_t r = 0; r < ctx->job.size; r++) {
        const esp__auto_word *w = &a->all[r];
        if (w->bad_losses && all.bad_rank < 0) all.bad_rank = r;
        all.n += w->losses;
        all.median += w->losses * w->loss;
        all.spread += w->losses * w->loss_spread;
    }
    if (all.n) all.median /= (double)all.n, all.spread /= (double)all.n;
    return all;
}

ESP__FN void esp__auto_loss_begin(esp_ctx *ctx) {
    esp__autopilot_of(ctx)->before_losses = (esp__losses){0, -1, 0.0, 0.0};
    esp__autopilot_of(ctx)->risen = 0;
    esp__auto_loss_forget(ctx);
}

/* To call before a change of strategy: the losses that ranks last exchanged become the reference for later ones. */
ESP__FN void esp__auto_loss_before(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__losses now = esp__auto_loss_all(ctx);
    if (now.n >= ESP__LOSS_LEAST || now.bad_rank >= 0) a->before_losses = now;
    a->risen = 0;
    esp__auto_loss_forget(ctx);
}

ESP__FN int esp__losses_risen(esp__losses *before, const esp__losses *now) {
    if (before->n && now->median >= before->median)
        return now->median - before->median >
               fmax(esp__loss_quartiles * before->spread, esp__loss_share * fabs(before->median));
    const double spread =
        before->n ? 0.75 * before->spread + 0.25 * fmin(now->spread, 2.0 * before->spread) : now->spread;
    *before = *now;
    before->spread = spread;
    return 0;
}

/* Returns whether the active strategy compresses with a lossy codec; the result is the same on all ranks. Sets
 * *coarse if the error of such a codec is not small. */
static int esp__auto_loss_concerns(const esp_ctx *ctx, int *coarse) {
    int lossy = 0;
    *coarse = 0;
    if (ctx->active.strategy.hash == esp__autopilot_of(ctx)->fp32) return 0;
    for (uint32_t i = 0; i < ctx->active.strategy.n_units; i++) {
        const esp__unit *u = &ctx->active.strategy.units[i];
        if (!esp__auto_compresses(ctx, u)) continue;
        lossy |= esp__codec_lossy(u->codec);
        *coarse |= !esp__safety_rounds(u->codec, esp__auto_error_of(ctx, u->codec->spec));
    }
    return lossy;
}

/* Logs why all ranks return to fp32. Later strategies use codecs that lose less. */
static bool esp__auto_loss_back(esp_ctx *ctx, const esp__losses *now, int coarse) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    char what[256];
    if (now->bad_rank >= 0)
        snprintf(what, sizeof what,
                 "rank %d reported a loss that is not finite (if this goes on, resume from a checkpoint)",
                 now->bad_rank);
    else
        snprintf(what, sizeof what, "the loss rose to %.4g; it was %.4g (quartiles %.4g apart)", now->median,
                 a->before_losses.median, a->before_losses.spread);
    esp__auto_say(ctx, "step %llu: %s: returned to fp32; %s are off for the rest of this job",
                  (unsigned long long)ctx->steps.step, what,
                  coarse ? "codecs with a compression error of over 5%" : "lossy codecs");
    a->trust = coarse ? ESP__TRUST_ROUNDING : ESP__TRUST_NONE;
    esp__auto_loss_begin(ctx);
    return true;
}

ESP__FN bool esp__auto_loss_rose(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp__losses *before = &a->before_losses;
    const esp__losses now = esp__auto_loss_all(ctx);
    int coarse;
    const int lossy = esp__auto_loss_concerns(ctx, &coarse);
    if (now.bad_rank >= 0 && before->bad_rank < 0) {
        if (lossy) return esp__auto_loss_back(ctx, &now, coarse);
        before->bad_rank = now.bad_rank;
    }
    if (a->phase != ESP__AUTO_WATCH) return false; /* too few reports under each strategy */
    if (!lossy) esp__auto_loss_begin(ctx);
    if (!lossy || now.n < ESP__LOSS_LEAST) return false;
    esp__auto_loss_forget(ctx);
    a->risen = esp__losses_risen(before, &now) ? a->risen + 1 : 0;
    if (now.bad_rank < 0) before->bad_rank = -1;
    return a->risen >= a->checks && esp__auto_loss_back(ctx, &now, coarse);
}
