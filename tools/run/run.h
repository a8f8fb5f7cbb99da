/* run.h: for `espresso run`. A rank is a process that gets all settings from its environment. With --hosts, the
 * launcher's children are remote shells, one for each host. Each runs `espresso run --part` on its host, which starts
 * the ranks there. The launcher forwards the output of this process, sends it signals, and takes over its exit
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
    /* GRACE: how long ranks may go on after another one has failed. TERM: time between SIGTERM and SIGKILL. */
    RUN_GRACE_MS = 2000,
    RUN_TERM_MS = 2000,
    /* how long ranks may run on after Ctrl-C, as they may save their work */
    RUN_USER_GRACE_MS = 10000,
    /* If several ranks end within this time, the one that a signal killed counts as the one that failed first. */
    RUN_DYING_MS = 1000,
    RUN_INSIST_MS = 500,    /* a second Ctrl-C at least this long after the first kills all ranks */
    RUN_LINGER_MS = 2000,   /* how long to wait for output of processes that ranks have started */
    RUN_LINE_MAX = 1 << 20, /* longer lines are split */
    /* The launcher does not read from ranks while more bytes than this wait to be written. */
    RUN_QUEUE_MAX = 1 << 20,
    RUN_RANKS_MAX = 1 << 14,
    RUN_GO = 0 /* byte by which the launcher lets `run --part` start its ranks */
};

typedef enum run_ending { RUN_NOT_ENDING, RUN_GRACE, RUN_TERM_SENT, RUN_KILL_SENT } run_ending;

typedef struct run_queue {
    char *data;
    size_t begin, end, cap;
} run_queue;

typedef struct run_host {
    char name[256]; /* for the remote shell, such as "user@node1" */
    char address[256];
    int first, ranks;
} run_host;

typedef struct run_plan {
    const tool_command *command;
    int n, machines, racks; /* racks is 0 without --racks */
    int first, here;        /* number of the first rank on this machine, and how many it has */
    bool prefix, elastic;   /* elastic: the job goes on when a rank fails */
    /* whether rank numbers are coloured, for stdout and stderr */
    bool color[2];
    /* for each rank here: its machine, and its index there */
    int *machine_of, *local_of;
    const char *inter, *outer;
    const char **env; /* "NAME=VALUE" */
    int n_env;
    char **argv;
    char path[4096];
    char root[300];  /* address at which rank 0 listens */
    char secret[49]; /* proves that a rank belongs to the job */
    /* in `run --part`: "run on HOST", which begins messages; otherwise NULL */
    const char *part;
    run_host *hosts; /* NULL without --hosts */
    int n_hosts;
    const char *rsh, *espresso; /* remote shell, and path of `espresso` on the hosts */
    char directory[4096];
} run_plan;

typedef struct run_sink {
    int fd, broken; /* broken: errno of a failed write, or 0 */
    bool regular, color;
    run_queue queue;
} run_sink;

typedef struct run_stream {
    int fd;
    int child;
    run_sink *sink;
    run_queue line; /* the incomplete last line */
} run_stream;

/* A child process. It is a rank or, with --hosts, the remote shell to a host. */
typedef struct run_child {
    pid_t pid;     /* also the id of its process group */
    int to;        /* pipe to `run --part` on the host, or -1 */
    bool ready;    /* `run --part` is ready to start its ranks */
    bool reported; /* `run --part` has reported that a rank failed */
    bool ended, failed;
    int status;
    int signal; /* signal that killed it, or 0 */
    run_stream out[2];
} run_child;

typedef struct run_job {
    const run_plan *plan;
    run_child *children;
    int n, started, alive;
    int ready;
    int first_failed; /* index of the child that failed first, or -1 */
    int end_signal;   /* signal by which the user ended the job, or 0 */
    int64_t end_signal_ms;
    bool drop; /* the user insists on ending, so output may be lost */
    run_ending ending;
    int64_t deadline_ms;
    int control; /* in `run --part`: descriptor from which it reads signals, or -1 */
    int tokens[2];
    int signals; /* signalfd for signals to the launcher */
    int watchdog;
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
