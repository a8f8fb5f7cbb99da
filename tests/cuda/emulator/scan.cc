/* scan.cc runs, for test_scan.c, kernels that sum over the threads of a block and find the k-th largest number of a
 * histogram. */
#include "tests/cuda/emulator/scan.h"
#include "codecs/cuda/common/block.h"

static __global__ void __launch_bounds__(CUDA_THREADS) before_kernel(const uint32_t *x, uint32_t *out, int warps) {
    __shared__ uint32_t room[CUDA_WARPS];
    for (int k = 0; k < SCAN_TIMES; k++) {
        const uint32_t i = (uint32_t)k * CUDA_THREADS + threadIdx.x;
        uint32_t total;
        out[i] = warps ? cuda_warps_before(x[i], room, &total) : cuda_block_before(x[i], room, &total);
        if (!warps) __syncthreads();
    }
}
static __global__ void __launch_bounds__(CUDA_THREADS)
    pick_kernel(uint64_t *hist, const uint64_t *k, uint64_t *bin, uint64_t *left) {
    __shared__ uint64_t room[CUDA_WARPS], found[2];
    for (int i = 0; i < SCAN_TIMES; i++) {
        const cuda_bin b = cuda_hist_pick<SCAN_BINS>(hist + i * SCAN_BINS, k[i], room, found);
        if (threadIdx.x == CUDA_THREADS - 1) bin[i] = b.bin, left[i] = b.left;
    }
}

static void *there(const void *from, size_t bytes) {
    void *p = NULL;
    cudaMalloc(&p, bytes);
    cudaMemcpy(p, from, bytes, cudaMemcpyDefault);
    return p;
}
static void back(void *to, void *p, size_t bytes) {
    cudaMemcpy(to, p, bytes, cudaMemcpyDefault);
    cudaFree(p);
}
template <typename... K, typename... A> static void run(uint64_t seed, void (*kernel)(K...), A... args) {
    cudaStream_t stream;
    cudaLaunchConfig_t c;
    memset((void *)&c, 0, sizeof c);
    cuda_host_seed(seed);
    cudaSetDevice(0);
    cudaStreamCreateWithPriority(&stream, 0, 0);
    c.gridDim = dim3(1), c.blockDim = dim3(CUDA_THREADS), c.stream = stream;
    cudaLaunchKernelEx(&c, kernel, args...);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
}

void scan_before(const uint32_t *x, uint32_t *out, int warps, uint64_t seed) {
    const size_t bytes = SCAN_TIMES * SCAN_THREADS * sizeof *x;
    uint32_t *from = (uint32_t *)there(x, bytes), *to = (uint32_t *)there(x, bytes);
    static_assert((int)SCAN_THREADS == (int)CUDA_THREADS, "the test has the kernels' number of threads");
    run(seed, before_kernel, (const uint32_t *)from, to, warps);
    back(out, to, bytes);
    cudaFree(from);
}
void scan_pick(const uint64_t *hist, const uint64_t *k, uint64_t *bin, uint64_t *left, uint64_t seed) {
    uint64_t *h = (uint64_t *)there(hist, SCAN_TIMES * SCAN_BINS * 8), *n = (uint64_t *)there(k, SCAN_TIMES * 8);
    uint64_t *b = (uint64_t *)there(k, SCAN_TIMES * 8), *l = (uint64_t *)there(k, SCAN_TIMES * 8);
    run(seed, pick_kernel, h, (const uint64_t *)n, b, l);
    back(bin, b, SCAN_TIMES * 8), back(left, l, SCAN_TIMES * 8);
    cudaFree(h), cudaFree(n);
}
