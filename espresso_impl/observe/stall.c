/* stall.c: the stall reporter: where a rank waits for ESPRESSO_STALL_MS or more, rank 0 logs which ranks have not pushed which tensors,
 * and logs when the wait has ended. job/stall.c notices stalls and carries the answers; this file says how far a rank is, and makes
 * sentences of it. Only the watch thread runs it: a step costs nothing, and nothing is allocated. */
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

enum { ESP__STALL_NAMES = 4, ESP__STALL_SHOWN = 4 }; /* tensors named a rank; kinds of ranks shown in a report */
enum { ESP__STALL_NO_WAIT = 0, ESP__STALL_STEP, ESP__STALL_CALL };

/* What a rank answers. */
typedef struct esp__how_far {
    uint64_t step;
    uint32_t waits; /* ESP__STALL_*: its trainer is elsewhere; in the step; in a call between steps */
    uint32_t open;  /* something was pushed in this step */
    uint32_t n_tensors, n_missing, missing[ESP__STALL_NAMES]; /* not pushed: how many, and the first of them */
    int32_t late_rank;                                        /* that its oldest collective waits for; -1: unknown */
    uint32_t late_tensor;                                     /* UINT32_MAX: none */
} esp__how_far;
_Static_assert(sizeof(esp__how_far) <= ESP__STALL_BYTES, "an answer has no room in its message");

static esp__how_far esp__stall_read(const esp__stall_rank *r) {
    esp__how_far a;
    memcpy(&a, r->answer, sizeof a);
    return a;
}

static const char *esp__stall_name(const esp_ctx *ctx, uint32_t tensor) {
    return tensor < ctx->model.n_tensors ? ctx->model.tensors[tensor].name : "?";
}

typedef struct esp__stalls {
    esp_ctx *ctx;
    uint64_t step; /* of the last report */
    int in_call;   /* between steps: it was in a call after that step */
} esp__stalls;

/* ---- this rank: the watch thread asks --------------------------------------------------------------------------------- */
static uint64_t esp__stall_waits_since(void *user) {
    esp_ctx *ctx = ((esp__stalls *)user)->ctx;
    pthread_mutex_lock(&ctx->lanes.lock);
    const uint64_t since = ctx->health.fatal ? UINT64_MAX : ctx->lanes.waiters ? ctx->lanes.wait_since_ns : 0;
    pthread_mutex_unlock(&ctx->lanes.lock);
    return since;
}

static void esp__stall_say_how_far(void *user, uint8_t out[ESP__STALL_BYTES]) {
    esp_ctx *ctx = ((esp__stalls *)user)->ctx;
    esp__how_far a;
    memset(&a, 0, sizeof a);
    pthread_mutex_lock(&ctx->lanes.lock);
    a.step = ctx->steps.step;
    a.open = ctx->steps.open != 0;
    a.waits = !ctx->lanes.waiters ? (uint32_t)ESP__STALL_NO_WAIT
              : ctx->steps.open   ? (uint32_t)ESP__STALL_STEP
                                  : (uint32_t)ESP__STALL_CALL;
    a.n_tensors = ctx->model.n_tensors;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        if (ctx->model.tensors[i].phase != ESP__IDLE) continue;
        if (a.n_missing < ESP__STALL_NAMES) a.missing[a.n_missing] = i;
        a.n_missing++;
    }
    a.late_rank = ctx->health.late_waiting ? ctx->health.late_rank : -1;
    a.late_tensor = ctx->health.late_waiting ? ctx->health.late_tensor : UINT32_MAX;
    pthread_mutex_unlock(&ctx->lanes.lock);
    memset(out, 0, ESP__STALL_BYTES);
    memcpy(out, &a, sizeof a);
}

/* ---- rank 0: the report ----------------------------------------------------------------------------------------------- */
typedef struct esp__stall_text {
    size_t n;
    char text[ESP__ERROR_MAX - 256];
} esp__stall_text;

ESP__PRINTF(2, 3) static void esp__stall_add(esp__stall_text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(t->text + t->n, sizeof t->text - t->n, fmt, ap);
    va_end(ap);
    t->n += n < 0 ? 0 : (size_t)n;
    if (t->n >= sizeof t->text) t->n = sizeof t->text - 1;
}

/* "'a', 'b' and 3 more of its 7 tensors" */
static void esp__stall_tensors(const esp_ctx *ctx, esp__stall_text *t, const esp__how_far *a) {
    const uint32_t shown = a->n_missing < ESP__STALL_NAMES ? a->n_missing : (uint32_t)ESP__STALL_NAMES;
    for (uint32_t k = 0; k < shown; k++)
        esp__stall_add(t, "%s'%.80s'", k ? ", " : "", esp__stall_name(ctx, a->missing[k]));
    if (a->n_missing > shown)
        esp__stall_add(t, " and %u more of its %u tensors", (unsigned)(a->n_missing - shown), (unsigned)a->n_tensors);
}

/* What is to be said of a rank, where the first rank that waits says `at`; *t stays empty: nothing. also: about a rank that waits as
 * the others do, but has not pushed all, too. */
static void esp__stall_phrase(const esp_ctx *ctx, const esp__stall_rank *r, const esp__how_far *at, int also,
                              esp__stall_text *t) {
    t->n = 0;
    t->text[0] = 0;
    if (!r->here) return;
    if (!r->answered) esp__stall_add(t, "does not answer: it is stopped, or its machine is overloaded");
    if (!r->answered || !r->knows) return;
    const esp__how_far a = esp__stall_read(r);
    if (a.step != at->step) {
        esp__stall_add(t, "is at step %llu", (unsigned long long)a.step);
    } else if (at->waits == ESP__STALL_CALL && a.waits != ESP__STALL_CALL) {
        esp__stall_add(t, "has not come to that call");
    } else if (at->waits == ESP__STALL_STEP && a.waits == ESP__STALL_CALL) {
        esp__stall_add(t, "waits in a broadcast, allreduce or barrier instead, and has pushed no tensor of this step");
    } else if (at->waits == ESP__STALL_STEP && !a.open) {
        esp__stall_add(t, "has pushed no tensor of this step: ");
        esp__stall_tensors(ctx, t, &a);
    } else if (at->waits == ESP__STALL_STEP && a.n_missing && (also || a.waits == ESP__STALL_NO_WAIT)) {
        esp__stall_add(t, "%s not pushed ", a.waits ? "waits for a tensor, but has" : "has");
        esp__stall_tensors(ctx, t, &a);
    }
}

/* "rank 2" or "ranks 0-3, 6": those with told == `told`. */
static void esp__stall_ranks(esp__stall_text *t, const esp__stall_rank *ranks, int32_t n, int told) {
    int32_t count = 0, parts = 0, all = 0;
    for (int32_t r = 0; r < n; r++) all += ranks[r].told == told;
    esp__stall_add(t, all == 1 ? "rank " : "ranks ");
    for (int32_t r = 0, end; r < n && count < all; r = end) {
        for (end = r; end < n && ranks[end].told == told; end++) {
        }
        if (end == r) {
            end++;
            continue;
        }
        if (parts == 8) {
            esp__stall_add(t, " and %d more", (int)(all - count));
            return;
        }
        esp__stall_add(t, parts++ ? ", %d" : "%d", (int)r);
        if (end - r > 1) esp__stall_add(t, end - r > 2 ? "-%d" : ", %d", (int)end - 1);
        count += end - r;
    }
}

/* Adds a sentence for each kind of ranks that something is to be said of. Returns the number of such ranks. */
static int32_t esp__stall_kinds(const esp_ctx *ctx, esp__stall_text *t, esp__stall_rank *ranks, int32_t n,
                                const esp__how_far *at, int also) {
    esp__stall_text one, other;
    int32_t all = 0, shown = 0;
    for (int32_t r = 0, kind = 1; r < n; r++) {
        esp__stall_phrase(ctx, &ranks[r], at, also, &one);
        all += one.n != 0;
        if (!one.n || ranks[r].told || kind > ESP__STALL_SHOWN) continue;
        for (int32_t k = r; k < n; k++) {
            if (ranks[k].told) continue;
            esp__stall_phrase(ctx, &ranks[k], at, also, &other);
            if (strcmp(one.text, other.text) != 0) continue;
            ranks[k].told = kind;
            shown++;
        }
        esp__stall_add(t, "; ");
        esp__stall_ranks(t, ranks, n, kind++);
        esp__stall_add(t, " %s", one.text);
    }
    if (all > shown) esp__stall_add(t, "; and %d more ranks keep them waiting", (int)(all - shown));
    return all;
}

/* All tensors are pushed, or the ranks are in a call: says which collective is under way. */
static void esp__stall_slow(const esp_ctx *ctx, esp__stall_text *t, int32_t rank, const esp__how_far *at) {
    esp__stall_add(t, at->waits == ESP__STALL_STEP ? "; every rank has pushed all tensors"
                                                   : "; every rank has come to that call");
    if (at->late_rank < 0) {
        esp__stall_add(t, ": data is still under way, or a rank still compresses");
        return;
    }
    esp__stall_add(t, ": rank %d waits for data of rank %d", (int)rank, (int)at->late_rank);
    if (at->late_tensor < ctx->model.n_tensors)
        esp__stall_add(t, " for tensor '%.80s'", esp__stall_name(ctx, at->late_tensor));
}

static void esp__stall_report(void *user, esp__stall_rank *ranks, int32_t n, uint64_t waited_ns) {
    esp__stalls *self = user;
    const esp_ctx *ctx = self->ctx;
    esp__stall_text t;
    esp__how_far at;
    int32_t first = 0;
    while (first < n && !(ranks[first].stalled && ranks[first].answered && ranks[first].knows)) first++;
    if (first == n) return; /* whoever waited has closed its context, or does not answer any more */
    at = esp__stall_read(&ranks[first]);
    if (at.waits == ESP__STALL_NO_WAIT) return; /* its wait has ended meanwhile */
    self->step = at.step;
    self->in_call = at.waits == ESP__STALL_CALL;
    t.n = 0;
    for (int32_t r = 0; r < n; r++) { /* who waits by now, for whatever time */
        const esp__how_far a = esp__stall_read(&ranks[r]);
        ranks[r].told = ranks[r].answered && ranks[r].knows && a.step == at.step && a.waits == at.waits ? -1 : 0;
    }
    if (at.waits == ESP__STALL_STEP)
        esp__stall_add(&t, "step %llu", (unsigned long long)at.step);
    else
        esp__stall_add(&t, "after step %llu, in a broadcast, allreduce or barrier", (unsigned long long)at.step);
    esp__stall_add(&t, ": for %.1f s ", (double)waited_ns * 1e-9);
    esp__stall_ranks(&t, ranks, n, -1);
    esp__stall_add(&t, " could not go on");
    for (int32_t r = 0; r < n; r++) ranks[r].told = 0;
    if (!esp__stall_kinds(ctx, &t, ranks, n, &at, 0) && !esp__stall_kinds(ctx, &t, ranks, n, &at, 1))
        esp__stall_slow(ctx, &t, first, &at);
    esp__log(ctx, ESP_LOG_WARN, "stall", "%s (ESPRESSO_STALL_MS)", t.text);
}

static void esp__stall_say_ended(void *user, uint64_t waited_ns) {
    const esp__stalls *self = user;
    esp__log(self->ctx, ESP_LOG_WARN, "stall", "%s %llu went on after %.1f s",
             self->in_call ? "the call after step" : "step", (unsigned long long)self->step, (double)waited_ns * 1e-9);
}

static void esp__stall_say_deaf(void *user, uint64_t waited_ns) {
    esp__stalls *self = user;
    uint8_t answer[ESP__STALL_BYTES];
    esp__how_far a;
    esp__stall_say_how_far(user, answer);
    memcpy(&a, answer, sizeof a);
    self->step = a.step;
    self->in_call = a.waits == ESP__STALL_CALL;
    esp__log(
        self->ctx, ESP_LOG_WARN, "stall",
        "step %llu: for %.1f s this rank could not go on, and rank 0, which reports who is late, does not answer: it "
        "is stopped, or its machine is overloaded (ESPRESSO_STALL_MS)",
        (unsigned long long)a.step, (double)waited_ns * 1e-9);
}

/* ---- the observer ------------------------------------------------------------------------------------------------------- */
static esp_status esp__stall_open(esp_ctx *ctx, void **self) {
    int64_t ms = 0;
    esp_status s = esp__env_stall(&ms);
    if (s || !ms || ctx->job.size == 1) return s;
    esp__stalls *stalls = esp__alloc(ctx, sizeof *stalls);
    if (!stalls) return esp__fail(ctx, ESP_E_NOMEM, "out of memory for the stall reporter");
    stalls->ctx = ctx;
    const esp__stall_events ev = {.after_ns = (uint64_t)ms * 1000000u,
                                  .waits = esp__stall_waits_since,
                                  .answer = esp__stall_say_how_far,
                                  .report = esp__stall_report,
                                  .ended = esp__stall_say_ended,
                                  .deaf = esp__stall_say_deaf,
                                  .user = stalls};
    s = esp__peers_stall_on(ctx->job.peers, &ev);
    if (s) esp__free(ctx, stalls);
    if (!s) *self = stalls;
    return s;
}

static void esp__stall_close(esp_ctx *ctx, void *self) {
    esp__peers_stall_off(ctx->job.peers);
    esp__free(ctx, self);
}

/* The connections are new: stalls are reported over them. */
static esp_status esp__stall_shrunk(esp_ctx *ctx, void **self) {
    if (!*self) return ESP_OK;
    esp__free(ctx, *self);
    *self = NULL;
    return esp__stall_open(ctx, self);
}

ESP__FN const esp__observer *esp__stall_observer(void) {
    static const esp__observer o = {
        .name = "stall", .open = esp__stall_open, .shrunk = esp__stall_shrunk, .close = esp__stall_close};
    return &o;
}
