/* lowrank.h: matrix products for codec powersgd on CUDA, which approximates an m x n matrix phi by a product P Q of
 * an m x r and an r x n matrix with small r. Sums are added in the same order as in codecs/lowrank/lowrank.h, so that
 * results have the same bits as on the CPU. All threads of a block call these functions. */
#ifndef ESP_CUDA_LOWRANK_H
#define ESP_CUDA_LOWRANK_H
#include "codecs/cuda/common/codec.h"
#include "codecs/lowrank/lowrank.h"

enum {
    CUDA_LOWRANK_WIDE = 1024,
    CUDA_LOWRANK_TILE = 4 * CUDA_LOWRANK_WIDE + 64, /* numbers in such a tile */
    CUDA_LOWRANK_SIDE = 64,
    CUDA_LOWRANK_ROWS = 32,
    CUDA_LOWRANK_PIECE = 1024,
    CUDA_LOWRANK_MAKERS = CUDA_THREADS - 32,
    CUDA_LOWRANK_ROOM = 2 * CUDA_LOWRANK_PIECE + 4
};

typedef struct cuda_lowrank {
    const float *g, *e;
    float beta, gamma;
    uint64_t m, n, r;
} cuda_lowrank;

static __device__ __forceinline__ float cuda_lowrank_phi(const cuda_lowrank *x, uint64_t i) {
    const float g = cuda_get(x->g + i);
    return x->e ? x->beta * cuda_get(x->e + i) + x->gamma * g : g;
}
/* Loads a tile of `rows` rows of `width` numbers: tile[row * pitch + column] = phi[top + row][left + column]. */
static __device__ __forceinline__ void cuda_lowrank_load(const cuda_lowrank *x, uint64_t top, uint64_t left,
                                                         uint32_t rows, uint32_t width, uint32_t pitch, float *tile) {
    for (uint32_t at = threadIdx.x; at < rows * width; at += 8 * CUDA_THREADS) {
        float v[8];
        CUDA_UNROLL
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t i = at + k * CUDA_THREADS, row = i / width;
            v[k] = i < rows * width ? cuda_lowrank_phi(x, (top + row) * x->n + left + (i - row * width)) : 0;
        }
        CUDA_UNROLL
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t i = at + k * CUDA_THREADS, row = i / width;
            if (i < rows * width) tile[row * pitch + (i - row * width)] = v[k];
        }
    }
}

/* ---- phi Q ------------------------------------------------------------------------------------------------------- */
/* Returns the distance between rows of a tile, an odd multiple of 16 numbers, so that a warp, which reads 16 numbers of
 * two rows, uses different banks of shared memory. */
ESP_ELEMENT uint32_t cuda_lowrank_pitch(uint64_t n) {
    return ((uint32_t)((n < CUDA_LOWRANK_WIDE ? n : CUDA_LOWRANK_WIDE) + 15) / 16 | 1u) * 16;
}
ESP_ELEMENT uint32_t cuda_lowrank_rows(uint64_t n) { return 4 * ((CUDA_LOWRANK_WIDE + 16) / cuda_lowrank_pitch(n)); }
/* Computes P = phi Q. q holds r rows of n numbers, p receives m rows of r. Bit 31 of the result is set if a sum of
 * this thread is NaN or Inf. `tile` is shared memory for CUDA_LOWRANK_TILE numbers. */
template <int K>
static __device__ __forceinline__ uint32_t cuda_lowrank_p(const cuda_lowrank *x, const float *q, float *p,
                                                          float *tile) {
    const uint32_t pitch = cuda_lowrank_pitch(x->n), rows = cuda_lowrank_rows(x->n);
    const uint32_t lane = threadIdx.x % 16, own = threadIdx.x / 16 % 4, k0 = threadIdx.x / 64;
    uint32_t any = 0;
    for (uint64_t top = (uint64_t)blockIdx.x * rows; top < x->m; top += (uint64_t)gridDim.x * rows) {
        const uint32_t have = x->m - top < rows ? (uint32_t)(x->m - top) : rows;
        float sum[K] = {};
        for (uint64_t left = 0; left < x->n; left += CUDA_LOWRANK_WIDE) {
            const uint32_t width =
                x->n - left < CUDA_LOWRANK_WIDE ? (uint32_t)(x->n - left) : (uint32_t)CUDA_LOWRANK_WIDE;
            __syncthreads(); /* the last tile is no longer read */
            cuda_lowrank_load(x, top, left, have, width, pitch, tile);
            __syncthreads();
            for (uint32_t four = 0; four < have; four += 4) {
                const float *row = tile + (four + own) * pitch;
                CUDA_UNROLL
                for (int i = 0; i < K; i++) sum[i] = left ? sum[i] : 0;
                for (uint32_t j = lane; four + own < have && j < width; j += 16) {
                    CUDA_UNROLL
                    for (int i = 0; i < K; i++)
                        if (k0 + 4 * (uint32_t)i < x->r)
                            sum[i] += row[j] * cuda_get(q + (k0 + 4 * (uint32_t)i) * x->n + left + j);
                }
                if (left + width < x->n) continue;
                CUDA_UNROLL
                for (int i = 0; i < K; i++) {
                    float s = sum[i];
                    for (int by = 8; by; by /= 2) s += __shfl_xor_sync(0xFFFFFFFFu, s, by);
                    if (lane || four + own >= have || k0 + 4 * (uint32_t)i >= x->r) continue;
                    any |= dense_nonfinite(s);
                    cuda_put(p + (top + four + own) * x->r + k0 + 4 * (uint32_t)i, s);
                }
            }
        }
    }
    return any;
}

/* ---- phi^T P ----------------------------------------------------------------------------------------------------- */
/* Multiplies the transpose of phi by P, separately for up to LOWRANK_SUMS ranges of phi's rows. Each range gives r x
 * n numbers in `sums`, which cuda_lowrank_combine adds. tile and ps are shared memory for CUDA_LOWRANK_SIDE squared
 * numbers each. */
template <int K>
static __device__ __forceinline__ void cuda_lowrank_qt(const cuda_lowrank *x, const float *p, float *sums, float *tile,
                                                       float *ps) {
    enum { SIDE = CUDA_LOWRANK_SIDE };
    const uint64_t n_sums = lowrank_n_sums(x->m), each = (x->m + n_sums - 1) / n_sums, wide = (x->n + SIDE - 1) / SIDE;
    const uint32_t r = (uint32_t)x->r, column = threadIdx.x % SIDE, k0 = threadIdx.x / SIDE;
    for (uint64_t task = blockIdx.x; task < n_sums * wide; task += gridDim.x) {
        const uint64_t s = task / wide, left = task % wide * SIDE;
        const uint64_t end = (s + 1) * each < x->m ? (s + 1) * each : x->m;
        const uint32_t width = x->n - left < SIDE ? (uint32_t)(x->n - left) : (uint32_t)SIDE;
        float sum[K];
        CUDA_UNROLL
        for (int i = 0; i < K; i++) sum[i] = 0;
        for (uint64_t top = s * each; top < end; top += SIDE) {
            const uint32_t rows = end - top < SIDE ? (uint32_t)(end - top) : (uint32_t)SIDE;
            __syncthreads();
            cuda_lowrank_load(x, top, left, rows, width, SIDE, tile);
            for (uint32_t i = threadIdx.x; i < rows * r; i += CUDA_THREADS) ps[i] = cuda_get(p + top * r + i);
            __syncthreads();
            for (uint32_t row = 0; column < width && row < rows; row++) {
                const float v = tile[row * SIDE + column];
                CUDA_UNROLL
                for (int i = 0; i < K; i++)
                    if (k0 + 4 * (uint32_t)i < r) sum[i] += ps[row * r + k0 + 4 * (uint32_t)i] * v;
            }
        }
        CUDA_UNROLL
        for (int i = 0; i < K; i++) {
            const uint32_t k = k0 + 4 * (uint32_t)i;
            if (column < width && k < r) cuda_put(sums + (s * r + k) * x->n + left + column, sum[i]);
        }
    }
}
static __device__ __forceinline__ uint32_t cuda_lowrank_combine(const float *sums, uint64_t m, uint64_t n, uint64_t r,
                                                                float *out) {
    const uint32_t n_sums = (uint32_t)lowrank_n_sums(m);
    uint32_t any = 0;
    for (uint64_t i = cuda_thread(); i < n * r; i += cuda_threads()) {
        float v[LOWRANK_SUMS];
        CUDA_UNROLL
        for (uint32_t s = 0; s < LOWRANK_SUMS; s++) v[s] = s < n_sums ? cuda_get(sums + s * n * r + i) : 0;
        CUDA_UNROLL
        for (uint32_t s = 1; s < LOWRANK_SUMS; s++)
            if (s < n_sums) v[0] += v[s];
        any |= dense_nonfinite(v[0]);
        cuda_put(out + i, v[0]);
    }
    return any;
}

/* ---- P Q --------------------------------------------------------------------------------------------------------- */
/* Divides an m x n matrix into tiles of 32 x 64 numbers, and calls use(row, column, rows, p) in every thread for one
 * column and up to 8 rows of a tile. p points to these rows of P, copied to `ps`, which is shared memory. */
template <typename Use>
static __device__ __forceinline__ void cuda_lowrank_tiles(uint64_t m, uint64_t n, uint32_t r, const float *p, float *ps,
                                                          Use use) {
    enum { ROWS = CUDA_LOWRANK_ROWS, EACH = ROWS / 4 };
    const uint64_t wide = (n + 63) / 64, high = (m + ROWS - 1) / ROWS;
    const uint32_t own = threadIdx.x / 64 * EACH;
    for (uint64_t task = blockIdx.x; task < wide * high; task += gridDim.x) {
        const uint64_t top = task / wide * ROWS, column = task % wide * 64 + threadIdx.x % 64;
        const uint32_t rows = m - top < ROWS ? (uint32_t)(m - top) : (uint32_t)ROWS;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < ROWS * r; i += CUDA_THREADS)
            ps[i] = i < rows * r ? cuda_get(p + top * r + i) : 0;
        __syncthreads();
        if (column < n && own < rows)
            use(top + own, column, rows - own < EACH ? rows - own : (uint32_t)EACH, ps + own * r);
    }
}
/* Computes y[i] = row i of ps times the column of Q that q points to, for 8 rows. Rows of ps have r numbers, rows of
 * Q have n. */
static __device__ __forceinline__ void cuda_lowrank_rows_of(const float *ps, const float *q, uint64_t n, uint32_t r,
                                                            float y[8]) {
    const float first = cuda_get(q);
    CUDA_UNROLL
    for (uint32_t i = 0; i < 8; i++) y[i] = ps[i * r] * first;
    for (uint32_t k = 1; k < r; k++) {
        const float v = cuda_get(q + k * n);
        CUDA_UNROLL
        for (uint32_t i = 0; i < 8; i++) y[i] += ps[i * r + k] * v;
    }
}

/* ---- an orthonormal basis ---------------------------------------------------------------------------------------- */
/* Returns value(0) + ... + value(n - 1), rounded as on the CPU, which keeps 4 partial sums: number i is added to
 * partial sum i % 4 if i < even, and to partial sum 0 otherwise. Four threads add while the other warps compute the
 * next values. `room` is shared memory for CUDA_LOWRANK_ROOM numbers. */
template <typename Value>
static __device__ __forceinline__ double cuda_lowrank_sum(uint64_t n, uint64_t even, double *room, Value value) {
    enum { PIECE = CUDA_LOWRANK_PIECE };
    const uint64_t pieces = (n + PIECE - 1) / PIECE;
    double sum = 0;
    for (uint64_t c = 0; c <= pieces; c++) { /* computes piece c while adding piece c - 1 */
        const uint64_t done = (c - 1) * PIECE;
        if (c < pieces && threadIdx.x >= 32)
            for (uint64_t i = threadIdx.x - 32; i < PIECE && c * PIECE + i < n; i += CUDA_LOWRANK_MAKERS)
                room[c % 2 * PIECE + i] = value(c * PIECE + i);
        if (c && threadIdx.x < 4) {
            const double *v = room + (c - 1) % 2 * PIECE;
            const uint32_t all = n - done < PIECE ? (uint32_t)(n - done) : (uint32_t)PIECE;
            const uint32_t fours = even < done ? 0 : even - done < all ? (uint32_t)(even - done) : all;
            uint32_t i = threadIdx.x;
            for (; i + 28 < fours; i += 32) {
                double next[8];
                CUDA_UNROLL
                for (int k = 0; k < 8; k++) next[k] = v[i + 4 * k];
                CUDA_UNROLL
                for (int k = 0; k < 8; k++) sum += next[k];
            }
            for (; i < fours; i += 4) sum += v[i];
            for (i = fours; threadIdx.x == 0 && i < all; i++) sum += v[i];
        }
        __syncthreads();
    }
    if (threadIdx.x < 4) room[2 * PIECE + threadIdx.x] = sum;
    __syncthreads();
    return (room[2 * PIECE] + room[2 * PIECE + 2]) + (room[2 * PIECE + 1] + room[2 * PIECE + 3]);
}
template <typename Value>
static __device__ __forceinline__ double cuda_lowrank_inner(uint64_t n, double *room, Value value) {
    return cuda_lowrank_sum(n, n / 4 * 4, room, value);
}
static __device__ __forceinline__ double cuda_lowrank_length(const float *q, uint64_t n, double *room) {
    return sqrt(cuda_lowrank_sum(n, n, room, [&](uint64_t i) {
        const double x = (double)cuda_get(q + i);
        return x * x;
    }));
}
/* Writes an orthonormal basis of the r columns of the m x r matrix p to `out`, with the same bits as
 * lowrank_orthonormal on the CPU. One block computes it. `columns` has room for r columns of m numbers. */
static __device__ __forceinline__ void cuda_lowrank_orthonormal(const float *p, uint64_t m, uint64_t r, double *columns,
                                                                float *out, double *room) {
    for (uint64_t k = 0; k < r; k++) {
        double *a = columns + k * m, share = 0;
        const double *taken = NULL; /* the next pass subtracts share * taken from a */
        const auto rest = [&](uint64_t i) {
            double x = a[i];
            if (!taken) return x;
            x -= share * taken[i];
            a[i] = x;
            return x;
        };
        const double before = cuda_lowrank_inner(m, room, [&](uint64_t i) {
            const double x = (double)cuda_get(p + i * r + k);
            a[i] = x;
            return x * x;
        });
        for (uint64_t j = 0; j < 2 * k; j++) {
            const double *b = columns + j % k * m;
            const double d = cuda_lowrank_inner(m, room, [&](uint64_t i) { return rest(i) * b[i]; });
            share = d, taken = b;
        }
        const double now = cuda_lowrank_inner(m, room, [&](uint64_t i) {
            const double x = rest(i);
            return x * x;
        });
        const double scale = lowrank_scale(before, now);
        for (uint64_t top = 0; threadIdx.x >= 32 && top < m; top += CUDA_LOWRANK_PIECE)
            for (uint64_t i = threadIdx.x - 32; i < CUDA_LOWRANK_PIECE && top + i < m; i += CUDA_LOWRANK_MAKERS) {
                a[top + i] *= scale;
                cuda_put(out + (top + i) * r + k, (float)a[top + i]);
            }
    }
}
#endif
