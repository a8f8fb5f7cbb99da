/* standby.c: a socket at which every rank listens from esp_open to esp_close, for peers.c. Nobody is expected there until ranks are
 * lost: then those that are left meet at one of these sockets (survivors.c). Because a rank listens as long as its context lives, a
 * refused connection proves that the rank is gone. */
#include "espresso_impl/job/job.h"

enum { ESP__STANDBY_ROOTS = 4, ESP__STANDBY_ROOT = 72 };

/* Where a rank listens. */
typedef struct esp__standby_at {
    uint64_t job;   /* rank 0's counts: a random number that only ranks of this job know */
    char host[112]; /* as in esp__place: ranks with the same text reach each other by abstract names */
    int32_t n_roots;
    char roots[ESP__STANDBY_ROOTS][ESP__STANDBY_ROOT];
} esp__standby_at;

struct esp__standby {
    int fd; /* listens; -1: this rank cannot */
    uint64_t job;
    esp__standby_at *at; /* of each rank that the job began with */
    int32_t *members;    /* the ranks that the job has now, as they were numbered when it began */
    int32_t n;
    uint32_t epoch;
};

/* Listens at an abstract name, or at a port of all this host's addresses that other hosts can reach. */
static void esp__standby_listen(esp__standby *s, esp__standby_at *mine, int one_host) {
    char roots[ESP__MEET_ROOTS][ESP__SPEC_MAX];
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    const char *error = "";
    int32_t n = 0;
    mine->n_roots = 0;
    if (one_host) {
        snprintf(roots[n++], sizeof roots[0], "unix:espresso-%u-%016llx", (unsigned)getuid(),
                 (unsigned long long)esp__random64());
        s->fd = esp__listen(roots[0], &error);
    } else {
        esp__addr bound;
        memset(&bound, 0, sizeof bound);
        s->fd = esp__listen_any(0);
        if (s->fd >= 0 && getsockname(s->fd, (struct sockaddr *)&sa, &len) == 0) {
            bound.sa = sa;
            n = esp__own_addresses(roots, esp__addr_port(&bound));
        }
    }
    for (int32_t i = 0; s->fd >= 0 && i < n && mine->n_roots < ESP__STANDBY_ROOTS; i++) {
        /* another host would take a loopback address for its own */
        if (!one_host && (!strncmp(roots[i], "127.", 4) || !strncmp(roots[i], "[::1]", 5))) continue;
        if (strlen(roots[i]) >= ESP__STANDBY_ROOT) continue;
        memcpy(mine->roots[mine->n_roots++], roots[i], strlen(roots[i]) + 1);
    }
}

ESP__FN int esp__standby_ready(const esp__standby *s) { return s && s->fd >= 0; }

ESP__FN void esp__standby_close(esp_ctx *ctx, esp__standby *s) {
    if (!s) return;
    esp__socket_close(&s->fd);
    esp__free(ctx, s->at);
    esp__free(ctx, s->members);
    esp__free(ctx, s);
}

ESP__FN esp_status esp__standby_open(esp_ctx *ctx, esp__peers *p, esp__standby **out) {
    const uint64_t n = (uint64_t)p->size;
    esp__standby *s = esp__alloc(ctx, sizeof *s);
    esp__standby_at mine;
    esp__place place;
    int one_host = 1;
    *out = s;
    if (s) s->fd = -1, s->at = esp__alloc(ctx, n * sizeof mine), s->members = esp__alloc(ctx, n * sizeof *s->members);
    if (!s || !s->at || !s->members)
        return esp__fail(ctx, ESP_E_NOMEM, "no memory for the addresses of %d ranks", p->size);
    memset(&mine, 0, sizeof mine);
    esp__place_fill(p, &place);
    memcpy(mine.host, place.host, sizeof mine.host);
    mine.job = esp__random64();
    if (p->size > 1) esp__standby_listen(s, &mine, 1);
    esp_status st = esp__peers_allgather(p, NULL, p->size, &mine, s->at, sizeof mine);
    for (int32_t r = 1; r < p->size && !st; r++) one_host &= !strcmp(s->at[r].host, s->at[0].host);
    s->job = s->at[0].job;
    if (!one_host && !st) {
        esp__socket_close(&s->fd);
        esp__standby_listen(s, &mine, 0);
        st = esp__peers_allgather(p, NULL, p->size, &mine, s->at, sizeof mine);
    }
    for (int32_t r = 0; r < p->size && !st; r++) {
        s->members[r] = r;
        if (p->size > 1 && !s->at[r].n_roots && s->fd >= 0) esp__socket_close(&s->fd);
    }
    s->n = p->size;
    s->epoch = 1;
    return st;
}
