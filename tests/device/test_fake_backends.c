/* test_fake_backends.c checks two kinds of backends that move device memory: one reports when data has arrived, the
 * other is ordered by the stream. Results equal the CPU's, and with the second the host does not wait for the
 * device. */
/* runs: quiet slow asan-long tsan */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"
#include "tests/device/backend_fake.c"

#define FLAT_GPU "comp@gpu > flat.allgather > decomp@gpu"
#define TREE_GPU "intra.reduce_scatter > comp@gpu > inter.allgather > decomp@gpu > intra.allgather"
#define TREE_MIXED                                                                                                     \
    "comp@gpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > "  \
    "decomp@gpu > intra.allgather"
#define TREE_SWAP                                                                                                      \
    "comp@gpu > intra.alltoall > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > intra.allgather > "        \
    "decomp@gpu"

/* The host compresses and decompresses, and payloads are sent from device memory. */
#define TREE_ENDS                                                                                                      \
    "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > "  \
    "intra.allgather > decomp@cpu"

#define TREE_DEEP                                                                                                      \
    "comp@gpu > intra.alltoall > decomp@gpu > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > "  \
    "decomp@gpu > intra.allgather"
#define TREE_LATE "intra.reduce_scatter > inter.allreduce > comp@gpu > intra.allgather > decomp@gpu"

static void run_options(const char *backend, int least) {
    static const char *const options[] = {
        FLAT_RAW,   FLAT_GPU,      TREE_RAW,   TREE_ROOT, TREE_GPU,
        TREE_COMP,  TREE_REPLICAS, TREE_MIXED, TREE_SWAP, "comp@gpu > flat.allreduce > decomp@gpu",
        TREE_THREE, TREE_ENDS,     TREE_DEEP,  TREE_LATE};
    const int before = moved_done;
    for (size_t o = 0; o < sizeof options / sizeof *options; o++)
        for (int k = 0; k < 2; k++) {
            const int summed = strstr(options[o], "comp@gpu > flat.allreduce") != NULL;
            device_job j;
            memset(&j, 0, sizeof j);
            j.task.codec = k && !summed ? "topk:ratio=0.1" : "none";
            j.task.option = options[o];
            j.task.dtype = (esp_dtype)(ESP_F32 + (o + (size_t)k) % 3);
            j.task.kind = (int)((o * 2 + (size_t)k) % KINDS);
            j.wait = (int)(o + (size_t)k) % 4;
            j.nonfinite = k;
            j.backend = backend;
            j.backends = moved_plugin;
            assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
        }
    assert_true(moved_done > before + least);
    assert_int_equal(moved_done, moved_issued);
}

TEST(test_served) { run_options("served", 100); }
TEST(test_ordered) { run_options("ordered", 100); }
/* All streams share a hardware queue, where work waits behind streams that wait for an event. The ranks must not
 * deadlock, although each pushes tensors in another order. */
TEST(test_one_queue) {
    fake_one_queue = 1;
    for (unsigned k = 0; k < test_repeats(3); k++) run_options("ordered", 100);
    fake_one_queue = 0;
}

/* While the device is stopped, the host can push a whole step, and let the trainer's streams wait for it. */
static pthread_barrier_t together;
static void held_body(esp_ctx *ctx, void *user) {
    const char *const option = user;
    const esp_device fake = {FAKE_KIND, 0};
    place p[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t], .count = counts[t], .codec = "none", .option = option, .device = fake};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], fake, counts[t] * 4);
        for (uint64_t i = 0; i < counts[t]; i++) ((float *)p[t].pinned)[i] = (float)(1 + esp_rank(ctx));
    }
    CHECK(esp_start(ctx) == ESP_OK);
    pthread_barrier_wait(&together);
    const int done = __atomic_load_n(&moved_done, __ATOMIC_SEQ_CST),
              issued = __atomic_load_n(&moved_issued, __ATOMIC_SEQ_CST);
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
    pthread_barrier_wait(&together); /* all ranks have enqueued everything, and nothing was sent */
    CHECK(__atomic_load_n(&moved_done, __ATOMIC_SEQ_CST) == done);
    CHECK(__atomic_load_n(&moved_issued, __ATOMIC_SEQ_CST) >= issued + 2 * TENSORS);
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

TEST(test_host_does_not_wait) {
    static char options[][256] = {FLAT_RAW, TREE_RAW, FLAT_GPU, TREE_GPU, TREE_SWAP, TREE_DEEP, TREE_LATE};
    static const esp_plugin_fn entries[2] = {fake_plugin, moved_plugin};
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        pthread_barrier_init(&together, NULL, 4);
        RUN_RANKS(.size = 4, .per_machine = 2, .body = held_body, .user = options[o], .config.backend = "ordered",
                  .config.timeout_ms = 30000, .config.builtin = entries, .config.n_builtin = 2);
        pthread_barrier_destroy(&together);
        assert_int_equal(fake_live + fake_refused, 0);
    }
}
