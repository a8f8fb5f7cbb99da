/* bf16.cu: codec "bf16" on CUDA; its maths and body are in codecs/bf16.c. A compress is a launch and reads 4 bytes an element, writes 2;
 * with feedback it is 2 launches, reads 16 and writes 6. A decompress is a launch, reads 2 for each payload, and reads (to add) and
 * writes 4. With of=(SPEC) it does not open. */
#include "codecs/cuda/common/dense.h"
#include "codecs/bf16.c"
#include "codecs/cuda/common/half.h"

typedef struct bf16_cuda_half {
    __device__ uint32_t code(float phi, int feedback) const {
        return feedback ? half_bf16_sent(phi) : half_to_bf16(phi);
    }
    __device__ float left(float phi, uint32_t code) const { return phi - half_from_bf16(code); }
} bf16_cuda_half;

typedef struct bf16_cuda_format {
    enum { BODIES = 0 };
    uint32_t codec, wire, nan_body;
    __device__ int header_ok(const cuda_header *, const cuda_sum *) const { return 1; }
    __device__ float value(const cuda_header *, const unsigned char *body, uint64_t i, float scale) const {
        return scale * half_from_bf16(cuda_get((const uint16_t *)(const void *)body + i));
    }
} bf16_cuda_format;

static esp_status bf16_cuda_open(const esp_host *h, const char *params, void **self) {
    return cuda_half_open(&bf16_codec, h, params, self);
}
static esp_status bf16_cuda_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                  esp_bound *out) {
    return cuda_bound(&bf16_codec, self, like, round, n_reduced, 0, out);
}
static esp_status bf16_cuda_compress(void *self, const esp_codec_args *a) {
    const cuda_dense_end end = {esp_name_hash("bf16"), 1, HALF_BF16_NAN, 2, 0, 2, 1, 0, 0};
    return cuda_half_compress(((const bf16_self *)self)->dense.host, "bf16", a, end, bf16_cuda_half{});
}
static esp_status bf16_cuda_decompress(void *self, const esp_codec_args *a) {
    const bf16_cuda_format f = {esp_name_hash("bf16"), 1, 1};
    return cuda_dense_decompress(((const bf16_self *)self)->dense.host, "bf16", a, [](uint64_t n) { return 2 * n; }, f);
}
CUDA_TWIN(bf16, bf16_codec, bf16_cuda_bound, bf16_cuda_compress, bf16_cuda_decompress, t.open = bf16_cuda_open)
