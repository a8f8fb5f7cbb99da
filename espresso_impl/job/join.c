/* join.c: how a rank other than 0 joins the meeting, for peers.c: connects, sends hello, waits for the welcome. */
#include "espresso_impl/job/job.h"

/* One connected socket to `a`, or -1 and errno. */
static int esp__meet_dial(const esp__addr *a, uint64_t deadline_ns) {
    struct sockaddr_storage me, other;
    socklen_t me_len = sizeof me, other_len = sizeof other;
    int fd = esp__socket(a->sa.ss_family), error = 0;
    socklen_t len = sizeof error;
    uint64_t limit = esp__now_ns() + 3000000000u;
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&a->sa, a->len) != 0) {
        struct pollfd poll_fd = {fd, POLLOUT, 0};
        error = errno;
        if (error == EINPROGRESS) {
            error = ETIMEDOUT;
            if (poll(&poll_fd, 1, esp__poll_ms(limit < deadline_ns ? limit : deadline_ns)) == 1 &&
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
                error = errno;
        }
    }
    /* TCP on one host may connect a socket to itself when nobody listens at the port */
    if (!error && a->sa.ss_family != AF_UNIX && getsockname(fd, (struct sockaddr *)&me, &me_len) == 0 &&
        getpeername(fd, (struct sockaddr *)&other, &other_len) == 0 && me_len == other_len &&
        memcmp(&me, &other, me_len) == 0)
        error = ECONNREFUSED;
    if (error) esp__socket_close(&fd);
    errno = error;
    if (fd >= 0) esp__socket_tune(fd, a->sa.ss_family);
    return fd;
}

/* Sends hello on a new connection and waits for rank 0's answer. ESP_PENDING: the connection ended without one; try again. */
static esp_status esp__meet_greet(esp__peers *p, esp__conn *c, uint64_t job) {
    /* rank 0 started before this moment, and gives up timeout_ms after its start: its answer, which names the missing
     * ranks, comes before this deadline */
    uint64_t deadline = esp__now_ns() + (p->timeout_ms + 1000ull) * 1000000u;
    esp__hello h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, esp__meet_magic, sizeof h.magic);
    snprintf(h.version, sizeof h.version, "%s", ESPRESSO_VERSION);
    h.rank = p->rank;
    h.size = p->size;
    h.job = job;
    esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_HELLO, p->rank, 0, 0, 0}, &h, sizeof h);
    for (;;) {
        struct pollfd poll_fd = {c->fd, POLLIN, 0};
        int rc = esp__conn_read(p->ctx, c, 65536);
        esp_status s = ESP_OK;
        if (c->no_memory) return esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks at %s", p->where);
        if (rc < 0) return ESP_PENDING;
        if (rc == 0 && esp__now_ns() >= deadline)
            return esp__fail(p->ctx, ESP_E_TIMEOUT,
                             "rank %d reached %s, but heard nothing for %u ms: is that rank 0 of this job?",
                             (int)p->rank, p->where, (unsigned)p->timeout_ms + 1000u);
        if (rc == 0) poll(&poll_fd, 1, esp__poll_ms(deadline));
        if (rc == 0) continue;
        if (c->head.type == ESP__MSG_REFUSE && c->head.rank < 0 && c->head.bytes > 0) {
            c->body[c->head.bytes - 1] = 0;
            s = esp__fail(p->ctx, c->head.rank, "%s", (const char *)c->body);
        } else if (c->head.type != ESP__MSG_WELCOME) {
            s = esp__fail(p->ctx, ESP_E_COMM, "what answers at %s is not espresso", p->where);
        }
        esp__conn_next(p->ctx, c);
        return s;
    }
}

/* Joins the meeting: tries one root after another, with growing pauses, until rank 0 sends welcome. */
static esp_status esp__meet_join(esp__peers *p, char roots[][ESP__SPEC_MAX], int32_t n_roots, uint64_t job) {
    uint64_t deadline = esp__now_ns() + p->timeout_ms * 1000000ull, pause_us = 500;
    const char *error = "";
    for (int32_t turn = 0;; turn++) {
        esp__addr addrs[4];
        int n = 0;
        snprintf(p->where, sizeof p->where, "%s", roots[turn % n_roots]);
        n = esp__addr_resolve(p->where, addrs, 4, &error);
        for (int i = 0; i < n; i++) {
            esp_status s = ESP_PENDING;
            int fd = esp__meet_dial(&addrs[i], deadline), pidfd;
            error = strerror(errno);
            if (fd < 0) continue;
            esp__conn_init(&p->conns[0], fd, 0);
            if (esp__socket_peer(fd, &pidfd)) {
                p->conns[0].pidfd = pidfd;
                s = esp__meet_greet(p, &p->conns[0], job);
                error = "it closed the connection";
            } else {
                error = "it belongs to another user";
            }
            if (s == ESP_OK) return s;
            esp__conn_free(p->ctx, &p->conns[0]);
            if (s != ESP_PENDING) return s;
        }
        if (esp__now_ns() >= deadline)
            return esp__fail(
                p->ctx, ESP_E_TIMEOUT,
                "rank %d waited %u ms for rank 0 at %s: %s. Did rank 0 start, with the same meeting point?",
                (int)p->rank, (unsigned)p->timeout_ms, p->where, error);
        poll(NULL, 0, (int)(pause_us / 1000));
        if (pause_us < 50000) pause_us *= 2;
    }
}
