/* model_profile.h: the recorder of the times at which gradients become ready (ESPRESSO_PROFILE). */
#ifndef ESP__MODEL_PROFILE_H
#define ESP__MODEL_PROFILE_H
#include "espresso_impl/base/machine.h"
#include "espresso_impl/executor/executor.h"

/* What a rank reports: this struct, then for each tensor a double, the ns from the forward pass' begin until it was
 * ready. */
typedef struct esp__profile_rank {
    double forward_ns;
    double stolen;
    double spread;
    uint32_t cores, reserved0;
} esp__profile_rank;

typedef struct esp__profile {
    char *path, *name;
    uint32_t steps, skip;
    uint64_t seen;
    uint64_t *ready;
    uint64_t *forward;
    double *sorted;
    uint8_t *mine, *all;
    uint64_t bytes;
    esp__machine_time time;
    bool done;
} esp__profile;

/* Collective. Fails if the recording settings of ranks differ. r is NULL on a rank that does not record. */
ESP__FN esp_status esp__profile_agree(esp_ctx *ctx, const esp__profile *r, esp_status mine);
ESP__FN void esp__profile_mine(const esp_ctx *ctx, esp__profile *r, uint32_t n);
/* The recorder warns if the backward times of steps vary by more than this share of the step. */
static const double esp__profile_noisy_spread = 0.3;
#endif
