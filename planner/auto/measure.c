/* measure.c: times steps while training runs, and measures links and codecs between steps, in at most 4% of the
 * steps' time. All ranks choose the same probes, because they choose by numbers that they exchanged.
 * A probe is one microbenchmark; its result is a point: the time of an op for one size. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/base/quantile.h"
#include <time.h>
#include <unistd.h>

enum { ESP__AUTO_REPEATS = 3, ESP__AUTO_BYTES = 1 << 23 };
static const double esp__auto_share = 0.04; /* share of the steps' time for probes and exchanges */

/* ---- step times -------------------------------------------------------------------------------------------------- */
/* Returns the median step time since the phase began, or 0 if there was no step. Sets *spread to the quartile
 * distance. */
static uint64_t esp__auto_median(esp__autopilot *a, uint64_t *spread) {
    uint32_t n = a->n_times < ESP__AUTO_TIMES ? a->n_times : ESP__AUTO_TIMES;
    for (uint32_t k = 0; k < n; k++) a->sorted[k] = (double)a->times[k];
    const double median = esp__median(a->sorted, n);
    *spread = (uint64_t)esp__quartile_distance(a->sorted, n);
    return (uint64_t)median;
}

ESP__FN double esp__auto_spread(const esp_ctx *ctx) {
    double most = 0.0;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if ((double)esp__autopilot_of(ctx)->all[r].spread_ns > most)
            most = (double)esp__autopilot_of(ctx)->all[r].spread_ns;
    return most;
}

ESP__FN uint64_t esp__auto_step_ns(const esp_ctx *ctx) {
    uint64_t most = 0;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (esp__autopilot_of(ctx)->all[r].step_ns > most) most = esp__autopilot_of(ctx)->all[r].step_ns;
    return most;
}

/* Whether no plan can bring the least gain. A plan can only shorten the part of a step after its last push, and on
 * some rank that part is too short. Valid after an exchange, and the same on all ranks. */
ESP__FN int esp__auto_hidden(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    double least = 1.0;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (a->all[r].waiting < least) least = a->all[r].waiting;
    return 1.0 < (1.0 + a->opt.min_gain) * (1.0 - least);
}

static void esp__auto_word_make(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    double before = a->again_ns > 0.0 ? a->again_ns : a->base_ns;
    a->mine.step_ns = esp__auto_median(a, &a->mine.spread_ns);
    a->mine.pid = (int64_t)getpid();
    esp__auto_loss_word(ctx);
    a->mine.over_ns = (double)a->tries_ns - before * (double)a->tries;
    a->mine.first_ns = a->first_try_ns ? (double)a->first_try_ns - before : 0.0;
    a->mine.pushed_ns = a->n_times ? (double)(a->steps_ns - a->waiting_ns) / a->n_times : 0.0;
    a->mine.waiting = a->steps_ns ? (double)a->waiting_ns / (double)a->steps_ns : 1.0;
    if (a->source.step_ns) a->mine.waiting = a->source.waiting ? a->source.waiting(a->source.user, ctx) : 1.0;
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */
/* Exchanges the words of all ranks. On rank 0, the caller has set the members that only rank 0 sets. */
ESP__FN esp_status esp__auto_exchange(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t start = esp__now_ns();
    esp__auto_word_make(ctx);
    esp_status s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &a->mine, a->all, sizeof a->mine);
    if (s) return s;
    uint64_t took = esp__now_ns() - start, most = 0;
    if (!a->mine.exchange_ns || took < a->mine.exchange_ns) a->mine.exchange_ns = took;
    a->waited_ns += took - a->mine.exchange_ns;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (a->all[r].spent_ns > most) most = a->all[r].spent_ns;
    a->spent_ns += most;
    a->mine.spent_ns = 0;
    uint64_t step = esp__auto_step_ns(ctx);
    esp__budget_update(&a->budget, ctx->steps.step, a->phase == ESP__AUTO_CHECK ? 0.0 : (double)step, (double)most);
    /* Ranks exchange every 10 ms at most, not after every short step, because an exchange takes time itself. */
    a->every = step && step < 10000000u ? (uint32_t)(10000000u / step) : 1;
    if (a->every > a->opt.steps / 4) a->every = a->opt.steps / 4;
    return ESP_OK;
}

/* ---- what to probe ----------------------------------------------------------------------------------------------- */
static uint64_t esp__auto_elements(const esp_ctx *ctx) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) all += ctx->model.tensors[i].count;
    return all;
}

static void esp__auto_probe_add(esp__autopilot *a, uint8_t codec, uint8_t level, uint32_t coll, uint64_t size) {
    esp__auto_probe p = {codec, level, 0, a->pass, coll, size};
    if (a->n_probes < ESP__AUTO_PROBES) a->probes[a->n_probes++] = p;
}

/* Lists a probe of the outermost level if `of_two` is inter, of all levels inside it if `of_two` is intra. */
static void esp__auto_probe_levels(const esp_ctx *ctx, uint8_t of_two, uint32_t coll, uint64_t bytes) {
    const uint8_t outermost = esp__calibration_outermost(ctx);
    if (of_two != ESP__INTRA)
        esp__auto_probe_add(esp__autopilot_of(ctx), 0, of_two == ESP__INTER ? outermost : of_two, coll, bytes);
    for (uint8_t level = ESP__INTRA; of_two == ESP__INTRA && level < outermost; level++)
        esp__auto_probe_add(esp__autopilot_of(ctx), 0, level, coll, bytes);
}

/* Lists probes of collectives at one size, first those that plans use most. */
static void esp__auto_probe_links(const esp_ctx *ctx, uint64_t bytes) {
    static const struct {
        uint8_t level, coll;
    } hierarchical[] = {{ESP__INTER, ESP_COLL_ALLGATHER},      {ESP__INTER, ESP_COLL_ALLREDUCE},
                        {ESP__INTRA, ESP_COLL_REDUCE_SCATTER}, {ESP__INTRA, ESP_COLL_ALLGATHER},
                        {ESP__FLAT, ESP_COLL_ALLREDUCE},       {ESP__INTER, ESP_COLL_ALLTOALL},
                        {ESP__FLAT, ESP_COLL_ALLGATHER},       {ESP__INTER, ESP_COLL_REDUCE_SCATTER},
                        {ESP__INTRA, ESP_COLL_ALLREDUCE},      {ESP__INTRA, ESP_COLL_ALLTOALL}},
      flat[] = {{ESP__FLAT, ESP_COLL_ALLREDUCE},
                {ESP__FLAT, ESP_COLL_ALLGATHER},
                {ESP__FLAT, ESP_COLL_ALLTOALL},
                {ESP__FLAT, ESP_COLL_REDUCE_SCATTER}};
    if (esp__calibration_has(ctx, ESP__INTER))
        for (size_t i = 0; i < sizeof hierarchical / sizeof *hierarchical; i++)
            esp__auto_probe_levels(ctx, hierarchical[i].level, hierarchical[i].coll, bytes);
    else
        for (size_t i = 0; i < sizeof flat / sizeof *flat; i++)
            esp__auto_probe_add(esp__autopilot_of(ctx), 0, flat[i].level, flat[i].coll, bytes);
}

/* Lists the probes in passes from coarse to fine, so that those that find no time left matter least. */
static void esp__auto_probes_make(const esp_ctx *ctx, int again) {
    static const struct {
        uint8_t bytes_log, elements_log;
    } passes[] = {{12, 10}, {18, 16}, {15, 13}, {21, 19}, {23, 20}, {20, 18}, {22, 17}, {13, 14}};
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->n_probes = 0;
    for (size_t p = 0; p < sizeof passes / sizeof *passes; p++) {
        size_t at =
            again && p < 2 ? 1 - p : p; /* a codec's first new point replaces all old ones, so it is a large one */
        uint64_t bytes = (uint64_t)1 << passes[at].bytes_log, n = (uint64_t)1 << passes[at].elements_log;
        a->pass = (uint8_t)p;
        for (uint32_t c = 0; c < a->calibration.n_codecs; c++)
            if (n <= a->calibration.max_elements) esp__auto_probe_add(a, (uint8_t)(c + 1), 0, 0, n);
        if (bytes <= a->calibration.max_bytes) esp__auto_probe_links(ctx, bytes);
    }
}

/* Returns the estimated nanoseconds of a probe, the same on all ranks. */
static double esp__auto_probe_cost(const esp_ctx *ctx, const esp__auto_probe *p) {
    const esp__calibration *s = &esp__autopilot_of(ctx)->calibration;
    double once, around = 200e3 + 2.0 * (double)esp__autopilot_of(ctx)->all[0].exchange_ns;
    if (!p->codec) {
        once = esp__calibration_estimate(ctx, s, p->level, p->coll, p->size);
        if (!(once > 0.0)) once = 2.0 * esp__calibration_estimate(ctx, s, ESP__FLAT, ESP_COLL_ALLREDUCE, p->size);
        if (!(once > 0.0)) once = 500e3 + (double)p->size * 10.0;
    } else {
        const esp__calibration_codec *c = &s->codecs[p->codec - 1];
        double locals = (double)esp__calibration_locals(ctx), before;
        around += 3 * ESP__AUTO_REPEATS * (double)ESP__CALIBRATION_ROUND_NS; /* short calls are repeated */
        once = (double)p->size * 20.0 * locals;
        for (int k = 0; k < 2; k++) { /* a payload is decompressed alone and with another: 3 calls */
            const esp__calibration_curve *x = k ? &c->decompress : &c->compress;
            if (!x->n) continue;
            before = x->at[x->n - 1].ns * ((double)p->size / x->at[x->n - 1].size) * locals;
            once = k ? once + 3.0 * before : before;
        }
    }
    return around + once * (ESP__AUTO_REPEATS + 1);
}

static esp_status esp__auto_probe_run(esp_ctx *ctx, const esp__auto_probe *p) {
    esp__calibration *s = &esp__autopilot_of(ctx)->calibration;
    if (p->codec && esp__autopilot_of(ctx)->stale[p->codec - 1]) {
        s->codecs[p->codec - 1].compress.n = s->codecs[p->codec - 1].decompress.n = 0;
        s->codecs[p->codec - 1].decompress_more.n = 0;
        esp__autopilot_of(ctx)->stale[p->codec - 1] = 0;
    }
    if (p->codec) return esp__calibration_codec_at(ctx, s, p->codec - 1u, p->size, ESP__AUTO_REPEATS);
    return esp__calibration_link(ctx, s, p->level, p->coll, p->size, ESP__AUTO_REPEATS);
}

/* Runs the probes that fit in the time so far. Skips a probe that needs more than a quarter of the time for all
 * probes; the fit then lacks this point. */
static esp_status esp__auto_probes_run(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint32_t steps = a->phase_steps > a->opt.steps ? a->phase_steps : a->opt.steps;
    double step = (double)esp__auto_step_ns(ctx), whole = esp__auto_share * step * (double)steps;
    double have = esp__auto_share * step * (double)a->phase_steps - (double)a->spent_ns, used = 0.0;
    for (uint32_t i = 0; i < a->n_probes; i++) {
        esp__auto_probe *p = &a->probes[i];
        if (p->done) continue;
        double cost = esp__auto_probe_cost(ctx, p);
        if (cost > 0.25 * whole) continue; /* may run later, if other points lower its estimate */
        if (used + cost > have) break;
        esp_status s = esp__auto_probe_run(ctx, p);
        if (s) return s;
        p->done = 1;
        used += cost;
    }
    return ESP_OK;
}

/* ---- the phase --------------------------------------------------------------------------------------------------- */
/* Returns the trainer's processor time: that of the process without the library's threads. */
static uint64_t esp__auto_cpu(const esp_ctx *ctx) {
    struct timespec t;
    uint64_t own = 0, all;
    const pthread_t lanes[2] = {ctx->lanes.cpu_thread, ctx->lanes.link_thread};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    all = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    for (int i = 0; i < 2 && ctx->lanes.threads; i++) {
        clockid_t clock;
        if (pthread_getcpuclockid(lanes[i], &clock) || clock_gettime(clock, &t)) continue;
        own += (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }
    return all > own ? all - own : 0;
}

/* Allocates memory for probes before training begins, and runs the coarse ones, because a few short steps leave no
 * time for them. All ranks call it. */
ESP__FN esp_status esp__auto_measure_open(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t bytes = esp__auto_elements(ctx) * 4;
    double used = 0.0;
    esp_status s;
    if (bytes < 4096) bytes = 4096;
    if (bytes > ESP__AUTO_BYTES) bytes = ESP__AUTO_BYTES;
    a->calibration_open = 1;
    s = esp__calibration_open(ctx, &a->calibration, bytes, bytes / 8);
    for (uint32_t i = 0; i < a->opt.n_codecs && !s; i++)
        s = esp__calibration_codec_add(ctx, &a->calibration, a->opt.codecs[i]);
    s = esp__agree_ok(ctx, s);
    if (!s) esp__auto_probes_make(ctx, 0);
    for (uint32_t i = 0; i < a->n_probes && !s; i++) {
        esp__auto_probe *p = &a->probes[i];
        double cost = esp__auto_probe_cost(ctx, p);
        if (p->pass > 1 || cost > 20e6 || used + cost > 150e6) continue;
        s = esp__auto_probe_run(ctx, p);
        used += cost;
    }
    return s;
}

/* Drops the points of links. A codec's points stay until it has new ones. */
static void esp__auto_calibration_renew(esp__autopilot *a) {
    memset(a->calibration.link, 0, sizeof a->calibration.link);
    memset(a->calibration.dispatch, 0, sizeof a->calibration.dispatch);
    memset(a->stale, 1, sizeof a->stale);
}

ESP__FN void esp__auto_measure_begin(esp_ctx *ctx, int again) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (again) esp__auto_calibration_renew(a);
    esp__core_times(ctx, ESP__CORE_CALIBRATION, 1);
    esp__auto_probes_make(ctx, again);
    if (a->source.costs) a->n_probes = 0;
    a->have_costs = 0;
    a->spent_ns = 0;
    a->mine.cpu_ns = a->mine.compute_ns = a->mine.spent_ns = 0;
    a->cpu_since = 0;
    esp__auto_enter(ctx, ESP__AUTO_MEASURE);
}

/* Adds the trainer's computing in the last step, up to its last push. Its processor time is that of the whole step
 * without the ops', because only ops work while the trainer waits for gradients. */
static void esp__auto_note_cpu(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t now = esp__auto_cpu(ctx);
    const esp__step_clock *c = &ctx->steps.clock;
    for (uint32_t i = 0; i < ctx->active.program.n_ops && ctx->lanes.caller_drives; i++)
        now -= ctx->active.op_core_ns[i] < now ? ctx->active.op_core_ns[i] : now;
    if (a->cpu_since && now > a->cpu_since && c->last_push_ns > c->begin_ns) {
        a->mine.cpu_ns += now - a->cpu_since;
        a->mine.compute_ns += c->last_push_ns - c->begin_ns;
    }
}

/* Begins the planning phase, when enough steps are measured. */
static esp_status esp__auto_measured(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const uint32_t steps = a->n_ready < ESP__AUTO_READY ? a->n_ready : ESP__AUTO_READY;
    esp_status s = esp__calibration_ready(ctx, a->ready, steps, a->ready_max);
    uint32_t left = 0;
    if (s) return s;
    for (uint32_t i = 0; i < a->n_probes; i++) left += !a->probes[i].done;
    a->base_ns = (double)esp__auto_step_ns(ctx);
    a->base_spread_ns = esp__auto_spread(ctx);
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_INFO, "autopilot",
                 "measured %u steps: %.3f ms each (quartiles %.3f ms apart); %u probes made, %u left to the fit; took "
                 "%.2f%% of the time",
                 a->phase_steps, a->base_ns / 1e6, a->base_spread_ns / 1e6, a->n_probes - left, left,
                 100.0 * (double)a->spent_ns / (a->base_ns * (double)a->phase_steps + 1.0));
    a->have_costs = 1;
    esp__core_times(ctx, ESP__CORE_CALIBRATION, 0);
    esp__budget_open(&a->budget, ctx->steps.step, a->base_ns);
    return esp__auto_plan_begin(ctx);
}

/* Whether the most important links have no point, because short steps left no time for probes and a strategy that
 * compresses everything gives no points. The same on all ranks. */
static int esp__auto_blind(const esp_ctx *ctx) {
    const esp__calibration_curve *c =
        esp__autopilot_of(ctx)
            ->calibration.link[esp__calibration_has(ctx, ESP__INTER) ? esp__calibration_outermost(ctx) : ESP__FLAT];
    uint32_t points = 0;
    for (uint32_t k = 0; k < ESP_PLAN_COLLS; k++) points += c[k].n;
    return !points && !esp__autopilot_of(ctx)->source.costs;
}

ESP__FN esp_status esp__auto_measure_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t *ready = a->ready + (uint64_t)(a->n_ready % ESP__AUTO_READY) * ctx->model.n_tensors;
    esp_status s = ESP_OK;
    int enough = a->phase_steps >= a->opt.steps, longest = a->phase_steps >= 5 * a->opt.steps, last;
    if (a->source.ready)
        a->source.ready(a->source.user, ctx, ready);
    else
        esp__meter_ready(ctx, ready);
    a->n_ready++;
    esp__auto_note_cpu(ctx);
    last = enough && (!esp__auto_blind(ctx) || longest);
    uint32_t every = a->opt.steps / 10 > a->every ? a->opt.steps / 10 : a->every;
    if (a->phase_steps == 1 || a->phase_steps % every == 0 || last) {
        s = esp__auto_exchange(ctx);
        int points = a->phase_steps / every % 2 == 0 || last; /* observe every second time */
        if (!s && points && !a->source.costs) s = esp__calibration_step(ctx, &a->calibration);
        if (!s && last) return esp__auto_measured(ctx);
        if (!s) s = esp__auto_probes_run(ctx);
    }
    a->cpu_since = esp__auto_cpu(ctx);
    return s;
}
