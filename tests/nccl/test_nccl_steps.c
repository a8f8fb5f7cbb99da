/* test_nccl_steps.c runs whole steps with backend nccl, gradients on the fake device (tests/device) and the stand-in
 * for NCCL (fake/). Results equal those of gradients in host memory, and the host does not wait for the device between
 * two ops. */
/* runs: quiet slow asan-long no-tsan: the stand-in for NCCL is a library that is built without the sanitizer */
#include "tests/lib/test.h"
#include <dlfcn.h>
#define ESP_DEVKIND_OWN ESP_CUDA /* the kind of the fake device included below */
#include "tests/device/device_job.h"
#include "tests/nccl/fake/control.h"
#include "backends/nccl/nccl.h"
#include "tests/lib/entries.h"

#define FLAT_GPU "comp@gpu > flat.allgather > decomp@gpu"
#define TREE_GPU "intra.reduce_scatter > comp@gpu > inter.allgather > decomp@gpu > intra.allgather"
#define TREE_TWICE                                                                                                     \
    "comp@gpu > intra.alltoall > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > intra.allgather > "        \
    "decomp@gpu"
#define BACKEND "nccl:device=0"

static int launched; /* number of kernels on the device's streams */
static void *device_own(const void *p, uint64_t bytes) { return fake_own(p, bytes); }
static void device_launch(void *stream, int (*ready)(void *), int (*run)(void *), const void *arg, size_t bytes) {
    const esp_stream s = {{FAKE_KIND, 0}, stream};
    __atomic_fetch_add(&launched, 1, __ATOMIC_SEQ_CST);
    if (fake_launch_when(s, ready, run, arg, bytes)) abort();
}

TEST(same_numbers) {
    static const char *const options[] = {FLAT_RAW, FLAT_GPU,  TREE_RAW,   TREE_ROOT,
                                          TREE_GPU, TREE_COMP, TREE_TWICE, "comp@gpu > flat.allreduce > decomp@gpu"};
    for (size_t o = 0; o < sizeof options / sizeof *options; o++)
        for (int k = 0; k < 2; k++) {
            const int before = launched, summed = strstr(options[o], "comp@gpu > flat.allreduce") != NULL;
            device_job j;
            memset(&j, 0, sizeof j);
            j.task.codec = k && !summed ? "topk:ratio=0.1" : "none";
            j.task.option = options[o];
            j.task.dtype = (esp_dtype)(ESP_F32 + (o + (size_t)k) % 3);
            j.task.kind = (int)((o * 2 + (size_t)k) % KINDS);
            j.wait = (int)(o + (size_t)k) % 4;
            j.nonfinite = k;
            j.backend = BACKEND;
            j.backends = espresso_plugin_v1_nccl;
            assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
            /* NCCL has moved device memory, except for sums done on the host */
            if (!summed) assert_true(launched > before);
        }
}

/* Three ranks have parts of unequal sizes, and NCCL cannot apply the factor of their mean before the sum. */
TEST(three_ranks) {
    static const char *const options[] = {FLAT_RAW, FLAT_GPU, "flat.reduce_scatter > flat.allgather"};
    for (int o = 0; o < 3; o++)
        for (esp_dtype t = ESP_F32; t <= ESP_BF16; t++) {
            device_job j;
            memset(&j, 0, sizeof j);
            j.task.codec = "none";
            j.task.option = options[o];
            j.task.dtype = t;
            j.task.kind = o;
            j.backend = BACKEND;
            j.backends = espresso_plugin_v1_nccl;
            assert_int_equal(same_on_device(&j, 3, 3, 0), 0);
        }
}

/* While the device is stopped, the host can push a whole step, and let the trainer's streams wait for it. */
static pthread_barrier_t together;
static void held_body(esp_ctx *ctx, void *user) {
    const esp_device fake = {FAKE_KIND, 0};
    place p[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {
            .name = names[t], .count = counts[t], .codec = "none", .option = (const char *)user, .device = fake};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], fake, counts[t] * 4);
        for (uint64_t i = 0; i < counts[t]; i++) ((float *)p[t].pinned)[i] = (float)(1 + esp_rank(ctx));
    }
    CHECK(esp_start(ctx) == ESP_OK);
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
TEST(host_does_not_wait) {
    static char options[][128] = {FLAT_RAW, TREE_RAW};
    static const esp_plugin_fn entries[2] = {fake_plugin, espresso_plugin_v1_nccl};
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        pthread_barrier_init(&together, NULL, 4);
        RUN_RANKS(.size = 4, .per_machine = 2, .body = held_body, .user = options[o], .config.backend = BACKEND,
                  .config.timeout_ms = 30000, .config.builtin = entries, .config.n_builtin = 2);
        pthread_barrier_destroy(&together);
    }
}

/* Rank 0 waits for its device, which waits for rank 1. Rank 1 has left or does nothing. Rank 0 must return an error. */
typedef struct alone {
    const char *option;
    int stalls,
        /* stalls: rank 1 does nothing; how: rank 0 waits for all tensors (0), for one (1), or for its stream (2) */
        how;
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
        place_sync(&p); /* the library ends the collective, although the trainer calls nothing */
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
    static const fake_hooks device = {device_own, device_launch};
    const char *build = getenv("ESPRESSO_BUILD");
    void (*use)(const fake_hooks *);
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/nccl/new/libcuda.so.1", build ? build : "./build");
    setenv("ESPRESSO_NCCL", path, 1);
    setenv("FAKE_SHARED", "1", 1);
    void *p = dlopen(path, RTLD_NOW);
    if (!p || !nccl_find(p, "fake_device_use", &use)) {
        fprintf(stderr, "%s is not there: make it\n", path);
        return 1;
    }
    use(&device);
    return test_main();
}
