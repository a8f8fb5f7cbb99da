/* open.c: opens and closes a context, connects it to the other ranks, adds tensors and changes the strategy. */
#include "codecs/common/simd.h"
#include "espresso_impl/base/machine.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/outer.h"
#include "espresso_impl/observe/observe.h"
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

enum { ESP__TIMEOUT_DEFAULT_MS = 300000 };

ESP__FN void esp__base_parts(esp_ctx *ctx) {
    ctx->base.registry = &ctx->registry;
    ctx->base.devices = &ctx->devices;
    ctx->base.job = &ctx->job;
    ctx->base.model = &ctx->model;
}

/* ---- functions for plugins ---- */
static void esp__host_parallel_for(void *user, uint64_t n, uint64_t grain,
                                   void (*body)(void *arg, uint64_t begin, uint64_t end), void *arg) {
    const esp_ctx *ctx = (const esp_ctx *)user;
    if (ctx && ESP_HAS(esp_host, esp__base_of(ctx)->user_host, parallel_for))
        esp__base_of(ctx)->user_host->parallel_for(esp__base_of(ctx)->user_host->user, n, grain, body, arg);
    else
        esp__workers_for(ctx ? esp__workers_of(ctx) : NULL, n, grain, body, arg);
}

ESP__FN void esp__host_init(esp_host *host, esp_ctx *ctx) {
    memset(host, 0, sizeof *host);
    host->struct_size = sizeof *host;
    host->abi_major = ESP_ABI_MAJOR;
    host->abi_minor = ESP_ABI_MINOR;
    host->user = ctx;
    host->alloc = esp__host_alloc;
    host->free_ = esp__host_free;
    host->log = esp__plugin_log;
    host->parallel_for = esp__host_parallel_for;
}

/* ---- the watch thread's callbacks ---- */
static void esp__on_lost(void *user, int32_t rank, int left) {
    esp_ctx *ctx = user;
    char text[ESP__ERROR_MAX];
    if (left) {
        esp__waits_left(ctx, rank, left);
        return;
    }
    if (rank == ctx->job.rank) {
        esp__fatal(ctx, ESP_E_NOMEM, "no memory for messages between ranks");
        return;
    }
    snprintf(text, sizeof text, "rank %d died (its connection closed without goodbye)", rank);
    esp__fatal(ctx, ESP_E_PEER, text);
}

static void esp__on_decided(void *user, int32_t rank, uint32_t tensor) {
    esp_ctx *ctx = user;
    char text[ESP__ERROR_MAX], who[ESP__NAME_MAX] = "some rank",
                               what[ESP__SPEC_MAX] = "a broadcast, allreduce or barrier";
    const char *name = tensor < ctx->model.n_tensors ? ctx->model.tensors[tensor].name : NULL;
    if (rank >= 0) snprintf(who, sizeof who, "rank %d", rank);
    if (name) snprintf(what, sizeof what, "tensor '%s'", name);
    ctx->job.silent = rank;
    if (rank >= 0 && rank == ctx->health.left_rank) { /* only this thread sets left_rank */
        const esp_status left = esp__waits_left_error(ctx, text, sizeof text);
        esp__fatal(ctx, left, text);
        return;
    }
    snprintf(text, sizeof text, "%s did not answer in time: it did not come to %s in %u ms (ESPRESSO_TIMEOUT_MS)%s",
             who, what, ctx->config.timeout_ms,
             rank < 0
                 ? ". Ranks wait for each other: does the link need longer for it, or do ranks make different calls?"
                 : "");
    esp__fatal(ctx, ESP_E_TIMEOUT, text);
}

static void esp__on_excluded(void *user) {
    esp__fatal(user, ESP_E_PEER,
               "the other ranks excluded this one (esp_shrink), because its connection failed or it did not answer in "
               "time: close this context, and start the job again to take part");
}

static void esp__on_turn(void *user, uint64_t fragment) { esp__outer_begun(user, fragment); }

ESP__FN esp__peers_events esp__open_events(esp_ctx *ctx) {
    return (esp__peers_events){ctx, esp__on_lost, esp__on_decided, esp__waits_answer, esp__on_excluded, esp__on_turn};
}

/* ---- opening ---- */
static esp_status esp__builtins_add(esp_ctx *ctx, const esp_config *cfg) {
    esp_status s = ESP_OK;
    const esp_plugin_fn *own = esp__builtin_entries();
    for (; *own && !s; own++) s = esp__registry_add(ctx, (*own)(&ctx->host), "built in");
    for (uint32_t i = 0; i < cfg->n_builtin && !s; i++)
        s = esp__registry_add(ctx, cfg->builtin[i](&ctx->host), "linked into the program");
    return s;
}

static esp_status esp__open_config(esp_ctx *ctx, const esp_config *c) {
    ctx->base.user_host = c->host;
    ctx->config.flags = c->flags;
    ctx->base.log_level = c->log_level ? c->log_level : ESP_LOG_WARN;
    ctx->base.process = c->size && esp__env_process() != c->rank ? esp__env_process() : -1;
    ctx->config.timeout_ms = c->timeout_ms ? c->timeout_ms : ESP__TIMEOUT_DEFAULT_MS;
    ctx->config.seed = c->seed;
    ctx->config.optimizer = c->optimizer;
    ctx->config.momentum = (double)c->momentum;
    ctx->config.plugin_path = esp__strdup(ctx, c->plugin_path);
    ctx->registry.plugin_path = ctx->config.plugin_path;
    ctx->registry.may_override = (c->flags & ESP_ALLOW_OVERRIDE) != 0;
    ctx->model.codec_spec = esp__strdup(ctx, c->codec);
    ctx->model.min_compress_elements = c->min_compress_elements ? c->min_compress_elements : ESP_MIN_COMPRESS_ELEMENTS;
    ctx->config.strategy_spec = esp__strdup(ctx, c->strategy);
    ctx->config.trace_path = esp__strdup(ctx, c->trace);
    ctx->config.stats_spec = esp__strdup(ctx, c->stats);
    ctx->config.sample_errors = c->stats != NULL;
    if ((c->stats && !ctx->config.stats_spec) || (c->plugin_path && !ctx->config.plugin_path) ||
        (c->codec && !ctx->model.codec_spec) || (c->strategy && !ctx->config.strategy_spec) ||
        (c->trace && !ctx->config.trace_path))
        return esp__fail(ctx, ESP_E_NOMEM, "out of memory");
    return ESP_OK;
}

ESP__FN esp_status esp__open_workers(esp_ctx *ctx, const esp_config *c) {
    int32_t locals = 0;
    for (int32_t r = 0; r < ctx->job.size; r++) locals += ctx->job.topo.machine_of[r] == ctx->job.topo.machine;
    int32_t n = (int32_t)c->cpu_workers, share = (int32_t)esp__cores() / locals;
    char most[32] = "";
    if (c->workers) {
        if (n) snprintf(most, sizeof most, "at most %d of ", (int)n);
        esp__log(ctx, ESP_LOG_INFO, "context", "%sthe OpenMP threads of a thread that waits compress", most);
        return esp__workers_open_omp(ctx, n, esp__executor_offer, &ctx->base.workers);
    }
    if (!n) n = share > 0 ? share : 1;
    esp__log(ctx, ESP_LOG_INFO, "context", "%d compression worker(s)", (int)n);
    return esp__workers_open(ctx, n, &ctx->base.workers);
}

/* If a rank has fewer than two cores, the program's threads compress and communicate, inside calls such as esp_wait;
 * otherwise threads of the library do. esp_config.progress can choose. */
ESP__FN esp_status esp__open_progress(esp_ctx *ctx, const esp_config *c) {
    const bool openmp = c->workers != NULL, few = ctx->job.cores < 2 * ctx->job.sharing;
    bool only = false;
    for (uint32_t k = 0; k < ESP__SCOPES; k++)
        only |= ctx->job.comms[k].handle && ctx->job.comms[k].backend->caps & ESP_BACKEND_CALLER;
    if (only && (openmp || (c->progress && strcmp(c->progress, "caller") != 0)))
        return esp__fail(ctx, ESP_E_ARG,
                         "%s does not work with a backend that only the trainer's threads may call: leave it out, or "
                         "let MPI be called by any thread (MPI_Init_thread with MPI_THREAD_MULTIPLE)",
                         openmp ? "workers \"openmp\"" : "progress \"threads\"");
    const bool caller = only || (c->progress ? !strcmp(c->progress, "caller") : few && !openmp);
    if (caller && openmp)
        return esp__fail(ctx, ESP_E_ARG,
                         "progress \"caller\" does not work with workers \"openmp\", whose loops run on a thread that "
                         "waits: leave one of them out");
    ctx->lanes.caller_drives = caller;
    ctx->lanes.caller_only = only;
    esp__log(ctx, ESP_LOG_INFO, "context", "%s run the ops: %u rank(s) share %u core(s)",
             caller ? "the trainer's calls" : "threads of the library", ctx->job.sharing, ctx->job.cores);
    return ESP_OK;
}

typedef struct esp__opening {
    const esp_config *config;
    esp__where where;
    pid_t process; /* a forked child inherits the list, but not the threads */
    struct esp__opening *next;
} esp__opening;
static esp__opening *esp__openings;
static pthread_mutex_t esp__openings_lock = PTHREAD_MUTEX_INITIALIZER;

/* Does `o` open the same rank at the same meeting point as another call in progress? */
static bool esp__opening_twice(const esp__opening *o) {
    const esp__opening *p = esp__openings;
    for (; p; p = p->next)
        if (p->process == o->process && p->where.rank == o->where.rank && !strcmp(p->where.root, o->where.root) &&
            p->config->oob_allgather == o->config->oob_allgather && p->config->oob_user == o->config->oob_user)
            break;
    return p != NULL;
}

/* Fails if another thread is opening a context of the same job: the two might be opened in the other order on another
 * rank, and contexts that do not belong together would be connected. */
static esp_status esp__opening_begin(esp_ctx *ctx, esp__opening *o) {
    pthread_mutex_lock(&esp__openings_lock);
    const bool twice = o->where.size > 1 && esp__opening_twice(o);
    o->next = esp__openings;
    if (!twice) esp__openings = o;
    pthread_mutex_unlock(&esp__openings_lock);
    return twice ? esp__fail(ctx, ESP_E_STATE,
                             "esp_open: another thread is opening a context of this job: open contexts one after "
                             "another, in the same order on all ranks, or give each its own esp_config.root")
                 : ESP_OK;
}

static void esp__opening_end(const esp__opening *o) {
    pthread_mutex_lock(&esp__openings_lock);
    esp__opening **at = &esp__openings;
    while (*at && *at != o) at = &(*at)->next;
    if (*at) *at = o->next;
    pthread_mutex_unlock(&esp__openings_lock);
}

/* Stores what joining ranks and esp_shrink need later. */
static esp_status esp__open_settings(esp_ctx *ctx, const char *spec, const esp__env_links *links,
                                     const esp__comm_plan plans[ESP__SCOPES], const esp__where *w) {
    const char *and = *links->outer ? " and " : *links->inter ? "" : "none";
    char text[4 * ESP__SPEC_MAX];
    snprintf(text, sizeof text, "backend %s, link %s%s%s", spec ? spec : plans[ESP__FLAT].backend->name, links->inter,
             and, links->outer);
    memcpy(ctx->config.plans, plans, sizeof ctx->config.plans);
    ctx->config.where = *w;
    ctx->config.settings = esp__strdup(ctx, text);
    return ctx->config.settings ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "out of memory");
}

static esp_status esp__open_job(esp_ctx *ctx, const esp_config *c, esp__where *w) {
    const esp__env_links links = esp__env_links_get();
    esp__comm_plan plans[ESP__SCOPES];
    esp_config met = *c;
    const char *spec = c->backend;
    uint64_t number = 0;
    bool one_host = true;
    const esp__peers_events ev = esp__open_events(ctx);
    ctx->job.rank = ctx->base.rank = w->rank;
    ctx->job.silent = -1;
    static int names_checked;
    if (ctx->job.rank == 0 && !__atomic_exchange_n(&names_checked, 1, __ATOMIC_RELAXED)) esp__env_check_names(ctx);
    esp__tokens_open(ctx);
    esp_status s = esp__builtins_add(ctx, c);
    if (!s) s = esp__backends_choose(ctx, &spec, w, &links, plans);
    if (!s) s = esp__backends_meet(ctx, plans, w, &met);
    ctx->job.rank = ctx->base.rank = w->rank;
    ctx->job.size = ctx->base.size = w->size;
    if (!s) s = esp__peers_open(ctx, &met, w, &ev, &ctx->job.peers);
    if (!s) s = esp__open_settings(ctx, spec, &links, plans, w);
    if (!s) s = esp__job_introduce(ctx, &ctx->job, w, ctx->config.settings, &number, &one_host);
    if (!s) s = esp__standby_open(ctx, number, one_host, &ctx->job.standby);
    if (s) return s;
    s = esp__open_workers(ctx, c);
    if (!s) s = esp__comms_open(ctx, plans);
    if (!s) s = esp__open_progress(ctx, c);
    if (!s) s = esp__executor_open(ctx);
    if (!s)
        esp__log(ctx, ESP_LOG_INFO, "context", "rank %d of %d (from %s), machine %d of %d, backend %s", ctx->job.rank,
                 ctx->job.size, w->launcher ? w->launcher : "?", ctx->job.topo.machine, ctx->job.topo.n_machines,
                 ctx->job.backend->name);
    return s;
}

/* With ESP_JOIN. The rank joins in esp_start, when its tensors are known (reconfigure.c). */
static esp_status esp__open_joining(esp_ctx *ctx, const esp_config *c, esp__where *w) {
    const esp__env_links links = esp__env_links_get();
    esp__comm_plan plans[ESP__SCOPES];
    const char *spec = c->backend;
    if (c->oob_allgather || !*w->join)
        return esp__fail(ctx, ESP_E_ARG, "ESP_JOIN: %s",
                         c->oob_allgather ? "a rank that joins meets the job at an address: leave oob_allgather NULL"
                                          : "give the job's address in esp_config.root or ESPRESSO_ROOT");
    w->rank = 0, w->size = 1;
    ctx->job.silent = -1;
    ctx->job.levels = w->n_levels;
    esp__tokens_open(ctx);
    esp_status s = esp__builtins_add(ctx, c);
    if (!s) s = esp__backends_choose(ctx, &spec, w, &links, plans);
    for (uint32_t k = 0; k < ESP__SCOPES && !s; k++)
        if (plans[k].backend && ESP_HAS(esp_backend, plans[k].backend, meet))
            s = esp__fail(ctx, ESP_E_UNSUPPORTED,
                          "ESP_JOIN: no rank can join a job on backend '%s': start the job with backend gloo or shm",
                          plans[k].backend->name);
    if (!s) s = esp__open_settings(ctx, spec, &links, plans, w);
    if (s) return s;
    ctx->joining = esp__alloc(ctx, sizeof *ctx->joining);
    if (!ctx->joining) return esp__fail(ctx, ESP_E_NOMEM, "out of memory");
    ctx->joining->cpu_workers = c->cpu_workers;
    ctx->joining->workers = c->workers;
    if (c->progress) ctx->joining->progress = strcmp(c->progress, "caller") ? "threads" : "caller";
    ctx->joining->timeout_ms = ctx->config.timeout_ms;
    return ESP_OK;
}

static esp_status esp__open_all(esp_ctx *ctx, const esp_config *c) {
    esp__where w;
    esp_status s = esp__open_config(ctx, c);
    if (!s) s = esp__env_where(c, &w);
    if (s) return s;
    if (c->flags & ESP_JOIN) return esp__open_joining(ctx, c, &w);
    esp__opening o = {c, w, getpid(), NULL};
    s = esp__opening_begin(ctx, &o);
    if (s) return s;
    s = esp__open_job(ctx, c, &w);
    esp__opening_end(&o);
    return s;
}

/* Makes esp__alloc use the allocator in `first` to allocate the context itself. */
static esp_ctx *esp__ctx_of(esp__base *first) { return (esp_ctx *)(void *)first; }

static esp_ctx *esp__ctx_new(const esp_host *user) {
    esp__base first = {.user_host = user};
    esp_ctx *ctx = esp__alloc(esp__ctx_of(&first), sizeof *ctx);
    if (!ctx) return NULL;
    ctx->base.user_host = user;
    esp__process_open(&ctx->config.opened_by);
    ctx->health.left_rank = -1;
    ctx->steps.loss = NAN;
    ctx->steps.weight = ctx->steps.factor = 1.0f;
    ctx->job.size = ctx->base.size = 1;
    esp__base_parts(ctx);
    pthread_mutex_init(&ctx->lanes.lock, NULL);
    esp__cond_init(&ctx->lanes.done_cv);
    esp__cond_init(&ctx->lanes.cpu_cv);
    esp__cond_init(&ctx->lanes.link_cv);
    esp__host_init(&ctx->host, ctx);
    ctx->host.codec_open = esp__host_codec_open;
    ctx->host.codec_close = esp__host_codec_close;
    ctx->host.device = esp__host_device;
    ctx->host.own_thread = esp__host_own_thread;
    ctx->host.alloc = esp__host_alloc_on;
    ctx->host.free_ = esp__host_free_on;
    ctx->registry.host = &ctx->host;
    return ctx;
}

/* If the program has closed stdin, stdout or stderr, a socket of the library would get that number, and what the
 * program writes to stdout or stderr would be sent to another rank. So /dev/null takes their place. */
static void esp__standard_files_open(void) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) return;
}

static esp_status esp__open_with(const esp_config *cfg, bool alone, esp_ctx **out) {
    esp_config c;
    esp_status s = esp__env_config(cfg, &c);
    *out = NULL;
    if (s) return s;
    if (c.flags & ESP_JOIN) c.rank = c.size = 0; /* the job will say */
    esp__standard_files_open();
    esp_ctx *ctx = esp__ctx_new(c.host);
    if (!ctx) return esp__fail(NULL, ESP_E_NOMEM, "out of memory");
    s = esp__devices_init(ctx);
    if (!s) s = alone ? esp__open_config(ctx, &c) : esp__open_all(ctx, &c);
    if (!s && alone) s = esp__builtins_add(ctx, &c);
    if (s) {
        char text[ESP__ERROR_MAX]; /* a copy, because esp_close may replace the text */
        snprintf(text, sizeof text, "%s", esp_last_error(ctx));
        esp_close(ctx);
        return esp__fail(NULL, s, "%s", text);
    }
    *out = ctx;
    return ESP_OK;
}

ESPRESSO_API esp_status esp_open(const esp_config *cfg, esp_ctx **out) {
    return out ? esp__open_with(cfg, false, out) : esp__fail(NULL, ESP_E_ARG, "esp_open: out is NULL");
}

ESP__FN esp_status esp__open_alone(esp_ctx **out) { return esp__open_with(NULL, true, out); }

static void esp__observers_list(esp__observers *o) {
    o->table[ESP__OBSERVE_TRACE] = esp__trace_observer();
    o->table[ESP__OBSERVE_ERRORS] = esp__errors_observer();
    o->table[ESP__OBSERVE_GROWTH] = esp__growth_observer();
    o->table[ESP__OBSERVE_STRAGGLERS] = esp__stragglers_observer();
    o->table[ESP__OBSERVE_PROFILE] = esp__profile_observer();
    o->table[ESP__OBSERVE_STATS] = esp__stats_observer();
    o->table[ESP__OBSERVE_AUTO] = esp__auto_observer();
}

static esp_status esp__first_strategy(esp_ctx *ctx, const char **spec) {
    *spec = ctx->config.strategy_spec;
    if (!ctx->observers.table[ESP__OBSERVE_AUTO] && esp__auto_asked(*spec))
        return esp__fail(
            ctx, ESP_E_UNSUPPORTED,
            "strategy auto is not in this build (ESP_NO_PLANNER): compile espresso.c without that define, or link "
            "libespresso; or use fp32, layerwise or a strategy file, which `espresso plan -o FILE` writes");
    if (ctx->outer && ctx->outer->late.window_ns && esp__auto_asked(*spec))
        return esp__fail(ctx, ESP_E_UNSUPPORTED,
                         "outer: window cannot be set together with strategy auto: ranks exchange times at once, which "
                         "a late rank would hold up; use a file that `espresso plan --outer every=1..500 -o FILE` "
                         "writes, or fp32 or layerwise");
    return esp__observers_strategy(ctx, spec);
}

/* ---- closing ---- */
static void esp__leave(esp_ctx *ctx) {
    esp__final *f = &ctx->job.last;
    const esp_status why = ctx->health.fatal; /* not reported if a lost rank is the cause */
    if (why != ESP_E_PEER && why != ESP_E_TIMEOUT) esp__peers_cause(ctx->job.peers, why);
    esp__peers_close(ctx->job.peers, ctx->job.rank ? f->data : NULL, ctx->job.rank ? f->bytes : 0, f->collect, f->user);
    ctx->job.peers = NULL;
    esp__standby_close(ctx, ctx->job.standby);
    ctx->job.standby = NULL;
    esp__joins_close(ctx, ctx->job.joins);
    ctx->job.joins = NULL;
    if (f->done) f->done(f->user);
    esp__free(ctx, f->data);
}

ESP__FN void esp__topology_free(esp_ctx *ctx, esp__topology *t) {
    esp__free(ctx, t->machine_of);
    esp__free(ctx, t->local_of);
    esp__free(ctx, t->unit_of);
    esp__free(ctx, t->place);
    esp__free(ctx, t->ranks);
    memset(t, 0, sizeof *t);
}

static void esp__tensor_texts_free(esp_ctx *ctx, esp__tensor *t) {
    esp__free(ctx, t->name);
    esp__free(ctx, t->codec_override);
    esp__free(ctx, t->option_override);
    esp__free(ctx, t->gather_spec);
}

static void esp__tensors_free(esp_ctx *ctx) {
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        esp__device_give(ctx, t->device, t->pending_residual, t->count * 4u, ESP_MEM_DEVICE);
        esp__device_give(ctx, t->device, t->pending_before, t->count * 4u, ESP_MEM_DEVICE);
        esp__device_give(ctx, t->device, t->zeros, t->count * esp_dtype_bytes(t->dtype), ESP_MEM_DEVICE);
        esp__device_event_free(esp__device_at(ctx, t->device), t->pushed);
        esp__tensor_texts_free(ctx, t);
    }
    esp__free(ctx, ctx->model.tensors);
    esp__free(ctx, ctx->model.names);
}

ESPRESSO_API void esp_close(esp_ctx *ctx) {
    if (!ctx) return;
    if (!esp__process_same(&ctx->config.opened_by)) return; /* the threads do not exist after a fork */
    if (ctx->outer) esp__outer_quiet(ctx);                  /* other ranks may need what is under way */
    if (ctx->lanes.threads) esp__executor_close(ctx);
    esp__observers_close(ctx);
    esp__leave(ctx);
    esp__arenas_withdraw(ctx, &ctx->active);
    esp__comms_close(ctx);
    for (uint32_t k = 1; k < ctx->devices.n; k++) /* a device may still run an unfinished step */
        if (ctx->devices.open[k].used) esp__device_settle(ctx, k);
    esp__active_free(ctx, &ctx->active);
    esp__gather_close(ctx);
    esp__outer_close(ctx);
    esp__tensors_free(ctx);
    for (uint32_t i = 0; i < ctx->registry.n_opened; i++) esp__codec_free(ctx, ctx->registry.opened[i]);
    esp__free(ctx, ctx->registry.opened);
    esp__workers_close(ctx->base.workers);
    esp__topology_free(ctx, &ctx->job.topo);
    esp__free(ctx, ctx->job.room);
    esp__free(ctx, ctx->joining);
    esp__free(ctx, ctx->config.settings);
    esp__free(ctx, ctx->config.plugin_path);
    esp__free(ctx, ctx->model.codec_spec);
    esp__free(ctx, ctx->config.strategy_spec);
    esp__free(ctx, ctx->config.trace_path);
    esp__free(ctx, ctx->config.stats_spec);
    esp__paths_release(ctx);
    esp__devices_close(ctx);
    esp__registry_free(ctx);
    pthread_mutex_destroy(&ctx->lanes.lock);
    pthread_cond_destroy(&ctx->lanes.done_cv);
    pthread_cond_destroy(&ctx->lanes.cpu_cv);
    pthread_cond_destroy(&ctx->lanes.link_cv);
    esp__process_close(&ctx->config.opened_by);
    esp__base last = {.user_host = ctx->base.user_host};
    esp__free(esp__ctx_of(&last), ctx);
}

/* ---- tensors, start ---- */
static uint64_t esp__name_key(const char *name) { return esp__hash64(ESP__HASH0, name, strlen(name)); }

/* Returns the name's slot in the hash table, or the empty slot where it belongs. */
static uint32_t *esp__name_slot(const esp__model *m, const char *name, uint64_t key) {
    for (uint64_t k = key;; k++) {
        uint32_t *slot = &m->names[k & (m->n_names - 1)];
        const esp__tensor *t = *slot ? &m->tensors[*slot - 1] : NULL;
        if (!t || (t->key == key && !strcmp(t->name, name))) return slot;
    }
}

/* Makes room for one more name. At least half of the table stays empty. */
static bool esp__names_grow(esp_ctx *ctx) {
    esp__model *m = &ctx->model, grown = *m;
    if (2 * (m->n_tensors + 1) <= m->n_names) return true;
    grown.n_names = m->n_names ? 2 * m->n_names : 64;
    grown.names = esp__alloc(ctx, (uint64_t)grown.n_names * sizeof *grown.names);
    if (!grown.names) return false;
    for (uint32_t i = 0; i < m->n_tensors; i++) *esp__name_slot(&grown, m->tensors[i].name, m->tensors[i].key) = i + 1;
    esp__free(ctx, m->names);
    *m = grown;
    return true;
}

static esp_status esp__tensor_check(const esp_ctx *ctx, const esp_tensor_desc *d) {
    if (!d->name || !*d->name) return esp__fail(ctx, ESP_E_ARG, "tensor %u: it needs a name", ctx->model.n_tensors);
    if (strlen(d->name) >= ESP__SPEC_MAX)
        return esp__fail(ctx, ESP_E_ARG, "tensor %u: the name is too long", ctx->model.n_tensors);
    for (const char *p = d->name; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == '#')
            return esp__fail(ctx, ESP_E_ARG, "tensor '%s': a name must not contain blanks, '#' or control characters",
                             d->name);
    const uint32_t *same = ctx->model.n_names ? esp__name_slot(&ctx->model, d->name, esp__name_key(d->name)) : NULL;
    if (same && *same)
        return esp__fail(ctx, ESP_E_ARG, "tensor '%s' was already added, as tensor %u: names must be unique", d->name,
                         *same - 1);
    if (!d->count)
        return esp__fail(ctx, ESP_E_ARG, "tensor '%s': count is 0: give its number of elements, or leave it out",
                         d->name);
    if (d->count > UINT64_MAX / 64) return esp__fail(ctx, ESP_E_ARG, "tensor '%s': count is too large", d->name);
    if (d->dtype > ESP_BF16)
        return esp__fail(ctx, ESP_E_ARG, "tensor '%s': dtype %u is none of ESP_F32, ESP_F16, ESP_BF16", d->name,
                         d->dtype);
    if ((d->rows || d->cols) && (!d->cols || d->count % d->cols || d->count / d->cols != d->rows))
        return esp__fail(ctx, ESP_E_ARG,
                         "tensor '%s': rows x cols is %llu x %llu, but count is %llu: the product must be count, or "
                         "both 0 where it is no matrix",
                         d->name, (unsigned long long)d->rows, (unsigned long long)d->cols,
                         (unsigned long long)d->count);
    if (d->flags & ~(uint32_t)(ESP_SUM | ESP_RAW | ESP_SHARD))
        return esp__fail(ctx, ESP_E_ARG,
                         "tensor '%s': flags is %u: known are ESP_SUM (%u), ESP_RAW (%u) and ESP_SHARD (%u); was the "
                         "struct zeroed (esp_tensor_desc desc = ESP_ZERO)?",
                         d->name, (unsigned)d->flags, (unsigned)ESP_SUM, (unsigned)ESP_RAW, (unsigned)ESP_SHARD);
    if (d->flags & ESP_RAW && d->codec && strcmp(d->codec, ESP__CODEC_NONE))
        return esp__fail(ctx, ESP_E_ARG,
                         "tensor '%s': codec is '%s', but flags have ESP_RAW (never compressed): leave one of them out",
                         d->name, d->codec);
    if (d->gather && !(d->flags & ESP_SHARD))
        return esp__fail(ctx, ESP_E_ARG,
                         "tensor '%s': gather is '%s', but the tensor is not sharded: set ESP_SHARD in its flags, or "
                         "leave gather NULL",
                         d->name, d->gather);
    return ESP_OK;
}

/* If the host can access the device's memory, the tensor is treated as one of the CPU. */
static esp_status esp__tensor_device(esp_ctx *ctx, esp__tensor *t) {
    char who[ESP__SPEC_MAX + 16];
    uint32_t index;
    snprintf(who, sizeof who, "tensor '%s'", t->name);
    esp_status s = esp__device_open(ctx, t->where, who, &index);
    if (s || esp__device_at(ctx, index)->table->caps & ESP_DEVICE_HOST_ACCESS) return s;
    const esp__device *d = esp__device_at(ctx, index);
    t->device = index;
    s = esp__device_use(ctx, index, ctx->job.levels, who);
    if (!s) s = esp__device_event(d, false, &t->pushed);
    return s ? esp__fail(ctx, s, "%s: device %s:%d gives no streams or events", who, d->table->name, (int)d->id.ordinal)
             : ESP_OK;
}

ESPRESSO_API esp_status esp_tensor_add(esp_ctx *ctx, const esp_tensor_desc *desc, uint32_t *id) {
    esp_tensor_desc d;
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (!desc) return esp__fail(ctx, ESP_E_ARG, "esp_tensor_add: the description is NULL");
    if (ctx->started) return esp__fail(ctx, ESP_E_STATE, "esp_tensor_add: tensors must be added before esp_start");
    memset(&d, 0, sizeof d);
    memcpy(&d, desc, desc->struct_size && desc->struct_size < sizeof d ? desc->struct_size : sizeof d);
    if (!d.dtype) d.dtype = ESP_F32;
    if (d.codec && !*d.codec) d.codec = NULL;
    if (d.option && !*d.option) d.option = NULL;
    if (d.gather && !*d.gather) d.gather = NULL;
    s = esp__tensor_check(ctx, &d);
    if (s) return s;
    if (ctx->model.n_tensors == ctx->model.cap_tensors) {
        uint64_t cap = (uint64_t)ctx->model.cap_tensors * sizeof *ctx->model.tensors;
        esp__tensor *grown =
            esp__grow(ctx, ctx->model.tensors, &cap, ((uint64_t)ctx->model.cap_tensors + 16) * sizeof *grown);
        if (!grown) return esp__fail(ctx, ESP_E_NOMEM, "tensor '%s': out of memory", d.name);
        ctx->model.tensors = grown;
        ctx->model.cap_tensors = (uint32_t)(cap / sizeof *grown);
    }
    if (!esp__names_grow(ctx)) return esp__fail(ctx, ESP_E_NOMEM, "tensor '%s': out of memory", d.name);
    esp__tensor *t = &ctx->model.tensors[ctx->model.n_tensors];
    memset(t, 0, sizeof *t);
    t->name = esp__strdup(ctx, d.name);
    t->codec_override = esp__strdup(ctx, d.codec);
    t->option_override = esp__strdup(ctx, d.option);
    t->gather_spec = esp__strdup(ctx, d.gather);
    if (!t->name || (d.codec && !t->codec_override) || (d.option && !t->option_override) ||
        (d.gather && !t->gather_spec)) {
        esp__tensor_texts_free(ctx, t);
        return esp__fail(ctx, ESP_E_NOMEM, "tensor '%s': out of memory", d.name);
    }
    t->key = esp__name_key(d.name);
    t->count = d.count, t->rows = d.rows, t->cols = d.cols;
    t->dtype = d.dtype;
    t->flags = d.flags;
    t->where = d.device;
    if (d.device.kind > ESP_CPU) s = esp__tensor_device(ctx, t);
    if (s) {
        esp__tensor_texts_free(ctx, t);
        return s;
    }
    if (id) *id = ctx->model.n_tensors;
    *esp__name_slot(&ctx->model, t->name, t->key) = ++ctx->model.n_tensors;
    return ESP_OK;
}

static void esp__memory_log(const esp_ctx *ctx) {
    const esp__active *f = &ctx->active;
    const double mib = 1048576.0, rest = (double)(f->memory_bytes - f->slots_bytes - f->feedback_bytes);
    esp_stats all;
    memset(&all, 0, sizeof all);
    esp__comms_traffic(ctx, &all);
    esp__log(ctx, ESP_LOG_INFO, "memory",
             "of this rank, at most: %.1f MiB for payloads and groups (an op handles up to %u payloads), %.1f MiB for "
             "residuals and codecs' state, %.1f MiB else; the backends take %.1f MiB",
             (double)f->slots_bytes / mib, f->program.max_payloads, (double)f->feedback_bytes / mib, rest / mib,
             (double)all.backend_bytes / mib);
}

ESPRESSO_API esp_status esp_start(esp_ctx *ctx) {
    esp_status s = esp__usable(ctx);
    if (s) return s;
    if (ctx->started) return esp__fail(ctx, ESP_E_STATE, "esp_start was already called");
    s = ctx->joining ? ESP_OK : esp__alive(ctx);
    if (s) return s;
    s = ctx->model.n_tensors ? ESP_OK
                             : esp__fail(ctx, ESP_E_STATE,
                                         "esp_start: no tensor was added: call esp_tensor_add for each gradient first");
    const char *spec = NULL;
    esp__observers_list(&ctx->observers);
    if (!s && ctx->outer) s = esp__outer_start(ctx);
    if (ctx->joining) {
        if (!s) s = esp__outer_parts(ctx); /* whole: no rank can join a job with parts */
        if (!s) s = esp__join_start(ctx);
    } else {
        if (!s) s = esp__first_strategy(ctx, &spec);
        s = esp__activate(ctx, s, spec, true);
        if (!s) s = esp__agree_ok(ctx, esp__outer_parts(ctx));
        if (!s) s = esp__agree_ok(ctx, esp__gather_open(ctx));
        if (!s) s = esp__agree_ok(ctx, esp__observers_open(ctx));
    }
    if (s) {
        esp__observers_close(ctx);
        return s;
    }
    ctx->registry.frozen = 1;
    ctx->steps.stats.memory_bytes = ctx->active.memory_bytes;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->started = 1;
    ctx->steps.clock.next_ns = esp__now_ns();
    pthread_mutex_unlock(&ctx->lanes.lock);
    esp__log(ctx, ESP_LOG_INFO, "start", "%u tensors in %u units, %u ops a step, %.1f MiB taken, strategy %016llx",
             ctx->model.n_tensors, ctx->active.strategy.n_units, ctx->active.program.n_ops,
             (double)ctx->active.memory_bytes / 1048576.0, (unsigned long long)ctx->active.strategy.hash);
    esp__memory_log(ctx);
    return ESP_OK;
}

/* ---- change of strategy ---- */
ESPRESSO_API esp_status esp_strategy_set(esp_ctx *ctx, const char *text) {
    esp_status s = esp__between_steps(ctx, "esp_strategy_set");
    if (s) return s;
    if (!ctx->started)
        return esp__fail(ctx, ESP_E_STATE, "esp_strategy_set: call esp_start first (or set esp_config.strategy)");
    if (!text) return esp__fail(ctx, ESP_E_ARG, "esp_strategy_set: the text is NULL");
    char *copy = esp__strdup(ctx, text); /* `text` may be the active strategy's, which is freed */
    s = copy ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    s = esp__activate(ctx, s, copy, false);
    esp__free(ctx, copy);
    if (!s) esp__observers_activated(ctx);
    return s;
}

/* ---- getters ---- */
ESPRESSO_API const char *esp_strategy_text(const esp_ctx *ctx) {
    return ctx && ctx->active.strategy.text ? ctx->active.strategy.text : "";
}
ESPRESSO_API int32_t esp_rank(const esp_ctx *ctx) { return ctx->job.rank; }
ESPRESSO_API int32_t esp_size(const esp_ctx *ctx) { return ctx->job.size; }
ESPRESSO_API int32_t esp_machine(const esp_ctx *ctx) { return ctx->job.topo.machine; }
ESPRESSO_API int32_t esp_machines(const esp_ctx *ctx) { return ctx->job.topo.n_machines; }
ESPRESSO_API esp_status esp_plugin_load(esp_ctx *ctx, const char *path_or_name) {
    esp_status s = esp__usable(ctx);
    return s ? s : esp__plugin_load(ctx, path_or_name);
}
