/* plan.c: makes the planner's input from the measured costs, and runs the planner on a thread of rank 0. */
#include "planner/auto/autopilot.h"
#include "espresso_impl/base/os.h"
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the planner's input ----------------------------------------------------------------------------------------- */

/* Returns the cores that computing keeps busy, on the rank that needs the most. Ranks that are threads of one
 * process report the processor time of the process. */
static double esp__auto_load(const esp_ctx *ctx) {
    const esp__auto_word *w = esp__autopilot_of(ctx)->all;
    double most = 0.0;
    for (int32_t r = 0; r < ctx->job.size; r++) {
        double alike = 0.0;
        for (int32_t k = 0; k < ctx->job.size; k++) alike += w[k].pid == w[r].pid;
        const double busy = w[r].compute_ns ? (double)w[r].cpu_ns / (double)w[r].compute_ns / alike : 0.0;
        if (busy > most) most = busy;
    }
    return most;
}

static int esp__auto_override(const esp__tensor *t) { return t->codec_override || t->option_override; }

static void esp__auto_model(esp_ctx *ctx, esp__auto_job *job) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    int plain = 1; /* all tensors are alike, so any neighbours may form a group */
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        esp_plan_tensor *x = &job->tensors[i];
        x->name = t->name;
        x->elements = t->count;
        x->rows = t->rows, x->cols = t->cols;
        x->compute_ns = i ? (double)(a->ready_max[i] - a->ready_max[i - 1]) : 0.0;
        x->keep = t->flags & ESP_RAW || esp__auto_override(t) ? "fp32" : esp__auto_keep(ctx, i);
        if (t->flags & ESP_SHARD) x->shard = t->shard.n == 1 ? "flat" : "intra,inter"; /* sharded over two levels */
        plain &= t->dtype == ctx->model.tensors[0].dtype && t->device == ctx->model.tensors[0].device &&
                 !((t->flags ^ ctx->model.tensors[0].flags) & ESP_SUM) && !esp__auto_override(t);
    }
    for (uint32_t i = 1; i < ctx->model.n_tensors; i++) /* The slowest ranks' ready times may fall between tensors. */
        if (a->ready_max[i] < a->ready_max[i - 1]) job->tensors[i].compute_ns = 0.0;
    job->model.struct_size = sizeof job->model;
    job->model.n_tensors = ctx->model.n_tensors;
    job->model.name = "measured";
    job->model.tensors = job->tensors;
    job->model.forward_ns = (double)a->ready_max[0]; /* the time to the first gradient */
    if (!plain) job->config.flags |= ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT;
}

static int esp__auto_allowed(const esp__auto_options *o, const char *spec) {
    for (uint32_t i = 0; i < o->n_codecs; i++)
        if (!strcmp(o->codecs[i], spec)) return 1;
    return 0;
}

/* Whether the job's backends can reduce the payloads of a codec of several rounds. Payloads of a codec of one round
 * can always be gathered instead. */
static int esp__auto_reduces(const esp_ctx *ctx, const esp__codec *c) {
    const uint64_t side = c && c->traits.caps & ESP_CODEC_NEEDS_MATRIX ? 32 : 0;
    const esp_tensor like = esp__codec_like(1024, side, side);
    for (uint32_t i = 0; c && c->traits.n_rounds > 1 && i < c->traits.n_rounds; i++) {
        const esp_round round = esp__codec_round(c, i);
        esp_bound bound;
        if (!round.op || esp__codec_bound_of(ctx, c, &like, i, (uint32_t)ctx->job.size, &bound)) continue;
        for (uint8_t scope = 0; scope < ESP__SCOPES; scope++) {
            const esp_backend *b = esp__backend_of(&ctx->job, scope);
            if (!b || (b->dtypes & ESP_BIT(bound.dtype) && b->reduces & ESP_BIT(round.op))) continue;
            esp__log(ctx, ESP_LOG_WARN, "autopilot", "codec '%s' is left out: backend '%s' cannot reduce its payloads",
                     c->spec, b->name);
            return 0;
        }
    }
    return 1;
}

/* Whether plans may still use the codec after the loss rose. */
static int esp__auto_trusted(const esp__autopilot *a, const esp__codec *c, const esp_plan_codec *codec) {
    if (a->trust == ESP__TRUST_NONE) return !codec->lossy;
    return a->trust == ESP__TRUST_ALL || (c && esp__safety_rounds(c, codec->error));
}

static esp_status esp__auto_costs(esp_ctx *ctx, esp__auto_job *job) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    esp_plan_codec codecs[ESP__CALIBRATION_CODECS];
    uint32_t n = 0;
    esp_status s;
    if (a->source.costs) {
        s = a->source.costs(a->source.user, ctx, &job->system, codecs, &n);
    } else {
        a->calibration.load = esp__auto_load(ctx);
        s = esp__calibration_finish(ctx, &a->calibration);
        job->system = a->calibration.system;
        n = a->calibration.n_codecs;
        memcpy(codecs, a->calibration.plan_codecs, n * sizeof *codecs);
    }
    for (uint32_t i = 0; i < n && !s; i++) {
        const esp__codec *c = esp__auto_codec_of(ctx, codecs[i].spec);
        codecs[i].lossy = !c || esp__codec_lossy(c);
        if (c) job->effects[i] = esp__safety(c, codecs[i].error, ctx->config.optimizer, ctx->config.momentum);
    }
    job->n_all_codecs = s ? 0 : n;
    memcpy(job->all_codecs, codecs, job->n_all_codecs * sizeof *codecs);
    for (uint32_t i = 0; i < n && !s; i++) {
        const esp__codec *c = esp__auto_codec_of(ctx, codecs[i].spec);
        int allowed = esp__auto_allowed(&a->opt, codecs[i].spec) && esp__auto_reduces(ctx, c) &&
                      esp__auto_trusted(a, c, &codecs[i]) && (a->lossy || !codecs[i].lossy) &&
                      !(a->opt.max_error > 0.0 && codecs[i].error > a->opt.max_error);
        if (allowed) job->codecs[job->n_codecs++] = codecs[i];
    }
    return s;
}

static void esp__auto_log_curve(const esp_ctx *ctx, const char *what, const char *which, const esp_cost_curve *c) {
    char text[ESP__SPEC_MAX * 2] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < c->n && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, " %g:%.1f", c->points[i].size, c->points[i].ns / 1e3);
    if (c->n) esp__log(ctx, ESP_LOG_DEBUG, "autopilot", "%s %s (size:us)%s", what, which, text);
}

/* Logs the planner's input, so that a user can find out why it chose a plan. */
static void esp__auto_log_costs(const esp_ctx *ctx, const esp__auto_job *job) {
    const esp_plan_link *links[] = {&job->system.flat, &job->system.intra, &job->system.inter,
                                    &job->system.outer[0].link};
    if (ctx->base.log_level < ESP_LOG_DEBUG) return;
    for (uint32_t l = 0; l < 3 + job->system.n_outer; l++)
        for (uint32_t k = 1; k < ESP_PLAN_COLLS; k++)
            esp__auto_log_curve(ctx, esp__scope_name(&ctx->job.names, l), esp__coll_word(k), &links[l]->table[k]);
    for (uint32_t l = 0; l < 3 + job->system.n_outer; l++)
        for (uint32_t k = 1; k < ESP_PLAN_COLLS; k++)
            esp__auto_log_curve(ctx, "core time of", esp__coll_word(k), &links[l]->core[k]);
    for (uint32_t c = 0; c < job->n_codecs; c++) {
        esp__auto_log_curve(ctx, job->codecs[c].spec, "compress", &job->codecs[c].compress[ESP_ON_CPU]);
        esp__auto_log_curve(ctx, job->codecs[c].spec, "decompress", &job->codecs[c].decompress[ESP_ON_CPU]);
    }
    esp__log(
        ctx, ESP_LOG_DEBUG, "autopilot",
        "system: cores_per_rank %u, dispatch %.1f %.1f %.1f %.1f us; forward %.3f ms, backward %.3f ms",
        job->system.cores_per_rank, job->system.dispatch_ns[0] / 1e3, job->system.dispatch_ns[1] / 1e3,
        job->system.dispatch_ns[2] / 1e3, job->system.dispatch_ns[3] / 1e3, job->model.forward_ns / 1e6,
        (double)(esp__autopilot_of(ctx)->ready_max[ctx->model.n_tensors - 1] - esp__autopilot_of(ctx)->ready_max[0]) /
            1e6);
}

static int esp__auto_job_has(const esp__auto_job *job, const char *spec) {
    for (uint32_t i = 0; i < job->n_codecs; i++)
        if (!strcmp(job->codecs[i].spec, spec)) return 1;
    return 0;
}

ESP__FN void esp__auto_job_free(esp_ctx *ctx, esp__auto_job *job) {
    if (!job) return;
    if (job->running) pthread_join(job->thread, NULL);
    for (uint32_t i = 0; i < job->n; i++) esp_plan_free(job->of[i].plan);
    esp__free(ctx, job->tensors);
    esp__strfree(ctx, job->active);
    pthread_mutex_destroy(&job->lock);
    esp__free(ctx, job);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */
static void *esp__auto_plan_main(void *arg) {
    esp__auto_job *job = arg;
    const uint64_t start = esp__now_ns();
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10); /* lower than the trainer's priority */
    if (esp__auto_candidates(job)) snprintf(job->failed, sizeof job->failed, "%.400s", esp_last_error(NULL));
    job->plan_ns = (double)(esp__now_ns() - start);
    pthread_mutex_lock(&job->lock);
    job->done = 1;
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

ESP__FN int esp__auto_plan_done(esp__autopilot *a) {
    if (!a->job) return 1;
    pthread_mutex_lock(&a->job->lock);
    int done = a->job->done;
    pthread_mutex_unlock(&a->job->lock);
    return done;
}

/* ---- rank 0 begins ----------------------------------------------------------------------------------------------- */
static esp_status esp__auto_job_make(esp_ctx *ctx, esp__auto_job *job) {
    static const char *const not_here[] = {"*intra.*", "*inter.*"};
    esp__autopilot *a = esp__autopilot_of(ctx);
    job->config.struct_size = sizeof job->config;
    job->config.strategy = a->opt.plan;
    job->config.min_compress_elements = ctx->model.min_compress_elements;
    job->config.max_memory_bytes = ctx->active.most_bytes;
    if (!esp__hierarchical(ctx)) job->config.forbid = not_here, job->config.n_forbid = 2;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        if (ctx->model.tensors[i].flags & ESP_SHARD && ctx->job.topo.n_levels > 2)
            return esp__fail(
                ctx, ESP_E_UNSUPPORTED,
                "auto plans sharded tensors (ESP_SHARD), such as '%s', in jobs of two levels only; this job has "
                "%u: give it a strategy file",
                ctx->model.tensors[i].name, ctx->job.topo.n_levels);
    esp_status s = esp__auto_costs(ctx, job);
    if (s) return s;
    if (!job->n_codecs) job->config.flags |= ESP_PLAN_NO_COMP;
    esp__auto_model(ctx, job);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp_plan_tensor *t = &job->tensors[i];
        if (t->keep && strcmp(t->keep, "fp32") && !esp__auto_job_has(job, t->keep)) t->keep = "fp32";
        job->free_tensors[i] = *t;
        job->free_tensors[i].keep = NULL; /* the active strategy may use codecs that plans may not */
    }
    job->active_fp32 = ctx->active.strategy.hash == a->fp32;
    job->base_ns = a->base_ns;
    job->base_spread = a->base_ns > 0.0 ? esp__auto_spread(ctx) / a->base_ns : 0.0;
    job->base_n = a->base_n;
    esp__safety_optimizer(ctx, job->optimizer, sizeof job->optimizer);
    job->forced = a->forced;
    return ESP_OK;
}

/* Whether no strategy can bring the least gain: it can only shorten the part of a step after the last push, and on some
 * rank that part is too short. Valid after an exchange, and the same on all ranks. */
ESP__FN bool esp__auto_hidden(const esp_ctx *ctx) {
    return (1.0 + esp__autopilot_of(ctx)->opt.min_gain) * (1.0 - esp__auto_waiting(ctx)) > 1.0;
}

/* All ranks enter the planning phase, and rank 0 starts its thread. If planning fails or no strategy can bring the
 * least gain, the active strategy stays and training goes on. */
ESP__FN esp_status esp__auto_plan_begin(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    a->base_n = a->n_times < ESP__TRY_TIMES ? a->n_times : ESP__TRY_TIMES;
    if (!a->forced && ctx->active.strategy.hash == a->fp32 && esp__auto_hidden(ctx)) {
        esp__auto_say(ctx,
                      "step %llu: fp32 stays, nothing was tried: of the step's %.3f ms, only %.1f%% are waiting for "
                      "communication",
                      (unsigned long long)ctx->steps.step, a->base_ns / 1e6, 100.0 * esp__auto_waiting(ctx));
        esp__auto_settle(ctx, a->base_ns);
        return ESP_OK;
    }
    esp__auto_enter(ctx, ESP__AUTO_PLAN);
    if (ctx->job.rank) return ESP_OK;
    esp__auto_job *job = esp__alloc(ctx, sizeof *job);
    esp__auto_job_free(ctx, a->job);
    a->job = job; /* NULL if out of memory; the active strategy then stays */
    if (!job) return ESP_OK;
    pthread_mutex_init(&job->lock, NULL);
    job->ctx = ctx;
    job->tensors = esp__alloc(ctx, 2ull * ctx->model.n_tensors * sizeof *job->tensors);
    const bool won = a->won && a->won_hash == ctx->active.strategy.hash;
    job->active = esp__strdup(ctx, won ? a->won : ctx->active.strategy.text);
    snprintf(job->active_name, sizeof job->active_name, "%s",
             ctx->active.strategy.hash == a->fp32 ? "fp32"
             : won                                ? a->won_name
                                                  : "the saved strategy");
    job->free_tensors = job->tensors ? job->tensors + ctx->model.n_tensors : NULL;
    esp_status s = job->tensors && job->active ? esp__auto_job_make(ctx, job)
                                               : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    if (!s) esp__auto_log_costs(ctx, job);
    if (!s) job->running = !esp__thread_start(&job->thread, esp__auto_plan_main, job);
    if (job->running) return ESP_OK;
    snprintf(job->failed, sizeof job->failed, "%.400s", s ? esp_last_error(ctx) : "no thread could be started");
    job->done = 1;
    return ESP_OK;
}
