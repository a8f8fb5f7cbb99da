/* faults.h lets a test in C run kernels with faults, which the CUDA emulator must detect. */
#ifndef CUDA_HOST_FAULTS_H
#define CUDA_HOST_FAULTS_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
/* Runs a kernel, with its fault if `wrong`, and copies its first n results. Returns 0 if there is no such kernel. */
int faults_run(const char *name, int wrong, uint64_t seed, float *out, int n);
int faults_refused(void);
#ifdef __cplusplus
}
#endif
#endif
