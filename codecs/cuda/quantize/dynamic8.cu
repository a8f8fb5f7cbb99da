/* dynamic8.cu: codec "dynamic8" on CUDA; its formulas are in codecs/quantize/dynamic8.c. Magnitudes are computed, as a
 * table would not fit a kernel's arguments. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/dynamic8.c"

/* Is y at least the boundary between the codes `at` and at + 1? */
static __device__ __forceinline__ uint32_t dynamic8_above(float y, uint32_t at) {
    return at + 1 < BLOCKS_TABLE && y >= (dynamic8_number(at) + dynamic8_number(at + 1)) * 0.5f;
}
typedef struct dynamic8_cuda {
    enum { HEADS = 1, NOISE = 0 };
    uint32_t unused;
    CUDA_BLOCKS_REST
    __device__ void heads(const float *phi, cuda_rows r, float *head) const { head[0] = cuda_rows_top(phi, r); }
    __device__ blocks_scale scale(const float *head) const {
        const quant_range r = quant_range_of(cuda_magnitude(head[0]), 1);
        return {r.unit, r.inverse};
    }
    /* Finds the part of the decade that y is in; the nearest magnitude is the part's, or one beside it. */
    __device__ uint32_t code(float x, uint32_t, const blocks_scale &h) const {
        const float y = bits_float(cuda_magnitude(x)) * h.b;
        float tens = 1e7f;
        uint32_t i = 0;
        for (float edge = 1e-6f; i < 6 && y >= edge; edge *= 10) i++, tens *= 0.1f;
        const float part = (y * tens - 1) * (1.0f / 9) * (float)(1 << i);
        const int32_t most = (1 << i) - 1, k = part > 0 ? part < (float)most ? (int32_t)part : most : 0;
        const uint32_t at = (1u << i) + (uint32_t)k - 1;
        return dynamic8_signed(at + dynamic8_above(y, at) + dynamic8_above(y, at + 1), x);
    }
    __device__ float value(uint32_t code, const blocks_scale &h) const {
        return dynamic8_negated(h.a * dynamic8_number(code & 0x7Fu), code);
    }
} dynamic8_cuda;
static dynamic8_cuda dynamic8_cuda_of(const blocks_self *) { return {0}; }
CUDA_BLOCKS_CODEC(dynamic8, dynamic8_cuda_of)
