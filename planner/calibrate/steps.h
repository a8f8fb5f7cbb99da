/* steps.h: how the collectives of a step correct a calibration. */
#ifndef ESP__STEPS_H
#define ESP__STEPS_H
#include "planner/calibrate/costs.h"

/* How much longer a step's ops took than their points predict: the sum and the number of ops, by lane. */
typedef struct esp__calibration_longer {
    double ns[ESP__LANES];
    uint32_t n[ESP__LANES];
} esp__calibration_longer;

/* Takes a collective of the step into account: it took ns, and used a core for core_ns. */
ESP__FN void esp__calibration_op(esp_ctx *ctx, esp__calibration *s, const esp__op *op, double ns, double core_ns,
                                 esp__calibration_longer *longer);
#endif
