/* twobit.cu: codec "twobit" on CUDA. Its formulas are in codecs/quantize/twobit.c. */
#include "codecs/cuda/common/dense.h"
#include "codecs/quantize/twobit.c"
#include "codecs/cuda/common/norm.h"

enum { TWOBIT_OWN_THRESHOLD = 1 };

/* Moves 16 bits, one per element, to the lower bits of the elements' two-bit codes. In the result every four
 * elements are in reverse order, as MXNet's format requires. */
static __device__ __forceinline__ uint32_t twobit_spread(uint32_t x) {
    x = (x & 0x5555u) << 1 | (x >> 1 & 0x5555u);
    x = (x & 0x3333u) << 2 | (x >> 2 & 0x3333u);
    x = (x | x << 8) & 0x00FF00FFu;
    x = (x | x << 4) & 0x0F0F0F0Fu;
    x = (x | x << 2) & 0x33333333u;
    return (x | x << 1) & 0x55555555u;
}

static __global__ void __launch_bounds__(CUDA_THREADS)
    twobit_measure_kernel(cuda_parts all, uint32_t codec, double relative) {
    __shared__ cuda_norm_room room;
    const cuda_part *p = &all.part[blockIdx.y];
    double norm;
    if (!cuda_norm_of_phi(&room, &all, p, &norm, [](uint64_t, const float *) {})) return;
    const float t = twobit_relative(norm, relative, p->count);
    const int bad = dense_bad(t);
    cuda_flags_of(p)->own[TWOBIT_OWN_THRESHOLD] = float_bits(t);
    cuda_flags_of(p)->bad = bad != 0;
    cuda_write_header_if(p, codec, 1, bad, twobit_body(p->count), float_bits(t));
}

/* A threshold of 0 stands for the one that twobit_measure_kernel computed for each tensor. */
static __global__ void __launch_bounds__(CUDA_THREADS)
    twobit_encode_kernel(cuda_parts all, float threshold, cuda_dense_end end) {
    const cuda_part *p = &all.part[blockIdx.y];
    cuda_flags *flags = cuda_flags_of(p);
    const int measured = threshold == 0;
    if (measured && cuda_get(&flags->bad)) return;
    if (!measured && cuda_dense_skip(&all, p, end)) return;
    uint32_t any = 0;
    const float t = measured ? bits_float(cuda_get(&flags->own[TWOBIT_OWN_THRESHOLD])) : threshold;
    for (uint64_t tile = blockIdx.x; tile < cuda_tiles(p->count); tile += gridDim.x) {
        float phi[CUDA_TILE_EACH];
        uint32_t up = 0, sent = 0;
        cuda_tile_phi(&all, p, tile, phi);
        CUDA_UNROLL
        for (uint32_t k = 0; k < CUDA_TILE_EACH; k++) {
            const uint64_t i = cuda_tile_at(tile, (int)k);
            const uint32_t code = i < p->count ? twobit_code(phi[k], t) : 0;
            const uint32_t u = __ballot_sync(0xFFFFFFFFu, code & 1u), s = __ballot_sync(0xFFFFFFFFu, code);
            if (cuda_lane() / 2 == k) up = u, sent = s;
            any |= dense_nonfinite(phi[k]);
            if (p->e && i < p->count) cuda_put(p->e + i, phi[k] - bits_float(twobit_value(code, float_bits(t))));
        }
        /* Each thread packs 16 neighbouring elements: one half of the bits of a ballot over 32 elements. */
        const uint32_t half = cuda_lane() % 2 * 16;
        const uint64_t first = tile * CUDA_TILE + threadIdx.x / 32 * CUDA_TILE_WARP + cuda_lane() * 16;
        const uint32_t word = twobit_spread(sent >> half & 0xFFFFu) << 1 | twobit_spread(up >> half & 0xFFFFu);
        if (first < p->count) cuda_put((uint32_t *)(void *)cuda_body(p) + first / 16, word);
    }
    if (!measured) cuda_dense_finish(p, end, any >> 31 != 0);
}

typedef struct twobit_cuda_format {
    enum { BODIES = 1 };
    uint32_t codec, wire, nan_body;
    __device__ int header_ok(const cuda_header *h, const cuda_sum *) const {
        return !cuda_dense_plain(h) || twobit_header_ok(h->aux);
    }
    __host__ __device__ uint64_t pieces(uint64_t count) const { return twobit_body(count) / 4; }
    __device__ int piece_ok(const unsigned char *body, uint64_t count, uint64_t piece) const {
        const uint32_t w = cuda_get((const uint32_t *)(const void *)body + piece);
        return !twobit_word_bad(w) && (piece != count / 16 || twobit_padding_ok(w, (uint32_t)(count % 16)));
    }
    __device__ float value(const cuda_header *h, const unsigned char *body, uint64_t i, float scale) const {
        const float t = bits_float((uint32_t)h->aux) * scale;
        const uint32_t w = cuda_get_same((const uint32_t *)(const void *)body + i / 16, 16);
        return bits_float(twobit_value(w >> twobit_shift((uint32_t)(i % 16)) & 3u, float_bits(t)));
    }
} twobit_cuda_format;

static uint64_t twobit_cuda_scratch(const void *self, const esp_tensor *like) {
    const int relative = ((const twobit_self *)self)->relative > 0;
    return relative ? cuda_norm_scratch(like->count) : 0;
}
static esp_status twobit_cuda_compress(void *self, const esp_codec_args *a) {
    const twobit_self *s = (const twobit_self *)self;
    const uint32_t codec = esp_name_hash("twobit");
    if (s->relative <= 0) {
        const cuda_dense_end end = {codec, 1, 0, 0, float_bits(s->threshold), 2, 4, 0, 0};
        return cuda_dense_compress_by(
            s->dense.host, "twobit", a, end, CUDA_TILE, [&](cuda_call *c, const cuda_parts &parts, dim3 grid) {
                cuda_launch(c, "encode", cuda_kernel<twobit_encode_kernel>, grid, parts, s->threshold, end);
            });
    }
    return cuda_each_part(
        s->dense.host, "twobit", a, twobit_body, [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
            const dim3 grid = cuda_grid(c, longest, CUDA_TILE, parts.n);
            cuda_launch(c, "measure", cuda_kernel<twobit_measure_kernel>, grid, parts, codec, s->relative);
            cuda_launch(c, "encode", cuda_kernel<twobit_encode_kernel>, grid, parts, 0.0f, cuda_dense_end{});
        });
}
static esp_status twobit_cuda_decompress(void *self, const esp_codec_args *a) {
    const twobit_cuda_format f = {esp_name_hash("twobit"), 1, 0};
    return cuda_dense_decompress(((const twobit_self *)self)->dense.host, "twobit", a, twobit_body, f);
}
CUDA_CODEC(twobit, twobit_codec, twobit_cuda_scratch, twobit_cuda_compress, twobit_cuda_decompress)
