/* run.h: shared by the files of `espresso run`: the plan (what to start), and the job (what runs).
 * Knows nothing of gradients: ranks are processes, which get all settings from their environment. */
#ifndef ESPRESSO_TOOLS_RUN_H
#define ESPRESSO_TOOLS_RUN_H

enum {
    RUN_GRACE_MS = 2000,     /* after a failure: time for the other ranks to end by themselves, ...      */
    RUN_TERM_MS = 2000,      /* ... then time to end after SIGTERM, before SIGKILL                        */
    RUN_DYING_MS = 1000,     /* a rank failed while others are ending: time to find which failed first  */
    RUN_ASKED_MS = 10000,    /* the user asked to end: ranks may be saving their work, so more grace      */
    RUN_INSIST_MS = 500,     /* a second signal ends the job at once only this long after the first       */
    RUN_LINGER_MS = 2000,    /* all ranks ended, but something they started still holds their output      */
    RUN_LINE_MAX = 1 << 20,  /* longer lines are split                                                    */
    RUN_QUEUE_MAX = 1 << 20, /* ranks are not read while this much waits for a slow reader of our output  */
    RUN_RANKS_MAX = 1 << 14
};

/* What to start, from the command line. */
typedef struct run_plan {
    const tool_command *command;
    int n, machines, racks, prefix; /* racks: 0: not asked for                                             */
    int elastic;                    /* the job goes on when a rank fails */
    int *machine_of, *local_of;     /* [n]                                                                     */
    const char *inter, *outer, *timeout;
    const char **env; /* "K=V"                                                                              */
    int n_env;
    char **argv;
    char path[4096]; /* the program's file                                                                  */
    char root[64];   /* socket name at which the ranks meet                                                 */
} run_plan;

/* Queue of lines to our stdout or stderr. */
typedef struct run_sink {
    int fd, regular, color, broken; /* broken: the reader is gone                                           */
    char *data;
    size_t begin, end, cap;
} run_sink;

/* One pipe from a rank, and its incomplete last line. */
typedef struct run_stream {
    int fd; /* -1: the stream has ended                                                                     */
    int rank;
    run_sink *sink;
    char *line;
    size_t len, cap;
} run_stream;

typedef struct run_rank {
    pid_t pid; /* 0: not started. Also its process group, so it stays unreaped until the job is over        */
    int ended, failed;
    int status; /* exit status, or 128 + signal                                                             */
    int signal; /* signal that killed it, or 0                                                              */
    run_stream out[2];
} run_rank;

typedef struct run_job {
    const run_plan *plan;
    run_rank *ranks;
    int started, alive;
    int first_failed; /* rank that failed first, or -1                                                      */
    int asked;        /* the signal by which the user asked to end, or 0                                    */
    int64_t asked_ms;
    int drop;            /* the user asked twice, or when only output was left: output may be dropped */
    int ending;          /* 0 no, 1 grace, 2 SIGTERM sent, 3 SIGKILL sent                                      */
    int64_t deadline_ms; /* of the present stage of ending, or of lingering output; 0: none                 */
    int tokens[2];       /* pipe with a byte for each rank that may compress at the same time; -1: no limit */
    int signals;         /* signalfd                                                                           */
    int watchdog;        /* pipe to the watchdog process                                                       */
    pid_t watchdog_pid;
    sigset_t mask, old_mask;
    run_sink sinks[2];
    run_sink *out, *err;
} run_job;

#endif
