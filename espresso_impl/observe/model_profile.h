/* model_profile.h: the data of model_profile.c, and what ranks exchange of it. */
#ifndef ESP__MODEL_PROFILE_H
#define ESP__MODEL_PROFILE_H
#include "espresso_impl/base/machine.h"
#include "espresso_impl/executor/executor.h"

/* A rank's result: this struct, then for each tensor a double, when it was ready in ns after the forward pass began. */
typedef struct esp__profile_rank {
    double forward_ns;
    double stolen; /* fraction of its time that the hypervisor took */
    double spread; /* of backward's time in all steps: (p90 - p10) / median */
    uint32_t cores, reserved0;
} esp__profile_rank;

typedef struct esp__profile {
    char *path, *name;
    uint32_t steps, skip;   /* number of steps to record, and to skip before */
    uint64_t seen;          /* number of steps so far */
    uint64_t *ready;        /* [steps][n_tensors] times of esp__meter_ready */
    uint64_t *forward;      /* [steps] ns from a step's begin to its first push */
    double *sorted;         /* [steps] memory for sorting */
    uint8_t *mine, *all;    /* esp__profile_rank of this rank, and of all ranks */
    uint64_t bytes;         /* size of `mine` */
    esp__machine_time time; /* processor time when the first recorded step began */
    bool done;
} esp__profile;

/* Collective: fails if settings differ, as ranks exchange after the same step. r is NULL if a rank does not record. */
ESP__FN esp_status esp__profile_agree(esp_ctx *ctx, const esp__profile *r, esp_status mine);
/* Writes the medians of the n recorded steps into r->mine. */
ESP__FN void esp__profile_mine(const esp_ctx *ctx, esp__profile *r, uint32_t n);
static const double esp__profile_noisy_spread = 0.5;
#endif
