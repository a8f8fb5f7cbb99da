/* test_graph.c checks that codecs can be captured in a CUDA graph: they neither wait nor allocate memory, and each
 * launch of the graph runs the step again, with the same bytes as on the CPU. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/emulator/capture.h"

static const char *const specs[] = {"none",
                                    "fp16",
                                    "bf16",
                                    "efsignsgd",
                                    "twobit:relative=1.2",
                                    "int8",
                                    "fp8",
                                    "signum",
                                    "maxmin:random=1",
                                    "onebit",
                                    "int8:shared=1",
                                    "int4",
                                    "topk",
                                    "chunktopk",
                                    "randomk:ratio=0.1",
                                    "dgc",
                                    "threshold:value=0.5",
                                    "powersgd"};
enum { STEPS = 3 };

typedef struct captured {
    const pair_codec *c;
    pair_part *part[2];
    pair_how how;
    esp_buf scratch[ESP_ROUNDS_MAX + 1];
    esp_status status;
} captured;

static void calls(void *arg) {
    captured *k = arg;
    const uint32_t rounds = k->c->cpu.traits.n_rounds;
    for (uint32_t r = 0; r <= rounds && k->status == ESP_OK; r++) {
        const int last = r == rounds;
        esp_codec_args a = pair_args(k->c, k->part, 2, &k->how, last ? 0 : r, 1, last);
        a.scratch = k->scratch[r].bytes ? &k->scratch[r] : NULL;
        k->status = last ? k->c->cuda->decompress(k->c->self, &a) : k->c->cuda->compress(k->c->self, &a);
    }
}

static void one(const char *spec) {
    pair_codec c;
    pair_part part[2];
    captured k = {.c = &c, .part = {&part[0], &part[1]}};
    k.how = (pair_how){.feedback = 1, .beta = 1, .gamma = 1, .n_reduced = 1, .n_payloads = 1, .mode = ESP_OUT_SET};
    pair_codec_open(&c, spec);
    const uint32_t rounds = c.cpu.traits.n_rounds;
    if (cf_has(&c.cpu, ESP_CODEC_OWN_FEEDBACK)) k.how.flags = ESP_ARG_OWN_MEMORY;
    for (uint32_t t = 0; t < 2; t++) {
        pair_part_make(&part[t], &c, t ? 600 : 5000, 1, t);
        cf_fill((float *)(void *)part[t].cpu.at[TW_G] + t, part[t].count, CF_RANDOM);
        pair_up(&part[t], TW_G);
    }
    for (int step = 0; step < STEPS; step++) {
        for (uint32_t r = 0; r < rounds; r++) {
            assert_int_equal(pair_on_cpu(&c, k.part, 2, &k.how, r, 0), ESP_OK);
            for (uint32_t t = 0; t < 2; t++) part[t].body[r] = ((uint64_t *)(void *)part[t].cpu.at[TW_USED])[r];
        }
        assert_int_equal(pair_on_cpu(&c, k.part, 2, &k.how, 0, 1), ESP_OK);
    }
    for (uint32_t r = 0; r <= rounds; r++) {
        const uint64_t bytes = pair_scratch(c.cuda, c.self, k.part, 2, r == rounds ? 0 : r, 1);
        k.scratch[r] = (esp_buf){bytes ? pair_take(bytes) : NULL, bytes, {ESP_CUDA, 0}};
    }
    const int e = capture_and_launch(pair_stream.native, calls, &k, STEPS);
    if (k.status != ESP_OK || e) fail_msg("%s: %s (%s), CUDA error %d", spec, pair_status(k.status), cf_message, e);
    for (uint32_t t = 0; t < 2; t++) {
        pair_same(spec, &part[t], "the payload", part[t].cpu.payload[rounds - 1], part[t].cuda.payload[rounds - 1],
                  part[t].body[rounds - 1]);
        pair_same(spec, &part[t], "the residual", part[t].cpu.at[TW_E], part[t].cuda.at[TW_E], part[t].cpu.bytes[TW_E]);
        pair_same(spec, &part[t], "state", part[t].cpu.at[TW_STATE], part[t].cuda.at[TW_STATE],
                  part[t].cpu.bytes[TW_STATE]);
        pair_same(spec, &part[t], "what was decoded", part[t].cpu.at[TW_OUT], part[t].cuda.at[TW_OUT],
                  part[t].cpu.bytes[TW_OUT]);
        pair_part_free(&part[t]);
    }
    for (uint32_t r = 0; r <= rounds; r++)
        if (k.scratch[r].bytes) pair_give(k.scratch[r].ptr, k.scratch[r].bytes);
    pair_codec_close(&c);
}

TEST(graphs) {
    pair_open("4", 5);
    for (size_t s = 0; s < CF_COUNT(specs); s++) one(specs[s]);
    pair_close();
}
/* Allocating memory waits for the device, so it cannot be captured. */
static void waits(void *arg) {
    captured *k = arg;
    void *p = NULL;
    k->status = pair_table->alloc(pair_device, 64, ESP_MEM_DEVICE, &p);
}
/* esp_push inside a capture is refused, because its event would belong to the graph. */
static void pushes(void *arg) {
    captured *k = arg;
    void *event = NULL;
    assert_int_equal(pair_table->event_create(pair_device, &event), ESP_OK);
    k->status = pair_table->event_record(pair_device, event, pair_stream);
    assert_int_equal(pair_table->event_wait(pair_device, event, pair_stream), ESP_E_UNSUPPORTED);
    pair_table->event_destroy(pair_device, event);
}
TEST(refused) {
    captured k = {.status = ESP_OK};
    pair_open("4", 6);
    (void)capture_and_launch(pair_stream.native, waits, &k, 0);
    assert_int_not_equal(k.status, ESP_OK);
    assert_int_equal(capture_and_launch(pair_stream.native, pushes, &k, 1), 0);
    assert_int_equal(k.status, ESP_E_UNSUPPORTED);
    assert_non_null(strstr(cf_message, "being captured into a CUDA graph: call esp_push and esp_wait_on after"));
    pair_close();
}

TEST(settings) {
    static const struct {
        const char *name, *value, *says;
    } bad[] = {{"ESPRESSO_CUDA_SMS", "0", "ESPRESSO_CUDA_SMS: set it to a whole number"},
               {"ESPRESSO_CUDA_SMS", "4x", "ESPRESSO_CUDA_SMS: set it to a whole number"},
               {"ESPRESSO_CUDA_PRIORITY", "fast", "ESPRESSO_CUDA_PRIORITY: set it to high, or leave it out"}};
    void *device = NULL;
    pair_table = espresso_plugin_v1_cuda(&pair_host)->devices[0];
    for (size_t i = 0; i < CF_COUNT(bad); i++) {
        unsetenv("ESPRESSO_CUDA_SMS");
        setenv(bad[i].name, bad[i].value, 1);
        assert_int_equal(pair_table->open(&pair_host, 0, &device), ESP_E_ARG);
        if (!strstr(cf_message, bad[i].says)) fail_msg("\"%s\" lacks \"%s\"", cf_message, bad[i].says);
        unsetenv(bad[i].name);
    }
    setenv("ESPRESSO_CUDA_PRIORITY", "high", 1);
    assert_int_equal(pair_table->open(&pair_host, 0, &device), ESP_OK);
    pair_table->close(device);
    unsetenv("ESPRESSO_CUDA_PRIORITY");
}

int main(void) { return cuda_missing() ? 77 : test_main(); }
