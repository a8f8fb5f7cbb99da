/* socket.c: addresses, sockets, and messages over them. No call blocks: if a socket does not take all bytes at once,
 * the rest stays in the connection's buffer, and the watch thread sends it. */
#include "espresso_impl/base/limits.h"
#include "espresso_impl/job/peers.h"
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

ESP__FN bool esp__bytes_add(esp_ctx *ctx, esp__bytes *b, const void *data, uint64_t n) {
    uint8_t *grown = esp__grow(ctx, b->data, &b->cap, b->len + n);
    if (n && !grown) return false;
    if (grown) b->data = grown;
    if (n) memcpy(b->data + b->len, data, n);
    b->len += n;
    return true;
}

ESP__FN void esp__bytes_free(esp_ctx *ctx, esp__bytes *b) {
    esp__free(ctx, b->data);
    memset(b, 0, sizeof *b);
}

/* ---- addresses: "unix:NAME" is an abstract name, which leaves nothing on the disk; others are "HOST:PORT" ---- */
static int esp__addr_unix(const char *name, esp__addr *out) {
    struct sockaddr_un *un = (struct sockaddr_un *)&out->sa;
    size_t n = strlen(name);
    memset(out, 0, sizeof *out);
    if (n + 1 > sizeof un->sun_path) return 0;
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path + 1, name, n); /* a name that begins with a zero byte is abstract */
    out->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    return 1;
}

ESP__FN int esp__addr_resolve(const char *root, esp__addr *out, int cap, const char **error) {
    char host[ESP__SPEC_MAX];
    const char *colon = strrchr(root, ':');
    struct addrinfo hints, *list = NULL;
    int n = 0, rc;
    *error = "its form is not HOST:PORT or unix:NAME";
    if (!strncmp(root, "unix:", 5)) return esp__addr_unix(root + 5, out);
    if (!colon || colon == root || (size_t)(colon - root) >= sizeof host) return 0;
    memcpy(host, root, (size_t)(colon - root));
    host[colon - root] = 0;
    if (host[0] == '[' && colon[-1] == ']') {
        memmove(host, host + 1, strlen(host));
        host[strlen(host) - 1] = 0;
    }
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    rc = getaddrinfo(host, colon + 1, &hints, &list);
    /* a small system may lack /etc/hosts, but "localhost" is always the loopback address (RFC 6761) */
    if (rc != 0 && !strcmp(host, "localhost")) rc = getaddrinfo("127.0.0.1", colon + 1, &hints, &list);
    if (rc != 0) *error = gai_strerror(rc);
    for (struct addrinfo *a = list; rc == 0 && a && n < cap; a = a->ai_next) {
        if (a->ai_addrlen > sizeof out[n].sa) continue;
        memset(&out[n], 0, sizeof out[n]);
        memcpy(&out[n].sa, a->ai_addr, a->ai_addrlen);
        out[n++].len = a->ai_addrlen;
    }
    if (list) freeaddrinfo(list);
    return n;
}

static uint16_t esp__addr_port(const esp__addr *a) {
    if (a->sa.ss_family == AF_INET) return ntohs(((const struct sockaddr_in *)&a->sa)->sin_port);
    if (a->sa.ss_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)&a->sa)->sin6_port);
    return 0;
}

/* ---- sockets ---- */
static int esp__socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

ESP__FN void esp__socket_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Sends small messages at once (no Nagle), and sets keepalive, so that a vanished host is noticed within 20 s. */
static void esp__socket_tune(int fd, int family) {
    int one = 1, idle = 5, interval = 5, count = 3, timeout_ms = 20000;
    if (family == AF_UNIX) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

static int esp__listen_at(const esp__addr *a) {
    int fd = esp__socket(a->sa.ss_family), one = 1, zero = 0, saved;
    if (fd < 0) return -1;
    if (a->sa.ss_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->sa.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, (const struct sockaddr *)&a->sa, a->len) == 0 && listen(fd, 1024) == 0) return fd;
    saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static int esp__listen_any(uint16_t port) {
    esp__addr a;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a.sa;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&a.sa;
    int fd;
    memset(&a, 0, sizeof a);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    a.len = sizeof *v6;
    fd = esp__listen_at(&a);
    if (fd >= 0 || errno == EADDRINUSE) return fd;
    memset(&a, 0, sizeof a);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    a.len = sizeof *v4;
    return esp__listen_at(&a);
}

/* For a host name, listens at all addresses of this host: /etc/hosts may map the name to a loopback address, and DNS
 * may not know it yet. "localhost" and loopback addresses listen only there. */
ESP__FN int esp__listen(const char *root, const char **error) {
    esp__addr a[1];
    const char *colon = strrchr(root, ':');
    const bool only_here = !strncmp(root, "unix:", 5) || !strncmp(root, "localhost:", 10) ||
                           !strncmp(root, "127.", 4) || !strncmp(root, "[::1]:", 6);
    if (only_here && !esp__addr_resolve(root, a, 1, error)) return -1;
    const int fd = only_here ? esp__listen_at(a) : esp__listen_any((uint16_t)strtol(colon ? colon + 1 : "0", NULL, 10));
    if (fd < 0) *error = errno == EADDRINUSE ? "the address is in use (by another job?)" : esp__strerror(errno);
    return fd;
}

static void esp__own_addresses(int port, esp__roots *roots) {
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list) != 0) return;
    for (int loopback = 0; loopback < 2; loopback++) {
        for (struct ifaddrs *a = list; a && roots->n < ESP__ROOTS; a = a->ifa_next) {
            char host[64];
            int family = a->ifa_addr ? a->ifa_addr->sa_family : 0;
            socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            if ((family != AF_INET && family != AF_INET6) || !(a->ifa_flags & IFF_UP) ||
                !(a->ifa_flags & IFF_LOOPBACK) != !loopback ||
                getnameinfo(a->ifa_addr, len, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0 ||
                strlen(host) > ESP__ROOT_MAX - 9 || strchr(host, '%'))
                continue;
            snprintf(roots->at[roots->n++], ESP__ROOT_MAX, family == AF_INET ? "%s:%d" : "[%s]:%d", host, port);
        }
    }
    freeifaddrs(list);
}

ESP__FN int esp__listen_roots(const char *name, esp__roots *roots, const char **error) {
    esp__addr bound;
    int fd;
    memset(roots, 0, sizeof *roots);
    memset(&bound, 0, sizeof bound);
    bound.len = sizeof bound.sa;
    if (name) {
        snprintf(roots->at[0], ESP__ROOT_MAX, "%s", name);
        fd = esp__listen(name, error);
        roots->n = fd >= 0;
        return fd;
    }
    fd = esp__listen_any(0);
    *error = fd < 0 ? esp__strerror(errno) : "it has no address that others could reach";
    if (fd >= 0 && getsockname(fd, (struct sockaddr *)&bound.sa, &bound.len) == 0)
        esp__own_addresses(esp__addr_port(&bound), roots);
    if (!roots->n) esp__socket_close(&fd);
    return fd;
}

ESP__FN bool esp__open_to_all(int fd) {
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    memset(&sa, 0, sizeof sa);
    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0 || sa.ss_family == AF_UNIX) return false;
    if (sa.ss_family == AF_INET) return ntohl(((struct sockaddr_in *)&sa)->sin_addr.s_addr) >> 24 != 127;
    return !IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&sa)->sin6_addr);
}

/* This check is needed since any user can connect to an abstract name, or listen at it before rank 0 does. */
ESP__FN bool esp__socket_peer(int fd, int *pidfd) {
    struct {
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } cred = {0, 0, 0}; /* like struct ucred, which needs _GNU_SOURCE */
    socklen_t len = sizeof cred;
    struct sockaddr_storage sa;
    socklen_t sa_len = sizeof sa;
    memset(&sa, 0, sizeof sa);
    *pidfd = -1;
    if (getsockname(fd, (struct sockaddr *)&sa, &sa_len) != 0) return false;
    if (sa.ss_family != AF_UNIX) return true;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) return false;
    if (cred.uid != geteuid() && cred.uid != 0) return false;
#ifdef SYS_pidfd_open
    if (cred.pid > 0) *pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
#endif
    return true;
}

/* ---- connections ---- */
ESP__FN int esp__connect(const esp__addr *a, int *fd) {
    *fd = esp__socket(a->sa.ss_family);
    if (*fd < 0) return errno;
    if (connect(*fd, (const struct sockaddr *)&a->sa, a->len) != 0) return errno;
    return esp__connected(a, *fd);
}

ESP__FN int esp__connected(const esp__addr *a, int fd) {
    esp__addr me, other;
    int error = 0;
    socklen_t len = sizeof error;
    me.len = other.len = sizeof me.sa;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) return errno;
    /* TCP may connect a socket to itself if nobody listens at a port of this host */
    if (!error && a->sa.ss_family != AF_UNIX && getsockname(fd, (struct sockaddr *)&me.sa, &me.len) == 0 &&
        getpeername(fd, (struct sockaddr *)&other.sa, &other.len) == 0 && me.len == other.len &&
        memcmp(&me.sa, &other.sa, me.len) == 0)
        error = ECONNREFUSED;
    if (!error) esp__socket_tune(fd, a->sa.ss_family);
    return error;
}

ESP__FN int esp__accept(int listen_fd, int *pidfd) {
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    int fd = (int)syscall(SYS_accept4, listen_fd, &sa, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) errno = 0;
        return -1;
    }
    if (!esp__socket_peer(fd, pidfd)) {
        esp__socket_close(&fd);
        errno = ECONNREFUSED;
        return -1;
    }
    esp__socket_tune(fd, sa.ss_family);
    return fd;
}

/* ---- messages ---- */
ESP__FN void esp__conn_init(esp__conn *c, int fd, int32_t rank) {
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->pidfd = -1;
    c->rank = rank;
}

ESP__FN void esp__conn_free(esp_ctx *ctx, esp__conn *c) {
    esp__socket_close(&c->fd);
    esp__socket_close(&c->pidfd);
    esp__conn_next(ctx, c);
    esp__bytes_free(ctx, &c->out);
    esp__bytes_free(ctx, &c->last);
}

ESP__FN void esp__conn_flush(esp__conn *c) {
    while (c->fd >= 0 && !c->broken && c->out_at < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->out_at, c->out.len - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) c->out_at += (uint64_t)n, c->sent += (uint64_t)n;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) c->broken = true;
    }
    if (c->out_at == c->out.len || c->broken) c->out_at = c->out.len = 0;
}

static void esp__conn_no_memory(esp_ctx *ctx, esp__conn *c, uint64_t bytes) {
    c->no_memory = c->broken = true;
    if (c->fd >= 0) shutdown(c->fd, SHUT_RDWR);
    esp__log(ctx, ESP_LOG_ERROR, "peers", "out of memory for a message of %llu bytes", (unsigned long long)bytes);
}

ESP__FN void esp__conn_send2(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *a, uint64_t a_bytes, const void *b,
                             uint64_t b_bytes) {
    uint64_t before = c->out.len;
    if (c->fd < 0 || c->broken || c->state != ESP__HERE) return;
    m.bytes = a_bytes + b_bytes;
    if (!esp__bytes_add(ctx, &c->out, &m, sizeof m) || !esp__bytes_add(ctx, &c->out, a, a_bytes) ||
        !esp__bytes_add(ctx, &c->out, b, b_bytes)) {
        c->out.len = before;
        esp__conn_no_memory(ctx, c, sizeof m + m.bytes);
        return;
    }
    esp__conn_flush(c);
}

ESP__FN void esp__conn_send(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *body, uint64_t bytes) {
    esp__conn_send2(ctx, c, m, body, bytes, NULL, 0);
}

ESP__FN void esp__send(esp__peers *p, int32_t i, esp__msg m) { esp__conn_send(p->ctx, &p->conns[i], m, NULL, 0); }

ESP__FN void esp__send_all(esp__peers *p, esp__msg m) {
    for (int32_t r = 1; p->rank == 0 && r < p->size; r++) esp__send(p, r, m);
}

ESP__FN void esp__conn_next(esp_ctx *ctx, esp__conn *c) {
    if (c->body && c->body != c->reserve) esp__free(ctx, c->body);
    c->body = NULL;
    c->body_cap = 0;
    c->got = 0;
}

/* The memory for a message grows with the bytes received, not with the size that its head claims, so that an attacker
 * cannot make this process allocate memory by claims alone. */
static bool esp__conn_room(esp_ctx *ctx, esp__conn *c, uint64_t have) {
    uint64_t cap = c->body_cap < ESP__BODY_FIRST / 4 ? ESP__BODY_FIRST : c->body_cap * 4;
    uint8_t *body;
    if (have < c->body_cap) return true;
    if (c->reserve && c->head.bytes <= ESP__RESERVE) {
        c->body = c->reserve;
        c->body_cap = c->head.bytes;
        return true;
    }
    if (cap > c->head.bytes) cap = c->head.bytes;
    if (!(body = (uint8_t *)esp__alloc(ctx, cap))) return false;
    if (have) memcpy(body, c->body, have);
    esp__free(ctx, c->body);
    c->body = body;
    c->body_cap = cap;
    return true;
}

ESP__FN int esp__conn_read(esp_ctx *ctx, esp__conn *c, uint64_t limit) {
    for (;;) {
        const bool in_head = c->got < sizeof c->head;
        const uint64_t have = in_head ? 0 : c->got - sizeof c->head;
        uint8_t *to = (uint8_t *)&c->head + c->got;
        uint64_t want = sizeof c->head - c->got;
        ssize_t n;
        if (!in_head) {
            if (have == c->head.bytes) return 1;
            if (c->head.bytes > limit || !esp__conn_room(ctx, c, have)) {
                const uint64_t bytes = c->head.bytes;
                esp__conn_next(ctx, c);
                memset(&c->head, 0, sizeof c->head);
                if (bytes <= limit)
                    esp__conn_no_memory(ctx, c, bytes);
                else
                    esp__log(ctx, ESP_LOG_DEBUG, "peers", "a message of %llu bytes is refused",
                             (unsigned long long)bytes);
                return -1;
            }
            to = c->body + have;
            want = c->body_cap - have;
        }
        n = recv(c->fd, to, want, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return -1;
        c->got += (uint64_t)n;
    }
}

/* ---- waking other threads ---- */
ESP__FN void esp__peers_wake(esp__peers *p) {
    const uint64_t one = 1;
    if (p->wake_fd >= 0 && write(p->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        esp__log(p->ctx, ESP_LOG_WARN, "peers", "cannot wake the watch thread: %s", esp__strerror(errno));
}

ESP__FN void esp__peers_kick(esp__peers *p) {
    bool unsent = p->no_memory;
    for (int32_t i = 0; i < p->n_conns && !unsent; i++) unsent = p->conns[i].fd >= 0 && p->conns[i].out.len > 0;
    if (unsent) esp__peers_wake(p);
}

ESP__FN bool esp__peers_sleep(esp__peers *p, uint64_t deadline_ns) {
    const struct timespec t = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&p->changed, &p->lock, &t) == 0 || esp__now_ns() < deadline_ns;
}

ESP__FN int esp__poll_ms(uint64_t deadline_ns) {
    uint64_t now = esp__now_ns();
    if (deadline_ns == UINT64_MAX) return -1;
    if (deadline_ns <= now) return 0;
    deadline_ns = (deadline_ns - now + 999999u) / 1000000u;
    return deadline_ns > 60000 ? 60000 : (int)deadline_ns;
}
