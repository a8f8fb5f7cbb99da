/* test_workers.c checks that worker threads run every index of a loop once, in pieces that begin at multiples of a
 * given number, whichever thread starts the loop. */
/* runs: quiet tsan */
#include "tests/lib/test.h"

typedef struct count {
    uint64_t n, grain;
    atomic_int bad;
    atomic_uchar hits[1000];
    esp__workers *workers;
} count;

static void hit(void *arg, uint64_t begin, uint64_t end) {
    count *c = (count *)arg;
    if (begin % c->grain || (end % c->grain && end != c->n) || begin >= end) atomic_store(&c->bad, 1);
    for (uint64_t i = begin; i < end; i++) atomic_fetch_add(&c->hits[i], 1);
}

static void check(esp__workers *workers, uint64_t n, uint64_t grain) {
    count *c = (count *)calloc(1, sizeof *c);
    c->n = n, c->grain = grain;
    esp__workers_for(workers, n, grain, hit, c);
    assert_int_equal(atomic_load(&c->bad), 0);
    for (uint64_t i = 0; i < 1000; i++) assert_int_equal(atomic_load(&c->hits[i]), i < n);
    free(c);
}

TEST(test_every_index_once) {
    for (int threads = 0; threads <= 5; threads++) {
        esp__workers *workers = NULL;
        if (threads) assert_int_equal(esp__workers_open(NULL, threads, &workers), ESP_OK);
        for (uint64_t n = 0; n <= 1000; n = n * 3 + 1)
            for (uint64_t grain = 1; grain <= 1000; grain = grain * 4 + 1) check(workers, n, grain);
        check(workers, 1000, 64);
        check(workers, 999, 1000);
        esp__workers_close(workers);
    }
    esp__workers_close(NULL);
}

static void nested(void *arg, uint64_t begin, uint64_t end) {
    count *c = (count *)arg;
    for (uint64_t i = begin; i < end; i++) {
        count inner;
        memset(&inner, 0, sizeof inner);
        inner.n = 10, inner.grain = 1;
        esp__workers_for(c->workers, 10, 1, hit, &inner);
        for (int j = 0; j < 10; j++) atomic_fetch_add(&c->hits[j], atomic_load(&inner.hits[j]));
    }
}

TEST(test_nested_call) {
    count *c = (count *)calloc(1, sizeof *c);
    assert_int_equal(esp__workers_open(NULL, 3, &c->workers), ESP_OK);
    esp__workers_for(c->workers, 20, 1, nested, c);
    for (int j = 0; j < 10; j++) assert_int_equal(atomic_load(&c->hits[j]), 20);
    esp__workers_close(c->workers);
    free(c);
}

static void *caller(void *arg) {
    for (int i = 0; i < 300; i++) check((esp__workers *)arg, 500, 7);
    return NULL;
}

TEST(test_two_callers) {
    esp__workers *workers;
    assert_int_equal(esp__workers_open(NULL, 3, &workers), ESP_OK);
    run_threads(2, caller, workers, 0);
    esp__workers_close(workers);
}
