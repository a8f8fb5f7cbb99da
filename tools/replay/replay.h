/* replay.h: for `espresso replay`. Every rank is a process that runs this code. Rank 0 plans and reports. */
#ifndef ESPRESSO_TOOLS_REPLAY_H
#define ESPRESSO_TOOLS_REPLAY_H
#include "tools/common/args.h"
#include "espresso_impl/executor/executor.h"
#include "tools/plan/plan.h"
#include <stdbool.h>

extern const tool_command replay_command;

enum { REPLAY_STRATEGIES_MAX = 32, REPLAY_TURN_STEPS = 3 };
#define REPLAY_NOISY 0.25

/* A strategy, with its predicted and its measured steps. Times are in ns since the backward pass began. */
typedef struct replay_strategy {
    char *name;
    esp__text text;
    plan_made predicted;
    /* for each op of this rank, the index of the event that predicts it; made by replay_match() */
    uint32_t *event_of_op;
    double *step_ns; /* the time of each step; in the end, the slowest rank's, sorted */
    /* spans: when each event ran on this rank, as [step][event]. measured: medians over the steps of all ranks, with
     * end_ns = UINT64_MAX if no op was executed for the event. */
    esp__span *spans;
    uint32_t n_steps;
    esp_plan_event *measured;
    double exposed_communication_ns, exposed_compression_ns; /* on rank 0: sums over all steps, in ns */
} replay_strategy;

typedef struct replay_run {
    plan_inputs in; /* the ranks change its model by replay_scale() */
    long n, machines, steps;
    double elements_scale;
    const char *inter, *strategies, *timeline;
    bool json;
    char *command;
    replay_strategy list[REPLAY_STRATEGIES_MAX];
    uint32_t n_list;
    /* used only in ranks: */
    esp_ctx *ctx;
    esp_plan_tensor *tensors;
    double stretch; /* factor of at least 1 by which computing slows down if ranks share cores */
    float **grads, *pool;
    uint64_t pool_count;
} replay_run;

/* Defined in replay.c: */
/* Checks that the costs file has these numbers of ranks and machines, and all codecs of --gc. */
ESP__FN int replay_costs_fit(replay_run *r);
ESP__FN void replay_progress(const replay_run *r, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Defined in match.c: */
/* Returns for each op of this rank the index of the event that predicts it, or UINT32_MAX. The caller frees it. */
ESP__FN uint32_t *replay_match(const esp_ctx *ctx, const plan_made *m);
/* Defined in run.c: */
ESP__FN int replay_as_rank(replay_run *r);
/* Defined in report.c: */
ESP__FN int replay_report(const replay_run *r);
#endif
