/* profile.h: what the profile recorder keeps, and what ranks exchange of it. */
#ifndef ESP__PROFILE_H
#define ESP__PROFILE_H
#include "espresso_impl/base/machine.h"
#include "espresso_impl/executor/executor.h"

/* One rank's result: this struct, then an esp__profile_tensor for each tensor. */
typedef struct esp__profile_rank {
    double forward_ns, stolen;
    double spread; /* (p90 - p10) / median over steps of the time from the first gradient to the last */
    uint32_t cores, reserved0;
} esp__profile_rank;

typedef struct esp__profile_tensor {
    double ready_ns; /* since the forward pass began  */
    double spread;   /* (p90 - p10) / median over steps of the time since the tensor before was ready */
} esp__profile_tensor;

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

/* Ranks exchange after the same step, so all must have the same settings. */
ESP__FN esp_status esp__profile_agree(esp_ctx *ctx, const esp__profile *r, esp_status mine);
/* Writes the medians of the n recorded steps into r->mine. */
ESP__FN void esp__profile_mine(const esp_ctx *ctx, esp__profile *r, uint32_t n);
/* The median of the tensors' spreads, each weighted by its part of the backward time. `room`: for n tensors. */
ESP__FN double esp__profile_spread(const esp__profile_tensor *t, uint32_t n, double forward_ns,
                                   esp__profile_tensor *room);
static const double esp__profile_noisy_spread = 0.5;
/* How much the times spread. Ranks that share cores take turns, a tick of the scheduler each: single gaps always spread then, and only the
 * whole backward says whether others took part. `room`: for the tensors. */
ESP__FN double esp__profile_unrest(const esp_ctx *ctx, const esp__profile_rank *head, esp__profile_tensor *room);
#endif
