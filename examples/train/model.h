/* model.h: a small network for images, with three dense layers and ReLU between them. It does not use espresso:
 * backward calls a function of the caller for each complete gradient. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H
#include <stddef.h>
#include <stdint.h>

/** Computes c += a * b, where c is m x n, a is m x k and b is k x n. Element (i, p) of a is a[i * a_row + p * a_col],
 * so that a transposed matrix only needs other strides; the same holds for b. Rows of c are c_row numbers apart. */
void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row);

enum { N_LAYERS = 3, N_PARAMS = 2 * N_LAYERS };

/** A parameter of `count` numbers, and its gradient, which espresso averages. rows and cols are 0 for a bias. The
 * optimizer of this rank updates only the n numbers from value[begin] on, and has state for these. */
typedef struct param {
    const char *name;
    size_t count, rows, cols, begin, n;
    float *value, *grad;
    float *momentum; /* n numbers */
    float *exact;    /* n values in fp32, or NULL if `value` is fp32 too */
} param;

typedef struct model {
    param p[N_PARAMS];          /* in backward order, the last layer first */
    size_t n_values;            /* number of all values, contiguous at p[0].value */
    size_t width[N_LAYERS + 1]; /* pixels, inputs of each hidden layer, classes */
    float *x[N_LAYERS + 1];     /* batch x width: images, activations, scores */
    float *dx[N_LAYERS + 1];    /* derivative of the loss by x */
} model;

/** Allocates memory, which is never freed, and draws initial values from `seed`. Returns -1 if memory is short. */
int model_open(model *m, size_t pixels, size_t classes, size_t max_batch, uint64_t seed);
/** Returns the scores (n x classes) of the n images in x[0]. They are valid until the next call. */
const float *model_forward(model *m, size_t n);
/** After model_forward, computes all gradients (means over the images), and returns the mean loss. Calls ready(user, i)
 * as soon as p[i].grad is complete. */
float model_backward(model *m, const uint8_t *labels, size_t n, void (*ready)(void *user, int i), void *user);
/** Allocates the optimizer's state for elements [begin, begin + n) of each parameter. If `rounded`, also keeps their
 * fp32 values, because the parameters have fewer bits. Returns the state's bytes, or 0 if memory is short. */
size_t model_state(model *m, int rounded);
/** Updates the parameters by SGD with momentum. */
void model_update(model *m, float lr, float momentum);
/** Returns 64 random bits (splitmix64). */
uint64_t random_u64(uint64_t *state);
#endif
