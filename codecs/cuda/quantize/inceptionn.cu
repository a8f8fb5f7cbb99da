/* inceptionn.cu: codec "inceptionn" on CUDA; its formulas are in codecs/quantize/inceptionn.c. A warp processes a block
 * of 1024 elements: 32 rows, in each of which a thread has one element. */
#include "codecs/cuda/common/serial.h"
#include "codecs/quantize/inceptionn.c"

enum { INCEPTIONN_ROWS = INCEPTIONN_BLOCK / 32 };

/* The elements of width 1, 2 and 3 among 32, as bits. */
typedef struct inceptionn_row {
    uint32_t width[3];
} inceptionn_row;
static __device__ __forceinline__ inceptionn_row inceptionn_row_of(uint32_t low, uint32_t high) {
    return {{low & ~high, high & ~low, low & high}};
}
/* Where the next elements of each width are. */
typedef struct inceptionn_places {
    uint64_t at[3];
} inceptionn_places;
/* Sums n[w] over the threads of a warp, and returns where the elements of each width begin in a block. */
static __device__ __forceinline__ inceptionn_places inceptionn_begin_of(uint64_t at, const uint32_t n[3],
                                                                        uint64_t *end) {
    uint32_t all[3];
    CUDA_UNROLL
    for (int w = 0; w < 3; w++) all[w] = cuda_warp_all(n[w], [](uint32_t a, uint32_t b) { return a + b; });
    *end = at + all[0] + 2 * all[1] + 4 * all[2];
    return {{at, at + all[0], at + all[0] + 2 * all[1]}};
}
/* Returns where this thread's element of width w + 1 is, and moves on by a row. */
static __device__ __forceinline__ uint64_t inceptionn_next(inceptionn_places *p, const inceptionn_row &r,
                                                           uint32_t width) {
    uint64_t at = 0;
    CUDA_UNROLL
    for (uint32_t w = 0; w < 3; w++) {
        if (w + 1 == width) at = p->at[w] + ((uint64_t)__popc(r.width[w] & cuda_lanes_before()) << w);
        p->at[w] += (uint64_t)__popc(r.width[w]) << w;
    }
    return at;
}

typedef struct inceptionn_cuda {
    enum { BLOCK = INCEPTIONN_BLOCK };
    uint32_t codec;
    float unit, inverse;
    __device__ uint64_t first(uint64_t count) const { return inceptionn_first(count); }
    __device__ uint32_t width(float phi) const {
        uint16_t width, code;
        (void)inceptionn_one(&width, &code, NULL, phi, unit, inverse);
        return width;
    }
    __device__ int head_ok(const cuda_segment &) const { return 1; }
    /* Returns the widths of 32 elements, of which thread k has those of row k, as lower and upper bits. */
    __device__ uint2 row(const cuda_segment &s, uint64_t at, uint64_t len) const {
        const uint64_t first = at + 32 * cuda_lane(), left = 32 * cuda_lane() < len ? len - 32 * cuda_lane() : 0;
        const unsigned char *widths = s.body + inceptionn_widths(s.count) + first / 4;
        uint2 bits = {0, 0};
        CUDA_UNROLL
        for (uint32_t i = 0; i < 32; i += 4) {
            const uint32_t four = i < left ? cuda_get(widths + i / 4) : 0;
            CUDA_UNROLL
            for (uint32_t k = 0; k < 4; k++)
                if (i + k < left)
                    bits.x |= (four >> 2 * k & 1) << (i + k), bits.y |= (four >> (2 * k + 1) & 1) << (i + k);
        }
        return bits;
    }
    /* Calls use(element, width, where) for all elements of a segment, whose sizes are checked before. */
    template <typename Use> __device__ int each(const cuda_segment &s, uint32_t *shared, Use use) const {
        enum { EACH = (int)SERIAL_SEGMENT / (int)CUDA_WARPS };
        uint64_t *end = (uint64_t *)(void *)shared, at = s.begin, all = s.begin;
        uint2 bits[EACH];
        uint32_t n[EACH][3];
        CUDA_UNROLL
        for (uint32_t q = 0; q < EACH; q++) {
            const uint64_t from = (threadIdx.x / 32 * EACH + q) * BLOCK,
                           len = from < s.n ? min(s.n - from, (uint64_t)BLOCK) : 0;
            bits[q] = row(s, s.at + from, len);
            const inceptionn_row r = inceptionn_row_of(bits[q].x, bits[q].y);
            uint64_t size;
            for (int w = 0; w < 3; w++) n[q][w] = (uint32_t)__popc(r.width[w]);
            (void)inceptionn_begin_of(0, n[q], &size);
            if (cuda_lane() == 0) end[threadIdx.x / 32 * EACH + q] = size;
        }
        __syncthreads();
        for (uint32_t b = 0; b < SERIAL_SEGMENT; b++) {
            if (b < threadIdx.x / 32 * EACH) at += end[b];
            all += end[b];
        }
        if (all != s.end) return 0;
        CUDA_UNROLL
        for (uint32_t q = 0; q < EACH; q++) {
            const uint64_t from = (threadIdx.x / 32 * EACH + q) * BLOCK;
            inceptionn_places p = inceptionn_begin_of(at, n[q], &at);
            for (uint32_t k = 0; k < INCEPTIONN_ROWS; k++) {
                const uint32_t low = __shfl_sync(0xFFFFFFFFu, bits[q].x, (int)k);
                const uint32_t high = __shfl_sync(0xFFFFFFFFu, bits[q].y, (int)k);
                const uint32_t width = (low >> cuda_lane() & 1u) | (high >> cuda_lane() & 1u) << 1;
                const uint64_t e = from + 32 * k + cuda_lane();
                const uint64_t where = inceptionn_next(&p, inceptionn_row_of(low, high), width);
                if (e < s.n) use(e, width, where);
            }
        }
        return 1;
    }
    static __device__ uint32_t bytes(const unsigned char *from, uint32_t n) {
        uint32_t x = 0;
        for (uint32_t i = 0; i < n; i++) x |= (uint32_t)cuda_get(from + i) << 8 * i;
        return x;
    }
    __device__ int ok(const cuda_segment &s, uint32_t *shared) const {
        int bad = 0;
        const int sizes = each(s, shared, [&](uint64_t, uint32_t width, uint64_t where) {
            if (width == 3) bad |= dense_bad(bits_float(bytes(s.body + where, 4)));
        });
        return sizes && !bad;
    }
    __device__ void add(const cuda_segment &s, float *out, float scale, int set, uint32_t *shared) const {
        (void)each(s, shared, [&](uint64_t e, uint32_t width, uint64_t where) {
            const uint32_t x = bytes(s.body + where, width ? 1u << (width - 1) : 0);
            const float v = width == 3   ? bits_float(x)
                            : width == 1 ? inceptionn_value(inceptionn_code(x), unit)
                                         : inceptionn_value(x, unit);
            cuda_serial_put(out + e, v * scale, set);
        });
    }
} inceptionn_cuda;

static __global__ void __launch_bounds__(CUDA_THREADS) inceptionn_sizes(cuda_parts all, inceptionn_cuda f) {
    const cuda_part *p = &all.part[blockIdx.y];
    uint32_t any = 0;
    for (uint64_t at = cuda_warp() * INCEPTIONN_BLOCK; at < p->count; at += cuda_warps() * INCEPTIONN_BLOCK) {
        uint32_t size = 0;
        CUDA_UNROLL_BY(8)
        for (uint32_t k = 0; k < INCEPTIONN_ROWS; k++) {
            const uint64_t i = at + 32 * k + cuda_lane();
            const float phi = i < p->count ? cuda_phi(&all, p, i) : 0;
            any |= dense_nonfinite(phi);
            size += 1u << f.width(phi) >> 1;
        }
        size = cuda_warp_all(size, [](uint32_t a, uint32_t b) { return a + b; });
        if (cuda_lane() == 0) cuda_put(cuda_serial_at(p) + at / INCEPTIONN_BLOCK, (uint64_t)size);
    }
    cuda_serial_end(p, f, any >> 31 != 0);
}
static __global__ void __launch_bounds__(CUDA_THREADS) inceptionn_write(cuda_parts all, inceptionn_cuda f) {
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_get(&cuda_flags_of(p)->bad)) return;
    for (uint64_t at = cuda_warp() * INCEPTIONN_BLOCK; at < p->count; at += cuda_warps() * INCEPTIONN_BLOCK) {
        float phi[INCEPTIONN_ROWS];
        uint32_t n[3] = {0, 0, 0};
        uint64_t end;
        CUDA_UNROLL
        for (uint32_t k = 0; k < INCEPTIONN_ROWS; k++) {
            const uint64_t i = at + 32 * k + cuda_lane();
            phi[k] = i < p->count ? cuda_phi(&all, p, i) : 0;
        }
        CUDA_UNROLL
        for (uint32_t k = 0; k < INCEPTIONN_ROWS; k++) {
            const uint32_t width = f.width(phi[k]);
            for (uint32_t w = 0; w < 3; w++) n[w] += width == w + 1;
        }
        inceptionn_places places =
            inceptionn_begin_of(cuda_get_same(cuda_serial_at(p) + at / INCEPTIONN_BLOCK), n, &end);
        CUDA_UNROLL
        for (uint32_t k = 0; k < INCEPTIONN_ROWS; k++) {
            const uint64_t first = at + 32 * k, i = first + cuda_lane();
            uint16_t width, code;
            float e;
            (void)inceptionn_one(&width, &code, &e, phi[k], f.unit, f.inverse);
            const uint32_t low = __ballot_sync(0xFFFFFFFFu, width & 1u), high = __ballot_sync(0xFFFFFFFFu, width & 2u);
            const uint64_t where = inceptionn_next(&places, inceptionn_row_of(low, high), width);
            const uint32_t x = width == 1 ? inceptionn_byte(code) : width == 2 ? code : float_bits(phi[k]);
            for (uint32_t b = 0; width && b < 1u << (width - 1); b++)
                cuda_put(cuda_body(p) + where + b, (unsigned char)(x >> 8 * b));
            if (cuda_lane() < 8 && first + 4 * cuda_lane() < p->count) {
                uint32_t four = 0;
                for (uint32_t b = 0; b < 4; b++)
                    four |= ((low >> (4 * cuda_lane() + b) & 1u) | (high >> (4 * cuda_lane() + b) & 1u) << 1) << 2 * b;
                cuda_put(cuda_body(p) + inceptionn_widths(p->count) + first / 4 + cuda_lane(), (unsigned char)four);
            }
            if (p->e && i < p->count) cuda_put(p->e + i, e);
        }
    }
}

static uint64_t inceptionn_cuda_scratch(const void *, const esp_tensor *like) {
    return 8 * serial_blocks(INCEPTIONN_BLOCK, like->count);
}
static inceptionn_cuda inceptionn_cuda_of(const void *self) {
    const inceptionn_self *s = (const inceptionn_self *)self;
    return {esp_name_hash("inceptionn"), s->unit, s->inverse};
}
static esp_status inceptionn_cuda_compress(void *self, const esp_codec_args *a) {
    const inceptionn_cuda f = inceptionn_cuda_of(self);
    return cuda_serial_compress((const serial_self *)self, a,
                                [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
                                    const dim3 grid = cuda_grid(c, longest, 32 * CUDA_THREADS, parts.n);
                                    cuda_launch(c, "sizes", cuda_kernel<inceptionn_sizes>, grid, parts, f);
                                    cuda_launch(c, "write", cuda_kernel<inceptionn_write>, grid, parts, f);
                                });
}
static esp_status inceptionn_cuda_decompress(void *self, const esp_codec_args *a) {
    return cuda_serial_decompress((const serial_self *)self, a, inceptionn_cuda_of(self));
}
CUDA_CODEC(inceptionn, inceptionn_codec, inceptionn_cuda_scratch, inceptionn_cuda_compress, inceptionn_cuda_decompress)
