/* shm.c: backend "shm", for ranks that are processes of one machine. This file creates and maps the memory that they
 * share: a memfd or, beyond the limit on file sizes, a System V segment. */
#include "backends/shm/transport.h"
#include "espresso_impl/base/limits.h"
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static esp_status shm_probe(const esp_host *h, int32_t *score) {
    int fd = shm_create(4096);
    (void)h;
    *score = fd >= 0 || errno == EFBIG ? 10 : 0; /* some sandboxes have no memfd */
    if (fd >= 0) close(fd);
    return ESP_OK;
}

static void shm_drop_region(shm_comm *m) {
    munmap(m->head, m->region_bytes); /* detaches a segment, too; peers have their own mappings */
    m->head = NULL;
}

typedef struct shm_setup {
    int fd;         /* the memory's descriptor */
    int segment;    /* rank 0 only: the System V segment that replaces it, or -1 */
    int listener;   /* rank 0 only: the socket to which others connect */
    int connection; /* other ranks: the connection to rank 0 */
    void *region;
} shm_setup;

/* Ends a step of the setup: all ranks wait for each other, and all fail if one of them was not `ok` or has died. */
static esp_status shm_step_together(shm_comm *m, const esp_group *g, shm_hello *mine, int ok, const char *what,
                                    const char *why) {
    const int error = errno;
    if (!ok) mine->status = ESP_E_COMM;
    const esp_status s = shm_exchange(m, g, mine);
    if (!ok && s != ESP_E_PEER) /* a dead rank is reported instead */
        backend_error(m, s, "cannot %s: %s", what, why ? why : esp__strerror(error));
    return s;
}

/* Rank 0 creates the memory and, if others need its descriptor, listens for them. Returns false with errno. */
static bool shm_make(const shm_comm *m, shm_setup *t, char name[SHM_LOCAL_NAME]) {
    const uint64_t bytes = shm_region_bytes(m->size);
    t->fd = shm_create(bytes);
    if (t->fd < 0 && errno != EFBIG) return false;
    if (t->fd < 0) {
        t->region = shm_segment_create(bytes, &t->segment);
        if (!t->region) errno = EFBIG; /* the limit is what the user can change */
        return t->region != NULL;
    }
    if (m->size > 1) t->listener = shm_listen(name, m->size);
    return m->size == 1 || t->listener >= 0;
}

/* Attaches rank 0's segment. An error is only stored in mine->status, which the caller exchanges. */
static void shm_attach(shm_comm *m, shm_hello *mine, shm_setup *t) {
    const shm_hello *first = &m->hello[0];
    const char *why = NULL;
    if (m->rank == 0) return;
    t->region = shm_segment_attach(first->segment, shm_region_bytes(m->size), first->number, &why);
    if (!t->region) mine->status = backend_error(m, ESP_E_COMM, "cannot attach rank 0's shared memory: %s", why);
}

/* Rank 0 sends the memory's descriptor to the other ranks, and all map it. Returns an error if a step before that
 * failed on any rank. An error of receiving or mapping is only stored in mine->status, which the caller exchanges. */
static esp_status shm_share(shm_comm *m, const esp_group *g, shm_hello *mine, shm_setup *t) {
    const int first = m->rank == 0;
    const uint64_t bytes = shm_region_bytes(m->size);
    const char *why = NULL;
    if (m->hello[0].segment >= 0) return shm_attach(m, mine, t), ESP_OK;
    if (m->size > 1) {
        if (!first) t->connection = shm_connect(m->hello[0].socket, &why);
        esp_status s =
            shm_step_together(m, g, mine, first || t->connection >= 0,
                              "get the shared memory from rank 0 (the ranks must be of one user, on one machine)", why);
        if (s != ESP_OK) return s;
        s = shm_step_together(m, g, mine, !first || shm_send_to_all(t->listener, t->fd) == 0,
                              "send the shared memory's descriptor", NULL);
        if (s != ESP_OK) return s;
        if (!first) t->fd = shm_receive_memory(t->connection, bytes, &why);
    }
    void *p = t->fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0);
    if (t->fd < 0)
        mine->status = backend_error(m, ESP_E_COMM, "cannot receive the shared memory: %s", why);
    else if (p == MAP_FAILED)
        mine->status = backend_error(m, ESP_E_NOMEM, "cannot map %llu bytes of shared memory: %s",
                                     (unsigned long long)bytes, esp__strerror(errno));
    else
        t->region = p;
    return ESP_OK;
}

static esp_status shm_process_rendezvous(shm_comm *m, const esp_group *g, esp_status so_far, const char *params) {
    shm_setup t = {-1, -1, -1, -1, NULL};
    char name[SHM_LOCAL_NAME] = "";
    m->drop_region = shm_drop_region;
    if (m->rank == 0 && so_far == ESP_OK && !shm_make(m, &t, name))
        so_far = backend_error(m, ESP_E_NOMEM, "cannot make shared memory: %s", esp__strerror(errno));
    shm_hello mine = shm_hello_of(m, g, so_far, params);
    memcpy(mine.socket, name, sizeof name);
    mine.segment = t.segment;
    if (t.segment >= 0) ((shm_head *)t.region)->number = mine.number = shm_local_random();
    esp_status s = shm_exchange(m, g, &mine);
    if (s == ESP_OK) s = shm_same_params(m);
    if (s == ESP_OK) {
        s = shm_share(m, g, &mine, &t);
        if (s == ESP_OK) s = shm_exchange(m, g, &mine);
    }
    shm_local_close(t.fd);
    shm_local_close(t.listener);
    shm_local_close(t.connection);
    if (s == ESP_OK) return shm_join(m, g, t.region);
    if (t.region) munmap(t.region, shm_region_bytes(m->size));
    return s;
}

static esp_status shm_comm_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    return shm_transport_open(h, g, "shm", params, shm_process_rendezvous, comm);
}

SHM_BACKEND(shm, "ranks are processes of one machine, sharing memory", "inter=,latency=,link=,outer=")
