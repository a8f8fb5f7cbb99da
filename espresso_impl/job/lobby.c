/* lobby.c: keeps a list of new connections (candidates), whose other ends have not yet proven to be ranks of this
 * job. If the list is full, a new connection replaces the oldest one. */
#include "espresso_impl/job/peers.h"
#include <errno.h>

enum {
    /* A connection is replaced at the earliest after this time, which is longer once it has sent HELLO. */
    ESP__CANDIDATE_NEW_MS = 20,
    ESP__CANDIDATE_HELLO_MS = 250,
    ESP__ACCEPTS_AT_ONCE = 32, /* most connections accepted before messages are read again */
};

ESP__FN bool esp__lobby_open(esp_ctx *ctx, esp__lobby *l, int listen_fd, int32_t ranks) {
    l->listen_fd = listen_fd;
    l->most = ESP__CANDIDATES + ranks;
    l->candidates = (esp__candidate *)esp__alloc(ctx, sizeof *l->candidates * (uint64_t)l->most);
    return l->candidates != NULL;
}

ESP__FN void esp__lobby_close(esp_ctx *ctx, esp__lobby *l) {
    for (int32_t i = 0; i < l->n; i++) esp__conn_free(ctx, &l->candidates[i].conn);
    esp__free(ctx, l->candidates);
}

ESP__FN void esp__lobby_drop(esp_ctx *ctx, esp__lobby *l, esp__candidate *c, int why) {
    if (why >= 0) l->refused[why]++;
    esp__conn_free(ctx, &c->conn);
    *c = l->candidates[--l->n];
}

static uint64_t esp__candidate_safe_ns(const esp__candidate *c) {
    if (c->member >= 0) return UINT64_MAX;
    return c->since_ns + (c->greeted ? ESP__CANDIDATE_HELLO_MS : ESP__CANDIDATE_NEW_MS) * 1000000ull;
}

ESP__FN esp__candidate *esp__lobby_first_to_go(const esp__lobby *l) {
    esp__candidate *found = l->candidates;
    for (int32_t i = 1; i < l->n; i++)
        if (esp__candidate_safe_ns(&l->candidates[i]) < esp__candidate_safe_ns(found)) found = &l->candidates[i];
    return found;
}

ESP__FN uint64_t esp__lobby_room_ns(const esp__lobby *l) {
    const uint64_t safe = l->n < l->most ? 0 : esp__candidate_safe_ns(esp__lobby_first_to_go(l));
    return safe > esp__now_ns() ? safe : 0;
}

ESP__FN int esp__lobby_accept(esp_ctx *ctx, esp__lobby *l) {
    for (int i = 0; i < ESP__ACCEPTS_AT_ONCE && !esp__lobby_room_ns(l); i++) {
        int pidfd = -1;
        const int fd = esp__accept(l->listen_fd, &pidfd);
        if (fd < 0 && errno == ECONNREFUSED) l->refused[ESP__REFUSED_USER]++;
        if (fd < 0 && errno != ECONNREFUSED) return errno;
        if (fd < 0) continue;
        if (l->n == l->most) esp__lobby_drop(ctx, l, esp__lobby_first_to_go(l), ESP__REFUSED_DISPLACED);
        esp__candidate *c = &l->candidates[l->n++];
        memset(c, 0, sizeof *c);
        esp__conn_init(&c->conn, fd, -1);
        c->conn.pidfd = pidfd;
        c->member = -1;
        c->since_ns = esp__now_ns();
    }
    return 0;
}
