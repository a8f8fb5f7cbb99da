/* errors.h: the state of errors.c, which samples compression errors. */
#ifndef ESP__ERRORS_H
#define ESP__ERRORS_H
#include "espresso_impl/executor/executor.h"

enum {
    ESP__ERRORS_SHARE = 256, /* samples take less than 1 / SHARE of the run time */
    ESP__ERRORS_LANES = 8,
    ESP__ERRORS_SMALL = 100000,  /* so few elements take 0.1 ms or less */
    ESP__ERRORS_EXACT = 1 << 18, /* of ranges with more elements, only blocks are measured */
    ESP__ERRORS_BLOCK = 1 << 12
};

typedef struct esp__errors_unit {
    uint32_t op, unit, samples;
    double error, feedback;
} esp__errors_unit;

struct esp__errors {
    esp__errors_unit *units;     /* units that this rank compresses, ordered by first op */
    uint32_t n, next, now;       /* number of units; index of the next, of the current one */
    uint64_t opened_ns;          /* when the current strategy was activated */
    uint64_t spent_ns, elements; /* time and elements of all samples so far */
    uint64_t last_step;          /* 1 + the step of the last sample */
    /* sums of squares of the current sample */
    double input, lost, gradient, residual;
    bool sampling;
    bool invalid; /* it has NaN or Inf, or a payload that does not decode */
};

/* The arrays of a range on one device: gradient, decoded payload, and residual (may be NULL). */
typedef struct esp__errors_arrays {
    uint32_t device;
    const float *of[3];
} esp__errors_arrays;

ESP__FN esp_status esp__errors_add(const esp_ctx *ctx, struct esp__errors *g, const esp__errors_arrays *a, uint64_t n);
#endif
