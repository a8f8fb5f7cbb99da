/* test_names.c: ranks meet at a host name that can be resolved late, or only by some ranks, as with a cluster's DNS
 * that learns of a new host. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "espresso_impl/job/peers.h"
#include <dlfcn.h>
#include <netdb.h>

#define NAME "trainer-master-0.test"
static atomic_ullong known_ns; /* time from which the name can be resolved */
static atomic_int resolved;

/* Replaces the function of libc. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **list) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &symbol, sizeof real);
    const bool ours = !strcmp(node, NAME);
    if (ours && esp__now_ns() < atomic_load(&known_ns)) return EAI_NONAME;
    if (ours) atomic_fetch_add(&resolved, 1);
    return real(ours ? "127.0.0.1" : node, service, hints, list);
}

typedef struct meeting {
    char root[64];
    uint32_t timeout_ms;
    int32_t rank;
    esp_status status;
    char error[ESP__ERROR_MAX];
} meeting;

static void *meet(void *arg) {
    meeting *m = arg;
    esp_config c = {.backend = "loop", .rank = m->rank, .size = 3, .machine = 1, .root = m->root};
    esp_ctx *ctx = NULL;
    c.timeout_ms = m->timeout_ms;
    m->status = esp_open(&c, &ctx);
    snprintf(m->error, sizeof m->error, "%s", m->status ? esp_last_error(NULL) : "");
    if (!m->status && esp_barrier(ctx)) m->status = ESP_E_COMM;
    esp_close(ctx);
    return NULL;
}

static void run(meeting *m, uint32_t late_ms, uint32_t timeout_ms) {
    const char *port = strrchr(test_root(true), ':');
    for (int32_t r = 0; r < 3; r++) {
        m[r] = (meeting){.rank = r, .timeout_ms = timeout_ms};
        snprintf(m[r].root, sizeof m[r].root, NAME "%s", port);
    }
    atomic_store(&resolved, 0);
    atomic_store(&known_ns, late_ms ? esp__now_ns() + late_ms * 1000000ull : 0);
    run_threads(3, meet, m, sizeof *m);
}

TEST(test_a_name_that_is_known_late) {
    meeting m[3];
    for (uint32_t late_ms = 0; late_ms <= 700; late_ms += 700) {
        run(m, late_ms, 20000);
        for (int r = 0; r < 3; r++)
            if (m[r].status) fail_msg("rank %d: %s", r, m[r].error);
        assert_true(atomic_load(&resolved) >= 2);
    }
}

TEST(test_a_name_that_stays_unknown) {
    meeting m[3];
    run(m, 60000, 500);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(m[r].status, ESP_E_TIMEOUT);
        assert_non_null(strstr(m[r].error, NAME));
    }
    assert_non_null(strstr(m[1].error, gai_strerror(EAI_NONAME)));
}
