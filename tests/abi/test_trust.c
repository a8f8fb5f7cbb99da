/* test_trust.c checks that plugins that another user could change are not loaded, and that the error names the
 * remedy. */
/* runs: no-tsan: starts only threads of the library, which other tests run under the thread sanitizer */
#include "tests/lib/test.h"

static char top[64], in[96], file[160], link_in[96], link_to[160];
static esp_ctx *ctx;

/* Makes top/in/libespresso-older.so, and top/links/libespresso-older.so, a link to it. */
static int set_up(void **state) {
    char command[1024];
    esp_config cfg = ESP_ZERO;
    snprintf(top, sizeof top, "/tmp/espresso-trust-XXXXXX");
    if (!mkdtemp(top)) return -1;
    snprintf(in, sizeof in, "%s/in", top);
    snprintf(file, sizeof file, "%s/libespresso-older.so", in);
    snprintf(link_in, sizeof link_in, "%s/links", top);
    snprintf(link_to, sizeof link_to, "%s/libespresso-older.so", link_in);
    snprintf(command, sizeof command, "mkdir -m 755 %s %s && cp %s %s && chmod 755 %s && ln -s %s %s", in, link_in,
             built("tests/abi/libespresso-older.so"), file, file, file, link_to);
    if (system(command) != 0) return -1;
    cfg.log_level = ESP_LOG_ERROR;
    return esp_open(&cfg, &ctx);
}
static int tear_down(void **state) {
    char command[128];
    esp_close(ctx);
    snprintf(command, sizeof command, "rm -rf %s", top);
    return system(command);
}

static void refused(const char *path, const char *words, ...) {
    char want[1024];
    va_list ap;
    va_start(ap, words);
    vsnprintf(want, sizeof want, words, ap);
    va_end(ap);
    assert_int_equal(esp_plugin_load(ctx, path), ESP_E_UNSUPPORTED);
    if (!strstr(esp_last_error(ctx), want)) print_error("%s\nlacks: %s\n", esp_last_error(ctx), want);
    assert_non_null(strstr(esp_last_error(ctx), want));
    assert_non_null(strstr(esp_last_error(ctx), path));
}
static void mode(const char *name, unsigned bits) { assert_int_equal(chmod(name, bits), 0); }

TEST(test_file, set_up, tear_down) {
    mode(file, 0757);
    refused(file, "any user may write to the file %s (mode 0757) and put other code there: chmod o-w %s", file, file);
    refused(link_to, "chmod o-w %s", file);
    mode(file, 0775); /* allowed: a group's members trust each other */
    assert_int_equal(esp_plugin_load(ctx, file), ESP_OK);
}

TEST(test_folder, set_up, tear_down) {
    mode(in, 0777);
    refused(file, "any user may write to its folder %s (mode 0777) and put other code there: chmod o-w %s", in, in);
    refused(link_to, "its folder %s (mode 0777)", in);
    mode(in, 01777); /* sticky as /tmp: no user can replace others' files */
    assert_int_equal(esp_plugin_load(ctx, file), ESP_OK);
    mode(in, 02775);
    assert_int_equal(esp_plugin_load(ctx, file), ESP_OK);
}

TEST(test_folder_of_a_link, set_up, tear_down) {
    mode(link_in, 0777);
    refused(link_to, "its folder %s (mode 0777)", link_in);
    assert_int_equal(esp_plugin_load(ctx, file), ESP_OK);
}

TEST(test_folder_above, set_up, tear_down) {
    mode(top, 0777);
    refused(file, "any user may write to the folder %s (mode 0777)", top);
}

TEST(test_relative, set_up, tear_down) {
    char here[1024];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(in), 0);
    assert_int_equal(esp_plugin_load(ctx, "./libespresso-older.so"), ESP_OK);
    mode(in, 0777);
    refused("./libespresso-older.so", "its folder %s (mode 0777)", in);
    assert_int_equal(chdir(here), 0);
}

/* The search skips an unsafe folder. The error names it if no other folder has the plugin. */
TEST(test_search, set_up, tear_down) {
    esp_ctx *other = NULL;
    char list[300];
    esp_config cfg = {.log_level = ESP_LOG_ERROR, .plugin_path = list};
    snprintf(list, sizeof list, "%s", in);
    mode(in, 0777);
    assert_int_equal(esp_open(&cfg, &other), ESP_OK);
    assert_int_equal(esp_plugin_load(other, "older"), ESP_E_UNSUPPORTED);
    assert_non_null(strstr(esp_last_error(other), "chmod o-w"));
    assert_non_null(strstr(esp_last_error(other), in));
    esp_close(other);
    snprintf(list, sizeof list, "%s:%s", in, built("tests/abi"));
    assert_int_equal(esp_open(&cfg, &other), ESP_OK);
    assert_int_equal(esp_plugin_load(other, "older"), ESP_OK);
    esp_close(other);
}

TEST(test_owner, set_up, tear_down) {
    if (geteuid() != 0) test_skip("needs root, to give a file to another user");
    assert_int_equal(chown(file, 65534, 65534), 0);
    refused(file, "the file %s (mode 0755) belongs to user 65534", file);
    assert_int_equal(chown(file, 0, 0), 0);
    assert_int_equal(chown(in, 65534, 65534), 0);
    refused(file, "its folder %s (mode 0755) belongs to user 65534", in);
    assert_int_equal(chown(in, 0, 0), 0);
    assert_int_equal(chown(top, 65534, 65534), 0); /* who owns the folder above that does not matter */
    assert_int_equal(esp_plugin_load(ctx, file), ESP_OK);
}

TEST(test_no_file, set_up, tear_down) {
    char name[200];
    assert_int_equal(esp_plugin_load(ctx, in), ESP_E_ABI);
    assert_non_null(strstr(esp_last_error(ctx), "not a file"));
    snprintf(name, sizeof name, "%s/libespresso-pipe.so", in);
    assert_int_equal(mkfifo(name, 0600), 0);
    assert_int_equal(esp_plugin_load(ctx, name), ESP_E_ABI); /* must not wait for a writer of the pipe */
}
