/* run.h: shared by the files of `espresso run`: the plan (what to start), and the job (what runs) here and on hosts.
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
    RUN_RANKS_MAX = 1 << 14,
    RUN_SETUP_MS = 60000,  /* a host that has not answered within this time is given up                  */
    RUN_BEAT_MS = 10000,   /* launcher and agents tell each other so often that they are there, ...      */
    RUN_SILENT_MS = 60000, /* ... and count the other as gone after this much silence                    */
    RUN_SETTLE_MS = 300,   /* a rank exited on a host: time for another host to report the rank that died first */
    RUN_INPUT_MAX = 1 << 16
};

/* Bytes that wait to be written or taken. */
typedef struct run_queue {
    char *data;
    size_t begin, end, cap;
} run_queue;

/* A host of --hosts. Its ranks are numbered from `first`. */
typedef struct run_host_spec {
    char name[256];    /* as the command of --rsh gets it                                                     */
    char address[256]; /* as other hosts reach it: without user                                             */
    int first, ranks;
} run_host_spec;

/* What to start, from the command line. */
typedef struct run_plan {
    const tool_command *command;
    int n, machines, racks, prefix; /* racks: 0: not asked for                                             */
    int elastic;                    /* the job goes on when a rank fails */
    int first, here;                /* the first rank on this host, and how many are here: 0 and n without --hosts */
    int *machine_of, *local_of;     /* [here]                                                                  */
    const char *inter, *outer, *timeout;
    const char **env; /* "K=V"                                                                              */
    int n_env;
    char **argv;
    char path[4096];      /* the program's file                                                                  */
    char directory[4096]; /* with hosts: where their ranks run                                              */
    char root[300];       /* where the ranks meet                                                                */
    run_host_spec *hosts; /* NULL: all ranks run here                                                       */
    int n_hosts;
    const char *hosts_text, *asked_root; /* --hosts and --root                                              */
    const char *rsh, *espresso;          /* the commands that reach a host, and that are started there                */
    const char *agent;                   /* this process is the agent: the host's name. NULL: it is not               */
    char secret[49];                     /* which the ranks prove to each other                                      */
} run_plan;

/* Queue of lines to our stdout or stderr. */
typedef struct run_sink {
    int fd, regular, color, broken; /* broken: the reader is gone                                           */
    run_queue queue;
} run_sink;

enum { RUN_ENDED = -1, RUN_FRAMES = -2 };

/* One pipe from a rank, and its incomplete last line. */
typedef struct run_stream {
    int fd; /* RUN_ENDED: the stream has ended; RUN_FRAMES: its bytes come from a host, in frames             */
    int rank;
    const char *host; /* what the host's remote shell itself says: its name is the prefix; NULL: of a rank  */
    run_sink *sink;
    char *line;
    size_t len, cap;
} run_stream;

typedef struct run_rank {
    pid_t pid; /* 0: not started. Also its process group, so it stays unreaped until the job is over        */
    int ended, failed;
    int told;   /* by an agent: the launcher knows of its end                                                 */
    int status; /* exit status, or 128 + signal                                                             */
    int signal; /* signal that killed it, or 0                                                              */
    run_stream out[2];
} run_rank;

/* The launcher's side of one host. */
typedef struct run_host {
    const run_host_spec *spec;
    pid_t pid;    /* of the remote shell, and its process group                                              */
    int to, from; /* pipes to and from it; -1: closed                                                        */
    run_stream err;
    run_queue out, in;
    int greeted, ready, lost;
    int port;                  /* that the agent keeps free for the ranks' meeting                         */
    uint32_t owed;             /* bytes of output taken that the agent has not been told of                */
    int64_t heard_ms, beat_ms; /* when it last said something, and when we did                              */
} run_host;

typedef struct run_job {
    const run_plan *plan;
    run_rank *ranks;
    run_host *hosts;    /* [plan->n_hosts]                                                               */
    int input;          /* what rank 0 reads                                                             */
    int input_free;     /* the host of rank 0 can take more input                                        */
    int suspect;        /* a rank on a host failed, but the cause may be another: not yet reported; or -1 */
    int64_t suspect_ms; /* until then                                                                    */
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
