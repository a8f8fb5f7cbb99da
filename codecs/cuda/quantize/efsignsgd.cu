/* efsignsgd.cu: codec "efsignsgd" on CUDA; its formulas are in codecs/quantize/efsignsgd.c. A compress is 2 kernel
 * launches: the first writes signs, scale and header, the second, only with error feedback, the residual. */
#include "codecs/cuda/common/dense.h"
#include "codecs/quantize/efsignsgd.c"
#include "codecs/cuda/common/norm.h"

enum { EFSIGN_OWN_SCALE = 1 };

static __global__ void __launch_bounds__(CUDA_THREADS) efsign_measure_kernel(cuda_parts all, uint32_t codec) {
    __shared__ cuda_norm_room room;
    const cuda_part *p = &all.part[blockIdx.y];
    double norm;
    const bool last = cuda_norm_of_phi(&room, &all, p, &norm, [&](uint64_t tile, const float *phi) {
        uint32_t word = 0;
        CUDA_UNROLL
        for (uint32_t k = 0; k < CUDA_TILE_EACH; k++) {
            const uint32_t w = __ballot_sync(0xFFFFFFFFu, phi[k] < 0);
            if (cuda_lane() == k) word = w;
        }
        /* Thread k < 16 of a warp writes the word with the signs of the warp's elements 32 k to 32 k + 31. */
        const uint64_t i = tile * CUDA_TILE + threadIdx.x / 32 * CUDA_TILE_WARP + cuda_lane() * 32;
        if (cuda_lane() < CUDA_TILE_EACH && i < p->count)
            cuda_put((uint32_t *)(void *)(cuda_body(p) + EFSIGN_SCALE_BYTES) + i / 32, word);
    });
    if (!last) return;
    const float s = p->count ? efsign_scale(norm, p->count) : 0;
    const int bad = dense_bad(s);
    cuda_flags_of(p)->own[EFSIGN_OWN_SCALE] = float_bits(s);
    cuda_flags_of(p)->bad = bad != 0;
    if (p->count && !bad) cuda_put((float *)(void *)cuda_body(p), s);
    cuda_write_header_if(p, codec, 1, bad, efsign_body(p->count), 0);
}
static __global__ void __launch_bounds__(CUDA_THREADS) efsign_keep_kernel(cuda_parts all) {
    const cuda_part *p = &all.part[blockIdx.y];
    const float s = bits_float(cuda_get(&cuda_flags_of(p)->own[EFSIGN_OWN_SCALE]));
    if (!p->e || cuda_get(&cuda_flags_of(p)->bad)) return;
    cuda_dense_each(&all, p, [&](uint64_t i, float phi) { cuda_put(p->e + i, efsign_kept(phi, s)); });
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

static esp_status efsign_cuda_open(const esp_host *h, const char *params, void **self) {
    const esp_status st = efsign_open(h, params, self);
    if (st != ESP_OK || !((const efsign_self *)*self)->squares) return st;
    esp_codec_self_free(*self);
    return esp_codec_fail(h, "efsignsgd", ESP_E_UNSUPPORTED, "norm=2 is computed on the CPU only");
}
static uint64_t efsign_cuda_scratch(const void *self, const esp_tensor *like) {
    (void)self;
    return cuda_norm_scratch(like->count);
}
static esp_status efsign_cuda_compress(void *self, const esp_codec_args *a) {
    const uint32_t codec = esp_name_hash("efsignsgd");
    const esp_host *h = ((const dense_self *)self)->host;
    return cuda_each_part(h, "efsignsgd", a, efsign_body, [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
        cuda_launch(c, "measure", cuda_kernel<efsign_measure_kernel>, cuda_grid(c, longest, CUDA_TILE, parts.n), parts,
                    codec);
        if (a->residual)
            cuda_launch(c, "keep", cuda_kernel<efsign_keep_kernel>, cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n),
                        parts);
    });
}
static esp_status efsign_cuda_decompress(void *self, const esp_codec_args *a) {
    const efsign_cuda_format f = {esp_name_hash("efsignsgd"), 1, 0};
    return cuda_dense_decompress(((const dense_self *)self)->host, "efsignsgd", a, efsign_body, f);
}
CUDA_CODEC(efsignsgd, efsign_codec, efsign_cuda_scratch, efsign_cuda_compress, efsign_cuda_decompress,
           t.open = efsign_cuda_open)
