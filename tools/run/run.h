/* run.h: for the files of `espresso run`: the plan (what to start) and the job (what runs). A rank is a process that
 * gets all settings from its environment. With --hosts, the launcher's children are remote shells, one for each host.
 * Each runs `espresso run --part` on its host, which starts the ranks there. The launcher forwards the output of this
 * process, sends it signals, and takes over its exit status. */
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
    /* After a rank's failure, the others may end by themselves for RUN_GRACE_MS; then they get SIGTERM, then
     * SIGKILL. */
    RUN_GRACE_MS = 2000,
    RUN_TERM_MS = 2000,
    RUN_USER_GRACE_MS = 10000, /* the same after Ctrl-C, as ranks may save their work */
    /* how long to wait for ranks that end at about the same time, to find out which failed first */
    RUN_DYING_MS = 1000,
    RUN_INSIST_MS = 500,    /* a second Ctrl-C after this time kills all at once */
    RUN_LINGER_MS = 2000,   /* how long to wait for output of ranks' own children */
    RUN_LINE_MAX = 1 << 20, /* bytes of a line; longer lines are split */
    /* the launcher stops reading ranks' output while so many bytes wait for a slow reader of its own output */
    RUN_QUEUE_MAX = 1 << 20,
    RUN_RANKS_MAX = 1 << 14,
    RUN_GO = 0 /* a byte that makes `run --part` start its ranks */
};

/* How far the launcher is in ending the ranks that still run. */
typedef enum run_ending { RUN_NOT_ENDING, RUN_GRACE, RUN_TERM_SENT, RUN_KILL_SENT } run_ending;

/* Bytes that wait to be written. */
typedef struct run_queue {
    char *data;
    size_t begin, end, cap;
} run_queue;

/* A host of --hosts. `first` is the number of its first rank. */
typedef struct run_host {
    char name[256];    /* for the remote shell; may begin with "user@" */
    char address[256]; /* at which other hosts reach it */
    int first, ranks;
} run_host;

/* What to start, as given on the command line. */
typedef struct run_plan {
    const tool_command *command;
    int n, machines, racks;     /* racks is 0 without --racks */
    int first, here;            /* the first rank on this machine, and their number */
    bool prefix, elastic;       /* elastic: the job goes on when a rank fails */
    bool color[2];              /* do stdout and stderr get coloured prefixes? */
    int *machine_of, *local_of; /* [here], each rank's machine and index there */
    const char *inter, *outer;
    const char **env; /* "NAME=VALUE" */
    int n_env;
    char **argv;
    char path[4096];  /* path of the program's file */
    char root[300];   /* address at which rank 0 listens */
    char secret[49];  /* proves that a rank belongs to the job */
    const char *part; /* in `run --part`: "run on HOST", to begin messages */
    run_host *hosts;  /* hosts of --hosts, or NULL */
    int n_hosts;
    const char *rsh, *espresso; /* remote shell, and path of `espresso` on the hosts */
    char directory[4096];       /* working directory of the ranks on the hosts */
} run_plan;

/* Lines that wait to be written to stdout or stderr. */
typedef struct run_sink {
    int fd, broken; /* broken: errno of a failed write, or 0 */
    bool regular, color;
    run_queue queue;
} run_sink;

/* A pipe from a child, and the incomplete last line read from it. */
typedef struct run_stream {
    int fd; /* -1 once the child has closed it */
    int child;
    run_sink *sink;
    char *line;
    size_t len, cap;
} run_stream;

/* A child process: a rank or, with --hosts, the remote shell to a host. */
typedef struct run_child {
    pid_t pid;     /* also its process group's id, so it is reaped last */
    int to;        /* pipe to `run --part` on the host, or -1 */
    bool ready;    /* `run --part` waits for the start */
    bool reported; /* `run --part` has reported that a rank failed */
    bool ended, failed;
    int status; /* exit status, or 128 + the signal's number */
    int signal; /* signal that killed it, or 0 */
    run_stream out[2];
} run_child;

typedef struct run_job {
    const run_plan *plan;
    run_child *children;
    int n, started, alive;
    int ready;        /* number of hosts that are ready */
    int first_failed; /* the child that failed first, or -1 */
    int end_signal;   /* the signal by which the user ended the job, or 0 */
    int64_t end_signal_ms;
    bool drop; /* the user insists on ending, so output may be lost */
    run_ending ending;
    int64_t deadline_ms; /* end of the stage or of waiting for output, or 0 */
    int control;         /* in `run --part`: reads the launcher's signals; or -1 */
    int tokens[2];       /* see run_tokens_open; -1 if not used */
    int signals;         /* signalfd for the launcher's signals */
    int watchdog;        /* pipe to the watchdog process */
    pid_t watchdog_pid;
    sigset_t mask, old_mask;
    run_sink sinks[2];
    run_sink *out, *err;
} run_job;

/* Defined in run.c: */
ESP__FN void run_place(run_plan *p, const char *uneven, long n, long machines);
/* Returns `text`, which describes a link to emulate, such as "1gbit,50us". Ends the command if it is invalid. */
ESP__FN const char *run_link(const tool_command *c, const char *flag, const char *text);
ESP__FN int run_make_root(run_plan *p);
ESP__FN int run_job_run(const run_plan *p);
/* Defined in hosts.c: */
ESP__FN void run_hosts_read(run_plan *p, const char *text, const char *root, long n);
/* Defined in remote.c: */
ESP__FN bool run_is_own(const char *text);
ESP__FN bool run_here(char *path, size_t cap);
ESP__FN _Noreturn void run_become_shell(const run_plan *p, const run_host *h);
ESP__FN int run_part_send(run_job *j, int i);
ESP__FN void run_part_report(run_job *j, int number);
ESP__FN void run_host_line(run_job *j, run_stream *s);
ESP__FN void run_host_report(run_job *j, const run_child *c);
ESP__FN int run_part_main(const tool_command *self, const char *host);
/* Defined in output.c: */
ESP__FN void run_queue_add(run_queue *q, const void *data, size_t bytes);
ESP__FN void run_sink_open(run_sink *k, int fd);
ESP__FN void run_sink_add(run_sink *k, const char *data, size_t bytes);
ESP__FN size_t run_sink_waiting(const run_sink *k);
ESP__FN void run_sink_flush(run_sink *k);
ESP__FN void run_print(run_job *j, const char *fmt, ...) ESP__PRINTF(2, 3);
ESP__FN void run_stream_read(run_job *j, run_stream *s);
ESP__FN void run_stream_end(run_job *j, run_stream *s);
ESP__FN bool run_stream_wanted(const run_stream *s);
/* Defined in spawn.c: */
ESP__FN int run_find_program(run_plan *p);
ESP__FN int run_start(run_job *j);
ESP__FN void run_tokens_close(run_job *j);
ESP__FN int run_start_watchdog(run_job *j);
ESP__FN void run_end_watchdog(run_job *j);
/* Defined in watch.c: */
ESP__FN int64_t run_now_ms(void);
ESP__FN void run_signal_all(run_job *j, int sig);
ESP__FN void run_note_failed(run_job *j, int i);
ESP__FN int run_signals_open(run_job *j);
ESP__FN void run_watch(run_job *j);
ESP__FN int run_finish(run_job *j);
#endif
