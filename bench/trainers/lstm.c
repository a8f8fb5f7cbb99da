/* lstm.c: two layers of LSTM that predict a text's next character. A layer's gradients are complete only after its
 * last step back in time, so they come in three bursts of two or three tensors. */
#include "net.h"
#include "examples/train/parallel.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, ENOUGH = 10000 };
enum { OUT, OUT_BIAS, LAST, PER_LAYER = 3, EMBEDDING = LAST + LAYERS * PER_LAYER }; /* parameters, in backward order */
enum { RECURRENT, INPUT, BIAS };                                                    /* parameters of a layer */
enum { IN, FORGET, CELL, EMIT, GATES };                                             /* order of the gates in a row */

/* Each array has a row of numbers for each sequence (of the batch) and time step; rows of a time step are adjacent.
 * h and c begin with rows for the state before the first step. */
typedef struct layer {
    float *x, *gate, *c, *h, *dh; /* x is the layer's input, which is h of the layer below */
} layer;
typedef struct lstm {
    layer l[LAYERS];
    float *embedded, *score, *dx, *dc, *dh_next;
    uint8_t *right;
} lstm;

static net_param *of_layer(net *n, size_t l, size_t which) {
    return &n->p[LAST + (LAYERS - 1 - l) * PER_LAYER + which];
}
static size_t inputs_of(const net *n, size_t l) { return l ? n->hidden : n->width; }

static int lstm_open(net *n, uint64_t seed) {
    static const char *const name[LAYERS][PER_LAYER] = {{"lstm0.recurrent", "lstm0.input", "lstm0.bias"},
                                                        {"lstm1.recurrent", "lstm1.input", "lstm1.bias"}};
    const size_t h = n->hidden, rows = n->length * n->batch;
    const float spread = 1.0f / sqrtf((float)h);
    net_describe(n, "out.weight", h, n->vocab, spread), net_describe(n, "out.bias", 1, n->vocab, 0);
    for (size_t l = LAYERS; l-- > 0;) {
        net_describe(n, name[l][RECURRENT], h, GATES * h, spread);
        net_describe(n, name[l][INPUT], inputs_of(n, l), GATES * h, spread);
        net_describe(n, name[l][BIAS], 1, GATES * h, 0);
    }
    net_describe(n, "embedding", n->vocab, n->width, 0.5f);
    lstm *m = calloc(1, sizeof *m + rows);
    const size_t widest = h > n->width ? h : n->width, each = rows * (GATES + 1) * h + 2 * (rows + n->batch) * h;
    float *at = calloc(LAYERS * each + rows * (n->width + n->vocab + widest) + 2 * n->batch * h, sizeof *at);
    if (!m || !at || net_allocate(n, seed)) return -1;
    n->own = m, m->right = (uint8_t *)(m + 1);
    m->embedded = at, at += rows * n->width;
    m->score = at, at += rows * n->vocab;
    m->dx = at, at += rows * widest;
    m->dc = at, at += n->batch * h;
    m->dh_next = at, at += n->batch * h;
    for (size_t l = 0; l < LAYERS; l++) {
        layer *y = &m->l[l];
        y->gate = at, at += rows * GATES * h;
        y->dh = at, at += rows * h;
        y->c = at, at += (rows + n->batch) * h;
        y->h = at, at += (rows + n->batch) * h;
        y->x = l ? m->l[l - 1].h + n->batch * h : m->embedded;
        for (size_t j = 0; j < h; j++) of_layer(n, l, BIAS)->value[FORGET * h + j] = 1; /* at first, forget nothing */
    }
    return 0;
}

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* Computes one time step of a layer: gates, c and h. `gate` already contains the products with the layer's input. */
static void forward_once(const net *n, layer *y, const float *recurrent, size_t t) {
    const size_t h = n->hidden, b = n->batch;
    float *gate = y->gate + t * b * GATES * h;
    const float *c = y->c + t * b * h;
    float *c_new = y->c + (t + 1) * b * h, *h_new = y->h + (t + 1) * b * h;
    gemm(b, GATES * h, h, y->h + t * b * h, h, 1, recurrent, GATES * h, 1, gate, GATES * h);
    PARALLEL_IF(b * h > ENOUGH)
    for (size_t i = 0; i < b * h; i++) {
        float *g = gate + i / h * GATES * h + i % h;
        g[IN * h] = sigmoid(g[IN * h]), g[FORGET * h] = sigmoid(g[FORGET * h]), g[EMIT * h] = sigmoid(g[EMIT * h]);
        g[CELL * h] = tanhf(g[CELL * h]);
        c_new[i] = g[FORGET * h] * c[i] + g[IN * h] * g[CELL * h];
        h_new[i] = g[EMIT * h] * tanhf(c_new[i]);
    }
}

static void forward(net *n, const uint8_t *const *seq) {
    lstm *m = n->own;
    const size_t h = n->hidden, b = n->batch, rows = n->length * b, wide = GATES * h;
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *piece = seq[r % b] + r / b;
        m->right[r] = piece[1];
        memcpy(m->embedded + r * n->width, n->p[EMBEDDING].value + piece[0] * n->width, n->width * sizeof(float));
        memcpy(m->score + r * n->vocab, n->p[OUT_BIAS].value, n->vocab * sizeof(float));
    }
    for (size_t l = 0; l < LAYERS; l++) {
        layer *y = &m->l[l];
        const size_t in = inputs_of(n, l);
        for (size_t r = 0; r < rows; r++) memcpy(y->gate + r * wide, of_layer(n, l, BIAS)->value, wide * sizeof(float));
        gemm(rows, wide, in, y->x, in, 1, of_layer(n, l, INPUT)->value, wide, 1, y->gate, wide);
        for (size_t t = 0; t < n->length; t++) forward_once(n, y, of_layer(n, l, RECURRENT)->value, t);
    }
    gemm(rows, n->vocab, h, m->l[LAYERS - 1].h + b * h, h, 1, n->p[OUT].value, n->vocab, 1, m->score, n->vocab);
}

/* Backward pass of one time step. Replaces the gates by the derivatives of the loss with respect to the gates' sums. */
static void backward_once(const net *n, lstm *m, layer *y, const float *recurrent, size_t t) {
    const size_t h = n->hidden, b = n->batch;
    float *gate = y->gate + t * b * GATES * h;
    const float *c = y->c + t * b * h, *c_new = c + b * h, *dh = y->dh + t * b * h;
    PARALLEL_IF(b * h > ENOUGH)
    for (size_t i = 0; i < b * h; i++) {
        float *g = gate + i / h * GATES * h + i % h;
        const float in = g[IN * h], forget = g[FORGET * h], cell = g[CELL * h], emit = g[EMIT * h];
        const float shown = tanhf(c_new[i]), d = dh[i] + m->dh_next[i];
        const float dc = m->dc[i] + d * emit * (1 - shown * shown);
        g[IN * h] = dc * cell * in * (1 - in), g[FORGET * h] = dc * c[i] * forget * (1 - forget);
        g[CELL * h] = dc * in * (1 - cell * cell), g[EMIT * h] = d * shown * emit * (1 - emit);
        m->dc[i] = dc * forget;
    }
    memset(m->dh_next, 0, b * h * sizeof(float));
    gemm(b, h, GATES * h, gate, GATES * h, 1, recurrent, 1, GATES * h, m->dh_next, h);
}

static void bias_back(const net_param *bias, const float *dy, size_t rows) {
    memset(bias->grad, 0, bias->count * sizeof(float));
    for (size_t i = 0; i < rows * bias->count; i++) bias->grad[i % bias->count] += dy[i];
}
static void weight_back(const net_param *w, const float *x, const float *dy, size_t rows) {
    memset(w->grad, 0, w->count * sizeof(float));
    gemm(w->rows, w->cols, rows, x, 1, w->rows, dy, w->cols, 1, w->grad, w->cols);
}
static void input_back(const net_param *w, const float *dy, float *dx, size_t rows) {
    memset(dx, 0, rows * w->rows * sizeof(float));
    gemm(rows, w->rows, w->cols, dy, w->cols, 1, w->value, 1, w->cols, dx, w->rows);
}

static double lstm_pass(net *n, const uint8_t *const *seq, void (*ready)(void *user, int i), void *user) {
    lstm *m = n->own;
    const size_t h = n->hidden, b = n->batch, rows = n->length * b;
    forward(n, seq);
    const double loss = net_cross_entropy(m->score, m->right, rows, n->vocab);
    if (!ready) return loss;
    weight_back(&n->p[OUT], m->l[LAYERS - 1].h + b * h, m->score, rows), ready(user, OUT);
    bias_back(&n->p[OUT_BIAS], m->score, rows), ready(user, OUT_BIAS);
    input_back(&n->p[OUT], m->score, m->l[LAYERS - 1].dh, rows);
    for (size_t l = LAYERS; l-- > 0;) {
        layer *y = &m->l[l];
        const net_param *p = of_layer(n, l, 0);
        memset(m->dc, 0, b * h * sizeof(float)), memset(m->dh_next, 0, b * h * sizeof(float));
        for (size_t t = n->length; t-- > 0;) backward_once(n, m, y, p[RECURRENT].value, t);
        const int first = (int)(p - n->p);
        weight_back(&p[RECURRENT], y->h, y->gate, rows), ready(user, first + RECURRENT);
        weight_back(&p[INPUT], y->x, y->gate, rows), ready(user, first + INPUT);
        bias_back(&p[BIAS], y->gate, rows), ready(user, first + BIAS);
        input_back(&p[INPUT], y->gate, l ? m->l[l - 1].dh : m->dx, rows);
    }
    memset(n->p[EMBEDDING].grad, 0, n->p[EMBEDDING].count * sizeof(float));
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n->width; j++)
            n->p[EMBEDDING].grad[seq[r % b][r / b] * n->width + j] += m->dx[r * n->width + j];
    return ready(user, EMBEDDING), loss;
}

const net_kind net_lstm = {"lstm", 128, 320, 16, 6, lstm_open, lstm_pass};
