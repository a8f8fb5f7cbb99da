/* fp16.cu: codec "fp16" on CUDA; its maths and body are in codecs/fp16.c. A compress is a launch and reads 4 bytes an element, writes 2;
 * with feedback it is 2 launches, reads 16 and writes 6. A decompress is a launch, reads 2 for each payload, and reads (to add) and
 * writes 4. With of=(SPEC) it does not open. */
#include "codecs/cuda/common/dense.h"
#include "codecs/fp16.c"
#include "codecs/cuda/common/half.h"

typedef struct fp16_cuda_half {
    float down, up;
    __device__ uint32_t code(float phi, int feedback) const {
        return half_to_f16(down * (feedback ? half_f16_clamp(phi) : phi));
    }
    __device__ float left(float phi, uint32_t code) const { return phi - up * half_from_f16(code & 0xFFFFu); }
} fp16_cuda_half;

typedef struct fp16_cuda_format {
    enum { BODIES = 0 };
    uint32_t codec, wire, nan_body;
    __device__ int header_ok(const cuda_header *h, const cuda_sum *) const {
        return !cuda_dense_plain(h) || h->aux <= FP16_AUX_MAX;
    }
    __device__ float value(const cuda_header *h, const unsigned char *body, uint64_t i, float scale) const {
        const float up = (float)(1u << (uint32_t)h->aux) * scale;
        return up * half_from_f16(cuda_get((const uint16_t *)(const void *)body + i));
    }
} fp16_cuda_format;

static esp_status fp16_cuda_open(const esp_host *h, const char *params, void **self) {
    return cuda_half_open(&fp16_codec, h, params, self);
}
static esp_status fp16_cuda_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                  esp_bound *out) {
    return cuda_bound(&fp16_codec, self, like, round, n_reduced, 0, out);
}
static esp_status fp16_cuda_compress(void *self, const esp_codec_args *a) {
    const uint64_t exponent = fp16_exponent(a->n_reduced);
    const cuda_dense_end end = {esp_name_hash("fp16"), 1, HALF_F16_NAN, 2, exponent, 2, 1, 0, 0};
    const float up = (float)((uint64_t)1 << exponent);
    return cuda_half_compress(((const fp16_self *)self)->dense.host, "fp16", a, end, fp16_cuda_half{1 / up, up});
}
static esp_status fp16_cuda_decompress(void *self, const esp_codec_args *a) {
    const fp16_cuda_format f = {esp_name_hash("fp16"), 1, 1};
    return cuda_dense_decompress(((const fp16_self *)self)->dense.host, "fp16", a, [](uint64_t n) { return 2 * n; }, f);
}
CUDA_TWIN(fp16, fp16_codec, fp16_cuda_bound, fp16_cuda_compress, fp16_cuda_decompress, t.open = fp16_cuda_open)
