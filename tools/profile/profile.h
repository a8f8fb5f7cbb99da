/* profile.h: shared by the files of `espresso profile codecs` and `espresso profile links`. The command runs itself
 * as ranks (tools/common/ranks.c). All ranks measure (espresso_impl/costs/costs.h), rank 0 writes. A profile is
 * noisy if: */
#include "espresso_impl/base/machine.h"

#ifndef ESPRESSO_TOOLS_PROFILE_H
#define ESPRESSO_TOOLS_PROFILE_H

enum { PROFILE_SIZES_MAX = ESP__SURVEY_POINTS, PROFILE_PASSES = 3, PROFILE_RUNS_MAX = 16 };
#define PROFILE_NOISY_OTHERS 0.10 /* other programs took this share of the machine's time,                      */
#define PROFILE_NOISY_STOLEN 0.02 /* or the host of this virtual machine did (steal),                           */
#define PROFILE_NOISY_SPREAD 0.50 /* or a typical point's quartiles were this far apart, as a share of its time */

typedef struct profile_job {
    const tool_command *command;
    long n, machines, machines_said;
    const char *inter, *backend, *out;
    const char *codecs[ESP__SURVEY_CODECS];
    uint32_t n_codecs;
    uint64_t sizes[PROFILE_SIZES_MAX]; /* elements for codecs, bytes for collectives */
    uint32_t n_sizes, n_done;          /* done: measured within the time budget      */
    double budget_ns;
    int json, shared_cores; /* shared_cores -1: to be found out */
    uint32_t devices;       /* that compress: bits 1 << ESP_PLAN_CPU, 1 << ESP_PLAN_GPU */
    long runs[PROFILE_RUNS_MAX];
    uint32_t n_runs; /* --ranks */
    /* set in a rank */
    int as_rank, launched, rank, status_fd, terminal_fd; /* launched: by another command than this one */
    esp_ctx *ctx;
    esp__survey *survey, *gpu; /* gpu: of codecs on a GPU; NULL: those are not measured */
    uint64_t begun_ns;
    esp__machine_time begun;
    double others, stolen, spread;
    int noisy;
    char device[256];
} profile_job;
#endif
