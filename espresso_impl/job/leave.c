/* leave.c: closes a rank's connections, and tells the other ranks so. Before that, rank 0 collects data from the
 * other ranks, such as their traces. */
#include "espresso_impl/job/peers.h"
#include <unistd.h>

ESP__FN bool esp__peers_left(esp__peers *p, int32_t rank) {
    if (p->size == 1 || rank < 0 || rank >= p->size) return false;
    pthread_mutex_lock(&p->lock);
    const bool left = p->left[rank];
    pthread_mutex_unlock(&p->lock);
    return left;
}

/* Rank 0 waits for the last message of all other ranks, and passes its data to `collect`. */
static void esp__peers_collect(esp__peers *p, void (*collect)(void *, int32_t, const void *, uint64_t), void *user) {
    const uint64_t deadline = esp__now_ns() + (p->dead >= 0 ? 300000000u : 5000000000u);
    for (bool waiting = true; waiting;) {
        waiting = false;
        for (int32_t r = 1; r < p->size; r++) waiting |= p->conns[r].state == ESP__HERE && !p->conns[r].last_done;
        if (waiting && !esp__peers_sleep(p, deadline)) break;
    }
    for (int32_t r = 1; r < p->size; r++) {
        esp__bytes last = p->conns[r].last;
        memset(&p->conns[r].last, 0, sizeof last);
        pthread_mutex_unlock(&p->lock);
        if (last.len) collect(user, r, last.data, last.len);
        esp__bytes_free(p->ctx, &last);
        pthread_mutex_lock(&p->lock);
    }
}

/* Before rank 0 closes, it waits for at most a second until the others have closed. They are connected only to rank
 * 0, which tells them who has closed. */
static void esp__peers_linger(esp__peers *p) {
    const uint64_t deadline = esp__now_ns() + 1000000000u;
    p->conns[0].state = ESP__LEFT;
    esp__watch_first_left(p, 0);
    esp__watch_left(p, 0, p->cause);
    esp__watch_pass_on(p);
    esp__exchange_left(p, 0);
    esp__peers_kick(p);
    for (bool here = true; here && p->dead < 0 && !p->decision_known;) {
        here = false;
        for (int32_t r = 1; r < p->size; r++) here |= p->conns[r].state == ESP__HERE;
        if (here && !esp__peers_sleep(p, deadline)) break;
    }
    esp__watch_pass_on(p);
}

ESP__FN void esp__peers_drop(esp__peers *p) {
    if (!p) return;
    if (p->has_thread) {
        pthread_mutex_lock(&p->lock);
        p->closing = p->quit = true;
        p->quit_ns = esp__now_ns();
        esp__peers_wake(p);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    esp__peers_free(p);
}

ESP__FN void esp__peers_cause(esp__peers *p, esp_status why) {
    if (p) p->cause = (uint64_t)-why;
}

/* A forked child shares the sockets with its parent, which goes on: the child only closes its copies. */
ESP__FN void esp__peers_close(esp__peers *p, const void *last, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user) {
    if (!p) return;
    if (p->has_thread && p->pid == (long)getpid()) {
        pthread_mutex_lock(&p->lock);
        p->closing = true;
        if (p->rank == 0 && collect && bytes) collect(user, 0, last, bytes);
        if (p->rank == 0 && collect) esp__peers_collect(p, collect, user);
        if (p->rank == 0) esp__peers_linger(p);
        for (int32_t i = 0; i < p->n_conns; i++) {
            esp__conn *c = &p->conns[i];
            if (p->rank != 0 && bytes)
                esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_FINAL, p->rank, 0, 0, 0}, last, bytes);
            esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_LEAVE, p->rank, 0, p->cause, 0}, NULL, 0);
        }
        p->quit = true;
        p->quit_ns = esp__now_ns() + (p->dead < 0 && !p->decision_known ? 5000000000u : 200000000u);
        esp__peers_wake(p);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    } else if (p->size == 1 && collect && bytes) {
        collect(user, 0, last, bytes);
    }
    esp__peers_free(p);
}
