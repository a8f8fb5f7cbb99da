/* errors.h: the samples of errors.c. */
#ifndef ESP__ERRORS_H
#define ESP__ERRORS_H
#include "espresso_impl/executor/executor.h"

enum {
    ESP__ERRORS_SHARE = 256, /* samples take less than 1 / SHARE of the time */
    ESP__ERRORS_LANES = 8,
    ESP__ERRORS_SMALL = 100000,  /* elements that take 0.1 ms or less */
    ESP__ERRORS_EXACT = 1 << 18, /* larger ranges are measured in part */
    ESP__ERRORS_BLOCK = 1 << 12
};

typedef struct esp__errors_unit {
    uint32_t op, unit, samples;
    double error, feedback;
} esp__errors_unit;

struct esp__errors {
    esp__errors_unit *units;     /* units with a Comp on this rank, by op */
    uint32_t n, next, now;       /* indices of the next and current sample */
    uint64_t opened_ns;          /* when the strategy was activated */
    uint64_t spent_ns, elements; /* time of all samples, and their elements */
    uint64_t last_step;          /* 1 + the step of the last sample */
    /* the current sample */
    double input, lost, gradient, residual; /* sums of squares */
    bool sampling;
    bool invalid; /* NaN or Inf, or its payload cannot be decoded */
};

/* A range's arrays: gradient, decoded payload, and residual or NULL, on one device. */
typedef struct esp__errors_arrays {
    uint32_t device;
    const float *of[3];
} esp__errors_arrays;

ESP__FN esp_status esp__errors_add(const esp_ctx *ctx, struct esp__errors *g, const esp__errors_arrays *a, uint64_t n);
#endif
