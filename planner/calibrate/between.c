/* between.c: measures links and codecs between training steps, first at a few sizes far apart, then at sizes between
 * them. A probe is one measurement of a collective or codec at one size. Also measures how many cores the trainer keeps
 * busy. */
#include "planner/calibrate/between.h"
#include <time.h>
#include <unistd.h>

enum { ESP__PROBE_RUNS = 3 };

/* ---- what to probe ----------------------------------------------------------------------------------------------- */
static void esp__probe_add(esp__calibration_probes *p, uint32_t codec, uint32_t level, uint32_t pass, uint32_t coll,
                           uint64_t size) {
    if (p->n < ESP__PROBES)
        p->at[p->n++] = (esp__calibration_probe){(uint8_t)codec, (uint8_t)level, (uint8_t)pass, false, coll, size};
}

static void esp__probe_add_links(const esp_ctx *ctx, esp__calibration_probes *p, uint32_t pass, uint64_t bytes) {
    static const uint8_t hierarchical[][2] = {
        {ESP__INTER, ESP_COLL_ALLGATHER}, {ESP__INTER, ESP_COLL_ALLREDUCE},      {ESP__INTRA, ESP_COLL_REDUCE_SCATTER},
        {ESP__INTRA, ESP_COLL_ALLGATHER}, {ESP__FLAT, ESP_COLL_ALLREDUCE},       {ESP__INTER, ESP_COLL_ALLTOALL},
        {ESP__FLAT, ESP_COLL_ALLGATHER},  {ESP__INTER, ESP_COLL_REDUCE_SCATTER}, {ESP__INTRA, ESP_COLL_ALLREDUCE},
        {ESP__INTRA, ESP_COLL_ALLTOALL}};
    static const uint8_t flat[] = {ESP_COLL_ALLREDUCE, ESP_COLL_ALLGATHER, ESP_COLL_ALLTOALL, ESP_COLL_REDUCE_SCATTER};
    const uint8_t outermost = esp__calibration_outermost(ctx);
    if (!esp__calibration_has(ctx, ESP__INTER)) {
        for (size_t i = 0; i < sizeof flat; i++) esp__probe_add(p, 0, ESP__FLAT, pass, flat[i], bytes);
        return;
    }
    /* ESP__INTER stands for the outermost level, ESP__INTRA for each level inside it */
    for (size_t i = 0; i < sizeof hierarchical / sizeof *hierarchical; i++) {
        const uint8_t of = hierarchical[i][0];
        const uint8_t first = of == ESP__INTER ? outermost : of, end = of == ESP__INTRA ? outermost : first + 1;
        for (uint8_t level = first; level < end; level++) esp__probe_add(p, 0, level, pass, hierarchical[i][1], bytes);
    }
}

ESP__FN void esp__calibration_probes_list(const esp_ctx *ctx, esp__calibration *s, esp__calibration_probes *p,
                                          bool again) {
    /* the smallest size shows the latency: at 1 Gbit/s, sending 4 KiB already takes as long */
    static const uint8_t bytes_log[] = {8, 15, 18, 21, 12, 20, 23, 22},
                         elements_log[] = {10, 16, 13, 19, 20, 18, 17, 14};
    p->n = p->n_done = 0;
    for (uint32_t pass = 0; pass < sizeof bytes_log; pass++) {
        /* when measuring again, the first new result replaces all old ones, so it is one for a large size */
        const uint32_t at = again && pass < 2 ? 1 - pass : pass;
        const uint64_t bytes = UINT64_C(1) << bytes_log[pass], elements = UINT64_C(1) << elements_log[at];
        for (uint32_t c = 0; c < s->n_codecs && elements <= s->max_elements; c++)
            esp__probe_add(p, c + 1, 0, pass, 0, elements);
        if (bytes <= s->max_bytes) esp__probe_add_links(ctx, p, pass, bytes);
    }
    if (!again) return;
    memset(s->link, 0, sizeof s->link);
    memset(s->dispatch, 0, sizeof s->dispatch);
    memset(p->stale, 1, sizeof p->stale);
}

/* ---- running them ------------------------------------------------------------------------------------------------ */
/* Returns the estimated nanoseconds of a probe, the same on all ranks. */
static double esp__probe_cost(const esp_ctx *ctx, const esp__calibration *s, const esp__calibration_probe *p) {
    double once, around = 500e3;
    if (!p->codec) {
        once = esp__calibration_estimate(ctx, s, p->level, p->coll, p->size);
        if (!(once > 0.0)) once = 2.0 * esp__calibration_estimate(ctx, s, ESP__FLAT, ESP_COLL_ALLREDUCE, p->size);
        if (!(once > 0.0)) once = 500e3 + (double)p->size * 10.0;
    } else {
        const esp__calibration_codec *c = &s->codecs[p->codec - 1];
        const double locals = (double)esp__calibration_locals(ctx);
        around += 3 * ESP__PROBE_RUNS * (double)ESP__CALIBRATION_ROUND_NS; /* short calls are repeated */
        once = (double)p->size * 20.0 * locals;
        if (c->compress.n && c->decompress.n) { /* three calls: compress, decompress one payload, decompress two */
            const esp_cost_point *x = &c->compress.at[c->compress.n - 1], *y = &c->decompress.at[c->decompress.n - 1];
            once = (x->ns / x->size + 3.0 * y->ns / y->size) * (double)p->size * locals;
        }
    }
    return around + once * (ESP__PROBE_RUNS + 1);
}

static esp_status esp__probe_run(esp_ctx *ctx, esp__calibration *s, esp__calibration_probes *all,
                                 const esp__calibration_probe *p) {
    if (!p->codec) return esp__calibration_link(ctx, s, p->level, p->coll, p->size, ESP__PROBE_RUNS);
    esp__calibration_codec *c = &s->codecs[p->codec - 1];
    if (all->stale[p->codec - 1]) c->compress.n = c->decompress.n = c->decompress_more.n = 0;
    all->stale[p->codec - 1] = false;
    return esp__calibration_codec_at(ctx, s, p->codec - 1u, p->size, ESP__PROBE_RUNS);
}

ESP__FN esp_status esp__calibration_probes_run(esp_ctx *ctx, esp__calibration *s, esp__calibration_probes *p,
                                               uint32_t passes, uint32_t must, double each_ns, double all_ns) {
    const uint8_t outermost = esp__calibration_has(ctx, ESP__INTER) ? esp__calibration_outermost(ctx) : ESP__FLAT;
    for (uint32_t i = 0; i < p->n && p->at[i].pass < passes; i++) {
        esp__calibration_probe *x = &p->at[i];
        const double cost = x->done ? 0.0 : esp__probe_cost(ctx, s, x);
        const bool has_to = !x->pass || (x->pass < must && !x->codec && x->level == outermost);
        if (x->done || (!has_to && (cost > each_ns || p->spent_ns + cost > all_ns))) continue;
        const esp_status st = esp__probe_run(ctx, s, p, x);
        if (st) return st;
        x->done = true;
        p->n_done++;
        p->spent_ns += cost;
    }
    return ESP_OK;
}

/* ---- the trainer's computing ------------------------------------------------------------------------------------- */
/* Returns the trainer's processor time: that of the process without the library's threads. */
static uint64_t esp__trainer_cpu(const esp_ctx *ctx) {
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

ESP__FN void esp__calibration_trainer_begins(const esp_ctx *ctx, esp__calibration_trainer *t) {
    t->since_ns = esp__trainer_cpu(ctx);
}

/* If the trainer's threads run the ops, their processor time in ops is not the trainer's computing. All else counts,
 * even after the last push, because then the trainer only waits. */
ESP__FN void esp__calibration_trainer_step(const esp_ctx *ctx, esp__calibration_trainer *t) {
    uint64_t now = esp__trainer_cpu(ctx);
    const esp__step_clock *c = &ctx->steps.clock;
    for (uint32_t i = 0; i < ctx->active.program.n_ops && ctx->lanes.caller_drives; i++)
        now -= ctx->active.op_core_ns[i] < now ? ctx->active.op_core_ns[i] : now;
    if (!t->since_ns || now <= t->since_ns || c->last_push_ns <= c->begin_ns) return;
    t->cpu_ns += now - t->since_ns;
    t->compute_ns += c->last_push_ns - c->begin_ns;
}

ESP__FN esp_status esp__calibration_load(esp_ctx *ctx, esp__calibration *s, const esp__calibration_trainer *t) {
    struct {
        int64_t pid;
        double busy;
    } mine = {(int64_t)getpid(), t->compute_ns ? (double)t->cpu_ns / (double)t->compute_ns : 1.0}, *all = ctx->job.room;
    _Static_assert(sizeof mine <= ESP__JOB_ROOM, "it must fit into the room of a rank");
    const esp_status st = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine);
    s->load = 0.0;
    for (int32_t r = 0; r < ctx->job.size && !st; r++) {
        double alike = 0.0; /* ranks may be threads of one process, which measure the same time */
        for (int32_t k = 0; k < ctx->job.size; k++) alike += all[k].pid == all[r].pid;
        if (all[r].busy / alike > s->load) s->load = all[r].busy / alike;
    }
    return st;
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */
static void esp__calibration_log_curve(const esp_ctx *ctx, const char *what, const char *which,
                                       const esp_cost_curve *c) {
    char text[ESP__SPEC_MAX * 2] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < c->n && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " %g:%.1f", c->points[i].size, c->points[i].ns / 1e3);
    if (c->n) esp__log(ctx, ESP_LOG_DEBUG, "autopilot", "%s %s (size:us)%s", what, which, text);
}

ESP__FN void esp__calibration_log(const esp_ctx *ctx, const esp_plan_system *system, const esp_plan_codec *codecs,
                                  uint32_t n_codecs) {
    const esp_plan_link *links[] = {&system->flat, &system->intra, &system->inter, &system->outer[0].link};
    const double *d = system->dispatch_ns;
    if (ctx->base.log_level < ESP_LOG_DEBUG) return;
    for (uint32_t l = 0; l < 3 + system->n_outer; l++) {
        esp__log(ctx, ESP_LOG_DEBUG, "autopilot", "%s: latency %.1f us, %.1f bytes/us",
                 esp__scope_name(&ctx->job.names, l), links[l]->alpha_ns / 1e3, links[l]->bytes_per_us);
        for (uint32_t k = 1; k < ESP_PLAN_COLLS; k++) {
            esp__calibration_log_curve(ctx, esp__scope_name(&ctx->job.names, l), esp__coll_word(k),
                                       &links[l]->table[k]);
            esp__calibration_log_curve(ctx, "core time of", esp__coll_word(k), &links[l]->core[k]);
        }
    }
    for (uint32_t c = 0; c < n_codecs; c++) {
        esp__calibration_log_curve(ctx, codecs[c].spec, "compress", &codecs[c].compress[ESP_ON_CPU]);
        esp__calibration_log_curve(ctx, codecs[c].spec, "decompress", &codecs[c].decompress[ESP_ON_CPU]);
    }
    esp__log(ctx, ESP_LOG_DEBUG, "autopilot", "system: cores_per_rank %u, dispatch %.1f %.1f %.1f %.1f us",
             system->cores_per_rank, d[0] / 1e3, d[1] / 1e3, d[2] / 1e3, d[3] / 1e3);
}
