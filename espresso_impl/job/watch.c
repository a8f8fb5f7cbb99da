/* watch.c: the watch thread, which reads every message and notices every death, for peers.c. No other thread reads sockets or
 * changes a connection's state. It has the lock while it does this, but never while it calls the context. */
#include "espresso_impl/job/job.h"
#include "espresso_impl/base/thread.h"
#include <sys/prctl.h>

/* Rank `rank` has died or left, after error -`cause` (0: none): wakes the threads that wait, and tells the context. */
static void esp__watch_tell(esp__peers *p, int32_t rank, int state, uint64_t cause) {
    /* the context learns of the first death, and, unless a death came before, of the first goodbye and of the first after an error:
     * after one, all ranks leave */
    const int told = cause && cause < ESP__CAUSES ? 2 : 1;
    int first = p->dead < 0 && (state == ESP__DIED || p->told_left < told);
    if (state == ESP__DIED && first) p->dead = rank;
    if (state == ESP__LEFT) p->left[rank] = 1;
    if (state == ESP__LEFT && p->told_left < told) p->told_left = told;
    pthread_cond_broadcast(&p->changed);
    if (!first || p->closing || !p->ev.lost) return;
    pthread_mutex_unlock(&p->lock);
    p->ev.lost(p->ev.user, rank, state == ESP__DIED ? 0 : told == 1 ? 1 : -(int)cause);
    pthread_mutex_lock(&p->lock);
}

/* The other ranks took this one for dead or late, and went on without it. */
static void esp__watch_excluded(esp__peers *p) {
    if (p->excluded) return;
    p->excluded = 1;
    pthread_cond_broadcast(&p->changed);
    if (p->closing || !p->ev.excluded) return;
    pthread_mutex_unlock(&p->lock);
    p->ev.excluded(p->ev.user);
    pthread_mutex_lock(&p->lock);
}

/* A connection has ended: `state` and `cause` say how. Rank 0 tells all other ranks. */
static void esp__watch_gone(esp__peers *p, esp__conn *c, int state, uint64_t cause) {
    if (c->state != ESP__HERE) return;
    c->state = state;
    esp__socket_close(&c->fd);
    esp__socket_close(&c->pidfd);
    for (int32_t r = 1; p->rank == 0 && r < p->size && !p->quit; r++)
        esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_GONE, c->rank, state == ESP__LEFT, cause, 0}, NULL, 0);
    if (p->rank == 0 && state == ESP__LEFT) esp__exchange_left(p, c->rank);
    if (p->rank != 0 && state == ESP__LEFT) p->hub_left = 1;
    esp__watch_tell(p, c->rank, state, cause);
}

/* This rank had no memory for a message: it leaves the job, as if it had died. Its own waits end with ESP_E_NOMEM. */
static void esp__watch_no_memory(esp__peers *p) {
    int first = p->dead < 0;
    for (int32_t i = 0; i < p->n_conns; i++) {
        esp__conn *c = &p->conns[i];
        p->no_memory |= c->no_memory;
    }
    if (!p->no_memory || p->left_job) return;
    p->left_job = 1;
    for (int32_t i = 0; i < p->n_conns; i++)
        if (p->conns[i].fd >= 0) shutdown(p->conns[i].fd, SHUT_RDWR), p->conns[i].broken = 1;
    p->dead = p->rank;
    pthread_cond_broadcast(&p->changed);
    if (!first || p->closing || !p->ev.lost) return;
    pthread_mutex_unlock(&p->lock);
    p->ev.lost(p->ev.user, p->rank, 0);
    pthread_mutex_lock(&p->lock);
}

/* Rank 0: handles a message from another rank. */
static void esp__watch_on_hub(esp__peers *p, esp__conn *c) {
    const esp__msg *m = &c->head;
    switch (m->type) {
    case ESP__MSG_GATHER:
        if (!esp__exchange_message(p, c) && !p->no_memory)
            esp__log(p->ctx, ESP_LOG_ERROR, "peers", "an exchange with rank %d makes no sense here", (int)c->rank);
        break;
    case ESP__MSG_WHO:
        esp__conn_send(p->ctx, c,
                       (esp__msg){ESP__MSG_MISSING, esp__exchange_missing(p, m->tag, m->seq), m->tag, m->seq, 0}, NULL,
                       0);
        break;
    case ESP__MSG_FAREWELL:
        if (c->farewell_done) break; /* there is one */
        if (!esp__bytes_add(p->ctx, &c->farewell, c->body, m->bytes)) c->farewell.len = 0;
        c->farewell_done = 1;
        pthread_cond_broadcast(&p->changed);
        break;
    case ESP__MSG_ACCUSE: esp__late_inquire(p, c->rank, m->rank, m->tag); break;
    case ESP__MSG_SUSPECT: esp__late_alive(p, c->rank); break;
    case ESP__MSG_ANSWER:
        c->heard_ns = esp__now_ns();
        if (p->inquiring && m->seq == p->inquiry) esp__late_answer(p, c->rank, m->rank, m->tag);
        break;
    case ESP__MSG_STALL: esp__stall_note(p, c->rank, m->tag != 0, m->seq); break;
    case ESP__MSG_STALL_ANSWER: esp__stall_got(p, c->rank, m->seq, c->body, m->bytes); break;
    case ESP__MSG_BYE: esp__watch_gone(p, c, ESP__LEFT, m->seq); break;
    case ESP__MSG_EXCLUDED: esp__watch_excluded(p); break;
    default: esp__log(p->ctx, ESP_LOG_ERROR, "peers", "rank %d sent message %u", (int)c->rank, (unsigned)m->type);
    }
    esp__watch_no_memory(p);
}

/* Other ranks: handles a message from rank 0. */
static void esp__watch_from_hub(esp__peers *p, esp__conn *c) {
    const esp__msg *m = &c->head;
    const int is_rank = m->rank >= -1 && m->rank < p->size; /* -1: none, or not known */
    esp__waiter *w;
    uint8_t answer[ESP__STALL_BYTES];
    uint64_t tensor = 0, bytes;
    int32_t on;
    switch (m->type) {
    case ESP__MSG_SHARED: esp__waiter_finish(p, m->tag, m->seq, c->body, m->bytes, -2); break;
    case ESP__MSG_FAILED: esp__waiter_finish(p, m->tag, m->seq, NULL, 0, is_rank ? m->rank : -1); break;
    case ESP__MSG_MISSING:
        if (is_rank && (w = esp__waiter_find(p, m->tag, m->seq))) w->missing = m->rank;
        pthread_cond_broadcast(&p->changed);
        break;
    case ESP__MSG_GONE:
        if (m->rank >= 0 && m->rank < p->size) esp__watch_tell(p, m->rank, m->tag ? ESP__LEFT : ESP__DIED, m->seq);
        break;
    case ESP__MSG_BYE: esp__watch_gone(p, c, ESP__LEFT, m->seq); break;
    case ESP__MSG_ASK:
        p->hub_ns = esp__now_ns();
        on = esp__late_self(p, &tensor);
        esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_ANSWER, on, tensor, m->seq, 0}, NULL, 0);
        break;
    case ESP__MSG_VERDICT: esp__late_tell(p, is_rank ? m->rank : -1, m->tag); break;
    case ESP__MSG_STALL_ASK:
        if (p->stall) p->stall->asked = 1;
        bytes = esp__stall_self(p, answer);
        esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_STALL_ANSWER, p->rank, 0, m->seq, 0}, answer, bytes);
        break;
    case ESP__MSG_EXCLUDED: esp__watch_excluded(p); break;
    default: esp__log(p->ctx, ESP_LOG_ERROR, "peers", "rank 0 sent message %u", (unsigned)m->type);
    }
}

static void esp__watch_read(esp__peers *p, esp__conn *c) {
    while (c->fd >= 0) {
        int rc = esp__conn_read(p->ctx, c, ESP__BODY_MOST);
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

static uint64_t esp__watch_polls_bytes(const esp__peers *p) {
    return sizeof *p->polls * (2u * (uint64_t)(p->rank == 0 ? p->size : 1) + 1u);
}

/* Fills the list for poll(), under the lock: two entries for each connection, its socket and its process. Returns the poll's
 * timeout in milliseconds. */
static int esp__watch_prepare(esp__peers *p) {
    uint64_t deadline = UINT64_MAX;
    p->polls[0] = (struct pollfd){p->wake_fd, POLLIN, 0};
    for (int32_t i = 0; i < p->n_conns; i++) {
        const esp__conn *c = &p->conns[i];
        short write = c->out.len > 0 && !c->broken ? POLLOUT : 0;
        p->polls[1 + 2 * i] = (struct pollfd){c->fd, (short)(POLLIN | write), 0};
        p->polls[2 + 2 * i] = (struct pollfd){c->fd >= 0 ? c->pidfd : -1, POLLIN, 0};
    }
    if (p->accusing && p->accuse_ns < deadline) deadline = p->accuse_ns;
    if (p->inquiring && p->inquiry_ns < deadline) deadline = p->inquiry_ns;
    if (p->inquiring && p->soon_ns < deadline && esp__now_ns() < p->soon_ns) deadline = p->soon_ns;
    if (p->quit && p->quit_ns < deadline) deadline = p->quit_ns;
    deadline = esp__stall_due(p, deadline);
    if (p->asking || p->suspecting) return 0;
    return esp__poll_ms(deadline);
}

/* While closing: shuts down each socket for writing once all is sent. 1: done, because the other sides have closed too, or have not
 * within 200 ms (a rank is stopped). Data that another rank has not yet read may take longer. */
static int esp__watch_done(esp__peers *p) {
    int open = 0, unsent = 0;
    if (!p->quit) return 0;
    for (int32_t i = 0; i < p->n_conns; i++) {
        esp__conn *c = &p->conns[i];
        if (c->fd < 0) continue;
        if (c->out.len == 0 && !c->shut) c->shut = shutdown(c->fd, SHUT_WR) == 0 || 1;
        unsent += !c->shut;
        open++;
    }
    if (!unsent && !p->sent) {
        uint64_t last = esp__now_ns() + 200000000u;
        p->sent = 1;
        if (last < p->quit_ns) p->quit_ns = last;
    }
    return !open || esp__now_ns() >= p->quit_ns;
}

static void *esp__watch_main(void *arg) {
    esp__peers *p = (esp__peers *)arg;
    int events = 0;
    prctl(PR_SET_NAME, "espresso-watch", 0, 0, 0);
    for (;;) {
        int done, timeout_ms;
        uint64_t count;
        pthread_mutex_lock(&p->lock);
        esp__watch_no_memory(p);
        esp__late_turn(p, events == 0);
        esp__stall_turn(p, events == 0);
        done = esp__watch_done(p);
        timeout_ms = esp__watch_prepare(p);
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
            /* the process has ended and all that it wrote is read; no end-of-file comes if a child of it has the socket */
            pthread_mutex_lock(&p->lock);
            esp__watch_gone(p, c, ESP__DIED, 0);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static esp_status esp__watch_start(esp__peers *p) {
    int rc;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0) return esp__fail(p->ctx, ESP_E_COMM, "no event descriptor: %s", strerror(errno));
    rc = esp__thread_start(&p->thread, esp__watch_main, p);
    if (rc != 0) return esp__fail(p->ctx, ESP_E_NOMEM, "cannot start a thread: %s", strerror(rc));
    p->has_thread = 1;
    return ESP_OK;
}
