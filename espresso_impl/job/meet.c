/* meet.c: how rank 0 waits for all other ranks to connect, for peers.c. Runs before the watch thread exists, and always ends: with
 * all ranks connected, or with an error on every rank that can be reached. guests.c deals with whoever else connects. */
#include "espresso_impl/job/job.h"

/* Fails if a rank that has joined ends before the meeting does. polls[r]: what poll() said of rank r. */
static esp_status esp__meet_check_joined(esp__peers *p, const struct pollfd *polls) {
    for (int32_t r = 1; r < p->size; r++) {
        esp__conn *c = &p->conns[r];
        if (c->fd < 0 || polls[r].fd != c->fd || !polls[r].revents || esp__conn_read(p->ctx, c, 0) == 0) continue;
        esp__socket_close(&c->fd);
        esp__fail(p->ctx, ESP_E_PEER, "rank %d died while the ranks were meeting", (int)r);
        return esp__meet_refuse(p, NULL, ESP_E_PEER, 1);
    }
    return ESP_OK;
}

static esp_status esp__meet_missing(esp__peers *p, esp__meeting *meet) {
    char list[160] = "", refused[400];
    size_t at = 0;
    int32_t listed = 0, missing = p->size - meet->n_here;
    for (int32_t r = 1; r < p->size && listed < 8; r++)
        if (p->conns[r].fd < 0)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%d", listed++ ? ", " : "", (int)r);
    if (missing > listed) snprintf(list + at, sizeof list - at, " and %d more", (int)(missing - listed));
    esp__guests_refused(meet, refused, sizeof refused);
    esp__fail(p->ctx, ESP_E_TIMEOUT,
              "waited %u ms at %s for all %d ranks: missing %s %s. Did they start, and with the same meeting point?%s",
              (unsigned)p->timeout_ms, p->where, (int)p->size, missing == 1 ? "rank" : "ranks", list, refused);
    return esp__meet_refuse(p, NULL, ESP_E_TIMEOUT, 1);
}

/* Sleeps until a connection is made, has data or ends, or until `wake_ns`. Hears the guests with news, and accepts new ones. */
static esp_status esp__meet_round(esp__peers *p, esp__meeting *meet, uint64_t wake_ns, esp_status failed) {
    struct pollfd *ranks = meet->polls, *guests = ranks + p->size;
    const int room = esp__guests_room(p, meet, &wake_ns);
    const nfds_t n = (nfds_t)(p->size + meet->n_guests);
    esp_status s = ESP_OK;
    ranks[0] = (struct pollfd){room ? meet->listen_fd : -1, POLLIN, 0};
    for (int32_t r = 1; r < p->size; r++) ranks[r] = (struct pollfd){p->conns[r].fd, POLLIN, 0};
    for (int32_t i = 0; i < meet->n_guests; i++) guests[i] = (struct pollfd){meet->guests[i].conn.fd, POLLIN, 0};
    if (poll(ranks, n, esp__poll_ms(wake_ns)) < 0) return ESP_OK;
    for (int32_t i = meet->n_guests - 1; i >= 0 && s == ESP_OK; i--) { /* one that leaves gives its place to the last */
        esp__guest *g = &meet->guests[i];
        if (guests[i].revents || esp__now_ns() - g->since_ns > ESP__GUEST_MS * 1000000ull)
            s = esp__guest_hear(p, meet, g, failed);
    }
    if (s == ESP_OK && failed == ESP_OK) s = esp__meet_check_joined(p, ranks);
    const int full = s == ESP_OK && ranks[0].revents ? esp__guests_accept(p, meet) : 0;
    if (full) {
        const uint64_t now = esp__now_ns();
        if (!meet->full_ns || meet->full_here != meet->n_here) meet->full_ns = now, meet->full_here = meet->n_here;
        /* no descriptor or memory for another connection: a guest gives its own back */
        if (meet->n_guests && now - meet->full_ns < ESP__MEET_FULL_MS * 1000000ull)
            esp__guest_drop(p, meet, esp__guest_first_to_go(meet), ESP__GUEST_DISPLACED);
        else /* no rank can come, and waiting for the timeout would blame the ranks */
            s = esp__meet_refuse(p, NULL,
                                 esp__fail(p->ctx, ESP_E_COMM,
                                           "rank 0 cannot take connections of %d ranks: %s (see ulimit -n)",
                                           (int)p->size, strerror(full)),
                                 1);
    }
    return s;
}

/* Rank 0: waits until all ranks have joined. */
static esp_status esp__meet_serve(esp__peers *p, esp__meeting *meet) {
    uint64_t linger = 0;
    esp_status s = ESP_OK;
    meet->n_here = 1;
    while (s == ESP_OK && meet->n_here < p->size) {
        uint64_t wake = esp__now_ns() + 1000000000u; /* looks for silent guests once a second */
        if (esp__now_ns() >= meet->deadline_ns) return esp__meet_missing(p, meet);
        s = esp__meet_round(p, meet, wake < meet->deadline_ns ? wake : meet->deadline_ns, ESP_OK);
    }
    if (s == ESP_OK) return s;
    /* ranks that come a little later get the error too: otherwise they would wait for their whole timeout */
    for (int32_t r = 1; r < p->size; r++) esp__socket_close(&p->conns[r].fd);
    for (linger = esp__now_ns() + 500000000u; esp__now_ns() < linger;) esp__meet_round(p, meet, linger, s);
    return s;
}

static esp_status esp__meet_host(esp__peers *p, int listen_fd, uint64_t job) {
    const int32_t most = ESP__GUESTS + p->size;
    esp__meeting *meet = (esp__meeting *)esp__alloc(p->ctx, sizeof *meet);
    esp_status s = meet ? ESP_OK : esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks");
    char refused[400];
    if (meet) {
        meet->listen_fd = listen_fd;
        meet->job = job;
        meet->most_guests = most;
        meet->deadline_ns = esp__now_ns() + p->timeout_ms * 1000000ull;
        meet->guests = (esp__guest *)esp__alloc(p->ctx, sizeof *meet->guests * (uint64_t)most);
        meet->polls = (struct pollfd *)esp__alloc(p->ctx, sizeof *meet->polls * (uint64_t)(p->size + most));
        s = meet->guests && meet->polls ? esp__meet_serve(p, meet)
                                        : esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks");
        esp__guests_refused(meet, refused, sizeof refused);
        if (s == ESP_OK && refused[0]) esp__log(p->ctx, ESP_LOG_INFO, "peers", "all ranks have met.%s", refused);
        for (int32_t i = 0; i < meet->n_guests; i++) esp__conn_free(p->ctx, &meet->guests[i].conn);
        if (meet->guests) esp__free(p->ctx, meet->guests);
        if (meet->polls) esp__free(p->ctx, meet->polls);
        esp__free(p->ctx, meet);
    }
    /* closed before the welcome: a rank that connects after it wants the next context's listener, not this one. While the job runs,
     * no socket of it accepts connections */
    close(listen_fd);
    for (int32_t r = 1; s == ESP_OK && r < p->size; r++)
        esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_WELCOME, 0, 0, 0, 0}, NULL, 0);
    return s;
}
