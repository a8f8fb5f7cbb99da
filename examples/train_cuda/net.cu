/* net.cu: the forward pass, the backward pass and the update of the network in net.h. Gradients are float or bf16,
 * everything else is float. Every sum has one fixed order, so that equal inputs give equal bits. */
#include "net.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cuda_must(cudaError_t e, const char *call) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "train_cuda: %.60s: CUDA error %d: %s\n", call, (int)e, cudaGetErrorString(e));
    exit(1);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */
/* A block of SIDE x SIDE threads computes TILE x TILE results. It adds DEPTH products to each at a time. */
enum { THREADS = 256, TILE = 64, DEPTH = 16, SIDE = 16, EACH = TILE / SIDE };

static __device__ float number(const void *p, int bf16, size_t i) {
    return bf16 ? __uint_as_float((unsigned)((const uint16_t *)p)[i] << 16) : ((const float *)p)[i];
}
/* Writes number i of float or bf16 memory, rounded to nearest, ties to even. */
static __device__ void put(void *p, int bf16, size_t i, float x) {
    const unsigned u = __float_as_uint(x);
    if (bf16)
        ((uint16_t *)p)[i] = x != x ? (uint16_t)0x7FC0 : (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
    else
        ((float *)p)[i] = x;
}

/* Element (i, j) is at[i * row + j * col], so that a transposed matrix only needs other strides. */
typedef struct matrix {
    const float *at;
    unsigned row, col;
} matrix;

/* Loads DEPTH columns of a tile into shared memory, transposed, with zeros outside of the matrix. */
static __device__ void load_tile(float (*tile)[TILE + 1], matrix a, unsigned first, unsigned rows, unsigned p0,
                                 unsigned depth) {
    for (unsigned e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
        const unsigned i = a.col == 1 ? e / DEPTH : e % TILE, p = a.col == 1 ? e % DEPTH : e / TILE;
        const bool inside = first + i < rows && p0 + p < depth;
        tile[p][i] = inside ? a.at[(size_t)(first + i) * a.row + (size_t)(p0 + p) * a.col] : 0.0f;
    }
}

/* Computes c (m x n, float or bf16) = a (m x k) * b (k x n), plus `bias` (n numbers) in each row unless bias is NULL.
 * With `relu` negative results become zero. Unless mask (m x n) is NULL, results are zero where it is not positive. */
static __global__ void __launch_bounds__(THREADS)
    product(unsigned m, unsigned n, unsigned k, matrix a, matrix b, const float *bias, int relu, const float *mask,
            int bf16, void *c) {
    __shared__ float ta[DEPTH][TILE + 1], tb[DEPTH][TILE + 1];
    const matrix b_transposed = {b.at, b.col, b.row};
    const unsigned i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE, ti = threadIdx.x / SIDE, tj = threadIdx.x % SIDE;
    float sum[EACH][EACH] = {};
    for (unsigned p0 = 0; p0 < k; p0 += DEPTH) {
        load_tile(ta, a, i0, m, p0, k);
        load_tile(tb, b_transposed, j0, n, p0, k);
        __syncthreads();
        for (unsigned p = 0; p < DEPTH; p++)
            for (unsigned r = 0; r < EACH; r++)
                for (unsigned s = 0; s < EACH; s++) sum[r][s] += ta[p][ti + r * SIDE] * tb[p][tj + s * SIDE];
        __syncthreads(); /* before the next tile is written */
    }
    for (unsigned r = 0; r < EACH; r++)
        for (unsigned s = 0; s < EACH; s++) {
            const unsigned i = i0 + ti + r * SIDE, j = j0 + tj + s * SIDE;
            if (i >= m || j >= n) continue;
            const size_t at = (size_t)i * n + j;
            const float x = bias ? sum[r][s] + bias[j] : sum[r][s];
            put(c, bf16, at, (relu && !(x > 0)) || (mask && !(mask[at] > 0)) ? 0.0f : x);
        }
}

/* Computes sum[j], the sum of column j of a. */
static __global__ void __launch_bounds__(THREADS)
    column_sums(const float *a, unsigned m, unsigned n, int bf16, void *sum) {
    const unsigned j = blockIdx.x * THREADS + threadIdx.x;
    float s = 0;
    for (unsigned i = 0; j < n && i < m; i++) s += a[(size_t)i * n + j];
    if (j < n) put(sum, bf16, j, s);
}

static __global__ void __launch_bounds__(THREADS)
    take_images(images im, const uint32_t *order, unsigned first, unsigned count, float *x, uint8_t *label) {
    const size_t all = (size_t)count * im.size;
    for (size_t e = (size_t)blockIdx.x * THREADS + threadIdx.x; e < all; e += (size_t)gridDim.x * THREADS) {
        const size_t i = e / im.size, image = order ? order[i] : first + i;
        x[e] = (float)im.pixels[image * im.size + e % im.size] / 96.0f - 0.75f;
        if (e % im.size == 0) label[i] = im.labels[image];
    }
}

/* Writes the mean cross entropy of the softmax to *loss, and its derivative by the scores to d. Runs as one block. */
static __global__ void __launch_bounds__(THREADS)
    loss_of(const float *score, const uint8_t *label, unsigned count, unsigned classes, float *d, double *loss) {
    __shared__ float part[THREADS];
    float mine = 0;
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        const float *s = score + (size_t)i * classes;
        float *di = d + (size_t)i * classes, top = s[0], sum = 0;
        for (unsigned c = 1; c < classes; c++) top = fmaxf(top, s[c]);
        for (unsigned c = 0; c < classes; c++) sum += di[c] = expf(s[c] - top);
        mine += logf(sum) - (s[label[i]] - top);
        for (unsigned c = 0; c < classes; c++) di[c] = (di[c] / sum - (c == label[i] ? 1.0f : 0.0f)) / (float)count;
    }
    part[threadIdx.x] = mine;
    for (unsigned half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *loss = (double)part[0] / count;
}

static __global__ void __launch_bounds__(THREADS)
    update(size_t begin, size_t n, int bf16, const void *grad, float lr, float momentum, float *v, float *value) {
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
        v[i] = momentum * v[i] + number(grad, bf16, begin + i);
        value[begin + i] -= lr * v[i];
    }
}

static __global__ void __launch_bounds__(THREADS)
    count_right(const float *score, const uint8_t *label, unsigned count, unsigned classes, uint32_t *right) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    unsigned best = 0;
    for (unsigned c = 1; i < count && c < classes; c++)
        best = score[(size_t)i * classes + c] > score[(size_t)i * classes + best] ? c : best;
    if (i < count && best == label[i]) atomicAdd(right, 1u);
}

/* ---- functions of the host--------------------------------------------------------------------------------------- */
template <typename... P, typename... A>
static void launch(const network *n, size_t columns, size_t rows, void (*kernel)(P...), A... arguments) {
    cudaLaunchConfig_t c;
    memset((void *)&c, 0, sizeof c);
    c.gridDim = dim3((unsigned)columns, (unsigned)rows), c.blockDim = dim3(THREADS), c.stream = n->stream;
    CUDA(cudaLaunchKernelEx(&c, kernel, static_cast<P>(arguments)...));
}
static size_t blocks(size_t n, size_t each) { return (n + each - 1) / each; }

static void multiply(const network *n, size_t m, size_t columns, size_t k, matrix a, matrix b, const float *bias,
                     int relu, const float *mask, int bf16, void *c) {
    launch(n, blocks(columns, TILE), blocks(m, TILE), product, m, columns, k, a, b, bias, relu, mask, bf16, c);
}

static void *take(size_t bytes) {
    void *p;
    CUDA(cudaMalloc(&p, bytes));
    return p;
}
static float *take_floats(size_t n) { return (float *)take(n * sizeof(float)); }
static size_t weight_of(size_t layer) { return 2 * (N_LAYERS - 1 - layer); }

void net_open(network *n, const model *m, size_t batch, int bf16) {
    memset((void *)n, 0, sizeof *n);
    n->m = m, n->bf16 = bf16;
    CUDA(cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, 0));
    float *value = take_floats(m->n_values);
    CUDA(cudaMemcpy(value, m->p[0].value, m->n_values * sizeof(float), cudaMemcpyHostToDevice));
    for (size_t i = 0; i < N_PARAMS; i++) {
        n->value[i] = value, value += m->p[i].count;
        n->grad[i] = take(m->p[i].count * (bf16 ? 2 : 4));
    }
    for (size_t l = 0; l <= N_LAYERS; l++)
        n->x[l] = take_floats(batch * m->width[l]), n->dx[l] = l ? take_floats(batch * m->width[l]) : NULL;
    n->label = (uint8_t *)take(batch), n->right = (uint32_t *)take(sizeof *n->right);
    CUDA(cudaDeviceSynchronize());
}

void net_state(network *n) {
    for (int i = 0; i < N_PARAMS; i++) {
        const param *p = &n->m->p[i];
        const size_t bytes = p->n * sizeof(float);
        if (!bytes) continue;
        n->state_bytes += bytes;
        n->momentum[i] = take_floats(p->n);
        CUDA(cudaMemsetAsync(n->momentum[i], 0, bytes, n->stream));
    }
}

void net_images(images *im, const dataset *d) {
    im->size = d->rows * d->cols;
    im->pixels = (uint8_t *)take(d->n * im->size), im->labels = (uint8_t *)take(d->n);
    CUDA(cudaMemcpy(im->pixels, d->pixels, d->n * im->size, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(im->labels, d->labels, d->n, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
}

void net_forward(network *n, const images *im, const uint32_t *order, size_t first, size_t count) {
    launch(n, blocks(count * im->size, 4 * THREADS), 1, take_images, *im, order, first, count, n->x[0], n->label);
    for (size_t l = 0; l < N_LAYERS; l++) {
        const size_t in = n->m->width[l], out = n->m->width[l + 1], w = weight_of(l);
        const matrix x = {n->x[l], (unsigned)in, 1}, weight = {n->value[w], (unsigned)out, 1};
        multiply(n, count, out, in, x, weight, n->value[w + 1], l + 1 < N_LAYERS, NULL, 0, n->x[l + 1]);
    }
}

void net_backward(network *n, size_t count, double *loss, void (*ready)(void *user, int i), void *user) {
    launch(n, 1, 1, loss_of, n->x[N_LAYERS], n->label, count, n->m->width[N_LAYERS], n->dx[N_LAYERS], loss);
    for (size_t l = N_LAYERS; l-- > 0;) {
        const size_t in = n->m->width[l], out = n->m->width[l + 1], w = weight_of(l);
        const matrix x = {n->x[l], 1, (unsigned)in}, dy = {n->dx[l + 1], (unsigned)out, 1};
        const matrix weight = {n->value[w], 1, (unsigned)out};
        multiply(n, in, out, count, x, dy, NULL, 0, NULL, n->bf16, n->grad[w]);
        ready(user, (int)w);
        launch(n, blocks(out, THREADS), 1, column_sums, n->dx[l + 1], count, out, n->bf16, n->grad[w + 1]);
        ready(user, (int)w + 1);
        if (l) multiply(n, count, in, out, dy, weight, NULL, 0, n->x[l], 0, n->dx[l]); /* zero where ReLU made x zero */
    }
}

void net_update(network *n, float lr, float momentum) {
    for (int i = 0; i < N_PARAMS; i++) {
        const param *p = &n->m->p[i];
        if (p->n)
            launch(n, blocks(p->n, 4 * THREADS), 1, update, p->begin, p->n, n->bf16, n->grad[i], lr, momentum,
                   n->momentum[i], n->value[i]);
    }
}

void net_count(network *n, size_t count) {
    launch(n, blocks(count, THREADS), 1, count_right, n->x[N_LAYERS], n->label, count, n->m->width[N_LAYERS], n->right);
}
