/* report.h: what a trainer reports after its last step: a line of JSON, and a curve. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H
#include "espresso.h"

typedef struct report {
    const char *program; /* for messages */
    size_t steps;
    double *step_ms;
    double *wait_ms; /* each step's wait for gradients, or NULL */
    const double *step_loss;
    double loss, accuracy;
    double bytes;       /* between machines, of all steps and ranks */
    size_t state_bytes; /* of the optimizer's state on this rank */
} report;

/** Bytes between machines so far, by all ranks' counters. All ranks call it. */
double report_bytes(esp_ctx *ctx, const char *program);
/** Ends the process unless all ranks' parameters (`n` numbers) have the same bits, which must be so after any number of
 *  steps and with any codec. All ranks call it. */
void report_compare(esp_ctx *ctx, const char *program, const float *values, size_t n);
/** Writes a line a step: step, seconds, loss. Ends the process if that fails; so does report_json. */
void report_curve(const report *r, const char *path);
/** Writes the result as one line to `path`, where "-" is the standard output. Sorts step_ms and wait_ms.
 *  settled_step_ms is the median of the second half of the steps, since an autopilot measures in the first ones. */
void report_json(const report *r, const esp_ctx *ctx, const char *path);
#endif
