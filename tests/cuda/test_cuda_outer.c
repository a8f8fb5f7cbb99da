/* test_cuda_outer.c runs the tests of tests/device/test_fake_outer.c, outer contexts, with plugin cuda on a GPU or on
 * the tests' emulator. */
/* runs: asan-long no-tsan: the emulator runs kernels as fibers, which the thread sanitizer does not follow */
#define DEVICE_IS_CUDA
#include "tests/lib/test.h"
#include "tests/device/test_fake_outer.c"
#include "tests/cuda/emulator/missing.h"

int main(void) { return cuda_missing() ? 77 : test_main(); }
