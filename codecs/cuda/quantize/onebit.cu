/* onebit.cu: codec "onebit" on CUDA; its formulas are in codecs/quantize/onebit.c. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/onebit.c"

typedef struct onebit_cuda {
    enum { HEADS = 2, NOISE = 0 };
    uint32_t unused;
    CUDA_BLOCKS_OF(onebit)
    __device__ void heads(const float *phi, cuda_rows r, float *head) const {
        const uint32_t negative = cuda_rows_all<uint32_t>(
            r, [&](uint32_t k) { return (uint32_t)(float_bits(phi[k]) > 0x80000000u); },
            [](uint32_t a, uint32_t b) { return a + b; });
        head[0] = onebit_mean(cuda_rows_sum(r, [&](uint32_t k) { return onebit_part(phi[k], 0); }), negative);
        head[1] = onebit_mean(cuda_rows_sum(r, [&](uint32_t k) { return onebit_part(phi[k], 0xFFFFFFFFu); }),
                              cuda_rows_n(r) - negative);
    }
    __device__ blocks_scale scale(const float *head) const { return onebit_scale(head); }
} onebit_cuda;
static onebit_cuda onebit_cuda_of(const blocks_self *) { return {0}; }
CUDA_BLOCKS_CODEC(onebit, onebit_cuda_of)
