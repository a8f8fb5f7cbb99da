/* test_lowrank.c checks that inner products and lengths in double precision on the GPU (codecs/cuda/common/lowrank.h)
 * have the CPU's bits. Codecs round them to f32, which hides most differences in the last bits. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "codecs/lowrank/lowrank.h"
#include "tests/cuda/emulator/lowrank.h"

enum { MOST = 5003 };
static double a[MOST], b[MOST];
static float q[MOST];
static uint64_t state_of = 1;
static double number(int exponent) {
    state_of = state_of * 6364136223846793005u + 1442695040888963407u;
    return ldexp((double)(int64_t)state_of, exponent - 63);
}
static void same(const char *what, uint64_t n, double want, double got) {
    if (memcmp(&want, &got, sizeof want))
        fail_msg("%s of %llu numbers: the CPU has %.17g, CUDA %.17g", what, (unsigned long long)n, want, got);
}
TEST(sums) {
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 31, 34, 61, 1023, 1024, 1025, 1027, 2047, 2049, 3102, MOST};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            const uint64_t n = sizes[s];
            for (uint64_t i = 0; i < n; i++) {
                const int wide = seed % 2 ? (int)(i * 7 % 40) : 0;
                a[i] = number(wide), b[i] = number(-wide / 2), q[i] = (float)number(wide);
            }
            same("the inner product", n, lowrank_inner(a, b, n), cuda_inner(a, b, n, seed));
            same("the length", n, lowrank_length(q, n), cuda_length(q, n, seed));
        }
}