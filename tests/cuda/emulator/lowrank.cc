/* lowrank.cc runs the double-precision sums of codecs/cuda/common/lowrank.h in a kernel, for test_lowrank.c. */
#include "tests/cuda/emulator/lowrank.h"
#include "codecs/cuda/common/lowrank.h"

/* Computes the inner product of a and b or, if b is NULL, the Euclidean length of q. */
static __global__ void __launch_bounds__(CUDA_THREADS)
    sum_kernel(const double *a, const double *b, const float *q, uint64_t n, double *out) {
    __shared__ double room[CUDA_LOWRANK_ROOM];
    const double sum =
        b ? cuda_lowrank_inner(n, room, [&](uint64_t i) { return a[i] * b[i]; }) : cuda_lowrank_length(q, n, room);
    if (threadIdx.x == 0) *out = sum;
}
static double run(const double *a, const double *b, const float *q, uint64_t n, uint64_t seed) {
    const uint64_t bytes = n * (b ? sizeof *a : sizeof *q);
    cudaStream_t stream;
    cudaLaunchConfig_t c;
    double *x = NULL, *y = NULL, *out = NULL, sum = -1;
    memset((void *)&c, 0, sizeof c);
    cuda_host_seed(seed);
    cudaSetDevice(0);
    cudaStreamCreateWithPriority(&stream, 0, 0);
    cudaMalloc((void **)&x, bytes), cudaMalloc((void **)&y, bytes), cudaMalloc((void **)&out, sizeof *out);
    cudaMemcpy(x, b ? (const void *)a : q, bytes, cudaMemcpyDefault);
    if (b) cudaMemcpy(y, b, bytes, cudaMemcpyDefault);
    c.gridDim = dim3(1), c.blockDim = dim3(CUDA_THREADS), c.stream = stream;
    cudaLaunchKernelEx(&c, sum_kernel, x, b ? y : NULL, (const float *)(void *)x, n, out);
    cudaStreamSynchronize(stream);
    cudaMemcpy(&sum, out, sizeof sum, cudaMemcpyDefault);
    cudaFree(x), cudaFree(y), cudaFree(out), cudaStreamDestroy(stream);
    return sum;
}
double cuda_inner(const double *a, const double *b, uint64_t n, uint64_t seed) { return run(a, b, NULL, n, seed); }
double cuda_length(const float *q, uint64_t n, uint64_t seed) { return run(NULL, NULL, q, n, seed); }
