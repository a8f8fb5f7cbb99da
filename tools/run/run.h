/* run.h: shared by the files of `espresso run`: the plan (what to start), and the job (what runs).
 * Knows nothing of gradients: ranks are processes, which get all settings from their environment.
 *
 * With --hosts the launcher's children are remote shells, one a host. Each starts `espresso run --part` there, which starts the host's
 * ranks as a job of this one machine. The launcher forwards the part's output, sends it signals, and takes its exit status. */
#ifndef ESPRESSO_TOOLS_RUN_H
#define ESPRESSO_TOOLS_RUN_H
#include "tools/common/args.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <unistd.h>

extern const tool_command run_command;

enum {
    RUN_GRACE_MS = 2000,     /* after a failure: time for the other ranks to end by themselves, ...       */
    RUN_TERM_MS = 2000,      /* ... then time to end after SIGTERM, before SIGKILL                         */
    RUN_DYING_MS = 1000,     /* a rank failed while others are ending: time to find which failed first   */
    RUN_ASKED_MS = 10000,    /* the user asked to end: ranks may be saving their work, so more grace       */
    RUN_INSIST_MS = 500,     /* a second signal ends the job at once only this long after the first        */
    RUN_LINGER_MS = 2000,    /* all ranks ended, but something they started still holds their output       */
    RUN_LINE_MAX = 1 << 20,  /* longer lines are split                                                     */
    RUN_QUEUE_MAX = 1 << 20, /* ranks are not read while this much waits for a slow reader of our output   */
    RUN_RANKS_MAX = 1 << 14,
    RUN_GO = 0 /* is sent to a host's part like a signal: start the ranks                     */
};

/* Bytes that wait to be written. */
typedef struct run_queue {
    char *data;
    size_t begin, end, cap;
} run_queue;

/* A host of --hosts. Its ranks are numbered from `first`. */
typedef struct run_host {
    char name[256];    /* as the command of --rsh gets it           */
    char address[256]; /* as other hosts reach it: without user     */
    int first, ranks;
} run_host;

/* What to start, from the command line. */
typedef struct run_plan {
    const tool_command *command;
    int n, machines, racks;     /* racks 0: not asked for                                */
    int first, here;            /* the first rank on this machine, and how many are here */
    bool prefix, elastic;       /* elastic: the job goes on when a rank fails            */
    bool color[2];              /* of the prefix on stdout and stderr                    */
    int *machine_of, *local_of; /* [here]                                                */
    const char *inter, *outer;
    const char **env; /* "K=V" */
    int n_env;
    char **argv;
    char path[4096];  /* the program's file                                             */
    char root[300];   /* where the ranks meet                                           */
    char secret[49];  /* which the ranks prove to each other                            */
    const char *part; /* "run on HOST": this process starts that host's ranks. Or NULL  */
    run_host *hosts;  /* NULL: all ranks run here                                       */
    int n_hosts;
    const char *rsh, *espresso; /* the commands that reach a host, and that are started there     */
    char directory[4096];       /* with hosts: where their ranks run                              */
} run_plan;

/* Queue of lines to our stdout or stderr. */
typedef struct run_sink {
    int fd, broken; /* broken: the errno of a write that failed */
    bool regular, color;
    run_queue queue;
} run_sink;

/* One pipe from a child, and its incomplete last line. */
typedef struct run_stream {
    int fd; /* -1: the stream has ended */
    int child;
    run_sink *sink;
    char *line;
    size_t len, cap;
} run_stream;

/* A rank, or with --hosts the remote shell to a host. */
typedef struct run_child {
    pid_t pid;    /* also its process group, so it stays unreaped until the job is over */
    int to;       /* pipe to a host's part; -1: closed                                  */
    bool greeted; /* a host's part is ready to start its ranks                          */
    bool told;    /* the part has told that a rank failed, with which status            */
    bool ended, failed;
    int status; /* exit status, or 128 + signal      */
    int signal; /* signal that killed it, or 0       */
    run_stream out[2];
} run_child;

typedef struct run_job {
    const run_plan *plan;
    run_child *children;
    int n, started, alive;
    int greeted;      /* so many hosts are ready                                      */
    int first_failed; /* child that failed first, or -1                               */
    int asked;        /* the signal by which the user asked to end, or 0              */
    int64_t asked_ms;
    bool drop;           /* the user asked twice, or when only output was left: output may be dropped       */
    int ending;          /* 0 no, 1 grace, 2 SIGTERM sent, 3 SIGKILL sent                                    */
    int64_t deadline_ms; /* of the present stage of ending, or of lingering output; 0: none                 */
    int control;         /* from which a part reads the launcher's signals; -1: none                        */
    int tokens[2];       /* pipe with a byte for each rank that may compress at the same time; -1: no limit */
    int signals;         /* signalfd                                                                        */
    int watchdog;        /* pipe to the watchdog process                                                    */
    pid_t watchdog_pid;
    sigset_t mask, old_mask;
    run_sink sinks[2];
    run_sink *out, *err;
} run_job;

/* run.c */
ESP__FN void run_place(run_plan *p, const char *uneven, long n, long machines);
/* Ends the command unless this is a link that loop and shm emulate, as in 1gbit,50us. Returns it. */
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
ESP__FN void run_say(run_job *j, const char *fmt, ...) ESP__PRINTF(2, 3);
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
