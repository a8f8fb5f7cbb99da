#include "net.h"
#include "examples/train/parallel.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ENOUGH = 10000 }; /* loops over more numbers use several threads */

uint64_t random_u64(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void net_describe(net *n, const char *name, size_t rows, size_t cols, float spread) {
    net_param *p = &n->p[n->n_params++];
    *p = (net_param){.count = rows * cols, .spread = spread};
    snprintf(p->name, sizeof p->name, "%s", name);
    if (rows > 1) p->rows = rows, p->cols = cols;
    n->n_values += p->count;
}

int net_allocate(net *n, uint64_t seed) {
    n->value = calloc(3 * n->n_values, sizeof *n->value);
    if (!n->value) return -1;
    n->grad = n->value + n->n_values, n->velocity = n->grad + n->n_values;
    size_t at = 0;
    for (size_t i = 0; i < n->n_params; at += n->p[i++].count) {
        net_param *p = &n->p[i];
        p->value = n->value + at, p->grad = n->grad + at, p->velocity = n->velocity + at;
        for (size_t j = 0; j < p->count; j++)
            p->value[j] = p->spread * ((float)(random_u64(&seed) >> 40) * 0x1p-23f - 1.0f);
    }
    return 0;
}

void net_update(net *n, float lr, float momentum, double most) {
    double sum = 0;
    for (size_t i = 0; i < n->n_values; i++) sum += (double)n->grad[i] * (double)n->grad[i];
    const float scale = sum > most * most ? (float)(most / sqrt(sum)) : 1.0f;
    PARALLEL_IF(n->n_values > ENOUGH)
    for (size_t i = 0; i < n->n_values; i++) {
        n->velocity[i] = momentum * n->velocity[i] + scale * n->grad[i];
        n->value[i] -= lr * n->velocity[i];
    }
}

double net_cross_entropy(float *score, const uint8_t *right, size_t n_rows, size_t vocab) {
    double loss = 0;
    for (size_t i = 0; i < n_rows; i++, score += vocab) {
        float top = score[0], sum = 0;
        for (size_t v = 1; v < vocab; v++) top = score[v] > top ? score[v] : top;
        const float of_right = score[right[i]] - top;
        for (size_t v = 0; v < vocab; v++) sum += score[v] = expf(score[v] - top);
        loss += (double)(logf(sum) - of_right);
        for (size_t v = 0; v < vocab; v++) score[v] = (score[v] / sum - (v == right[i])) / (float)n_rows;
    }
    return loss / (double)n_rows;
}
