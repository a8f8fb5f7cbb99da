/* stall.c: finds out which ranks keep the others waiting for long, for peers.c, while the job goes on: nothing fails here. The watch
 * thread looks at this rank's wait from time to time, and tells rank 0 when it becomes a stall and when it ends. Rank 0 then asks all
 * ranks how far they are, and has their answers reported; again when the wait has doubled. It runs under the lock, but calls
 * callbacks without it. Must not know what an answer says. */
#include "espresso_impl/job/job.h"

enum { ESP__STALL_LOOK_MS = 50, ESP__STALL_DEAF_MS = 2000 };

struct esp__stall {
    esp__stall_events ev;
    int on, inside;       /* callbacks may be called; one is under way             */
    uint64_t look_ns;     /* when to look again at this rank's wait                */
    uint64_t began_ns;    /* when this rank's wait began that is a stall; 0: none  */
    int asked, said_deaf; /* since then: rank 0 has asked; it was reported silent  */
    /* rank 0 */
    int open, said, asking;      /* ranks are stalled; it was reported; an inquiry runs */
    uint64_t since_ns, next_ns;  /* the longest wait began; when to report again */
    uint64_t longest_ns, gap_ns; /* of the waits that have ended; between two reports */
    uint64_t inquiry, answer_ns;
    esp__stall_rank ranks[]; /* rank 0: [size] */
};

/* ---- callbacks: the lock is not held meanwhile. 0: the reporter was switched off since ---- */
static void esp__stall_enter(esp__peers *p) {
    p->stall->inside++;
    pthread_mutex_unlock(&p->lock);
}
static int esp__stall_leave(esp__peers *p) {
    pthread_mutex_lock(&p->lock);
    p->stall->inside--;
    pthread_cond_broadcast(&p->changed);
    return p->stall->on;
}

/* How far this rank is. Returns the answer's bytes: 0 where the context has not started, or closes. */
static uint64_t esp__stall_self(esp__peers *p, uint8_t out[ESP__STALL_BYTES]) {
    if (!p->stall || !p->stall->on || p->closing) return 0;
    esp__stall_enter(p);
    p->stall->ev.answer(p->stall->ev.user, out);
    esp__stall_leave(p);
    return ESP__STALL_BYTES;
}

/* Rank 0: rank `r` waits for `waited_ns`, or (`ended`) goes on after so long a wait. */
static void esp__stall_note(esp__peers *p, int32_t r, int ended, uint64_t waited_ns) {
    esp__stall *s = p->stall;
    const uint64_t now = esp__now_ns(), since = waited_ns < now ? now - waited_ns : 0;
    if (!s || !s->on) return;
    s->ranks[r].stalled = !ended;
    if (ended && waited_ns > s->longest_ns) s->longest_ns = waited_ns;
    if (!ended && (!s->open || since < s->since_ns)) s->since_ns = since;
}

/* ---- any rank: its own wait ---- */
static void esp__stall_tell(esp__peers *p, int ended, uint64_t waited_ns) {
    const esp__msg m = {ESP__MSG_STALL, p->rank, (uint64_t)ended, waited_ns, 0};
    if (p->rank == 0)
        esp__stall_note(p, 0, ended, waited_ns);
    else
        esp__conn_send(p->ctx, &p->conns[0], m, NULL, 0);
}

static void esp__stall_ended(esp__peers *p, uint64_t now) {
    esp__stall *s = p->stall;
    const uint64_t waited_ns = now - s->began_ns;
    const int said = s->said_deaf;
    s->began_ns = 0;
    s->said_deaf = 0;
    esp__stall_tell(p, 1, waited_ns);
    if (!said) return;
    esp__stall_enter(p);
    s->ev.ended(s->ev.user, waited_ns);
    esp__stall_leave(p);
}

/* This rank waits since `since_ns`; 0: it does not wait. */
static void esp__stall_waits(esp__peers *p, uint64_t since_ns) {
    esp__stall *s = p->stall;
    const uint64_t after = s->ev.after_ns, now = esp__now_ns(), waited = since_ns ? now - since_ns : 0;
    uint64_t look = waited ? after - waited : after / 4;
    if (s->began_ns && since_ns != s->began_ns) esp__stall_ended(p, now);
    if (!s->began_ns && waited >= after) {
        s->began_ns = since_ns;
        s->asked = 0;
        esp__stall_tell(p, 0, waited);
    }
    if (s->began_ns) look = ESP__STALL_LOOK_MS * 1000000ull;
    s->look_ns = now + (look < 1000000u ? 1000000u : look);
    /* one rank is enough to say that rank 0 reports nothing */
    if (p->rank != 1 || !s->on || !s->began_ns || s->asked || s->said_deaf) return;
    if (waited < after + ESP__STALL_DEAF_MS * 1000000ull) return;
    s->said_deaf = 1;
    esp__stall_enter(p);
    s->ev.deaf(s->ev.user, waited);
    esp__stall_leave(p);
}

/* ---- rank 0 ---- */
static void esp__stall_ask(esp__peers *p, uint64_t now) {
    esp__stall *s = p->stall;
    s->asking = 1;
    s->inquiry++;
    s->answer_ns = now + ESP__ANSWER_MS * 1000000ull;
    for (int32_t r = 0; r < p->size; r++) {
        s->ranks[r].here = r == 0 || p->conns[r].state == ESP__HERE;
        s->ranks[r].answered = s->ranks[r].knows = 0;
        if (r) esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_STALL_ASK, 0, 0, s->inquiry, 0}, NULL, 0);
    }
    s->ranks[0].knows = esp__stall_self(p, s->ranks[0].answer) > 0;
    s->ranks[0].answered = 1;
}

static void esp__stall_got(esp__peers *p, int32_t r, uint64_t inquiry, const uint8_t *body, uint64_t bytes) {
    esp__stall *s = p->stall;
    if (!s || !s->asking || inquiry != s->inquiry) return;
    s->ranks[r].answered = 1;
    s->ranks[r].knows = bytes == ESP__STALL_BYTES;
    if (s->ranks[r].knows) memcpy(s->ranks[r].answer, body, ESP__STALL_BYTES);
}

/* Reports the answers if none is missing, or if it is time. */
static void esp__stall_judge(esp__peers *p, int quiet, uint64_t now) {
    esp__stall *s = p->stall;
    int32_t missing = 0;
    for (int32_t r = 0; r < p->size; r++) missing += s->ranks[r].here && !s->ranks[r].answered;
    if (missing && !(quiet && now >= s->answer_ns)) return;
    s->asking = 0;
    s->said = 1;
    s->next_ns = now + s->gap_ns;
    s->gap_ns *= 2;
    esp__stall_enter(p);
    s->ev.report(s->ev.user, s->ranks, p->size, now - s->since_ns);
    esp__stall_leave(p);
}

static void esp__stall_hub(esp__peers *p, int quiet, uint64_t now) {
    esp__stall *s = p->stall;
    int32_t stalled = 0;
    for (int32_t r = 0; r < p->size; r++) {
        if (s->ranks[r].stalled && r && p->conns[r].state != ESP__HERE) s->ranks[r].stalled = s->said = 0;
        stalled += s->ranks[r].stalled;
    }
    if (stalled && !s->open) {
        s->open = 1;
        s->said = 0;
        s->longest_ns = 0;
        s->next_ns = now;
        s->gap_ns = s->ev.after_ns;
    }
    if (stalled && !s->asking && now >= s->next_ns) esp__stall_ask(p, now);
    if (stalled && s->asking) esp__stall_judge(p, quiet, now);
    if (stalled || !s->open) return;
    const uint64_t longest_ns = s->longest_ns;
    const int said = s->said;
    s->open = s->said = s->asking = 0;
    if (!said) return;
    esp__stall_enter(p);
    s->ev.ended(s->ev.user, longest_ns);
    esp__stall_leave(p);
}

/* ---- the watch thread, in every pass ---- */
/* `quiet`: no message is left to read. */
static void esp__stall_turn(esp__peers *p, int quiet) {
    esp__stall *s = p->stall;
    const uint64_t now = esp__now_ns();
    if (!s || !s->on || p->closing) return;
    if (p->dead >= 0 || p->told_late) { /* the context has failed, and says why */
        s->on = 0;
        return;
    }
    if (now >= s->look_ns) {
        esp__stall_enter(p);
        const uint64_t since_ns = s->ev.waits(s->ev.user);
        if (!esp__stall_leave(p)) return;
        if (since_ns == UINT64_MAX) s->on = 0;
        if (s->on) esp__stall_waits(p, since_ns);
    }
    if (p->rank == 0 && s->on) esp__stall_hub(p, quiet, esp__now_ns());
}

static uint64_t esp__stall_due(const esp__peers *p, uint64_t deadline) {
    const esp__stall *s = p->stall;
    if (!s || !s->on || p->closing) return deadline;
    if (s->look_ns < deadline) deadline = s->look_ns;
    if (s->asking && s->answer_ns < deadline) deadline = s->answer_ns;
    if (s->open && !s->asking && s->next_ns < deadline) deadline = s->next_ns;
    return deadline;
}

/* ---- the observer's thread ---- */
ESP__FN esp_status esp__peers_stall_on(esp__peers *p, const esp__stall_events *ev) {
    esp__stall *s = esp__alloc(p->ctx, sizeof *s + sizeof *s->ranks * (uint64_t)(p->rank ? 0 : p->size));
    if (!s) return esp__fail(p->ctx, ESP_E_NOMEM, "out of memory for the stall reporter of %d ranks", (int)p->size);
    s->ev = *ev;
    s->on = 1;
    s->look_ns = esp__now_ns() + ev->after_ns / 4;
    pthread_mutex_lock(&p->lock);
    esp__stall *old = p->stall; /* of an esp_start that failed; it is off */
    p->stall = s;
    esp__peers_wake(p);
    pthread_mutex_unlock(&p->lock);
    if (old) esp__free(p->ctx, old);
    return ESP_OK;
}

/* A stall that has ended less than a look ago is still reported. Without callbacks on the watch thread. */
static void esp__stall_last(esp__peers *p) {
    esp__stall *s = p->stall;
    const uint64_t now = esp__now_ns(), own = s->began_ns ? now - s->began_ns : 0;
    const esp__msg m = {ESP__MSG_STALL, p->rank, 1, own, 0};
    const int said = p->rank ? s->said_deaf : s->open && s->said;
    if (p->rank && own) esp__conn_send(p->ctx, &p->conns[0], m, NULL, 0);
    if (p->rank && own) esp__peers_kick(p);
    pthread_mutex_unlock(&p->lock);
    if (said && s->ev.waits(s->ev.user) != UINT64_MAX) s->ev.ended(s->ev.user, p->rank ? own : now - s->since_ns);
    pthread_mutex_lock(&p->lock);
}

ESP__FN void esp__peers_stall_off(esp__peers *p) {
    pthread_mutex_lock(&p->lock);
    const int was_on = p->stall && p->stall->on;
    if (p->stall) p->stall->on = 0;
    while (p->stall && p->stall->inside) pthread_cond_wait(&p->changed, &p->lock);
    if (was_on) esp__stall_last(p);
    pthread_mutex_unlock(&p->lock);
}
