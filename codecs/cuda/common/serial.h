/* serial.h: for codecs whose payload is a stream with segments (codecs/common/serial.h). To compress, a first kernel
 * computes the size of each block; its last block of threads computes where the blocks go in the payload, and a second
 * kernel writes them. To decompress, a block of threads processes a segment at a time. A struct F describes the codec:
 *     enum { BLOCK };                                                     elements in a block
 *     uint32_t codec;
 *     uint64_t first(uint64_t count) const;                               where the first segment begins
 *     int head_ok(const cuda_segment &s) const;                           checks what all segments share
 *     int ok(const cuda_segment &s, uint32_t *shared) const;
 *     void add(const cuda_segment &s, float *out, float scale, int set, uint32_t *shared) const;
 * All threads of a block call ok() and add(), which have CUDA_SEGMENT_ROOM bytes of shared memory. */
#ifndef ESP_CUDA_SERIAL_H
#define ESP_CUDA_SERIAL_H
#include "codecs/cuda/common/block.h"
#include "codecs/common/serial.h"

enum { CUDA_SEGMENT_ROOM = 4096 + 4 * CUDA_WARPS };

/* Segment number `index` of a body: its bytes and elements. */
typedef struct cuda_segment {
    const unsigned char *body;
    uint64_t index, begin, end, at, n, count;
} cuda_segment;

/* ---- compress ---------------------------------------------------------------------------------------------------- */
/* Scratch memory after the flags: for each block its size, which becomes where it begins in the body */
static __device__ __forceinline__ uint64_t *cuda_serial_at(const cuda_part *p) {
    return (uint64_t *)(void *)(p->scratch + CUDA_FLAGS);
}
/* Called at the end of the first kernel. The last block writes the header, and the ends of segments. */
template <typename F> static __device__ __forceinline__ void cuda_serial_end(const cuda_part *p, const F &f, int bad) {
    __shared__ uint64_t warps[CUDA_WARPS];
    const uint64_t blocks = serial_blocks(F::BLOCK, p->count), segments = serial_segments(F::BLOCK, p->count);
    uint64_t before = p->count ? f.first(p->count) : 0, total = 0;
    if (bad) atomicOr(&cuda_flags_of(p)->bad, 1u);
    if (!cuda_last_block(p)) return;
    bad = cuda_fresh(&cuda_flags_of(p)->bad) != 0;
    for (uint64_t i = 0; i < segments && !bad; i += CUDA_THREADS, before += total) {
        const uint64_t segment = i + threadIdx.x, first = segment * SERIAL_SEGMENT;
        uint64_t own[SERIAL_SEGMENT], sum = 0;
        CUDA_UNROLL
        for (int b = 0; b < SERIAL_SEGMENT; b++)
            sum += own[b] = first + b < blocks ? cuda_fresh(cuda_serial_at(p) + first + b) : 0;
        uint64_t to = before + cuda_block_before(sum, warps, &total);
        if (segment < segments) cuda_put((uint64_t *)(void *)cuda_body(p) + segment, to + sum);
        CUDA_UNROLL
        for (int b = 0; b < SERIAL_SEGMENT; to += own[b++])
            if (first + b < blocks) cuda_put(cuda_serial_at(p) + first + b, to);
        __syncthreads(); /* before `warps` changes */
    }
    if (threadIdx.x == 0) cuda_write_header_if(p, f.codec, 1, bad, before, 0);
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
template <typename F>
static __device__ __forceinline__ cuda_segment cuda_segment_of(const F &f, const cuda_source *s, uint64_t count,
                                                               uint64_t index) {
    const uint64_t n = (uint64_t)SERIAL_SEGMENT * F::BLOCK;
    const unsigned char *body = s->payload + ESP_PAYLOAD_HEADER;
    const uint64_t *end = (const uint64_t *)(const void *)body + index;
    return {body,
            index,
            index ? cuda_get_same(end - 1) : f.first(count),
            cuda_get_same(end),
            index * n,
            min(n, count - index * n),
            count};
}
template <typename F> __global__ void __launch_bounds__(CUDA_THREADS) cuda_serial_check(cuda_sums all, F f) {
    __shared__ uint64_t room[CUDA_SEGMENT_ROOM / 8];
    uint32_t *shared = (uint32_t *)(void *)room;
    cuda_check_payloads(all, f.codec, [&](const cuda_sum *d, const cuda_source *s, cuda_header h) {
        h.flags = cuda_nan_or_empty(h.flags);
        const uint64_t segments = serial_segments(F::BLOCK, d->count);
        int ok = cuda_header_ok(&h, s, f.codec, 1, d->count) && h.aux == 0;
        const int full = ok && !h.flags && d->count;
        ok = ok && (full ? h.body >= f.first(d->count) : h.body == 0);
        for (uint64_t i = blockIdx.x; i < segments && full && ok; i += gridDim.x) {
            const cuda_segment x = cuda_segment_of(f, s, d->count, i);
            ok = x.begin >= f.first(d->count) && x.begin <= x.end && x.end <= h.body;
            ok = ok && (i + 1 < segments || x.end == h.body) && (i || f.head_ok(x));
            ok = ok && f.ok(x, shared);
            ok = !__syncthreads_or(!ok);
        }
        return ok != 0;
    });
}
template <typename F> __global__ void __launch_bounds__(CUDA_THREADS) cuda_serial_add(cuda_sums all, F f) {
    __shared__ uint64_t room[CUDA_SEGMENT_ROOM / 8];
    uint32_t *shared = (uint32_t *)(void *)room;
    const cuda_sum *d = &all.part[blockIdx.y];
    const uint32_t decision = cuda_get_same(d->decision);
    if (decision & CUDA_CORRUPT) return;
    if (decision & CUDA_NAN) {
        cuda_fill(d, bits_float(0x7FC00000u));
        return;
    }
    for (uint64_t i = blockIdx.x; i < serial_segments(F::BLOCK, d->count); i += gridDim.x) {
        int set = all.set != 0;
        for (uint32_t k = 0; k < d->n; k++) {
            const cuda_source *s = &all.source[d->first + k];
            if (!cuda_read_header(s).body) continue;
            const cuda_segment x = cuda_segment_of(f, s, d->count, i);
            f.add(x, d->out + x.at, all.scale, set, shared);
            set = 0;
            __syncthreads(); /* the next payload uses the same shared memory, and adds to the same elements */
        }
        const uint64_t n = (uint64_t)SERIAL_SEGMENT * F::BLOCK;
        for (uint64_t e = i * n + threadIdx.x; set && e < min(d->count, (i + 1) * n); e += CUDA_THREADS)
            cuda_put(d->out + e, 0.0f);
    }
}
static __device__ __forceinline__ void cuda_serial_put(float *out, float x, int set) {
    cuda_put(out, set ? x : cuda_get(out) + x);
}
template <typename F>
static esp_status cuda_serial_decompress(const serial_self *s, const esp_codec_args *a, const F &f) {
    return cuda_each_sum(
        s->dense.host, s->format->name, a, [](uint64_t) { return (uint64_t)0; },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "check payloads", cuda_kernel<cuda_serial_check<F>>,
                        cuda_grid(c, longest, (uint64_t)SERIAL_SEGMENT * F::BLOCK, sums.n), sums, f);
        },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "add", cuda_kernel<cuda_serial_add<F>>,
                        cuda_grid(c, longest, (uint64_t)SERIAL_SEGMENT * F::BLOCK, sums.n), sums, f);
        });
}
/* Calls launch() as cuda_each_part does. */
template <typename Launch>
static esp_status cuda_serial_compress(const serial_self *s, const esp_codec_args *a, Launch launch) {
    return cuda_each_part(
        s->dense.host, s->format->name, a, [&](uint64_t n) { return n ? s->format->largest(s, n) : 0; }, launch);
}
#endif
