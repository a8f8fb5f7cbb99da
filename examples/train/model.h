/* model.h: a small network for images: three dense layers with ReLU between. Independent of espresso: backward calls
 * back for each complete gradient. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H
#include <stddef.h>
#include <stdint.h>

/** c (m x n) += a * b. Element (i, p) of a is a[i * a_row + p * a_col], so a transposed matrix needs only other
 *  strides; the same for b (k x n). Rows of c are c_row apart. */
void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row);

enum { N_LAYERS = 3, N_PARAMS = 2 * N_LAYERS };

/** A parameter, which the optimizer updates, and its gradient, which espresso synchronises: `count` numbers each. rows
 *  and cols are 0 for a bias. This rank's optimizer updates value[begin] to value[begin + n - 1] only, and has state
 *  for them. */
typedef struct param {
    const char *name;
    size_t count, rows, cols, begin, n;
    float *value, *grad;
    float *momentum; /* n numbers */
    float *exact;    /* n values in fp32, or NULL where `value` is not rounded */
} param;

typedef struct model {
    param p[N_PARAMS];          /* in backward order: the last layer's first */
    size_t n_values;            /* of all parameters, contiguous at p[0].value */
    size_t width[N_LAYERS + 1]; /* pixels, each hidden layer's inputs, classes */
    float *x[N_LAYERS + 1];     /* batch x width: images, activations, scores */
    float *dx[N_LAYERS + 1];    /* the loss's derivative by x */
} model;

/** Allocates memory, which is never freed, and draws the initial values from `seed`. Returns -1 when memory is
 *  short. */
int model_open(model *m, size_t pixels, size_t classes, size_t max_batch, uint64_t seed);
/** Scores of the n images in x[0]: n x classes, valid until the next call. */
const float *model_forward(model *m, size_t n);
/** After forward: computes all gradients (means over the images) and returns the mean loss. Calls ready(user, i) as
 *  soon as p[i].grad is complete. */
float model_backward(model *m, const uint8_t *labels, size_t n, void (*ready)(void *user, int i), void *user);
/** Allocates the optimizer's state for each parameter's begin and n, which the caller has set, with exact values where
 *  `rounded`. Returns its bytes, or 0 when memory is short. */
size_t model_state(model *m, int rounded);
/** SGD with momentum. */
void model_update(model *m, float lr, float momentum);
/** 64 random bits (splitmix64). */
uint64_t random_u64(uint64_t *state);
#endif
