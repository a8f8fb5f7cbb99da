/* shm.c: backend "shm": the ranks are processes of one machine, which share windows in one memfd. This file makes
 * and maps that memory; backends/shm moves the data.
 *
 * With cma=1 (or ESPRESSO_SHM_CMA=1) ranks read each other's buffers with process_vm_readv instead, where the kernel
 * permits it: one copy less. But the kernel's copy is slower than two copies through the caches (12 against 46 GB/s
 * between two cores, and 1 us a call). Windows are as fast or up to 3 times faster at every size and collective in
 * bench/coll, so they are the default. */
#include "backends/shm/transport.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static esp_status shm_probe(const esp_host *h, int32_t *score) {
    int fd = shm_make(4096);
    (void)h;
    *score = fd >= 0 ? 10 : 0; /* some sandboxes have no memfd */
    if (fd >= 0) close(fd);
    return ESP_OK;
}

static void shm_drop_region(engine_comm *m) {
    munmap(m->head, m->region_bytes); /* this process's view only: a slower peer keeps its own */
    m->head = NULL;
}

static int shm_pull(engine_comm *m, int32_t rank, uint64_t address, void *to, uint64_t bytes) {
    while (bytes) {
        struct iovec here = {to, bytes}, there = {(void *)(uintptr_t)address, bytes};
        long n = syscall(SYS_process_vm_readv, (long)m->pid[rank], &here, 1ul, &there, 1ul, 0ul);
        if (n < 0 && errno == ESRCH)
            return backend_error(m, ESP_E_PEER, "rank %d of %d: its process is gone", (int)rank, (int)m->size);
        if (n < 0 && BACKEND_LOAD(&m->lines[rank].gone))
            return engine_lost(m, rank); /* the peer's buffers may be freed */
        if (n <= 0)
            return backend_error(m, ESP_E_COMM, "cannot read the buffer of rank %d of %d: %s", (int)rank, (int)m->size,
                                 n ? strerror(errno) : "no bytes came");
        to = (uint8_t *)to + n, address += (uint64_t)n, bytes -= (uint64_t)n;
    }
    return 0;
}

/* Tries to read every peer's secret. Where a peer has another PID namespace, its process id may name a different
 * process here; the secret shows this. */
static int shm_can_pull(engine_comm *m) {
    const char *why = NULL;
    for (int32_t q = 0; !why && q < m->size; q++) {
        uint64_t word = 0;
        struct iovec here = {&word, sizeof word}, there = {(void *)(uintptr_t)m->hello[q].address, sizeof word};
        if (q == m->rank) continue;
        long n = syscall(SYS_process_vm_readv, (long)m->pid[q], &here, 1ul, &there, 1ul, 0ul);
        if (n < 0)
            why = strerror(errno);
        else if (n != (long)sizeof word || word != m->hello[q].secret)
            why = "process ids mean other processes here";
    }
    if (why)
        backend_error(m, ESP_OK,
                      "cma=1: reading other processes is not possible (%s; see kernel.yama.ptrace_scope): data goes "
                      "through windows",
                      why);
    return !why;
}

/* What shm_meet holds until all ranks have the memory. -1: not there. */
typedef struct shm_meeting {
    int fd, listener, asked; /* the memory; rank 0: where others ask for it; the others: their connection to that */
    void *region;
} shm_meeting;

/* A step that ranks take together: `ok` says whether this one could. The exchange also waits: it fails where a rank has died. */
static esp_status shm_together(engine_comm *m, const esp_group *g, engine_hello *mine, int ok, const char *what,
                               const char *why) {
    const int error = errno;
    if (!ok) mine->status = ESP_E_COMM;
    const esp_status s = engine_exchange(m, g, mine);
    if (!ok && s != ESP_E_PEER) /* otherwise a death was the reason */
        backend_error(m, s, "cannot %s: %s", what, why ? why : strerror(error));
    return s;
}

/* Rank 0 gives the memory's descriptor away, the others take it, and all map it. No rank waits for another but in an exchange.
 * Fails on all ranks, but for what happens after the last exchange: that is left in mine->status. */
static esp_status shm_share(engine_comm *m, const esp_group *g, engine_hello *mine, shm_meeting *t) {
    const int first = m->rank == 0;
    const uint64_t bytes = engine_region_bytes(m->size);
    const char *why = NULL;
    if (m->size > 1) {
        if (!first) t->asked = shm_ask(m->hello[0].socket, &why);
        esp_status s =
            shm_together(m, g, mine, first || t->asked >= 0,
                         "get the shared memory from rank 0 (the ranks must be of one user, on one machine)", why);
        if (s != ESP_OK) return s;
        s = shm_together(m, g, mine, !first || shm_give(t->listener, t->fd) == 0, "give the shared memory away", NULL);
        if (s != ESP_OK) return s;
        if (!first) t->fd = shm_take(t->asked, bytes, &why);
    }
    void *p = t->fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0);
    if (t->fd < 0)
        mine->status = backend_error(m, ESP_E_COMM, "cannot take the shared memory: %s", why);
    else if (p == MAP_FAILED)
        mine->status = backend_error(m, ESP_E_NOMEM, "cannot map %llu bytes of shared memory: %s",
                                     (unsigned long long)bytes, strerror(errno));
    else
        t->region = p;
    return ESP_OK;
}

static esp_status shm_meet(engine_comm *m, const esp_group *g, esp_status so_far, const char *params) {
    const char *env = getenv("ESPRESSO_SHM_CMA");
    shm_meeting t = {-1, -1, -1, NULL};
    uint64_t secret = engine_local_random();
    char name[ENGINE_LOCAL_NAME] = "";
    m->drop_region = shm_drop_region;
    if (env && (env[0] == '0' || env[0] == '1')) m->reach = env[0] == '1' ? ENGINE_REACH_PULL : ENGINE_REACH_WINDOW;
    if (m->rank == 0 && so_far == ESP_OK) {
        t.fd = shm_make(engine_region_bytes(m->size));
        if (t.fd >= 0 && m->size > 1) t.listener = shm_listen(name, m->size);
        if (t.fd < 0 || (m->size > 1 && t.listener < 0))
            so_far = backend_error(m, ESP_E_NOMEM, "cannot make shared memory: %s", strerror(errno));
    }
    engine_hello mine = engine_hello_of(m, g, so_far, params);
    memcpy(mine.socket, name, sizeof name);
    mine.address = (uint64_t)(uintptr_t)&secret;
    mine.secret = secret;
    esp_status s = engine_exchange(m, g, &mine);
    if (s == ESP_OK) s = engine_same_params(m);
    if (s == ESP_OK) {
        s = shm_share(m, g, &mine, &t);
        if (s == ESP_OK) {
            mine.params = m->reach && t.region && shm_can_pull(m); /* the last exchange checks that all ranks agree */
            s = engine_exchange(m, g, &mine);
        }
    }
    engine_local_shut(t.fd);
    engine_local_shut(t.listener);
    engine_local_shut(t.asked);
    if (s == ESP_OK) {
        for (int32_t q = 0; q < m->size; q++)
            if (!m->hello[q].params) m->reach = ENGINE_REACH_WINDOW;
        return engine_join(m, g, t.region);
    }
    if (t.region) munmap(t.region, engine_region_bytes(m->size));
    return s;
}

static esp_status shm_comm_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    return engine_open(h, g, "shm", params, shm_pull, shm_meet, comm);
}

ENGINE_BACKEND(shm, "ranks are processes of one machine, sharing memory", "inter=,latency=,link=,outer=,cma=0")
