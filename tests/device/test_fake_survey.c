/* test_fake_survey.c checks that codecs can be measured on a device, for the planner. Sizes and errors equal the CPU's.
 * A device that is missing, has no memory left or fails is an error on all ranks. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

enum { MOST = 1 << 14 };
static const char *const specs[] = {"topk:ratio=0.1", "none", "topk:ratio=0.5,feedback=none"};
enum { SPECS = sizeof specs / sizeof *specs };

static int lacks(const esp_ctx *ctx, const char *part) {
    if (strstr(esp_last_error(ctx), part)) return 0;
    fprintf(stderr, "\"%s\" lacks \"%s\"\n", esp_last_error(ctx), part);
    return 1;
}

static void measure(esp_ctx *ctx, esp__calibration *s, int device) {
    CHECK(!esp__calibration_open(ctx, s, 4096, MOST));
    if (device) CHECK(!esp__calibration_use(ctx, s, DEVICE_KIND));
    for (int k = 0; k < SPECS; k++) CHECK(!esp__calibration_codec_add(ctx, s, specs[k]));
    for (uint32_t k = 0; k < SPECS; k++)
        for (uint64_t n = 1; n <= MOST; n *= 128) CHECK(!esp__calibration_codec_at(ctx, s, k, n, 3));
    CHECK(!esp__calibration_finish(ctx, s));
}

static void same_figures(esp_ctx *ctx, void *user) {
    static esp__calibration all[2][RANKS];
    esp__calibration *cpu = &all[0][esp_rank(ctx)], *gpu = &all[1][esp_rank(ctx)];
    measure(ctx, cpu, 0);
    measure(ctx, gpu, 1);
    CHECK(cpu->system.devices == 1u << ESP_ON_CPU && gpu->system.devices == 1u << ESP_ON_GPU);
    for (int k = 0; k < SPECS; k++) {
        const esp_plan_codec *a = &cpu->plan_codecs[k], *b = &gpu->plan_codecs[k];
        CHECK(a->header_bytes == b->header_bytes && a->unit_bytes == b->unit_bytes && a->units == b->units);
        CHECK(a->error == b->error && a->caps == b->caps);
        CHECK(a->compress[ESP_ON_CPU].n && !a->compress[ESP_ON_GPU].n);
        CHECK(b->compress[ESP_ON_GPU].n == a->compress[ESP_ON_CPU].n && !b->compress[ESP_ON_CPU].n);
        CHECK(b->decompress[ESP_ON_GPU].n == a->decompress[ESP_ON_CPU].n && !b->decompress[ESP_ON_CPU].n);
        CHECK(b->decompress_more[ESP_ON_GPU].n == a->decompress_more[ESP_ON_CPU].n);
        for (uint32_t i = 0; i < b->compress[ESP_ON_GPU].n; i++) {
            CHECK(b->compress[ESP_ON_GPU].points[i].ns > 0 && b->decompress[ESP_ON_GPU].points[i].ns > 0);
            CHECK(b->compress[ESP_ON_GPU].points[i].size == a->compress[ESP_ON_CPU].points[i].size);
        }
    }
    CHECK(esp__calibration_codec_add(ctx, gpu, "efsignsgd") == ESP_E_UNSUPPORTED);
    CHECK(!lacks(ctx, "codec 'efsignsgd': it has no table for device 'fake'"));
    esp__calibration_close(ctx, cpu);
    esp__calibration_close(ctx, gpu);
}

/* If work fails on one rank's device, all ranks get an error. */
static void broken(esp_ctx *ctx, void *user) {
    static esp__calibration all[RANKS];
    esp__calibration *s = &all[esp_rank(ctx)];
    CHECK(!esp__calibration_open(ctx, s, 4096, MOST));
    CHECK(!esp__calibration_use(ctx, s, DEVICE_KIND));
    CHECK(!esp__calibration_codec_add(ctx, s, specs[0]));
    CHECK(!esp__calibration_codec_at(ctx, s, 0, MOST, 3));
    CHECK(!esp_barrier(ctx));
    __atomic_store_n(&fake_broken, 1, __ATOMIC_SEQ_CST);
    CHECK(esp__calibration_codec_at(ctx, s, 0, MOST, 3) != ESP_OK);
    CHECK(!lacks(ctx, "codec 'topk:ratio=0.1'") || !lacks(ctx, "fake"));
    CHECK(!esp_barrier(ctx));
    __atomic_store_n(&fake_broken, 0, __ATOMIC_SEQ_CST);
    esp__calibration_close(ctx, s);
}

static void not_there(esp_ctx *ctx, void *user) {
    static esp__calibration all[RANKS];
    esp__calibration *s = &all[esp_rank(ctx)];
    CHECK(!esp__calibration_open(ctx, s, 4096, MOST));
    CHECK(esp__calibration_use(ctx, s, (esp_devkind)(DEVICE_KIND + 1)) == ESP_E_UNSUPPORTED);
    CHECK(!lacks(ctx, "measuring codecs: there is no device of kind"));
    esp__calibration_close(ctx, s);
}

static void no_memory(esp_ctx *ctx, void *user) {
    static esp__calibration all[RANKS];
    esp__calibration *s = &all[esp_rank(ctx)];
    for (uint64_t left = 0; left < 1u << 23; left = left * 2 + 1000) {
        CHECK(!esp__calibration_open(ctx, s, 4096, MOST));
        CHECK(!esp_barrier(ctx));
        __atomic_store_n(&fake_left, left, __ATOMIC_SEQ_CST);
        CHECK(!esp_barrier(ctx));
        esp_status st = esp__calibration_use(ctx, s, DEVICE_KIND);
        if (!st) st = esp__calibration_codec_add(ctx, s, specs[0]);
        CHECK(!st || st == ESP_E_NOMEM);
        CHECK(!esp_barrier(ctx));
        __atomic_store_n(&fake_left, UINT64_MAX, __ATOMIC_SEQ_CST);
        CHECK(!esp_barrier(ctx));
        esp__calibration_close(ctx, s);
    }
}

static void run(void (*body)(esp_ctx *, void *), int32_t size, int32_t per_machine) {
    static const esp_plugin_fn entry = device_plugin;
    RUN_RANKS(.size = size, .per_machine = per_machine, .body = body, .config.builtin = &entry, .config.n_builtin = 1);
    assert_int_equal(fake_live + fake_refused, 0);
}

TEST(test_figures) {
    run(same_figures, 1, 1);
    run(same_figures, 4, 2);
}
TEST(test_broken) {
    run(broken, 1, 1);
    run(broken, 3, 3);
}
TEST(test_not_there) { run(not_there, 2, 2); }
TEST(test_no_memory) {
    run(no_memory, 1, 1);
    run(no_memory, 2, 2);
}
