/* executor.c: walks the program. Three threads have a part in it: the caller pushes and waits, one thread runs the cpu and
 * compute lanes, one drives both link lanes. All shared state is under ctx->lanes.lock; memory of a unit belongs to the one op
 * of its chain that is running. Allocates nothing. In a step under a model's clock (clocked/clocked.h) that clock says whose turn it is and
 * when an op is over. */
#include "espresso_impl/base/thread.h"
#include "espresso_impl/clocked/clocked.h"
#include <errno.h>
#include <sched.h>
#include <time.h>

enum { ESP__IDLE_YIELDS = 30, ESP__LATE_AFTER_MS = 20, ESP__UNPUSHED_AFTER_MS = 2000, ESP__IDLE_LOOK_MS = 50 };
enum { ESP__PROGRESS_US = 5000 };

/* ---- failing --------------------------------------------------------------------------------------------------- */
/* The context is dead from here on: the first error stays. Lock held. */
static void esp__fatal_locked(esp_ctx *ctx, esp_status s, const char *text) {
    if (ctx->health.fatal) return;
    ctx->health.fatal = s;
    snprintf(ctx->health.fatal_text, sizeof ctx->health.fatal_text, "%.*s", (int)sizeof ctx->health.fatal_text - 1,
             text);
    for (int k = 0; k < 3; k++)
        if (ctx->job.comms[k] && ESP_HAS(esp_backend, ctx->job.backend, abort))
            ctx->job.backend->abort(ctx->job.comms[k]);
    pthread_cond_broadcast(&ctx->lanes.done_cv);
    pthread_cond_broadcast(&ctx->lanes.cpu_cv);
    pthread_cond_broadcast(&ctx->lanes.link_cv);
}

ESP__FN void esp__fatal(esp_ctx *ctx, esp_status s, const char *text) {
    pthread_mutex_lock(&ctx->lanes.lock);
    esp__fatal_locked(ctx, s, text);
    pthread_mutex_unlock(&ctx->lanes.lock);
}

/* ---- readiness: lock held --------------------------------------------------------------------------------------- */
static int esp__heap_before(const esp_ctx *ctx, uint32_t a, uint32_t b) {
    uint64_t ra = ctx->in_force.strategy.units[a].ready_ns, rb = ctx->in_force.strategy.units[b].ready_ns;
    return ra != rb ? ra < rb : a < b;
}

static void esp__heap_push(esp_ctx *ctx, uint32_t unit) {
    uint32_t i = ctx->lanes.n_heap++;
    for (; i && esp__heap_before(ctx, unit, ctx->in_force.heap[(i - 1) / 2]); i = (i - 1) / 2)
        ctx->in_force.heap[i] = ctx->in_force.heap[(i - 1) / 2];
    ctx->in_force.heap[i] = unit;
}

static uint32_t esp__heap_pop(esp_ctx *ctx) {
    uint32_t top = ctx->in_force.heap[0], last = ctx->in_force.heap[--ctx->lanes.n_heap], i = 0, c;
    while ((c = 2 * i + 1) < ctx->lanes.n_heap) {
        if (c + 1 < ctx->lanes.n_heap && esp__heap_before(ctx, ctx->in_force.heap[c + 1], ctx->in_force.heap[c])) c++;
        if (!esp__heap_before(ctx, ctx->in_force.heap[c], last)) break;
        ctx->in_force.heap[i] = ctx->in_force.heap[c];
        i = c;
    }
    ctx->in_force.heap[i] = last;
    return top;
}

static const esp__op *esp__link_head(const esp_ctx *ctx, const esp__link *l) {
    return ctx->started && l->cursor < l->n ? &ctx->in_force.program.ops[l->sequence[l->cursor]] : NULL;
}

static int esp__op_is_next(const esp_ctx *ctx, const esp__op *op) {
    const esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
    return u->phase == ESP__PUSHED && &ctx->in_force.program.ops[u->first_op + u->pc] == op;
}

/* Can the head of lane `k` start now? A flat op over several machines holds both lanes and starts from the inter lane. */
static int esp__link_startable(const esp_ctx *ctx, int k) {
    const esp__link *l = &ctx->lanes.links[k], *intra = &ctx->lanes.links[0];
    const esp__op *op = esp__link_head(ctx, l);
    if (!op || l->busy || !esp__op_is_next(ctx, op)) return 0;
    if (esp__hold_on(ctx) && !esp__hold_turn(ctx, op)) return 0;
    return !op->both_links || (k == 1 && !intra->busy && esp__link_head(ctx, intra) == op);
}

/* Packing a tensor whose turn it is, but which was not pushed: its push will find this op. */
static int esp__op_awaits_push(const esp_ctx *ctx, const esp__op *op) {
    return op->kind == ESP__OP_COPY && op->copy == ESP__COPY_PACK && ctx->model.tensors[op->member].phase == ESP__IDLE;
}

static void esp__link_wake(esp_ctx *ctx) {
    if (ctx->lanes.link_busy && ESP_HAS(esp_backend, ctx->job.backend, wake)) ctx->job.backend->wake(ctx->job.comms[0]);
    pthread_cond_signal(&ctx->lanes.link_cv);
}

/* All ops of a unit have run: a tensor is done when all its units are. */
static void esp__unit_done(esp_ctx *ctx, esp__work_unit *u) {
    u->phase = ESP__DONE;
    for (uint32_t k = u->place.first; k < u->place.first + u->place.n; k++)
        if (--ctx->model.tensors[k].units_left == 0) {
            ctx->model.tensors[k].phase = ESP__DONE;
            ctx->steps.n_done++;
        }
    if (ctx->lanes.waiters_one || (ctx->lanes.waiters && ctx->steps.n_done == ctx->model.n_tensors))
        pthread_cond_broadcast(&ctx->lanes.done_cv);
}

/* The unit's next op may run: hands it to its lane, or declares the unit done. Threads are woken only if there is
 * something for them: the link thread (which looks by itself after each of its own ops) when a lane can start now. */
static void esp__unit_ready(esp_ctx *ctx, uint32_t unit, uint64_t now, int from_link) {
    esp__work_unit *u = &ctx->in_force.strategy.units[unit];
    const esp__op *op = &ctx->in_force.program.ops[u->first_op + u->pc];
    u->ready_ns = now;
    if (esp__hold_on(ctx)) {
        esp__hold_unit_ready(ctx, unit, now, from_link);
    } else if (u->pc == u->n_ops) {
        esp__unit_done(ctx, u);
    } else if (op->kind == ESP__OP_COLLECTIVE) {
        if (!from_link && (esp__link_startable(ctx, 0) || esp__link_startable(ctx, 1))) esp__link_wake(ctx);
    } else if (!esp__op_awaits_push(ctx, op)) {
        esp__heap_push(ctx, unit);
        pthread_cond_signal(&ctx->lanes.cpu_cv);
    }
}

/* For the timeline. */
static uint64_t esp__op_moves(const esp__op *op) {
    if (op->kind == ESP__OP_COPY) return 0;
    if (op->kind != ESP__OP_COLLECTIVE) return op->n_ranges * op->slot_bytes;
    return op->coll.dst.bytes > op->coll.src.bytes ? op->coll.dst.bytes : op->coll.src.bytes;
}

static void esp__op_done(esp_ctx *ctx, const esp__op *op, uint64_t start, uint64_t end) {
    esp__work_unit *u = &ctx->in_force.strategy.units[op->unit];
    ctx->in_force.op_time[op - ctx->in_force.program.ops] = (esp__span){start, end};
    if (op->kind == ESP__OP_COMPRESS) ctx->steps.stats.compress_ns += end - start;
    if (op->kind == ESP__OP_DECOMPRESS) ctx->steps.stats.decompress_ns += end - start;
    if (op->kind == ESP__OP_COLLECTIVE)
        *(op->lane == ESP__LANE_INTRA ? &ctx->steps.stats.intra_ns : &ctx->steps.stats.inter_ns) += end - start;
    if (ctx->trace) {
        uint64_t bytes = esp__op_moves(op);
        esp__trace_add(ctx->trace, op->lane, op->label, u->place.first, ctx->steps.step, start, end, bytes);
        if (op->both_links)
            esp__trace_add(ctx->trace, ESP__LANE_INTRA, op->label, u->place.first, ctx->steps.step, start, end, bytes);
    }
    u->pc++;
    esp__unit_ready(ctx, op->unit, end, op->kind == ESP__OP_COLLECTIVE);
}

/* ---- cpu and compute lanes ---------------------------------------------------------------------------------------- */
/* Sleeps until told, or until `until` of esp__now_ns (0: only until told). Lock held. */
static int esp__sleep(esp_ctx *ctx, pthread_cond_t *cv, uint64_t until) {
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    return until ? pthread_cond_timedwait(cv, &ctx->lanes.lock, &t) : pthread_cond_wait(cv, &ctx->lanes.lock);
}

/* The next op, when there is one; NULL: the context closes. Lock held. */
static const esp__op *esp__cpu_next(esp_ctx *ctx) {
    while (!ctx->lanes.stopping) {
        uint64_t until = 0;
        if (!ctx->health.fatal && esp__hold_on(ctx)) {
            const esp__op *op = esp__hold_cpu(ctx, &until);
            if (op) return op;
        } else if (!ctx->health.fatal && ctx->lanes.n_heap) {
            const esp__work_unit *u = &ctx->in_force.strategy.units[esp__heap_pop(ctx)];
            return &ctx->in_force.program.ops[u->first_op + u->pc];
        }
        if (!ctx->lanes.stopping) esp__sleep(ctx, &ctx->lanes.cpu_cv, until);
    }
    return NULL;
}

static void *esp__cpu_main(void *arg) {
    esp_ctx *ctx = arg;
    const esp__op *op;
    pthread_mutex_lock(&ctx->lanes.lock);
    while ((op = esp__cpu_next(ctx)) != NULL) {
        ctx->lanes.cpu_busy = 1;
        if (op->device == ESP__DEV_GPU && !ctx->health.said_no_gpu) {
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
        else if (!esp__hold_on(ctx) || !esp__hold_keep(ctx, op))
            esp__op_done(ctx, op, start, end);
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
    c.src.dev.kind = c.dst.dev.kind = ESP_CPU;
    l->comm = ctx->job.comms[op->level];
    l->started_ns = esp__now_ns();
    return ctx->job.backend->start(l->comm, &c, here, &l->req);
}

/* The op leaves its lanes. Lock held. */
static void esp__link_advance(esp_ctx *ctx, const esp__op *op) {
    for (int k = 0; k < 2; k++) {
        if (!op->both_links && op->lane != ESP__LANE_INTRA + k) continue;
        ctx->lanes.links[k].cursor++;
        ctx->lanes.links[k].busy = 0;
    }
}

/* One look at lane `k`'s request; on completion the lane moves on. Lock not held. */
static esp_status esp__link_poll(esp_ctx *ctx, int k) {
    esp__link *l = &ctx->lanes.links[k];
    const esp__op *op = esp__link_head(ctx, l);
    esp_status s = ctx->job.backend->test(l->comm, l->req);
    if (s == ESP_PENDING) return s;
    l->req = NULL;
    if (s) return s;
    if (op->rebuild) esp__headers_rebuild(ctx, op);
    uint64_t end = esp__now_ns();
    pthread_mutex_lock(&ctx->lanes.lock);
    if (!esp__hold_on(ctx) || !esp__hold_keep(ctx, op)) {
        esp__link_advance(ctx, op);
        esp__op_done(ctx, op, l->started_ns, end);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    return ESP_OK;
}

/* An error of the backend: usually a peer is gone, and the watch thread is about to say who. */
static void esp__link_failed(esp_ctx *ctx, esp_status s, const char *what) {
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
        snprintf(text, sizeof text, "%.200s: backend '%s': %s", what, ctx->job.backend->name, detail);
    if (!known) esp__fatal(ctx, s, text);
}

static esp_status esp__request_start(esp_ctx *ctx) {
    esp_stream here = {{ESP_CPU, 0}, NULL};
    ctx->lanes.request.wanted = 0;
    ctx->lanes.request.started_ns = esp__now_ns();
    return ctx->job.backend->start(ctx->job.comms[ctx->lanes.request.level], &ctx->lanes.request.coll, here,
                                   &ctx->lanes.request.req);
}

static esp_status esp__request_poll(esp_ctx *ctx) {
    esp_status s = ctx->job.backend->test(ctx->job.comms[ctx->lanes.request.level], ctx->lanes.request.req);
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

/* Starts what can start, each lane once. Lock held on entry and exit, but let go of in between: then returns 1. */
static int esp__links_start_some(esp_ctx *ctx) {
    int started = 0;
    for (int k = 1; k >= 0 && !ctx->health.fatal; k--) {
        if (!esp__link_startable(ctx, k)) continue;
        const esp__op *op = esp__link_head(ctx, &ctx->lanes.links[k]);
        started = 1;
        ctx->lanes.links[k].busy = 1;
        if (op->both_links) ctx->lanes.links[0].busy = 1;
        if (esp__hold_on(ctx)) esp__hold_start(ctx, op);
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp__plugin_detail_clear();
        esp_status s = esp__link_start(ctx, k, op);
        if (s) ctx->lanes.links[k].req = NULL;
        if (s) esp__link_failed(ctx, s, op->label);
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    if (ctx->lanes.request.wanted && !ctx->health.fatal) {
        started = 1;
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp_status s = esp__request_start(ctx);
        if (s) ctx->lanes.request.req = NULL;
        if (s) esp__link_failed(ctx, s, "esp_broadcast or esp_allreduce");
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    return started;
}

/* Starts all that can start, also what became ready meanwhile. 1 if anything is in flight; *until: when the first op that is
 * held is over. Lock held on entry and exit. */
static int esp__links_start(esp_ctx *ctx, uint64_t *until) {
    do {
        *until = esp__hold_on(ctx) && !ctx->health.fatal ? esp__hold_links(ctx) : 0;
    } while (esp__links_start_some(ctx));
    return ctx->lanes.links[0].req || ctx->lanes.links[1].req || ctx->lanes.request.req;
}

/* Polls all requests a few times. 1 if one of them completed. Lock not held. */
static int esp__links_poll(esp_ctx *ctx) {
    int progressed = 0;
    esp__plugin_detail_clear();
    for (int k = 0; k < 2; k++) {
        if (!ctx->lanes.links[k].req) continue;
        const char *label = esp__link_head(ctx, &ctx->lanes.links[k])->label;
        esp_status s = esp__link_poll(ctx, k);
        progressed |= s != ESP_PENDING;
        if (s < 0) esp__link_failed(ctx, s, label);
    }
    if (ctx->lanes.request.req) {
        esp_status s = esp__request_poll(ctx);
        progressed |= s != ESP_PENDING;
        if (s < 0) esp__link_failed(ctx, s, "esp_broadcast or esp_allreduce");
    }
    return progressed;
}

/* The first tensor of a unit that this rank has not pushed in this step; NULL: all are. */
static const esp__tensor *esp__unit_lacks(const esp_ctx *ctx, const esp__work_unit *u) {
    for (uint32_t k = u->place.first; k < u->place.first + u->place.n; k++)
        if (ctx->model.tensors[k].phase == ESP__IDLE) return &ctx->model.tensors[k];
    return NULL;
}

/* This rank waits and nothing is in flight: is a lane's next tensor one that it has not pushed? Says so after a while, and
 * gives up when the time is over. Lock held. */
static void esp__unpushed_look(esp_ctx *ctx, uint64_t waited_ns, int late) {
    const esp__tensor *unpushed = NULL;
    char text[ESP__ERROR_MAX];
    for (int k = 0; k < 2; k++) {
        const esp__op *op = esp__link_head(ctx, &ctx->lanes.links[k]);
        if (op && esp__unit_lacks(ctx, &ctx->in_force.strategy.units[op->unit]))
            unpushed = esp__unit_lacks(ctx, &ctx->in_force.strategy.units[op->unit]);
    }
    if (!unpushed || (!late && (ctx->health.said_unpushed || waited_ns < ESP__UNPUSHED_AFTER_MS * 1000000ull))) return;
    snprintf(
        text, sizeof text,
        "waiting for %u ms, but this rank has not pushed tensor '%.200s', whose turn it is in the strategy's order: "
        "push every tensor of a step (or call esp_step_end) before waiting for one",
        (unsigned)(waited_ns / 1000000u), unpushed->name);
    ctx->health.said_unpushed = 1;
    if (late)
        esp__fatal_locked(ctx, ESP_E_TIMEOUT, text);
    else
        esp__log(ctx, ESP_LOG_WARN, "executor", "%s", text);
}

/* Whom does the oldest request wait for? Kept for the watch thread, which answers other ranks' questions. */
static void esp__late_update(esp_ctx *ctx, uint64_t now) {
    int32_t rank = -1;
    uint32_t tensor = UINT32_MAX;
    uint64_t oldest = UINT64_MAX;
    int waiting = 0;
    for (int k = 0; k < 3; k++) {
        void *req = k < 2 ? ctx->lanes.links[k].req : ctx->lanes.request.req;
        uint64_t since = k < 2 ? ctx->lanes.links[k].started_ns : ctx->lanes.request.started_ns;
        if (!req || now - since < ESP__LATE_AFTER_MS * 1000000ull || since >= oldest) continue;
        const esp__op *op = k < 2 ? esp__link_head(ctx, &ctx->lanes.links[k]) : NULL;
        uint8_t level = op ? op->level : ctx->lanes.request.level;
        oldest = since;
        waiting = 1;
        tensor = op ? ctx->in_force.strategy.units[op->unit].place.first : UINT32_MAX;
        if (ESP_HAS(esp_backend, ctx->job.backend, late))
            rank = esp__group_rank(ctx, level, ctx->job.backend->late(ctx->job.comms[level], req));
    }
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->health.late_waiting = waiting;
    ctx->health.late_rank = rank;
    ctx->health.late_tensor = tensor;
    /* only waiting is timed: from the later of the wait's begin and the request's */
    uint64_t since = oldest == UINT64_MAX                ? ctx->lanes.wait_since_ns
                     : oldest > ctx->lanes.wait_since_ns ? oldest
                                                         : ctx->lanes.wait_since_ns;
    int late =
        ctx->lanes.waiters && now > since && now - since > ctx->config.timeout_ms * 1000000ull && !ctx->health.accused;
    if (late) ctx->health.accused = 1;
    if (ctx->lanes.waiters && !waiting) esp__unpushed_look(ctx, now - since, late);
    if (ctx->health.left_rank >= 0 && waiting &&
        (rank < 0 ? now - oldest > 1000000000u : esp__peers_left(ctx->job.peers, rank))) {
        char text[ESP__ERROR_MAX];
        snprintf(text, sizeof text, "rank %d left (it closed its context) while this rank waits for it",
                 ctx->health.left_rank);
        esp__fatal_locked(ctx, ESP_E_PEER, text);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (late && waiting) esp__peers_accuse(ctx->job.peers, rank, tensor);
}

/* Nothing in flight: a push is often near, so yield a little before sleeping; `until`: when an op that is held is over, or 0.
 * Lock held on entry and exit. */
static void esp__links_idle(esp_ctx *ctx, int *yields, uint64_t until) {
    uint64_t look = ctx->lanes.waiters && !ctx->health.fatal ? esp__now_ns() + ESP__IDLE_LOOK_MS * 1000000ull : 0;
    if (ctx->steps.open && !ctx->health.fatal && !esp__hold_on(ctx) && ++*yields < ESP__IDLE_YIELDS) {
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

/* For how long the backend may sleep, in microseconds. */
static uint64_t esp__links_pause(uint64_t now, uint64_t until) {
    uint64_t left = until > now ? (until - now) / 1000u : 0;
    return !until || left > ESP__PROGRESS_US ? ESP__PROGRESS_US : left;
}

static void *esp__link_main(void *arg) {
    esp_ctx *ctx = arg;
    uint64_t looked = 0, until;
    int yields = 0;
    pthread_mutex_lock(&ctx->lanes.lock);
    while (!ctx->lanes.stopping) {
        ctx->lanes.link_busy = esp__links_start(ctx, &until);
        if (ctx->health.fatal) { /* the backend was told to abort: what is in flight is given up */
            ctx->lanes.links[0].req = ctx->lanes.links[1].req = ctx->lanes.request.req =
                NULL; /* the lanes stay busy: nothing starts */
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
        if (!esp__links_poll(ctx)) {
            uint64_t now = esp__now_ns();
            if (now - looked > 10000000u) {
                looked = now;
                esp__late_update(ctx, now);
            }
            if (ESP_HAS(esp_backend, ctx->job.backend, progress))
                ctx->job.backend->progress(ctx->job.comms[0], esp__links_pause(now, until));
            else
                sched_yield();
        }
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    return NULL;
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
    if (ctx->lanes.link_busy && ESP_HAS(esp_backend, ctx->job.backend, wake)) ctx->job.backend->wake(ctx->job.comms[0]);
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (ctx->lanes.threads > 0) pthread_join(ctx->lanes.cpu_thread, NULL);
    if (ctx->lanes.threads > 1) pthread_join(ctx->lanes.link_thread, NULL);
    ctx->lanes.threads = 0;
}
