/* scan.h lets a test in C run sums and histograms of codecs/cuda/common/block.h on the device. */
#ifndef CUDA_HOST_SCAN_H
#define CUDA_HOST_SCAN_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
enum { SCAN_THREADS = 256, SCAN_TIMES = 4, SCAN_BINS = 2048 };
/* Sets out[] to the sums over the threads before each thread, for SCAN_TIMES inputs in one block, with threads in an
 * order drawn from the seed. x and out have SCAN_TIMES * SCAN_THREADS elements. If `warps`, the numbers are those of
 * warps: x must be equal in all threads of a warp. */
void scan_before(const uint32_t *x, uint32_t *out, int warps, uint64_t seed);
/* Finds for each of SCAN_TIMES histograms with SCAN_BINS bins the bin of the k-th largest number, and in `left` how
 * many of this bin are among the k largest. */
void scan_pick(const uint64_t *hist, const uint64_t *k, uint64_t *bin, uint64_t *left, uint64_t seed);
#ifdef __cplusplus
}
#endif
#endif
