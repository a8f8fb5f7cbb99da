/* measure.c: times steps while training runs, and measures links and codecs between steps, for a limited time. A probe
 * is one measurement of a collective or codec at one size. All ranks choose the same probes, because they choose by
 * numbers that they exchanged. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>

enum { ESP__AUTO_BYTES = 1 << 23 };
/* Most time of all probes, in steps without waiting for communication, and in ns. */
static const double esp__auto_probe_steps = 10.0, esp__auto_probe_most_ns = 1e9;

/* ---- step times -------------------------------------------------------------------------------------------------- */
/* Sets the median step time that this rank sends, and how far its steps differ: of the active candidate's steps during
 * a tournament, else of the phase's steps. Of three steps or fewer, one slow step disturbs the median, so the shortest
 * one counts. */
static void esp__auto_median(esp__autopilot *a) {
    const bool trying = a->phase == ESP__AUTO_TRY || a->phase == ESP__AUTO_MERGE;
    const esp__step_times *t = a->phase == ESP__AUTO_TRY ? &a->tournament.times : &a->times;
    const uint32_t n = esp__step_times_held(t);
    memcpy(a->sorted, t->at, n * sizeof *t->at);
    const double median = esp__median(a->sorted, n);
    a->mine.step_ns = (uint64_t)(trying && n && n <= 3 ? a->sorted[0] : median);
    a->mine.spread_ns = (uint64_t)esp__quartile_distance(a->sorted, n);
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__auto_exchange(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t most = 0;
    esp__auto_median(a);
    esp__auto_loss_word(ctx);
    a->mine.waiting = a->steps_ns ? (double)a->waiting_ns / (double)a->steps_ns : 1.0;
    if (a->source.step_ns) a->mine.waiting = a->source.waiting ? a->source.waiting(a->source.user, ctx) : 1.0;
    esp_status s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &a->mine, a->all, sizeof a->mine);
    if (s) return s;
    a->step_ns = a->spread_ns = 0.0;
    a->waiting = 1.0;
    for (int32_t r = 0; r < ctx->job.size; r++) {
        if (a->all[r].spent_ns > most) most = a->all[r].spent_ns;
        a->step_ns = fmax(a->step_ns, (double)a->all[r].step_ns);
        a->spread_ns = fmax(a->spread_ns, (double)a->all[r].spread_ns);
        a->waiting = fmin(a->waiting, a->all[r].waiting);
    }
    a->spent_ns += most;
    a->mine.spent_ns = 0;
    /* Ranks exchange every 10 ms at most, not after every short step, because an exchange takes time itself. */
    a->left = (uint32_t)fmax(fmin(10e6 / fmax(a->step_ns, 1.0), 0.25 * a->opt.steps), 1.0);
    return ESP_OK;
}

/* ---- the phase --------------------------------------------------------------------------------------------------- */
/* If the description of tensor i says to compress it, stores its codec and option, which are those under fp32, the
 * active strategy, and adds the codec to the measured ones. */
static esp_status esp__auto_describe(esp_ctx *ctx, uint32_t i) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const esp__unit *u = &ctx->active.strategy.units[ctx->active.strategy.of_tensor[i].first];
    char option[ESP__TEXT_MAX], text[ESP__SPEC_MAX + ESP__TEXT_MAX + 1];
    if (!esp__auto_described(ctx, i) || !esp__option_compresses(&u->option)) return ESP_OK;
    esp__option_print(&u->option, option, sizeof option);
    snprintf(text, sizeof text, "%s %s", u->codec->spec, option);
    a->described[i] = esp__strdup(ctx, text);
    if (!a->described[i]) return esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    for (uint32_t k = 0; k < a->calibration.n_codecs; k++)
        if (!strcmp(a->calibration.codecs[k].spec, u->codec->spec)) return ESP_OK;
    return esp__calibration_codec_add(ctx, &a->calibration, u->codec->spec);
}

/* Allocates memory for probes before training begins. Already runs those of two sizes, because there is no time for
 * them between a few short steps. All ranks call it. */
ESP__FN esp_status esp__auto_measure_open(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) bytes += ctx->model.tensors[i].count * 4;
    if (bytes < 4096) bytes = 4096;
    if (bytes > ESP__AUTO_BYTES) bytes = ESP__AUTO_BYTES;
    esp_status s = esp__calibration_open(ctx, &a->calibration, bytes, bytes / 8);
    a->calibration.extends = true;
    for (uint32_t i = 0; i < a->opt.n_codecs && !s; i++)
        s = esp__calibration_codec_add(ctx, &a->calibration, a->opt.codecs[i]);
    for (uint32_t i = 0; i < ctx->model.n_tensors && !s; i++) s = esp__auto_describe(ctx, i);
    s = esp__agree_ok(ctx, s);
    if (s) return s;
    esp__calibration_probes_list(ctx, &a->calibration, &a->probes, false);
    return esp__calibration_probes_run(ctx, &a->calibration, &a->probes, 2, 1, 20e6, 150e6);
}

ESP__FN void esp__auto_measure_begin(esp_ctx *ctx, bool again) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (again) esp__calibration_probes_list(ctx, &a->calibration, &a->probes, true);
    if (a->source.costs) a->probes.n = 0;
    esp__core_times(ctx, ESP__CORE_CALIBRATION, 1);
    a->calibrating = true;
    a->spent_ns = 0;
    a->probes.spent_ns = 0.0;
    a->n_ready = 0;
    memset(&a->trainer, 0, sizeof a->trainer);
}

ESP__FN void esp__auto_measure_end(esp_ctx *ctx) {
    if (esp__autopilot_of(ctx)->calibrating) esp__core_times(ctx, ESP__CORE_CALIBRATION, 0);
    esp__autopilot_of(ctx)->calibrating = false;
}

ESP__FN void esp__auto_ready(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    /* The first step fills caches and pages; it counts only until there is another one. So does the first step after a
     * change of strategy, which does not count at all. */
    if (a->phase == ESP__AUTO_MEASURE && a->phase_steps == 2) a->n_ready = 0;
    if (a->phase == ESP__AUTO_TRY && a->tournament.skip) return;
    uint64_t *ready = a->ready + (uint64_t)(a->n_ready % ESP__AUTO_READY) * ctx->model.n_tensors;
    if (a->source.ready)
        a->source.ready(a->source.user, ctx, ready);
    else
        esp__meter_ready(ctx, ready);
    a->n_ready++;
    esp__calibration_trainer_step(ctx, &a->trainer);
}

/* Runs probes within their time limit. Each of the first four steps may use a quarter of it. */
ESP__FN esp_status esp__auto_calibrate(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const uint64_t start = esp__now_ns();
    const double shortest = a->step_ns * fmax(1.0 - a->waiting, 0.05);
    const double whole = fmin(esp__auto_probe_steps * shortest, esp__auto_probe_most_ns);
    a->probes.spent_ns = fmax(a->probes.spent_ns, (double)a->spent_ns); /* estimates may be too low */
    esp_status s = a->source.costs ? ESP_OK : esp__calibration_step(ctx, &a->calibration);
    if (!s)
        s = esp__calibration_probes_run(ctx, &a->calibration, &a->probes, UINT32_MAX, 2, 0.5 * whole,
                                        whole * fmin(1.0, 0.25 * a->n_ready));
    a->mine.spent_ns += esp__now_ns() - start;
    return s;
}

ESP__FN esp_status esp__auto_calibrated(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const uint32_t steps = a->n_ready < ESP__AUTO_READY ? a->n_ready : ESP__AUTO_READY;
    if (!a->calibrating) return ESP_OK;
    const esp_status s = esp__calibration_ready(ctx, a->ready, steps, a->ready_max);
    return s ? s : esp__calibration_load(ctx, &a->calibration, &a->trainer);
}
