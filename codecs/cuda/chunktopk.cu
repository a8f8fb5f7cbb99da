/* chunktopk.cu: codec "chunktopk" on CUDA, which sends the k largest elements of each chunk of a tensor; formulas
 * are in codecs/hybrid/chunktopk.c. A CUDA block processes a chunk of more than 512 elements, a warp a smaller one.
 * First, each thread finds its largest element; the k-th largest of these is a threshold that at least k elements
 * reach, and few more. Those are listed, and the k largest are selected from the list. */
#include "codecs/cuda/common/block.h"
#include "codecs/cuda/common/dense.h"
#include "codecs/hybrid/chunktopk.c"

static __device__ __forceinline__ uint64_t chunktopk_chunks(const chunktopk_shape *f, uint64_t count) {
    return (count + f->chunk - 1) / f->chunk;
}
static __device__ __forceinline__ uint32_t chunktopk_size(const chunktopk_shape *f, uint64_t count, uint64_t c) {
    return count - c * f->chunk < f->chunk ? (uint32_t)(count - c * f->chunk) : f->chunk;
}

/* ---- threads that process one chunk together: W warps, which are one warp or a whole block ----------------------- */
template <uint32_t W> static __device__ __forceinline__ uint32_t group_me(void) { return threadIdx.x % (32 * W); }
template <uint32_t W> static __device__ __forceinline__ void group_sync(void) {
    if (W == 1)
        __syncwarp();
    else
        __syncthreads();
}
template <uint32_t W> static __device__ __forceinline__ uint32_t group_count(int is) {
    if (W == 1) return (uint32_t)__popc(__ballot_sync(0xFFFFFFFFu, is));
    return (uint32_t)__syncthreads_count(is);
}
/* Returns the sum of `mine` over warps with lower numbers in the group, and *total over all. All threads of a warp
 * pass the same value. */
template <uint32_t W>
static __device__ __forceinline__ uint32_t group_before(uint32_t mine, uint32_t *warps, uint32_t *total) {
    if (W > 1) return cuda_warps_before(mine, warps, total);
    *total = mine;
    return 0;
}
/* Returns how many of the group's threads with lower numbers have a true `is`. */
template <uint32_t W> static __device__ __forceinline__ uint32_t group_rank(int is, uint32_t *warps, uint32_t *total) {
    const uint32_t in = __ballot_sync(0xFFFFFFFFu, is);
    return group_before<W>((uint32_t)__popc(in), warps, total) + (uint32_t)__popc(in & cuda_lanes_before());
}

/* ---- selection --------------------------------------------------------------------------------------------------- */
typedef struct chunktopk_kept {
    float *val;
    uint16_t *idx;
    uint32_t *warps;
} chunktopk_kept;

/* Returns a magnitude, as bits, that at least k and at most `enough` elements reach, and sets *over to their
 * number. If there is none, because many are equal, returns the largest magnitude that k elements reach, and sets
 * *over to how many exceed it. count(t) counts the elements that reach t; `reached` is count(lo), at least k. */
template <typename Count>
static __device__ __forceinline__ uint32_t chunktopk_cut(uint32_t lo, uint32_t reached, uint32_t k, uint32_t enough,
                                                         uint32_t *over, Count count) {
    uint32_t hi = 0x80000000u; /* no magnitude is as large */
    *over = 0;
    while (hi - lo > 1 && reached > enough) {
        const uint32_t t = lo + (hi - lo) / 2, n = count(t);
        if (n >= k)
            lo = t, reached = n;
        else
            hi = t, *over = n;
    }
    if (reached <= enough) *over = reached;
    return lo;
}
/* Removes elements from a list of m until k are left: it keeps the `over` elements above t, and the first ones equal
 * to t. */
template <uint32_t W>
static __device__ __forceinline__ void chunktopk_keep(const chunktopk_kept *l, uint32_t m, uint32_t k, uint32_t t,
                                                      uint32_t over) {
    uint32_t kept = 0, ties = 0, n;
    for (uint32_t at = 0; at < m; at += 32 * W) {
        const uint32_t i = at + group_me<W>();
        const float x = i < m ? l->val[i] : 0;
        const uint16_t idx = i < m ? l->idx[i] : 0;
        const uint32_t b = select_bits(x);
        const int tie = i < m && b == t;
        const uint32_t rank = ties + group_rank<W>(tie, l->warps, &n);
        ties += n;
        const int is = i < m && (b > t || (tie && rank < k - over));
        const uint32_t to = kept + group_rank<W>(is, l->warps, &n);
        kept += n;
        if (W == 1) __syncwarp(); /* group_rank() is a barrier for blocks, not for a warp */
        if (is) l->val[to] = x, l->idx[to] = idx;
    }
}
/* Lists the k largest of the group's elements. Each thread has R of them: element q of thread i of a warp has index 32
 * q + i among the warp's elements. Elements from n on are 0; having the highest indices, they lose every tie. */
template <uint32_t W, uint32_t R>
static __device__ __forceinline__ void chunktopk_select(const chunktopk_kept *l, const float *x, uint32_t n,
                                                        uint32_t k) {
    const uint32_t first = group_me<W>() / 32 * (32 * R) + cuda_lane();
    uint32_t lo = 0, over, top = 0, hits = 0, m;
    CUDA_UNROLL
    for (uint32_t q = 0; q < R; q++) top = select_bits(x[q]) > top ? select_bits(x[q]) : top;
    if (2 * k <= 32 * W && n > 32 * W)
        lo = chunktopk_cut(0, 32 * W, k, k + k / 4, &over, [&](uint32_t t) { return group_count<W>(top >= t); });
    CUDA_UNROLL
    for (uint32_t q = 0; q < R; q++) hits |= (uint32_t)(select_bits(x[q]) >= lo) << q;
    uint32_t to = group_before<W>(cuda_warp_bits(hits), l->warps, &m);
    CUDA_UNROLL
    for (uint32_t q = 0; q < R; q++) {
        const int is = hits >> q & 1u;
        const uint32_t in = __ballot_sync(0xFFFFFFFFu, is), at = to + (uint32_t)__popc(in & cuda_lanes_before());
        if (is) l->val[at] = x[q], l->idx[at] = (uint16_t)(first + 32 * q);
        to += (uint32_t)__popc(in);
    }
    group_sync<W>();
    if (m == k) return;
    const uint32_t t = chunktopk_cut(lo, m, k, k, &over, [&](uint32_t try_) {
        uint32_t reach = 0;
        for (uint32_t at = 0; at < m; at += 32 * W) {
            const uint32_t i = at + group_me<W>();
            reach += group_count<W>(i < m && select_bits(l->val[i < m ? i : 0]) >= try_);
        }
        return reach;
    });
    /* If over == k, exactly k elements reach t, and all of them exceed t - 1. Otherwise `over` elements exceed t,
     * and ties with t fill up the list. */
    if (over == k)
        chunktopk_keep<W>(l, m, k, t - 1, k);
    else
        chunktopk_keep<W>(l, m, k, t, over);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
/* One warp sums and counts the magnitudes whose bits are at least `from`, in the CPU's order: 8 partial sums, added as
 * a tree. The warp's first thread returns the result. */
static __device__ __forceinline__ void chunktopk_cuda_sum(const float *val, uint32_t room, uint32_t from, double *sum,
                                                          int32_t *many) {
    double s = 0;
    int32_t n = 0;
    for (uint32_t i = cuda_lane(); cuda_lane() < 8 && i < room; i += 8)
        s += chunktopk_term(val[i], from), n += chunktopk_is(val[i], from);
    for (uint32_t w = 4; w; w /= 2) {
        s += __shfl_down_sync(0xFFFFFFFFu, s, w);
        n += __shfl_down_sync(0xFFFFFFFFu, n, w);
    }
    *sum = s, *many = n;
}
/* One warp computes a chunk's magnitudes low and high (result[0]), and the least magnitude sent as high (result[1]). */
static __device__ __forceinline__ void chunktopk_cuda_head(const float *val, uint32_t k, uint32_t room,
                                                           uint32_t *result) {
    double all, high;
    int32_t many;
    chunktopk_cuda_sum(val, room, 0, &all, &many);
    const float split = __shfl_sync(0xFFFFFFFFu, (float)(all / (double)k), 0);
    chunktopk_cuda_sum(val, room, float_bits(split), &high, &many);
    if (cuda_lane() == 0) result[0] = chunktopk_head(all, high, (double)many, k), result[1] = float_bits(split);
}
static __device__ __forceinline__ unsigned char chunktopk_byte(const uint16_t *code, uint32_t k, uint32_t width,
                                                               uint32_t b) {
    uint32_t i = 8 * b / width, bits = 0;
    for (int32_t at = (int32_t)(i * width) - (int32_t)(8 * b); at < 8 && i < k; at += (int32_t)width, i++)
        bits |= at < 0 ? (uint32_t)code[i] >> -at : (uint32_t)code[i] << at;
    return (unsigned char)bits;
}
template <uint32_t W>
static __device__ __forceinline__ void chunktopk_record_of(const chunktopk_kept *l, uint32_t k, uint32_t width,
                                                           uint32_t *head, float *e, unsigned char *out) {
    const uint32_t room = (k + 7) / 8 * 8, me = group_me<W>(), bytes = (k * width + 7) / 8;
    if (me < room - k) l->val[k + me] = 0;
    group_sync<W>();
    if (me < 32) chunktopk_cuda_head(l->val, k, room, head);
    group_sync<W>();
    const uint32_t h = head[0];
    const float split = bits_float(head[1]), low = bits_float(h << 16), high = bits_float(h & 0xFFFF0000u);
    for (uint32_t i = me; i < k; i += 32 * W) {
        const uint32_t at = l->idx[i];
        const float rest = chunktopk_code_of(l->val[i], at, split, low, high, width, &l->idx[i]);
        if (e) cuda_put(e + at, rest);
    }
    group_sync<W>();
    if (me < 4) cuda_put(out + me, (unsigned char)(h >> 8 * me));
    for (uint32_t b = me; b < bytes; b += 32 * W)
        cuda_put(out + CHUNKTOPK_HEAD + b, chunktopk_byte(l->idx, k, width, b));
    if (W == 1) __syncwarp(); /* other threads of the warp will reuse the list */
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
template <uint32_t W, uint32_t R>
static __global__ void __launch_bounds__(CUDA_THREADS, R == 16 ? 3 : 4)
    chunktopk_encode(cuda_parts all, chunktopk_shape f) {
    enum { GROUPS = CUDA_WARPS / W, SIZE = 32 * W * R };
    __shared__ float val[GROUPS * SIZE];
    __shared__ uint16_t idx[GROUPS * SIZE];
    __shared__ uint32_t warps[CUDA_WARPS], heads[GROUPS][2];
    const cuda_part *p = &all.part[blockIdx.y];
    const uint32_t mine = threadIdx.x / (32 * W);
    const chunktopk_kept list = {val + mine * SIZE, idx + mine * SIZE, warps};
    const uint32_t bad = p->e ? cuda_get(&cuda_flags_of(p)->bad) : 0; /* without `e`, this launch writes it */
    const uint64_t record = chunktopk_record(&f, f.chunk), chunks = chunktopk_chunks(&f, p->count);
    uint32_t any = 0;
    for (uint64_t c = (uint64_t)blockIdx.x * GROUPS + mine; !bad && c < chunks; c += (uint64_t)gridDim.x * GROUPS) {
        const uint32_t n = chunktopk_size(&f, p->count, c), k = (uint32_t)chunktopk_codes(&f, n);
        const uint32_t first = group_me<W>() / 32 * (32 * R) + cuda_lane();
        float x[R];
        CUDA_UNROLL
        for (uint32_t q = 0; q < R; q++)
            x[q] = first + 32 * q < n ? cuda_phi(&all, p, c * f.chunk + first + 32 * q) : 0;
        CUDA_UNROLL
        for (uint32_t q = 0; q < R; q++) {
            any |= dense_nonfinite(x[q]);
            if (p->e && first + 32 * q < n) cuda_put(p->e + c * f.chunk + first + 32 * q, x[q]);
        }
        chunktopk_select<W, R>(&list, x, n, k);
        chunktopk_record_of<W>(&list, k, f.width, heads[mine], p->e ? p->e + c * f.chunk : NULL,
                               cuda_body(p) + c * record);
    }
    if (any >> 31) atomicOr(&cuda_flags_of(p)->bad, 1u);
    if (!cuda_last(&cuda_flags_of(p)->own[0]) || threadIdx.x) return;
    const uint32_t nan = cuda_fresh(&cuda_flags_of(p)->bad);
    cuda_write_header_if(p, f.codec, CHUNKTOPK_WIRE, nan != 0, chunktopk_body(&f, p->count), 0);
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ uint32_t chunktopk_code_at(const unsigned char *record, uint32_t width, uint32_t i) {
    const uint32_t bit = i * width, last = (bit + width - 1) / 8;
    uint32_t bits = 0;
    for (uint32_t b = bit / 8; b <= last; b++)
        bits |= (uint32_t)cuda_get(record + CHUNKTOPK_HEAD + b) << 8 * (b - bit / 8);
    return bits >> bit % 8 & ((1u << width) - 1);
}
static __device__ __forceinline__ uint32_t chunktopk_head_at(const unsigned char *record) {
    uint32_t h = 0;
    for (uint32_t b = 0; b < 4; b++) h |= (uint32_t)cuda_get(record + b) << 8 * b;
    return h;
}
static __device__ __forceinline__ int chunktopk_record_ok(const chunktopk_shape *f, const unsigned char *record,
                                                          uint32_t n) {
    const uint32_t k = (uint32_t)chunktopk_codes(f, n), mask = f->chunk - 1, bits = k * f->width;
    const uint32_t head = chunktopk_head_at(record);
    int ok = (head & 0xFFFFu) <= 0x7F7Fu && head >> 16 <= 0x7F7Fu;
    for (uint32_t i = cuda_lane(); i < k; i += 32) {
        const uint32_t at = chunktopk_code_at(record, f->width, i) & mask;
        ok &= at < n && (i == 0 || (chunktopk_code_at(record, f->width, i - 1) & mask) < at);
    }
    if (bits % 8) ok &= cuda_get(record + CHUNKTOPK_HEAD + bits / 8) >> bits % 8 == 0;
    return ok;
}
static __global__ void __launch_bounds__(CUDA_THREADS, 4) chunktopk_check(cuda_sums all, chunktopk_shape f) {
    cuda_check_payloads(all, f.codec, [&](const cuda_sum *d, const cuda_source *from, const cuda_header &h) {
        const uint64_t record = chunktopk_record(&f, f.chunk), chunks = chunktopk_chunks(&f, d->count);
        int ok = cuda_header_ok(&h, from, f.codec, CHUNKTOPK_WIRE, d->count) && h.body == (h.flags ? 0 : d->body);
        if (ok && h.body) ok = h.aux == 0;
        for (uint64_t c = cuda_warp(); ok && h.body && c < chunks; c += cuda_warps())
            ok = chunktopk_record_ok(&f, from->payload + ESP_PAYLOAD_HEADER + c * record,
                                     chunktopk_size(&f, d->count, c));
        return ok != 0;
    });
}
/* A warp decodes a chunk. It adds the payloads in order, since the order changes the bits of the sum. */
static __global__ void __launch_bounds__(CUDA_THREADS) chunktopk_decode(cuda_sums all, chunktopk_shape f) {
    const cuda_sum *d = &all.part[blockIdx.y];
    const uint32_t decision = cuda_get(d->decision), mask = f.chunk - 1;
    const uint64_t record = chunktopk_record(&f, f.chunk), chunks = chunktopk_chunks(&f, d->count);
    if (decision & CUDA_CORRUPT) return;
    for (uint64_t c = cuda_warp(); c < chunks; c += cuda_warps()) {
        const uint32_t n = chunktopk_size(&f, d->count, c), k = (uint32_t)chunktopk_codes(&f, n);
        float *out = d->out + c * f.chunk;
        if (all.set || decision & CUDA_NAN)
            for (uint32_t i = cuda_lane(); i < n; i += 32)
                cuda_put(out + i, decision & CUDA_NAN ? bits_float(0x7FC00000u) : 0.0f);
        for (uint32_t s = 0; s < d->n && !(decision & CUDA_NAN); s++) {
            __syncwarp(); /* other threads may have written these elements */
            const cuda_source *from = &all.source[d->first + s];
            const unsigned char *in = from->payload + ESP_PAYLOAD_HEADER + c * record;
            if (cuda_read_header(from).flags & ESP_PAYLOAD_EMPTY) continue;
            const uint32_t head = chunktopk_head_at(in);
            const float magnitude[2] = {bits_float(head << 16) * all.scale, bits_float(head & 0xFFFF0000u) * all.scale};
            for (uint32_t i = cuda_lane(); i < k; i += 32) {
                const uint32_t code = chunktopk_code_at(in, f.width, i);
                float *at = out + (code & mask);
                cuda_put(at, cuda_get(at) + chunktopk_value(code, f.width, magnitude));
            }
        }
    }
}

/* ---- the codec's table ------------------------------------------------------------------------------------------- */
typedef void (*chunktopk_kernel)(cuda_parts, chunktopk_shape);
static chunktopk_kernel chunktopk_kernel_for(uint64_t chunk) {
    switch (chunk) {
    case 16:
    case 32: return cuda_kernel<chunktopk_encode<1, 1>>;
    case 64: return cuda_kernel<chunktopk_encode<1, 2>>;
    case 128: return cuda_kernel<chunktopk_encode<1, 4>>;
    case 256: return cuda_kernel<chunktopk_encode<1, 8>>;
    case 512: return cuda_kernel<chunktopk_encode<1, 16>>;
    case 1024: return cuda_kernel<chunktopk_encode<CUDA_WARPS, 4>>;
    case 2048: return cuda_kernel<chunktopk_encode<CUDA_WARPS, 8>>;
    default: return cuda_kernel<chunktopk_encode<CUDA_WARPS, 16>>;
    }
}
static esp_status chunktopk_cuda_compress(void *self, const esp_codec_args *a) {
    const chunktopk_self *s = (const chunktopk_self *)self;
    const chunktopk_shape &f = s->shape;
    return cuda_each_part(
        s->dense.host, "chunktopk", a, [&](uint64_t n) { return chunktopk_body(&f, n); },
        [&](cuda_call *c, const cuda_parts &given, uint64_t longest) {
            cuda_parts parts = given;
            if (a->flags & ESP_ARG_OWN_MEMORY) parts.beta = s->decay, parts.gamma = 1;
            if (a->residual)
                cuda_launch(c, "check", cuda_kernel<cuda_dense_check>, cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n),
                            parts);
            cuda_launch(c, "chunktopk", chunktopk_kernel_for(f.chunk),
                        cuda_grid(c, longest, f.chunk > 512 ? f.chunk : CUDA_WARPS * f.chunk, parts.n), parts, f);
        });
}
static esp_status chunktopk_cuda_decompress(void *self, const esp_codec_args *a) {
    const chunktopk_self *s = (const chunktopk_self *)self;
    const chunktopk_shape &f = s->shape;
    return cuda_each_sum(
        s->dense.host, "chunktopk", a, [&](uint64_t n) { return chunktopk_body(&f, n); },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "check payloads", cuda_kernel<chunktopk_check>,
                        cuda_grid(c, longest, CUDA_WARPS * f.chunk, sums.n), sums, f);
        },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "add", cuda_kernel<chunktopk_decode>, cuda_grid(c, longest, CUDA_WARPS * f.chunk, sums.n),
                        sums, f);
        });
}
CUDA_CODEC(chunktopk, chunktopk_codec, cuda_no_scratch, chunktopk_cuda_compress, chunktopk_cuda_decompress)
