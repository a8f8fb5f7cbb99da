/* test_cuda_steps.c runs the tests of tests/device/test_fake_steps.c, steps with gradients on a device, with plugin
 * cuda on a GPU or on the tests' emulator. */
/* runs: slow asan-long no-tsan: the emulator runs kernels as fibers, which the thread sanitizer does not follow */
#define DEVICE_IS_CUDA
#include "tests/lib/test.h"
#include "tests/device/test_fake_steps.c"
#include "tests/cuda/emulator/missing.h"

int main(void) { return cuda_missing() ? 77 : test_main(); }
