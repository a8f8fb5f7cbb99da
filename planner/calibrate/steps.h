/* steps.h: adds the collectives and codec calls of a training step to a calibration. */
#ifndef ESP__STEPS_H
#define ESP__STEPS_H
#include "planner/calibrate/costs.h"

/* For each thread and link: by how much the ops of a step exceed the predicted times (sum), and the number of ops. */
typedef struct esp__calibration_longer {
    double ns[ESP__LANES];
    uint32_t n[ESP__LANES];
} esp__calibration_longer;

/* Returns the bytes of the collective in cost curves, or 0 if its time is not recorded. */
ESP__FN uint64_t esp__calibration_op_size(const esp_coll *c);
/* Adds a collective of the step to the observations. It took `ns` in all and `core_ns` on a processor core. */
ESP__FN void esp__calibration_op(esp_ctx *ctx, esp__calibration *s, const esp__op *op, uint64_t bytes, double ns,
                                 double core_ns, esp__calibration_longer *longer);
/* Adds a codec op of the step: it took `ns` on a processor core, and compressed `elements`, or decompressed `sources`
 * payloads of the same elements, of which the first is written and the others added. */
ESP__FN void esp__calibration_codec_op(esp__calibration_codec *k, bool compress, double elements, uint32_t sources,
                                       double ns);
#endif
