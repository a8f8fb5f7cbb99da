/* model_profile.h: the recorded times of model_profile.c, and what ranks exchange of them. */
#ifndef ESP__MODEL_PROFILE_H
#define ESP__MODEL_PROFILE_H
#include "espresso_impl/base/machine.h"
#include "espresso_impl/executor/executor.h"

/* What a rank reports: this struct, then for each tensor a double, the ns from the forward pass' begin until it was
 * ready. */
typedef struct esp__profile_rank {
    double forward_ns;
    double stolen;
    double spread; /* of backward's times: (p90 - p10) / median */
    uint32_t cores, reserved0;
} esp__profile_rank;

typedef struct esp__profile {
    char *path, *name;
    uint32_t steps, skip; /* steps to record, and to skip before */
    uint64_t seen;
    uint64_t *ready;   /* [steps][n_tensors] times from esp__meter_ready */
    uint64_t *forward; /* [steps] ns from the step's begin to its first push */
    double *sorted;
    uint8_t *mine, *all;
    uint64_t bytes;
    esp__machine_time time; /* CPU times when the first recorded step began */
    bool done;
} esp__profile;

/* Collective. Fails if settings differ, as all ranks must exchange after the same step. r is NULL if a rank does not
 * record. */
ESP__FN esp_status esp__profile_agree(esp_ctx *ctx, const esp__profile *r, esp_status mine);
ESP__FN void esp__profile_mine(const esp_ctx *ctx, esp__profile *r, uint32_t n);
/* A spread of the backward time above this share of the step is noise. */
static const double esp__profile_noisy_spread = 0.3;
#endif
