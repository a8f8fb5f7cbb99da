/* half.h: shared by the twins that send each number in 16 bits (fp16, bf16): their kernels. Knows neither format: H has
 *     uint32_t code(float phi, int feedback) const;    the number that is sent
 *     float left(float phi, uint32_t code) const;      the residual */
#ifndef ESP_CUDA_HALF_H
#define ESP_CUDA_HALF_H
#include "codecs/cuda/common/dense.h"

template <typename H>
__global__ void __launch_bounds__(CUDA_THREADS) cuda_half_encode(cuda_parts all, H half, cuda_dense_end end) {
    const cuda_part *p = &all.part[blockIdx.y];
    uint16_t *body = (uint16_t *)(void *)cuda_body(p);
    if (cuda_dense_skip(p, end)) return;
    uint32_t any = 0;
    for (uint64_t at = (uint64_t)blockIdx.x * CUDA_DENSE_EACH; at < p->count;
         at += (uint64_t)gridDim.x * CUDA_DENSE_EACH) {
        float phi[4];
        cuda_dense_phi(&all, p, at, phi);
        CUDA_UNROLL
        for (int k = 0; k < 4; k++) {
            const uint64_t i = cuda_dense_at(at, k);
            if (i >= p->count) continue;
            const uint32_t code = half.code(phi[k], p->e != NULL);
            any |= dense_nonfinite(phi[k]);
            cuda_put(body + i, (uint16_t)code);
            if (p->e) cuda_put(p->e + i, half.left(phi[k], code));
        }
    }
    cuda_dense_finish(p, end, any >> 31 != 0);
}

template <typename H>
static esp_status cuda_half_compress(const esp_host *h, const char *name, const esp_codec_args *a,
                                     const cuda_dense_end &end, const H &half) {
    return cuda_dense_compress(h, name, a, end, [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
        cuda_launch(c, "half", cuda_half_encode<H>, cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n), parts, half, end);
    });
}

/* open() of a wrapper that has no kernels for what it wraps: without of=(SPEC) the CPU's, else ESP_E_UNSUPPORTED, and the host runs such a
 * codec on the CPU workers. */
static esp_status cuda_half_open(const esp_codec *cpu, const esp_host *h, const char *params, void **self) {
    char own[WRAP_SPEC], of[WRAP_SPEC];
    const esp_status s = wrap_params(h, cpu->name, params, own, of);
    if (s != ESP_OK) return s;
    if (*of)
        return wrap_fail(h, cpu->name, of, ESP_E_UNSUPPORTED,
                         "values of another codec are shortened on the CPU alone: write comp@cpu and decomp@cpu");
    return cpu->open(h, params, self);
}
#endif
