/* test_costs.c checks that a costs file has the content of the system, codec and model files from which it was made,
 * and that errors name file, line and key. */
#include "tests/lib/test.h"
#include "files.h"

static char path[64];

static char *written(void) {
    size_t len;
    char *system = slurp(full[SYSTEM], &len), *gc = slurp(full[GC], &len), *model = slurp(full[MODEL], &len);
    const esp__costs_texts t = {
        .host = "h", .inter = "1gbit", .system = system, .codecs = {gc, gc}, .n_codecs = 2, .model = model};
    assert_int_equal(esp__costs_write(path, &t), ESP_OK);
    free(system);
    free(gc);
    free(model);
    return slurp(path, &len);
}

TEST(test_same_as_three) {
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    esp__costs_file f;
    esp__system_file y;
    esp__gc_file g;
    esp__model_file m;
    esp__text one = {0}, two = {0};
    free(written());
    assert_int_equal(esp__costs_read(path, &f, &log), ESP_OK);
    assert_int_equal(esp__system_read(full[SYSTEM], &y, &log), ESP_OK);
    assert_int_equal(esp__gc_read(full[GC], &g, &log), ESP_OK);
    assert_int_equal(esp__model_read(full[MODEL], &m, &log), ESP_OK);
    assert_null(strstr(h.text, "unknown"));
    assert_string_equal(f.host, "h");
    assert_string_equal(f.inter, "1gbit");
    assert_int_equal(strlen(f.made), 20);
    assert_int_equal(f.n_codecs, 2);
    esp__system_print(&f.system, &one);
    esp__gc_print(&f.codecs[1], &one);
    esp__system_print(&y, &two);
    esp__gc_print(&g, &two);
    assert_string_equal(one.data, two.data);
    assert_true(f.has_model);
    assert_int_equal(f.model.model.n_tensors, m.model.n_tensors);
    for (uint32_t i = 0; i < m.model.n_tensors; i++) {
        assert_string_equal(f.model.model.tensors[i].name, m.model.tensors[i].name);
        assert_true(f.model.model.tensors[i].compute_ns == m.model.tensors[i].compute_ns);
    }
    esp__text_free(&one);
    esp__text_free(&two);
    esp__costs_free(&f);
    esp__system_free(&y);
    esp__gc_free(&g);
    esp__model_free(&m);
}

/* Replaces `from` by `to` in a costs file. Reading it must give the error `what`, or, if `warns`, the warning
 * `what`. */
static void says(const char *text, const char *from, const char *to, int warns, const char *what) {
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    esp__costs_file f;
    char *changed = replaced(text, from, to);
    const esp_status s = esp__costs_parse("c.json", changed, strlen(changed), &f, &log);
    if ((s == ESP_OK) != warns || !strstr(warns ? h.text : esp_last_error(NULL), what))
        fail_msg("status %d: '%s', '%s' instead of '%s'", (int)s, s ? esp_last_error(NULL) : "", h.text, what);
    esp__costs_free(&f);
    free(changed);
}

TEST(test_errors) {
    char *t = written();
    esp__gc_file g;
    says(t, "\"espresso\": 1", "\"espresso\": 2", 0, "c.json: espresso: the file was made by a newer espresso");
    says(t, "\"costs\": \"h\"", "\"costs\": 1", 0, "c.json: costs: expected the host's name, found 1");
    says(t, "\"costs\"", "\"cost\"", 0, "this is a model file; expected a costs file");
    says(t, "\"made\"", "\"mode\"", 1, "c.json: mode: unknown, ignored (did you mean 'made'?)");
    says(t, "\"system\": {", "\"systems\": {", 1, "systems: unknown, ignored (did you mean 'system'?)");
    says(t, "\"codecs\": [", "\"codecs\": 3, \"x\": [", 0, "codecs: expected a list of codec files, found 3");
    says(t, "\"machines\":", "\"machine\":", 0, ": system.machines: missing");
    says(t, "\"payload\":", "\"pay\":", 0, ": codecs[0].payload");
    says(t, "\"tensors\":", "\"tensor\":", 0, ": model.tensors: ");
    assert_int_equal(esp__gc_parse("c.json", t, strlen(t), &g, NULL), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "this is a costs file; expected a codec file: --costs reads it"));
    free(t);
}

TEST(test_some_parts) {
    size_t len;
    char *model = slurp(full[MODEL], &len);
    const esp__costs_texts none = {.host = "h"}, one = {.host = "h", .model = model};
    esp__costs_file f;
    esp__model_file m;
    esp__system_file y;
    assert_int_equal(esp__costs_write(path, &none), ESP_OK);
    assert_int_equal(esp__costs_read(path, &f, NULL), ESP_OK);
    assert_true(!f.has_system && !f.has_model && !f.n_codecs);
    esp__costs_free(&f);
    assert_int_equal(esp__costs_write(path, &one), ESP_OK);
    assert_int_equal(esp__model_read(path, &m, NULL), ESP_OK);
    assert_true(m.model.n_tensors > 0);
    esp__model_free(&m);
    assert_int_equal(esp__system_read(path, &y, NULL), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "this is a costs file; expected a system file"));
    free(model);
}

/* If one of the files cannot be read, no costs file is written. */
TEST(test_whole_or_not) {
    const esp__costs_texts t = {.host = "h", .system = "{\"espresso\": 1, \"system\": \"s\"}"};
    unlink(path);
    assert_int_equal(esp__costs_write(path, &t), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "system.machines: missing"));
    assert_int_equal(access(path, F_OK), -1);
}

static int begin(void **state) {
    snprintf(path, sizeof path, "/tmp/espresso-costs-%d.json", (int)getpid());
    return 0;
}

static int end(void **state) {
    unlink(path);
    return 0;
}

TEST_GROUP(begin, end)
