/* maxmin.cu: codec "maxmin" on CUDA; its formulas are in codecs/quantize/maxmin.c. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/maxmin.c"

template <int RANDOM> struct maxmin_cuda {
    enum { HEADS = 2, NOISE = RANDOM };
    uint32_t levels;
    CUDA_BLOCKS_REST
    __device__ uint32_t code(float x, uint32_t noise, const blocks_scale &h) const {
        return RANDOM ? maxmin_random_code(x, noise, h) : maxmin_code(x, noise, h);
    }
    __device__ float value(uint32_t code, const blocks_scale &h) const { return maxmin_value(code, h); }
    __device__ void heads(const float *phi, cuda_rows r, float *head) const {
        /* maxmin_at(-x) is ~maxmin_at(x). Computing both, and one after the other, takes fewer registers. */
        const auto least = [&](uint32_t sign) {
            return cuda_rows_all<int32_t>(
                r,
                [&](uint32_t k) {
                    const float x = bits_float(float_bits(phi[k]) ^ sign);
                    return 32 * k + cuda_lane() < r.left ? maxmin_at(x) : INT32_MAX;
                },
                [](int32_t a, int32_t b) { return min(a, b); });
        };
        const int32_t low = least(0), high = ~least(0x80000000u);
        maxmin_heads(head, maxmin_float(low), maxmin_float(high), levels);
    }
    __device__ blocks_scale scale(const float *head) const { return maxmin_scale(head, levels); }
};
template <int RANDOM> static maxmin_cuda<RANDOM> maxmin_cuda_of(const blocks_self *s) { return {maxmin_levels(s)}; }
static esp_status maxmin_cuda_compress(void *self, const esp_codec_args *a) {
    const blocks_self *s = (const blocks_self *)self;
    return s->format->noise ? cuda_blocks_compress(s, a, maxmin_cuda_of<1>(s))
                            : cuda_blocks_compress(s, a, maxmin_cuda_of<0>(s));
}
static esp_status maxmin_cuda_decompress(void *self, const esp_codec_args *a) {
    return cuda_blocks_decompress((const blocks_self *)self, a, maxmin_cuda_of<0>((const blocks_self *)self));
}
CUDA_CODEC(maxmin, maxmin_codec, cuda_no_scratch, maxmin_cuda_compress, maxmin_cuda_decompress)
