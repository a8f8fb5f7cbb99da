/* built.h: paths of files that make writes into its build folder. */
#ifndef TEST_BUILT_H
#define TEST_BUILT_H
#include <stdio.h>
#include <stdlib.h>

/* The path of `file` in the build folder; good until the next call. */
static inline const char *built(const char *file) {
    static char path[512];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/%s", build ? build : "build", file);
    return path;
}
#endif
