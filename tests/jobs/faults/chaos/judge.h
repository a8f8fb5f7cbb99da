/* judge.h checks the reports of a job. */
#ifndef CHAOS_JUDGE_H
#define CHAOS_JUDGE_H
#include "board.h"
#include <stdarg.h>

typedef struct result {
    int failed;
    int busy; /* a rank got too little processor time: run again */
    int late;
    double noticed_ms[RANKS];
    int n_noticed;
    char why[4000];
} result;

__attribute__((format(printf, 2, 3))) static inline void fault_found(result *r, const char *fmt, ...) {
    const size_t n = strlen(r->why);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->why + n, sizeof r->why - n, fmt, ap);
    va_end(ap);
    r->failed = 1;
}

/* Returns whether the fault kills, stops or ends the victim's process. */
static inline int is_lost(const plan *p) {
    return p->kind == KILL || p->kind == KILL_OPEN || p->kind == KILL_SAVE || p->kind == EXIT || p->kind == STOP;
}

/* Checks that the means of a step have the same bits on all ranks that have finished it. */
static inline void judge_averages(board *b, result *out) {
    for (int k = 0; k < STEPS_MAX; k++) {
        uint64_t first = 0;
        int any = 0;
        for (int r = 0; r < RANKS; r++) {
            const uint64_t h = atomic_load(&b->rank[r].average[k]);
            if (h) any = 1;
            if (h && first && h != first) {
                fault_found(out, "step %d: rank %d has other averages than a rank before it\n", k, r);
                return;
            }
            if (h) first = h;
        }
        if (!any) return;
    }
}

/* If a rank fails in a step, its error must say in which collective of which tensor. */
static inline void judge_place(board *b, int r, result *out) {
    const report *x = &b->rank[r];
    if (!atomic_load(&x->pushes) || !atomic_load(&x->ready)) return;
    if (strstr(x->text, "has run all of its ops")) return;
    if (strstr(x->text, "this rank is in step ") && strstr(x->text, " at op ") && strstr(x->text, "of tensor 'layer"))
        return;
    fault_found(out, "rank %d's error does not say where it was: %s\n", r, x->text);
}

static inline void judge_time(board *b, int r, uint64_t fault_ns, double bound_ms, result *out) {
    const unsigned long long returned = atomic_load(&b->rank[r].returned_ns);
    double ms = returned > fault_ns ? (double)(returned - fault_ns) / 1e6 : 0;
    if (kinds[b->plan.kind].silence) ms = ms > b->plan.timeout_ms ? ms - b->plan.timeout_ms : 0;
    out->noticed_ms[out->n_noticed++] = ms;
    out->late += ms > bound_ms;
}

static inline int names(const char *text, int32_t rank) {
    char who[32];
    snprintf(who, sizeof who, "rank %d", (int)rank);
    for (const char *at = text; (at = strstr(at, who)); at++)
        if (at[strlen(who)] < '0' || at[strlen(who)] > '9') return 1;
    return 0;
}

/* Returns whether the error of rank r names the victim, or names another rank whose error does, and so on. `seen` has a
 * bit for each rank that was looked at. */
static inline int leads_to_victim(const board *b, int r, int seen) {
    if (r == b->plan.victim || names(b->rank[r].text, b->plan.victim)) return 1;
    for (int q = 0; q < RANKS && strstr(b->rank[r].text, "see its own error"); q++)
        if (!(seen >> q & 1) && names(b->rank[r].text, q) && leads_to_victim(b, q, seen | 1 << q)) return 1;
    return 0;
}

/* Over MPI, only rank 0 announces that other ranks have left. If rank 0 itself leaves early, the others may wait until
 * the timeout. */
static inline int may_time_out(const board *b, esp_status s) {
    const plan *p = &b->plan;
    return b->launched && p->kind == ORDER && p->variant == CLOSE_EARLY && p->victim == 0 && s == ESP_E_TIMEOUT;
}

static inline int is_wanted(const board *b, int r, esp_status s) {
    const plan *p = &b->plan;
    if (may_time_out(b, s)) return 1;
    switch (plan_want(p)) {
    case WANT_PEER: return s == ESP_E_PEER || (p->kind == KILL_OPEN && s == ESP_E_TIMEOUT);
    case WANT_TIMEOUT: return s == ESP_E_TIMEOUT || (r == p->victim && s);
    case WANT_OK: return s == ESP_OK;
    default: break;
    }
    /* all ranks time out at about the same moment, and the victim may close before another rank's timeout */
    if ((p->kind == PUSH && p->variant == ONE_NEVER_PUSHES) || (p->kind == ORDER && p->variant == STRATEGY_ALONE))
        return s == ESP_E_TIMEOUT || s == ESP_E_PEER;
    /* without shared memory, ranks in collectives that do not match wait for each other until the timeout */
    if (b->launched && (p->kind == ORDER || p->kind == PUSH) && s == ESP_E_TIMEOUT) return 1;
    if (p->kind == ORDER && p->variant == BARRIER_FOR_STEP && !plan_setup(p)->flat)
        return s == ESP_E_MISMATCH || s == ESP_E_TIMEOUT;
    return s == ESP_E_MISMATCH;
}

static inline void judge_rank(board *b, int r, uint64_t fault_ns, double bound_ms, result *out) {
    const plan *p = &b->plan;
    const report *x = &b->rank[r];
    const esp_status s = (esp_status)atomic_load(&x->status);
    const want w = plan_want(p);
    if (atomic_load(&x->wrong)) fault_found(out, "rank %d: %s\n", r, x->why);
    if (is_lost(p) && r == p->victim) {
        if (p->kind == STOP && p->resume && (int)s == NOT_REPORTED)
            fault_found(out, "rank %d hangs after SIGCONT\n", r);
        return;
    }
    if (p->kind == ORDER && p->variant == CLOSE_EARLY && r == p->victim) return;
    if ((int)s == NOT_REPORTED) {
        fault_found(out, "rank %d has not returned (step %d)\n", r, atomic_load(&x->step));
        return;
    }
    if (!is_wanted(b, r, s)) fault_found(out, "rank %d: %s %s\n", r, esp_status_name(s), x->text);
    if (w == WANT_OK || out->failed) return;
    /* If another rank was named, it got too little processor time; the job is then repeated with a longer timeout. */
    if (w == WANT_TIMEOUT && s == ESP_E_TIMEOUT && !names(x->text, p->victim)) out->busy = 1;
    const int waits =
        (p->kind == PUSH && p->variant == ONE_NEVER_PUSHES) || (p->kind == ORDER && p->variant == STRATEGY_ALONE);
    const int unnamed = may_time_out(b, s) || (b->launched && strstr(x->text, "do ranks make different calls"));
    if ((w == WANT_PEER || w == WANT_TIMEOUT || (waits && r != p->victim)) && !names(x->text, p->victim) && !unnamed)
        fault_found(out, "rank %d does not name the victim: %s\n", r, x->text);
    if (p->kind == VERSION && (!strstr(x->text, "9.9.9") || !strstr(x->text, ESPRESSO_VERSION)))
        fault_found(out, "rank %d does not name both versions: %s\n", r, x->text);
    if (w == WANT_PEER || w == WANT_TIMEOUT) judge_place(b, r, out);
    if (kinds[p->kind].timed) judge_time(b, r, fault_ns, bound_ms, out);
}

/* Checks a job in which memory or descriptors ran out: either all ranks succeed, or all fail with errors that lead
 * to the victim. */
static inline void judge_all_or_none(board *b, result *out) {
    const plan *p = &b->plan;
    int failed = 0;
    for (int r = 0; r < RANKS; r++) failed += atomic_load(&b->rank[r].status) != ESP_OK;
    for (int r = 0; r < RANKS; r++) {
        const report *x = &b->rank[r];
        const int s = atomic_load(&x->status), before = atomic_load(&b->rank[0].saved[1]) == 1;
        if (atomic_load(&x->wrong)) fault_found(out, "rank %d: %s\n", r, x->why);
        if (s == NOT_REPORTED) fault_found(out, "rank %d has not returned (step %d)\n", r, atomic_load(&x->step));
        if (failed && s == ESP_OK) fault_found(out, "rank %d goes on, others failed\n", r);
        if (failed && r != p->victim && !leads_to_victim(b, r, 1 << r))
            fault_found(out, "rank %d does not name the victim: %s\n", r, x->text);
        if (failed && r == p->victim && s != ESP_E_NOMEM && s != ESP_E_COMM)
            fault_found(out, "rank %d: %s %s\n", r, esp_status_name((esp_status)s), x->text);
        if (!failed && (atomic_load(&x->saved[1]) == 1) != before)
            fault_found(out, "rank %d succeeded where another failed, or the reverse\n", r);
    }
}

/* Checks the files after a rank was killed in esp_state_save. Each must be complete, and either old or new. */
static inline void judge_files(board *b, uint64_t (*hash)(const char *, int32_t), result *out) {
    for (int r = 0; r < RANKS; r++) {
        char folder[PATH_ROOM + 64];
        snprintf(folder, sizeof folder, "%.*s/r%d", PATH_ROOM - 1, b->folder, r);
        const uint64_t h = hash(folder, r);
        if (h != atomic_load(&b->rank[r].saved[0]) && h != atomic_load(&b->rank[r].saved[1]))
            fault_found(out, "rank %d's state is neither the old nor the new one\n", r);
        if (r != b->plan.victim && test_count_files(folder, ".tmp-espresso"))
            fault_found(out, "rank %d leaves a temporary file\n", r);
    }
}

static inline void judge(board *b, uint64_t fault_ns, double bound_ms, uint64_t (*hash)(const char *, int32_t),
                         result *out) {
    const kind k = b->plan.kind;
    if (k == MEMORY || k == NO_MEMFD) {
        judge_all_or_none(b, out);
    } else {
        for (int r = 0; r < RANKS; r++) judge_rank(b, r, fault_ns, bound_ms, out);
    }
    if (k == DISK)
        for (int r = 1; r < RANKS; r++)
            if (atomic_load(&b->rank[r].saved[1]) != atomic_load(&b->rank[0].saved[1]))
                fault_found(out, "rank %d saved its state and another did not, or the reverse\n", r);
    if (k == KILL_SAVE) judge_files(b, hash, out);
    judge_averages(b, out);
}
#endif
