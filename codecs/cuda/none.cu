/* none.cu: codec "none" on CUDA, which sends f32 numbers unchanged. */
#include "codecs/cuda/common/dense.h"
#include "codecs/none.c"

static const cuda_dense_end none_end = {esp_name_hash("none"), 1, 0x7FC00000u, 4, 0, 32, 1, 0, 0};

typedef struct none_cuda_code {
    __device__ void put(const cuda_part *p, uint64_t i, float phi) const {
        cuda_put((float *)(void *)cuda_body(p) + i, phi);
        if (p->e) cuda_put(p->e + i, 0.0f);
    }
} none_cuda_code;

typedef struct none_cuda_format {
    enum { BODIES = 0 };
    uint32_t codec, wire, nan_body;
    __device__ int header_ok(const cuda_header *, const cuda_sum *) const { return 1; }
    __device__ float value(const cuda_header *, const unsigned char *body, uint64_t i, float scale) const {
        return scale * cuda_get((const float *)(const void *)body + i);
    }
} none_cuda_format;

static esp_status none_cuda_compress(void *self, const esp_codec_args *a) {
    return cuda_dense_compress(((const dense_self *)self)->host, "none", a, none_end, none_cuda_code{});
}
static esp_status none_cuda_decompress(void *self, const esp_codec_args *a) {
    const none_cuda_format f = {none_end.codec, none_end.wire, 1};
    return cuda_dense_decompress(((const dense_self *)self)->host, "none", a, cuda_dense_size(none_end), f);
}
CUDA_CODEC(none, none_codec, cuda_no_scratch, none_cuda_compress, none_cuda_decompress)
