/* test_scan.c checks sums over the threads of a block, and the search for the k-th largest number of a histogram
 * (codecs/cuda/common/block.h). They run several times with the same shared memory and in many orders of threads, which
 * detects a missing barrier. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/emulator/scan.h"

enum { SEEDS = 100, ALL = SCAN_TIMES * SCAN_THREADS };
static uint64_t state_of = 1;
static uint32_t next(void) { return test_random32(&state_of) >> 1; }

TEST(before) {
    static uint32_t x[ALL], out[ALL];
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const int warps = (int)(seed % 2);
        for (uint32_t i = 0; i < ALL; i++) x[i] = warps && i % 32 ? x[i - 1] : next() % 1000;
        scan_before(x, out, warps, seed);
        for (uint32_t i = 0, sum = 0; i < ALL; i++) {
            if (i % SCAN_THREADS == 0) sum = 0;
            if (!warps || i % 32 == 0) {
                if (out[i] != sum) fail_msg("seed %u: before thread %u: %u, not %u", (unsigned)seed, i, out[i], sum);
                sum += x[i];
            }
        }
    }
}

TEST(pick) {
    static uint64_t hist[SCAN_TIMES * SCAN_BINS];
    uint64_t k[SCAN_TIMES], bin[SCAN_TIMES], left[SCAN_TIMES];
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        for (uint32_t i = 0; i < SCAN_TIMES; i++) {
            uint64_t all = 0, *h = hist + i * SCAN_BINS;
            for (uint32_t b = 0; b < SCAN_BINS; b++) all += h[b] = next() % 4 ? 0 : next() % 5;
            k[i] = seed % 3 == 0 ? 1 : seed % 3 == 1 ? all : 1 + next() % all;
        }
        scan_pick(hist, k, bin, left, seed);
        for (uint32_t i = 0; i < SCAN_TIMES; i++) {
            const uint64_t *h = hist + i * SCAN_BINS;
            uint64_t above = 0;
            uint32_t b = SCAN_BINS - 1;
            while (above + h[b] < k[i]) above += h[b--];
            if (bin[i] != b || left[i] != k[i] - above)
                fail_msg("seed %u: bin %u, %u left; not bin %u, %u left", (unsigned)seed, (unsigned)bin[i],
                         (unsigned)left[i], b, (unsigned)(k[i] - above));
        }
    }
}
