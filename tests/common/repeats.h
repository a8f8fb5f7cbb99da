/* repeats.h: how often a test repeats itself with other random numbers. */
#ifndef TEST_REPEATS_H
#define TEST_REPEATS_H
#include <stdlib.h>

/* n where TEST_ALL is set (make test-all), else a quarter of it. */
static inline unsigned test_repeats(unsigned n) { return getenv("TEST_ALL") ? n : (n + 3) / 4; }
#endif
