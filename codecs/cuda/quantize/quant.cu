/* quant.cu: codecs "int8" and "int4" on CUDA. Their formulas are in codecs/quantize/quant.c. */
#include "codecs/cuda/common/blocks.h"
#include "codecs/quantize/quant.c"
#include "codecs/cuda/common/tile.h"

/* ---- blocks ------------------------------------------------------------------------------------------------------ */
typedef struct quant_cuda {
    enum { HEADS = 1, NOISE = 0 };
    float most;
    uint32_t mask;
    CUDA_BLOCKS_PLAIN
    __device__ void heads(const float *phi, cuda_rows r, float *head) const {
        head[0] = quant_range_of(float_bits(cuda_rows_top(phi, r)), most).unit;
    }
    __device__ blocks_scale scale(const float *head) const { return {head[0], head[0] > 0 ? 1 / head[0] : 0}; }
    __device__ int32_t level(uint32_t code) const { return (int32_t)(code ^ (mask / 2 + 1)) - (int32_t)(mask / 2 + 1); }
    __device__ uint32_t code(float x, uint32_t, const blocks_scale &h) const {
        return (uint32_t)quant_level(quant_sum(x, {h.a, h.b})) & mask;
    }
    __device__ float value(uint32_t code, const blocks_scale &h) const { return h.a * (float)level(code); }
    __device__ float decoded(uint32_t code, const float *head, float by) const {
        return head[0] * by * (float)level(code);
    }
    __device__ int head_ok(uint32_t bits) const { return quant_unit_ok(bits); }
} quant_cuda;

/* ---- a shared range ---------------------------------------------------------------------------------------------- */
/* Index in cuda_flags.own of the largest |phi|, as bits. */
enum { INT8_OWN_TOP = 1, INT8_RANGE_BYTES = ESP_PAYLOAD_HEADER + 4 };

static __global__ void __launch_bounds__(CUDA_THREADS) int8_range_kernel(cuda_parts all, uint32_t codec) {
    const cuda_part *p = &all.part[blockIdx.y];
    uint32_t top = 0;
    for (uint64_t tile = blockIdx.x; tile * CUDA_TILE < p->count; tile += gridDim.x) {
        float phi[CUDA_TILE_EACH];
        cuda_tile_phi(&all, p, tile, phi);
        CUDA_UNROLL
        for (int k = 0; k < CUDA_TILE_EACH; k++) top = max(top, cuda_magnitude(phi[k]));
    }
    top = cuda_warp_all(top, [](uint32_t a, uint32_t b) { return max(a, b); });
    if (cuda_lane() == 0) atomicMax(&cuda_flags_of(p)->own[INT8_OWN_TOP], top);
    if (!cuda_last_block(p) || threadIdx.x) return;
    top = *(const volatile uint32_t *)&cuda_flags_of(p)->own[INT8_OWN_TOP];
    const int bad = top >= 0x7F800000u;
    if (p->count) cuda_put((uint32_t *)(void *)cuda_body(p), bad ? 0x7FC00000u : top);
    cuda_write_header(p, codec, QUANT_WIRE, bad ? ESP_PAYLOAD_NONFINITE : 0, p->count ? sizeof(float) : 0,
                      bad ? 0 : top);
}

typedef struct int8_cuda_range {
    uint32_t top;
    int nan, ok;
} int8_cuda_range;
static __device__ __forceinline__ int8_cuda_range int8_cuda_range_of(const unsigned char *reduced, uint64_t count,
                                                                     uint32_t codec) {
    const cuda_source s = {reduced, INT8_RANGE_BYTES};
    int8_cuda_range r = {0, 0, 1};
    if (!count) return r;
    const cuda_header h = cuda_read_header(&s);
    r.ok = cuda_header_ok(&h, &s, codec, QUANT_WIRE, count) && h.body == sizeof r.top;
    r.top = cuda_get((const uint32_t *)(const void *)(reduced + ESP_PAYLOAD_HEADER));
    r.nan = h.flags & ESP_PAYLOAD_NONFINITE || r.top >= 0x7F800000u;
    return r;
}

template <typename L>
__global__ void __launch_bounds__(CUDA_THREADS)
    int8_levels_kernel(cuda_parts all, uint32_t codec, cuda_finding *finding) {
    const cuda_part *p = &all.part[blockIdx.y];
    const int8_cuda_range shared = int8_cuda_range_of(p->reduced, p->count, codec);
    const quant_range r = quant_range_of(shared.top, INT8_MOST);
    L *levels = (L *)(void *)cuda_body(p);
    if (cuda_thread() == 0 && !shared.ok) cuda_found(finding, codec);
    if (!shared.ok) return;
    if (cuda_thread() == 0)
        cuda_write_header(p, codec, QUANT_WIRE, shared.nan ? ESP_PAYLOAD_NONFINITE : 0, p->count * sizeof(L),
                          shared.nan ? 0 : shared.top);
    cuda_dense_each(&all, p, [&](uint64_t i, float phi) {
        const float sum = quant_sum(phi, r);
        cuda_put(levels + i, shared.nan ? (L)0 : (L)quant_level(sum));
        if (p->e && !shared.nan) cuda_put(p->e + i, quant_left(phi, sum, r));
    });
}

typedef struct int8_cuda_shared {
    enum { BODIES = 0 };
    uint32_t codec, wire, nan_body, width;
    __device__ int header_ok(const cuda_header *h, const cuda_sum *d) const {
        const int8_cuda_range r = int8_cuda_range_of(d->reduced, d->count, codec);
        return r.ok && (h->flags || (!r.nan && h->aux == r.top));
    }
    __device__ float value(const cuda_header *h, const unsigned char *body, uint64_t i, float scale) const {
        const float unit = quant_range_of((uint32_t)h->aux, INT8_MOST).unit * scale;
        const void *levels = body;
        if (width == 1) return unit * (float)cuda_get((const int8_t *)levels + i);
        if (width == 2) return unit * (float)cuda_get((const int16_t *)levels + i);
        return unit * (float)cuda_get((const int32_t *)levels + i);
    }
} int8_cuda_shared;

static esp_status int8_cuda_ranges(const quant_self *s, const esp_codec_args *a) {
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        if (!a->tensor[t]->count) continue;
        if (!a->reduced || !a->reduced[t].data.ptr || a->reduced[t].data.bytes < INT8_RANGE_BYTES) return ESP_E_CORRUPT;
        if ((uintptr_t)a->reduced[t].data.ptr % 16)
            return esp_codec_fail(s->dense.host, "int8", ESP_E_ARG,
                                  "a payload on a CUDA device must begin at a multiple of 16 bytes");
    }
    return ESP_OK;
}

/* ---- the codecs' tables ------------------------------------------------------------------------------------------ */
static esp_status int8_cuda_compress_shared(const quant_self *s, const esp_codec_args *a) {
    const uint32_t codec = esp_name_hash("int8");
    const uint64_t width = int8_width(a->n_reduced);
    const esp_status st = a->round ? int8_cuda_ranges(s, a) : (esp_status)ESP_OK;
    if (st != ESP_OK) return st;
    if (!a->round)
        return cuda_each_part(
            s->dense.host, "int8", a, [](uint64_t n) { return n ? (uint64_t)sizeof(float) : 0; },
            [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
                cuda_launch(c, "range", cuda_kernel<int8_range_kernel>, cuda_grid(c, longest, CUDA_TILE, parts.n),
                            parts, codec);
            });
    return cuda_each_part(
        s->dense.host, "int8", a, [&](uint64_t n) { return n * width; },
        [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
            cuda_launch(c, "levels",
                        width == 1   ? cuda_kernel<int8_levels_kernel<int8_t>>
                        : width == 2 ? cuda_kernel<int8_levels_kernel<int16_t>>
                                     : cuda_kernel<int8_levels_kernel<int32_t>>,
                        cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n), parts, codec, c->device->finding);
        });
}
static cuda_dense_end quant_cuda_end(const quant_self *s) {
    return {esp_name_hash(s->format->name), QUANT_WIRE, 0, 0, 0, 8u >> s->format->halving, 1, 1, (uint32_t)s->block};
}
static quant_cuda quant_cuda_of(const quant_self *s) {
    return {s->format->most, (1u << (8 >> s->format->halving)) - 1};
}
static esp_status quant_cuda_compress(void *self, const esp_codec_args *a) {
    const quant_self *s = (const quant_self *)self;
    return s->block ? cuda_blocks_compress(s->dense.host, s->format->name, a, quant_cuda_end(s), quant_cuda_of(s))
                    : int8_cuda_compress_shared(s, a);
}
static esp_status quant_cuda_decompress(void *self, const esp_codec_args *a) {
    const quant_self *s = (const quant_self *)self;
    const auto full = [&](uint64_t n) { return quant_body(s, n, a->n_reduced); };
    if (s->block) return cuda_blocks_decompress(s->dense.host, s->format->name, a, quant_cuda_end(s), quant_cuda_of(s));
    const int8_cuda_shared f = {esp_name_hash("int8"), QUANT_WIRE, 1, (uint32_t)int8_width(a->n_reduced)};
    const esp_status st = int8_cuda_ranges(s, a);
    return st == ESP_OK ? cuda_dense_decompress(s->dense.host, "int8", a, full, f) : st;
}
CUDA_CODEC(int8, int8_codec, cuda_no_scratch, quant_cuda_compress, quant_cuda_decompress)
CUDA_CODEC(int4, int4_codec, cuda_no_scratch, quant_cuda_compress, quant_cuda_decompress)
