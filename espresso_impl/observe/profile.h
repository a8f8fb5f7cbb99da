/* profile.h: what the profile recorder keeps, and what ranks exchange of it. */
#ifndef ESP__PROFILE_H
#define ESP__PROFILE_H
#include "espresso_impl/base/machine.h"
#include "espresso_impl/executor/executor.h"

/* One rank's result: this struct, then for each tensor the time from the begin of the forward pass until it is ready, a double. */
typedef struct esp__profile_rank {
    double forward_ns, stolen;
    double spread; /* (p90 - p10) / median over steps of the time from the first gradient to the last */
    uint32_t cores, reserved0;
} esp__profile_rank;

typedef struct esp__profile {
    char *path, *name;
    uint32_t steps, skip; /* record `steps` steps after `skip` steps that are not recorded */
    uint64_t seen;
    uint64_t *ready;   /* [steps][n_tensors], from esp__meter_ready           */
    uint64_t *forward; /* [steps] nanoseconds from the step's begin to its first push */
    double *sorted;    /* [steps] for sorting */
    uint8_t *mine, *all;
    uint64_t bytes;         /* of `mine`; `all` has room for one from each rank */
    esp__machine_time time; /* of the machine, when the first recorded step began */
    int done;
} esp__profile;

/* Ranks exchange after the same step, so all must have the same settings. r NULL: this rank does not record. */
ESP__FN esp_status esp__profile_agree(esp_ctx *ctx, const esp__profile *r, esp_status mine);
/* Writes the medians of the n recorded steps into r->mine. */
ESP__FN void esp__profile_mine(const esp_ctx *ctx, esp__profile *r, uint32_t n);
static const double esp__profile_noisy_spread = 0.5;
#endif
