/* block.h: prefix sums over the threads of a block, and histograms that all blocks fill and the last one evaluates. */
#ifndef ESP_CUDA_BLOCK_H
#define ESP_CUDA_BLOCK_H
#include "codecs/cuda/common/codec.h"

enum { CUDA_WARPS = CUDA_THREADS / 32 };

/* Reads memory that other blocks of this launch have written, bypassing caches that may hold older data. */
template <typename T> static __device__ __forceinline__ T cuda_fresh(const T *p) {
#ifdef CUDA_HOST
    cuda_host_read += sizeof(T);
#endif
    return *(const volatile T *)p;
}
static __device__ __forceinline__ uint64_t cuda_add64(uint64_t *at, uint64_t v) {
    return (uint64_t)atomicAdd((unsigned long long *)(void *)at, (unsigned long long)v);
}
/* Returns a mask of the warp's threads with lower numbers than this one. */
static __device__ __forceinline__ uint32_t cuda_lanes_before(void) { return (1u << cuda_lane()) - 1; }

/* Returns the number of set bits of x over all threads of a warp. All of them call it. */
static __device__ __forceinline__ uint32_t cuda_warp_bits(uint32_t x) {
    return cuda_warp_all((uint32_t)__popc(x), [](uint32_t a, uint32_t b) { return a + b; });
}
/* Returns the sum of warps[] over warps with lower numbers than this thread's. *total receives the sum of all. */
template <typename T> static __device__ __forceinline__ T cuda_before_warp(const T *warps, T *total) {
    T before = 0, all = 0;
    CUDA_UNROLL
    for (uint32_t w = 0; w < (uint32_t)CUDA_WARPS; w++) {
        const T n = warps[w];
        if (w < threadIdx.x / 32) before += n;
        all += n;
    }
    *total = all;
    return before;
}
/* Returns the sum of x over the block's threads with lower numbers. *total receives the sum of all. All threads call
 * it. `warps` is shared memory for CUDA_WARPS numbers, which may be reused only after a barrier. */
template <typename T> static __device__ __forceinline__ T cuda_block_before(T x, T *warps, T *total) {
    T sum = x;
    for (uint32_t by = 1; by < 32; by *= 2) {
        const T other = __shfl_up_sync(0xFFFFFFFFu, sum, by);
        if (cuda_lane() >= by) sum += other;
    }
    if (cuda_lane() == 31) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    return cuda_before_warp(warps, total) + sum - x;
}
/* Returns the sum of `mine` over the block's warps with lower numbers, and *total over all. All threads of a warp
 * pass the same value. It ends with a barrier. */
static __device__ __forceinline__ uint32_t cuda_warps_before(uint32_t mine, uint32_t *warps, uint32_t *total) {
    if (cuda_lane() == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    const uint32_t before = cuda_before_warp(warps, total);
    __syncthreads();
    return before;
}

/* ---- histograms -------------------------------------------------------------------------------------------------- */
template <int BINS> static __device__ __forceinline__ void cuda_hist_clear(uint32_t *hist) {
    for (uint32_t b = threadIdx.x; b < (uint32_t)BINS; b += CUDA_THREADS) hist[b] = 0;
    __syncthreads();
}
/* Adds 1 to hist[bin] for each thread of the warp whose `is` is true. Threads with equal bins often share one atomic
 * addition. All threads of the warp must call it. */
static __device__ __forceinline__ void cuda_hist_count(uint32_t *hist, uint32_t bin, int is) {
    const uint32_t in = __ballot_sync(0xFFFFFFFFu, is);
    if (!in) return;
    const uint32_t leader = (uint32_t)__ffs((int)in) - 1, first = __shfl_sync(0xFFFFFFFFu, bin, leader);
    const uint32_t same = __ballot_sync(0xFFFFFFFFu, is && bin == first);
    if (cuda_lane() == leader)
        atomicAdd(&hist[first], (uint32_t)__popc(same));
    else if (is && bin != first)
        atomicAdd(&hist[bin], 1u);
}
/* Adds the block's counters, in shared memory, to the counters in global memory. */
template <int BINS> static __device__ __forceinline__ void cuda_hist_flush(uint64_t *to, const uint32_t *hist) {
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < (uint32_t)BINS; b += CUDA_THREADS)
        if (hist[b]) cuda_add64(&to[b], hist[b]);
}
/* cuda_bin_pick() returns the bin of the k-th largest counted number, and in `left` how many numbers of that bin are
 * among the k largest. All threads of a block call it, each with the counters n[i] of the bins cuda_top_bin() - i.
 * `warps` is shared memory for CUDA_WARPS numbers, `found` for 2. */
typedef struct cuda_bin {
    uint32_t bin;
    uint64_t left;
} cuda_bin;
template <int BINS> static __device__ __forceinline__ uint32_t cuda_top_bin(void) {
    return (uint32_t)BINS - 1 - threadIdx.x * (BINS / CUDA_THREADS);
}
template <int BINS>
static __device__ __forceinline__ cuda_bin cuda_bin_pick(const uint64_t *n, uint64_t k, uint64_t *warps,
                                                         uint64_t *found) {
    enum { EACH = BINS / CUDA_THREADS };
    uint64_t sum = 0, total;
    CUDA_UNROLL
    for (uint32_t i = 0; i < EACH; i++) sum += n[i];
    uint64_t above = cuda_block_before(sum, warps, &total);
    if (above < k && above + sum >= k) {
        int open = 1;
        CUDA_UNROLL
        for (uint32_t i = 0; i < EACH; i++) {
            if (open && above + n[i] >= k) found[0] = cuda_top_bin<BINS>() - i, found[1] = k - above, open = 0;
            if (open) above += n[i];
        }
    }
    __syncthreads();
    const cuda_bin r = {(uint32_t)found[0], found[1]};
    return r;
}
/* Finds the bin of the k-th largest number in `hist`, and zeroes `hist`. Only the last block to finish calls it. */
template <int BINS>
static __device__ __forceinline__ cuda_bin cuda_hist_pick(uint64_t *hist, uint64_t k, uint64_t *warps,
                                                          uint64_t *found) {
    enum { EACH = BINS / CUDA_THREADS };
    const uint32_t top = cuda_top_bin<BINS>();
    uint64_t n[EACH];
    CUDA_UNROLL
    for (uint32_t i = 0; i < EACH; i++) n[i] = cuda_fresh(&hist[top - i]);
    CUDA_UNROLL
    for (uint32_t i = 0; i < EACH; i++) hist[top - i] = 0;
    return cuda_bin_pick<BINS>(n, k, warps, found);
}
#endif
