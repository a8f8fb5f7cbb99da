/* blocks.h: kernels for codecs that send a code of 1 to 8 bits for each element (codecs/common/blocks.h). A warp
 * processes 1024 elements: 32 rows, in each of which a thread has one element. A block of the codec has 1, 2, 4, ... or
 * 32 rows. Thread k computes the heads and the scale of the block that row k is in.
 * A struct F describes the codec. CUDA_BLOCKS_OF and CUDA_BLOCKS_REST define what most codecs have in common:
 *     enum { HEADS, NOISE };          numbers for each block; are there random numbers?
 *     void heads(const float phi[CUDA_ROWS], cuda_rows r, float head[2]) const;
 *                                     sets the heads of this thread's block; all threads of a warp call it
 *     blocks_scale scale(const float head[2]) const;
 *     float input(const cuda_part *p, uint64_t i, float phi) const;       what code() gets
 *     uint32_t code(float x, uint32_t noise, const blocks_scale &h) const;
 *     float value(uint32_t code, const blocks_scale &h) const;
 *     float decoded(uint32_t code, const float head[2], float scale) const;
 *     uint64_t place(uint64_t i) const;                                   where element i's code is
 *     int head_ok(uint32_t bits) const; */
#ifndef ESP_CUDA_BLOCKS_H
#define ESP_CUDA_BLOCKS_H
#include "codecs/cuda/common/dense.h"
#include "codecs/common/blocks.h"

enum { CUDA_ROWS = 32, CUDA_ROWS_ALL = 32 * CUDA_ROWS };
static_assert((int)CUDA_ROWS_ALL == (int)DENSE_BLOCK, "a warp has the largest block");

/* Rows of a block, and how many elements the warp has. Those of phi behind them are 0. */
typedef struct cuda_rows {
    uint32_t rows, left;
} cuda_rows;
/* Returns the number of elements of this thread's block. */
static __device__ __forceinline__ uint32_t cuda_rows_n(cuda_rows r) {
    const uint32_t own = (cuda_lane() & ~(r.rows - 1)) * 32;
    return own >= r.left ? 0 : min(r.left - own, 32 * r.rows);
}

/* For codecs without code() of their own: NAME_round() and NAME_value(). */
#define CUDA_BLOCKS_OF(name)                                                                                           \
    CUDA_BLOCKS_REST                                                                                                   \
    __device__ uint32_t code(float x, uint32_t noise, const blocks_scale &h) const {                                   \
        uint32_t own;                                                                                                  \
        (void)name##_round(x, noise, h, &own);                                                                         \
        return own;                                                                                                    \
    }                                                                                                                  \
    __device__ float value(uint32_t code, const blocks_scale &h) const { return name##_value(code, h); }
#define CUDA_BLOCKS_PLAIN                                                                                              \
    __device__ float input(const cuda_part *, uint64_t, float phi) const { return phi; }                               \
    __device__ uint64_t place(uint64_t i) const { return i; }
#define CUDA_BLOCKS_REST                                                                                               \
    CUDA_BLOCKS_PLAIN                                                                                                  \
    __device__ int head_ok(uint32_t bits) const { return !dense_bad(bits_float(bits)); }                               \
    __device__ float decoded(uint32_t code, const float *head, float by) const { return by * value(code, scale(head)); }

/* ---- what heads() may use: all threads of a warp call these ------------------------------------------------------ */
static __device__ __forceinline__ uint32_t cuda_magnitude(float x) { return float_bits(x) & 0x7FFFFFFFu; }

/* One step of cuda_rows_all: threads with bit `by` of their number go on with `high`, the others with `low`. */
template <typename T, typename F>
static __device__ __forceinline__ T cuda_rows_pair(T low, T high, uint32_t by, F combine) {
    const T other = __shfl_xor_sync(0xFFFFFFFFu, cuda_lane() & by ? low : high, (int)by);
    return combine(cuda_lane() & by ? high : low, other);
}
/* Combines get(k) over all threads, for each row k, and the results over the rows of a block. */
template <typename T, typename Get, typename F>
static __device__ __forceinline__ T cuda_rows_all(cuda_rows r, Get get, F combine) {
    T x[CUDA_ROWS / 2];
    CUDA_UNROLL
    for (uint32_t k = 0; k < CUDA_ROWS / 2; k++)
        x[k] = cuda_rows_pair<T>(get(k), get(k + CUDA_ROWS / 2), CUDA_ROWS / 2, combine);
    CUDA_UNROLL
    for (uint32_t half = CUDA_ROWS / 4; half; half /= 2) {
        CUDA_UNROLL
        for (uint32_t k = 0; k < CUDA_ROWS / 4; k++)
            if (k < half) x[k] = cuda_rows_pair<T>(x[k], x[k + half], half, combine);
    }
    for (uint32_t by = 1; by < r.rows; by *= 2) x[0] = combine(x[0], __shfl_xor_sync(0xFFFFFFFFu, x[0], (int)by));
    return x[0];
}
/* Returns the block's largest magnitude, as blocks_tops() does. */
static __device__ __forceinline__ float cuda_rows_top(const float phi[CUDA_ROWS], cuda_rows r) {
    return blocks_top_of(cuda_rows_all<uint32_t>(
        r, [&](uint32_t k) { return cuda_magnitude(phi[k]); }, [](uint32_t a, uint32_t b) { return max(a, b); }));
}
/* Adds get(k) over the rows and threads of a block, in the order of blocks_square(). */
template <typename Get> static __device__ __forceinline__ float cuda_rows_sum(cuda_rows r, Get get) {
    float sum = 0, mine = 0;
    CUDA_UNROLL
    for (uint32_t k = 0; k < CUDA_ROWS; k++) {
        const float x = get(k), next = __shfl_down_sync(0xFFFFFFFFu, x, BLOCKS_LANES);
        sum += x; /* in threads from 16 on, numbers that nobody uses */
        sum += next;
        if ((k + 1) % r.rows) continue; /* in all threads alike */
        for (int by = BLOCKS_LANES / 2; by; by /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, by);
        sum = __shfl_sync(0xFFFFFFFFu, sum, 0);
        if ((cuda_lane() ^ k) < r.rows) mine = sum;
        sum = 0;
    }
    return mine;
}
/* Returns the sum of the squares of phi / top. Each thread has its own block's `top`. */
static __device__ __forceinline__ float cuda_rows_squares(const float phi[CUDA_ROWS], cuda_rows r, float top) {
    const float inverse = 1 / top;
    return cuda_rows_sum(r, [&](uint32_t k) {
        const float x = phi[k] * __shfl_sync(0xFFFFFFFFu, inverse, (int)k);
        return x * x;
    });
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
/* Shared memory of a warp: a byte for each code, and the random numbers of esp_rng_u16(). */
template <int NOISE> struct cuda_blocks_room {
    uint64_t codes[CUDA_ROWS_ALL / 8];
    uint32_t noise[NOISE ? (CUDA_ROWS_ALL / 8 + 1) * 4 : 1];
};
/* Draws the numbers for the elements from number `first` of the whole tensor on. */
static __device__ __forceinline__ void cuda_blocks_noise(uint32_t *noise, uint64_t key, uint64_t first) {
    for (uint32_t g = cuda_lane(); g <= CUDA_ROWS_ALL / 8; g += 32) {
        const esp_philox_t r = esp_philox(key, first / 8 + g, 0);
        CUDA_UNROLL
        for (int w = 0; w < 4; w++) noise[4 * g + w] = r.w[w];
    }
}
/* Writes codes of one byte each as codes of `bits` bits, to `left` bytes at most. */
static __device__ __forceinline__ void cuda_blocks_pack(unsigned char *out, const uint64_t *codes, uint32_t bits,
                                                        uint64_t left) {
    for (uint32_t g = cuda_lane(); g < CUDA_ROWS_ALL / 8 && g * bits < left; g += 32) {
        const uint64_t all = codes[g];
        unsigned char *to = out + g * bits;
        uint64_t word = 0;
        CUDA_UNROLL
        for (uint32_t j = 0; j < 8; j++) word |= (all >> 8 * j & 0xFFu) << j * bits;
        if (bits % 4 == 0 && (g + 1) * bits <= left)
            for (uint32_t b = 0; b < bits; b += 4) cuda_put((uint32_t *)(void *)(to + b), (uint32_t)(word >> 8 * b));
        else
            for (uint32_t b = 0; b < bits && g * bits + b < left; b++) cuda_put(to + b, (unsigned char)(word >> 8 * b));
    }
}
template <typename F>
__global__ void __launch_bounds__(CUDA_THREADS, 2) cuda_blocks_encode(cuda_parts all, F f, cuda_dense_end end) {
    __shared__ cuda_blocks_room<F::NOISE> rooms[CUDA_THREADS / 32];
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_dense_skip(&all, p, end)) return;
    cuda_blocks_room<F::NOISE> *own = &rooms[threadIdx.x / 32];
    unsigned char *codes = cuda_body(p) + cuda_dense_heads(&end, p->count);
    const uint64_t bytes = cuda_dense_codes(&end, p->count);
    uint32_t any = 0;
    for (uint64_t at = cuda_warp() * CUDA_ROWS_ALL; at < p->count; at += cuda_warps() * CUDA_ROWS_ALL) {
        float phi[CUDA_ROWS], head[BLOCKS_HEADS] = {0, 0};
        const uint64_t first = at + cuda_lane();
        const cuda_rows r = {end.block / 32, (uint32_t)min(p->count - at, (uint64_t)CUDA_ROWS_ALL)};
        const uint32_t room = r.left - min(r.left, cuda_lane());
        CUDA_UNROLL
        for (uint32_t k = 0; k < CUDA_ROWS; k++) phi[k] = 32 * k < room ? cuda_phi(&all, p, first + 32 * k) : 0;
        if constexpr (F::NOISE > 0) cuda_blocks_noise(own->noise, p->key, p->first + at);
        if constexpr (F::HEADS > 0) {
            f.heads(phi, r, head);
            float *to = (float *)(void *)cuda_body(p) + (at / 32 + cuda_lane()) / r.rows * F::HEADS;
            if (cuda_lane() % r.rows == 0 && cuda_rows_n(r))
                for (int q = 0; q < F::HEADS; q++) cuda_put(to + q, head[q]);
        }
        const blocks_scale mine = f.scale(head);
        __syncwarp();
        CUDA_UNROLL
        for (uint32_t k = 0; k < CUDA_ROWS; k++) {
            const uint64_t i = first + 32 * k;
            const uint16_t *noise = (const uint16_t *)(const void *)own->noise + (p->first + at) % 8;
            blocks_scale h = mine;
            if constexpr (F::HEADS > 0) {
                h.a = __shfl_sync(0xFFFFFFFFu, mine.a, (int)k);
                h.b = __shfl_sync(0xFFFFFFFFu, mine.b, (int)k);
                h.c = __shfl_sync(0xFFFFFFFFu, mine.c, (int)k);
            }
            any |= dense_nonfinite(phi[k]);
            uint32_t code = 0;
            if (32 * k < room) {
                code = f.code(f.input(p, i, phi[k]), F::NOISE ? noise[32 * k + cuda_lane()] : 0, h);
                if (p->e) cuda_put(p->e + i, phi[k] - f.value(code, h));
            }
            ((unsigned char *)own->codes)[f.place(32 * k + cuda_lane())] = (unsigned char)code;
        }
        __syncwarp();
        cuda_blocks_pack(codes + at / 8 * end.bits, own->codes, end.bits, bytes - at / 8 * end.bits);
    }
    cuda_dense_finish(p, end, any >> 31 != 0);
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
template <typename F> struct cuda_blocks_format {
    enum { BODIES = 1 };
    uint32_t codec, wire, nan_body, shift;
    cuda_dense_end end;
    F f;
    __device__ int header_ok(const cuda_header *h, const cuda_sum *) const {
        return !cuda_dense_plain(h) || h->aux == end.aux;
    }
    /* Heads are checked, and that the bits behind the last code are 0. */
    __host__ __device__ uint64_t pieces(uint64_t count) const { return cuda_dense_heads(&end, count) / 4 + 1; }
    __device__ int piece_ok(const unsigned char *body, uint64_t count, uint64_t piece) const {
        const uint64_t heads = cuda_dense_heads(&end, count), bytes = cuda_dense_codes(&end, count);
        if (piece < heads / 4) return f.head_ok(cuda_get((const uint32_t *)(const void *)body + piece));
        uint32_t behind = 0;
        for (uint64_t i = count; i * end.bits < 8 * bytes; i++) behind |= code(body + heads, bytes, i);
        return behind == 0;
    }
    __device__ __forceinline__ uint32_t code(const unsigned char *codes, uint64_t bytes, uint64_t i) const {
        const uint64_t at = f.place(i) * end.bits;
        const uint32_t low = (uint32_t)at % 8;
        uint32_t x = cuda_get_same(codes + at / 8, 8 / end.bits) >> low;
        if (low + end.bits > 8 && at / 8 + 1 < bytes) x |= (uint32_t)codes[at / 8 + 1] << (8 - low);
        return x & ((1u << end.bits) - 1);
    }
    __device__ float value(const cuda_header *h, const unsigned char *body, uint64_t i, float scale) const {
        float head[BLOCKS_HEADS] = {0, 0};
        const float *heads = (const float *)(const void *)body + (i >> shift) * F::HEADS;
        CUDA_UNROLL
        for (int q = 0; q < F::HEADS; q++) head[q] = cuda_get_same(heads + q);
        const unsigned char *codes = body + (F::HEADS > 0 ? (((h->count - 1) >> shift) + 1) * F::HEADS * 4 : 0);
        return f.decoded(code(codes, UINT64_MAX, i), head, scale);
    }
};

/* ---- for codecs -------------------------------------------------------------------------------------------------- */
template <typename F>
static esp_status cuda_blocks_compress(const esp_host *h, const char *name, const esp_codec_args *a,
                                       const cuda_dense_end &end, const F &f) {
    const auto encode = [&](cuda_call *c, const cuda_parts &parts, dim3 grid) {
        cuda_parts keyed = parts;
        for (uint32_t i = 0; F::NOISE && i < parts.n; i++)
            keyed.part[i].key = esp_rng_key(a->seed, a->step, parts.part[i].key, a->comp_index, a->source);
        cuda_launch(c, "codes", cuda_kernel<cuda_blocks_encode<F>>, grid, keyed, f, end);
    };
    return cuda_dense_compress_by(h, name, a, end, 32 * CUDA_THREADS, encode);
}
template <typename F>
static esp_status cuda_blocks_decompress(const esp_host *h, const char *name, const esp_codec_args *a,
                                         const cuda_dense_end &end, const F &f) {
    const cuda_blocks_format<F> format = {end.codec, end.wire, 0, (uint32_t)__builtin_ctz(end.block), end, f};
    return cuda_dense_decompress(h, name, a, cuda_dense_size(end), format);
}
static inline cuda_dense_end cuda_blocks_end(const blocks_self *s) {
    return {esp_name_hash(s->format->name), 1, 0, 0, 0, s->bits, 1, s->format->heads, (uint32_t)s->block};
}
template <typename F>
static esp_status cuda_blocks_compress(const blocks_self *s, const esp_codec_args *a, const F &f) {
    return cuda_blocks_compress(s->dense.host, s->format->name, a, cuda_blocks_end(s), f);
}
template <typename F>
static esp_status cuda_blocks_decompress(const blocks_self *s, const esp_codec_args *a, const F &f) {
    return cuda_blocks_decompress(s->dense.host, s->format->name, a, cuda_blocks_end(s), f);
}
/* Defines the CUDA implementation of a codec of codecs/common/blocks.h. of(self) returns its struct F. The optional
 * last argument is that of CUDA_CODEC. */
#define CUDA_BLOCKS_CODEC(name, of, ...)                                                                               \
    static esp_status name##_cuda_compress(void *self, const esp_codec_args *a) {                                      \
        return cuda_blocks_compress((const blocks_self *)self, a, of((const blocks_self *)self));                      \
    }                                                                                                                  \
    static esp_status name##_cuda_decompress(void *self, const esp_codec_args *a) {                                    \
        return cuda_blocks_decompress((const blocks_self *)self, a, of((const blocks_self *)self));                    \
    }                                                                                                                  \
    CUDA_CODEC(name, name##_codec, cuda_no_scratch, name##_cuda_compress, name##_cuda_decompress, __VA_ARGS__)
#endif
