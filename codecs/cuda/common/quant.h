/* quant.h: kernels for codecs int8 and int4, which send one scale (unit) per block of elements and a small integer
 * (level) per element. A warp processes whole blocks. A struct F describes the codec; all threads of a warp call its
 * put(), even if i >= count:
 *     float most;                                                                       the highest level
 *     void put(unsigned char *levels, uint64_t i, uint64_t count, int8_t level) const; */
#ifndef ESP_CUDA_QUANT_H
#define ESP_CUDA_QUANT_H
#include "codecs/cuda/common/dense.h"
#include "codecs/common/quant.h"

static __device__ __forceinline__ uint32_t cuda_warp_max(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xFFFFFFFFu, x);
#else
    return cuda_warp_all(x, [](uint32_t a, uint32_t b) { return max(a, b); });
#endif
}
static __device__ __forceinline__ uint32_t cuda_magnitude(float x) { return float_bits(x) & 0x7FFFFFFFu; }

template <int PER, typename F>
__global__ void __launch_bounds__(CUDA_THREADS) cuda_quant_encode(cuda_parts all, F f, cuda_dense_end end) {
    enum { EACH = PER < 16 ? 16 : PER, UNITS = EACH / PER };
    const cuda_part *p = &all.part[blockIdx.y];
    const uint64_t units = quant_units(p->count, 32 * PER);
    unsigned char *levels = cuda_body(p) + units * sizeof(float);
    if (cuda_dense_skip(p, end)) return;
    uint32_t any = 0;
    for (uint64_t unit = cuda_warp() * UNITS; unit < units; unit += cuda_warps() * UNITS) {
        const uint64_t first = unit * 32 * PER + cuda_lane();
        float phi[EACH], mine = 0;
        CUDA_UNROLL
        for (int k = 0; k < EACH; k++) phi[k] = first + k * 32 < p->count ? cuda_phi(&all, p, first + k * 32) : 0;
        CUDA_UNROLL
        for (int u = 0; u < UNITS; u++) {
            uint32_t top = 0;
            CUDA_UNROLL
            for (int k = u * PER; k < (u + 1) * PER; k++) top = max(top, cuda_magnitude(phi[k]));
            top = cuda_warp_max(top);
            any = max(any, top);
            const quant_range r = quant_range_of(top, f.most);
            if (cuda_lane() == (uint32_t)u) mine = r.unit;
            CUDA_UNROLL
            for (int k = u * PER; k < (u + 1) * PER; k++) {
                const uint64_t i = first + k * 32;
                const float sum = quant_sum(phi[k], r);
                f.put(levels, i, p->count, quant_level(sum));
                if (p->e && i < p->count) cuda_put(p->e + i, quant_left(phi[k], sum, r));
            }
        }
        if (cuda_lane() < (uint32_t)UNITS && unit + cuda_lane() < units)
            cuda_put((float *)(void *)cuda_body(p) + unit + cuda_lane(), mine);
    }
    cuda_dense_finish(p, end, any >= 0x7F800000u && cuda_lane() == 0);
}

template <int PER, typename F>
static void cuda_quant_launch(cuda_call *c, const cuda_parts &parts, uint64_t longest, const F &f,
                              const cuda_dense_end &end) {
    const uint64_t each = (uint64_t)CUDA_THREADS * (PER < 16 ? 16 : PER);
    cuda_launch(c, "levels", cuda_kernel<cuda_quant_encode<PER, F>>, cuda_grid(c, longest, each, parts.n), parts, f,
                end);
}
template <typename F>
static esp_status cuda_quant_compress(const esp_host *h, const char *name, const esp_codec_args *a,
                                      const cuda_dense_end &end, uint64_t block, const F &f) {
    return cuda_dense_compress_by(h, name, a, end, [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
        switch (block) {
        case 32: cuda_quant_launch<1>(c, parts, longest, f, end); break;
        case 64: cuda_quant_launch<2>(c, parts, longest, f, end); break;
        case 128: cuda_quant_launch<4>(c, parts, longest, f, end); break;
        case 256: cuda_quant_launch<8>(c, parts, longest, f, end); break;
        case 512: cuda_quant_launch<16>(c, parts, longest, f, end); break;
        default: cuda_quant_launch<32>(c, parts, longest, f, end);
        }
    });
}
static __device__ __forceinline__ float cuda_quant_unit(const unsigned char *body, uint64_t i, uint32_t shift) {
    return cuda_get_same((const float *)(const void *)body + (i >> shift));
}
#endif
