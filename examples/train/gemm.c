/* gemm.c: a matrix product in plain C, so fast that a training step waits for the link and not for arithmetic. */
#include "model.h"
#include "../train/parallel.h"
#include <string.h>

/* A tile of MR x NR sums fits the registers, and a panel of KC x NR numbers of b fits the cache. A thread computes ROWS
 * rows with a panel. Below LEAST multiplications, starting threads would take longer than the product. */
enum { MR = 6, NR = 16, KC = 256, ROWS = 40 * MR, LEAST = 1 << 15 };

/* Defines NAME for an instruction set, which computes sum[i][j] += a_i[p * a_col] * panel[p][j] over all p. Vectors of
 * LANES numbers must fit the registers: gcc keeps larger ones in memory, which takes 8 times as long. */
#define TILE(name, LANES, TARGET)                                                                                      \
    TARGET static void name(size_t k, const float *const a[MR], size_t a_col, const float *panel, float *sum) {        \
        typedef float row __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));                 \
        row s[MR][NR / LANES];                                                                                         \
        memset(s, 0, sizeof s);                                                                                        \
        for (size_t p = 0; p < k; p++) {                                                                               \
            const row *b = (const row *)(panel + p * NR);                                                              \
            for (size_t i = 0; i < MR; i++)                                                                            \
                for (size_t h = 0; h < NR / LANES; h++) s[i][h] += a[i][p * a_col] * b[h];                             \
        }                                                                                                              \
        memcpy(sum, s, sizeof s);                                                                                      \
    }
#if defined(__x86_64__) && defined(__GNUC__)
#define TARGET(set) __attribute__((target(set)))
TILE(tile_avx512, 16, TARGET("avx512f"))
TILE(tile_avx2, 8, TARGET("avx2"))
TILE(tile_plain, 4, )
#define tile (__builtin_cpu_supports("avx512f") ? tile_avx512 : __builtin_cpu_supports("avx2") ? tile_avx2 : tile_plain)
#else
TILE(tile, 4, )
#endif

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Computes columns [j0, j0 + nr) of rows [first, end) of c. Each element is added in the same order in every run. */
static void gemm_part(size_t first, size_t end, size_t j0, size_t nr, size_t k, const float *a, size_t a_row,
                      size_t a_col, const float *b, size_t b_row, size_t b_col, float *c, size_t c_row) {
    float panel[KC * NR] = {0}, sum[MR * NR];
    for (size_t p0 = 0; p0 < k; p0 += KC) {
        const size_t kc = least(KC, k - p0);
        for (size_t p = 0; p < kc; p++)
            for (size_t j = 0; j < nr; j++) panel[p * NR + j] = b[(p0 + p) * b_row + (j0 + j) * b_col];
        for (size_t i0 = first; i0 < end; i0 += MR) {
            const float *rows[MR]; /* rows past the end repeat the last one, unused */
            for (size_t i = 0; i < MR; i++) rows[i] = a + least(i0 + i, end - 1) * a_row + p0 * a_col;
            tile(kc, rows, a_col, panel, sum);
            for (size_t i = 0; i < least(MR, end - i0); i++)
                for (size_t j = 0; j < nr; j++) c[(i0 + i) * c_row + j0 + j] += sum[i * NR + j];
        }
    }
}

void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row) {
    const size_t columns = (n + NR - 1) / NR, slices = (m + ROWS - 1) / ROWS;
    PARALLEL_IF(m * n * k > LEAST)
    for (size_t x = 0; x < columns * slices; x++) {
        const size_t j0 = x % columns * NR, first = x / columns * ROWS;
        gemm_part(first, least(first + ROWS, m), j0, least(NR, n - j0), k, a, a_row, a_col, b, b_row, b_col, c, c_row);
    }
}
