/* lanes.c: the threads that synchronize gradients in a training step. The program's thread pushes gradients and waits,
 * the cpu thread compresses, decompresses and copies, and the link thread runs collectives. ctx->lanes.lock protects
 * what they share. With too few cores (caller_drives), the program's thread does all of it inside esp_push, esp_test
 * and esp_wait, and the link thread helps if the program makes no such call for long. */
#include "espresso_impl/base/limits.h"
#include "espresso_impl/base/os.h"
#include "espresso_impl/executor/executor.h"
#include <errno.h>
#include <sched.h>
#include <time.h>

enum { ESP__IDLE_YIELDS = 30, ESP__IDLE_LOOK_MS = 50 };
enum { ESP__LONG_ELEMENTS = 1 << 17 };
enum { ESP__PROGRESS_US = 5000, ESP__LATE_LOOK_NS = 10000000, ESP__SPARE_LOOK_NS = 2000000 };

/* ---- CPU time of ops --------------------------------------------------------------------------------------------- */
ESP__FN void esp__core_times(esp_ctx *ctx, int who, bool on) {
    if (on)
        __atomic_or_fetch(&ctx->lanes.core_times, who, __ATOMIC_RELAXED);
    else
        __atomic_and_fetch(&ctx->lanes.core_times, ~who, __ATOMIC_RELAXED);
}

/* This thread's CPU time at the last measurement, or 0 if CPU times are not measured. A measurement takes up to 2 us,
 * so there is one only when an operation, or a search for the next one, begins or ends. */
static __thread uint64_t esp__core_mark;

static uint64_t esp__core_now(const esp_ctx *ctx) {
    uint64_t now = 0;
    if (__atomic_load_n(&ctx->lanes.core_times, __ATOMIC_RELAXED) & (ESP__CORE_TRACE | ESP__CORE_CALIBRATION))
        esp__device_cpu()->core_time(NULL, &now);
    return now;
}

/* Divides this thread's CPU time since the last reading equally among the collectives in flight. Returns the time now,
 * or 0 if nobody wants CPU times. Only the thread that calls the backends may call it. */
static uint64_t esp__core_read(esp_ctx *ctx) {
    const uint64_t now = esp__core_now(ctx);
    if (!now) return esp__core_mark = 0;
    const uint64_t took = esp__core_mark && now > esp__core_mark ? now - esp__core_mark : 0;
    uint32_t n = ctx->lanes.request.req != NULL;
    for (int k = 0; k < ESP__LEVELS; k++) n += ctx->lanes.links[k].req != NULL;
    for (int k = 0; k < ESP__LEVELS && n; k++)
        if (ctx->lanes.links[k].req) ctx->lanes.links[k].core_ns += took / n;
    if (ctx->lanes.request.req) ctx->lanes.request.core_ns += took / n;
    return esp__core_mark = now;
}

ESP__FN void esp__core_enter(esp_ctx *ctx) {
    esp__core_mark = 0;
    if (ctx->lanes.caller_drives && !ctx->lanes.driving) esp__core_read(ctx);
}

static void esp__core_leave(esp_ctx *ctx) {
    if (!ctx->lanes.driving) esp__core_read(ctx);
    esp__core_mark = 0;
}

/* ---- compress, decompress and copy ops --------------------------------------------------------------------------- */
static int esp__sleep(esp_ctx *ctx, pthread_cond_t *cv, uint64_t until) {
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    return until ? pthread_cond_timedwait(cv, &ctx->lanes.lock, &t) : pthread_cond_wait(cv, &ctx->lanes.lock);
}

static const esp__op *esp__cpu_next(esp_ctx *ctx) {
    while (!ctx->lanes.stopping) {
        uint64_t until = 0;
        const bool mine = !ctx->health.fatal && !ctx->lanes.cpu_busy && !ctx->lanes.caller_drives;
        const esp__op *op = mine ? esp__next_cpu(ctx, &until) : NULL;
        if (op) return op;
        if (!ctx->lanes.stopping) esp__sleep(ctx, &ctx->lanes.cpu_cv, until);
    }
    return NULL;
}

static void esp__cpu_run(esp_ctx *ctx, const esp__op *op) {
    ctx->lanes.cpu_busy = true;
    const bool help =
        ctx->lanes.caller_drives && !ctx->lanes.caller_only && esp__op_elements(&ctx->active, op) >= ESP__LONG_ELEMENTS;
    if (help) {
        ctx->lanes.helped = true;
        pthread_cond_signal(&ctx->lanes.link_cv);
    }
    esp__core_enter(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    const uint64_t start = esp__now_ns();
    const uint64_t core = esp__core_mark ? esp__core_mark : esp__core_now(ctx);
    esp_status s = esp__op_run(ctx, op);
    const uint64_t core_end = core ? esp__core_now(ctx) : 0;
    const uint64_t end = esp__now_ns(), took = core_end > core ? core_end - core : 0;
    if (esp__core_mark) esp__core_mark = core_end;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.cpu_busy = ctx->lanes.helped = false;
    ctx->active.op_core_ns[op - ctx->active.program.ops] = took;
    if (help && ctx->lanes.driving) esp__comms_wake(ctx);
    if (s)
        esp__fatal_locked(ctx, s, esp_last_error(ctx));
    else
        esp__op_ended(ctx, op, (esp__span){start, end});
    if (ctx->health.fatal) pthread_cond_broadcast(&ctx->lanes.done_cv);
}

static __thread bool esp__thread_own;
ESP__FN int esp__host_own_thread(void *user) { return (void)user, esp__thread_own; }

static void esp__thread_begin(void) {
    esp__thread_own = true;
    esp__workers_never_lend();
}

static void *esp__cpu_main(void *arg) {
    esp_ctx *ctx = arg;
    const esp__op *op;
    esp__thread_begin();
    pthread_mutex_lock(&ctx->lanes.lock);
    while ((op = esp__cpu_next(ctx)) != NULL) esp__cpu_run(ctx, op);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return NULL;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */
static esp_status esp__link_start(esp_ctx *ctx, int k, const esp__op *op) {
    esp__link *l = &ctx->lanes.links[k];
    const esp__active *f = &ctx->active;
    const esp__device *d = f->on[op->on].device;
    esp_coll c = op->collective.coll;
    c.src.ptr = esp__at(f, op, op->collective.src);
    c.dst.ptr = esp__at(f, op, op->collective.dst);
    c.src.dev = c.dst.dev = d->id;
    l->comm = &ctx->job.comms[op->collective.scope];
    esp__core_read(ctx);
    l->core_ns = 0;
    l->started_ns = esp__now_ns();
    const esp_status s = esp__op_begin(ctx, op, esp__on_link(k));
    if (s) return s;
    if (op->collective.rebuild) esp__headers_hide(f, op, ctx->job.rank);
    return l->comm->backend->start(l->comm->handle, &c, d->stream[esp__on_link(k)], &l->req);
}

/* Tests the collective in flight on link `k`, and ends it if it is complete. Lock not held. */
static esp_status esp__link_poll(esp_ctx *ctx, int k) {
    esp__link *l = &ctx->lanes.links[k];
    const esp__op *op = esp__link_head(ctx, k);
    esp_status s = l->comm->backend->test(l->comm->handle, l->req);
    if (s == ESP_PENDING) return s;
    esp__core_read(ctx);
    l->req = NULL;
    if (s) return s;
    if (op->collective.rebuild) esp__headers_show(&ctx->active, op);
    ctx->active.strategy.units[op->unit].after = NULL;
    if (op->collective.stream_ordered) s = esp__op_issued(ctx, op, esp__on_link(k));
    if (s) return s;
    uint64_t end = esp__now_ns();
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->active.op_core_ns[op - ctx->active.program.ops] = l->core_ns;
    esp__op_ended(ctx, op, (esp__span){l->started_ns, end});
    pthread_mutex_unlock(&ctx->lanes.lock);
    return ESP_OK;
}

/* Fails the context after a backend's error. If a peer seems lost, first waits up to 0.2 s, as the thread that watches
 * the connections may find out which one. */
static void esp__link_failed(esp_ctx *ctx, const esp__comm *comm, esp_status s, const char *what) {
    char text[ESP__ERROR_MAX], detail[ESP__ERROR_MAX / 2];
    struct timespec pause = {0, 1000000};
    bool known = false;
    int32_t left = -1;
    snprintf(detail, sizeof detail, "%.500s", esp__plugin_why(s));
    if (s == ESP_E_PEER) esp__peers_check(ctx->job.peers);
    for (int i = 0; i < 200 && s == ESP_E_PEER && !known && left < 0; i++) {
        if (i) nanosleep(&pause, NULL);
        if (i == 60 && esp__peers_hub_silent(ctx->job.peers)) esp__peers_suspect(ctx->job.peers, 0, UINT32_MAX);
        pthread_mutex_lock(&ctx->lanes.lock);
        known = ctx->health.fatal != 0;
        left = ctx->health.left_rank;
        pthread_mutex_unlock(&ctx->lanes.lock);
    }
    pthread_mutex_lock(&ctx->lanes.lock);
    if (left >= 0) s = esp__waits_left_error(ctx, text, sizeof text);
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (left < 0) snprintf(text, sizeof text, "%.200s: backend '%s': %s", what, comm->backend->name, detail);
    if (!known) esp__fatal(ctx, s, text);
}

static void esp__request_failed(esp_ctx *ctx, esp_status s) {
    esp__link_failed(ctx, &ctx->job.comms[ctx->lanes.request.level], s, ctx->lanes.request.what);
}

static esp_status esp__request_start(esp_ctx *ctx) {
    esp_stream here = {{ESP_CPU, 0}, NULL};
    const esp__comm *comm = &ctx->job.comms[ctx->lanes.request.level];
    ctx->lanes.request.wanted = false;
    esp__core_read(ctx);
    ctx->lanes.request.core_ns = 0;
    ctx->lanes.request.started_ns = esp__now_ns();
    return comm->backend->start(comm->handle, &ctx->lanes.request.coll, here, &ctx->lanes.request.req);
}

static esp_status esp__request_poll(esp_ctx *ctx) {
    const esp__comm *comm = &ctx->job.comms[ctx->lanes.request.level];
    esp_status s = comm->backend->test(comm->handle, ctx->lanes.request.req);
    if (s == ESP_PENDING) return s;
    uint64_t now = esp__now_ns();
    esp__core_read(ctx);
    ctx->lanes.request.req = NULL;
    if (s) return s;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.request.ended_ns = now;
    ctx->lanes.request.done = true;
    pthread_cond_broadcast(&ctx->lanes.done_cv);
    pthread_mutex_unlock(&ctx->lanes.lock);
    return s;
}

/* Starts at most one collective per link. True if more may be ready now. Lock held, but released meanwhile. */
static bool esp__links_start_some(esp_ctx *ctx) {
    bool started = false;
    for (int k = (int)ctx->job.topo.n_levels - 1; k >= 0 && !ctx->health.fatal; k--) {
        const esp__op *op = esp__next_link(ctx, k);
        if (!op) continue;
        started = true;
        for (int l = 0; l <= k; l++)
            if (op->collective.links >> l & 1u) ctx->lanes.links[l].busy = true;
        ctx->lanes.link_busy = true; /* start() may already read gradients, and esp_cancel must wait for it */
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp__plugin_detail_clear();
        esp_status s = esp__link_start(ctx, k, op);
        if (s) ctx->lanes.links[k].req = NULL;
        if (s) esp__link_failed(ctx, ctx->lanes.links[k].comm, s, op->label);
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    if (ctx->lanes.request.wanted && !ctx->health.fatal) {
        started = ctx->lanes.link_busy = true;
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp_status s = esp__request_start(ctx);
        if (s) ctx->lanes.request.req = NULL;
        if (s) esp__request_failed(ctx, s);
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    return started;
}

/* Starts all collectives that can start. Returns true if any is in flight. Lock held, but released meanwhile. */
static bool esp__links_start(esp_ctx *ctx) {
    while (esp__links_start_some(ctx)) {
    }
    for (int k = 0; k < ESP__LEVELS; k++)
        if (ctx->lanes.links[k].req) return true;
    return ctx->lanes.request.req != NULL;
}

/* Tests all collectives in flight. Returns true if one has completed or failed. Lock not held. */
static bool esp__links_poll(esp_ctx *ctx) {
    bool progressed = false;
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

static void esp__links_check(esp_ctx *ctx, uint64_t now) {
    esp__wait w = esp__waits_look(ctx, now);
    if (w.left) w.left = !esp__links_poll(ctx);
    esp__waits_judge(ctx, now, &w);
}

/* Called when no collective is in flight. Yields a few times, as a push often follows soon, then sleeps. Lock held, but
 * released meanwhile. */
static void esp__links_idle(esp_ctx *ctx, int *yields) {
    const bool waits = ctx->lanes.waiters || ctx->lanes.stream_since_ns;
    const uint64_t look = waits && !ctx->health.fatal ? esp__now_ns() + ESP__IDLE_LOOK_MS * 1000000ull : 0;
    if (ctx->steps.open && !ctx->health.fatal && ++*yields < ESP__IDLE_YIELDS) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        sched_yield();
        pthread_mutex_lock(&ctx->lanes.lock);
        return;
    }
    if (esp__sleep(ctx, &ctx->lanes.link_cv, look) == ETIMEDOUT) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        esp__links_check(ctx, esp__now_ns());
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    *yields = 0;
}

static uint64_t esp__links_pause(uint64_t now, uint64_t until) {
    uint64_t left = until > now ? (until - now) / 1000u : 0;
    return !until || left > ESP__PROGRESS_US ? ESP__PROGRESS_US : left;
}

/* Drops the collectives in flight after an error. The backends have been told to abort; their test() then returns only
 * when no peer reads this rank's memory any more. Lock held, but released meanwhile. */
static void esp__links_drop(esp_ctx *ctx) {
    ctx->lanes.driving = true;
    pthread_mutex_unlock(&ctx->lanes.lock);
    for (int k = 0; k < ESP__LEVELS; k++)
        if (ctx->lanes.links[k].req)
            ctx->lanes.links[k].comm->backend->test(ctx->lanes.links[k].comm->handle, ctx->lanes.links[k].req);
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.driving = false;
    for (int k = 0; k < ESP__LEVELS; k++) ctx->lanes.links[k].req = NULL;
    ctx->lanes.request.req = NULL;
    ctx->lanes.link_busy = 0;
    pthread_cond_broadcast(&ctx->lanes.done_cv);
}

/* ---- the trainer's threads run the ops --------------------------------------------------------------------------- */
static bool esp__drive_cpu(esp_ctx *ctx, uint64_t *until) {
    const bool mine = !ctx->health.fatal && !ctx->lanes.cpu_busy;
    const esp__op *op = mine ? esp__next_cpu(ctx, until) : NULL;
    if (op) esp__cpu_run(ctx, op);
    return op != NULL;
}

/* Starts and tests collectives, unless another thread does. Returns true if one has ended. Lock held, but released
 * meanwhile. */
static bool esp__drive_links(esp_ctx *ctx) {
    bool progressed = false;
    if (ctx->lanes.driving) return false;
    ctx->lanes.driving = true;
    ctx->lanes.link_busy = esp__links_start(ctx);
    if (ctx->lanes.link_busy && !ctx->health.fatal) {
        pthread_mutex_unlock(&ctx->lanes.lock);
        progressed = esp__links_poll(ctx);
        pthread_mutex_lock(&ctx->lanes.lock);
    }
    ctx->lanes.driving = false;
    if (ctx->health.fatal) esp__links_drop(ctx);
    return progressed;
}

static bool esp__drive_all(esp_ctx *ctx, uint64_t *until) {
    const uint64_t fp = esp__fp_default();
    bool any = false;
    *until = 0;
    for (bool more = true; more && !ctx->health.fatal; any |= more) {
        more = esp__drive_cpu(ctx, until);
        more |= esp__drive_links(ctx);
        more |= esp__drive_cpu(ctx, until);
    }
    ctx->lanes.drove_ns = esp__now_ns();
    esp__fp_restore(fp);
    return any;
}

ESP__FN void esp__drive(esp_ctx *ctx) {
    uint64_t until;
    if (!ctx->lanes.caller_drives) return;
    esp__core_enter(ctx);
    esp__drive_all(ctx, &until);
    esp__core_leave(ctx);
    if (ctx->lanes.waiters) pthread_cond_broadcast(&ctx->lanes.done_cv); /* waiting threads now look which ended */
}

/* If `look`, checks whether a rank keeps this one waiting for too long; else sleeps until a collective may have ended.
 * Lock held, but released meanwhile. */
static void esp__drive_sleep(esp_ctx *ctx, uint64_t until, bool look) {
    const uint64_t fp = esp__fp_default(), now = esp__now_ns();
    ctx->lanes.driving = true;
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (look) esp__links_check(ctx, now);
    if (!look && !(esp__comms_arm(ctx) && esp__links_poll(ctx))) esp__comms_sleep(ctx, esp__links_pause(now, until));
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.driving = false;
    esp__fp_restore(fp);
}

ESP__FN bool esp__drive_wait(esp_ctx *ctx) {
    esp__lanes *l = &ctx->lanes;
    uint64_t until = 0;
    if (ctx->health.fatal && !l->driving) esp__links_drop(ctx);
    if (ctx->health.fatal && !l->link_busy && !l->cpu_busy) return false;
    if (esp__drive_all(ctx, &until)) return true;
    const uint64_t now = esp__now_ns();
    if (!l->driving && !ctx->health.fatal && now - l->looked_ns > ESP__LATE_LOOK_NS) {
        l->looked_ns = now;
        esp__drive_sleep(ctx, 0, true);
    } else if (!l->driving && !ctx->health.fatal && l->link_busy) {
        esp__drive_sleep(ctx, until, false);
    } else {
        const uint64_t look = now + ESP__IDLE_LOOK_MS * 1000000ull;
        esp__sleep(ctx, &l->done_cv, until && until < look ? until : look);
    }
    return true;
}

ESP__FN void esp__drive_nap(esp_ctx *ctx) {
    static const struct timespec nap = {0, 20000};
    const uint64_t now = esp__now_ns();
    if (ctx->lanes.caller_drives && !ctx->lanes.driving && now - ctx->lanes.looked_ns > ESP__LATE_LOOK_NS) {
        ctx->lanes.looked_ns = now;
        esp__drive_sleep(ctx, 0, true);
    }
    pthread_mutex_unlock(&ctx->lanes.lock);
    nanosleep(&nap, NULL);
    pthread_mutex_lock(&ctx->lanes.lock);
}

/* The link thread runs ops if no trainer's thread has done so for a while. Lock held, but released meanwhile. */
static void esp__drive_spare(esp_ctx *ctx) {
    const uint64_t now = esp__now_ns(), pause = ctx->lanes.waiters ? ESP__LATE_LOOK_NS : ESP__SPARE_LOOK_NS;
    uint64_t until;
    esp__core_mark = 0;
    if (ctx->health.fatal && !ctx->lanes.driving) esp__links_drop(ctx);
    if (ctx->lanes.stopping) return; /* esp_close may have come while esp__links_drop had released the lock */
    if (ctx->health.fatal || !ctx->steps.open || ctx->lanes.caller_only) {
        pthread_cond_wait(&ctx->lanes.link_cv, &ctx->lanes.lock);
    } else if (ctx->lanes.helped && !ctx->lanes.driving) {
        const bool ran = esp__drive_links(ctx);
        if (!ran && ctx->lanes.helped && ctx->lanes.link_busy && !ctx->health.fatal) esp__drive_sleep(ctx, 0, false);
        if (!ran && ctx->lanes.helped && !ctx->lanes.link_busy) esp__sleep(ctx, &ctx->lanes.link_cv, now + pause);
        if (!ctx->lanes.helped && ctx->lanes.waiters) pthread_cond_broadcast(&ctx->lanes.done_cv);
    } else if (ctx->lanes.waiters || now < ctx->lanes.drove_ns + pause) {
        esp__sleep(ctx, &ctx->lanes.link_cv, ctx->lanes.waiters ? now + pause : ctx->lanes.drove_ns + pause);
    } else {
        esp__drive_all(ctx, &until);
        if (!ctx->lanes.driving) esp__drive_sleep(ctx, 0, true);
        if (ctx->lanes.waiters) pthread_cond_broadcast(&ctx->lanes.done_cv);
    }
}

/* ---- the link thread --------------------------------------------------------------------------------------------- */
static void *esp__link_main(void *arg) {
    esp_ctx *ctx = arg;
    uint64_t looked = 0;
    int yields = 0;
    esp__thread_begin();
    pthread_mutex_lock(&ctx->lanes.lock);
    while (!ctx->lanes.stopping) {
        if (ctx->lanes.caller_drives) {
            esp__drive_spare(ctx);
            continue;
        }
        ctx->lanes.link_busy = esp__links_start(ctx);
        if (ctx->health.fatal) {
            esp__links_drop(ctx);
            if (!ctx->lanes.stopping) pthread_cond_wait(&ctx->lanes.link_cv, &ctx->lanes.lock);
            continue;
        }
        if (!ctx->lanes.link_busy) {
            esp__core_mark = 0;
            esp__links_idle(ctx, &yields);
            continue;
        }
        yields = 0;
        pthread_mutex_unlock(&ctx->lanes.lock);
        if (!esp__links_poll(ctx) && !(esp__comms_arm(ctx) && esp__links_poll(ctx))) {
            uint64_t now = esp__now_ns();
            if (now - looked > 10000000u) {
                looked = now;
                esp__links_check(ctx, now);
            }
            esp__comms_sleep(ctx, ESP__PROGRESS_US);
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
    return failed ? esp__fail(ctx, ESP_E_NOMEM, "cannot start the lanes' threads: %s", esp__strerror(failed)) : ESP_OK;
}

ESP__FN void esp__executor_close(esp_ctx *ctx) {
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->lanes.stopping = true;
    pthread_cond_broadcast(&ctx->lanes.cpu_cv);
    pthread_cond_broadcast(&ctx->lanes.link_cv);
    if (ctx->lanes.link_busy) esp__comms_wake(ctx);
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (ctx->lanes.threads > 0) pthread_join(ctx->lanes.cpu_thread, NULL);
    if (ctx->lanes.threads > 1) pthread_join(ctx->lanes.link_thread, NULL);
    ctx->lanes.threads = 0;
}
