/* replay.h: shared by the files of `espresso replay`. Every rank is one process of this command. Rank 0 plans and reports. */
#ifndef ESPRESSO_TOOLS_REPLAY_H
#define ESPRESSO_TOOLS_REPLAY_H
#include "tools/common/args.h"
#include "espresso_impl/executor/executor.h"
#include "tools/plan/plan.h"
#include <stdbool.h>

extern const tool_command replay_command;

enum { REPLAY_STRATEGIES_MAX = 32, REPLAY_TURN_STEPS = 3 };
#define REPLAY_NOISY 0.25

/* A strategy, its prediction, and its measured steps. Events are the plan's. Times are nanoseconds; those of events count from the begin
 * of backward. */
typedef struct replay_strategy {
    char *name; /* as the user wrote it: "fp32", a file */
    esp__text text;
    plan_made predicted;
    uint32_t *event_of_op; /* by op of this rank's program; UINT32_MAX: plans have no such op (match.c) */
    double *step_ns;       /* [steps]; of the slowest rank once they are gathered, and then sorted */
    esp__span *spans;      /* [steps][predicted.n_events]; end_ns UINT64_MAX: this rank has no such op */
    uint32_t n_steps;
    esp_plan_event *measured; /* medians over the steps; end_ns UINT64_MAX: no rank has such an op */
    double exposed_communication_ns, exposed_compression_ns; /* of rank 0, sums over the steps */
} replay_strategy;

typedef struct replay_run {
    plan_inputs
        in; /* its model: with the elements that are replayed, and the time that computing takes on shared cores */
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
    double stretch; /* how much longer computing takes because ranks share cores: 1 or more */
    float **grads, *pool;
    uint64_t pool_count;
} replay_run;

/* replay.c */
ESP__FN int
replay_costs_fit(replay_run *r); /* are the costs of as many ranks and machines, and of the codecs that --gc names? */
ESP__FN void replay_say(const replay_run *r, const char *fmt, ...) ESP__PRINTF(2, 3);
/* match.c */
ESP__FN uint32_t *replay_match(const esp_ctx *ctx, const plan_made *m); /* event_of_op; the caller frees it */
/* run.c */
ESP__FN int replay_as_rank(replay_run *r);
/* report.c */
ESP__FN int replay_report(const replay_run *r);
#endif
