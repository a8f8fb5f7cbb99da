/* model.c: the forward pass, the backward pass and the update of the network in model.h. */
#include "model.h"
#include "parallel.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t hidden[N_LAYERS - 1] = {512, 512};
static const char *const names[N_PARAMS] = {"fc3.weight", "fc3.bias",   "fc2.weight",
                                            "fc2.bias",   "fc1.weight", "fc1.bias"};

uint64_t random_u64(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Returns the layer of parameter i. A layer has two parameters, its weight and then its bias. */
static size_t layer_of(size_t i) { return N_LAYERS - 1 - i / 2; }
static param *weight_of(model *m, size_t layer) { return &m->p[2 * (N_LAYERS - 1 - layer)]; }

int model_open(model *m, size_t pixels, size_t classes, size_t max_batch, uint64_t seed) {
    *m = (model){.width = {pixels, hidden[0], hidden[1], classes}};
    size_t n_inputs = 0;
    for (size_t l = 0; l <= N_LAYERS; l++) n_inputs += max_batch * m->width[l];
    for (size_t i = 0; i < N_PARAMS; i++) {
        const size_t l = layer_of(i);
        m->p[i].name = names[i];
        m->p[i].count = (i % 2 ? 1 : m->width[l]) * m->width[l + 1];
        if (i % 2 == 0) m->p[i].rows = m->width[l], m->p[i].cols = m->width[l + 1];
        m->n_values += m->p[i].count;
    }
    float *at = calloc(2 * m->n_values + 2 * n_inputs, sizeof *at);
    if (!at) return -1;
    for (size_t i = 0; i < N_PARAMS; at += m->p[i++].count) {
        m->p[i].value = at, m->p[i].grad = at + m->n_values, m->p[i].n = m->p[i].count;
        const float bound = sqrtf(6.0f / (float)m->width[layer_of(i)]); /* initial values after He; biases are 0 */
        for (size_t j = 0; i % 2 == 0 && j < m->p[i].count; j++)
            at[j] = bound * ((float)(random_u64(&seed) >> 40) * 0x1p-23f - 1.0f);
    }
    at += m->n_values;
    for (size_t l = 0; l <= N_LAYERS; at += max_batch * m->width[l++]) m->x[l] = at, m->dx[l] = at + n_inputs;
    return 0;
}

const float *model_forward(model *m, size_t n) {
    for (size_t l = 0; l < N_LAYERS; l++) {
        const param *weight = weight_of(m, l), *bias = weight + 1;
        const size_t in = m->width[l], out = m->width[l + 1];
        float *y = m->x[l + 1];
        for (size_t i = 0; i < n; i++) memcpy(y + i * out, bias->value, out * sizeof *y);
        gemm(n, out, in, m->x[l], in, 1, weight->value, out, 1, y, out);
        for (size_t i = 0; l + 1 < N_LAYERS && i < n * out; i++) y[i] = y[i] > 0 ? y[i] : 0.0f; /* ReLU */
    }
    return m->x[N_LAYERS];
}

/* Returns the cross entropy of the softmax of `score`. Writes its derivative by the scores to d. */
static float loss_of(const float *score, const uint8_t *labels, size_t n, size_t classes, float *d) {
    double loss = 0;
    for (size_t i = 0; i < n; i++, score += classes, d += classes) {
        float top = score[0], sum = 0;
        for (size_t c = 1; c < classes; c++) top = fmaxf(top, score[c]);
        for (size_t c = 0; c < classes; c++) sum += d[c] = expf(score[c] - top);
        loss += (double)(logf(sum) - (score[labels[i]] - top));
        for (size_t c = 0; c < classes; c++) d[c] = (d[c] / sum - (c == labels[i])) / (float)n;
    }
    return (float)(loss / (double)n);
}

float model_backward(model *m, const uint8_t *labels, size_t n, void (*ready)(void *user, int i), void *user) {
    const float loss = loss_of(m->x[N_LAYERS], labels, n, m->width[N_LAYERS], m->dx[N_LAYERS]);
    for (size_t l = N_LAYERS; l-- > 0;) {
        const size_t in = m->width[l], out = m->width[l + 1];
        const param *weight = weight_of(m, l), *bias = weight + 1;
        const float *x = m->x[l], *dy = m->dx[l + 1];
        float *dx = m->dx[l];
        memset(weight->grad, 0, weight->count * sizeof(float));
        gemm(in, out, n, x, 1, in, dy, out, 1, weight->grad, out);
        ready(user, (int)(weight - m->p));
        memset(bias->grad, 0, out * sizeof(float));
        for (size_t i = 0; i < n * out; i++) bias->grad[i % out] += dy[i];
        ready(user, (int)(bias - m->p));
        if (l == 0) break; /* the derivative by the images is not needed */
        memset(dx, 0, n * in * sizeof *dx);
        gemm(n, in, out, dy, out, 1, weight->value, 1, out, dx, in);
        for (size_t i = 0; i < n * in; i++) dx[i] = x[i] > 0 ? dx[i] : 0.0f; /* ReLU */
    }
    return loss;
}

size_t model_state(model *m, int rounded) {
    size_t n = 0;
    for (size_t i = 0; i < N_PARAMS; i++) n += m->p[i].n * (rounded ? 2 : 1);
    float *at = calloc(n + 1, sizeof *at);
    if (!at) return 0;
    for (size_t i = 0; i < N_PARAMS; i++) {
        param *p = &m->p[i];
        p->momentum = at, at += p->n;
        if (!rounded) continue;
        p->exact = at, at += p->n;
        memcpy(p->exact, p->value + p->begin, p->n * sizeof *p->exact);
    }
    return (n + 1) * sizeof *at;
}

void model_update(model *m, float lr, float momentum) {
    for (size_t k = 0; k < N_PARAMS; k++) {
        const param *p = &m->p[k];
        float *value = p->value + p->begin, *v = p->momentum, *exact = p->exact ? p->exact : value;
        const float *grad = p->grad + p->begin;
        PARALLEL_IF(p->n > 4096)
        for (size_t i = 0; i < p->n; i++) {
            v[i] = momentum * v[i] + grad[i];
            exact[i] -= lr * v[i];
            value[i] = exact[i];
        }
    }
}
