/* errors.h: samples of compression errors, which errors.c takes. */
#ifndef ESP__ERRORS_H
#define ESP__ERRORS_H
#include "espresso_impl/executor/executor.h"

enum {
    ESP__ERRORS_SHARE = 256, /* samples take less than 1/256 of the run time */
    ESP__ERRORS_LANES = 8,
    ESP__ERRORS_SMALL = 100000,  /* fewer elements take less than 0.1 ms */
    ESP__ERRORS_EXACT = 1 << 18, /* of tensors with more elements, only some are measured */
    ESP__ERRORS_BLOCK = 1 << 12
};

typedef struct esp__errors_unit {
    uint32_t op, unit, samples;
    double error, feedback;
} esp__errors_unit;

struct esp__errors {
    esp__errors_unit *units;
    uint32_t n;
    uint32_t next, now; /* indices in `units`: sampled next, sampled now */
    uint64_t opened_ns;
    uint64_t spent_ns, elements;
    uint64_t last_step;
    double input, lost, gradient, residual;
    bool sampling;
    bool invalid; /* the sample has NaN or Inf, or does not decode */
};

/* Gradient, decoded payload, and residual (or NULL), on one device. */
typedef struct esp__errors_arrays {
    uint32_t device;
    const float *of[3];
} esp__errors_arrays;

ESP__FN esp_status esp__errors_add(const esp_ctx *ctx, struct esp__errors *g, const esp__errors_arrays *a, uint64_t n);
#endif
