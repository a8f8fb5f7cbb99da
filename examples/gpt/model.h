/* model.h: a small GPT, decoder only, norms first, without biases. The embedding matrix is also the output projection, so its
 * gradient is whole only at the end of backward. A second head, for the character after the next one, takes part in some
 * steps only. Knows nothing of ranks or of espresso: backward only says which gradient has just become ready. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H
#include <stddef.h>
#include <stdint.h>

/** c (m x n) += a * b. Element (i, p) of a is a[i * a_row + p * a_col], so that a transposed matrix is only other steps;
 *  the same for b (k x n). Rows of c are c_row apart. */
void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row);

enum { MAX_LAYERS = 12, MAX_PARAMS = 4 + 6 * MAX_LAYERS };

/** What the optimizer updates and espresso synchronises: `count` numbers; rows and cols are 0 where it is not a matrix. */
typedef struct param {
    char name[32];
    size_t count, rows, cols;
    float *value, *grad;
} param;

typedef struct shape {
    size_t vocab, context, width, heads, layers, batch;
} shape;

/** What one layer keeps for backward: a row a character, for all of the batch. */
typedef struct layer {
    float *x, *norm1, *qkv, *weight, *mixed, *mid, *norm2, *up, *act;
} layer;

typedef struct gpt {
    shape s;
    param p
        [MAX_PARAMS]; /* in backward order: second head, last norm, the last layer ... the first, positions, embedding */
    size_t n_params, n_values;
    float *value, *mean, *square, *grad; /* of all parameters; the first three are what a checkpoint holds */
    layer l[MAX_LAYERS + 1];             /* of the one behind the last: x and norm1                        */
    float *ahead;                        /* what the second head makes of the last norm                    */
    float *score, *d_score;              /* batch x context x vocab                                        */
    float *dx, *d_norm, *d_wide, *d_weight;
} gpt;

/** Takes memory, for all of the run, and draws the first values from `seed`. -1 when memory is short. */
int gpt_open(gpt *m, shape s, uint64_t seed);
/** Scores of the next character after every one of seq[b][0 .. context - 1]: batch x context x vocab, until the next call. */
const float *gpt_forward(gpt *m, const uint8_t *const *seq, size_t batch);
/** After forward: the mean loss (nats a character) of seq[b][1 .. context], also with the second head's where `second`. */
double gpt_loss(gpt *m, const uint8_t *const *seq, size_t batch);
/** After forward: adds `scale` times the loss's gradients to all p[i].grad; second: the second head takes part (it reads
 *  seq[b][context + 1]). ready(user, i), where it is not NULL, is told as p[i].grad is done. Returns gpt_loss. */
double gpt_backward(gpt *m, const uint8_t *const *seq, size_t batch, int second, float scale,
                    void (*ready)(void *user, int i), void *user);
/** Scales the gradients so that their norm is at most `most`. Returns the norm that they had. */
double gpt_clip(gpt *m, double most);
/** AdamW; `step` counts from 1. */
void gpt_update(gpt *m, size_t step, float lr, float decay);
/** 64 random bits (splitmix64). */
uint64_t random_u64(uint64_t *state);
#endif
