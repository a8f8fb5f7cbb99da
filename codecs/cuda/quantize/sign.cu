/* sign.cu: codecs "signsgd", "signum" and "mxnet1bit" on CUDA; their formulas are in codecs/quantize/sign.c. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/sign.c"

typedef struct sign_cuda {
    enum { HEADS = 0, NOISE = 0 };
    uint32_t mxnet;
    float momentum, threshold;
    __device__ blocks_scale scale(const float *) const { return {}; }
    __device__ float input(const cuda_part *p, uint64_t i, float phi) const {
        if (!p->state) return phi;
        const float m = sign_momentum(cuda_get(p->state + i), phi, momentum);
        cuda_put(p->state + i, m);
        return m;
    }
    __device__ uint32_t code(float x, uint32_t, const blocks_scale &) const { return mxnet ? x > threshold : x < 0; }
    __device__ float value(uint32_t code, const blocks_scale &) const { return code == mxnet ? 1.0f : -1.0f; }
    __device__ float decoded(uint32_t code, const float *, float by) const {
        return bits_sign(code ^ mxnet, 0, float_bits(by));
    }
    __device__ uint64_t place(uint64_t i) const { return mxnet ? i ^ 7 : i; }
    __device__ int head_ok(uint32_t) const { return 1; }
} sign_cuda;

static cuda_dense_end sign_cuda_end(const sign_self *s) {
    return {esp_name_hash(s->name), 1, 0, 0, 0, 1, 4, 0, DENSE_BLOCK};
}
static sign_cuda sign_cuda_of(const sign_self *s) { return {s->mxnet, s->momentum, s->threshold}; }
static esp_status sign_cuda_compress(void *self, const esp_codec_args *a) {
    const sign_self *s = (const sign_self *)self;
    return cuda_blocks_compress(s->dense.host, s->name, a, sign_cuda_end(s), sign_cuda_of(s));
}
static esp_status sign_cuda_decompress(void *self, const esp_codec_args *a) {
    const sign_self *s = (const sign_self *)self;
    return cuda_blocks_decompress(s->dense.host, s->name, a, sign_cuda_end(s), sign_cuda_of(s));
}

static __global__ void __launch_bounds__(CUDA_THREADS) sign_vote_kernel(float *sum, uint64_t count) {
    for (uint64_t i = cuda_thread(); i < count; i += cuda_threads()) cuda_put(sum + i, sign_voted(cuda_get(sum + i)));
}
static esp_status sign_cuda_finalize(void *self, float *sum, uint64_t count, uint32_t, esp_stream stream) {
    const sign_self *s = (const sign_self *)self;
    esp_codec_args a;
    cuda_call call, *c = &call;
    memset(&a, 0, sizeof a);
    a.stream = stream;
    const esp_status st = cuda_begin(c, s->dense.host, s->name, &a);
    if (st != ESP_OK) return st;
    const cuda_on on(c->device);
    cuda_launch(c, "vote", cuda_kernel<sign_vote_kernel>, cuda_grid(c, count, CUDA_THREADS, 1), sum, count);
    return c->status;
}
CUDA_CODEC(signsgd, signsgd_codec, cuda_no_scratch, sign_cuda_compress, sign_cuda_decompress,
           t.finalize = sign_cuda_finalize)
CUDA_CODEC(signum, signum_codec, cuda_no_scratch, sign_cuda_compress, sign_cuda_decompress,
           t.finalize = sign_cuda_finalize)
CUDA_CODEC(mxnet1bit, mxnet1bit_codec, cuda_no_scratch, sign_cuda_compress, sign_cuda_decompress)
