/* topk.cu: codec "topk" on CUDA; its maths is in codecs/topk.c, the selection in select.h. A compress is 6 or 7
 * launches (1 for small parts) that move 4 bytes per element, or 20 with error feedback. A decompress is 2 launches; it
 * writes 4 bytes per element only to overwrite, and reads and writes 32 bytes for each value. */
#include "codecs/cuda/common/select.h"
#include "codecs/cuda/common/sparse.h"
#include "codecs/topk.c"

/* Feedback memory of topk for select.h: the residual is phi where nothing is sent, otherwise 0. */
typedef struct topk_memory {
    typedef struct item {
        float phi;
    } item;
    enum { BLOCKS = 3 };
    uint32_t unused;
    __device__ item load(const cuda_parts *all, const cuda_part *p, uint64_t i) const { return {cuda_phi(all, p, i)}; }
    __device__ int keeps(const cuda_part *p) const { return p->e != NULL; }
    __device__ void keep(const cuda_part *p, uint64_t i, const item &x, int sent) const {
        cuda_put(p->e + i, sent ? 0.0f : x.phi);
    }
} topk_memory;

static uint64_t topk_cuda_scratch(const void *self, const esp_tensor *like) {
    const uint64_t k = sparse_k(((const topk_self *)self)->ratio, like->count);
    return cuda_select_scratch(like->count, k);
}
static esp_status topk_cuda_compress(void *self, const esp_codec_args *a) {
    const topk_self *t = (const topk_self *)self;
    return cuda_select_compress(t->dense.host, topk_name, TOPK_WIRE, a, topk_memory{0},
                                [&](uint64_t n) { return sparse_k(t->ratio, n); });
}
static esp_status topk_cuda_decompress(void *self, const esp_codec_args *a) {
    const topk_self *t = (const topk_self *)self;
    const auto k = [&](uint64_t n) { return sparse_k(t->ratio, n); };
    return cuda_sparse_decompress(t->dense.host, topk_name, TOPK_WIRE, a, k, k);
}
CUDA_CODEC(topk, topk_codec, topk_cuda_scratch, topk_cuda_compress, topk_cuda_decompress)
