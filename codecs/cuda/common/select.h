/* select.h: on the device, selects the k elements of largest |phi| of each tensor (phi is gradient plus residual),
 * writes the payload, and updates the residual. Of equal elements, those of lower index come first. Five kernels:
 *       1. sample  guesses a threshold, a little too low, from up to 65536 elements
 *       2. filter  reads all elements: checks for NaN and Inf, and lists those that reach the threshold
 *       3. digit   finds the exact threshold, 11, 11 and 9 bits at a time
 *       4. count   computes where the values of each tile (4096 elements) go in the payload
 *       5. write   writes values, their indices, and the residual
 * If fewer than k elements reach the guess, or too many for the list, the kernels after filter read the input again.
 * Tensors of at most 4096 elements need only one kernel, select_small. */
#ifndef ESP_CUDA_SELECT_H
#define ESP_CUDA_SELECT_H
#include "codecs/cuda/common/block.h"
#include "codecs/cuda/common/tile.h"
#include "codecs/common/dense.h"
#include "codecs/common/sparse.h"

/* The template parameter M of the kernels is a struct that loads phi and stores the codec's residual:
 *     M::BLOCKS                                             blocks of select_write per SM, for __launch_bounds__
 *     M::item                                               phi, and other numbers that keep() needs
 *     item load(const cuda_parts *, const cuda_part *, uint64_t i) const;
 *     int keeps(const cuda_part *) const;                   does the tensor have a residual?
 *     void keep(const cuda_part *, uint64_t i, const item &, int sent) const; */
enum {
    CUDA_SPAN_TILES = (int)SELECT_SPAN / (int)CUDA_TILE,
    CUDA_SAMPLE = 65536, /* largest sample */
    CUDA_SAMPLE_BITS = 12,
    CUDA_SELECT_ROOM = 16384
};
/* Where the kernels after select_filter read elements: from the list of elements that reach the guessed threshold,
 * or from the input. CUDA_TIES also means the input, where fewer than k elements are not zero. */
enum { CUDA_FROM_LIST = 1, CUDA_FROM_INPUT = 2, CUDA_TIES = 3 };

/* State of a tensor that its kernels share, in scratch memory after the flags. The first kernel finds it zeroed. */
typedef struct cuda_select {
    uint32_t done[8]; /* finished blocks of each kernel */
    uint64_t used;    /* elements that reached the guessed threshold */
    uint64_t left;
    uint32_t lo; /* the guessed threshold */
    uint32_t t;
    uint32_t from;
    uint32_t unused[17];
    uint64_t hist[1 << CUDA_SAMPLE_BITS];
} cuda_select;
/* Bytes of each tensor's scratch memory that must be zero. */
enum { CUDA_SELECT_ZERO = CUDA_FLAGS + sizeof(cuda_select) };

typedef struct cuda_picks {
    uint32_t codec, wire;
    uint64_t k[CUDA_PARTS];
} cuda_picks;

/* ---- scratch memory of a tensor ---------------------------------------------------------------------------------- */
ESP_ELEMENT uint64_t cuda_select_cap(uint64_t count, uint64_t k) {
    return k < count / 4 && 4 * k + CUDA_SELECT_ROOM < count ? 4 * k + CUDA_SELECT_ROOM : count;
}
typedef struct cuda_span {
    uint64_t at; /* where the span's values go in the payload */
    uint64_t left;
} cuda_span;
typedef struct cuda_tile {
    uint64_t at;
    uint32_t n;
    uint32_t above, ties;
    uint32_t own; /* ties in this tile alone */
} cuda_tile;
/* Offsets in scratch memory. The list of elements that reach the guessed threshold consists of val and idx. */
typedef struct cuda_select_at {
    uint64_t span, tile, val, idx, bytes;
} cuda_select_at;
ESP_ELEMENT cuda_select_at cuda_select_layout(uint64_t count, uint64_t k) {
    const uint64_t cap = cuda_select_cap(count, k);
    cuda_select_at a;
    a.span = CUDA_SELECT_ZERO;
    a.tile = a.span + sizeof(cuda_span) * sparse_spans(count);
    a.val = a.tile + sizeof(cuda_tile) * cuda_tiles(count);
    a.idx = a.val + 4 * cap;
    a.bytes = a.idx + 2 * cap;
    return a;
}
typedef struct cuda_job {
    const cuda_part *p;
    cuda_select *s;
    uint64_t count, k, cap, tiles, spans;
    cuda_span *span;
    cuda_tile *tile;
    float *val;
    uint16_t *idx;
} cuda_job;
static __device__ __forceinline__ cuda_job cuda_job_of(const cuda_parts *all, const cuda_picks *want) {
    cuda_job j;
    j.p = &all->part[blockIdx.y];
    j.count = j.p->count;
    j.k = want->k[blockIdx.y];
    j.cap = cuda_select_cap(j.count, j.k);
    j.tiles = cuda_tiles(j.count);
    j.spans = sparse_spans(j.count);
    unsigned char *at = j.p->scratch;
    const cuda_select_at a = cuda_select_layout(j.count, j.k);
    j.s = (cuda_select *)(void *)(at + CUDA_FLAGS);
    j.span = (cuda_span *)(void *)(at + a.span), j.tile = (cuda_tile *)(void *)(at + a.tile);
    j.val = (float *)(void *)(at + a.val), j.idx = (uint16_t *)(void *)(at + a.idx);
    return j;
}

/* ---- 1. sample --------------------------------------------------------------------------------------------------- */
/* Returns the position in the sorted sample of the number to guess as threshold. It is four standard deviations
 * after the expected position, so that at least k elements of the tensor very probably reach the threshold. */
ESP_ELEMENT uint64_t cuda_sample_rank(uint64_t k, uint64_t count, uint64_t n) {
    const uint64_t rank = k * n / count + 1;
    uint64_t root = 1;
    while (root * root < rank) root++;
    return rank + 4 * root + 8;
}
template <typename M>
__global__ void __launch_bounds__(CUDA_THREADS) select_sample(cuda_parts all, cuda_picks want, M m) {
    enum { BINS = 1 << CUDA_SAMPLE_BITS, SHIFT = 31 - CUDA_SAMPLE_BITS };
    __shared__ uint32_t hist[BINS];
    __shared__ uint64_t warps[CUDA_WARPS], found[2];
    const cuda_job j = cuda_job_of(&all, &want);
    if (j.cap == j.count) return; /* all elements fit the list */
    const uint64_t lines = j.count / 64 < CUDA_SAMPLE / 16 ? j.count / 64 : CUDA_SAMPLE / 16;
    const uint64_t stride = (j.count / 16 / lines - 1) | 1;
    cuda_hist_clear<BINS>(hist);
    for (uint64_t at = (uint64_t)blockIdx.x * 4 * CUDA_THREADS; at < 16 * lines;
         at += (uint64_t)gridDim.x * 4 * CUDA_THREADS) {
        uint32_t b[4];
        CUDA_UNROLL
        for (int q = 0; q < 4; q++) {
            const uint64_t i = at + (uint64_t)q * CUDA_THREADS + threadIdx.x;
            b[q] = i < 16 * lines ? select_bits(m.load(&all, j.p, i / 16 * stride * 16 + i % 16).phi) : 0;
        }
        CUDA_UNROLL
        for (int q = 0; q < 4; q++)
            cuda_hist_count(hist, b[q] >> SHIFT, at + (uint64_t)q * CUDA_THREADS + threadIdx.x < 16 * lines);
    }
    cuda_hist_flush<BINS>(j.s->hist, hist);
    if (!cuda_last(&j.s->done[0])) return;
    const uint64_t rank = cuda_sample_rank(j.k, j.count, 16 * lines);
    const cuda_bin b = cuda_hist_pick<BINS>(j.s->hist, rank < 16 * lines ? rank : 16 * lines, warps, found);
    /* A threshold of 0 would be reached by all zeros, of which there may be very many. */
    if (threadIdx.x == 0) j.s->lo = b.bin ? b.bin << SHIFT : 1;
}

/* nvcc does not take this kernel, nor select_digit, as a template's argument (cuda_kernel). */
template <typename M> inline const auto select_sample_kernel = cuda_add_kernel(select_sample<M>);

/* ---- 2. filter --------------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ uint64_t cuda_tile_first(uint64_t tile) { return cuda_tile_at(tile, 0); }
static __device__ __forceinline__ uint32_t cuda_tile_room(uint64_t count, uint64_t first) {
    return first >= count ? 0 : count - first < CUDA_TILE ? (uint32_t)(count - first) : (uint32_t)CUDA_TILE;
}
static __device__ __forceinline__ void cuda_filter_end(const cuda_job *j, uint64_t *warps, uint64_t *found) {
    const uint64_t used = cuda_fresh(&j->s->used);
    const int listed = used <= j->cap && used >= j->k;
    cuda_bin b = {0, j->k};
    if (!j->k) return;
    if (used) b = cuda_hist_pick<2048>(j->s->hist, j->k < used ? j->k : used, warps, found);
    if (threadIdx.x) return;
    const int ties = used < j->k && j->s->lo <= 1;
    j->s->from = listed ? CUDA_FROM_LIST : ties ? CUDA_TIES : CUDA_FROM_INPUT;
    j->s->t = listed ? b.bin : 0;
    j->s->left = listed ? b.left : ties ? j->k - used : j->k;
}
template <typename M>
__global__ void __launch_bounds__(CUDA_THREADS) select_filter(cuda_parts all, cuda_picks want, M m) {
    __shared__ uint32_t hist[2048], warps[CUDA_WARPS];
    __shared__ uint64_t base, sums[CUDA_WARPS], found[2];
    const cuda_job j = cuda_job_of(&all, &want);
    const uint32_t lo = j.cap == j.count ? 0 : cuda_get(&j.s->lo);
    uint32_t any = 0;
    cuda_hist_clear<2048>(hist);
    for (uint64_t tile = blockIdx.x; tile < j.tiles; tile += gridDim.x) {
        const uint64_t first = cuda_tile_first(tile);
        const uint32_t room = cuda_tile_room(j.count, first);
        float x[CUDA_TILE_EACH];
        uint32_t hits = 0, total;
        CUDA_UNROLL
        for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) x[q] = 32 * q < room ? m.load(&all, j.p, first + 32 * q).phi : 0;
        CUDA_UNROLL
        for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
            const uint32_t is = 32 * q < room && select_bits(x[q]) >= lo;
            any |= dense_nonfinite(x[q]);
            hits |= is << q;
        }
        const uint32_t mine = cuda_warp_bits(hits), before = cuda_warps_before(mine, warps, &total);
        if (threadIdx.x == 0) {
            const uint64_t at = total ? cuda_add64(&j.s->used, total) : 0;
            const int fits = at + total <= j.cap;
            base = fits ? at : UINT64_MAX;
            cuda_put(&j.tile[tile].at, at);
            cuda_put(&j.tile[tile].n, fits ? total : 0);
        }
        __syncthreads();
        /* No thread changes `base` before the barriers of the next tile. */
        uint64_t to = base == UINT64_MAX || !mine ? UINT64_MAX : base + before;
        if (to == UINT64_MAX) continue; /* All threads of a warp take the same branch. */
        CUDA_UNROLL
        for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
            const int is = hits >> q & 1u;
            const uint32_t in = __ballot_sync(0xFFFFFFFFu, is);
            if (is) {
                const uint64_t at = to + (uint64_t)__popc(in & cuda_lanes_before());
                cuda_put(&j.val[at], x[q]);
                cuda_put(&j.idx[at], (uint16_t)(first + 32 * q));
                atomicAdd(&hist[select_bits(x[q]) >> 20], 1u);
            }
            to += (uint64_t)__popc(in);
        }
    }
    if (any >> 31) atomicOr(&cuda_flags_of(j.p)->bad, 1u);
    cuda_hist_flush<2048>(j.s->hist, hist);
    if (cuda_last(&j.s->done[1])) cuda_filter_end(&j, sums, found);
}

/* ---- 3. digit ---------------------------------------------------------------------------------------------------- */
template <int SHIFT, int BITS>
static __device__ __forceinline__ void cuda_digit_count(uint32_t *hist, float x, uint32_t t, int is) {
    const uint32_t b = select_bits(x);
    cuda_hist_count(hist, b >> SHIFT & ((1u << BITS) - 1), is && b >> SHIFT >> BITS == t);
}
template <typename M, int STEP, int SHIFT, int BITS>
__global__ void __launch_bounds__(CUDA_THREADS, 4) select_digit(cuda_parts all, cuda_picks want, M m) {
    enum { BINS = 1 << BITS, EACH = 8 };
    __shared__ uint32_t hist[BINS];
    __shared__ uint64_t warps[CUDA_WARPS], found[2];
    const cuda_job j = cuda_job_of(&all, &want);
    const uint32_t from = cuda_get(&j.s->from), t = cuda_get(&j.s->t);
    const uint64_t left = cuda_get(&j.s->left);
    if (!j.k || from == CUDA_TIES || (STEP == 0 && from == CUDA_FROM_LIST) || cuda_get(&cuda_flags_of(j.p)->bad))
        return;
    const uint64_t n = from == CUDA_FROM_LIST ? cuda_get(&j.s->used) : j.count;
    cuda_hist_clear<BINS>(hist);
    for (uint64_t at = (uint64_t)blockIdx.x * EACH * CUDA_THREADS; at < n;
         at += (uint64_t)gridDim.x * EACH * CUDA_THREADS) {
        float x[EACH];
        CUDA_UNROLL
        for (int q = 0; q < EACH; q++) {
            const uint64_t i = at + (uint64_t)q * CUDA_THREADS + threadIdx.x;
            x[q] = i >= n ? 0 : from == CUDA_FROM_LIST ? cuda_get(&j.val[i]) : m.load(&all, j.p, i).phi;
        }
        CUDA_UNROLL
        for (int q = 0; q < EACH; q++)
            cuda_digit_count<SHIFT, BITS>(hist, x[q], t, at + (uint64_t)q * CUDA_THREADS + threadIdx.x < n);
    }
    cuda_hist_flush<BINS>(j.s->hist, hist);
    if (!cuda_last(&j.s->done[2 + STEP])) return;
    const cuda_bin b = cuda_hist_pick<BINS>(j.s->hist, left, warps, found);
    if (threadIdx.x == 0) j.s->t = t << BITS | b.bin, j.s->left = b.left;
}
template <typename M, int STEP, int SHIFT, int BITS>
inline const auto select_digit_kernel = cuda_add_kernel(select_digit<M, STEP, SHIFT, BITS>);

/* ---- 4. count ---------------------------------------------------------------------------------------------------- */
/* One warp counts the magnitudes of get(begin) to get(end - 1) that are above t (result x) or equal to t (result y). */
template <typename Get>
static __device__ __forceinline__ uint2 cuda_warp_count(uint64_t begin, uint64_t end, uint32_t t, Get get) {
    uint2 n = {0, 0};
    for (uint64_t at = begin + cuda_lane(); at < end; at += 8 * 32) {
        uint32_t b[8];
        CUDA_UNROLL
        for (uint32_t q = 0; q < 8; q++) b[q] = at + 32 * q < end ? select_bits(get(at + 32 * q)) + 1 : 0;
        CUDA_UNROLL
        for (uint32_t q = 0; q < 8; q++) n.x += b[q] > t + 1, n.y += b[q] == t + 1;
    }
    n.x = cuda_warp_all(n.x, [](uint32_t a, uint32_t b) { return a + b; });
    n.y = cuda_warp_all(n.y, [](uint32_t a, uint32_t b) { return a + b; });
    return n;
}
/* Called by the last block. Computes where in the payload the values of each span (65536 elements) begin, and writes
 * how many values each span has. */
static __device__ __forceinline__ void cuda_count_end(const cuda_job *j, uint64_t quota, uint64_t *warps) {
    const uint64_t each = (j->spans + CUDA_THREADS - 1) / CUDA_THREADS, first = threadIdx.x * each;
    const uint64_t end = first + each < j->spans ? first + each : j->spans;
    uint32_t *held = (uint32_t *)(void *)(cuda_body(j->p) + 4 * j->k);
    uint64_t gt = 0, eq = 0, total;
    for (uint64_t s = first; s < end; s++) gt += cuda_fresh(&j->span[s].at), eq += cuda_fresh(&j->span[s].left);
    gt = cuda_block_before(gt, warps, &total);
    eq = cuda_block_before(eq, warps + CUDA_WARPS, &total);
    for (uint64_t s = first; s < end; s++) {
        const uint64_t above = cuda_fresh(&j->span[s].at), ties = cuda_fresh(&j->span[s].left);
        const uint64_t sent = eq < quota ? eq : quota, left = quota - sent;
        cuda_put(&j->span[s].at, gt + sent);
        cuda_put(&j->span[s].left, left);
        cuda_put(&held[s], (uint32_t)(above + (ties < left ? ties : left)));
        gt += above, eq += ties;
    }
}
template <typename M>
__global__ void __launch_bounds__(CUDA_THREADS, 4) select_count(cuda_parts all, cuda_picks want, M m) {
    __shared__ uint32_t gt[CUDA_SPAN_TILES], eq[CUDA_SPAN_TILES];
    __shared__ uint64_t warps[2 * CUDA_WARPS];
    const cuda_job j = cuda_job_of(&all, &want);
    const uint32_t from = cuda_get(&j.s->from), t = cuda_get(&j.s->t), bad = cuda_get(&cuda_flags_of(j.p)->bad);
    if (cuda_thread() == 0) cuda_write_header_if(j.p, want.codec, want.wire, bad, sparse_body_bytes(j.count, j.k), j.k);
    if (bad) return;
    for (uint64_t span = blockIdx.x; span < j.spans; span += gridDim.x) {
        const uint64_t first = span * CUDA_SPAN_TILES;
        const uint32_t tiles = (uint32_t)(j.tiles - first < CUDA_SPAN_TILES ? j.tiles - first : CUDA_SPAN_TILES);
        for (uint32_t k = threadIdx.x / 32; k < tiles; k += CUDA_WARPS) {
            const uint64_t begin = from == CUDA_FROM_LIST ? cuda_get(&j.tile[first + k].at) : (first + k) * CUDA_TILE;
            uint2 n;
            if (from == CUDA_FROM_LIST)
                n = cuda_warp_count(begin, begin + cuda_get(&j.tile[first + k].n), t,
                                    [&](uint64_t i) { return cuda_get(&j.val[i]); });
            else
                n = cuda_warp_count(begin, j.count - begin < CUDA_TILE ? j.count : begin + CUDA_TILE, t,
                                    [&](uint64_t i) { return m.load(&all, j.p, i).phi; });
            if (cuda_lane() == 0) gt[k] = n.x, eq[k] = n.y;
        }
        __syncthreads();
        if (threadIdx.x < tiles) {
            uint32_t above = 0, ties = 0;
            for (uint32_t k = 0; k < threadIdx.x; k++) above += gt[k], ties += eq[k];
            cuda_put(&j.tile[first + threadIdx.x].above, above);
            cuda_put(&j.tile[first + threadIdx.x].ties, ties);
            cuda_put(&j.tile[first + threadIdx.x].own, eq[threadIdx.x]);
            if (threadIdx.x == tiles - 1) {
                cuda_put(&j.span[span].at, (uint64_t)(above + gt[threadIdx.x]));
                cuda_put(&j.span[span].left, (uint64_t)(ties + eq[threadIdx.x]));
            }
        }
        __syncthreads();
    }
    if (cuda_last(&j.s->done[5])) cuda_count_end(&j, cuda_get(&j.s->left), warps);
}

/* ---- 5. write ---------------------------------------------------------------------------------------------------- */
typedef struct cuda_tile_plan {
    uint64_t at; /* where the tile's values go in the payload */
    uint32_t ties;
    uint32_t sent;
} cuda_tile_plan;
static __device__ __forceinline__ cuda_tile_plan cuda_plan_of(const cuda_job *j, uint64_t tile) {
    const cuda_span *span = &j->span[tile / CUDA_SPAN_TILES];
    const cuda_tile *x = &j->tile[tile];
    const uint64_t left = cuda_get(&span->left);
    const uint32_t before = cuda_get(&x->ties);
    const uint32_t given = left < before ? (uint32_t)left : before;
    cuda_tile_plan plan;
    plan.at = cuda_get(&span->at) + cuda_get(&x->above) + given;
    plan.ties = cuda_get(&x->own);
    plan.sent = left - given < plan.ties ? (uint32_t)(left - given) : plan.ties;
    return plan;
}
static __device__ __forceinline__ void cuda_write_listed(const cuda_job *j, uint32_t t, uint64_t tile) {
    const cuda_tile_plan plan = cuda_plan_of(j, tile);
    const uint64_t from = cuda_get(&j->tile[tile].at);
    const uint32_t n = cuda_get(&j->tile[tile].n);
    float *val = (float *)(void *)cuda_body(j->p);
    uint16_t *place = (uint16_t *)(void *)(cuda_body(j->p) + 4 * j->k + 4 * j->spans);
    uint64_t to = plan.at;
    uint32_t ties = 0;
    for (uint32_t at = 0; at < n; at += 32) {
        const uint32_t i = at + cuda_lane();
        const float x = i < n ? cuda_get(&j->val[from + i]) : 0;
        const uint32_t b = select_bits(x);
        const uint32_t eq = __ballot_sync(0xFFFFFFFFu, i < n && b == t);
        const int tie = i < n && b == t && ties + (uint32_t)__popc(eq & cuda_lanes_before()) < plan.sent;
        const int is = (i < n && b > t) || tie;
        const uint32_t in = __ballot_sync(0xFFFFFFFFu, is);
        if (is) {
            const uint64_t out = to + (uint64_t)__popc(in & cuda_lanes_before());
            cuda_put(&val[out], x);
            cuda_put(&place[out], cuda_get(&j->idx[from + i]));
        }
        to += (uint64_t)__popc(in);
        ties += (uint32_t)__popc(eq);
    }
}
/* Finds out which of a tile's elements are sent. Bit q of the result belongs to this thread's q-th element, x[q]. */
template <typename Item>
static __device__ __forceinline__ uint32_t cuda_taken(const cuda_tile_plan *plan, uint32_t t, uint32_t room,
                                                      const Item *x, uint32_t *warps) {
    uint32_t above = 0, ties = 0, total;
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
        const uint32_t b = select_bits(x[q].phi);
        above |= (uint32_t)(32 * q < room && b > t) << q;
        ties |= (uint32_t)(32 * q < room && b == t) << q;
    }
    if (plan->sent == plan->ties) return above | ties;
    if (!plan->sent) return above;
    uint32_t rank = cuda_warps_before(cuda_warp_bits(ties), warps, &total);
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
        const uint32_t in = __ballot_sync(0xFFFFFFFFu, ties >> q & 1u);
        above |= (uint32_t)((ties >> q & 1u) && rank + (uint32_t)__popc(in & cuda_lanes_before()) < plan->sent) << q;
        rank += (uint32_t)__popc(in);
    }
    return above;
}
/* Writes the sent elements of a tile to the payload, from value number `begin` on, and updates the residual. Bit q
 * of `taken` is set if this thread's element x[q] is sent. */
template <typename M>
static __device__ __forceinline__ void cuda_send_tile(const cuda_job *j, const M &m, uint64_t first,
                                                      const typename M::item *x, uint32_t taken, uint64_t begin,
                                                      uint32_t *warps) {
    const uint32_t room = cuda_tile_room(j->count, first);
    const int map = sparse_is_map(j->count, j->k), keeps = m.keeps(j->p);
    unsigned char *after = cuda_body(j->p) + 4 * j->k + 4 * j->spans;
    uint32_t total;
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++)
        if (keeps && 32 * q < room) m.keep(j->p, first + 32 * q, x[q], taken >> q & 1u);
    const uint64_t to = begin + cuda_warps_before(cuda_warp_bits(taken), warps, &total);
    float *val = (float *)(void *)cuda_body(j->p) + to;
    uint16_t *place = (uint16_t *)(void *)after + to;
    uint32_t *words = (uint32_t *)(void *)after + first / 32;
    uint32_t at = 0;
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
        const int is = taken >> q & 1u;
        const uint32_t in = __ballot_sync(0xFFFFFFFFu, is), out = at + (uint32_t)__popc(in & cuda_lanes_before());
        if (map && cuda_lane() == 0 && 32 * q < room) cuda_put(words + q, in);
        if (is) cuda_put(val + out, x[q].phi);
        if (is && !map) cuda_put(place + out, (uint16_t)(first + 32 * q));
        at += (uint32_t)__popc(in);
    }
}
template <typename M>
static __device__ __forceinline__ void cuda_write_tile(const cuda_parts *all, const cuda_job *j, const M &m, uint32_t t,
                                                       uint64_t tile, uint32_t *warps) {
    const cuda_tile_plan plan = cuda_plan_of(j, tile);
    const uint64_t first = cuda_tile_first(tile);
    const uint32_t room = cuda_tile_room(j->count, first);
    typename M::item x[CUDA_TILE_EACH];
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++)
        if (32 * q < room) x[q] = m.load(all, j->p, first + 32 * q);
    cuda_send_tile(j, m, first, x, cuda_taken(&plan, t, room, x, warps), plan.at, warps);
}
template <typename M>
__global__ void __launch_bounds__(CUDA_THREADS, M::BLOCKS) select_write(cuda_parts all, cuda_picks want, M m) {
    __shared__ uint32_t warps[CUDA_WARPS];
    const cuda_job j = cuda_job_of(&all, &want);
    const uint32_t from = cuda_get(&j.s->from), t = cuda_get(&j.s->t);
    if (cuda_get(&cuda_flags_of(j.p)->bad)) return;
    if (from == CUDA_FROM_LIST && !m.keeps(j.p) && !sparse_is_map(j.count, j.k))
        for (uint64_t tile = cuda_warp(); tile < j.tiles; tile += cuda_warps()) cuda_write_listed(&j, t, tile);
    else
        for (uint64_t tile = blockIdx.x; tile < j.tiles; tile += gridDim.x)
            cuda_write_tile(&all, &j, m, t, tile, warps);
}

/* ---- one kernel for tensors of at most 4096 elements ------------------------------------------------------------- */
template <int SHIFT, int BITS, typename Item>
static __device__ __forceinline__ void cuda_small_digit(const Item *x, uint32_t room, uint32_t *t, uint64_t *left,
                                                        uint32_t *hist, uint64_t *warps, uint64_t *found) {
    enum { BINS = 1 << BITS, EACH = BINS / CUDA_THREADS };
    uint64_t n[EACH];
    cuda_hist_clear<BINS>(hist);
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) cuda_digit_count<SHIFT, BITS>(hist, x[q].phi, *t, 32 * q < room);
    __syncthreads();
    CUDA_UNROLL
    for (uint32_t i = 0; i < EACH; i++) n[i] = hist[cuda_top_bin<BINS>() - i];
    const cuda_bin b = cuda_bin_pick<BINS>(n, *left, warps, found);
    *t = *t << BITS | b.bin, *left = b.left;
}
template <typename M>
__global__ void __launch_bounds__(CUDA_THREADS, M::BLOCKS) select_small(cuda_parts all, cuda_picks want, M m) {
    __shared__ uint32_t hist[2048], warps[CUDA_WARPS];
    __shared__ uint64_t sums[CUDA_WARPS], found[2];
    const cuda_job j = cuda_job_of(&all, &want);
    const uint64_t first = cuda_tile_first(0);
    const uint32_t room = cuda_tile_room(j.count, first);
    typename M::item x[CUDA_TILE_EACH];
    uint32_t any = 0, t = 0;
    uint64_t left = j.k;
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
        x[q] = 32 * q < room ? m.load(&all, j.p, first + 32 * q) : typename M::item{};
        any |= dense_nonfinite(x[q].phi);
    }
    const int bad = __syncthreads_or((int)(any >> 31));
    if (threadIdx.x == 0) cuda_write_header_if(j.p, want.codec, want.wire, bad, sparse_body_bytes(j.count, j.k), j.k);
    if (bad || !j.k) return;
    cuda_small_digit<20, 11>(x, room, &t, &left, hist, sums, found);
    cuda_small_digit<9, 11>(x, room, &t, &left, hist, sums, found);
    cuda_small_digit<0, 9>(x, room, &t, &left, hist, sums, found);
    const cuda_tile_plan plan = {0, UINT32_MAX, (uint32_t)left};
    if (threadIdx.x == 0) cuda_put((uint32_t *)(void *)(cuda_body(j.p) + 4 * j.k), (uint32_t)j.k);
    cuda_send_tile(&j, m, first, x, cuda_taken(&plan, t, room, x, warps), 0, warps);
}

/* ---- for codecs -------------------------------------------------------------------------------------------------- */
/* The M of most codecs: phi is gradient plus residual, and the residual becomes 0 where an element was sent, and phi
 * elsewhere. */
typedef struct cuda_select_phi {
    typedef struct item {
        float phi;
    } item;
    enum { BLOCKS = 3 };
    uint32_t unused;
    __device__ item load(const cuda_parts *all, const cuda_part *p, uint64_t i) const { return {cuda_phi(all, p, i)}; }
    __device__ int keeps(const cuda_part *p) const { return p->e != NULL; }
    __device__ void keep(const cuda_part *p, uint64_t i, const item &x, int sent) const {
        cuda_put(p->e + i, sent ? 0.0f : x.phi);
    }
} cuda_select_phi;
static inline uint64_t cuda_select_scratch(uint64_t count, uint64_t k) {
    return cuda_select_layout(count, k).bytes - CUDA_FLAGS;
}
/* Compresses a list of tensors. k_of(count) is how many elements of a tensor of `count` elements are sent. */
template <typename M, typename K>
static esp_status cuda_select_compress(const esp_host *h, const char *codec, uint32_t wire, const esp_codec_args *a,
                                       const M &m, K k_of) {
    uint64_t stride = 0;
    int small = 1;
    (void)cuda_scratch_of(a, 0, &stride);
    for (uint32_t t = 0; t < a->n_tensors; t++) small &= a->tensor[t]->count <= CUDA_TILE;
    for (uint32_t t = 0; t < a->n_tensors; t++)
        if (stride < cuda_select_layout(a->tensor[t]->count, k_of(a->tensor[t]->count)).bytes)
            return esp_codec_fail(h, codec, ESP_E_ARG, "scratch memory is less than bound() requires");
    return cuda_each_part(
        h, codec, a, [&](uint64_t n) { return sparse_body_bytes(n, k_of(n)); },
        [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
            const dim3 tiles = cuda_grid(c, longest, CUDA_TILE, parts.n);
            cuda_picks want;
            int sampled = 0;
            memset(&want, 0, sizeof want);
            want.codec = esp_name_hash(codec), want.wire = wire;
            for (uint32_t i = 0; i < parts.n; i++) {
                const uint64_t n = parts.part[i].count;
                want.k[i] = k_of(n);
                sampled |= cuda_select_cap(n, want.k[i]) < n;
            }
            if (small) return cuda_launch(c, "small", cuda_kernel<select_small<M>>, dim3(1, parts.n), parts, want, m);
            if (sampled)
                cuda_launch(
                    c, "sample", select_sample_kernel<M>,
                    cuda_grid(c, longest / 4 < CUDA_SAMPLE ? longest / 4 : CUDA_SAMPLE, 4 * CUDA_THREADS, parts.n),
                    parts, want, m);
            cuda_launch(c, "filter", cuda_kernel<select_filter<M>>, tiles, parts, want, m);
            if (sampled) cuda_launch(c, "first digit", select_digit_kernel<M, 0, 20, 11>, tiles, parts, want, m);
            cuda_launch(c, "second digit", select_digit_kernel<M, 1, 9, 11>, tiles, parts, want, m);
            cuda_launch(c, "third digit", select_digit_kernel<M, 2, 0, 9>, tiles, parts, want, m);
            cuda_launch(c, "count", cuda_kernel<select_count<M>>, cuda_grid(c, longest, SELECT_SPAN, parts.n), parts,
                        want, m);
            cuda_launch(c, "write", cuda_kernel<select_write<M>>, tiles, parts, want, m);
        },
        small ? 0 : (uint64_t)CUDA_SELECT_ZERO);
}
#endif
