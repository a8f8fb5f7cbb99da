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
typedef float lowrank_v __attribute__((vector_size(64), aligned(4), may_alias));
typedef float lowrank_q __attribute__((vector_size(64), aligned(1), may_alias)); /* unaligned, as in a payload */

/* ---- kernels: one block of columns ------------------------------------------------------------------------------- */
/* Adds x[j] * q[k][j] to element j % 16 of acc[k], for K columns k of Q. */
ESP_INLINE void lowrank_dots(const float *x, const float *q, uint64_t ld, uint64_t n, lowrank_v *acc, const int K) {
    lowrank_v s[4];
    uint64_t j = 0;
    for (int k = 0; k < K; k++) s[k] = acc[k];
    for (; j + 16 <= n; j += 16) {
        const lowrank_v v = *(const lowrank_v *)(x + j);
        for (int k = 0; k < K; k++) s[k] += v * *(const lowrank_v *)(q + (uint64_t)k * ld + j);
    }
    if (j < n) {
        lowrank_v v = {0}, w = {0};
        memcpy(&v, x + j, (n - j) * sizeof(float));
        for (int k = 0; k < K; k++) {
            memcpy(&w, q + (uint64_t)k * ld + j, (n - j) * sizeof(float));
            s[k] += v * w;
        }
    }
    for (int k = 0; k < K; k++) acc[k] = s[k];
}
ESP_INLINE uint64_t lowrank_dot_body(const float *x, const float *q, uint64_t ld, uint64_t n, lowrank_v *acc,
                                     uint64_t r) {
    uint64_t k = 0;
    for (; k + 4 <= r; k += 4) lowrank_dots(x, q + k * ld, ld, n, acc + k, 4);
    if (r - k == 3) lowrank_dots(x, q + k * ld, ld, n, acc + k, 3);
    if (r - k == 2) lowrank_dots(x, q + k * ld, ld, n, acc + k, 2);
    if (r - k == 1) lowrank_dots(x, q + k * ld, ld, n, acc + k, 1);
    return 0;
}
ESP_KERNEL(lowrank_dot, (const float *x, const float *q, uint64_t ld, uint64_t n, lowrank_v *acc, uint64_t r),
           (x, q, ld, n, acc, r))

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

/* Computes 16 numbers of a row of P Q: y = p[0] q[0][j] + p[1] q[1][j] + ..., added in that order. */
ESP_INLINE void lowrank_row16(lowrank_v *y, const float *p, const float *q, uint64_t ld, uint64_t j, uint64_t r) {
    lowrank_v sum = p[0] * *(const lowrank_q *)(q + j);
    for (uint64_t k = 1; k < r; k++) sum += p[k] * *(const lowrank_q *)(q + k * ld + j);
    *y = sum;
}
/* Computes 64 numbers of a row of P Q, as four independent vectors, which the processor adds in parallel. */
ESP_INLINE void lowrank_row64(lowrank_v y[4], const float *p, const float *q, uint64_t ld, uint64_t j, uint64_t r) {
    const lowrank_q *at = (const lowrank_q *)(q + j);
    lowrank_v a = p[0] * at[0], b = p[0] * at[1], c = p[0] * at[2], d = p[0] * at[3];
    for (uint64_t k = 1; k < r; k++) {
        at = (const lowrank_q *)(q + k * ld + j);
        a += p[k] * at[0], b += p[k] * at[1], c += p[k] * at[2], d += p[k] * at[3];
    }
    y[0] = a, y[1] = b, y[2] = c, y[3] = d;
}
ESP_INLINE float lowrank_row1(const float *p, const float *q, uint64_t ld, uint64_t j, uint64_t r) {
    float x, y;
    memcpy(&x, q + j, sizeof x);
    y = p[0] * x;
    for (uint64_t k = 1; k < r; k++) {
        memcpy(&x, (const unsigned char *)q + (k * ld + j) * sizeof x, sizeof x);
        y += p[k] * x;
    }
    return y;
}
ESP_INLINE uint64_t lowrank_rest_body(float *restrict e, const float *g, float beta, float gamma, const float *p,
                                      const float *q, uint64_t ld, uint64_t n, uint64_t r) {
    uint64_t j = 0;
    for (; j + 64 <= n; j += 64) {
        lowrank_v *at = (lowrank_v *)(e + j), y[4];
        const lowrank_v *in = (const lowrank_v *)(g + j);
        lowrank_row64(y, p, q, ld, j, r);
        for (int i = 0; i < 4; i++) at[i] = beta * at[i] + gamma * in[i] - y[i];
    }
    for (; j + 16 <= n; j += 16) {
        lowrank_v *at = (lowrank_v *)(e + j), y;
        lowrank_row16(&y, p, q, ld, j, r);
        *at = beta * *at + gamma * *(const lowrank_v *)(g + j) - y;
    }
    for (; j < n; j++) e[j] = beta * e[j] + gamma * g[j] - lowrank_row1(p, q, ld, j, r);
    return 0;
}
ESP_KERNEL(lowrank_rest,
           (float *restrict e, const float *g, float beta, float gamma, const float *p, const float *q, uint64_t ld,
            uint64_t n, uint64_t r),
           (e, g, beta, gamma, p, q, ld, n, r))
ESP_INLINE uint64_t lowrank_put_body(float *restrict out, int set, float scale, const float *p, const float *q,
                                     uint64_t ld, uint64_t n, uint64_t r) {
    uint64_t j = 0;
    for (; j + 64 <= n; j += 64) {
        lowrank_v *at = (lowrank_v *)(out + j), y[4];
        lowrank_row64(y, p, q, ld, j, r);
        for (int i = 0; i < 4; i++) at[i] = set ? scale * y[i] : at[i] + scale * y[i];
    }
    for (; j + 16 <= n; j += 16) {
        lowrank_v *at = (lowrank_v *)(out + j), y;
        lowrank_row16(&y, p, q, ld, j, r);
        *at = set ? scale * y : *at + scale * y;
    }
    for (; j < n; j++) {
        const float y = scale * lowrank_row1(p, q, ld, j, r);
        out[j] = set ? y : out[j] + y;
    }
    return 0;
}
ESP_KERNEL(lowrank_put,
           (float *restrict out, int set, float scale, const float *p, const float *q, uint64_t ld, uint64_t n,
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
    lowrank_v acc[64];
    for (uint64_t i = begin; i < end; i++) {
        memset(acc, 0, l->r * sizeof *acc);
        for (uint64_t j = 0; j < l->n; j += LOWRANK_BLOCK) {
            const uint64_t n = l->n - j < LOWRANK_BLOCK ? l->n - j : LOWRANK_BLOCK, at = i * l->n + j;
            if (l->e) phi_of(phi, l->g + at, l->e + at, l->beta, l->gamma, n);
            dot(l->e ? phi : l->g + at, l->q + j, l->n, n, acc, l->r);
        }
        for (uint64_t k = 0; k < l->r; k++) {
            float lanes[NORM_LANES];
            memcpy(lanes, &acc[k], sizeof lanes);
            l->p[i * l->r + k] = norm_tree(lanes);
        }
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
