/* watch.c: the launcher's loop: handles output, signals and ended ranks, and ends the job.
 * Must not know how ranks were started. */
#include "tools/run/run.h"

/* remote.c: the same where the ranks run on other hosts */
static void run_hosts_signal(run_job *j, int sig);
static void run_hosts_flush(run_job *j);
static void run_hosts_continue(run_job *j);
static void run_hosts_give_up(run_job *j);
static void run_hosts_close(run_job *j);
static void run_hosts_end(run_job *j);
static int run_hosts_wait(const run_job *j, int wait);
static int run_hosts_poll(const run_job *j, struct pollfd *p);
static void run_hosts_serve(run_job *j, const struct pollfd *p);

static int64_t run_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Sends a signal to every rank that still runs, and to what it started. */
static void run_signal_all(run_job *j, int sig) {
    if (j->hosts) run_hosts_signal(j, sig);
    for (int i = 0; i < j->started; i++)
        if (!j->hosts && !j->ranks[i].ended) kill(-j->ranks[i].pid, sig);
}

/* "rank 2" or "ranks 0, 2-5": those for which pick() is true. "" for none. */
static const char *run_list(const run_job *j, int (*pick)(const run_job *, const run_rank *), char *text, size_t cap) {
    size_t at = 0;
    int count = 0, n = 0;
    for (int i = 0; i < j->started; i++) count += pick(j, &j->ranks[i]);
    text[0] = 0;
    for (int i = 0; i < j->started && at + 32 < cap; i++) {
        int last = i;
        if (!pick(j, &j->ranks[i])) continue;
        while (last + 1 < j->started && pick(j, &j->ranks[last + 1])) last++;
        at += (size_t)snprintf(text + at, cap - at, "%s%d", n++ ? ", " : count > 1 ? "ranks " : "rank ", i);
        if (last > i) at += (size_t)snprintf(text + at, cap - at, "%s%d", last > i + 1 ? "-" : ", ", last);
        i = last;
    }
    return text;
}
static int run_is_alive(const run_job *j, const run_rank *r) { return (void)j, !r->ended; }
static int run_is_follower(const run_job *j, const run_rank *r) { return r->failed && r != &j->ranks[j->first_failed]; }

static void run_report(run_job *j, const run_rank *r) {
    int rank = (int)(r - j->ranks);
    if (r->signal && r->signal == j->asked) return;              /* the user's own signal */
    if (r->signal == SIGPIPE && j->out->broken == EPIPE) return; /* as in `espresso run ... | head` */
    char where[300] = "";
    for (int h = 0; h < j->plan->n_hosts; h++)
        if (rank >= j->plan->hosts[h].first) snprintf(where, sizeof where, " on %s", j->plan->hosts[h].name);
    if (r->signal)
        run_say(j, "rank %d (pid %d%s) was killed by signal %d (%s)", rank, (int)r->pid, where, r->signal,
                strsignal(r->signal));
    else
        run_say(j, "rank %d (pid %d%s) exited with status %d", rank, (int)r->pid, where, r->status);
}

/* 1: the process is ending, but cannot be waited for yet. Its files may be closed already, so its peers may have
 * seen their connections close. */
static int run_is_dying(const run_rank *r) {
    enum { FLAGS = 9, EXITING = 4 }; /* field of /proc/PID/stat (proc(5)), and PF_EXITING of the kernel */
    char path[64], text[512], *at;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)r->pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    at = strrchr(text, ')'); /* the program's name, field 2, may contain ')' and blanks */
    for (int field = 2; at && field < FLAGS; field++) at = strchr(at + 1, ' ');
    return at && strtoul(at + 1, NULL, 10) & EXITING;
}

/* Records the ranks that ended since the last call. Leaves their processes unreaped: a process id is also its
 * group's id, and must not be reused. Returns the rank whose failure is most likely the cause, or `first` where none
 * is more likely: of several that ended at once, one killed by a signal is more likely the cause than one that
 * exited. *dying: how many more are ending. */
static int run_note_new(run_job *j, int first, int *dying) {
    *dying = 0;
    for (int i = 0; i < j->started; i++) {
        run_rank *r = &j->ranks[i];
        siginfo_t info = {0};
        if (r->ended) continue;
        if (waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || !info.si_pid) {
            *dying += j->first_failed < 0 && run_is_dying(r);
            continue;
        }
        r->ended = 1;
        j->alive--;
        if (info.si_code != CLD_EXITED) r->signal = info.si_status;
        r->status = r->signal ? 128 + r->signal : info.si_status;
        r->failed =
            r->status != 0 && (j->first_failed < 0 || j->ending < 2); /* ranks that we end do not count as failed */
        if (r->failed && (first < 0 || (r->signal && !j->ranks[first].signal))) first = i;
    }
    return first;
}

/* With --elastic: is a rank left that may succeed, or one that has? */
static int run_goes_on(const run_job *j) {
    int succeeded = 0;
    for (int i = 0; i < j->started; i++) succeeded += j->ranks[i].ended && j->ranks[i].status == 0;
    return j->plan->elastic && !j->ending && (j->alive || succeeded);
}

/* Records which ranks ended here, and returns the one that failed first, or -1. A rank that exits because another was
 * killed can be reaped before the killed one: so ranks that are ending are waited for first. */
static int run_find_first(run_job *j) {
    int dying, first = run_note_new(j, -1, &dying);
    for (int ms = 0; first >= 0 && j->first_failed < 0 && !j->ranks[first].signal && dying && ms < RUN_DYING_MS; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        first = run_note_new(j, first, &dying);
    }
    return first;
}

/* The rank `first` failed before all others: they get time to end by themselves. */
static void run_begin_ending(run_job *j, int first) {
    j->first_failed = first;
    if (j->ending) return;
    j->ending = 1;
    j->deadline_ms = run_now_ms() + (j->asked ? RUN_ASKED_MS : RUN_GRACE_MS);
}

static void run_note_ended(run_job *j) {
    const int first = j->hosts ? -1 : run_find_first(j);
    if (first < 0 || j->first_failed >= 0) return;
    run_report(j, &j->ranks[first]);
    if (run_goes_on(j)) return;
    run_begin_ending(j, first);
}

/* Goes to the next stage of ending, when the present one has used its time. */
static void run_escalate(run_job *j) {
    char text[256];
    int sig = j->ending == 1 && !j->asked ? SIGTERM : SIGKILL;
    if (j->ending >= 3) {
        if (j->hosts) run_hosts_give_up(j);
        return;
    }
    run_say(j, "ending what still runs with %s: %s", sig == SIGTERM ? "SIGTERM" : "SIGKILL",
            run_list(j, run_is_alive, text, sizeof text));
    run_signal_all(j, sig);
    run_signal_all(j, SIGCONT); /* a stopped rank cannot end */
    j->ending = sig == SIGTERM ? 2 : 3;
    j->deadline_ms = run_now_ms() + RUN_TERM_MS;
}

static int run_is_end_signal(int sig) { return sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT; }

static void run_pass_on(run_job *j, int sig) {
    if (sig == SIGTSTP) { /* ranks are in sessions of their own, where SIGTSTP has no effect */
        run_signal_all(j, SIGSTOP);
        if (j->hosts) run_hosts_flush(j);
        raise(SIGSTOP);
        run_signal_all(j, SIGCONT);
        if (j->hosts) run_hosts_continue(j);
        return;
    }
    if (!run_is_end_signal(sig)) {
        run_signal_all(j, sig);
        return;
    }
    if (!j->alive) j->drop = 1;
    if (j->asked && run_now_ms() - j->asked_ms >= RUN_INSIST_MS) {
        j->drop = 1;
        j->ending = 2;
        run_escalate(j);
        return;
    }
    if (!j->asked) j->asked_ms = run_now_ms();
    j->asked = sig;
    run_signal_all(j, sig);
}

/* Opens the signalfd for SIGCHLD, and with `pass_on` for those of these signals that were not ignored at our start (nohup
 * ignores SIGHUP). */
static int run_signals_open(run_job *j, int pass_on) {
    static const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&j->mask);
    sigaddset(&j->mask, SIGCHLD);
    for (size_t i = 0; pass_on && i < sizeof all / sizeof *all; i++) {
        struct sigaction now;
        if (sigaction(all[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&j->mask, all[i]);
    }
    sigprocmask(SIG_BLOCK, &j->mask, &j->old_mask);
    j->signals = signalfd(-1, &j->mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (j->signals < 0) return tool_fail(j->plan->command, "no signalfd: %s", strerror(errno));
    return TOOL_OK;
}

static void run_take_signals(run_job *j) {
    struct signalfd_siginfo s;
    while (read(j->signals, &s, sizeof s) == (ssize_t)sizeof s)
        if (s.ssi_signo != SIGCHLD) run_pass_on(j, (int)s.ssi_signo);
    run_note_ended(j);
}

static int run_streams_open(const run_job *j) {
    int n = 0;
    for (int i = 0; i < j->started; i++)
        n += (j->ranks[i].out[0].fd != RUN_ENDED) + (j->ranks[i].out[1].fd != RUN_ENDED);
    return n;
}

/* Ends processes that ranks left behind, and reads what is still in the pipes. */
static void run_sweep(run_job *j) {
    if (j->hosts) run_hosts_close(j);
    for (int i = 0; i < j->started; i++) {
        if (!j->hosts) kill(-j->ranks[i].pid, SIGKILL);
        for (int s = 0; s < 2; s++) {
            run_stream *o = &j->ranks[i].out[s];
            for (int piece = 0; piece < 32 && o->fd >= 0; piece++) run_stream_read(j, o);
            run_stream_end(j, o);
        }
    }
}

/* One round of the loop: sleeps until something happens or `deadline_ms`. */
static void run_round(run_job *j, struct pollfd *p) {
    int n = 0, wait = -1;
    int64_t left = j->deadline_ms - run_now_ms();
    if (j->deadline_ms) wait = left < 0 ? 0 : (int)left + 1;
    if (j->hosts) wait = run_hosts_wait(j, wait);
    p[n++] = (struct pollfd){.fd = j->signals, .events = POLLIN};
    for (int s = 0; s < 2; s++)
        p[n++] = (struct pollfd){.fd = run_sink_waiting(&j->sinks[s]) ? j->sinks[s].fd : -1, .events = POLLOUT};
    for (int i = 0; i < j->started; i++)
        for (int s = 0; s < 2; s++) {
            const run_stream *o = &j->ranks[i].out[s];
            p[n++] = (struct pollfd){.fd = run_stream_wanted(o) ? o->fd : -1, .events = POLLIN};
        }
    const int own = n;
    if (j->hosts) n += run_hosts_poll(j, p + n);
    if (poll(p, (nfds_t)n, wait) < 0) return;
    for (int k = 3; k < own; k++)
        if (p[k].revents) run_stream_read(j, &j->ranks[(k - 3) / 2].out[(k - 3) % 2]);
    if (j->hosts) run_hosts_serve(j, p + own);
    for (int s = 0; s < 2; s++) run_sink_flush(&j->sinks[s]);
    if (p[0].revents) run_take_signals(j);
}

/* Runs the loop until every rank has ended and all its output is forwarded. */
static void run_watch(run_job *j) {
    struct pollfd *p = tool_realloc(NULL, (size_t)(3 + 2 * j->started + 3 * j->plan->n_hosts + 1) * sizeof *p);
    int lingering = 0;
    for (;;) {
        int open = run_streams_open(j), waiting = run_sink_waiting(&j->sinks[0]) || run_sink_waiting(&j->sinks[1]);
        if (!j->alive && !open && (!waiting || j->drop)) break;
        if (!j->alive && open && !lingering) {
            lingering = 1;
            j->deadline_ms = run_now_ms() + RUN_LINGER_MS;
        }
        if (!j->alive && !open) j->deadline_ms = 0;
        run_round(j, p);
        if (!j->deadline_ms || run_now_ms() < j->deadline_ms) continue;
        if (j->alive)
            run_escalate(j);
        else
            run_sweep(j);
    }
    free(p);
}

/* Writes our own last lines, for a limited time, since the reader may not read. */
static void run_drain(run_job *j) {
    for (int s = 0; s < 2; s++)
        for (run_sink *k = &j->sinks[s]; run_sink_waiting(k) && !j->drop; run_sink_flush(k)) {
            struct pollfd p = {.fd = k->fd, .events = POLLOUT};
            if (poll(&p, 1, 1000) <= 0) break;
        }
}

/* Prints the job's result and returns the exit status. */
static int run_conclude(run_job *j) {
    char text[256];
    if (j->out->broken && j->out->broken != EPIPE) {
        run_say(j, "cannot write the ranks' output: %s", strerror(j->out->broken));
        return TOOL_FAILED;
    }
    if (j->first_failed < 0) return TOOL_OK;
    int quiet = j->asked || j->out->broken;
    if (!quiet && run_list(j, run_is_follower, text, sizeof text)[0]) run_say(j, "%s failed after that", text);
    return j->ranks[j->first_failed].status;
}

/* Ends the job: no process of it remains, not even a zombie. Returns the job's exit status. */
static int run_finish(run_job *j) {
    run_sweep(j);
    if (j->hosts) run_hosts_end(j);
    for (int i = 0; i < j->started && !j->hosts; i++) waitpid(j->ranks[i].pid, NULL, 0);
    run_end_watchdog(j);
    int status = run_conclude(j);
    run_drain(j);
    return status;
}
