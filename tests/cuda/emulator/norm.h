/* norm.h declares norm.cc's function for a test in C. */
#ifndef CUDA_HOST_NORM_H
#define CUDA_HOST_NORM_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Runs cuda_norm_total() on n sums, with threads in an order from the seed. */
double norm_total(const float *sums, uint64_t n, uint64_t seed);
#ifdef __cplusplus
}
#endif
#endif
