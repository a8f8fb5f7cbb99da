/* tile.h: distributes a part over threads: a block of threads processes tiles of 4096 elements, a warp 512 of a tile, a
 * thread 16 of those, 32 apart. So a warp's lanes read neighbours, and one ballot of all lanes is a word of 32
 * elements. A tile is also a block of norm.h. */
#ifndef ESP_CUDA_TILE_H
#define ESP_CUDA_TILE_H
#include "codecs/cuda/common/codec.h"

enum { CUDA_TILE = 4096, CUDA_TILE_WARP = 512, CUDA_TILE_EACH = 16 };

/* This thread's element k of the tile. */
static __device__ __forceinline__ uint64_t cuda_tile_at(uint64_t tile, int k) {
    return tile * CUDA_TILE + threadIdx.x / 32 * CUDA_TILE_WARP + (uint64_t)k * 32 + cuda_lane();
}
/* phi of this thread's elements, or 0 behind the part's end. All loads are in flight before the first is needed. */
static __device__ __forceinline__ void cuda_tile_phi(const cuda_parts *all, const cuda_part *p, uint64_t tile,
                                                     float phi[CUDA_TILE_EACH]) {
    CUDA_UNROLL
    for (int k = 0; k < CUDA_TILE_EACH; k++) {
        const uint64_t i = cuda_tile_at(tile, k);
        phi[k] = i < p->count ? cuda_phi(all, p, i) : 0;
    }
}
#endif
