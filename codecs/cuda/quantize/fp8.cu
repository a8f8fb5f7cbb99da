/* fp8.cu: codec "fp8" on CUDA; its formulas are in codecs/quantize/fp8.c. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/fp8.c"

typedef struct fp8_cuda {
    enum { HEADS = 1, NOISE = 0 };
    uint32_t mantissa;
    CUDA_BLOCKS_OF(fp8)
    __device__ void heads(const float *phi, cuda_rows r, float *head) const { head[0] = cuda_rows_top(phi, r); }
    __device__ blocks_scale scale(const float *head) const { return fp8_scale(head[0], mantissa); }
} fp8_cuda;
static fp8_cuda fp8_cuda_of(const blocks_self *s) { return {((const fp8_self *)s)->mantissa}; }
CUDA_BLOCKS_CODEC(fp8, fp8_cuda_of)
