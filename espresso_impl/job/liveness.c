/* liveness.c: the thread that watches a rank's connections. Only it reads the sockets and changes a connection's state,
 * under the lock; it calls the context without the lock. A connection that ends without a LEAVE message means that the
 * rank died. To find ranks that are silent or slow, rank 0 asks all ranks for their state (an inquiry). After a
 * timeout, it decides which rank has failed. The rank that another one waits for may itself wait for a third one, so
 * rank 0 follows this chain to a rank that does not wait or does not answer. Long before a timeout, it only reports
 * stragglers. */
#include "espresso_impl/base/limits.h"
#include "espresso_impl/base/os.h"
#include "espresso_impl/job/peers.h"
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    ESP__ANSWER_MS = 300,
    ESP__DECISION_MS = 800, /* how long other ranks wait for rank 0's decision */
    ESP__SILENCE_GRACE_MS = 50,
    ESP__WAIT_POLL_NS = 50000000,
    ESP__PASS_ON_NS = 20000000,
    ESP__HUB_SILENT_NS = 2000000000
};
enum { ESP__CAUSES = 64 };

/* Unlocks p->lock while the callback runs, because it may call functions that take the lock. */
#define ESP__CALL(p, callback, arguments)                                                                              \
    do {                                                                                                               \
        if ((p)->closing || !(p)->ev.callback) break;                                                                  \
        pthread_mutex_unlock(&(p)->lock);                                                                              \
        (p)->ev.callback arguments;                                                                                    \
        pthread_mutex_lock(&(p)->lock);                                                                                \
    } while (0)

static void esp__report_begin(esp__peers *p) {
    p->report.inside++;
    pthread_mutex_unlock(&p->lock);
}
static void esp__report_end(esp__peers *p) {
    pthread_mutex_lock(&p->lock);
    p->report.inside--;
    pthread_cond_broadcast(&p->changed);
}

/* ---- deaths ---- */
ESP__FN void esp__watch_first_left(esp__peers *p, int32_t rank) {
    if (p->first_left < 0) p->first_left = rank;
}

/* Wakes waiting threads because `rank` has died or left. Calls the context's `lost` callback for the first death and
 * the first departure, and for the first departure that an error (-cause) caused. */
static void esp__watch_notify(esp__peers *p, int32_t rank, int state, uint64_t cause) {
    const bool died = state == ESP__DIED, error = cause && cause < ESP__CAUSES;
    const bool known = p->error_known || (p->left_known && !error), first = p->dead < 0 && (died || !known);
    if (died && first) p->dead = rank;
    if (!died) esp__watch_first_left(p, rank), p->left[rank] = 1, p->left_known = true, p->error_known |= error;
    pthread_cond_broadcast(&p->changed);
    if (first) ESP__CALL(p, lost, (p->ev.user, rank, died ? 0 : error ? -(int)cause : 1));
}

static void esp__watch_excluded(esp__peers *p) {
    if (p->excluded) return;
    p->excluded = true;
    pthread_cond_broadcast(&p->changed);
    ESP__CALL(p, excluded, (p->ev.user));
}

ESP__FN void esp__watch_pass_on(esp__peers *p) {
    const esp__msg m = {ESP__MSG_LEFT, 0, 0, p->leaving_cause, 0};
    const int32_t most = ESP__RESERVE / (int32_t)sizeof *p->leaving; /* ranks that fit into one message */
    for (int32_t at = 0; at < p->n_leaving && !p->quit; at += most) {
        const int32_t n = p->n_leaving - at < most ? p->n_leaving - at : most;
        for (int32_t r = 1; r < p->size; r++)
            esp__conn_send(p->ctx, &p->conns[r], m, p->leaving + at, (uint64_t)n * sizeof *p->leaving);
    }
    p->n_leaving = 0;
    p->pass_on_ns = esp__now_ns() + ESP__PASS_ON_NS;
}

/* Rank 0 notifies the others of several leaving ranks at a time: at the end of a job all ranks leave, and one message
 * for each to all others would be n^2 messages. It notifies them at once of the first one, and of a new cause. */
ESP__FN void esp__watch_left(esp__peers *p, int32_t rank, uint64_t cause) {
    const bool other = cause != p->leaving_cause;
    if (other) esp__watch_pass_on(p);
    p->leaving_cause = cause;
    p->leaving[p->n_leaving++] = rank;
    if (other) esp__watch_pass_on(p);
}

static void esp__watch_gone(esp__peers *p, esp__conn *c, int state, uint64_t cause) {
    if (c->state != ESP__HERE) return;
    c->state = state;
    esp__socket_close(&c->fd);
    esp__socket_close(&c->pidfd);
    if (p->rank == 0 && state == ESP__LEFT) {
        esp__watch_left(p, c->rank, cause);
        esp__exchange_left(p, c->rank);
    } else if (p->rank == 0 && !p->quit && p->dead < 0) { /* the other ranks are notified only of the first death */
        esp__watch_pass_on(p);
        esp__send_all(p, (esp__msg){ESP__MSG_DIED, c->rank, 0, 0, 0});
    }
    if (p->rank != 0 && state == ESP__LEFT) p->hub_left = true;
    esp__watch_notify(p, c->rank, state, cause);
}

/* This rank has no memory for a message, so it cannot continue: it shuts its connections, which the other ranks see as
 * its death. */
static void esp__watch_no_memory(esp__peers *p) {
    for (int32_t i = 0; i < p->n_conns; i++) p->no_memory |= p->conns[i].no_memory;
    if (!p->no_memory || p->left_job) return;
    const bool first = p->dead < 0;
    p->left_job = true;
    for (int32_t i = 0; i < p->n_conns; i++)
        if (p->conns[i].fd >= 0) shutdown(p->conns[i].fd, SHUT_RDWR), p->conns[i].broken = true;
    if (first) esp__watch_notify(p, p->rank, ESP__DIED, 0);
    p->dead = p->rank;
    pthread_cond_broadcast(&p->changed);
}

/* ---- answering an inquiry, on any rank ---- */
static esp__answer esp__answer_own(esp__peers *p) {
    esp__answer a = {.waits_for = ESP__WAITS_FOR_NOBODY, .tensor = UINT32_MAX};
    ESP__CALL(p, answer, (p->ev.user, &a));
    return a;
}

static void esp__decided(esp__peers *p, int32_t rank, uint64_t tensor) {
    p->suspecting = false;
    p->decision_known = true;
    pthread_cond_broadcast(&p->changed);
    ESP__CALL(p, decided, (p->ev.user, rank, (uint32_t)tensor));
}

/* Returns when a rank that has not answered since `asked` counts as silent; UINT64_MAX if `asked` is 0 or too old. */
static uint64_t esp__silence_end(const esp__peers *p, uint64_t asked, uint64_t now) {
    const uint64_t soon = now + ESP__SILENCE_GRACE_MS * 1000000ull;
    const uint64_t silent = asked + (esp__peers_lead_ms(p->timeout_ms) + ESP__SILENCE_GRACE_MS) * 1000000ull;
    if (!asked || asked + 3000000000u < now) return UINT64_MAX;
    return silent > soon ? silent : soon;
}

/* ---- running an inquiry, on rank 0 ---- */
static void esp__inquiry_answer(esp__peers *p, int32_t from, const esp__answer *a) {
    esp__rank_state *r = &p->asked[from];
    const int32_t waits_for = r->answer.waits_for;
    const uint32_t tensor = r->answer.tensor;
    r->answered = true;
    r->answer = *a;
    if (r->answer.waits_for < ESP__WAITS_FOR_NOBODY || r->answer.waits_for >= p->size) r->answer.waits_for = -1;
    if (p->inquiry.decide && from == p->inquiry.suspecting && a->waits_for == ESP__WAITS_FOR_NOBODY)
        r->answer.waits_for = waits_for, r->answer.tensor = tensor;
}

static void esp__inquiry_begin(esp__peers *p) {
    const uint64_t now = esp__now_ns();
    p->inquiry.number++;
    p->inquiry.until_ns = now + ESP__ANSWER_MS * 1000000ull;
    p->inquiry.silence_ns = esp__silence_end(p, p->checked_ns, now);
    for (int32_t r = 0; r < p->size; r++) {
        p->asked[r].connected = r == 0 || p->conns[r].state == ESP__HERE;
        p->asked[r].answered = false;
    }
    esp__send_all(p, (esp__msg){ESP__MSG_ASK, 0, 0, p->inquiry.number, 0});
    const esp__answer own = esp__answer_own(p);
    esp__inquiry_answer(p, 0, &own);
}

/* Starts an inquiry because rank `from` timed out. Ranks that time out later get the same decision. */
static void esp__inquiry_suspect(esp__peers *p, int32_t from, int32_t on_rank, uint64_t tensor) {
    esp__inquiry *q = &p->inquiry;
    const esp__msg known = {ESP__MSG_DECISION, q->failed, q->tensor, 0, 0};
    if (q->decide) return;
    if (q->decided && from) esp__send(p, from, known);
    if (q->decided && !from) esp__decided(p, q->failed, q->tensor);
    if (q->decided) return;
    q->decide = true;
    q->suspecting = from;
    p->asked[from].answer.waits_for = on_rank < -1 || on_rank >= p->size ? -1 : on_rank;
    p->asked[from].answer.tensor = (uint32_t)tensor;
    esp__inquiry_begin(p);
    p->asked[from].answered = true;
}

/* Follows the chain of waits to a rank that does not wait, or that has not answered (sets *silent). Returns -1 if a
 * rank does not know for whom it waits, or if ranks wait for each other in a circle. */
static int32_t esp__inquiry_chain(esp__peers *p, uint64_t *tensor, bool *silent) {
    int32_t at = p->inquiry.suspecting;
    for (int32_t r = 0; r < p->size; r++) p->asked[r].kind = 0;
    for (;;) {
        esp__rank_state *r = &p->asked[at];
        *silent = !r->answered;
        if (!r->answered || r->answer.waits_for == ESP__WAITS_FOR_NOBODY) return at;
        if (r->answer.tensor != UINT32_MAX) *tensor = r->answer.tensor;
        if (r->answer.waits_for < 0 || p->asked[r->answer.waits_for].kind) return -1;
        r->kind = 1;
        at = r->answer.waits_for;
    }
}

ESP__FN void esp__inquiry_decide(esp__peers *p, bool final) {
    uint64_t tensor = UINT32_MAX;
    bool silent = false;
    int32_t failed = esp__inquiry_chain(p, &tensor, &silent);
    if (!final && (silent || failed < 0)) return;
    /* If ranks wait in a circle or do not know for whom they wait, a rank that did not answer counts as failed. */
    for (int32_t r = 0; r < p->size && failed < 0; r++)
        if (!p->asked[r].answered) failed = r;
    /* A rank that has left, or rank 0 while it closes, waits for nobody. The first rank that left is to blame: others
     * leave because it did. */
    if (failed >= 0 && p->first_left >= 0 && (failed == 0 ? p->closing : p->left[failed])) failed = p->first_left;
    p->inquiry.decide = false;
    p->inquiry.decided = failed >= 0;
    p->inquiry.failed = failed;
    p->inquiry.tensor = tensor;
    esp__send_all(p, (esp__msg){ESP__MSG_DECISION, failed, tensor, 0, 0});
    esp__decided(p, failed, tensor);
}

static void esp__watchdog_ended(esp__peers *p) {
    p->report.reported = false;
    esp__report_begin(p);
    p->report.ev.ended(p->report.ev.user, p->report.longest_ns);
    esp__report_end(p);
}

static void esp__inquiry_report(esp__peers *p, uint64_t now) {
    esp__reporter *s = &p->report;
    p->inquiry.report = false;
    s->open = false;
    for (int32_t r = 0; r < p->size; r++) {
        const esp__answer *a = &p->asked[r].answer;
        p->asked[r].waits_long = p->asked[r].answered && a->started && a->waited_ns >= s->ev.after_ns;
        s->open |= p->asked[r].waits_long;
        if (p->asked[r].waits_long && a->waited_ns > s->longest_ns) s->longest_ns = a->waited_ns;
    }
    s->ask_ns = now + (s->ev.after_ns / 8 > ESP__WAIT_POLL_NS ? s->ev.after_ns / 8 : ESP__WAIT_POLL_NS);
    if (s->open && now >= s->report_ns) {
        s->reported = true;
        s->report_ns = now + s->interval_ns;
        s->interval_ns *= 2;
        esp__report_begin(p);
        s->ev.report(s->ev.user, p->asked, p->size, s->longest_ns);
        esp__report_end(p);
    } else if (!s->open && s->reported) {
        esp__watchdog_ended(p);
    }
}

/* Ends the inquiry when all ranks have answered or, once no message is unread (`quiet`), at a deadline. */
static void esp__inquiry_turn(esp__peers *p, bool quiet, uint64_t now) {
    bool missing = false, awaited = false; /* `awaited`: a rank that has not answered did answer the previous inquiry */
    for (int32_t r = 1; r < p->size; r++) {
        if (p->conns[r].state != ESP__HERE || p->asked[r].answered) continue;
        missing = true;
        awaited |= p->conns[r].answered_ns >= p->checked_ns;
    }
    const bool over = !missing || (quiet && now >= p->inquiry.until_ns);
    if (p->inquiry.decide) esp__inquiry_decide(p, over || (quiet && now >= p->inquiry.silence_ns && !awaited));
    if (p->inquiry.report && over) esp__inquiry_report(p, now);
}

/* Asks all ranks for their state or, if it did so in the last 100 ms, only rank `from`. */
static void esp__inquiry_check(esp__peers *p, int32_t from) {
    const uint64_t now = esp__now_ns();
    const bool all = !p->checked_ns || now - p->checked_ns > 100000000u;
    if (all) p->checked_ns = now;
    for (int32_t r = 1; r < p->size; r++)
        if (all || r == from) esp__send(p, r, (esp__msg){ESP__MSG_ASK, 0, 0, p->inquiry.number, 0});
}

/* ---- timeouts, on any rank and thread ---- */
ESP__FN void esp__peers_suspect(esp__peers *p, int32_t on_rank, uint32_t tensor) {
    if (p->size == 1) { /* a job of one rank has no watch thread */
        if (p->ev.decided) p->ev.decided(p->ev.user, on_rank, tensor);
        return;
    }
    pthread_mutex_lock(&p->lock);
    if (!p->suspecting && !p->closing) {
        const uint64_t now = esp__now_ns(), soon = esp__silence_end(p, p->check_ns, now);
        p->suspecting = true;
        p->suspect = on_rank;
        p->suspect_tensor = tensor;
        p->decide_ns = now + ESP__DECISION_MS * 1000000ull;
        if (p->rank && p->hub_asked_ns < p->check_ns && soon < p->decide_ns) p->decide_ns = soon;
        p->suspect_now = p->rank == 0;
        if (p->rank) esp__send(p, 0, (esp__msg){ESP__MSG_SUSPECT, on_rank, tensor, 0, 0});
        esp__peers_wake(p);
    }
    pthread_mutex_unlock(&p->lock);
}

ESP__FN void esp__peers_check(esp__peers *p) {
    if (!p || p->size == 1) return;
    pthread_mutex_lock(&p->lock);
    if (p->check_ns <= p->hub_asked_ns || esp__now_ns() - p->check_ns > 3000000000u) p->check_ns = esp__now_ns();
    p->check_now = p->rank == 0;
    if (p->rank) esp__send(p, 0, (esp__msg){ESP__MSG_CHECK, p->rank, 0, 0, 0});
    esp__peers_wake(p);
    pthread_mutex_unlock(&p->lock);
}

ESP__FN bool esp__peers_hub_silent(esp__peers *p) {
    if (!p || p->size == 1 || p->rank == 0) return 0;
    pthread_mutex_lock(&p->lock);
    const int silent = p->hub_asked_ns < p->check_ns && !p->hub_left && p->dead < 0;
    pthread_mutex_unlock(&p->lock);
    return silent;
}

ESP__FN void esp__suspect_turn(esp__peers *p, bool quiet) {
    const uint64_t now = esp__now_ns();
    if (p->suspect_now && p->suspecting) esp__inquiry_suspect(p, 0, p->suspect, p->suspect_tensor);
    if (p->check_now) esp__inquiry_check(p, 0);
    p->suspect_now = p->check_now = false;
    if (p->inquiry.decide || p->inquiry.report) esp__inquiry_turn(p, quiet, now);
    /* Rank 0 would have decided by now. So it has failed, or it has left because the first rank that left did. */
    if (p->suspecting && quiet && now >= p->decide_ns)
        esp__decided(p, !p->rank ? p->suspect : p->hub_left ? p->first_left : 0, p->suspect_tensor);
}

/* ---- stragglers: the watch thread notes when the program waits, and tells rank 0 of a long wait ---- */
static void esp__watchdog_open(esp__peers *p) {
    esp__reporter *s = &p->report;
    if (!s->on || s->open) return;
    s->open = true;
    s->reported = false;
    s->longest_ns = 0;
    s->ask_ns = s->report_ns = esp__now_ns();
    s->interval_ns = s->ev.after_ns;
}

/* Called with the time in ns that this rank's program has waited, or 0 if it does not wait. */
static void esp__watchdog_look(esp__peers *p, uint64_t waited) {
    esp__reporter *s = &p->report;
    const uint64_t after = s->ev.after_ns, now = esp__now_ns(), look = waited ? after - waited : after / 4;
    if (waited < after) {
        if (p->rank == 0 && s->long_ns) s->ask_ns = now;
        if (p->rank && s->reported) esp__watchdog_ended(p);
        s->long_ns = 0;
        s->poll_ns = now + (look < 1000000u ? 1000000u : look);
        return;
    }
    s->poll_ns = now + ESP__WAIT_POLL_NS;
    if (!s->long_ns || now - s->long_ns > after) { /* sent again, as rank 0 may have ended its report */
        s->long_ns = now;
        if (p->rank == 0)
            esp__watchdog_open(p);
        else
            esp__send(p, 0, (esp__msg){ESP__MSG_LONG_WAIT, p->rank, 0, 0, 0});
    }
    if (p->rank) s->longest_ns = waited;
    if (p->rank != 1 || s->reported || waited < after + ESP__HUB_SILENT_NS || p->hub_asked_ns > now - waited + after)
        return;
    s->reported = true;
    esp__report_begin(p);
    s->ev.silent(s->ev.user, waited);
    esp__report_end(p);
}

static void esp__watchdog_turn(esp__peers *p) {
    esp__reporter *s = &p->report;
    if (s->on && (p->dead >= 0 || p->decision_known)) s->on = p->inquiry.report = false; /* no reports after an error */
    if (!s->on || p->closing) return;
    if (esp__now_ns() >= s->poll_ns) {
        const esp__answer own = esp__answer_own(p);
        if (s->on) esp__watchdog_look(p, own.started ? own.waited_ns : 0);
    }
    if (!s->on || !s->open || p->inquiry.report || esp__now_ns() < s->ask_ns) return;
    p->inquiry.report = true;
    if (!p->inquiry.decide) esp__inquiry_begin(p);
}

ESP__FN void esp__peers_report_on(esp__peers *p, const esp__report_events *ev) {
    pthread_mutex_lock(&p->lock);
    p->report = (esp__reporter){.ev = *ev, .on = true, .poll_ns = esp__now_ns() + ev->after_ns / 4};
    esp__peers_wake(p);
    pthread_mutex_unlock(&p->lock);
}

ESP__FN void esp__peers_report_off(esp__peers *p) {
    esp__reporter *s = &p->report;
    pthread_mutex_lock(&p->lock);
    const bool reported = s->on && s->reported;
    s->on = p->inquiry.report = false;
    while (s->inside) pthread_cond_wait(&p->changed, &p->lock);
    const esp__answer own = reported ? esp__answer_own(p) : (esp__answer){0};
    pthread_mutex_unlock(&p->lock);
    if (own.started) s->ev.ended(s->ev.user, s->longest_ns);
}

/* ---- turns of outer loops ---- */
/* On rank 0: tells the others, unless they know. Returns whether it did. */
static bool esp__turn_spread(esp__peers *p, uint64_t fragment) {
    if (fragment < p->turns) return false;
    p->turns = fragment + 1;
    esp__send_all(p, (esp__msg){ESP__MSG_TURN, 0, 0, fragment, 0});
    return true;
}

ESP__FN void esp__peers_turn(esp__peers *p, uint64_t fragment) {
    if (p->size == 1) return;
    pthread_mutex_lock(&p->lock);
    if (p->rank)
        esp__send(p, 0, (esp__msg){ESP__MSG_TURN, p->rank, 0, fragment, 0});
    else
        esp__turn_spread(p, fragment);
    esp__peers_kick(p);
    pthread_mutex_unlock(&p->lock);
}

/* ---- messages ---- */
ESP__FN void esp__watch_on_hub(esp__peers *p, esp__conn *c) {
    const esp__msg *m = &c->head;
    esp__answer answer = {.waits_for = ESP__WAITS_FOR_NOBODY};
    switch (m->type) {
    case ESP__MSG_GATHER:
        if (!esp__exchange_message(p, c) && !p->no_memory)
            esp__log(p->ctx, ESP_LOG_ERROR, "peers", "an exchange with rank %d is malformed", (int)c->rank);
        break;
    case ESP__MSG_WHO:
        esp__send(p, c->rank,
                  (esp__msg){ESP__MSG_MISSING, esp__exchange_missing(p, m->tag, m->seq), m->tag, m->seq, 0});
        break;
    case ESP__MSG_FINAL:
        if (c->last_done) break;
        if (!esp__bytes_add(p->ctx, &c->last, c->body, m->bytes)) c->last.len = 0;
        c->last_done = true;
        pthread_cond_broadcast(&p->changed);
        break;
    case ESP__MSG_SUSPECT: esp__inquiry_suspect(p, c->rank, m->rank, m->tag); break;
    case ESP__MSG_CHECK: esp__inquiry_check(p, c->rank); break;
    case ESP__MSG_ANSWER:
        c->answered_ns = esp__now_ns();
        if (m->bytes == sizeof answer) memcpy(&answer, c->body, sizeof answer);
        if ((p->inquiry.decide || p->inquiry.report) && m->seq == p->inquiry.number)
            esp__inquiry_answer(p, c->rank, &answer);
        break;
    case ESP__MSG_LONG_WAIT: esp__watchdog_open(p); break;
    case ESP__MSG_TURN:
        if (esp__turn_spread(p, m->seq)) ESP__CALL(p, turn, (p->ev.user, m->seq));
        break;
    case ESP__MSG_LEAVE: esp__watch_gone(p, c, ESP__LEFT, m->seq); break;
    case ESP__MSG_EXCLUDED: esp__watch_excluded(p); break;
    default: esp__log(p->ctx, ESP_LOG_ERROR, "peers", "rank %d sent message %u", (int)c->rank, (unsigned)m->type);
    }
    esp__watch_no_memory(p);
}

ESP__FN void esp__watch_from_hub(esp__peers *p, esp__conn *c) {
    const esp__msg *m = &c->head;
    const bool valid = m->rank >= -1 && m->rank < p->size;
    int32_t left;
    esp__waiter *w;
    esp__answer answer;
    switch (m->type) {
    case ESP__MSG_SHARED: esp__waiter_finish(p, m->tag, m->seq, c->body, m->bytes, ESP__NOT_FAILED); break;
    case ESP__MSG_FAILED: esp__waiter_finish(p, m->tag, m->seq, NULL, 0, valid ? m->rank : ESP__SIZES_DIFFER); break;
    case ESP__MSG_MISSING:
        if (valid && (w = esp__waiter_find(p, m->tag, m->seq))) w->missing = m->rank;
        pthread_cond_broadcast(&p->changed);
        break;
    case ESP__MSG_DIED:
        if (m->rank >= 0 && valid) esp__watch_notify(p, m->rank, ESP__DIED, 0);
        break;
    case ESP__MSG_LEFT:
        for (uint64_t at = 0; at + sizeof left <= m->bytes; at += sizeof left) {
            memcpy(&left, c->body + at, sizeof left);
            if (left >= 0 && left < p->size) esp__watch_notify(p, left, ESP__LEFT, m->seq);
        }
        break;
    case ESP__MSG_LEAVE: esp__watch_gone(p, c, ESP__LEFT, m->seq); break;
    case ESP__MSG_ASK:
        p->hub_asked_ns = esp__now_ns();
        answer = esp__answer_own(p);
        esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_ANSWER, p->rank, 0, m->seq, 0}, &answer, sizeof answer);
        break;
    case ESP__MSG_DECISION: esp__decided(p, valid ? m->rank : -1, m->tag); break;
    case ESP__MSG_TURN: ESP__CALL(p, turn, (p->ev.user, m->seq)); break;
    case ESP__MSG_EXCLUDED: esp__watch_excluded(p); break;
    default: esp__log(p->ctx, ESP_LOG_ERROR, "peers", "rank 0 sent message %u", (unsigned)m->type);
    }
}

ESP__FN void esp__watch_read(esp__peers *p, esp__conn *c) {
    while (c->fd >= 0) {
        const int rc = esp__conn_read(p->ctx, c, ESP__BODY_MOST);
        if (rc == 0) return;
        pthread_mutex_lock(&p->lock);
        esp__watch_no_memory(p);
        if (rc < 0)
            esp__watch_gone(p, c, ESP__DIED, 0);
        else if (p->rank == 0)
            esp__watch_on_hub(p, c);
        else
            esp__watch_from_hub(p, c);
        pthread_mutex_unlock(&p->lock);
        esp__conn_next(p->ctx, c);
    }
}

/* ---- the watch thread ---- */
ESP__FN uint64_t esp__watch_polls_bytes(const esp__peers *p) {
    return sizeof *p->polls * (2u * (uint64_t)(p->rank == 0 ? p->size : 1) + 1u);
}

static void esp__earlier(uint64_t *deadline, bool counts, uint64_t ns) {
    if (counts && ns < *deadline) *deadline = ns;
}

/* Fills the list for poll(): the socket and the process of each connection. Returns the timeout in ms. */
static int esp__watch_prepare(esp__peers *p) {
    const esp__reporter *s = &p->report;
    const bool inquires = p->inquiry.decide || p->inquiry.report, reports = s->on && !p->closing;
    uint64_t deadline = UINT64_MAX;
    p->polls[0] = (struct pollfd){p->wake_fd, POLLIN, 0};
    for (int32_t i = 0; i < p->n_conns; i++) {
        const esp__conn *c = &p->conns[i];
        const short write = c->out.len > 0 && !c->broken ? POLLOUT : 0;
        p->polls[1 + 2 * i] = (struct pollfd){c->fd, (short)(POLLIN | write), 0};
        p->polls[2 + 2 * i] = (struct pollfd){c->fd >= 0 ? c->pidfd : -1, POLLIN, 0};
    }
    if (p->suspect_now || p->check_now) return 0;
    esp__earlier(&deadline, p->suspecting, p->decide_ns);
    esp__earlier(&deadline, inquires, p->inquiry.until_ns);
    esp__earlier(&deadline, inquires && esp__now_ns() < p->inquiry.silence_ns, p->inquiry.silence_ns);
    esp__earlier(&deadline, p->quit, p->quit_ns);
    esp__earlier(&deadline, p->n_leaving, p->pass_on_ns);
    esp__earlier(&deadline, reports, s->poll_ns);
    esp__earlier(&deadline, reports && s->open && !p->inquiry.report, s->ask_ns);
    return esp__poll_ms(deadline);
}

/* While closing, shuts each socket for writing once all is sent. Returns true when the other ends have closed too, or
 * after 200 ms, as a stopped process never closes. */
static bool esp__watch_done(esp__peers *p) {
    int open = 0, unsent = 0;
    if (!p->quit) return false;
    for (int32_t i = 0; i < p->n_conns; i++) {
        esp__conn *c = &p->conns[i];
        if (c->fd < 0) continue;
        if (c->out.len == 0 && !c->shut) shutdown(c->fd, SHUT_WR), c->shut = true;
        unsent += !c->shut;
        open++;
    }
    if (!unsent && !p->all_sent) {
        p->all_sent = true;
        esp__earlier(&p->quit_ns, true, esp__now_ns() + 200000000u);
    }
    return !open || esp__now_ns() >= p->quit_ns;
}

static void *esp__watch_main(void *arg) {
    esp__peers *p = (esp__peers *)arg;
    int events = 0;
    prctl(PR_SET_NAME, "espresso-watch", 0, 0, 0);
    for (;;) {
        uint64_t count;
        pthread_mutex_lock(&p->lock);
        esp__watch_no_memory(p);
        esp__suspect_turn(p, events == 0);
        esp__watchdog_turn(p);
        if (p->n_leaving && esp__now_ns() >= p->pass_on_ns) esp__watch_pass_on(p);
        const bool done = esp__watch_done(p);
        const int timeout_ms = esp__watch_prepare(p);
        pthread_mutex_unlock(&p->lock);
        if (done) return NULL;
        events = poll(p->polls, (nfds_t)(1 + 2 * p->n_conns), timeout_ms);
        if (events <= 0) continue;
        if (p->polls[0].revents && read(p->wake_fd, &count, sizeof count) < 0) continue;
        for (int32_t i = 0; i < p->n_conns; i++) {
            esp__conn *c = &p->conns[i];
            if (p->polls[1 + 2 * i].revents & POLLOUT) {
                pthread_mutex_lock(&p->lock);
                esp__conn_flush(c);
                pthread_mutex_unlock(&p->lock);
            }
            if ((p->polls[1 + 2 * i].revents & ~POLLOUT) || p->polls[2 + 2 * i].revents) esp__watch_read(p, c);
            if (!p->polls[2 + 2 * i].revents || c->fd < 0) continue;
            /* The process has ended, though a child of it may keep the socket open. All that it wrote has been read. */
            pthread_mutex_lock(&p->lock);
            esp__watch_gone(p, c, ESP__DIED, 0);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

ESP__FN esp_status esp__watch_start(esp__peers *p) {
    if (p->rank) p->conns[0].reserve = p->reserve;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0) return esp__fail(p->ctx, ESP_E_COMM, "no event descriptor: %s", esp__strerror(errno));
    const int rc = esp__thread_start(&p->thread, esp__watch_main, p);
    if (rc != 0) return esp__fail(p->ctx, ESP_E_NOMEM, "cannot start a thread: %s", esp__strerror(rc));
    p->has_thread = true;
    return ESP_OK;
}
