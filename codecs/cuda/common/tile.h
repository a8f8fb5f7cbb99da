/* tile.h: how elements are assigned to threads. A block processes tiles of 4096 elements. Each warp has 512
 * neighbouring elements of a tile, and each of its threads every 32nd of those, so that a warp reads contiguous
 * memory. */
#ifndef ESP_CUDA_TILE_H
#define ESP_CUDA_TILE_H
#include "codecs/common/element.h"
#include "codecs/cuda/common/codec.h"

enum { CUDA_TILE = 4096, CUDA_TILE_WARP = 512, CUDA_TILE_EACH = 16 };

ESP_ELEMENT uint64_t cuda_tiles(uint64_t count) { return (count + CUDA_TILE - 1) / CUDA_TILE; }
static __device__ __forceinline__ uint64_t cuda_tile_at(uint64_t tile, int k) {
    return tile * CUDA_TILE + threadIdx.x / 32 * CUDA_TILE_WARP + (uint64_t)k * 32 + cuda_lane();
}
/* Loads phi (gradient plus residual) of this thread's elements, or 0 beyond the end, with all loads in flight. */
static __device__ __forceinline__ void cuda_tile_phi(const cuda_parts *all, const cuda_part *p, uint64_t tile,
                                                     float phi[CUDA_TILE_EACH]) {
    CUDA_UNROLL
    for (int k = 0; k < CUDA_TILE_EACH; k++) {
        const uint64_t i = cuda_tile_at(tile, k);
        phi[k] = i < p->count ? cuda_phi(all, p, i) : 0;
    }
}
#endif
