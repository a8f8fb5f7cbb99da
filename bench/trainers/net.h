/* net.h: what both models of this folder share: parameters with gradients, first values, the update. The matrix
 * product is examples/train's, the text examples/gpt's. Models do not call espresso: backward only reports which
 * gradient is ready. */
#ifndef BENCH_TRAINERS_NET_H
#define BENCH_TRAINERS_NET_H
#include "examples/gpt/text.h"
#include <stddef.h>
#include <stdint.h>

/** Computes c (m x n) += a * b, where every matrix may have its own strides. */
void gemm(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
          size_t b_col, float *c, size_t c_row);
/** Returns 64 random bits (splitmix64). */
uint64_t random_u64(uint64_t *state);

enum { NET_PARAMS = 16 };

/** A parameter and its gradient, `count` numbers each. rows and cols are 0 if it is no matrix. */
typedef struct net_param {
    char name[32];
    size_t count, rows, cols;
    float spread; /* first values are between -spread and spread */
    float *value, *grad, *velocity;
} net_param;

typedef struct net {
    net_param p[NET_PARAMS]; /* in backward order */
    size_t n_params, n_values;
    float *value, *grad, *velocity; /* all parameters, one after the other */
    size_t vocab, width, hidden, length, batch;
    void *own; /* the model's activations */
} net;

/* A model. Its input is `batch` pieces of `length` characters; it predicts the character after each of them. */
typedef struct net_kind {
    const char *name;
    size_t width, hidden, length, batch; /* default sizes of the model */
    int (*open)(net *n, uint64_t seed);  /* n's sizes are set; returns -1 if memory is short */
    /* Returns the mean loss, in nats per character, of predicting characters seq[b][1 .. length], each from those
     * before it. If `ready` is not NULL, also computes all gradients, and calls `ready` when gradient i is complete. */
    double (*pass)(net *n, const uint8_t *const *seq, void (*ready)(void *user, int i), void *user);
} net_kind;
extern const net_kind net_lstm, net_wide;

/** Adds a parameter. */
void net_describe(net *n, const char *name, size_t rows, size_t cols, float spread);
/** Allocates all parameters and draws their first values. Returns -1 without memory. */
int net_allocate(net *n, uint64_t seed);
/** Scales the gradients to a norm of at most `most`, and updates the values (SGD with momentum). */
void net_update(net *n, float lr, float momentum, double most);
/** Returns the cross entropy of softmax(score) against `right`, and replaces the scores, n_rows x vocab, by
 * derivatives. */
double net_cross_entropy(float *score, const uint8_t *right, size_t n_rows, size_t vocab);
#endif
