/* memory.h: how kernels read and write tensors and payloads. Each thread accesses one number at a time, so that a
 * warp accesses contiguous memory. Tests compile kernels for the CPU (CUDA_HOST) and count the bytes. */
#ifndef ESP_CUDA_MEMORY_H
#define ESP_CUDA_MEMORY_H
#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CUDA_UNROLL _Pragma("unroll")
#define CUDA_UNROLL_BY(n) CUDA_PRAGMA(unroll n)
#define CUDA_PRAGMA(text) _Pragma(#text)
#else
#define CUDA_UNROLL
#define CUDA_UNROLL_BY(n)
#endif

template <typename T> static __device__ __forceinline__ T cuda_get(const T *p) {
#ifdef CUDA_HOST
    cuda_host_read += sizeof(T);
#endif
    return *p;
}
/* Reads a number that `lanes` neighbouring threads also read. In the tests' byte count it counts once. */
template <typename T> static __device__ __forceinline__ T cuda_get_same(const T *p, uint32_t lanes = 32) {
    (void)lanes;
#ifdef CUDA_HOST
    if (threadIdx.x % lanes == 0) cuda_host_read += sizeof(T);
#endif
    return *p;
}
template <typename T> static __device__ __forceinline__ void cuda_put(T *p, T value) {
#ifdef CUDA_HOST
    cuda_host_written += sizeof(T);
#endif
    *p = value;
}

/* Combines the values of all 32 threads of a warp, for example to their sum, and returns the result to each of them. */
template <typename T, typename F> static __device__ __forceinline__ T cuda_warp_all(T x, F combine) {
    for (int by = 16; by; by /= 2) x = combine(x, __shfl_xor_sync(0xFFFFFFFFu, x, by));
    return x;
}
static __device__ __forceinline__ uint32_t cuda_lane(void) { return threadIdx.x & 31u; }
/* These return the index and the number of warps or threads, over all blocks that process a tensor. */
static __device__ __forceinline__ uint64_t cuda_warp(void) {
    return (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
}
static __device__ __forceinline__ uint64_t cuda_warps(void) { return (uint64_t)gridDim.x * (blockDim.x / 32); }
static __device__ __forceinline__ uint64_t cuda_thread(void) { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ __forceinline__ uint64_t cuda_threads(void) { return (uint64_t)gridDim.x * blockDim.x; }
#endif
