/* oob.c: how a meeting starts, for peers.c. With the caller's own allgather (esp_config.oob_allgather) ranks need no address to
 * meet: rank 0 chooses one, and sends it through that allgather. */
#include "espresso_impl/job/job.h"
#include "espresso_impl/base/machine.h"

enum { ESP__MEET_ROOTS = 7 };

/* What rank 0 sends to the others through esp_config.oob_allgather. Of one size in all versions of the library. */
typedef struct esp__invitation {
    uint64_t job;
    int32_t n_roots;
    char roots[ESP__MEET_ROOTS][ESP__SPEC_MAX]; /* roots[0] is an error text where n_roots is 0 */
    char secret[ESP__SPEC_MAX];                 /* made by rank 0 for this job; "": the job has ESPRESSO_SECRET */
} esp__invitation;
_Static_assert(sizeof(esp__invitation) == 2064, "other versions of the library send as much");

static uint64_t esp__random64(void) {
    uint64_t v = 0;
    if (esp__random_bytes(&v, sizeof v) != 0) {
        uint64_t seed[3] = {esp__now_ns(), (uint64_t)getpid(), (uint64_t)(uintptr_t)&v};
        v = esp__hash64(ESP__HASH0, seed, sizeof seed);
    }
    return v ? v : 1;
}

/* Rank 0: makes a secret for a job that has none. Whoever gets the invitation is a rank. Returns 0, or an errno. */
static int esp__make_secret(esp__peers *p, esp__invitation *inv) {
    uint8_t bytes[ESP__SECRET_MADE];
    int error = p->secret[0] ? 0 : esp__random_bytes(bytes, sizeof bytes);
    if (p->secret[0] || error) return error;
    esp__hex(bytes, sizeof bytes, inv->secret);
    snprintf(p->secret, sizeof p->secret, "%s", inv->secret);
    esp__wipe(bytes, sizeof bytes);
    return 0;
}

/* What ranks exchange first: they can meet at an abstract name only if all run in one network namespace of one kernel. */
typedef struct esp__place {
    int32_t rank, size;
    char host[112];
} esp__place;

static void esp__place_fill(const esp__peers *p, esp__place *out) {
    char boot[ESP__BOOT_ID] = "", net[48] = "";
    memset(out, 0, sizeof *out);
    out->rank = p->rank;
    out->size = p->size;
    esp__boot_id(boot);
    if (readlink("/proc/self/ns/net", net, sizeof net - 1) < 0) net[0] = 0;
    if (!boot[0]) gethostname(boot, sizeof boot - 1);
    snprintf(out->host, sizeof out->host, "%s %s", boot, net);
}

/* Writes this host's numeric addresses with `port`. Addresses that other hosts can reach come first. */
static int32_t esp__own_addresses(char roots[][ESP__SPEC_MAX], int port) {
    struct ifaddrs *list = NULL;
    int32_t n = 0;
    if (getifaddrs(&list) != 0) return 0;
    for (int loopback = 0; loopback < 2; loopback++) {
        for (struct ifaddrs *a = list; a && n < ESP__MEET_ROOTS; a = a->ifa_next) {
            char host[64];
            int family = a->ifa_addr ? a->ifa_addr->sa_family : 0;
            socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
            if ((family != AF_INET && family != AF_INET6) || !(a->ifa_flags & IFF_UP) ||
                !(a->ifa_flags & IFF_LOOPBACK) != !loopback ||
                getnameinfo(a->ifa_addr, len, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0 || strchr(host, '%'))
                continue;
            snprintf(roots[n++], ESP__SPEC_MAX, family == AF_INET ? "%s:%d" : "[%s]:%d", host, port);
        }
    }
    freeifaddrs(list);
    return n;
}

/* Rank 0: listens, and writes the invitation. Returns the socket; -1 with the reason in roots[0]. */
static int esp__invite(esp__peers *p, esp__invitation *inv, int one_host) {
    struct sockaddr_storage sa;
    socklen_t len = sizeof sa;
    const char *error = "it has no address that others could reach";
    int fd = -1, no_secret = esp__make_secret(p, inv);
    inv->job = esp__random64();
    if (no_secret) {
        error = "no random numbers for a secret";
    } else if (one_host) {
        snprintf(inv->roots[0], sizeof inv->roots[0], "unix:espresso-%u-%016llx", (unsigned)getuid(),
                 (unsigned long long)esp__random64());
        inv->n_roots = 1;
        fd = esp__listen(inv->roots[0], &error);
    } else {
        esp__addr bound;
        memset(&bound, 0, sizeof bound);
        fd = esp__listen_any(0);
        if (fd < 0) error = strerror(errno);
        if (fd >= 0 && getsockname(fd, (struct sockaddr *)&sa, &len) == 0) {
            bound.sa = sa;
            inv->n_roots = esp__own_addresses(inv->roots, esp__addr_port(&bound));
        }
        if (inv->n_roots == 0) esp__socket_close(&fd);
    }
    if (fd >= 0) return fd;
    inv->n_roots = 0;
    snprintf(inv->roots[0], sizeof inv->roots[0], "rank 0 cannot listen: %s", error);
    return -1;
}

static esp_status esp__oob_call(esp__peers *p, const esp_config *cfg, const void *in, void *out, uint64_t bytes) {
    esp_status s = cfg->oob_allgather(cfg->oob_user, in, out, bytes);
    if (s == ESP_OK) return s;
    return esp__fail(p->ctx, s < 0 ? s : ESP_E_COMM, "esp_config.oob_allgather failed with %s", esp_status_name(s));
}

static esp_status esp__meet_by_oob(esp__peers *p, const esp_config *cfg) {
    uint64_t bytes = sizeof(esp__invitation) * (uint64_t)p->size; /* the larger of the two */
    esp__invitation mine, *all = (esp__invitation *)esp__alloc(p->ctx, bytes);
    esp__place *places = (esp__place *)(void *)all;
    esp__place place;
    int one_host = 1, fd = -1;
    esp_status s = all ? ESP_OK : esp__fail(p->ctx, ESP_E_NOMEM, "no memory to meet %d ranks", (int)p->size);
    if (s != ESP_OK) return s;
    esp__place_fill(p, &place);
    s = esp__oob_call(p, cfg, &place, all, sizeof place);
    for (int32_t r = 0; s == ESP_OK && r < p->size; r++) {
        places[r].host[sizeof place.host - 1] = 0;
        if (places[r].rank != r || places[r].size != p->size)
            s = esp__fail(p->ctx, ESP_E_MISMATCH,
                          "the rank at place %d of esp_config.oob_allgather says it is %d of %d", (int)r,
                          (int)places[r].rank, (int)places[r].size);
        one_host = one_host && !strcmp(places[r].host, places[0].host);
    }
    memset(&mine, 0, sizeof mine);
    if (s == ESP_OK && p->rank == 0) fd = esp__invite(p, &mine, one_host);
    if (s == ESP_OK) s = esp__oob_call(p, cfg, &mine, all, sizeof mine);
    if (s == ESP_OK && all[0].n_roots <= 0) s = esp__fail(p->ctx, ESP_E_COMM, "%.255s", all[0].roots[0]);
    if (s == ESP_OK && p->rank == 0) {
        snprintf(p->where, sizeof p->where, "%s", mine.roots[0]);
        s = esp__meet_host(p, fd, mine.job);
        fd = -1;
    } else if (s == ESP_OK) {
        for (int i = 0; i < ESP__MEET_ROOTS; i++) all[0].roots[i][ESP__SPEC_MAX - 1] = 0;
        all[0].secret[ESP__SPEC_MAX - 1] = 0;
        if (!p->secret[0]) snprintf(p->secret, sizeof p->secret, "%s", all[0].secret);
        s = esp__meet_join(p, all[0].roots, all[0].n_roots <= ESP__MEET_ROOTS ? all[0].n_roots : 1, all[0].job);
    }
    esp__socket_close(&fd);
    esp__wipe(mine.secret, sizeof mine.secret);
    esp__wipe(all, bytes);
    esp__free(p->ctx, all);
    return s;
}

static esp_status esp__meet(esp__peers *p, const esp_config *cfg, const esp__where *w) {
    char roots[1][ESP__SPEC_MAX];
    const char *error = "";
    int fd;
    if (cfg && cfg->oob_allgather) return esp__meet_by_oob(p, cfg);
    snprintf(p->where, sizeof p->where, "%s", w->root);
    snprintf(roots[0], sizeof roots[0], "%s", w->root);
    if (p->rank != 0) return esp__meet_join(p, roots, 1, 0);
    fd = esp__listen(w->root, &error);
    if (fd < 0) return esp__fail(p->ctx, ESP_E_COMM, "rank 0 cannot listen at %s: %s", w->root, error);
    if (!p->secret[0] && esp__open_to_all(fd))
        esp__log(p->ctx, ESP_LOG_WARN, "peers",
                 "this job has no secret: whoever reaches %s may join it. Set ESPRESSO_SECRET to the same %d random "
                 "characters or more on all ranks, as from `head -c 24 /dev/urandom | base64`",
                 w->root, (int)ESP__SECRET_MIN);
    return esp__meet_host(p, fd, 0);
}
