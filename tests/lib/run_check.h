/* run_check.h runs `espresso plugins --check SPEC` inside a test. */
#ifndef TEST_RUN_CHECK_H
#define TEST_RUN_CHECK_H
#include "tests/lib/test.h"

int espresso_main(int argc, char **argv);

/* Runs all checks of a codec or backend. If one fails, prints the report and fails the test. */
static inline void run_check(const char *spec) {
    static char word[4][16] = {"espresso", "plugins", "--check", ""};
    char report[16384], *argv[] = {word[0], word[1], word[2], (char *)(uintptr_t)spec, NULL};
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int keep = dup(1);
    dup2(fileno(file), 1);
    const int status = espresso_main(4, argv);
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    rewind(file);
    const size_t n = fread(report, 1, sizeof report - 1, file);
    report[n] = 0;
    fclose(file);
    if (status || !strstr(report, " 0 failed,")) fail_msg("%s: status %d\n%s", spec, status, report);
}

/* Fails the test if `specs`, which the test checks, has none for the codec or backend `name`. */
static inline void run_check_named(const char *name, const char *const *specs, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcspn(specs[i], ":") == strlen(name) && !strncmp(specs[i], name, strlen(name))) return;
    fail_msg("'%s' is registered, but not among the specs of this test: add it", name);
}
#endif
