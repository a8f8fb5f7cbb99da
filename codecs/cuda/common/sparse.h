/* sparse.h: decompression for codecs topk and dgc on CUDA. One kernel checks all payloads, a second one adds them.
 * Each block adds 65536 neighbouring elements (a span) of all payloads, always in the order of the payloads, so that
 * results have the same bits in each run. */
#ifndef ESP_CUDA_SPARSE_H
#define ESP_CUDA_SPARSE_H
#include "codecs/cuda/common/block.h"
#include "codecs/common/dense.h"
#include "codecs/common/sparse.h"

typedef struct cuda_sparse {
    uint32_t codec, wire;
    uint64_t least[CUDA_PARTS];
} cuda_sparse;
static_assert(sizeof(cuda_sums) + sizeof(cuda_sparse) <= 4096, "arguments of a kernel have at most 4096 bytes");

typedef struct cuda_sparse_body {
    const float *val;
    const uint32_t *held;
    const uint16_t *place;
    const uint32_t *map;
    uint64_t k;
    int is_map;
} cuda_sparse_body;
static __device__ __forceinline__ cuda_sparse_body cuda_sparse_body_of(const cuda_source *s, const cuda_header *h) {
    const unsigned char *body = s->payload + ESP_PAYLOAD_HEADER;
    cuda_sparse_body b;
    b.k = h->aux;
    b.val = (const float *)(const void *)body;
    b.held = h->body ? (const uint32_t *)(const void *)(body + 4 * b.k) : NULL;
    b.place = (const uint16_t *)(const void *)(body + 4 * b.k + 4 * sparse_spans(h->count));
    b.map = (const uint32_t *)(const void *)b.place;
    b.is_map = sparse_is_map(h->count, b.k);
    return b;
}
/* One warp computes how many values a payload has in the spans (65536 elements each) before `span`. held: how many each
 * span has */
static __device__ __forceinline__ uint64_t cuda_held_before(const uint32_t *held, uint64_t span) {
    uint64_t sum = 0;
    CUDA_UNROLL_BY(4)
    for (uint64_t i = cuda_lane(); i < span; i += 32) sum += cuda_get(&held[i]);
    return cuda_warp_all(sum, [](uint64_t x, uint64_t y) { return x + y; });
}

/* ---- check ------------------------------------------------------------------------------------------------------- */
/* Do the n indices in `place` ascend, and are all less than len? One warp calls this. */
static __device__ __forceinline__ int cuda_places_ok(const uint16_t *place, uint32_t n, uint64_t len) {
    int bad = 0;
    CUDA_UNROLL_BY(4)
    for (uint32_t i = cuda_lane(); i < n; i += 32) {
        const uint32_t at = cuda_get(place + i);
        bad |= at >= len || (i && cuda_get(place + i - 1) >= at);
    }
    return !__any_sync(0xFFFFFFFFu, bad);
}
/* Does `map` have exactly n bits set, all with an index less than len? One warp calls this. */
static __device__ __forceinline__ int cuda_map_ok(const uint32_t *map, uint32_t n, uint64_t len) {
    const uint64_t words = (len + 31) / 32;
    uint32_t set = 0, bad = 0;
    CUDA_UNROLL_BY(4)
    for (uint64_t i = cuda_lane(); i < words; i += 32) {
        const uint32_t w = cuda_get(map + i);
        set += (uint32_t)__popc(w);
        bad |= i == words - 1 && len % 32 != 0 && w >> len % 32 != 0;
    }
    set = cuda_warp_all(set, [](uint32_t x, uint32_t y) { return x + y; });
    return !__any_sync(0xFFFFFFFFu, bad) && set == n;
}
/* Checks the spans of a payload. All warps of the tensor's blocks call this, and each checks some. */
static __device__ __forceinline__ int cuda_spans_ok(const cuda_sparse_body *b, uint64_t count) {
    const uint64_t spans = sparse_spans(count), each = (spans + cuda_warps() - 1) / cuda_warps();
    const uint64_t first = cuda_warp() * each, end = first + each < spans ? first + each : spans;
    if (first >= spans) return 1;
    uint64_t at = cuda_held_before(b->held, first);
    for (uint64_t s = first; s < end; s++) {
        const uint64_t len = sparse_span_len(count, s);
        const uint32_t n = cuda_get(&b->held[s]);
        if (n > len || at > b->k || n > b->k - at) return 0;
        if (b->is_map ? !cuda_map_ok(b->map + s * (SELECT_SPAN / 32), n, len) : !cuda_places_ok(b->place + at, n, len))
            return 0;
        at += n;
    }
    return end < spans || at == b->k;
}
static __device__ __forceinline__ int cuda_values_ok(const cuda_sparse_body *b) {
    uint32_t any = 0;
    CUDA_UNROLL_BY(4)
    for (uint64_t i = cuda_thread(); i < b->k; i += cuda_threads()) any |= dense_nonfinite(cuda_get(&b->val[i]));
    return !(any >> 31);
}
static __global__ void __launch_bounds__(CUDA_THREADS) sparse_check(cuda_sums all, cuda_sparse f) {
    cuda_check_payloads(all, f.codec, [&](const cuda_sum *d, const cuda_source *s, cuda_header h) {
        h.flags = cuda_nan_or_empty(h.flags);
        int ok = cuda_header_ok(&h, s, f.codec, f.wire, d->count);
        if (ok && h.flags) ok = h.body == 0;
        if (ok && !h.flags)
            ok = h.aux >= f.least[blockIdx.y] && h.aux <= d->body && h.body == sparse_body_bytes(d->count, h.aux);
        if (ok && h.body) {
            const cuda_sparse_body b = cuda_sparse_body_of(s, &h);
            ok = cuda_spans_ok(&b, d->count);
            ok &= cuda_values_ok(&b);
        }
        return ok != 0;
    });
}

/* ---- add --------------------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ void cuda_sparse_put(float *out, float x, float scale) {
    cuda_put(out, cuda_get(out) + scale * x);
}
/* A block adds the values that a bitmap describes. Each warp takes a range of the bitmap, 32 elements at a time. */
static __device__ __forceinline__ void cuda_add_map(const uint32_t *map, const float *val, float *out, uint64_t len,
                                                    float scale, uint32_t *warps) {
    enum { EACH = SELECT_SPAN / 32 / CUDA_WARPS }; /* words of the bitmap per warp */
    const uint32_t words = (uint32_t)((len + 31) / 32), first = threadIdx.x / 32 * EACH;
    uint32_t mine = 0, total;
    for (uint32_t i = 0; i < EACH; i += 32) {
        const uint32_t w = first + i + cuda_lane();
        mine += w < words ? (uint32_t)__popc(cuda_get(map + w)) : 0;
    }
    mine = cuda_warp_all(mine, [](uint32_t x, uint32_t y) { return x + y; });
    uint32_t at = cuda_warps_before(mine, warps, &total);
    for (uint32_t i = 0; i < EACH && first + i < words; i += 32) {
        const uint32_t w = first + i + cuda_lane(), here = w < words ? cuda_get(map + w) : 0;
        CUDA_UNROLL_BY(4)
        for (uint32_t q = 0; q < 32; q++) {
            const uint32_t in = __shfl_sync(0xFFFFFFFFu, here, q);
            if (in >> cuda_lane() & 1u)
                cuda_sparse_put(out + (uint64_t)(first + i + q) * 32 + cuda_lane(),
                                cuda_get(val + at + (uint32_t)__popc(in & cuda_lanes_before())), scale);
            at += (uint32_t)__popc(in);
        }
    }
}
/* Adds the elements of one span (65536 elements) of all payloads to the output. before[p] is the number of values
 * that payload p has in earlier spans. */
static __device__ __forceinline__ void cuda_add_span(const cuda_sums *all, const cuda_sum *d, uint64_t span,
                                                     const uint64_t *before, uint32_t *warps) {
    const uint64_t len = sparse_span_len(d->count, span);
    float *out = d->out + span * SELECT_SPAN;
    for (uint32_t k = 0; k < d->n; k++) {
        const cuda_source *s = &all->source[d->first + k];
        const cuda_header h = cuda_read_header(s);
        const cuda_sparse_body b = cuda_sparse_body_of(s, &h);
        if (!b.held) continue;
        const float *val = b.val + before[k];
        if (b.is_map) {
            cuda_add_map(b.map + span * (SELECT_SPAN / 32), val, out, len, all->scale, warps);
        } else {
            const uint32_t n = cuda_get(&b.held[span]);
            CUDA_UNROLL_BY(4)
            for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
                cuda_sparse_put(out + cuda_get(b.place + before[k] + i), cuda_get(val + i), all->scale);
        }
        __syncthreads(); /* the next payload may add to the same elements */
    }
}
static __global__ void __launch_bounds__(CUDA_THREADS, 4) sparse_add(cuda_sums all) {
    __shared__ uint64_t before[CUDA_SOURCES];
    __shared__ uint32_t warps[CUDA_WARPS];
    const cuda_sum *d = &all.part[blockIdx.y];
    const uint32_t decision = cuda_get(d->decision);
    if (decision & CUDA_CORRUPT) return;
    if (decision & CUDA_NAN) {
        cuda_fill(d, bits_float(0x7FC00000u));
        return;
    }
    for (uint64_t span = blockIdx.x; span < sparse_spans(d->count); span += gridDim.x) {
        const uint64_t len = sparse_span_len(d->count, span);
        for (uint32_t k = threadIdx.x / 32; k < d->n; k += CUDA_WARPS) {
            const cuda_source *s = &all.source[d->first + k];
            const cuda_header h = cuda_read_header(s);
            const cuda_sparse_body b = cuda_sparse_body_of(s, &h);
            const uint64_t n = b.held ? cuda_held_before(b.held, span) : 0;
            if (cuda_lane() == 0) before[k] = n;
        }
        if (all.set)
            for (uint64_t i = threadIdx.x; i < len; i += CUDA_THREADS) cuda_put(d->out + span * SELECT_SPAN + i, 0.0f);
        __syncthreads();
        cuda_add_span(&all, d, span, before, warps);
    }
}

/* Runs a decompress. The payloads of a tensor of n elements must have k_min(n) to k_max(n) values. */
template <typename Least, typename Most>
static esp_status cuda_sparse_decompress(const esp_host *h, const char *name, uint32_t wire, const esp_codec_args *a,
                                         Least k_min, Most k_max) {
    return cuda_each_sum(
        h, name, a, k_max,
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_sparse f;
            memset(&f, 0, sizeof f);
            f.codec = esp_name_hash(name), f.wire = wire;
            for (uint32_t i = 0; i < sums.n; i++) f.least[i] = k_min(sums.part[i].count);
            cuda_launch(c, "check payloads", cuda_kernel<sparse_check>, cuda_grid(c, longest, 16384, sums.n), sums, f);
        },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "add", cuda_kernel<sparse_add>, cuda_grid(c, longest, SELECT_SPAN, sums.n), sums);
        });
}
#endif
