/* late.c: finds the rank that is late when a rank has waited too long, for peers.c. The rank that it waits for may itself wait for
 * a third one. So rank 0 asks all ranks what they wait for, and follows the chain to a rank that does not wait, or does not answer
 * because it is stopped. Runs on the watch thread, under the lock, but calls callbacks without it. */
#include "espresso_impl/job/job.h"

/* ANSWER: long enough for a healthy rank on a machine that has more work than cores. A rank that has been silent since LEAD, or half
 * the timeout, before an accusation is not waited for longer than SOON after it. */
enum { ESP__NOT_WAITING = -2, ESP__ANSWER_MS = 300, ESP__VERDICT_MS = 800, ESP__LEAD_MS = 1000, ESP__SOON_MS = 50 };

static void esp__late_tell(esp__peers *p, int32_t rank, uint64_t tensor) {
    p->accusing = 0;
    p->told_late = 1;
    pthread_cond_broadcast(&p->changed);
    if (p->closing || !p->ev.late) return;
    pthread_mutex_unlock(&p->lock);
    p->ev.late(p->ev.user, rank, (uint32_t)tensor);
    pthread_mutex_lock(&p->lock);
}

/* What this rank waits for. */
static int32_t esp__late_self(esp__peers *p, uint64_t *tensor) {
    int32_t on = -1;
    uint32_t t = UINT32_MAX;
    int waits = 0;
    if (!p->closing && p->ev.waiting) {
        pthread_mutex_unlock(&p->lock);
        waits = p->ev.waiting(p->ev.user, &on, &t);
        pthread_mutex_lock(&p->lock);
    }
    *tensor = t;
    return waits ? on : ESP__NOT_WAITING;
}

/* ---- rank 0 ---- */
static void esp__late_answer(esp__peers *p, int32_t from, int32_t waits_for, uint64_t tensor) {
    esp__conn *c = &p->conns[from];
    /* the accusation stands, even if the accuser's wait has ended since */
    if (from == p->accuser && waits_for == ESP__NOT_WAITING) return;
    c->answered = 1;
    c->waits_for = waits_for < p->size ? waits_for : -1;
    c->waits_tensor = tensor;
}

/* Follows the chain of waits from the accuser to a rank that does not wait, or has not answered (*silent). -1: a rank does not know
 * what it waits for, or the chain is a circle. */
static int32_t esp__late_chain(esp__peers *p, uint64_t *tensor, int *silent) {
    int32_t at = p->accuser;
    for (int32_t r = 0; r < p->size; r++) p->conns[r].seen = 0;
    *silent = 0;
    for (;;) {
        esp__conn *c = &p->conns[at];
        *silent = !c->answered;
        if (!c->answered || c->waits_for == ESP__NOT_WAITING) return at;
        if (c->waits_tensor != UINT32_MAX) *tensor = c->waits_tensor;
        if (c->waits_for < 0 || p->conns[c->waits_for].seen) return -1;
        c->seen = 1;
        at = c->waits_for;
    }
}

/* Gives the verdict, unless it depends on a rank that may still answer (`final`: no rank may). */
static void esp__late_judge(esp__peers *p, int final) {
    uint64_t tensor = UINT32_MAX;
    int silent = 0;
    int32_t guilty = esp__late_chain(p, &tensor, &silent);
    if (!final && (silent || guilty < 0)) return;
    p->inquiring = 0;
    for (int32_t r = 0; r < p->size && guilty < 0; r++) /* the chain has no end: a silent rank is the likeliest */
        if (!p->conns[r].answered) guilty = r;
    p->judged = guilty >= 0;
    p->guilty = guilty;
    p->guilty_tensor = tensor;
    for (int32_t r = 1; r < p->size; r++)
        esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_VERDICT, guilty, tensor, 0, 0}, NULL, 0);
    esp__late_tell(p, guilty, tensor);
}

/* A rank waits for long: asks all ranks, so that their answers are here before the accusation. */
static void esp__late_alive(esp__peers *p, int32_t from) {
    const uint64_t now = esp__now_ns();
    const int all = !p->asked_ns || now - p->asked_ns > 100000000u;
    if (all) p->asked_ns = now;
    for (int32_t r = 1; r < p->size; r++)
        if (all || r == from)
            esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_ASK, 0, 0, p->inquiry, 0}, NULL, 0);
}

/* Until when an accuser, at the time `now`, waits for a rank that has not answered since `asked`. UINT64_MAX: it was not asked. */
static uint64_t esp__late_soon(const esp__peers *p, uint64_t asked, uint64_t now) {
    const uint64_t soon = now + ESP__SOON_MS * 1000000ull;
    const uint64_t silent = asked + (esp__peers_lead_ms(p->timeout_ms) + ESP__SOON_MS) * 1000000ull;
    if (!asked || asked + 3000000000u < now) return UINT64_MAX;
    return silent > soon ? silent : soon;
}

/* Has every rank answered, but for those that have been silent since all were asked? */
static int esp__late_only_silent(const esp__peers *p) {
    for (int32_t r = 1; r < p->size; r++) {
        const esp__conn *c = &p->conns[r];
        if (c->state == ESP__HERE && !c->answered && c->heard_ns >= p->asked_ns) return 0;
    }
    return 1;
}

/* An accusation starts an inquiry. Others that arrive while it runs, or later, get the same verdict. */
static void esp__late_inquire(esp__peers *p, int32_t accuser, int32_t on_rank, uint64_t tensor) {
    uint64_t own_tensor = UINT32_MAX;
    int32_t own;
    if (p->inquiring) return;
    if (p->judged && accuser != 0)
        esp__conn_send(p->ctx, &p->conns[accuser], (esp__msg){ESP__MSG_VERDICT, p->guilty, p->guilty_tensor, 0, 0},
                       NULL, 0);
    if (p->judged && accuser == 0) esp__late_tell(p, p->guilty, p->guilty_tensor);
    if (p->judged) return;
    p->inquiring = 1;
    p->inquiry++;
    p->accuser = accuser;
    p->inquiry_ns = esp__now_ns() + ESP__ANSWER_MS * 1000000ull;
    p->soon_ns = esp__late_soon(p, p->asked_ns, esp__now_ns());
    for (int32_t r = 0; r < p->size; r++) {
        p->conns[r].answered = 0;
        if (r) esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_ASK, 0, 0, p->inquiry, 0}, NULL, 0);
    }
    esp__late_answer(p, accuser, on_rank < 0 ? -1 : on_rank, tensor);
    own = esp__late_self(p, &own_tensor);
    esp__late_answer(p, 0, own, own_tensor);
}

/* The watch thread calls it in every pass: starts an inquiry, judges it, or gives up waiting for a verdict, when it is time.
 * `quiet`: no message is left to read. Only then is an answer late: otherwise this thread itself may have been slow. */
static void esp__late_turn(esp__peers *p, int quiet) {
    uint64_t now = esp__now_ns();
    if (p->asking) {
        p->asking = 0;
        if (p->accusing) esp__late_inquire(p, 0, p->accused, p->accuse_tensor);
    }
    if (p->suspecting) esp__late_alive(p, 0);
    p->suspecting = 0;
    if (p->inquiring) {
        int32_t open = 0;
        for (int32_t r = 1; r < p->size; r++) open += p->conns[r].state == ESP__HERE && !p->conns[r].answered;
        const int soon = now >= p->soon_ns && esp__late_only_silent(p);
        esp__late_judge(p, !open || (quiet && (soon || now >= p->inquiry_ns)));
    }
    /* rank 0 asks at once and judges soon: if no verdict comes, rank 0 is the one that is stopped */
    if (p->accusing && quiet && now >= p->accuse_ns)
        esp__late_tell(p, p->rank && !p->hub_left ? 0 : p->accused, p->accuse_tensor);
}

/* ---- any rank, any thread ---- */
ESP__FN void esp__peers_accuse(esp__peers *p, int32_t on_rank, uint32_t tensor) {
    if (p->size == 1) { /* there is no other rank, and no thread */
        if (p->ev.late) p->ev.late(p->ev.user, on_rank, tensor);
        return;
    }
    pthread_mutex_lock(&p->lock);
    if (!p->accusing && !p->closing) {
        p->accusing = 1;
        p->accused = on_rank;
        p->accuse_tensor = tensor;
        p->accuse_ns = esp__now_ns() + ESP__VERDICT_MS * 1000000ull;
        if (p->rank && p->hub_ns < p->suspect_ns) {
            const uint64_t soon = esp__late_soon(p, p->suspect_ns, esp__now_ns());
            if (soon < p->accuse_ns) p->accuse_ns = soon;
        }
        if (p->rank == 0)
            p->asking = 1;
        else
            esp__conn_send(p->ctx, &p->conns[0], (esp__msg){ESP__MSG_ACCUSE, on_rank, tensor, 0, 0}, NULL, 0);
        esp__peers_wake(p);
    }
    pthread_mutex_unlock(&p->lock);
}

ESP__FN uint32_t esp__peers_lead_ms(uint32_t timeout_ms) {
    return timeout_ms / 2 < ESP__LEAD_MS ? timeout_ms / 2 : ESP__LEAD_MS;
}

ESP__FN void esp__peers_suspect(esp__peers *p) {
    if (!p || p->size == 1) return;
    pthread_mutex_lock(&p->lock);
    if (p->suspect_ns <= p->hub_ns || esp__now_ns() - p->suspect_ns > 3000000000u) p->suspect_ns = esp__now_ns();
    if (p->rank == 0)
        p->suspecting = 1;
    else
        esp__conn_send(p->ctx, &p->conns[0], (esp__msg){ESP__MSG_SUSPECT, p->rank, 0, 0, 0}, NULL, 0);
    esp__peers_wake(p);
    pthread_mutex_unlock(&p->lock);
}

ESP__FN int esp__peers_hub_silent(esp__peers *p) {
    int silent = 0;
    if (!p || p->size == 1 || p->rank == 0) return 0;
    pthread_mutex_lock(&p->lock);
    silent = p->hub_ns < p->suspect_ns && !p->hub_left && p->dead < 0;
    pthread_mutex_unlock(&p->lock);
    return silent;
}
