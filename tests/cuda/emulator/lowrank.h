/* lowrank.h declares lowrank.cc's functions for a test in C. */
#ifndef CUDA_HOST_LOWRANK_H
#define CUDA_HOST_LOWRANK_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Run cuda_lowrank_inner() on products of a and b, and cuda_lowrank_length(), with threads in an order from the
 * seed. */
double cuda_inner(const double *a, const double *b, uint64_t n, uint64_t seed);
double cuda_length(const float *q, uint64_t n, uint64_t seed);
#ifdef __cplusplus
}
#endif
#endif
