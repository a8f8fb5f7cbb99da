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
    s = SPAWN("plugins", "topk", "shm");
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
    snprintf(path, sizeof path, "%s/tests/abi/libespresso-everysecond.so", build ? build : "./build");
    assert_int_equal(access(path, R_OK), 0);
    spawned s = SPAWN("plugins", path);
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec everysecond\n");
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

/* What a codec says of itself; with parameters; of a wrapper; and of a codec that nothing here knows. */
static void models(void **state) {
    (void)state;
    char folder[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    spawned s = SPAWN("plugins", "fp16", "topk:ratio=0.001");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec fp16\n");
    check_said(&s, 0, "  round 1:    sum of f16: 16 bits an element\n");
    check_said(&s, 0, "  lossy:      no");
    check_said(&s, 0, "codec topk:ratio=0.001\n");
    check_said(&s, 0, "  payload:    0.04851 bits an element");
    check_said(&s, 0, "  times:      compress 2.6");
    check_said(&s, 0, "  lossy:      yes");
    spawn_free(&s);
    s = SPAWN("plugins", "warmup:steps=3,of=(fp16:of=(topk:ratio=0.01))", "warmup");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec warmup:steps=3,of=(fp16:of=(topk:ratio=0.01))\n");
    check_said(&s, 0, "  payload:    0.3205 bits an element");
    check_said(&s, 0, "  error:      0.9155 of |x|^2");
    check_said(&s, 0, "  model:      depends on its parameters");
    spawn_free(&s);
    s = SPAWN("plugins", "warmup:steps=3,of=(topk:ratio=7)");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "codec 'warmup:steps=3,of=(topk:ratio=7)': of=(topk:ratio=7): topk: parameter ratio=7");
    spawn_free(&s);
    snprintf(folder, sizeof folder, "%s/tests/abi", build ? build : "./build");
    s = SPAWN("plugins", "--path", folder, "everysecond");
    assert_int_equal(s.status, 0);
    check_said(&s, 0, "codec everysecond\n");
    check_said(&s, 0, "  error:      0.5 of |x|^2");
    check_said(&s, 0, "codec upperhalf\n");
    check_said(&s, 0, "  lossy:      no");
    spawn_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in),    cmocka_unit_test(by_name), cmocka_unit_test(inside_a_job),
        cmocka_unit_test(from_a_file), cmocka_unit_test(missing), cmocka_unit_test(models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
