/* int4.cu: codec "int4" on CUDA; its maths and body are in codecs/int4.c. A compress is a launch and reads 4 bytes an element, writes
 * 0.53 (with block=128); with feedback it is 2 launches, reads 16 and writes 4.53. A decompress is 2 launches, reads 0.56 for each payload,
 * and reads (to add) and writes 4. */
#include "codecs/cuda/common/dense.h"
#include "codecs/int4.c"
#include "codecs/cuda/common/quant.h"

typedef struct int4_cuda_levels {
    float most;
    __device__ void put(unsigned char *halves, uint64_t i, uint64_t count, int8_t level) const {
        const uint32_t own = (uint32_t)level & 0x0Fu, next = __shfl_xor_sync(0xFFFFFFFFu, own, 1);
        if (cuda_lane() % 2 == 0 && i < count) cuda_put(halves + i / 2, (unsigned char)(own | next << 4));
    }
} int4_cuda_levels;

typedef struct int4_cuda_format {
    enum { BODIES = 1 };
    uint32_t codec, wire, nan_body, shift;
    __host__ __device__ uint64_t units(uint64_t count) const { return quant_units(count, (uint64_t)1 << shift); }
    __device__ int header_ok(const cuda_header *h, const cuda_sum *) const {
        return !cuda_dense_plain(h) || h->aux == 0;
    }
    /* the units, and the byte of the last element */
    __host__ __device__ uint64_t pieces(uint64_t count) const { return units(count) + 1; }
    __device__ int piece_ok(const unsigned char *body, uint64_t count, uint64_t piece) const {
        if (piece < units(count)) return quant_unit_ok(cuda_get((const uint32_t *)(const void *)body + piece));
        return count % 2 == 0 || cuda_get(body + units(count) * sizeof(float) + count / 2) <= 0x0F;
    }
    __device__ float value(const cuda_header *h, const unsigned char *body, uint64_t i, float scale) const {
        const uint32_t byte = cuda_get_same(body + units(h->count) * sizeof(float) + i / 2, 2);
        return cuda_quant_unit(body, i, shift) * scale * (float)int4_level(byte, (uint32_t)(i % 2));
    }
} int4_cuda_format;

static cuda_dense_end int4_cuda_end(const int4_self *s) {
    return {esp_name_hash("int4"), INT4_WIRE, 0, 0, 0, sizeof(float), s->block, 1, 2};
}
static esp_status int4_cuda_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                  esp_bound *out) {
    return cuda_bound(&int4_codec, self, like, round, n_reduced, 0, out);
}
static esp_status int4_cuda_compress(void *self, const esp_codec_args *a) {
    const int4_self *s = (const int4_self *)self;
    return cuda_quant_compress(s->dense.host, "int4", a, int4_cuda_end(s), s->block, int4_cuda_levels{INT4_MOST});
}
static esp_status int4_cuda_decompress(void *self, const esp_codec_args *a) {
    const int4_self *s = (const int4_self *)self;
    const int4_cuda_format f = {esp_name_hash("int4"), INT4_WIRE, 0, cuda_quant_shift(s->block)};
    return cuda_dense_decompress(
        s->dense.host, "int4", a, [s](uint64_t n) { return int4_body(s, n); }, f);
}
CUDA_TWIN(int4, int4_codec, int4_cuda_bound, int4_cuda_compress, int4_cuda_decompress)
