/* replay.h: for the files of `espresso replay`. Every rank runs it as a process. Rank 0 plans and reports. */
#ifndef ESPRESSO_TOOLS_REPLAY_H
#define ESPRESSO_TOOLS_REPLAY_H
#include "tools/common/args.h"
#include "espresso_impl/executor/executor.h"
#include "tools/plan/plan.h"
#include <stdbool.h>

extern const tool_command replay_command;

enum { REPLAY_STRATEGIES_MAX = 32, REPLAY_TURN_STEPS = 3 };
#define REPLAY_NOISY 0.25

/* A strategy, with its predicted and its measured step. Times are in ns since backward began. */
typedef struct replay_strategy {
    char *name; /* as the user wrote it, such as "fp32" or a file's name */
    esp__text text;
    plan_made predicted;
    uint32_t *event_of_op; /* result of replay_match */
    double *step_ns;       /* [steps] ns; in the end of the slowest rank, sorted */
    /* spans: when each event ran, in each step on this rank, as [steps][predicted.n_events]. measured: the medians over
     * steps of all ranks. end_ns is UINT64_MAX if no op belongs to the event. */
    esp__span *spans;
    uint32_t n_steps;
    esp_plan_event *measured;
    double exposed_communication_ns, exposed_compression_ns; /* on rank 0: sum over all steps */
} replay_strategy;

typedef struct replay_run {
    plan_inputs in; /* replay_scale changes its model */
    long n, machines, steps;
    double elements_scale;
    const char *inter, *strategies, *timeline;
    bool json;
    char *command;
    replay_strategy list[REPLAY_STRATEGIES_MAX];
    uint32_t n_list;
    /* the launcher's process does not use the members below */
    esp_ctx *ctx;
    esp_plan_tensor *tensors;
    double stretch; /* factor (>= 1) by which sharing cores slows computing */
    float **grads, *pool;
    uint64_t pool_count;
} replay_run;

/* Defined in replay.c: */
/* Does the costs file have these numbers of ranks and machines, and all codecs of --gc? */
ESP__FN int replay_costs_fit(replay_run *r);
ESP__FN void replay_progress(const replay_run *r, const char *fmt, ...) ESP__PRINTF(2, 3);
/* Defined in match.c: */
/* Returns for each op of this rank's program the index of its event in the plan, or UINT32_MAX. The caller frees it. */
ESP__FN uint32_t *replay_match(const esp_ctx *ctx, const plan_made *m);
/* Defined in run.c: */
ESP__FN int replay_as_rank(replay_run *r);
/* Defined in report.c: */
ESP__FN int replay_report(const replay_run *r);
#endif
