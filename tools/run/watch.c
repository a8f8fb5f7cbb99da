/* watch.c: the launcher's loop. It forwards output and signals, notices ended ranks, and ends the job. */
#include "tools/run/run.h"
#include "espresso_impl/base/base.h"
#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>

ESP__FN int64_t run_now_ms(void) { return (int64_t)(esp__now_ns() / 1000000); }

static void run_close_to(run_child *c) {
    if (c->to >= 0) close(c->to);
    c->to = -1;
}

/* Sends a signal to every running rank and its children. With --hosts, writes it as a byte to each `run --part`.
 * Instead of SIGKILL, closes the pipe to it. */
ESP__FN void run_signal_all(run_job *j, int sig) {
    const char byte = (char)sig;
    for (int i = 0; i < j->started; i++) {
        run_child *c = &j->children[i];
        if (c->ended) continue;
        if (!j->plan->hosts)
            kill(-c->pid, sig);
        else if (sig == SIGKILL || (c->to >= 0 && write(c->to, &byte, 1) != 1))
            run_close_to(c);
    }
}

static void run_abandon(run_job *j) {
    run_signal_all(j, SIGKILL);
    j->ending = RUN_KILL_SENT;
    j->deadline_ms = run_now_ms() + RUN_TERM_MS;
}

/* Lists the children that pick() selects, such as "ranks 0, 2-5" or, with --hosts, "hosts a, b". */
static const char *run_list(const run_job *j, bool (*pick)(const run_job *, const run_child *), char *text,
                            size_t cap) {
    const run_host *hosts = j->plan->hosts;
    size_t at = 0;
    int count = 0;
    text[0] = 0;
    for (int i = 0; i < j->started; i++) count += pick(j, &j->children[i]);
    if (count) at = (size_t)snprintf(text, cap, "%s%s ", hosts ? "host" : "rank", count > 1 ? "s" : "");
    const size_t head = at;
    for (int i = 0; i < j->started && at + 32 < cap; i++) {
        int last = i;
        if (!pick(j, &j->children[i])) continue;
        while (!hosts && last + 1 < j->started && pick(j, &j->children[last + 1])) last++;
        at += (size_t)snprintf(text + at, cap - at, "%s", at > head ? ", " : "");
        at += (size_t)(hosts ? snprintf(text + at, cap - at, "%s", hosts[i].name)
                             : snprintf(text + at, cap - at, "%d", j->plan->first + i));
        if (last > i)
            at += (size_t)snprintf(text + at, cap - at, "%s%d", last > i + 1 ? "-" : ", ", j->plan->first + last);
        i = last;
    }
    return text;
}
static bool run_is_alive(const run_job *j, const run_child *c) { return (void)j, !c->ended; }
static bool run_is_follower(const run_job *j, const run_child *c) {
    return c->failed && c != &j->children[j->first_failed];
}

static void run_report(run_job *j, const run_child *c) {
    const int rank = j->plan->first + (int)(c - j->children);
    if (c->signal && c->signal == j->end_signal) return;
    if (c->signal == SIGPIPE && j->out->broken == EPIPE) return; /* this is normal in `espresso run ... | head` */
    if (j->plan->hosts)
        run_host_report(j, c);
    else if (j->plan->part && j->end_signal)
        return;
    else if (c->signal)
        run_print(j, "rank %d (pid %d) was killed by signal %d (%s)", rank, (int)c->pid, c->signal,
                  strsignal(c->signal));
    else
        run_print(j, "rank %d (pid %d) exited with status %d", rank, (int)c->pid, c->status);
}

/* Returns whether the process is exiting, although waitpid() does not return it yet. It may have closed its
 * connections, and so have made other ranks fail. */
static bool run_is_dying(const run_child *r) {
    enum { FLAGS = 9, EXITING = 4 }; /* number of a field in /proc/PID/stat, and the kernel's bit PF_EXITING */
    char path[64], text[512], *at;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)r->pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    at = strrchr(text, ')'); /* skips the process' name in field 2, which may contain ')' and blanks */
    for (int field = 2; at && field < FLAGS; field++) at = strchr(at + 1, ' ');
    return at && strtoul(at + 1, NULL, 10) & EXITING;
}

static bool run_was_killed(const run_job *j, const run_child *c) {
    return c->signal || (j->plan->hosts && c->status > 128);
}

/* Marks the ranks that have ended since the last call. Does not reap them, so that their ids are not reused. Returns
 * the failed rank that is most probably the cause (one killed by a signal, rather than one that exited), or `first` if
 * none has failed. *dying counts ranks that are exiting. */
static int run_note_new(run_job *j, int first, int *dying) {
    *dying = 0;
    for (int i = 0; i < j->started; i++) {
        run_child *r = &j->children[i];
        siginfo_t info = {0};
        if (r->ended) continue;
        if (waitid(P_PID, (id_t)r->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || !info.si_pid) {
            *dying += j->first_failed < 0 && run_is_dying(r);
            continue;
        }
        r->ended = true;
        run_close_to(r);
        j->alive--;
        if (info.si_code != CLD_EXITED) r->signal = info.si_status;
        if (!r->reported) r->status = r->signal ? 128 + r->signal : info.si_status;
        /* ranks that the launcher itself has ended have not failed */
        const bool bad = r->status != 0 || (j->plan->hosts && !r->ready);
        r->failed = r->reported || (bad && (j->first_failed < 0 || j->ending < RUN_TERM_SENT));
        if (r->failed && (first < 0 || (run_was_killed(j, r) && !run_was_killed(j, &j->children[first])))) first = i;
    }
    return first;
}

/* Returns whether the job can still succeed. With --elastic it can if a rank still runs or has succeeded. */
static bool run_goes_on(const run_job *j) {
    int succeeded = 0;
    for (int i = 0; i < j->started; i++) succeeded += j->children[i].ended && j->children[i].status == 0;
    return j->plan->elastic && !j->ending && (j->alive || succeeded);
}

/* Marks the ranks that have ended, and returns the one that failed first, or -1. A rank that exits because another
 * one was killed may be noticed before that one, so this waits for ranks that are exiting. */
static int run_find_first(run_job *j) {
    int dying, first = run_note_new(j, -1, &dying);
    for (int ms = 0; first >= 0 && j->first_failed < 0 && !j->children[first].signal && dying && ms < RUN_DYING_MS;
         ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        first = run_note_new(j, first, &dying);
    }
    return first;
}

/* After child `first` has failed, gives the others time to end by themselves. `run --part` only reports the failure. */
static void run_begin_ending(run_job *j, int first) {
    j->first_failed = first;
    if (j->plan->part) run_part_report(j, j->children[first].status);
    if (j->plan->part || j->ending) return;
    j->ending = RUN_GRACE;
    j->deadline_ms = run_now_ms() + (j->end_signal ? RUN_USER_GRACE_MS : RUN_GRACE_MS);
}

ESP__FN void run_note_failed(run_job *j, int i) {
    if (j->first_failed >= 0) {
        const bool cause = run_was_killed(j, &j->children[i]) && !run_was_killed(j, &j->children[j->first_failed]);
        if (j->plan->hosts && cause && j->ending < RUN_TERM_SENT) j->first_failed = i;
        return;
    }
    run_report(j, &j->children[i]);
    if (run_goes_on(j)) return;
    run_begin_ending(j, i);
    if (j->plan->hosts && j->ready < j->n) run_abandon(j); /* no rank runs yet */
}

static void run_note_ended(run_job *j) {
    const int first = run_find_first(j);
    if (first >= 0) run_note_failed(j, first);
}

/* Ends the job more forcefully: with SIGTERM the first time, then with SIGKILL. */
static void run_escalate(run_job *j) {
    char text[256];
    int sig = j->ending == RUN_GRACE && !j->end_signal ? SIGTERM : SIGKILL;
    /* a host may be unreachable, so kills the remote shells to hosts too */
    for (int i = 0; i < j->started && j->ending == RUN_KILL_SENT; i++)
        if (!j->children[i].ended) kill(-j->children[i].pid, SIGKILL);
    if (j->ending == RUN_KILL_SENT) {
        j->deadline_ms = run_now_ms() + RUN_TERM_MS;
        return;
    }
    run_print(j, "ending what still runs with %s: %s", sig == SIGTERM ? "SIGTERM" : "SIGKILL",
              run_list(j, run_is_alive, text, sizeof text));
    run_signal_all(j, sig);
    run_signal_all(j, SIGCONT); /* a stopped rank would not end */
    j->ending = sig == SIGTERM ? RUN_TERM_SENT : RUN_KILL_SENT;
    j->deadline_ms = run_now_ms() + RUN_TERM_MS;
}

static bool run_is_end_signal(int sig) { return sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT; }

static void run_forward_signal(run_job *j, int sig) {
    if (sig == SIGTSTP) { /* Ctrl-Z does not reach the ranks, which have sessions of their own */
        run_signal_all(j, SIGSTOP);
        raise(SIGSTOP);
        run_signal_all(j, SIGCONT);
        return;
    }
    if (!run_is_end_signal(sig)) {
        run_signal_all(j, sig);
        return;
    }
    if (!j->alive) j->drop = true;
    if (j->plan->hosts && j->ready < j->n) { /* no rank runs yet */
        j->end_signal = sig;
        run_abandon(j);
        return;
    }
    if (j->end_signal && run_now_ms() - j->end_signal_ms >= RUN_INSIST_MS) {
        j->drop = true;
        j->ending = RUN_TERM_SENT;
        run_escalate(j);
        return;
    }
    if (!j->end_signal) j->end_signal_ms = run_now_ms();
    j->end_signal = sig;
    run_signal_all(j, sig);
}

/* Opens a signalfd for SIGCHLD and for the signals in `all`, except those that this process ignores, as under nohup. */
ESP__FN int run_signals_open(run_job *j) {
    static const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&j->mask);
    sigaddset(&j->mask, SIGCHLD);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
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
        if (s.ssi_signo != SIGCHLD) run_forward_signal(j, (int)s.ssi_signo);
    run_note_ended(j);
}

/* Handles a signal from the launcher, in `run --part`. The end of the input means that the launcher is gone. */
static void run_take_control(run_job *j) {
    unsigned char sig;
    if (read(j->control, &sig, 1) == 1) {
        run_forward_signal(j, sig);
        return;
    }
    j->control = -1;
    j->end_signal = SIGKILL;
    j->drop = true;
    run_abandon(j);
}

static int run_streams_open(const run_job *j) {
    int n = 0;
    for (int i = 0; i < j->started; i++) n += (j->children[i].out[0].fd >= 0) + (j->children[i].out[1].fd >= 0);
    return n;
}

/* Kills processes that ranks have started and left, and reads what remains in the pipes. */
static void run_sweep(run_job *j) {
    for (int i = 0; i < j->started; i++) {
        kill(-j->children[i].pid, SIGKILL);
        for (int s = 0; s < 2; s++) {
            run_stream *o = &j->children[i].out[s];
            for (int piece = 0; piece < 32 && o->fd >= 0; piece++) run_stream_read(j, o);
            run_stream_end(j, o);
        }
    }
}

/* Waits until something happens, at most until `deadline_ms`, and handles it. */
static void run_round(run_job *j, struct pollfd *p) {
    int n = 0, wait = -1;
    int64_t left = j->deadline_ms - run_now_ms();
    if (j->deadline_ms) wait = left < 0 ? 0 : (int)left + 1;
    p[n++] = (struct pollfd){.fd = j->signals, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = j->control, .events = POLLIN};
    for (int s = 0; s < 2; s++)
        p[n++] = (struct pollfd){.fd = run_sink_waiting(&j->sinks[s]) ? j->sinks[s].fd : -1, .events = POLLOUT};
    for (int i = 0; i < j->started; i++)
        for (int s = 0; s < 2; s++) {
            const run_stream *o = &j->children[i].out[s];
            p[n++] = (struct pollfd){.fd = run_stream_wanted(o) ? o->fd : -1, .events = POLLIN};
        }
    if (poll(p, (nfds_t)n, wait) < 0) return;
    for (int k = 4; k < n; k++)
        if (p[k].revents) run_stream_read(j, &j->children[(k - 4) / 2].out[k % 2]);
    for (int s = 0; s < 2; s++) run_sink_flush(&j->sinks[s]);
    if (p[0].revents) run_take_signals(j);
    if (p[1].revents) run_take_control(j);
}

ESP__FN void run_watch(run_job *j) {
    struct pollfd *p = tool_realloc(NULL, (size_t)(4 + 2 * j->started) * sizeof *p);
    bool lingering = false;
    for (;;) {
        int open = run_streams_open(j), waiting = run_sink_waiting(&j->sinks[0]) || run_sink_waiting(&j->sinks[1]);
        if (!j->alive && (j->drop || (!open && !waiting))) break;
        if (!j->alive && open && !lingering) {
            lingering = true;
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

/* Writes the last lines of output. Waits only for a limited time, since the reader may have stopped reading. */
static void run_drain(run_job *j) {
    for (int s = 0; s < 2; s++)
        for (run_sink *k = &j->sinks[s]; run_sink_waiting(k) && !j->drop; run_sink_flush(k)) {
            struct pollfd p = {.fd = k->fd, .events = POLLOUT};
            if (poll(&p, 1, 1000) <= 0) break;
        }
}

static int run_conclude(run_job *j) {
    char text[256];
    if (j->out->broken && j->out->broken != EPIPE) {
        run_print(j, "cannot write the ranks' output: %s", strerror(j->out->broken));
        return TOOL_FAILED;
    }
    if (j->plan->hosts && j->end_signal && j->ready < j->n) return 128 + j->end_signal;
    if (j->first_failed < 0) return TOOL_OK;
    const bool quiet = j->end_signal || j->out->broken;
    if (!quiet && run_list(j, run_is_follower, text, sizeof text)[0]) run_print(j, "%s failed after that", text);
    const run_child *c = &j->children[j->first_failed];
    const bool of_shell = j->plan->hosts && (!c->ready || c->signal || (c->status == 255 && !c->reported));
    return of_shell ? TOOL_FAILED : c->status;
}

ESP__FN int run_finish(run_job *j) {
    run_sweep(j);
    for (int i = 0; i < j->started; i++) waitpid(j->children[i].pid, NULL, 0);
    run_end_watchdog(j);
    int status = run_conclude(j);
    run_drain(j);
    return status;
}
