/* norm.h: computes the sum of the absolute values of gradient plus residual, with the same bits as
 * codecs/common/norm.h. Each block adds tiles of 4096 elements. The last block adds the tiles' sums in parallel
 * where that is exact; where a sum would be rounded, one thread adds in the CPU's order. */
#ifndef ESP_CUDA_NORM_H
#define ESP_CUDA_NORM_H
#include "codecs/cuda/common/tile.h"
#include "codecs/common/norm.h"

static_assert((int)NORM_BLOCK == (int)CUDA_TILE, "a tile is a block of the norm");
enum { CUDA_NORM_WARPS = CUDA_THREADS / 32, CUDA_NORM_ZERO = 127 };

/* Shared memory that a kernel provides for these functions. */
typedef struct cuda_norm_room {
    float tile[CUDA_TILE];
    double sum[CUDA_NORM_WARPS];
    int32_t unit[CUDA_NORM_WARPS];
} cuda_norm_room;

static __device__ __forceinline__ float *cuda_norm_sums(const cuda_part *p) {
    return (float *)(void *)(p->scratch + CUDA_FLAGS);
}
static inline uint64_t cuda_norm_scratch(uint64_t count) { return norm_blocks(count) * sizeof(float); }

static __device__ __forceinline__ void cuda_norm_tile(cuda_norm_room *room, float *sums, uint64_t tile,
                                                      const float phi[CUDA_TILE_EACH]) {
    float *at = room->tile + threadIdx.x / 32 * CUDA_TILE_WARP + cuda_lane();
    __syncthreads(); /* all threads have read the last tile */
    CUDA_UNROLL
    for (int k = 0; k < CUDA_TILE_EACH; k++) at[k * 32] = bits_float(float_bits(phi[k]) & 0x7FFFFFFFu);
    __syncthreads();
    if (threadIdx.x >= NORM_LANES) return;
    float sum = 0;
    CUDA_UNROLL_BY(16)
    for (int i = 0; i < CUDA_TILE; i += NORM_LANES) sum += room->tile[i + (int)threadIdx.x];
    for (int by = NORM_LANES / 2; by; by /= 2) sum += __shfl_down_sync(0xFFFFu, sum, by, NORM_LANES);
    if (threadIdx.x == 0) cuda_put(sums + tile, sum);
}

static __device__ __forceinline__ int32_t cuda_norm_unit(float x) {
    const int32_t exponent = (int32_t)(float_bits(x) >> 23 & 0xFFu);
    return float_bits(x) << 1 == 0 ? (int32_t)CUDA_NORM_ZERO : (exponent ? exponent : 1) - 150;
}
static __device__ __forceinline__ int32_t cuda_norm_unit64(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return (int32_t)(u >> 52 & 0x7FFu) - 1075;
}
static __device__ __forceinline__ double cuda_norm_power(int32_t exponent) {
    const uint64_t u = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Returns, in thread 0, the sum of the tiles' sums. All threads of the last block call it. */
static __device__ __forceinline__ double cuda_norm_total(cuda_norm_room *room, const float *sums, uint64_t n) {
    const uint32_t warp = threadIdx.x / 32;
    double total = 0;
    int32_t unit = CUDA_NORM_ZERO; /* 2^unit divides total */
    for (uint64_t first = 0; first < (n + CUDA_TILE - 1) / CUDA_TILE; first++) {
        double sum = 0;
        int32_t least = CUDA_NORM_ZERO;
        float x[CUDA_TILE_EACH];
        CUDA_UNROLL
        for (int k = 0; k < CUDA_TILE_EACH; k++) {
            const uint64_t i = cuda_tile_at(first, k);
            x[k] = i < n ? *(const volatile float *)(sums + i) : 0; /* volatile, since other blocks wrote it */
        }
        CUDA_UNROLL
        for (int k = 0; k < CUDA_TILE_EACH; k++) {
            sum += (double)x[k];
            least = min(least, cuda_norm_unit(x[k]));
            room->tile[warp * CUDA_TILE_WARP + (uint32_t)k * 32 + cuda_lane()] = x[k];
        }
        sum = cuda_warp_all(sum, [](double a, double b) { return a + b; });
        least = cuda_warp_all(least, [](int32_t a, int32_t b) { return min(a, b); });
        if (cuda_lane() == 0) room->sum[warp] = sum, room->unit[warp] = least;
        __syncthreads();
        for (int w = 0; threadIdx.x == 0 && w < CUDA_NORM_WARPS; w++) {
            const double next = total + room->sum[w];
            if (next < cuda_norm_power(53 + min(max(unit, cuda_norm_unit64(total)), room->unit[w])))
                total = next;
            else
                for (int i = 0; i < CUDA_TILE_WARP; i++) total += (double)room->tile[w * CUDA_TILE_WARP + i];
            unit = min(unit, room->unit[w]);
        }
        __syncthreads();
    }
    return total;
}
/* Calls also(tile, phi) for each tile of gradient plus residual (phi). Returns true in one thread of one block, and
 * there sets *norm to the sum of all |phi|. */
template <typename Also>
static __device__ __forceinline__ bool cuda_norm_of_phi(cuda_norm_room *room, const cuda_parts *all, const cuda_part *p,
                                                        double *norm, Also also) {
    const uint64_t tiles = cuda_tiles(p->count);
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float phi[CUDA_TILE_EACH];
        cuda_tile_phi(all, p, tile, phi);
        also(tile, phi);
        cuda_norm_tile(room, cuda_norm_sums(p), tile, phi);
    }
    if (!cuda_last_block(p)) return false;
    *norm = cuda_norm_total(room, cuda_norm_sums(p), tiles);
    return threadIdx.x == 0;
}
#endif
