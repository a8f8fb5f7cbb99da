/* norm.cc runs cuda_norm_total() in a kernel, for test_norm.c. */
#include "tests/cuda/emulator/norm.h"
#include "codecs/cuda/common/norm.h"

static __global__ void __launch_bounds__(CUDA_THREADS) total_kernel(const float *sums, uint64_t n, double *out) {
    __shared__ cuda_norm_room room;
    const double total = cuda_norm_total(&room, sums, n);
    if (threadIdx.x == 0) *out = total;
}

double norm_total(const float *sums, uint64_t n, uint64_t seed) {
    cudaStream_t stream;
    cudaLaunchConfig_t c;
    float *device = NULL;
    double *out = NULL, total = -1;
    memset((void *)&c, 0, sizeof c);
    cuda_host_seed(seed);
    cudaSetDevice(0);
    cudaStreamCreateWithPriority(&stream, 0, 0);
    cudaMalloc((void **)&device, n * sizeof *sums + 1);
    cudaMalloc((void **)&out, sizeof *out);
    cudaMemcpy(device, sums, n * sizeof *sums, cudaMemcpyDefault);
    c.gridDim = dim3(1), c.blockDim = dim3(CUDA_THREADS), c.stream = stream;
    cudaLaunchKernelEx(&c, total_kernel, device, n, out);
    cudaStreamSynchronize(stream);
    cudaMemcpy(&total, out, sizeof total, cudaMemcpyDefault);
    cudaFree(device), cudaFree(out), cudaStreamDestroy(stream);
    return total;
}
