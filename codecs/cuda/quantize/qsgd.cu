/* qsgd.cu: codecs "qsgd" and "terngrad" on CUDA; their formulas are in codecs/quantize/qsgd.c. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/qsgd.c"

typedef struct qsgd_cuda {
    enum { HEADS = 1, NOISE = 1 };
    uint32_t mask, norm;
    float clip;
    CUDA_BLOCKS_OF(qsgd)
    __device__ void heads(const float *phi, cuda_rows r, float *head) const {
        const float top = cuda_rows_top(phi, r);
        float squares = 0;
        if (norm || clip > 0) squares = cuda_rows_squares(phi, r, top);
        head[0] = top > 0 ? qsgd_unit(top, squares, cuda_rows_n(r), norm, clip, mask) : 0;
    }
    __device__ blocks_scale scale(const float *head) const { return qsgd_scale(head[0], mask); }
} qsgd_cuda;
static qsgd_cuda qsgd_cuda_of(const blocks_self *s) {
    const qsgd_self *q = (const qsgd_self *)s;
    return {qsgd_mask(s), q->norm, q->clip};
}
static esp_status qsgd_cuda_open(const esp_host *h, const char *params, void **self) {
    const esp_status st = qsgd_open(h, params, self);
    if (st != ESP_OK || !qsgd_serial(*self)) return st;
    esp_codec_self_free(*self);
    return esp_codec_fail(h, "qsgd", ESP_E_UNSUPPORTED, "Elias codes (elias=1) are written on the CPU only");
}
CUDA_BLOCKS_CODEC(qsgd, qsgd_cuda_of, t.open = qsgd_cuda_open)
CUDA_BLOCKS_CODEC(terngrad, qsgd_cuda_of)
