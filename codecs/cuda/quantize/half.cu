/* half.cu: codecs "fp16" and "bf16" on CUDA; their formulas are in codecs/quantize/half.c. */
#include "codecs/cuda/common/dense.h"
#include "codecs/quantize/half.c"

template <int F16> struct half_cuda_code {
    float down, up, most;
    __device__ void put(const cuda_part *p, uint64_t i, float phi) const {
        uint32_t code;
        if constexpr (F16)
            code = half_to_f16(down * (p->e ? half_clamp(phi, most) : phi));
        else
            code = p->e ? half_bf16_sent(phi) : half_to_bf16(phi);
        cuda_put((uint16_t *)(void *)cuda_body(p) + i, (uint16_t)code);
        if (p->e) cuda_put(p->e + i, phi - (F16 ? up * half_from_f16(code & 0xFFFFu) : half_from_bf16(code)));
    }
};

template <int F16> struct half_cuda_format {
    enum { BODIES = 0 };
    uint32_t codec, wire, nan_body, most_exponent;
    __device__ int header_ok(const cuda_header *h, const cuda_sum *) const {
        return !cuda_dense_plain(h) || h->aux <= most_exponent;
    }
    __device__ float value(const cuda_header *h, const unsigned char *body, uint64_t i, float scale) const {
        const uint32_t half = cuda_get((const uint16_t *)(const void *)body + i);
        if constexpr (F16)
            return (float)(1u << (uint32_t)h->aux) * scale * half_from_f16(half);
        else
            return scale * half_from_bf16(half);
    }
};

template <int F16> static esp_status half_cuda_open(const esp_host *h, const char *params, void **self) {
    const esp_codec *cpu = F16 ? &fp16_codec : &bf16_codec;
    char own[ESP_PARAMS_MAX], of[ESP_PARAMS_MAX];
    const esp_status s = esp_params_take(h, cpu->name, params, "of", own, of);
    if (s != ESP_OK) return s;
    if (*of)
        return wrap_fail(h, cpu->name, of, ESP_E_UNSUPPORTED,
                         "values of another codec are shortened on the CPU alone: write comp@cpu and decomp@cpu");
    return cpu->open(h, params, self);
}
template <int F16> static esp_status half_cuda_compress(void *self, const esp_codec_args *a) {
    const half_self *s = (const half_self *)self;
    const uint64_t exponent = recode_exponent(s->format, a, a->n_reduced);
    const cuda_dense_end end = {esp_name_hash(s->format->name), 1, s->format->nan, 2, exponent, 16, 1, 0, 0};
    const float up = (float)((uint64_t)1 << exponent);
    const half_cuda_code<F16> code = {1 / up, up, recode_most(s->format, a)};
    return cuda_dense_compress(s->dense.host, s->format->name, a, end, code);
}
template <int F16> static esp_status half_cuda_decompress(void *self, const esp_codec_args *a) {
    const half_self *s = (const half_self *)self;
    const half_cuda_format<F16> f = {esp_name_hash(s->format->name), 1, 1, (uint32_t)s->format->most_exponent};
    return cuda_dense_decompress(
        s->dense.host, s->format->name, a, [](uint64_t n) { return 2 * n; }, f);
}
CUDA_CODEC(fp16, fp16_codec, cuda_no_scratch, half_cuda_compress<1>, half_cuda_decompress<1>,
           t.open = half_cuda_open<1>)
CUDA_CODEC(bf16, bf16_codec, cuda_no_scratch, half_cuda_compress<0>, half_cuda_decompress<0>,
           t.open = half_cuda_open<0>)
