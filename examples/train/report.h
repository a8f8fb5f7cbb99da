/* report.h: what a trainer reports after its last step: a line of JSON, and the loss over time. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H
#include "espresso.h"

typedef struct report {
    const char *program; /* the program's name, for error messages */
    size_t steps;
    double *step_ms;
    double *wait_ms; /* each step's wait for gradients, or NULL */
    const double *step_loss;
    double loss, accuracy;
    double bytes;       /* sent between machines, by all ranks in all steps */
    size_t state_bytes; /* bytes of the optimizer's state on this rank */
} report;

/** Returns the bytes that all ranks have sent between machines so far. All ranks call it. */
double report_bytes(esp_ctx *ctx, const char *program);
/** Ends the process unless the `n` parameter values have the same bits on all ranks, as they must with any codec. All
 * ranks call it. */
void report_compare(esp_ctx *ctx, const char *program, const float *values, size_t n);
/** Writes a line per step to `path`: step, seconds, loss. Ends the process on an error, as report_json does. */
void report_curve(const report *r, const char *path);
/** Writes the result as a line of JSON to `path` ("-" means the standard output). Sorts step_ms and wait_ms.
 * settled_step_ms is the median of the second half of the steps, because with strategy auto the first half includes its
 * measurements. */
void report_json(const report *r, const esp_ctx *ctx, const char *path);
#endif
