/* model.h: a small GPT: decoder only, norms before each block, no biases. The embedding matrix is also the output
 * projection, so its gradient is complete only at the end of backward. A second head, which predicts the character
 * after the next, is trained in some steps only. Independent of espresso: backward calls back for each complete
 * gradient. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H
#include <stddef.h>
#include <stdint.h>

/** c (m x n) += a * b. Element (i, p) of a is a[i * a_row + p * a_col], so a transposed matrix needs only other
 *  strides; the same for b (k x n). Rows of c are c_row apart. */
void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row);

enum { MAX_LAYERS = 12, MAX_PARAMS = 4 + 6 * MAX_LAYERS };

/** A parameter, which the optimizer updates, and its gradient, which espresso synchronises: `count` numbers each.
 *  rows and cols are 0 where it is not a matrix. */
typedef struct param {
    char name[32];
    size_t count, rows, cols;
    float *value, *grad;
} param;

typedef struct shape {
    size_t vocab, context, width, heads, layers, batch;
} shape;

/** One layer's activations, which backward needs: a row for each character of the batch. */
typedef struct layer {
    float *x, *norm1, *qkv, *weight, *mixed, *mid, *norm2, *up, *act;
} layer;

typedef struct gpt {
    shape s;
    /* in backward order: second head, last norm, the last layer ... the first, positions, embedding */
    param p[MAX_PARAMS];
    size_t n_params, n_values;
    float *value, *mean, *square, *grad; /* of all parameters; a checkpoint has the first three */
    layer l[MAX_LAYERS + 1];             /* the last entry has x and norm1 of the output */
    float *ahead;                        /* the second head's output */
    float *score, *d_score;              /* batch x context x vocab */
    float *dx, *d_norm, *d_wide, *d_weight;
} gpt;

/** Allocates memory, which is never freed, and draws the initial values from `seed`. Returns -1 when memory is
 *  short. */
int gpt_open(gpt *m, shape s, uint64_t seed);
/** Scores of the next character after each of seq[b][0 .. context - 1]: batch x context x vocab, valid until the next
 *  call. */
const float *gpt_forward(gpt *m, const uint8_t *const *seq, size_t batch);
/** After forward: the mean loss (nats per character) of seq[b][1 .. context]. */
double gpt_loss(gpt *m, const uint8_t *const *seq, size_t batch);
/** After forward: adds `scale` times the loss's gradients to all p[i].grad, with `second` also those of the second head
 *  (which reads seq[b][context + 1]). Calls ready(user, i), unless it is NULL, as soon as p[i].grad is complete.
 *  Returns gpt_loss. */
double gpt_backward(gpt *m, const uint8_t *const *seq, size_t batch, int second, float scale,
                    void (*ready)(void *user, int i), void *user);
/** Scales the gradients so that their norm is at most `most`. Returns their norm before that. */
double gpt_clip(gpt *m, double most);
/** AdamW. `step` counts from 1, `momentum` is beta 1. */
void gpt_adamw(gpt *m, size_t step, float lr, float momentum, float decay);
/** SGD with momentum. */
void gpt_sgd(gpt *m, float lr, float momentum, float decay);
/** 64 random bits (splitmix64). */
uint64_t random_u64(uint64_t *state);
#endif
