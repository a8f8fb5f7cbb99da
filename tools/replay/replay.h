/* replay.h: what the files of `espresso replay` share. The command starts ranks of itself (ranks.c); rank 0 plans, all ranks run
 * every strategy in turn, rank 0 gathers and writes. */
#ifndef ESPRESSO_TOOLS_REPLAY_H
#define ESPRESSO_TOOLS_REPLAY_H
#include "espresso_impl/base/machine.h"
#include "espresso_impl/costs/costs.h"
#include "espresso_impl/clocked/clocked.h"

enum { REPLAY_MODEL = 0, REPLAY_REAL = 1 };

/* ---- what is shown (report.c) --------------------------------------------------------------------------------- */
/* One strategy: what was predicted, and what was measured. All times in nanoseconds as they were (time scale in both). */
typedef struct replay_result {
    const char *name;    /* "fp32", "espresso+", a file's name                                       */
    plan_made predicted; /* plan, report, units, events (tools/plan/plan.h)                               */
    double *step_ns;     /* [n_steps] measured, of the slowest rank, in the order in which they ran  */
    uint32_t n_steps;
    esp_plan_event
        *measured; /* [predicted.n_events] the same ops, medians over steps, from when the last rank began until the
                                 last ended; time 0: begin of backward. An op
                                 that the executor does not have (start_ns == end_ns == UINT64_MAX) is left out of comparisons */
    double median_ns, p10_ns, p90_ns;                        /* of step_ns                            */
    double exposed_communication_ns, exposed_compression_ns; /* medians, measured                                 */
    uint64_t intra_bytes, inter_bytes; /* received by all ranks in one step, from the backend's counters      */
    int noisy;                         /* spread too wide for a number                                            */
} replay_result;

/* The whole run, for the report. */
typedef struct replay_job {
    const plan_inputs *in; /* model (scaled), system and codecs as measured or given                  */
    int mode;              /* REPLAY_*                                                                */
    int n, machines;
    const char *inter; /* "100mbit,50us", or NULL                                                */
    double elements_scale, time_scale, ratio; /* ratio: fp32 communication / computing, predicted             */
    double stolen; /* share of the time that the machine gave to others (steal of /proc/stat, and other processes) */
    double load;   /* (computing + codec time) / (cores x step), of the heaviest strategy            */
    uint32_t cores;
    replay_result *results;
    uint32_t n_results;
    const char *json, *timeline, *trace, *page, *csv; /* where to; NULL: not asked for               */
    const char *command;        /* the command line, for the pages; NULL: not shown                          */
    const char *strategy_shown; /* op by op for this one; NULL: for the planner's choice                     */
    const char *warning;        /* one line that every output shows, such as what --force overruled; or NULL */
} replay_job;

static int replay_report(const replay_job *job); /* text on stdout, and the files; TOOL_OK or TOOL_FAILED */

/* ---- what is run ------------------------------------------------------------------------------------------------------- */
enum { REPLAY_STRATEGIES_MAX = 32, REPLAY_ROUND_STEPS = 3, REPLAY_STEPS = 9 };
enum { REPLAY_CLOCKED = 0, REPLAY_BUSY = 1 };
#define REPLAY_LOAD_MAX 0.7
#define REPLAY_GAP_MIN_NS 100e3
#define REPLAY_NOISY 0.25

/* A strategy on its way: its text, and what was measured so far on this rank. */
typedef struct replay_strategy {
    char *name; /* as asked for */
    esp__text text;
    double *step_ns, *communication_ns, *compression_ns; /* [steps] */
    esp__span *spans; /* [steps][n_events] from the begin of backward; UINT64_MAX: not there */
    uint32_t *event_of_op;
    uint32_t n_steps, n_events;
    uint64_t intra_bytes, inter_bytes; /* of all steps */
    plan_made predicted;
} replay_strategy;

/* From the command line, and what becomes of it. */
typedef struct replay_run {
    plan_inputs in; /* as given; then scaled, and in real mode measured */
    replay_job job; /* for the report                                   */
    long n, machines, steps;
    const char *strategies;                   /* "all", or names and files with commas */
    double elements_scale, time_scale, ratio; /* 0: not said */
    double times_said;                        /* --time-scale; 0: not said */
    int compute;                              /* REPLAY_CLOCKED, REPLAY_BUSY; -1: as the model's device says */
    int force, as_rank;
    int status_fd, progress_fd; /* to the command that started the ranks; -1: none */
    replay_strategy list[REPLAY_STRATEGIES_MAX];
    uint32_t n_list;
    uint32_t n_given; /* codecs that plans may use; what stands behind is strategy fp16's own */
    char warning[256];
    /* of this rank */
    esp_ctx *ctx;
    esp__survey *survey;
    float **grads, *pool;
    uint64_t pool_count;
    uint64_t *ready_ns;       /* [n_tensors] from the begin of backward */
    esp_plan_tensor *tensors; /* scaled */
    void *scaled;             /* points of scaled curves   */
} replay_run;

/* scale.c */
static void replay_own_tensors(replay_run *r);
/* Elements and times of the model as they are run; in model mode links and codecs scaled along, so that times stay. */
static void replay_scale(replay_run *r, double elements, double times);
/* Predicted busy time of the busiest link under fp32 / computing. Negative: the planner failed. */
static double replay_ratio(const plan_inputs *in);
/* What --ratio asks for: elements_scale and time_scale in real mode, the links' speed in model mode. */
static int replay_choose(replay_run *r);
/* dispatch.c */
enum { REPLAY_SLOWER_MAX = 512 };
typedef struct replay_dispatch {
    double queued[ESP__LANES], small[ESP__LANES]; /* ns more than predicted, of ops that queued and of small ones */
    uint32_t n_queued[ESP__LANES], n_small[ESP__LANES];
    double slower[REPLAY_SLOWER_MAX]; /* measured over predicted, of large ops inside a machine */
    uint32_t n_slower;
    double queued_large, small_large; /* what was predicted for those */
} replay_dispatch;
static void replay_dispatch_add(replay_dispatch *d, const replay_strategy *s); /* its spans are gathered */
static double replay_slower(replay_dispatch *d);
static void replay_dispatch_take(replay_dispatch *d, double out[ESP__LANES]);
/* machine.c */
static int replay_memory_fits(const replay_run *r);
static esp_status replay_cpu_now(const replay_run *r, esp__machine_time *out); /* own: of all ranks */
static void replay_say(const replay_run *r, const char *fmt, ...) ESP__PRINTF(2, 3);
static double replay_stolen(const esp__machine_time *from, const esp__machine_time *to);
/* survey.c */
static esp_status replay_survey_rough(replay_run *r); /* enough to choose scales by */
static esp_status replay_survey_links(replay_run *r);
static esp_status replay_survey_codecs(replay_run *r);
static esp_status replay_survey_dispatch(replay_run *r);
/* plan.c */
static int replay_list(replay_run *r); /* the strategies asked for */
static int replay_plan_all(replay_run *r);
static int replay_check(replay_run *r); /* what is refused */
static esp_status replay_share_text(replay_run *r, char **text);
static esp_status replay_share_texts(replay_run *r);
/* step.c */
static esp_status replay_buffers(replay_run *r);
static esp_status replay_step(replay_run *r, replay_strategy *s); /* s NULL: not counted */
static int replay_predict(replay_run *r, replay_strategy *s);
static void replay_strategy_free(replay_strategy *s);
/* run.c */
/* Medians over the steps of when each of the plan's events began and ended; the caller frees. */
static esp_plan_event *replay_medians(const replay_strategy *s);
static void replay_strategy_room(replay_strategy *s, uint32_t steps);
static esp_status replay_turn(replay_run *r, replay_strategy *s, uint32_t steps);
static esp_status replay_gather_spans(replay_run *r, replay_strategy *s);
static int replay_as_rank(replay_run *r);
#endif
