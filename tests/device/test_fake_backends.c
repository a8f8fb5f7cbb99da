/* test_fake_backends.c checks two kinds of backends that move device memory: one reports when data has arrived, the
 * other is ordered by the stream. Results equal the CPU's, and with the second the host does not wait for the
 * device. */
/* runs: quiet slow asan-long tsan */
#include "tests/lib/test.h"
#include "tests/device/backend_job.h"
#include "tests/device/backend_fake.c"

#define TREE_ENDS                                                                                                      \
    "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > "  \
    "intra.allgather > decomp@cpu"

#define TREE_DEEP                                                                                                      \
    "comp@gpu > intra.alltoall > decomp@gpu > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > "  \
    "decomp@gpu > intra.allgather"
#define TREE_LATE "intra.reduce_scatter > inter.allreduce > comp@gpu > intra.allgather > decomp@gpu"

/* Runs every third case, beginning with number `from`; with TEST_ALL, all cases. */
static void run_options(const char *backend, size_t from) {
    static const char *const options[] = {FLAT_RAW,   FLAT_GPU,      TREE_RAW,   TREE_ROOT, TREE_GPU,
                                          TREE_COMP,  TREE_REPLICAS, TREE_MIXED, TREE_SWAP, SUMMED_GPU,
                                          TREE_THREE, TREE_ENDS,     TREE_DEEP,  TREE_LATE};
    const int before = moved_done, all = getenv("TEST_ALL") != NULL;
    for (size_t n = all ? 0 : from; n < 2 * sizeof options / sizeof *options; n += all ? 1 : 3)
        same_over(backend, moved_plugin, options[n / 2], n / 2, n % 2);
    assert_true(moved_done > before + (all ? 100 : 30));
    assert_int_equal(moved_done, moved_issued);
}

TEST(test_served) { run_options("served", 0); }
TEST(test_ordered) { run_options("ordered", 1); }
/* All streams share one hardware queue, so work also waits if earlier work of another stream waits for an event.
 * Ranks must not deadlock, although each pushes tensors in another order. */
TEST(test_one_queue) {
    fake_one_queue = 1;
    for (unsigned k = 0; k < test_repeats(3); k++) run_options("ordered", 2);
    fake_one_queue = 0;
}

/* A change of strategy leaves residuals of sums, which the second step adds to its gradients. The third frees them,
 * while other ranks' collectives on two links wait for this rank. */
static void change(esp_ctx *ctx, device_job *j, int step) {
    const text t = strategy_of((j->task.kind + 1) % KINDS, "topk:ratio=0.1", j->task.kind % 2 ? TREE_DEEP : TREE_RAW);
    if (step == 0) CHECK(esp_strategy_set(ctx, t.data) == ESP_OK);
}
TEST(test_change_of_strategy) {
    for (unsigned k = 0; k < KINDS * test_repeats(2); k++) {
        device_job j = {.task.codec = "topk:ratio=0.1", .task.option = TREE_GPU};
        j.task.kind = (int)k % KINDS;
        j.task.dtype = ESP_F32;
        j.wait = (int)k % 4;
        j.between = change;
        j.backend = "ordered";
        j.backends = moved_plugin;
        assert_int_equal(same_on_device(&j, 4, 2, k / KINDS % 2 ? ESP_DISCARDABLE : 0), 0);
    }
}

TEST(test_host_does_not_wait) {
    static const char *const options[] = {FLAT_RAW, TREE_RAW, FLAT_GPU, TREE_GPU, TREE_SWAP, TREE_DEEP, TREE_LATE};
    for (size_t o = 0; o < sizeof options / sizeof *options; o++)
        host_does_not_wait("ordered", moved_plugin, (held_job){options[o], &moved_issued, &moved_done});
}
