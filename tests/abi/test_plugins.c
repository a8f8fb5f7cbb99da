/* test_plugins.c loads plugins that are compiled with an older and a newer header, and plugins that the library must
 * refuse. The plugins are plugin_*.c of this folder, linked as build/tests/abi/libespresso-<name>.so. */
/* runs: no-tsan: starts only threads of the library, which other tests run under the thread sanitizer */
#include "tests/lib/test.h"

static char dir[3072];

static esp_ctx *open_ctx(const char *path, uint32_t flags) {
    esp_ctx *ctx = NULL;
    esp_config cfg = {.size = 1, .plugin_path = path, .flags = flags};
    if (esp_open(&cfg, &ctx) != ESP_OK) fail_msg("esp_open: %s", esp_last_error(NULL));
    return ctx;
}

static void assert_error(const esp_ctx *ctx, const char *part) {
    if (!strstr(esp_last_error(ctx), part)) fail_msg("\"%s\" lacks \"%s\"", esp_last_error(ctx), part);
}

static void refuse(const char *name, esp_status status, const char *part) {
    esp_ctx *ctx = open_ctx(dir, 0);
    const uint32_t n = ctx->registry.codecs.n;
    assert_int_equal(esp_plugin_load(ctx, name), status);
    assert_error(ctx, part);
    assert_int_equal(ctx->registry.codecs.n, n);
    esp_close(ctx);
}

static void round_trip(esp_ctx *ctx, const char *spec) {
    float in[100], out[100];
    unsigned char data[1024];
    uint64_t used = 0;
    esp_codec_handle *h = NULL;
    for (int i = 0; i < 100; i++) in[i] = (float)(i - 50);
    if (esp_codec_open(ctx, spec, 100, "none", &h) != ESP_OK) fail_msg("%s", esp_last_error(ctx));
    assert_true(esp_compress_bound(h) <= sizeof data);
    assert_int_equal(esp_compress(h, in, 100, data, sizeof data, &used), ESP_OK);
    assert_int_equal(esp_decompress(h, data, used, out, 100, ESP_OUT_SET), ESP_OK);
    assert_memory_equal(in, out, sizeof in);
    esp_codec_close(h);
}

TEST(test_older_table) {
    esp_ctx *ctx = open_ctx(dir, 0);
    assert_int_equal(esp_plugin_load(ctx, "older"), ESP_OK);
    round_trip(ctx, "older");
    assert_false(ESP_HAS(esp_codec, esp__registry_codec(ctx, "older"), finalize));
    esp_close(ctx);
}

TEST(test_newer_table) {
    esp_ctx *ctx = open_ctx(dir, 0);
    assert_int_equal(esp_plugin_load(ctx, "newer"), ESP_OK);
    round_trip(ctx, "newer");
    esp_close(ctx);
}

TEST(test_loads_by_codec_name) {
    esp_ctx *ctx = open_ctx(dir, 0);
    /* No call has loaded the plugin. The library finds it by the codec's name. */
    round_trip(ctx, "newer");
    esp_close(ctx);
}

TEST(test_two_contexts) {
    esp_ctx *a = open_ctx(dir, 0), *b = open_ctx(dir, 0);
    assert_int_equal(esp_plugin_load(a, "older"), ESP_OK);
    assert_int_equal(esp_plugin_load(b, "older"), ESP_OK);
    assert_int_equal(esp_plugin_load(b, "older"), ESP_OK); /* loading the same plugin again adds nothing */
    esp_close(a);
    round_trip(b, "older");
    esp_close(b);
}

TEST(test_short_table) { refuse("short", ESP_E_ABI, "required member decompress"); }
TEST(test_major_2) { refuse("major2", ESP_E_ABI, "made for plugin ABI 2"); }
TEST(test_no_plugin) { refuse("notone", ESP_E_ABI, "not an Espresso plugin"); }
TEST(test_refuses) { refuse("refuses", ESP_E_UNSUPPORTED, "needs a coffee machine"); }
TEST(test_bad_name) { refuse("a b", ESP_E_ARG, "cannot be a plugin's name"); }
TEST(test_empty_name) { refuse("", ESP_E_ARG, "no plugin given"); }

TEST(test_missing_file) {
    char list[4096];
    esp_ctx *ctx;
    snprintf(list, sizeof list, "/nowhere/one:%s", dir);
    ctx = open_ctx(list, 0);
    setenv("ESPRESSO_PLUGIN_PATH", "/nowhere/two:/nowhere/three", 1);
    assert_int_equal(esp_plugin_load(ctx, "nosuch"), ESP_E_NOT_FOUND);
    unsetenv("ESPRESSO_PLUGIN_PATH");
    assert_error(ctx, "/nowhere/one/libespresso-nosuch.so");
    assert_error(ctx, dir);
    assert_error(ctx, "/nowhere/two/libespresso-nosuch.so");
    assert_error(ctx, "/nowhere/three/libespresso-nosuch.so");
    assert_error(ctx, ESPRESSO_PREFIX "/lib/espresso/libespresso-nosuch.so");
    assert_true(strstr(esp_last_error(ctx), "/nowhere/one/") < strstr(esp_last_error(ctx), "/nowhere/two/"));
    assert_int_equal(esp_plugin_load(ctx, "./nosuch.so"), ESP_E_NOT_FOUND);
    assert_error(ctx, "./nosuch.so: no such file");
    esp_close(ctx);
}

TEST(test_broken_file) {
    char name[] = "/tmp/espresso-test-XXXXXX", path[128];
    esp_ctx *ctx;
    FILE *f;
    assert_non_null(mkdtemp(name));
    snprintf(path, sizeof path, "%s/libespresso-older.so", name);
    f = fopen(path, "w");
    fputs("this is no shared object", f);
    fclose(f);
    ctx = open_ctx(name, 0);
    assert_int_equal(esp_plugin_load(ctx, "older"), ESP_E_ABI);
    assert_error(ctx, path);
    setenv("ESPRESSO_PLUGIN_PATH", dir, 1);
    assert_int_equal(esp_plugin_load(ctx, "older"), ESP_OK);
    unsetenv("ESPRESSO_PLUGIN_PATH");
    esp_close(ctx);
    unlink(path);
    rmdir(name);
}

TEST(test_duplicate) {
    esp_ctx *ctx = open_ctx(dir, 0);
    assert_int_equal(esp_plugin_load(ctx, "older"), ESP_OK);
    assert_int_equal(esp_plugin_load(ctx, "twice"), ESP_E_ARG);
    assert_error(ctx, "codec \"older\" is there twice");
    assert_error(ctx, "libespresso-older.so");
    assert_error(ctx, "libespresso-twice.so");
    assert_error(ctx, "ESP_ALLOW_OVERRIDE");
    assert_null(esp__registry_codec(ctx, "only-in-twice"));
    esp_close(ctx);
    ctx = open_ctx(dir, ESP_ALLOW_OVERRIDE);
    assert_int_equal(esp_plugin_load(ctx, "older"), ESP_OK);
    assert_int_equal(esp_plugin_load(ctx, "twice"), ESP_OK);
    assert_true(ESP_HAS(esp_codec, esp__registry_codec(ctx, "older"), struct_size));
    assert_int_equal(esp__registry_codec(ctx, "older")->struct_size, sizeof(esp_codec));
    esp_close(ctx);
}

TEST(test_builtin_name) {
    char path[4096];
    esp_ctx *ctx = open_ctx(dir, 0);
    assert_int_equal(esp_plugin_load(ctx, "builtin"), ESP_E_ARG);
    assert_error(ctx, "built in");
    snprintf(path, sizeof path, "%s/libespresso-builtin.so", dir);
    /* A plugin that is given by its path may replace a built-in codec. */
    assert_int_equal(esp_plugin_load(ctx, path), ESP_OK);
    assert_string_equal(esp__registry_codec(ctx, "none")->summary, "copies");
    esp_close(ctx);
}

TEST(test_after_start) {
    esp_ctx *ctx = open_ctx(dir, 0);
    uint32_t id;
    esp_tensor_desc d = {.name = "w", .count = 10};
    assert_int_equal(esp_tensor_add(ctx, &d, &id), ESP_OK);
    assert_int_equal(esp_start(ctx), ESP_OK);
    assert_int_equal(esp_plugin_load(ctx, "older"), ESP_E_STATE);
    assert_error(ctx, "before esp_start");
    esp_close(ctx);
}

TEST(test_plugin_error_reaches_caller) {
    esp_ctx *ctx = open_ctx(dir, 0);
    esp_codec_handle *h = NULL;
    assert_int_equal(esp_codec_open(ctx, "older:x=1", 100, "none", &h), ESP_E_ARG);
    assert_error(ctx, "raw takes no parameters");
    esp_close(ctx);
}

int main(int argc, char **argv) {
    const char *build = getenv("ESPRESSO_BUILD"), *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
    if (build)
        snprintf(dir, sizeof dir, "%s/tests/abi", build);
    else if (slash)
        snprintf(dir, sizeof dir, "%.*s", (int)(slash - argv[0]), argv[0]);
    unsetenv("ESPRESSO_PLUGIN_PATH");
    return test_main();
}
