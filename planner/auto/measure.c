/* measure.c: times steps while training runs, and measures links and codecs between steps, for a limited time. All
 * ranks choose the same probes, because they choose by numbers that they exchanged.
 * A probe is one microbenchmark; its result is a point: the time of an op for one size. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>
#include <time.h>
#include <unistd.h>

enum { ESP__AUTO_REPEATS = 3, ESP__AUTO_BYTES = 1 << 23 };
/* Both in steps of the shortest time that any strategy could reach: the time of all probes, and the time that
 * measured steps may take longer than such steps. */
static const double esp__auto_probe_steps = 5.0, esp__auto_measure_steps = 8.0;
static const double esp__auto_probe_most_ns = 1e9;

/* ---- step times -------------------------------------------------------------------------------------------------- */
/* Sets the word's median step time and quartile distance, from the active candidate's steps during a tournament, else
 * from those of the phase. The median of three steps is easily disturbed, so the shortest of them counts. */
static void esp__auto_median(esp__autopilot *a) {
    const esp__auto_candidate *c = a->phase == ESP__AUTO_TRY ? &a->tournament.at[a->tournament.now] : NULL;
    const uint32_t all = c ? c->n_times : a->n_times, room = c ? ESP__TRY_TIMES : ESP__AUTO_TIMES;
    const uint32_t n = all < room ? all : room;
    for (uint32_t k = 0; k < n; k++) a->sorted[k] = c ? c->times[k] : (double)a->times[k];
    const double median = esp__median(a->sorted, n);
    a->mine.step_ns = (uint64_t)(c && n && n <= 3 ? a->sorted[0] : median);
    a->mine.spread_ns = (uint64_t)esp__quartile_distance(a->sorted, n);
}

ESP__FN double esp__auto_spread(const esp_ctx *ctx) {
    double most = 0.0;
    for (int32_t r = 0; r < ctx->job.size; r++) most = fmax(most, (double)esp__autopilot_of(ctx)->all[r].spread_ns);
    return most;
}

ESP__FN double esp__auto_step_ns(const esp_ctx *ctx) {
    double most = 0.0;
    for (int32_t r = 0; r < ctx->job.size; r++) most = fmax(most, (double)esp__autopilot_of(ctx)->all[r].step_ns);
    return most;
}

ESP__FN double esp__auto_waiting(const esp_ctx *ctx) {
    double least = 1.0;
    for (int32_t r = 0; r < ctx->job.size; r++) least = fmin(least, esp__autopilot_of(ctx)->all[r].waiting);
    return least;
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */
/* Exchanges the words of all ranks. On rank 0, the caller has set the members that only rank 0 sets. */
ESP__FN esp_status esp__auto_exchange(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    uint64_t start = esp__now_ns();
    esp__auto_median(a);
    esp__auto_loss_word(ctx);
    a->mine.pid = (int64_t)getpid();
    a->mine.pushed_ns = a->n_times ? (double)(a->steps_ns - a->waiting_ns) / a->n_times : 0.0;
    a->mine.waiting = a->steps_ns ? (double)a->waiting_ns / (double)a->steps_ns : 1.0;
    if (a->source.step_ns) a->mine.waiting = a->source.waiting ? a->source.waiting(a->source.user, ctx) : 1.0;
    esp_status s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &a->mine, a->all, sizeof a->mine);
    if (s) return s;
    uint64_t took = esp__now_ns() - start, most = 0;
    if (!a->mine.exchange_ns || took < a->mine.exchange_ns) a->mine.exchange_ns = took;
    a->waited_ns += took - a->mine.exchange_ns;
    for (int32_t r = 0; r < ctx->job.size; r++)
        if (a->all[r].spent_ns > most) most = a->all[r].spent_ns;
    a->spent_ns += most;
    a->mine.spent_ns = 0;
    /* Ranks exchange every 10 ms at most, not after every short step, because an exchange takes time itself. */
    const double step = esp__auto_step_ns(ctx);
    a->every = step > 0.0 && step < 10e6 ? (uint32_t)(10e6 / step) : 1;
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

/* Runs the probes that fit into their time, a quarter of it after each of the first steps. The first pass always
 * runs, so that every link has a point. A probe that needs half of the time is skipped; the fit then lacks this
 * point. */
static esp_status esp__auto_probes_run(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    const double shortest = esp__auto_step_ns(ctx) * fmax(1.0 - esp__auto_waiting(ctx), 0.05);
    const double whole = fmin(esp__auto_probe_steps * shortest, esp__auto_probe_most_ns);
    const double now = whole * fmin(1.0, 0.25 * a->phase_steps);
    for (uint32_t i = 0; i < a->n_probes; i++) {
        esp__auto_probe *p = &a->probes[i];
        const double cost = p->done ? 0.0 : esp__auto_probe_cost(ctx, p);
        if (p->done || (p->pass && cost > 0.5 * whole)) continue; /* may run later, if its estimate falls */
        if (p->pass && a->probed_ns + cost > now) break;
        esp_status s = esp__auto_probe_run(ctx, p);
        if (s) return s;
        p->done = 1;
        a->probed_ns += cost;
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
    a->probed_ns = 0.0;
    a->n_ready = 0;
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
    a->base_ns = esp__auto_step_ns(ctx);
    if (ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_INFO, "autopilot",
                 "measured %u steps: %.3f ms each (quartiles %.3f ms apart); %u probes made, %u left to the fit; took "
                 "%.2f%% of the time",
                 a->phase_steps, a->base_ns / 1e6, esp__auto_spread(ctx) / 1e6, a->n_probes - left, left,
                 100.0 * (double)a->spent_ns / (a->base_ns * (double)a->phase_steps + 1.0));
    a->have_costs = 1;
    esp__core_times(ctx, ESP__CORE_CALIBRATION, 0);
    return esp__auto_plan_begin(ctx);
}

/* Whether as many steps were measured as the option asks for, or so many, at least four, that they may already have
 * cost too much: no strategy can save more of a step than its part after the last push. */
static int esp__auto_enough(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const double waiting = esp__auto_waiting(ctx);
    return a->n_times >= a->opt.steps ||
           (a->n_times >= 4 && a->n_times * waiting >= esp__auto_measure_steps * (1.0 - waiting));
}

ESP__FN esp_status esp__auto_measure_step(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp_status s = ESP_OK;
    if (a->phase_steps == 1) { /* the first step fills caches and pages */
        a->n_times = 0;
        a->steps_ns = a->waiting_ns = 0;
        return ESP_OK;
    }
    uint64_t *ready = a->ready + (uint64_t)(a->n_ready % ESP__AUTO_READY) * ctx->model.n_tensors;
    if (a->source.ready)
        a->source.ready(a->source.user, ctx, ready);
    else
        esp__meter_ready(ctx, ready);
    a->n_ready++;
    esp__auto_note_cpu(ctx);
    if (a->n_times == 1 || a->n_times % a->every == 0 || a->n_times >= a->opt.steps) {
        s = esp__auto_exchange(ctx);
        if (!s && !a->source.costs) s = esp__calibration_step(ctx, &a->calibration);
        if (!s && esp__auto_enough(ctx)) return esp__auto_measured(ctx);
        if (!s) s = esp__auto_probes_run(ctx);
    }
    a->cpu_since = esp__auto_cpu(ctx);
    return s;
}
