/* regroup.c: after ranks were lost, the remaining ranks meet again and agree on a list of survivors. Each rank always
 * listens at a standby socket, so a refused connection proves that a rank is gone. The lowest remaining rank is the
 * host. The others find it by connecting to lower ranks one after another. It waits for all ranks that may still come,
 * and decides on the list. If it dies meanwhile, ranks without a list connect to the next host, and ranks with a list
 * regroup again. If a lost rank is only silent, it may still run: then the survivors must be more than half of the old
 * ranks (or half with the lowest one), so that no two groups continue. */
#include "espresso_impl/job/peers.h"
#include <errno.h>
#include <unistd.h>

enum {
    ESP__ENDPOINT_HOSTS = 4,
    ESP__REGROUP_TICK_MS = 10,
    ESP__REGROUP_MARGIN_MS = 500,
    ESP__REGROUP_CONNECT_NS = 1000000000
};

/* The port and addresses of a rank in a job on several hosts. port is 0 if it has none. */
typedef struct esp__endpoint {
    uint16_t port, n;
    char host[ESP__ENDPOINT_HOSTS][ESP__ROOT_MAX];
} esp__endpoint;

struct esp__standby {
    int fd;
    uint64_t number; /* random; proves that a rank belongs to this job */
    esp__endpoint *at;
    int32_t *members;
    int32_t n;
    uint32_t epoch;
};

/* ---- the standby socket ---- */
ESP__FN bool esp__standby_root(const esp__standby *s, int32_t origin, int32_t i, char out[ESP__ROOT_MAX]) {
    if (!s->at) {
        snprintf(out, ESP__ROOT_MAX, "unix:espresso-%016llx-%d", (unsigned long long)s->number, (int)origin);
        return i == 0;
    }
    const esp__endpoint *e = &s->at[origin];
    if (i >= e->n || i >= ESP__ENDPOINT_HOSTS) return false;
    snprintf(out, ESP__ROOT_MAX, "%.*s:%u", (int)sizeof e->host[0] - 8, e->host[i], (unsigned)e->port);
    return true;
}

/* Listens at an abstract name or, in a job on several hosts, at a TCP port of the addresses that others can reach. */
static void esp__standby_listen(esp__standby *s, int32_t origin, esp__endpoint *mine) {
    const char *error = "";
    char name[ESP__ROOT_MAX];
    esp__roots roots;
    memset(mine, 0, sizeof *mine);
    if (!s->at) esp__standby_root(s, origin, 0, name);
    s->fd = esp__listen_roots(s->at ? NULL : name, &roots, &error);
    mine->port = s->fd >= 0 && !s->at;
    for (int32_t i = 0; s->at && i < roots.n && mine->n < ESP__ENDPOINT_HOSTS; i++) {
        /* other hosts cannot reach a loopback address */
        if (!strncmp(roots.at[i], "127.", 4) || !strncmp(roots.at[i], "[::1]", 5)) continue;
        char *colon = strrchr(roots.at[i], ':');
        *colon = 0;
        memcpy(mine->host[mine->n++], roots.at[i], strlen(roots.at[i]) + 1);
        mine->port = (uint16_t)atoi(colon + 1);
    }
}

ESP__FN int esp__standby_me(esp_ctx *ctx, const esp__standby *s, esp__peers *me) {
    *me = (esp__peers){.ctx = ctx, .size = s->n};
    snprintf(me->where, sizeof me->where, "a member");
    snprintf(me->secret, sizeof me->secret, "%016llx", (unsigned long long)s->number);
    return s->fd;
}

ESP__FN bool esp__standby_one_host(const esp__standby *s) { return !s->at; }

ESP__FN bool esp__standby_ready(const esp__standby *s) { return s && s->fd >= 0; }

ESP__FN void esp__standby_close(esp_ctx *ctx, esp__standby *s) {
    if (!s) return;
    esp__socket_close(&s->fd);
    esp__free(ctx, s->at);
    esp__free(ctx, s->members);
    esp__free(ctx, s);
}

ESP__FN esp_status esp__standby_open(esp_ctx *ctx, uint64_t number, bool one_host, esp__standby **out) {
    const esp__job *job = esp__job_of(ctx);
    const uint64_t n = (uint64_t)job->size;
    esp__standby *s = esp__alloc(ctx, sizeof *s);
    esp__endpoint mine;
    const uint16_t *ports = job->room;
    *out = s;
    if (s) *s = (esp__standby){.fd = -1, .number = number, .n = job->size, .epoch = 1};
    if (s) s->members = esp__alloc(ctx, n * sizeof *s->members);
    if (s && !one_host) s->at = esp__alloc(ctx, n * sizeof mine);
    if (!s || !s->members || (!one_host && !s->at))
        return esp__fail(ctx, ESP_E_NOMEM, "no memory for the addresses of %d ranks", job->size);
    for (int32_t r = 0; r < job->size; r++) s->members[r] = r;
    if (job->size == 1) return ESP_OK;
    esp__standby_listen(s, job->rank, &mine);
    const esp_status st = s->at
                              ? esp__peers_allgather(job->peers, NULL, job->size, &mine, s->at, sizeof mine)
                              : esp__peers_allgather(job->peers, NULL, job->size, &mine.port, job->room, sizeof *ports);
    for (int32_t r = 0; r < job->size && !st; r++)
        if (!(s->at ? s->at[r].port : ports[r])) esp__socket_close(&s->fd);
    return st;
}

/* ---- connections to standby sockets ---- */
typedef struct esp__reach {
    esp__conn conn;
    int32_t root, refused;
    bool open;
    uint64_t since_ns;
} esp__reach;
enum { ESP__REACH_TRYING, ESP__REACH_OPEN, ESP__REACH_GONE, ESP__REACH_UNKNOWN };
enum { ESP__MEMBER_AWAITED, ESP__MEMBER_SILENT, ESP__MEMBER_GONE, ESP__MEMBER_HERE };

typedef struct esp__group {
    esp__standby *at;
    esp__peers *old;
    esp__peers me;
    uint64_t deadline_ns;
    uint8_t *state;
    esp__reach *reach;
    esp__lobby lobby;
    struct pollfd *polls;
    nfds_t n_polls;
} esp__group;

static void esp__reach_close(esp_ctx *ctx, esp__reach *d) {
    const esp__reach next = {.root = d->root, .refused = d->refused};
    esp__conn_free(ctx, &d->conn);
    *d = next;
    esp__conn_init(&d->conn, -1, -1);
}

/* Begins or continues to connect to `root`. Returns 0, EINPROGRESS or another errno. */
static int esp__reach_step(esp__reach *d, const char *root) {
    const char *text = "";
    struct pollfd ready = {d->conn.fd, POLLOUT, 0};
    esp__addr a;
    int error;
    if (esp__addr_resolve(root, &a, 1, &text) < 1) return EINVAL;
    if (d->conn.fd < 0) {
        d->since_ns = esp__now_ns();
        error = esp__connect(&a, &d->conn.fd);
    } else if (poll(&ready, 1, 0) == 0) {
        error = esp__now_ns() - d->since_ns < ESP__REGROUP_CONNECT_NS ? EINPROGRESS : ETIMEDOUT;
    } else {
        error = esp__connected(&a, d->conn.fd);
    }
    if (error) return error;
    errno = 0;
    if (!esp__socket_peer(d->conn.fd, &d->conn.pidfd)) return errno ? errno : EPERM;
    /* If that process has ended, one of its children has inherited the socket, and will not answer. */
    return d->conn.pidfd < 0 && errno == ESRCH ? ECONNREFUSED : 0;
}

/* Tries to connect to rank `to` of the job before the loss. Call it again while it returns ESP__REACH_TRYING. */
static int esp__reach_try(esp__group *m, int32_t to) {
    esp__reach *d = &m->reach[to];
    char root[ESP__ROOT_MAX];
    while (!d->open) {
        if (!esp__standby_root(m->at, m->at->members[to], d->root, root))
            return d->refused == d->root ? ESP__REACH_GONE : ESP__REACH_UNKNOWN;
        const int error = esp__reach_step(d, root);
        d->open = !error;
        if (error == EINPROGRESS) return ESP__REACH_TRYING;
        if (error && error != EAGAIN) d->root++, d->refused += error == ECONNREFUSED;
        if (error) esp__reach_close(m->old->ctx, d);
        if (error == EAGAIN) return ESP__REACH_TRYING; /* the rank has not yet accepted earlier connections */
    }
    return ESP__REACH_OPEN;
}

/* Like esp__conn_read, but returns -1 also if the process has ended, as a child of it may keep the socket open. */
static int esp__group_read(esp_ctx *ctx, esp__conn *c, uint64_t limit) {
    struct pollfd ended = {c->pidfd, POLLIN, 0};
    const bool dead = c->pidfd >= 0 && poll(&ended, 1, 0) > 0; /* checked first, so that all that it wrote is read */
    const int rc = esp__conn_read(ctx, c, limit);
    return rc == 0 && dead ? -1 : rc;
}

static bool esp__group_excluded(esp__group *m) {
    pthread_mutex_lock(&m->old->lock);
    const bool excluded = m->old->excluded;
    pthread_mutex_unlock(&m->old->lock);
    return excluded;
}

static esp_status esp__group_exclude(const esp__group *m) {
    return esp__fail(m->old->ctx, ESP_E_PEER,
                     "the other ranks excluded rank %d, because its connection failed or it did not answer in time: "
                     "close this context, and start the job again to take part",
                     (int)m->old->rank);
}

static void esp__group_poll_add(esp__group *m, const esp__conn *c, bool connecting) {
    if (c->fd < 0) return;
    m->polls[m->n_polls++] = (struct pollfd){c->fd, (short)(connecting ? POLLOUT : POLLIN), 0};
    m->polls[m->n_polls++] = (struct pollfd){c->pidfd, POLLIN, 0};
}

static esp_status esp__group_peers(const esp__group *m, int32_t rank, int32_t size, esp__peers **out) {
    const esp_config cfg = {.timeout_ms = m->old->timeout_ms};
    const esp__where w = {.rank = rank, .size = size};
    *out = esp__peers_new(m->old->ctx, &cfg, &w, &m->old->ev);
    if (!*out) return esp__fail(m->old->ctx, ESP_E_NOMEM, "no memory to connect %d ranks", (int)size);
    snprintf((*out)->where, sizeof(*out)->where, "%s", m->old->where);
    return ESP_OK;
}

static int32_t esp__group_find(const esp__group *m, int32_t origin) {
    for (int32_t i = 0; i < m->at->n; i++)
        if (m->at->members[i] == origin) return i;
    return -1;
}

/* Returns how long a host waits for the others if `silent` ranks below it do not answer. A rank that does not know this
 * yet connects to each of them first, and waits there until the timeout. */
static uint64_t esp__group_wait_ns(const esp__group *m, int32_t silent) {
    return ((uint64_t)silent + 1) * (m->old->timeout_ms + ESP__REGROUP_MARGIN_MS) * 1000000u;
}

/* ---- ranks that connect to the host, which becomes rank 0 ---- */
static esp_status esp__rejoin_members(esp__group *m, esp__conn *c, esp__survivors *out) {
    const uint64_t n = c->head.bytes / sizeof *out->who;
    const bool fits = n <= (uint64_t)m->at->n && n * sizeof *out->who == c->head.bytes;
    out->n = fits ? (int32_t)n : 0;
    out->rank = -1;
    out->epoch = (uint32_t)c->head.tag;
    if (out->n) memcpy(out->who, c->body, c->head.bytes);
    for (int32_t i = 0; i < out->n; i++) {
        out->was[i] = esp__group_find(m, out->who[i].origin);
        if (out->was[i] == m->old->rank) out->rank = i;
        if (out->was[i] < 0 || (i && out->was[i] <= out->was[i - 1])) out->n = 0;
    }
    esp__conn_next(m->old->ctx, c);
    if (!out->n || out->rank < 1)
        return esp__fail(m->old->ctx, ESP_E_COMM, "the ranks that are left sent a malformed list of members");
    const esp_status s = esp__group_peers(m, out->rank, out->n, &out->peers);
    if (s) return s;
    out->peers->conns[0] = *c;
    out->peers->conns[0].rank = 0;
    esp__conn_init(c, -1, -1);
    return ESP_OK;
}

static esp_status esp__rejoin_message(esp__group *m, esp__joining *j, int32_t to, esp__survivors *out) {
    const int before = j->stage;
    esp_status s = esp__join_message(&m->me, j);
    if (s == ESP_OK && j->conn->head.type == ESP__MSG_MEMBERS) return esp__rejoin_members(m, j->conn, out);
    if (s == ESP_OK) s = j->conn->head.type == ESP__MSG_EXCLUDED ? esp__group_exclude(m) : ESP_PENDING;
    if (before == 1 && j->stage == 2)
        m->deadline_ns = esp__now_ns() + esp__group_wait_ns(m, to) + ESP__REGROUP_CONNECT_NS;
    if (s < 0 && j->stage < 2)
        m->state[to] = ESP__MEMBER_SILENT, s = ESP_PENDING; /* that rank does not lead a regroup */
    esp__conn_next(m->old->ctx, j->conn);
    return s;
}

/* Connects to old rank `to` and waits for its list of the ranks that are left. Returns ESP_PENDING if that rank has
 * ended or does not answer, and then sets m->state[to]. */
static esp_status esp__rejoin_at(esp__group *m, int32_t to, esp__survivors *out) {
    esp_ctx *ctx = m->old->ctx;
    esp__reach *d = &m->reach[to];
    esp__joining j = {0};
    m->deadline_ns = esp__now_ns() + m->old->timeout_ms * 1000000ull;
    for (;;) {
        const int reach = esp__reach_try(m, to);
        if (reach == ESP__REACH_GONE) m->state[to] = ESP__MEMBER_GONE;
        if (reach == ESP__REACH_UNKNOWN || esp__now_ns() >= m->deadline_ns) m->state[to] = ESP__MEMBER_SILENT;
        if (reach == ESP__REACH_OPEN && !j.conn) esp__join_begin(&m->me, &j, &d->conn, 0);
        const int rc = reach == ESP__REACH_OPEN ? esp__group_read(ctx, &d->conn, 1u << 24) : 0;
        if (rc < 0) m->state[to] = ESP__MEMBER_GONE;
        const esp_status s = esp__group_excluded(m) ? esp__group_exclude(m)
                             : rc > 0               ? esp__rejoin_message(m, &j, to, out)
                                                    : ESP_PENDING;
        if (s != ESP_PENDING) return s;
        if (m->state[to] != ESP__MEMBER_AWAITED) return ESP_PENDING;
        m->n_polls = 0;
        esp__group_poll_add(m, &d->conn, !d->open);
        if (rc == 0) poll(m->polls, m->n_polls, ESP__REGROUP_TICK_MS);
    }
}

/* ---- the host ---- */
static bool esp__host_admit(esp__group *m, esp__candidate *c) {
    const int32_t member = esp__group_find(m, c->response.survivor.origin);
    if (member <= m->old->rank || m->state[member] == ESP__MEMBER_HERE) {
        /* the joining rank was excluded before, or is a lower rank that this one believed to be gone */
        esp__conn_send(m->old->ctx, &c->conn, (esp__msg){ESP__MSG_EXCLUDED, 0, 0, 0, 0}, NULL, 0);
        return false;
    }
    c->member = member;
    m->state[member] = ESP__MEMBER_HERE;
    return true;
}

static void esp__host_read(esp__group *m) {
    esp_ctx *ctx = m->old->ctx;
    for (int32_t i = m->lobby.n - 1; i >= 0; i--) { /* backwards, because the last candidate replaces a dropped one */
        esp__candidate *c = &m->lobby.candidates[i];
        const bool came = c->member >= 0;
        int unused;
        if (came && esp__group_read(ctx, &c->conn, 0) == 0) continue;
        if (!came && esp__candidate_read(&m->me, 0, c, ESP_OK, &unused) == ESP_OK &&
            (c->proven ? esp__host_admit(m, c) : esp__now_ns() - c->since_ns < ESP__REGROUP_CONNECT_NS))
            continue;
        if (came) {
            m->state[c->member] = ESP__MEMBER_AWAITED;
            m->reach[c->member].root = m->reach[c->member].refused = 0;
            esp__reach_close(ctx, &m->reach[c->member]);
        }
        esp__lobby_drop(ctx, &m->lobby, c, -1);
    }
}

static int32_t esp__host_await(esp__group *m) {
    int32_t awaited = 0;
    for (int32_t i = 0; i < m->at->n; i++) {
        if (m->state[i] != ESP__MEMBER_AWAITED) continue;
        esp__conn *c = &m->reach[i].conn;
        const int reach = esp__reach_try(m, i);
        const int rc = reach == ESP__REACH_OPEN ? esp__group_read(m->old->ctx, c, 65536) : 0;
        if (rc > 0 && c->head.type == ESP__MSG_EXCLUDED) return -1;
        if (reach == ESP__REACH_GONE || rc < 0) m->state[i] = ESP__MEMBER_GONE;
        if (reach == ESP__REACH_UNKNOWN || rc > 0) m->state[i] = ESP__MEMBER_SILENT;
        awaited += m->state[i] == ESP__MEMBER_AWAITED;
    }
    return esp__group_excluded(m) ? -1 : awaited;
}

static esp_status esp__host_refuse(esp__group *m, esp_status s) {
    const char *text = esp_last_error(NULL);
    for (int32_t i = 0; i < m->lobby.n; i++)
        esp__conn_send(m->old->ctx, &m->lobby.candidates[i].conn, (esp__msg){ESP__MSG_REFUSE, s, 0, 0, 0}, text,
                       strlen(text) + 1);
    return s;
}

/* Fails if too few ranks have come to continue without the missing ones. */
static esp_status esp__host_check(const esp__group *m) {
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

static esp_status esp__host_decide(esp__group *m, esp__survivors *out) {
    esp_ctx *ctx = m->old->ctx;
    esp_status s = esp__host_check(m);
    uint32_t epoch = m->me.survivor.epoch;
    out->n = out->rank = 0;
    for (int32_t i = 0; i < m->at->n && !s; i++) {
        if (m->state[i] != ESP__MEMBER_HERE) continue;
        out->who[out->n] = m->me.survivor;
        for (int32_t k = 0; k < m->lobby.n; k++)
            if (m->lobby.candidates[k].member == i) out->who[out->n] = m->lobby.candidates[k].response.survivor;
        if (out->who[out->n].epoch > epoch) epoch = out->who[out->n].epoch;
        out->was[out->n++] = i;
    }
    out->epoch = epoch + 1;
    if (!s) s = esp__group_peers(m, 0, out->n, &out->peers);
    if (s) return esp__host_refuse(m, s);
    for (int32_t k = 0; k < m->lobby.n; k++) {
        int32_t r = 1;
        while (r < out->n && out->was[r] != m->lobby.candidates[k].member) r++;
        if (r == out->n) continue;
        esp__conn *c = &out->peers->conns[r];
        *c = m->lobby.candidates[k].conn;
        c->rank = r;
        esp__conn_init(&m->lobby.candidates[k].conn, -1, -1);
        esp__conn_send(ctx, c, (esp__msg){ESP__MSG_MEMBERS, r, out->epoch, 0, 0}, out->who,
                       (uint64_t)out->n * sizeof *out->who);
    }
    return ESP_OK;
}

static esp_status esp__host_run(esp__group *m, esp__survivors *out) {
    int32_t silent = 0;
    for (int32_t i = 0; i < m->old->rank; i++) silent += m->state[i] == ESP__MEMBER_SILENT;
    m->deadline_ns = esp__now_ns() + esp__group_wait_ns(m, silent);
    for (;;) {
        esp__lobby_accept(m->old->ctx, &m->lobby);
        esp__host_read(m);
        const int32_t awaited = esp__host_await(m);
        if (awaited < 0) return esp__host_refuse(m, esp__group_exclude(m));
        if (!awaited || esp__now_ns() >= m->deadline_ns) return esp__host_decide(m, out);
        m->polls[0] = (struct pollfd){m->at->fd, POLLIN, 0};
        m->n_polls = 1;
        for (int32_t i = 0; i < m->lobby.n; i++) esp__group_poll_add(m, &m->lobby.candidates[i].conn, false);
        for (int32_t i = 0; i < m->at->n; i++)
            if (m->state[i] == ESP__MEMBER_AWAITED) esp__group_poll_add(m, &m->reach[i].conn, !m->reach[i].open);
        poll(m->polls, m->n_polls, ESP__REGROUP_TICK_MS);
    }
}

/* ---- all ranks ---- */
ESP__FN esp_status esp__regroup(esp__standby *s, esp__peers *old, const esp__survivor *mine, int32_t silent,
                                esp__survivors *out) {
    esp_ctx *ctx = old->ctx;
    const uint64_t n = (uint64_t)s->n;
    esp__group m = {.at = s, .old = old};
    m.me = (esp__peers){.ctx = ctx, .rank = s->members[old->rank], .size = s->n, .survivor = *mine};
    m.me.survivor.origin = m.me.rank;
    m.me.survivor.epoch = s->epoch;
    snprintf(m.me.where, sizeof m.me.where, "%s", old->where);
    snprintf(m.me.secret, sizeof m.me.secret, "%016llx", (unsigned long long)s->number);
    out->peers = NULL;
    m.state = esp__alloc(ctx, n);
    m.reach = esp__alloc(ctx, n * sizeof *m.reach);
    for (int32_t i = 0; m.reach && i < s->n; i++) esp__conn_init(&m.reach[i].conn, -1, -1);
    const int lobby = esp__lobby_open(ctx, &m.lobby, s->fd, s->n);
    m.polls = esp__alloc(ctx, (1 + 2 * (n + (uint64_t)m.lobby.most)) * sizeof *m.polls);
    const bool room = m.state && m.reach && m.polls && lobby;
    esp_status st = room ? ESP_PENDING : esp__fail(ctx, ESP_E_NOMEM, "no memory to meet %d ranks", (int)s->n);
    if (room) m.state[old->rank] = ESP__MEMBER_HERE;
    if (room && silent >= 0 && silent < s->n && silent != old->rank) m.state[silent] = ESP__MEMBER_SILENT;
    for (int32_t to = 0; to < old->rank && st == ESP_PENDING; to++)
        if (m.state[to] == ESP__MEMBER_AWAITED) st = esp__rejoin_at(&m, to, out);
    if (st == ESP_PENDING) st = esp__host_run(&m, out);
    for (int32_t i = 0; m.reach && i < s->n; i++) esp__conn_free(ctx, &m.reach[i].conn);
    esp__lobby_close(ctx, &m.lobby);
    esp__free(ctx, m.state);
    esp__free(ctx, m.reach);
    esp__free(ctx, m.polls);
    return st;
}

ESP__FN void esp__regroup_adopt(esp__standby *s, esp__peers *old, const esp__survivors *now) {
    for (int32_t i = 0; i < now->n; i++) s->members[i] = now->who[i].origin;
    s->n = now->n;
    s->epoch = now->epoch;
    if (old->has_thread) {
        pthread_mutex_lock(&old->lock);
        old->closing = true;
        for (int32_t i = 0; i < old->n_conns; i++) {
            bool stays = false;
            for (int32_t k = 0; k < now->n; k++) stays |= now->was[k] == old->conns[i].rank;
            if (!stays) esp__send(old, i, (esp__msg){ESP__MSG_EXCLUDED, 0, 0, 0, 0});
        }
        pthread_mutex_unlock(&old->lock);
    }
    esp__peers_drop(old);
}

ESP__FN esp_status esp__peers_watch(esp__peers *p) { return p->size > 1 ? esp__watch_start(p) : ESP_OK; }
