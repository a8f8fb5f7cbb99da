/* guests.c: whoever connects to rank 0 while the ranks meet, for meet.c. It is a guest until it has proven that it knows the job's
 * secret (prove.c). Guests get little: a fixed number of places, a few hundred bytes of memory each, and ten seconds. */
#include "espresso_impl/job/job.h"

enum {
    ESP__GUESTS = 64,         /* places, besides one for each rank: ranks that come at once never displace each other */
    ESP__GUEST_MS = 10000,    /* a guest that has not said all by then is dropped                             */
    ESP__GUEST_KNOCK_MS = 20, /* where all places are taken, a guest has its place at least so long, and ...  */
    ESP__GUEST_GRACE_MS = 250, /* ... if it has knocked, so long                                               */
    ESP__MEET_FULL_MS = 300,   /* so long rank 0 goes on without a descriptor for a further connection         */
    ESP__GUESTS_AT_ONCE = 32   /* connections that are accepted before guests are heard again                  */
};

/* Why guests were sent away. The first ones may be ranks of this job, so the log warns of them. */
enum {
    ESP__GUEST_DIFFERS,
    ESP__GUEST_WITHOUT,
    ESP__GUEST_WITH,
    ESP__GUEST_VERSION,
    ESP__GUEST_USER,
    ESP__GUEST_STRANGER,
    ESP__GUEST_SILENT,
    ESP__GUEST_DISPLACED,
    ESP__GUEST_REASONS
};
static const char *const esp__guest_reasons[ESP__GUEST_REASONS] = {"with another ESPRESSO_SECRET",
                                                                   "without ESPRESSO_SECRET, which rank 0 has",
                                                                   "with ESPRESSO_SECRET, which rank 0 lacks",
                                                                   "of another version of espresso",
                                                                   "of another user",
                                                                   "that are no ranks of this job",
                                                                   "that did not say all in 10 s",
                                                                   "to make room for others"};

typedef struct esp__guest {
    esp__conn conn;
    uint64_t since_ns;
    int challenged; /* it has knocked, and got `challenge` */
    int why;        /* it is sent away: ESP__GUEST_...     */
    esp__knock knock;
    esp__challenge challenge;
} esp__guest;

typedef struct esp__meeting {
    int listen_fd;
    int32_t n_here, n_guests, most_guests, full_here;
    uint64_t
        full_ns; /* since then there has been no descriptor for a further connection, and n_here was full_here; 0: there is */
    uint64_t job, deadline_ns, refused[ESP__GUEST_REASONS];
    esp__guest *guests;
    struct pollfd *polls; /* the listening socket, the guests, the ranks */
} esp__meeting;

/* Sends a guest (all: every rank that has joined) this thread's error text, and returns `s`. */
static esp_status esp__meet_refuse(esp__peers *p, esp__conn *guest, esp_status s, int all) {
    const char *text = esp_last_error(NULL);
    esp__msg m = {ESP__MSG_REFUSE, s, 0, 0, 0};
    if (guest) esp__conn_send(p->ctx, guest, m, text, strlen(text) + 1);
    for (int32_t r = 1; all && r < p->size; r++)
        if (p->conns[r].fd >= 0) esp__conn_send(p->ctx, &p->conns[r], m, text, strlen(text) + 1);
    return s;
}

/* " Refused connections: 2 with another ESPRESSO_SECRET, 1 of another user", or "". */
static void esp__guests_refused(const esp__meeting *meet, char *out, size_t cap) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < ESP__GUEST_REASONS; i++)
        if (meet->refused[i] && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%llu %s",
                                   at ? ", " : " Refused connections: ", (unsigned long long)meet->refused[i],
                                   esp__guest_reasons[i]);
}

/* The log has the first of each kind, and then fewer and fewer: there may be thousands. */
static void esp__guest_count(esp__peers *p, esp__meeting *meet, int why) {
    const uint64_t n = ++meet->refused[why];
    if ((n & (n - 1)) == 0)
        esp__log(p->ctx, why <= ESP__GUEST_USER ? ESP_LOG_WARN : ESP_LOG_INFO, "peers",
                 "%s: refused %llu connection%s %s so far", p->where, (unsigned long long)n, n > 1 ? "s" : "",
                 esp__guest_reasons[why]);
}

static void esp__guest_drop(esp__peers *p, esp__meeting *meet, esp__guest *g, int why) {
    if (why >= 0) esp__guest_count(p, meet, why);
    esp__conn_free(p->ctx, &g->conn);
    *g = meet->guests[--meet->n_guests];
}

/* Until then a guest keeps its place. A rank knocks as soon as it is connected, and then needs some time to answer. */
static uint64_t esp__guest_safe_ns(const esp__guest *g) {
    return g->since_ns + (g->challenged ? ESP__GUEST_GRACE_MS : ESP__GUEST_KNOCK_MS) * 1000000ull;
}

/* Where all places are taken: the guest that goes first. NULL: there is none. */
static esp__guest *esp__guest_first_to_go(const esp__meeting *meet) {
    esp__guest *found = NULL;
    for (int32_t i = 0; i < meet->n_guests; i++)
        if (!found || esp__guest_safe_ns(&meet->guests[i]) < esp__guest_safe_ns(found)) found = &meet->guests[i];
    return found;
}

/* Makes room for another guest. 0: not yet; *wake_ns is then lowered to when there will be. */
static int esp__guests_room(esp__peers *p, esp__meeting *meet, uint64_t *wake_ns) {
    esp__guest *g = meet->n_guests < meet->most_guests ? NULL : esp__guest_first_to_go(meet);
    if (g && esp__now_ns() < esp__guest_safe_ns(g)) {
        if (esp__guest_safe_ns(g) < *wake_ns) *wake_ns = esp__guest_safe_ns(g);
        return 0; /* further connections wait in the socket's backlog */
    }
    if (g) esp__guest_drop(p, meet, g, ESP__GUEST_DISPLACED);
    return 1;
}

/* Accepts what waits. Returns an errno, where the process or the system lacks what a connection takes. */
static int esp__guests_accept(esp__peers *p, esp__meeting *meet) {
    uint64_t unused = UINT64_MAX;
    for (int i = 0; i < ESP__GUESTS_AT_ONCE && esp__guests_room(p, meet, &unused); i++) {
        esp__guest *g = &meet->guests[meet->n_guests];
        int fd = (int)syscall(SYS_accept4, meet->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), pidfd;
        if (fd < 0) return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ? errno : 0;
        memset(g, 0, sizeof *g);
        esp__conn_init(&g->conn, fd, -1);
        if (!esp__socket_peer(fd, &pidfd)) {
            esp__guest_count(p, meet, ESP__GUEST_USER);
            esp__conn_free(p->ctx, &g->conn);
            continue;
        }
        g->conn.pidfd = pidfd;
        g->since_ns = esp__now_ns();
        esp__socket_tune(fd, !strncmp(p->where, "unix:", 5) ? AF_UNIX : AF_INET);
        meet->n_guests++;
    }
    return 0;
}

/* Sends a guest the reason why it is no rank of this job. */
static esp_status esp__guest_refuse(esp__peers *p, esp__guest *g, int why) {
    static const char *const texts[] = {
        "ESPRESSO_SECRET differs from rank 0's. Set the same on all ranks (or do two jobs meet there?)",
        "rank 0 has an ESPRESSO_SECRET, and this process has none. Set the same on all ranks",
        "rank 0 has no ESPRESSO_SECRET, and this process has one. Set the same on all ranks, or on none"};
    char own[ESP__MEET_VERSION];
    g->why = why;
    if (why <= ESP__GUEST_WITH)
        esp__fail(p->ctx, ESP_E_MISMATCH, "rank 0 at %s refused this process: %s", p->where, texts[why]);
    else
        esp__fail(p->ctx, ESP_E_MISMATCH, "rank %d runs espresso %s, rank 0 runs %s: install one version everywhere",
                  (int)g->knock.rank, g->knock.version, esp__meet_version(own));
    esp__meet_refuse(p, &g->conn, ESP_E_MISMATCH, 0);
    return ESP_PENDING;
}

/* A guest's first message. ESP_PENDING: send it away. On a Unix socket the guest is of this user, so another version is a mistake
 * that ends the meeting. */
static esp_status esp__guest_knocked(esp__peers *p, esp__guest *g, esp_status failed) {
    esp__conn *c = &g->conn;
    esp__knock *k = &g->knock;
    char own[ESP__MEET_VERSION];
    if (c->head.type != ESP__MSG_KNOCK || c->head.bytes != sizeof *k) return ESP_PENDING;
    memcpy(k, c->body, sizeof *k);
    if (memcmp(k->magic, esp__knock_magic, sizeof k->magic) != 0) return ESP_PENDING;
    if (failed != ESP_OK) return esp__meet_refuse(p, c, failed, 0);
    if (strncmp(k->version, esp__meet_version(own), sizeof own) != 0) {
        esp__printable(k->version, sizeof k->version);
        esp__guest_refuse(p, g, ESP__GUEST_VERSION);
        return strncmp(p->where, "unix:", 5) ? ESP_PENDING : ESP_E_MISMATCH;
    }
    if (!esp__prove_challenge(p, &g->challenge))
        return esp__fail(p->ctx, ESP_E_COMM, "rank 0 cannot challenge the ranks: no random numbers");
    esp__conn_next(p->ctx, c);
    g->challenged = 1;
    esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_CHALLENGE, 0, 0, 0, 0}, &g->challenge, sizeof g->challenge);
    return ESP_OK;
}

/* The answer of a guest to its challenge: checks its code before all else. ESP_PENDING: send it away. */
static esp_status esp__guest_answered(esp__peers *p, esp__meeting *meet, esp__guest *g) {
    esp__conn *c = &g->conn;
    esp__proof proof;
    esp__hello h;
    if (c->head.type != ESP__MSG_HELLO || c->head.bytes != sizeof h) return ESP_PENDING;
    memcpy(&h, c->body, sizeof h);
    if (!esp__prove_check(p, 0, &g->knock, &g->challenge, &h, h.code)) {
        const int with = h.secured != 0, here = p->secret[0] != 0;
        if (memcmp(h.magic, esp__meet_magic, sizeof h.magic) != 0) return ESP_PENDING;
        return esp__guest_refuse(p, g, with == here ? ESP__GUEST_DIFFERS : with ? ESP__GUEST_WITH : ESP__GUEST_WITHOUT);
    }
    if (h.job != meet->job) return ESP_PENDING;
    esp__prove_code(p->secret, 1, &g->knock, &g->challenge, &h, proof.code);
    esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_PROOF, 0, 0, 0, 0}, &proof, sizeof proof);
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

/* Reads what a guest has sent. One that became a rank, is to be sent away, or said too little in its time, leaves the list. failed:
 * tells it that the meeting has failed. Returns an error where the meeting fails now. */
static esp_status esp__guest_hear(esp__peers *p, esp__meeting *meet, esp__guest *g, esp_status failed) {
    esp_status s = ESP_OK;
    int rc = 0;
    g->why = ESP__GUEST_STRANGER;
    while (s == ESP_OK && g->conn.fd >= 0 && (rc = esp__conn_read(p->ctx, &g->conn, sizeof(esp__hello))) == 1) {
        if (failed != ESP_OK && g->challenged)
            s = esp__meet_refuse(p, &g->conn, failed, 0);
        else
            s = g->challenged ? esp__guest_answered(p, meet, g) : esp__guest_knocked(p, g, failed);
    }
    if (s < 0 && failed == ESP_OK) { /* this guest, and all ranks that have joined, learn why */
        esp__meet_refuse(p, &g->conn, s, 1);
        esp__guest_drop(p, meet, g, -1);
        return s;
    }
    if (s < 0 || g->conn.fd < 0)
        esp__guest_drop(p, meet, g, -1);
    else if (s == ESP_PENDING || rc < 0)
        esp__guest_drop(p, meet, g, g->why);
    else if (esp__now_ns() - g->since_ns > ESP__GUEST_MS * 1000000ull)
        esp__guest_drop(p, meet, g, ESP__GUEST_SILENT);
    return ESP_OK;
}
