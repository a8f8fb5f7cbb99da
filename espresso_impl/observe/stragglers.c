/* stragglers.c: when a rank has waited for ESPRESSO_STRAGGLER_MS, rank 0 logs which ranks have not pushed which
 * tensors, and later that the wait has ended. job/liveness.c notices such waits and asks the ranks; this file puts
 * their answers into words. It runs on the watch thread and allocates nothing, so a step costs nothing. */
#include "espresso_impl/executor/executor.h"
#include "espresso_impl/observe/observe.h"

enum { ESP__KINDS_SHOWN = 4, ESP__RANGES_SHOWN = 8 };

typedef struct esp__stragglers {
    esp_ctx *ctx;
    uint64_t step; /* the last reported step */
    bool in_call;
} esp__stragglers;

typedef struct esp__sentence {
    size_t n;
    char text[ESP__ERROR_MAX - 256];
} esp__sentence;

ESP__PRINTF(2, 3) static void esp__sentence_add(esp__sentence *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(t->text + t->n, sizeof t->text - t->n, fmt, ap);
    va_end(ap);
    t->n += n < 0 ? 0 : (size_t)n;
    if (t->n >= sizeof t->text) t->n = sizeof t->text - 1;
}

static const char *esp__straggler_tensor(const esp_ctx *ctx, uint32_t tensor) {
    return tensor < ctx->model.n_tensors ? ctx->model.tensors[tensor].name : "?";
}

static uint32_t esp__missing_shown(const esp__answer *a) {
    return a->n_missing < ESP__ANSWER_NAMES ? a->n_missing : (uint32_t)ESP__ANSWER_NAMES;
}

/* Whether the answer shows that the rank has not pushed this tensor; an answer has the first few such tensors only. */
static bool esp__answer_misses(const esp__answer *a, uint32_t tensor) {
    for (uint32_t k = 0; k < esp__missing_shown(a); k++)
        if (a->missing[k] == tensor) return true;
    return a->n_missing == a->n_tensors;
}

/* Adds the tensors of answer `at` that no rank has pushed. Returns their number. */
static uint32_t esp__sentence_pushed_by_none(const esp_ctx *ctx, esp__sentence *t, const esp__rank_state *ranks,
                                             int32_t n, const esp__answer *at) {
    uint32_t common = 0;
    for (uint32_t k = 0; k < esp__missing_shown(at); k++) {
        int32_t r = 0;
        while (r < n && ranks[r].answered && esp__answer_misses(&ranks[r].answer, at->missing[k])) r++;
        if (r < n) continue;
        esp__sentence_add(t, "%s'%.80s'", common++ ? ", " : "; no rank has pushed ",
                          esp__straggler_tensor(ctx, at->missing[k]));
    }
    return common;
}

/* Adds a text such as "'a', 'b' and 3 more of its 7 tensors". */
static void esp__sentence_missing(const esp_ctx *ctx, esp__sentence *t, const esp__answer *a) {
    const uint32_t shown = esp__missing_shown(a);
    for (uint32_t k = 0; k < shown; k++)
        esp__sentence_add(t, "%s'%.80s'", k ? ", " : "", esp__straggler_tensor(ctx, a->missing[k]));
    if (a->n_missing > shown)
        esp__sentence_add(t, " and %u more of its %u tensors", (unsigned)(a->n_missing - shown),
                          (unsigned)a->n_tensors);
}

/* If `also_waiting`, also says why ranks that wait keep others waiting: they have not pushed more tensors than the
 * `common` ones that no rank has pushed. */
static esp__sentence esp__straggler_why(const esp_ctx *ctx, const esp__rank_state *r, const esp__answer *at,
                                        bool also_waiting, uint32_t common) {
    const esp__answer *a = &r->answer;
    esp__sentence t = {0};
    if (!r->connected) return t;
    if (!r->answered) esp__sentence_add(&t, "does not answer: it is stopped, or its machine is overloaded");
    if (!r->answered || !a->started) return t;
    if (a->step != at->step) {
        esp__sentence_add(&t, "is at step %llu", (unsigned long long)a->step);
    } else if (at->trainer == ESP__TRAINER_IN_CALL) {
        if (a->trainer != ESP__TRAINER_IN_CALL) esp__sentence_add(&t, "has not come to that call");
    } else if (a->trainer == ESP__TRAINER_IN_CALL) {
        esp__sentence_add(&t,
                          "waits in a broadcast, allreduce or barrier instead, and has pushed no tensor of this step");
    } else if (!a->open) {
        esp__sentence_add(&t, "has pushed no tensor of this step: ");
        esp__sentence_missing(ctx, &t, a);
    } else if (a->n_missing > common && (also_waiting || a->trainer == ESP__TRAINER_ELSEWHERE)) {
        esp__sentence_add(&t, "%s not pushed ", a->trainer ? "waits for a tensor, but has" : "has");
        esp__sentence_missing(ctx, &t, a);
    }
    return t;
}

static void esp__sentence_ranks(esp__sentence *t, const esp__rank_state *ranks, int32_t n, int kind) {
    int32_t ranges = 0, left = 0;
    for (int32_t r = 0; r < n; r++) left += ranks[r].kind == kind;
    esp__sentence_add(t, left == 1 ? "rank " : "ranks ");
    for (int32_t r = 0, end; r < n && left; r = end + 1) {
        for (end = r; end < n && ranks[end].kind == kind; end++) {
        }
        if (end == r) continue;
        if (ranges == ESP__RANGES_SHOWN) {
            esp__sentence_add(t, " and %d more", (int)left);
            return;
        }
        esp__sentence_add(t, ranges++ ? ", %d" : "%d", (int)r);
        if (end - r > 1) esp__sentence_add(t, end - r > 2 ? "-%d" : ", %d", (int)end - 1);
        left -= end - r;
    }
}

/* Adds one sentence for all ranks with the same reason. Returns the number of stragglers. */
static int32_t esp__sentence_kinds(const esp_ctx *ctx, esp__sentence *t, esp__rank_state *ranks, int32_t n,
                                   const esp__answer *at, bool also_waiting, uint32_t common) {
    int32_t all = 0, shown = 0;
    for (int32_t r = 0; r < n; r++) ranks[r].kind = 0;
    for (int32_t r = 0, kind = 1; r < n; r++) {
        const esp__sentence one = esp__straggler_why(ctx, &ranks[r], at, also_waiting, common);
        all += one.n != 0;
        if (!one.n || ranks[r].kind || kind > ESP__KINDS_SHOWN) continue;
        for (int32_t k = r; k < n; k++) {
            const esp__sentence other = esp__straggler_why(ctx, &ranks[k], at, also_waiting, common);
            if (ranks[k].kind || strcmp(one.text, other.text) != 0) continue;
            ranks[k].kind = kind;
            shown++;
        }
        esp__sentence_add(t, "; ");
        esp__sentence_ranks(t, ranks, n, kind++);
        esp__sentence_add(t, " %s", one.text);
    }
    if (all > shown) esp__sentence_add(t, "; and %d more ranks keep them waiting", (int)(all - shown));
    return all;
}

static void esp__sentence_under_way(const esp_ctx *ctx, esp__sentence *t, int32_t rank, const esp__answer *at) {
    esp__sentence_add(t, at->trainer == ESP__TRAINER_IN_STEP ? "; every rank has pushed all tensors"
                                                             : "; every rank has come to that call");
    if (at->waits_for < 0)
        esp__sentence_add(t, ": data is still under way, or a rank still compresses");
    else
        esp__sentence_add(t, ": rank %d waits for data of rank %d", (int)rank, (int)at->waits_for);
    if (at->waits_for >= 0 && at->tensor < ctx->model.n_tensors)
        esp__sentence_add(t, " for tensor '%.80s'", esp__straggler_tensor(ctx, at->tensor));
}

static void esp__stragglers_report(void *user, esp__rank_state *ranks, int32_t n, uint64_t waited_ns) {
    esp__stragglers *self = user;
    esp__sentence t = {0};
    int32_t first = 0;
    for (int32_t r = 0; r < n; r++) ranks[r].answer.started &= ranks[r].answered;
    while (first < n && !(ranks[first].waits_long && ranks[first].answer.started)) first++;
    if (first == n) return; /* the waiting rank has closed, or does not answer */
    const esp__answer *at = &ranks[first].answer;
    if (at->trainer == ESP__TRAINER_ELSEWHERE) return;
    self->step = at->step;
    self->in_call = at->trainer == ESP__TRAINER_IN_CALL;
    for (int32_t r = 0; r < n; r++) { /* kind -1: waits in the same call as rank `first` */
        const esp__answer *a = &ranks[r].answer;
        ranks[r].kind = a->started && a->step == at->step && a->trainer == at->trainer ? -1 : 0;
    }
    esp__sentence_add(&t, self->in_call ? "after step %llu, in a broadcast, allreduce or barrier" : "step %llu",
                      (unsigned long long)at->step);
    esp__sentence_add(&t, ": for %.1f s ", (double)waited_ns * 1e-9);
    esp__sentence_ranks(&t, ranks, n, -1);
    esp__sentence_add(&t, " could not go on");
    if (!esp__sentence_kinds(self->ctx, &t, ranks, n, at, false, 0)) {
        const uint32_t common = esp__sentence_pushed_by_none(self->ctx, &t, ranks, n, at);
        if (!esp__sentence_kinds(self->ctx, &t, ranks, n, at, true, common) && !common)
            esp__sentence_under_way(self->ctx, &t, first, at);
    }
    esp__log(self->ctx, ESP_LOG_WARN, "straggler", "%s (ESPRESSO_STRAGGLER_MS)", t.text);
}

static void esp__stragglers_ended(void *user, uint64_t waited_ns) {
    const esp__stragglers *self = user;
    esp__log(self->ctx, ESP_LOG_WARN, "straggler", "%s %llu went on after %.1f s",
             self->in_call ? "the call after step" : "step", (unsigned long long)self->step, (double)waited_ns * 1e-9);
}

static void esp__stragglers_silent(void *user, uint64_t waited_ns) {
    esp__stragglers *self = user;
    esp__answer a = {0};
    esp__waits_answer(self->ctx, &a);
    self->step = a.step;
    self->in_call = a.trainer == ESP__TRAINER_IN_CALL;
    esp__log(self->ctx, ESP_LOG_WARN, "straggler",
             "step %llu: for %.1f s this rank could not go on, and rank 0, which reports stragglers, does not answer: "
             "it is stopped, or its machine is overloaded (ESPRESSO_STRAGGLER_MS)",
             (unsigned long long)a.step, (double)waited_ns * 1e-9);
}

/* ---- the observer ---- */
static esp_status esp__stragglers_open(esp_ctx *ctx, void **self) {
    int64_t ms = 0;
    const esp_status s = esp__env_straggler(&ms);
    if (s || !ms || ctx->job.size == 1) return s;
    esp__stragglers *x = esp__alloc(ctx, sizeof *x);
    if (!x) return esp__fail(ctx, ESP_E_NOMEM, "out of memory for reports of stragglers");
    x->ctx = ctx;
    const esp__report_events ev = {.after_ns = (uint64_t)ms * 1000000u,
                                   .user = x,
                                   .report = esp__stragglers_report,
                                   .ended = esp__stragglers_ended,
                                   .silent = esp__stragglers_silent};
    esp__peers_report_on(ctx->job.peers, &ev);
    *self = x;
    return ESP_OK;
}

static void esp__stragglers_close(esp_ctx *ctx, void *self) {
    esp__peers_report_off(ctx->job.peers);
    esp__free(ctx, self);
}

static esp_status esp__stragglers_shrunk(esp_ctx *ctx, void **self) {
    if (!*self) return ESP_OK;
    esp__free(ctx, *self);
    *self = NULL;
    return esp__stragglers_open(ctx, self);
}

ESP__FN const esp__observer *esp__stragglers_observer(void) {
    static const esp__observer o = {
        .open = esp__stragglers_open, .shrunk = esp__stragglers_shrunk, .close = esp__stragglers_close};
    return &o;
}
