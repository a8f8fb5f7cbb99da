/* wide.c: a wide and deep model that predicts a text's next character, with few large tensors. The 1 to 4 characters
 * before it are hashed to rows of two tables. Rows of the wide table are added to the scores, and rows of the deep one
 * are the input of a dense layer. The wide table's gradient is ready first, the deep table's last. Computing takes
 * little time for the size of the parameters. */
#include "net.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GRAMS = 4, TABLE = 16384 }; /* longest n-gram, and rows of each table */
enum { WIDE, OUT, DENSE, DEEP };   /* parameters, in backward order */

typedef struct wide {
    size_t n, table;                       /* n is the number of characters to predict */
    uint32_t *row;                         /* [n][GRAMS] rows of the tables */
    uint8_t *right;                        /* [n] the characters to predict */
    float *x, *hidden, *score, *d_h, *d_x; /* activations and derivatives, a row for each character */
} wide;

static int wide_open_table(net *n, uint64_t seed, size_t table) {
    const size_t in = GRAMS * n->width, h = n->hidden, places = n->length * n->batch;
    net_describe(n, "wide", table, n->vocab, 0);
    net_describe(n, "out.weight", h, n->vocab, 1.0f / sqrtf((float)h));
    net_describe(n, "dense.weight", in, h, sqrtf(6.0f / (float)in));
    net_describe(n, "deep", table, n->width, 0.3f);
    wide *m = calloc(1, sizeof *m);
    uint32_t *row = calloc(places * GRAMS, sizeof *row);
    uint8_t *right = calloc(places, 1);
    float *at = calloc(places * (2 * in + 2 * h + n->vocab), sizeof *at);
    if (!m || !row || !right || !at || net_allocate(n, seed)) return -1;
    *m = (wide){places, table, row, right, at, at + places * in, NULL, NULL, NULL};
    m->d_x = m->hidden + places * h, m->d_h = m->d_x + places * in, m->score = m->d_h + places * h;
    n->own = m;
    return 0;
}
static int wide_open(net *n, uint64_t seed) { return wide_open_table(n, seed, TABLE); }

/* For each character to predict, hashes the 1 to 4 characters before it to rows of the tables. At the start of a
 * sequence there are fewer. */
static void hash_rows(const net *n, wide *m, const uint8_t *const *seq) {
    for (size_t i = 0; i < m->n; i++) {
        const size_t at = i % n->length;
        const uint8_t *piece = seq[i / n->length];
        uint64_t hash = 0;
        for (size_t g = 0; g < GRAMS; g++) {
            if (g <= at) hash = hash << 8 | (piece[at - g] + 1u);
            uint64_t mix = hash << 3 | g;
            m->row[i * GRAMS + g] = (uint32_t)(random_u64(&mix) % m->table);
        }
        m->right[i] = piece[at + 1];
    }
}

static void forward(net *n, const uint8_t *const *seq) {
    wide *m = n->own;
    const size_t w = n->width, in = GRAMS * w, h = n->hidden, vocab = n->vocab;
    hash_rows(n, m, seq);
    memset(m->score, 0, m->n * vocab * sizeof(float)), memset(m->hidden, 0, m->n * h * sizeof(float));
    for (size_t i = 0; i < m->n * GRAMS; i++) {
        memcpy(m->x + i * w, n->p[DEEP].value + m->row[i] * w, w * sizeof(float));
        for (size_t v = 0; v < vocab; v++) m->score[i / GRAMS * vocab + v] += n->p[WIDE].value[m->row[i] * vocab + v];
    }
    gemm(m->n, h, in, m->x, in, 1, n->p[DENSE].value, h, 1, m->hidden, h);
    for (size_t i = 0; i < m->n * h; i++) m->hidden[i] = m->hidden[i] > 0 ? m->hidden[i] : 0.0f; /* ReLU */
    gemm(m->n, vocab, h, m->hidden, h, 1, n->p[OUT].value, vocab, 1, m->score, vocab);
}

static void table_back(const wide *m, const net_param *p, const float *d, int shared) {
    memset(p->grad, 0, p->count * sizeof(float));
    for (size_t i = 0; i < m->n * GRAMS; i++) {
        float *to = p->grad + m->row[i] * p->cols;
        const float *from = d + (shared ? i / GRAMS : i) * p->cols;
        for (size_t j = 0; j < p->cols; j++) to[j] += from[j];
    }
}

static double wide_pass(net *n, const uint8_t *const *seq, void (*ready)(void *user, int i), void *user) {
    wide *m = n->own;
    const size_t in = GRAMS * n->width, h = n->hidden, vocab = n->vocab;
    forward(n, seq);
    const double loss = net_cross_entropy(m->score, m->right, m->n, vocab);
    if (!ready) return loss;
    table_back(m, &n->p[WIDE], m->score, 1), ready(user, WIDE);
    memset(n->p[OUT].grad, 0, n->p[OUT].count * sizeof(float));
    gemm(h, vocab, m->n, m->hidden, 1, h, m->score, vocab, 1, n->p[OUT].grad, vocab), ready(user, OUT);
    memset(m->d_h, 0, m->n * h * sizeof(float));
    gemm(m->n, h, vocab, m->score, vocab, 1, n->p[OUT].value, 1, vocab, m->d_h, h);
    for (size_t i = 0; i < m->n * h; i++) m->d_h[i] = m->hidden[i] > 0 ? m->d_h[i] : 0.0f;
    memset(n->p[DENSE].grad, 0, n->p[DENSE].count * sizeof(float));
    gemm(in, h, m->n, m->x, 1, in, m->d_h, h, 1, n->p[DENSE].grad, h), ready(user, DENSE);
    memset(m->d_x, 0, m->n * in * sizeof(float));
    gemm(m->n, in, h, m->d_h, h, 1, n->p[DENSE].value, 1, h, m->d_x, in);
    table_back(m, &n->p[DEEP], m->d_x, 0), ready(user, DEEP);
    return loss;
}

const net_kind net_wide = {"wide", 128, 256, 32, 8, wide_open, wide_pass};
