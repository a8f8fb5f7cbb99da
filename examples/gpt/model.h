/* model.h: a small GPT: decoder only, a norm before each block, no biases. The embedding matrix is also the output
 * projection, so its gradient is complete only at the end of backward. A second head, which predicts the character
 * after the next one, is trained in some steps only. The model does not use espresso: backward calls a function of the
 * caller for each complete gradient. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H
#include <stddef.h>
#include <stdint.h>

/** Computes c += a * b, where c is m x n, a is m x k and b is k x n. Element (i, p) of a is a[i * a_row + p * a_col],
 * so that a transposed matrix only needs other strides; the same holds for b. Rows of c are c_row numbers apart. */
void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row);

enum { MAX_LAYERS = 12, MAX_PARAMS = 4 + 6 * MAX_LAYERS };

/** A parameter of `count` numbers, which the optimizer updates, and its gradient, which espresso averages. rows and
 * cols are 0 if it is not a matrix. */
typedef struct param {
    char name[32];
    size_t count, rows, cols;
    float *value, *grad;
} param;

typedef struct shape {
    size_t vocab, context, width, heads, layers, batch;
} shape;

/** A layer's activations, which backward needs. Each has a row for each character of the batch. */
typedef struct layer {
    float *x, *norm1, *qkv, *weight, *mixed, *mid, *norm2, *up, *act;
} layer;

typedef struct gpt {
    shape s;
    /* In backward order: second head, last norm, the layers from last to first, positions, embedding. */
    param p[MAX_PARAMS];
    size_t n_params, n_values;
    float *value, *mean, *square, *grad; /* of all parameters; checkpoints hold the first three */
    layer l[MAX_LAYERS + 1];             /* the last entry holds the output */
    float *ahead;                        /* the second head's output */
    float *score, *d_score;              /* batch x context x vocab */
    float *dx, *d_norm, *d_wide, *d_weight;
} gpt;

/** Allocates memory, which is never freed, and draws initial values from `seed`. Returns -1 if memory is short. */
int gpt_open(gpt *m, shape s, uint64_t seed);
/** Returns scores for the character after each of seq[b][0 .. context - 1], as batch x context x vocab numbers that are
 * valid until the next call. */
const float *gpt_forward(gpt *m, const uint8_t *const *seq, size_t batch);
/** After gpt_forward, returns the mean loss (nats per character) of seq[b][1 .. context]. */
double gpt_loss(gpt *m, const uint8_t *const *seq, size_t batch);
/** After gpt_forward, adds `scale` times the loss's gradients to p[i].grad; with `second` also those of the second
 * head, which reads seq[b][context + 1]. Calls ready(user, i), unless ready is NULL, as soon as p[i].grad is complete.
 * Returns the mean loss. */
double gpt_backward(gpt *m, const uint8_t *const *seq, size_t batch, int second, float scale,
                    void (*ready)(void *user, int i), void *user);
/** Scales all gradients so that their norm is at most `most`. Returns the norm before that. */
double gpt_clip(gpt *m, double most);
/** Updates the parameters by AdamW. `step` counts from 1, `momentum` is beta 1. */
void gpt_adamw(gpt *m, size_t step, float lr, float momentum, float decay);
/** Updates the parameters by SGD with momentum. */
void gpt_sgd(gpt *m, float lr, float momentum, float decay);
/** Returns 64 random bits (splitmix64). */
uint64_t random_u64(uint64_t *state);
#endif
