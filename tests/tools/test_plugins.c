/* test_plugins.c: `espresso plugins`: what is built in, what a plugin file brings, and what is said of a missing one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "spawn.h"

static void check_said(const spawned *s, int k, const char *text) {
    if (!spawn_said(s, k, text)) fail_msg("not said: \"%s\"\nstdout:\n%s\nstderr:\n%s", text, s->text[0], s->text[1]);
}

static void built_in(void **state) {
    (void)state;
    spawned s = SPAWN("plugins");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec    none ");
    check_said(&s, 0, "; ratio=0.01\n");
    check_said(&s, 0, "backend  loop ");
    check_said(&s, 0, "score here 10\n");
    spawn_free(&s);
    s = SPAWN("plugins", "--long");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec topk\n");
    check_said(&s, 0, "backend shm\n");
    check_said(&s, 0, "  from:       built in\n");
    check_said(&s, 0, "  parameters: ratio=");
    spawn_free(&s);
}

static void by_name(void **state) {
    (void)state;
    spawned s = SPAWN("plugins", "fp16");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec fp16\n");
    assert_false(spawn_said(&s, 0, "codec none\n"));
    assert_false(spawn_said(&s, 0, "backend"));
    spawn_free(&s);
}

/* The environment of a training job must not get in the way. */
static void inside_a_job(void **state) {
    (void)state;
    setenv("ESPRESSO_RANK", "3", 1);
    setenv("ESPRESSO_SIZE", "nonsense", 1);
    setenv("ESPRESSO_BACKEND", "nonsense", 1);
    spawned s = SPAWN("plugins", "none");
    unsetenv("ESPRESSO_RANK");
    unsetenv("ESPRESSO_SIZE");
    unsetenv("ESPRESSO_BACKEND");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec none\n");
    spawn_free(&s);
}

static void from_a_file(void **state) {
    (void)state;
    char path[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(path, sizeof path, "%s/lib/espresso/libespresso-topk.so", build ? build : "./build");
    assert_int_equal(access(path, R_OK), 0); /* `make plugins` made it */
    spawned s = SPAWN("plugins", path);
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec topk\n");
    check_said(&s, 0, path);
    assert_false(spawn_said(&s, 0, "built in"));
    spawn_free(&s);
}

static void missing(void **state) {
    (void)state;
    spawned s = SPAWN("plugins", "--path", "/no/such/dir", "topq");
    assert_int_equal(s.status, 1);
    assert_int_equal(s.len[0], 0);
    check_said(&s, 1, "/no/such/dir/libespresso-topq.so");
    spawn_free(&s);
    s = SPAWN("plugins", "./no-such.so");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "./no-such.so: no such file");
    spawn_free(&s);
    s = SPAWN("plugins", "--pat", "x");
    assert_int_equal(s.status, 2);
    check_said(&s, 1, "did you mean '--path'?");
    spawn_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in),    cmocka_unit_test(by_name), cmocka_unit_test(inside_a_job),
        cmocka_unit_test(from_a_file), cmocka_unit_test(missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
