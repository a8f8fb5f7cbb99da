/* profile.h: what the files of `espresso profile codecs` and `espresso profile links` share. The command starts ranks of itself
 * (ranks.c); all of them measure (espresso_impl/costs/costs.h), rank 0 writes. */
#include "espresso_impl/base/machine.h"

#ifndef ESPRESSO_TOOLS_PROFILE_H
#define ESPRESSO_TOOLS_PROFILE_H

enum { PROFILE_SIZES_MAX = ESP__SURVEY_POINTS, PROFILE_PASSES = 3, PROFILE_RUNS_MAX = 16 };
#define PROFILE_NOISY_OTHERS 0.10 /* share of the machine's time that other programs took                       */
#define PROFILE_NOISY_STOLEN 0.02 /* or the machine below this one                                              */
#define PROFILE_NOISY_SPREAD 0.50 /* or the quartiles of a point's runs lay as far apart as half of it, in the median */

typedef struct profile_job {
    const tool_command *command;
    long n, machines, machines_said;
    const char *inter, *backend, *out;
    const char *codecs[ESP__SURVEY_CODECS];
    uint32_t n_codecs;
    uint64_t sizes[PROFILE_SIZES_MAX]; /* elements of codecs, bytes of collectives */
    uint32_t n_sizes, n_done;          /* done: by the budget                      */
    double budget_ns;
    int json, shared_cores; /* -1: found out */
    long runs[PROFILE_RUNS_MAX];
    uint32_t n_runs; /* --ranks */
    /* a rank */
    int as_rank, status_fd, terminal_fd;
    esp_ctx *ctx;
    esp__survey *survey;
    uint64_t begun_ns;
    esp__machine_time begun;
    double others, stolen, spread;
    int noisy;
    char device[128];
} profile_job;
#endif
