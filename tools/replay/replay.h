/* replay.h: shared by the files of `espresso replay`. The command runs itself as ranks (tools/common/ranks.c). Rank
 * 0 plans, all ranks run the strategies one after the other, rank 0 gathers the results and writes them. */
#ifndef ESPRESSO_TOOLS_REPLAY_H
#define ESPRESSO_TOOLS_REPLAY_H
#include "espresso_impl/base/machine.h"
#include "espresso_impl/costs/costs.h"
#include "espresso_impl/clocked/clocked.h"

enum { REPLAY_MODEL = 0, REPLAY_REAL = 1 };

/* ---- results (report.c) --------------------------------------------------------------------------------------- */
/* One strategy: predicted and measured. All times are nanoseconds of the run, that is, with the time scale applied. */
typedef struct replay_result {
    const char *name;    /* "fp32", "espresso+", a file's name                                       */
    plan_made predicted; /* plan, report, units, events (tools/plan/plan.h)                               */
    double *step_ns;     /* [n_steps] measured times of the slowest rank, in the order of the steps  */
    uint32_t n_steps;
    esp_plan_event
        *measured; /* [predicted.n_events] the predicted ops as measured: medians over steps of when the last rank began
                      and when the last rank ended; time 0 is the begin of backward. start_ns and end_ns UINT64_MAX:
                      the executor has no such op; comparisons leave it out */
    double median_ns, p10_ns, p90_ns;                        /* of step_ns                            */
    double exposed_communication_ns, exposed_compression_ns; /* measured medians                                  */
    uint64_t intra_bytes, inter_bytes; /* received by all ranks in one step, from the backend's counters      */
    int noisy;                         /* 1: the spread is too wide to report a number                            */
} replay_result;

/* The whole run, for the report. */
typedef struct replay_job {
    const plan_inputs *in; /* model (scaled), system and codecs as measured or given                  */
    int mode;              /* REPLAY_*                                                                */
    int n, machines;
    const char *inter; /* "100mbit,50us", or NULL                                                */
    double elements_scale, time_scale, ratio; /* ratio: fp32 communication / computing, predicted             */
    double
        stolen;  /* share of time that others got: other processes, and other virtual machines (steal in /proc/stat) */
    double load; /* (computing + codec time) / (cores x step), of the heaviest strategy            */
    uint32_t cores;
    replay_result *results;
    uint32_t n_results;
    const char *json, *timeline, *trace, *page, *csv; /* output paths; NULL: not written             */
    const char *command;        /* the command line, for the pages; NULL: not shown                          */
    const char *strategy_shown; /* the strategy reported op by op; NULL: the planner's choice                */
    const char *warning;        /* NULL, or a line that every output shows, such as what --force overruled  */
} replay_job;

static int replay_report(const replay_job *job); /* prints to stdout and writes the files; TOOL_OK or TOOL_FAILED */

/* ---- the run ----------------------------------------------------------------------------------------------------------- */
enum { REPLAY_STRATEGIES_MAX = 32, REPLAY_ROUND_STEPS = 3, REPLAY_STEPS = 9 };
enum { REPLAY_CLOCKED = 0, REPLAY_BUSY = 1 };
#define REPLAY_LOAD_MAX 0.7
#define REPLAY_GAP_MIN_NS 100e3
#define REPLAY_NOISY 0.25

/* A strategy during the run: its text, and what this rank has measured so far. */
typedef struct replay_strategy {
    char *name; /* the user's name for it */
    esp__text text;
    double *step_ns, *communication_ns, *compression_ns; /* [steps] */
    esp__span *spans; /* [steps][n_events] from the begin of backward; UINT64_MAX: this rank has no such op */
    uint32_t *event_of_op;
    uint32_t n_steps, n_events;
    uint64_t intra_bytes, inter_bytes; /* sums over all steps */
    plan_made predicted;
} replay_strategy;

/* The run: its flags, its inputs and its state. */
typedef struct replay_run {
    plan_inputs in; /* as given; later scaled, and in real mode with measured costs */
    replay_job job; /* for the report                                   */
    long n, machines, steps;
    const char *strategies;                   /* "all", or names and files with commas */
    double elements_scale, time_scale, ratio; /* 0: not given */
    double times_said;                        /* --time-scale; 0: not given */
    int compute;                              /* REPLAY_CLOCKED, REPLAY_BUSY; -1: as the model's device says */
    int force, as_rank;
    const char *save_costs;     /* --save-costs; NULL: not said */
    int costs_auto;             /* --costs auto                 */
    int status_fd, progress_fd; /* to the command that started the ranks; -1: none */
    replay_strategy list[REPLAY_STRATEGIES_MAX];
    uint32_t n_list;
    uint32_t n_given; /* codecs that plans may use; a codec after these is only for strategy fp16 */
    char warning[256];
    /* this rank's state */
    esp_ctx *ctx;
    esp__survey *survey;         /* its own; NULL with --costs auto or FILE */
    const esp__survey *surveyed; /* where the costs are from; NULL: a file   */
    float **grads, *pool;
    uint64_t pool_count;
    uint64_t *ready_ns;       /* [n_tensors] from the begin of backward */
    esp_plan_tensor *tensors; /* scaled */
    void *scaled;             /* points of the scaled curves */
} replay_run;

/* scale.c */
static void replay_own_tensors(replay_run *r);
/* Scales the model's elements and times. In model mode also scales links and codecs, so that each op takes the same
 * time as unscaled, times the time scale. */
static void replay_scale(replay_run *r, double elements, double times);
/* Predicted busy time of the busiest link under fp32, divided by computing time. Negative: the planner failed. */
static double replay_ratio(const plan_inputs *in);
/* Chooses what gives --ratio: elements_scale and time_scale in real mode, the links' speed in model mode. */
static int replay_choose(replay_run *r);
/* machine.c */
static int replay_memory_fits(const replay_run *r);
static esp_status replay_cpu_now(const replay_run *r, esp__machine_time *out); /* own: of all ranks */
static void replay_say(const replay_run *r, const char *fmt, ...) ESP__PRINTF(2, 3);
static double replay_stolen(const esp__machine_time *from, const esp__machine_time *to);
/* survey.c */
static esp_status replay_survey_rough(replay_run *r); /* enough points to choose scales */
static esp_status replay_survey_links(replay_run *r);
static esp_status replay_survey_codecs(replay_run *r);
static esp_status replay_survey_in_steps(replay_run *r);
static esp_status replay_survey_auto(replay_run *r); /* steps under strategy auto, until it has measured and planned */
/* costs.c */
static int
replay_costs_known(replay_run *r); /* takes from --costs what other flags do not say; after the flags were read */
static int
replay_costs_fit(replay_run *r); /* do the file's costs fit this run? Warns, or fails                       */
static int replay_costs_save(const replay_run *r);
/* plan.c */
static int replay_list(replay_run *r); /* selects the strategies that the user named */
static int replay_plan_all(replay_run *r);
static int replay_check(replay_run *r); /* refuses runs that would measure something else */
static esp_status replay_share_text(replay_run *r, char **text);
static esp_status replay_share_texts(replay_run *r);
/* step.c */
static esp_status replay_buffers(replay_run *r);
static esp_status replay_step(replay_run *r, replay_strategy *s); /* s NULL: nothing is recorded */
static int replay_predict(replay_run *r, replay_strategy *s);
static void replay_strategy_free(replay_strategy *s);
/* run.c */
/* Begin and end of each of the plan's events, as medians over the steps. The caller frees them. */
static esp_plan_event *replay_medians(const replay_strategy *s);
static void replay_strategy_room(replay_strategy *s, uint32_t steps);
static esp_status replay_turn(replay_run *r, replay_strategy *s, uint32_t steps);
static esp_status replay_gather_spans(replay_run *r, replay_strategy *s);
static int replay_as_rank(replay_run *r);
#endif
