/* join.c: ranks join a running job. From the first esp_reconfigure on, rank 0 listens at an address that a rank which
 * joins knows. This rank proves itself as at the start of a job (rendezvous.c), and sends a description of its tensors
 * and options. The kernel keeps all that until rank 0 reads it, in esp_reconfigure. Rank 0 refuses a rank whose
 * description differs from its own. Then all ranks meet and get new connections. The old ones stay until that has
 * succeeded, so that a joining rank that dies meanwhile does no harm.
 *
 *     joining rank                                  rank 0
 *     HELLO, RESPONSE                        <->    CHALLENGE, PROOF
 *     DESCRIBE  tensors and options          ->
 *                                            <-     ADMIT     its rank, the strategy, or REFUSE
 *                                            <-     WELCOME   when all ranks are here */
#include "espresso_impl/base/limits.h"
#include "espresso_impl/job/peers.h"
#include <errno.h>
#include <unistd.h>

enum {
    ESP__JOIN_FAILED = 3,     /* attempts to listen before a warning */
    ESP__JOIN_PART = 1 << 20, /* bytes of a message with a part of the state */
    ESP__JOIN_BODY = 1 << 26  /* most bytes of a description or a strategy */
};
/* How long rank 0 waits for an answer of a rank that has connected. A slow rank connects again. */
#define ESP__JOIN_ANSWER_NS 2000000000u
/* Stands for the job's number, which a rank that joins does not know. */
#define ESP__JOIN_JOB 0x4e494f4a50534531ull

struct esp__joins {
    esp__lobby lobby; /* a candidate whose `member` is 0 or more is to be admitted */
    esp__peers me;    /* only for the handshake */
    int32_t n;
    uint32_t failed; /* attempts to listen */
};

/* ---- rank 0 ---- */
ESP__FN void esp__joins_close(esp_ctx *ctx, esp__joins *j) {
    if (!j) return;
    esp__lobby_close(ctx, &j->lobby);
    esp__socket_close(&j->lobby.listen_fd);
    esp__free(ctx, j);
}

/* If another process listens there, tries again at the next call: it may be a former rank 0, which is ending. */
static esp_status esp__joins_open(esp_ctx *ctx, const esp__where *w, esp__joins **out) {
    const char *error = "";
    esp__joins *j = *out;
    if (!*w->join) return ESP_OK; /* without an address, no rank can join */
    if (!j) {
        j = esp__alloc(ctx, sizeof *j);
        if (!j || !esp__lobby_open(ctx, &j->lobby, -1, 0)) {
            esp__free(ctx, j);
            return esp__fail(ctx, ESP_E_NOMEM, "esp_reconfigure: out of memory");
        }
        j->me.ctx = ctx;
        snprintf(j->me.where, sizeof j->me.where, "%s", w->join);
        snprintf(j->me.secret, sizeof j->me.secret, "%s", w->secret ? w->secret : "");
        *out = j;
    }
    if (j->lobby.listen_fd >= 0) return ESP_OK;
    j->lobby.listen_fd = esp__listen(w->join, &error);
    if (j->lobby.listen_fd < 0 && j->failed++ == ESP__JOIN_FAILED)
        esp__log(ctx, ESP_LOG_WARN, "join",
                 "rank 0 cannot listen at %s for ranks that join: %s. Give each context an address of its own in "
                 "esp_config.root",
                 w->join, error);
    return ESP_OK;
}

static void esp__joins_refuse(esp_ctx *ctx, esp__conn *c, esp_status s) {
    const char *text = esp_last_error(ctx);
    esp__conn_send(ctx, c, (esp__msg){ESP__MSG_REFUSE, s, 0, 0, 0}, text, strlen(text) + 1);
    esp__log(ctx, ESP_LOG_WARN, "join", "refused a rank that wanted to join: %s", text);
}

static bool esp__line_differs(const char *a, const char *b, int *a_length, int *b_length) {
    *a_length = (int)strcspn(a, "\n");
    *b_length = (int)strcspn(b, "\n");
    return *a_length != *b_length || memcmp(a, b, (size_t)*a_length);
}

/* Compares descriptions line by line, and refuses the candidate at the first difference. */
static bool esp__joins_same(esp_ctx *ctx, esp__conn *c, const char *mine) {
    c->body[c->head.bytes - 1] = 0;
    const char *theirs = (const char *)c->body;
    int m, t;
    while (!esp__line_differs(mine, theirs, &m, &t) && *mine) {
        mine += m + (mine[m] == '\n');
        theirs += t + (theirs[t] == '\n');
    }
    if (!*mine && !*theirs) return true;
    esp__fail(ctx, ESP_E_MISMATCH,
              "a rank that joins must have the job's tensors and options: the job has '%.*s', the rank has '%.*s'",
              *mine && m < 400 ? m : 400, *mine ? mine : "no more tensors", *theirs && t < 400 ? t : 400,
              *theirs ? theirs : "no more tensors");
    esp__joins_refuse(ctx, c, ESP_E_MISMATCH);
    return false;
}

/* Reads what a candidate has sent. Returns false to drop it. */
static bool esp__joins_read(esp_ctx *ctx, esp__joins *j, esp__candidate *c, const char *description) {
    int why;
    if (!c->proven && esp__candidate_read(&j->me, ESP__JOIN_JOB, c, ESP_OK, &why)) {
        if (!c->greeted || c->response.job || memcmp(c->response.magic, ESP__MEET_MAGIC, 8)) return false;
        esp__fail(ctx, ESP_E_STATE, "the job at %s runs already: a rank that joins it needs ESP_JOIN", j->me.where);
        esp__joins_refuse(ctx, &c->conn, ESP_E_STATE);
        return false;
    }
    if (!c->proven) return true;
    const int rc = esp__conn_read(ctx, &c->conn, ESP__JOIN_BODY);
    if (rc == 0) return true;
    if (rc < 0 || c->member >= 0 || c->conn.head.type != ESP__MSG_DESCRIBE || !c->conn.head.bytes) return false;
    if (!esp__joins_same(ctx, &c->conn, description)) return false;
    esp__conn_next(ctx, &c->conn);
    c->member = j->n++;
    return true;
}

ESP__FN esp_status esp__joins_collect(esp_ctx *ctx, const esp__where *w, const char *description, esp__joins **joins) {
    esp_status s = esp__joins_open(ctx, w, joins);
    esp__joins *j = *joins;
    if (s || !j) return s;
    j->n = 0;
    if (j->lobby.listen_fd < 0) return ESP_OK;
    for (int32_t i = j->lobby.n - 1; i >= 0; i--) esp__lobby_drop(ctx, &j->lobby, &j->lobby.candidates[i], -1);
    for (bool waits = true; waits;) {
        struct pollfd polls[2 * ESP__CANDIDATES];
        nfds_t n = 0;
        esp__lobby_accept(ctx, &j->lobby);
        waits = false;
        for (int32_t i = j->lobby.n - 1; i >= 0; i--) { /* backwards, because the last one replaces a dropped one */
            esp__candidate *c = &j->lobby.candidates[i];
            const bool late = c->member < 0 && esp__now_ns() - c->since_ns > ESP__JOIN_ANSWER_NS;
            if (late || !esp__joins_read(ctx, j, c, description)) {
                esp__lobby_drop(ctx, &j->lobby, c, -1);
                continue;
            }
            if (c->member < 0) polls[n++] = (struct pollfd){c->conn.fd, POLLIN, 0}, waits = true;
        }
        if (waits) poll(polls, n, 10);
    }
    j->n = 0; /* an admitted one may have gone again */
    for (int32_t i = 0; i < j->lobby.n; i++) j->lobby.candidates[i].member = j->n++;
    return ESP_OK;
}

/* What rank 0 sends to the old ranks. */
typedef struct esp__join_plan {
    int32_t n;
    esp_status failed;
    esp__invitation inv;
} esp__join_plan;

/* Moves the connections of the joining ranks to `p`, and admits them. */
static void esp__joins_admit(esp__joins *j, esp__peers *p, int32_t first, const esp__admission *offer,
                             const char *text) {
    for (int32_t i = 0; i < j->lobby.n; i++) {
        const int32_t r = first + i;
        esp__admission a = *offer;
        a.rank = r;
        a.size = p->size;
        p->conns[r] = j->lobby.candidates[i].conn;
        p->conns[r].rank = r;
        esp__conn_send2(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_ADMIT, r, 0, 0, 0}, &a, sizeof a, text,
                        strlen(text) + 1);
    }
    j->lobby.n = 0;
}

ESP__FN esp_status esp__joins_meet(esp__joins *joins, esp_status mine, esp__peers *old, bool one_host,
                                   const esp__admission *offer, const char *text, int32_t *n, esp__peers **peers) {
    esp_ctx *ctx = old->ctx;
    const esp_config cfg = {.timeout_ms = old->timeout_ms};
    esp__join_plan plan, *all = esp__alloc(ctx, (uint64_t)old->size * sizeof plan);
    esp__peers *p = NULL;
    int fd = -1;
    memset(&plan, 0, sizeof plan);
    *n = 0;
    *peers = NULL;
    if (!mine && !all) mine = esp__fail(ctx, ESP_E_NOMEM, "esp_reconfigure: out of memory");
    plan.n = old->rank == 0 && joins && !mine ? joins->n : 0;
    if (plan.n) p = esp__peers_new(ctx, &cfg, &(esp__where){.rank = 0, .size = old->size + plan.n}, &old->ev);
    if (plan.n && !p) mine = esp__fail(ctx, ESP_E_NOMEM, "esp_reconfigure: out of memory");
    if (p && old->size > 1) fd = esp__invite(p, &plan.inv, one_host);
    if (p && old->size > 1 && fd < 0) mine = esp__fail(ctx, ESP_E_COMM, "%.255s", plan.inv.roots.at[0]);
    plan.failed = mine;
    esp_status s = all ? esp__peers_allgather(old, NULL, old->size, &plan, all, sizeof plan) : mine;
    if (!s && (s = mine ? mine : all[0].failed) != ESP_OK && !mine)
        esp__fail(ctx, s, "esp_reconfigure: rank 0 failed (%s): see its own error", esp_status_text(s));
    if (!s) *n = all[0].n;
    if (!s && *n && old->rank) {
        all[0].inv.secret[sizeof all[0].inv.secret - 1] = 0;
        const esp__where w = {.rank = old->rank, .size = old->size + *n, .secret = all[0].inv.secret};
        p = esp__peers_new(ctx, &cfg, &w, &old->ev);
    }
    if (p) p->before = old;
    if (p) snprintf(p->where, sizeof p->where, "%s", old->where);
    esp_status met = !s && *n ? p ? ESP_OK : ESP_E_NOMEM : ESP_PENDING;
    if (!met && old->rank == 0) {
        esp__joins_admit(joins, p, old->size, offer, text);
        met = esp__meet_host(p, fd, plan.inv.job);
        fd = -1;
    } else if (!met) {
        met = esp__meet_join(p, &all[0].inv.roots, all[0].inv.job);
    }
    esp__socket_close(&fd);
    if (p) {
        p->before = NULL;
        esp__wipe(p->secret, sizeof p->secret);
    }
    if (p && met) esp__peers_drop(p), p = NULL;
    esp__wipe(&plan.inv, sizeof plan.inv);
    if (all) esp__wipe(all, (uint64_t)old->size * sizeof plan);
    esp__free(ctx, all);
    *peers = p;
    return s;
}

/* ---- a rank that joins ---- */
typedef struct esp__joiner {
    esp__peers me; /* for the handshake */
    esp__conn conn;
    esp__joining j;
    bool described;
    esp__peers *peers; /* after ADMIT */
} esp__joiner;

/* Handles a message of rank 0. Returns ESP_OK at the end. */
static esp_status esp__joiner_message(esp__joiner *x, const char *description, esp__admission *out, char **text) {
    esp_ctx *ctx = x->me.ctx;
    esp__conn *c = x->peers ? &x->peers->conns[0] : &x->conn;
    x->j.conn = c;
    esp_status s = esp__join_message(&x->me, &x->j);
    if (s == ESP_OK && c->head.type == ESP__MSG_ADMIT && !x->peers && c->head.bytes > sizeof *out) {
        memcpy(out, c->body, sizeof *out);
        c->body[c->head.bytes - 1] = 0;
        *text = esp__strdup(ctx, (const char *)c->body + sizeof *out);
        const esp_config cfg = {.timeout_ms = x->me.timeout_ms};
        const esp__where w = {.rank = out->rank, .size = out->size};
        if (out->rank < 1 || out->size <= out->rank)
            return esp__fail(ctx, ESP_E_COMM, "what answers at %s sent a malformed message", x->me.where);
        x->peers = esp__peers_new(ctx, &cfg, &w, &x->me.ev);
        if (!x->peers || !*text) return esp__fail(ctx, ESP_E_NOMEM, "no memory to join %d ranks", (int)out->size);
        snprintf(x->peers->where, sizeof x->peers->where, "%s", x->me.where);
        esp__conn_next(ctx, c);
        x->peers->conns[0] = *c;
        x->peers->conns[0].rank = 0;
        esp__conn_init(c, -1, -1);
        return ESP_PENDING;
    }
    if (s == ESP_OK && c->head.type != ESP__MSG_WELCOME)
        s = esp__fail(ctx, ESP_E_COMM, "what answers at %s is not espresso %s", x->me.where, ESPRESSO_VERSION);
    esp__conn_next(ctx, c);
    if (s == ESP_PENDING && x->j.stage == 2 && !x->described) {
        esp__conn_send(ctx, c, (esp__msg){ESP__MSG_DESCRIBE, 0, 0, 0, 0}, description, strlen(description) + 1);
        x->described = true;
    }
    return s;
}

/* Returns ESP_PENDING if the connection has ended, so that another attempt may succeed. */
static esp_status esp__joiner_run(esp__joiner *x, int fd, const char *description, uint64_t deadline_ns,
                                  esp__admission *out, char **text) {
    esp_ctx *ctx = x->me.ctx;
    int pidfd;
    if (!esp__socket_peer(fd, &pidfd))
        return close(fd), esp__fail(ctx, ESP_E_COMM, "%s belongs to another user", x->me.where);
    esp__conn_init(&x->conn, fd, 0);
    x->conn.pidfd = pidfd;
    x->described = false;
    esp__join_begin(&x->me, &x->j, &x->conn, ESP__JOIN_JOB);
    for (;;) {
        esp__conn *c = x->peers ? &x->peers->conns[0] : &x->conn;
        struct pollfd polls[2] = {{c->fd, (short)(POLLIN | (c->out.len ? POLLOUT : 0)), 0}, {c->pidfd, POLLIN, 0}};
        const bool ended = poll(&polls[1], 1, 0) > 0;
        if (c->out.len) esp__conn_flush(c);
        const int rc = esp__conn_read(ctx, c, ESP__JOIN_BODY);
        if (c->no_memory) return esp__fail(ctx, ESP_E_NOMEM, "no memory to join the job at %s", x->me.where);
        if (rc < 0 || (rc == 0 && (ended || esp__now_ns() >= deadline_ns))) return ESP_PENDING;
        if (rc == 0) poll(polls, 2, esp__poll_ms(deadline_ns));
        if (rc == 0) continue;
        const esp_status s = esp__joiner_message(x, description, out, text);
        /* another rank has died while the ranks were meeting */
        if (s == ESP_E_PEER || s == ESP_E_TIMEOUT) return ESP_PENDING;
        if (s != ESP_PENDING) return s;
    }
}

ESP__FN esp_status esp__join_job(esp_ctx *ctx, const esp_config *cfg, const esp__where *w, const char *description,
                                 uint64_t deadline_ns, const esp__peers_events *ev, esp__admission *out, char **text,
                                 esp__peers **peers) {
    esp__joiner *x = esp__alloc(ctx, sizeof *x);
    const char *error = "";
    esp_status s = x ? ESP_PENDING : esp__fail(ctx, ESP_E_NOMEM, "out of memory");
    *text = NULL;
    *peers = NULL;
    if (x) {
        x->me = (esp__peers){.ctx = ctx, .rank = -1, .timeout_ms = cfg->timeout_ms, .ev = *ev};
        snprintf(x->me.where, sizeof x->me.where, "%s", w->join);
        snprintf(x->me.secret, sizeof x->me.secret, "%s", w->secret ? w->secret : "");
        esp__conn_init(&x->conn, -1, -1);
    }
    while (s == ESP_PENDING) {
        esp__addr addrs[4];
        const int n = esp__addr_resolve(w->join, addrs, 4, &error);
        for (int i = 0; i < n && s == ESP_PENDING; i++) {
            const int fd = esp__join_connect(&addrs[i], deadline_ns);
            if (fd < 0) error = esp__strerror(errno);
            if (fd >= 0) {
                error = "the job did not call esp_reconfigure";
                s = esp__joiner_run(x, fd, description, deadline_ns, out, text);
            }
            esp__conn_free(ctx, &x->conn);
            if (s) esp__peers_drop(x->peers), x->peers = NULL;
            if (s) esp__free(ctx, *text), *text = NULL;
        }
        if (s == ESP_PENDING && esp__now_ns() >= deadline_ns)
            s = esp__fail(ctx, ESP_E_TIMEOUT,
                          "waited %u ms at %s for a job to take in this rank: %s. Does the job run, with this address, "
                          "and does it call esp_reconfigure?",
                          (unsigned)cfg->timeout_ms, w->join, error);
        if (s == ESP_PENDING) poll(NULL, 0, 20);
    }
    if (x) *peers = x->peers;
    if (x) esp__wipe(x->me.secret, sizeof x->me.secret);
    esp__free(ctx, x);
    return s;
}

/* ---- anchors and momenta, from a member to a rank that has joined ---- */
/* Sends the parts that a rank has not got yet. Returns false if it has all, or has gone. c->member counts parts. */
static bool esp__state_send(esp_ctx *ctx, esp__candidate *c, const uint8_t *data, uint64_t bytes) {
    while (!c->conn.out.len && (uint64_t)c->member * ESP__JOIN_PART < bytes) {
        const uint64_t at = (uint64_t)c->member++ * ESP__JOIN_PART, left = bytes - at;
        esp__conn_send(ctx, &c->conn, (esp__msg){ESP__MSG_STATE, 0, 0, at, 0}, data + at,
                       left < ESP__JOIN_PART ? left : ESP__JOIN_PART);
    }
    if (c->conn.out.len) esp__conn_flush(&c->conn);
    return !c->conn.broken && esp__conn_read(ctx, &c->conn, 0) == 0; /* it closes when it has all */
}

ESP__FN esp_status esp__standby_put(esp_ctx *ctx, const esp__standby *s, int32_t n, const void *data, uint64_t bytes,
                                    uint32_t timeout_ms, bool (*over)(esp_ctx *ctx)) {
    const uint64_t deadline = esp__now_ns() + timeout_ms * 1000000ull;
    struct pollfd polls[2 * ESP__CANDIDATES];
    esp__lobby lobby = {0};
    esp__peers me;
    const int fd = esp__standby_me(ctx, s, &me);
    if (!esp__lobby_open(ctx, &lobby, fd, 0)) return esp__fail(ctx, ESP_E_NOMEM, "no memory for ranks that join");
    while (n > 0 && esp__now_ns() < deadline && !over(ctx)) {
        nfds_t k = 1;
        polls[0] = (struct pollfd){fd, POLLIN, 0};
        esp__lobby_accept(ctx, &lobby);
        for (int32_t i = lobby.n - 1; i >= 0; i--) { /* backwards, because the last one replaces a dropped one */
            esp__candidate *c = &lobby.candidates[i];
            int why;
            bool stays = c->proven || !esp__candidate_read(&me, 0, c, ESP_OK, &why);
            if (stays && c->proven && c->member < 0) c->member = 0;
            if (stays && c->proven) stays = esp__state_send(ctx, c, data, bytes);
            if (!stays) n -= c->proven, esp__lobby_drop(ctx, &lobby, c, -1);
        }
        for (int32_t i = 0; i < lobby.n; i++, k++)
            polls[k] = (struct pollfd){lobby.candidates[i].conn.fd,
                                       (short)(POLLIN | (lobby.candidates[i].conn.out.len ? POLLOUT : 0)), 0};
        if (n > 0) poll(polls, k, 50);
    }
    esp__lobby_close(ctx, &lobby);
    return ESP_OK;
}

static esp_status esp__state_get(esp_ctx *ctx, esp__peers *me, esp__conn *c, uint8_t *data, uint64_t bytes,
                                 uint64_t deadline, bool (*over)(esp_ctx *ctx)) {
    esp__joining j = {0};
    uint64_t got = 0;
    esp__join_begin(me, &j, c, 0);
    while (got < bytes) {
        struct pollfd ready = {c->fd, POLLIN, 0};
        const int rc = esp__conn_read(ctx, c, ESP__JOIN_PART);
        if (rc < 0 || (rc == 0 && (esp__now_ns() >= deadline || over(ctx)))) return ESP_PENDING;
        if (rc == 0) poll(&ready, 1, 50);
        if (rc == 0) continue;
        const esp_status s = esp__join_message(me, &j);
        if (s == ESP_OK && (c->head.type != ESP__MSG_STATE || c->head.seq != got || c->head.bytes > bytes - got))
            return ESP_PENDING;
        if (s == ESP_OK) memcpy(data + got, c->body, c->head.bytes), got += c->head.bytes;
        esp__conn_next(ctx, c);
        if (s < 0) return s;
    }
    return ESP_OK;
}

ESP__FN esp_status esp__standby_get(esp_ctx *ctx, const esp__standby *s, int32_t from, void *data, uint64_t bytes,
                                    uint32_t timeout_ms, bool (*over)(esp_ctx *ctx)) {
    const uint64_t deadline = esp__now_ns() + timeout_ms * 1000000ull;
    char root[ESP__ROOT_MAX];
    esp__peers me;
    esp__standby_me(ctx, s, &me);
    for (int32_t i = 0; esp__standby_root(s, from, i, root); i++) {
        const char *error;
        esp__addr a;
        esp__conn c;
        const int fd = esp__addr_resolve(root, &a, 1, &error) == 1 ? esp__join_connect(&a, deadline) : -1;
        int pidfd;
        if (fd < 0) continue;
        esp__conn_init(&c, fd, 0);
        esp_status st = esp__socket_peer(fd, &pidfd) ? ESP_OK : ESP_PENDING;
        c.pidfd = pidfd;
        if (!st) st = esp__state_get(ctx, &me, &c, data, bytes, deadline, over);
        esp__conn_free(ctx, &c);
        if (st != ESP_PENDING) return st;
    }
    return esp__fail(ctx, ESP_E_PEER,
                     "rank %d, which should send anchors and momenta to this rank, was lost or is silent", (int)from);
}
