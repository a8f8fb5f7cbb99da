/* reconfigure.c: esp_reconfigure, by which a job goes on with the ranks that are there now, and the other end of it, a
 * rank that joins in esp_start. Lost ranks are left to esp_shrink. If ranks join, all ranks meet again (job/join.c),
 * and exchange where they run. Until this has succeeded, the members keep what they had, and go on with that if a
 * joining rank fails. */
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/outer.h"
#include "espresso_impl/context/state.h"
#include "espresso_impl/observe/observe.h"

/* ---- what ranks must have alike ---- */
static void esp__describe(const esp_ctx *ctx, const char *strategy, esp__text *t) {
    esp__text_add(t, "%s, ABI %u\n", ctx->config.settings, ESP_ABI_MAJOR);
    esp__text_add(t, "codec %s for tensors of %llu elements or more, strategy %s\n",
                  ctx->model.codec_spec ? ctx->model.codec_spec : "none",
                  (unsigned long long)ctx->model.min_compress_elements, strategy);
    esp__text_add(t, "seed %llu, flags %u\n", (unsigned long long)ctx->config.seed,
                  ctx->config.flags & ESP_DISCARDABLE);
    esp__text_add(t, "%s", ctx->outer ? "" : "no outer loop\n");
    esp__outer_agree(ctx, t);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *x = &ctx->model.tensors[i];
        esp__agree_tensor(ctx, i, t);
        esp__text_add(t, ", codec %s, option %s\n", x->codec_override ? x->codec_override : "",
                      x->option_override ? x->option_override : "");
    }
}

static esp_status esp__described(esp_ctx *ctx, esp__text *t) {
    return t->failed ? esp__fail(ctx, ESP_E_NOMEM, "no memory to describe %u tensors", ctx->model.n_tensors) : ESP_OK;
}

/* ---- the ranks ---- */
/* What ranks have from their last meeting. */
typedef struct esp__met {
    int32_t rank, size;
    uint32_t cores, sharing, levels;
    esp__peers *peers;
    esp__standby *standby;
    esp__topology topo;
    void *room;
} esp__met;

static esp__met esp__met_of(const esp_ctx *ctx) {
    const esp__job *j = &ctx->job;
    return (esp__met){j->rank, j->size, j->cores, j->sharing, j->levels, j->peers, j->standby, j->topo, j->room};
}

static void esp__met_set(esp_ctx *ctx, const esp__met *m) {
    esp__job *j = &ctx->job;
    if (j->rank != m->rank) j->rank = ctx->base.rank = m->rank; /* the old watch thread may read it */
    j->size = ctx->base.size = m->size;
    j->cores = m->cores, j->sharing = m->sharing, j->levels = m->levels;
    j->peers = m->peers, j->standby = m->standby, j->topo = m->topo, j->room = m->room;
}

static void esp__met_free(esp_ctx *ctx, esp__met *m) {
    esp__peers_drop(m->peers);
    esp__standby_close(ctx, m->standby);
    esp__topology_free(ctx, &m->topo);
    esp__free(ctx, m->room);
}

/* Ranks exchange over new connections where they run, and open the sockets at which they meet after a loss. */
static esp_status esp__meet_again(esp_ctx *ctx, esp__peers *peers, int32_t rank, int32_t size) {
    const esp__met m = {.rank = rank, .size = size, .peers = peers};
    esp__where w = ctx->config.where;
    uint64_t number = 0;
    bool one_host = true;
    w.rank = rank;
    w.size = size;
    esp__met_set(ctx, &m);
    esp_status s = peers ? esp__peers_watch(peers) : ESP_PENDING;
    if (!s) s = esp__job_introduce(ctx, &ctx->job, &w, ctx->config.settings, &number, &one_host);
    return s ? s : esp__standby_open(ctx, number, one_host, &ctx->job.standby);
}

/* ---- anchors and momenta ---- */
/* Returns the rank that sends them to rank r: the first of the `members` on r's machine, else in r's rack, else rank
 * 0. */
static int32_t esp__nearest(const esp__topology *t, int32_t members, int32_t r) {
    for (uint32_t level = 1; level < t->n_levels; level++) {
        const int32_t *unit = t->unit_of + (uint64_t)(level - 1) * (uint64_t)t->size;
        for (int32_t q = 0; q < members; q++)
            if (unit[q] == unit[r]) return q;
    }
    return 0;
}

static bool esp__state_over(esp_ctx *ctx) { return esp__alive(ctx) != ESP_OK; }

typedef struct esp__buffer {
    uint8_t *data; /* NULL to count the bytes only */
    uint64_t bytes;
    esp_status status;
} esp__buffer;
static void esp__buffer_put(const esp_ctx *ctx, void *user, uint32_t device, const void *data, uint64_t bytes) {
    esp__buffer *b = user;
    if (b->data && !b->status)
        b->status = esp__device_copy(ctx, ESP__CPU_INDEX, b->data + b->bytes, device, data, bytes);
    b->bytes += esp__state_padded(bytes);
}

/* The first `members` ranks have the anchors and momenta; the others get them. The members that send nothing go on. */
static esp_status esp__state_share(esp_ctx *ctx, int32_t members) {
    const esp__job *j = &ctx->job;
    esp__buffer b = {NULL, 0, ESP_OK};
    int32_t n = 0;
    if (!ctx->outer) return ESP_OK;
    if (!esp__standby_ready(j->standby)) return esp__outer_shrunk(ctx);
    for (int32_t r = members; r < j->size; r++) n += esp__nearest(&j->topo, members, r) == j->rank;
    if (j->rank < members && !n) return ESP_OK;
    esp__outer_save(ctx, esp__buffer_put, &b);
    const uint64_t bytes = b.bytes;
    b.data = esp__alloc(ctx, bytes);
    b.bytes = 0;
    if (!b.data) return esp__fail(ctx, ESP_E_NOMEM, "no memory to send anchors and momenta");
    if (j->rank < members) {
        esp__outer_save(ctx, esp__buffer_put, &b);
        if (!b.status)
            b.status = esp__standby_put(ctx, j->standby, n, b.data, bytes, ctx->config.timeout_ms, esp__state_over);
    } else {
        b.status = esp__standby_get(ctx, j->standby, esp__nearest(&j->topo, members, j->rank), b.data, bytes,
                                    ctx->config.timeout_ms, esp__state_over);
        if (!b.status) b.status = esp__outer_check(ctx, b.data, bytes);
        if (!b.status) b.status = esp__outer_load(ctx, b.data);
    }
    esp__free(ctx, b.data);
    return b.status;
}

/* ---- members ---- */
static esp_status esp__reconfigure_check(esp_ctx *ctx, bool *lost) {
    static const char what[] = "esp_reconfigure";
    esp__outer_late_pause(ctx);
    pthread_mutex_lock(&ctx->lanes.lock);
    const esp_status fatal = ctx->health.fatal;
    const uint32_t waiters = ctx->lanes.waiters;
    *lost = ctx->health.shrinking || esp__shrink_lost(fatal);
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "%s: call esp_start first", what);
    if (waiters)
        return esp__fail(ctx, ESP_E_STATE, "%s: another thread still waits in this context: let it return first", what);
    esp_status s = ESP_OK;
    if (!*lost) s = esp__between_steps(ctx, what);
    if (!*lost && !s) s = esp__outer_between(ctx, what);
    if (s && !esp__shrink_lost(s)) return s;
    *lost |= s != ESP_OK;
    return esp__shrink_possible(ctx, what);
}

static esp_status esp__members_build(esp_ctx *ctx) {
    esp_status s = esp__shrink_connect(ctx);
    if (!s) s = esp__executor_open(ctx);
    if (!s) s = esp__shrink_activate(ctx, ctx->active.strategy.text);
    if (!s) s = esp__agree_ok(ctx, esp__observers_shrunk(ctx));
    if (!s) s = esp__shrink_weights(ctx);
    if (!s) esp__observers_activated(ctx);
    return s;
}

/* Takes in n ranks, or goes on without them if they fail. */
static esp_status esp__take_in(esp_ctx *ctx, esp__peers *peers, int32_t n) {
    esp__met was = esp__met_of(ctx), next;
    const esp_status *all = was.room;
    const int32_t was_size = was.size;
    esp__peers_report_off(was.peers);
    esp__shrink_quiet(ctx);
    const esp_status met = esp__meet_again(ctx, peers, was.rank, was.size + n);
    esp_status s = esp__peers_allgather(was.peers, NULL, was.size, &met, was.room, sizeof met);
    bool grown = !s;
    for (int32_t r = 0; r < was.size && grown; r++) grown = !all[r];
    /* tells the joining ranks that they are taken in */
    if (grown) s = esp__agree_ok(ctx, ESP_OK);
    next = esp__met_of(ctx);
    esp__met_set(ctx, grown ? &next : &was);
    esp__met_free(ctx, grown ? &was : &next);
    esp__shrink_healthy(ctx);
    if (!s && !grown && ctx->job.rank == 0)
        esp__log(ctx, ESP_LOG_WARN, "join", "%d rank(s) failed while they joined: the job goes on without them: %s",
                 (int)n, esp_last_error(ctx));
    const int32_t members = grown ? was_size : ctx->job.size;
    if (grown) esp__outer_restart(ctx);
    if (!s) s = esp__members_build(ctx);
    if (!s) s = esp__state_share(ctx, members);
    if (!s) ctx->steps.stats.ranks_joined += (uint64_t)(ctx->job.size - members);
    esp__shrink_end(ctx, s);
    return s;
}

static esp_status esp__reconfigure(esp_ctx *ctx) {
    esp__job *j = &ctx->job;
    const bool by_auto =
        ctx->observers.self[ESP__OBSERVE_AUTO] != NULL || (ctx->outer && esp__outer_chooses(ctx->outer));
    const esp__admission offer = {.members = j->size,
                                  .step = ctx->steps.step,
                                  .rounds = ctx->steps.stats.outer_rounds,
                                  .weighted = ctx->steps.weighted,
                                  .compared = esp__outer_compared(ctx)};
    const uint64_t start = esp__now_ns();
    esp__text lines = {.ctx = ctx};
    esp__peers *peers = NULL;
    esp_status s = ESP_OK;
    int32_t n = 0;
    if (j->rank == 0) {
        esp__describe(ctx, by_auto ? "or rounds chosen by the library, so no rank can join: name them" : "", &lines);
        s = esp__described(ctx, &lines);
        if (!s) s = esp__joins_collect(ctx, &ctx->config.where, lines.data, &j->joins);
    }
    s = esp__joins_meet(j->joins, s, j->peers, esp__standby_one_host(j->standby), &offer, ctx->active.strategy.text, &n,
                        &peers);
    esp__text_free(&lines);
    if (s || !n) return s;
    s = esp__take_in(ctx, peers, n);
    if (!s && j->rank == 0)
        esp__log(ctx, ESP_LOG_INFO, "join", "%d ranks go on, after %.1f ms: step %llu, strategy %016llx", (int)j->size,
                 (double)(esp__now_ns() - start) / 1e6, (unsigned long long)ctx->steps.step,
                 (unsigned long long)ctx->active.strategy.hash);
    return s;
}

/* If ranks are lost, goes on without them first. They may be lost again and again. */
static esp_status esp__reconfigure_all(esp_ctx *ctx, bool lost) {
    char text[ESP__ERROR_MAX];
    for (int32_t tries = ctx->job.size; tries >= 0; tries--) {
        esp_status s = lost ? esp_shrink(ctx) : ESP_OK;
        if (!s) s = esp__reconfigure(ctx);
        if (!esp__shrink_lost(s)) return s;
        snprintf(text, sizeof text, "%s", esp_last_error(ctx));
        esp__fatal(ctx, s, text);
        lost = true;
    }
    return esp__dead(ctx);
}

ESPRESSO_API esp_status esp_reconfigure(esp_ctx *ctx) {
    bool lost = false;
    esp_status s = esp__usable(ctx);
    if (!s) s = esp__reconfigure_check(ctx, &lost);
    return s ? s : esp__reconfigure_all(ctx, lost);
}

/* ---- a rank that joins ---- */
/* Connects until the members have taken this rank in. */
static esp_status esp__join_meet(esp_ctx *ctx, const char *description, esp__admission *got, char **text) {
    const esp__peers_events ev = esp__open_events(ctx);
    const uint64_t deadline = esp__now_ns() + ctx->joining->timeout_ms * 1000000ull;
    const esp__met alone = {.size = 1, .levels = ctx->job.levels};
    for (;;) {
        esp__peers *peers;
        esp_status s =
            esp__join_job(ctx, ctx->joining, &ctx->config.where, description, deadline, &ev, got, text, &peers);
        if (s) return s;
        s = esp__meet_again(ctx, peers, got->rank, got->size);
        if (!s) s = esp__agree_ok(ctx, ESP_OK);
        if (!esp__shrink_lost(s) || esp__now_ns() >= deadline) return s;
        esp__met part = esp__met_of(ctx); /* another rank has failed meanwhile */
        esp__met_set(ctx, &alone);
        esp__met_free(ctx, &part);
        esp__shrink_healthy(ctx);
        esp__free(ctx, *text);
        *text = NULL;
    }
}

static esp_status esp__join_build(esp_ctx *ctx, int32_t members) {
    esp_status s = esp__shrink_connect(ctx);
    if (!s) s = esp__executor_open(ctx);
    if (!s) s = esp__shrink_activate(ctx, ctx->config.strategy_spec);
    if (!s) s = esp__agree_ok(ctx, esp__observers_open(ctx));
    if (!s) s = esp__shrink_weights(ctx);
    return s ? s : esp__state_share(ctx, members);
}

/* The members have taken this rank in, and will meet it again if another rank is lost now. */
static esp_status esp__join_go(esp_ctx *ctx, const esp__admission *got) {
    char text[ESP__ERROR_MAX];
    ctx->steps.step = got->step;
    ctx->steps.weighted = got->weighted != 0;
    ctx->steps.stats.outer_rounds = got->rounds;
    esp__outer_joined(ctx, got->compared != 0);
    ctx->observers.table[ESP__OBSERVE_PROFILE] = NULL; /* a profile of a job that has changed is not recorded */
    esp_status s = esp__join_build(ctx, got->members);
    if (!esp__shrink_lost(s)) return s;
    snprintf(text, sizeof text, "%s", esp_last_error(ctx));
    esp__fatal(ctx, s, text);
    ctx->started = true; /* for esp_shrink */
    s = esp__reconfigure_all(ctx, true);
    ctx->started = false;
    if (!s && ctx->job.rank == 0)
        s = esp__fail(ctx, ESP_E_PEER, "all ranks that had the job's state were lost while this rank joined");
    return s;
}

ESP__FN esp_status esp__join_start(esp_ctx *ctx) {
    const char *spec = ctx->config.strategy_spec;
    esp__text lines = {.ctx = ctx};
    esp__admission got = {0};
    char *text = NULL;
    esp_status s = esp__shrink_possible(ctx, "esp_start, with ESP_JOIN");
    if (!s) esp__describe(ctx, esp__auto_asked(spec) ? "auto" : "", &lines);
    if (!s) s = esp__described(ctx, &lines);
    if (!s) s = esp__join_meet(ctx, lines.data, &got, &text);
    esp__text_free(&lines);
    if (s) {
        esp__free(ctx, text);
        return s;
    }
    esp_config *c = ctx->joining;
    ctx->joining = NULL;
    esp__free(ctx, ctx->config.strategy_spec);
    ctx->config.strategy_spec = text; /* the job's */
    s = esp__open_workers(ctx, c);
    if (!s) s = esp__open_progress(ctx, c);
    esp__free(ctx, c);
    return s ? s : esp__join_go(ctx, &got);
}
