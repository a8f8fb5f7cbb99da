/* run.h: shared by the files of `espresso run`: the plan (what to start), and the job (what runs). Knows nothing of
 * gradients: ranks are processes, which get all settings from their environment.
 *
 * With --hosts the launcher's children are remote shells, one for each host. Each runs `espresso run --part` on its
 * host, which starts the ranks there. The launcher forwards this process's output, sends it signals, and takes its exit
 * status. */
#ifndef ESPRESSO_TOOLS_RUN_H
#define ESPRESSO_TOOLS_RUN_H
#include "tools/common/args.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

extern const tool_command run_command;

enum {
    /* after a rank's failure the others may end by themselves, then get SIGTERM, then SIGKILL */
    RUN_GRACE_MS = 2000,
    RUN_TERM_MS = 2000,
    RUN_USER_GRACE_MS = 10000, /* the same after Ctrl-C: ranks may save work */
    /* when several ranks end at once: the longest wait to find out which failed first */
    RUN_DYING_MS = 1000,
    RUN_INSIST_MS = 500,    /* a second Ctrl-C after this ends all at once */
    RUN_LINGER_MS = 2000,   /* the wait for output of ranks' child processes */
    RUN_LINE_MAX = 1 << 20, /* bytes; longer lines are split */
    /* ranks' output is not read while this many bytes wait for a slow reader of our output */
    RUN_QUEUE_MAX = 1 << 20,
    RUN_RANKS_MAX = 1 << 14,
    RUN_GO = 0 /* sent to `run --part` like a signal: start the ranks */
};

/* How far the launcher is with ending the ranks that still run. */
typedef enum run_ending { RUN_NOT_ENDING, RUN_GRACE, RUN_TERM_SENT, RUN_KILL_SENT } run_ending;

/* Bytes that wait to be written. */
typedef struct run_queue {
    char *data;
    size_t begin, end, cap;
} run_queue;

/* A host of --hosts. Its ranks are numbered from `first`. */
typedef struct run_host {
    char name[256];    /* for the remote shell, may begin with user@ */
    char address[256]; /* for other hosts                            */
    int first, ranks;
} run_host;

/* The job to start, from the command line. */
typedef struct run_plan {
    const tool_command *command;
    int n, machines, racks;     /* racks is 0 without --racks                            */
    int first, here;            /* the first rank on this machine, and how many are here */
    bool prefix, elastic;       /* elastic: the job continues when a rank fails         */
    bool color[2];              /* is the prefix coloured on stdout, on stderr?          */
    int *machine_of, *local_of; /* [here]                                                */
    const char *inter, *outer;
    const char **env; /* "K=V" */
    int n_env;
    char **argv;
    char path[4096];  /* the program's file                               */
    char root[300];   /* address at which rank 0 listens                  */
    char secret[49];  /* authenticates ranks to each other                */
    const char *part; /* in `run --part`: "run on HOST" for messages      */
    run_host *hosts;  /* of --hosts, or NULL                              */
    int n_hosts;
    const char *rsh, *espresso; /* remote shell; path of `espresso` on the hosts */
    char directory[4096];       /* working directory of ranks on the hosts       */
} run_plan;

/* Queue of lines to our stdout or stderr. */
typedef struct run_sink {
    int fd, broken; /* broken: errno of a failed write, or 0 */
    bool regular, color;
    run_queue queue;
} run_sink;

/* One pipe from a child, and its incomplete last line. */
typedef struct run_stream {
    int fd; /* -1 after its end */
    int child;
    run_sink *sink;
    char *line;
    size_t len, cap;
} run_stream;

/* A child process: a rank, or with --hosts the remote shell to a host. */
typedef struct run_child {
    pid_t pid;     /* also its process group, so it is reaped last       */
    int to;        /* pipe to `run --part` on the host, or -1            */
    bool ready;    /* `run --part` can start its ranks                   */
    bool reported; /* `run --part` has reported a failed rank's status   */
    bool ended, failed;
    int status; /* exit status, or 128 + signal      */
    int signal; /* signal that killed it, or 0       */
    run_stream out[2];
} run_child;

typedef struct run_job {
    const run_plan *plan;
    run_child *children;
    int n, started, alive;
    int ready;        /* number of hosts that are ready        */
    int first_failed; /* child that failed first, or -1        */
    int end_signal;   /* the user ended the job with it, or 0  */
    int64_t end_signal_ms;
    bool drop; /* output may be lost: the user insists      */
    run_ending ending;
    int64_t deadline_ms; /* of `ending` or of lingering output, or 0  */
    int control;         /* launcher's signals for `run --part`, or -1 */
    int tokens[2];       /* see run_tokens_open; -1: none             */
    int signals;         /* signalfd                                  */
    int watchdog;        /* pipe to the watchdog process              */
    pid_t watchdog_pid;
    sigset_t mask, old_mask;
    run_sink sinks[2];
    run_sink *out, *err;
} run_job;

/* run.c */
ESP__FN void run_place(run_plan *p, const char *uneven, long n, long machines);
/* Returns `text`, which names a link to emulate, as in 1gbit,50us. Ends the command if backends cannot read it. */
ESP__FN const char *run_link(const tool_command *c, const char *flag, const char *text);
ESP__FN int run_make_root(run_plan *p);
ESP__FN int run_job_run(const run_plan *p);
/* hosts.c */
ESP__FN void run_hosts_read(run_plan *p, const char *text, const char *root, long n);
/* remote.c */
ESP__FN bool run_is_own(const char *text);
ESP__FN bool run_here(char *path, size_t cap);
ESP__FN _Noreturn void run_become_shell(const run_plan *p, const run_host *h);
ESP__FN int run_part_send(run_job *j, int i);
ESP__FN void run_part_report(run_job *j, int number);
ESP__FN void run_host_line(run_job *j, run_stream *s);
ESP__FN void run_host_report(run_job *j, const run_child *c);
ESP__FN int run_part_main(const tool_command *self, const char *host);
/* output.c */
ESP__FN void run_queue_add(run_queue *q, const void *data, size_t bytes);
ESP__FN void run_sink_open(run_sink *k, int fd);
ESP__FN void run_sink_add(run_sink *k, const char *data, size_t bytes);
ESP__FN size_t run_sink_waiting(const run_sink *k);
ESP__FN void run_sink_flush(run_sink *k);
ESP__FN void run_print(run_job *j, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN void run_stream_read(run_job *j, run_stream *s);
ESP__FN void run_stream_end(run_job *j, run_stream *s);
ESP__FN bool run_stream_wanted(const run_stream *s);
/* spawn.c */
ESP__FN int run_find_program(run_plan *p);
ESP__FN int run_start(run_job *j);
ESP__FN void run_tokens_close(run_job *j);
ESP__FN int run_start_watchdog(run_job *j);
ESP__FN void run_end_watchdog(run_job *j);
/* watch.c */
ESP__FN int64_t run_now_ms(void);
ESP__FN void run_signal_all(run_job *j, int sig);
ESP__FN void run_note_failed(run_job *j, int i);
ESP__FN int run_signals_open(run_job *j);
ESP__FN void run_watch(run_job *j);
ESP__FN int run_finish(run_job *j);
#endif
