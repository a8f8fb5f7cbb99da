/* lowrank.h: matrix products for codec powersgd. phi = beta residual + gamma gradient is an m x n matrix, row-major,
 * computed when needed and never stored; P is m x r, row-major; Q is n x r, stored transposed. The products are phi
 * Q, phi^T P and phi - P Q^T. Every sum has one fixed order of additions, so results do not depend on threads and
 * instruction sets. BLAS does not guarantee that, and up to r = 4 it is slower (bench/results/micro/matrix.csv). */
#ifndef ESP_LOWRANK_H
#define ESP_LOWRANK_H
#include "codecs/common/norm.h"

enum {
    LOWRANK_BLOCK = 1024, /* columns that a kernel processes at a time */
    LOWRANK_ROWS = 256,
    LOWRANK_SUMS = 16,      /* most partial sums */
    LOWRANK_GRAIN = 1 << 15 /* least elements in a worker's task */
};
typedef float lowrank_lanes[NORM_LANES]; /* partial sums: number j of a row is added to sum j % 16 */

/* ---- kernels: one block of columns ------------------------------------------------------------------------------- */
/* Defines lowrank_dot for an instruction set: adds x[j] * q[k][j] to acc[k], for r columns k of Q. V must fit a
 * register: gcc keeps larger vectors in memory. */
typedef float lowrank_v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float lowrank_v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float lowrank_v16 __attribute__((vector_size(64), aligned(4), may_alias));
#define LOWRANK_DOT(TARGET, level, V)                                                                                  \
    ESP_INLINE void lowrank_dots_##level(const float *x, const float *q, uint64_t ld, uint64_t n, lowrank_lanes *acc,  \
                                         const int K) {                                                                \
        enum { EACH = sizeof(V) / sizeof(float), PARTS = NORM_LANES / EACH };                                          \
        V s[4][PARTS];                                                                                                 \
        uint64_t j = 0;                                                                                                \
        for (int k = 0; k < K; k++)                                                                                    \
            for (int h = 0; h < PARTS; h++) s[k][h] = *(const V *)(acc[k] + h * EACH);                                 \
        for (; j + NORM_LANES <= n; j += NORM_LANES)                                                                   \
            for (int k = 0; k < K; k++)                                                                                \
                for (int h = 0; h < PARTS; h++)                                                                        \
                    s[k][h] += *(const V *)(x + j + h * EACH) * *(const V *)(q + (uint64_t)k * ld + j + h * EACH);     \
        for (int k = 0; k < K; k++)                                                                                    \
            for (int h = 0; h < PARTS; h++) *(V *)(acc[k] + h * EACH) = s[k][h];                                       \
        for (int k = 0; k < K; k++)                                                                                    \
            for (uint64_t i = j; i < n; i++) acc[k][i - j] += x[i] * q[(uint64_t)k * ld + i];                          \
    }                                                                                                                  \
    TARGET static uint64_t lowrank_dot_##level(const float *x, const float *q, uint64_t ld, uint64_t n,                \
                                               lowrank_lanes *acc, uint64_t r) {                                       \
        uint64_t k = 0;                                                                                                \
        for (; k + 4 <= r; k += 4) lowrank_dots_##level(x, q + k * ld, ld, n, acc + k, 4);                             \
        if (r - k == 3) lowrank_dots_##level(x, q + k * ld, ld, n, acc + k, 3);                                        \
        if (r - k == 2) lowrank_dots_##level(x, q + k * ld, ld, n, acc + k, 2);                                        \
        if (r - k == 1) lowrank_dots_##level(x, q + k * ld, ld, n, acc + k, 1);                                        \
        return 0;                                                                                                      \
    }
LOWRANK_DOT(ESP_TARGET_SCALAR, scalar, lowrank_v4)
#ifdef ESP_SIMD_X86
LOWRANK_DOT(ESP_TARGET_AVX2, avx2, lowrank_v8)
LOWRANK_DOT(ESP_TARGET_AVX512, avx512, lowrank_v16)
#endif
ESP_KERNEL_PICK(lowrank_dot)

/* Adds p[row][k] * x[row][j] to sum[k][j] for up to 4 rows. Rows of x are ldx numbers apart. */
ESP_INLINE void lowrank_add_rows(float *restrict sum, uint64_t ld, const float *x, uint64_t ldx, const float *p,
                                 uint64_t n, uint64_t r, const int rows) {
    for (uint64_t k = 0; k < r; k++) {
        float *restrict s = sum + k * ld;
        float c[4];
        for (int i = 0; i < rows; i++) c[i] = p[(uint64_t)i * r + k];
        for (uint64_t j = 0; j < n; j++) {
            float a = s[j];
            for (int i = 0; i < rows; i++) a += c[i] * x[(uint64_t)i * ldx + j];
            s[j] = a;
        }
    }
}
ESP_INLINE uint64_t lowrank_add_body(float *restrict sum, uint64_t ld, const float *x, uint64_t ldx, const float *p,
                                     uint64_t n, uint64_t r, uint64_t rows) {
    if (rows == 4)
        lowrank_add_rows(sum, ld, x, ldx, p, n, r, 4);
    else
        for (uint64_t i = 0; i < rows; i++) lowrank_add_rows(sum, ld, x + i * ldx, ldx, p + i * r, n, r, 1);
    return 0;
}
ESP_KERNEL(lowrank_add,
           (float *restrict sum, uint64_t ld, const float *x, uint64_t ldx, const float *p, uint64_t n, uint64_t r,
            uint64_t rows),
           (sum, ld, x, ldx, p, n, r, rows))

/* Returns number j of a row of P Q: p[0] q[0][j] + p[1] q[1][j] + ..., added in that order, of K terms. If `y` is not
 * NULL, they are added to y[j]. */
ESP_INLINE float lowrank_row(const float *y, const float *p, const dense_f32 *q, uint64_t ld, uint64_t j, const int K) {
    float sum = y ? y[j] + p[0] * q[j] : p[0] * q[j];
    for (int k = 1; k < K; k++) sum += p[k] * q[(uint64_t)k * ld + j];
    return sum;
}
/* Stores n numbers of a row of P Q, of r terms each, at y. */
ESP_INLINE void lowrank_row_long(float *y, const float *p, const dense_f32 *q, uint64_t ld, uint64_t n, uint64_t r) {
    uint64_t k = 4;
    for (uint64_t j = 0; j < n; j++) y[j] = lowrank_row(NULL, p, q, ld, j, 4);
    for (; k + 4 <= r; k += 4)
        for (uint64_t j = 0; j < n; j++) y[j] = lowrank_row(y, p + k, q + k * ld, ld, j, 4);
    for (; k < r; k++)
        for (uint64_t j = 0; j < n; j++) y[j] = lowrank_row(y, p + k, q + k * ld, ld, j, 1);
}
/* Calls DO(j, y) for each of n columns j, where y is number j of a row of P Q. */
#define LOWRANK_ROW(K, DO)                                                                                             \
    for (uint64_t j = 0; j < n; j++) {                                                                                 \
        const float y = lowrank_row(NULL, p, q, ld, j, K);                                                             \
        DO;                                                                                                            \
    }
#define LOWRANK_ROWS_OF(DO)                                                                                            \
    if (r == 1) {                                                                                                      \
        LOWRANK_ROW(1, DO)                                                                                             \
    } else if (r == 2) {                                                                                               \
        LOWRANK_ROW(2, DO)                                                                                             \
    } else if (r == 3) {                                                                                               \
        LOWRANK_ROW(3, DO)                                                                                             \
    } else if (r == 4) {                                                                                               \
        LOWRANK_ROW(4, DO)                                                                                             \
    } else {                                                                                                           \
        float ys[LOWRANK_BLOCK];                                                                                       \
        for (uint64_t at = 0; at < n; at += LOWRANK_BLOCK) {                                                           \
            const uint64_t end = n - at < LOWRANK_BLOCK ? n : at + LOWRANK_BLOCK;                                      \
            lowrank_row_long(ys, p, q + at, ld, end - at, r);                                                          \
            for (uint64_t j = at; j < end; j++) {                                                                      \
                const float y = ys[j - at];                                                                            \
                DO;                                                                                                    \
            }                                                                                                          \
        }                                                                                                              \
    }
ESP_INLINE uint64_t lowrank_rest_body(float *restrict e, const float *g, float beta, float gamma, const float *p,
                                      const dense_f32 *q, uint64_t ld, uint64_t n, uint64_t r) {
    LOWRANK_ROWS_OF(e[j] = beta * e[j] + gamma * g[j] - y)
    return 0;
}
ESP_KERNEL(lowrank_rest,
           (float *restrict e, const float *g, float beta, float gamma, const float *p, const dense_f32 *q, uint64_t ld,
            uint64_t n, uint64_t r),
           (e, g, beta, gamma, p, q, ld, n, r))
ESP_INLINE uint64_t lowrank_put_body(float *restrict out, int set, float scale, const float *p, const dense_f32 *q,
                                     uint64_t ld, uint64_t n, uint64_t r) {
    if (set) {
        LOWRANK_ROWS_OF(out[j] = scale * y)
    } else {
        LOWRANK_ROWS_OF(out[j] += scale * y)
    }
    return 0;
}
ESP_KERNEL(lowrank_put,
           (float *restrict out, int set, float scale, const float *p, const dense_f32 *q, uint64_t ld, uint64_t n,
            uint64_t r),
           (out, set, scale, p, q, ld, n, r))

/* ---- whole products ---------------------------------------------------------------------------------------------- */
/* A product of matrices phi, p and q: each function uses only the members that it needs. */
typedef struct lowrank_job {
    const dense_self *self;
    uint64_t m, n, r;
    const float *g, *e; /* gradient; residual, or NULL */
    float beta, gamma;
    float *p;
    const float *q;
    float *sums; /* [n_sums][r][n] */
    uint64_t n_sums, rows_each;
    float *out;
    float scale;
    bool set;
} lowrank_job;

static inline void lowrank_run(const lowrank_job *l, uint64_t tasks, uint64_t elements_each,
                               void (*body)(void *arg, uint64_t begin, uint64_t end)) {
    const uint64_t grain = elements_each ? (LOWRANK_GRAIN + elements_each - 1) / elements_each : 1;
    esp_codec_parallel(l->self->host, tasks, grain, body, (void *)(uintptr_t)l);
}

static inline void lowrank_p_rows(void *arg, uint64_t begin, uint64_t end) {
    const lowrank_job *l = (const lowrank_job *)arg;
    const lowrank_dot_fn dot = lowrank_dot_for(l->self->level);
    const dense_phi_fn phi_of = dense_phi_for(l->self->level);
    float phi[LOWRANK_BLOCK];
    lowrank_lanes acc[64];
    for (uint64_t i = begin; i < end; i++) {
        memset(acc, 0, l->r * sizeof *acc);
        for (uint64_t j = 0; j < l->n; j += LOWRANK_BLOCK) {
            const uint64_t n = l->n - j < LOWRANK_BLOCK ? l->n - j : LOWRANK_BLOCK, at = i * l->n + j;
            if (l->e) phi_of(phi, l->g + at, l->e + at, l->beta, l->gamma, n);
            dot(l->e ? phi : l->g + at, l->q + j, l->n, n, acc, l->r);
        }
        for (uint64_t k = 0; k < l->r; k++) l->p[i * l->r + k] = norm_tree(acc[k]);
    }
}
static inline void lowrank_p(const lowrank_job *l) { lowrank_run(l, l->m, l->n, lowrank_p_rows); }

/* The number of partial sums depends on the shape alone, so that results do not depend on the number of workers. */
ESP_ELEMENT uint64_t lowrank_n_sums(uint64_t m) {
    const uint64_t n = (m + LOWRANK_ROWS - 1) / LOWRANK_ROWS;
    return n < 1 ? 1 : n > LOWRANK_SUMS ? LOWRANK_SUMS : n;
}

static inline void lowrank_q_task(const lowrank_job *l, uint64_t part, uint64_t at, uint64_t n, float *phi) {
    const lowrank_add_fn add = lowrank_add_for(l->self->level);
    const dense_phi_fn phi_of = dense_phi_for(l->self->level);
    const uint64_t begin = part * l->rows_each, end = begin + l->rows_each < l->m ? begin + l->rows_each : l->m;
    float *sum = l->sums + part * l->r * l->n + at;
    for (uint64_t k = 0; k < l->r; k++) memset(sum + k * l->n, 0, n * sizeof *sum);
    for (uint64_t i = begin; i < end; i += 4) {
        const uint64_t rows = end - i < 4 ? end - i : 4;
        for (uint64_t x = 0; l->e && x < rows; x++)
            phi_of(phi + x * LOWRANK_BLOCK, l->g + (i + x) * l->n + at, l->e + (i + x) * l->n + at, l->beta, l->gamma,
                   n);
        add(sum, l->n, l->e ? phi : l->g + i * l->n + at, l->e ? (uint64_t)LOWRANK_BLOCK : l->n, l->p + i * l->r, n,
            l->r, rows);
    }
}
static inline void lowrank_q_tasks(void *arg, uint64_t begin, uint64_t end) {
    const lowrank_job *l = (const lowrank_job *)arg;
    const uint64_t blocks = (l->n + LOWRANK_BLOCK - 1) / LOWRANK_BLOCK;
    float phi[4 * LOWRANK_BLOCK];
    for (uint64_t t = begin; t < end; t++) {
        const uint64_t at = t % blocks * LOWRANK_BLOCK;
        lowrank_q_task(l, t / blocks, at, l->n - at < LOWRANK_BLOCK ? l->n - at : LOWRANK_BLOCK, phi);
    }
}
/* Computes phi^T p and stores it transposed, as r rows of n numbers, at `sums`. `sums` has room for
 * lowrank_n_sums(m) such results. */
static inline void lowrank_qt(lowrank_job *l) {
    const uint64_t blocks = (l->n + LOWRANK_BLOCK - 1) / LOWRANK_BLOCK, each = l->r * l->n;
    l->n_sums = lowrank_n_sums(l->m);
    l->rows_each = (l->m + l->n_sums - 1) / l->n_sums;
    lowrank_run(l, l->n_sums * blocks, l->rows_each * (l->n < LOWRANK_BLOCK ? l->n : LOWRANK_BLOCK), lowrank_q_tasks);
    for (uint64_t s = 1; s < l->n_sums; s++)
        for (uint64_t x = 0; x < each; x++) l->sums[x] += l->sums[s * each + x];
}

static inline void lowrank_rest_rows(void *arg, uint64_t begin, uint64_t end) {
    const lowrank_job *l = (const lowrank_job *)arg;
    const lowrank_rest_fn rest = lowrank_rest_for(l->self->level);
    for (uint64_t i = begin; i < end; i++)
        rest(l->out + i * l->n, l->g + i * l->n, l->beta, l->gamma, l->p + i * l->r, l->q, l->n, l->n, l->r);
}
/* Sets out, the residual, to beta * out + gamma * g - p q^T. */
static inline void lowrank_rest_of(const lowrank_job *l) { lowrank_run(l, l->m, l->n, lowrank_rest_rows); }

static inline void lowrank_put_rows(void *arg, uint64_t begin, uint64_t end) {
    const lowrank_job *l = (const lowrank_job *)arg;
    const lowrank_put_fn put = lowrank_put_for(l->self->level);
    for (uint64_t i = begin; i < end; i++)
        put(l->out + i * l->n, l->set, l->scale, l->p + i * l->r, l->q, l->n, l->n, l->r);
}
/* Adds scale * p q to out, or overwrites out if `set`. q may have any alignment. */
static inline void lowrank_put_of(const lowrank_job *l) { lowrank_run(l, l->m, l->n, lowrank_put_rows); }

/* ---- an orthonormal basis ---------------------------------------------------------------------------------------- */
static inline double lowrank_inner(const double *a, const double *b, uint64_t n) {
    double s[4] = {0, 0, 0, 0};
    uint64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) s[k] += a[i + (uint64_t)k] * b[i + (uint64_t)k];
    for (; i < n; i++) s[0] += a[i] * b[i];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Returns the length of a column of Q. The order of additions is fixed: number j goes to partial sum j % 4. */
static inline double lowrank_length(const dense_f32 *q, uint64_t n) {
    double s[4] = {0, 0, 0, 0};
    for (uint64_t j = 0; j < n; j++) s[j % 4] += (double)q[j] * (double)q[j];
    return sqrt((s[0] + s[2]) + (s[1] + s[3]));
}

/* Returns the factor that scales a column to length 1, or 0 if orthogonalisation left less than 1e-6 of its length.
 * `before` and `now` are the squared lengths before and after orthogonalisation. */
ESP_ELEMENT double lowrank_scale(double before, double now) {
    return now > 1e-12 * before && now > 0 ? 1 / sqrt(now) : 0;
}

/* Makes the r columns of `v` (m numbers each) orthonormal by modified Gram-Schmidt, twice for each column for accuracy.
 * A column that depends linearly on earlier ones becomes zero. */
static inline void lowrank_orthonormal(double *v, uint64_t m, uint64_t r) {
    for (uint64_t k = 0; k < r; k++) {
        double *a = v + k * m;
        const double before = lowrank_inner(a, a, m);
        for (int again = 0; again < 2; again++)
            for (uint64_t j = 0; j < k; j++) {
                const double d = lowrank_inner(a, v + j * m, m);
                for (uint64_t i = 0; i < m; i++) a[i] -= d * v[j * m + i];
            }
        const double scale = lowrank_scale(before, lowrank_inner(a, a, m));
        for (uint64_t i = 0; i < m; i++) a[i] *= scale;
    }
}
#endif
