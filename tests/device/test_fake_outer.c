/* test_fake_outer.c runs outer contexts with parameters on the fake device: the same bits as with parameters in host
 * memory, with anchors on the device or on the host, and after a state was loaded in mid-round. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/context/outer.h"
#include "tests/device/device_job.h"

enum { SIZE = 3, INNER = 23 };

typedef struct outer_job {
    esp_dtype dtype;
    bool device, resume;
    uint32_t flags, tensor_flags;
    const char *codec;
    uint8_t (*out)[TOTAL * 4]; /* [SIZE] */
} outer_job;

static char outer_path[128];

/* Changes the parameters by a copy on the trainer's stream, which runs late. */
static void inner(place *p, esp_dtype d, int t, int32_t rank, int step) {
    if (p->device.kind) place_sync(p), place_get(p);
    for (uint64_t i = 0; i < counts[t]; i++)
        test_value_set(d, p->pinned, i, test_value(d, p->pinned, i) * 0.9f + input(rank, step, begins[t] + i) / 16.0f);
    write_late(p);
}

static void steps(esp_ctx *ctx, place *p, esp_dtype d, int from, int to) {
    for (int k = from; k < to; k++) {
        for (int t = 0; t < TENSORS; t++) inner(&p[t], d, t, esp_rank(ctx), k);
        CHECK(esp_outer_step(ctx, p[0].stream) == ESP_OK);
    }
}

/* Stores all parameters in `at`, or sets them from there. */
static void copy_all(place *p, esp_dtype d, uint8_t *at, bool set) {
    for (int t = 0; t < TENSORS; t++) {
        const uint64_t bytes = counts[t] * esp_dtype_bytes(d);
        if (!set && p[t].device.kind) place_sync(&p[t]), place_get(&p[t]);
        memcpy(set ? p[t].pinned : at, set ? at : p[t].pinned, bytes);
        if (set) write_late(&p[t]);
        at += bytes;
    }
}

/* Starts with parameters that are input() or, on all ranks alike, 0. */
static void outer_start(esp_ctx *ctx, const outer_job *j, const char *method, bool zero, place p[TENSORS]) {
    const esp_outer_desc o = {.method = method, .flags = j->flags};
    CHECK(esp_outer_open(ctx, &o) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) {
        const esp_tensor_desc d = {.name = names[t],
                                   .count = counts[t],
                                   .dtype = j->dtype,
                                   .flags = j->tensor_flags,
                                   .device = j->device ? test_device(0) : (esp_device){0, 0}};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], d.device, d.count * esp_dtype_bytes(d.dtype));
        if (t && j->device) p[t].table->stream_destroy(p[t].self, p[t].stream);
        p[t].stream = p[0].stream; /* the trainer has one stream */
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++)
            test_value_set(j->dtype, p[t].pinned, i, zero ? 0 : input(0, 0, begins[t] + i));
        write_late(&p[t]);
        if (j->device) place_sync(&p[t]);
        CHECK(esp_outer_add(ctx, (uint32_t)t, p[t].grad) == ESP_OK);
    }
}

static void outer_end(place p[TENSORS]) {
    for (int t = 0; t < TENSORS; t++) {
        if (t) p[t].stream.native = NULL;
        place_close(&p[t]);
    }
}

static void outer_body(esp_ctx *ctx, void *user) {
    const outer_job *j = user;
    uint8_t was[TOTAL * 4];
    place p[TENSORS];
    outer_start(ctx, j, "streaming:every=9,fragments=3,delay=2", false, p);
    if (j->device)
        CHECK(esp_outer_step(ctx, (esp_stream){{DEVICE_KIND, 77}, p[0].stream.native}) == ESP_E_UNSUPPORTED &&
              error_has(ctx, "77"));
    steps(ctx, p, j->dtype, 0, 13);
    if (j->resume) {
        CHECK(esp_state_save(ctx, outer_path) == ESP_OK);
        copy_all(p, j->dtype, was, false);
        steps(ctx, p, j->dtype, 30, 34);
        copy_all(p, j->dtype, was, true);
        CHECK(esp_state_load(ctx, outer_path) == ESP_OK);
    }
    steps(ctx, p, j->dtype, 13, INNER);
    copy_all(p, j->dtype, j->out[esp_rank(ctx)], false);
    CHECK(esp_outer_sync(ctx, p[0].stream) == ESP_OK);
    copy_all(p, j->dtype, was, false);
    check_same_bits(ctx, was, TOTAL * esp_dtype_bytes(j->dtype));
    outer_end(p);
}

/* Moves all parameters by `by`, and counts an inner step. */
static void move(esp_ctx *ctx, place *p, float by, bool steps) {
    for (int t = 0; t < TENSORS && by != 0; t++) {
        if (p[t].device.kind) place_sync(&p[t]), place_get(&p[t]);
        for (uint64_t i = 0; i < counts[t]; i++)
            test_value_set(ESP_F32, p[t].pinned, i, test_value(ESP_F32, p[t].pinned, i) + by);
        write_late(&p[t]);
    }
    if (steps) CHECK(esp_outer_step(ctx, p[0].stream) == ESP_OK);
}
static bool all_are(place *p, float value) {
    bool same = true;
    for (int t = 0; t < TENSORS; t++) {
        if (p[t].device.kind) place_sync(&p[t]), place_get(&p[t]);
        for (uint64_t i = 0; i < counts[t]; i++) same &= fabsf(test_value(ESP_F32, p[t].pinned, i) - value) < 1e-5f;
    }
    return same;
}
/* Waits until another rank has pushed, and two windows have passed, of which this test makes short work. */
static void two_windows_pass(esp_ctx *ctx, uint64_t pushes) {
    esp__outer_late *l = &ctx->outer->late;
    for (bool begun = false; !begun; usleep(1000)) {
        pthread_mutex_lock(&l->news);
        begun = l->begun >= pushes;
        if (begun) l->begun_ns -= 2 * l->window_ns, pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->news);
    }
}
/* Rank 2 misses two rounds, while its parameters change on the device. */
static atomic_int late_rounds;
static void late_body(esp_ctx *ctx, void *user) {
    place p[TENSORS];
    outer_start(ctx, user, "diloco:every=1,lr=1,momentum=0,nesterov=0,window=30000", true, p);
    move(ctx, p, 0, true); /* compares anchors, and waits for all */
    if (esp_rank(ctx) < 2) {
        move(ctx, p, 3, true);
        move(ctx, p, 6, true);
        CHECK(all_are(p, 6));
        atomic_fetch_add(&late_rounds, 1);
    } else {
        two_windows_pass(ctx, 2);
        two_windows_pass(ctx, 3);
        esp_stats stats = {.struct_size = sizeof stats};
        while (atomic_load(&late_rounds) < 2 || stats.outer_missed < 2) {
            usleep(1000);
            CHECK(esp_stats_read(ctx, &stats) == ESP_OK);
        }
        move(ctx, p, 0.75f, true);
        CHECK(all_are(p, 6.75f));
    }
    CHECK(esp_outer_sync(ctx, p[0].stream) == ESP_OK && all_are(p, 6.25f));
    outer_end(p);
}

static void outer_run(const outer_job *j) {
    const esp_plugin_fn entry = device_plugin;
    RUN_RANKS(.size = SIZE, .per_machine = 2, .body = j->out ? outer_body : late_body, .user = (void *)(uintptr_t)j,
              .config.codec = j->codec, .config.min_compress_elements = 1, .config.builtin = &entry,
              .config.n_builtin = 1, .config.timeout_ms = 30000);
}

TEST(test_same_bits_as_in_host_memory, folder_make, folder_remove) {
    static uint8_t host[SIZE][TOTAL * 4], other[SIZE][TOTAL * 4];
    static const char *const codecs[] = {NULL, "topk:ratio=0.1"};
    snprintf(outer_path, sizeof outer_path, "%s", in_folder("state"));
    for (esp_dtype d = ESP_F32; d <= ESP_BF16; d++)
        for (int c = 0; c < 4; c++) {
            const uint32_t shard = c > 1 ? ESP_SHARD : 0;
            memset(host, 0, sizeof host);
            outer_run(&(outer_job){.dtype = d, .tensor_flags = shard, .codec = codecs[c % 2], .out = host});
            for (int k = 0; k < 4; k++) {
                memset(other, 0, sizeof other);
                outer_run(&(outer_job){.dtype = d,
                                       .device = true,
                                       .codec = codecs[c % 2],
                                       .tensor_flags = shard,
                                       .flags = k % 2 ? ESP_OUTER_HOST : 0,
                                       .resume = k > 1,
                                       .out = other});
                assert_memory_equal(host, other, sizeof host);
            }
            assert_int_equal(fake_live, 0);
            assert_int_equal(fake_refused, 0);
        }
}

TEST(test_late_rank) {
    for (int k = 0; k < 2; k++) {
        atomic_store(&late_rounds, 0);
        outer_run(&(outer_job){.dtype = ESP_F32, .device = true, .flags = k ? ESP_OUTER_HOST : 0});
    }
}
