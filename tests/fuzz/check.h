/* check.h lets a fuzz target end with a message if something that must hold does not. */
#ifndef ESPRESSO_TESTS_FUZZ_CHECK_H
#define ESPRESSO_TESTS_FUZZ_CHECK_H
#include "espresso.h"
#include <stdio.h>
#include <stdlib.h>

static inline void fuzz_check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz: %s; last error: %s\n", what, esp_last_error(NULL));
    abort();
}
#endif
