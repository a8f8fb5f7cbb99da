/* model.c: the forward pass, the backward pass and the update of the GPT in model.h. */
#include "model.h"
#include "../train/parallel.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOWN, UP, NORM2, OUT, QKV, NORM1, PER_LAYER }; /* parameters of a layer, in backward order */
enum { ENOUGH = 10000 };                              /* loops of more iterations use threads */
static const float second_weight = 0.5f;              /* weight of the second head's loss */

static param *second_head(gpt *m) { return &m->p[0]; }
static param *last_norm(gpt *m) { return &m->p[1]; }
static param *of_layer(gpt *m, size_t l, size_t which) { return &m->p[2 + PER_LAYER * (m->s.layers - 1 - l) + which]; }
static param *positions(gpt *m) { return &m->p[m->n_params - 2]; }
static param *embedding(gpt *m) { return &m->p[m->n_params - 1]; }

uint64_t random_u64(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* ---- memory and first values ------------------------------------------------------------------------------------- */
static void describe(gpt *m, param *p, const char *name, size_t rows, size_t cols) {
    snprintf(p->name, sizeof p->name, "%s", name);
    p->count = rows * cols;
    if (rows > 1) p->rows = rows, p->cols = cols;
    m->n_values += p->count;
}

static void describe_all(gpt *m) {
    const size_t d = m->s.width;
    static const char *const name[PER_LAYER] = {"mlp.down", "mlp.up", "mlp.norm", "attn.out", "attn.qkv", "attn.norm"};
    const size_t rows[PER_LAYER] = {4 * d, d, 1, d, d, 1}, cols[PER_LAYER] = {d, 4 * d, d, d, 3 * d, d};
    m->n_params = 4 + PER_LAYER * m->s.layers;
    describe(m, second_head(m), "second.weight", d, d);
    describe(m, last_norm(m), "norm", 1, d);
    for (size_t l = 0; l < m->s.layers; l++)
        for (size_t i = 0; i < PER_LAYER; i++) {
            char full[32];
            snprintf(full, sizeof full, "layer%zu.%s", l, name[i]);
            describe(m, of_layer(m, l, i), full, rows[i], cols[i]);
        }
    describe(m, positions(m), "positions", m->s.context, d);
    describe(m, embedding(m), "embedding", m->s.vocab, d);
}

static float *take(float **at, size_t count) {
    float *p = *at;
    if (p) *at += count;
    return p;
}

/* Sets the addresses of all activations from `base` on, if that is not NULL. Returns how many numbers they need. */
static size_t place(gpt *m, float *base) {
    const size_t n = m->s.batch * m->s.context, d = m->s.width,
                 square = m->s.batch * m->s.heads * m->s.context * m->s.context;
    const size_t wide = (m->s.vocab > 4 * d ? m->s.vocab : 4 * d) * n, per_layer = n * 15 * d + square;
    float *at = base;
    for (size_t l = 0; base && l < m->s.layers; l++) {
        m->l[l] =
            (layer){take(&at, n * d), take(&at, n * d), take(&at, 3 * n * d), take(&at, square),   take(&at, n * d),
                    take(&at, n * d), take(&at, n * d), take(&at, 4 * n * d), take(&at, 4 * n * d)};
    }
    m->l[m->s.layers].x = take(&at, n * d), m->l[m->s.layers].norm1 = take(&at, n * d), m->ahead = take(&at, n * d);
    m->dx = take(&at, n * d), m->d_norm = take(&at, n * d), m->score = take(&at, n * m->s.vocab);
    m->d_score = take(&at, n * m->s.vocab), m->d_wide = take(&at, wide);
    m->d_weight = take(&at, square);
    return m->s.layers * (per_layer + n * d) + 5 * n * d + 2 * n * m->s.vocab + wide + square;
}

int gpt_open(gpt *m, shape s, uint64_t seed) {
    *m = (gpt){.s = s};
    describe_all(m);
    m->value = calloc(4 * m->n_values, sizeof *m->value);
    float *work = calloc(place(m, NULL), sizeof *work);
    if (!m->value || !work) return free(m->value), free(work), -1;
    place(m, work);
    m->mean = m->value + m->n_values, m->square = m->mean + m->n_values, m->grad = m->square + m->n_values;
    float *at = m->value;
    for (size_t i = 0; i < m->n_params; at += m->p[i++].count) {
        param *p = &m->p[i];
        p->value = at, p->grad = at + 3 * m->n_values;
        const int table = p == positions(m) || p == embedding(m);
        float spread = sqrtf(3.0f) * (table ? 0.05f : 1.0f / sqrtf((float)(p->rows + 1)));
        if (strstr(p->name, "out") || strstr(p->name, "down")) spread /= sqrtf(2.0f * (float)s.layers);
        for (size_t j = 0; j < p->count; j++)
            at[j] = p->rows ? spread * ((float)(random_u64(&seed) >> 40) * 0x1p-23f - 1.0f) : 1.0f;
    }
    return 0;
}

/* ---- building blocks of a layer ---------------------------------------------------------------------------------- */
/* Adds x (n x in) * w to y (n x out). The next function is its backward pass. */
static void linear(size_t n, size_t in, size_t out, const float *x, const float *w, float *y) {
    gemm(n, out, in, x, in, 1, w, out, 1, y, out);
}
static void linear_back(size_t n, size_t in, size_t out, const float *x, const param *w, const float *dy, float *dx) {
    gemm(in, out, n, x, 1, in, dy, out, 1, w->grad, out);
    gemm(n, in, out, dy, out, 1, w->value, 1, out, dx, in);
}

/* RMSNorm (Zhang 2019): y is gain * x / (root mean square of x), for each row. */
static float scale_of(const float *x, size_t d) {
    float sum = 0;
    for (size_t i = 0; i < d; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)d + 1e-5f);
}
static void norm(size_t n, size_t d, const float *x, const param *gain, float *y) {
    PARALLEL_IF(n * d > ENOUGH)
    for (size_t r = 0; r < n; r++) {
        const float scale = scale_of(x + r * d, d);
        for (size_t i = 0; i < d; i++) y[r * d + i] = gain->value[i] * x[r * d + i] * scale;
    }
}
static void norm_back(size_t n, size_t d, const float *x, const param *gain, const float *dy, float *dx) {
    for (size_t r = 0; r < n; r++, x += d, dy += d, dx += d) {
        const float scale = scale_of(x, d);
        float dot = 0;
        for (size_t i = 0; i < d; i++) dot += dy[i] * gain->value[i] * x[i];
        const float along = dot * scale * scale * scale / (float)d;
        for (size_t i = 0; i < d; i++)
            gain->grad[i] += dy[i] * x[i] * scale, dx[i] += dy[i] * gain->value[i] * scale - along * x[i];
    }
}

/* Causal attention. A row of qkv holds the query, the key and the value of a character, each for all heads. */
static void attention(const gpt *m, size_t batch, const layer *l) {
    const size_t c = m->s.context, d = m->s.width, size = d / m->s.heads, wide = 3 * d;
    memset(l->weight, 0, batch * m->s.heads * c * c * sizeof(float)),
        memset(l->mixed, 0, batch * c * d * sizeof(float));
    PARALLEL_IF(batch * m->s.heads * c * c > ENOUGH)
    for (size_t i = 0; i < batch * m->s.heads; i++) {
        const size_t b = i / m->s.heads, head = i % m->s.heads * size;
        const float *q = l->qkv + b * c * wide + head, *k = q + d, *v = k + d;
        float *weight = l->weight + i * c * c, *w = weight;
        gemm(c, c, size, q, wide, 1, k, 1, wide, weight, c);
        for (size_t t = 0; t < c; t++, w += c) {
            float top = w[0], sum = 0;
            for (size_t j = 1; j <= t; j++) top = w[j] > top ? w[j] : top;
            for (size_t j = 0; j <= t; j++) sum += w[j] = expf((w[j] - top) / sqrtf((float)size));
            for (size_t j = 0; j <= t; j++) w[j] /= sum;
            memset(w + t + 1, 0, (c - t - 1) * sizeof *w); /* later characters get weight 0 */
        }
        gemm(c, size, c, weight, c, 1, v, wide, 1, l->mixed + b * c * d + head, d);
    }
}
static void attention_back(const gpt *m, size_t batch, const layer *l, const float *d_mixed, float *d_qkv) {
    const size_t c = m->s.context, d = m->s.width, size = d / m->s.heads, wide = 3 * d;
    memset(d_qkv, 0, batch * c * wide * sizeof(float));
    PARALLEL_IF(batch * m->s.heads * c * c > ENOUGH)
    for (size_t i = 0; i < batch * m->s.heads; i++) {
        const size_t b = i / m->s.heads, head = i % m->s.heads * size, at = b * c * wide + head;
        const float *q = l->qkv + at, *k = q + d, *v = k + d, *dy = d_mixed + b * c * d + head,
                    *w = l->weight + i * c * c;
        float *d_weight = m->d_weight + i * c * c, *dw = d_weight, *dq = d_qkv + at;
        memset(dw, 0, c * c * sizeof *dw);
        gemm(c, c, size, dy, d, 1, v, 1, wide, dw, c);
        gemm(c, size, c, w, 1, c, dy, d, 1, dq + 2 * d, wide);
        for (size_t t = 0; t < c; t++, w += c, dw += c) {
            float dot = 0;
            for (size_t j = 0; j <= t; j++) dot += w[j] * dw[j];
            for (size_t j = 0; j < c; j++) dw[j] = w[j] * (dw[j] - dot) / sqrtf((float)size);
        }
        gemm(c, size, c, d_weight, c, 1, k, wide, 1, dq, wide);
        gemm(c, size, c, d_weight, 1, c, q, wide, 1, dq + d, wide);
    }
}

/* ---- the network ------------------------------------------------------------------------------------------------- */
const float *gpt_forward(gpt *m, const uint8_t *const *seq, size_t batch) {
    const size_t c = m->s.context, d = m->s.width, n = batch * c;
    for (size_t i = 0; i < n * d; i++)
        m->l[0].x[i] = embedding(m)->value[seq[i / d / c][i / d % c] * d + i % d] + positions(m)->value[i % (c * d)];
    for (size_t at = 0; at < m->s.layers; at++) {
        layer *l = &m->l[at];
        norm(n, d, l->x, of_layer(m, at, NORM1), l->norm1);
        memset(l->qkv, 0, 3 * n * d * sizeof(float)), memset(l->up, 0, 4 * n * d * sizeof(float));
        linear(n, d, 3 * d, l->norm1, of_layer(m, at, QKV)->value, l->qkv);
        attention(m, batch, l);
        memcpy(l->mid, l->x, n * d * sizeof(float));
        linear(n, d, d, l->mixed, of_layer(m, at, OUT)->value, l->mid);
        norm(n, d, l->mid, of_layer(m, at, NORM2), l->norm2);
        linear(n, d, 4 * d, l->norm2, of_layer(m, at, UP)->value, l->up);
        PARALLEL_IF(n * d > ENOUGH)
        for (size_t i = 0; i < 4 * n * d; i++) l->act[i] = l->up[i] > 0 ? l->up[i] * l->up[i] : 0.0f; /* squared ReLU */
        memcpy(l[1].x, l->mid, n * d * sizeof(float));
        linear(n, 4 * d, d, l->act, of_layer(m, at, DOWN)->value, l[1].x);
    }
    layer *last = &m->l[m->s.layers];
    norm(n, d, last->x, last_norm(m), last->norm1);
    memset(m->score, 0, n * m->s.vocab * sizeof(float));
    gemm(n, m->s.vocab, d, last->norm1, d, 1, embedding(m)->value, 1, d, m->score, m->s.vocab);
    return m->score;
}

/* Returns the cross entropy of the softmax of `score` against the character `shift` positions later. If `d` is not
 * NULL, sets it to the derivative times `scale`. */
static double cross_entropy(const gpt *m, const float *score, const uint8_t *const *seq, size_t n, size_t shift,
                            float scale, float *d) {
    const size_t vocab = m->s.vocab, c = m->s.context;
    double loss = 0;
    for (size_t i = 0; i < n; i++, score += vocab) {
        const size_t right = seq[i / c][i % c + shift];
        float top = score[0], sum = 0;
        for (size_t v = 1; v < vocab; v++) top = score[v] > top ? score[v] : top;
        for (size_t v = 0; v < vocab; v++) sum += m->d_wide[v] = expf(score[v] - top);
        loss += (double)(logf(sum) - (score[right] - top));
        for (size_t v = 0; d && v < vocab; v++) *d++ = (m->d_wide[v] / sum - (v == right)) * scale / (float)n;
    }
    return loss / (double)n;
}

double gpt_loss(gpt *m, const uint8_t *const *seq, size_t batch) {
    return cross_entropy(m, m->score, seq, batch * m->s.context, 1, 0, NULL);
}

static void head_back(gpt *m, size_t n, const float *x, float *dx) {
    const size_t d = m->s.width, vocab = m->s.vocab;
    gemm(vocab, d, n, m->d_score, 1, vocab, x, d, 1, embedding(m)->grad, d);
    gemm(n, d, vocab, m->d_score, vocab, 1, embedding(m)->value, d, 1, dx, d);
}

/* Forward and backward pass of the second head. Adds to d_norm, the derivative of the loss by the output of the last
 * norm. */
static void second_back(gpt *m, const uint8_t *const *seq, size_t n, float scale) {
    const size_t d = m->s.width;
    const float *x = m->l[m->s.layers].norm1;
    memset(m->ahead, 0, n * d * sizeof(float)), memset(m->score, 0, n * m->s.vocab * sizeof(float));
    linear(n, d, d, x, second_head(m)->value, m->ahead);
    gemm(n, m->s.vocab, d, m->ahead, d, 1, embedding(m)->value, 1, d, m->score, m->s.vocab);
    cross_entropy(m, m->score, seq, n, 2, second_weight * scale, m->d_score);
    memset(m->d_wide, 0, n * d * sizeof(float));
    head_back(m, n, m->ahead, m->d_wide);
    linear_back(n, d, d, x, second_head(m), m->d_wide, m->d_norm);
}

double gpt_backward(gpt *m, const uint8_t *const *seq, size_t batch, int second, float scale,
                    void (*ready)(void *user, int i), void *user) {
    const size_t c = m->s.context, d = m->s.width, n = batch * c, bytes = n * d * sizeof(float);
    const layer *l = &m->l[m->s.layers];
    float *wide = m->d_wide;
    const double loss = cross_entropy(m, m->score, seq, n, 1, scale, m->d_score);
    memset(m->dx, 0, bytes), memset(m->d_norm, 0, bytes);
    head_back(m, n, l->norm1, m->d_norm);
    if (second) second_back(m, seq, n, scale);
    if (ready) ready(user, 0);
    norm_back(n, d, l->x, last_norm(m), m->d_norm, m->dx);
    if (ready) ready(user, 1);
    for (size_t at = m->s.layers; at-- > 0;) { /* dx becomes the derivative of the loss by the layer's input */
        param *p = of_layer(m, at, 0);
        const int first = (int)(p - m->p);
        l = &m->l[at];
        memset(wide, 0, 4 * bytes), memset(m->d_norm, 0, bytes);
        linear_back(n, 4 * d, d, l->act, &p[DOWN], m->dx, wide);
        if (ready) ready(user, first + DOWN);
        PARALLEL_IF(n * d > ENOUGH)
        for (size_t i = 0; i < 4 * n * d; i++) wide[i] *= l->up[i] > 0 ? 2 * l->up[i] : 0.0f;
        linear_back(n, d, 4 * d, l->norm2, &p[UP], wide, m->d_norm);
        if (ready) ready(user, first + UP);
        norm_back(n, d, l->mid, &p[NORM2], m->d_norm, m->dx);
        if (ready) ready(user, first + NORM2);
        memset(m->d_norm, 0, bytes);
        linear_back(n, d, d, l->mixed, &p[OUT], m->dx, m->d_norm);
        if (ready) ready(user, first + OUT);
        attention_back(m, batch, l, m->d_norm, wide);
        memset(m->d_norm, 0, bytes);
        linear_back(n, d, 3 * d, l->norm1, &p[QKV], wide, m->d_norm);
        if (ready) ready(user, first + QKV);
        norm_back(n, d, l->x, &p[NORM1], m->d_norm, m->dx);
        if (ready) ready(user, first + NORM1);
    }
    for (size_t i = 0; i < n * d; i++) positions(m)->grad[i % (c * d)] += m->dx[i];
    if (ready) ready(user, (int)m->n_params - 2);
    for (size_t i = 0; i < n * d; i++) embedding(m)->grad[seq[i / d / c][i / d % c] * d + i % d] += m->dx[i];
    if (ready) ready(user, (int)m->n_params - 1);
    return loss;
}

double gpt_clip(gpt *m, double most) {
    double sum = 0;
    for (size_t i = 0; i < m->n_values; i++) sum += (double)m->grad[i] * (double)m->grad[i];
    const double size = sqrt(sum);
    for (size_t i = 0; size > most && i < m->n_values; i++) m->grad[i] *= (float)(most / size);
    return size;
}

void gpt_adamw(gpt *m, size_t step, float lr, float momentum, float decay) {
    const float keep_mean = momentum, keep_square = 0.99f;
    const float to_mean = 1.0f / (1.0f - powf(keep_mean, (float)step)),
                to_square = 1.0f / (1.0f - powf(keep_square, (float)step));
    for (size_t p = 0; p < m->n_params; p++) {
        const size_t first = (size_t)(m->p[p].value - m->value), count = m->p[p].count;
        PARALLEL_IF(count > ENOUGH)
        for (size_t i = first; i < first + count; i++) {
            const float g = m->grad[i];
            m->mean[i] += (1.0f - keep_mean) * (g - m->mean[i]);
            m->square[i] += (1.0f - keep_square) * (g * g - m->square[i]);
            m->value[i] -= lr * (m->mean[i] * to_mean / (sqrtf(m->square[i] * to_square) + 1e-8f) +
                                 (m->p[p].rows ? decay * m->value[i] : 0.0f));
        }
    }
}

void gpt_sgd(gpt *m, float lr, float momentum, float decay) {
    for (size_t p = 0; p < m->n_params; p++) {
        const size_t first = (size_t)(m->p[p].value - m->value), count = m->p[p].count;
        const float shrink = m->p[p].rows ? decay : 0.0f;
        PARALLEL_IF(count > ENOUGH)
        for (size_t i = first; i < first + count; i++) {
            m->mean[i] = momentum * m->mean[i] + m->grad[i];
            m->value[i] -= lr * (m->mean[i] + shrink * m->value[i]);
        }
    }
}
