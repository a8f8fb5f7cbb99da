/* test.c: the list of a program's tests. */
#include "tests/lib/test.h"

enum { MOST = 128 };
static struct CMUnitTest tests[MOST];
static size_t n_tests;
static test_around group;

void test_add(const char *name, void (*body)(void **), test_around around) {
    if (n_tests == MOST) abort();
    tests[n_tests++] = (struct CMUnitTest){name, body, around.before, around.after, NULL};
}
void test_group(test_around around) { group = around; }
int test_main(void) { return _cmocka_run_group_tests("tests", tests, n_tests, group.before, group.after); }
