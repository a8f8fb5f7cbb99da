/* topk.cu: codec "topk" on CUDA; formulas are in codecs/sparsify/topk.c, selection in select.h, decompression in
 * sparse.h. */
#include "codecs/cuda/common/select.h"
#include "codecs/cuda/common/sparse.h"
#include "codecs/sparsify/topk.c"

static uint64_t topk_cuda_scratch(const void *self, const esp_tensor *like) {
    const uint64_t k = sparse_k(((const topk_self *)self)->ratio, like->count);
    return cuda_select_scratch(like->count, k);
}
static esp_status topk_cuda_compress(void *self, const esp_codec_args *a) {
    const topk_self *t = (const topk_self *)self;
    return cuda_select_compress(t->dense.host, topk_name, TOPK_WIRE, a, cuda_select_phi{0},
                                [&](uint64_t n) { return sparse_k(t->ratio, n); });
}
static esp_status topk_cuda_decompress(void *self, const esp_codec_args *a) {
    const topk_self *t = (const topk_self *)self;
    const auto k = [&](uint64_t n) { return sparse_k(t->ratio, n); };
    return cuda_sparse_decompress(t->dense.host, topk_name, TOPK_WIRE, a, k, k);
}
CUDA_CODEC(topk, topk_codec, topk_cuda_scratch, topk_cuda_compress, topk_cuda_decompress)
