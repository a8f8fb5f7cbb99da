/* survivors.c: how the ranks that are left meet again, and agree on who they are, for peers.c. The lowest of them is the host. A rank
 * finds it by calling the lower ranks one after another at their standby sockets (standby.c). The host waits for every rank that may
 * still come, and sends all that came the list of the new members: the decision is its alone. If it dies before all have the list,
 * those without it call the next rank, and those with it find their new connections broken and meet again. Ranks are known by the
 * numbers that they had when the job began, so both meet at the same host.
 *
 * A rank is gone where its socket refuses or breaks a connection, or its process has ended. One that is only silent may be running:
 * then the ranks go on if they are more than half of those before, or half with the lowest of them. So no two groups go on. */
#include "espresso_impl/job/job.h"

enum { ESP__MEMBER_AWAITED, ESP__MEMBER_SILENT, ESP__MEMBER_GONE, ESP__MEMBER_HERE };
enum { ESP__DOOR_TRYING, ESP__DOOR_OPEN, ESP__DOOR_GONE, ESP__DOOR_UNKNOWN };
enum { ESP__REUNION_STRANGERS = 64, ESP__REUNION_TICK_MS = 10, ESP__REUNION_DIAL_NS = 1000000000 };

typedef struct esp__rejoin {
    uint64_t job;
    esp__survivor who;
} esp__rejoin;

/* A call at another rank's standby socket. */
typedef struct esp__door {
    esp__conn conn;
    int32_t root, refused; /* addresses tried; those that refused */
    int connecting, open;
    uint64_t since_ns;
} esp__door;

/* A connection at this rank's standby socket. */
typedef struct esp__caller {
    esp__conn conn;
    esp__survivor who;
    int32_t member; /* the rank before; -1: it has not said */
    uint64_t since_ns;
} esp__caller;

typedef struct esp__reunion {
    esp__standby *at;
    esp__peers *old;
    const esp__survivor *mine;
    uint64_t deadline_ns;
    uint8_t *state;   /* [n] ESP__MEMBER_* of each rank before */
    esp__door *doors; /* [n] */
    esp__caller *callers;
    int32_t n_callers, cap_callers;
    struct pollfd *polls;
    nfds_t n_polls;
} esp__reunion;

static void esp__door_close(esp_ctx *ctx, esp__door *d) {
    esp__conn_free(ctx, &d->conn);
    memset(d, 0, sizeof *d);
    esp__conn_init(&d->conn, -1, -1);
}

/* The address that is tried does not answer: the next one is tried then. */
static void esp__door_failed(esp_ctx *ctx, esp__door *d, int error) {
    const int32_t root = d->root + 1, refused = d->refused + (error == ECONNREFUSED);
    esp__door_close(ctx, d);
    d->root = root;
    d->refused = refused;
}

/* Begins to connect to the address d->root. 0: try again later. */
static int esp__door_dial(esp_ctx *ctx, const esp__standby_at *to, esp__door *d) {
    const char *error = "";
    esp__addr a;
    int fd;
    if (esp__addr_resolve(to->roots[d->root], &a, 1, &error) < 1 || (fd = esp__socket(a.sa.ss_family)) < 0) {
        esp__door_failed(ctx, d, 0);
        return 1;
    }
    d->conn.fd = fd;
    d->since_ns = esp__now_ns();
    d->connecting = connect(fd, (const struct sockaddr *)&a.sa, a.len) != 0;
    if (!d->connecting || errno == EINPROGRESS) return 1;
    const int why = errno;
    if (why == EAGAIN) esp__socket_close(&d->conn.fd); /* a full backlog */
    if (why != EAGAIN) esp__door_failed(ctx, d, why);
    d->connecting = 0;
    return why != EAGAIN;
}

/* Connects, without blocking; call it again while it returns ESP__DOOR_TRYING. */
static int esp__door_try(esp_ctx *ctx, const esp__standby_at *to, esp__door *d) {
    while (!d->open) {
        struct pollfd ready = {d->conn.fd, POLLOUT, 0};
        int error = 0;
        socklen_t len = sizeof error;
        if (d->conn.fd < 0 && d->root >= to->n_roots)
            return d->refused == to->n_roots ? ESP__DOOR_GONE : ESP__DOOR_UNKNOWN;
        if (d->conn.fd < 0) {
            if (!esp__door_dial(ctx, to, d)) return ESP__DOOR_TRYING;
            continue;
        }
        if (d->connecting && poll(&ready, 1, 0) == 0) {
            if (esp__now_ns() - d->since_ns < ESP__REUNION_DIAL_NS) return ESP__DOOR_TRYING;
            error = ETIMEDOUT;
        } else if (d->connecting && getsockopt(d->conn.fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) {
            error = errno;
        }
        if (error) {
            esp__door_failed(ctx, d, error);
            continue;
        }
        errno = 0;
        d->open = esp__socket_peer(d->conn.fd, &d->conn.pidfd);
        if (d->open && d->conn.pidfd < 0 && errno == ESRCH)
            d->open = 0, errno = ECONNREFUSED; /* a child has the socket */
        if (!d->open) esp__door_failed(ctx, d, errno);
        if (d->open) esp__socket_tune(d->conn.fd, !strncmp(to->roots[d->root], "unix:", 5) ? AF_UNIX : AF_INET);
    }
    return ESP__DOOR_OPEN;
}

/* 1: a message is there; 0: none yet; -1: the connection or the process has ended. */
static int esp__reunion_read(esp_ctx *ctx, esp__conn *c, uint64_t limit) {
    struct pollfd ended = {c->pidfd, POLLIN, 0};
    const int dead = c->pidfd >= 0 && poll(&ended, 1, 0) > 0; /* before reading: what it wrote is there */
    const int rc = esp__conn_read(ctx, c, limit);
    return rc == 0 && dead ? -1 : rc;
}

static int esp__reunion_excluded(esp__reunion *m) {
    pthread_mutex_lock(&m->old->lock);
    const int excluded = m->old->excluded;
    pthread_mutex_unlock(&m->old->lock);
    return excluded;
}

static esp_status esp__reunion_exclude(const esp__reunion *m) {
    return esp__fail(m->old->ctx, ESP_E_PEER,
                     "the other ranks went on without rank %d, which they took for dead or late: close this context, "
                     "and start the job again to take part",
                     (int)m->old->rank);
}

static void esp__reunion_poll_add(esp__reunion *m, int fd, int write) {
    if (fd >= 0) m->polls[m->n_polls++] = (struct pollfd){fd, (short)(write ? POLLOUT : POLLIN), 0};
}

static void esp__reunion_poll_conn(esp__reunion *m, const esp__conn *c, int connecting) {
    esp__reunion_poll_add(m, c->fd, connecting);
    if (c->fd >= 0) esp__reunion_poll_add(m, c->pidfd, 0);
}

/* ---- the new connections ------------------------------------------------------------------------------------------------ */
static esp__peers *esp__reunion_peers(const esp__reunion *m, int32_t rank, int32_t size) {
    esp_config cfg;
    esp__where w;
    memset(&cfg, 0, sizeof cfg);
    memset(&w, 0, sizeof w);
    cfg.timeout_ms = m->old->timeout_ms;
    w.rank = rank;
    w.size = size;
    esp__peers *p = esp__peers_new(m->old->ctx, &cfg, &w, &m->old->ev);
    if (p) snprintf(p->where, sizeof p->where, "%s", m->at->at[m->at->members[m->old->rank]].roots[0]);
    return p;
}

/* The rank before that began the job as `origin`; -1: none. */
static int32_t esp__reunion_find(const esp__reunion *m, int32_t origin) {
    for (int32_t i = 0; i < m->at->n; i++)
        if (m->at->members[i] == origin) return i;
    return -1;
}

/* ---- ranks that are not the host ------------------------------------------------------------------------------------------- */
/* The host's list. */
static esp_status esp__rejoin_members(esp__reunion *m, esp__conn *c, esp__survivors *out) {
    const uint64_t n = c->head.bytes / sizeof *out->who;
    out->n = 0;
    out->rank = -1;
    out->epoch = (uint32_t)c->head.tag;
    if (n <= (uint64_t)m->at->n && n * sizeof *out->who == c->head.bytes) out->n = (int32_t)n;
    if (out->n) memcpy(out->who, c->body, c->head.bytes);
    for (int32_t i = 0; i < out->n; i++) {
        out->was[i] = esp__reunion_find(m, out->who[i].origin);
        if (out->was[i] == m->old->rank) out->rank = i;
        if (out->was[i] < 0 || (i && out->was[i] <= out->was[i - 1])) out->n = 0;
    }
    esp__conn_next(m->old->ctx, c);
    if (!out->n || out->rank < 1)
        return esp__fail(m->old->ctx, ESP_E_COMM, "the ranks that are left sent a list of members that makes no sense");
    out->peers = esp__reunion_peers(m, out->rank, out->n);
    if (!out->peers) return esp__fail(m->old->ctx, ESP_E_NOMEM, "no memory to connect %d ranks", (int)out->n);
    out->peers->conns[0] = *c;
    out->peers->conns[0].rank = 0;
    esp__conn_init(c, -1, -1);
    return ESP_OK;
}

/* A message from the rank that was called. ESP_PENDING: it is the host, which waits for others. */
static esp_status esp__rejoin_hear(esp__reunion *m, esp__conn *c, esp__survivors *out) {
    esp_ctx *ctx = m->old->ctx;
    esp_status s = ESP_PENDING;
    if (c->head.type == ESP__MSG_MEMBERS) return esp__rejoin_members(m, c, out);
    if (c->head.type == ESP__MSG_HOSTED) m->deadline_ns = esp__now_ns() + (m->old->timeout_ms + 1000ull) * 1000000u;
    if (c->head.type == ESP__MSG_EXCLUDED) s = esp__reunion_exclude(m);
    if (c->head.type == ESP__MSG_REFUSE && c->head.rank < 0 && c->head.bytes > 0) {
        c->body[c->head.bytes - 1] = 0;
        s = esp__fail(ctx, c->head.rank, "%s", (const char *)c->body);
    }
    esp__conn_next(ctx, c);
    return s;
}

/* Calls rank `to` (before), and waits for its list. ESP_PENDING: it is gone or silent, and m->state says which. */
static esp_status esp__rejoin_at(esp__reunion *m, int32_t to, esp__survivors *out) {
    esp_ctx *ctx = m->old->ctx;
    esp__door *d = &m->doors[to];
    esp__rejoin mine;
    int said = 0;
    memset(&mine, 0, sizeof mine);
    mine.job = m->at->job;
    mine.who = *m->mine;
    m->deadline_ns = esp__now_ns() + m->old->timeout_ms * 1000000ull;
    for (;;) {
        const int door = esp__door_try(ctx, &m->at->at[m->at->members[to]], d);
        const int over = esp__now_ns() >= m->deadline_ns;
        if (door == ESP__DOOR_GONE) m->state[to] = ESP__MEMBER_GONE;
        if (door == ESP__DOOR_UNKNOWN || over) m->state[to] = ESP__MEMBER_SILENT;
        if (door == ESP__DOOR_OPEN && !said++)
            esp__conn_send(ctx, &d->conn, (esp__msg){ESP__MSG_REJOIN, m->mine->origin, 0, 0, 0}, &mine, sizeof mine);
        const int rc = door == ESP__DOOR_OPEN ? esp__reunion_read(ctx, &d->conn, 1u << 24) : 0;
        if (rc < 0) m->state[to] = ESP__MEMBER_GONE;
        const esp_status s = esp__reunion_excluded(m) ? esp__reunion_exclude(m)
                             : rc > 0                 ? esp__rejoin_hear(m, &d->conn, out)
                                                      : ESP_PENDING;
        if (s != ESP_PENDING) return s;
        if (m->state[to] != ESP__MEMBER_AWAITED) return ESP_PENDING;
        m->n_polls = 0;
        esp__reunion_poll_conn(m, &d->conn, d->connecting);
        if (rc == 0) poll(m->polls, m->n_polls, ESP__REUNION_TICK_MS);
    }
}

/* ---- the host ------------------------------------------------------------------------------------------------------------- */
static void esp__host_accept(esp__reunion *m) {
    while (m->n_callers < m->cap_callers) { /* further connections wait in the socket's backlog */
        esp__caller *c = &m->callers[m->n_callers];
        int fd = (int)syscall(SYS_accept4, m->at->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return;
        esp__conn_init(&c->conn, fd, -1);
        c->member = -1;
        c->since_ns = esp__now_ns();
        if (esp__socket_peer(fd, &c->conn.pidfd))
            m->n_callers++;
        else
            esp__conn_free(m->old->ctx, &c->conn);
    }
}

/* A caller's first message. 0: it is no rank of this job, or has no place in it any more. */
static int esp__host_admit(esp__reunion *m, esp__caller *c) {
    esp__rejoin in;
    const int fits = c->conn.head.type == ESP__MSG_REJOIN && c->conn.head.bytes == sizeof in;
    if (fits) memcpy(&in, c->conn.body, sizeof in);
    esp__conn_next(m->old->ctx, &c->conn);
    if (!fits || in.job != m->at->job) return 0;
    const int32_t member = esp__reunion_find(m, in.who.origin);
    if (member <= m->old->rank || m->state[member] == ESP__MEMBER_HERE) {
        /* given up before, or a lower rank, which this one took for gone or silent */
        esp__conn_send(m->old->ctx, &c->conn, (esp__msg){ESP__MSG_EXCLUDED, 0, 0, 0, 0}, NULL, 0);
        return 0;
    }
    c->who = in.who;
    c->member = member;
    m->state[member] = ESP__MEMBER_HERE;
    esp__conn_send(m->old->ctx, &c->conn, (esp__msg){ESP__MSG_HOSTED, 0, 0, 0, 0}, NULL, 0);
    return 1;
}

/* Reads from all callers. A rank that came and ended is asked for anew at its standby socket. */
static void esp__host_hear(esp__reunion *m) {
    esp_ctx *ctx = m->old->ctx;
    for (int32_t i = 0; i < m->n_callers; i++) {
        esp__caller *c = &m->callers[i];
        const int rc = esp__reunion_read(ctx, &c->conn, sizeof(esp__rejoin));
        const int came = c->member >= 0, waits = came || esp__now_ns() - c->since_ns < ESP__REUNION_DIAL_NS;
        if ((rc == 0 && waits) || (rc > 0 && !came && esp__host_admit(m, c))) continue;
        if (came) {
            m->state[c->member] = ESP__MEMBER_AWAITED;
            esp__door_close(ctx, &m->doors[c->member]);
        }
        esp__conn_free(ctx, &c->conn);
        m->callers[i--] = m->callers[--m->n_callers];
    }
}

/* Looks after the ranks that have not come. Returns how many may still come; -1: this rank is excluded. */
static int32_t esp__host_await(esp__reunion *m) {
    esp_ctx *ctx = m->old->ctx;
    int32_t awaited = 0;
    for (int32_t i = 0; i < m->at->n; i++) {
        if (m->state[i] != ESP__MEMBER_AWAITED) continue;
        esp__door *d = &m->doors[i];
        const int door = esp__door_try(ctx, &m->at->at[m->at->members[i]], d);
        const int rc = door == ESP__DOOR_OPEN ? esp__reunion_read(ctx, &d->conn, 65536) : 0;
        if (rc > 0 && d->conn.head.type == ESP__MSG_EXCLUDED) return -1;
        if (door == ESP__DOOR_GONE || rc < 0) m->state[i] = ESP__MEMBER_GONE;
        if (door == ESP__DOOR_UNKNOWN || rc > 0) m->state[i] = ESP__MEMBER_SILENT;
        awaited += m->state[i] == ESP__MEMBER_AWAITED;
    }
    return esp__reunion_excluded(m) ? -1 : awaited;
}

/* Tells all callers (but those that have moved on) the failure of this thread, and returns it. */
static esp_status esp__host_refuse(esp__reunion *m, esp_status s) {
    const char *text = esp_last_error(NULL);
    for (int32_t i = 0; i < m->n_callers; i++)
        esp__conn_send(m->old->ctx, &m->callers[i].conn, (esp__msg){ESP__MSG_REFUSE, s, 0, 0, 0}, text,
                       strlen(text) + 1);
    return s;
}

/* May those that are here go on? */
static esp_status esp__host_check(const esp__reunion *m) {
    int32_t here = 0, gone = 0, silent = -1;
    for (int32_t i = 0; i < m->at->n; i++) {
        here += m->state[i] == ESP__MEMBER_HERE;
        gone += m->state[i] == ESP__MEMBER_GONE;
        if (m->state[i] == ESP__MEMBER_AWAITED || m->state[i] == ESP__MEMBER_SILENT) silent = i;
    }
    if (here + gone == m->at->n || 2 * here > m->at->n || (2 * here == m->at->n && m->state[0] == ESP__MEMBER_HERE))
        return ESP_OK;
    return esp__fail(m->old->ctx, ESP_E_TIMEOUT,
                     "only %d of %d ranks are left, and rank %d does not answer but may still be running: two parts of "
                     "the job must not both go on. Start all ranks again, from the last state that was saved",
                     (int)here, (int)m->at->n, (int)silent);
}

/* Makes the new connections and sends the list. */
static esp_status esp__host_decide(esp__reunion *m, esp__survivors *out) {
    esp_ctx *ctx = m->old->ctx;
    esp_status s = esp__host_check(m);
    uint32_t epoch = m->mine->epoch;
    if (s) return esp__host_refuse(m, s);
    out->n = out->rank = 0;
    for (int32_t i = 0; i < m->at->n; i++) {
        if (m->state[i] != ESP__MEMBER_HERE) continue;
        out->who[out->n] = *m->mine;
        for (int32_t k = 0; k < m->n_callers; k++)
            if (m->callers[k].member == i) out->who[out->n] = m->callers[k].who;
        if (out->who[out->n].epoch > epoch) epoch = out->who[out->n].epoch;
        out->was[out->n++] = i;
    }
    out->epoch = epoch + 1;
    out->peers = esp__reunion_peers(m, 0, out->n);
    if (!out->peers)
        return esp__host_refuse(m, esp__fail(ctx, ESP_E_NOMEM, "no memory to connect %d ranks", (int)out->n));
    for (int32_t k = 0; k < m->n_callers; k++) {
        int32_t r = 1;
        while (r < out->n && out->was[r] != m->callers[k].member) r++;
        if (r == out->n) continue;
        esp__conn *c = &out->peers->conns[r];
        *c = m->callers[k].conn;
        c->rank = r;
        esp__conn_init(&m->callers[k].conn, -1, -1);
        esp__conn_send(ctx, c, (esp__msg){ESP__MSG_MEMBERS, r, out->epoch, 0, 0}, out->who,
                       (uint64_t)out->n * sizeof *out->who);
    }
    return ESP_OK;
}

static esp_status esp__host_run(esp__reunion *m, esp__survivors *out) {
    m->deadline_ns = esp__now_ns() + m->old->timeout_ms * 1000000ull;
    for (;;) {
        esp__host_accept(m);
        esp__host_hear(m);
        const int32_t awaited = esp__host_await(m);
        if (awaited < 0) return esp__host_refuse(m, esp__reunion_exclude(m));
        if (!awaited || esp__now_ns() >= m->deadline_ns) return esp__host_decide(m, out);
        m->n_polls = 0;
        esp__reunion_poll_add(m, m->at->fd, 0);
        for (int32_t i = 0; i < m->n_callers; i++) esp__reunion_poll_conn(m, &m->callers[i].conn, 0);
        for (int32_t i = 0; i < m->at->n; i++)
            if (m->state[i] == ESP__MEMBER_AWAITED)
                esp__reunion_poll_conn(m, &m->doors[i].conn, m->doors[i].connecting);
        poll(m->polls, m->n_polls, ESP__REUNION_TICK_MS);
    }
}

/* ---- all ranks ------------------------------------------------------------------------------------------------------------ */
static esp_status esp__reunion_take(esp__reunion *m, esp_ctx *ctx) {
    const uint64_t n = (uint64_t)m->at->n;
    m->cap_callers = m->at->n + ESP__REUNION_STRANGERS;
    m->state = esp__alloc(ctx, n);
    m->doors = esp__alloc(ctx, n * sizeof *m->doors);
    m->callers = esp__alloc(ctx, (uint64_t)m->cap_callers * sizeof *m->callers);
    m->polls = esp__alloc(ctx, (1 + 2 * (n + (uint64_t)m->cap_callers)) * sizeof *m->polls);
    for (int32_t i = 0; m->doors && i < m->at->n; i++) esp__conn_init(&m->doors[i].conn, -1, -1);
    return m->state && m->doors && m->callers && m->polls
               ? ESP_OK
               : esp__fail(ctx, ESP_E_NOMEM, "no memory to meet %d ranks", (int)m->at->n);
}

static void esp__reunion_give(esp__reunion *m, esp_ctx *ctx) {
    for (int32_t i = 0; m->doors && i < m->at->n; i++) esp__conn_free(ctx, &m->doors[i].conn);
    for (int32_t i = 0; i < m->n_callers; i++) esp__conn_free(ctx, &m->callers[i].conn);
    esp__free(ctx, m->state);
    esp__free(ctx, m->doors);
    esp__free(ctx, m->callers);
    esp__free(ctx, m->polls);
}

ESP__FN esp_status esp__survivors_meet(esp__standby *s, esp__peers *old, const esp__survivor *mine, int32_t silent,
                                       esp__survivors *out) {
    esp__reunion m;
    esp__survivor me = *mine;
    memset(&m, 0, sizeof m);
    me.origin = s->members[old->rank];
    me.epoch = s->epoch;
    m.at = s;
    m.old = old;
    m.mine = &me;
    out->peers = NULL;
    esp_status st = esp__reunion_take(&m, old->ctx);
    if (!st) m.state[old->rank] = ESP__MEMBER_HERE;
    if (!st && silent >= 0 && silent < s->n && silent != old->rank) m.state[silent] = ESP__MEMBER_SILENT;
    if (!st) st = ESP_PENDING;
    for (int32_t to = 0; to < old->rank && st == ESP_PENDING; to++)
        if (m.state[to] == ESP__MEMBER_AWAITED) st = esp__rejoin_at(&m, to, out);
    if (st == ESP_PENDING) st = esp__host_run(&m, out);
    esp__reunion_give(&m, old->ctx);
    return st;
}

ESP__FN void esp__survivors_adopt(esp__standby *s, esp__peers *old, const esp__survivors *now) {
    for (int32_t i = 0; i < now->n; i++) s->members[i] = now->who[i].origin;
    s->n = now->n;
    s->epoch = now->epoch;
    if (old->has_thread) {
        pthread_mutex_lock(&old->lock);
        old->closing = 1; /* from here on no callback is called */
        for (int32_t i = 0; i < old->n_conns; i++) {
            int stays = 0;
            for (int32_t k = 0; k < now->n; k++) stays |= now->was[k] == old->conns[i].rank;
            if (!stays) esp__conn_send(old->ctx, &old->conns[i], (esp__msg){ESP__MSG_EXCLUDED, 0, 0, 0, 0}, NULL, 0);
        }
        old->quit = 1;
        old->quit_ns = esp__now_ns();
        esp__peers_wake(old);
        pthread_mutex_unlock(&old->lock);
        pthread_join(old->thread, NULL);
    }
    esp__peers_free(old);
}

ESP__FN esp_status esp__peers_watch(esp__peers *p) { return p->size > 1 ? esp__watch_start(p) : ESP_OK; }
