/* norm.h lets a test in C run a sum of codecs/cuda/common/norm.h on the device. */
#ifndef CUDA_HOST_NORM_H
#define CUDA_HOST_NORM_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Adds n sums of blocks with cuda_norm_total(), with threads in an order drawn from the seed. */
double norm_total(const float *sums, uint64_t n, uint64_t seed);
#ifdef __cplusplus
}
#endif
#endif
