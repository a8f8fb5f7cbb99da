/* lowrank.h lets a test in C run sums of codecs/cuda/common/lowrank.h on the device. */
#ifndef CUDA_HOST_LOWRANK_H
#define CUDA_HOST_LOWRANK_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Compute an inner product and a Euclidean length on the device, with threads in an order drawn from the seed. */
double cuda_inner(const double *a, const double *b, uint64_t n, uint64_t seed);
double cuda_length(const float *q, uint64_t n, uint64_t seed);
#ifdef __cplusplus
}
#endif
#endif
