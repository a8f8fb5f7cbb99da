/* adaptive.cu: codec "adaptive" on CUDA; its formulas are in codecs/hybrid/adaptive.c, decompression is in
 * adaptive_add.h. Three kernels find the thresholds of both groups, 11, 11 and 9 bits at a time; the fourth counts what
 * each tile (4096 elements) sends, and adds the means; the fifth writes places and the residual. */
#include "codecs/cuda/common/select.h"
#include "codecs/cuda/common/sparse.h"
#include "codecs/hybrid/adaptive.c"
#include "codecs/cuda/hybrid/adaptive_add.h"

/* A group: its elements, those that are sent, of which `left` have the magnitude t (bits), and their sum. */
typedef struct adaptive_group {
    uint64_t n, k, left, sum;
    uint32_t top, t;
} adaptive_group;
/* State of a tensor, in scratch memory after the flags. The first kernel finds it zeroed. */
enum { ADAPTIVE_BINS = 2048 };
typedef struct adaptive_state {
    uint32_t done[4];
    adaptive_group group[2];
    uint64_t hist[2 * ADAPTIVE_BINS];
} adaptive_state;
/* Elements above the threshold, and equal to it. Both become: elements sent before the tile; ties that the tile sends
 */
typedef struct adaptive_tile {
    uint64_t at[2];
    uint32_t ties[2];
} adaptive_tile;
static __device__ __forceinline__ adaptive_state *adaptive_state_of(const cuda_part *p) {
    return (adaptive_state *)(void *)(p->scratch + CUDA_FLAGS);
}
static __device__ __forceinline__ adaptive_tile *adaptive_tiles(const cuda_part *p) {
    return (adaptive_tile *)(void *)(adaptive_state_of(p) + 1);
}
static __device__ __forceinline__ int adaptive_in(float x, uint32_t group) { return group ? x < 0 : x > 0; }

/* ---- thresholds -------------------------------------------------------------------------------------------------- */
template <int STEP, int SHIFT, int BITS>
static __global__ void __launch_bounds__(CUDA_THREADS) adaptive_digit(cuda_parts all, double ratio) {
    __shared__ uint32_t hist[2 * ADAPTIVE_BINS];
    __shared__ uint64_t warps[CUDA_WARPS], found[2];
    const cuda_part *p = &all.part[blockIdx.y];
    adaptive_state *s = adaptive_state_of(p);
    uint32_t any = 0, top[2] = {0, 0}, n[2] = {0, 0}, t[2] = {0, 0};
    if (STEP && cuda_get_same(&cuda_flags_of(p)->bad)) return;
    CUDA_UNROLL
    for (int g = 0; STEP && g < 2; g++) t[g] = cuda_get_same(&s->group[g].t);
    cuda_hist_clear<2 * ADAPTIVE_BINS>(hist);
    for (uint64_t tile = blockIdx.x; tile < cuda_tiles(p->count); tile += gridDim.x) {
        float x[CUDA_TILE_EACH];
        cuda_tile_phi(&all, p, tile, x);
        CUDA_UNROLL
        for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
            const uint32_t minus = x[q] < 0, b = select_bits(x[q]), in = adaptive_in(x[q], minus);
            any |= dense_nonfinite(x[q]);
            CUDA_UNROLL
            for (uint32_t g = 0; STEP == 0 && g < 2; g++)
                if (in && minus == g) n[g]++, top[g] = max(top[g], b);
            cuda_hist_count(hist, minus * ADAPTIVE_BINS + (b >> SHIFT & ((1u << BITS) - 1)),
                            in && (STEP == 0 || b >> SHIFT >> BITS == (minus ? t[1] : t[0])));
        }
    }
    cuda_hist_flush<2 * ADAPTIVE_BINS>(s->hist, hist);
    CUDA_UNROLL
    for (int g = 0; STEP == 0 && g < 2; g++) {
        if (n[g]) cuda_add64(&s->group[g].n, n[g]);
        if (n[g]) atomicMax(&s->group[g].top, top[g]);
    }
    if (STEP == 0 && any >> 31) atomicOr(&cuda_flags_of(p)->bad, 1u);
    if (!cuda_last(&s->done[STEP])) return;
    for (int g = 0; g < 2; g++) {
        const uint64_t k = STEP ? s->group[g].k : sparse_k(ratio, cuda_fresh(&s->group[g].n));
        const uint64_t left = STEP ? s->group[g].left : k;
        if (!k) continue;
        const cuda_bin b = cuda_hist_pick<1 << BITS>(s->hist + g * ADAPTIVE_BINS, left, warps, found);
        if (threadIdx.x == 0)
            s->group[g].k = k, s->group[g].left = b.left, s->group[g].t = (g ? t[1] : t[0]) << BITS | b.bin;
    }
}
template <int STEP, int SHIFT, int BITS>
inline const auto adaptive_digit_kernel = cuda_add_kernel(adaptive_digit<STEP, SHIFT, BITS>);

/* ---- count ------------------------------------------------------------------------------------------------------- */
/* The last block computes where each tile's elements go, how many each span has, and the mean. One half of `warps`
 * changes only behind the other's barrier. */
static __device__ __forceinline__ void adaptive_count_end(const cuda_part *p, uint32_t g, uint64_t *warps) {
    const adaptive_group *own = &adaptive_state_of(p)->group[g];
    const uint64_t spans = sparse_spans(p->count), tiles = cuda_tiles(p->count), quota = own->left;
    uint32_t *held = (uint32_t *)(void *)(cuda_body(p) + ADAPTIVE_MEANS) + g * spans;
    uint64_t above = 0, ties = 0, total[2];
    for (uint64_t i = 0; i < spans; i += CUDA_THREADS, above += total[0], ties += total[1]) {
        const uint64_t span = i + threadIdx.x, first = span * CUDA_SPAN_TILES;
        adaptive_tile *tile = adaptive_tiles(p) + first;
        uint64_t gt = 0, eq = 0;
        for (int q = 0; q < CUDA_SPAN_TILES && first + q < tiles; q++)
            gt += cuda_fresh(&tile[q].at[g]), eq += cuda_fresh(&tile[q].ties[g]);
        uint64_t a = above + cuda_block_before(gt, warps, &total[0]);
        uint64_t e = ties + cuda_block_before(eq, warps + CUDA_WARPS, &total[1]);
        if (span < spans) cuda_put(held + span, (uint32_t)(gt + min(e + eq, quota) - min(e, quota)));
        for (int q = 0; q < CUDA_SPAN_TILES && first + q < tiles; q++) {
            const uint64_t n = cuda_fresh(&tile[q].at[g]), same = cuda_fresh(&tile[q].ties[g]);
            cuda_put(&tile[q].at[g], a + min(e, quota));
            cuda_put(&tile[q].ties[g], (uint32_t)(min(e + same, quota) - min(e, quota)));
            a += n, e += same;
        }
    }
    if (threadIdx.x || !p->count) return;
    const int32_t unit = fixed_unit(own->top, own->k);
    const int64_t same = fixed_of(bits_float(own->t | g << 31), unit) * (int64_t)quota;
    cuda_put((float *)(void *)cuda_body(p) + g, fixed_mean((int64_t)cuda_fresh(&own->sum) + same, own->k, unit));
}
static __global__ void __launch_bounds__(CUDA_THREADS) adaptive_count_kernel(cuda_parts all, uint32_t codec) {
    __shared__ uint32_t warps[CUDA_WARPS];
    __shared__ uint64_t sums[2 * CUDA_WARPS];
    const cuda_part *p = &all.part[blockIdx.y];
    adaptive_state *s = adaptive_state_of(p);
    if (cuda_get_same(&cuda_flags_of(p)->bad)) {
        if (cuda_thread() == 0) cuda_write_header_if(p, codec, 1, 1, 0, 0);
        return;
    }
    for (uint64_t tile = blockIdx.x; tile < cuda_tiles(p->count); tile += gridDim.x) {
        float x[CUDA_TILE_EACH];
        cuda_tile_phi(&all, p, tile, x);
        for (uint32_t g = 0; g < 2; g++) {
            const uint32_t t = cuda_get_same(&s->group[g].t);
            const uint64_t k = cuda_get_same(&s->group[g].k);
            const int32_t unit = fixed_unit(cuda_get_same(&s->group[g].top), k);
            uint32_t n = 0, total;
            uint64_t sum = 0;
            CUDA_UNROLL
            for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
                const int in = k && adaptive_in(x[q], g);
                if (in && select_bits(x[q]) > t) n++, sum += (uint64_t)fixed_of(x[q], unit);
                if (in && select_bits(x[q]) == t) n += 1u << 16;
            }
            n = cuda_warp_all(n, [](uint32_t a, uint32_t b) { return a + b; });
            sum = cuda_warp_all(sum, [](uint64_t a, uint64_t b) { return a + b; });
            if (cuda_lane() == 0 && sum) cuda_add64(&s->group[g].sum, sum);
            cuda_warps_before(n, warps, &total);
            if (threadIdx.x) continue;
            cuda_put(&adaptive_tiles(p)[tile].at[g], (uint64_t)(total & 0xFFFFu));
            cuda_put(&adaptive_tiles(p)[tile].ties[g], total >> 16);
        }
    }
    if (!cuda_last(&s->done[3])) return;
    const uint64_t k[2] = {s->group[0].k, s->group[1].k};
    for (uint32_t g = 0; g < 2; g++) adaptive_count_end(p, g, sums);
    if (threadIdx.x == 0) cuda_write_header(p, codec, 1, 0, adaptive_body(p->count, k), 0);
}

/* ---- write ------------------------------------------------------------------------------------------------------- */
/* Writes the places of a tile's sent elements, and returns these, bit q for x[q]. */
static __device__ __forceinline__ uint32_t adaptive_send(const cuda_part *p, uint64_t tile, uint32_t g, const float *x,
                                                         uint32_t *warps) {
    const adaptive_state *s = adaptive_state_of(p);
    const uint64_t first = cuda_tile_first(tile), k = cuda_get_same(&s->group[g].k);
    const uint32_t room = __shfl_sync(0xFFFFFFFFu, cuda_tile_room(p->count, first), 0),
                   t = cuda_get_same(&s->group[g].t);
    const uint32_t quota = cuda_get_same(&adaptive_tiles(p)[tile].ties[g]);
    const int map = sparse_is_map(p->count, k);
    uint16_t *place = (uint16_t *)(void *)(cuda_body(p) + ADAPTIVE_MEANS + 8 * sparse_spans(p->count));
    uint32_t taken = 0, ties = 0, total;
    if (!k) return 0; /* all threads alike */
    if (g) place += adaptive_place_bytes(p->count, cuda_get_same(&s->group[0].k)) / 2;
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
        const int in = adaptive_in(x[q], g);
        taken |= (uint32_t)(in && select_bits(x[q]) > t) << q;
        ties |= (uint32_t)(in && select_bits(x[q]) == t) << q;
    }
    uint32_t rank = cuda_warps_before(cuda_warp_bits(ties), warps, &total);
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
        const uint32_t in = __ballot_sync(0xFFFFFFFFu, ties >> q & 1u);
        taken |= (uint32_t)((ties >> q & 1u) && rank + (uint32_t)__popc(in & cuda_lanes_before()) < quota) << q;
        rank += (uint32_t)__popc(in);
    }
    uint64_t to = cuda_get_same(&adaptive_tiles(p)[tile].at[g]);
    to += cuda_warps_before(cuda_warp_bits(taken), warps, &total);
    CUDA_UNROLL
    for (uint32_t q = 0; q < CUDA_TILE_EACH; q++) {
        const uint32_t in = __ballot_sync(0xFFFFFFFFu, taken >> q & 1u);
        if (map && cuda_lane() < 2 && 32 * q < room) /* a word of the bitmap, by halves */
            cuda_put(place + first / 32 * 2 + 2 * q + cuda_lane(), (uint16_t)(in >> 16 * cuda_lane()));
        if (!map && taken >> q & 1u)
            cuda_put(place + to + __popc(in & cuda_lanes_before()), (uint16_t)(first + 32 * q));
        to += (uint64_t)__popc(in);
    }
    return taken;
}
static __global__ void __launch_bounds__(CUDA_THREADS) adaptive_write_kernel(cuda_parts all) {
    __shared__ uint32_t warps[CUDA_WARPS];
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_get_same(&cuda_flags_of(p)->bad)) return;
    for (uint64_t tile = blockIdx.x; tile < cuda_tiles(p->count); tile += gridDim.x) {
        const float *mean = (const float *)(const void *)cuda_body(p);
        float x[CUDA_TILE_EACH];
        cuda_tile_phi(&all, p, tile, x);
        uint32_t above = 0, below = 0; /* not an array: its index would put it in memory */
        CUDA_UNROLL_BY(1)
        for (uint32_t g = 0; g < 2; g++) {
            const uint32_t sent = adaptive_send(p, tile, g, x, warps);
            if (g)
                below = sent;
            else
                above = sent;
        }
        const float up = cuda_get_same(mean), down = cuda_get_same(mean + 1);
        CUDA_UNROLL
        for (uint32_t q = 0; q < CUDA_TILE_EACH; q++)
            if (p->e && cuda_tile_at(tile, (int)q) < p->count)
                cuda_put(p->e + cuda_tile_at(tile, (int)q), above >> q & 1u   ? x[q] - up
                                                            : below >> q & 1u ? x[q] - down
                                                                              : x[q]);
    }
}

static uint64_t adaptive_cuda_scratch(const void *, const esp_tensor *like) {
    return sizeof(adaptive_state) + sizeof(adaptive_tile) * cuda_tiles(like->count);
}
static esp_status adaptive_cuda_compress(void *self, const esp_codec_args *a) {
    const adaptive_self *t = (const adaptive_self *)self;
    const uint32_t codec = esp_name_hash(adaptive_name);
    return cuda_each_part(
        t->dense.host, adaptive_name, a, [&](uint64_t n) { return adaptive_most(t, n); },
        [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
            const dim3 grid = cuda_grid(c, longest, CUDA_TILE, parts.n);
            cuda_launch(c, "first digit", adaptive_digit_kernel<0, 20, 11>, grid, parts, t->ratio);
            cuda_launch(c, "second digit", adaptive_digit_kernel<1, 9, 11>, grid, parts, t->ratio);
            cuda_launch(c, "third digit", adaptive_digit_kernel<2, 0, 9>, grid, parts, t->ratio);
            cuda_launch(c, "count", cuda_kernel<adaptive_count_kernel>, grid, parts, codec);
            cuda_launch(c, "write", cuda_kernel<adaptive_write_kernel>, grid, parts);
        },
        CUDA_FLAGS + sizeof(adaptive_state));
}
static esp_status adaptive_cuda_decompress(void *self, const esp_codec_args *a) {
    return cuda_each_sum(((const dense_self *)self)->host, adaptive_name, a, [](uint64_t) { return (uint64_t)0; },
                         [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
                             cuda_launch(c, "check payloads", cuda_kernel<adaptive_check_kernel>,
                                         cuda_grid(c, longest, 16384, sums.n), sums, esp_name_hash(adaptive_name));
                         },
                         [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
                             cuda_launch(c, "add", cuda_kernel<adaptive_add_kernel>,
                                         cuda_grid(c, longest, SELECT_SPAN, sums.n), sums);
                         });
}
CUDA_CODEC(adaptive, adaptive_codec, adaptive_cuda_scratch, adaptive_cuda_compress, adaptive_cuda_decompress)
