/* executor.c: runs the program. Three threads take part: the caller pushes and waits, the cpu thread runs the cpu and compute
 * lanes, and the link thread runs both link lanes. ctx->lanes.lock protects all shared state. A unit's memory belongs to the op
 * of its chain that is running. Allocates nothing. The dispatcher decides which op is next, and when its lane is free again. */
#include "espresso_impl/base/thread.h"
#include "espresso_impl/executor/executor.h"
#include <errno.h>
#include <sched.h>
#include <time.h>

enum { ESP__IDLE_YIELDS = 30, ESP__IDLE_LOOK_MS = 50 };
enum { ESP__PROGRESS_US = 5000 };

/* ---- failing --------------------------------------------------------------------------------------------------- */
ESP__FN void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text) {
    if (ctx->health.fatal) return;
    ctx->health.fatal = s;
    snprintf(ctx->health.fatal_text, sizeof ctx->health.fatal_text, "%.*s", (int)sizeof ctx->health.fatal_text - 1,
             text);
    esp__comms_abort(ctx);
    pthread_cond_broadcast(&ctx->lanes.done_cv);
    pthread_cond_broadcast(&ctx->lanes.cpu_cv);
    pthread_cond_broadcast(&ctx->lanes.link_cv);
}

ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text) {
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__fatal_locked(ctx, s, text);
    pthread_mutex_unlock(&ctx->lanes.lock);
}

/* ---- cpu and compute lanes ---------------------------------------------------------------------------------------- */
/* Sleeps until `cv` is signalled or esp__now_ns reaches `until` (0: no limit). Lock held. */
static int esp__sleep(esp_ctx *ctx, pthread_cond_t *cv, uint64_t until) {
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    return until ? pthread_cond_timedwait(cv, &ctx->lanes.lock, &t) : pthread_cond_wait(cv, &ctx->lanes.lock);
}

/* Waits for the next op; NULL: the context closes. Lock held. */
static const esp__op *esp__cpu_next(esp_ctx *ctx) {
    while (!ctx->lanes.stopping) {
        uint64_t until = 0;
        const esp__op *op = ctx->health.fatal ? NULL : ctx->lanes.dispatcher->next_cpu(ctx, &until);
        if (op) return op;
        if (!ctx->lanes.stopping) esp__sleep(ctx, &ctx->lanes.cpu_cv, until);
    }
    return NULL;
}

static void *esp__cpu_main(void *arg) {
    esp_ctx *ctx = arg;
    const esp__op *op;
    esp__workers_never_lend();
    pthread_mutex_lock(&ctx->lanes.lock);
    while ((op = esp__cpu_next(ctx)) != NULL) {
        ctx->lanes.cpu_busy = 1;
        if (op->device == ESP__DEV_GPU && !op->on && !ctx->health.said_no_gpu) {
            ctx->health.said_no_gpu = 1;
            esp__log(ctx, ESP_LOG_WARN, "executor",
                     "this machine has no GPU that the library can use: comp@gpu and "
                     "decomp@gpu run on the CPU workers");
        }
        pthread_mutex_unlock(&ctx->lanes.lock);
        uint64_t start = esp__now_ns();
        esp_status s = esp__op_run(ctx, op);
        uint64_t end = esp__now_ns();
        pthread_mutex_lock(&ctx->lanes.lock);
        ctx->lanes.cpu_busy = 0;
        if (s)
            esp__fatal_locked(ctx, s, esp_last_error(ctx));
        else
            ctx->lanes.dispatcher->ended(ctx, op, (esp__span){start, end});
        if (ctx->health.fatal) pthread_cond_broadcast(&ctx->lanes.done_cv);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    return NULL;
}

/* ---- link lanes ------------------------------------------------------------------------------------------------------ */
static esp_status esp__link_start(esp_ctx *ctx, int k, const esp__op *op) {
    esp__link *l = &ctx->lanes.links[k];
    esp_coll c = op->coll;
    esp_stream here = {{ESP_CPU, 0}, NULL};
    c.src.ptr = esp__at(ctx, op, op->src);
    c.dst.ptr = esp__at(ctx, op, op->dst);
    c.src.dev = c.dst.dev = esp__device_at(ctx, op->on)->id;
    l->comm = &ctx->job.comms[op->level];
    l->started_ns = esp__now_ns();
    if (op->on || ctx->in_force.strategy.units[op->unit].after) {
        esp_status s = esp__op_begin(ctx, op, ESP__ON_INTRA + k);
        if (s) return s;
        if (op->on) here = esp__device_at(ctx, op->on)->stream[ESP__ON_INTRA + k];
    }
    if (op->rebuild) esp__headers_hide(ctx, op);
    if (op->hops) c.hops = esp__hops_begin(ctx, l, op);
    return l->comm->backend->start(l->comm->handle, &c, here, &l->req);
}

/* Tests lane `k`'s request, and ends its op if it is complete. Lock not held. */
static esp_status esp__link_poll(esp_ctx *ctx, int k) {
    esp__link *l = &ctx->lanes.links[k];
    const esp__op *op = esp__link_head(ctx, k);
    esp_status s = l->comm->backend->test(l->comm->handle, l->req);
    if (s == ESP_PENDING) return s;
    l->req = NULL;
    if (s) return s;
    if (op->rebuild) esp__headers_show(ctx, op);
    if (op->on) {
        ctx->in_force.strategy.units[op->unit].after = NULL;
        if (l->comm->backend->caps & ESP_BACKEND_STREAM_ORDERED) s = esp__op_issued(ctx, op, ESP__ON_INTRA + k);
        if (s) return s;
    }
    uint64_t end = esp__now_ns();
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.dispatcher->ended(ctx, op, (esp__span){l->started_ns, end});
    pthread_mutex_unlock(&ctx->lanes.lock);
    return ESP_OK;
}

/* The backend failed. Usually a peer is gone, and the watch thread is about to report which. */
static void esp__link_failed(esp_ctx *ctx, const esp__comm *comm, esp_status s, const char *what) {
    char text[ESP__ERROR_MAX], detail[ESP__ERROR_MAX / 2];
    struct timespec pause = {0, 1000000};
    int known = 0;
    int32_t left = -1;
    snprintf(detail, sizeof detail, "%.500s", *esp__plugin_detail() ? esp__plugin_detail() : esp_status_text(s));
    for (int i = 0; i < 200 && s == ESP_E_PEER && !known && left < 0; i++) {
        if (i) nanosleep(&pause, NULL);
        pthread_mutex_lock(&ctx->lanes.lock);
        known = ctx->health.fatal != 0;
        left = ctx->health.left_rank;
        pthread_mutex_unlock(&ctx->lanes.lock);
    }
    if (left >= 0)
        snprintf(text, sizeof text, "rank %d left (it closed its context) while this rank waits for it", left);
    else
        snprintf(text, sizeof text, "%.200s: backend '%s': %s", what, comm->backend->name, detail);
    if (!known) esp__fatal(ctx, s, text);
}

static void esp__request_failed(esp_ctx *ctx, esp_status s) {
    esp__link_failed(ctx, &ctx->job.comms[ctx->lanes.request.level], s, "esp_broadcast or esp_allreduce");
}

static esp_status esp__request_start(esp_ctx *ctx) {
    esp_stream here = {{ESP_CPU, 0}, NULL};
    const esp__comm *comm = &ctx->job.comms[ctx->lanes.request.level];
    ctx->lanes.request.wanted = 0;
    ctx->lanes.request.started_ns = esp__now_ns();
    return comm->backend->start(comm->handle, &ctx->lanes.request.coll, here, &ctx->lanes.request.req);
}

static esp_status esp__request_poll(esp_ctx *ctx) {
    const esp__comm *comm = &ctx->job.comms[ctx->lanes.request.level];
    esp_status s = comm->backend->test(comm->handle, ctx->lanes.request.req);
    if (s == ESP_PENDING) return s;
    uint64_t now = esp__now_ns();
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.request.ended_ns = now;
    ctx->lanes.request.req = NULL;
    ctx->lanes.request.done = 1;
    ctx->lanes.request.status = s;
    pthread_cond_broadcast(&ctx->lanes.done_cv);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

/* Starts at most one op a lane, and a request. 1 if something was started: then more may be ready. `until`: as of next_link.
 * Lock held on entry and exit, but released in between. */
static int esp__links_start_some(esp_ctx *ctx, uint64_t *until) {
    int started = 0;
    *until = 0;
    for (int k = (int)ctx->job.topo.n_levels - 1; k >= 0 && !ctx->health.fatal; k--) {
        const esp__op *op = ctx->lanes.dispatcher->next_link(ctx, k, until);
        if (!op) continue;
        started = 1;
        for (int l = 0; l <= k; l++)
            if (op->links >> l & 1u) ctx->lanes.links[l].busy = 1;
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp__plugin_detail_clear();
        esp_status s = esp__link_start(ctx, k, op);
        if (s) ctx->lanes.links[k].req = NULL;
        if (s) esp__link_failed(ctx, ctx->lanes.links[k].comm, s, op->label);
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    if (ctx->lanes.request.wanted && !ctx->health.fatal) {
        started = 1;
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp_status s = esp__request_start(ctx);
        if (s) ctx->lanes.request.req = NULL;
        if (s) esp__request_failed(ctx, s);
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    return started;
}

/* Starts all ops that can start, those too that become ready meanwhile. 1 if anything is in flight. Lock held on entry and exit. */
static int esp__links_start(esp_ctx *ctx, uint64_t *until) {
    while (esp__links_start_some(ctx, until)) {
    }
    for (int k = 0; k < ESP__LEVELS; k++)
        if (ctx->lanes.links[k].req) return 1;
    return ctx->lanes.request.req != NULL;
}

/* Tests all requests. 1 if one of them completed or failed. Lock not held. */
static int esp__links_poll(esp_ctx *ctx) {
    int progressed = 0;
    esp__plugin_detail_clear();
    for (int k = 0; k < ESP__LEVELS; k++) {
        if (!ctx->lanes.links[k].req) continue;
        const char *label = esp__link_head(ctx, k)->label;
        esp_status s = esp__link_poll(ctx, k);
        progressed |= s != ESP_PENDING;
        if (s < 0) esp__link_failed(ctx, ctx->lanes.links[k].comm, s, label);
    }
    if (ctx->lanes.request.req) {
        esp_status s = esp__request_poll(ctx);
        progressed |= s != ESP_PENDING;
        if (s < 0) esp__request_failed(ctx, s);
    }
    return progressed;
}

/* Nothing is in flight. Yields a few times, because a push often follows soon, and then sleeps until `until` (0: no limit), when
 * the dispatcher wants to be asked again. Lock held on entry and exit. */
static void esp__links_idle(esp_ctx *ctx, int *yields, uint64_t until) {
    uint64_t look = ctx->lanes.waiters && !ctx->health.fatal ? esp__now_ns() + ESP__IDLE_LOOK_MS * 1000000ull : 0;
    if (ctx->steps.open && !ctx->health.fatal && ctx->lanes.dispatcher->yields && ++*yields < ESP__IDLE_YIELDS) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        sched_yield();
        pthread_mutex_lock(&ctx->lanes.lock);
        return;
    }
    if (!until || (look && look < until)) until = look;
    if (esp__sleep(ctx, &ctx->lanes.link_cv, until) == ETIMEDOUT && until == look) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp__late_update(ctx, esp__now_ns());
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    *yields = 0;
}

/* How long the backend may sleep in progress(), in microseconds. */
static uint64_t esp__links_pause(uint64_t now, uint64_t until) {
    uint64_t left = until > now ? (until - now) / 1000u : 0;
    return !until || left > ESP__PROGRESS_US ? ESP__PROGRESS_US : left;
}

static void *esp__link_main(void *arg) {
    esp_ctx *ctx = arg;
    uint64_t looked = 0, until;
    int yields = 0;
    esp__workers_never_lend();
    pthread_mutex_lock(&ctx->lanes.lock);
    while (!ctx->lanes.stopping) {
        ctx->lanes.link_busy = esp__links_start(ctx, &until);
        if (ctx->health.fatal) { /* the backend was told to abort, and requests in flight are dropped */
            for (int k = 0; k < ESP__LEVELS; k++)
                ctx->lanes.links[k].req = NULL; /* the lanes stay busy: nothing starts */
            ctx->lanes.request.req = NULL;
            ctx->lanes.link_busy = 0;
            pthread_cond_broadcast(&ctx->lanes.done_cv);
            if (!ctx->lanes.stopping) pthread_cond_wait(&ctx->lanes.link_cv, &ctx->lanes.lock);
            continue;
        }
        if (!ctx->lanes.link_busy) {
            esp__links_idle(ctx, &yields, until);
            continue;
        }
        yields = 0;
        pthread_mutex_unlock(&ctx->lanes.lock);
        if (!esp__links_poll(ctx) && !(esp__comms_arm(ctx) && esp__links_poll(ctx))) {
            uint64_t now = esp__now_ns();
            if (now - looked > 10000000u) {
                looked = now;
                esp__late_update(ctx, now);
            }
            esp__comms_sleep(ctx, esp__links_pause(now, until));
        }
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    return NULL;
}

ESP__FN void esp__executor_offer(esp_ctx *ctx) {
    pthread_mutex_lock(&ctx->lanes.lock);
    if (ctx->lanes.waiters) pthread_cond_broadcast(&ctx->lanes.done_cv);
    pthread_mutex_unlock(&ctx->lanes.lock);
}

ESP__FN esp_status esp__executor_open(esp_ctx *ctx) {
    int failed = esp__thread_start(&ctx->lanes.cpu_thread, esp__cpu_main, ctx);
    if (!failed) ctx->lanes.threads = 1;
    if (!failed) failed = esp__thread_start(&ctx->lanes.link_thread, esp__link_main, ctx);
    if (!failed) ctx->lanes.threads = 2;
    return failed ? esp__fail(ctx, ESP_E_NOMEM, "cannot start the lanes' threads: %s", strerror(failed)) : ESP_OK;
}

ESP__FN void esp__executor_close(esp_ctx *ctx) {
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.stopping = 1;
    pthread_cond_broadcast(&ctx->lanes.cpu_cv);
    pthread_cond_broadcast(&ctx->lanes.link_cv);
    if (ctx->lanes.link_busy) esp__comms_wake(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (ctx->lanes.threads > 0) pthread_join(ctx->lanes.cpu_thread, NULL);
    if (ctx->lanes.threads > 1) pthread_join(ctx->lanes.link_thread, NULL);
    ctx->lanes.threads = 0;
}
