/* steps.h: adds the collectives of a training step to a calibration. */
#ifndef ESP__STEPS_H
#define ESP__STEPS_H
#include "planner/calibrate/costs.h"

/* For each lane, how much longer a step's ops took than their points predict: the sum, and the number of ops. */
typedef struct esp__calibration_longer {
    double ns[ESP__LANES];
    uint32_t n[ESP__LANES];
} esp__calibration_longer;

/* Adds a collective of the step, which took `ns` of wall time and `core_ns` of core time, to the observations. */
ESP__FN void esp__calibration_op(esp_ctx *ctx, esp__calibration *s, const esp__op *op, double ns, double core_ns,
                                 esp__calibration_longer *longer);
#endif
