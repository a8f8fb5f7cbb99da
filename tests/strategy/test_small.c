/* test_small.c checks that built-in strategies do not compress small tensors: the limit, and its exceptions. */
/* runs: tsan */
#include "tests/lib/test.h"

static const char codec[] = "topk:ratio=0.01";

/* Returns the strategy's line for tensor `name`. The tensors have 1, 4096, 4097 and 20000 elements. */
static const char *line_of(uint64_t least, const char *strategy, const char *wish, const char *name) {
    static char line[512];
    static const uint64_t counts[] = {1, 4096, 4097, 20000};
    esp_ctx *ctx = NULL;
    esp_config cfg = {
        .codec = codec, .strategy = strategy, .backend = "loop", .rank = 0, .size = 1, .min_compress_elements = least};
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    for (uint32_t i = 0; i < 4; i++) {
        char tensor[16];
        uint32_t id;
        snprintf(tensor, sizeof tensor, "t%llu", (unsigned long long)counts[i]);
        esp_tensor_desc d = {.name = tensor, .count = counts[i], .codec = i == 1 ? wish : NULL};
        assert_int_equal(esp_tensor_add(ctx, &d, &id), ESP_OK);
    }
    assert_int_equal(esp_start(ctx), ESP_OK);
    snprintf(line, sizeof line, " %s ", name);
    const char *at = strstr(esp_strategy_text(ctx), line);
    assert_non_null(at);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at + 1, "\n"), at + 1);
    esp_close(ctx);
    return line;
}

static int compresses(uint64_t least, const char *strategy, const char *wish, const char *name) {
    return strstr(line_of(least, strategy, wish, name), "comp@") != NULL;
}

TEST(layerwise) {
    static const char *const strategies[] = {NULL, "layerwise"};
    unsetenv("ESPRESSO_MIN_COMPRESS_ELEMENTS");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(compresses(0, strategies[i], NULL, "t1"), 0);
        assert_int_equal(compresses(0, strategies[i], NULL, "t4096"), 0);
        assert_int_equal(compresses(0, strategies[i], NULL, "t4097"), 1);
        assert_int_equal(compresses(4098, strategies[i], NULL, "t4097"), 0);
        assert_int_equal(compresses(4098, strategies[i], NULL, "t20000"), 1);
        assert_int_equal(compresses(1, strategies[i], NULL, "t1"), 1);
        assert_int_equal(compresses(1, strategies[i], NULL, "t4096"), 1);
    }
    assert_non_null(strstr(line_of(0, NULL, NULL, "t4096"), " none flat.allreduce"));
    /* a tensor's own codec is used even below the limit */
    assert_int_equal(compresses(0, NULL, "randomk:ratio=0.1", "t4096"), 1);
    assert_int_equal(compresses(1, "fp32", NULL, "t20000"), 0);
}

TEST(environment) {
    esp_config cfg = ESP_ZERO, out;
    cfg.min_compress_elements = 7;
    setenv("ESPRESSO_MIN_COMPRESS_ELEMENTS", "20001", 1);
    assert_int_equal(compresses(1, NULL, NULL, "t20000"), 0);
    setenv("ESPRESSO_MIN_COMPRESS_ELEMENTS", "0", 1);
    assert_int_equal(compresses(0, NULL, NULL, "t1"), 1);
    setenv("ESPRESSO_MIN_COMPRESS_ELEMENTS", "-3", 1);
    assert_int_equal(esp__env_config(&cfg, &out), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "ESPRESSO_MIN_COMPRESS_ELEMENTS is \"-3\""));
    unsetenv("ESPRESSO_MIN_COMPRESS_ELEMENTS");
    assert_int_equal(esp__env_config(&cfg, &out), ESP_OK);
    assert_int_equal(out.min_compress_elements, 7);
}
