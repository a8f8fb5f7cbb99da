/* test_fake_outer.c runs outer contexts with parameters on the fake device: the same bits as with parameters in host
 * memory, with anchors on the device or on the host, and after a state was loaded in mid-round. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

enum { SIZE = 3, INNER = 23 };

typedef struct outer_job {
    esp_dtype dtype;
    bool device, resume;
    uint32_t flags;
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

static void outer_body(esp_ctx *ctx, void *user) {
    const outer_job *j = user;
    const esp_outer_desc o = {.method = "streaming:every=9,fragments=3,delay=2", .flags = j->flags};
    uint8_t was[TOTAL * 4];
    place p[TENSORS];
    CHECK(esp_outer_open(ctx, &o) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) {
        const esp_tensor_desc d = {.name = names[t],
                                   .count = counts[t],
                                   .dtype = j->dtype,
                                   .device = j->device ? test_device(0) : (esp_device){0, 0}};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], d.device, d.count * esp_dtype_bytes(d.dtype));
        if (t && j->device) p[t].table->stream_destroy(p[t].self, p[t].stream);
        p[t].stream = p[0].stream; /* the trainer has one stream */
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (int t = 0; t < TENSORS; t++) {
        for (uint64_t i = 0; i < counts[t]; i++) test_value_set(j->dtype, p[t].pinned, i, input(0, 0, begins[t] + i));
        write_late(&p[t]);
        if (j->device) place_sync(&p[t]);
        CHECK(esp_outer_add(ctx, (uint32_t)t, p[t].grad) == ESP_OK);
    }
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
    for (int t = 0; t < TENSORS; t++) {
        if (t) p[t].stream.native = NULL;
        place_close(&p[t]);
    }
}

static void outer_run(const outer_job *j) {
    const esp_plugin_fn entry = device_plugin;
    RUN_RANKS(.size = SIZE, .per_machine = 2, .body = outer_body, .user = (void *)(uintptr_t)j,
              .config.codec = j->codec, .config.min_compress_elements = 1, .config.builtin = &entry,
              .config.n_builtin = 1, .config.timeout_ms = 30000);
}

TEST(test_same_bits_as_in_host_memory, folder_make, folder_remove) {
    static uint8_t host[SIZE][TOTAL * 4], other[SIZE][TOTAL * 4];
    static const char *const codecs[] = {NULL, "topk:ratio=0.1"};
    snprintf(outer_path, sizeof outer_path, "%s", in_folder("state"));
    for (esp_dtype d = ESP_F32; d <= ESP_BF16; d++)
        for (int c = 0; c < 2; c++) {
            memset(host, 0, sizeof host);
            outer_run(&(outer_job){.dtype = d, .codec = codecs[c], .out = host});
            for (int k = 0; k < 4; k++) {
                memset(other, 0, sizeof other);
                outer_run(&(outer_job){.dtype = d,
                                       .device = true,
                                       .codec = codecs[c],
                                       .flags = k % 2 ? ESP_OUTER_HOST : 0,
                                       .resume = k > 1,
                                       .out = other});
                assert_memory_equal(host, other, sizeof host);
            }
            assert_int_equal(fake_live, 0);
            assert_int_equal(fake_refused, 0);
        }
}
