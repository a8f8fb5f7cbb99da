/* threshold.cu: codec "threshold" on CUDA; formulas are in codecs/sparsify/threshold.c, writing in select.h,
 * decompression in sparse.h. A first kernel counts the elements of each tile that are sent; its last block computes
 * where their values go in the payload. A second kernel writes values, places, and the residual. */
#include "codecs/cuda/common/select.h"
#include "codecs/cuda/common/sparse.h"
#include "codecs/sparsify/threshold.c"

/* Scratch memory after the flags: for each tile the number of sent elements, which becomes that of all tiles before. */
static __device__ __forceinline__ uint64_t *threshold_tile(const cuda_part *p) {
    return (uint64_t *)(void *)(p->scratch + CUDA_FLAGS);
}
/* The number of sent elements of a tensor */
static __device__ __forceinline__ uint64_t *threshold_sent(const cuda_part *p) {
    return (uint64_t *)(void *)&cuda_flags_of(p)->own[1];
}
/* The last block calls this. Each thread computes the places of a span's tiles. */
static __device__ __forceinline__ void threshold_count_end(const cuda_part *p, uint32_t codec, uint64_t *warps) {
    const uint64_t k = cuda_fresh(threshold_sent(p)), spans = sparse_spans(p->count), tiles = cuda_tiles(p->count);
    const int bad = cuda_fresh(&cuda_flags_of(p)->bad) != 0;
    uint32_t *held = (uint32_t *)(void *)(cuda_body(p) + 4 * k);
    uint64_t before = 0, total;
    if (threadIdx.x == 0) cuda_write_header_if(p, codec, 1, bad, sparse_body_bytes(p->count, k), k);
    for (uint64_t at = 0; at < spans && !bad; at += CUDA_THREADS, before += total) {
        const uint64_t span = at + threadIdx.x, first = span * CUDA_SPAN_TILES;
        uint64_t *tile = threshold_tile(p) + first, own[CUDA_SPAN_TILES], sum = 0;
        CUDA_UNROLL
        for (int t = 0; t < CUDA_SPAN_TILES; t++) sum += own[t] = first + t < tiles ? cuda_fresh(tile + t) : 0;
        uint64_t to = before + cuda_block_before(sum, warps, &total);
        if (span < spans) cuda_put(held + span, (uint32_t)sum);
        CUDA_UNROLL
        for (int t = 0; t < CUDA_SPAN_TILES; to += own[t++])
            if (first + t < tiles) cuda_put(tile + t, to);
        __syncthreads(); /* before `warps` changes */
    }
}
static __global__ void __launch_bounds__(CUDA_THREADS)
    threshold_count_kernel(cuda_parts all, uint32_t codec, uint32_t value) {
    __shared__ uint32_t warps[CUDA_WARPS];
    __shared__ uint64_t sums[CUDA_WARPS];
    const cuda_part *p = &all.part[blockIdx.y];
    uint32_t any = 0;
    uint64_t k = 0;
    for (uint64_t tile = blockIdx.x; tile < cuda_tiles(p->count); tile += gridDim.x) {
        float x[CUDA_TILE_EACH];
        uint32_t sent = 0, total;
        cuda_tile_phi(&all, p, tile, x);
        CUDA_UNROLL
        for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
            any |= dense_nonfinite(x[q]);
            sent |= (uint32_t)(select_bits(x[q]) > value) << q;
        }
        cuda_warps_before(cuda_warp_bits(sent), warps, &total);
        if (threadIdx.x == 0) cuda_put(threshold_tile(p) + tile, (uint64_t)total);
        k += total;
    }
    if (threadIdx.x == 0 && k) cuda_add64(threshold_sent(p), k);
    if (any >> 31) atomicOr(&cuda_flags_of(p)->bad, 1u);
    if (cuda_last_block(p)) threshold_count_end(p, codec, sums);
}
static __global__ void __launch_bounds__(CUDA_THREADS, cuda_select_phi::BLOCKS)
    threshold_write_kernel(cuda_parts all, uint32_t value) {
    __shared__ uint32_t warps[CUDA_WARPS];
    const cuda_part *p = &all.part[blockIdx.y];
    cuda_job j;
    if (cuda_get(&cuda_flags_of(p)->bad)) return;
    j.p = p, j.count = p->count, j.spans = sparse_spans(p->count), j.k = cuda_get_same(threshold_sent(p));
    for (uint64_t tile = blockIdx.x; tile < cuda_tiles(p->count); tile += gridDim.x) {
        float phi[CUDA_TILE_EACH];
        cuda_select_phi::item x[CUDA_TILE_EACH];
        uint32_t sent = 0;
        cuda_tile_phi(&all, p, tile, phi);
        CUDA_UNROLL
        for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
            x[q] = {phi[q]};
            sent |= (uint32_t)(select_bits(phi[q]) > value) << q;
        }
        cuda_send_tile(&j, cuda_select_phi{0}, cuda_tile_first(tile), x, sent, cuda_get_same(threshold_tile(p) + tile),
                       warps);
    }
}

static uint64_t threshold_cuda_scratch(const void *, const esp_tensor *like) { return 8 * cuda_tiles(like->count); }
static esp_status threshold_cuda_compress(void *self, const esp_codec_args *a) {
    const threshold_self *t = (const threshold_self *)self;
    const uint32_t codec = esp_name_hash(threshold_name), value = float_bits(t->value);
    return cuda_each_part(
        t->dense.host, threshold_name, a, [](uint64_t n) { return sparse_body_bytes(n, n); },
        [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
            const dim3 grid = cuda_grid(c, longest, CUDA_TILE, parts.n);
            cuda_launch(c, "count", cuda_kernel<threshold_count_kernel>, grid, parts, codec, value);
            cuda_launch(c, "write", cuda_kernel<threshold_write_kernel>, grid, parts, value);
        });
}
static esp_status threshold_cuda_decompress(void *self, const esp_codec_args *a) {
    return cuda_sparse_decompress(((const threshold_self *)self)->dense.host, threshold_name, 1, a,
                                  [](uint64_t) { return (uint64_t)0; }, [](uint64_t n) { return n; });
}
CUDA_CODEC(threshold, threshold_codec, threshold_cuda_scratch, threshold_cuda_compress, threshold_cuda_decompress)
