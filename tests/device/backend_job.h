/* backend_job.h has tests of backends that move device memory, on the fake device. */
#ifndef BACKEND_JOB_H
#define BACKEND_JOB_H
#include "tests/device/device_job.h"

#define SUMMED_GPU "comp@gpu > flat.allreduce > decomp@gpu"
#define TREE_SWAP                                                                                                      \
    "comp@gpu > intra.alltoall > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > intra.allgather > "        \
    "decomp@gpu"

/* Checks that a job over the backend gives the same results with gradients on the device as in host memory. `option` is
 * number `o` of the caller's list. `k` is 0 or 1. Both determine the codec, the data type and how the job waits. */
static void same_over(const char *backend, esp_plugin_fn plugin, const char *option, size_t o, size_t k) {
    device_job j = job_of(k && strcmp(option, SUMMED_GPU) ? "topk:ratio=0.1" : "none", option,
                          (esp_dtype)(ESP_F32 + (o + k) % 3), (int)((o * 2 + k) % KINDS));
    j.wait = (int)(o + k) % 4;
    j.nonfinite = (int)k;
    j.backend = backend;
    j.backends = plugin;
    assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
}

/* The numbers of collectives on device memory that have begun and ended, or NULL if the backend does not count them. */
typedef struct held_job {
    const char *option;
    int *begun, *ended;
} held_job;
static pthread_barrier_t together;
static int now(const int *x) { return x ? __atomic_load_n(x, __ATOMIC_SEQ_CST) : 0; }

static void held_body(esp_ctx *ctx, void *user) {
    const held_job *j = user;
    const esp_device fake = {FAKE_KIND, 0};
    place p[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {
            .name = names[t], .count = counts[t], .codec = "none", .option = j->option, .device = fake};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], fake, counts[t] * 4);
        for (uint64_t i = 0; i < counts[t]; i++) ((float *)p[t].pinned)[i] = (float)(1 + esp_rank(ctx));
    }
    CHECK(esp_start(ctx) == ESP_OK);
    pthread_barrier_wait(&together);
    const int ended = now(j->ended), begun = now(j->begun);
    pthread_barrier_wait(&together);
    fake_hold(1);
    for (int t = 0; t < TENSORS; t++) {
        write_late(&p[t]);
        CHECK(esp_push(ctx, (uint32_t)t, p[t].grad, p[t].stream) == ESP_OK);
    }
    for (int t = 0; t < TENSORS; t++) {
        CHECK(esp_wait_on(ctx, (uint32_t)t, p[t].stream) == ESP_OK);
        CHECK(esp_test(ctx, (uint32_t)t) == ESP_PENDING);
        CHECK(p[t].table->copy(p[t].self, p[t].pinned, p[t].grad, p[t].bytes, p[t].stream) == ESP_OK);
    }
    pthread_barrier_wait(&together);
    CHECK(now(j->ended) == ended);
    CHECK(!j->begun || now(j->begun) >= begun + 2 * TENSORS);
    for (int t = 0; t < TENSORS; t++) CHECK(((float *)p[t].pinned)[0] == (float)(1 + esp_rank(ctx)));
    pthread_barrier_wait(&together);
    fake_hold(0);
    CHECK(esp_wait_all(ctx) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) {
        place_sync(&p[t]);
        for (uint64_t i = 0; i < counts[t]; i++) CHECK(((float *)p[t].pinned)[i] == 2.5f);
        place_close(&p[t]);
    }
}

/* While the device is stopped, the program must be able to push all tensors, and to enqueue work that waits for the
 * means. Nothing may be sent before the device runs again. */
static void host_does_not_wait(const char *backend, esp_plugin_fn plugin, held_job j) {
    const esp_plugin_fn entries[2] = {fake_plugin, plugin};
    pthread_barrier_init(&together, NULL, 4);
    RUN_RANKS(.size = 4, .per_machine = 2, .body = held_body, .user = &j, .config.backend = backend,
              .config.timeout_ms = 30000, .config.builtin = entries, .config.n_builtin = 2);
    pthread_barrier_destroy(&together);
    assert_int_equal(fake_live + fake_refused, 0);
}
#endif
