/* repeats.h: how often a test repeats itself with other random numbers. */
#ifndef TEST_REPEATS_H
#define TEST_REPEATS_H
#include <stdlib.h>

/* n; under a sanitizer, where a repetition takes four times as long, a quarter of it, unless TEST_ALL is set (make test-san). */
static inline unsigned test_repeats(unsigned n) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return getenv("TEST_ALL") ? n : (n + 3) / 4;
#else
    return n;
#endif
}
#endif
