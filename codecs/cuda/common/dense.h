/* dense.h: kernels for codecs that send every element. With error feedback or a state, the input is first searched
 * for NaN and Inf, because these must not get into the residual: by cuda_dense_check, or, if the encoding kernel has
 * one block for each tensor, by that block. */
#ifndef ESP_CUDA_DENSE_H
#define ESP_CUDA_DENSE_H
#include "codecs/cuda/common/codec.h"
#include "codecs/common/dense.h"

/* A block processes 4 elements per thread at a time, so that each thread has 4 loads in flight. */
enum { CUDA_DENSE_EACH = 4 * CUDA_THREADS };
/* A tensor of at most this many elements gets one block if that saves the launch of cuda_dense_check. */
enum { CUDA_DENSE_ONE_BLOCK = 4 * CUDA_DENSE_EACH };

static __device__ __forceinline__ uint64_t cuda_dense_at(uint64_t at, int k) {
    return at + (uint64_t)k * CUDA_THREADS + threadIdx.x;
}
/* Loads phi (gradient plus residual) of this thread's elements, or 0 beyond the end. Kernels call it before they write
 * anything, so that all loads are in flight. */
static __device__ __forceinline__ void cuda_dense_phi(const cuda_parts *all, const cuda_part *p, uint64_t at,
                                                      float phi[4]) {
    CUDA_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint64_t i = cuda_dense_at(at, k);
        phi[k] = i < p->count ? cuda_phi(all, p, i) : 0;
    }
}

/* Calls use(i, phi) for each element of the tensor. All threads of its blocks call this. */
template <typename Use>
static __device__ __forceinline__ void cuda_dense_each(const cuda_parts *all, const cuda_part *p, Use use) {
    for (uint64_t at = (uint64_t)blockIdx.x * CUDA_DENSE_EACH; at < p->count;
         at += (uint64_t)gridDim.x * CUDA_DENSE_EACH) {
        float phi[4];
        cuda_dense_phi(all, p, at, phi);
        CUDA_UNROLL
        for (int k = 0; k < 4; k++)
            if (cuda_dense_at(at, k) < p->count) use(cuda_dense_at(at, k), phi[k]);
    }
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
/* Returns 1 if this thread finds NaN or Inf in its share of the input. */
static __device__ __forceinline__ int cuda_dense_bad(const cuda_parts *all, const cuda_part *p) {
    uint32_t any = 0;
    cuda_dense_each(all, p, [&](uint64_t, float phi) { any |= dense_nonfinite(phi); });
    return any >> 31 != 0;
}
static __global__ void __launch_bounds__(CUDA_THREADS) cuda_dense_check(cuda_parts all) {
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_dense_bad(&all, p)) atomicOr(&cuda_flags_of(p)->bad, 1u);
}

/* A payload's body has `heads` numbers of four bytes for each `block` elements, and then `bits` bits for each element,
 * up to whole `pad` bytes. If the input has a NaN or Inf, the body is filled with the number `nan` of nan_bytes bytes,
 * or omitted if nan_bytes is 0. */
typedef struct cuda_dense_end {
    uint32_t codec, wire, nan, nan_bytes;
    uint64_t aux;
    uint32_t bits, pad, heads, block;
} cuda_dense_end;
ESP_ELEMENT uint64_t cuda_dense_heads(const cuda_dense_end *f, uint64_t count) {
    return f->heads ? (count + f->block - 1) / f->block * f->heads * 4 : 0;
}
ESP_ELEMENT uint64_t cuda_dense_codes(const cuda_dense_end *f, uint64_t count) {
    return (count * f->bits + 8 * f->pad - 1) / (8 * f->pad) * f->pad;
}
ESP_ELEMENT uint64_t cuda_dense_body(const cuda_dense_end *f, uint64_t count) {
    return cuda_dense_heads(f, count) + cuda_dense_codes(f, count);
}
static inline auto cuda_dense_size(const cuda_dense_end &f) {
    return [&f](uint64_t count) { return cuda_dense_body(&f, count); };
}
static __device__ __forceinline__ void cuda_dense_nan(const cuda_part *p, const cuda_dense_end &f, uint64_t from,
                                                      uint64_t step) {
    const uint64_t n = f.nan_bytes ? cuda_dense_body(&f, p->count) / f.nan_bytes : 0;
    for (uint64_t i = from; i < n; i += step) {
        if (f.nan_bytes == 2)
            cuda_put((uint16_t *)(void *)cuda_body(p) + i, (uint16_t)f.nan);
        else
            cuda_put((uint32_t *)(void *)cuda_body(p) + i, f.nan);
    }
}
static __device__ __forceinline__ void cuda_dense_header(const cuda_part *p, const cuda_dense_end &f, int bad) {
    cuda_write_header(p, f.codec, f.wire, bad ? ESP_PAYLOAD_NONFINITE : 0,
                      bad && !f.nan_bytes ? 0 : cuda_dense_body(&f, p->count), f.aux);
}
/* With error feedback or a state, returns 1 if the input has a NaN or Inf, after writing a payload that says so. The
 * kernel must then return. All its threads call this. */
static __device__ __forceinline__ int cuda_dense_skip(const cuda_parts *all, const cuda_part *p,
                                                      const cuda_dense_end &f) {
    if (!p->e && !p->state) return 0;
    if (!(gridDim.x == 1 ? (uint32_t)__syncthreads_or(cuda_dense_bad(all, p)) : cuda_get(&cuda_flags_of(p)->bad)))
        return 0;
    if (cuda_thread() == 0) cuda_dense_header(p, f, 1);
    cuda_dense_nan(p, f, cuda_thread(), cuda_threads());
    return 1;
}
static __device__ __forceinline__ void cuda_dense_finish(const cuda_part *p, const cuda_dense_end &f, int bad) {
    if (bad) atomicOr(&cuda_flags_of(p)->bad, 1u);
    if (!cuda_last_block(p)) return;
    bad = *(const volatile uint32_t *)&cuda_flags_of(p)->bad != 0;
    if (threadIdx.x == 0) cuda_dense_header(p, f, bad);
    if (bad) cuda_dense_nan(p, f, threadIdx.x, blockDim.x);
}
/* The kernel of codecs that encode elements independently. code.put() writes an element's code and residual. */
template <typename Code>
__global__ void __launch_bounds__(CUDA_THREADS) cuda_dense_encode(cuda_parts all, Code code, cuda_dense_end end) {
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_dense_skip(&all, p, end)) return;
    uint32_t any = 0;
    cuda_dense_each(&all, p, [&](uint64_t i, float phi) {
        any |= dense_nonfinite(phi);
        code.put(p, i, phi);
    });
    cuda_dense_finish(p, end, any >> 31 != 0);
}
/* Calls encode(call, parts, grid), whose blocks process `each` elements at a time. */
template <typename Encode>
static esp_status cuda_dense_compress_by(const esp_host *h, const char *name, const esp_codec_args *a,
                                         const cuda_dense_end &f, uint64_t each, Encode encode) {
    return cuda_each_part(h, name, a, cuda_dense_size(f), [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
        bool kept = a->residual != NULL;
        for (uint32_t i = 0; i < parts.n; i++) kept |= parts.part[i].state != NULL;
        const bool one = kept && longest <= CUDA_DENSE_ONE_BLOCK;
        const dim3 grid = cuda_grid(c, one ? 1 : longest, each, parts.n);
        if (kept && grid.x > 1)
            cuda_launch(c, "check", cuda_kernel<cuda_dense_check>, cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n),
                        parts);
        encode(c, parts, grid);
    });
}

template <typename Code>
static esp_status cuda_dense_compress(const esp_host *h, const char *name, const esp_codec_args *a,
                                      const cuda_dense_end &end, const Code &code) {
    return cuda_dense_compress_by(
        h, name, a, end, CUDA_DENSE_EACH, [&](cuda_call *c, const cuda_parts &parts, dim3 grid) {
            cuda_launch(c, "encode", cuda_kernel<cuda_dense_encode<Code>>, grid, parts, code, end);
        });
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
/* A codec's struct F has the members below. Kernels take it by value. If BODIES is 1, a payload's body is checked in
 * pieces(count) steps by piece_ok(); if it is 0, only headers are checked. value() returns decoded element i times
 * scale, with the same bits as on the CPU.
 *     uint32_t codec, wire, nan_body;
 *     enum { BODIES };
 *     int header_ok(const cuda_header *h, const cuda_sum *d) const;
 *     uint64_t pieces(uint64_t count) const;
 *     int piece_ok(const unsigned char *body, uint64_t count, uint64_t piece) const;
 *     float value(const cuda_header *h, const unsigned char *body, uint64_t i, float scale) const; */
static __device__ __forceinline__ int cuda_dense_plain(const cuda_header *h) { return !h->flags && h->body; }
template <typename F>
static __device__ __forceinline__ int cuda_dense_header_ok(const F &f, const cuda_header &h, const cuda_source *s,
                                                           const cuda_sum *d) {
    const uint32_t nan = h.flags & ESP_PAYLOAD_NONFINITE, empty = h.flags & ESP_PAYLOAD_EMPTY;
    return cuda_header_ok(&h, s, f.codec, f.wire, d->count) &&
           h.body == (empty || (nan && !f.nan_body) ? 0 : d->body) && f.header_ok(&h, d);
}
template <typename F> __global__ void __launch_bounds__(CUDA_THREADS) cuda_dense_check_payloads(cuda_sums all, F f) {
    cuda_check_payloads(all, f.codec, [&](const cuda_sum *d, const cuda_source *s, const cuda_header &h) {
        int ok = cuda_dense_header_ok(f, h, s, d);
        if constexpr (F::BODIES) {
            const uint64_t pieces = ok && h.body && !(h.flags & ESP_PAYLOAD_NONFINITE) ? f.pieces(d->count) : 0;
            for (uint64_t at = cuda_thread(); at < pieces; at += 4 * cuda_threads()) {
                CUDA_UNROLL
                for (int k = 0; k < 4; k++) { /* branch-free, so that 4 loads are in flight */
                    const uint64_t i = at + (uint64_t)k * cuda_threads();
                    ok &= i < pieces ? f.piece_ok(s->payload + ESP_PAYLOAD_HEADER, d->count, i) : 1;
                }
            }
        }
        return ok != 0;
    });
}
/* Adds a tensor's decoded payloads to d->out. With checks_headers it also checks their headers, which requires that
 * all of the tensor's payloads are in `all`. */
template <typename F>
__global__ void __launch_bounds__(CUDA_THREADS) cuda_dense_add(cuda_sums all, F f, int checks_headers) {
    const cuda_sum *d = &all.part[blockIdx.y];
    __shared__ cuda_header head[CUDA_SOURCES]; /* read once per block */
    int nan;
    if (F::BODIES || !checks_headers) {
        const uint32_t decision = cuda_get_same(d->decision);
        if (decision & CUDA_CORRUPT) return;
        for (uint32_t s = threadIdx.x; s < d->n; s += blockDim.x) head[s] = cuda_read_header(&all.source[d->first + s]);
        __syncthreads();
        nan = (decision & CUDA_NAN) != 0;
    } else {
        uint32_t decision = 0;
        for (uint32_t s = threadIdx.x; s < d->n; s += blockDim.x) {
            head[s] = cuda_read_header(&all.source[d->first + s]);
            if (!cuda_dense_header_ok(f, head[s], &all.source[d->first + s], d)) decision |= CUDA_CORRUPT;
            if (head[s].flags & ESP_PAYLOAD_NONFINITE) decision |= CUDA_NAN;
        }
        const int corrupt = __syncthreads_or(decision & CUDA_CORRUPT);
        nan = __syncthreads_or(decision & CUDA_NAN);
        if (corrupt && cuda_thread() == 0) cuda_found(all.finding, f.codec);
        if (corrupt) return;
    }
    for (uint64_t at = (uint64_t)blockIdx.x * CUDA_DENSE_EACH; at < d->count;
         at += (uint64_t)gridDim.x * CUDA_DENSE_EACH) {
        float x[4];
        CUDA_UNROLL
        for (int k = 0; k < 4; k++) {
            const uint64_t i = cuda_dense_at(at, k);
            x[k] = !all.set && i < d->count ? cuda_get(d->out + i) : 0;
        }
        int set = all.set != 0;
        for (uint32_t s = 0; s < d->n && !nan; s++) {
            const cuda_header h = head[s];
            const unsigned char *body = all.source[d->first + s].payload + ESP_PAYLOAD_HEADER;
            if (h.flags & ESP_PAYLOAD_EMPTY) continue;
            CUDA_UNROLL
            for (int k = 0; k < 4; k++) {
                const uint64_t i = cuda_dense_at(at, k);
                if (i >= d->count) continue;
                const float v = f.value(&h, body, i, all.scale);
                x[k] = set ? v : x[k] + v; /* 0 + v would lose the sign of -0 */
            }
            set = 0;
        }
        CUDA_UNROLL
        for (int k = 0; k < 4; k++) {
            const uint64_t i = cuda_dense_at(at, k);
            if (i < d->count) cuda_put(d->out + i, nan || x[k] != x[k] ? bits_float(0x7FC00000u) : x[k]);
        }
    }
}
template <typename F, typename Full>
static esp_status cuda_dense_decompress(const esp_host *h, const char *name, const esp_codec_args *a, const Full &full,
                                        const F &f) {
    const auto dense_pieces = [&](uint64_t n) -> uint64_t {
        if constexpr (F::BODIES)
            return f.pieces(n);
        else
            return (void)n, 0;
    };
    const int checks_headers = !F::BODIES && a->n_payloads <= (uint32_t)CUDA_SOURCES;
    return cuda_each_sum(
        h, name, a, full,
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "check payloads", cuda_kernel<cuda_dense_check_payloads<F>>,
                        cuda_grid(c, dense_pieces(longest), CUDA_DENSE_EACH, sums.n), sums, f);
        },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "add", cuda_kernel<cuda_dense_add<F>>, cuda_grid(c, longest, CUDA_DENSE_EACH, sums.n), sums,
                        f, checks_headers);
        },
        !checks_headers);
}
#endif
