/* test.h declares tests and their helpers. Every test program includes it before anything else.
 *
 *     TEST(adds_up) { assert_int_equal(1 + 1, 2); }
 *     TEST(writes_a_file, make_folder, remove_folder) { ... }     with functions that run before and after it
 *
 * cmocka runs all TESTs in the order of the file. main is in main.c, or in a program whose main returns test_main(). */
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

#define TEST(name, ...)                                                                                                \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void name##_is_a_test(void) {                                                  \
        test_add(#name, name, (test_around){__VA_ARGS__});                                                             \
    }                                                                                                                  \
    static void name(void **state)
#define TEST_GROUP(...)                                                                                                \
    __attribute__((constructor)) static void test_group_is(void) { test_group((test_around){__VA_ARGS__}); }

typedef struct test_around {
    int (*before)(void **), (*after)(void **);
} test_around;
void test_add(const char *name, void (*body)(void **), test_around around);
void test_group(test_around around);
int test_main(void);

/* Skips a test that cannot run here, and prints the reason. */
#define test_skip(why)                                                                                                 \
    do {                                                                                                               \
        print_message("skipped: %s\n", why);                                                                           \
        skip();                                                                                                        \
    } while (0)

/* Returns how often a test repeats itself with new random numbers: n in `make test-all`, otherwise n / 4. */
static inline unsigned test_repeats(unsigned n) { return getenv("TEST_ALL") ? n : (n + 3) / 4; }

/* Returns the path of `file` in the build folder, valid until the next call. */
static inline const char *built(const char *file) {
    static char path[4096];
    const char *build = getenv("ESPRESSO_BUILD");
    snprintf(path, sizeof path, "%s/%s", build ? build : "./build", file);
    return path;
}

static inline double test_seconds(void) { return (double)esp__now_ns() * 1e-9; }

/* Random numbers of 32 and 64 bits, by a linear congruential generator and by splitmix64. `seed` is the state. */
static inline uint32_t test_random32(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 32);
}
static inline uint64_t test_random64(uint64_t *seed) {
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int test_count_files(const char *folder, const char *part);

/* Make and remove a temporary folder, for TEST and TEST_GROUP. in_folder() gives a path, valid for eight more calls. */
int folder_make(void **state);
int folder_remove(void **state);
const char *in_folder(const char *name);
/* Returns a file's text, or NULL if it cannot be read. The caller frees it. */
char *file_text(const char *path);

/* Counts how often `what` is in the text, which may be NULL. */
int count_of(const char *text, const char *what);

/* Returns an unused address for esp_config.root: a Unix socket or a port of this host, valid until the next call. */
const char *test_root(bool tcp);

/* Returns zeroed memory that child processes share with the test. */
void *test_shared(size_t bytes);

/* Forks a child, which is killed when its parent ends or after `seconds`. It must end by _exit, since functions of
 * cmocka and the sanitizers run at exit. */
pid_t child_fork(unsigned seconds);
/* Waits for a child. Returns its exit status, or minus the signal that ended it. */
int child_wait(pid_t child);

/* Runs `body` in n threads and waits for them. The k-th thread gets arg + k * bytes. */
void run_threads(int n, void *(*body)(void *), void *arg, size_t bytes);

void *test_host_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align);
void test_host_free(void *user, esp_device d, void *p, uint64_t bytes);

/* Read and set element i of an array of type F32, F16 or BF16. */
float test_value(esp_dtype d, const void *data, uint64_t i);
void test_value_set(esp_dtype d, void *data, uint64_t i, float x);

/* ---- jobs whose ranks are threads of the test, over backend `loop` (ranks.c) ------------------------------------- */

/* For functions that run on threads of ranks, where cmocka's asserts do not work. Counts failures and prints the first
 * ones. RUN_RANKS asserts that there are none. */
extern atomic_int failures;
#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond) && atomic_fetch_add(&failures, 1) < 10)                                                            \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #cond, esp_last_error(NULL));          \
    } while (0)

/* An allgather between threads, for esp_config.oob_allgather. */
typedef struct test_exchange {
    int32_t size;
    pthread_barrier_t barrier;
    unsigned char *board;
} test_exchange;
typedef struct test_member {
    test_exchange *all;
    int32_t rank;
} test_member;
void exchange_open(test_exchange *x, int32_t size);
void exchange_close(test_exchange *x);
esp_status exchange_allgather(void *member, const void *in, void *out, uint64_t bytes);

uint32_t tensor_add(esp_ctx *ctx, const char *name, uint64_t count);
/* Returns `codec`, or NULL if the option does not compress, because a tensor then must not have a codec. */
static inline const char *codec_for(const char *option, const char *codec) {
    return option && !strstr(option, "comp") ? NULL : codec;
}
/* Returns whether the last error contains `word`. Otherwise prints both. */
bool error_has(const esp_ctx *ctx, const char *word);
/* CHECKs that this rank has the same bytes as rank 0. */
void check_same_bits(esp_ctx *ctx, const void *data, uint64_t bytes);

typedef struct test_job {
    int32_t size;            /* number of ranks */
    int32_t per_machine;     /* ranks per machine; 0: all on one */
    const int32_t *machines; /* each rank's machine, from 1; NULL: see per_machine */
    /* if not NULL: each rank's position, such as its rack and machine, as in ESPRESSO_PLACE */
    const char *const *places;
    esp_config config;
    void (*body)(esp_ctx *ctx, void *user);
    void *user;
    esp_status open_status[64]; /* result of each rank's esp_open() */
} test_job;

/* Opens all ranks as threads, runs `body` in each, and closes them. */
void test_run(test_job *j);
/* Like test_run(). Returns the number of ranks that did not open plus the number of failed CHECKs. By default, logs
 * only errors. */
int test_run_failures(test_job *j);
/* Used as RUN_RANKS(.size = 4, .body = f, .config.codec = "topk"). Fails the test if a rank or a CHECK failed. */
#define RUN_RANKS(...) test_run_well(&(test_job){__VA_ARGS__})
void test_run_well(test_job *j);
#endif
