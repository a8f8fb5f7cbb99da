/* agent.c: `espresso run --agent`, which the launcher starts on each host of --hosts: starts the ranks of its host, sends what they
 * print and how they end, and passes signals on. What to do about a failed rank is the launcher's to decide. When the
 * connection ends, or the launcher is silent for long, ends its ranks: nothing stays behind. */
#include "tools/run/run.h"

typedef struct run_agent {
    run_job job;
    run_plan plan;
    run_queue in, out, input; /* from and to the launcher; for rank 0                                     */
    char *task;
    int port_fd;          /* keeps the meeting's port free until rank 0 listens at it                           */
    int feed;             /* pipe to rank 0; -1: closed                                                         */
    int input_ended;      /* the launcher's input is at its end                                                 */
    int fed;              /* input has come that RUN_MORE has not answered                                      */
    int started, stopped; /* stopped: by the launcher, which is stopped itself and silent                   */
    int over;
    size_t unread; /* bytes of output that the launcher has not forwarded yet                              */
    int64_t heard_ms, beat_ms;
} run_agent;

static void run_agent_send(run_agent *a, enum run_frame_type type, uint32_t value, const void *data, size_t bytes) {
    run_frame_add(&a->out, type, value, data, bytes);
}

/* Binds a free port without listening at it: Linux gives it to nobody else, but lets rank 0 bind it too and listen, as both
 * say SO_REUSEADDR. Returns it, or 0. */
static int run_agent_port(run_agent *a) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    const struct {
        struct sockaddr *at;
        socklen_t bytes;
    } address[] = {{(struct sockaddr *)&six, sizeof six}, {(struct sockaddr *)&four, sizeof four}};
    for (size_t i = 0; i < 2; i++) {
        int one = 1, zero = 0, fd = socket(address[i].at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        socklen_t bytes = address[i].bytes;
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (i == 0) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
        if (bind(fd, address[i].at, bytes) == 0 && getsockname(fd, address[i].at, &bytes) == 0) {
            a->port_fd = fd;
            return ntohs(i == 0 ? six.sin6_port : four.sin_port);
        }
        close(fd);
    }
    return 0;
}

/* Reads the task and checks all that it needs, before anything is started on any host. */
static int run_agent_prepare(run_agent *a, const run_frame *f) {
    const tool_command *c = a->plan.command;
    const char *directory;
    int wants_port, port = 0, status;
    if (a->task) return tool_fail(c, "the launcher sent two tasks");
    a->task = tool_realloc(NULL, f->bytes);
    memcpy(a->task, f->data, f->bytes);
    if (!run_task_read(&a->plan, a->task, f->bytes, &directory, &wants_port))
        return tool_fail(c, "the launcher sent a malformed task: is espresso the same version on both hosts?");
    for (int i = 0; i < a->plan.n_env; i++) putenv((char *)(uintptr_t)a->plan.env[i]);
    if (chdir(directory) != 0)
        return tool_fail(
            c,
            "cannot enter '%s' here: %s. Ranks run in the directory of the same name on every host: create it, or "
            "start the job in a directory that all hosts have",
            directory, strerror(errno));
    setenv("PWD", directory, 1);
    if ((status = run_find_program(&a->plan)) != TOOL_OK) return status;
    if (wants_port && !(port = run_agent_port(a))) return tool_fail(c, "no free port: %s", strerror(errno));
    run_agent_send(a, RUN_READY, (uint32_t)port, NULL, 0);
    return TOOL_OK;
}

static int run_agent_go(run_agent *a, const run_frame *f) {
    run_job *j = &a->job;
    run_plan *p = &a->plan;
    int input[2] = {-1, -1}, status;
    if (!a->task || a->started || f->bytes >= sizeof p->root)
        return tool_fail(p->command, "the launcher sent a start that makes no sense");
    memcpy(p->root, f->data, f->bytes);
    a->started = 1;
    j->ranks = tool_realloc(NULL, (size_t)p->here * sizeof *j->ranks);
    memset(j->ranks, 0, (size_t)p->here * sizeof *j->ranks);
    if (p->first == 0 && pipe2(input, O_CLOEXEC) != 0) return tool_fail(p->command, "no pipe: %s", strerror(errno));
    if (input[1] >= 0) fcntl(input[1], F_SETFL, O_NONBLOCK);
    j->input = input[0];
    a->feed = input[1];
    if ((status = run_tokens_open(j)) != TOOL_OK || (status = run_start_watchdog(j)) != TOOL_OK) return status;
    for (int i = 0; i < p->here && status == TOOL_OK; i++) status = run_start_rank(j, i);
    if (input[0] >= 0) close(input[0]);
    return status;
}

static void run_agent_signal(run_agent *a, int sig) {
    if (sig < 1 || sig >= NSIG) return;
    a->stopped = sig == SIGSTOP || (a->stopped && sig != SIGCONT);
    run_signal_all(&a->job, sig);
}

/* Nobody reads this output any more: the rank gets SIGPIPE, as it would without the launcher. */
static void run_agent_close(run_agent *a, uint32_t which) {
    const uint32_t i = which / 2 - (uint32_t)a->plan.first;
    run_stream *s = i < (uint32_t)a->job.started ? &a->job.ranks[i].out[which % 2] : NULL;
    if (!s || s->fd < 0) return;
    close(s->fd);
    s->fd = RUN_ENDED;
    run_agent_send(a, RUN_CLOSED, which, NULL, 0);
}

/* Handles one message. */
static int run_agent_hear(run_agent *a, const run_frame *f) {
    switch (f->type) {
    case RUN_TASK: return run_agent_prepare(a, f);
    case RUN_GO: return run_agent_go(a, f);
    case RUN_SIGNAL: run_agent_signal(a, (int)f->value); break;
    case RUN_CREDIT: a->unread -= f->value < a->unread ? f->value : a->unread; break;
    case RUN_INPUT:
        a->input_ended |= !f->bytes;
        a->fed = 1;
        run_queue_add(&a->input, f->data, f->bytes);
        break;
    case RUN_CLOSED: run_agent_close(a, f->value); break;
    default: break; /* a beat */
    }
    return TOOL_OK;
}

/* Gives rank 0 its input, and asks for more when it has all. */
static void run_agent_feed(run_agent *a, int broken) {
    if (a->feed < 0 && !a->fed) return;
    const int reads = a->feed >= 0 && !broken && run_queue_write(&a->input, a->feed);
    if (reads && (run_queue_waiting(&a->input) || !a->fed)) return;
    a->fed = 0;
    run_queue_free(&a->input);
    run_agent_send(a, RUN_MORE, !reads, NULL, 0);
    if (a->feed >= 0 && (!reads || a->input_ended)) {
        close(a->feed);
        a->feed = -1;
    }
}

/* Sends what a rank printed. Unlike the launcher this leaves lines as they come. */
static void run_agent_forward(run_agent *a, run_stream *s, int k) {
    char data[1 << 15];
    ssize_t n = read(s->fd, data, sizeof data);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) {
        run_agent_send(a, k ? RUN_ERR : RUN_OUT, (uint32_t)s->rank, data, (size_t)n);
        a->unread += (size_t)n;
        return;
    }
    close(s->fd);
    s->fd = RUN_ENDED;
    run_agent_send(a, RUN_CLOSED, (uint32_t)(2 * s->rank + k), NULL, 0);
}

/* Says which ranks ended, the one first that is most likely the cause of a failure. */
static void run_agent_tell(run_agent *a) {
    run_job *j = &a->job;
    int first = run_find_first(j);
    if (j->first_failed < 0) j->first_failed = first;
    for (int k = first >= 0 ? -1 : 0; k < j->started; k++) {
        char text[64];
        run_rank *r = &j->ranks[k < 0 ? first : k];
        if (!r->ended || r->told) continue;
        r->told = 1;
        int n = snprintf(text, sizeof text, "%d %d %d", (int)r->pid, r->status, r->signal);
        run_agent_send(a, RUN_GONE, (uint32_t)(a->plan.first + (int)(r - j->ranks)), text, (size_t)n + 1);
    }
}

/* One round: sleeps until something happens, and handles it. */
static int run_agent_round(run_agent *a, struct pollfd *p) {
    run_job *j = &a->job;
    int n = 0, room = a->unread < RUN_QUEUE_MAX, status = TOOL_OK, got;
    run_frame f;
    p[n++] = (struct pollfd){.fd = 0, .events = POLLIN};
    p[n++] =
        (struct pollfd){.fd = 1, .events = run_queue_waiting(&a->out) ? POLLOUT : 0}; /* also tells that it broke */
    p[n++] = (struct pollfd){.fd = j->signals, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = a->feed, .events = run_queue_waiting(&a->input) ? POLLOUT : 0};
    for (int i = 0; i < 2 * j->started; i++)
        p[n++] = (struct pollfd){.fd = room ? j->ranks[i / 2].out[i % 2].fd : -1, .events = POLLIN};
    if (poll(p, (nfds_t)n, 1000) < 0) return TOOL_OK;
    for (int k = 4; k < n; k++)
        if (p[k].revents) run_agent_forward(a, &j->ranks[(k - 4) / 2].out[k % 2], k % 2);
    if (p[2].revents) {
        struct signalfd_siginfo s;
        while (read(j->signals, &s, sizeof s) == (ssize_t)sizeof s) continue;
        run_agent_tell(a);
    }
    if (p[0].revents) {
        a->heard_ms = run_now_ms();
        a->over = !run_queue_read(&a->in, 0);
    }
    while (status == TOOL_OK && (got = run_frame_next(&a->in, &f)) != 0)
        status = got > 0 ? run_agent_hear(a, &f) : tool_fail(a->plan.command, "the launcher sent what is no message");
    if (p[3].revents || a->fed) run_agent_feed(a, p[3].revents & POLLERR);
    if (run_now_ms() - a->beat_ms > RUN_BEAT_MS) {
        a->beat_ms = run_now_ms();
        run_agent_send(a, RUN_BEAT, 0, NULL, 0);
    }
    if (p[1].revents & (POLLERR | POLLHUP) || !run_queue_write(&a->out, 1)) a->over = 1;
    if (!a->stopped && run_now_ms() - a->heard_ms > RUN_SILENT_MS) a->over = 1;
    return status;
}

static int run_agent_loop(run_agent *a) {
    struct pollfd *p = tool_realloc(NULL, 4 * sizeof *p);
    int status = TOOL_OK, room = 0;
    while (status == TOOL_OK && !a->over) {
        if (room < a->job.started) {
            room = a->job.started;
            p = tool_realloc(p, (size_t)(4 + 2 * room) * sizeof *p);
        }
        status = run_agent_round(a, p);
    }
    free(p);
    return status;
}

/* Ends the ranks and all that they started, without a zombie. */
static void run_agent_end(run_agent *a) {
    run_job *j = &a->job;
    for (int i = 0; i < j->started; i++) kill(-j->ranks[i].pid, SIGKILL);
    for (int i = 0; i < j->started; i++) {
        waitpid(j->ranks[i].pid, NULL, 0);
        for (int k = 0; k < 2; k++)
            if (j->ranks[i].out[k].fd >= 0) close(j->ranks[i].out[k].fd);
    }
    if (j->watchdog_pid > 0) run_end_watchdog(j);
    run_tokens_close(j);
    run_queue_free(&a->in);
    run_queue_free(&a->out);
    run_queue_free(&a->input);
    free(j->ranks);
    free(a->plan.argv);
    free(a->plan.machine_of);
    free(a->plan.local_of);
}

static int run_agent_main(const tool_command *self) {
    static run_agent a; /* `task` holds variables of the environment: it stays to the end */
    a.plan = (run_plan){.command = self};
    a.job = (run_job){.plan = &a.plan, .first_failed = -1, .tokens = {-1, -1}, .signals = -1, .suspect = -1};
    a.port_fd = a.feed = -1;
    a.heard_ms = a.beat_ms = run_now_ms();
    int status = run_signals_open(&a.job, 0);
    if (status != TOOL_OK) return status;
    fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
    fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK);
    char hello[64];
    int n = snprintf(hello, sizeof hello, "\n%s%s\n", run_greeting, ESPRESSO_VERSION);
    run_queue_add(&a.out, hello, (size_t)n);
    status = run_agent_loop(&a);
    run_agent_end(&a);
    return status;
}
