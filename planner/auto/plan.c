/* plan.c: makes the planner's input from the measured costs, runs the planner on a thread of rank 0, and decides
 * whether to change the strategy. */
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

/* If more than this share of a step is exposed, a trial is worthwhile even if no plan is predicted to win. */
static const double esp__auto_exposed_much = 1.0 / 3.0;
static const double esp__auto_full = 0.95; /* share of a step; above it, the core has no time for more */

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
    esp_plan_free(job->plan);
    esp_plan_free(job->second);
    esp__free(ctx, job->tensors);
    esp__strfree(ctx, job->active);
    pthread_mutex_destroy(&job->lock);
    esp__free(ctx, job);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */
static void esp__auto_describe(esp__auto_job *job, const esp_plan_report *r) {
    uint32_t n, tensors[ESP__CALIBRATION_CODECS] = {0};
    const esp_plan_unit *u = esp_plan_units(job->plan, &n);
    size_t at = 0, cap = sizeof job->chosen;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < job->n_codecs; c++)
            if (!strcmp(u[i].codec, job->codecs[c].spec) && !u[i].begin) tensors[c] += u[i].n_tensors;
    if (r->compressed)
        at = (size_t)snprintf(job->chosen, cap, "%u of %u tensors compressed (", r->compressed, r->n_tensors);
    else
        snprintf(job->chosen, cap, "nothing compressed, %u tensors in %u pieces", r->n_tensors, r->n_units);
    for (uint32_t c = 0, more = 0; c < job->n_codecs && r->compressed && at < cap; c++)
        if (tensors[c])
            at += (size_t)snprintf(job->chosen + at, cap - at, "%s%s %u", more++ ? ", " : "", job->codecs[c].spec,
                                   tensors[c]);
    if (r->compressed && at < cap) snprintf(job->chosen + at, cap - at, ") in %u pieces", r->n_units);
}

static void esp__auto_no_gain(esp__auto_job *job) {
    if (job->full_cores)
        snprintf(job->reason, sizeof job->reason,
                 "no gain here: computing takes all cores; nothing to hide communication behind (best plan %.3fx)",
                 job->gain);
    else if (job->exposed < 0.05)
        snprintf(
            job->reason, sizeof job->reason,
            "no gain here: communication is already hidden (%.1f%% of the step is exposed communication; best plan "
            "%.3fx)",
            100.0 * job->exposed, job->gain);
    else if (job->gain >= job->need)
        snprintf(
            job->reason, sizeof job->reason,
            "no gain here: the best plan found is predicted %.3fx, but measured costs explain only %.1f of the step's "
            "%.1f ms, and the last plan that lost took %.2f times its prediction: too little would be left",
            job->gain, job->explained_ns / 1e6, job->base_ns / 1e6, job->misjudged[job->compresses]);
    else
        snprintf(
            job->reason, sizeof job->reason,
            "no gain here: the best plan found is predicted %.3fx, less than the least gain of %.0f%% (%.1f%% of the "
            "step is exposed communication)",
            job->gain, 100.0 * (job->need - 1.0), 100.0 * job->exposed);
}

/* Returns a hash of a plan's text without comments, which is the same if the plan is made twice. */
static uint64_t esp__auto_text_hash(const char *text) {
    uint64_t h = ESP__HASH0;
    while (*text) {
        size_t len = strcspn(text, "\n");
        if (*text != '#') h = esp__hash64(h, text, len + (text[len] == '\n'));
        text += len + (text[len] == '\n');
    }
    return h;
}

static int esp__auto_plan_lossy(const esp__auto_job *job, const esp_plan *plan) {
    uint32_t n;
    const esp_plan_unit *u = esp_plan_units(plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        int lossy = strcmp(u[i].codec, ESP__CODEC_NONE) != 0;
        for (uint32_t c = 0; c < job->n_all_codecs && lossy; c++)
            if (!strcmp(job->all_codecs[c].spec, u[i].codec)) lossy = job->all_codecs[c].lossy != 0;
        if (lossy) return 1;
    }
    return 0;
}

/* Whether a plan with predicted time plan_ns should replace the active strategy, with predicted time now_ns. The
 * gain now_ns / plan_ns must reach `need`. If steps take longer than predicted, the predicted saving must also be
 * enough for the least gain over the measured time, because unexplained time, such as waiting for cores, stays after
 * the change. Both gains are corrected by the wrong prediction of the last trial that lost. */
ESP__FN int esp__auto_worth(const esp__auto_job *job, double now_ns, double plan_ns, int compresses, double need) {
    double wrong = job->misjudged[compresses != 0], saved = now_ns - plan_ns;
    if (now_ns < need * wrong * plan_ns) return 0;
    if (job->base_ns <= now_ns) return 1;
    return job->base_ns >= (1.0 + job->min_gain) * wrong * (job->base_ns - saved);
}

/* If the active strategy is not lossy, a lossy plan must bring twice the least gain. Otherwise the best plan without
 * lossy codecs replaces it, if that plan brings the least gain. Returns the gain that the plan must bring. */
static double esp__auto_spare(esp__auto_job *job, esp_plan_report *best, double now_ns, int now_lossy) {
    esp_plan_codec codecs[ESP__CALIBRATION_CODECS];
    esp_plan_config config = job->config;
    esp_plan_report r;
    esp_plan *other = NULL;
    uint32_t n = 0;
    if (job->forced || now_lossy || !esp__auto_plan_lossy(job, job->plan)) return 1.0 + job->min_gain;
    double need = 1.0 + 2.0 * job->min_gain;
    if (job->kept || esp__auto_worth(job, now_ns, best->iteration_ns, 1, need)) return need;
    for (uint32_t i = 0; i < job->n_codecs; i++)
        if (!job->codecs[i].lossy) codecs[n++] = job->codecs[i];
    if (!n) config.flags |= ESP_PLAN_NO_COMP;
    if (esp__auto_make(job, codecs, n, &config, &other, &r)) return need;
    if (!esp__auto_worth(job, now_ns, r.iteration_ns, r.compressed != 0, 1.0 + job->min_gain)) {
        esp_plan_free(other);
        return need;
    }
    esp_plan_free(job->plan);
    job->plan = other;
    *best = r;
    return 1.0 + job->min_gain;
}

/* Makes the best plan, without compression if that is as good. Predictions are corrected by how wrong the last one
 * of their kind was. */
static esp_status esp__auto_fastest(esp__auto_job *job, esp_plan_report *best) {
    esp_plan_config plain = job->config;
    esp_plan_report r;
    esp_plan *other = NULL;
    const esp_status s = esp__auto_make(job, job->codecs, job->n_codecs, &job->config, &job->plan, best);
    if (s) return s;
    plain.strategy = NULL;
    plain.flags |= ESP_PLAN_NO_COMP | ESP_PLAN_NO_BOUND;
    if (job->kept || esp__auto_make(job, NULL, 0, &plain, &other, &r)) return ESP_OK;
    if (r.iteration_ns * job->misjudged[0] > best->iteration_ns * job->misjudged[best->compressed != 0]) {
        esp_plan_free(other);
        return ESP_OK;
    }
    r.bound_ns = best->bound_ns;
    *best = r;
    esp_plan_free(job->plan);
    job->plan = other;
    return ESP_OK;
}

/* Among the allowed codecs that are safe with the optimizer, finds the one that makes strategy layerwise fastest by
 * prediction. */
static void esp__auto_layerwise(esp__auto_job *job) {
    esp_plan_config config = {.struct_size = sizeof config,
                              .flags = ESP_PLAN_NO_BOUND,
                              .strategy = "layerwise",
                              .min_compress_elements = job->config.min_compress_elements};
    for (uint32_t c = 0; c < job->n_codecs && !job->forced; c++) {
        esp_plan *one = NULL;
        esp_plan_report r;
        if (esp__auto_slower(job, job->codecs[c].spec) > 1.0) continue;
        if (esp__auto_make(job, &job->codecs[c], 1, &config, &one, &r)) continue;
        const uint64_t hash = esp__auto_text_hash(esp_plan_text(one));
        const double ns = esp__auto_promise(job, r.iteration_ns);
        if (!r.compressed || hash == job->text_hash || hash == job->refuse || (job->second && ns >= job->second_ns)) {
            esp_plan_free(one);
            continue;
        }
        esp_plan_free(job->second);
        job->second = one;
        job->second_ns = ns;
        job->second_report = r;
        snprintf(job->second_chosen, sizeof job->second_chosen, "layerwise %s", job->codecs[c].spec);
    }
}

/* Proposes the second plan instead of the first. */
ESP__FN void esp__auto_second(esp__auto_job *job) {
    esp_plan_free(job->plan);
    job->plan = job->second;
    job->second = NULL;
    job->predicted_ns = job->second_ns;
    job->second_ns = 0.0;
    job->best = job->second_report;
    job->gain = job->base_ns / job->predicted_ns;
    job->text_hash = esp__auto_text_hash(esp_plan_text(job->plan));
    job->compresses = job->tried = 1;
    job->bound = -1.0;
    job->decision = ESP__DECISION_SWITCH;
    snprintf(job->chosen, sizeof job->chosen, "%s", job->second_chosen);
}

/* Whether strategy layerwise, which may be the plan itself, should have a trial although no plan is predicted to win
 * by enough. It should if much communication is exposed; or if layerwise is predicted to win by half of the least
 * gain, and hiding all exposed communication would bring as much gain as a lossy plan needs. */
static int esp__auto_worth_try(const esp__auto_job *job) {
    const double ns = job->second ? job->second_ns : job->predicted_ns;
    if (job->decision != ESP__DECISION_STAY || job->tried) return 0;
    if (!job->second && (!job->compresses || job->text_hash == job->refuse)) return 0;
    if (job->exposed >= esp__auto_exposed_much) return 1;
    return job->base_ns >= (1.0 + 0.5 * job->min_gain) * ns &&
           1.0 >= (1.0 + 2.0 * job->min_gain) * (1.0 - job->exposed);
}

static esp_status esp__auto_plan_run(esp__auto_job *job) {
    esp_plan_config look = job->config;
    esp_plan_report now = {.struct_size = sizeof now}, best;
    esp_plan *current = NULL;
    look.flags |= ESP_PLAN_NO_BOUND;
    look.n_forbid = 0;
    look.max_memory_bytes = 0;
    esp_plan_model free_model = job->model;
    free_model.tensors = job->free_tensors;
    esp_status s = esp__plan_make_for(job->ctx, &free_model, job->all_codecs, job->n_all_codecs, &job->system, &look,
                                      job->active, &current);
    if (s && !job->forced) return s;
    if (!s) esp_plan_report_read(current, &now);
    int lossy = !s && esp__auto_plan_lossy(job, current);
    esp_plan_free(current);
    job->explained_ns = now.iteration_ns;
    s = esp__auto_fastest(job, &best);
    if (s) return s;
    esp__auto_safer(job, &best);
    job->need = esp__auto_spare(job, &best, now.iteration_ns, lossy);
    esp__auto_describe(job, &best);
    job->predicted_ns = esp__auto_promise(job, best.iteration_ns);
    job->gain = job->base_ns > 0.0 ? job->base_ns / job->predicted_ns : 1.0;
    job->full_cores = best.lane_ns[ESP__LANE_COMPUTE] >= esp__auto_full * best.iteration_ns;
    job->best = best;
    job->bound = best.bound_ns > 0.0 ? best.iteration_ns / best.bound_ns - 1.0 : -1.0;
    job->plan_ns = best.plan_ns;
    job->text_hash = esp__auto_text_hash(esp_plan_text(job->plan));
    job->compresses = best.compressed != 0;
    job->decision = job->forced || esp__auto_worth(job, now.iteration_ns, best.iteration_ns, job->compresses, job->need)
                        ? ESP__DECISION_SWITCH
                        : ESP__DECISION_STAY;
    esp__auto_layerwise(job);
    const int tries = esp__auto_worth_try(job);
    if (tries && job->second) {
        esp__auto_second(job);
    } else if (tries) {
        job->decision = ESP__DECISION_SWITCH;
        job->tried = 1;
    } else if (job->decision == ESP__DECISION_STAY) {
        esp__auto_no_gain(job);
    } else if (!job->forced && job->text_hash == job->refuse) {
        job->decision = ESP__DECISION_STAY;
        snprintf(job->reason, sizeof job->reason,
                 "no gain here: the best plan found is one that was tried and was slower");
    }
    return ESP_OK;
}

static void *esp__auto_plan_main(void *arg) {
    esp__auto_job *job = arg;
    uint64_t ns;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10); /* lower than the trainer's priority */
    if (esp__auto_plan_run(job)) {
        job->decision = ESP__DECISION_STAY;
        snprintf(job->reason, sizeof job->reason, "planning failed: %.400s", esp_last_error(NULL));
    }
    if (!esp__device_cpu()->core_time(NULL, &ns)) job->cpu_ns = ns;
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
static double esp__auto_exposed(const esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    if (a->source.step_ns) return a->source.exposed;
    uint64_t steps = ctx->steps.stats.step_ns - a->stats_step,
             exposed = ctx->steps.stats.exposed_communication_ns - a->stats_exposed;
    return steps ? (double)exposed / (double)steps : 0.0;
}

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
        job->kept |= t->keep && strcmp(t->keep, "fp32");
        job->free_tensors[i] = *t;
        job->free_tensors[i].keep = NULL; /* the active strategy may use codecs that plans may not */
    }
    job->base_ns = a->base_ns;
    job->min_gain = a->opt.min_gain;
    esp__safety_optimizer(ctx, job->optimizer, sizeof job->optimizer);
    job->forced = a->forced;
    job->refuse = a->refuse;
    job->tried = a->tried_layerwise;
    job->exposed = esp__auto_exposed(ctx);
    for (int k = 0; k < 2; k++) job->misjudged[k] = a->budget.open ? a->budget.misjudged[k] : 1.0;
    return ESP_OK;
}

/* All ranks enter the planning phase, and rank 0 starts its thread. If planning fails or no plan can bring the least
 * gain, the active strategy stays and training goes on. */
ESP__FN esp_status esp__auto_plan_begin(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    if (!a->forced && ctx->active.strategy.hash == a->fp32 && esp__auto_hidden(ctx)) {
        esp__auto_say(
            ctx,
            "no gain here: communication is already hidden (of the step, less than the least gain of %.0f%% is "
            "waiting); stays with fp32",
            100.0 * a->opt.min_gain);
        a->stays = 1;
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
    job->active = esp__strdup(ctx, ctx->active.strategy.text);
    job->free_tensors = job->tensors ? job->tensors + ctx->model.n_tensors : NULL;
    esp_status s = job->tensors && job->active ? esp__auto_job_make(ctx, job)
                                               : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory");
    if (!s) esp__auto_log_costs(ctx, job);
    if (!s) job->running = !esp__thread_start(&job->thread, esp__auto_plan_main, job);
    if (job->running) return ESP_OK;
    job->decision = ESP__DECISION_STAY;
    snprintf(job->reason, sizeof job->reason, "planning failed: %.400s",
             s ? esp_last_error(ctx) : "no thread could be started");
    job->done = 1;
    return ESP_OK;
}
