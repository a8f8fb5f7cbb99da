/* test.h: what every test program includes, before anything else.
 *
 *     TEST(adds_up) { assert_int_equal(1 + 1, 2); }
 *     TEST(writes_a_file, make_folder, remove_folder) { ... }     with functions that run before and after it
 *
 * Each TEST runs, in the order of the file: cmocka prints and counts them, and main is in main.c. A program that has to do something
 * first has a main of its own, which returns test_main(). */
#ifndef TEST_H
#define TEST_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "codecs/common/half.h"
#include "tests/lib/library.h"

/* Defines a test, and adds it to those of the program. */
#define TEST(name, ...)                                                                                                \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void name##_is_a_test(void) {                                                  \
        test_add(#name, name, (test_around){__VA_ARGS__});                                                             \
    }                                                                                                                  \
    static void name(void **state)
/* What runs before and after all tests of the program; at most one a program. */
#define TEST_GROUP(...)                                                                                                \
    __attribute__((constructor)) static void test_group_is(void) { test_group((test_around){__VA_ARGS__}); }

typedef struct test_around {
    int (*before)(void **), (*after)(void **); /* NULL: nothing */
} test_around;
void test_add(const char *name, void (*body)(void **), test_around around);
void test_group(test_around around);
int test_main(void); /* runs the tests; the exit status */

/* Ends a test that cannot check anything here, with the reason, which run.sh prints. */
#define test_skip(why)                                                                                                 \
    do {                                                                                                               \
        print_message("skipped: %s\n", why);                                                                           \
        skip();                                                                                                        \
    } while (0)

/* n where TEST_ALL is set (make test-all), else a quarter of it: how often a test repeats itself with other random numbers. */
static inline unsigned test_repeats(unsigned n) { return getenv("TEST_ALL") ? n : (n + 3) / 4; }

/* The path of `file` in make's build folder; good until the next call. */
static inline const char *built(const char *file) {
    static char path[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(path, sizeof path, "%s/%s", build ? build : "./build", file);
    return path;
}

/* ---- ranks as threads of this process, over the backend `loop` (ranks.c) ------------------------------------------------------- */

/* For bodies, which run on many threads, where cmocka's asserts cannot be used: counts what is wrong and prints the first ones.
 * RUN_RANKS asserts that nothing was. */
extern atomic_int failures;
#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond) && atomic_fetch_add(&failures, 1) < 10)                                                            \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #cond, esp_last_error(NULL));          \
    } while (0)

typedef struct test_job {
    int32_t size, per_machine; /* ranks, and ranks a machine (0: all)                */
    const int32_t *machines;   /* or each rank's machine, from 1                     */
    const char *const *places; /* or each rank's place                               */
    esp_config config;         /* what all ranks open with, but for rank and machine */
    void (*body)(esp_ctx *ctx, void *user);
    void *user;
    esp_status open_status[64]; /* of each rank */
    /* exchange */
    pthread_barrier_t barrier;
    unsigned char *board;
    pthread_mutex_t lock;
} test_job;

/* Opens all ranks, runs `body` in each, closes. */
void test_run(test_job *j);
/* The same, and the test fails if a rank did not open or a CHECK failed: RUN_RANKS(.size = 4, .body = f, .config.codec = "topk").
 * Logs errors only, unless the configuration says otherwise. */
#define RUN_RANKS(...) test_run_well(&(test_job){__VA_ARGS__})
void test_run_well(test_job *j);

static inline float test_half(esp_dtype d, uint16_t h) {
    return d == ESP_F16 ? half_from_f16(h) : half_float((uint32_t)h << 16);
}
#endif
