/* errors.h: the samples of errors.c. */
#ifndef ESP__ERRORS_H
#define ESP__ERRORS_H
#include "espresso_impl/executor/executor.h"

enum {
    ESP__ERRORS_SHARE = 256,
    ESP__ERRORS_LANES = 8,
    ESP__ERRORS_SMALL = 100000,  /* elements: 0.1 ms or less                      */
    ESP__ERRORS_EXACT = 1 << 18, /* elements: up to so many, all of a range are measured */
    ESP__ERRORS_BLOCK = 1 << 12
};

typedef struct esp__errors_unit {
    uint32_t op, unit, samples;
    double error, feedback;
} esp__errors_unit;

struct esp__errors {
    esp__errors_unit *units;                /* the units with a Comp on this rank, by rising op */
    uint32_t n, next, now;                  /* indices: next to sample, and being sampled */
    uint64_t opened_ns, spent_ns, elements; /* elements: measured in spent_ns */
    uint64_t last_step;                     /* 1 + the step of the last sample */
    /* the sample under way */
    double input, lost, gradient, residual; /* sums of squares */
    int sampling;                           /* a sample is under way              */
    int unfit;                              /* it has NaN or Inf, or a payload cannot be decoded */
};

/* A range's arrays: gradient, decoded payload, and residual or NULL, on one device. */
typedef struct esp__errors_arrays {
    uint32_t device;
    const float *of[3];
} esp__errors_arrays;

ESP__FN esp_status esp__errors_add(const esp_ctx *ctx, struct esp__errors *g, const esp__errors_arrays *a, uint64_t n);
#endif
