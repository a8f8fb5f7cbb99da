/* none.cu: codec "none" on CUDA; its maths and body are in codecs/none.c. A compress is a launch, reads 4 bytes an element and writes 4
 * (with feedback 2 launches, it reads 16 and writes 8); a decompress is a launch, reads 4 for each payload, and reads (to add) and writes 4. */
#include "codecs/cuda/common/dense.h"
#include "codecs/none.c"

static const cuda_dense_end none_end = {esp_name_hash("none"), 1, 0x7FC00000u, 4, 0, 4, 1, 0, 0};

static __global__ void __launch_bounds__(CUDA_THREADS) none_encode(cuda_parts all, cuda_dense_end end) {
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_dense_skip(p, end)) return;
    uint32_t any = 0;
    for (uint64_t at = (uint64_t)blockIdx.x * CUDA_DENSE_EACH; at < p->count;
         at += (uint64_t)gridDim.x * CUDA_DENSE_EACH) {
        float phi[4];
        cuda_dense_phi(&all, p, at, phi);
        CUDA_UNROLL
        for (int k = 0; k < 4; k++) {
            const uint64_t i = cuda_dense_at(at, k);
            if (i >= p->count) continue;
            any |= dense_nonfinite(phi[k]);
            cuda_put((float *)(void *)cuda_body(p) + i, phi[k]);
            if (p->e) cuda_put(p->e + i, 0.0f);
        }
    }
    cuda_dense_finish(p, end, any >> 31 != 0);
}

typedef struct none_cuda_format {
    enum { BODIES = 0 };
    uint32_t codec, wire, nan_body;
    __device__ int header_ok(const cuda_header *, const cuda_sum *) const { return 1; }
    __device__ float value(const cuda_header *, const unsigned char *body, uint64_t i, float scale) const {
        return scale * cuda_get((const float *)(const void *)body + i);
    }
} none_cuda_format;

static esp_status none_cuda_compress(void *self, const esp_codec_args *a) {
    return cuda_dense_compress(((const dense_self *)self)->host, "none", a, none_end,
                               [](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
                                   cuda_launch(c, "none", none_encode, cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n),
                                               parts, none_end);
                               });
}
static esp_status none_cuda_decompress(void *self, const esp_codec_args *a) {
    const none_cuda_format f = {none_end.codec, none_end.wire, 1};
    return cuda_dense_decompress(((const dense_self *)self)->host, "none", a, cuda_dense_size(none_end), f);
}
CUDA_CODEC(none, none_codec, cuda_no_scratch, none_cuda_compress, none_cuda_decompress)
