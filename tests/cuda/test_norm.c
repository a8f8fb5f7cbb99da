/* test_norm.c checks how the GPU adds sums that it has computed for blocks of elements (codecs/cuda/common/norm.h):
 * in any order if no addition rounds. The result must have the same bits as adding them one after the other. Inputs
 * are of similar or very different magnitude, or just too large to be added without rounding. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/cuda/emulator/norm.h"

enum { MOST = 20000 };
static float sums[MOST];
static uint64_t state_of = 1;
static uint32_t next(void) { return test_random32(&state_of) >> 1; }
static float number(int exponent) { return ldexpf((float)(0x800000u | (next() & 0x7FFFFFu)), exponent); }

static void compare(const char *what, uint64_t n, uint64_t seed) {
    double want = 0;
    for (uint64_t i = 0; i < n; i++) want += (double)sums[i];
    const double got = norm_total(sums, n, seed);
    if (want != want && got != got) return;
    if (memcmp(&want, &got, sizeof want))
        fail_msg("%s, %llu sums: in order %.17g, on the device %.17g", what, (unsigned long long)n, want, got);
}

static const uint64_t sizes[] = {0, 1, 2, 31, 511, 512, 513, 4095, 4096, 4097, 9000, MOST};
enum { SIZES = sizeof sizes / sizeof *sizes };

TEST(like_sizes) {
    for (uint64_t s = 0; s < SIZES; s++) {
        for (uint64_t i = 0; i < sizes[s]; i++) sums[i] = number(-20 + (int)(next() % 4));
        compare("like sizes", sizes[s], s);
        for (uint64_t i = 0; i < sizes[s]; i++) sums[i] = next() % 3 ? 0 : number(-60);
        compare("many zeros", sizes[s], s);
    }
}
TEST(all_sizes) {
    for (uint64_t s = 0; s < SIZES; s++) {
        for (uint64_t i = 0; i < sizes[s]; i++) sums[i] = number((int)(next() % 240) - 149);
        compare("all sizes", sizes[s], s);
        for (uint64_t i = 0; i < sizes[s]; i++) sums[i] = number((int)(next() % 60) - 60);
        compare("many sizes", sizes[s], s);
        for (uint64_t i = 0; i < sizes[s]; i++) sums[i] = ldexpf((float)(next() % 5), -149);
        compare("denormals", sizes[s], s);
    }
}
TEST(some_sizes) {
    for (int round = 0; round < 40; round++) {
        const uint64_t n = 3000 + next() % 3000;
        for (uint64_t i = 0; i < n; i++) sums[i] = number(0);
        for (int k = 0; k < 3; k++) sums[next() % n] = number(round % 2 ? -(int)(next() % 60) : (int)(next() % 60));
        compare("some of another size", n, (uint64_t)round);
        sums[next() % n] = round % 2 ? INFINITY : NAN;
        compare("one that is not finite", n, (uint64_t)round);
    }
}
/* Additions do not round while the sum is below 2^53 times the last digit of the smallest number. These sums are
 * close to that. */
TEST(edges) {
    for (int shift = 20; shift < 40; shift++)
        for (uint64_t n = 600; n <= 2000; n += 700) {
            for (uint64_t i = 0; i < n; i++) sums[i] = number(shift);
            for (uint64_t i = 0; i < 40; i++) sums[next() % n] = number(0);
            compare("at the edge", n, (uint64_t)shift);
            for (uint64_t i = n; i-- > 0;) sums[i] = i < n / 2 ? number(shift) : number(0);
            compare("large before small", n, (uint64_t)shift);
            for (uint64_t i = n; i-- > 0;) sums[i] = i >= n / 2 ? number(shift) : number(0);
            compare("small before large", n, (uint64_t)shift);
        }
}

/* If large numbers are added one by one to a small one, each addition rounds, so the result differs from adding
 * their total. */
TEST(carried) {
    for (uint64_t round = 0; round < 20; round++) {
        memset(sums, 0, 512 * sizeof *sums);
        sums[next() % 512] = 262145;
        for (uint64_t i = 512; i < 1024; i++) sums[i] = number(39);
        compare("a small one before large ones", 1024, round);
    }
}
