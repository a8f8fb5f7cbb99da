/* remote.c: the launcher's side of --hosts: reaches each host by the remote shell, which starts an agent there, tells the agents
 * what to start, and takes what they send. Must not know what a failed rank means for the job: watch.c does. */
#include "tools/run/run.h"

static void run_host_send(run_host *h, enum run_frame_type type, uint32_t value, const void *data, size_t bytes) {
    if (h->to >= 0) run_frame_add(&h->out, type, value, data, bytes);
}

/* The command for the other host's shell: exec 'PATH' run --agent. */
static char *run_agent_command(const char *path) {
    char *text = tool_realloc(NULL, 4 * strlen(path) + 32), *at = text + sprintf(text, "exec '");
    for (; *path; path++) at += *path == '\'' ? sprintf(at, "'\\''") : sprintf(at, "%c", *path);
    sprintf(at, "' run --agent");
    return text;
}

/* Starts the remote shell, in a session of its own: the terminal's Ctrl-C reaches only the launcher. */
static int run_host_open(run_job *j, run_host *h) {
    const tool_command *c = j->plan->command;
    int pipes[3][2];
    const pid_t launcher = getpid();
    for (int i = 0; i < 3; i++)
        if (pipe2(pipes[i], O_CLOEXEC) != 0)
            return tool_fail(c, "host %s: no pipe: %s", h->spec->name, strerror(errno));
    char *command = run_agent_command(j->plan->espresso), *script = tool_realloc(NULL, strlen(j->plan->rsh) + 16);
    sprintf(script, "exec %s \"$@\"", j->plan->rsh);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != launcher) _exit(126);
        dup2(pipes[0][0], 0);
        dup2(pipes[1][1], 1);
        dup2(pipes[2][1], 2);
        signal(SIGPIPE, SIG_DFL);
        sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
        execl("/bin/sh", "sh", "-c", script, "rsh", h->spec->name, command, (char *)NULL);
        _exit(127);
    }
    const int error = errno;
    free(command);
    free(script);
    close(pipes[0][0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    h->to = pipes[0][1];
    h->from = pipes[1][0];
    h->err = (run_stream){.fd = pipes[2][0], .rank = -1, .host = h->spec->name, .sink = j->err};
    const int ours[] = {h->to, h->from, h->err.fd};
    for (int i = 0; i < 3; i++) fcntl(ours[i], F_SETFL, O_NONBLOCK);
    if (pid < 0) return tool_fail(c, "host %s: cannot start a process: %s", h->spec->name, strerror(error));
    h->pid = pid;
    h->heard_ms = h->beat_ms = run_now_ms();
    if (write(j->watchdog, &pid, sizeof pid) < 0) tool_fail(c, "the watchdog process is gone: %s", strerror(errno));
    return TOOL_OK;
}

/* Exit status of the remote shell, or 128 + signal; -1: it still runs. Leaves it unreaped: its id is that of its group. */
static int run_host_status(const run_host *h) {
    siginfo_t info = {0};
    if (h->pid <= 0 || waitid(P_PID, (id_t)h->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || !info.si_pid) return -1;
    return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

static void run_host_shut(run_host *h) {
    if (h->to >= 0) close(h->to);
    if (h->from >= 0) close(h->from);
    h->to = h->from = -1;
}

/* The ranks of a host that can no longer say how they ended. Its agent ends them when it notices. */
static void run_host_lose(run_job *j, run_host *h, const char *why) {
    char list[64];
    const int first = h->spec->first, n = h->spec->ranks;
    int here = 0;
    run_host_shut(h);
    for (int i = first; i < first + n; i++) {
        run_rank *r = &j->ranks[i];
        for (int k = 0; k < 2; k++) run_stream_end(j, &r->out[k]);
        here += !r->ended;
        if (r->ended) continue;
        r->ended = 1;
        j->alive--;
        r->status = TOOL_FAILED;
    }
    if (!here || h->lost) return;
    h->lost = 1;
    snprintf(list, sizeof list, n > 1 ? "ranks %d-%d are" : "rank %d is", first, first + n - 1);
    run_say(j, "host %s: %s: %s lost", h->spec->name, why, list);
    if (j->first_failed < 0 && !run_goes_on(j)) run_begin_ending(j, first);
}

/* Says why a host did not get ready. */
static void run_host_explain(run_job *j, const run_host *h, int status) {
    const char *name = h->spec->name, *path = j->plan->espresso;
    char rsh[128];
    snprintf(rsh, sizeof rsh, "%.*s", (int)strcspn(j->plan->rsh, " "), j->plan->rsh);
    if (h->greeted)
        run_say(j, "host %s: cannot start the ranks there, see above", name);
    else if (status == 127)
        run_say(j,
                "host %s: command not found: is espresso at '%s' there (--espresso PATH names another), and '%s' here?",
                name, path, rsh);
    else if (status == 255)
        run_say(j, "host %s: '%s' cannot reach it or log in without asking (exit status 255), see above", name, rsh);
    else if (status > 128)
        run_say(j, "host %s: '%s' was killed by signal %d (%s)", name, rsh, status - 128, strsignal(status - 128));
    else
        run_say(j,
                "host %s: '%s' ended with status %d before espresso answered there: is '%s' this version of espresso?",
                name, rsh, status, path);
}

/* The connection has ended: waits shortly for the remote shell's status and last words. */
static void run_host_ended(run_job *j, run_host *h) {
    char why[96];
    int status = -1;
    run_host_shut(h);
    for (int ms = 0; ms < RUN_DYING_MS && (status = run_host_status(h)) < 0; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (status < 0) kill(-h->pid, SIGKILL);
    for (int piece = 0; piece < 32 && h->err.fd >= 0; piece++) run_stream_read(j, &h->err);
    run_stream_end(j, &h->err);
    snprintf(why, sizeof why, "the connection ended (exit status %d of the remote shell)", status);
    if (j->started) run_host_lose(j, h, why);
    if (!j->started && !h->lost) run_host_explain(j, h, status);
    h->lost = 1;
}

/* Before the agent's greeting a login script may print something. 0: the versions differ. */
static int run_host_greeting(run_job *j, run_host *h) {
    const size_t n = sizeof run_greeting - 1;
    char *newline;
    while (!h->greeted && run_queue_waiting(&h->in) &&
           (newline = memchr(h->in.data + h->in.begin, '\n', run_queue_waiting(&h->in)))) {
        char *line = h->in.data + h->in.begin;
        const size_t bytes = (size_t)(newline - line);
        h->in.begin += bytes + 1;
        if (bytes < n || memcmp(line, run_greeting, n)) {
            if (bytes) run_stream_take(j, &h->err, line, bytes + 1);
            continue;
        }
        *newline = 0;
        h->greeted = 1;
        if (strcmp(line + n, ESPRESSO_VERSION) == 0) return 1;
        run_say(
            j,
            "host %s: '%s' there is version %s, this is %s: install one version everywhere, or name another file with "
            "--espresso PATH",
            h->spec->name, j->plan->espresso, line + n, ESPRESSO_VERSION);
        return 0;
    }
    return 1;
}

static void run_host_gone(run_job *j, const run_frame *f, run_rank *r) {
    int pid = 0;
    if (r->ended || !f->bytes || f->data[f->bytes - 1] ||
        sscanf(f->data, "%d %d %d", &pid, &r->status, &r->signal) != 3)
        return;
    r->pid = pid;
    r->ended = 1;
    j->alive--;
    r->failed = r->status != 0 && (j->first_failed < 0 || j->ending < 2);
    if (!r->failed || j->first_failed >= 0) return;
    /* of ranks on several hosts that end at once, one killed by a signal is more likely the cause than one that exited */
    if (j->suspect < 0) j->suspect_ms = run_now_ms() + RUN_SETTLE_MS;
    if (j->suspect < 0 || (r->signal && !j->ranks[j->suspect].signal)) j->suspect = (int)(r - j->ranks);
    if (r->signal) j->suspect_ms = run_now_ms();
}

/* Handles one message of an agent. 0: it makes no sense. */
static int run_host_hear(run_job *j, run_host *h, const run_frame *f) {
    const uint32_t k = f->type == RUN_CLOSED ? f->value % 2 : f->type == RUN_ERR;
    const uint32_t rank = f->type == RUN_CLOSED ? f->value / 2 : f->value;
    run_rank *r = NULL;
    if (strchr("OEKX", f->type) && f->type) {
        if (!j->started || rank < (uint32_t)h->spec->first || rank >= (uint32_t)(h->spec->first + h->spec->ranks))
            return 0;
        r = &j->ranks[rank];
    }
    switch (f->type) {
    case RUN_READY:
        h->ready = 1;
        h->port = (int)f->value;
        break;
    case RUN_OUT:
    case RUN_ERR:
        h->owed += f->bytes;
        if (r->out[k].sink->broken) /* as without the launcher, a rank gets SIGPIPE when nobody reads */
            run_host_send(h, RUN_CLOSED, 2 * rank + k, NULL, 0);
        else if (r->out[k].fd == RUN_FRAMES)
            run_stream_take(j, &r->out[k], f->data, f->bytes);
        break;
    case RUN_CLOSED: run_stream_end(j, &r->out[k]); break;
    case RUN_GONE: run_host_gone(j, f, r); break;
    case RUN_MORE: j->input_free = f->value ? -1 : 1; break;
    default: break; /* a beat */
    }
    return 1;
}

/* Takes what came from a host. 0: the connection is of no use any more. */
static int run_host_take(run_job *j, run_host *h) {
    const int open = run_queue_read(&h->in, h->from), greeted = h->greeted;
    run_frame f;
    int got = 0, sense = 1;
    h->heard_ms = run_now_ms();
    if (!run_host_greeting(j, h)) return h->lost = 1, 0;
    if (!greeted && h->greeted) {
        run_queue task = {0};
        run_task_write(j->plan, h->spec, &task);
        run_host_send(h, RUN_TASK, 0, task.data, run_queue_waiting(&task));
        run_queue_free(&task);
    }
    while (h->greeted && sense && (got = run_frame_next(&h->in, &f)) > 0) sense = run_host_hear(j, h, &f);
    if (got < 0 || !sense) run_say(j, "host %s: the agent there sent what makes no sense", h->spec->name);
    return open && got >= 0 && sense;
}

/* Input from a terminal is taken only while we are its foreground job: to read in the background would stop us. */
static int run_input_wanted(const run_job *j) {
    return j->started && j->input_free > 0 && !j->ranks[0].ended && (!isatty(0) || tcgetpgrp(0) == getpgrp());
}

static void run_input_take(run_job *j) {
    char data[RUN_INPUT_MAX];
    ssize_t n = read(0, data, sizeof data);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    run_host_send(&j->hosts[0], RUN_INPUT, 0, data, n > 0 ? (size_t)n : 0);
    j->input_free = n > 0 ? 0 : -1;
}

/* How long poll() may wait: a second at most, as the remote shells' time is watched too. */
static int run_hosts_wait(const run_job *j, int wait) {
    const int most = j->suspect >= 0 && j->first_failed < 0 ? 20 : 1000;
    return wait < 0 || wait > most ? most : wait;
}

/* The entries of poll() for hosts: three each, and one for our input. */
static int run_hosts_poll(const run_job *j, struct pollfd *p) {
    int n = 0;
    for (int i = 0; i < j->plan->n_hosts; i++) {
        const run_host *h = &j->hosts[i];
        p[n++] = (struct pollfd){.fd = run_queue_waiting(&h->out) ? h->to : -1, .events = POLLOUT};
        p[n++] = (struct pollfd){.fd = h->from, .events = POLLIN};
        p[n++] = (struct pollfd){.fd = run_stream_wanted(&h->err) ? h->err.fd : -1, .events = POLLIN};
    }
    p[n++] = (struct pollfd){.fd = run_input_wanted(j) ? 0 : -1, .events = POLLIN};
    return n;
}

static void run_host_serve(run_job *j, run_host *h, const struct pollfd *p) {
    const int64_t now = run_now_ms();
    const int full = run_sink_waiting(&j->sinks[0]) >= RUN_QUEUE_MAX || run_sink_waiting(&j->sinks[1]) >= RUN_QUEUE_MAX;
    if (p[2].revents && h->err.fd >= 0) run_stream_read(j, &h->err);
    if (h->from < 0) return;
    if (p[1].revents && !run_host_take(j, h)) {
        run_host_ended(j, h);
        return;
    }
    if (h->owed && !full) {
        run_host_send(h, RUN_CREDIT, h->owed, NULL, 0);
        h->owed = 0;
    }
    if (now - h->beat_ms > RUN_BEAT_MS) {
        h->beat_ms = now;
        run_host_send(h, RUN_BEAT, 0, NULL, 0);
    }
    if (h->to >= 0 && !run_queue_write(&h->out, h->to)) { /* the end of `from` tells more */
        close(h->to);
        h->to = -1;
    }
    if (j->started && now - h->heard_ms > RUN_SILENT_MS) run_host_lose(j, h, "no sign of life for a minute");
}

/* After poll(): moves all that can be moved. A remote shell that ended takes its connection with it, even where what it started
 * still holds the pipes. */
static void run_hosts_serve(run_job *j, const struct pollfd *p) {
    for (int i = 0; i < j->plan->n_hosts; i++) {
        run_host *h = &j->hosts[i];
        run_host_serve(j, h, &p[3 * i]);
        if (h->from < 0 || run_host_status(h) < 0) continue;
        while (h->from >= 0 && poll(&(struct pollfd){.fd = h->from, .events = POLLIN}, 1, 0) > 0)
            if (!run_host_take(j, h)) break;
        if (h->from >= 0) run_host_ended(j, h);
    }
    if (p[3 * j->plan->n_hosts].revents) run_input_take(j);
    if (j->suspect < 0 || j->first_failed >= 0 || (run_now_ms() < j->suspect_ms && j->alive)) return;
    run_report(j, &j->ranks[j->suspect]);
    if (run_goes_on(j))
        j->suspect = -1;
    else
        run_begin_ending(j, j->suspect);
}

static void run_hosts_signal(run_job *j, int sig) {
    for (int i = 0; i < j->plan->n_hosts; i++) run_host_send(&j->hosts[i], RUN_SIGNAL, (uint32_t)sig, NULL, 0);
}

/* Before the launcher itself stops: what it has to say must be on its way, and its silence must not count afterwards. */
static void run_hosts_flush(run_job *j) {
    for (int i = 0; i < j->plan->n_hosts; i++) {
        run_host *h = &j->hosts[i];
        for (int ms = 0; ms < 1000 && h->to >= 0 && run_queue_write(&h->out, h->to) && run_queue_waiting(&h->out);
             ms += 10)
            poll(&(struct pollfd){.fd = h->to, .events = POLLOUT}, 1, 10);
    }
}
static void run_hosts_continue(run_job *j) {
    for (int i = 0; i < j->plan->n_hosts; i++) j->hosts[i].heard_ms = run_now_ms();
}

/* Hosts whose ranks did not end although they were killed: nobody there answers. */
static void run_hosts_give_up(run_job *j) {
    for (int i = 0; i < j->plan->n_hosts; i++) run_host_lose(j, &j->hosts[i], "does not answer");
}

/* Lets the agents end what is left on their hosts: they do so when the connection ends. */
static void run_hosts_close(run_job *j) {
    for (int i = 0; i < j->plan->n_hosts; i++)
        if (j->hosts[i].to >= 0) {
            close(j->hosts[i].to);
            j->hosts[i].to = -1;
        }
}

static void run_hosts_end(run_job *j) {
    const int64_t end = run_now_ms() + RUN_TERM_MS;
    run_hosts_close(j);
    for (int i = 0; i < j->plan->n_hosts; i++) {
        run_host *h = &j->hosts[i];
        if (h->pid <= 0) continue;
        while (run_host_status(h) < 0 && run_now_ms() < end) {
            struct pollfd p[2] = {{.fd = h->from, .events = POLLIN}, {.fd = h->err.fd, .events = POLLIN}};
            poll(p, 2, 10);
            h->in.begin = h->in.end = 0; /* nobody waits for it */
            if (p[0].revents && !run_queue_read(&h->in, h->from)) run_host_shut(h);
            if (p[1].revents) run_stream_read(j, &h->err);
        }
        kill(-h->pid, SIGKILL);
        waitpid(h->pid, NULL, 0);
        run_stream_end(j, &h->err);
        run_host_shut(h);
        run_queue_free(&h->in);
        run_queue_free(&h->out);
    }
}

/* Waits until every host is ready. */
static int run_hosts_gather(run_job *j) {
    const int n = j->plan->n_hosts;
    struct pollfd *p = tool_realloc(NULL, (size_t)(3 + 3 * n + 1) * sizeof *p);
    const int64_t end = run_now_ms() + RUN_SETUP_MS;
    int ready = 0, lost = 0;
    while (ready < n && !lost && !j->asked && run_now_ms() < end) {
        run_round(j, p);
        ready = 0;
        for (int i = 0; i < n; i++) ready += j->hosts[i].ready;
        for (int i = 0; i < n; i++) lost |= j->hosts[i].lost;
    }
    free(p);
    for (int i = 0; i < n && !lost && !j->asked; i++)
        if (!j->hosts[i].ready)
            run_say(j, "host %s: no answer within %d s", j->hosts[i].spec->name, RUN_SETUP_MS / 1000);
    return j->asked ? 128 + j->asked : ready == n ? TOOL_OK : TOOL_FAILED;
}

/* Starts the ranks on all hosts, or on none. */
static int run_hosts_start(run_job *j) {
    const run_plan *p = j->plan;
    char root[sizeof p->root + 8];
    int status = TOOL_OK;
    j->hosts = tool_realloc(NULL, (size_t)p->n_hosts * sizeof *j->hosts);
    for (int i = 0; i < p->n_hosts; i++)
        j->hosts[i] = (run_host){.spec = &p->hosts[i], .to = -1, .from = -1, .err = {.fd = RUN_ENDED}};
    for (int i = 0; i < p->n_hosts && status == TOOL_OK; i++) status = run_host_open(j, &j->hosts[i]);
    if (status == TOOL_OK) status = run_hosts_gather(j);
    if (status != TOOL_OK) return status;
    snprintf(root, sizeof root, j->hosts[0].port ? "%s%d" : "%s", p->root, j->hosts[0].port);
    for (int i = 0; i < p->n_hosts; i++) run_host_send(&j->hosts[i], RUN_GO, 0, root, strlen(root) + 1);
    for (int i = 0; i < p->n; i++)
        for (int s = 0; s < 2; s++)
            j->ranks[i].out[s] = (run_stream){.fd = RUN_FRAMES, .rank = i, .sink = s ? j->err : j->out};
    j->started = j->alive = p->n;
    j->input_free = 1;
    return TOOL_OK;
}
