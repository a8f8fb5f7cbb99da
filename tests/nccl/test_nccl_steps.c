/* test_nccl_steps.c runs whole steps with backend nccl, gradients on the fake device (tests/device) and the stand-in
 * for NCCL (fake/). Results equal those of gradients in host memory, and the host does not wait for the device between
 * two ops. */
/* runs: quiet slow asan-long no-tsan: the stand-in for NCCL is a library that is built without the sanitizer */
#include "tests/lib/test.h"
#include "tests/nccl/on_fake_device.h"
#include "tests/device/backend_job.h"

#define BACKEND "nccl:device=0"

TEST(same_numbers) {
    static const char *const options[] = {FLAT_RAW, FLAT_GPU,  TREE_RAW,  TREE_ROOT,
                                          TREE_GPU, TREE_COMP, TREE_SWAP, SUMMED_GPU};
    for (size_t n = 0; n < 2 * sizeof options / sizeof *options; n++) {
        const int before = launched;
        same_over(BACKEND, espresso_plugin_v1_nccl, options[n / 2], n / 2, n % 2);
        /* NCCL has moved device memory, except for sums done on the host */
        if (strcmp(options[n / 2], SUMMED_GPU)) assert_true(launched > before);
    }
}

/* With three ranks, parts have unequal sizes, and a mean needs a factor of 1/3. */
TEST(three_ranks) {
    static const char *const options[] = {FLAT_RAW, FLAT_GPU, "flat.reduce_scatter > flat.allgather"};
    for (int o = 0; o < 3; o++)
        for (esp_dtype t = ESP_F32; t <= ESP_BF16; t++) {
            device_job j = job_of("none", options[o], t, o);
            j.backend = BACKEND;
            j.backends = espresso_plugin_v1_nccl;
            assert_int_equal(same_on_device(&j, 3, 3, 0), 0);
        }
}

TEST(no_waiting_host) {
    host_does_not_wait(BACKEND, espresso_plugin_v1_nccl, (held_job){FLAT_RAW, NULL, NULL});
    host_does_not_wait(BACKEND, espresso_plugin_v1_nccl, (held_job){TREE_RAW, NULL, NULL});
}

/* Rank 0 waits for its device, which waits for rank 1. Rank 1 has left or does nothing. Rank 0 must return an error. */
typedef struct alone {
    const char *option;
    int stalls, how;
    const char *progress;
} alone;
static void alone_body(esp_ctx *ctx, void *user) {
    const alone *a = user;
    place p;
    esp_tensor_desc d = {.name = "a", .count = 500, .codec = "none", .option = a->option, .device = test_device(0)};
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    if (esp_rank(ctx) == 1) {
        if (a->stalls) pthread_barrier_wait(&together);
        return;
    }
    place_open(ctx, &p, d.device, 2000);
    write_late(&p);
    CHECK(esp_push(ctx, 0, p.grad, p.stream) == ESP_OK);
    if (a->how == 2) {
        CHECK(esp_wait_on(ctx, 0, p.stream) == ESP_OK);
        place_sync(&p);
    }
    const esp_status s = a->how == 1 ? esp_wait(ctx, 0) : esp_wait_all(ctx);
    if (s != (a->stalls ? ESP_E_TIMEOUT : ESP_E_PEER) || !error_has(ctx, "rank 1")) {
        atomic_fetch_add(&failures, 1);
        fprintf(stderr, "%s, %d %d, %s: status %d: %s\n", a->option, a->stalls, a->how, a->progress, (int)s,
                esp_last_error(ctx));
    }
    place_close(&p);
    if (a->stalls) pthread_barrier_wait(&together);
}
TEST(peers_that_do_not_come) {
    static const esp_plugin_fn entries[2] = {fake_plugin, espresso_plugin_v1_nccl};
    static const char *const options[] = {FLAT_RAW, "comp@gpu > flat.allgather > decomp@gpu"};
    for (int k = 0; k < 12; k++) {
        alone a = {options[(k + k / 2 + k / 4 + k / 6) % 2], k % 2, k / 2 % 3, k / 6 ? "caller" : "threads"};
        pthread_barrier_init(&together, NULL, 2);
        RUN_RANKS(.size = 2, .per_machine = 2, .body = alone_body, .user = &a, .config.backend = BACKEND,
                  .config.progress = a.progress, .config.timeout_ms = a.stalls ? 700 : 6000, .config.builtin = entries,
                  .config.n_builtin = 2, .config.log_level = ESP_LOG_ERROR + 1);
        pthread_barrier_destroy(&together);
    }
}

int main(void) {
    standin_choose();
    standin_load();
    return test_main();
}
