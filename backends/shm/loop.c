/* loop.c: backend "loop", for ranks that are threads of one process, so that each reads the others' buffers directly.
 * This file creates the region of memory that they share. */
#include "backends/shm/transport.h"
#include <sys/mman.h>

/* Ranks exchange the region's address by a function of the caller, which may use a socket. The thread sanitizer does
 * not see that this orders rank 0's writes before other ranks' reads, so these annotations declare it. */
#if defined(__SANITIZE_THREAD__)
#define LOOP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LOOP_TSAN 1
#endif
#endif
#ifdef LOOP_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define loop_acquire __tsan_acquire
#define loop_release __tsan_release
#else
static inline void loop_acquire(void *address) { (void)address; }
static inline void loop_release(void *address) { (void)address; }
#endif

static esp_status loop_probe(const esp_host *h, int32_t *score) {
    (void)h;
    *score = 1; /* lowest: used only if no other backend works */
    return ESP_OK;
}

static void loop_drop_region(shm_comm *m) {
    if (__atomic_sub_fetch(&m->head->refs, 1, __ATOMIC_SEQ_CST) == 0) munmap(m->head, m->region_bytes);
    m->head = NULL;
}

static esp_status loop_same_process(shm_comm *m) {
    const shm_hello *all = m->hello;
    for (int32_t q = 0; q < m->size; q++)
        if (all[q].pid != all[0].pid)
            return backend_error(m, ESP_E_UNSUPPORTED, "ranks 0 and %d are not threads of one process: use backend shm",
                                 (int)q);
    return ESP_OK;
}

static esp_status loop_rendezvous(shm_comm *m, const esp_group *g, esp_status so_far, const char *params) {
    uint64_t bytes = shm_region_bytes(m->size);
    void *region = MAP_FAILED;
    m->direct = true;
    m->drop_region = loop_drop_region;
    if (m->rank == 0 && so_far == ESP_OK) {
        region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (region == MAP_FAILED)
            so_far = backend_error(m, ESP_E_NOMEM, "no memory for %d ranks", (int)m->size);
        else
            ((shm_head *)region)->refs = (uint32_t)m->size, loop_release(region);
    }
    shm_hello mine = shm_hello_of(m, g, so_far, params);
    mine.address = region == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)region;
    esp_status s = shm_exchange(m, g, &mine);
    if (s == ESP_OK) s = shm_same_params(m);
    if (s == ESP_OK) s = loop_same_process(m);
    if (s == ESP_OK) {
        region = (void *)(uintptr_t)m->hello[0].address;
        loop_acquire(region);
        s = shm_join(m, g, region);
    } else if (region != MAP_FAILED && m->pid[0]) {
        munmap(region, bytes);
    } else if (region != MAP_FAILED) {
        /* The exchange failed on this rank, but may have succeeded on others, which then use the region. So the last
         * rank that closes it frees it (shm_free). */
        m->head = region;
        m->region_bytes = bytes;
    }
    return s;
}

static esp_status loop_comm_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    return shm_transport_open(h, g, "loop", params, loop_rendezvous, comm);
}

SHM_BACKEND(loop, "ranks are threads of one process", "inter=,latency=,link=,outer=")
