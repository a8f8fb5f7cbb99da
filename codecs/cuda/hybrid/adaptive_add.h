/* adaptive_add.h: decompression of codec "adaptive" on CUDA: one kernel checks payloads, a second one adds them. */
#ifndef ESP_CUDA_ADAPTIVE_ADD_H
#define ESP_CUDA_ADAPTIVE_ADD_H
#include "codecs/cuda/common/sparse.h"

/* One group of a payload. Its places are at even addresses only, so a bitmap is read as 16-bit words. */
typedef struct adaptive_read {
    float mean;
    uint64_t k;
    const uint32_t *held;
    const uint16_t *place;
    int map;
} adaptive_read;
/* One warp calls this. */
static __device__ __forceinline__ adaptive_read adaptive_read_of(const unsigned char *body, uint64_t count,
                                                                 uint32_t g) {
    const uint64_t spans = sparse_spans(count);
    const uint32_t *held = (const uint32_t *)(const void *)(body + ADAPTIVE_MEANS);
    adaptive_read r;
    r.mean = cuda_get_same((const float *)(const void *)body + g);
    r.held = held + g * spans;
    r.k = cuda_held_before(r.held, spans);
    r.place = (const uint16_t *)(const void *)(held + 2 * spans);
    if (g) r.place += adaptive_place_bytes(count, cuda_held_before(held, spans)) / 2;
    r.map = sparse_is_map(count, r.k);
    return r;
}
static __device__ __forceinline__ const uint16_t *adaptive_place(const adaptive_read *r, uint64_t span) {
    return r->place + (r->map ? span * (SELECT_SPAN / 16) : cuda_held_before(r->held, span));
}
/* Does the bitmap of a span have n bits set, all below len? One warp calls this. */
static __device__ __forceinline__ int adaptive_bits_ok(const uint16_t *map, uint32_t n, uint64_t len) {
    uint32_t set = 0, bad = 0;
    for (uint64_t i = cuda_lane(); i < (len + 31) / 32 * 2; i += 32) {
        const uint32_t w = cuda_get(map + i);
        set += (uint32_t)__popc(w);
        bad |= 16 * i >= len ? w != 0 : len - 16 * i < 16 && w >> (len - 16 * i) != 0;
    }
    set = cuda_warp_all(set, [](uint32_t x, uint32_t y) { return x + y; });
    return !__any_sync(0xFFFFFFFFu, bad) && set == n;
}
/* Checks the spans of a payload. All warps of the tensor's blocks call this, and each checks some. */
static __device__ __forceinline__ int adaptive_ok(const unsigned char *body, uint64_t count, uint64_t bytes) {
    const uint64_t spans = sparse_spans(count);
    const uint32_t *held = (const uint32_t *)(const void *)(body + ADAPTIVE_MEANS);
    int bad = 0;
    if (bytes < ADAPTIVE_MEANS + 8 * spans) return 0;
    for (uint64_t i = cuda_lane(); i < 2 * spans; i += 32)
        bad |= cuda_get(held + i) > sparse_span_len(count, i % spans);
    if (__any_sync(0xFFFFFFFFu, bad)) return 0;
    const adaptive_read plus = adaptive_read_of(body, count, 0), minus = adaptive_read_of(body, count, 1);
    const uint64_t k[2] = {plus.k, minus.k};
    if (bytes != adaptive_body(count, k) || dense_bad(plus.mean) || dense_bad(minus.mean)) return 0;
    for (uint64_t i = cuda_warp(); i < 2 * spans; i += cuda_warps()) {
        const adaptive_read r = i < spans ? plus : minus;
        const uint64_t len = sparse_span_len(count, i % spans);
        const uint16_t *place = adaptive_place(&r, i % spans);
        const uint32_t n = cuda_get_same(r.held + i % spans);
        if (r.map ? !adaptive_bits_ok(place, n, len) : !cuda_places_ok(place, n, len)) return 0;
    }
    return 1;
}
static __global__ void __launch_bounds__(CUDA_THREADS) adaptive_check_kernel(cuda_sums all, uint32_t codec) {
    cuda_check_payloads(all, codec, [&](const cuda_sum *d, const cuda_source *s, cuda_header h) {
        h.flags = cuda_nan_or_empty(h.flags);
        int ok = cuda_header_ok(&h, s, codec, 1, d->count) && h.aux == 0;
        if (ok)
            ok = h.flags || !d->count ? h.body == 0 : adaptive_ok(s->payload + ESP_PAYLOAD_HEADER, d->count, h.body);
        return ok != 0;
    });
}
static __global__ void __launch_bounds__(CUDA_THREADS) adaptive_add_kernel(cuda_sums all) {
    const cuda_sum *d = &all.part[blockIdx.y];
    const uint32_t decision = cuda_get_same(d->decision);
    if (decision & CUDA_CORRUPT) return;
    if (decision & CUDA_NAN) {
        cuda_fill(d, bits_float(0x7FC00000u));
        return;
    }
    for (uint64_t span = blockIdx.x; span < sparse_spans(d->count); span += gridDim.x) {
        const uint64_t len = sparse_span_len(d->count, span);
        float *out = d->out + span * SELECT_SPAN;
        for (uint64_t i = threadIdx.x; all.set && i < len; i += CUDA_THREADS) cuda_put(out + i, 0.0f);
        for (uint32_t k = 0; k < 2 * d->n; k++) {
            const cuda_source *s = &all.source[d->first + k / 2];
            __syncthreads(); /* threads add to elements that others have written */
            if (!cuda_read_header(s).body) continue;
            const adaptive_read r = adaptive_read_of(s->payload + ESP_PAYLOAD_HEADER, d->count, k % 2);
            const uint16_t *place = adaptive_place(&r, span);
            const float x = r.mean * all.scale;
            const uint64_t n = r.map ? len : cuda_get_same(r.held + span);
            for (uint64_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
                if (r.map && !(cuda_get_same(place + i / 16, 16) >> i % 16 & 1u)) continue;
                const uint64_t at = r.map ? i : cuda_get(place + i);
                cuda_put(out + at, cuda_get(out + at) + x);
            }
        }
    }
}
#endif
