/* join.c: how a rank other than 0 joins the meeting, for peers.c: connects, proves that it knows the secret, has rank 0 prove it, and
 * waits for the welcome. */
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

/* A connection to what may be rank 0. */
typedef struct esp__joining {
    esp__conn *conn;
    esp__knock knock;
    esp__challenge challenge;
    esp__hello hello;
    int stage;  /* the messages from rank 0 so far: challenge, proof                                */
    int unsure; /* there are other addresses to try: until it has proven itself, it may be anybody's */
} esp__joining;

/* What rank 0, or whoever answers, tells instead of the next message. */
static esp_status esp__join_refused(esp__peers *p, esp__joining *j) {
    esp__conn *c = j->conn;
    const int known = !strncmp(esp_status_name(c->head.rank), "ESP_E_", 6);
    char *text = (char *)c->body;
    if (c->head.bytes == 0) return esp__fail(p->ctx, ESP_E_COMM, "rank 0 at %s refused this process", p->where);
    esp__printable(text, c->head.bytes);
    return esp__fail(p->ctx, known ? c->head.rank : ESP_E_COMM, "%s", text);
}

/* Handles the message that has come. ESP_PENDING: another one follows. */
static esp_status esp__join_heard(esp__peers *p, esp__joining *j) {
    esp__conn *c = j->conn;
    const esp__msg *m = &c->head;
    esp__proof proof;
    if (m->type == ESP__MSG_REFUSE && m->rank < 0) return esp__join_refused(p, j);
    if (j->stage == 0 && m->type == ESP__MSG_CHALLENGE && m->bytes == sizeof j->challenge) {
        memcpy(&j->challenge, c->body, sizeof j->challenge);
        if (memcmp(j->challenge.magic, esp__meet_magic, sizeof j->challenge.magic) == 0) {
            if (!esp__prove_hello(p, &j->knock, &j->challenge, &j->hello))
                return esp__fail(p->ctx, ESP_E_COMM, "rank %d cannot join: no random numbers", (int)p->rank);
            esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_HELLO, p->rank, 0, 0, 0}, &j->hello, sizeof j->hello);
            j->stage = 1;
            return ESP_PENDING;
        }
    }
    if (j->stage == 1 && m->type == ESP__MSG_PROOF && m->bytes == sizeof proof) {
        memcpy(&proof, c->body, sizeof proof);
        if (!esp__prove_check(p, 1, &j->knock, &j->challenge, &j->hello, proof.code))
            return esp__fail(p->ctx, ESP_E_MISMATCH,
                             "what answers at %s does not know this job's ESPRESSO_SECRET, so it is not rank 0 of it",
                             p->where);
        j->stage = 2;
        return ESP_PENDING;
    }
    if (j->stage == 2 && m->type == ESP__MSG_WELCOME) return ESP_OK;
    return esp__fail(p->ctx, ESP_E_COMM, "what answers at %s is not espresso %s", p->where, ESPRESSO_VERSION);
}

/* Meets rank 0 over a new connection. ESP_PENDING: it was not rank 0, or ended; try again. */
static esp_status esp__join_greet(esp__peers *p, esp__joining *j) {
    /* rank 0 started before this moment, and gives up timeout_ms after its start: its answer, which names the missing
     * ranks, comes before this deadline */
    uint64_t deadline = esp__now_ns() + (p->timeout_ms + 1000ull) * 1000000u;
    esp__conn *c = j->conn;
    esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_KNOCK, p->rank, 0, 0, 0}, &j->knock, sizeof j->knock);
    for (;;) {
        struct pollfd poll_fd = {c->fd, POLLIN, 0};
        int rc = esp__conn_read(p->ctx, c, ESP__ERROR_MAX);
        esp_status s;
        if (c->no_memory) return esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks at %s", p->where);
        if (rc < 0) return ESP_PENDING;
        if (rc == 0 && esp__now_ns() >= deadline)
            return esp__fail(p->ctx, ESP_E_TIMEOUT,
                             "rank %d reached %s, but heard nothing for %u ms: is that rank 0 of this job?",
                             (int)p->rank, p->where, (unsigned)p->timeout_ms + 1000u);
        if (rc == 0) poll(&poll_fd, 1, esp__poll_ms(deadline));
        if (rc == 0) continue;
        s = esp__join_heard(p, j);
        esp__conn_next(p->ctx, c);
        if (s < 0 && j->stage < 2 && j->unsure) return ESP_PENDING;
        if (s != ESP_PENDING) return s;
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
            esp__joining j;
            esp_status s = ESP_PENDING;
            int fd = esp__meet_dial(&addrs[i], deadline), pidfd;
            error = strerror(errno);
            if (fd < 0) continue;
            memset(&j, 0, sizeof j);
            esp__conn_init(&p->conns[0], fd, 0);
            if (esp__socket_peer(fd, &pidfd)) {
                p->conns[0].pidfd = pidfd;
                j.conn = &p->conns[0];
                j.unsure = n_roots > 1;
                esp__prove_knock(p, job, &j.knock);
                s = esp__join_greet(p, &j);
                error = j.stage == 0 ? "it closed the connection" : "it is not rank 0 of this job";
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
