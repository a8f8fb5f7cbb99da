/* hello.h connects to rank 0 and sends it arbitrary messages, to test how ranks connect. */
#ifndef TEST_HELLO_H
#define TEST_HELLO_H
#include "espresso_impl/job/peers.h"

typedef struct hello_bytes {
    uint8_t data[512];
    size_t n;
} hello_bytes;

/* Connects to `root`, and retries for `ms` milliseconds. Returns a blocking socket with a timeout of 20 s, or -1. */
static inline int hello_connect(const char *root, int ms) {
    const char *error = "";
    esp__addr a;
    int fd = -1;
    if (esp__addr_resolve(root, &a, 1, &error) != 1) return -1;
    for (int i = 0; i <= ms && fd < 0; i++) {
        struct timeval limit = {20, 0};
        fd = socket(a.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&a.sa, a.len) != 0) esp__socket_close(&fd);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (fd < 0 && i < ms) poll(NULL, 0, 1);
    }
    return fd;
}

static inline hello_bytes hello_message(uint32_t type, const void *body, size_t bytes) {
    esp__msg m = {type, 0, 0, 0, bytes};
    hello_bytes out;
    memcpy(out.data, &m, sizeof m);
    memcpy(out.data + sizeof m, body, bytes);
    out.n = sizeof m + bytes;
    return out;
}

static inline int hello_send(int fd, const hello_bytes *b) {
    return send(fd, b->data, b->n, MSG_NOSIGNAL) == (ssize_t)b->n;
}

/* Receives a message and appends a NUL. Returns the message's type, or 0 if the connection has ended. */
static inline uint32_t hello_receive(int fd, void *body, size_t cap) {
    esp__msg m;
    memset(body, 0, cap);
    if (recv(fd, &m, sizeof m, MSG_WAITALL) != (ssize_t)sizeof m || m.bytes >= cap) return 0;
    if (m.bytes && recv(fd, body, m.bytes, MSG_WAITALL) != (ssize_t)m.bytes) return 0;
    return m.type;
}

/* Does what a rank does when it connects, with the secret `secret` ("" for none). Stores its two messages in `sent`.
 * Returns the type of rank 0's answer. */
static inline uint32_t hello_as(int fd, int32_t rank, int32_t size, const char *secret, hello_bytes sent[2],
                                char *answer, size_t cap) {
    esp__peers p;
    esp__hello k;
    esp__challenge ch;
    esp__response h;
    memset(&p, 0, sizeof p);
    p.rank = rank;
    p.size = size;
    snprintf(p.secret, sizeof p.secret, "%s", secret);
    esp__hello_make(&p, 0, &k);
    sent[0] = hello_message(ESP__MSG_HELLO, &k, sizeof k);
    if (!hello_send(fd, &sent[0]) || hello_receive(fd, answer, cap) != ESP__MSG_CHALLENGE) return 0;
    memcpy(&ch, answer, sizeof ch);
    if (!esp__response_make(&p, &k, &ch, &h)) return 0;
    sent[1] = hello_message(ESP__MSG_RESPONSE, &h, sizeof h);
    return hello_send(fd, &sent[1]) ? hello_receive(fd, answer, cap) : 0;
}
#endif
