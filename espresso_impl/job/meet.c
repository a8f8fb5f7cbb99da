/* meet.c: how rank 0 waits for all other ranks to connect, for peers.c. Runs before the watch thread exists, and always ends: with
 * all ranks connected, or with an error on every rank that can be reached. */
#include "espresso_impl/job/job.h"

enum { ESP__MEET_ROOTS = 8, ESP__MEET_PENDING = 64 };
static const char esp__meet_magic[8] = {'E', 'S', 'P', 'P', 'E', 'E', 'R', '1'};

typedef struct esp__hello {
    char magic[8], version[24];
    int32_t rank, size;
    uint64_t job; /* a random number that the ranks agreed on before, or 0 */
} esp__hello;

/* What rank 0 sends to the others through esp_config.oob_allgather. */
typedef struct esp__invitation {
    uint64_t job;
    int32_t n_roots;
    char roots[ESP__MEET_ROOTS][ESP__SPEC_MAX]; /* roots[0] is an error text where n_roots is 0 */
} esp__invitation;

/* A connection whose hello has not come yet: it may be a rank, or any other program. */
typedef struct esp__guest {
    esp__conn conn;
    uint64_t since_ns;
} esp__guest;

typedef struct esp__meeting {
    int listen_fd, full; /* full: errno, where this process can have no further connection */
    int32_t n_here, n_guests;
    uint64_t job, deadline_ns;
    esp__guest guests[ESP__MEET_PENDING];
    struct pollfd *polls;
} esp__meeting;

/* Sends a guest (all: every rank and guest) this thread's error text, and returns `s`. */
static esp_status esp__meet_refuse(esp__peers *p, esp__conn *guest, esp_status s, int all) {
    const char *text = esp_last_error(NULL);
    esp__msg m = {ESP__MSG_REFUSE, s, 0, 0, 0};
    if (guest) esp__conn_send(p->ctx, guest, m, text, strlen(text) + 1);
    for (int32_t r = 1; all && r < p->size; r++)
        if (p->conns[r].fd >= 0) esp__conn_send(p->ctx, &p->conns[r], m, text, strlen(text) + 1);
    return s;
}

/* Checks a guest's hello. ESP_PENDING: it is no rank of this job; drop it. */
static esp_status esp__meet_admit(esp__peers *p, esp__meeting *meet, esp__conn *c) {
    esp__hello h;
    if (c->head.type != ESP__MSG_HELLO || c->head.bytes != sizeof h) return ESP_PENDING;
    memcpy(&h, c->body, sizeof h);
    h.version[sizeof h.version - 1] = 0;
    if (memcmp(h.magic, esp__meet_magic, sizeof h.magic) != 0 || h.job != meet->job) return ESP_PENDING;
    if (strcmp(h.version, ESPRESSO_VERSION) != 0)
        return esp__fail(p->ctx, ESP_E_MISMATCH,
                         "rank %d runs espresso %s, rank 0 runs %s: install one version everywhere", (int)h.rank,
                         h.version, ESPRESSO_VERSION);
    if (h.size != p->size)
        return esp__fail(p->ctx, ESP_E_MISMATCH, "rank %d says that the job has %d ranks, rank 0 says %d", (int)h.rank,
                         (int)h.size, (int)p->size);
    if (h.rank < 0 || h.rank >= p->size)
        return esp__fail(p->ctx, ESP_E_MISMATCH, "a process says that it is rank %d of %d", (int)h.rank, (int)p->size);
    if (h.rank == 0 || p->conns[h.rank].fd >= 0)
        return esp__fail(p->ctx, ESP_E_MISMATCH,
                         "two processes say that they are rank %d of %d: do two jobs meet at %s?", (int)h.rank,
                         (int)p->size, p->where);
    c->rank = h.rank;
    esp__conn_next(p->ctx, c);
    p->conns[h.rank] = *c;
    esp__conn_init(c, -1, -1);
    meet->n_here++;
    return ESP_OK;
}

static void esp__meet_accept(esp__peers *p, esp__meeting *meet) {
    for (;;) {
        esp__guest *g = &meet->guests[meet->n_guests];
        int fd, pidfd;
        if (meet->n_guests == ESP__MEET_PENDING) return; /* further connections wait in the socket's backlog */
        fd = (int)syscall(SYS_accept4, meet->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) meet->full = errno;
        if (fd < 0) return;
        esp__conn_init(&g->conn, fd, -1);
        if (!esp__socket_peer(fd, &pidfd)) {
            esp__log(p->ctx, ESP_LOG_WARN, "peers", "a process of another user knocked at %s: refused", p->where);
            esp__conn_free(p->ctx, &g->conn);
            continue;
        }
        g->conn.pidfd = pidfd;
        g->since_ns = esp__now_ns();
        esp__socket_tune(fd, !strncmp(p->where, "unix:", 5) ? AF_UNIX : AF_INET);
        meet->n_guests++;
    }
}

/* Reads from every guest. One that was admitted or refused, is gone, or was silent for 10 s, leaves the list. failed: refuses all
 * of them. */
static esp_status esp__meet_hear(esp__peers *p, esp__meeting *meet, esp_status failed) {
    esp_status s = ESP_OK;
    for (int32_t i = 0; i < meet->n_guests && s == ESP_OK; i++) {
        esp__conn *c = &meet->guests[i].conn;
        int rc = esp__conn_read(p->ctx, c, sizeof(esp__hello));
        int silent = rc == 0 && esp__now_ns() - meet->guests[i].since_ns > 10000000000u;
        if (rc == 0 && !silent) continue;
        if (rc == 1 && failed == ESP_OK) s = esp__meet_admit(p, meet, c);
        if (rc == 1 && failed != ESP_OK) esp__meet_refuse(p, c, failed, 0);
        if (s < 0) esp__meet_refuse(p, c, s, 1);
        if (silent || s == ESP_PENDING)
            esp__log(p->ctx, ESP_LOG_INFO, "peers", "something that is no rank of this job connected to %s", p->where);
        if (s == ESP_PENDING) s = ESP_OK;
        esp__conn_free(p->ctx, c);
        meet->guests[i--] = meet->guests[--meet->n_guests];
    }
    return s;
}

/* Fails if a rank that has joined ends before the meeting does. */
static esp_status esp__meet_check_joined(esp__peers *p) {
    for (int32_t r = 1; r < p->size; r++) {
        esp__conn *c = &p->conns[r];
        if (c->fd < 0 || esp__conn_read(p->ctx, c, 0) == 0) continue;
        esp__socket_close(&c->fd);
        esp__fail(p->ctx, ESP_E_PEER, "rank %d died while the ranks were meeting", (int)r);
        return esp__meet_refuse(p, NULL, ESP_E_PEER, 1);
    }
    return ESP_OK;
}

static esp_status esp__meet_missing(esp__peers *p, esp__meeting *meet) {
    char list[160] = "";
    size_t at = 0;
    int32_t listed = 0, missing = p->size - meet->n_here;
    for (int32_t r = 1; r < p->size && listed < 8; r++)
        if (p->conns[r].fd < 0)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%d", listed++ ? ", " : "", (int)r);
    if (missing > listed) snprintf(list + at, sizeof list - at, " and %d more", (int)(missing - listed));
    esp__fail(p->ctx, ESP_E_TIMEOUT,
              "waited %u ms at %s for all %d ranks: missing %s %s. Did they start, and with the same meeting point?",
              (unsigned)p->timeout_ms, p->where, (int)p->size, missing == 1 ? "rank" : "ranks", list);
    return esp__meet_refuse(p, NULL, ESP_E_TIMEOUT, 1);
}

/* Sleeps until a connection is made, has data or ends, at most `ms` milliseconds, and accepts new connections. */
static void esp__meet_poll(esp__peers *p, esp__meeting *meet, int ms) {
    nfds_t n = 0;
    meet->polls[n++] = (struct pollfd){meet->listen_fd, meet->n_guests < ESP__MEET_PENDING ? POLLIN : 0, 0};
    for (int32_t i = 0; i < meet->n_guests; i++) meet->polls[n++] = (struct pollfd){meet->guests[i].conn.fd, POLLIN, 0};
    for (int32_t r = 1; r < p->size; r++)
        if (p->conns[r].fd >= 0) meet->polls[n++] = (struct pollfd){p->conns[r].fd, POLLIN, 0};
    poll(meet->polls, n, ms);
    esp__meet_accept(p, meet);
}

/* Rank 0: waits until all ranks have joined. */
static esp_status esp__meet_serve(esp__peers *p, esp__meeting *meet) {
    uint64_t linger = 0;
    esp_status s = ESP_OK;
    meet->n_here = 1;
    while (s == ESP_OK && meet->n_here < p->size) {
        uint64_t wake = esp__now_ns() + 1000000000u; /* looks for silent guests once a second */
        if (esp__now_ns() >= meet->deadline_ns) return esp__meet_missing(p, meet);
        esp__meet_poll(p, meet, esp__poll_ms(wake < meet->deadline_ns ? wake : meet->deadline_ns));
        s = esp__meet_hear(p, meet, ESP_OK);
        if (s == ESP_OK && meet->full) {
            s = esp__fail(p->ctx, ESP_E_COMM, "rank 0 cannot take connections of %d ranks: %s (see ulimit -n)",
                          (int)p->size, strerror(meet->full));
            esp__meet_refuse(p, NULL, s, 1);
        }
        if (s == ESP_OK) s = esp__meet_check_joined(p);
    }
    if (s == ESP_OK) return s;
    /* ranks that come a little later get the error too: otherwise they would wait for their whole timeout */
    for (int32_t r = 1; r < p->size; r++) esp__socket_close(&p->conns[r].fd);
    for (linger = esp__now_ns() + 500000000u; esp__now_ns() < linger;) {
        esp__meet_poll(p, meet, esp__poll_ms(linger));
        esp__meet_hear(p, meet, s);
    }
    return s;
}

static esp_status esp__meet_host(esp__peers *p, int listen_fd, uint64_t job) {
    uint64_t polls_bytes = sizeof(struct pollfd) * (uint64_t)(p->size + ESP__MEET_PENDING + 1);
    esp__meeting *meet = (esp__meeting *)esp__alloc(p->ctx, sizeof *meet);
    esp_status s = meet ? ESP_OK : esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks");
    if (meet) {
        meet->listen_fd = listen_fd;
        meet->job = job;
        meet->deadline_ns = esp__now_ns() + p->timeout_ms * 1000000ull;
        meet->polls = (struct pollfd *)esp__alloc(p->ctx, polls_bytes);
        s = meet->polls ? esp__meet_serve(p, meet) : esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks");
        for (int32_t i = 0; i < meet->n_guests; i++) esp__conn_free(p->ctx, &meet->guests[i].conn);
        if (meet->polls) esp__free(p->ctx, meet->polls);
        esp__free(p->ctx, meet);
    }
    /* closed before the welcome: a rank that connects after it wants the next context's listener, not this one */
    close(listen_fd);
    for (int32_t r = 1; s == ESP_OK && r < p->size; r++)
        esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_WELCOME, 0, 0, 0, 0}, NULL, 0);
    return s;
}
