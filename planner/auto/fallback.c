/* fallback.c: when a tensor's compression error is too large, or its residual grows without bound, the tensor gets a
 * codec that loses less, or none. The errors are those of observe/errors.c, which samples them during steps. */
#include "planner/auto/autopilot.h"
#include <math.h>

/* Returns the spec of the codec that compresses tensor i now, or NULL. Ignores the codec of its description. */
static const char *esp__auto_codec_now(const esp_ctx *ctx, uint32_t i) {
    const esp__tensor_units *of = &ctx->active.strategy.of_tensor[i];
    for (uint32_t k = 0; k < of->n; k++) {
        const esp__unit *u = &ctx->active.strategy.units[of->first + k];
        if (esp__auto_compresses(ctx, u)) return u->codec->spec;
    }
    return NULL;
}

/* Decides whether a tensor's last sample is bad. Returns the number of consecutive bad samples, 0 if it is good. */
static int esp__auto_suspicious(esp__autopilot *a, uint32_t i, const esp_tensor_stats *x) {
    if (!isfinite(x->error)) return ESP__GROWTH_LIMIT;
    if (a->opt.max_error > 0.0 && x->error > a->opt.max_error) return 1;
    return esp__growth_bad(&a->tensors[i].feedback_seen, x->feedback);
}

/* Sets in a->bad the tensors whose error or feedback is too large on this rank, and returns their number. */
ESP__FN uint32_t esp__auto_excess(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint32_t n = 0;
    memset(a->bad, 0, ctx->model.n_tensors);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        if (!esp__auto_codec_now(ctx, i)) continue;
        pthread_mutex_lock(&ctx->lanes.lock);
        esp_tensor_stats x = ctx->model.tensors[i].sampled;
        pthread_mutex_unlock(&ctx->lanes.lock);
        int bad = 0;
        if (a->source.excess)
            bad = a->source.excess(a->source.user, ctx, i) * ESP__GROWTH_LIMIT;
        else if (!x.samples || x.samples == a->tensors[i].samples_seen)
            continue;
        else
            bad = esp__auto_suspicious(a, i, &x);
        a->tensors[i].samples_seen = x.samples;
        a->tensors[i].bad = (uint8_t)(bad ? a->tensors[i].bad + bad : 0);
        if (a->tensors[i].bad < ESP__GROWTH_LIMIT) continue;
        a->bad[i] = 1;
        n++;
    }
    return n;
}

/* Returns a codec's compression error: the one that it declares if it only rounds numbers, else the measured one. */
ESP__FN double esp__auto_error_of(const esp_ctx *ctx, const char *spec) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__codec *c = esp__auto_codec_of(ctx, spec);
    if (c && !esp__codec_lossy(c) && c->model.error >= 0.0) return c->model.error;
    for (uint32_t k = 0; k < a->calibration.n_codecs; k++)
        if (!strcmp(a->calibration.codecs[k].spec, spec)) return a->calibration.codecs[k].error;
    return 1.0;
}

/* Returns 1 + index of the next codec for tensor i: of the codecs with a smaller compression error than the tensor's,
 * the one with the largest; 255 if there is none. */
static uint8_t esp__auto_gentler(const esp_ctx *ctx, uint32_t i) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const char *now = esp__auto_codec_now(ctx, i);
    uint8_t best = 255;
    double most = -1.0, loss = now ? esp__auto_error_of(ctx, now) : 0.0;
    for (uint32_t c = 0; c < a->opt.n_codecs && now; c++) {
        double x = esp__auto_error_of(ctx, a->opt.codecs[c]);
        if (x < 0.99 * loss && x > most) most = x, best = (uint8_t)(c + 1);
    }
    return best;
}

/* Returns which codec the planner must use for tensor i, "fp32" for no compression, or NULL if the planner may
 * choose. */
ESP__FN const char *esp__auto_keep(const esp_ctx *ctx, uint32_t i) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    return !a->tensors[i].level ? NULL : a->tensors[i].level == 255 ? "fp32" : a->opt.codecs[a->tensors[i].level - 1];
}

/* Each rank has listed tensors whose compression error is too large. Gives each of them the next codec that loses
 * less, and sets *changed if there were any. All ranks call it. */
ESP__FN esp_status esp__auto_fall_back(esp_ctx *ctx, bool *changed) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const uint64_t n = ctx->model.n_tensors;
    uint32_t any = 0;
    for (int32_t r = 0; r < ctx->job.size; r++) any |= a->all[r].excess;
    a->mine.excess = 0;
    if (!any) return ESP_OK;
    esp_status s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, a->bad, a->all_bad, n);
    for (uint32_t i = 0; i < n && !s; i++) {
        bool bad = false;
        for (int32_t r = 0; r < ctx->job.size; r++) bad |= a->all_bad[(uint64_t)r * n + i];
        const char *now = bad ? esp__auto_codec_now(ctx, i) : NULL;
        if (!now) continue;
        a->tensors[i].level = esp__auto_gentler(ctx, i);
        a->tensors[i].bad = 0;
        a->tensors[i].feedback_seen = 0.0;
        *changed = true;
        const char *to = esp__auto_keep(ctx, i);
        esp__auto_say(ctx, "step %llu: tensor '%s': the error of %s is too large: falls back to %s",
                      (unsigned long long)ctx->steps.step, ctx->model.tensors[i].name, now,
                      strcmp(to, "fp32") ? to : "no compression");
    }
    return s;
}
