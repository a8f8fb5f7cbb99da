/* test_heap.c checks that entries of a heap come out by time, and for equal times by key, whatever the order of
 * insertion. */
#include "tests/lib/test.h"
#include "espresso_impl/base/heap.h"

enum { MOST = 300 };

static uint64_t draw(uint64_t *seed) { return (*seed = *seed * 6364136223846793005ull + 1442695040888963407ull) >> 33; }

static int order(const void *a, const void *b) {
    const esp__waiting *x = a, *y = b;
    if (x->ready != y->ready) return x->ready < y->ready ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

/* Inserts all entries, then removes all, with times that are mostly equal, mostly different, or random. */
TEST(sorted) {
    esp__waiting at[MOST], want[MOST];
    uint64_t seed = 1;
    for (uint32_t n = 1; n <= MOST; n++) {
        esp__heap h = {at, 0};
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t ready = n % 3 == 0 ? draw(&seed) % 4 : UINT64_MAX - draw(&seed);
            want[i] = (esp__waiting){ready, (uint64_t)(i * 7919u % MOST) << 40 | i};
            esp__heap_push(&h, want[i].ready, want[i].key);
        }
        assert_int_equal(h.n, n);
        qsort(want, n, sizeof *want, order);
        for (uint32_t i = 0; i < n; i++) {
            const esp__waiting got = esp__heap_pop(&h);
            assert_int_equal(order(&got, &want[i]), 0);
        }
        assert_int_equal(h.n, 0);
    }
}

/* Inserts and removes or replaces in turn. A removed entry is never later than the remaining ones. */
TEST(by_turns) {
    esp__waiting at[MOST];
    esp__heap h = {at, 0};
    uint64_t seed = 2;
    for (uint64_t k = 0; k < 20000; k++) {
        if (h.n < MOST && (h.n == 0 || draw(&seed) % 2)) {
            esp__heap_push(&h, draw(&seed) % 50, k);
            continue;
        }
        const esp__waiting got = at[0];
        if (draw(&seed) % 2)
            esp__heap_pop(&h);
        else
            esp__heap_replace(&h, got.ready + draw(&seed) % 50, k);
        for (uint32_t i = 0; i < h.n; i++) assert_true(order(&got, &at[i]) < 0);
    }
}
