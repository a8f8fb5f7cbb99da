/* replay.h: shared by the files of `espresso replay`. Every rank is a process of it. Rank 0 plans and reports. */
#ifndef ESPRESSO_TOOLS_REPLAY_H
#define ESPRESSO_TOOLS_REPLAY_H
#include "tools/common/args.h"
#include "espresso_impl/executor/executor.h"
#include "tools/plan/plan.h"
#include <stdbool.h>

extern const tool_command replay_command;

enum { REPLAY_STRATEGIES_MAX = 32, REPLAY_TURN_STEPS = 3 };
#define REPLAY_NOISY 0.25

/* A strategy with its predicted and its measured steps, as the plan's events, in ns since the start of backward. */
typedef struct replay_strategy {
    char *name; /* as the user wrote it: "fp32", a file */
    esp__text text;
    plan_made predicted;
    uint32_t *event_of_op; /* see replay_match */
    double *step_ns;       /* [steps]; later of the slowest rank, sorted */
    /* times of the events: in each step on this rank [steps][predicted.n_events], and the medians over steps of all
     * ranks. An end_ns of UINT64_MAX means that the event has no op */
    esp__span *spans;
    uint32_t n_steps;
    esp_plan_event *measured;
    double exposed_communication_ns, exposed_compression_ns; /* rank 0, sums */
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
    /* of a rank */
    esp_ctx *ctx;
    esp_plan_tensor *tensors;
    double stretch; /* computing takes so much longer on shared cores, >= 1 */
    float **grads, *pool;
    uint64_t pool_count;
} replay_run;

/* replay.c */
/* Does the costs file match the numbers of ranks and machines, and does it have the codecs of --gc? */
ESP__FN int replay_costs_fit(replay_run *r);
ESP__FN void replay_progress(const replay_run *r, const char *fmt, ...) ESP__PRINTF(2, 3);
/* match.c */
/* For each op of this rank's program: the index of its event in the plan, or UINT32_MAX. The caller frees the list. */
ESP__FN uint32_t *replay_match(const esp_ctx *ctx, const plan_made *m);
/* run.c */
ESP__FN int replay_as_rank(replay_run *r);
/* report.c */
ESP__FN int replay_report(const replay_run *r);
#endif
