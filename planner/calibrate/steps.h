/* steps.h: how the collectives of a step correct a survey. */
#ifndef ESP__STEPS_H
#define ESP__STEPS_H
#include "planner/calibrate/costs.h"

/* By how much longer a step's ops took than their points say: the sum and the number of ops, by lane. */
typedef struct esp__survey_longer {
    double ns[ESP__LANES];
    uint32_t n[ESP__LANES];
} esp__survey_longer;

/* A collective of the step took ns, of which core_ns of a core. */
ESP__FN void esp__survey_op(esp_ctx *ctx, esp__survey *s, const esp__op *op, double ns, double core_ns,
                            esp__survey_longer *longer);
#endif
