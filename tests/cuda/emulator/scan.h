/* scan.h lets a test in C run sums and histograms of codecs/cuda/common/block.h on the device. */
#ifndef CUDA_HOST_SCAN_H
#define CUDA_HOST_SCAN_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
enum { SCAN_THREADS = 256, SCAN_TIMES = 4, SCAN_BINS = 2048 };
/* Sets out[i] to the sum of x over the threads of a block that come before thread i. Does so for SCAN_TIMES inputs
 * of SCAN_THREADS numbers each, with threads in an order drawn from the seed. If `warps`, each warp has one number,
 * which all of its threads pass, and sums are over the warps before. */
void scan_before(const uint32_t *x, uint32_t *out, int warps, uint64_t seed);
/* For each of SCAN_TIMES histograms with SCAN_BINS bins, finds the bin of the k-th largest number. left[] receives
 * how many numbers of that bin are among the k largest. */
void scan_pick(const uint64_t *hist, const uint64_t *k, uint64_t *bin, uint64_t *left, uint64_t seed);
#ifdef __cplusplus
}
#endif
#endif
