/* test_strategy.c: `espresso strategy`: a good file comes back as the library reads it, a bad one with line and reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "spawn.h"

/* Runs `espresso strategy` on a file of that text. The path is in `path`. */
static spawned strategy(const char *text, char path[64]) {
    snprintf(path, 64, "/tmp/espresso-test-strategy-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    spawned s = SPAWN("strategy", path);
    unlink(path);
    return s;
}

static void check_refused(const char *text, int line, const char *says) {
    char path[64], where[96];
    spawned s = strategy(text, path);
    snprintf(where, sizeof where, "%s:%d: ", path, line);
    assert_int_equal(s.status, 1);
    assert_int_equal(s.len[0], 0);
    if ((line && !spawn_said(&s, 1, where)) || !spawn_said(&s, 1, says))
        fail_msg("not said: \"%s\" at %s\nstderr:\n%s", says, where, s.text[1]);
    spawn_free(&s);
}

static const char good[] =
    "espresso-strategy 1\n"
    "# the last layer comes first\n"
    "tensor  fc2.weight 10240   topk:ratio=0.01   intra.reduce_scatter>comp@cpu > inter.allgather > "
    "decomp@cpu > intra.allgather  \n"
    "\n"
    "tensor fc2.bias 10 none flat.allreduce # small\n";

static void normalised(void **state) {
    (void)state;
    char path[64];
    spawned s = strategy(good, path);
    if (s.status != 0) fail_msg("%s", s.text[1]);
    assert_true(
        spawn_said(&s, 0,
                   "espresso-strategy 1\ntensor fc2.weight 10240 topk:ratio=0.01 intra.reduce_scatter > comp@cpu"
                   " > inter.allgather > decomp@cpu > intra.allgather\n"
                   "tensor fc2.bias 10 none flat.allreduce\norder "));
    spawned again = strategy(s.text[0], path); /* what it prints is a strategy file, and its own normal form */
    assert_int_equal(again.status, 0);
    assert_string_equal(s.text[0], again.text[0]);
    spawn_free(&s);
    spawn_free(&again);
}

/* Chunks, groups and whole orders come back word by word. */
static void units(void **state) {
    (void)state;
    static const char text[] = "espresso-strategy 1\n"
                               "tensor fc2.weight 10240 split 2\n"
                               "chunk 10000 topk:ratio=0.01 comp@cpu > flat.allgather > decomp@cpu\n"
                               "chunk 240 none flat.allreduce\n"
                               "tensor fc2.bias 10 group\n"
                               "tensor fc1.bias 20 group\n"
                               "group 30 none flat.reduce > flat.broadcast\n"
                               "order b 0:0d 0:0 0:1 1:0 b b 2:p 2:0 0:2 2:1 2:u\n";
    char path[64];
    spawned s = strategy(text, path);
    if (s.status != 0) fail_msg("%s", s.text[1]);
    assert_string_equal(s.text[0], text);
    spawn_free(&s);
}

static void refused(void **state) {
    (void)state;
    check_refused(
        "espresso-strategy 1\ntensor a 10 split 2\nchunk 5 none flat.allreduce\nchunk 6 none flat.allreduce\n", 4,
        "add up to 11");
    check_refused("espresso-strategy 1\ntensor a 10 group\ngroup 10 none flat.allreduce\n", 3, "alone in its group");
    check_refused("espresso-strategy 1\ntensor a 10 group\n", 2, "before the group of tensor 'a' is closed");
    check_refused("espresso-strategy 9\n", 1, "espresso-strategy 1");
    check_refused("espresso-strategy 1\ntensor a 10 none\n", 2, "expected 'tensor NAME ELEMENTS CODEC OPTION'");
    check_refused("espresso-strategy 1\ntensor a ten none flat.allreduce\n", 2, "ELEMENTS");
    check_refused("espresso-strategy 1\n\nlayer a 10 none flat.allreduce\n", 3,
                  "'layer': expected 'tensor', 'chunk', 'group' or 'order'");
    check_refused("espresso-strategy 1\ntensor a 10 none flat.allreduec\n", 2, "a");
    check_refused("espresso-strategy 1\ntensor a 10 topkk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu\n", 2,
                  "topk");
    check_refused("espresso-strategy 1\ntensor a 10 topk:ratioo=0.1 comp@cpu > flat.allgather > decomp@cpu\n", 2,
                  "ratio");
    check_refused("espresso-strategy 1\ntensor a 10 none flat.allreduce\ntensor a 10 none flat.allreduce\n", 3, "a");
    check_refused("espresso-strategy 1\ntensor a 10 none flat.allreduce\norder 1:0\n", 3, "1:0");
    check_refused("espresso-strategy 1\ntensor a 10 none flat.reduce > flat.broadcast\norder 0:0\n", 0,
                  "0:1 is missing");
}

static void wrong_usage(void **state) {
    (void)state;
    spawned s = SPAWN("strategy");
    assert_int_equal(s.status, 2);
    assert_true(spawn_said(&s, 1, "expected one strategy file"));
    spawn_free(&s);
    s = SPAWN("strategy", "/no/such/file");
    assert_int_equal(s.status, 1);
    assert_true(spawn_said(&s, 1, "/no/such/file: No such file"));
    spawn_free(&s);
    s = SPAWN("strategy", "/tmp");
    assert_int_equal(s.status, 1);
    assert_true(spawn_said(&s, 1, "/tmp: Is a directory"));
    spawn_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normalised),
        cmocka_unit_test(units),
        cmocka_unit_test(refused),
        cmocka_unit_test(wrong_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
