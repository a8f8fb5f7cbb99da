/* efsignsgd.cu: codec "efsignsgd" on CUDA; its maths is in codecs/efsignsgd.c. A compress is 2 launches: the first
 * writes signs, scale and header (it moves 8 bytes per element, without feedback 4), the second writes the residual
 * (12 bytes, only with feedback). A decompress is 2 launches; per element it reads 1 bit of each payload and writes
 * 4 bytes. */
#include "codecs/cuda/common/dense.h"
#include "codecs/efsignsgd.c"
#include "codecs/cuda/common/norm.h"

enum { EFSIGN_OWN_SCALE = 1 }; /* index of the scale's bits in flags->own[] */

/* The last block of a part to finish writes the scale and the header. */
static __device__ __forceinline__ void efsign_finish(const cuda_part *p, uint32_t codec, double norm) {
    const float s = p->count ? efsign_scale(norm, p->count) : 0;
    const int bad = dense_bad(s);
    cuda_flags_of(p)->own[EFSIGN_OWN_SCALE] = float_bits(s);
    cuda_flags_of(p)->bad = bad != 0;
    if (p->count && !bad) cuda_put((float *)(void *)cuda_body(p), s);
    cuda_write_header(p, codec, 1, bad ? ESP_PAYLOAD_NONFINITE : 0, bad ? 0 : efsign_body(p->count), 0);
}
static __global__ void __launch_bounds__(CUDA_THREADS) efsign_measure_kernel(cuda_parts all, uint32_t codec) {
    __shared__ cuda_norm_room room;
    const cuda_part *p = &all.part[blockIdx.y];
    const uint64_t tiles = (p->count + CUDA_TILE - 1) / CUDA_TILE;
    for (uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float phi[CUDA_TILE_EACH];
        uint32_t word = 0;
        cuda_tile_phi(&all, p, tile, phi);
        CUDA_UNROLL
        for (uint32_t k = 0; k < CUDA_TILE_EACH; k++) {
            const uint32_t w = __ballot_sync(0xFFFFFFFFu, phi[k] < 0);
            if (cuda_lane() == k) word = w;
        }
        /* Lane k < 16 writes the word with the signs of the warp's elements 32 k to 32 k + 31. */
        const uint64_t i = tile * CUDA_TILE + threadIdx.x / 32 * CUDA_TILE_WARP + cuda_lane() * 32;
        if (cuda_lane() < CUDA_TILE_EACH && i < p->count)
            cuda_put((uint32_t *)(void *)(cuda_body(p) + EFSIGN_SCALE_BYTES) + i / 32, word);
        cuda_norm_tile(&room, cuda_norm_sums(p), tile, phi);
    }
    if (!cuda_last_block(p)) return;
    const double norm = cuda_norm_total(&room, cuda_norm_sums(p), tiles);
    if (threadIdx.x == 0) efsign_finish(p, codec, norm);
}
static __global__ void __launch_bounds__(CUDA_THREADS) efsign_keep_kernel(cuda_parts all) {
    const cuda_part *p = &all.part[blockIdx.y];
    const float s = bits_float(cuda_get(&cuda_flags_of(p)->own[EFSIGN_OWN_SCALE]));
    if (!p->e || cuda_get(&cuda_flags_of(p)->bad)) return;
    for (uint64_t at = (uint64_t)blockIdx.x * CUDA_DENSE_EACH; at < p->count;
         at += (uint64_t)gridDim.x * CUDA_DENSE_EACH) {
        float phi[4];
        cuda_dense_phi(&all, p, at, phi);
        CUDA_UNROLL
        for (int k = 0; k < 4; k++) {
            const uint64_t i = cuda_dense_at(at, k);
            if (i < p->count) cuda_put(p->e + i, efsign_kept(phi[k], s));
        }
    }
}

typedef struct efsign_cuda_format {
    enum { BODIES = 1 };
    uint32_t codec, wire, nan_body;
    __device__ int header_ok(const cuda_header *, const cuda_sum *) const { return 1; }
    __host__ __device__ uint64_t pieces(uint64_t count) const { return count != 0; }
    __device__ int piece_ok(const unsigned char *body, uint64_t count, uint64_t) const {
        return efsign_body_ok(body, count);
    }
    __device__ float value(const cuda_header *, const unsigned char *body, uint64_t i, float scale) const {
        const uint32_t *words = (const uint32_t *)(const void *)(body + EFSIGN_SCALE_BYTES);
        const float s = cuda_get_same((const float *)(const void *)body) * scale;
        return bits_sign(cuda_get_same(words + i / 32), (uint32_t)(i % 32), float_bits(s));
    }
} efsign_cuda_format;

static uint64_t efsign_cuda_scratch(const void *self, const esp_tensor *like) {
    (void)self;
    return cuda_norm_scratch(like->count);
}
static esp_status efsign_cuda_compress(void *self, const esp_codec_args *a) {
    const uint32_t codec = esp_name_hash("efsignsgd");
    cuda_call c;
    const esp_status s = cuda_begin(&c, ((const efsign_self *)self)->dense.host, "efsignsgd", a);
    if (s != ESP_OK) return s;
    return cuda_each_part(&c, a, efsign_body, [&](const cuda_parts &parts, uint64_t longest) {
        cuda_launch(&c, "measure", efsign_measure_kernel, cuda_grid(&c, longest, CUDA_TILE, parts.n), parts, codec);
        if (a->residual)
            cuda_launch(&c, "keep", efsign_keep_kernel, cuda_grid(&c, longest, CUDA_DENSE_EACH, parts.n), parts);
    });
}
static esp_status efsign_cuda_decompress(void *self, const esp_codec_args *a) {
    const efsign_cuda_format f = {esp_name_hash("efsignsgd"), 1, 0};
    return cuda_dense_decompress(((const efsign_self *)self)->dense.host, "efsignsgd", a, efsign_body, f);
}
CUDA_CODEC(efsignsgd, efsign_codec, efsign_cuda_scratch, efsign_cuda_compress, efsign_cuda_decompress)
