#include "codecs/cuda/common/select.h"
#include "codecs/cuda/common/sparse.h"
#include "codecs/sparsify/dgc.c"

/* How the kernels of select.h access gradient and residual for dgc. Only when the codec compresses a rank's own
 * gradient does it apply momentum: then `state` holds u and `residual` v. Otherwise it works like top-k. */
typedef struct dgc_cuda_memory {
    typedef struct item {
        float phi, u;
    } item;
    enum { BLOCKS = 2 };
    float m;
    uint32_t nesterov, masking, own;
    __device__ int momentum(const cuda_part *p) const { return own && p->e && p->state; }
    __device__ item load(const cuda_parts *all, const cuda_part *p, uint64_t i) const {
        if (!momentum(p)) return {cuda_phi(all, p, i), 0};
        const dgc_sum s = dgc_step(cuda_get(p->g + i), cuda_get(p->state + i), cuda_get(p->e + i), m, (int)nesterov);
        return {s.v, s.u};
    }
    __device__ int keeps(const cuda_part *p) const { return p->e != NULL; }
    __device__ void keep(const cuda_part *p, uint64_t i, const item &x, int sent) const {
        cuda_put(p->e + i, sent ? 0.0f : x.phi);
        if (momentum(p)) cuda_put(p->state + i, sent && masking ? 0.0f : x.u);
    }
} dgc_cuda_memory;

static uint64_t dgc_cuda_scratch(const void *self, const esp_tensor *like) {
    const uint64_t k = sparse_k(dgc_ratio((const dgc_self *)self, 0), like->count);
    return cuda_select_scratch(like->count, k);
}
static esp_status dgc_cuda_compress(void *self, const esp_codec_args *a) {
    const dgc_self *t = (const dgc_self *)self;
    const dgc_cuda_memory m = {(float)t->momentum, t->nesterov > 0, t->masking > 0,
                               (a->flags & ESP_ARG_OWN_MEMORY) != 0};
    const double ratio = dgc_ratio(t, a->step);
    for (uint32_t i = 0; i < a->n_tensors && m.own && a->state; i++)
        if (a->state[i].bytes && a->state[i].bytes < a->tensor[i]->count * sizeof(float))
            return esp_codec_fail(t->dense.host, dgc_name, ESP_E_ARG, "state memory is less than bound() requires");
    return cuda_select_compress(t->dense.host, dgc_name, DGC_WIRE, a, m,
                                [&](uint64_t n) { return sparse_k(ratio, n); });
}
static esp_status dgc_cuda_decompress(void *self, const esp_codec_args *a) {
    const dgc_self *t = (const dgc_self *)self;
    return cuda_sparse_decompress(
        t->dense.host, dgc_name, DGC_WIRE, a, [&](uint64_t n) { return sparse_k(t->ratio, n); },
        [&](uint64_t n) { return sparse_k(dgc_ratio(t, 0), n); });
}
CUDA_CODEC(dgc, dgc_codec, dgc_cuda_scratch, dgc_cuda_compress, dgc_cuda_decompress)
