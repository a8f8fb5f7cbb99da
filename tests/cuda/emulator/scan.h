/* scan.h declares scan.cc's functions for a test in C. */
#ifndef CUDA_HOST_SCAN_H
#define CUDA_HOST_SCAN_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
enum { SCAN_THREADS = 256, SCAN_TIMES = 4, SCAN_BINS = 2048 };
/* Sets out[] to the sums over the threads before each, SCAN_TIMES times in one block, with threads in an order from the
 * seed. x and out have SCAN_TIMES * SCAN_THREADS elements. Uses cuda_warps_before() if `warps` (then x must be equal in
 * all lanes of a warp), else cuda_block_before(). */
void scan_before(const uint32_t *x, uint32_t *out, int warps, uint64_t seed);
/* Calls cuda_hist_pick() for SCAN_TIMES histograms [SCAN_TIMES SCAN_BINS]: the bin of the k-th largest number, and how
 * many of this bin are among the k largest. */
void scan_pick(const uint64_t *hist, const uint64_t *k, uint64_t *bin, uint64_t *left, uint64_t seed);
#ifdef __cplusplus
}
#endif
#endif
