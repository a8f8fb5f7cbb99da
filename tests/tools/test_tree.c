/* test_tree.c: `espresso tree`: the counts that the paper gives, and what the flags select. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "spawn.h"

static size_t lines(const spawned *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->len[0]; i++) n += s->text[0][i] == '\n';
    return n;
}

static void check(spawned s, int status, int k, const char *says) {
    assert_int_equal(s.status, status);
    if (!spawn_said(&s, k, says)) fail_msg("not said: \"%s\"\nstdout:\n%s\nstderr:\n%s", says, s.text[0], s.text[1]);
    spawn_free(&s);
}

static void counts(void **state) {
    (void)state;
    check(SPAWN("tree", "--count"), 0, 0, "4341 options: 63 flat, 4278 hierarchical; 9 without compression\n");
    check(SPAWN("tree", "--count", "--forbid", "@gpu"), 0, 0, "174 options: 12 flat, 162 hierarchical; 9 without");
    check(SPAWN("tree", "--count", "--forbid=@cpu"), 0, 0, "174 options: 12 flat, 162 hierarchical; 9 without");
    check(SPAWN("tree", "--count", "--match", "flat"), 0, 0, "63 options: 63 flat, 0 hierarchical; 3 without");
    check(SPAWN("tree", "--count", "--forbid", "flat"), 0, 0, "4278 options: 0 flat, 4278 hierarchical; 6 without");
}

static void narrow(void **state) {
    (void)state;
    check(SPAWN("tree", "--narrow", "--count"), 0, 0, "34 options: 5 flat, 29 hierarchical; 2 without compression\n");
    check(SPAWN("tree", "--narrow", "--forbid", "@gpu", "--match", "flat"), 0, 0,
          "flat.reduce_scatter\ncomp@cpu > flat.alltoall > decomp@cpu\n");
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void one_option_a_line(void **state) {
    (void)state;
    static char *line[5000];
    size_t n = 0;
    spawned s = SPAWN("tree");
    assert_int_equal(s.status, 0);
    char *save = NULL;
    for (char *at = strtok_r(s.text[0], "\n", &save); at && n < 5000; at = strtok_r(NULL, "\n", &save)) line[n++] = at;
    assert_int_equal(n, 4341);
    qsort(line, n, sizeof *line, by_text);
    for (size_t i = 1; i < n; i++) assert_string_not_equal(line[i - 1], line[i]);
    spawn_free(&s);
}

static void matching(void **state) {
    (void)state;
    spawned s = SPAWN("tree", "--match", "comp@gpu", "--forbid", "@gpu");
    assert_int_equal(s.status, 1);
    assert_true(spawn_said(&s, 1, "no option matches"));
    spawn_free(&s);
    s = SPAWN("tree", "--match", "gather*broadcast", "--match", "comp@cpu", "--match", "flat", "--forbid", "@gpu");
    assert_int_equal(s.status, 0);
    assert_int_equal(lines(&s), 3);
    assert_true(spawn_said(&s, 0, "comp@cpu > flat.gather > decomp@cpu > comp@cpu > flat.broadcast > decomp@cpu\n"));
    spawn_free(&s);
}

static void wrong_usage(void **state) {
    (void)state;
    check(SPAWN("tree", "--levels", "4"), 2, 1, "--levels 4: expected a whole number from 2 to 3");
    check(SPAWN("tree", "--matches"), 2, 1, "did you mean '--match'?");
    check(SPAWN("tree", "flat"), 2, 1, "--match 'flat'");
    check(SPAWN("tre"), 2, 1, "did you mean 'tree'?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),   cmocka_unit_test(narrow),      cmocka_unit_test(one_option_a_line),
        cmocka_unit_test(matching), cmocka_unit_test(wrong_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
