/* rendezvous.c: ranks meet at a socket of rank 0, and prove to each other that they know the job's secret. Both ends
 * send a random number, and then a code that only a process with the secret can compute from both numbers
 * (HMAC-SHA256). Rank 0 checks the code before it believes anything else. The code is useless in another meeting, and
 * in the other direction.
 *
 *     joining rank                                    rank 0
 *     HELLO      version                       ->
 *                                              <-     CHALLENGE  its random number
 *     RESPONSE   rank, size, number, code      ->
 *                                              <-     PROOF      its code
 *                                              <-     WELCOME    when all ranks are here
 *
 * A job without a secret does the same with an empty one, which proves nothing. Nothing is encrypted
 * (docs/use/security.md). A connection whose other end has not proven itself is a candidate; rank 0 limits the number
 * of candidates, the bytes that they send and the time that they take. */
#include "espresso_impl/base/limits.h"
#include "espresso_impl/base/machine.h"
#include "espresso_impl/job/peers.h"
#include <errno.h>
#include <unistd.h>

enum {
    ESP__CANDIDATE_MS = 10000, /* a candidate must prove itself within this time */
    ESP__FULL_MS = 300,        /* rank 0 fails if it has no free descriptor for so long */
    ESP__MEET_WAKE_NS = 200000000
};
/* Reasons for refused connections. Those up to "of another user" are logged as warnings, because the other end may be a
 * rank of this job with wrong settings. */
static const char *const esp__refused_texts[ESP__REFUSALS] = {"with another ESPRESSO_SECRET",
                                                              "without ESPRESSO_SECRET, which rank 0 has",
                                                              "with ESPRESSO_SECRET, which rank 0 lacks",
                                                              "of another version of espresso",
                                                              "of another user",
                                                              "that are no ranks of this job",
                                                              "that did not prove themselves in 10 s",
                                                              "to make room for others"};
static const char *const esp__secret_errors[] = {
    "ESPRESSO_SECRET differs from rank 0's. Set the same on all ranks (or do two jobs meet there?)",
    "rank 0 has an ESPRESSO_SECRET, and this process has none. Set the same on all ranks",
    "rank 0 has no ESPRESSO_SECRET, and this process has one. Set the same on all ranks, or on none"};

/* Replaces control characters in a text from another process, which could disturb the terminal. */
static void esp__printable(char *text, size_t cap) {
    text[cap - 1] = 0;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

/* If the ranks of a job meet again: has one of them died meanwhile? */
static esp_status esp__meet_lost(esp__peers *p) {
    if (!p->before) return ESP_OK;
    pthread_mutex_lock(&p->before->lock);
    const int32_t dead = p->before->dead;
    pthread_mutex_unlock(&p->before->lock);
    return dead < 0 ? ESP_OK : esp__fail(p->ctx, ESP_E_PEER, "rank %d died while the ranks were meeting", (int)dead);
}

/* ---- rank 0 ---- */
typedef struct esp__meeting {
    esp__lobby lobby;
    int32_t n_here;
    uint64_t full_ns;
    int32_t full_here;
    uint64_t job, deadline_ns, logged[ESP__REFUSALS];
    struct pollfd *polls;
} esp__meeting;

/* Sends this thread's error text to `candidate` or, if that is NULL, to all ranks that have joined. Returns `s`. */
static esp_status esp__meet_refuse(esp__peers *p, esp__conn *candidate, esp_status s) {
    const char *text = esp_last_error(NULL);
    esp__msg m = {ESP__MSG_REFUSE, s, 0, 0, 0};
    if (candidate) esp__conn_send(p->ctx, candidate, m, text, strlen(text) + 1);
    for (int32_t r = 1; !candidate && r < p->size; r++) esp__conn_send(p->ctx, &p->conns[r], m, text, strlen(text) + 1);
    return s;
}

/* Writes a text such as " Refused connections: 2 with another ESPRESSO_SECRET, 1 of another user", or "". */
static void esp__meet_refused(const esp__lobby *l, char *out, size_t cap) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < ESP__REFUSALS; i++)
        if (l->refused[i] && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%llu %s",
                                   at ? ", " : " Refused connections: ", (unsigned long long)l->refused[i],
                                   esp__refused_texts[i]);
}

/* Logs a refusal for each reason once, and again whenever the number of refusals for it has doubled. */
static void esp__meet_log(const esp__peers *p, esp__meeting *meet) {
    for (int i = 0; i < ESP__REFUSALS; i++) {
        const uint64_t n = meet->lobby.refused[i];
        if (n == 0 || n < 2 * meet->logged[i]) continue;
        meet->logged[i] = n;
        esp__log(p->ctx, i <= ESP__REFUSED_USER ? ESP_LOG_WARN : ESP_LOG_INFO, "peers",
                 "%s: refused %llu connection%s %s so far", p->where, (unsigned long long)n, n > 1 ? "s" : "",
                 esp__refused_texts[i]);
    }
}

/* Handles HELLO, a candidate's first message. Returns ESP_PENDING if rank 0 must refuse the candidate (*why is the
 * reason). A rank with another version over a Unix socket is an error for the whole job, because it is a process of the
 * same user. */
static esp_status esp__candidate_hello(esp__peers *p, esp__candidate *cand, esp_status failed, int *why) {
    esp__conn *c = &cand->conn;
    esp__hello *hello = &cand->hello, own;
    if (c->head.type != ESP__MSG_HELLO || c->head.bytes != sizeof *hello) return ESP_PENDING;
    memcpy(hello, c->body, sizeof *hello);
    if (memcmp(hello->magic, ESP__HELLO_MAGIC, sizeof hello->magic) != 0) return ESP_PENDING;
    if (failed) return esp__meet_refuse(p, c, failed);
    esp__hello_make(p, 0, &own);
    if (strncmp(hello->version, own.version, sizeof own.version) != 0) {
        esp__printable(hello->version, sizeof hello->version);
        *why = ESP__REFUSED_VERSION;
        char who[32] = "a rank that joins";
        if (hello->rank >= 0) snprintf(who, sizeof who, "rank %d", (int)hello->rank);
        esp__fail(p->ctx, ESP_E_MISMATCH, "%s runs espresso %s, rank 0 runs %s: install one version everywhere", who,
                  hello->version, own.version);
        esp__meet_refuse(p, c, ESP_E_MISMATCH);
        return strncmp(p->where, "unix:", 5) ? ESP_PENDING : ESP_E_MISMATCH;
    }
    if (!esp__challenge_make(p, &cand->challenge))
        return esp__fail(p->ctx, ESP_E_COMM, "rank 0 cannot challenge the ranks: no random numbers");
    esp__conn_next(p->ctx, c);
    cand->greeted = true;
    esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_CHALLENGE, 0, 0, 0, 0}, &cand->challenge, sizeof cand->challenge);
    return ESP_OK;
}

static esp_status esp__candidate_response(esp__peers *p, uint64_t job, esp__candidate *cand, int *why) {
    esp__conn *c = &cand->conn;
    esp__proof proof;
    esp__response *resp = &cand->response;
    if (c->head.type != ESP__MSG_RESPONSE || c->head.bytes != sizeof *resp) return ESP_PENDING;
    memcpy(resp, c->body, sizeof *resp);
    if (!esp__code_check(p, 0, &cand->hello, &cand->challenge, resp, resp->code)) {
        const bool with = resp->secured != 0, here = p->secret[0] != 0;
        if (memcmp(resp->magic, ESP__MEET_MAGIC, sizeof resp->magic) != 0) return ESP_PENDING;
        *why = with == here ? ESP__REFUSED_OTHER_SECRET : with ? ESP__REFUSED_HAS_SECRET : ESP__REFUSED_NO_SECRET;
        esp__fail(p->ctx, ESP_E_MISMATCH, "rank 0 at %s refused this process: %s", p->where, esp__secret_errors[*why]);
        esp__meet_refuse(p, c, ESP_E_MISMATCH);
        return ESP_PENDING;
    }
    if (resp->job != job) return ESP_PENDING;
    esp__code(p->secret, 1, &cand->hello, &cand->challenge, resp, proof.code);
    esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_PROOF, 0, 0, 0, 0}, &proof, sizeof proof);
    esp__conn_next(p->ctx, c);
    cand->proven = true;
    return ESP_OK;
}

ESP__FN esp_status esp__candidate_read(esp__peers *p, uint64_t job, esp__candidate *cand, esp_status failed, int *why) {
    esp_status s = ESP_OK;
    int rc = 0;
    *why = ESP__REFUSED_UNKNOWN;
    while (s == ESP_OK && !cand->proven && (rc = esp__conn_read(p->ctx, &cand->conn, sizeof(esp__response))) == 1) {
        if (failed && cand->greeted)
            s = esp__meet_refuse(p, &cand->conn, failed);
        else
            s = cand->greeted ? esp__candidate_response(p, job, cand, why) : esp__candidate_hello(p, cand, failed, why);
    }
    return s == ESP_OK && rc < 0 ? ESP_PENDING : s;
}

static esp_status esp__meet_admit(esp__peers *p, esp__meeting *meet, esp__candidate *cand) {
    const esp__response *resp = &cand->response;
    if (resp->size != p->size)
        return esp__fail(p->ctx, ESP_E_MISMATCH, "rank %d was started in a job of %d ranks, rank 0 in a job of %d",
                         (int)resp->rank, (int)resp->size, (int)p->size);
    if (resp->rank < 0 || resp->rank >= p->size)
        return esp__fail(p->ctx, ESP_E_MISMATCH, "a process joined as rank %d of %d", (int)resp->rank, (int)p->size);
    if (resp->rank == 0 || p->conns[resp->rank].fd >= 0)
        return esp__fail(p->ctx, ESP_E_MISMATCH, "two processes joined as rank %d of %d: do two jobs meet at %s?",
                         (int)resp->rank, (int)p->size, p->where);
    cand->conn.rank = resp->rank;
    p->conns[resp->rank] = cand->conn;
    esp__conn_init(&cand->conn, -1, -1);
    meet->n_here++;
    return ESP_OK;
}

static esp_status esp__meet_read(esp__peers *p, esp__meeting *meet, esp__candidate *cand, esp_status failed) {
    int why;
    esp_status s = esp__candidate_read(p, meet->job, cand, failed, &why);
    if (s == ESP_OK && cand->proven) s = esp__meet_admit(p, meet, cand);
    if (s < 0 && !failed) {
        esp__meet_refuse(p, &cand->conn, s);
        esp__meet_refuse(p, NULL, s);
    }
    const bool silent = esp__now_ns() - cand->since_ns > ESP__CANDIDATE_MS * 1000000ull,
               gone = s < 0 || cand->conn.fd < 0;
    if (s || gone || silent)
        esp__lobby_drop(p->ctx, &meet->lobby, cand, gone ? -1 : s == ESP_PENDING ? why : ESP__REFUSED_SILENT);
    return failed || s == ESP_PENDING ? ESP_OK : s;
}

/* Accepts connections. If the process has no file descriptor left, drops a candidate. */
static esp_status esp__meet_accept(esp__peers *p, esp__meeting *meet) {
    const uint64_t now = esp__now_ns();
    const int full = esp__lobby_accept(p->ctx, &meet->lobby);
    if (!full) return ESP_OK;
    if (!meet->full_ns || meet->n_here > meet->full_here) meet->full_ns = now, meet->full_here = meet->n_here;
    if (meet->lobby.n && now - meet->full_ns < ESP__FULL_MS * 1000000ull) {
        esp__lobby_drop(p->ctx, &meet->lobby, esp__lobby_first_to_go(&meet->lobby), ESP__REFUSED_DISPLACED);
        return ESP_OK;
    }
    esp__fail(p->ctx, ESP_E_COMM, "rank 0 cannot take connections of %d ranks: %s", (int)p->size, esp__strerror(full));
    return esp__meet_refuse(p, NULL, ESP_E_COMM);
}

static esp_status esp__meet_check_joined(esp__peers *p, const struct pollfd *polls) {
    for (int32_t r = 1; r < p->size; r++) {
        esp__conn *c = &p->conns[r];
        if (c->fd < 0 || polls[r].fd != c->fd || !polls[r].revents || esp__conn_read(p->ctx, c, 0) == 0) continue;
        esp__socket_close(&c->fd);
        esp__fail(p->ctx, ESP_E_PEER, "rank %d died while the ranks were meeting", (int)r);
        return esp__meet_refuse(p, NULL, ESP_E_PEER);
    }
    return ESP_OK;
}

static esp_status esp__meet_round(esp__peers *p, esp__meeting *meet, uint64_t wake_ns, esp_status failed) {
    esp__lobby *l = &meet->lobby;
    struct pollfd *ranks = meet->polls, *news = ranks + p->size;
    const uint64_t room_ns = esp__lobby_room_ns(l);
    esp_status s = ESP_OK;
    ranks[0] = (struct pollfd){room_ns ? -1 : l->listen_fd, POLLIN, 0};
    for (int32_t r = 1; r < p->size; r++) ranks[r] = (struct pollfd){p->conns[r].fd, POLLIN, 0};
    for (int32_t i = 0; i < l->n; i++) news[i] = (struct pollfd){l->candidates[i].conn.fd, POLLIN, 0};
    if (room_ns && room_ns < wake_ns) wake_ns = room_ns;
    if (poll(ranks, (nfds_t)(p->size + l->n), esp__poll_ms(wake_ns)) < 0) return ESP_OK;
    /* backwards, because the last candidate replaces a removed one */
    for (int32_t i = l->n - 1; i >= 0 && s == ESP_OK; i--)
        if (news[i].revents || esp__now_ns() - l->candidates[i].since_ns > ESP__CANDIDATE_MS * 1000000ull)
            s = esp__meet_read(p, meet, &l->candidates[i], failed);
    if (s == ESP_OK && !failed) s = esp__meet_check_joined(p, ranks);
    if (s == ESP_OK && ranks[0].revents) s = esp__meet_accept(p, meet);
    esp__meet_log(p, meet);
    return failed ? ESP_OK : s;
}

static esp_status esp__meet_missing(esp__peers *p, const esp__meeting *meet) {
    char list[160] = "", refused[400];
    size_t at = 0;
    int32_t listed = 0, missing = p->size - meet->n_here;
    for (int32_t r = 1; r < p->size && listed < 8; r++)
        if (p->conns[r].fd < 0)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%d", listed++ ? ", " : "", (int)r);
    if (missing > listed) snprintf(list + at, sizeof list - at, " and %d more", (int)(missing - listed));
    esp__meet_refused(&meet->lobby, refused, sizeof refused);
    esp__fail(p->ctx, ESP_E_TIMEOUT,
              "waited %u ms at %s for all %d ranks: missing %s %s. Did they start, and with the same meeting point?%s",
              (unsigned)p->timeout_ms, p->where, (int)p->size, missing == 1 ? "rank" : "ranks", list, refused);
    return esp__meet_refuse(p, NULL, ESP_E_TIMEOUT);
}

static esp_status esp__meet_all(esp__peers *p, esp__meeting *meet) {
    esp_status s = ESP_OK;
    meet->n_here = 1;
    for (int32_t r = 1; r < p->size; r++) meet->n_here += p->conns[r].fd >= 0;
    while (s == ESP_OK && meet->n_here < p->size) {
        const uint64_t wake = esp__now_ns() + ESP__MEET_WAKE_NS;
        if (esp__now_ns() >= meet->deadline_ns) return esp__meet_missing(p, meet);
        s = esp__meet_round(p, meet, wake < meet->deadline_ns ? wake : meet->deadline_ns, ESP_OK);
        if (s == ESP_OK && (s = esp__meet_lost(p)) != ESP_OK) esp__meet_refuse(p, NULL, s);
    }
    if (s == ESP_OK) return s;
    /* sends the error to ranks that connect in the next 500 ms, which would otherwise wait for their whole timeout */
    for (int32_t r = 1; r < p->size; r++) esp__socket_close(&p->conns[r].fd);
    for (const uint64_t until = esp__now_ns() + 500000000u; esp__now_ns() < until;) esp__meet_round(p, meet, until, s);
    return s;
}

ESP__FN esp_status esp__meet_host(esp__peers *p, int listen_fd, uint64_t job) {
    esp__meeting meet = {.job = job, .deadline_ns = esp__now_ns() + p->timeout_ms * 1000000ull};
    char refused[400];
    const int room = esp__lobby_open(p->ctx, &meet.lobby, listen_fd, p->size);
    meet.polls = (struct pollfd *)esp__alloc(p->ctx, sizeof *meet.polls * (uint64_t)(p->size + meet.lobby.most));
    esp_status s =
        room && meet.polls ? esp__meet_all(p, &meet) : esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks");
    esp__meet_refused(&meet.lobby, refused, sizeof refused);
    if (s == ESP_OK && refused[0]) esp__log(p->ctx, ESP_LOG_INFO, "peers", "all ranks have met.%s", refused);
    esp__lobby_close(p->ctx, &meet.lobby);
    esp__free(p->ctx, meet.polls);
    /* closes first, because a rank that connects after WELCOME belongs to another context's meeting */
    close(listen_fd);
    if (s == ESP_OK) esp__send_all(p, (esp__msg){ESP__MSG_WELCOME, 0, 0, 0, 0});
    return s;
}

/* ---- joining, on other ranks ---- */
ESP__FN int esp__join_connect(const esp__addr *a, uint64_t deadline_ns) {
    const uint64_t limit = esp__now_ns() + 3000000000u;
    int fd, error = esp__connect(a, &fd);
    if (error == EINPROGRESS) {
        struct pollfd ready = {fd, POLLOUT, 0};
        const int n = poll(&ready, 1, esp__poll_ms(limit < deadline_ns ? limit : deadline_ns));
        error = n == 1 ? esp__connected(a, fd) : ETIMEDOUT;
    }
    if (error) esp__socket_close(&fd);
    errno = error;
    return fd;
}

static esp_status esp__join_refused(esp__peers *p, esp__conn *c) {
    const bool known = !strncmp(esp_status_name(c->head.rank), "ESP_E_", 6);
    if (c->head.bytes == 0) return esp__fail(p->ctx, ESP_E_COMM, "rank 0 at %s refused this process", p->where);
    esp__printable((char *)c->body, c->head.bytes);
    return esp__fail(p->ctx, known ? c->head.rank : ESP_E_COMM, "%s", (char *)c->body);
}

ESP__FN void esp__join_begin(const esp__peers *p, esp__joining *j, esp__conn *c, uint64_t job) {
    j->conn = c;
    j->stage = 0;
    esp__hello_make(p, job, &j->hello);
    esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_HELLO, p->rank, 0, 0, 0}, &j->hello, sizeof j->hello);
}

ESP__FN esp_status esp__join_message(esp__peers *p, esp__joining *j) {
    esp__conn *c = j->conn;
    const esp__msg *m = &c->head;
    esp__proof proof;
    if (m->type == ESP__MSG_REFUSE && m->rank < 0) return esp__join_refused(p, c);
    if (j->stage == 2) return ESP_OK;
    if (j->stage == 0 && m->type == ESP__MSG_CHALLENGE && m->bytes == sizeof j->challenge) {
        memcpy(&j->challenge, c->body, sizeof j->challenge);
        if (memcmp(j->challenge.magic, ESP__MEET_MAGIC, sizeof j->challenge.magic) == 0) {
            if (!esp__response_make(p, &j->hello, &j->challenge, &j->response))
                return esp__fail(p->ctx, ESP_E_COMM, "rank %d cannot join: no random numbers", (int)p->rank);
            esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_RESPONSE, p->rank, 0, 0, 0}, &j->response,
                           sizeof j->response);
            j->stage = 1;
            return ESP_PENDING;
        }
    }
    if (j->stage == 1 && m->type == ESP__MSG_PROOF && m->bytes == sizeof proof) {
        memcpy(&proof, c->body, sizeof proof);
        if (!esp__code_check(p, 1, &j->hello, &j->challenge, &j->response, proof.code))
            return esp__fail(p->ctx, ESP_E_MISMATCH,
                             "what answers at %s does not know this job's ESPRESSO_SECRET, so it is not rank 0 of it",
                             p->where);
        j->stage = 2;
        return ESP_PENDING;
    }
    return esp__fail(p->ctx, ESP_E_COMM, "what answers at %s is not espresso %s", p->where, ESPRESSO_VERSION);
}

/* Proves this rank to what listens at an address. Returns ESP_PENDING to try another address: the connection has ended
 * or, if `unsure`, the other end has not proven that it is rank 0. */
static esp_status esp__join_greet(esp__peers *p, esp__joining *j, bool unsure, uint64_t job) {
    /* rank 0's timeout ends earlier, so its error message, which names the missing ranks, arrives in time */
    const uint64_t deadline = esp__now_ns() + (p->timeout_ms + 1000ull) * 1000000u;
    esp__conn *c = &p->conns[0];
    esp__join_begin(p, j, c, job);
    for (;;) {
        struct pollfd ready = {c->fd, POLLIN, 0};
        const int rc = esp__conn_read(p->ctx, c, ESP__ERROR_MAX);
        if (c->no_memory) return esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet the ranks at %s", p->where);
        if (rc < 0) return ESP_PENDING;
        if (rc == 0 && esp__now_ns() >= deadline)
            return esp__fail(p->ctx, ESP_E_TIMEOUT,
                             "rank %d reached %s, but received nothing for %u ms: is that rank 0 of this job?",
                             (int)p->rank, p->where, (unsigned)p->timeout_ms + 1000u);
        if (rc == 0 && p->before) {
            const esp_status lost = esp__meet_lost(p);
            if (lost) return lost;
        }
        if (rc == 0) poll(&ready, 1, esp__poll_ms(p->before ? esp__now_ns() + ESP__MEET_WAKE_NS : deadline));
        if (rc == 0) continue;
        esp_status s = esp__join_message(p, j);
        if (s == ESP_OK && c->head.type != ESP__MSG_WELCOME)
            s = esp__fail(p->ctx, ESP_E_COMM, "what answers at %s is not espresso %s", p->where, ESPRESSO_VERSION);
        esp__conn_next(p->ctx, c);
        if (s < 0 && j->stage < 2 && unsure) return ESP_PENDING;
        if (s != ESP_PENDING) return s;
    }
}

/* Tries one address. Returns ESP_PENDING if rank 0 is not there, because of *error. */
static esp_status esp__join_at(esp__peers *p, const esp__addr *a, bool unsure, uint64_t job, uint64_t deadline,
                               const char **error) {
    esp__joining j = {0};
    int fd = esp__join_connect(a, deadline), pidfd;
    *error = esp__strerror(errno);
    if (fd < 0) return ESP_PENDING;
    esp__conn_init(&p->conns[0], fd, 0);
    esp_status s = ESP_PENDING;
    if (esp__socket_peer(fd, &pidfd)) {
        p->conns[0].pidfd = pidfd;
        s = esp__join_greet(p, &j, unsure, job);
        *error = j.stage == 0 ? "it closed the connection" : "it is not rank 0 of this job";
    } else {
        *error = "it belongs to another user";
    }
    if (s) esp__conn_free(p->ctx, &p->conns[0]);
    return s;
}

/* Tries one address after another, and pauses longer each time, until rank 0 sends WELCOME. */
ESP__FN esp_status esp__meet_join(esp__peers *p, const esp__roots *roots, uint64_t job) {
    const uint64_t deadline = esp__now_ns() + p->timeout_ms * 1000000ull;
    const char *error = "";
    uint64_t pause_us = 500;
    for (int32_t turn = 0;; turn++) {
        esp__addr addrs[4];
        if (roots) snprintf(p->where, sizeof p->where, "%s", roots->at[turn % roots->n]);
        const int n = esp__addr_resolve(p->where, addrs, 4, &error);
        for (int i = 0; i < n; i++) {
            const esp_status s = esp__join_at(p, &addrs[i], roots && roots->n > 1, job, deadline, &error);
            if (s != ESP_PENDING) return s;
        }
        const esp_status lost = esp__meet_lost(p);
        if (lost) return lost;
        if (esp__now_ns() >= deadline)
            return esp__fail(
                p->ctx, ESP_E_TIMEOUT,
                "rank %d waited %u ms for rank 0 at %s: %s. Did rank 0 start, with the same meeting point?",
                (int)p->rank, (unsigned)p->timeout_ms, p->where, error);
        poll(NULL, 0, (int)(pause_us / 1000));
        if (pause_us < 50000) pause_us *= 2;
    }
}

/* ---- meeting through the program's allgather (esp_config.oob_allgather), which needs no address ---- */
/* What each rank sends first. Only ranks in one network namespace can meet at an abstract Unix name. */
typedef struct esp__attendance {
    int32_t rank, size;
    uint64_t network;
} esp__attendance;

ESP__FN uint64_t esp__random64(void) {
    uint64_t v = 0;
    if (esp__random_bytes(&v, sizeof v) != 0) {
        uint64_t seed[3] = {esp__now_ns(), (uint64_t)getpid(), (uint64_t)(uintptr_t)&v};
        v = esp__hash64(ESP__HASH0, seed, sizeof seed);
    }
    return v ? v : 1;
}

ESP__FN uint64_t esp__network_id(void) {
    char boot[64] = "", net[48] = "";
    esp__boot_id(boot);
    if (readlink("/proc/self/ns/net", net, sizeof net - 1) < 0) net[0] = 0;
    if (!boot[0]) gethostname(boot, sizeof boot - 1);
    return esp__hash64(esp__hash64(ESP__HASH0, boot, strlen(boot)), net, strlen(net));
}

/* If the user set no secret, makes a random one, for the message to all ranks (`inv`). Returns 0 or an errno. */
static int esp__secret_make(esp__peers *p, esp__invitation *inv) {
    uint8_t bytes[ESP__SECRET_MADE];
    const int error = p->secret[0] ? 0 : esp__random_bytes(bytes, sizeof bytes);
    if (p->secret[0] || error) return error;
    esp__hex(bytes, sizeof bytes, inv->secret);
    snprintf(p->secret, sizeof p->secret, "%s", inv->secret);
    esp__wipe(bytes, sizeof bytes);
    return 0;
}

ESP__FN int esp__invite(esp__peers *p, esp__invitation *inv, bool one_host) {
    const char *error = "no random numbers for a secret";
    char name[ESP__ROOT_MAX];
    int fd = -1;
    inv->job = esp__random64();
    snprintf(name, sizeof name, "unix:espresso-%u-%016llx", (unsigned)getuid(), (unsigned long long)esp__random64());
    if (!esp__secret_make(p, inv)) fd = esp__listen_roots(one_host ? name : NULL, &inv->roots, &error);
    if (fd < 0) {
        inv->roots.n = 0;
        snprintf(inv->roots.at[0], sizeof inv->roots.at, "rank 0 cannot listen: %s", error);
    }
    return fd;
}

static esp_status esp__oob_call(esp__peers *p, const esp_config *cfg, const void *in, void *out, uint64_t bytes) {
    const esp_status s = cfg->oob_allgather(cfg->oob_user, in, out, bytes);
    if (s == ESP_OK) return s;
    return esp__fail(p->ctx, s < 0 ? s : ESP_E_COMM, "esp_config.oob_allgather failed with %s", esp_status_name(s));
}

static esp_status esp__meet_by_oob(esp__peers *p, const esp_config *cfg) {
    const uint64_t bytes = sizeof(esp__invitation) * (uint64_t)p->size;
    const esp__attendance me = {p->rank, p->size, esp__network_id()};
    esp__invitation mine, *all = (esp__invitation *)esp__alloc(p->ctx, bytes);
    const esp__attendance *here = (const esp__attendance *)(const void *)all;
    bool one_host = true;
    int fd = -1;
    if (!all) return esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet %d ranks", (int)p->size);
    esp_status s = esp__oob_call(p, cfg, &me, all, sizeof me);
    for (int32_t r = 0; s == ESP_OK && r < p->size; r++) {
        if (here[r].rank != r || here[r].size != p->size)
            s = esp__fail(p->ctx, ESP_E_MISMATCH, "the rank at place %d of esp_config.oob_allgather is rank %d of %d",
                          (int)r, (int)here[r].rank, (int)here[r].size);
        one_host = one_host && here[r].network == here[0].network;
    }
    memset(&mine, 0, sizeof mine);
    if (s == ESP_OK && p->rank == 0) fd = esp__invite(p, &mine, one_host);
    if (s == ESP_OK) s = esp__oob_call(p, cfg, &mine, all, sizeof mine);
    esp__roots *roots = &all[0].roots;
    for (int i = 0; i < ESP__ROOTS && s == ESP_OK && roots->n > 0; i++) roots->at[i][ESP__ROOT_MAX - 1] = 0;
    if (s == ESP_OK && roots->n <= 0) s = esp__fail(p->ctx, ESP_E_COMM, "%.255s", roots->at[0]);
    if (s == ESP_OK && p->rank == 0) {
        snprintf(p->where, sizeof p->where, "%s", mine.roots.at[0]);
        s = esp__meet_host(p, fd, mine.job);
        fd = -1;
    } else if (s == ESP_OK) {
        if (roots->n > ESP__ROOTS) roots->n = 1;
        all[0].secret[sizeof all[0].secret - 1] = 0;
        if (!p->secret[0]) snprintf(p->secret, sizeof p->secret, "%s", all[0].secret);
        s = esp__meet_join(p, roots, all[0].job);
    }
    esp__socket_close(&fd);
    esp__wipe(mine.secret, sizeof mine.secret);
    esp__wipe(all, bytes);
    esp__free(p->ctx, all);
    return s;
}

static esp_status esp__meet(esp__peers *p, const esp_config *cfg, const esp__where *w) {
    const char *error = "";
    if (cfg && cfg->oob_allgather) return esp__meet_by_oob(p, cfg);
    snprintf(p->where, sizeof p->where, "%s", w->root);
    if (p->rank != 0) return esp__meet_join(p, NULL, 0);
    const int fd = esp__listen(w->root, &error);
    if (fd < 0) return esp__fail(p->ctx, ESP_E_COMM, "rank 0 cannot listen at %s: %s", w->root, error);
    if (!p->secret[0] && esp__open_to_all(fd))
        esp__log(p->ctx, ESP_LOG_WARN, "peers",
                 "this job has no secret: whoever reaches %s may join it. Set ESPRESSO_SECRET to the same %d random "
                 "characters or more on all ranks, as from `head -c 24 /dev/urandom | base64`",
                 w->root, (int)ESP__SECRET_MIN);
    return esp__meet_host(p, fd, 0);
}

/* ---- making and freeing a rank's connections ---- */
ESP__FN void esp__peers_free(esp__peers *p) {
    esp_ctx *ctx = p->ctx;
    for (int32_t i = 0; i < p->n_conns; i++) esp__conn_free(ctx, &p->conns[i]);
    esp__free(ctx, p->conns);
    esp__free(ctx, p->polls);
    esp__free(ctx, p->left);
    esp__free(ctx, p->leaving);
    esp__free(ctx, p->asked);
    for (esp__exchange *x = p->exchanges, *next; x; x = next) {
        next = x->next;
        esp__exchange_free(p, x);
    }
    esp__bytes_free(ctx, &p->tags);
    esp__socket_close(&p->wake_fd);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    esp__wipe(p->secret, sizeof p->secret);
    esp__free(ctx, p);
}

ESP__FN esp__peers *esp__peers_new(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev) {
    esp__peers *p = (esp__peers *)esp__alloc(ctx, sizeof *p);
    if (!p) return NULL;
    p->ctx = ctx;
    if (ev) p->ev = *ev;
    p->rank = w->rank;
    p->size = w->size;
    p->timeout_ms = cfg && cfg->timeout_ms ? cfg->timeout_ms : 300000;
    snprintf(p->secret, sizeof p->secret, "%s", w->secret ? w->secret : "");
    p->pid = (long)getpid();
    p->wake_fd = -1;
    p->dead = -1;
    pthread_mutex_init(&p->lock, NULL);
    esp__cond_init(&p->changed);
    if (p->size == 1) return p;
    const int32_t n = p->rank == 0 ? p->size : 1;
    p->conns = (esp__conn *)esp__alloc(ctx, sizeof *p->conns * (uint64_t)n);
    p->asked = (esp__rank_state *)esp__alloc(ctx, sizeof *p->asked * (uint64_t)n);
    p->left = (uint8_t *)esp__alloc(ctx, (uint64_t)p->size);
    p->polls = (struct pollfd *)esp__alloc(ctx, esp__watch_polls_bytes(p));
    p->leaving = (int32_t *)esp__alloc(ctx, sizeof *p->leaving * (uint64_t)n);
    p->leaving_cause = UINT64_MAX; /* no rank has left */
    p->first_left = -1;
    if (!p->conns || !p->asked || !p->left || !p->polls || !p->leaving) {
        esp__peers_free(p);
        return NULL;
    }
    p->n_conns = n;
    for (int32_t i = 0; i < n; i++) esp__conn_init(&p->conns[i], -1, i);
    return p;
}

ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out) {
    esp__peers *p = esp__peers_new(ctx, cfg, w, ev);
    esp_status s = ESP_OK;
    *out = NULL;
    if (!p) return esp__fail(ctx, ESP_E_NOMEM, "no memory to connect %d ranks", (int)w->size);
    if (p->size > 1) {
        s = esp__meet(p, cfg, w);
        esp__wipe(p->secret, sizeof p->secret);
        if (s == ESP_OK) s = esp__watch_start(p);
    }
    if (s == ESP_OK)
        *out = p;
    else
        esp__peers_free(p);
    return s;
}
