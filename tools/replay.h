/* replay.h: what the files of `espresso replay` share. The command starts ranks of itself (ranks.c); rank 0 plans, all ranks run
 * every strategy in turn, rank 0 gathers and writes. */
#ifndef ESPRESSO_TOOLS_REPLAY_H
#define ESPRESSO_TOOLS_REPLAY_H

enum { REPLAY_MODEL = 0, REPLAY_REAL = 1 };

/* One strategy: what was predicted, and what was measured. All times in nanoseconds as they were (time scale in both). */
typedef struct replay_result {
    const char *name;            /* "fp32", "espresso+", a file's name                                       */
    plan_made predicted;         /* plan, report, units, events (tools/plan.h)                               */
    double *step_ns;             /* [n_steps] measured, of the slowest rank, in the order in which they ran  */
    uint32_t n_steps;
    esp_plan_event *measured;    /* [predicted.n_events] the same ops, medians over steps, of rank 0; time 0: begin of backward. An op
                                    that the executor does not have (start_ns == end_ns == UINT64_MAX) is left out of comparisons */
    double median_ns, p10_ns, p90_ns; /* of step_ns                                                        */
    double exposed_communication_ns, exposed_compression_ns; /* medians, measured                           */
    uint64_t intra_bytes, inter_bytes; /* received by all ranks in one step, from the backend's counters      */
    int noisy;                   /* spread too wide for a number                                            */
} replay_result;

/* The whole run, for the report. */
typedef struct replay_job {
    const plan_inputs *in;       /* model (scaled), system and codecs as measured or given                  */
    int mode;                    /* REPLAY_*                                                                */
    int n, machines;
    const char *inter;           /* "100mbit,50us", or NULL                                                */
    double elements_scale, time_scale, ratio; /* ratio: fp32 communication / computing, predicted             */
    double stolen;               /* share of the time that the machine gave to others (steal of /proc/stat, and what getrusage says) */
    double load;                 /* (computing + codec time) / (cores x step), of the heaviest strategy            */
    uint32_t cores;
    replay_result *results;
    uint32_t n_results;
    const char *json, *timeline, *trace, *page, *csv; /* where to; NULL: not asked for                                      */
    const char *command;        /* the command line, for the pages; NULL: not shown                          */
    const char *strategy_shown; /* op by op for this one; NULL: for the planner's choice                     */
    const char *warning;        /* one line that every output shows, such as what --force overruled; or NULL */
} replay_job;

/* replay_report.c */
static int replay_report(const replay_job *job); /* text on stdout, and the files; TOOL_OK or TOOL_FAILED */
#endif
