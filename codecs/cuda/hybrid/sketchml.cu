/* sketchml.cu: codec "sketchml" on CUDA; its formulas are in codecs/hybrid/sketchml.c. A first kernel finds the largest
 * magnitude; its last block sorts the sample. The next one writes codes, of which a warp packs 1024 at a time, and adds
 * the buckets' means; with error feedback, a third one writes the residual. */
#include "codecs/cuda/common/block.h"
#include "codecs/cuda/common/blocks.h"
#include "codecs/hybrid/sketchml.c"

/* State of a tensor, in scratch memory after the flags. The first kernel finds the sums zeroed. */
typedef struct sketchml_state {
    uint64_t sum[SKETCHML_MOST], held[SKETCHML_MOST];
    float limit[SKETCHML_MOST];
    int32_t unit[SKETCHML_MOST];
} sketchml_state;
enum { SKETCHML_OWN_TOP = 1, SKETCHML_ZERO = CUDA_FLAGS + (int)offsetof(sketchml_state, limit) };
static __device__ __forceinline__ sketchml_state *sketchml_state_of(const cuda_part *p) {
    return (sketchml_state *)(void *)(p->scratch + CUDA_FLAGS);
}

typedef struct sketchml_cuda {
    enum { BODIES = 1 };
    uint32_t codec, wire, nan_body, bits;
    __host__ __device__ uint64_t heads(void) const { return sizeof(float) << bits; }
    __host__ __device__ uint64_t body(uint64_t n) const { return n ? heads() + (n * bits + 7) / 8 : 0; }
    __device__ int header_ok(const cuda_header *h, const cuda_sum *) const { return !cuda_dense_plain(h) || !h->aux; }
    /* Means are checked, and that the bits behind the last code are 0. */
    __host__ __device__ uint64_t pieces(uint64_t) const { return (1u << bits) + 1; }
    __device__ int piece_ok(const unsigned char *x, uint64_t count, uint64_t piece) const {
        const uint32_t used = (uint32_t)(count * bits % 8);
        if (piece < 1u << bits) return !dense_bad(cuda_get((const float *)(const void *)x + piece));
        return !used || !(cuda_get(x + body(count) - 1) >> used);
    }
    __device__ float value(const cuda_header *, const unsigned char *x, uint64_t i, float scale) const {
        const uint64_t at = i * bits;
        const uint32_t low = (uint32_t)at % 8;
        const unsigned char *codes = x + heads() + at / 8;
        uint32_t code = cuda_get_same(codes, 8 / bits) >> low;
        if (low + bits > 8) code |= (uint32_t)codes[1] << (8 - low);
        return scale * cuda_get_same((const float *)(const void *)x + (code & ((1u << bits) - 1)));
    }
} sketchml_cuda;

/* Sorts `size` floats in shared memory, a power of two, in pairs that are ever closer. */
static __device__ __forceinline__ void sketchml_sort(float *x, uint32_t size) {
    for (uint32_t run = 2; run <= size; run *= 2)
        for (uint32_t by = run / 2; by; by /= 2) {
            __syncthreads();
            for (uint32_t k = threadIdx.x; k < size / 2; k += CUDA_THREADS) {
                const uint32_t i = k / by * 2 * by + k % by;
                const float low = x[i], high = x[i + by];
                const int swap = i & run ? low < high : low > high;
                x[i] = swap ? high : low, x[i + by] = swap ? low : high;
            }
        }
    __syncthreads();
}
static __global__ void __launch_bounds__(CUDA_THREADS) sketchml_limits_kernel(cuda_parts all, sketchml_cuda f) {
    __shared__ float sample[SKETCHML_SAMPLE];
    const cuda_part *p = &all.part[blockIdx.y];
    sketchml_state *s = sketchml_state_of(p);
    uint32_t top = 0;
    cuda_dense_each(&all, p, [&](uint64_t, float phi) { top = max(top, cuda_magnitude(phi)); });
    top = cuda_warp_all(top, [](uint32_t a, uint32_t b) { return max(a, b); });
    if (cuda_lane() == 0) atomicMax(&cuda_flags_of(p)->own[SKETCHML_OWN_TOP], top);
    if (!cuda_last_block(p)) return;
    top = cuda_fresh(&cuda_flags_of(p)->own[SKETCHML_OWN_TOP]);
    if (top >= QUANT_INF) {
        if (threadIdx.x == 0) cuda_flags_of(p)->bad = 1, cuda_write_header_if(p, f.codec, 1, 1, 0, 0);
        return;
    }
    const uint32_t size = (uint32_t)min(p->count, (uint64_t)SKETCHML_SAMPLE);
    uint32_t room = 1;
    while (room < size) room *= 2;
    for (uint32_t i = threadIdx.x; i < room; i += CUDA_THREADS)
        sample[i] = i < size ? cuda_phi(&all, p, i * (p->count / size)) : bits_float(QUANT_INF);
    sketchml_sort(sample, room);
    for (uint32_t b = threadIdx.x; size && b < 1u << f.bits; b += CUDA_THREADS)
        cuda_put(&s->limit[b], sample[(uint64_t)b * size >> f.bits]);
    __syncthreads();
    for (uint32_t b = threadIdx.x; size && b < 1u << f.bits; b += CUDA_THREADS)
        cuda_put(&s->unit[b], sketchml_unit(s->limit, f.bits, b, top, p->count));
    if (threadIdx.x == 0) cuda_flags_of(p)->own[0] = 0; /* the next kernel counts its blocks, too */
}
static __global__ void __launch_bounds__(CUDA_THREADS) sketchml_codes_kernel(cuda_parts all, sketchml_cuda f) {
    __shared__ uint64_t codes[CUDA_WARPS][CUDA_ROWS_ALL / 8], sum[SKETCHML_MOST];
    __shared__ uint32_t held[SKETCHML_MOST];
    __shared__ float limit[SKETCHML_MOST];
    __shared__ int32_t unit[SKETCHML_MOST];
    const cuda_part *p = &all.part[blockIdx.y];
    sketchml_state *s = sketchml_state_of(p);
    const uint64_t bytes = p->count ? f.body(p->count) - f.heads() : 0;
    unsigned char *own = (unsigned char *)codes[threadIdx.x / 32];
    if (cuda_get_same(&cuda_flags_of(p)->bad)) return;
    for (uint32_t b = threadIdx.x; b < 1u << f.bits; b += CUDA_THREADS)
        limit[b] = cuda_get(&s->limit[b]), unit[b] = cuda_get(&s->unit[b]), sum[b] = 0, held[b] = 0;
    __syncthreads();
    for (uint64_t at = cuda_warp() * CUDA_ROWS_ALL; at < p->count; at += cuda_warps() * CUDA_ROWS_ALL) {
        CUDA_UNROLL_BY(8)
        for (uint32_t k = 0; k < CUDA_ROWS_ALL; k += 32) {
            const uint64_t i = at + k + cuda_lane();
            const float phi = i < p->count ? cuda_phi(&all, p, i) : 0;
            const uint32_t code = i < p->count ? sketchml_code(phi, limit, f.bits) : 0;
            own[k + cuda_lane()] = (unsigned char)code;
            if (i < p->count) {
                cuda_add64(&sum[code], (uint64_t)fixed_of(phi, unit[code]));
                atomicAdd(&held[code], 1u);
            }
        }
        __syncwarp();
        cuda_blocks_pack(cuda_body(p) + f.heads() + at / 8 * f.bits, codes[threadIdx.x / 32], f.bits,
                         bytes - at / 8 * f.bits);
        __syncwarp();
    }
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < 1u << f.bits; b += CUDA_THREADS)
        if (held[b]) cuda_add64(&s->sum[b], sum[b]), cuda_add64(&s->held[b], held[b]);
    if (!cuda_last_block(p)) return;
    if (threadIdx.x == 0) cuda_write_header(p, f.codec, 1, 0, f.body(p->count), 0);
    for (uint32_t b = threadIdx.x; p->count && b < 1u << f.bits; b += CUDA_THREADS)
        cuda_put((float *)(void *)cuda_body(p) + b,
                 fixed_mean((int64_t)cuda_fresh(&s->sum[b]), cuda_fresh(&s->held[b]), unit[b]));
}
static __global__ void __launch_bounds__(CUDA_THREADS) sketchml_keep_kernel(cuda_parts all, sketchml_cuda f) {
    __shared__ float limit[SKETCHML_MOST], mean[SKETCHML_MOST];
    const cuda_part *p = &all.part[blockIdx.y];
    if (!p->e || !p->count || cuda_get_same(&cuda_flags_of(p)->bad)) return;
    for (uint32_t b = threadIdx.x; b < 1u << f.bits; b += CUDA_THREADS) {
        limit[b] = cuda_get(&sketchml_state_of(p)->limit[b]);
        mean[b] = cuda_get((const float *)(const void *)cuda_body(p) + b);
    }
    __syncthreads();
    cuda_dense_each(&all, p, [&](uint64_t i, float phi) {
        cuda_put(p->e + i, sketchml_left(phi, mean[sketchml_code(phi, limit, f.bits)]));
    });
}

static uint64_t sketchml_cuda_scratch(const void *, const esp_tensor *) { return sizeof(sketchml_state); }
static sketchml_cuda sketchml_cuda_of(const void *self) {
    return {esp_name_hash("sketchml"), 1, 0, ((const sketchml_self *)self)->bits};
}
static esp_status sketchml_cuda_compress(void *self, const esp_codec_args *a) {
    const sketchml_cuda f = sketchml_cuda_of(self);
    return cuda_each_part(((const dense_self *)self)->host, "sketchml", a, [&](uint64_t n) { return f.body(n); },
                          [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
                              const dim3 grid = cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n);
                              cuda_launch(c, "limits", cuda_kernel<sketchml_limits_kernel>, grid, parts, f);
                              cuda_launch(c, "codes", cuda_kernel<sketchml_codes_kernel>,
                                          cuda_grid(c, longest, (uint64_t)CUDA_ROWS_ALL * CUDA_WARPS, parts.n), parts,
                                          f);
                              if (a->residual)
                                  cuda_launch(c, "residual", cuda_kernel<sketchml_keep_kernel>, grid, parts, f);
                          },
                          SKETCHML_ZERO);
}
static esp_status sketchml_cuda_decompress(void *self, const esp_codec_args *a) {
    const sketchml_cuda f = sketchml_cuda_of(self);
    return cuda_dense_decompress(((const dense_self *)self)->host, "sketchml", a, [&](uint64_t n) { return f.body(n); },
                                 f);
}
CUDA_CODEC(sketchml, sketchml_codec, sketchml_cuda_scratch, sketchml_cuda_compress, sketchml_cuda_decompress)
