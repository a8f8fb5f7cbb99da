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

static void run_options(const char *backend) {
    static const char *const options[] = {FLAT_RAW,   FLAT_GPU,      TREE_RAW,   TREE_ROOT, TREE_GPU,
                                          TREE_COMP,  TREE_REPLICAS, TREE_MIXED, TREE_SWAP, SUMMED_GPU,
                                          TREE_THREE, TREE_ENDS,     TREE_DEEP,  TREE_LATE};
    const int before = moved_done;
    for (size_t n = 0; n < 2 * sizeof options / sizeof *options; n++)
        same_over(backend, moved_plugin, options[n / 2], n / 2, n % 2);
    assert_true(moved_done > before + 100);
    assert_int_equal(moved_done, moved_issued);
}

TEST(test_served) { run_options("served"); }
TEST(test_ordered) { run_options("ordered"); }
/* All streams share one hardware queue, so work also waits if earlier work of another stream waits for an event.
 * Ranks must not deadlock, although each pushes tensors in another order. */
TEST(test_one_queue) {
    fake_one_queue = 1;
    for (unsigned k = 0; k < test_repeats(3); k++) run_options("ordered");
    fake_one_queue = 0;
}

TEST(test_host_does_not_wait) {
    static const char *const options[] = {FLAT_RAW, TREE_RAW, FLAT_GPU, TREE_GPU, TREE_SWAP, TREE_DEEP, TREE_LATE};
    for (size_t o = 0; o < sizeof options / sizeof *options; o++)
        host_does_not_wait("ordered", moved_plugin, (held_job){options[o], &moved_issued, &moved_done});
}
