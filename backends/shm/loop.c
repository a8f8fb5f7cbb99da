/* loop.c: backend "loop": the ranks are threads of one process, so each reads the others' buffers by their
 * addresses. For tests, and for programs that run each rank as a thread. This file makes and shares the region;
 * backends/shm moves the data. */
#include "backends/shm/transport.h"
#include <sys/mman.h>

/* The region's address travels through the caller's exchange, which may be a socket. The thread sanitizer cannot see
 * that this exchange orders rank 0's writes before the other ranks' reads, so it is told. */
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
    *score = 1; /* lowest: chosen only where no other backend runs */
    return ESP_OK;
}

static void loop_drop_region(engine_comm *m) {
    if (__atomic_sub_fetch(&m->head->refs, 1, __ATOMIC_SEQ_CST) == 0) munmap(m->head, m->region_bytes);
    m->head = NULL;
}

static esp_status loop_same_process(engine_comm *m) {
    const engine_hello *all = m->hello;
    for (int32_t q = 0; q < m->size; q++)
        if (all[q].pid != all[0].pid)
            return backend_error(m, ESP_E_UNSUPPORTED, "ranks 0 and %d are not threads of one process: use backend shm",
                                 (int)q);
    return ESP_OK;
}

static esp_status loop_meet(engine_comm *m, const esp_group *g, esp_status so_far, const char *params) {
    uint64_t bytes = engine_region_bytes(m->size);
    void *region = MAP_FAILED;
    m->reach = ENGINE_REACH_POINTER;
    m->drop_region = loop_drop_region;
    if (m->rank == 0 && so_far == ESP_OK) {
        region = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (region == MAP_FAILED)
            so_far = backend_error(m, ESP_E_NOMEM, "no memory for %d ranks", (int)m->size);
        else
            ((engine_head *)region)->refs = (uint32_t)m->size, loop_release(region);
    }
    engine_hello mine = engine_hello_of(m, g, so_far, params);
    mine.address = region == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)region;
    esp_status s = engine_exchange(m, g, &mine);
    if (s == ESP_OK) s = engine_same_params(m);
    if (s == ESP_OK) s = loop_same_process(m);
    if (s == ESP_OK) {
        region = (void *)(uintptr_t)m->hello[0].address;
        loop_acquire(region);
        s = engine_join(m, g, region);
    } else if (region != MAP_FAILED && m->pid[0]) {
        munmap(region, bytes); /* after an exchange all have the same status: none uses it */
    } else if (region != MAP_FAILED) {
        /* the exchange failed here, maybe not on the others: this rank alone gives the region up */
        m->head = region;
        m->region_bytes = bytes;
    }
    return s;
}

static esp_status loop_comm_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    return engine_open(h, g, "loop", params, NULL, loop_meet, comm);
}

ENGINE_BACKEND(loop, "ranks are threads of one process", "inter=,latency=,link=,outer=")
