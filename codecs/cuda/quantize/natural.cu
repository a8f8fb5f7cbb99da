/* natural.cu: codec "natural" on CUDA; its formulas are in codecs/quantize/natural.c. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/natural.c"

typedef struct natural_cuda {
    enum { HEADS = 0, NOISE = 1 };
    uint32_t unused;
    CUDA_BLOCKS_OF(natural)
    __device__ blocks_scale scale(const float *) const { return {}; }
} natural_cuda;
static natural_cuda natural_cuda_of(const blocks_self *) { return {0}; }
CUDA_BLOCKS_CODEC(natural, natural_cuda_of)
