/* test_cuda_calls.c checks which calls of the CUDA runtime training steps make, on the tests' emulator: on which
 * devices they make contexts, in which threads they wait, and how many they are. */
/* runs: asan-long no-tsan: the emulator runs kernels as fibers, which the thread sanitizer does not follow */
#define DEVICE_IS_CUDA
#include "tests/lib/test.h"
#include "tests/device/device_job.h"
#include "tests/cuda/emulator/capture.h"
#include "tests/cuda/here.h"

#define ON_GPU "comp@gpu > flat.allgather > decomp@gpu"
#define ON_CPU "comp@cpu > flat.allgather > decomp@cpu"

unsigned cuda_host_contexts(void);
typedef struct cuda_host_counts {
    uint64_t launches, fills, copies, read, written;
    uint64_t records, waits, queries, elapsed, captures, devices, untouched;
} cuda_host_counts;
cuda_host_counts cuda_host_counted(int reset);

/* A rank whose tensors are on GPU 1 must take no memory on GPU 0. */
TEST(contexts) {
    static const char *const options[] = {ON_GPU, ON_CPU};
    for (int k = 0; k < 8; k++) {
        device_job j = {.task.codec = "topk:ratio=0.1", .task.option = options[k % 2], .devices = 3, .wait = k / 2};
        j.task.dtype = ESP_F32;
        (void)cuda_host_contexts();
        assert_int_equal(same_on_device(&j, 2, 2, 0), 0);
        assert_int_equal(cuda_host_contexts(), 1 << 1);
    }
}

/* While the trainer captures a stream for a CUDA graph, the library's threads go on with the step before it. */
static void captures_body(esp_ctx *ctx, void *user) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    place p;
    esp_stream other;
    esp_tensor_desc d = {.name = "a", .count = 5000, .codec = "topk:ratio=0.1", .option = user};
    bool done = false;
    d.device = test_device(0);
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    place_open(ctx, &p, d.device, 20000);
    CHECK(p.table->stream_create(p.self, &other) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int i = 0; i < 5000; i++) ((float *)p.pinned)[i] = (float)i;
    write_late(&p);
    pthread_mutex_lock(&once);
    CHECK(capture_all_begin(other.native) == 0);
    CHECK(esp_push(ctx, 0, p.grad, p.stream) == ESP_OK);
    for (int i = 0; i < 20000 && !done; i++) {
        usleep(500);
        pthread_mutex_lock(&ctx->lanes.lock);
        done = ctx->steps.n_done == 1 || ctx->health.fatal;
        pthread_mutex_unlock(&ctx->lanes.lock);
    }
    CHECK(capture_all_end(other.native) == 0);
    pthread_mutex_unlock(&once);
    CHECK(done && esp_wait_all(ctx) == ESP_OK);
    p.table->stream_destroy(p.self, other);
    place_close(&p);
}
TEST(capture) {
    static char options[][64] = {ON_GPU, ON_CPU};
    static const esp_plugin_fn entry = device_plugin;
    for (int k = 0; k < 2; k++)
        RUN_RANKS(.size = 1, .body = captures_body, .user = options[k], .config.progress = "threads",
                  .config.builtin = &entry, .config.n_builtin = 1);
}

/* ---- calls of events a tensor and step --------------------------------------------------------------------------- */
typedef struct steps {
    const char *option;
    int tensors, group, timed, wait_on;
    cuda_host_counts pushes, all; /* of the last step: during its pushes, and until its end */
} steps;
static void steps_body(esp_ctx *ctx, void *user) {
    enum { MOST = 16, COUNT = 500 };
    steps *j = user;
    place p[MOST];
    text s = {"espresso-strategy 1\n"};
    size_t n = strlen(s.data);
    for (int t = 0; t < j->tensors; t++) {
        char name[2] = {(char)('a' + t), 0};
        esp_tensor_desc d = {.name = name, .count = COUNT, .device = test_device(0)};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], d.device, COUNT * 4);
        for (int i = 0; i < COUNT; i++) ((float *)p[t].pinned)[i] = (float)(i + t);
        n +=
            (size_t)snprintf(s.data + n, sizeof s.data - n,
                             j->group ? "tensor %s %d group\n" : "tensor %s %d topk %s\n", name, (int)COUNT, j->option);
    }
    if (j->group) snprintf(s.data + n, sizeof s.data - n, "group %d topk %s\n", (int)COUNT * j->tensors, j->option);
    CHECK(esp_start(ctx) == ESP_OK && esp_strategy_set(ctx, s.data) == ESP_OK);
    esp__core_times(ctx, ESP__CORE_STATS, j->timed);
    for (int step = 0; step < 10; step++) { /* tensors are not marked after 8 without a wait for a single one */
        for (int t = 0; t < j->tensors; t++) write_late(&p[t]);
        (void)cuda_host_counted(1);
        for (int t = 0; t < j->tensors; t++) CHECK(esp_push(ctx, (uint32_t)t, p[t].grad, p[t].stream) == ESP_OK);
        j->pushes = cuda_host_counted(0);
        for (int t = 0; t < j->tensors && j->wait_on; t++) CHECK(esp_wait_on(ctx, (uint32_t)t, p[t].stream) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        j->all = cuda_host_counted(0);
    }
    for (int t = 0; t < j->tensors; t++) place_close(&p[t]);
}
/* Prints, and returns in `out`, what each further tensor costs in a step. Calls that only ask whether work is done
 * depend on how long it takes, and are not counted. */
static void per_tensor(steps like, const char *what, cuda_host_counts *out) {
    static const esp_plugin_fn entries[2] = {device_plugin, here_plugin};
    steps j[2] = {like, like};
    for (int k = 0; k < 2; k++) {
        j[k].tensors = k ? 16 : 8;
        RUN_RANKS(.size = 1, .body = steps_body, .user = &j[k], .config.backend = "here", .config.progress = "threads",
                  .config.builtin = entries, .config.n_builtin = 2);
        assert_int_equal(j[k].all.untouched, 0);
    }
#define EACH(member) out->member = (j[1].all.member - j[0].all.member) / 8
    EACH(records), EACH(waits), EACH(elapsed), EACH(captures);
    out->devices = j[1].pushes.devices / 16;
    printf("%s: %d records, %d waits, %d elapsed, %d captures; current device: %d in esp_push\n", what,
           (int)out->records, (int)out->waits, (int)out->elapsed, (int)out->captures, (int)out->devices);
}
TEST(calls) {
    cuda_host_counts c;
    per_tensor((steps){.option = ON_GPU}, "compressed", &c);
    assert_int_equal(c.records + c.waits, 6); /* push > compress > collective > decompress: three, and their waits */
    assert_int_equal(c.elapsed, 0);
    assert_int_equal(c.captures, 1); /* of the trainer's stream */
    assert_int_equal(c.devices, 3);  /* in a thread without a context; else 1 */
    per_tensor((steps){.option = ON_GPU, .wait_on = 1}, "compressed, esp_wait_on", &c);
    assert_int_equal(c.records + c.waits, 8);
    per_tensor((steps){.option = "flat.allreduce"}, "not compressed", &c);
    assert_int_equal(c.records + c.waits, 3);
    per_tensor((steps){.option = ON_GPU, .group = 1}, "compressed, in a group", &c);
    assert_int_equal(c.records + c.waits, 2);
    assert_int_equal(c.elapsed, 0);
    per_tensor((steps){.option = ON_GPU, .timed = 1}, "compressed and timed", &c);
    assert_int_equal(c.records + c.waits, 12);
    assert_int_equal(c.elapsed, 6);
}

/* ---- what one call of the runtime cannot do ---------------------------------------------------------------------- */
static char told[512];
static int32_t told_level;
static void tells(void *user, const esp_log_event *ev) {
    told_level = ev->level;
    snprintf(told, sizeof told, "%s", ev->message);
}
/* A driver that is older than the runtime is why no device can be used, and the user must learn it. */
TEST(old_driver) {
    const esp_host host = {.struct_size = sizeof host, .log = tells};
    int32_t count = 1;
    setenv("CUDA_HOST_DRIVER", "12080", 1);
    assert_int_equal(device_plugin(&host)->devices[0]->probe(&host, &count), ESP_OK);
    unsetenv("CUDA_HOST_DRIVER");
    assert_int_equal(count, 0);
    assert_int_equal(told_level, ESP_LOG_WARN);
    assert_non_null(strstr(told, "the driver knows CUDA up to 12.8, the plugin is built with 13.0"));
    setenv("CUDA_HOST_DEVICES", "0", 1);
    assert_int_equal(device_plugin(&host)->devices[0]->probe(&host, &count), ESP_OK);
    unsetenv("CUDA_HOST_DEVICES");
    assert_int_equal(told_level, ESP_LOG_INFO);
}
/* CUDA refuses to copy rows that begin 2 GiB or more apart, even a single one. */
static void wide_body(esp_ctx *ctx, void *user) {
    place from, to;
    place_open(ctx, &from, test_device(0), 8);
    place_open(ctx, &to, test_device(0), 8);
    memcpy(from.pinned, "payload", 8);
    CHECK(to.table->copy2d(to.self, to.grad, 8, from.pinned, 1ull << 31, 8, 1, to.stream) == ESP_OK);
    place_get(&to);
    CHECK(!memcmp(to.pinned, "payload", 8));
    place_close(&from), place_close(&to);
}
TEST(wide_rows) {
    static const esp_plugin_fn entry = device_plugin;
    RUN_RANKS(.size = 1, .body = wide_body, .config.builtin = &entry, .config.n_builtin = 1);
}
