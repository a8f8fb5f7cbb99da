/* gemm.c: one matrix product in plain C, fast enough that a step waits for the link and not for arithmetic.
 * Knows nothing of layers. */
#include "model.h"
#include <string.h>

enum { MR = 6, NR = 16, KC = 256 }; /* a tile of MR x NR sums stays in registers, a panel of KC x NR of b in cache */
typedef float row __attribute__((vector_size(NR * sizeof(float)), aligned(sizeof(float))));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GEMM_KERNEL __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define GEMM_KERNEL
#endif

/* sum[i][j] = over p of a_i[p * a_col] * panel[p][j]. */
GEMM_KERNEL static void tile(size_t k, const float *const a[MR], size_t a_col, const float *panel, float *sum) {
    row s[MR];
    memset(s, 0, sizeof s);
    for (size_t p = 0; p < k; p++) {
        const row b = *(const row *)(panel + p * NR);
#pragma GCC unroll 6
        for (size_t i = 0; i < MR; i++) s[i] += a[i][p * a_col] * b;
    }
    memcpy(sum, s, sizeof s);
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row) {
    float panel[KC * NR] = {0}, sum[MR * NR];
    for (size_t p0 = 0; p0 < k; p0 += KC)
        for (size_t j0 = 0; j0 < n; j0 += NR) {
            const size_t kc = least(KC, k - p0), nr = least(NR, n - j0);
            for (size_t p = 0; p < kc; p++)
                for (size_t j = 0; j < nr; j++) panel[p * NR + j] = b[(p0 + p) * b_row + (j0 + j) * b_col];
            for (size_t i0 = 0; i0 < m; i0 += MR) {
                const float *rows[MR]; /* past the last row: the last one again; these sums are dropped */
                for (size_t i = 0; i < MR; i++) rows[i] = a + least(i0 + i, m - 1) * a_row + p0 * a_col;
                tile(kc, rows, a_col, panel, sum);
                for (size_t i = 0; i < least(MR, m - i0); i++)
                    for (size_t j = 0; j < nr; j++) c[(i0 + i) * c_row + j0 + j] += sum[i * NR + j];
            }
        }
}
